//! Releases that others tell of: LISTEN, on a connection of its own.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use sqlx::{Executor as _, Row as _};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::Table;
use super::link::Link;
use crate::error::Result;
use crate::record::{LeaseId, Name};
use crate::store::{Change, Changes};

/// A notification to ourselves arrives within this time, or never. Only a pooler makes anybody wait for it.
const PROBE_LIMIT: Duration = Duration::from_millis(300);

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
    /// Listens, and sees whether it hears: a pooler accepts LISTEN, and gives the server connection to others.
    /// `backend` is the server's process for the connection that the link has.
    pub async fn probe(link: &Link, table: &Table, backend: i32) -> Result<Option<Self>> {
        let mut probed = Self {
            listener: None,
            options: link.options.clone(),
            channel: table.name.as_str().into(),
            heard: Instant::now(),
        };
        probed.connect().await.map_err(|error| link.explain(error))?;
        let heard = probed.hears(link, backend).await?;
        if !heard {
            link.use_transactions();
        }
        Ok(heard.then_some(probed))
    }

    async fn connect(&mut self) -> sqlx::Result<()> {
        // The listener wants a pool; it gets one for itself.
        let pool = PgPoolOptions::new().max_connections(1).idle_timeout(None).max_lifetime(None);
        let pool = pool.acquire_timeout(PING_LIMIT).connect_lazy_with(self.options.clone());
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.listen(&self.channel).await?;
        self.listener = Some(listener);
        self.heard = Instant::now();
        Ok(())
    }

    async fn hears(&mut self, link: &Link, backend: i32) -> Result<bool> {
        let Some(listener) = &mut self.listener else { return Ok(false) };
        let row = sqlx::raw_sql("select pg_backend_pid()").fetch_one(&mut *listener).await;
        let pid: i32 = row.and_then(|row| row.try_get(0)).map_err(|error| link.explain(error))?;
        if pid == backend {
            // Two connections, one server process: there is a pooler in between.
            return Ok(false);
        }
        // Not a name: those who wait for names ignore it.
        let word = format!("\u{1}{}", LeaseId::random());
        link.notify(&word).await?;
        let heard = async {
            while let Ok(heard) = listener.try_recv().await {
                if heard.is_some_and(|heard| heard.payload() == word) {
                    return true;
                }
            }
            false
        };
        Ok(timeout(PROBE_LIMIT, heard).await.unwrap_or(false))
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
