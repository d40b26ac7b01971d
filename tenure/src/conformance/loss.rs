//! Loss is always signalled, with its reason; what is no loss never is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::support::{Bare, LONG, SOON, TICK, claim_of, hold, is_closed_to, poll_once, soon};
use super::{Call, Fault, Subject};
use crate::clock::Moment;
use crate::error::Error;
use crate::guard::{Guard, Lost, Status, Why};
use crate::locks::Locks;
use crate::record::Name;
use crate::store::{Claim, Ended};

/// How late a signal may be on a machine that is busy.
const LATE: Duration = Duration::from_secs(2);
const RENEWALS: Duration = Duration::from_millis(300);

/// Acquires for a time that may run out.
async fn hold_briefly(locks: &Locks, name: &Name, ttl: Duration) -> Guard {
    soon("a free name is granted", locks.lock(name).ttl(ttl).into_future()).await.expect("a free name is granted")
}

/// Acquires with renewals that are far more frequent than they need to be.
async fn hold_renewed(locks: &Locks, name: &Name, ttl: Duration) -> Guard {
    let lock = locks.lock(name).ttl(ttl).renew_every(RENEWALS);
    soon("a free name is granted", lock.into_future()).await.expect("a free name is granted")
}

/// The holder is told at its own deadline, before anybody else can have the name.
async fn lost_at_the_deadline(subject: &Subject, fault: Fault) {
    let (locks, faulty) = subject.connect_faulty().await;
    let (other, name) = (subject.connect().await, subject.name());
    faulty.always(Call::Renew, fault.clone());
    let guard = hold_briefly(&locks, &name, subject.ttl()).await;
    // In a task of its own, where nothing but the signal wakes it.
    let lost = guard.lost();
    let signal = tokio::spawn(async move { (lost.await, Moment::now()) });
    let next = soon("the name passes on", other.lock(&name).ttl(LONG).into_future()).await;
    assert!(!guard.is_held(), "two holders at once, with {fault:?}");
    let _next = next.expect("the name passes on");
    let (lost, at) = soon("loss is signalled", signal).await.expect("the task ends well");
    assert!(matches!(&lost.why, Why::Expired(_)), "with {fault:?} the holder is told: {lost}");
    assert!(!guard.is_held() && guard.remaining().is_zero(), "held after it was lost, with {fault:?}");
    assert!(at - guard.deadline() <= LATE, "told {:?} after the deadline", at - guard.deadline());
    let refused = soon("a release of what was lost", guard.release()).await;
    assert!(matches!(refused, Err(Error::Lost(_))), "the release of what was lost says {refused:?}");
}

/// If the store stops answering, the holder is told at its deadline.
pub async fn loss_is_signalled_when_the_store_hangs(subject: &Subject) {
    lost_at_the_deadline(subject, Fault::Hang).await;
}

/// If the store fails for as long as the term lasts, the holder is told at its deadline.
pub async fn loss_is_signalled_when_the_store_fails(subject: &Subject) {
    lost_at_the_deadline(subject, Fault::Fail).await;
}

/// If the store refuses to renew, for good, the holder is told at its deadline.
pub async fn loss_is_signalled_when_the_store_refuses(subject: &Subject) {
    lost_at_the_deadline(subject, Fault::Refuse).await;
}

/// If renewals are carried out but their answers are lost, the holder can't know, and is told at its deadline.
pub async fn loss_is_signalled_when_replies_are_lost(subject: &Subject) {
    lost_at_the_deadline(subject, Fault::LoseReply).await;
}

/// One renewal that fails is made again in time.
pub async fn a_single_failed_renewal_loses_nothing(subject: &Subject) {
    for fault in [Fault::Fail, Fault::LoseReply, Fault::Hang] {
        let (locks, faulty) = subject.connect_faulty().await;
        faulty.next(Call::Renew, fault.clone());
        let guard = hold_renewed(&locks, &subject.name(), 3 * subject.ttl()).await;
        let (first, token) = (guard.deadline(), guard.token());
        soon("the renewal is made again", faulty.arrived(Call::Renew, 2)).await;
        let renewed = async {
            while guard.deadline() == first {
                sleep(TICK).await;
            }
        };
        soon("a second renewal extends the term", renewed).await;
        assert!(guard.is_held(), "one renewal failed ({fault:?}), and the term was lost: {:?}", guard.status());
        assert_eq!(guard.token(), token, "a renewal changed the token");
    }
}

/// The heartbeat goes on while the application's own runtime is blocked.
pub async fn a_blocked_runtime_loses_nothing(subject: &Subject) {
    let (locks, other, name) = (subject.connect().await, subject.connect().await, subject.name());
    let ttl = subject.ttl() * 3 / 2;
    let guard = hold_briefly(&locks, &name, ttl).await;
    std::thread::sleep(3 * ttl);
    assert!(guard.is_held(), "lost while the application's runtime was blocked: {:?}", guard.status());
    assert!(is_closed_to(&other, &name).await, "another was granted the name while the runtime was blocked");
    soon("a release", guard.release()).await.expect("what was held all the time can be released");
}

/// A release, or a drop, is never reported as loss, not even when the term would have run out.
pub async fn an_ordinary_release_is_not_loss(subject: &Subject) {
    let locks = subject.connect().await;
    let (released, dropped) = (subject.name(), subject.name());
    let guards =
        [hold_briefly(&locks, &released, subject.ttl()).await, hold_briefly(&locks, &dropped, subject.ttl()).await];
    let mut signals = guards.each_ref().map(Guard::lost);
    let mut watches = guards.each_ref().map(Guard::watch);
    let [release, drop_it] = guards;
    soon("a release", release.release()).await.expect("a held name can be released");
    drop(drop_it);
    for watch in &mut watches {
        let status = soon("word of the release", watch.changed()).await;
        assert!(matches!(status, Status::Released), "after a release the status is {status:?}");
    }
    let [release, drop_it] = &mut signals;
    let lost = timeout(subject.ttl() + Duration::from_millis(500), async {
        tokio::select! { lost = release => lost, lost = drop_it => lost }
    });
    if let Ok(lost) = lost.await {
        panic!("a release was reported as loss: {lost}");
    }
}

/// A release that is made again because its answer was lost finds nothing, and is a success all the same.
pub async fn a_retried_release_is_not_loss(subject: &Subject) {
    let (locks, faulty) = subject.connect_faulty().await;
    for fault in [Fault::LoseReply, Fault::Fail] {
        let guard = hold(&locks, &subject.name()).await;
        let lost = guard.lost();
        faulty.next(Call::Release, fault.clone());
        let result = soon("a release", guard.release()).await;
        assert!(result.is_ok(), "a release that was made again ({fault:?}) says {result:?}");
        assert!(poll_once(&mut { lost }).await.is_pending(), "a release that was made again was reported as loss");
    }
    assert_eq!(faulty.calls(Call::Release), 4, "each release was to be made twice");
}

/// A holder whose name was freed by an operator hears by whom, at its next renewal.
pub async fn eviction_is_told_on_the_next_renewal(subject: &Subject) {
    let (locks, operator, name) = (subject.connect().await, subject.connect().await, subject.name());
    let guard = hold_renewed(&locks, &name, LONG).await;
    let ended = soon("an eviction", operator.evict(&name, "ops: it's stuck")).await.expect("a name can be evicted");
    assert_eq!(ended.map(|record| record.token), Some(guard.token()), "the term that was evicted");
    let next = hold(&operator, &name).await;
    let lost = soon("loss is signalled", guard.lost()).await;
    assert!(matches!(&lost.why, Why::Evicted(by) if by == "ops: it's stuck"), "an evicted holder is told: {lost}");
    assert!(next.token() > guard.token(), "token {} follows {}, evicted", next.token(), guard.token());
    let free = soon("an eviction", operator.evict(subject.name(), "ops")).await.expect("a free name can be evicted");
    assert!(free.is_none(), "the eviction of a free name ended {free:?}");
}

/// A holder whose name was freed by its own process hears it at once.
pub async fn eviction_by_the_same_process_is_told_at_once(subject: &Subject) {
    let (locks, name) = (subject.connect().await, subject.name());
    let guard = hold(&locks, &name).await;
    soon("an eviction", locks.evict(&name, "ourselves")).await.expect("a name can be evicted").expect("it was held");
    let lost = soon("loss is signalled", guard.lost()).await;
    assert!(matches!(&lost.why, Why::Evicted(by) if by == "ourselves"), "an evicted holder is told: {lost}");
}

/// A holder whose name the store has given to another hears who has it, at its next renewal.
pub async fn a_taken_name_is_told_with_its_new_holder(subject: &Subject) {
    let (locks, bare, name) = (subject.connect().await, Bare::open(subject).await, subject.name());
    let guard = hold_renewed(&locks, &name, LONG).await;
    let held = bare.find(&name).await.expect("a held name is listed");
    assert!(bare.release(&Ended { name: name.clone(), lease: held.lease, first: None, evicted_by: None }).await);
    let claim = Claim { owner: "the next one".into(), ..claim_of(&name, LONG) };
    let token = bare.grant(&claim, "after a release").await;
    let lost = soon("loss is signalled", guard.lost()).await;
    let told = matches!(&lost.why, Why::Taken(owner, theirs) if owner == "the next one" && *theirs == token);
    assert!(told, "a holder whose name was taken is told: {lost}");
}

/// A holder that releases what was taken from it by an operator hears by whom.
pub async fn eviction_is_told_on_release(subject: &Subject) {
    let (locks, operator, name) = (subject.connect().await, subject.connect().await, subject.name());
    let guard = hold(&locks, &name).await;
    soon("an eviction", operator.evict(&name, "ops")).await.expect("a name can be evicted").expect("it was held");
    match soon("a release", guard.release()).await {
        Err(Error::Lost(Lost { why: Why::Evicted(by), .. })) => assert_eq!(by, "ops"),
        result => panic!("the release of an evicted name says {result:?}"),
    }
}

/// A holder hears that it is at risk while there is time, that it is safe again, and that it is lost.
pub async fn at_risk_is_told_before_loss_and_taken_back(subject: &Subject) {
    let (locks, faulty) = subject.connect_faulty().await;
    let ttl = subject.ttl() * 5 / 2;
    let guard = hold_briefly(&locks, &subject.name(), ttl).await;
    let mut watch = guard.watch();
    faulty.always(Call::Renew, Fault::Fail);
    let status = timeout(ttl + SOON, watch.changed()).await.expect("a change within the term");
    assert!(matches!(status, Status::AtRisk), "with failing renewals the first word is {status:?}");
    assert!(guard.is_held(), "at risk, and no longer held");
    assert!(guard.remaining() <= ttl / 2, "at risk with {:?} of {ttl:?} left", guard.remaining());

    faulty.heal();
    let status = soon("word that all is well", watch.changed()).await;
    assert!(matches!(status, Status::Held), "after a recovery the status is {status:?}");
    faulty.always(Call::Renew, Fault::Fail);
    let told = [timeout(ttl + SOON, watch.changed()).await, timeout(ttl + SOON, watch.changed()).await];
    let in_order = matches!(&told, [Ok(Status::AtRisk), Ok(Status::Lost(Lost { why: Why::Expired(_), .. }))]);
    assert!(in_order, "before the term ran out the holder was told {told:?}");
}

/// Work that runs under a guard is dropped when the term is lost, and runs to its end when it is not.
pub async fn work_is_dropped_on_loss(subject: &Subject) {
    struct Work(Arc<AtomicBool>);
    impl Drop for Work {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    let (locks, faulty) = subject.connect_faulty().await;
    let guard = hold_briefly(&locks, &subject.name(), subject.ttl()).await;
    assert_eq!(guard.run(async { 7 }).await.expect("held while it worked"), 7);
    let dropped = Arc::new(AtomicBool::new(false));
    let work = Work(dropped.clone());
    faulty.always(Call::Renew, Fault::Hang);
    let endless = guard.run(async move {
        std::future::pending::<()>().await;
        drop(work);
    });
    let lost = soon("the work is stopped", endless).await.expect_err("endless work ended");
    assert!(matches!(lost.why, Why::Expired(_)), "the work's end says {lost}");
    assert!(dropped.load(Ordering::SeqCst), "the work was not dropped");
    let late = guard.run(async { panic!("work was begun after the loss") }).await;
    assert!(late.is_err(), "work was done after the loss");
}
