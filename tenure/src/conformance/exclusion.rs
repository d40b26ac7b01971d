//! At most one holder at a time, and what the others are told.

use std::time::Duration;

use super::Subject;
use super::support::{Bare, LONG, claim_of, end_of, free_for, hold, is_closed_to, soon};
use crate::error::Error;
use crate::record::Record;

/// A name that is held is granted to nobody else, in this process or another.
pub async fn excludes_a_second_holder(subject: &Subject) {
    let (one, other) = (subject.connect().await, subject.connect().await);
    let name = subject.name();
    let guard = hold(&one, &name).await;
    assert!(is_closed_to(&other, &name).await, "another process was granted a name that is held");
    assert!(is_closed_to(&one, &name).await, "the same process was granted a name twice");
    assert!(guard.is_held(), "the holder lost the name to somebody who was refused: {:?}", guard.status());
    soon("a release", guard.release()).await.expect("a held name can be released");
    free_for(&other, &name, "after its release").await;
}

/// Who is refused hears who holds the name, since when, and how long the term still lasts.
pub async fn busy_says_who_and_how_long(subject: &Subject) {
    let subject = subject.by_hand();
    let (store, other) = (Bare::open(&subject).await, Bare::open(&subject).await);
    let mut claim = claim_of(&subject.name(), LONG);
    claim.owner = "host/7/the holder".into();
    claim.data = Some("{\"job\":7}".into());
    let token = store.grant(&claim, "when nobody has it").await;
    subject.pass(Duration::from_millis(60)).await;

    let record = other.refuse(&claim_of(&claim.name, LONG), "while it is held").await;
    let record = record.expect("with nobody else at it, a refusal says who holds the name");
    assert_eq!((&record.name, &*record.owner, record.lease), (&claim.name, &*claim.owner, claim.lease));
    assert_eq!((record.first, record.token), (token, token), "the record has another token than the grant");
    let data: Option<serde_json::Value> = record.data().expect("data is JSON");
    assert_eq!(data, Some(serde_json::json!({ "job": 7 })));
    let (passed, left) = (Duration::from_millis(50), record.remaining);
    assert!(left <= LONG - passed && left > LONG / 2, "{left:?} left of {LONG:?}, {passed:?} after the grant");
    assert!(record.held_for >= passed && record.held_for < LONG / 2, "held for {:?}", record.held_for);
    assert!(record.expires_at >= record.renewed_at && record.renewed_at >= record.acquired_at, "{record:?}");
}

/// `try_lock` answers `None` whoever holds the name: another process, or this one.
pub async fn try_lock_on_a_held_name_is_none(subject: &Subject) {
    let (one, other) = (subject.connect().await, subject.connect().await);
    let name = subject.name();
    let guard = soon("try_lock", one.try_lock(&name).ttl(LONG).into_future()).await.expect("the store answers");
    let guard = guard.expect("try_lock is granted a free name");
    for (locks, whose) in [(&one, "this process"), (&other, "another process")] {
        let refused = soon("try_lock", locks.try_lock(&name).into_future()).await.expect("busy is not an error");
        assert!(refused.is_none(), "try_lock was granted a name that {whose} holds");
    }
    drop(guard);
}

/// An acquire that has waited in vain says who holds the name: another process, or this one.
pub async fn a_timed_out_acquire_says_who_holds(subject: &Subject) {
    let (one, other) = (subject.connect().await, subject.connect().await);
    let name = subject.name();
    let guard = hold(&one, &name).await;
    for locks in [&one, &other] {
        for wait in [Duration::ZERO, Duration::from_millis(200)] {
            let refused = soon("an acquire times out", locks.lock(&name).wait(wait).into_future()).await;
            let holder = match refused.expect_err("a held name was granted") {
                Error::TimedOut { name: of, waited, holder } => {
                    assert_eq!(of, name);
                    assert!(waited >= wait, "gave up after {waited:?} instead of {wait:?}");
                    holder
                }
                error => panic!("an acquire that waited in vain says {error}"),
            };
            check_holder(holder.as_deref(), &guard, wait);
        }
    }
}

fn check_holder(holder: Option<&Record>, guard: &crate::Guard, wait: Duration) {
    let holder = holder.unwrap_or_else(|| panic!("a wait of {wait:?} does not say who holds the name"));
    assert_eq!((&*holder.owner, holder.token), (guard.owner(), guard.token()), "after a wait of {wait:?}");
    assert!(holder.is_live(), "the holder's term is said to be over: {holder:?}");
}

/// With `refuse_reentry`, asking for what this process holds is `AlreadyHeld`; another process just waits.
pub async fn refused_reentry_says_already_held(subject: &Subject) {
    let (one, other) = (subject.connect().await, subject.connect().await);
    let name = subject.name();
    let guard = hold(&one, &name).await;
    let again = soon("an answer", one.lock(&name).refuse_reentry().into_future()).await;
    assert!(matches!(&again, Err(Error::AlreadyHeld { name: of }) if *of == name), "re-entry says {again:?}");
    let again = soon("an answer", one.try_lock(&name).refuse_reentry().into_future()).await;
    assert!(matches!(&again, Err(Error::AlreadyHeld { .. })), "re-entry by try_lock says {again:?}");
    let there = soon("an answer", other.try_lock(&name).refuse_reentry().into_future()).await;
    assert!(matches!(there, Ok(None)), "another process is told {there:?}");
    drop(guard);
}

/// A release frees the name for others, and a second release of the same term says so and changes nothing.
pub async fn release_is_idempotent(subject: &Subject) {
    let subject = subject.by_hand();
    let store = Bare::open(&subject).await;
    let claim = claim_of(&subject.name(), LONG);
    let end = end_of(&claim, store.grant(&claim, "when nobody has it").await);
    assert!(store.release(&end).await, "the release of a live term must say true");
    assert!(!store.release(&end).await, "a second release must say false");
    assert!(store.find(&claim.name).await.is_none(), "a released name is listed");

    let next = claim_of(&claim.name, LONG);
    let token = store.grant(&next, "after a release").await;
    assert!(!store.release(&end).await, "a release of an older term must say false");
    let record = store.find(&claim.name).await.expect("the new term is listed");
    assert_eq!((record.lease, record.token), (next.lease, token), "a repeated release has changed the next term");
}

/// A release that comes when the term is over ends nobody else's.
pub async fn a_late_release_changes_nothing(subject: &Subject) {
    let subject = subject.by_hand();
    let store = Bare::open(&subject).await;
    let claim = claim_of(&subject.name(), subject.ttl());
    let end = end_of(&claim, store.grant(&claim, "when nobody has it").await);
    super::time::expire(&subject, &store, &claim.name).await;
    assert!(!store.release(&end).await, "the release of an expired term must say false");

    let next = claim_of(&claim.name, LONG);
    store.grant(&next, "after the expiry").await;
    for first in [end.first, None] {
        assert!(!store.release(&crate::store::Ended { first, ..end.clone() }).await, "a late release says true");
    }
    store.refuse(&claim_of(&claim.name, LONG), "after the late release of an older term").await;
}
