//! The SQL. `{table}` is the store's table, `{now}` the clock, `{columns}` what a record is read from.
//!
//! Each call is one statement in autocommit, whatever the size of the batch: SQLite takes the write lock when the
//! statement starts, waits for it with the busy handler (a transaction that begins by reading can't), and reads
//! the clock after that, once for the whole statement. Entries come as one JSON array.

use std::sync::Arc;

use sqlx::query::Query;
use sqlx::sqlite::SqliteArguments;
use sqlx::{AssertSqlSafe, Sqlite};

use crate::store::url::Identifier;

/// SQLite's clock in microseconds since 1970; it ticks in milliseconds. Rounded, since `subsec` is a float.
const NOW: &str = "(cast(round(unixepoch('subsec') * 1000) as integer) * 1000)";

const COLUMNS: &str = "name, owner, data, token, acquired, renewed, expires, lease, first, grace";

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
  evicted_by    text                           --   and who ended it and why
) strict, without rowid;
";

/// Journal mode, whether the file has no pages yet, and whether it has the table. It takes no lock that others feel,
/// where `create table if not exists` would take the write lock at every start.
const PROBE: &str = "
select (select journal_mode from pragma_journal_mode) = 'wal' as wal,
       (select page_count from pragma_page_count) = 0 as fresh,
       exists (select 1 from sqlite_schema where type = 'table' and name = '{table}' collate nocase) as made";

/// Makes the table, and the file's mode, which stays with the file.
const MAKE: &str = "pragma journal_mode = wal; {create}";

/// The same in a file without content, without the five fsyncs. There is nothing that a power failure could damage
/// but what is made here: it leaves an empty file, or an empty database, and either is made anew.
const MAKE_FRESH: &str = "pragma synchronous = off; {make} pragma synchronous = normal;";

/// A refused claim changes nothing, and so writes nothing. `where true` keeps the parser from taking `on conflict`
/// for a join. The marks of an eviction are left alone: they outlive the next claim.
const CLAIM: &str = "
insert into \"{table}\" as held ({columns})
select value ->> 'name', value ->> 'owner', value ->> 'data', {now}, {now}, {now}, {now} + (value ->> 'ttl'),
       value ->> 'lease', {now}, value ->> 'grace'
from json_each(?1) where true
on conflict (name) do update set
  token    = case when {retry} then held.token    else max(held.token + 1, {now}) end,
  first    = case when {retry} then held.first    else max(held.token + 1, {now}) end,
  acquired = case when {retry} then held.acquired else {now} end,
  owner = excluded.owner, data = excluded.data, lease = excluded.lease, grace = excluded.grace,
  renewed = excluded.renewed, expires = excluded.expires
where held.lease is null or held.lease = excluded.lease or held.expires + held.grace <= {now}
returning name, token";

/// The lease that holds the name, live, asks again.
const RETRY: &str = "held.lease = excluded.lease and held.expires > {now}";

const RENEW: &str = "
update \"{table}\" as held set
  renewed = {now},
  expires = {now} + (value ->> 'ttl'),
  token   = case when value ->> 'rotate' then max(held.token + 1, {now}) else held.token end
from json_each(?1)
where held.name = value ->> 'name' and held.lease = value ->> 'lease' and held.first = value ->> 'first'
  and held.expires > {now}
returning name, token";

/// `is null` in the last assignments is the holder's own release: it leaves an earlier eviction's marks alone.
const RELEASE: &str = "
update \"{table}\" as held set
  lease = null, owner = null, data = null, grace = 0, expires = {now},
  evicted_lease = iif(value ->> 'evicted_by' is null, evicted_lease, held.lease),
  evicted_first = iif(value ->> 'evicted_by' is null, evicted_first, held.first),
  evicted_by    = coalesce(value ->> 'evicted_by', evicted_by)
from json_each(?1)
where held.name = value ->> 'name' and held.lease = value ->> 'lease'
  and held.first = coalesce(value ->> 'first', held.first) and held.expires > {now}
returning name";

/// Why a claim was refused or a term is gone. `cross join` keeps the names outside and the table inside.
const LOOK: &str = "
select {columns}, evicted_lease, evicted_first, evicted_by, {now} as now
from json_each(?1) cross join \"{table}\" on name = value";

/// `?1` and `?3` are the ends of one range of the primary key. Any text is less than any blob.
const LIST: &str = "
select {columns}, {now} as now
from \"{table}\"
where name >= ?1 and name <> ?2 and name < coalesce(?3, x'') and lease is not null
order by name limit ?4";

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
    pub look: Arc<str>,
    pub list: Arc<str>,
    pub prune: Arc<str>,
    pub examine: Arc<str>,
}

impl Statements {
    pub fn new(table: &Identifier) -> Self {
        let fill = |template: &str| -> Arc<str> {
            let whole = template.replace("{make}", MAKE).replace("{create}", CREATE).replace("{retry}", RETRY);
            whole.replace("{columns}", COLUMNS).replace("{now}", NOW).replace("{table}", table.as_str()).into()
        };
        Self {
            create: fill(CREATE),
            probe: fill(PROBE),
            make: fill(MAKE),
            make_fresh: fill(MAKE_FRESH),
            claim: fill(CLAIM),
            renew: fill(RENEW),
            release: fill(RELEASE),
            look: fill(LOOK),
            list: fill(LIST),
            prune: fill(PRUNE),
            examine: fill(EXAMINE),
        }
    }
}
