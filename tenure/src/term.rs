//! What a task is given while its name is held for it, and who holds the name meanwhile.
//!
//! A recipe keeps the [`Guard`] in a [`Keeper`], and gives the task a [`Term`]: the task can see how it stands and hears
//! when it is to stop, but can't let go of the name while it is still at work.

use std::fmt;
use std::future::{pending, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::Notify;

use crate::error::Result;
use crate::guard::{Guard, Held, Lost, LostSignal, Status, Why};
use crate::record::{Name, Token};

/// How long a task that is told to stop may take unless its recipe is told otherwise: as long as most that supervise processes
/// give to a process.
pub(crate) const STOP_WITHIN: Duration = Duration::from_secs(10);

/// A name that is held for a task, as the task sees it. Cheap to clone; it holds nothing, and outlives the task harmlessly.
#[derive(Clone)]
pub struct Term {
    held: Arc<Held>,
    /// Where the key begins within the name.
    key: usize,
    cancel: Arc<Cancel>,
}

impl Term {
    /// What is held.
    pub fn name(&self) -> &Name {
        &self.held.name
    }

    /// What is held, as the recipe calls it: the name without the prefix of the scope or group.
    pub fn key(&self) -> &str {
        &self.held.name.as_str()[self.key..]
    }

    /// The fencing token: send it along with whatever the work touches. It is stale once the term is lost, and with
    /// `rotate_every` it rises during the term, so read it anew for each request.
    pub fn token(&self) -> Token {
        self.held.token()
    }

    /// Whether the name is held at this moment, by this machine's clock; no I/O.
    pub fn is_held(&self) -> bool {
        !matches!(self.held.status(), Status::Released | Status::Lost(_))
    }

    /// What is left of the term unless it is renewed; zero if it is over.
    pub fn remaining(&self) -> Duration {
        if self.is_held() { self.held.deadline().remaining() } else { Duration::ZERO }
    }

    /// Whether the task is to stop: what [`cancelled`](Term::cancelled) waits for.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.is_told() || self.held.is_ending()
    }

    /// Resolves when the task is to stop: the term was lost, whoever started the task wants it to end, or a
    /// [`shutdown`](crate::Locks::shutdown) has begun. Unless the term is lost the name stays held, and is renewed, until
    /// the task has ended or its time to do so is over.
    ///
    /// # Cancel safety
    /// Safe: it may be dropped, cloned and awaited as often as you like, also when the term is over.
    pub fn cancelled(&self) -> Cancelled {
        Cancelled::new(self.clone())
    }

    /// Resolves when the term is lost; stays pending after an ordinary end. See [`Guard::lost`].
    ///
    /// # Cancel safety
    /// As [`cancelled`](Term::cancelled).
    pub fn lost(&self) -> LostSignal {
        LostSignal::new(self.held.clone())
    }

    /// Why the term was lost; `None` if it was not.
    pub fn why(&self) -> Option<Why> {
        match self.held.status() {
            Status::Lost(lost) => Some(lost.why),
            _ => None,
        }
    }

    async fn until_cancelled(self) {
        tokio::select! {
            () = self.cancel.told() => {}
            () = self.held.until(|held| held.is_ending().then_some(())) => {}
        }
    }
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Term")
            .field("name", self.name())
            .field("token", &self.token())
            .field("cancelled", &self.is_cancelled())
            .finish()
    }
}

/// Resolves when a task is to stop. See [`Term::cancelled`].
#[must_use = "futures do nothing unless polled"]
pub struct Cancelled {
    term: Term,
    wait: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Cancelled {
    fn new(term: Term) -> Self {
        Self { wait: Box::pin(term.clone().until_cancelled()), term }
    }
}

impl Clone for Cancelled {
    fn clone(&self) -> Self {
        Self::new(self.term.clone())
    }
}

impl Future for Cancelled {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        // The clock counts, not only the signal: after a pause this may be polled before the engine has woken up.
        match self.term.is_cancelled() {
            true => Poll::Ready(()),
            false => self.wait.as_mut().poll(context),
        }
    }
}

impl fmt::Debug for Cancelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cancelled").field("term", &self.term).finish()
    }
}

/// A wish that a task may end, which is never taken back.
#[derive(Debug, Default)]
pub(crate) struct Cancel {
    told: AtomicBool,
    changed: Notify,
}

impl Cancel {
    pub fn tell(&self) {
        self.told.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }

    pub fn is_told(&self) -> bool {
        self.told.load(Ordering::Acquire)
    }

    pub async fn told(&self) {
        let changed = self.changed.notified();
        if !self.is_told() {
            changed.await;
        }
    }
}

/// Holds a name for a task, from the grant until the task has ended; the recipes' side of a [`Term`].
///
/// Dropping it frees the name, so it must outlive the task: let [`run`](Keeper::run) drive it.
#[derive(Debug)]
pub(crate) struct Keeper {
    guard: Guard,
    /// Where the key begins within the name.
    key: usize,
    cancel: Arc<Cancel>,
    /// With less than this left of the term while renewals fail, the task is to stop.
    floor: Option<Duration>,
}

/// How a task came to its end. It has been dropped in any case.
#[derive(Debug)]
pub(crate) enum Ran<T> {
    /// By itself.
    Done(T),
    /// The term was lost first.
    Lost(Lost),
    /// It was told to stop, and did not within its limit.
    CutOff,
}

impl Keeper {
    /// `prefix` is what stands before the key in the guard's name, `scope/` for example, or nothing.
    pub fn new(guard: Guard, prefix: &str) -> Self {
        let key = if guard.name().as_str().starts_with(prefix) { prefix.len() } else { 0 };
        Self { guard, key, cancel: Arc::default(), floor: None }
    }

    /// Tells the task to stop, while [`run`](Keeper::run), when renewals fail and less than this is left of the term.
    pub fn give_up_below(mut self, floor: Duration) -> Self {
        self.floor = Some(floor);
        self
    }

    /// What the task is to see.
    pub fn term(&self) -> Term {
        Term { held: self.guard.held.clone(), key: self.key, cancel: self.cancel.clone() }
    }

    /// Tells the task to stop. [`canceller`](Keeper::canceller) is for others who may do so.
    pub fn cancel(&self) {
        self.cancel.tell();
    }

    /// A handle that tells the task to stop, and does not hold the name.
    pub fn canceller(&self) -> Arc<Cancel> {
        self.cancel.clone()
    }

    /// Frees the name, and waits until the store has it; tried again until the term is over.
    pub async fn release(self) -> Result<()> {
        self.guard.release().await
    }

    /// Runs a task for as long as the name is held: drops it at once when the term is lost, and `limit` after it was told to
    /// stop. When this returns the task is gone, and the name can be released. In a shutdown the shutdown's own time counts.
    pub async fn run<F: Future>(&self, work: F, limit: Duration) -> Ran<F::Output> {
        let mut cut = pin!(self.cut(limit));
        let mut work = pin!(work);
        poll_fn(|context| match cut.as_mut().poll(context) {
            Poll::Ready(None) => Poll::Ready(Ran::CutOff),
            Poll::Ready(Some(lost)) => Poll::Ready(Ran::Lost(lost)),
            Poll::Pending => work.as_mut().poll(context).map(Ran::Done),
        })
        .await
    }

    /// Waits for the moment from which on the task must not be polled: the loss, or `None` if its time is over.
    async fn cut(&self, limit: Duration) -> Option<Lost> {
        tokio::select! {
            biased;
            lost = self.guard.lost() => Some(lost),
            () = self.overdue(limit) => None,
        }
    }

    async fn overdue(&self, limit: Duration) {
        tokio::select! {
            () = self.cancel.told() => {}
            () = self.failing() => self.cancel(),
        }
        self.pause(limit).await;
    }

    /// Resolves when renewals fail and less than the floor is left.
    async fn failing(&self) {
        let Some(floor) = self.floor else { return pending().await };
        loop {
            let left = self.guard.held.until(Held::failing).await;
            match left.saturating_sub(floor) {
                Duration::ZERO => return,
                // Renewed meanwhile, it is not failing any more when it is looked at again.
                more => self.pause(more).await,
            }
        }
    }

    /// An engine that has ended is told as loss.
    async fn pause(&self, time: Duration) {
        if self.guard.shared.pause(time).await.is_err() {
            pending().await
        }
    }
}
