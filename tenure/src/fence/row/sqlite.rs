//! SQLite: one upsert.

use sqlx::error::DatabaseError;
use sqlx::{AssertSqlSafe, Sqlite, SqliteConnection};

use super::{Check, Dialect, FenceDatabase, highest, upsert};
use crate::fence::Stale;

const BUSY: i32 = 5;
const LOCKED: i32 = 6;
const IOERR: i32 = 10;

impl FenceDatabase for Sqlite {}

impl Dialect for Sqlite {
    const STORE: &'static str = "sqlite";

    fn schema(table: &str) -> String {
        format!(
            r#"create table if not exists "{table}" (
    resource text primary key,
    token integer not null
) without rowid"#
        )
    }

    fn probe(table: &str) -> String {
        format!(r#"select resource, token from "{table}" where false"#)
    }

    async fn run(connection: &mut SqliteConnection, sql: String) -> sqlx::Result<()> {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await?;
        Ok(())
    }

    async fn check(connection: &mut SqliteConnection, check: Check<'_>) -> sqlx::Result<Result<(), Stale>> {
        let raise = sqlx::query(AssertSqlSafe(upsert(&check))).bind(check.resource).bind(check.token());
        if raise.execute(&mut *connection).await?.rows_affected() == 1 {
            return Ok(Ok(()));
        }
        let highest = sqlx::query_scalar(AssertSqlSafe(highest(&check))).bind(check.resource);
        Ok(Err(check.refused(highest.fetch_one(connection).await?)))
    }

    /// The primary result code is the last byte of the extended one.
    fn is_transient(error: &dyn DatabaseError) -> bool {
        let code = error.code().and_then(|code| code.parse::<i32>().ok());
        matches!(code.map(|code| code & 0xff), Some(BUSY | LOCKED | IOERR))
    }
}
