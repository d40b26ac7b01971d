//! A held name, and the signal that it is held no more.

use std::fmt;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use crate::clock::Moment;
use crate::engine::{Message, Shared, Ticket};
use crate::error::{Error, Result};
use crate::record::{LeaseId, Name, Token, Ttl};

/// How a term stands.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Status {
    /// Held, and renewed in time.
    Held,
    /// Still held, but renewals have failed and less than half of the term is left.
    AtRisk,
    /// Still held and renewed; a [`shutdown`](crate::Locks::shutdown) has begun and waits for the release.
    Closing,
    /// Released in the ordinary way.
    Released,
    /// Over.
    Lost(Lost),
}

/// A term that ended before its holder released it.
#[derive(Clone, Debug, thiserror::Error)]
#[error("lost {name} (token {token}): {why}")]
#[non_exhaustive]
pub struct Lost {
    /// What was held.
    pub name: Name,
    /// The term's last token: stale now.
    pub token: Token,
    /// The reason.
    pub why: Why,
}

/// Why a term was lost.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Why {
    /// It ran out, by the holder's own clock or the store's; with the last failure to renew, if there was one.
    Expired(Option<Box<Error>>),
    /// Another holder has the name: its owner and token.
    Taken(String, Token),
    /// An operator freed the name: who and why.
    Evicted(String),
    /// `max_hold` has passed.
    HeldTooLong,
    /// The `Locks` was shut down, or its engine has died.
    Closed,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired(None) => write!(f, "the term ran out, or the store has forgotten it"),
            Self::Expired(Some(error)) => write!(f, "the term ran out unrenewed: {error}"),
            Self::Taken(owner, token) => write!(f, "taken by {owner} (token {token})"),
            Self::Evicted(by) => write!(f, "evicted by {by}"),
            Self::HeldTooLong => write!(f, "held longer than max_hold"),
            Self::Closed => write!(f, "this process's lock service has ended"),
        }
    }
}

/// What the engine and the holder share of a term.
#[derive(Debug)]
pub(crate) struct Held {
    pub name: Name,
    pub ticket: Ticket,
    pub lease: LeaseId,
    pub ttl: Ttl,
    deadline: AtomicU64,
    token: AtomicU64,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    status: Status,
    /// The last failure to renew, until a renewal succeeds.
    error: Option<Error>,
    /// A shutdown has begun, even if the status has other news.
    closing: bool,
}

impl State {
    fn is_over(&self) -> bool {
        matches!(self.status, Status::Released | Status::Lost(_))
    }
}

impl Held {
    pub fn new(name: Name, ticket: Ticket, lease: LeaseId, ttl: Ttl, token: Token, deadline: Moment) -> Self {
        Self {
            name,
            ticket,
            lease,
            ttl,
            deadline: AtomicU64::new(deadline.as_nanos()),
            token: AtomicU64::new(token.0),
            state: Mutex::new(State { status: Status::Held, error: None, closing: false }),
            changed: Notify::new(),
        }
    }

    pub fn deadline(&self) -> Moment {
        Moment::from_nanos(self.deadline.load(Ordering::Acquire))
    }

    pub fn token(&self) -> Token {
        Token(self.token.load(Ordering::Acquire))
    }

    /// The state, in which a term that has run out by now is lost: whoever looks first decides it, for good.
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.is_over() && Moment::now() >= self.deadline() {
            let error = state.error.take().map(Box::new);
            state.status = Status::Lost(self.lost_for(Why::Expired(error)));
            self.changed.notify_waiters();
        }
        state
    }

    /// The term was renewed. Says whether that was in time.
    ///
    /// A deadline never moves back: an answer that overtook an earlier one counts.
    pub fn extend(&self, token: Token, deadline: Moment) -> bool {
        let mut state = self.state();
        if state.is_over() {
            return false;
        }
        state.error = None;
        self.token.store(token.0, Ordering::Release);
        self.deadline.fetch_max(deadline.as_nanos(), Ordering::AcqRel);
        true
    }

    /// A renewal failed.
    pub fn note(&self, error: Error) {
        self.state().error = Some(error);
        self.changed.notify_waiters();
    }

    /// What is left of the term, if the last renewal failed.
    pub fn failing(&self) -> Option<Duration> {
        let state = self.state();
        let failing = state.error.is_some() && !state.is_over();
        failing.then(|| self.deadline().remaining())
    }

    /// Whether the holder is to let go, or has: the term is over, or a shutdown has begun.
    pub fn is_ending(&self) -> bool {
        let state = self.state();
        state.closing || state.is_over()
    }

    /// How the term stands at this moment, whatever was signalled so far.
    pub fn status(&self) -> Status {
        self.state().status.clone()
    }

    /// Tells the holder, unless the term is over: that is final. Says whether it was told.
    pub fn tell(&self, news: Status) -> bool {
        let mut state = self.state();
        if state.is_over() {
            return false;
        }
        state.closing |= matches!(news, Status::Closing);
        state.status = news;
        self.changed.notify_waiters();
        true
    }

    pub fn lost_for(&self, why: Why) -> Lost {
        Lost { name: self.name.clone(), token: self.token(), why }
    }

    fn lost(&self) -> Option<Lost> {
        match self.status() {
            Status::Lost(lost) => Some(lost),
            _ => None,
        }
    }

    async fn until_lost(self: Arc<Self>) -> Lost {
        self.until(Self::lost).await
    }

    /// Waits until `look` finds something; it looks at each change.
    pub async fn until<T>(&self, look: impl Fn(&Self) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            if let Some(found) = look(self) {
                return found;
            }
            changed.await;
        }
    }
}

/// A held name. Renewed by itself while it lives; dropping it frees the name.
///
/// A lease is not a mutex: a process that is paused for longer than its term comes back believing that it holds.
/// Send [`token`](Guard::token) along with whatever the work touches, and let that refuse an older one
/// ([`Fence`](crate::Fence)).
#[must_use = "dropping the guard frees the name"]
pub struct Guard {
    pub(crate) held: Arc<Held>,
    pub(crate) shared: Arc<Shared>,
}

impl Guard {
    pub(crate) fn new(held: Arc<Held>, shared: Arc<Shared>) -> Self {
        Self { held, shared }
    }

    /// What is held.
    pub fn name(&self) -> &Name {
        &self.held.name
    }

    /// Who holds it, as others see it.
    pub fn owner(&self) -> &str {
        &self.shared.owner
    }

    /// The fencing token. With `rotate_every` it rises during the term: read it anew for each request.
    pub fn token(&self) -> Token {
        self.held.token()
    }

    /// Whether the name is held at this moment, by this machine's clock; no I/O.
    pub fn is_held(&self) -> bool {
        self.held.lost().is_none()
    }

    /// How the term stands at this moment; no I/O.
    pub fn status(&self) -> Status {
        self.held.status()
    }

    /// What is left of the term unless it is renewed.
    pub fn remaining(&self) -> Duration {
        self.held.deadline().remaining()
    }

    /// When the term ends unless it is renewed, by this machine's boot-time clock.
    pub fn deadline(&self) -> Moment {
        self.held.deadline()
    }

    /// Resolves when the term is lost, at the latest when it runs out by this machine's own clock; stays pending
    /// after an ordinary release.
    ///
    /// # Cancel safety
    /// Safe: it may be dropped, cloned and awaited as often as you like, also after the guard is gone.
    pub fn lost(&self) -> LostSignal {
        LostSignal::new(self.held.clone())
    }

    /// The changes of this term's [`Status`], for holders that want to know before it is too late.
    pub fn watch(&self) -> Watch {
        Watch { held: self.held.clone(), seen: std::mem::discriminant(&Status::Held) }
    }

    /// Runs `work` for as long as the name is held: checks before each poll, and drops `work` when the term is lost.
    ///
    /// # Errors
    /// [`Lost`] if the term ended first.
    ///
    /// # Cancel safety
    /// Dropping it drops `work`; the name stays held.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, Lost> {
        let mut lost = self.lost();
        let mut work = pin!(work);
        std::future::poll_fn(|context| {
            if let Poll::Ready(lost) = Pin::new(&mut lost).poll(context) {
                return Poll::Ready(Err(lost));
            }
            work.as_mut().poll(context).map(Ok)
        })
        .await
    }

    /// Frees the name, and waits until the store has it.
    ///
    /// # Errors
    /// [`Error::Lost`] if the term was over already; [`Error::Store`] if the store could not be reached until the
    /// term ran out; [`Error::Closed`] after a shutdown, which has released the name.
    ///
    /// # Cancel safety
    /// The release is under way as soon as this is called; dropping the future does not stop it.
    pub fn release(self) -> impl Future<Output = Result<()>> + Send + 'static {
        let answer = self.send_release();
        async move { answer.await.unwrap_or(Err(Error::Closed)) }
    }

    /// [`release`](Guard::release) for code without a runtime.
    ///
    /// # Errors
    /// As [`release`](Guard::release).
    ///
    /// # Panics
    /// Inside an async runtime.
    pub fn release_blocking(self) -> Result<()> {
        self.send_release().blocking_recv().unwrap_or(Err(Error::Closed))
    }

    fn send_release(self) -> oneshot::Receiver<Result<()>> {
        let (reply, answer) = oneshot::channel();
        self.end(Some(reply));
        answer
    }

    fn end(&self, reply: Option<oneshot::Sender<Result<()>>>) {
        // A second end, by the drop that follows a release, finds the term released and says nothing.
        if self.held.tell(Status::Released) || reply.is_some() || self.held_too_long() {
            self.shared.send(Message::Release { held: self.held.clone(), reply });
        }
    }

    /// Told to stop, but the record is still this term's.
    fn held_too_long(&self) -> bool {
        matches!(self.held.status(), Status::Lost(Lost { why: Why::HeldTooLong, .. }))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.end(None);
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("name", self.name())
            .field("token", &self.token())
            .field("status", &self.status())
            .finish()
    }
}

/// Resolves with [`Lost`] when a term is lost. See [`Guard::lost`].
#[must_use = "futures do nothing unless polled"]
pub struct LostSignal {
    held: Arc<Held>,
    wait: Pin<Box<dyn Future<Output = Lost> + Send>>,
}

impl LostSignal {
    pub(crate) fn new(held: Arc<Held>) -> Self {
        Self { wait: Box::pin(held.clone().until_lost()), held }
    }
}

impl Clone for LostSignal {
    fn clone(&self) -> Self {
        Self::new(self.held.clone())
    }
}

impl Future for LostSignal {
    type Output = Lost;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Lost> {
        // The clock counts, not only the signal: after a pause this may be polled before the engine has woken up.
        match self.held.lost() {
            Some(lost) => Poll::Ready(lost),
            None => self.wait.as_mut().poll(context),
        }
    }
}

impl fmt::Debug for LostSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LostSignal").field("name", &self.held.name).finish_non_exhaustive()
    }
}

/// Follows a term's [`Status`]. See [`Guard::watch`].
#[derive(Debug)]
pub struct Watch {
    held: Arc<Held>,
    seen: std::mem::Discriminant<Status>,
}

impl Watch {
    /// The status at this moment.
    pub fn status(&self) -> Status {
        self.held.status()
    }

    /// Waits until the status is another than the one last returned here (at first: than `Held`).
    ///
    /// # Cancel safety
    /// Safe: no change is lost, though quick changes may be seen as one.
    pub async fn changed(&mut self) -> Status {
        loop {
            let changed = self.held.changed.notified();
            let status = self.held.status();
            let kind = std::mem::discriminant(&status);
            if kind != self.seen {
                self.seen = kind;
                return status;
            }
            changed.await;
        }
    }
}
