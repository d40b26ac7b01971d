//! Releases that others tell of: LISTEN, on a connection of its own.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::Executor as _;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::Table;
use super::link::{Link, backend_of};
use crate::error::Result;
use crate::record::{LeaseId, Name};
use crate::store::{Change, Changes};

/// A notification to ourselves arrives within this time, or never. Only a pooler makes anybody wait for it.
const PROBE_LIMIT: Duration = Duration::from_millis(300);

/// How often both connections are asked which process of the server they have: other users of a pooler may be in between.
const POOLER_LOOKS: usize = 3;

/// A connection that has been silent for this long is asked whether it is still there: nothing else would tell that a
/// network has swallowed it.
const PING_EVERY: Duration = Duration::from_secs(5);
const PING_LIMIT: Duration = Duration::from_secs(2);

/// Between attempts to connect anew.
const RETRY: Duration = Duration::from_millis(250);

/// A connection that listens.
pub(super) struct Listener {
    listener: Option<PgListener>,
    options: PgConnectOptions,
    channel: String,
    /// When it was last known to be there.
    heard: Instant,
}

impl Listener {
    /// Listens, if that is of use: a pooler accepts LISTEN, and gives the server's connection, with all that it will
    /// hear, to others.
    pub async fn probe(link: &Link, table: &Table) -> Result<Option<Self>> {
        let (options, channel) = (link.options.clone(), table.name.as_str().to_owned());
        let mut probed = Self { listener: None, options, channel, heard: Instant::now() };
        let mut listener = probed.open().await.map_err(|error| link.explain(error))?;
        if is_pooled(link, &mut listener).await? || !hears(link, &mut listener).await? {
            link.use_transactions();
            return Ok(None);
        }
        probed.listen_on(listener).await.map_err(|error| link.explain(error))?;
        link.use_sessions().await?;
        Ok(Some(probed))
    }

    async fn connect(&mut self) -> sqlx::Result<()> {
        let listener = self.open().await?;
        self.listen_on(listener).await
    }

    async fn open(&self) -> sqlx::Result<PgListener> {
        // The listener wants a pool; it gets one for itself.
        let pool = PgPoolOptions::new().max_connections(1).idle_timeout(None).max_lifetime(None);
        let pool = pool.acquire_timeout(PING_LIMIT).connect_lazy_with(self.options.clone());
        PgListener::connect_with(&pool).await
    }

    async fn listen_on(&mut self, mut listener: PgListener) -> sqlx::Result<()> {
        listener.listen(&self.channel).await?;
        self.listener = Some(listener);
        self.heard = Instant::now();
        Ok(())
    }

    /// The changes: what is heard, and what is to be looked at `again`.
    pub fn with(self, again: mpsc::UnboundedReceiver<Vec<Name>>) -> Box<dyn Changes> {
        Box::new(Hints { listener: self, again, names: Vec::new(), runtime: Handle::current() })
    }

    async fn next(&mut self) -> Change {
        loop {
            let Some(listener) = &mut self.listener else {
                if self.connect().await.is_ok() {
                    return Change::LostTrack;
                }
                sleep(RETRY).await;
                continue;
            };
            match timeout_at(self.heard + PING_EVERY, listener.try_recv()).await {
                Ok(Ok(Some(heard))) => {
                    self.heard = Instant::now();
                    if let Ok(name) = Name::new(heard.payload()) {
                        return Change::Freed(name);
                    }
                }
                // It has connected anew by itself.
                Ok(Ok(None)) => return Change::LostTrack,
                Ok(Err(_)) => self.listener = None,
                Err(_) if is_there(listener).await => self.heard = Instant::now(),
                Err(_) => self.listener = None,
            }
        }
    }
}

/// Whether a pooler gives each transaction another connection: then a process of the server serves both of ours, or one
/// of ours has several. Found out without LISTEN, which would stay behind at a connection that others get.
async fn is_pooled(link: &Link, listener: &mut PgListener) -> Result<bool> {
    let mut seen = None;
    for _ in 0..POOLER_LOOKS {
        let theirs = link.backend().await?;
        let ours = backend_of(&mut *listener).await.map_err(|error| link.explain(error))?;
        if theirs == ours || *seen.get_or_insert((theirs, ours)) != (theirs, ours) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a notification arrives: sent on a channel of its own, so that nobody else ever hears of it.
async fn hears(link: &Link, listener: &mut PgListener) -> Result<bool> {
    let channel = format!("tenure_probe_{}", LeaseId::random());
    listener.listen(&channel).await.map_err(|error| link.explain(error))?;
    link.notify(&channel).await?;
    let heard = async { matches!(listener.try_recv().await, Ok(Some(_))) };
    let heard = timeout(PROBE_LIMIT, heard).await.unwrap_or(false);
    listener.unlisten(&channel).await.map_err(|error| link.explain(error))?;
    Ok(heard)
}

async fn is_there(listener: &mut PgListener) -> bool {
    matches!(timeout(PING_LIMIT, listener.execute("select 1")).await, Ok(Ok(_)))
}

/// What is heard, and what the store itself wants looked at again.
struct Hints {
    listener: Listener,
    again: mpsc::UnboundedReceiver<Vec<Name>>,
    names: Vec<Name>,
    runtime: Handle,
}

#[async_trait]
impl Changes for Hints {
    async fn next(&mut self) -> Change {
        loop {
            if let Some(name) = self.names.pop() {
                return Change::Freed(name);
            }
            tokio::select! {
                change = self.listener.next() => return change,
                Some(names) = self.again.recv() => self.names = names,
            }
        }
    }
}

impl Drop for Hints {
    fn drop(&mut self) {
        // The driver says good-bye in a task, and panics if it can't start one.
        let _runtime = self.runtime.enter();
        self.listener.listener = None;
    }
}
