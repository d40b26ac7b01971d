//! Sharing work out: each task runs in one instance at a time, and each instance has about as many as the others.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use crate::error::{Error, Result};
use crate::locks::Locks;
use crate::members::{checked_group, checked_interval, interval};
use crate::options::limits;
use crate::record::{LeaseId, Name, Ttl};
use crate::term::{STOP_WITHIN, Term};

mod plan;
mod pool;
mod run;
mod view;

/// Long enough for the instances of a deployment to come one after another, short enough not to be waited for.
const SETTLE: Duration = Duration::from_secs(3);

impl Locks {
    /// Shares tasks out among the instances of a group. See [`Crew`].
    pub fn crew(&self, group: impl Into<String>) -> Crew {
        let control: Arc<Control> = Arc::default();
        Crew {
            locks: self.clone(),
            group: group.into(),
            ended: Ended(control.report.clone()),
            control,
            refused: None,
            capacity: u32::MAX,
            place: None,
            ttl: Ttl::DEFAULT.get(),
            heartbeat: None,
            round: None,
            settle: SETTLE,
            stop_within: Some(STOP_WITHIN),
        }
    }
}

/// Shares tasks out among the instances of a group: each task runs in one of them at a time, and each instance has about
/// as many as the others. Made by [`Locks::crew`].
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// # use std::time::Duration;
/// let locks = tenure::connect("memory:").await?;
/// let crew = locks.crew("topics").tasks(["topic-1", "topic-2", "topic-3"]).capacity(20);
/// # let crew = crew.round(Duration::from_millis(20)).settle(Duration::ZERO);
/// let mut handle = crew.handle();
/// let work = crew.work(async |task, term| {
///     println!("{task} is ours, with token {}", term.token());
///     term.cancelled().await; // consume the topic until then
/// });
/// let watch = async {
///     while handle.changed().await.is_some_and(|report| report.mine.len() < 3) {}
///     handle.stop();
/// };
/// tokio::join!(work, watch).0?;
/// # Ok(()) })
/// # }
/// ```
///
/// Every instance is given the same tasks and the same options, but for its capacity. Each is a *member*, `group/members/<id>`,
/// whether or not it has a task; each task that somebody has is a held name, `group/tasks/<task>`. Once a
/// [round](Crew::round) an instance lists `group/`, works out what everybody is to have, and carries out its own part:
///
/// - The *level* is the smallest number L with Σ min(capacity, L) ≥ tasks. Free tasks are claimed up to the level, each by the
///   member that stands highest with it, so that members seldom collide.
/// - A member gives a task up while it has at least two more than another with room. Its worker is told
///   ([`Term::cancelled`]) and has [a time](Crew::stop_within) to end; only then the name is released.
/// - Nothing else moves. A member that came counts when it has been there for the [settling time](Crew::settle); what one
///   that died had is free when its [TTL](Crew::ttl) is over, and one that leaves frees it at once.
/// - A member that does not take what is due to it, because it is blocked or was not given the task, is passed over after six rounds.
/// - Tasks that nobody has room for are [reported](Report::unassigned).
///
/// A task runs twice only if an instance is paused for longer than its term and comes back: send [`Term::token`] along, and
/// let what the work touches refuse an older one ([`Fence`](crate::Fence)).
#[must_use = "nothing is worked at until `work` is awaited"]
#[derive(Debug)]
pub struct Crew {
    locks: Locks,
    group: String,
    control: Arc<Control>,
    ended: Ended,
    refused: Option<Error>,
    capacity: u32,
    place: Option<String>,
    ttl: Duration,
    heartbeat: Option<Duration>,
    round: Option<Duration>,
    settle: Duration,
    stop_within: Option<Duration>,
}

impl Crew {
    /// Adds tasks: what can follow `group/tasks/` in a [`Name`](crate::Name), each once. More can be added and removed later, with the
    /// [`handle`](Crew::handle).
    pub fn tasks(mut self, tasks: impl IntoIterator<Item = impl Into<String>>) -> Self {
        for task in tasks {
            let added = self.control.add(&self.group, task.into());
            self.refused = self.refused.or(added.err());
        }
        self
    }

    /// How many tasks this instance has at the most, 1 or more: no limit unless set.
    pub fn capacity(mut self, capacity: u32) -> Self {
        self.capacity = capacity;
        self
    }

    /// What stands for this instance when tasks are placed, such as a host's name: then its tasks tend to return to it
    /// after a restart. The member's id, which is new each time, unless set.
    pub fn place(mut self, place: impl Into<String>) -> Self {
        self.place = Some(place.into());
        self
    }

    /// How long names stay held without renewal: 30 s unless set. What an instance had that died is free after this time.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How often names are renewed: a third of the TTL unless set; at most half of it.
    pub fn heartbeat(mut self, every: Duration) -> Self {
        self.heartbeat = Some(every);
        self
    }

    /// How often this instance looks at the others: as often as a waiter on this store, 250 ms to 1 s, unless set; at most half
    /// of the TTL. A round is one list of the group's names, and claims and releases in a batch each.
    pub fn round(mut self, every: Duration) -> Self {
        self.round = Some(every);
        self
    }

    /// How long an instance must be there before it counts, to itself and to others: 3 s unless set. One that comes and goes
    /// within that time moves nothing. Zero, or at least a round.
    pub fn settle(mut self, settle: Duration) -> Self {
        self.settle = settle;
        self
    }

    /// How long a worker may take to end when it is told to stop: 10 s unless set; `None` is as long as it likes. It is
    /// dropped then. In a [shutdown](Locks::shutdown), the shutdown's own time counts.
    pub fn stop_within(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.stop_within = limit.into();
        self
    }

    /// A handle to add and remove tasks, to see how things stand, and to stop.
    pub fn handle(&self) -> Handle {
        Handle { report: self.control.report.subscribe(), group: self.group.clone(), control: self.control.clone() }
    }

    /// Works, until it is [stopped](Handle::stop) or a [`shutdown`](Locks::shutdown) begins: calls `work` for each task that
    /// this instance is to have, and drives what that returns. It needs no runtime of a certain kind and spawns nothing: a
    /// worker that blocks, blocks all of them.
    ///
    /// A worker ends when [`Term::cancelled`] says so. If the term is lost it is dropped at once. If it ends by itself or panics, its
    /// task is given up after a second, and somebody starts it again, unless the task was [removed](Handle::remove).
    ///
    /// Failures of the store are ridden out: workers go on for as long as their names are held.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad group, task or option; [`Error::Store`] if it can't join the group; [`Error::Closed`] if the
    /// engine has died, a shutdown began before it had joined, or the time of a shutdown was over before its workers had ended.
    ///
    /// # Cancel safety
    /// Dropping it drops all workers, and then releases their names and leaves the group. To let workers end in their
    /// own time, [stop](Handle::stop) it.
    pub async fn work<W: Future<Output = ()>>(self, work: impl FnMut(String, Term) -> W) -> Result<()> {
        run::run(self.check()?, work).await
    }

    fn check(self) -> Result<Setup> {
        checked_group(&self.group)?;
        checked_interval("round", self.round)?;
        if let Some(refused) = self.refused {
            return Err(refused);
        }
        if self.capacity == 0 {
            return Err(Error::invalid(
                "capacity",
                "(0) must be at least 1: an instance that is to have no tasks need not join",
            ));
        }
        let round = self.round.unwrap_or_else(|| self.usual_round());
        self.check_times(round)?;
        let id = format!("{:016x}", LeaseId::random().0 as u64);
        Ok(Setup {
            locks: self.locks,
            group: self.group,
            control: self.control,
            _ended: self.ended,
            place: self.place.unwrap_or_else(|| id.clone()),
            id,
            capacity: self.capacity,
            ttl: self.ttl,
            heartbeat: self.heartbeat,
            round,
            settle: self.settle,
            stop_within: self.stop_within.unwrap_or(Duration::MAX),
        })
    }

    /// One that contradicts no other option: those were set, and this was not.
    fn usual_round(&self) -> Duration {
        let settle = if self.settle.is_zero() { SETTLE } else { self.settle };
        interval(&self.locks, None).min(self.ttl / 4).min(settle)
    }

    fn check_times(&self, round: Duration) -> Result<()> {
        if self.ttl < 2 * round {
            return Err(Error::invalid(
                "ttl",
                format!("({:?}) must be at least twice round ({round:?}): raise ttl or lower round", self.ttl),
            ));
        }
        if !self.settle.is_zero() && self.settle < round {
            return Err(Error::invalid(
                "settle",
                format!("({:?}) must be zero or at least round ({round:?}): raise settle or lower round", self.settle),
            ));
        }
        for (what, time) in [("settle", Some(self.settle)), ("stop_within", self.stop_within)] {
            if let Some(time) = time.filter(|time| *time > limits::TIME) {
                return Err(Error::invalid(what, format!("({time:?}) must be at most a year")));
            }
        }
        Ok(())
    }
}

/// A crew's options, checked.
#[derive(Debug)]
struct Setup {
    locks: Locks,
    group: String,
    control: Arc<Control>,
    _ended: Ended,
    id: String,
    place: String,
    capacity: u32,
    ttl: Duration,
    heartbeat: Option<Duration>,
    round: Duration,
    settle: Duration,
    stop_within: Duration,
}

/// What handles and the work share.
#[derive(Debug, Default)]
struct Control {
    wishes: Mutex<Wishes>,
    changed: Notify,
    report: watch::Sender<Report>,
}

#[derive(Debug, Default)]
struct Wishes {
    tasks: BTreeSet<String>,
    stop: bool,
    /// How often anything was wished for: so that no wish is missed by one who was busy.
    count: u64,
}

/// Says, when it is dropped, that there will be no more reports: whether the work came to its end, was dropped, or was refused.
#[derive(Debug)]
struct Ended(watch::Sender<Report>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.send_modify(|report| *report = Report { ended: true, ..Report::default() });
    }
}

impl Control {
    fn wishes(&self) -> MutexGuard<'_, Wishes> {
        self.wishes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wish<T>(&self, change: impl FnOnce(&mut Wishes) -> T) -> T {
        let mut wishes = self.wishes();
        wishes.count += 1;
        let changed = change(&mut wishes);
        drop(wishes);
        self.changed.notify_waiters();
        changed
    }

    fn add(&self, group: &str, task: String) -> Result<()> {
        let refuse = |why: String| Err(Error::invalid("task", why));
        if task.is_empty() {
            return refuse("\"\" is empty: give it a name".into());
        }
        if let Err(error) = Name::new(format!("{group}/tasks/{task}")) {
            return refuse(format!("{task:?} can't be held as group/tasks/{task}: {error}"));
        }
        if !self.wish(|wishes| wishes.tasks.insert(task.clone())) {
            return refuse(format!("{task:?} is there already: give each task once"));
        }
        Ok(())
    }

    async fn until_stopped(&self) {
        loop {
            let changed = self.changed.notified();
            if self.wishes().stop {
                return;
            }
            changed.await;
        }
    }

    /// Waits until there have been other than `seen` wishes.
    async fn other_than(&self, seen: u64) {
        loop {
            let changed = self.changed.notified();
            if self.wishes().count != seen {
                return;
            }
            changed.await;
        }
    }
}

/// Adds and removes tasks of a [`Crew`] at work, sees how it stands, stops it. Made by [`Crew::handle`].
#[derive(Clone, Debug)]
pub struct Handle {
    group: String,
    control: Arc<Control>,
    report: watch::Receiver<Report>,
}

impl Handle {
    /// Adds a task, for this instance: give it to all of them. Until then those that lack it are passed over.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is there already, or can't be a name.
    pub fn add(&self, task: impl Into<String>) -> Result<()> {
        self.control.add(&self.group, task.into())
    }

    /// Removes a task, for this instance: if it runs here its worker is told to stop, and then it is released. Says whether it was
    /// there. Remove it from all instances: those that still have it may claim it.
    pub fn remove(&self, task: &str) -> bool {
        self.control.wish(|wishes| wishes.tasks.remove(task))
    }

    /// How things stood when last looked.
    pub fn report(&self) -> Report {
        self.report.borrow().clone()
    }

    /// Waits until things stand otherwise than this handle has last seen here; `None` when the work has ended and there will be no more.
    ///
    /// # Cancel safety
    /// Safe: no change is lost, though quick changes may be seen as one.
    pub async fn changed(&mut self) -> Option<Report> {
        let end = async {
            let _ = self.control.report.subscribe().wait_for(|report| report.ended).await;
        };
        tokio::select! {
            biased;
            changed = self.report.changed() => changed.ok()?,
            () = end => return None,
        }
        Some(self.report.borrow_and_update().clone())
    }

    /// Stops in order: workers are told and have [their time](Crew::stop_within) to end, each task is released when its worker
    /// has ended, and [`work`](Crew::work) returns.
    pub fn stop(&self) {
        self.control.wish(|wishes| wishes.stop = true);
    }
}

/// How a crew stands, as one instance sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The tasks at work here, those included that are being given up.
    pub mine: Vec<String>,
    /// Tasks that nobody has, and nobody has room for.
    pub unassigned: Vec<String>,
    /// Tasks that nobody has and somebody is to take: they are between two members, or new.
    pub free: usize,
    /// The members that count, in the order of their ids.
    pub members: Vec<CrewMember>,
    /// How many tasks a member has at the most, unless they have to be given up yet.
    pub level: u32,
    /// The work has ended.
    ended: bool,
}

/// A member of a crew.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CrewMember {
    /// The member's id.
    pub id: String,
    /// How many tasks it can have.
    pub capacity: u32,
    /// How many it has.
    pub tasks: u32,
}
