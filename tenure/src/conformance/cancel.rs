//! What was given up leaves nothing behind.

use std::future::IntoFuture;
use std::task::Poll;
use std::time::Duration;

use tokio::time::sleep;

use super::support::{Bare, LONG, free_for, hold, is_closed_to, poll_once, poll_times, soon, taken_in};
use super::{Call, Fault, Faulty, Gate, Subject};
use crate::error::Error;
use crate::locks::Locks;
use crate::record::Name;

/// How often an acquire may be polled before it is dropped; more often than it can be.
const POLLS: usize = 4;
const DELAY: Duration = Duration::from_millis(10);

/// Where a claim can be when its asker goes.
const STEPS: [(&str, Step); 3] =
    [("is sent", Fault::Hold), ("is carried out", Fault::HoldReply), ("has lost its connection", Fault::Abandon)];
type Step = fn(Gate) -> Fault;

/// A store that may carry out a claim for some time after its caller is gone.
async fn with_statement_limit(subject: &Subject) -> (Locks, Faulty) {
    let limit = Duration::from_millis(500);
    subject.connect_to(Faulty::new(subject.instance()).with_about(move |about| about.statement_limit = limit)).await
}

/// An acquire that is dropped leaves the name free, however often it was polled and whatever the store was at.
pub async fn a_dropped_acquire_leaves_nothing(subject: &Subject) {
    let (locks, faulty) = subject.connect_faulty().await;
    let other = subject.connect().await;
    let faults =
        [None, Some(Fault::Delay(DELAY)), Some(Fault::DelayReply(DELAY)), Some(Fault::LoseReply), Some(Fault::Fail)];
    for fault in faults {
        for polls in 0..POLLS {
            let name = subject.name();
            if let Some(fault) = fault.clone() {
                faulty.next(Call::Claim, fault);
            }
            let mut acquire = locks.lock(&name).ttl(LONG).into_future();
            drop(soon("polls", poll_times(polls, &mut acquire)).await);
            drop(acquire);
            free_for(&other, &name, &format!("after an acquire was dropped, polled {polls} times, {fault:?}")).await;
            free_for(&locks, &name, "for the process that gave it up").await;
            faulty.heal();
        }
    }
}

/// An acquire that is dropped at each step of its claim, seen from the store, leaves the name free.
pub async fn an_acquire_dropped_while_its_claim_is_under_way_leaves_nothing(subject: &Subject) {
    let (locks, faulty) = with_statement_limit(subject).await;
    let other = subject.connect().await;
    for (step, fault) in STEPS {
        let (name, gate) = (subject.name(), Gate::new());
        faulty.next(Call::Claim, fault(gate.clone()));
        let mut acquire = locks.lock(&name).ttl(LONG).into_future();
        assert!(poll_once(&mut acquire).await.is_pending());
        soon("the claim arrives", gate.reached()).await;
        drop(acquire);
        taken_in(&locks).await;
        gate.open();
        soon("the claim is carried out", gate.passed()).await;
        free_for(&other, &name, &format!("after its asker went when its claim {step}")).await;
    }
}

/// The same while its claim is made again, as the first attempt has lost its connection and is carried out last of all.
pub async fn an_acquire_dropped_while_its_retry_is_under_way_leaves_nothing(subject: &Subject) {
    let ((locks, faulty), other) = (with_statement_limit(subject).await, subject.connect().await);
    let (name, first, retry) = (subject.name(), Gate::new(), Gate::new());
    faulty.next(Call::Claim, Fault::Abandon(first.clone()));
    faulty.next(Call::Claim, Fault::Hold(retry.clone()));
    let mut acquire = locks.lock(&name).ttl(LONG).into_future();
    assert!(poll_once(&mut acquire).await.is_pending());
    soon("the claim is made again", retry.reached()).await;
    drop(acquire);
    taken_in(&locks).await;
    retry.open();
    soon("the retry is carried out", retry.passed()).await;
    let released = async {
        while other.get(&name).await.expect("the store answers").is_some() {
            sleep(DELAY).await;
        }
    };
    soon("the retry's grant is released", released).await;
    first.open();
    soon("the claim is carried out", first.passed()).await;
    free_for(&other, &name, "after its asker went when its claim was made again").await;
}

/// An acquire that is dropped when it was granted, but before it has seen the grant, leaves the name free.
pub async fn an_acquire_dropped_after_its_grant_leaves_nothing(subject: &Subject) {
    let ((locks, faulty), other) = (subject.connect_faulty().await, subject.connect().await);
    let (name, gate) = (subject.name(), Gate::new());
    faulty.next(Call::Claim, Fault::Hold(gate.clone()));
    let mut acquire = locks.lock(&name).ttl(LONG).into_future();
    assert!(poll_once(&mut acquire).await.is_pending());
    gate.open();
    let granted = async {
        while locks.holding().await.is_empty() {
            sleep(DELAY).await;
        }
    };
    soon("the grant", granted).await;
    assert!(is_closed_to(&other, &name).await, "granted to two at once");
    drop(acquire);
    free_for(&other, &name, "after its asker went without having seen the grant").await;
}

/// An acquire that is dropped while it waits for a holder has no claim left: when the holder goes, the name is free.
pub async fn an_acquire_dropped_while_waiting_leaves_nothing(subject: &Subject) {
    let (locks, faulty) = subject.connect_faulty().await;
    let (holder, other) = (subject.connect().await, subject.connect().await);
    let name = subject.name();
    let guard = hold(&holder, &name).await;
    let mut acquire = locks.lock(&name).ttl(LONG).into_future();
    assert!(poll_once(&mut acquire).await.is_pending());
    soon("a claim is refused", faulty.answered(Call::Claim, 1)).await;
    drop(acquire);
    taken_in(&locks).await;
    drop(guard);
    free_for(&other, &name, "after its holder and its waiter went").await;
    assert!(locks.holding().await.is_empty(), "a waiter that went was granted the name");
}

/// An acquire that times out while its claim is under way leaves the name free.
pub async fn a_timed_out_acquire_leaves_nothing(subject: &Subject) {
    let (locks, faulty) = subject.connect_faulty().await;
    let other = subject.connect().await;
    for fault in [Fault::Hold, Fault::HoldReply] {
        let (name, gate) = (subject.name(), Gate::new());
        faulty.next(Call::Claim, fault(gate.clone()));
        let lock = locks.lock(&name).ttl(LONG).wait(Duration::from_millis(100));
        let answer = soon("an acquire times out", lock.into_future()).await;
        assert!(matches!(&answer, Err(Error::TimedOut { .. })), "an acquire that timed out says {answer:?}");
        soon("the claim arrives", gate.reached()).await;
        gate.open();
        soon("the claim is answered", gate.passed()).await;
        free_for(&other, &name, "after its asker timed out and was granted the name too late").await;
    }
}

/// A claim that the store carries out after its asker is gone, and was told so, is found and released.
pub async fn a_claim_granted_after_its_asker_gave_up_is_released(subject: &Subject) {
    let (locks, faulty) = with_statement_limit(subject).await;
    let (bare, name, gate) = (Bare::open(subject).await, subject.name(), Gate::new());
    faulty.next(Call::Claim, Fault::Abandon(gate.clone()));
    faulty.always(Call::Claim, Fault::Fail);
    let mut acquire = locks.lock(&name).ttl(LONG).into_future();
    assert!(poll_once(&mut acquire).await.is_pending());
    soon("the claim arrives", gate.reached()).await;
    drop(acquire);
    soon("a release that finds nothing", faulty.answered(Call::Release, 1)).await;
    gate.open();
    soon("the claim is granted late", gate.passed()).await;

    soon("a claim granted when nobody wanted it any more is released", until_free(&bare, &name)).await;
    assert!(faulty.calls(Call::Release) >= 2, "freed without a second release");
}

/// Of a claim that was made twice, both times with an unknown outcome, the first was granted and is released; then the
/// store carries out the second one. That is found and released, too.
pub async fn every_attempt_of_a_claim_is_followed_up(subject: &Subject) {
    let (locks, faulty) = with_statement_limit(subject).await;
    let (bare, name, gate) = (Bare::open(subject).await, subject.name(), Gate::new());
    faulty.next(Call::Claim, Fault::LoseReply);
    faulty.next(Call::Claim, Fault::Abandon(gate.clone()));
    faulty.always(Call::Claim, Fault::Fail);
    let mut acquire = locks.lock(&name).ttl(LONG).into_future();
    assert!(poll_once(&mut acquire).await.is_pending());
    soon("the second claim arrives", gate.reached()).await;
    drop(acquire);
    soon("the first claim is released", faulty.answered(Call::Release, 1)).await;
    gate.open();
    soon("the second claim is granted late", gate.passed()).await;
    soon("a claim granted late is released, though an earlier one was before", until_free(&bare, &name)).await;
}

/// A claim that was made again after its connection was lost, and that the store carries out once more after the
/// release, is found and released.
pub async fn a_late_duplicate_of_a_claim_is_released(subject: &Subject) {
    let (locks, faulty) = with_statement_limit(subject).await;
    let (bare, name, gate) = (Bare::open(subject).await, subject.name(), Gate::new());
    faulty.next(Call::Claim, Fault::Abandon(gate.clone()));
    let guard = hold(&locks, &name).await;
    soon("a release", guard.release()).await.expect("a held name can be released");
    gate.open();
    soon("the first claim is carried out", gate.passed()).await;
    soon("a claim carried out after the release is released", until_free(&bare, &name)).await;
}

async fn until_free(bare: &Bare, name: &Name) {
    while bare.find(name).await.is_some() {
        sleep(DELAY).await;
    }
}

/// Dropping a guard frees the name.
pub async fn a_dropped_guard_frees(subject: &Subject) {
    let (locks, other) = (subject.connect().await, subject.connect().await);
    let name = subject.name();
    let guard = hold(&locks, &name).await;
    assert!(is_closed_to(&other, &name).await, "another was granted a name that is held");
    drop(guard);
    free_for(&other, &name, "after its guard was dropped").await;
}

/// Dropping a guard frees the name also where there is no async runtime, and after the one it was made in has ended.
pub async fn a_guard_dropped_without_a_runtime_frees(subject: &Subject) {
    let other = subject.connect().await;
    let names = subject.names(2);
    let (connect, of) = (Locks::on(subject.instance()), names.clone());
    let held = elsewhere(move || {
        let locks = connect.blocking().expect("the store can be opened");
        let blocking = locks.lock(&of[0]).ttl(LONG).blocking().expect("a free name is granted");
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime can be made");
        let guard = runtime.block_on(locks.lock(&of[1]).ttl(LONG).into_future()).expect("a free name is granted");
        drop(runtime);
        [blocking, guard]
    });
    let guards = held.await;
    for name in &names {
        assert!(is_closed_to(&other, name).await, "another was granted a name that is held");
    }
    elsewhere(move || drop(guards)).await;
    for name in &names {
        free_for(&other, name, "after its guard was dropped where there is no runtime").await;
    }
}

/// A panic in the holder frees the name: in a thread, and in a task.
pub async fn a_panic_in_the_holder_frees(subject: &Subject) {
    let (locks, other) = (subject.connect().await, subject.connect().await);
    let names = subject.names(2);
    let (in_thread, in_task) = (hold(&locks, &names[0]).await, hold(&locks, &names[1]).await);
    // Unlike `panic!` it prints nothing, and unwinds all the same.
    let fall = |guard: crate::Guard| -> () { std::panic::resume_unwind(Box::new(guard.name().to_string())) };
    std::thread::spawn(move || fall(in_thread)).join().expect_err("the thread panics");
    tokio::spawn(async move { fall(in_task) }).await.expect_err("the task panics");
    for name in &names {
        free_for(&other, name, "after its holder panicked").await;
    }
}

/// A cancelled release goes on: the name becomes free.
pub async fn a_dropped_release_goes_on(subject: &Subject) {
    let (locks, other) = (subject.connect().await, subject.connect().await);
    for polled in [false, true] {
        let name = subject.name();
        let mut release = Box::pin(hold(&locks, &name).await.release());
        if polled && let Poll::Ready(result) = poll_once(&mut release).await {
            result.expect("a held name can be released");
        }
        drop(release);
        free_for(&other, &name, "after its release was dropped").await;
    }
}

/// Acquire and release have forms for code without a runtime, which wait as the others do.
pub async fn the_blocking_forms_wait_and_free(subject: &Subject) {
    let ((locks, faulty), name) = (subject.connect_faulty().await, subject.name());
    let guard = hold(&locks, &name).await;
    let token = guard.token();
    let (waiting, of) = (locks.clone(), name.clone());
    let busy = elsewhere(move || waiting.try_lock(&of).blocking()).await.expect("busy is no error");
    assert!(busy.is_none(), "granted to two at once");
    let (waiting, of) = (locks.clone(), name.clone());
    let waiter = elsewhere(move || {
        let guard = waiting.lock(&of).ttl(LONG).blocking().expect("the name is granted after its release");
        let later = guard.token();
        guard.release_blocking().expect("a held name can be released");
        later
    });
    let (later, ()) = tokio::join!(waiter, async {
        sleep(DELAY).await;
        drop(guard);
    });
    assert!(later > token, "token {later} follows {token}");
    assert_eq!(faulty.calls(Call::Release), 2, "each was to be released once");
    free_for(&subject.connect().await, &name, "after a blocking release").await;
}

/// Runs code on a thread that has no runtime.
async fn elsewhere<T: Send + 'static>(code: impl FnOnce() -> T + Send + 'static) -> T {
    let (reply, answer) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || reply.send(code()));
    soon("the thread without a runtime", answer).await.expect("the thread without a runtime ends well")
}
