//! A file of its own for each test.

use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use sqlx::{Pool, Transaction};
use tempfile::TempDir;

#[path = "promises.rs"]
mod promises;

type Db = sqlx::Sqlite;

/// Goes when the test does.
type Home = TempDir;

async fn open() -> Option<(Pool<Db>, Home)> {
    let home = tempfile::tempdir().unwrap();
    let options = SqliteConnectOptions::new()
        .filename(home.path().join("bank.db"))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .busy_timeout(Duration::from_secs(20));
    Some((SqlitePoolOptions::new().max_connections(12).connect_with(options).await.unwrap(), home))
}

/// As most begin: here the check must be the first statement.
async fn begin(pool: &Pool<Db>) -> Transaction<'static, Db> {
    pool.begin().await.unwrap()
}

/// The other way to begin.
async fn begin_otherwise(pool: &Pool<Db>) -> Transaction<'static, Db> {
    pool.begin_with("begin immediate").await.unwrap()
}

/// A transaction that goes on seeing what it has seen, once it has seen anything.
async fn begin_repeatable(pool: &Pool<Db>) -> Transaction<'static, Db> {
    begin(pool).await
}

/// Makes it give up soon.
async fn hurry(tx: &mut Transaction<'static, Db>) {
    sqlx::query("pragma busy_timeout = 100").execute(&mut **tx).await.unwrap();
}
