//! A restless process on a store that fails: nothing is out of order, and nothing is left behind.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::support::{LONG, at_most, free_for, random, soon};
use super::{Call, Fault, Faulty, Gate, Subject};
use crate::locks::Locks;
use crate::record::Name;

const TASKS: usize = 24;
const TIME: Duration = Duration::from_secs(2);
/// It goes on until so many were granted …
const GRANTS: usize = 20;
/// … but not for ever.
const LONGEST: Duration = Duration::from_secs(60);
/// How long the store goes on with what its caller has given up.
const STATEMENT_LIMIT: Duration = Duration::from_millis(500);

/// Under load, with acquires dropped at any moment and a store that is slow and loses replies, a name is never in two
/// calls at once, and every batch is sorted and no larger than allowed.
pub async fn a_name_is_never_in_two_calls_at_once(subject: &Subject) {
    let (_locks, faulty) = restless_process(subject, &subject.names(6)).await;
    assert_eq!(faulty.breaches(), [""; 0], "breaches of the contract");
}

/// After the same load every name is free, long before a term could have run out.
pub async fn a_restless_process_leaves_nothing(subject: &Subject) {
    let (other, names) = (subject.connect().await, subject.names(6));
    let (locks, _faulty) = restless_process(subject, &names).await;
    for name in &names {
        free_for(&other, name, "after all acquires were dropped or released").await;
    }
    assert_eq!(locks.holding().await.len(), 0, "something is held");
}

/// Tasks want names and often change their minds, while the store fails in all ways. When this returns they have ended.
async fn restless_process(subject: &Subject, names: &[Name]) -> (Locks, Faulty) {
    let faulty = Faulty::new(subject.instance()).with_about(|about| {
        about.statement_limit = STATEMENT_LIMIT;
        about.calls = 4;
        about.batch = about.batch.min(3);
    });
    let (locks, faulty) = subject.connect_to(faulty).await;
    let load = Arc::new(Load { names: names.into(), grants: AtomicUsize::new(0), over: AtomicBool::new(false) });
    let tasks: JoinSet<()> = (0..TASKS).map(|_| restless_task(locks.clone(), load.clone())).collect();
    let begun = Instant::now();
    while begun.elapsed() < TIME || (load.grants.load(Relaxed) < GRANTS && begun.elapsed() < LONGEST) {
        // One at a time: on a slow store they would pile up, and nothing ever be granted.
        if faulty.is_calm() {
            faulty.next(Call::ALL[random() as usize % 3], random_fault());
        }
        sleep(Duration::from_millis(5)).await;
    }
    faulty.heal();
    load.over.store(true, Relaxed);
    soon("the tasks end", tasks.join_all()).await;
    let grants = load.grants.load(Relaxed);
    assert!(grants >= GRANTS, "{grants} grants in {LONGEST:?}");
    (locks, faulty)
}

/// What the tasks share.
struct Load {
    names: Vec<Name>,
    grants: AtomicUsize,
    over: AtomicBool,
}

fn random_fault() -> Fault {
    let time = at_most(Duration::from_millis(5));
    match random() % 5 {
        0 => Fault::Fail,
        1 => Fault::LoseReply,
        2 => Fault::Delay(time),
        3 => Fault::DelayReply(time),
        _ => Fault::Abandon(gate_that_opens_in(time)),
    }
}

fn gate_that_opens_in(time: Duration) -> Gate {
    let gate = Gate::new();
    let opening = gate.clone();
    tokio::spawn(async move {
        opening.reached().await;
        sleep(time).await;
        opening.open();
    });
    gate
}

/// Acquires, holds and lets go of names.
async fn restless_task(locks: Locks, load: Arc<Load>) {
    while !load.over.load(Relaxed) {
        let name = &load.names[random() as usize % load.names.len()];
        let lock = locks.lock(name).ttl(LONG).renew_every(Duration::from_millis(5));
        if let Ok(Ok(guard)) = timeout(at_most(Duration::from_millis(50)), lock.into_future()).await {
            load.grants.fetch_add(1, Relaxed);
            sleep(at_most(Duration::from_millis(6))).await;
            if random().is_multiple_of(2) {
                // A lost reply makes it a retry; that it ends well is another promise.
                let _ = guard.release().await;
            }
        }
    }
}
