//! The SQL. `{table}` is the store's table; `{entries:…}` unfolds the columns that are named from the JSON array of the
//! call's entries, `{entries-if @variable:…}` does so unless the variable is null: then there is nothing to unfold.
//!
//! Each call is two round trips, whatever the size of its batch: one binds the entries to a variable of the session, the
//! other is a constant text of several statements. So the server carries out a transaction to its end, or not at all,
//! even if its client dies in the middle. All of them take their locks in the same way: rows that matter are locked,
//! and those that somebody else has locked are skipped; *then* the clock is read, once. Nobody waits for a row; and
//! as rows that are locked are never waited for with others in hand, there are no deadlocks.
//!
//! Every pass over the entries costs, so a call makes no more of them than it needs when all goes well: what the rows have
//! become is told from what they were when they were locked. Only if that has left out some does a third round trip
//! look after those.
//!
//! Lists of entries' numbers tell one statement what another has found; `@tenure_rest` is null if the list has all of them,
//! and need not be looked through.
//!
//! Traps that shaped them, all seen: `now()` is stale after a wait, `sysdate()` is not. MySQL refuses `for update` on a
//! join with `json_table` itself, hence the derived table. `straight_join` and `force index` keep a plan from turning
//! to a scan when the table is small or its statistics are old. A joined `update` goes through a temporary table on
//! disk in MariaDB, because of the columns of long text; `insert … on duplicate key update` doesn't, and the
//! row is always there. Assignments run from left to right: `token` and `first` come before what they depend on.

use std::sync::Arc;

use sqlx::mysql::MySqlArguments;
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, MySql};

use super::Table;

/// What a database administrator gets to read.
const CREATE: &str = "\
-- Tenure's locks: one row a name. A row stays when its name is released, to remember the token; `tenure prune`
-- forgets rows that nobody has used for long. Times are by this server's clock, in UTC.
-- Once the table is there, a user needs only: grant select, insert, update, delete on {table} to …
create table if not exists {table} (
  name          varbinary(255) not null primary key,                        -- what is held; compared byte by byte
  owner         longtext       character set utf8mb4 collate utf8mb4_bin,   -- who holds it, for people; null if free
  data          longtext       character set utf8mb4 collate utf8mb4_bin,   -- JSON that the holder attached
  token         bigint         not null,                                    -- the fencing number: rises with every grant
  acquired      datetime(6)    not null,                                    -- when the term began
  renewed       datetime(6)    not null,                                    -- when it was last renewed
  expires       datetime(6)    not null,                                    -- when it ends unless renewed; if free: when it ended
  lease         varbinary(32),                                              -- the acquisition that holds the name; null if free
  first         bigint         not null,                                    -- the term's first token
  grace         bigint         not null,                                    -- how long the name stays closed after an expiry, in microseconds
  evicted_lease varbinary(32),                                              -- the last term that an operator ended: its lease,
  evicted_first bigint,                                                     --   its first token,
  evicted_by    longtext       character set utf8mb4 collate utf8mb4_bin    --   and who ended it and why
) engine = innodb;
";

/// Makes the table. It may wait for others who do the same, for longer than a call waits.
const MAKE: &str = "set session lock_wait_timeout = 10; {create} set session lock_wait_timeout = 1";

/// What every session needs, whatever its server's or its user's defaults are: times in UTC, errors instead of cut
/// values, short waits, room for the numbers of a batch.
pub(super) const SETUP: &str = "
set names utf8mb4;
set session time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,ERROR_FOR_DIVISION_BY_ZERO',
    innodb_lock_wait_timeout = 1, lock_wait_timeout = 1, group_concat_max_len = 1073741824, autocommit = 1,
    completion_type = 'NO_CHAIN', sql_safe_updates = 0, sql_select_limit = 18446744073709551615, sql_big_selects = 1
    /*M!100600 , max_statement_time = 3 */;
set session transaction isolation level read committed";

/// Whether the server will do.
const PROBE: &str = "
select version() as version,
       @@max_allowed_packet as packet,
       abs(timestampdiff(second, utc_timestamp(6), sysdate(6))) as off_utc";

/// Fails if the table is missing or another's, if a right is missing, or if the server can't write.
const CHECK: &str = "
select {columns} from {table} limit 0;
insert into {table} ({columns}) select {columns} from {table} as held where false
  on duplicate key update name = {table}.name;
update {table} set token = token where false;
delete from {table} where false";

/// How the table was made, if the server shows it. Both are given the names as constants: where they would be joined by
/// them, MariaDB opens every table of every database.
const KIND: &str = "
select t.engine, c.data_type
from information_schema.tables as t, information_schema.columns as c
where t.table_schema = coalesce({schema}, database()) and t.table_name = '{name}'
  and c.table_schema = coalesce({schema}, database()) and c.table_name = '{name}' and c.column_name = 'name'";

const COLUMNS: &str = "name, owner, data, token, acquired, renewed, expires, lease, first, grace, evicted_lease, evicted_first, evicted_by";

/// Binds the entries of a call, and how many they are.
pub(super) const ENTRIES: &str = "set @tenure_entries = ?, @tenure_count = ?";

/// The row of each entry's name, by its primary key.
const HELD: &str = "straight_join {table} as held force index (primary) on held.name = entries.name";

/// A row, as `Seen` reads it.
const SEEN: &str = "cast(json_array(convert(held.name using utf8mb4), held.owner, held.data, held.token,
    {us:held.acquired}, {us:held.renewed}, {us:held.expires}, convert(held.lease using utf8mb4), held.first, held.grace,
    convert(held.evicted_lease using utf8mb4), held.evicted_first, held.evicted_by, {us:sysdate(6)}) as char)";

/// First a look without locks, at what is not yet committed too: a refused claim writes nothing and is in nobody's way, and
/// a name that somebody else is inserting is busy instead of waited for. Names that are open are locked and granted in
/// a transaction. The marks of an eviction are left alone: they outlive the next claim.
const CLAIM: &str = "
set transaction isolation level read uncommitted;
select group_concat(if(held.name is null, entries.entry, null)), group_concat(if(held.name is null, null, entries.entry)),
       if(count(held.name) = @tenure_count, null, true)
into @tenure_new, @tenure_open, @tenure_rest
from {entries:name lease} as entries left join {table} as held force index (primary) on held.name = entries.name
where held.name is null or {open};

start transaction;
select {mine}, group_concat(if({retry}, entries.entry, null))
into @tenure_done, @tenure_mine, @tenure_rest, @tenure_retries
from (select * from {entries-if @tenure_open:name lease} as entry) as entries {held}
where (@tenure_rest is null or find_in_set(entries.entry, @tenure_open)) and {open}
for update skip locked;
{clock}
insert into {table} (name, owner, data, token, acquired, renewed, expires, lease, first, grace)
select entries.name, entries.owner, entries.data, 0, @tenure_now, @tenure_now,
       @tenure_now + interval entries.ttl microsecond, entries.lease,
       coalesce(find_in_set(entries.entry, @tenure_retries), 0), entries.grace
from {entries-if @tenure_mine:name owner data lease ttl grace} as entries
where @tenure_rest is null or find_in_set(entries.entry, @tenure_mine)
on duplicate key update
  first    = if(values(first), {table}.first,    greatest({table}.token + 1, @tenure_us)),
  token    = if(values(first), {table}.token,    greatest({table}.token + 1, @tenure_us)),
  acquired = if(values(first), {table}.acquired, @tenure_now),
  owner = values(owner), data = values(data), renewed = values(renewed),
  lease = values(lease), grace = values(grace), expires = values(expires);
commit;
{done}, cast(@tenure_retries as char)";

/// The other claims. Names without a row are inserted, with nothing else locked: whoever comes second changes nothing.
///
/// Answers with one row of numbers and tokens, and then with the rows of those that were refused, if there are any. What was
/// granted is judged by the rows: they carry the lease, and were written since the call began. The lease alone
/// would not do: if a claim is a retry and its row is locked, the row still has the term that began earlier.
const CLAIM_REST: &str = "
{clock}
insert into {table} (name, owner, data, token, acquired, renewed, expires, lease, first, grace)
select entries.name, entries.owner, entries.data, @tenure_us, @tenure_now, @tenure_now,
       @tenure_now + interval entries.ttl microsecond, entries.lease, @tenure_us, entries.grace
from {entries-if @tenure_new:name owner data lease ttl grace} as entries
where find_in_set(entries.entry, @tenure_new)
on duplicate key update name = {table}.name;

select group_concat(if({granted}, concat(entries.entry, ' ', held.token), null)),
       group_concat(if({granted}, null, entries.entry))
into @tenure_done, @tenure_left
from {entries:name lease} as entries {held}
where {undone};
select cast(@tenure_done as char);
select entries.entry, {seen}
from {entries-if @tenure_left:name} as entries {held}
where find_in_set(entries.entry, @tenure_left)";

/// Those that this call has locked: with their tokens, on their own, and whether there are others.
const MINE: &str = "group_concat(concat(entries.entry, ' ', held.token)), group_concat(entries.entry),
       if(count(*) = @tenure_count, null, true)";

const CLOCK: &str = "set @tenure_now = sysdate(6); set @tenure_us = {us:@tenure_now};";

/// Answers with what was locked, when, and whether the rest is to be looked after.
const DONE: &str = "select cast(@tenure_done as char), cast(@tenure_us as char), @tenure_rest is not null";

/// An entry that this call has not locked.
const UNDONE: &str = "not find_in_set(entries.entry, coalesce(@tenure_mine, ''))";

/// The name is free, or the asker's own, or its term is over.
const OPEN: &str = "(held.lease is null or held.lease = entries.lease
    or held.expires + interval held.grace microsecond <= sysdate(6))";

/// The lease that holds the name, live, asks again.
const RETRY: &str = "held.lease = entries.lease and held.expires > sysdate(6)";

const GRANTED: &str = "held.lease = entries.lease and held.renewed >= @tenure_now and held.expires > sysdate(6)";

/// Begins a transaction with the rows of live terms, as far as nobody else has them locked.
const LOCK: &str = "
start transaction;
select {mine} into @tenure_done, @tenure_mine, @tenure_rest
from (select * from {entries:name lease first} as entry) as entries {held}
where {ours} and held.expires > sysdate(6)
for update skip locked;
{clock}";

/// The term that an entry means.
const OURS: &str = "held.lease = entries.lease and held.first = coalesce(entries.first, held.first)";

const RENEW: &str = "{lock}
insert into {table} (name, token, acquired, renewed, expires, first, grace)
select entries.name, coalesce(entries.rotate, 0), @tenure_now, @tenure_now,
       @tenure_now + interval entries.ttl microsecond, 0, 0
from {entries-if @tenure_mine:name ttl rotate} as entries
where @tenure_rest is null or find_in_set(entries.entry, @tenure_mine)
on duplicate key update
  token = if(values(token), greatest({table}.token + 1, @tenure_us), {table}.token),
  renewed = values(renewed), expires = values(expires);
commit;
{done}";

/// The rows of the other terms. One that is there and live is neither kept nor gone: somebody else has its row locked.
const RENEW_REST: &str = "
select entries.entry, if({ours} and held.expires > @tenure_now, null, {seen})
from {entries:name lease first} as entries {held}
where {undone}";

const RELEASE: &str = "{lock}
insert into {table} (name, token, acquired, renewed, expires, first, grace)
select entries.name, 0, @tenure_now, @tenure_now, @tenure_now, 0, 0
from {entries-if @tenure_mine:name} as entries
where @tenure_rest is null or find_in_set(entries.entry, @tenure_mine)
on duplicate key update
  lease = null, owner = null, data = null, grace = 0, expires = @tenure_now;
commit;
{done}";

/// A release by an operator. Apart from the others, which have no long text to unfold; a release without `evicted_by`
/// that is among them leaves the marks of an earlier eviction alone.
const EVICT: &str = "{lock}
insert into {table} (name, token, acquired, renewed, expires, first, grace, evicted_by)
select entries.name, 0, @tenure_now, @tenure_now, @tenure_now, 0, 0, entries.evicted_by
from {entries-if @tenure_mine:name evicted_by} as entries
where @tenure_rest is null or find_in_set(entries.entry, @tenure_mine)
on duplicate key update
  evicted_lease = if(values(evicted_by) is null, {table}.evicted_lease, {table}.lease),
  evicted_first = if(values(evicted_by) is null, {table}.evicted_first, {table}.first),
  evicted_by    = coalesce(values(evicted_by), {table}.evicted_by),
  lease = null, owner = null, data = null, grace = 0, expires = @tenure_now;
commit;
{done}";

/// Those of the other terms that are there and live: somebody else has their rows locked.
const RELEASE_REST: &str = "
select entries.entry
from {entries:name lease first} as entries {held}
where {undone} and {ours} and held.expires > @tenure_now";

/// The first two are the ends of one range of the primary key.
const LIST: &str = "
select {seen} from {table} as held
where name >= ? and name < ? and name <> ? and lease is not null
order by name limit ?";

/// Binds how long a name must have been unused.
pub(super) const IDLE: &str = "set @tenure_idle = ?";

/// Forgets some names: those found without locks are locked, looked at again, and deleted.
const PRUNE: &str = "
select group_concat('\"', hex(name), '\"') into @tenure_old
from (select held.name from {table} as held where {unused} limit {round}) as old;
start transaction;
select group_concat('\"', hex(held.name), '\"') into @tenure_mine
from (select unhex(entry.hex) as name from {names:@tenure_old} as entry) as entries {held}
where {unused}
for update skip locked;
delete held from (select unhex(entry.hex) as name from {names:@tenure_mine} as entry) as entries {held};
set @tenure_pruned = row_count();
commit;
select @tenure_pruned";

/// How many names are forgotten at a time.
pub(super) const PRUNE_ROUND: u64 = 1000;

const UNUSED: &str = "held.expires + interval held.grace microsecond <= sysdate(6) - interval @tenure_idle microsecond
  and held.token < {us:sysdate(6)} - @tenure_idle";

/// What the server says of itself, each fact with its name. Servers differ in what they know.
const EXAMINE: &str = "
show variables where variable_name in ('version', 'innodb_flush_log_at_trx_commit', 'sync_binlog',
  'log_bin', 'binlog_format', 'read_only', 'super_read_only', 'wsrep_on', 'max_connections');
show global status where variable_name in ('Threads_connected', 'Rpl_semi_sync_master_clients',
  'Rpl_semi_sync_source_clients', 'Slaves_connected');
select 'sees_all', cast(count(*) as char) from information_schema.user_privileges where privilege_type = 'PROCESS';
select 'replicas', cast(count(*) as char) from information_schema.processlist where command like 'Binlog Dump%';
select 'sysdate_moves', if(sleep(0.002) = 0 and sysdate(6) > now(6), '1', '0');
select 'held', cast(count(*) as char) from {table} where lease is not null and expires > sysdate(6);
select 'expired', cast(count(*) as char) from {table} where lease is not null and expires <= sysdate(6);
select 'free', cast(count(*) as char) from {table} where lease is null";

/// A statement with what is bound to it.
pub(super) type Statement<'a> = Query<'a, MySql, MySqlArguments>;

/// The statement for `sql`. It is safe: only checked identifiers were put into it.
pub(super) fn statement<'a>(sql: &Arc<str>) -> Statement<'a> {
    sqlx::query(AssertSqlSafe(sql.clone()))
}

/// The SQL for one table.
pub(super) struct Statements {
    pub create: Arc<str>,
    pub make: Arc<str>,
    pub probe: Arc<str>,
    pub check: Arc<str>,
    pub kind: Arc<str>,
    pub claim: Call,
    pub renew: Call,
    pub release: Call,
    pub evict: Call,
    pub list: Arc<str>,
    pub prune: Arc<str>,
    pub examine: Arc<str>,
}

/// What is said for a batch of entries.
pub(super) struct Call {
    pub text: Arc<str>,
    /// And then, if that has left out some.
    pub rest: Arc<str>,
}

impl Statements {
    pub fn new(table: &Table) -> Self {
        let fill = |sql: &str| -> Arc<str> { fill(sql, table).into() };
        let call = |text, rest| Call { text: fill(text), rest: fill(rest) };
        Self {
            create: fill(CREATE),
            make: fill(MAKE),
            probe: fill(PROBE),
            check: fill(CHECK),
            kind: fill(KIND),
            claim: call(CLAIM, CLAIM_REST),
            renew: call(RENEW, RENEW_REST),
            release: call(RELEASE, RELEASE_REST),
            evict: call(EVICT, RELEASE_REST),
            list: fill(LIST),
            prune: fill(PRUNE),
            examine: fill(EXAMINE),
        }
    }
}

fn fill(sql: &str, table: &Table) -> String {
    // In this order: what is put in has placeholders of its own.
    let parts = [
        ("{create}", CREATE),
        ("{lock}", LOCK),
        ("{mine}", MINE),
        ("{clock}", CLOCK),
        ("{done}", DONE),
        ("{undone}", UNDONE),
        ("{held}", HELD),
        ("{open}", OPEN),
        ("{retry}", RETRY),
        ("{granted}", GRANTED),
        ("{ours}", OURS),
        ("{unused}", UNUSED),
        ("{seen}", SEEN),
        ("{columns}", COLUMNS),
    ];
    let sql = parts.iter().fold(sql.to_owned(), |sql, (place, part)| sql.replace(place, part));
    let sql = each(&sql, "{entries:", |columns| unfolded("@tenure_entries", columns));
    let sql = each(&sql, "{entries-if ", |condition| {
        let (variable, columns) = condition.split_once(':').unwrap_or((condition, ""));
        unfolded(&format!("if({variable} is null, '[]', @tenure_entries)"), columns)
    });
    let sql = each(&sql, "{names:", |list| {
        let columns = "hex varchar(510) character set ascii path '$'";
        format!("json_table(concat('[', coalesce({list}, ''), ']'), '$[*]' columns ({columns}))")
    });
    each(&sql, "{us:", |time| format!("timestampdiff(microsecond, '1970-01-01', {time})"))
        .replace("{round}", &PRUNE_ROUND.to_string())
        .replace("{schema}", &table.schema.as_ref().map_or("null".into(), |schema| format!("'{}'", schema.as_str())))
        .replace("{name}", table.name.as_str())
        .replace("{table}", &table.quoted())
}

/// Replaces `{begin…}` by what `with` makes of `…`.
fn each(sql: &str, begin: &str, with: impl Fn(&str) -> String) -> String {
    let mut parts = sql.split(begin);
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (inner, rest) = part.split_once('}').unwrap_or((part, ""));
        whole += &with(inner);
        whole += rest;
    }
    whole
}

/// The named columns of a JSON array of entries, with the number of each entry, from one.
fn unfolded(entries: &str, columns: &str) -> String {
    let columns: String =
        columns.split(' ').map(|column| format!(", {column} {} path '$.{column}'", kind(column))).collect();
    format!("json_table({entries}, '$[*]' columns (entry for ordinality{columns}))")
}

/// A name is bytes on its way through JSON too: nothing is folded.
fn kind(column: &str) -> &'static str {
    match column {
        "name" => "varbinary(255)",
        "lease" => "varbinary(32)",
        "rotate" => "bool",
        "first" | "ttl" | "grace" => "bigint",
        _ => "longtext character set utf8mb4",
    }
}
