//! Releases that others tell of: a subscription, on a connection of its own.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use redis::aio::MultiplexedConnection as Connection;
use redis::{PushInfo, PushKind, Value};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::link::Link;
use super::node::Node;
use crate::error::Result;
use crate::record::Name;
use crate::store::{Change, Changes};

/// A connection that has been silent for this long is asked whether it is still there: nothing else would tell that a
/// network has swallowed it.
const PING_EVERY: Duration = Duration::from_secs(5);
const PING_LIMIT: Duration = Duration::from_secs(2);

/// Between attempts to connect anew.
const RETRY: Duration = Duration::from_millis(250);

/// A connection that listens.
pub(in crate::store) struct Listener {
    connection: Connection,
    heard: mpsc::UnboundedReceiver<PushInfo>,
    /// When it was last known to be there.
    since: Instant,
}

/// What a listener has to tell.
enum Said {
    Freed(Name),
    Nothing,
    /// The connection is gone.
    End,
}

impl Listener {
    pub async fn open(link: &Link) -> Result<Self> {
        let (send, heard) = mpsc::unbounded_channel();
        let mut connection = link.connect_to_listen(&send).await?;
        connection.subscribe(link.channel()).await.map_err(|error| link.explain(&error))?;
        Ok(Self { connection, heard, since: Instant::now() })
    }

    async fn next(&mut self) -> Said {
        match timeout_at(self.since + PING_EVERY, self.heard.recv()).await {
            Ok(Some(push)) => {
                self.since = Instant::now();
                said(&push)
            }
            Ok(None) => Said::End,
            Err(_) if self.is_there().await => Said::Nothing,
            Err(_) => Said::End,
        }
    }

    async fn is_there(&mut self) -> bool {
        self.since = Instant::now();
        let ping = redis::cmd("PING");
        matches!(timeout(PING_LIMIT, ping.query_async::<Value>(&mut self.connection)).await, Ok(Ok(_)))
    }
}

fn said(push: &PushInfo) -> Said {
    match (&push.kind, &push.data[..]) {
        (PushKind::Message, [_, Value::BulkString(name)]) => {
            let name = std::str::from_utf8(name).ok().and_then(|name| Name::new(name).ok());
            name.map_or(Said::Nothing, Said::Freed)
        }
        (PushKind::Disconnection, _) => Said::End,
        _ => Said::Nothing,
    }
}

/// The changes, over as many connections as it takes.
pub(in crate::store) struct Hints {
    node: Arc<Node>,
    listener: Option<Listener>,
}

impl Hints {
    pub fn new(node: Arc<Node>, listener: Listener) -> Self {
        Self { node, listener: Some(listener) }
    }

    /// The same, to be connected when they are first asked for.
    pub fn unopened(node: Arc<Node>) -> Self {
        Self { node, listener: None }
    }

    async fn listen_again(&mut self) -> bool {
        let opened = timeout(2 * PING_LIMIT, Listener::open(&self.node.link)).await;
        self.listener = opened.ok().and_then(Result::ok);
        self.listener.is_some()
    }
}

#[async_trait]
impl Changes for Hints {
    async fn next(&mut self) -> Change {
        loop {
            let Some(listener) = &mut self.listener else {
                if self.listen_again().await {
                    return Change::LostTrack;
                }
                sleep(RETRY).await;
                continue;
            };
            match listener.next().await {
                Said::Freed(name) => return Change::Freed(name),
                Said::Nothing => {}
                Said::End => self.listener = None,
            }
        }
    }
}
