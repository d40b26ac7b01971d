//! Many at once: what is committed behind a fence never falls, and whoever passed is alone.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sqlx::{AssertSqlSafe, Transaction};
use tenure::{Error, Token};

use super::super::{Db, begin, begin_otherwise, begin_repeatable};
use super::Bank;

const TASKS: u64 = 8;
const EACH: u64 = 30;
const RESOURCES: u64 = 3;

type Begin = for<'a> fn(&'a Bank) -> Pin<Box<dyn Future<Output = Transaction<'static, Db>> + Send + 'a>>;

#[tokio::test]
async fn what_is_committed_never_falls() {
    crowd(|bank| Box::pin(begin(&bank.pool))).await;
}

#[tokio::test]
async fn what_is_committed_never_falls_under_repeatable_read() {
    crowd(|bank| Box::pin(begin_repeatable(&bank.pool))).await;
}

#[tokio::test]
async fn what_is_committed_never_falls_in_another_kind_of_transaction() {
    crowd(|bank| Box::pin(begin_otherwise(&bank.pool))).await;
}

async fn crowd(begin: Begin) {
    let Some(bank) = Bank::open().await else { return };
    let next = Arc::new(AtomicU64::new(10));
    let tasks: Vec<_> = (1..=TASKS).map(|seed| tokio::spawn(work(bank.clone(), begin, next.clone(), seed))).collect();
    let mut passed = 0;
    for task in tasks {
        passed += task.await.unwrap();
    }
    let mut written = 0;
    for resource in 0..RESOURCES {
        let tokens = written_down(&bank, resource).await;
        assert!(tokens.is_sorted(), "{tokens:?}");
        written += tokens.len();
    }
    assert_eq!(written, passed);
    assert!(0 < passed && passed < (TASKS * EACH) as usize, "nothing was refused, or all: {passed}");
    bank.close().await;
}

/// Writes with tokens that rise on the whole and often fall. Says how many passed.
async fn work(bank: Arc<Bank>, begin: Begin, next: Arc<AtomicU64>, seed: u64) -> usize {
    let mut random = seed;
    let mut passed = 0;
    for _ in 0..EACH {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let token = next.fetch_add(1, Ordering::Relaxed) - (random >> 33) % 8;
        let resource = (random >> 40) % RESOURCES;
        passed += usize::from(write(&bank, begin, resource, token).await);
    }
    passed
}

/// Whether it passed. What the database couldn't do at the same time as something else is done again.
async fn write(bank: &Bank, begin: Begin, resource: u64, token: u64) -> bool {
    loop {
        let mut tx = begin(bank).await;
        match bank.fence.check(&mut tx, &resource.to_string(), Token(token)).await {
            Ok(()) => {}
            Err(Error::Stale(_)) => return false,
            Err(error) if error.is_transient() => continue,
            Err(error) => panic!("{error}"),
        }
        match write_down(bank, tx, resource, token).await {
            Ok(()) => return true,
            Err(sqlx::Error::Database(error)) if !error.is_unique_violation() => {}
            Err(error) => panic!("whoever passed is not alone: {error}"),
        }
    }
}

/// Puts the token behind the last one that it reads: two at once would take the same place.
async fn write_down(bank: &Bank, mut tx: Transaction<'static, Db>, resource: u64, token: u64) -> sqlx::Result<()> {
    let last = bank.named(&format!("select coalesce(max(n), 0) from T_done where resource = '{resource}'"));
    let last: i64 = sqlx::query_scalar(AssertSqlSafe(last)).fetch_one(&mut *tx).await?;
    tokio::time::sleep(Duration::from_millis(token % 3)).await;
    let done = bank.named(&format!("insert into T_done values ('{resource}', {last} + 1, {token})"));
    sqlx::query(AssertSqlSafe(done)).execute(&mut *tx).await?;
    tx.commit().await
}

async fn written_down(bank: &Bank, resource: u64) -> Vec<i64> {
    let sql = bank.named(&format!("select token from T_done where resource = '{resource}' order by n"));
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(&bank.pool).await.unwrap()
}
