//! Records in this process's memory: for one process, for tests, and as the model of what every store does.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use self::clock::Clock;
pub use self::clock::ManualClock;
use self::records::{Records, Released};
use super::url::StoreUrl;
use super::{About, Change, Changes, Claim, Ended, Outcome, Page, Renewal, Renewed, Store};
use crate::error::Result;
use crate::record::{Name, Record, Ttl};

mod clock;
mod records;
#[cfg(test)]
mod tests;

const BATCH: usize = 4096;

/// How far behind a listener may be before it has lost track: one full batch of releases.
const HINTS: usize = BATCH;

/// Every release that somebody waits for is pushed, so this is for bugs only.
const POLL: Duration = Duration::from_secs(1);

/// The stores that `memory:` URLs name. They stay for as long as the process, as a server would.
static SHARED: Mutex<BTreeMap<String, MemoryStore>> = Mutex::new(BTreeMap::new());

/// A store in memory. Clones share their records.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    records: Arc<Mutex<Records>>,
    freed: broadcast::Sender<Name>,
}

impl MemoryStore {
    /// An empty store, on the machine's clock.
    pub fn new() -> Self {
        Self::on(Clock::real())
    }

    /// An empty store, on a clock that the caller moves.
    pub fn with_clock(clock: ManualClock) -> Self {
        Self::on(Clock::Manual(clock))
    }

    /// The store that this process shares under `name`, and that `memory:NAME` names.
    pub fn shared(name: &str) -> Self {
        let mut stores = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        stores.entry(name.into()).or_default().clone()
    }

    pub(super) fn from_url(url: &StoreUrl) -> Result<Arc<dyn Store>> {
        url.refuse_options()?;
        Ok(Arc::new(Self::shared(&url.path()?)))
    }

    fn on(clock: Clock) -> Self {
        Self { records: Arc::new(Mutex::new(Records::new(clock))), freed: broadcast::Sender::new(HINTS) }
    }

    /// The records, locked, and the time. No step leaves a record half-written, so a panic elsewhere spoils nothing.
    fn records(&self) -> (MutexGuard<'_, Records>, u64) {
        let records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        let now = records.clock.now();
        (records, now)
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn about(&self) -> About {
        About {
            store: "memory",
            place: None,
            push: true,
            poll: POLL,
            calls: 1,
            batch: BATCH,
            statement_limit: Duration::ZERO,
            min_ttl: Ttl::MIN,
            durability: "none: the records end with the process",
            caveats: vec!["it excludes the tasks and threads of one process, not other processes".into()],
        }
    }

    async fn open(&self) -> Result<()> {
        Ok(())
    }

    async fn claim(&self, claims: &[Claim]) -> Result<Vec<Result<Outcome>>> {
        let (mut records, now) = self.records();
        Ok(claims.iter().map(|claim| Ok(records.claim(claim, now))).collect())
    }

    async fn renew(&self, terms: &[Renewal]) -> Result<Vec<Result<Renewed>>> {
        let (mut records, now) = self.records();
        Ok(terms.iter().map(|renewal| Ok(records.renew(renewal, now))).collect())
    }

    async fn release(&self, terms: &[Ended]) -> Result<Vec<Result<bool>>> {
        let (mut records, now) = self.records();
        let release = |ended: &Ended| {
            let released = records.release(ended, now);
            if released == Released::Awaited {
                // It fails if nobody listens any more.
                let _ = self.freed.send(ended.name.clone());
            }
            Ok(released != Released::Nothing)
        };
        Ok(terms.iter().map(release).collect())
    }

    async fn list(&self, page: &Page) -> Result<Vec<Record>> {
        let (records, now) = self.records();
        Ok(records.list(page, now))
    }

    async fn prune(&self, idle: Duration) -> Result<u64> {
        let (mut records, now) = self.records();
        Ok(records.prune(idle, now))
    }

    async fn changes(&self) -> Result<Option<Box<dyn Changes>>> {
        Ok(Some(Box::new(Hints(self.freed.subscribe()))))
    }
}

struct Hints(broadcast::Receiver<Name>);

#[async_trait]
impl Changes for Hints {
    async fn next(&mut self) -> Change {
        match self.0.recv().await {
            Ok(name) => Change::Freed(name),
            Err(RecvError::Lagged(_)) => Change::LostTrack,
            // The store is gone, and all that it could tell of.
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}
