//! The server at `TENURE_TEST_MYSQL`, MySQL or MariaDB; tables of its own for each test.

use sqlx::mysql::MySqlPoolOptions;
use sqlx::{Pool, Transaction};

#[path = "deadlocks.rs"]
mod deadlocks;
#[path = "promises.rs"]
mod promises;

type Db = sqlx::MySql;
type Home = ();

async fn open() -> Option<(Pool<Db>, Home)> {
    let url = crate::server("mysql")?;
    Some((MySqlPoolOptions::new().max_connections(12).connect(&url).await.unwrap(), ()))
}

async fn begin(pool: &Pool<Db>) -> Transaction<'static, Db> {
    begin_at(pool, "set transaction isolation level repeatable read").await
}

/// The other way to begin.
async fn begin_otherwise(pool: &Pool<Db>) -> Transaction<'static, Db> {
    begin_at(pool, "set transaction isolation level read committed").await
}

/// A transaction that goes on seeing what it has seen, once it has seen anything.
async fn begin_repeatable(pool: &Pool<Db>) -> Transaction<'static, Db> {
    begin(pool).await
}

async fn begin_at(pool: &Pool<Db>, level: &'static str) -> Transaction<'static, Db> {
    let mut connection = pool.acquire().await.unwrap();
    sqlx::query(level).execute(&mut *connection).await.unwrap();
    Transaction::begin(connection, None).await.unwrap()
}

/// Makes it give up soon.
async fn hurry(tx: &mut Transaction<'static, Db>) {
    sqlx::query("set innodb_lock_wait_timeout = 1").execute(&mut **tx).await.unwrap();
}
