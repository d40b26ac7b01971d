//! Crews of real processes, which are killed, paused and started again.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep, timeout};

use super::processes::{Line, Orders, Process, Role, runtime, say};
use super::support::{SOON, TICK};
use super::{Operation, Subject, Verdict, What, check};
use crate::clock::Moment;
use crate::fence::Fence;
use crate::locks::Locks;
use crate::record::Token;
use crate::term::Term;

/// How soon after the term of a dead instance is over its tasks run again …
const PROMISED: Duration = Duration::from_secs(2);
/// … on a machine that has nothing else to do.
const BUSY: Duration = Duration::from_secs(4);
/// For anything else to be shared out.
const SHARING: Duration = Duration::from_secs(40);
/// Processes that are started together settle together, also on a busy machine.
const SETTLE: Duration = Duration::from_secs(4);

/// What an instance is to do.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct CrewOrders {
    tasks: usize,
    capacity: u32,
    /// How often a worker acts.
    act_every: Duration,
}

/// What an instance tells its parent.
#[derive(Serialize, Deserialize)]
enum Said {
    /// A worker began or ended.
    Did(Line),
    /// A worker did something with its token, at this moment.
    Acted { task: String, token: u64, at: u64 },
    /// How the crew stands.
    Stands { mine: usize, unassigned: usize },
}

impl Said {
    fn say(&self) {
        say(&serde_json::to_string(self).expect("what is said is JSON"));
    }
}

/// Plays an instance: works until its input ends. The line `pause` stops the whole process between a worker's look at its term
/// and what it does next.
pub(super) fn work(locks: &Locks, orders: &Orders) {
    let CrewOrders { tasks, capacity, act_every } = orders.crew.expect("a crew's orders");
    let crew = locks.crew(orders.names[0].as_str()).tasks((0..tasks).map(|task| format!("topic-{task:02}")));
    let crew = crew.capacity(capacity).ttl(orders.ttl).settle(SETTLE).round(Duration::from_millis(400));
    let (mut handle, stopper, pause) = (crew.handle(), crew.handle(), Arc::new(AtomicBool::new(false)));
    let told = pause.clone();
    std::thread::spawn(move || {
        let lines = std::io::stdin().lock().lines().map_while(Result::ok);
        lines.filter(|line| line == "pause").for_each(|_| told.store(true, Ordering::Release));
        stopper.stop();
    });
    let report = async {
        while let Some(report) = handle.changed().await {
            Said::Stands { mine: report.mine.len(), unassigned: report.unassigned.len() }.say();
        }
    };
    let work = crew.work(|_, term| worker(term, act_every, &pause));
    runtime().block_on(async { tokio::join!(work, report) }).0.expect("the crew works until it is stopped");
}

async fn worker(term: Term, every: Duration, pause: &AtomicBool) {
    let _belief = Belief::new(term.clone());
    let mut cancelled = term.cancelled();
    loop {
        let (task, token, held) = (term.key().to_owned(), term.token().0, term.is_held());
        if held && pause.swap(false, Ordering::AcqRel) {
            send(Signal::STOP, std::process::id());
        }
        if held {
            Said::Acted { task, token, at: Moment::now().as_nanos() }.say();
        }
        tokio::select! {
            () = &mut cancelled => return,
            () = sleep(every) => {}
        }
    }
}

/// Tells that a worker has begun, and that it has ended, however that comes.
struct Belief(Term);

impl Belief {
    fn new(term: Term) -> Self {
        tell(&term, What::Granted(term.token()));
        Self(term)
    }
}

impl Drop for Belief {
    fn drop(&mut self) {
        tell(&self.0, What::Ended);
    }
}

fn tell(term: &Term, what: What) {
    let holder = std::process::id().to_string();
    Said::Did(Operation { name: term.name().clone(), holder, what, at: Moment::now() }.into()).say();
}

fn send(signal: Signal, process: u32) {
    let process = i32::try_from(process).ok().and_then(Pid::from_raw).expect("a process has a number");
    kill_process(process, signal).expect("a signal can be sent to a process of our own");
}

/// An instance, as its parent sees it.
struct Instance {
    process: Process,
    mine: usize,
    unassigned: usize,
}

/// Processes that share the same tasks, and all that they have told.
struct Fleet<'a> {
    subject: &'a Subject,
    group: String,
    ttl: Duration,
    orders: CrewOrders,
    instances: Vec<Instance>,
    operations: Vec<Operation>,
    /// At which moment, by which process: with which token.
    acts: BTreeMap<(u64, u32), (String, Token)>,
}

impl<'a> Fleet<'a> {
    fn new(subject: &'a Subject, ttl: Duration, orders: CrewOrders) -> Self {
        let (instances, operations, acts) = (Vec::new(), Vec::new(), BTreeMap::new());
        Self { subject, group: subject.prefix() + "crew", ttl, orders, instances, operations, acts }
    }

    fn start(&mut self, count: usize) {
        for _ in 0..count {
            let (names, crew) = (vec![self.group.clone()], Some(self.orders));
            let process = Process::with(self.subject, Role::Crew, names, self.ttl, crew);
            self.instances.push(Instance { process, mine: 0, unassigned: 0 });
        }
    }

    /// Takes in what was said so far.
    fn listen(&mut self) {
        for instance in &mut self.instances {
            while let Ok(line) = instance.process.lines.try_recv() {
                match serde_json::from_str(&line).unwrap_or_else(|_| panic!("an instance says {line:?}")) {
                    Said::Did(line) => self.operations.push(line.into()),
                    Said::Acted { task, token, at } => {
                        self.acts.insert((at, instance.process.child.id()), (task, Token(token)));
                    }
                    Said::Stands { mine, unassigned } => (instance.mine, instance.unassigned) = (mine, unassigned),
                }
            }
        }
    }

    /// Waits for this; how long it took.
    async fn until(&mut self, what: &str, within: Duration, condition: impl Fn(&Self) -> bool) -> Duration {
        let begun = Instant::now();
        loop {
            self.listen();
            if condition(self) {
                return begun.elapsed();
            }
            let state: Vec<_> = self.instances.iter().map(|instance| (instance.mine, instance.unassigned)).collect();
            assert!(begun.elapsed() < within, "{what}: not within {within:?}, but as {state:?}");
            sleep(TICK).await;
        }
    }

    async fn until_shared(&mut self, counts: &[usize], within: Duration) -> Duration {
        let what = format!("shared out as {counts:?}");
        self.until(&what, within, |fleet| {
            let mut found: Vec<usize> = fleet.instances.iter().map(|instance| instance.mine).collect();
            found.sort_unstable();
            found == counts
        })
        .await
    }

    /// Kills some of them. What they believed they believe no more.
    async fn kill(&mut self, count: usize) {
        for mut instance in self.instances.drain(..count).collect::<Vec<_>>() {
            instance.process.child.kill().expect("a child can be killed");
            instance.process.child.wait().expect("a child can be waited for");
            let now = Moment::now();
            let holder = instance.process.child.id().to_string();
            let mut open: HashMap<_, Operation> = HashMap::new();
            // All that it has said is here when its pipe is closed.
            while let Some(line) = timeout(SOON, instance.process.lines.recv()).await.expect("a dead child is silent") {
                // The last line may be half a line.
                if let Ok(Said::Did(line)) = serde_json::from_str(&line) {
                    self.operations.push(line.into());
                }
            }
            for operation in self.operations.iter().filter(|operation| operation.holder == holder) {
                match operation.what {
                    What::Granted(_) => drop(open.insert(operation.name.clone(), operation.clone())),
                    What::Ended => drop(open.remove(&operation.name)),
                }
            }
            let end = |operation: Operation| Operation { what: What::Ended, at: now, ..operation };
            self.operations.extend(open.into_values().map(end));
        }
    }

    /// How often a worker was started.
    fn starts(&self) -> usize {
        self.operations.iter().filter(|operation| matches!(operation.what, What::Granted(_))).count()
    }

    /// Lets all end in order: they leave nothing.
    async fn end(&mut self) {
        for instance in &mut self.instances {
            drop(instance.process.child.stdin.take());
        }
        for instance in &mut self.instances {
            assert!(instance.process.end().await.success(), "an instance failed");
        }
        self.until("all has been told", SOON, |fleet| fleet.instances.iter().all(|i| i.process.lines.is_closed()))
            .await;
        self.listen();
        let left = self.subject.connect().await.list(format!("{}/", self.group)).await.expect("the store answers");
        let live: Vec<&str> = left.iter().map(|record| record.name.as_str()).collect();
        assert!(live.is_empty(), "left behind: {live:?}");
    }

    /// Which processes a fence refused, had all their acts passed it as they were made.
    fn refused(&self) -> Vec<u32> {
        let mut fences: HashMap<&str, Fence> = HashMap::new();
        let mut refused = Vec::new();
        for ((_, process), (task, token)) in &self.acts {
            if fences.entry(task).or_default().check(*token).is_err() {
                refused.push(*process);
            }
        }
        refused
    }
}

/// 100 tasks and 10 processes that can take 20 each: 10 each. Five are killed: the others have 20 each as soon as the terms are over.
/// A sixth is: 80 run, and 20 are reported. All return: 10 each, and only 40 were moved. An eleventh comes, and gets 9. No task ever runs twice
/// at a time.
pub async fn a_crew_of_processes_moves_only_what_it_must_when_they_die_and_return(subject: &Subject) {
    let (ttl, act_every) = (6 * subject.ttl(), Duration::from_secs(1));
    let mut fleet = Fleet::new(subject, ttl, CrewOrders { tasks: 100, capacity: 20, act_every });
    fleet.start(10);
    fleet.until_shared(&[10; 10], SHARING).await;
    let starts = fleet.starts();
    fleet.kill(5).await;
    let took = fleet.until_shared(&[20; 5], ttl + PROMISED + BUSY).await;
    tracing::info!(?took, ?ttl, "five of ten died");
    assert_eq!(fleet.starts() - starts, 50, "workers were started for the tasks of five that died");
    fleet.kill(1).await;
    let reported = |fleet: &Fleet<'_>| fleet.instances.iter().all(|i| i.mine == 20 && i.unassigned == 20);
    fleet.until("80 run and 20 are reported", ttl + PROMISED + BUSY, reported).await;
    assert_eq!(fleet.starts() - starts, 50, "nothing moved when a sixth died and the others were full");
    fleet.start(6);
    fleet.until_shared(&[10; 10], SHARING).await;
    fleet.until("none is reported any more", SHARING, |fleet| fleet.instances.iter().all(|i| i.unassigned == 0)).await;
    assert_eq!(fleet.starts() - starts, 110, "20 were free, and 40 had to move");
    fleet.start(1);
    fleet.until_shared(&[9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 10], SHARING).await;
    assert_eq!((fleet.instances[10].mine, fleet.starts() - starts), (9, 119), "the eleventh gets 9, which had to move");
    fleet.end().await;
    assert_eq!(check(&fleet.operations), Verdict::Ok, "a task ran twice at a time, or with an older token");
    assert_eq!(fleet.refused(), [0; 0], "refused by a fence");
}

/// An instance that is paused, right after it saw that it holds a task, comes back when others have its tasks: what it does then is refused by
/// the fence. It finds its terms lost, joins again, and gets its share.
pub async fn a_paused_instance_of_a_crew_is_refused_by_the_fence(subject: &Subject) {
    let (ttl, act_every) = (4 * subject.ttl(), Duration::from_millis(200));
    let mut fleet = Fleet::new(subject, ttl, CrewOrders { tasks: 9, capacity: 9, act_every });
    fleet.start(3);
    fleet.until_shared(&[3, 3, 3], SHARING).await;
    let paused = fleet.instances[0].process.child.id();
    let input = fleet.instances[0].process.child.stdin.as_mut().expect("the child's input is piped");
    input.write_all(b"pause\n").and_then(|()| input.flush()).expect("the child listens");
    let others = |fleet: &Fleet<'_>| fleet.instances[1].mine + fleet.instances[2].mine;
    fleet.until("others take over", ttl + SHARING, |fleet| others(fleet) == 9).await;
    // Their workers have passed the fence by now.
    sleep(5 * act_every).await;
    send(Signal::CONT, paused);
    fleet.until("it has its share again", SHARING, |fleet| fleet.instances[0].mine == 3 && others(fleet) == 6).await;
    fleet.end().await;
    let refused = fleet.refused();
    assert!(!refused.is_empty(), "a stale worker was not refused");
    assert!(refused.iter().all(|process| *process == paused), "{refused:?} were refused, and {paused} was paused");
}
