//! MySQL and MariaDB: lock the row, look at it, raise it.

use sqlx::error::DatabaseError;
use sqlx::mysql::MySqlDatabaseError;
use sqlx::{AssertSqlSafe, MySql, MySqlConnection};

use super::{Check, Dialect, FenceDatabase};
use crate::fence::Stale;
use crate::record::Token;

/// Stands for "nothing seen yet" in a row that was made only to be locked: less than any token.
const NONE: i64 = -1;

impl FenceDatabase for MySql {}

impl Dialect for MySql {
    const STORE: &'static str = "mysql";

    /// Bytes: text collations fold case or trailing blanks.
    fn schema(table: &str) -> String {
        format!(
            "create table if not exists `{table}` (
    resource varbinary(255) primary key,
    token bigint not null
) engine = InnoDB"
        )
    }

    fn probe(table: &str) -> String {
        format!("select resource, token from `{table}` where false")
    }

    async fn run(connection: &mut MySqlConnection, sql: String) -> sqlx::Result<()> {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await?;
        Ok(())
    }

    async fn check(connection: &mut MySqlConnection, check: Check<'_>) -> sqlx::Result<Result<(), Stale>> {
        let resource = check.resource.as_bytes();
        sqlx::query(AssertSqlSafe(lock(&check))).bind(resource).bind(NONE).execute(&mut *connection).await?;
        let highest: i64 =
            sqlx::query_scalar(AssertSqlSafe(look(&check))).bind(resource).fetch_one(&mut *connection).await?;
        let highest = u64::try_from(highest).ok().map(Token);
        let judged = check.rule.judge(check.token, highest);
        // One holder, many transactions: most find their own token, and the row is locked already.
        if judged.is_ok() && highest != Some(check.token) {
            sqlx::query(AssertSqlSafe(raise(&check))).bind(check.token()).bind(resource).execute(connection).await?;
        }
        Ok(judged)
    }

    fn is_transient(error: &dyn DatabaseError) -> bool {
        let number = error.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number);
        matches!(number, Some(DEADLOCK | LOCK_WAIT_TIMEOUT | CHANGED_SINCE_READ | TOO_MANY_CONNECTIONS))
            || matches!(number, Some(SHUTDOWN | INTERRUPTED | OUT_OF_TIME | OUT_OF_TIME_MARIADB))
    }
}

const CHANGED_SINCE_READ: u16 = 1020;
const TOO_MANY_CONNECTIONS: u16 = 1040;
const SHUTDOWN: u16 = 1053;
const LOCK_WAIT_TIMEOUT: u16 = 1205;
const DEADLOCK: u16 = 1213;
const INTERRUPTED: u16 = 1317;
const OUT_OF_TIME_MARIADB: u16 = 1969;
const OUT_OF_TIME: u16 = 3024;

/// Locks the row, and makes it if it is missing. `select … for update` on a missing row locks a gap, and two who then
/// insert into it are a deadlock; `insert ignore` shares its lock, and two who then write are another.
fn lock(check: &Check<'_>) -> String {
    format!("insert into `{}` (resource, token) values (?, ?) on duplicate key update token = token", check.table)
}

/// `for update` reads what is committed, whatever the transaction's snapshot has. Counts of affected rows don't tell
/// a row that was made from one that was there: they depend on how the connection was opened.
fn look(check: &Check<'_>) -> String {
    format!("select token from `{}` where resource = ? for update", check.table)
}

fn raise(check: &Check<'_>) -> String {
    format!("update `{}` set token = ? where resource = ?", check.table)
}
