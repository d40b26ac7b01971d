//! PostgreSQL: one upsert.

use sqlx::error::DatabaseError;
use sqlx::{AssertSqlSafe, PgConnection, Postgres};

use super::{Check, Dialect, FenceDatabase, highest, upsert};
use crate::fence::Stale;

impl FenceDatabase for Postgres {}

impl Dialect for Postgres {
    const STORE: &'static str = "postgres";

    /// The room left on each page keeps raises on it, and away from the index.
    fn schema(table: &str) -> String {
        format!(
            r#"create table if not exists "{table}" (
    resource text collate "C" primary key,
    token bigint not null
) with (fillfactor = 70)"#
        )
    }

    fn probe(table: &str) -> String {
        format!(r#"select resource, token from "{table}" where false"#)
    }

    async fn run(connection: &mut PgConnection, sql: String) -> sqlx::Result<()> {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await?;
        Ok(())
    }

    async fn check(connection: &mut PgConnection, check: Check<'_>) -> sqlx::Result<Result<(), Stale>> {
        let raise = sqlx::query(AssertSqlSafe(upsert(&check))).bind(check.resource).bind(check.token());
        if raise.execute(&mut *connection).await?.rows_affected() == 1 {
            return Ok(Ok(()));
        }
        let highest = sqlx::query_scalar(AssertSqlSafe(highest(&check))).bind(check.resource);
        Ok(Err(check.refused(highest.fetch_one(connection).await?)))
    }

    /// Serialization failures and deadlocks, lost connections, too few resources; a lock that can't be had, a statement
    /// that was cancelled (its limit), a server that is going down.
    fn is_transient(error: &dyn DatabaseError) -> bool {
        let code = error.code().unwrap_or_default();
        let class = code.get(..2).unwrap_or_default();
        matches!(class, "40" | "08" | "53") || matches!(&*code, "55P03" | "57014") || code.starts_with("57P0")
    }
}
