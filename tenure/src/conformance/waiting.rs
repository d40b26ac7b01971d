//! Who waits is woken, and in order.

use std::future::IntoFuture;

use super::support::{Bare, LONG, claim_of, hold, poll_once, soon, taken_in};
use super::{Call, Faulty, Subject};
use crate::error::Result;
use crate::guard::Guard;
use crate::lock::Acquire;
use crate::locks::Locks;
use crate::record::Name;
use crate::store::About;

/// A waiter in another process has the name soon after its release, long before the term would have run out: by its
/// polls or, on a store that pushes, by a hint alone.
pub async fn a_release_wakes_a_waiter(subject: &Subject) {
    let hint_alone = |about: &mut About| about.poll = if about.push { LONG } else { about.poll };
    let (other, faulty) = subject.connect_to(Faulty::new(subject.instance()).with_about(hint_alone)).await;
    let one = subject.connect().await;
    let name = subject.name();
    let guard = hold(&one, &name).await;
    let before = guard.token();
    let mut waiter = waiting(&other, &name).await;
    soon("the waiter's claim is refused", faulty.answered(Call::Claim, 1)).await;
    soon("a release", guard.release()).await.expect("a held name can be released");
    let next = granted(&mut waiter).await;
    assert!(next.token() > before, "token {} follows {before}", next.token());
}

/// A waiter has the name soon after the term of a holder that vanished has run out.
pub async fn an_expiry_wakes_a_waiter(subject: &Subject) {
    let store = Bare::open(subject).await;
    let (locks, faulty) = subject.connect_faulty().await;
    let claim = claim_of(&subject.name(), subject.ttl());
    store.grant(&claim, "when nobody has it").await;
    let mut waiter = waiting(&locks, &claim.name).await;
    soon("the waiter's claim is refused", faulty.answered(Call::Claim, 1)).await;
    drop(granted(&mut waiter).await);
}

/// Waiters in one process are served first come, first served; those who have gone are passed over.
pub async fn waiters_in_one_process_are_served_in_order(subject: &Subject) {
    let (one, other) = (subject.connect().await, subject.connect().await);
    let name = subject.name();
    let guard = hold(&one, &name).await;
    let mut waiters = Vec::new();
    for _ in 0..6 {
        waiters.push(waiting(&other, &name).await);
    }
    drop(waiters.remove(3));
    drop(waiters.remove(0));
    taken_in(&other).await;
    soon("a release", guard.release()).await.expect("a held name can be released");
    while !waiters.is_empty() {
        let first = granted(&mut waiters.remove(0)).await;
        taken_in(&other).await;
        for waiter in &mut waiters {
            assert!(poll_once(waiter).await.is_pending(), "a later waiter was served while the first one holds");
        }
        drop(first);
    }
}

/// A waiter in the process that holds the name has it at once after its release or drop.
pub async fn a_release_wakes_a_waiter_in_the_same_process(subject: &Subject) {
    let locks = subject.connect().await;
    let name = subject.name();
    let guard = hold(&locks, &name).await;
    let mut waiters = [waiting(&locks, &name).await, waiting(&locks, &name).await];
    soon("a release", guard.release()).await.expect("a held name can be released");
    for waiter in &mut waiters {
        drop(granted(waiter).await);
    }
}

/// An acquire that stands in the queue, of a name that somebody holds.
async fn waiting(locks: &Locks, name: &Name) -> Acquire {
    let mut acquire = locks.lock(name).ttl(LONG).into_future();
    assert!(poll_once(&mut acquire).await.is_pending(), "{name} is held and was granted");
    taken_in(locks).await;
    acquire
}

async fn granted(acquire: &mut Acquire) -> Guard {
    let granted: Result<Guard> = soon("the waiter is woken and granted", acquire).await;
    granted.expect("the waiter is granted")
}
