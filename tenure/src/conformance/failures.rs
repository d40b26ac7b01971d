//! A store that fails: what is ridden out, and what is told.

use std::time::Duration;

use tokio::time::timeout;

use super::support::{Bare, LONG, SOON, free_for, hold, soon};
use super::{Call, Fault, Subject};
use crate::error::Error;
use crate::guard::{Lost, Why};

/// An acquire goes on while the store fails for the moment, with the same lease: its name is granted once.
pub async fn an_acquire_rides_out_failures_that_pass(subject: &Subject) {
    let ((locks, faulty), bare) = (subject.connect_faulty().await, Bare::open(subject).await);
    for fault in [Fault::Fail, Fault::LoseReply] {
        let (name, before) = (subject.name(), faulty.calls(Call::Claim));
        faulty.next_calls(3, Call::Claim, fault.clone());
        let guard = hold(&locks, &name).await;
        assert_eq!(faulty.calls(Call::Claim) - before, 4, "claims, the first three with {fault:?}");
        let record = bare.find(&name).await.expect("a held name is listed");
        assert_eq!((record.first, record.token), (guard.token(), guard.token()), "granted more than once");
        soon("a release", guard.release()).await.expect("a held name can be released");
        assert!(bare.find(&name).await.is_none(), "something is left after claims with {fault:?}");
    }
}

/// An acquire that the store refuses for good says so, and does not go on trying.
pub async fn a_refusal_for_good_is_told_at_once(subject: &Subject) {
    let (locks, faulty) = subject.connect_faulty().await;
    let name = subject.name();
    faulty.always(Call::Claim, Fault::Refuse);
    let refused = soon("an answer", locks.lock(&name).ttl(LONG).into_future()).await;
    assert!(matches!(refused, Err(Error::Store { transient: false, .. })), "a refusal for good says {refused:?}");
    assert_eq!(faulty.calls(Call::Claim), 1, "a claim that was refused for good was made again");
    faulty.heal();
    free_for(&locks, &name, "after a refusal").await;
}

/// An acquire with a time to wait gives up when it is over, also while the store fails, and says why.
pub async fn an_acquire_on_a_failing_store_says_why(subject: &Subject) {
    let (locks, faulty) = subject.connect_faulty().await;
    faulty.always(Call::Claim, Fault::Fail);
    let lock = locks.lock(subject.name()).wait(Duration::from_millis(200)).into_future();
    let failed = soon("an answer", lock).await;
    assert!(matches!(failed, Err(Error::Store { transient: true, .. })), "after 200 ms of failures: {failed:?}");
}

/// A release that can't be carried out before the term is over says so.
pub async fn a_release_that_fails_is_told(subject: &Subject) {
    let (locks, faulty) = subject.connect_faulty().await;
    let lock = locks.lock(subject.name()).ttl(subject.ttl()).into_future();
    let guard = soon("a free name is granted", lock).await.expect("a free name is granted");
    faulty.always(Call::Release, Fault::Fail);
    let failed = timeout(subject.ttl() + SOON, guard.release()).await.expect("an answer when the term is over");
    assert!(matches!(failed, Err(Error::Store { .. })), "a release that never reached the store says {failed:?}");
}

/// If the engine dies, with its store, every holder is told, and new acquires are refused.
pub async fn a_dead_engine_is_told_as_loss(subject: &Subject) {
    let (locks, faulty) = subject.connect_faulty().await;
    let guard = hold(&locks, &subject.name()).await;
    faulty.always_all(Fault::Panic);
    let unanswered = soon("an answer", locks.lock(subject.name()).into_future()).await;
    assert!(matches!(unanswered, Err(Error::Closed)), "an acquire that killed the engine says {unanswered:?}");
    let Lost { why, .. } = soon("loss is signalled", guard.lost()).await;
    assert!(matches!(why, Why::Closed) && !guard.is_held(), "the engine's death is told as {why}");
    let refused = soon("an answer", locks.try_lock(subject.name()).into_future()).await;
    assert!(matches!(refused, Err(Error::Closed)), "a dead engine answers {refused:?}");
    let refused = soon("an answer", guard.release()).await;
    assert!(matches!(refused, Err(Error::Lost(_) | Error::Closed)), "a dead engine releases: {refused:?}");
}
