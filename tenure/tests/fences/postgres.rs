//! The server at `TENURE_TEST_POSTGRES`; tables of its own for each test.

use sqlx::postgres::PgPoolOptions;
use sqlx::{Pool, Transaction};

#[path = "deadlocks.rs"]
mod deadlocks;
#[path = "promises.rs"]
mod promises;

type Db = sqlx::Postgres;
type Home = ();

async fn open() -> Option<(Pool<Db>, Home)> {
    let url = crate::server("postgres")?;
    Some((PgPoolOptions::new().max_connections(12).connect(&url).await.unwrap(), ()))
}

async fn begin(pool: &Pool<Db>) -> Transaction<'static, Db> {
    pool.begin_with("begin isolation level read committed").await.unwrap()
}

/// The other way to begin.
async fn begin_otherwise(pool: &Pool<Db>) -> Transaction<'static, Db> {
    pool.begin_with("begin isolation level serializable").await.unwrap()
}

/// A transaction that goes on seeing what it has seen, once it has seen anything.
async fn begin_repeatable(pool: &Pool<Db>) -> Transaction<'static, Db> {
    pool.begin_with("begin isolation level repeatable read").await.unwrap()
}

/// Makes it give up soon.
async fn hurry(tx: &mut Transaction<'static, Db>) {
    sqlx::query("set local lock_timeout = '100ms'").execute(&mut **tx).await.unwrap();
}
