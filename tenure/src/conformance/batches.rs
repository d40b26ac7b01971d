//! Many names in one call, each on its own.

use std::future::IntoFuture;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;

use super::support::{Bare, LONG, SOON, claim_of, end_of, free_for, insist, poll_once, renewal_of, soon, taken_in};
use super::{Call, Fault, Faulty, Gate, Subject};
use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::lock::Acquire;
use crate::locks::Locks;
use crate::record::{Name, Token};
use crate::store::{Claim, Ended, Outcome, Renewal, Renewed};

const MANY: usize = 1000;

/// An engine that has one call of a kind under way at a time, so that what is asked meanwhile is in the next.
async fn one_at_a_time(subject: &Subject) -> (Locks, Faulty) {
    subject.connect_to(Faulty::new(subject.instance()).with_about(|about| about.calls = 1)).await
}

/// Asks for names while a claim of another is under way, and lets that go on. Returns the acquires, all polled.
async fn ask_together(locks: &Locks, faulty: &Faulty, first: &Name, names: &[Name]) -> (Guard, Vec<Acquire>) {
    let gate = Gate::new();
    faulty.next(Call::Claim, Fault::Hold(gate.clone()));
    let mut blocking = locks.lock(first).ttl(LONG).into_future();
    assert!(poll_once(&mut blocking).await.is_pending());
    soon("the first claim arrives", gate.reached()).await;
    let mut acquires = Vec::with_capacity(names.len());
    for name in names {
        let mut acquire = locks.lock(name).ttl(LONG).into_future();
        assert!(poll_once(&mut acquire).await.is_pending());
        acquires.push(acquire);
    }
    taken_in(locks).await;
    gate.open();
    (soon("the first claim is granted", blocking).await.expect("a free name is granted"), acquires)
}

async fn all<T>(what: &str, futures: Vec<impl Future<Output = Result<T>>>) -> Vec<Result<T>> {
    let mut results = Vec::with_capacity(futures.len());
    for future in futures {
        results.push(soon(what, future).await);
    }
    results
}

/// Requests that arrive while a call is under way travel together in the next: claims, and releases.
pub async fn requests_that_arrive_during_a_call_travel_together(subject: &Subject) {
    let (locks, faulty) = one_at_a_time(subject).await;
    let (first, names) = (subject.name(), subject.names(50));
    let (blocking, acquires) = ask_together(&locks, &faulty, &first, &names).await;
    let guards = all("a claim", acquires).await.into_iter().map(|guard| guard.expect("a free name is granted"));
    let guards: Vec<Guard> = guards.collect();
    assert_eq!((faulty.calls(Call::Claim), faulty.entries(Call::Claim)), (2, 51), "calls and entries of claims");

    let gate = Gate::new();
    faulty.next(Call::Release, Fault::Hold(gate.clone()));
    let blocking = blocking.release();
    soon("the first release arrives", gate.reached()).await;
    let releases: Vec<_> = guards.into_iter().map(Guard::release).collect();
    taken_in(&locks).await;
    gate.open();
    soon("a release", blocking).await.expect("a held name can be released");
    all("a release", releases).await.into_iter().for_each(|result| result.expect("a held name can be released"));
    assert_eq!((faulty.calls(Call::Release), faulty.entries(Call::Release)), (2, 51), "calls and entries of releases");
}

/// A thousand names are claimed, renewed and released in one call, or as few as the store's batch allows.
pub async fn a_thousand_names_fit_one_batch(subject: &Subject) {
    let (locks, faulty) = one_at_a_time(subject).await;
    let (first, names) = (subject.name(), subject.names(MANY));
    let (_blocking, acquires) = ask_together(&locks, &faulty, &first, &names).await;
    let guards = all("a claim", acquires).await.into_iter().map(|guard| guard.expect("a free name is granted"));
    let guards: Vec<Guard> = guards.collect();
    let least = 1 + MANY.div_ceil(locks.about().batch) as u64;
    assert_eq!(faulty.calls(Call::Claim), least, "calls for one claim, and then {MANY}");
    assert!(guards.iter().zip(&names).all(|(guard, name)| guard.name() == name && guard.is_held()));
    let listed = soon("a list", locks.list(names[0].as_str().trim_end_matches("0000"))).await.expect("a list");
    assert!(listed.iter().map(|record| &record.name).eq(&names), "{} names are listed", listed.len());
    drop(guards);
    free_for(&locks, &names[MANY - 1], "after it was dropped").await;
    assert_eq!(faulty.breaches(), [""; 0], "breaches of the contract");
}

/// One call with as many entries as the store takes, a thousand at the most, answers each, in order.
pub async fn a_full_batch_is_answered_in_order(subject: &Subject) {
    let subject = subject.by_hand();
    let store = Bare::open(&subject).await;
    let names = subject.names(MANY.min(store.0.about().batch));
    let claims: Vec<Claim> = names.iter().map(|name| claim_of(name, LONG)).collect();
    let tokens = granted(insist(async || store.0.claim(&claims).await).await);
    let pairs = || claims.iter().zip(&tokens);
    let renewals: Vec<Renewal> = pairs().map(|(claim, token)| renewal_of(claim, *token)).collect();
    let kept = insist(async || store.0.renew(&renewals).await).await;
    assert_eq!(kept.len(), names.len(), "answers to renewals");
    for (kept, token) in kept.into_iter().zip(&tokens) {
        let kept = kept.expect("a renewal is answered");
        assert!(matches!(&kept, Renewed::Kept(grant) if grant.token == *token), "{kept:?} instead of {token}");
    }
    let ends: Vec<Ended> = pairs().map(|(claim, token)| end_of(claim, *token)).collect();
    let freed = insist(async || store.0.release(&ends).await).await;
    assert_eq!(freed.len(), names.len(), "answers to releases");
    assert!(freed.into_iter().all(|freed| freed.expect("a release is answered")), "a held name was not released");
}

fn granted(outcomes: Vec<Result<Outcome>>) -> Vec<Token> {
    let token = |outcome: Result<Outcome>| match outcome.expect("a claim is answered") {
        Outcome::Granted(grant) => grant.token,
        Outcome::Busy(record) => panic!("a free name is busy: {record:?}"),
    };
    outcomes.into_iter().map(token).collect()
}

/// In a batch in which some names are busy, those are refused and the others granted, each with its own answer.
pub async fn a_batch_in_which_some_are_busy_grants_the_rest(subject: &Subject) {
    let subject = subject.by_hand();
    let (store, other) = (Bare::open(&subject).await, Bare::open(&subject).await);
    let names = subject.names(30);
    let mut holders = Vec::new();
    for name in names.iter().step_by(3) {
        let claim = claim_of(name, LONG);
        other.grant(&claim, "when nobody has it").await;
        holders.push(claim.lease);
    }
    let claims: Vec<Claim> = names.iter().map(|name| claim_of(name, LONG)).collect();
    let outcomes = insist(async || store.0.claim(&claims).await).await;
    assert_eq!(outcomes.len(), claims.len(), "answers to claims");
    for (index, outcome) in outcomes.into_iter().enumerate() {
        match outcome.expect("a claim is answered") {
            Outcome::Granted(_) => assert_ne!(index % 3, 0, "granted what another holds"),
            Outcome::Busy(record) => {
                assert_eq!(index % 3, 0, "busy, though free: {record:?}");
                let record = record.expect("with nobody else at it, a refusal says who holds the name");
                assert_eq!((&record.name, record.lease), (&names[index], holders[index / 3]));
            }
        }
    }
    check_mixed_releases(&store, &claims).await;
}

/// Of these, each third is another's.
async fn check_mixed_releases(store: &Bare, claims: &[Claim]) {
    let end = |claim: &Claim| Ended { name: claim.name.clone(), lease: claim.lease, first: None, evicted_by: None };
    let ends: Vec<Ended> = claims.iter().map(end).collect();
    let freed = insist(async || store.0.release(&ends).await).await;
    for (index, freed) in freed.into_iter().enumerate() {
        assert_eq!(freed.expect("a release is answered"), index % 3 != 0, "the release of entry {index}");
    }
}

/// If one entry makes its whole call fail, for good, the others get what they asked for all the same.
pub async fn one_bad_entry_does_not_spoil_its_batch(subject: &Subject) {
    const BAD: usize = 13;
    let (locks, faulty) = one_at_a_time(subject).await;
    let (first, names) = (subject.name(), subject.names(20));
    faulty.poison(Call::Claim, names[BAD].clone());
    let (_blocking, acquires) = ask_together(&locks, &faulty, &first, &names).await;
    let results = all("a claim", acquires).await;
    for (index, result) in results.iter().enumerate() {
        match result {
            Ok(_) => assert_ne!(index, BAD, "granted what the store refuses"),
            Err(error) => {
                assert_eq!(index, BAD, "spoilt by another entry: {error}");
                assert!(matches!(error, Error::Store { transient: false, .. }), "the bad entry says {error:?}");
            }
        }
    }
    // A poisoned release must not keep the others held; the bad one is given up when its term is over.
    faulty.heal();
    drop(results);
    free_for(&subject.connect().await, &names[BAD + 1], "after its guard was dropped").await;
}

/// All terms of a process that are due are renewed together.
pub async fn renewals_are_batched(subject: &Subject) {
    const NAMES: u64 = 100;
    let (locks, faulty) = subject.connect_faulty().await;
    let ttl = 3 * subject.ttl();
    let acquires = subject.names(NAMES as usize).into_iter().map(|name| locks.lock(name).ttl(ttl).into_future());
    let guards = soon("the claims", acquires.collect::<JoinSet<_>>().join_all()).await;
    let renewed = async {
        while faulty.entries(Call::Renew) < 2 * NAMES {
            sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(ttl + SOON, renewed).await.expect("every name is renewed twice");
    let (calls, entries) = (faulty.calls(Call::Renew), faulty.entries(Call::Renew));
    assert!(calls * 10 <= entries, "{calls} calls to renew {entries} times");
    for guard in guards {
        assert!(guard.expect("a free name is granted").is_held(), "lost while renewing");
    }
}
