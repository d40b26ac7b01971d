//! Terms last as long as they should, by the store's clock.

use std::time::Duration;

use super::Subject;
use super::support::{Bare, LONG, SOON, TICK, claim_of, end_of, hold, renewal_of, soon};
use crate::guard::{Lost, Why};
use crate::record::Name;
use crate::store::{Claim, Gone, Outcome, Renewed};

/// How much two clocks may differ in rate.
const DRIFT: u32 = 100;

/// Lets the name's term run out.
pub async fn expire(subject: &Subject, store: &Bare, name: &Name) {
    let began = subject.now();
    while let Some(record) = store.find(name).await.filter(|record| record.is_live()) {
        assert!(subject.now() - began < LONG + SOON, "{record:?} does not expire");
        subject.pass(record.remaining + Duration::from_millis(1)).await;
    }
}

/// Claims until granted. Says how much time had passed, at the least and at the most, between `since` and the grant.
async fn take_over(subject: &Subject, store: &Bare, name: &Name, since: Duration) -> (Duration, Duration) {
    let claim = claim_of(name, LONG);
    loop {
        let asked = subject.now() - since;
        if let Outcome::Granted(_) = store.claim(&claim).await {
            return (asked, subject.now() - since);
        }
        assert!(asked < LONG, "{name} is still busy after {asked:?}");
        subject.pass(TICK).await;
    }
}

/// Nobody gets the name before the holder's time is up; then the next one gets it.
async fn closed_for(subject: &Subject, store: &Bare, claim: &Claim, closed: Duration) {
    let sent = subject.now();
    store.grant(claim, "when nobody has it").await;
    let answered = subject.now();
    let (_, latest) = take_over(subject, store, &claim.name, sent).await;
    assert!(latest >= closed - closed / DRIFT, "taken over after {latest:?} at the most, instead of {closed:?}");
    let earliest = subject.now() - answered;
    assert!(earliest <= closed + closed / DRIFT + SOON, "free only after {earliest:?} instead of {closed:?}");
}

/// A name that is not renewed is closed for its TTL, and no longer.
pub async fn expires_after_its_ttl_and_not_before(subject: &Subject) {
    let subject = subject.by_hand();
    let store = Bare::open(&subject).await;
    let claim = claim_of(&subject.name(), subject.ttl());
    closed_for(&subject, &store, &claim, subject.ttl()).await;
}

/// A renewal starts the term anew.
pub async fn renewal_extends(subject: &Subject) {
    let subject = subject.by_hand();
    let store = Bare::open(&subject).await;
    let ttl = 2 * subject.ttl();
    let claim = claim_of(&subject.name(), ttl);
    let first = store.grant(&claim, "when nobody has it").await;
    subject.pass(ttl / 2).await;
    let renewed = subject.now();
    store.keep(&renewal_of(&claim, first), "half-way through its term").await;
    let (_, latest) = take_over(&subject, &store, &claim.name, renewed).await;
    let least = ttl - ttl / DRIFT;
    assert!(latest >= least, "taken over {latest:?} after its renewal at the most, instead of {least:?}");
}

/// Once expired, a term can't be renewed, though nobody has taken the name.
pub async fn an_expired_term_is_not_revived(subject: &Subject) {
    let subject = subject.by_hand();
    let store = Bare::open(&subject).await;
    let claim = claim_of(&subject.name(), subject.ttl());
    let renewal = renewal_of(&claim, store.grant(&claim, "when nobody has it").await);
    expire(&subject, &store, &claim.name).await;
    for _ in 0..2 {
        let answer = store.renew(&renewal).await;
        assert!(matches!(answer, Renewed::Gone(Gone::Expired)), "the renewal of an expired term says {answer:?}");
    }
    assert!(store.find(&claim.name).await.is_none_or(|record| !record.is_live()), "an expired term was revived");
    store.grant(&claim_of(&claim.name, LONG), "after an expiry").await;
}

/// The holder of a term that has expired and passed to another hears who has the name now.
pub async fn a_renewal_of_a_taken_name_says_who_has_it(subject: &Subject) {
    let subject = subject.by_hand();
    let store = Bare::open(&subject).await;
    let claim = claim_of(&subject.name(), subject.ttl());
    let renewal = renewal_of(&claim, store.grant(&claim, "when nobody has it").await);
    expire(&subject, &store, &claim.name).await;
    let next = Claim { owner: "the next one".into(), ..claim_of(&claim.name, LONG) };
    let token = store.grant(&next, "after an expiry").await;
    match store.renew(&renewal).await {
        Renewed::Gone(Gone::Taken(record)) => {
            assert_eq!((&*record.owner, record.lease, record.token), ("the next one", next.lease, token));
        }
        answer => panic!("the renewal of a name that was taken says {answer:?}"),
    }
    let record = store.find(&claim.name).await.expect("the new term is listed");
    assert_eq!((record.lease, record.token), (next.lease, token), "a late renewal has changed the next term");
}

/// With a grace, an expired name stays closed for that long.
pub async fn grace_keeps_an_expired_name_closed(subject: &Subject) {
    let subject = subject.by_hand();
    let store = Bare::open(&subject).await;
    let grace = subject.ttl();
    let claim = Claim { grace, ..claim_of(&subject.name(), subject.ttl()) };
    closed_for(&subject, &store, &claim, subject.ttl() + grace).await;
}

/// A grace is for holders that may not have stopped: a released name is free at once.
pub async fn grace_does_not_close_a_released_name(subject: &Subject) {
    let store = Bare::open(subject).await;
    let claim = Claim { grace: LONG, ..claim_of(&subject.name(), LONG) };
    let token = store.grant(&claim, "when nobody has it").await;
    assert!(store.release(&end_of(&claim, token)).await, "a held name can be released");
    store.grant(&claim_of(&claim.name, LONG), "at once after a release, whatever the grace").await;

    let (one, other, name) = (subject.connect().await, subject.connect().await, subject.name());
    let lock = one.lock(&name).ttl(LONG).grace(LONG);
    let guard = soon("a free name is granted", lock.into_future()).await.expect("a free name is granted");
    soon("a release", guard.release()).await.expect("a held name can be released");
    drop(hold(&other, &name).await);
}

/// With `max_hold`, a holder is told that its time is over, and loses the name even if it does not let go.
pub async fn max_hold_tells_the_holder_and_frees_the_name(subject: &Subject) {
    let (one, other, name) = (subject.connect().await, subject.connect().await, subject.name());
    let ttl = 2 * subject.ttl();
    let lock = one.lock(&name).ttl(ttl).max_hold(subject.ttl() / 4);
    let guard = soon("a free name is granted", lock.into_future()).await.expect("a free name is granted");
    let Lost { why, .. } = soon("word that it was held too long", guard.lost()).await;
    assert!(matches!(why, Why::HeldTooLong), "held for longer than max_hold, and told {why}");
    assert!(!guard.is_held(), "still held after the holder was told");

    let next = soon("a name held too long is freed", other.lock(&name).ttl(LONG).into_future()).await;
    let _next = next.expect("a name held too long is freed");
    assert!(guard.remaining().is_zero(), "freed {:?} before the holder's deadline", guard.remaining());
}
