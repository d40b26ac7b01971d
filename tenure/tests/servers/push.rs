//! LISTEN and NOTIFY: who is told of a release, and what happens when nobody can be.

use std::future::IntoFuture as _;
use std::time::Duration;

use sqlx::postgres::PgListener;
use tenure::clock::Moment;
use tenure::{EventKind, Locks};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use xtask::proxy::Proxy;

use super::kind::Kind;
use super::support::{LONG, News, Raw, SECOND, connect, free_for, soon, unique, until, with, within};

/// A backstop poll, and a busy machine.
pub const ABOUT_THE_POLL: Duration = Duration::from_secs(5);

/// A table of the test's own: its name is also that of the notifications, and of the connections.
struct Table {
    name: String,
    url: String,
}

impl Table {
    fn new(kind: &Kind) -> Self {
        let name = unique("push");
        let url = with(&kind.shared().url(), &format!("tenure.table={name}&application_name={name}"));
        Self { name, url }
    }

    /// The same for a process whose connections have another name.
    fn of_another(&self, kind: &Kind) -> String {
        with(&kind.shared().url(), &format!("tenure.table={}", self.name))
    }

    /// Waits for the server's process that listens, apart from an earlier one.
    async fn listener(&self, operator: &mut Raw, apart_from: i64) -> i64 {
        let find = format!(
            "select coalesce(max(pid), 0)::bigint from pg_stat_activity where application_name = '{}' \
             and query ~* '^(listen .*|select 1)$' and pid <> {apart_from}",
            self.name
        );
        let mut found = 0;
        until("somebody listens", async || {
            found = operator.number(&find).await;
            found != 0
        })
        .await;
        found
    }
}

/// A waiter that has been refused.
pub async fn waiter(locks: &Locks, name: &str) -> JoinHandle<tenure::Result<tenure::Guard>> {
    let mut news = News::of(locks);
    let waiting = tokio::spawn(locks.lock(name).ttl(LONG).into_future());
    news.next(name, |kind| matches!(kind, EventKind::Contended(_))).await;
    waiting
}

/// A notification takes a lock of the whole database: nobody waits, nobody is notified.
pub async fn only_a_contended_release_notifies(kind: &Kind) {
    let table = Table::new(kind);
    let (locks, other) = (connect(&table.url).await, connect(&table.url).await);
    let mut heard = PgListener::connect(&kind.shared().url()).await.unwrap();
    heard.listen(&table.name).await.unwrap();
    for _ in 0..5 {
        let guard = free_for(&locks, "quiet", "").await;
        assert!(other.try_lock("quiet").await.unwrap().is_none());
        guard.release().await.unwrap();
    }
    let guard = free_for(&locks, "contended", "").await;
    let waiting = waiter(&other, "contended").await;
    guard.release().await.unwrap();
    let next = soon("a waiter is served", waiting).await.unwrap().unwrap();
    // Notifications are in the order of the commits: nothing was told before.
    let first = soon("a notification", heard.recv()).await.unwrap();
    assert_eq!(first.payload(), "contended");
    next.release().await.unwrap();
    let guard = free_for(&locks, "last", "").await;
    let waiting = waiter(&other, "last").await;
    guard.release().await.unwrap();
    drop(soon("a waiter is served", waiting).await.unwrap().unwrap());
    let second = soon("a notification", heard.recv()).await.unwrap();
    assert_eq!(second.payload(), "last", "the release of a name that nobody waits for any more was told");
}

pub async fn a_release_wakes_a_waiter_sooner_than_its_poll(kind: &Kind) {
    let table = Table::new(kind);
    let (locks, other) = (connect(&table.url).await, connect(&table.url).await);
    assert!(other.about().push && other.about().poll >= SECOND);
    is_told(&locks, &other).await;
}

/// Most of the hand-overs take far less than the time after which a waiter would look by itself.
pub async fn is_told(locks: &Locks, other: &Locks) {
    let mut times = Vec::new();
    for _ in 0..9 {
        let guard = free_for(locks, "told", "").await;
        let waiting = waiter(other, "told").await;
        let released = Moment::now();
        guard.release().await.unwrap();
        let next = soon("a waiter is served", waiting).await.unwrap().unwrap();
        times.push(Moment::now() - released);
        next.release().await.unwrap();
    }
    times.sort_unstable();
    assert!(times[4] < other.about().poll / 4, "{times:?}");
}

/// The waiter gets its name, and those after it are told again.
pub async fn a_terminated_listener_comes_back(kind: &Kind) {
    let table = Table::new(kind);
    let (locks, other) = (connect(&table.of_another(kind)).await, connect(&table.url).await);
    let mut operator = Raw::to(&kind.shared().url()).await;
    let guard = free_for(&locks, "name", "").await;
    let waiting = waiter(&other, "name").await;
    let listener = table.listener(&mut operator, 0).await;
    operator.run(format!("select pg_terminate_backend({listener})")).await;
    guard.release().await.unwrap();
    drop(within(ABOUT_THE_POLL, "a waiter whose listener is gone", waiting).await.unwrap().unwrap());
    table.listener(&mut operator, listener).await;
    is_told(&locks, &other).await;
}

/// A connection that the network has swallowed tells nothing, not even that; the waiter looks by itself, and those after
/// it are told again.
pub async fn a_silenced_listener_delays_no_longer_than_the_poll(kind: &Kind) {
    let table = Table::new(kind);
    let proxy = Proxy::to(kind.shared().port()).unwrap();
    let behind = table.url.replace(&format!(":{}/", kind.shared().port()), &format!(":{}/", proxy.port()));
    let (locks, other) = (connect(&table.of_another(kind)).await, connect(&behind).await);
    let guard = free_for(&locks, "name", "").await;
    let mut operator = Raw::to(&kind.shared().url()).await;
    let listener = table.listener(&mut operator, 0).await;
    // Only the listener gets to hear something while replies are lost, and is lost with it.
    proxy.lose_replies();
    operator.run(format!("select pg_notify('{}', 'nothing')", table.name)).await;
    sleep(Duration::from_millis(300)).await;
    proxy.pass();
    let waiting = waiter(&other, "name").await;
    guard.release().await.unwrap();
    drop(within(ABOUT_THE_POLL, "a waiter whose listener is silent", waiting).await.unwrap().unwrap());
    table.listener(&mut operator, listener).await;
    is_told(&locks, &other).await;
}
