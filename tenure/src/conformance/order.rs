//! What the engine asks of a store is in order, and within the contract.

use std::future::IntoFuture;
use std::time::Duration;

use super::support::{LONG, hold, poll_once, soon, taken_in};
use super::{Call, Fault, Faulty, Gate, Subject};
use crate::locks::Locks;

async fn with_calls(subject: &Subject, calls: usize) -> (Locks, Faulty) {
    subject.connect_to(Faulty::new(subject.instance()).with_about(move |about| about.calls = calls)).await
}

/// A claim is not sent while this process's release of the name is under way.
pub async fn a_claim_waits_for_the_release_before_it(subject: &Subject) {
    let (locks, faulty) = with_calls(subject, 4).await;
    let (name, gate) = (subject.name(), Gate::new());
    let guard = hold(&locks, &name).await;
    let token = guard.token();
    faulty.next(Call::Release, Fault::Hold(gate.clone()));
    drop(guard);
    soon("the release arrives", gate.reached()).await;
    let claims = faulty.calls(Call::Claim);
    let mut acquires = [locks.lock(&name).ttl(LONG).into_future(), locks.lock(&name).ttl(LONG).into_future()];
    for acquire in &mut acquires {
        assert!(poll_once(acquire).await.is_pending());
    }
    taken_in(&locks).await;
    // Another name's claim goes past, so the engine is not just slow.
    drop(hold(&locks, &subject.name()).await);
    assert_eq!(faulty.calls(Call::Claim), claims + 1, "a claim was sent while the release was under way");
    gate.open();
    let [first, _second] = acquires;
    let guard = soon("the claim is granted", first).await.expect("a free name is granted");
    assert!(guard.token() > token, "token {} follows {token}", guard.token());
    assert_eq!(faulty.breaches(), [""; 0], "breaches of the contract");
}

/// A claim is not sent between a release that failed and the next attempt, either.
pub async fn a_claim_waits_for_a_release_that_is_made_again(subject: &Subject) {
    let (locks, faulty) = subject.connect_faulty().await;
    let name = subject.name();
    let guard = hold(&locks, &name).await;
    faulty.always(Call::Release, Fault::Fail);
    drop(guard);
    soon("a release fails", faulty.answered(Call::Release, 1)).await;
    let claims = faulty.calls(Call::Claim);
    let mut acquire = locks.lock(&name).ttl(LONG).into_future();
    assert!(poll_once(&mut acquire).await.is_pending());
    soon("more releases fail", faulty.answered(Call::Release, 4)).await;
    assert_eq!(faulty.calls(Call::Claim), claims, "a claim was sent before the release was done");
    faulty.heal();
    drop(soon("the claim is granted", acquire).await.expect("a free name is granted"));
}

/// A release is not sent while a renewal of the name is under way, and the name is free afterwards.
pub async fn a_release_waits_for_the_renewal_before_it(subject: &Subject) {
    let (locks, faulty) = subject.connect_faulty().await;
    let gate = Gate::new();
    faulty.next(Call::Renew, Fault::Hold(gate.clone()));
    let lock = locks.lock(subject.name()).ttl(LONG).renew_every(Duration::from_millis(100));
    let guard = soon("a free name is granted", lock.into_future()).await.expect("a free name is granted");
    soon("a renewal", gate.reached()).await;
    let release = guard.release();
    taken_in(&locks).await;
    assert_eq!(faulty.calls(Call::Release), 0, "a release was sent while the renewal was under way");
    gate.open();
    soon("the release", release).await.expect("a held name can be released");
    assert_eq!(faulty.breaches(), [""; 0], "breaches of the contract");
}

/// While a name is held again, the search for an earlier claim of unknown outcome keeps out of the renewals' way.
pub async fn a_search_for_an_orphan_waits_for_the_renewal_before_it(subject: &Subject) {
    let limit = Duration::from_millis(300);
    let faulty = Faulty::new(subject.instance()).with_about(move |about| {
        about.calls = 1;
        about.statement_limit = limit;
    });
    let (locks, faulty) = subject.connect_to(faulty).await;
    let (name, elsewhere) = (subject.name(), hold(&locks, &subject.name()).await);
    faulty.next(Call::Claim, Fault::Abandon(Gate::new()));
    faulty.always(Call::Claim, Fault::Fail);
    let mut acquire = locks.lock(&name).ttl(LONG).into_future();
    assert!(poll_once(&mut acquire).await.is_pending());
    soon("the claim arrives", faulty.arrived(Call::Claim, 2)).await;
    drop(acquire);
    soon("a search for what it left", faulty.answered(Call::Release, 1)).await;
    faulty.heal();

    let (renewal, release) = (Gate::new(), Gate::new());
    faulty.next(Call::Renew, Fault::Hold(renewal.clone()));
    faulty.next(Call::Release, Fault::Hold(release.clone()));
    let lock = locks.lock(&name).ttl(LONG).renew_every(2 * limit);
    let guard = soon("a free name is granted", lock.into_future()).await.expect("a free name is granted");
    drop(elsewhere);
    soon("a renewal", renewal.reached()).await;
    release.open();
    // Another name's release goes past, so the search has had its chance.
    soon("a release", hold(&locks, &subject.name()).await.release()).await.expect("a held name can be released");
    assert_eq!(faulty.breaches(), [""; 0], "breaches of the contract");
    renewal.open();
    assert!(guard.is_held());
}
