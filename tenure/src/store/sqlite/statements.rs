//! The SQL. `{table}` is the store's table, `{now}` the clock, `{columns}` what a record is read from.
//!
//! Each call writes with one statement, whatever the size of the batch; its entries come as one JSON array, and so do
//! the answers, read back behind it. A statement that writes takes the write lock when it starts, waits for it with
//! the busy handler (one that has to turn from reading to writing can't), and reads the clock after that, once.

use std::sync::Arc;

use sqlx::query::Query;
use sqlx::sqlite::SqliteArguments;
use sqlx::{AssertSqlSafe, Sqlite};

use crate::store::url::Identifier;

/// SQLite's clock in microseconds since 1970; it ticks in milliseconds. Rounded, since `subsec` is a float.
const NOW: &str = "(cast(round(unixepoch('subsec') * 1000) as integer) * 1000)";

const COLUMNS: &str = "name, owner, data, token, acquired, renewed, expires, lease, first, grace";

/// A row, as `Seen` reads it.
const SEEN: &str = "json_array({columns}, evicted_lease, evicted_first, evicted_by, {now})";

/// What a database administrator gets to read.
const CREATE: &str = "\
-- Tenure's locks: one row a name. A row stays when its name is released, to remember the token; `tenure prune`
-- forgets rows that nobody has used for long. Times are microseconds since 1970 by this machine's clock.
-- The file must be in WAL mode (pragma journal_mode = wal) and on a local file system.
create table if not exists \"{table}\" (
  name          text    not null primary key,  -- what is held; compared byte by byte
  owner         text,                          -- who holds it, for people; null if free
  data          text,                          -- JSON that the holder attached
  token         integer not null,              -- the fencing number: rises with every grant
  acquired      integer not null,              -- when the term began
  renewed       integer not null,              -- when it was last renewed
  expires       integer not null,              -- when it ends unless renewed; if free: when it ended
  lease         text,                          -- the acquisition that holds the name; null if free
  first         integer not null,              -- the term's first token
  grace         integer not null,              -- how long the name stays closed after an expiry
  evicted_lease text,                          -- the last term that an operator ended: its lease,
  evicted_first integer,                       --   its first token,
  evicted_by    text,                          --   and who ended it and why
  freed         integer                        -- the call that released the name last
) strict, without rowid;
";

/// What of it is there already: `create table if not exists` would take the write lock at every start.
const PROBE: &str = "
select (select journal_mode from pragma_journal_mode) = 'wal' as wal,
       (select page_count from pragma_page_count) = 0 as fresh,
       exists (select 1 from sqlite_schema where type = 'table' and name = '{table}' collate nocase) as made";

/// Makes the table, and the file's mode, which stays with the file.
const MAKE: &str = "pragma journal_mode = wal; {create}";

/// The same for an empty file, without its five fsyncs: there is nothing yet that a crash of the machine could damage.
const MAKE_FRESH: &str = "pragma synchronous = off; {make} pragma synchronous = normal;";

/// A refused claim changes nothing, and so writes nothing. `where true` keeps the parser from taking `on conflict`
/// for a join. The marks of an eviction are left alone: they outlive the next claim.
const CLAIM: &str = "
insert into \"{table}\" as held ({columns})
select value ->> 'name', value ->> 'owner', value ->> 'data', {now}, {now}, {now}, {now} + (value ->> 'ttl'),
       value ->> 'lease', {now}, value ->> 'grace'
from jsonb_each(?1) where true
on conflict (name) do update set
  token    = case when {retry} then held.token    else max(held.token + 1, {now}) end,
  first    = case when {retry} then held.first    else max(held.token + 1, {now}) end,
  acquired = case when {retry} then held.acquired else {now} end,
  owner = excluded.owner, data = excluded.data, lease = excluded.lease, grace = excluded.grace,
  renewed = excluded.renewed, expires = excluded.expires
where held.lease is null or held.lease = excluded.lease or held.expires + held.grace <= {now};
{read_back}";

/// The lease that holds the name, live, asks again.
const RETRY: &str = "held.lease = excluded.lease and held.expires > {now}";

const RENEW: &str = "
update \"{table}\" as held set
  renewed = {now},
  expires = {now} + (value ->> 'ttl'),
  token   = case when value ->> 'rotate' then max(held.token + 1, {now}) else held.token end
from jsonb_each(?1)
where held.name = value ->> 'name' and {ours};
{read_back}";

/// The term that an entry means, if it is there and live.
const OURS: &str =
    "held.lease = value ->> 'lease' and held.first = coalesce(value ->> 'first', held.first) and held.expires > {now}";

/// What has become of the entries. A term that is there and live is the asker's, whatever happened in between; for
/// the others, why not. `cross join` makes the entries the outer loop.
const READ_BACK: &str = "
select json_group_array(json(case when {ours} then json_array(key, token) else json_array(key, null, {seen}) end))
from jsonb_each(?1) cross join \"{table}\" as held on held.name = value ->> 'name'";

/// Nothing in a released row says who released it, but for the mark `?2` that this very call has put there. The
/// holder's own release, without `evicted_by`, leaves the marks of an earlier eviction alone.
const RELEASE: &str = "
begin immediate;
update \"{table}\" as held set
  lease = null, owner = null, data = null, grace = 0, expires = {now}, freed = ?2,
  evicted_lease = iif(value ->> 'evicted_by' is null, evicted_lease, held.lease),
  evicted_first = iif(value ->> 'evicted_by' is null, evicted_first, held.first),
  evicted_by    = coalesce(value ->> 'evicted_by', evicted_by)
from jsonb_each(?1)
where held.name = value ->> 'name' and {ours};
select json_group_array(key)
from jsonb_each(?1) cross join \"{table}\" as held on held.name = value ->> 'name'
where freed = ?2;
commit";

/// `?1` and `?3` are the ends of one range of the primary key. Any text is less than any blob.
const LIST: &str = "
select json_group_array({seen} order by name) from (
  select * from \"{table}\"
  where name >= ?1 and name <> ?2 and name < coalesce(?3, x'') and lease is not null
  order by name limit ?4)";

const PRUNE: &str = "
delete from \"{table}\" where expires + grace <= {now} - ?1 and token < {now} - ?1;
select changes()";

const EXAMINE: &str = "
select sqlite_version() as version,
       (select journal_mode from pragma_journal_mode) as mode,
       count(*) filter (where lease is not null and expires > {now}) as held,
       count(*) filter (where lease is not null and expires <= {now}) as expired,
       count(*) filter (where lease is null) as free
from \"{table}\"";

/// A statement with what is bound to it.
pub(super) type Statement<'a> = Query<'a, Sqlite, SqliteArguments>;

/// Prepares `sql`. It is safe: only a checked identifier was put into it.
pub(super) fn statement<'a>(sql: &Arc<str>) -> Statement<'a> {
    sqlx::query(AssertSqlSafe(sql.clone()))
}

/// The SQL for one table.
pub(super) struct Statements {
    pub create: Arc<str>,
    pub probe: Arc<str>,
    pub make: Arc<str>,
    pub make_fresh: Arc<str>,
    pub claim: Arc<str>,
    pub renew: Arc<str>,
    pub release: Arc<str>,
    pub list: Arc<str>,
    pub prune: Arc<str>,
    pub examine: Arc<str>,
}

impl Statements {
    pub fn new(table: &Identifier) -> Self {
        let fill = |template: &str| -> Arc<str> {
            // In this order: what is put in has placeholders of its own.
            let parts = [
                ("{make}", MAKE),
                ("{create}", CREATE),
                ("{retry}", RETRY),
                ("{read_back}", READ_BACK),
                ("{ours}", OURS),
                ("{seen}", SEEN),
                ("{columns}", COLUMNS),
                ("{now}", NOW),
                ("{table}", table.as_str()),
            ];
            parts.iter().fold(template.to_owned(), |sql, (place, part)| sql.replace(place, part)).into()
        };
        Self {
            create: fill(CREATE),
            probe: fill(PROBE),
            make: fill(MAKE),
            make_fresh: fill(MAKE_FRESH),
            claim: fill(CLAIM),
            renew: fill(RENEW),
            release: fill(RELEASE),
            list: fill(LIST),
            prune: fill(PRUNE),
            examine: fill(EXAMINE),
        }
    }
}
