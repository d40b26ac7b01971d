//! Crews: several instances in one process, each with a connection of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::support::{LONG, SOON, TICK, free_for, soon};
use super::{Fault, History, Operation, Subject, Verdict, What};
use crate::clock::Moment;
use crate::crew::{Crew, Handle};
use crate::error::{Error, Result};
use crate::locks::Locks;
use crate::record::Name;
use crate::term::Term;

/// Rounds that come quickly, but leave a busy machine some time.
pub(super) const ROUND: Duration = Duration::from_millis(200);
/// Instances that are started together settle together, also on a slow store.
pub(super) const SETTLE: Duration = Duration::from_secs(4);
/// For something to be shared out again.
const SHARING: Duration = Duration::from_secs(30);

/// A worker's belief that the task is its own, recorded from its beginning to its end, however that comes.
pub(super) struct Belief {
    history: History,
    operation: Operation,
}

impl Belief {
    pub fn new(history: &History, holder: &str, term: &Term) -> Self {
        let what = What::Granted(term.token());
        let operation = Operation { name: term.name().clone(), holder: holder.into(), what, at: Moment::now() };
        history.extend([operation.clone()]);
        Self { history: history.clone(), operation }
    }
}

impl Drop for Belief {
    fn drop(&mut self) {
        self.history.extend([Operation { what: What::Ended, at: Moment::now(), ..self.operation.clone() }]);
    }
}

/// An instance at work; it is dropped with this, as if its future were.
pub(super) struct Instance {
    pub locks: Locks,
    pub handle: Handle,
    pub work: JoinHandle<Result<()>>,
}

impl Instance {
    pub fn count(&self) -> usize {
        self.handle.report().mine.len()
    }

    /// Stops it in order.
    pub async fn stop(mut self) {
        self.handle.stop();
        let ended = soon("the end of a crew", &mut self.work).await.expect("a crew does not panic");
        ended.expect("a crew that was stopped has not failed");
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.work.abort();
    }
}

/// Instances that share the same tasks.
pub(super) struct Site<'a> {
    pub subject: &'a Subject,
    pub group: String,
    pub tasks: Vec<String>,
    pub ttl: Duration,
    history: History,
    started: AtomicUsize,
}

impl<'a> Site<'a> {
    pub fn new(subject: &'a Subject, tasks: usize) -> Self {
        let tasks = (0..tasks).map(|task| format!("task-{task:02}")).collect();
        let (group, ttl) = (subject.prefix() + "crew", 5 * subject.ttl());
        Self { subject, group, tasks, ttl, history: History::new(), started: AtomicUsize::new(0) }
    }

    pub fn crew(&self, locks: &Locks) -> Crew {
        locks.crew(self.group.as_str()).tasks(self.tasks.clone()).ttl(self.ttl).round(ROUND).settle(SETTLE)
    }

    /// An instance whose workers end as soon as they are told to.
    pub async fn start(&self, capacity: u32) -> Instance {
        self.start_with(capacity, Duration::ZERO, LONG).await
    }

    /// An instance whose workers go on for some time after they were told to stop.
    pub async fn start_with(&self, capacity: u32, linger: Duration, stop_within: Duration) -> Instance {
        self.start_on(self.subject.connect().await, capacity, linger, stop_within)
    }

    pub fn start_on(&self, locks: Locks, capacity: u32, linger: Duration, stop_within: Duration) -> Instance {
        let crew = self.crew(&locks).capacity(capacity).stop_within(stop_within);
        let (handle, history) = (crew.handle(), self.history.clone());
        let holder: Arc<str> = self.started.fetch_add(1, Ordering::Relaxed).to_string().into();
        let work = tokio::spawn(crew.work(move |_, term| {
            let (history, holder) = (history.clone(), holder.clone());
            async move {
                let _belief = Belief::new(&history, &holder, &term);
                term.cancelled().await;
                sleep(linger).await;
            }
        }));
        Instance { locks, handle, work }
    }

    /// Waits until each instance has as many tasks as is said, and nothing else is about to move.
    pub async fn shared_out(&self, instances: &[&Instance], counts: &[usize]) {
        let until = Instant::now() + SHARING;
        let now = || instances.iter().map(|instance| instance.count()).collect::<Vec<_>>();
        loop {
            let mut found = now();
            found.sort_unstable();
            if found == counts && self.listed().await == counts.iter().sum::<usize>() {
                return;
            }
            assert!(Instant::now() < until, "shared out as {found:?}, not as {counts:?}, after {SHARING:?}");
            sleep(TICK).await;
        }
    }

    /// Waits until so many tasks are held, by the store's word.
    pub async fn listed_as(&self, count: usize) {
        let listed = async {
            while self.listed().await != count {
                sleep(TICK).await;
            }
        };
        assert!(timeout(SHARING, listed).await.is_ok(), "{count} tasks are not held after {SHARING:?}");
    }

    /// How many tasks are held, by the store's word.
    async fn listed(&self) -> usize {
        let locks = self.subject.connect().await;
        locks.list(format!("{}/tasks/", self.group)).await.expect("the store answers").len()
    }

    /// How often a worker was started.
    pub fn starts(&self) -> usize {
        self.history.operations().iter().filter(|operation| matches!(operation.what, What::Granted(_))).count()
    }

    pub fn check_history(&self) {
        let mut operations = self.history.operations();
        operations.sort_by_key(|operation| operation.at);
        assert_eq!(super::check(&operations), Verdict::Ok, "a task ran twice at a time, or with an older token");
    }
}

/// Members that come, leave and are dropped: tasks are shared out evenly each time, what nobody has room for is reported, no task moves
/// without need, and none runs twice at a time.
pub async fn a_crew_shares_its_tasks_out_as_members_come_and_go(subject: &Subject) {
    let site = Site::new(subject, 12);
    let (a, b, c) = (site.start(5).await, site.start(5).await, site.start(5).await);
    site.shared_out(&[&a, &b, &c], &[4, 4, 4]).await;
    assert_eq!(site.starts(), 12, "workers were started to share 12 tasks out for the first time");
    c.stop().await;
    site.shared_out(&[&a, &b], &[5, 5]).await;
    assert_eq!(site.starts(), 14, "workers were started, and two of 12 tasks had to move");
    until("what nobody has room for is reported", || a.handle.report().unassigned.len() == 2).await;
    assert_eq!(a.handle.report().level, 5, "{:?}", a.handle.report());
    drop(b);
    site.shared_out(&[&a], &[5]).await;
    until("what nobody has room for is reported", || a.handle.report().unassigned.len() == 7).await;
    let (b, c) = (site.start(5).await, site.start(5).await);
    site.shared_out(&[&a, &b, &c], &[4, 4, 4]).await;
    assert_eq!(site.starts(), 22, "workers were started: seven tasks were free, and one had to move");
    let d = site.start(5).await;
    site.shared_out(&[&a, &b, &c, &d], &[3, 3, 3, 3]).await;
    assert_eq!(site.starts(), 25, "workers were started, and three tasks had to move");
    assert_eq!(a.handle.report().members.len(), 4);
    site.check_history();
}

pub(super) async fn until(what: &str, condition: impl Fn() -> bool) {
    let met = async {
        while !condition() {
            sleep(TICK).await;
        }
    };
    assert!(timeout(SHARING, met).await.is_ok(), "{what}: not within {SHARING:?}");
}

/// Nobody has more than its capacity; those with more room take the rest evenly.
pub async fn a_crew_heeds_unequal_capacities(subject: &Subject) {
    let site = Site::new(subject, 12);
    let (a, b, c) = (site.start(1).await, site.start(3).await, site.start(50).await);
    site.shared_out(&[&a, &b, &c], &[1, 3, 8]).await;
    assert_eq!((a.count(), b.count(), c.count()), (1, 3, 8));
    let d = site.start(50).await;
    site.shared_out(&[&a, &b, &c, &d], &[1, 3, 4, 4]).await;
    assert_eq!((a.count(), b.count(), site.starts()), (1, 3, 16), "only four had to move");
    site.check_history();
}

/// Tasks that are added while others run are taken, and no other moves; those that are removed are stopped and released.
pub async fn a_crew_takes_tasks_added_and_removed_while_it_runs(subject: &Subject) {
    let site = Site::new(subject, 4);
    let (a, b) = (site.start(50).await, site.start(50).await);
    site.shared_out(&[&a, &b], &[2, 2]).await;
    for instance in [&a, &b] {
        instance.handle.add("new/1").expect("a task can be added");
        instance.handle.add("new/2").expect("a task can be added");
    }
    let again = a.handle.add("new/1");
    assert!(matches!(&again, Err(Error::Invalid { what, .. }) if what == "task"), "{again:?}");
    site.shared_out(&[&a, &b], &[3, 3]).await;
    assert_eq!(site.starts(), 6, "only the new ones were started");
    for instance in [&a, &b] {
        assert!(instance.handle.remove("new/1") && instance.handle.remove("task-00"));
        assert!(!instance.handle.remove("new/1"), "removed twice");
    }
    let listed = async || {
        let records = a.locks.list(format!("{}/tasks/", site.group)).await.expect("the store answers");
        records.iter().map(|record| record.name.to_string()).collect::<Vec<_>>()
    };
    until("removed tasks are released", || a.count() + b.count() == 4).await;
    let left = listed().await;
    assert!(left.len() == 4 && !left.iter().any(|name| name.ends_with("new/1") || name.ends_with("-00")), "{left:?}");
    site.check_history();
}

/// A task is released when its worker has ended, not before; a worker that goes on after its time is dropped.
pub async fn a_crew_releases_a_task_when_its_worker_has_ended(subject: &Subject) {
    let site = Site::new(subject, 4);
    let linger = Duration::from_millis(800);
    let a = site.start_with(50, linger, LONG).await;
    site.shared_out(&[&a], &[4]).await;
    let b = site.start_with(50, LONG, Duration::from_millis(300)).await;
    site.shared_out(&[&a, &b], &[2, 2]).await;
    // Were too many told to stop, the rest would move now.
    sleep(2 * linger).await;
    site.shared_out(&[&a, &b], &[2, 2]).await;
    assert_eq!(site.starts(), 6, "workers were started, and two tasks had to move, however long that takes");
    site.check_history();
    // Its workers would go on for much longer than they may.
    let begun = Instant::now();
    b.stop().await;
    assert!(begun.elapsed() < SOON, "a worker was not dropped when its time was over");
    site.shared_out(&[&a], &[4]).await;
    site.check_history();
}

/// An instance that comes and goes, again and again, for less than the settling time, moves nothing.
pub async fn a_flapping_instance_does_not_disturb_a_crew(subject: &Subject) {
    let site = Site::new(subject, 10);
    let (a, b) = (site.start(50).await, site.start(50).await);
    site.shared_out(&[&a, &b], &[5, 5]).await;
    for _ in 0..4 {
        let flapping = site.start(50).await;
        sleep(SETTLE / 3).await;
        flapping.stop().await;
        sleep(ROUND).await;
    }
    site.shared_out(&[&a, &b], &[5, 5]).await;
    assert_eq!(site.starts(), 10, "workers were started for 10 tasks that had no need to move");
    site.check_history();
}

/// The worker of a task that is lost is dropped at once, whatever it does, and the task runs again with a larger token.
pub async fn a_crew_drops_the_worker_of_a_lost_task(subject: &Subject) {
    let site = Site::new(subject, 2);
    let a = site.start_with(50, LONG, LONG).await;
    site.shared_out(&[&a], &[2]).await;
    let name = Name::new(format!("{}/tasks/task-01", site.group)).expect("the name is within the rule");
    let evicted = soon("an eviction", a.locks.evict(&name, "an operator")).await.expect("a name can be evicted");
    until("the task runs again", || site.starts() == 3).await;
    let operations = site.history.operations();
    let of_task: Vec<&Operation> = operations.iter().filter(|operation| operation.name == name).collect();
    let [_, ended, again] = of_task[..] else { panic!("{of_task:?}") };
    assert_eq!(ended.what, What::Ended);
    assert!(matches!(again.what, What::Granted(token) if token > evicted.expect("it was held").token), "{again:?}");
}

/// A worker that ends by itself, or panics, is started again, with a larger token; the others go on.
pub async fn a_crew_starts_a_worker_again_that_has_ended(subject: &Subject) {
    let site = Site::new(subject, 3);
    let locks = subject.connect().await;
    let (history, crew) = (site.history.clone(), site.crew(&locks));
    let handle = crew.handle();
    let mut starts = 0;
    let work = tokio::spawn(crew.work(move |task, term| {
        starts += 1;
        let (history, first) = (history.clone(), starts <= 3);
        async move {
            let _belief = Belief::new(&history, "it", &term);
            match (first, task.as_str()) {
                (true, "task-00") => {}
                // Unlike `panic!` it prints nothing, and unwinds all the same.
                (true, "task-01") => std::panic::resume_unwind(Box::new("told to panic")),
                _ => term.cancelled().await,
            }
        }
    }));
    let instance = Instance { locks, handle, work };
    until("two are started again", || site.starts() == 5).await;
    site.shared_out(&[&instance], &[3]).await;
    assert_eq!(site.starts(), 5, "the third had no need to");
    instance.stop().await;
    site.check_history();
}

/// An instance whose membership is lost joins again, and its tasks go on meanwhile.
pub async fn a_crew_member_that_was_evicted_joins_again(subject: &Subject) {
    let site = Site::new(subject, 4);
    let (a, b) = (site.start(50).await, site.start(50).await);
    site.shared_out(&[&a, &b], &[2, 2]).await;
    let members = a.locks.members(site.group.as_str());
    let before = members.list().await.expect("members can be listed");
    let name = format!("{}/members/{}", site.group, before[0].id);
    soon("an eviction", a.locks.evict(&name, "an operator")).await.expect("a name can be evicted");
    let back = async {
        loop {
            let now = members.list().await.expect("members can be listed");
            if now.len() == 2 && now[0].id == before[0].id && now[0].since > before[0].since {
                return;
            }
            sleep(TICK).await;
        }
    };
    timeout(SHARING, back).await.expect("an evicted member is back");
    sleep(2 * SETTLE).await;
    site.shared_out(&[&a, &b], &[2, 2]).await;
    assert_eq!(site.starts(), 4, "workers were started, and no task had to move");
}

/// An instance that is cut off from the store drops its workers before others have their tasks; when it is back it joins
/// again, and gets its share.
pub async fn a_crew_member_that_was_cut_off_comes_back(subject: &Subject) {
    let mut site = Site::new(subject, 4);
    site.ttl = 3 * subject.ttl();
    let (locks, store) = subject.connect_faulty().await;
    let (a, b) = (site.start(50).await, site.start_on(locks, 50, LONG, LONG));
    site.shared_out(&[&a, &b], &[2, 2]).await;
    store.always_all(Fault::Fail);
    site.shared_out(&[&a, &b], &[0, 4]).await;
    store.heal();
    site.shared_out(&[&a, &b], &[2, 2]).await;
    assert_eq!(site.starts(), 8, "two tasks had to move there, and two back");
    site.check_history();
}

/// When it is stopped, or a shutdown begins, workers are told, their tasks released and the group left; when the future is dropped, too.
pub async fn a_crew_leaves_nothing_behind(subject: &Subject) {
    let (site, other) = (Site::new(subject, 3), subject.connect().await);
    let stopped = site.start(50).await;
    site.shared_out(&[&stopped], &[3]).await;
    stopped.stop().await;
    assert_eq!(other.list(site.group.as_str()).await.expect("the store answers"), []);
    let mut a = site.start_with(50, Duration::from_millis(50), LONG).await;
    site.shared_out(&[&a], &[3]).await;
    let unreleased = soon("the shutdown", a.locks.shutdown(SOON)).await;
    assert!(unreleased.is_empty(), "{unreleased:?}");
    soon("the end", &mut a.work).await.expect("no panic").expect("a shutdown is no failure");
    soon("no more reports", async { while a.handle.changed().await.is_some() {} }).await;
    assert_eq!(other.list(site.group.as_str()).await.expect("the store answers"), []);
    let b = site.start_with(50, LONG, LONG).await;
    site.shared_out(&[&b], &[3]).await;
    drop(b);
    for task in &site.tasks {
        let name = Name::new(format!("{}/tasks/{task}", site.group)).expect("the name is within the rule");
        free_for(&other, &name, "after the crew's future was dropped").await;
    }
    let gone = async {
        while !other.members(site.group.as_str()).list().await.expect("the store answers").is_empty() {
            sleep(TICK).await;
        }
    };
    soon("the member is gone", gone).await;
    site.check_history();
}

/// Options that make no sense are refused, by name, before anything is written.
pub async fn bad_crew_options_are_refused(subject: &Subject) {
    let (locks, group) = (subject.connect().await, subject.prefix() + "crew");
    let second = Duration::from_secs(1);
    let crew = || locks.crew(group.as_str());
    let cases: [(&str, Crew); 9] = [
        ("capacity", crew().capacity(0)),
        ("task", crew().tasks(["a", "b", "a"])),
        ("task", crew().tasks([""])),
        ("task", crew().tasks(["a\n"])),
        ("group", locks.crew("").tasks(["a"])),
        ("group", locks.crew("crew/")),
        ("ttl", crew().ttl(3 * second).round(2 * second)),
        ("settle", crew().settle(second).round(2 * second)),
        ("round", crew().round(Duration::ZERO)),
    ];
    for (option, crew) in cases {
        let refused = soon("a refusal", crew.work(async |_, _| ())).await;
        assert!(matches!(&refused, Err(Error::Invalid { what, .. }) if what == option), "{option}: {refused:?}");
    }
    let refused = soon("a refusal", crew().heartbeat(20 * second).work(async |_, _| ())).await;
    assert!(matches!(&refused, Err(Error::Invalid { what, .. }) if what == "ttl"), "{refused:?}");
    assert_eq!(locks.list(group.as_str()).await.expect("the store answers"), []);
}
