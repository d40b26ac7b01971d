//! A store that fails as it is told to, and sees what is asked of it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use tokio::time::sleep;

use super::Gate;
use crate::error::{Error, Result};
use crate::record::{Name, Record};
use crate::store::{About, Changes, Claim, Ended, Finding, Outcome, Page, Renewal, Renewed, Store};

/// The calls that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// [`Store::claim`].
    Claim,
    /// [`Store::renew`].
    Renew,
    /// [`Store::release`].
    Release,
    /// [`Store::list`]; it has no entries.
    List,
}

impl Call {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Claim, Self::Renew, Self::Release, Self::List];
}

/// What becomes of a call.
#[derive(Clone, Debug)]
pub enum Fault {
    /// It is not carried out, and never answered.
    Hang,
    /// It is not carried out, and fails for the moment.
    Fail,
    /// It is not carried out, and fails for good.
    Refuse,
    /// The store panics.
    Panic,
    /// It is carried out after this time.
    Delay(Duration),
    /// It is carried out, and answered after this time.
    DelayReply(Duration),
    /// It is carried out, but its answer is lost.
    LoseReply,
    /// It is carried out when the gate opens.
    Hold(Gate),
    /// It is carried out, and answered when the gate opens.
    HoldReply(Gate),
    /// The connection is lost, and the server carries it out all the same: when the gate opens.
    Abandon(Gate),
}

/// Wraps a store: its calls hang, fail, are delayed, or are carried out and their answers lost, as a test says.
///
/// It counts calls and entries, and notes where its caller broke the [contract](Store). Clones are the same store.
#[derive(Clone, Debug)]
pub struct Faulty {
    store: Arc<dyn Store>,
    about: Changed,
    watched: Arc<watch::Sender<()>>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    lanes: HashMap<Call, Lane>,
    opened: bool,
    under_way: HashMap<Name, Call>,
    breaches: Vec<String>,
}

/// What is known of the calls of one kind, and in store for them.
#[derive(Debug, Default)]
struct Lane {
    calls: u64,
    answered: u64,
    entries: u64,
    faults: VecDeque<Fault>,
    standing: Option<Fault>,
    poisonous: HashSet<Name>,
}

/// What it says about itself in another way than the store behind, which may know more of itself when it is open.
#[derive(Clone)]
struct Changed(Arc<dyn Fn(&mut About) + Send + Sync>);

impl fmt::Debug for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Changed")
    }
}

/// A call to the store behind.
type Work<T> = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

impl Faulty {
    /// Wraps `store`; at first nothing fails.
    pub fn new(store: Arc<dyn Store>) -> Self {
        let about = Changed(Arc::new(|_| {}));
        Self { store, about, watched: Arc::new(watch::Sender::new(())), state: Arc::default() }
    }

    /// Says something else about itself than the store behind does.
    #[must_use]
    pub fn with_about(mut self, change: impl Fn(&mut About) + Send + Sync + 'static) -> Self {
        self.about = Changed(Arc::new(change));
        self
    }

    /// The next call of this kind that nothing is in store for yet.
    pub fn next(&self, call: Call, fault: Fault) {
        self.next_calls(1, call, fault);
    }

    /// The next `count` such calls.
    pub fn next_calls(&self, count: usize, call: Call, fault: Fault) {
        self.lane(call, |lane| lane.faults.extend(std::iter::repeat_n(fault, count)));
    }

    /// All calls of this kind, after those that something is in store for, until [`heal`](Faulty::heal).
    pub fn always(&self, call: Call, fault: Fault) {
        self.lane(call, |lane| lane.standing = Some(fault));
    }

    /// All calls of all kinds, until [`heal`](Faulty::heal).
    pub fn always_all(&self, fault: Fault) {
        Call::ALL.into_iter().for_each(|call| self.always(call, fault.clone()));
    }

    /// Calls of this kind that have an entry with this name fail for good, all entries together.
    pub fn poison(&self, call: Call, name: Name) {
        self.lane(call, |lane| lane.poisonous.insert(name));
    }

    /// Nothing fails any more; what hangs or waits goes on doing so.
    pub fn heal(&self) {
        for call in Call::ALL {
            self.lane(call, |lane| {
                lane.faults.clear();
                lane.standing = None;
                lane.poisonous.clear();
            });
        }
    }

    /// Whether nothing is in store for the next calls.
    pub fn is_calm(&self) -> bool {
        Call::ALL.into_iter().all(|call| self.lane(call, |lane| lane.faults.is_empty() && lane.standing.is_none()))
    }

    /// How many calls of this kind have arrived.
    pub fn calls(&self, call: Call) -> u64 {
        self.lane(call, |lane| lane.calls)
    }

    /// How many entries they had, together.
    pub fn entries(&self, call: Call) -> u64 {
        self.lane(call, |lane| lane.entries)
    }

    /// How many lists were asked for, page by page.
    pub fn lists(&self) -> u64 {
        self.calls(Call::List)
    }

    /// Waits until this many calls of this kind have arrived, from the beginning.
    pub async fn arrived(&self, call: Call, count: u64) {
        self.until(|faulty| faulty.calls(call) >= count).await;
    }

    /// Waits until this many calls of this kind were answered, or given up by the caller, from the beginning.
    pub async fn answered(&self, call: Call, count: u64) {
        self.until(|faulty| faulty.lane(call, |lane| lane.answered) >= count).await;
    }

    /// Where the caller broke the contract: a name in two calls at once or twice in one, entries out of order or too
    /// many, a call before the store was opened.
    pub fn breaches(&self) -> Vec<String> {
        self.state().breaches.clone()
    }

    async fn until(&self, condition: impl Fn(&Self) -> bool) {
        // It fails only without a sender, and this is one.
        let _ = self.watched.subscribe().wait_for(|()| condition(self)).await;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lane<T>(&self, call: Call, act: impl FnOnce(&mut Lane) -> T) -> T {
        act(self.state().lanes.entry(call).or_default())
    }

    fn error(&self, transient: bool, why: &'static str) -> Error {
        let make = if transient { Error::transient } else { Error::permanent };
        make(self.store.about().store, why)
    }

    /// A call has arrived; it is under way until what this returns is dropped.
    fn arrive(&self, call: Call, names: Vec<Name>) -> (UnderWay, Option<Fault>) {
        let fault = {
            let mut state = self.state();
            let breaches = state.breaches_of(call, &names, self.about().batch);
            state.breaches.extend(breaches);
            state.under_way.extend(names.iter().cloned().map(|name| (name, call)));
            state.lanes.entry(call).or_default().take_fault(&names)
        };
        self.watched.send_replace(());
        (UnderWay { faulty: self.clone(), call, names }, fault)
    }

    async fn carry_out<T: Send + 'static>(&self, call: Call, names: Vec<Name>, work: Work<T>) -> Result<T> {
        let (_under_way, fault) = self.arrive(call, names);
        match fault {
            None => work.await,
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::Fail) => Err(self.error(true, "told to fail")),
            Some(Fault::Refuse) => Err(self.error(false, "told to refuse")),
            // Unlike `panic!` it prints nothing, and unwinds all the same.
            Some(Fault::Panic) => std::panic::resume_unwind(Box::new("told to panic")),
            Some(Fault::Delay(time)) => {
                sleep(time).await;
                work.await
            }
            Some(Fault::DelayReply(time)) => {
                let reply = work.await;
                sleep(time).await;
                reply
            }
            Some(Fault::LoseReply) => {
                work.await?;
                Err(self.error(true, "told to lose the reply"))
            }
            Some(Fault::Hold(gate)) => {
                gate.wait().await;
                let reply = work.await;
                gate.let_pass();
                reply
            }
            Some(Fault::HoldReply(gate)) => {
                let reply = work.await;
                gate.wait().await;
                gate.let_pass();
                reply
            }
            Some(Fault::Abandon(gate)) => {
                tokio::spawn(carry_out_later(gate, work));
                Err(self.error(true, "told to lose the connection"))
            }
        }
    }
}

async fn carry_out_later<T>(gate: Gate, work: Work<T>) {
    gate.wait().await;
    // Nobody is left to hear the answer.
    let _ = work.await;
    gate.let_pass();
}

impl Lane {
    fn take_fault(&mut self, names: &[Name]) -> Option<Fault> {
        self.calls += 1;
        self.entries += names.len() as u64;
        if names.iter().any(|name| self.poisonous.contains(name)) {
            return Some(Fault::Refuse);
        }
        self.faults.pop_front().or_else(|| self.standing.clone())
    }
}

impl State {
    fn breaches_of(&self, call: Call, names: &[Name], batch: usize) -> Vec<String> {
        let mut breaches = Vec::new();
        if !self.opened {
            breaches.push(format!("{call:?} before open"));
        }
        if names.len() > batch {
            breaches.push(format!("{call:?} of {} entries, above the batch of {batch}", names.len()));
        }
        if let Some(pair) = names.windows(2).find(|pair| pair[0] >= pair[1]) {
            breaches.push(format!("{call:?} has {} before {}", pair[0], pair[1]));
        }
        let twice = |name: &Name| Some(format!("{call:?} of {name} during its {:?}", self.under_way.get(name)?));
        breaches.extend(names.iter().filter_map(twice));
        breaches
    }
}

/// A call under way: over when it is answered, or its caller drops it.
struct UnderWay {
    faulty: Faulty,
    call: Call,
    names: Vec<Name>,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut state = self.faulty.state();
        for name in &self.names {
            state.under_way.remove(name);
        }
        state.lanes.entry(self.call).or_default().answered += 1;
        drop(state);
        self.faulty.watched.send_replace(());
    }
}

impl fmt::Debug for UnderWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {:?}", self.call, self.names)
    }
}

#[async_trait]
impl Store for Faulty {
    fn about(&self) -> About {
        let mut about = self.store.about();
        (self.about.0)(&mut about);
        about
    }

    async fn open(&self) -> Result<()> {
        self.state().opened = true;
        self.store.open().await
    }

    async fn claim(&self, claims: &[Claim]) -> Result<Vec<Result<Outcome>>> {
        let names = claims.iter().map(|claim| claim.name.clone()).collect();
        let (store, claims) = (self.store.clone(), claims.to_vec());
        self.carry_out(Call::Claim, names, Box::pin(async move { store.claim(&claims).await })).await
    }

    async fn renew(&self, terms: &[Renewal]) -> Result<Vec<Result<Renewed>>> {
        let names = terms.iter().map(|term| term.name.clone()).collect();
        let (store, terms) = (self.store.clone(), terms.to_vec());
        self.carry_out(Call::Renew, names, Box::pin(async move { store.renew(&terms).await })).await
    }

    async fn release(&self, terms: &[Ended]) -> Result<Vec<Result<bool>>> {
        // An operator's release may come at any time, so it is none of the names under way.
        let names = terms.iter().filter(|term| term.evicted_by.is_none()).map(|term| term.name.clone()).collect();
        let (store, terms) = (self.store.clone(), terms.to_vec());
        self.carry_out(Call::Release, names, Box::pin(async move { store.release(&terms).await })).await
    }

    async fn list(&self, page: &Page) -> Result<Vec<Record>> {
        let (store, page) = (self.store.clone(), page.clone());
        self.carry_out(Call::List, Vec::new(), Box::pin(async move { store.list(&page).await })).await
    }

    async fn prune(&self, idle: Duration) -> Result<u64> {
        self.store.prune(idle).await
    }

    async fn changes(&self) -> Result<Option<Box<dyn Changes>>> {
        self.store.changes().await
    }

    fn schema(&self) -> Option<String> {
        self.store.schema()
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        self.store.examine().await
    }
}
