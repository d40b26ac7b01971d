//! What the tests share: patience, names, a raw connection.

use std::future::IntoFuture;
use std::time::Duration;

use sqlx::{AnyConnection, AssertSqlSafe, Connection as _, Row as _};
use tenure::{Error, Event, EventKind, Events, Guard, Locks, Lost, Next, Why};
use tokio::time::{sleep, timeout};

/// For what happens at once, on a machine that is busy.
pub const SOON: Duration = Duration::from_secs(20);
/// Far longer than any test takes: one that hangs has failed.
const LIMIT: Duration = Duration::from_secs(120);
/// A TTL that doesn't run out while a test runs: what becomes free was freed.
pub const LONG: Duration = Duration::from_secs(300);
/// A pause between two looks.
pub const TICK: Duration = Duration::from_millis(20);

pub const SECOND: Duration = Duration::from_secs(1);

/// Runs a test on a runtime of its own.
pub fn run(name: &str, test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        assert!(timeout(LIMIT, test).await.is_ok(), "{name} is not settled after {LIMIT:?}");
    });
}

/// Waits for what is to happen at once.
pub async fn soon<F: IntoFuture>(what: &str, future: F) -> F::Output {
    within(SOON, what, future).await
}

/// Waits for what is to happen in this time.
pub async fn within<F: IntoFuture>(time: Duration, what: &str, future: F) -> F::Output {
    match timeout(time, future.into_future()).await {
        Ok(output) => output,
        Err(_) => panic!("{what}: not within {time:?}"),
    }
}

/// Looks again and again until it is so.
pub async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    soon(what, async {
        while !is_so().await {
            sleep(TICK).await;
        }
    })
    .await;
}

/// A name that nobody else uses; it will do for a table, too.
pub fn unique(what: &str) -> String {
    format!("{what}_{:016x}", getrandom::u64().unwrap())
}

pub async fn connect(url: &str) -> Locks {
    soon("connecting", tenure::connect(url)).await.unwrap()
}

/// Holds a free name, renewed often.
pub async fn hold(locks: &Locks, name: &str, ttl: Duration) -> Guard {
    soon("a free name is granted", locks.lock(name).ttl(ttl).renew_every(ttl / 6)).await.unwrap()
}

/// Waits until somebody else can have the name, long before a [`LONG`] term would be over; returns the guard.
pub async fn free_for(locks: &Locks, name: &str, after: &str) -> Guard {
    soon(&format!("{name} is free {after}"), locks.lock(name).ttl(LONG)).await.unwrap()
}

/// The same, for those who don't want it.
pub async fn frees(locks: &Locks, name: &str, after: &str) {
    drop(free_for(locks, name, after).await);
}

/// Whether somebody else is kept out of the name.
pub async fn is_closed_to(locks: &Locks, name: &str) -> bool {
    soon("an answer", locks.try_lock(name).ttl(LONG)).await.unwrap().is_none()
}

/// Waits for the loss of a term that could not be renewed, and says why; the holder heard of it in time.
pub async fn expired(guard: &Guard) -> Error {
    let lost = soon("a loss is told", guard.lost()).await;
    let late = tenure::clock::Moment::now() - guard.deadline();
    assert!(late < 5 * SECOND, "told {late:?} after the deadline");
    assert!(!guard.is_held());
    match lost {
        Lost { why: Why::Expired(Some(error)), .. } => *error,
        lost => panic!("{lost}"),
    }
}

pub fn assert_is_transient(error: &Error) {
    assert!(matches!(error, Error::Store { .. }) && error.is_transient(), "{error:?}");
}

/// What happens to the names of one process.
pub struct News(Events);

impl News {
    pub fn of(locks: &Locks) -> Self {
        Self(locks.events())
    }

    /// The next of these events of a name.
    pub async fn next(&mut self, name: &str, what: impl Fn(&EventKind) -> bool) -> Event {
        let event = async {
            loop {
                match self.0.next().await.unwrap() {
                    Next::Event(event) if event.name.as_str() == name && what(&event.kind) => return event,
                    Next::Event(_) => {}
                    Next::Missed(missed) => panic!("{missed} events were missed"),
                }
            }
        };
        soon(&format!("news of {name}"), event).await
    }

    pub async fn renewal_failed(&mut self, name: &str) {
        self.next(name, |kind| matches!(kind, EventKind::RenewalFailed(_))).await;
    }
}

/// Waits for a renewal that was sent from now on: the second one.
pub async fn renewed(locks: &Locks, name: &str) {
    let mut news = News::of(locks);
    for _ in 0..2 {
        news.next(name, |kind| matches!(kind, EventKind::Renewed)).await;
    }
}

/// A connection that Tenure knows nothing of: an operator's, a foreign transaction's.
pub struct Raw(AnyConnection);

impl Raw {
    pub async fn to(url: &str) -> Self {
        Self(Self::try_to(url).await.unwrap())
    }

    pub async fn try_to(url: &str) -> sqlx::Result<AnyConnection> {
        within(SOON, "connecting", AnyConnection::connect(url)).await
    }

    /// Runs some statements.
    pub async fn run(&mut self, sql: impl Into<String>) {
        let sql = sql.into();
        let ran = sqlx::raw_sql(AssertSqlSafe(sql.clone())).execute(&mut self.0);
        soon(&sql, ran).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    /// The number that a statement yields.
    pub async fn number(&mut self, sql: impl Into<String>) -> i64 {
        let row = sqlx::raw_sql(AssertSqlSafe(sql.into())).fetch_one(&mut self.0).await.unwrap();
        row.try_get(0).unwrap()
    }

    /// Has a name's row locked until `rollback`.
    pub async fn lock_row(&mut self, table: &str, name: &str) {
        self.run("begin").await;
        self.run(format!("select token from {table} where name = '{name}' for update")).await;
    }
}

/// The URL for another user.
pub fn as_user(url: &str, user: &str, password: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap();
    format!("{scheme}://{user}:{password}@{}", rest.split_once('@').unwrap().1)
}

/// The URL with a setting more, if there is one.
pub fn with(url: &str, setting: &str) -> String {
    if setting.is_empty() {
        return url.to_owned();
    }
    format!("{url}{}{setting}", if url.contains('?') { '&' } else { '?' })
}

/// The table that a URL leads to unless it names another.
pub const TABLE: &str = "tenure_locks";
