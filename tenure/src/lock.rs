//! The builders of an acquire, and the futures that they turn into.

use std::fmt;
use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::engine::{Answer, Message, Request, Shared, Ticket, Wait};
use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::options::{Options, option_setters};
use crate::record::Name;

/// Asks for a name and waits for it. Made by [`Locks::lock`](crate::Locks::lock); nothing happens until it is awaited.
///
/// `tokio::spawn` wants a future, not what can become one: spawn `lock.into_future()`, or an `async` block.
#[must_use = "nothing is asked for until this is awaited"]
#[derive(Clone)]
pub struct Lock {
    shared: Arc<Shared>,
    name: Result<Name>,
    options: Options,
}

impl Lock {
    pub(crate) fn new(shared: Arc<Shared>, name: Result<Name>, options: Options) -> Self {
        Self { shared, name, options }
    }

    /// With all options at once, as a recipe has them.
    pub(crate) fn with(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    option_setters!();

    /// A shutdown need not wait for the holder.
    pub(crate) fn workless(mut self) -> Self {
        self.options.workless = true;
        self
    }

    /// Waits at most this long for the name; for ever unless set. Zero asks the store once.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.options.wait = Some(wait);
        self
    }

    /// Acquires from code without a runtime.
    ///
    /// # Errors
    /// As [`Locks::lock`](crate::Locks::lock).
    ///
    /// # Panics
    /// Inside an async runtime.
    pub fn blocking(self) -> Result<Guard> {
        let acquire = self.into_future();
        let waited = acquire.waited;
        acquire.asking.blocking()?.or_timed_out(waited)
    }
}

impl IntoFuture for Lock {
    type Output = Result<Guard>;
    type IntoFuture = Acquire;

    fn into_future(self) -> Acquire {
        let waited = self.options.wait.unwrap_or_default();
        let wait = match self.options.wait {
            None => Wait::Forever,
            Some(Duration::ZERO) => Wait::Once,
            Some(wait) => Wait::For(wait),
        };
        Acquire { asking: Asking::new(self.shared, self.name, self.options, wait), waited }
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").field("name", &self.name).field("options", &self.options).finish()
    }
}

/// Asks for a name once. Made by [`Locks::try_lock`](crate::Locks::try_lock); nothing happens until it is awaited.
#[must_use = "nothing is asked for until this is awaited"]
#[derive(Clone)]
pub struct TryLock {
    shared: Arc<Shared>,
    name: Result<Name>,
    options: Options,
}

impl TryLock {
    pub(crate) fn new(shared: Arc<Shared>, name: Result<Name>, options: Options) -> Self {
        Self { shared, name, options }
    }

    /// With all options at once, as a recipe has them.
    pub(crate) fn with(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    option_setters!();

    /// Tries from code without a runtime.
    ///
    /// # Errors
    /// As [`Locks::try_lock`](crate::Locks::try_lock).
    ///
    /// # Panics
    /// Inside an async runtime.
    pub fn blocking(self) -> Result<Option<Guard>> {
        Ok(self.into_future().0.blocking()?.into_guard())
    }
}

impl IntoFuture for TryLock {
    type Output = Result<Option<Guard>>;
    type IntoFuture = TryAcquire;

    fn into_future(self) -> TryAcquire {
        TryAcquire(Asking::new(self.shared, self.name, self.options, Wait::Once))
    }
}

impl fmt::Debug for TryLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TryLock").field("name", &self.name).field("options", &self.options).finish()
    }
}

/// An acquire under way. Dropping it withdraws the request, whatever has become of it.
#[must_use = "futures do nothing unless polled"]
#[derive(Debug)]
pub struct Acquire {
    asking: Asking,
    waited: Duration,
}

impl Future for Acquire {
    type Output = Result<Guard>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let got = ready!(self.asking.poll(context))?;
        Poll::Ready(got.or_timed_out(self.waited))
    }
}

/// A try under way. Dropping it withdraws the request, whatever has become of it.
#[must_use = "futures do nothing unless polled"]
#[derive(Debug)]
pub struct TryAcquire(Asking);

impl Future for TryAcquire {
    type Output = Result<Option<Guard>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(ready!(self.0.poll(context)).map(Got::into_guard))
    }
}

/// A request to the engine: sent when first polled, withdrawn if dropped unanswered.
struct Asking {
    shared: Arc<Shared>,
    state: State,
}

enum State {
    /// Checked, but not sent.
    New(Box<Result<(Name, Options, Wait)>>),
    Sent(Name, Ticket, oneshot::Receiver<Result<Answer>>),
    Over,
}

/// The answer, with what a guard needs.
struct Got {
    name: Name,
    shared: Arc<Shared>,
    answer: Answer,
}

impl Got {
    fn into_guard(self) -> Option<Guard> {
        match self.answer {
            Answer::Granted(held) => Some(Guard::new(held, self.shared)),
            Answer::Busy(_) => None,
        }
    }

    fn or_timed_out(self, waited: Duration) -> Result<Guard> {
        match self.answer {
            Answer::Granted(held) => Ok(Guard::new(held, self.shared)),
            Answer::Busy(holder) => Err(Error::TimedOut { name: self.name, waited, holder }),
        }
    }
}

impl Asking {
    fn new(shared: Arc<Shared>, name: Result<Name>, options: Options, wait: Wait) -> Self {
        Self { shared, state: State::New(Box::new(name.map(|name| (name, options, wait)))) }
    }

    fn send(&mut self) -> Result<()> {
        let State::New(asked) = std::mem::replace(&mut self.state, State::Over) else { return Ok(()) };
        let (name, options, wait) = (*asked)?;
        let plan = options.check(self.shared.about.min_ttl)?;
        let ticket = self.shared.ticket();
        let (reply, answer) = oneshot::channel();
        let request = Request { name: name.clone(), ticket, plan, wait, reply };
        self.shared.send(Message::Acquire(Box::new(request)));
        self.state = State::Sent(name, ticket, answer);
        Ok(())
    }

    fn got(&mut self, answer: Result<Result<Answer>, oneshot::error::RecvError>) -> Result<Got> {
        let State::Sent(name, ..) = std::mem::replace(&mut self.state, State::Over) else { return Err(Error::Closed) };
        let answer = answer.unwrap_or(Err(Error::Closed))?;
        Ok(Got { name, shared: self.shared.clone(), answer })
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Got>> {
        if let State::New(_) = self.state {
            self.send()?;
        }
        let State::Sent(_, _, answer) = &mut self.state else { panic!("an acquire was polled after it was answered") };
        let answer = ready!(Pin::new(answer).poll(context));
        Poll::Ready(self.got(answer))
    }

    fn blocking(mut self) -> Result<Got> {
        self.send()?;
        let State::Sent(_, _, answer) = &mut self.state else { return Err(Error::Closed) };
        // The state stays `Sent`: should the next line panic, inside a runtime, the drop withdraws.
        let answer = std::mem::replace(answer, oneshot::channel().1).blocking_recv();
        self.got(answer)
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        if let State::Sent(name, ticket, _) = &self.state {
            self.shared.send(Message::Withdraw { name: name.clone(), ticket: *ticket });
        }
    }
}

impl fmt::Debug for Asking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match &self.state {
            State::New(asked) => asked.as_ref().as_ref().ok().map(|(name, ..)| name),
            State::Sent(name, ..) => Some(name),
            State::Over => None,
        };
        f.debug_struct("Asking").field("name", &name).finish_non_exhaustive()
    }
}
