//! Tokens rise with every grant, and only then, or when rotated.

use std::time::Duration;

use super::support::{Bare, LONG, claim_of, end_of, renewal_of, soon};
use super::time::expire;
use super::{Call, Subject};
use crate::event::{EventKind, Events, Next};
use crate::record::{Name, Token};
use crate::store::{Gone, Renewal, Renewed};

/// Beyond, JSON and Lua would round them.
const EXACT: u64 = 1 << 53;

/// Each grant's token is larger than the one before, though the name was released in between.
pub async fn tokens_increase_across_release(subject: &Subject) {
    let subject = subject.by_hand();
    let stores = [Bare::open(&subject).await, Bare::open(&subject).await];
    let name = subject.name();
    let mut last = Token(0);
    for turn in 0..20 {
        let claim = claim_of(&name, LONG);
        let store = &stores[turn % 2];
        let token = store.grant(&claim, "after a release").await;
        assert!(token > last, "token {token} follows {last}");
        assert!(token.0 < EXACT, "token {token} is not exact in JSON");
        last = token;
        assert!(store.release(&end_of(&claim, token)).await, "a held name can be released");
    }
}

/// Each grant's token is larger than the one before, though nobody released it.
pub async fn tokens_increase_across_expiry(subject: &Subject) {
    let subject = subject.by_hand();
    let store = Bare::open(&subject).await;
    let claim = claim_of(&subject.name(), subject.ttl());
    let first = store.grant(&claim, "when nobody has it").await;
    expire(&subject, &store, &claim.name).await;
    let second = store.grant(&claim, "to the same lease, after its term expired").await;
    assert!(second > first, "token {second} follows {first}, which expired, in a claim by the same lease");
    expire(&subject, &store, &claim.name).await;
    let third = store.grant(&claim_of(&claim.name, LONG), "after an expiry").await;
    assert!(third > second, "token {third} follows {second}, which expired");
}

/// A name that was forgotten and is claimed again gets a larger token; names held meanwhile are not forgotten.
pub async fn tokens_increase_across_prune(subject: &Subject) {
    let subject = subject.by_hand();
    let store = Bare::open(&subject).await;
    // Below a minute only because nothing else is at these names.
    let idle = if subject.leaps() { Duration::from_secs(60) } else { Duration::from_secs(3) };
    let [released, expired, held, recent]: [Name; 4] = subject.names(4).try_into().expect("four names");
    let was_released = claim_of(&released, LONG);
    let released_token = store.grant(&was_released, "when nobody has it").await;
    assert!(store.release(&end_of(&was_released, released_token)).await);
    let expired_token = store.grant(&claim_of(&expired, subject.ttl()), "when nobody has it").await;
    let holder = claim_of(&held, LONG);
    let held_token = store.grant(&holder, "when nobody has it").await;
    expire(&subject, &store, &expired).await;
    subject.pass(idle + Duration::from_millis(10)).await;
    let recent_token = store.grant(&claim_of(&recent, subject.ttl()), "when nobody has it").await;
    expire(&subject, &store, &recent).await;

    // A store whose tokens need no memory keeps nothing of a name that nobody holds, and has nothing to prune.
    let keeps_records = store.find(&recent).await.is_some();
    let pruned = store.0.prune(idle).await.expect("the store can prune");
    // A store that remembers tokens apart from records has forgotten the released name before.
    assert!(pruned >= 1 || !keeps_records, "pruned nothing");
    assert!(store.find(&expired).await.is_none(), "a name that expired {idle:?} ago was not forgotten");
    let kept = store.find(&recent).await.is_some();
    assert!(kept || !keeps_records, "a name was forgotten that expired just now");
    assert_eq!(store.keep(&renewal_of(&holder, held_token), "after a prune").await, held_token);
    for (name, before) in [(released, released_token), (expired, expired_token), (recent, recent_token)] {
        let token = store.grant(&claim_of(&name, LONG), "after a prune").await;
        assert!(token > before, "{name}: token {token} follows {before} after a prune");
    }
}

/// A claim that is made again, because its answer was lost, gets the same token, and a term that starts anew.
pub async fn the_same_lease_retried_keeps_its_token(subject: &Subject) {
    let subject = subject.by_hand();
    let store = Bare::open(&subject).await;
    let claim = claim_of(&subject.name(), LONG);
    let token = store.grant(&claim, "when nobody has it").await;
    subject.pass(Duration::from_millis(100)).await;
    assert_eq!(store.grant(&claim, "to the lease that has it").await, token, "a retry got another token");
    let record = store.find(&claim.name).await.expect("a held name is listed");
    assert_eq!((record.first, record.token), (token, token));
    let term = record.expires_at.duration_since(record.acquired_at).unwrap_or_default();
    assert!(term >= LONG + Duration::from_millis(90), "a retry did not start the term anew: {record:?}");
    assert!(store.release(&end_of(&claim, token)).await, "what was claimed twice can be released");
}

/// Renewals leave the token alone unless told to rotate it; then it rises, and the next grant's is larger still.
pub async fn only_rotation_raises_a_held_token(subject: &Subject) {
    let subject = subject.by_hand();
    let store = Bare::open(&subject).await;
    let claim = claim_of(&subject.name(), LONG);
    let first = store.grant(&claim, "when nobody has it").await;
    let renewal = renewal_of(&claim, first);
    let rotation = Renewal { rotate: true, ..renewal.clone() };
    subject.pass(Duration::from_millis(10)).await;
    assert_eq!(store.keep(&renewal, "while it is held").await, first, "a renewal changed the token");
    let rotated = store.keep(&rotation, "while it is held").await;
    assert!(rotated > first, "a rotation gave {rotated} after {first}");
    assert_eq!(store.keep(&renewal, "by its first token").await, rotated, "a renewal changed the token");
    let again = store.keep(&rotation, "while it is held").await;
    assert!(again > rotated, "a rotation gave {again} after {rotated}");
    let record = store.find(&claim.name).await.expect("a held name is listed");
    assert_eq!((record.first, record.token), (first, again), "the record after two rotations");

    assert!(store.release(&end_of(&claim, first)).await, "a rotated term is released by its first token");
    let next = store.grant(&claim_of(&claim.name, LONG), "after a release").await;
    assert!(next > again, "token {next} follows the rotated token {again}");
}

/// A renewal or release with the right lease but another first token is of another term.
pub async fn a_renewal_of_an_older_term_is_refused(subject: &Subject) {
    let subject = subject.by_hand();
    let store = Bare::open(&subject).await;
    let claim = claim_of(&subject.name(), LONG);
    let first = store.grant(&claim, "when nobody has it").await;
    assert!(store.release(&end_of(&claim, first)).await);
    let second = store.grant(&claim, "to the same lease, after a release").await;
    assert!(second > first, "token {second} follows {first}");

    let stale = store.renew(&renewal_of(&claim, first)).await;
    assert!(matches!(stale, Renewed::Gone(_)), "a renewal of an older term of the same lease says {stale:?}");
    assert!(!store.release(&end_of(&claim, first)).await, "the release of an older term of the same lease says true");
    assert_eq!(store.keep(&renewal_of(&claim, second), "by its own first token").await, second);
    let never = store.renew(&renewal_of(&claim_of(&subject.name(), LONG), first)).await;
    assert!(matches!(never, Renewed::Gone(Gone::Expired)), "a renewal of a name never held says {never:?}");
}

/// With `rotate_every`, heartbeats are frequent and tokens rise once a period, never more often.
pub async fn rotation_raises_the_token_once_a_period(subject: &Subject) {
    const RENEWALS: u32 = 6;
    let (locks, faulty) = subject.connect_faulty().await;
    let mut events = locks.events();
    let period = subject.ttl().max(Duration::from_secs(1));
    let began = subject.now();
    let lock = locks.lock(subject.name()).ttl(5 * period).renew_every(period / RENEWALS).rotate_every(period);
    let guard = soon("a free name is granted", lock.into_future()).await.expect("a free name is granted");

    let mut token = guard.token();
    for turn in 1..=3 {
        token = soon("a rotation", next_rotation(&mut events, token)).await;
        // The engine may be an eighth early, so as not to be nearly a whole renewal late.
        let least = period * turn * 7 / 8;
        let passed = subject.now() - began;
        assert!(passed >= least, "rotated {turn} times within {passed:?}, in periods of {period:?}");
    }
    assert!(guard.token() >= token, "the guard shows {} after {token}", guard.token());
    let renewals = faulty.calls(Call::Renew);
    assert!(renewals > 6, "{renewals} renewals in three periods of {RENEWALS}");
}

/// The next rotation's token. Renewals before it must leave the token as it was.
async fn next_rotation(events: &mut Events, before: Token) -> Token {
    loop {
        let Some(Next::Event(event)) = events.next().await else { panic!("events were missed") };
        match event.kind {
            EventKind::TokenRotated(from) => {
                let token = event.token.expect("a rotation has a token");
                assert!(from == before && token > before, "rotated from {from} to {token}, after {before}");
                return token;
            }
            EventKind::Renewed => {}
            EventKind::Acquired => assert_eq!(event.token, Some(before)),
            other => panic!("while rotating: {other:?}"),
        }
    }
}
