//! Many keyed tasks: each runs in the one process that has won its key.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::error::{Error, Result};
use crate::guard::{Guard, Lost};
use crate::locks::{Locks, Scope};
use crate::options::{Options, option_setters};
use crate::record::{Name, Record};
use crate::term::{Cancel, Keeper, Ran, STOP_WITHIN, Term};

/// Renewals fail for a while before fewer than two intervals are left: with three a term, the first failure would end the task.
const RENEWALS_PER_TERM: u32 = 5;

/// A task on its way to whatever runs it.
pub type Spawned = Pin<Box<dyn Future<Output = ()> + Send>>;
type Spawner = Arc<dyn Fn(Spawned) + Send + Sync>;
type OnEnd = Arc<dyn Fn(&str, &Ending) + Send + Sync>;

/// How a task of an [`Elector`] ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Ending {
    /// By itself, or because it was told to.
    Done,
    /// It panicked, with these words.
    Panicked(String),
    /// Its key was lost, and it was dropped.
    Lost(Lost),
    /// It was told to stop and did not in time, or its runtime ended: it was dropped.
    CutOff,
}

/// Runs tasks by key, each in at most one process at a time. Made by [`Locks::elector`].
///
/// A key is a name `scope/key`, held while its task runs: released only when the task has ended, whatever made it end. If renewals fail
/// and fewer than two intervals of the term are left, the task is told to stop ([`Term::cancelled`]); when the term is lost it is
/// dropped. Dropping the elector tells all tasks to stop, without waiting for them.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # let locks = tenure::connect("memory:").await?;
/// let feeds = locks.elector("feeds");
/// let won = feeds.start("news", |term| async move {
///     println!("following {} with token {}", term.key(), term.token());
///     term.cancelled().await;
/// }).await?;
/// assert!(won);
/// feeds.stop("news").await?;
/// # Ok(()) })
/// # }
/// ```
#[must_use = "dropping the elector stops its tasks"]
pub struct Elector {
    locks: Locks,
    scope: String,
    options: Options,
    stop_within: Option<Duration>,
    spawner: Option<Spawner>,
    on_end: Option<OnEnd>,
    tasks: Arc<Tasks>,
}

impl Elector {
    pub(crate) fn new(locks: Locks, scope: String) -> Self {
        Self {
            locks,
            scope,
            options: Options::default(),
            stop_within: Some(STOP_WITHIN),
            spawner: Handle::try_current().ok().map(on),
            on_end: None,
            tasks: Arc::default(),
        }
    }

    option_setters!();

    /// How long a task may take to end when it is told to stop: 10 s unless set; `None` is as long as it likes. It is
    /// dropped then. In a [shutdown](Locks::shutdown), the shutdown's own time counts.
    pub fn stop_within(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.stop_within = limit.into();
        self
    }

    /// Runs tasks through `spawner`; on the tokio runtime that was current when the elector was made unless set.
    pub fn spawner(mut self, spawner: impl Fn(Spawned) + Send + Sync + 'static) -> Self {
        self.spawner = Some(Arc::new(spawner));
        self
    }

    /// Is called whenever a task has ended and its key is free again, with the key and how it went. Panics, losses and tasks that
    /// were cut off are logged as `tenure::recipe` anyhow.
    pub fn on_end(mut self, tell: impl Fn(&str, &Ending) + Send + Sync + 'static) -> Self {
        self.on_end = Some(Arc::new(tell));
        self
    }

    /// Asks for a key once, and runs `work` in the background if this process has won it: says whether. When the work ends, by
    /// itself or by a panic, the key is released.
    ///
    /// # Errors
    /// [`Error::AlreadyHeld`] if this process has the key, or is starting or stopping it; [`Error::Invalid`] for a bad scope, key
    /// or option, or if there is nothing to run tasks; [`Error::Store`]; [`Error::Closed`] after [`close`](Elector::close) or a shutdown.
    ///
    /// # Cancel safety
    /// Dropping it withdraws: either the work was started, or the key is left free.
    pub async fn start<F, W>(&self, key: impl AsRef<str>, work: F) -> Result<bool>
    where
        F: FnOnce(Term) -> W + Send + 'static,
        W: Future<Output = ()> + Send + 'static,
    {
        let name = self.scope().name(&key)?;
        let spawner = self.spawner.as_ref().ok_or_else(no_runtime)?;
        let seat = self.tasks.reserve(key.as_ref(), &name)?;
        let Some(guard) = self.locks.try_lock(&name).with(self.held_so()).await? else { return Ok(false) };
        let keeper = self.keeper(guard);
        let seat = seat.occupy(&keeper, self.on_end.clone())?;
        spawner(Box::pin(task(seat, keeper, self.limit(), work)));
        Ok(true)
    }

    /// Tells a task to stop, waits until it has ended, or drops it when its [time](Elector::stop_within) is over, and then
    /// releases its key. Says how it ended; `None` if no task with this key runs here.
    ///
    /// # Errors
    /// [`Error::Store`] if the key could not be released until its term ran out: the task has ended all the same.
    ///
    /// # Cancel safety
    /// Once polled, the task comes to its end even if this is dropped.
    pub async fn stop(&self, key: impl AsRef<str>) -> Result<Option<Ending>> {
        match self.tasks.running(key.as_ref()) {
            Some(running) => running.stop().await.map(Some),
            None => Ok(None),
        }
    }

    /// The terms whose tasks run here, by key, without asking the store.
    pub fn holding(&self) -> Vec<Term> {
        self.tasks.all().into_iter().map(|running| running.term).collect()
    }

    /// Who holds which key of this scope, in all processes, by the store's word.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad scope, [`Error::Store`], [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn locked(&self) -> Result<Vec<Record>> {
        // Any key would do: the scope is checked with it.
        self.scope().name("key")?;
        self.scope().list().await
    }

    /// Starts nothing any more, [stops](Elector::stop) all tasks at once, and says how each ended.
    ///
    /// # Cancel safety
    /// Once polled, all tasks come to their end even if this is dropped.
    pub async fn close(&self) -> Vec<(String, Result<Ending>)> {
        let all = self.tasks.close();
        all.iter().for_each(|running| running.cancel.tell());
        let mut endings = Vec::new();
        for running in all {
            let key = running.term.key().to_owned();
            endings.push((key, running.stop().await));
        }
        endings
    }

    fn scope(&self) -> Scope {
        self.locks.scope(&self.scope)
    }

    /// The options, with what every task's term has.
    fn held_so(&self) -> Options {
        Options { renew_every: Some(self.interval()), refuse_reentry: true, ..self.options.clone() }
    }

    fn interval(&self) -> Duration {
        let usual = self.options.ttl / RENEWALS_PER_TERM;
        self.options.renew_every.unwrap_or_else(|| usual.min(self.options.rotate_every.unwrap_or(usual)))
    }

    fn keeper(&self, guard: Guard) -> Keeper {
        Keeper::new(guard, &format!("{}/", self.scope)).give_up_below(2 * self.interval())
    }

    fn limit(&self) -> Duration {
        self.stop_within.unwrap_or(Duration::MAX)
    }
}

impl Drop for Elector {
    fn drop(&mut self) {
        self.tasks.close().iter().for_each(|running| running.cancel.tell());
    }
}

impl fmt::Debug for Elector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Elector").field("scope", &self.scope).field("holding", &self.holding()).finish_non_exhaustive()
    }
}

fn on(runtime: Handle) -> Spawner {
    Arc::new(move |task| drop(runtime.spawn(task)))
}

fn no_runtime() -> Error {
    Error::invalid("spawner", "is missing, and there was no tokio runtime when the elector was made: set spawner")
}

/// A task, from its grant to its release. The keeper goes before the seat, whatever happens: a seat that is free means a key
/// that is released.
async fn task<F, W>(seat: Occupied, keeper: Keeper, limit: Duration, work: F)
where
    F: FnOnce(Term) -> W,
    W: Future<Output = ()>,
{
    let term = keeper.term();
    let worker = async { without_panic(caught(|| work(term.clone()))?).await };
    let ending = match keeper.run(worker, limit).await {
        Ran::Done(Ok(())) => Ending::Done,
        Ran::Done(Err(words)) => Ending::Panicked(words),
        Ran::Lost(lost) => Ending::Lost(lost),
        Ran::CutOff => Ending::CutOff,
    };
    report(&term, &ending);
    let released = keeper.release().await;
    seat.end(ending, released);
}

/// Runs work to its end, or to its panic: then with its words.
pub(crate) async fn without_panic<W: Future>(work: W) -> Result<W::Output, String> {
    let mut work = pin!(work);
    poll_fn(|context| match caught(|| work.as_mut().poll(context)) {
        Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
        Ok(Poll::Pending) => Poll::Pending,
        Err(words) => Poll::Ready(Err(words)),
    })
    .await
}

/// What `act` returns, or the words of its panic.
pub(crate) fn caught<T>(act: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(act)).map_err(words)
}

fn words(panic: Box<dyn Any + Send>) -> String {
    match panic.downcast::<String>() {
        Ok(words) => *words,
        Err(panic) => panic.downcast_ref::<&str>().copied().unwrap_or("a panic without words").into(),
    }
}

fn report(term: &Term, ending: &Ending) {
    let (name, token) = (term.name(), term.token().0);
    match ending {
        Ending::Done => tracing::debug!(target: "tenure::recipe", %name, token, "the task is done"),
        Ending::Panicked(words) => tracing::error!(target: "tenure::recipe", %name, token, words, "the task panicked"),
        Ending::Lost(lost) => {
            tracing::warn!(target: "tenure::recipe", %name, token, why = %lost.why, "the task was dropped: its key is lost");
        }
        Ending::CutOff => {
            tracing::warn!(target: "tenure::recipe", %name, token, "the task was cut off: it did not end in time");
        }
    }
}

/// The keys that this process has, or is asking for.
#[derive(Debug, Default)]
struct Tasks(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    closed: bool,
    /// `None` while it is asked for.
    tasks: BTreeMap<String, Option<Running>>,
}

/// A task that runs, as others see it.
#[derive(Clone, Debug)]
struct Running {
    term: Term,
    cancel: Arc<Cancel>,
    ended: watch::Receiver<Option<Result<Ending>>>,
}

impl Running {
    async fn stop(mut self) -> Result<Ending> {
        self.cancel.tell();
        let ended = self.ended.wait_for(Option::is_some).await;
        ended.ok().and_then(|ended| ended.clone()).unwrap_or(Ok(Ending::CutOff))
    }
}

impl Tasks {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reserve(self: &Arc<Self>, key: &str, name: &Name) -> Result<Reserved> {
        let mut state = self.state();
        if state.closed {
            return Err(Error::Closed);
        }
        if state.tasks.contains_key(key) {
            return Err(Error::AlreadyHeld { name: name.clone() });
        }
        state.tasks.insert(key.into(), None);
        Ok(Reserved { tasks: self.clone(), key: key.into() })
    }

    fn running(&self, key: &str) -> Option<Running> {
        self.state().tasks.get(key).cloned().flatten()
    }

    fn all(&self) -> Vec<Running> {
        self.state().tasks.values().flatten().cloned().collect()
    }

    fn close(&self) -> Vec<Running> {
        self.state().closed = true;
        self.all()
    }
}

/// A key that is taken within this process; given back when it is dropped.
#[derive(Debug)]
struct Reserved {
    tasks: Arc<Tasks>,
    key: String,
}

impl Reserved {
    /// Unless the elector was closed meanwhile.
    fn occupy(self, keeper: &Keeper, on_end: Option<OnEnd>) -> Result<Occupied> {
        let (tell, ended) = watch::channel(None);
        let running = Running { term: keeper.term(), cancel: keeper.canceller(), ended };
        let mut state = self.tasks.state();
        if state.closed {
            return Err(Error::Closed);
        }
        state.tasks.insert(self.key.clone(), Some(running));
        drop(state);
        Ok(Occupied { tell, on_end, reserved: Some(self) })
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.tasks.state().tasks.remove(&self.key);
    }
}

/// The key of a running task. Whoever waits for its end is told of it also if the task is just dropped, with its runtime for example.
struct Occupied {
    tell: watch::Sender<Option<Result<Ending>>>,
    on_end: Option<OnEnd>,
    /// `None` once it was given back.
    reserved: Option<Reserved>,
}

impl Occupied {
    fn end(mut self, ending: Ending, released: Result<()>) {
        self.give_back(&ending, released);
    }

    /// Gives the key back, then tells those who wait for it.
    fn give_back(&mut self, ending: &Ending, released: Result<()>) {
        let Some(key) = self.reserved.take().map(|reserved| reserved.key.clone()) else { return };
        let told = match released {
            // A loss is the ending; a shutdown has released it.
            Ok(()) | Err(Error::Lost(_) | Error::Closed) => Ok(ending.clone()),
            Err(error) => Err(error),
        };
        self.tell.send_replace(Some(told));
        if let Some(on_end) = &self.on_end {
            // Its panic has been told of by then; a second one within a drop would end the process.
            let _ = caught(|| on_end(&key, ending));
        }
    }
}

impl Drop for Occupied {
    fn drop(&mut self) {
        self.give_back(&Ending::CutOff, Ok(()));
    }
}
