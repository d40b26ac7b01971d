//! The end in order.

use std::future::IntoFuture;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::support::{LONG, SOON, free_for, hold, is_closed_to, poll_once, soon};
use super::{Call, Fault, Subject};
use crate::clock::Moment;
use crate::error::Error;
use crate::guard::{Lost, Status, Why};

/// More than there is room for in any queue of events.
const MANY: usize = 5000;

/// A shutdown tells every holder, waits for its release, and goes on renewing meanwhile; nobody is turned out early.
pub async fn shutdown_tells_holders_and_waits_for_them(subject: &Subject) {
    let (locks, other, name) = (subject.connect().await, subject.connect().await, subject.name());
    let ttl = subject.ttl() * 3 / 2;
    let lock = locks.lock(&name).ttl(ttl).into_future();
    let guard = soon("a free name is granted", lock).await.expect("a free name is granted");
    let mut watch = guard.watch();
    let shutdown = tokio::spawn({
        let locks = locks.clone();
        async move { locks.shutdown(LONG).await }
    });
    let status = soon("word of the shutdown", watch.changed()).await;
    assert!(matches!(status, Status::Closing), "in a shutdown the holder is told {status:?}");
    sleep(2 * ttl).await;
    assert!(guard.is_held() && !shutdown.is_finished(), "lost during a shutdown: {:?}", guard.status());
    assert!(is_closed_to(&other, &name).await, "another was granted the name during a shutdown");
    soon("a release", guard.release()).await.expect("a name can be released during a shutdown");
    let left = soon("the shutdown ends with the last release", shutdown).await.expect("the shutdown ends well");
    assert!(left.is_empty(), "a shutdown says that {left:?} could not be released");
    free_for(&other, &name, "after its release").await;
}

/// From a shutdown on, new acquires are refused, and those who wait are turned away.
pub async fn shutdown_refuses_new_acquires(subject: &Subject) {
    let (locks, other, name) = (subject.connect().await, subject.connect().await, subject.name());
    let (_theirs, ours) = (hold(&other, &name).await, hold(&locks, &subject.name()).await);
    let mut waiter = locks.lock(&name).into_future();
    assert!(poll_once(&mut waiter).await.is_pending());
    let mut watch = ours.watch();
    let shutdown = tokio::spawn({
        let locks = locks.clone();
        async move { locks.shutdown(LONG).await }
    });
    soon("word of the shutdown", watch.changed()).await;
    let turned_away = soon("the waiter is turned away", waiter).await;
    assert!(matches!(turned_away, Err(Error::Closed)), "in a shutdown a waiter is told {turned_away:?}");
    let refused = soon("an answer", locks.lock(subject.name()).into_future()).await;
    assert!(matches!(refused, Err(Error::Closed)), "in a shutdown a new acquire says {refused:?}");
    drop(ours);
    soon("the shutdown ends with the last release", shutdown).await.expect("the shutdown ends well");
    let refused = soon("an answer", locks.try_lock(subject.name()).into_future()).await;
    assert!(matches!(refused, Err(Error::Closed)), "after a shutdown a new acquire says {refused:?}");
}

/// When the holders' time is over, a shutdown releases what they have left, and they are told.
pub async fn shutdown_releases_what_is_left(subject: &Subject) {
    let (locks, other, names) = (subject.connect().await, subject.connect().await, subject.names(3));
    let mut guards = Vec::new();
    for name in &names {
        guards.push(hold(&locks, name).await);
    }
    let left = soon("a shutdown", locks.shutdown(Duration::from_millis(100))).await;
    assert!(left.is_empty(), "a shutdown says that {left:?} could not be released");
    for guard in &guards {
        let Lost { why, .. } = soon("loss is signalled", guard.lost()).await;
        assert!(matches!(why, Why::Closed), "a holder that did not let go is told {why}");
        assert!(!guard.is_held(), "held after a shutdown");
    }
    for name in &names {
        free_for(&other, name, "after a shutdown").await;
    }
}

/// A shutdown says what it took from its holders, however much that is; not what they released in time, or had lost before.
pub async fn shutdown_says_what_was_cut_off(subject: &Subject) {
    let (locks, name) = (subject.connect().await, subject.name());
    let lost = hold(&locks, &name).await;
    soon("an eviction", locks.evict(&name, "an operator")).await.expect("a name can be evicted");
    soon("the loss", lost.lost()).await;
    let names = subject.names(MANY);
    let asked: Vec<_> = names.iter().map(|name| tokio::spawn(locks.lock(name).ttl(LONG).into_future())).collect();
    let mut guards = Vec::new();
    for acquire in asked {
        guards.push(soon("a grant", acquire).await.expect("no panic").expect("a free name is granted"));
    }
    drop(guards.pop());
    let (mut cut_off, unreleased) = soon("a shutdown", locks.end_all(Duration::from_millis(100))).await;
    assert!(unreleased.is_empty(), "a shutdown says that {unreleased:?} could not be released");
    cut_off.sort_by(|one, other| one.name.cmp(&other.name));
    let cut_off: Vec<_> = cut_off.iter().map(|lost| (&lost.name, lost.token)).collect();
    assert!(cut_off == guards.iter().map(|guard| (guard.name(), guard.token())).collect::<Vec<_>>(), "{cut_off:?}");
}

/// A second shutdown that leaves less time shortens the first.
pub async fn a_hurried_shutdown_shortens_the_one_before(subject: &Subject) {
    let (locks, other, name) = (subject.connect().await, subject.connect().await, subject.name());
    let guard = hold(&locks, &name).await;
    let mut watch = guard.watch();
    let first = tokio::spawn({
        let locks = locks.clone();
        async move { locks.shutdown(LONG).await }
    });
    soon("word of the shutdown", watch.changed()).await;
    let second = soon("a shutdown that has no time", locks.shutdown(Duration::ZERO)).await;
    let first = soon("the first one ends with it", first).await.expect("the shutdown ends well");
    assert!(first.is_empty() && second.is_empty(), "left: {first:?}, {second:?}");
    assert!(!guard.is_held(), "held after a shutdown");
    free_for(&other, &name, "after a shutdown").await;
}

/// A shutdown says what it could not release, and does not wait for it for ever.
pub async fn shutdown_returns_what_could_not_be_released(subject: &Subject) {
    let (locks, faulty) = subject.connect_faulty().await;
    let name = subject.name();
    let guard = hold(&locks, &name).await;
    faulty.always(Call::Release, Fault::Hang);
    let began = Moment::now();
    let shutdown = timeout(2 * SOON, locks.shutdown(Duration::ZERO)).await;
    let left = shutdown.unwrap_or_else(|_| panic!("a shutdown still waits after {:?}", Moment::now() - began));
    assert_eq!(left.len(), 1, "a shutdown says that {left:?} could not be released");
    assert_eq!((&left[0].name, left[0].token), (&name, guard.token()));
    assert!(matches!(left[0].error, Error::Store { .. }), "the reason is {}", left[0].error);
    assert!(!guard.is_held(), "held after a shutdown");
}
