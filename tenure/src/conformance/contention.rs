//! Many holders at once, judged by their history.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::support::{SOON, at_most, random};
use super::{Call, Fault, Faulty, History, Subject, Verdict};
use crate::guard::Guard;
use crate::locks::Locks;
use crate::record::Name;

const TASKS: usize = 32;
const PROCESSES: usize = 4;
pub(super) const TIME: Duration = Duration::from_secs(3);

/// 32 tasks in several processes want the same few names for some seconds: no two have one at a time, and tokens rise.
pub async fn contention_yields_a_history_without_overlap(subject: &Subject) {
    let mut processes = Vec::new();
    for _ in 0..PROCESSES {
        processes.push(subject.connect().await);
    }
    let history = Workload::heavy(subject).run(&processes, sleep(TIME)).await;
    judge(&history, 20);
}

/// The same while the store fails, is slow and loses replies, so that terms are lost and claims orphaned.
pub async fn contention_on_a_faulty_store_yields_a_history_without_overlap(subject: &Subject) {
    let (mut processes, mut stores) = (Vec::new(), Vec::new());
    for _ in 0..PROCESSES {
        let (locks, faulty) = subject.connect_faulty().await;
        processes.push(locks);
        stores.push(faulty);
    }
    let history = Workload::heavy(subject).run(&processes, nemesis(&stores)).await;
    judge(&history, 2);
    let breaches: Vec<String> = stores.iter().flat_map(Faulty::breaches).collect();
    assert_eq!(breaches, [""; 0], "breaches of the contract");
}

pub(super) fn judge(history: &History, least: usize) {
    assert_eq!(history.check(), Verdict::Ok, "the history of {} operations", history.operations().len());
    let count = history.operations().len();
    assert!(count >= 2 * least, "only {count} operations in {TIME:?}");
}

/// Makes calls fail, each in another way.
pub(super) async fn nemesis(stores: &[Faulty]) {
    let until = Instant::now() + TIME;
    while Instant::now() < until {
        // One at a time: they would pile up, and nothing happen any more.
        for store in stores.iter().filter(|store| store.is_calm()) {
            store.next(Call::ALL[random() as usize % 3], random_fault());
        }
        sleep(at_most(Duration::from_millis(100))).await;
    }
    stores.iter().for_each(Faulty::heal);
}

fn random_fault() -> Fault {
    match random() % 6 {
        0 => Fault::Fail,
        1 | 2 => Fault::LoseReply,
        3 => Fault::Delay(at_most(Duration::from_millis(300))),
        4 => Fault::DelayReply(at_most(Duration::from_millis(300))),
        // For longer than a short term lasts.
        _ => Fault::DelayReply(Duration::from_millis(1200)),
    }
}

/// Tasks that hold names for a moment, again and again.
#[derive(Clone)]
pub(super) struct Workload {
    pub names: Arc<[Name]>,
    pub ttl: Duration,
    pub tasks: usize,
    /// Up to this long, a task has had enough: without it the names are never free for others.
    pub pause: Duration,
}

impl Workload {
    /// All that there is, with no rest.
    fn heavy(subject: &Subject) -> Self {
        Self { names: subject.names(3).into(), ttl: subject.ttl(), tasks: TASKS, pause: Duration::ZERO }
    }

    /// Runs until `end`.
    pub async fn run(self, processes: &[Locks], end: impl Future<Output = ()>) -> History {
        let history = History::new();
        let mut tasks = JoinSet::new();
        for task in 0..self.tasks {
            let locks = processes[task % processes.len()].clone();
            let holder = format!("{}/{task}", std::process::id());
            tasks.spawn(self.clone().hold_again_and_again(locks, history.clone(), holder));
        }
        end.await;
        tasks.shutdown().await;
        history
    }

    async fn hold_again_and_again(self, locks: Locks, history: History, holder: String) {
        loop {
            let name = &self.names[random() as usize % self.names.len()];
            let acquire = locks.lock(name).ttl(self.ttl).into_future();
            // Some give up while they wait.
            let patience = if random().is_multiple_of(4) { at_most(Duration::from_millis(50)) } else { SOON };
            if let Ok(Ok(guard)) = timeout(patience, acquire).await {
                self.hold(guard, &history, &holder).await;
            }
            sleep(at_most(self.pause)).await;
        }
    }

    async fn hold(&self, guard: Guard, history: &History, holder: &str) {
        let Some(held) = Held::new(history, holder, &guard) else { return };
        // A few hold on for long enough to be renewed.
        let time = if random().is_multiple_of(200) { 2 * self.ttl } else { Duration::from_millis(3) };
        let _ = guard.run(sleep(at_most(time))).await;
        drop(held);
        if random().is_multiple_of(2) {
            // It may have been lost.
            let _ = guard.release().await;
        }
    }
}

/// A holder's belief: recorded when it begins and, however it ends, before the guard goes.
struct Held<'a> {
    history: &'a History,
    holder: &'a str,
    guard: &'a Guard,
}

impl<'a> Held<'a> {
    fn new(history: &'a History, holder: &'a str, guard: &'a Guard) -> Option<Self> {
        history.granted(holder, guard).then(|| Self { history, holder, guard })
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.history.ended(self.holder, self.guard);
    }
}
