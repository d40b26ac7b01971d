//! The thread that talks to the store: mailbox and loop.
//!
//! Everything that this process does with a name goes through the name's [`Slot`], so that it is in order. What a slot wants
//! of the store is collected at the [`Desk`] while calls are under way, and travels together in the next one.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc as blocking};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::clock::Moment;
use crate::error::{Error, Result};
use crate::event::{Events, Reporter, Subscribe};
use crate::guard::Held;
use crate::record::Name;
use crate::store::{About, Change, Store};

mod calls;
mod claims;
mod closing;
mod queue;
mod releases;
mod slot;
mod terms;

use calls::Done;
pub(crate) use claims::{Answer, Request, Wait};
use closing::Closing;
pub(crate) use closing::Leavings;
pub use closing::Unreleased;
pub(crate) use slot::jittered;
use slot::{Desk, Slot};
use terms::Term;

/// How long connecting may take.
const OPEN_LIMIT: Duration = Duration::from_secs(10);
/// How long a call to the store may take; above every store's own statement limit.
pub(crate) const CALL_LIMIT: Duration = Duration::from_secs(5);
/// The runtime's timers stand still while the machine sleeps, so the clock is looked at this often.
const RECHECK: Duration = Duration::from_millis(250);
/// How often the engine lets others run before it sends again; three brought nearly all of 64 tasks together.
const YIELDS: usize = 3;
/// How long the last handle to go waits for releases: more would make an ordinary exit hang on a dead store.
const PARTING: Duration = Duration::from_secs(1);

/// One acquire within this process, from the request to the end of its term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// A call under way.
type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What the handles say to the engine.
pub(crate) enum Message {
    Acquire(Box<Request>),
    Withdraw {
        name: Name,
        ticket: Ticket,
    },
    Release {
        held: Arc<Held>,
        reply: Option<oneshot::Sender<Result<()>>>,
    },
    /// Somebody freed this name: if it is held here, the holder is to know at once.
    Evicted(Name),
    Holding(oneshot::Sender<Vec<Arc<Held>>>),
    /// Anything else that is asked of the store, such as a list: run on this thread, out of order.
    Call(Box<dyn FnOnce(Arc<dyn Store>) -> Running + Send>),
    Shutdown {
        within: Duration,
        reply: oneshot::Sender<Leavings>,
    },
    Part(blocking::Sender<()>),
}

/// What all handles of one engine share; the last to go waits for the releases that are under way.
#[derive(Debug)]
pub(crate) struct Shared {
    mailbox: mpsc::UnboundedSender<Message>,
    tickets: AtomicU64,
    events: Subscribe,
    pub owner: Arc<str>,
    pub about: About,
}

impl Shared {
    /// A message to an engine that has ended is dropped, and with it its reply: the asker sees `Closed`.
    pub fn send(&self, message: Message) {
        let _ = self.mailbox.send(message);
    }

    pub fn ticket(&self) -> Ticket {
        Ticket(self.tickets.fetch_add(1, Ordering::Relaxed))
    }

    pub fn events(&self) -> Events {
        self.events.subscribe()
    }

    /// Runs a call to the store on the engine's thread.
    pub async fn call<T, F>(
        &self,
        limit: Duration,
        call: impl FnOnce(Arc<dyn Store>) -> F + Send + 'static,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let store = self.about.store;
        self.send(Message::Call(Box::new(move |to| {
            Box::pin(async move {
                let result = timeout(limit, call(to)).await.unwrap_or_else(|_| Err(calls::late(store, limit)));
                let _ = reply.send(result);
            })
        })));
        answer.await.unwrap_or(Err(Error::Closed))
    }

    /// Lets time pass, on the engine's thread: so whoever waits needs no runtime of a certain kind. Ends with an error when the
    /// engine does.
    pub async fn pause(&self, time: Duration) -> Result<()> {
        let (mut reply, answer) = oneshot::channel();
        self.send(Message::Call(Box::new(move |_| {
            Box::pin(async move {
                tokio::select! {
                    () = sleep(time) => drop(reply.send(())),
                    () = reply.closed() => {}
                }
            })
        })));
        answer.await.map_err(|_| Error::Closed)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let (done, wait) = blocking::channel();
        self.send(Message::Part(done));
        // An error is an engine that has ended; nothing is left to wait for.
        let _ = wait.recv_timeout(PARTING);
    }
}

/// An engine whose store is being opened.
pub(crate) struct Starting {
    opened: oneshot::Receiver<Result<Opened>>,
    owner: Arc<str>,
}

/// The handles' end of a running engine.
struct Opened {
    mailbox: mpsc::UnboundedSender<Message>,
    events: Subscribe,
    about: About,
}

impl Starting {
    pub fn new(store: Arc<dyn Store>, owner: Arc<str>) -> Self {
        let (answer, opened) = oneshot::channel();
        let starting = Self { opened, owner: owner.clone() };
        let spawned = std::thread::Builder::new().name("tenure".into()).spawn(|| engine_thread(store, owner, answer));
        // Without a thread `answer` is dropped, and whoever waits for it sees `Closed`.
        if let Err(error) = spawned {
            tracing::error!(target: "tenure::loss", %error, "no thread for the engine");
        }
        starting
    }

    pub async fn ready(self) -> Result<Shared> {
        Ok(Self::shared(self.opened.await.unwrap_or(Err(Error::Closed))?, self.owner))
    }

    pub fn ready_blocking(self) -> Result<Shared> {
        Ok(Self::shared(self.opened.blocking_recv().unwrap_or(Err(Error::Closed))?, self.owner))
    }

    fn shared(Opened { mailbox, events, about }: Opened, owner: Arc<str>) -> Shared {
        Shared { mailbox, tickets: AtomicU64::new(0), events, owner, about }
    }
}

fn engine_thread(store: Arc<dyn Store>, owner: Arc<str>, answer: oneshot::Sender<Result<Opened>>) {
    let name = store.about().store;
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return drop(answer.send(Err(Error::permanent(name, error)))),
    };
    runtime.block_on(async {
        let hints = match timeout(OPEN_LIMIT, open(&*store)).await {
            Ok(Ok(hints)) => hints,
            Ok(Err(error)) => return drop(answer.send(Err(error))),
            Err(_) => return drop(answer.send(Err(calls::late(name, OPEN_LIMIT)))),
        };
        let about = store.about();
        let (mailbox, messages) = mpsc::unbounded_channel();
        let (report, events) = Reporter::new(about.store, owner.clone());
        // If the asker is gone, so is the mailbox, and the engine ends at once.
        let _ = answer.send(Ok(Opened { mailbox, events, about: about.clone() }));
        Engine::new(store, Desk::new(about, owner, report)).run(messages, hints).await;
    });
    // What is still under way may be a call that hangs.
    runtime.shutdown_background();
}

/// Opens the store; its hints, if it has any, arrive on the channel.
async fn open(store: &dyn Store) -> Result<mpsc::UnboundedReceiver<Change>> {
    store.open().await?;
    let (hint, hints) = mpsc::unbounded_channel();
    if let Some(mut changes) = store.changes().await? {
        tokio::spawn(async move { while hint.send(changes.next().await).is_ok() {} });
    }
    Ok(hints)
}

struct Engine {
    store: Arc<dyn Store>,
    desk: Desk,
    slots: HashMap<Name, Slot>,
    calls: JoinSet<Option<Done>>,
    claiming: usize,
    releasing: usize,
    renewing: bool,
    /// How many entries were answered in this turn.
    answers: usize,
    closing: Option<Closing>,
}

impl Engine {
    fn new(store: Arc<dyn Store>, desk: Desk) -> Self {
        Self {
            store,
            desk,
            slots: HashMap::new(),
            calls: JoinSet::new(),
            claiming: 0,
            releasing: 0,
            renewing: false,
            answers: 0,
            closing: None,
        }
    }

    async fn run(mut self, mut messages: mpsc::UnboundedReceiver<Message>, mut hints: mpsc::UnboundedReceiver<Change>) {
        let mut mail = Vec::new();
        while !self.is_over() {
            let (mut done, mut hint) = (None, None);
            let wake = self.next_wake();
            tokio::select! {
                received = messages.recv_many(&mut mail, 4096), if !messages.is_closed() || !messages.is_empty() => {
                    if received == 0 { self.part(None) }
                }
                Some(answer) = self.calls.join_next() => done = Some(answer),
                Some(change) = hints.recv() => hint = Some(change),
                () = sleep(wake.unwrap_or(RECHECK)), if wake.is_some() => {}
                else => return,
            }
            // Read before anything is judged by it.
            self.desk.now = Moment::now();
            mail.drain(..).for_each(|message| self.take(message));
            // All that has arrived by now travels in the next calls together.
            while let Some(answer) = done.take().or_else(|| self.calls.try_join_next()) {
                self.finish(answer);
            }
            if std::mem::take(&mut self.answers) > 1 {
                self.gather(&mut messages);
            }
            while let Some(change) = hint.take().or_else(|| hints.try_recv().ok()) {
                self.take_hint(change);
            }
            self.ring_alarms();
            self.go_on_closing();
            self.send_calls();
        }
    }

    /// Many were answered at once, and most of them will ask again at once: gives them the processor for a moment, so
    /// that they travel together. No timer: with nobody else to run, this takes no time.
    fn gather(&mut self, messages: &mut mpsc::UnboundedReceiver<Message>) {
        for _ in 0..YIELDS {
            std::thread::yield_now();
            while let Ok(message) = messages.try_recv() {
                self.take(message);
            }
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Acquire(request) => self.with(request.name.clone(), |slot, desk| slot.ask(*request, desk)),
            Message::Withdraw { name, ticket } => self.with(name, |slot, desk| slot.withdraw(ticket, desk)),
            Message::Release { held, reply } => {
                self.with(held.name.clone(), |slot, desk| slot.let_go(&held, reply, desk));
            }
            Message::Evicted(name) => self.with(name, |slot, desk| slot.renew_now(desk)),
            Message::Holding(reply) => drop(reply.send(self.holding())),
            Message::Call(call) => {
                let call = call(self.store.clone());
                self.calls.spawn(async {
                    call.await;
                    None
                });
            }
            Message::Shutdown { within, reply } => self.shut_down(within, reply),
            Message::Part(done) => self.part(Some(done)),
        }
    }

    /// Does something with a name's slot, and settles it.
    fn with(&mut self, name: Name, act: impl FnOnce(&mut Slot, &mut Desk)) {
        let slot = self.slots.entry(name).or_insert_with_key(|name| Slot::new(name.clone()));
        act(slot, &mut self.desk);
        slot.settle(&mut self.desk);
        if slot.is_idle() && !slot.queued {
            let name = slot.name.clone();
            self.slots.remove(&name);
        }
    }

    fn finish(&mut self, done: Result<Option<Done>, tokio::task::JoinError>) {
        match done {
            Ok(Some(done)) => self.answered(done),
            Ok(None) => {}
            // A store that panics leaves nobody who knows what is held: the engine ends, and every guard is lost.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    fn take_hint(&mut self, hint: Change) {
        match hint {
            Change::Freed(name) if self.slots.contains_key(&name) => self.with(name, |slot, _| slot.hint()),
            Change::Freed(_) => {}
            Change::LostTrack => self.with_all(|slot, _| slot.hint()),
        }
    }

    fn with_all(&mut self, mut act: impl FnMut(&mut Slot, &mut Desk)) {
        for name in self.slots.keys().cloned().collect::<Vec<_>>() {
            self.with(name, &mut act);
        }
    }

    fn ring_alarms(&mut self) {
        let rings = self.desk.alarms.iter().take_while(|(at, _)| *at <= self.desk.now);
        for name in rings.map(|(_, name)| name.clone()).collect::<Vec<_>>() {
            // Settling is all there is to do.
            self.with(name, |_, _| {});
        }
    }

    fn holding(&self) -> Vec<Arc<Held>> {
        self.slots.values().filter_map(|slot| slot.term.as_ref()).filter_map(Term::handed).collect()
    }

    fn next_wake(&self) -> Option<Duration> {
        let alarm = self.desk.alarms.first().map(|(at, _)| *at);
        let due = self.desk.due.first().map(|(at, _)| *at).filter(|_| !self.renewing);
        let closing = self.closing.as_ref().and_then(Closing::wake);
        let first = [alarm, due, closing].into_iter().flatten().min()?;
        Some((first - Moment::now()).min(RECHECK))
    }
}
