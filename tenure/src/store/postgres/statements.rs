//! The SQL. `{table}` is the store's table, `{channel}` the name of its notifications.
//!
//! Each call is one statement, whatever the size of its batch, and a transaction of its own. All three begin in the
//! same way: the entries are unfolded from arrays; rows that matter are locked, and those that somebody else has locked
//! are skipped; *then* the clock is read, once. So nobody waits for a lock (but for a name that another session is
//! inserting at that moment, for `lock_timeout` at the most), a term never begins before its row was locked, and all
//! parts of a statement agree on what has expired.
//!
//! Rows are meant to be found by the primary key, one for each entry, whatever the planner believes of a table that was
//! empty a minute ago: see [`TUNE`].
//!
//! How rows are locked: a claim `for update`, as for a change of the key; renewal and release `for no key update`. A user's
//! transaction that has the row `for key share` (see `hold_in`) thus lets renewals pass, and holds up the next claim.

use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Postgres};
use std::sync::Arc;

use super::Table;

/// What a database administrator gets to read.
const CREATE: &str = "\
-- Tenure's locks: one row a name. A row stays when its name is released, to remember the token; `tenure prune`
-- forgets rows that nobody has used for long. Times are by this server's clock.
-- Once the table is there, a role needs only: grant select, insert, update, delete on {table} to …
create table if not exists {table} (
  name          text collate \"C\" not null primary key,  -- what is held; compared byte by byte
  owner         text,                                   -- who holds it, for people; null if free
  data          text,                                   -- JSON that the holder attached
  token         bigint      not null,                   -- the fencing number: rises with every grant
  acquired      timestamptz not null,                   -- when the term began
  renewed       timestamptz not null,                   -- when it was last renewed
  expires       timestamptz not null,                   -- when it ends unless renewed; if free: when it ended
  lease         text,                                   -- the acquisition that holds the name; null if free
  first         bigint      not null,                   -- the term's first token
  grace         interval    not null,                   -- how long the name stays closed after an expiry
  evicted_lease text,                                   -- the last term that an operator ended: its lease,
  evicted_first bigint,                                 --   its first token,
  evicted_by    text,                                   --   and who ended it and why
  waited        boolean     not null default false      -- somebody waits: the release is to notify
) with (fillfactor = 70);                               -- room for renewals on the row's own page; no index on what they change
";

const CREATE_SCHEMA: &str = "create schema if not exists {schema};\n";

/// Makes what is missing. `create … if not exists` fails for one of two that do it at once, hence the lock; together
/// they are one transaction.
const MAKE: &str = "select pg_advisory_xact_lock(hashtext('tenure'), hashtext('{table}')); {create_schema} {create}";

/// What is there, and whether the server will do.
const PROBE: &str = "
select current_setting('server_version_num')::int as version,
       current_setting('server_version') as version_name,
       current_setting('default_transaction_isolation') = 'read committed'
         and current_setting('default_transaction_read_only') = 'off' as usual,
       to_regclass('{table}') is not null as made,
       {schema_made} as schema_made,
       array(select right_to from unnest(array['select', 'insert', 'update', 'delete']) as right_to
             where not has_table_privilege(to_regclass('{table}'), right_to)) as missing_rights";

/// Fails if the table is another's.
const CHECK: &str = "
select name, owner, data, token, acquired, renewed, expires, lease, first, grace,
       evicted_lease, evicted_first, evicted_by, waited
from {table} limit 0";

/// For sessions that are ours alone. Left to itself, the planner scans the table while it is small, and goes on to do so
/// when it has grown; and it would plan each call anew, which takes longer than to carry it out.
pub(super) const TUNE: &str = "set enable_seqscan = off; set enable_hashjoin = off; set enable_mergejoin = off;
set plan_cache_mode = force_generic_plan; set jit = off";

/// How long a call waits for a name that another session is inserting.
const LIMITS: &str = "(select set_config('lock_timeout', '250ms', true)) as limits";

/// One clock for the statement, read when `picked` has locked its rows.
const NOW: &str = "now as materialized (
  select at, (extract(epoch from at) * 1000000)::bigint as micros
  from (select clock_timestamp() as at from (select count(*) from picked) as locked) as clock)";

/// A row, as `Seen` reads it.
const SEEN: &str = "json_build_array(l.name, l.owner, l.data, l.token, {us:l.acquired}, {us:l.renewed}, {us:l.expires},
    l.lease, l.first, {us:l.grace}, l.evicted_lease, l.evicted_first, l.evicted_by, {us:clock_timestamp()})::text";

/// Only rows that look free are locked, and rows of others that nobody is marked to wait for: so a look at a held name
/// costs no write. `waited` is set under the row's lock, and a release that finds it notifies: whoever was refused
/// with `told` will hear of it. The marks of an eviction are left alone: they outlive the next claim.
const CLAIM: &str = "
with claims as materialized (
  select c.* from {limits}, unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::bool[])
    with ordinality as c(name, lease, owner, data, ttl, grace, waits, entry)
), picked as materialized (
  select c.*, l.lease is null or l.lease = c.lease as free, l.expires + l.grace as closed_until
  from claims c join {table} l on l.name = c.name
  where l.lease is null or l.lease = c.lease or l.expires + l.grace <= clock_timestamp() or (c.waits and not l.waited)
  for update of l skip locked
), {now}, marked as (
  update {table} l set waited = true
  from picked c, now where l.name = c.name and not c.free and c.closed_until > now.at
  returning c.entry
), taken as (
  update {table} l set
    token    = case when {retry} then l.token    else greatest(l.token + 1, now.micros) end,
    first    = case when {retry} then l.first    else greatest(l.token + 1, now.micros) end,
    acquired = case when {retry} then l.acquired else now.at end,
    owner = c.owner, data = c.data, lease = c.lease, grace = c.grace * interval '1 microsecond',
    renewed = now.at, expires = now.at + c.ttl * interval '1 microsecond'
  from picked c, now
  where l.name = c.name and (c.free or c.closed_until <= now.at)
  returning c.entry, l.token
), made as (
  insert into {table} as l (name, owner, data, token, acquired, renewed, expires, lease, first, grace)
  select c.name, c.owner, c.data, now.micros, now.at, now.at, now.at + c.ttl * interval '1 microsecond',
         c.lease, now.micros, c.grace * interval '1 microsecond'
  from claims c cross join now
  where not exists (select 1 from {table} l where l.name = c.name)
  order by c.name
  on conflict do nothing
  returning l.name, l.token
)
select entry, null as name, token, null as seen, false as told from taken
union all
select null, name, token, null, false from made
union all
select c.entry, null, null, {seen}, l.waited or c.entry in (select entry from marked)
from claims c join {table} l on l.name = c.name
where c.entry not in (select entry from taken)";

/// The lease that holds the name, live, asks again.
const RETRY: &str = "l.lease = c.lease and l.expires > now.at";

/// A term that is there by the statement's snapshot, but was not picked: somebody else has its row locked.
const LOCKED: &str = "{ours} and l.expires > now.at and t.entry not in (select entry from picked)";

const RENEW: &str = "
with terms as materialized (
  select t.* from {limits}, unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bool[])
    with ordinality as t(name, lease, first, ttl, rotate, entry)
), picked as materialized (
  select t.* from terms t join {table} l on l.name = t.name
  where {ours}
  for no key update of l skip locked
), {now}, kept as (
  update {table} l set
    renewed = now.at,
    expires = now.at + t.ttl * interval '1 microsecond',
    token   = case when t.rotate then greatest(l.token + 1, now.micros) else l.token end
  from picked t, now
  where l.name = t.name and {ours} and l.expires > now.at
  returning t.entry, l.token
)
select entry, null as name, token, null as seen, false as locked from kept
union all
select t.entry, null, null, {seen}, {locked}
from terms t cross join now join {table} l on l.name = t.name
where t.entry not in (select entry from kept)";

/// The holder's own release, without `evicted_by`, leaves the marks of an earlier eviction alone.
const RELEASE: &str = "
with terms as materialized (
  select t.* from {limits}, unnest($1::text[], $2::text[], $3::bigint[], $4::text[])
    with ordinality as t(name, lease, first, evicted_by, entry)
), picked as materialized (
  select t.*, l.waited from terms t join {table} l on l.name = t.name
  where {ours}
  for no key update of l skip locked
), {now}, freed as (
  update {table} l set
    lease = null, owner = null, data = null, grace = interval '0', expires = now.at, waited = false,
    evicted_lease = case when t.evicted_by is null then l.evicted_lease else l.lease end,
    evicted_first = case when t.evicted_by is null then l.evicted_first else l.first end,
    evicted_by    = coalesce(t.evicted_by, l.evicted_by)
  from picked t, now
  where l.name = t.name and {ours} and l.expires > now.at
  returning t.entry, l.name, t.waited
), told as materialized (
  select count(pg_notify('{channel}', name)) from freed where waited
)
select entry, true as freed, false as locked from freed cross join told
union all
select t.entry, false, {locked}
from terms t cross join now join {table} l on l.name = t.name
where t.entry not in (select entry from freed)";

/// The term that an entry means.
const OURS: &str = "l.lease = t.lease and l.first = coalesce(t.first, l.first)";

/// `$1` and `$3` are the ends of one range of the primary key.
const LIST: &str = "
select {seen} from {table} l
where name >= $1 and name <> $2 and ($3::text is null or name < $3) and lease is not null
order by name limit $4";

const PRUNE: &str = "
with idle as materialized (
  select l.name from {table} l, (select clock_timestamp() - $1 * interval '1 microsecond' as since) as clock
  where l.expires + l.grace <= since and l.token < {us:since}
  for update of l skip locked
), gone as (delete from {table} l using idle where l.name = idle.name returning 1)
select count(*) from gone";

const EXAMINE: &str = "
select current_setting('server_version') as version,
       current_setting('synchronous_commit') as synchronous_commit,
       current_setting('fsync') as fsync,
       current_setting('full_page_writes') as full_page_writes,
       pg_is_in_recovery() as standby,
       (select count(*) from pg_stat_replication) as replicas,
       (select count(*) from pg_stat_replication where sync_state in ('sync', 'quorum')) as synchronous_replicas,
       current_setting('max_connections')::bigint as connections_allowed,
       (select count(*) from pg_stat_activity where backend_type = 'client backend') as connections,
       count(*) filter (where lease is not null and expires > clock_timestamp()) as held,
       count(*) filter (where lease is not null and expires <= clock_timestamp()) as expired,
       count(*) filter (where lease is null) as free
from {table}";

/// Takes a held name's row into the user's transaction. Nothing is read from it: under `repeatable read` that would be
/// what it was when the transaction began.
const HOLD: &str = "select 1 from {table} where name = $1 for key share";

const NOTIFY: &str = "select pg_notify($1, '')";

/// A statement with what is bound to it.
pub(super) type Statement<'a> = Query<'a, Postgres, PgArguments>;

/// The statement for `sql`. It is safe: only checked identifiers were put into it.
pub(super) fn statement<'a>(sql: &Arc<str>) -> Statement<'a> {
    sqlx::query(AssertSqlSafe(sql.clone()))
}

/// The SQL for one table.
pub(super) struct Statements {
    pub create: Arc<str>,
    pub make: Arc<str>,
    pub make_in_schema: Arc<str>,
    pub probe: Arc<str>,
    pub check: Arc<str>,
    pub claim: Arc<str>,
    pub renew: Arc<str>,
    pub release: Arc<str>,
    pub list: Arc<str>,
    pub prune: Arc<str>,
    pub examine: Arc<str>,
    pub notify: Arc<str>,
}

impl Statements {
    pub fn new(table: &Table) -> Self {
        let fill = |sql: &str| -> Arc<str> { fill(sql, table).into() };
        let with_schema = |create: &str| table.schema.iter().map(|_| CREATE_SCHEMA).chain([create]).collect::<String>();
        Self {
            create: fill(&with_schema(CREATE)),
            make: fill(&MAKE.replace("{create_schema}", "")),
            make_in_schema: fill(&MAKE.replace("{create_schema}", &with_schema(""))),
            probe: fill(PROBE),
            check: fill(CHECK),
            claim: fill(CLAIM),
            renew: fill(RENEW),
            release: fill(RELEASE),
            list: fill(LIST),
            prune: fill(PRUNE),
            examine: fill(EXAMINE),
            notify: fill(NOTIFY),
        }
    }
}

/// The statement that takes a record of `table` into a user's transaction.
pub(super) fn hold(table: &str) -> String {
    HOLD.replace("{table}", table)
}

fn fill(sql: &str, table: &Table) -> String {
    // In this order: what is put in has placeholders of its own.
    let parts = [
        ("{create}", CREATE),
        ("{limits}", LIMITS),
        ("{now}", NOW),
        ("{locked}", LOCKED),
        ("{ours}", OURS),
        ("{retry}", RETRY),
        ("{seen}", SEEN),
    ];
    let sql = parts.iter().fold(sql.to_owned(), |sql, (place, part)| sql.replace(place, part));
    let schema_made = table.schema.as_ref().map_or("true", |_| "to_regnamespace('{schema}') is not null");
    micros(&sql.replace("{schema_made}", schema_made))
        .replace("{table}", &table.quoted())
        .replace("{schema}", &table.quoted_schema())
        .replace("{channel}", table.name.as_str())
}

/// `{us:X}` is the time X in microseconds (since 1970, if it is a point in time).
fn micros(sql: &str) -> String {
    let mut parts = sql.split("{us:");
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (time, rest) = part.split_once('}').unwrap_or((part, ""));
        whole += &format!("(extract(epoch from {time}) * 1000000)::bigint{rest}");
    }
    whole
}
