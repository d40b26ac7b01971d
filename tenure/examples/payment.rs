//! A payment is made once, although the one who was to make it was paused in the middle.
//!
//! ```sh
//! cargo run --example payment --features sqlite # in a temporary file; or: -- sqlite:PATH
//! cargo run --example payment --features sqlite,postgres -- postgres://localhost/bank
//! ```
//!
//! A and B are two processes. A gets the name, sees that it holds it, and is stopped right there, as a swapping machine or
//! a virtual machine on the move stops it: for real, by a signal, with all its threads. Nothing in A can renew, and
//! nothing in A can notice. That A comes back and pays is what a lock can't prevent, and a fence does.

use std::error::Error;
use std::process::Command;
use std::time::Duration;

use sqlx::{Executor, FromRow, Pool, SqlitePool};
use tenure::{FenceDatabase, Locks, RowFence, Token};

const NAME: &str = "account/42";

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// What your own program will have: pass the fence, act, commit.
async fn pay<DB: FenceDatabase>(pool: &Pool<DB>, token: Token) -> Result<()>
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>, // because this is written for any database
{
    let mut tx = pool.begin().await?;
    RowFence::new().check(&mut tx, NAME, token).await?;
    sqlx::raw_sql("update example_accounts set balance = balance - 100 where id = 42").execute(&mut *tx).await?;
    tx.commit().await?;
    Ok(())
}

async fn process_a<DB: FenceDatabase>(locks: Locks, pool: Pool<DB>) -> Result<()>
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    let guard = locks.lock(NAME).ttl(Duration::from_secs(1)).await?;
    println!("A holds {NAME} with token {}", guard.token());
    assert!(guard.is_held());
    println!("A is about to pay 100, and is paused");
    signal("STOP", std::process::id())?;
    match pay(&pool, guard.token()).await {
        Ok(()) => println!("A paid 100"),
        Err(error) => println!("A goes on to pay 100, and is refused: {error}"),
    }
    println!("A is told: {}", guard.lost().await);
    Ok(())
}

async fn take_over<DB: FenceDatabase>(locks: &Locks, pool: &Pool<DB>) -> Result<()>
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    let guard = locks.lock(NAME).await?; // when A's term has run out
    println!("B holds {NAME} with token {}", guard.token());
    pay(pool, guard.token()).await?;
    println!("B paid 100");
    guard.release().await?;
    Ok(())
}

async fn process_b<DB: FenceDatabase>(locks: Locks, pool: Pool<DB>, url: &str) -> Result<()>
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    for<'r> (i64,): FromRow<'r, DB::Row>,
{
    RowFence::new().create(&pool).await?;
    let mut connection = pool.acquire().await?;
    let accounts = "drop table if exists example_accounts;
        create table example_accounts (id bigint primary key, balance bigint not null);
        insert into example_accounts values (42, 500)";
    sqlx::raw_sql(accounts).execute(&mut *connection).await?;

    let mut a = Command::new(std::env::current_exe()?).args([url, "A"]).spawn()?;
    while locks.get(NAME).await?.is_none() && a.try_wait()?.is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let taken_over = take_over(&locks, &pool).await;
    signal("CONT", a.id())?; // also if B failed
    a.wait()?;
    taken_over?;
    let row = sqlx::raw_sql("select balance from example_accounts where id = 42").fetch_one(&mut *connection).await?;
    let (balance,) = <(i64,)>::from_row(&row)?;
    println!("The balance was 500, and is {balance}");
    Ok(())
}

fn signal(name: &str, process: u32) -> Result<()> {
    Command::new("sh").args(["-c", &format!("kill -{name} {process}")]).status()?;
    Ok(())
}

/// Public for the test that runs it.
#[tokio::main]
pub async fn main() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().unwrap_or_else(|| format!("sqlite:{}", folder.path().join("bank.db").display()));
    let is_a = arguments.next().is_some();
    let locks = tenure::connect(&url).await?;
    #[cfg(feature = "postgres")]
    if url.starts_with("postgres") {
        let pool = sqlx::PgPool::connect(&url).await?;
        return if is_a { process_a(locks, pool).await } else { process_b(locks, pool, &url).await };
    }
    let pool = SqlitePool::connect(&url).await?;
    if is_a { process_a(locks, pool).await } else { process_b(locks, pool, &url).await }
}
