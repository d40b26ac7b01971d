//! Moments in which two things happen at once: promises hold there, too.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::support::{LONG, SOON, TICK, free_for, hold, poll_once, soon, taken_in};
use super::{Call, Fault, Faulty, Gate, Subject};
use crate::error::Error;
use crate::guard::{Guard, Status, Why};
use crate::locks::Locks;

/// Looks at the clock until the term has run out by it.
fn spin_until_over(guard: &Guard) {
    while guard.is_held() {
        std::hint::spin_loop();
    }
}

/// A holder that sees for itself that its term is over, and drops its guard at that moment, has lost all the same:
/// whoever waits for the signal hears it.
pub async fn a_guard_dropped_at_its_deadline_is_lost(subject: &Subject) {
    let (locks, faulty) = subject.connect_faulty().await;
    faulty.always(Call::Renew, Fault::Fail);
    for name in subject.names(3) {
        let guard = locks.lock(&name).ttl(subject.ttl()).await.expect("a free name is granted");
        let lost = guard.lost();
        sleep(guard.remaining().saturating_sub(TICK)).await;
        spin_until_over(&guard);
        drop(guard);
        let lost = soon("loss is signalled", lost).await;
        assert!(matches!(lost.why, Why::Expired(_)), "{lost}");
    }
}

/// What was lost stays lost, also if a renewal's answer arrives a moment later.
pub async fn a_loss_is_never_taken_back(subject: &Subject) {
    let (locks, faulty) = subject.connect_faulty().await;
    let name = subject.name();
    let gate = Gate::new();
    faulty.always(Call::Renew, Fault::HoldReply(gate.clone()));
    let guard = locks.lock(&name).ttl(4 * subject.ttl()).renew_every(subject.ttl()).await.expect("it is free");
    soon("a renewal is sent", gate.reached()).await;
    sleep(guard.remaining().saturating_sub(TICK)).await;
    spin_until_over(&guard);
    gate.open();
    faulty.heal();
    free_for(&subject.connect().await, &name, "after it was lost").await;
    assert!(!guard.is_held() && matches!(guard.status(), Status::Lost(_)), "held again: {guard:?}");
}

/// A renewal that was carried out unheard doesn't keep the name closed after the loss.
pub async fn a_lost_term_that_was_renewed_unheard_is_released(subject: &Subject) {
    let (locks, faulty) = subject.connect_faulty().await;
    let (other, name) = (subject.connect().await, subject.name());
    faulty.always(Call::Renew, Fault::LoseReply);
    let guard = locks.lock(&name).ttl(4 * subject.ttl()).await.expect("a free name is granted");
    soon("loss is signalled", guard.lost()).await;
    // If it is there, it was lengthened by the last renewal.
    let left = other.get(&name).await.expect("the store answers");
    let next = hold(&other, &name).await;
    let record = other.get(&name).await.expect("the store answers").expect("the name is held");
    if let Some(left) = left.filter(|left| left.lease != record.lease) {
        assert!(record.acquired_at < left.expires_at, "the name was closed until its lost term ran out again");
    }
    drop(next);
}

/// Looking for a claim that was given up doesn't keep the name's next term from being renewed.
pub async fn a_search_for_an_orphan_does_not_starve_renewals(subject: &Subject) {
    const LIMIT: Duration = Duration::from_millis(300);
    let faulty = Faulty::new(subject.instance()).with_about(|about| about.statement_limit = LIMIT);
    let locks = Locks::on(Arc::new(faulty.clone())).await.expect("the store can be opened");
    let name = subject.name();
    faulty.next(Call::Claim, Fault::Fail);
    let given_up = locks.lock(&name).wait(Duration::from_millis(1)).await;
    assert!(given_up.is_err(), "{given_up:?}");
    let guard = locks.lock(&name).ttl(LONG).renew_every(TICK).await.expect("a free name is granted");
    faulty.always(Call::Release, Fault::Hang);
    sleep(2 * LIMIT).await;
    let renewals = faulty.calls(Call::Renew);
    let renewed = faulty.answered(Call::Renew, renewals + 3);
    assert!(timeout(SOON / 3, renewed).await.is_ok(), "no renewal while a release hangs");
    assert!(guard.is_held());
}

/// A try gets an answer, also behind a waiter that the store fails for longer.
pub async fn a_try_behind_a_failing_waiter_is_answered(subject: &Subject) {
    let (locks, faulty) = subject.connect_faulty().await;
    let name = subject.name();
    faulty.always(Call::Claim, Fault::Fail);
    let mut waiting = locks.lock(&name).ttl(LONG).into_future();
    assert!(poll_once(&mut waiting).await.is_pending());
    let answer = timeout(3 * SOON, locks.try_lock(&name).into_future()).await;
    let answer = answer.expect("a try is answered while the waiter before it goes on waiting");
    assert!(matches!(answer, Err(Error::Store { .. })), "{answer:?}");
    assert!(poll_once(&mut waiting).await.is_pending(), "the waiter waits for longer");
}

/// A waiter that comes while a try is being refused asks for itself: a store that pushes tells only those whom it has
/// refused.
pub async fn a_waiter_behind_a_try_asks_for_itself(subject: &Subject) {
    let faulty = Faulty::new(subject.instance()).with_about(|about| about.poll = LONG);
    let locks = Locks::on(Arc::new(faulty.clone())).await.expect("the store can be opened");
    let (other, name) = (subject.connect().await, subject.name());
    let _held = hold(&other, &name).await;
    let gate = Gate::new();
    faulty.next(Call::Claim, Fault::HoldReply(gate.clone()));
    let mut attempt = locks.try_lock(&name).into_future();
    assert!(poll_once(&mut attempt).await.is_pending());
    soon("the try is sent", gate.reached()).await;
    let mut waiting = locks.lock(&name).ttl(LONG).into_future();
    assert!(poll_once(&mut waiting).await.is_pending());
    taken_in(&locks).await;
    gate.open();
    assert!(soon("the try is answered", attempt).await.expect("the store answers").is_none());
    soon("the waiter asks for itself", faulty.answered(Call::Claim, 2)).await;
}

/// `max_hold` counts from when the name is handed out, not from a slow grant before.
pub async fn max_hold_counts_from_the_hand_out(subject: &Subject) {
    let (locks, faulty) = subject.connect_faulty().await;
    let (name, ttl) = (subject.name(), 4 * subject.ttl());
    faulty.next(Call::Claim, Fault::DelayReply(ttl.mul_f64(0.6)));
    faulty.next(Call::Renew, Fault::DelayReply(Duration::from_millis(200)));
    let guard = locks.lock(&name).ttl(ttl).max_hold(Duration::from_millis(50)).await;
    let guard = guard.expect("a slow grant is renewed and handed out");
    assert!(guard.is_held() || matches!(guard.status(), Status::Lost(_)), "{guard:?}");
    let lost = soon("the holder is told", guard.lost()).await;
    assert!(matches!(lost.why, Why::HeldTooLong), "{lost}");
}
