//! `hold_in`: a lock's record in the user's own transaction.

use std::future::IntoFuture as _;
use std::time::Duration;

use sqlx::{AssertSqlSafe, PgPool, Postgres, Transaction};
use tenure::store::postgres::hold_in;
use tenure::{Error, Guard, Locks, Status, Why};
use tokio::time::sleep;

use super::kind::Kind;
use super::support::{LONG, SECOND, connect, free_for, frees, hold, renewed, soon, unique};

/// How long nothing may happen, to be believed.
const A_WHILE: Duration = Duration::from_millis(1500);

/// A user of the database that the locks are in.
struct User {
    pool: PgPool,
    transaction: Option<Transaction<'static, Postgres>>,
}

impl User {
    async fn of(kind: &Kind) -> Self {
        Self { pool: PgPool::connect(&kind.shared().url()).await.unwrap(), transaction: None }
    }

    /// Begins a transaction whose snapshot is taken now.
    async fn begin(&mut self, level: &str) {
        let begin = AssertSqlSafe(format!("begin isolation level {level}"));
        let mut transaction = self.pool.begin_with(begin).await.unwrap();
        sqlx::raw_sql("select count(*) from pg_class").execute(&mut *transaction).await.unwrap();
        self.transaction = Some(transaction);
    }

    async fn hold_in(&mut self, guard: &Guard) -> tenure::Result<()> {
        soon("hold_in", hold_in(self.transaction.as_mut().unwrap(), guard)).await
    }

    async fn commit(&mut self) {
        self.transaction.take().unwrap().commit().await.unwrap();
    }

    async fn rollback(&mut self) {
        self.transaction.take().unwrap().rollback().await.unwrap();
    }
}

async fn two(kind: &Kind) -> (Locks, Locks, User, String) {
    let (locks, other) = (connect(&kind.shared().url()).await, connect(&kind.shared().url()).await);
    (locks, other, User::of(kind).await, unique("transaction"))
}

/// An operator frees the name and another claims it: it gets it after the commit of what the holder has written, and the
/// renewals of the process's other names go on meanwhile.
pub async fn a_takeover_waits_for_the_holders_commit(kind: &Kind) {
    let (locks, other, mut user, name) = two(kind).await;
    let beside = unique("beside");
    let (guard, _beside) = (hold(&locks, &name, 6 * SECOND).await, hold(&locks, &beside, 6 * SECOND).await);
    user.begin("read committed").await;
    user.hold_in(&guard).await.unwrap();
    renewed(&locks, &name).await;
    assert!(matches!(guard.status(), Status::Held), "{:?}", guard.status());
    other.evict(&name, "an operator").await.unwrap().expect("the name was held");
    let waiting = tokio::spawn(other.lock(&name).ttl(LONG).into_future());
    sleep(A_WHILE).await;
    renewed(&locks, &beside).await;
    assert!(!waiting.is_finished(), "taken over before the holder's commit");
    user.commit().await;
    let next = soon("taken over after the commit", waiting).await.unwrap().unwrap();
    assert!(next.token() > guard.token());
}

/// The holder's process is gone, its transaction is not: it may still commit.
pub async fn an_expired_name_waits_for_the_holders_commit(kind: &Kind) {
    let (_, other, mut user, name) = two(kind).await;
    let proxy = xtask::proxy::Proxy::to(kind.shared().port()).unwrap();
    let behind = connect(&kind.shared().url_at(proxy.port())).await;
    let guard = hold(&behind, &name, 2 * SECOND).await;
    user.begin("read committed").await;
    user.hold_in(&guard).await.unwrap();
    proxy.black_hole();
    super::support::expired(&guard).await;
    let waiting = tokio::spawn(other.lock(&name).ttl(LONG).into_future());
    sleep(A_WHILE).await;
    assert!(!waiting.is_finished(), "taken over before the holder's commit");
    user.commit().await;
    drop(soon("taken over after the commit", waiting).await.unwrap().unwrap());
}

/// Renewals pass the transaction's lock.
pub async fn a_transaction_may_be_longer_than_the_term(kind: &Kind) {
    let (locks, other, mut user, name) = two(kind).await;
    let ttl = 2 * SECOND;
    let guard = hold(&locks, &name, ttl).await;
    user.begin("read committed").await;
    user.hold_in(&guard).await.unwrap();
    sleep(2 * ttl).await;
    assert!(matches!(guard.status(), Status::Held), "{:?}", guard.status());
    user.hold_in(&guard).await.unwrap();
    user.commit().await;
    guard.release().await.unwrap();
    frees(&other, &name, "after the release").await;
}

/// A snapshot that is older than the last renewal is no hindrance.
pub async fn every_isolation_level_will_do(kind: &Kind) {
    for level in ["read committed", "repeatable read", "serializable"] {
        let (locks, other, mut user, name) = two(kind).await;
        let guard = hold(&locks, &name, 6 * SECOND).await;
        user.begin(level).await;
        renewed(&locks, &name).await;
        let held = user.hold_in(&guard).await;
        assert!(held.is_ok(), "{level}: {held:?}");
        renewed(&locks, &name).await;
        other.evict(&name, "an operator").await.unwrap();
        let waiting = tokio::spawn(other.lock(&name).ttl(LONG).into_future());
        sleep(A_WHILE / 3).await;
        assert!(!waiting.is_finished(), "{level}: taken over before the holder's commit");
        user.commit().await;
        drop(soon("taken over after the commit", waiting).await.unwrap().unwrap());
    }
}

/// By the store's word, also before the holder has heard of it.
pub async fn a_term_that_is_over_is_told(kind: &Kind) {
    let (locks, other, mut user, name) = two(kind).await;
    let guard = soon("a free name", locks.lock(&name).ttl(LONG)).await.unwrap();
    other.evict(&name, "an operator").await.unwrap();
    user.begin("read committed").await;
    let over = user.hold_in(&guard).await.unwrap_err();
    assert!(matches!(over, Error::Lost(_)), "{over:?}");
    user.rollback().await;
    let lost = soon("the holder hears of it, long before its next renewal", guard.lost()).await;
    assert!(matches!(lost.why, Why::Evicted(_)), "{lost}");

    let guard = soon("a free name", locks.lock(&name).ttl(LONG)).await.unwrap();
    other.evict(&name, "an operator").await.unwrap();
    let _next = free_for(&other, &name, "after the eviction").await;
    user.begin("read committed").await;
    let taken = user.hold_in(&guard).await.unwrap_err();
    assert!(matches!(&taken, Error::Lost(lost) if matches!(lost.why, Why::Taken(..))), "{taken:?}");
    user.rollback().await;
}

/// A guard of another store, and a transaction that began before there was a record.
pub async fn guards_and_transactions_that_do_not_match_are_refused(kind: &Kind) {
    let (locks, _, mut user, name) = two(kind).await;
    let elsewhere = tenure::connect("memory:").await.unwrap().lock(&name).await.unwrap();
    user.begin("repeatable read").await;
    let error = user.hold_in(&elsewhere).await.unwrap_err();
    assert!(matches!(&error, Error::Invalid { what, .. } if what == "guard"), "{error:?}");
    let guard = hold(&locks, &name, LONG).await;
    let error = user.hold_in(&guard).await.unwrap_err();
    assert!(matches!(&error, Error::Invalid { what, .. } if what == "transaction"), "{error:?}");
    user.rollback().await;
}
