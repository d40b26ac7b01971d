//! What happens to the names of a process: told to subscribers, and to `tracing`.
//!
//! Targets: `tenure::lock` (acquired, contended, released), `tenure::renew` (renewed, rotated, failed, at risk),
//! `tenure::loss` (lost, not released). Every record has the fields `name`, `owner`, `token` and `store`.

use std::sync::Arc;

use tokio::sync::broadcast;

use crate::error::Error;
use crate::guard::Why;
use crate::record::{Name, Token};

/// How many events a slow subscriber may be behind before it misses some.
const BACKLOG: usize = 4096;

/// Something that happened to a name in this process.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Event {
    /// The name.
    pub name: Name,
    /// The token; before a grant there is none.
    pub token: Option<Token>,
    /// What happened.
    pub kind: EventKind,
}

/// What happened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum EventKind {
    /// The name was granted.
    Acquired,
    /// The name was asked for, but is held: by whom, where known.
    Contended(Option<String>),
    /// The term was renewed.
    Renewed,
    /// The token rose while renewing; it was this before.
    TokenRotated(Token),
    /// A renewal failed; it is tried again until the term runs out.
    RenewalFailed(Error),
    /// Renewals have failed and less than half of the term is left.
    AtRisk,
    /// The term was lost.
    Lost(Why),
    /// The name was released.
    Released,
    /// The name could not be released before its term ran out.
    ReleaseFailed(Error),
}

/// What [`Events::next`] yields.
#[derive(Clone, Debug)]
pub enum Next {
    /// An event.
    Event(Event),
    /// This many events were missed, because the subscriber was too slow.
    Missed(u64),
}

/// A subscription to the events of a [`Locks`](crate::Locks).
#[derive(Debug)]
pub struct Events(broadcast::Receiver<Event>);

impl Events {
    /// The next event; `None` when the engine has ended.
    ///
    /// # Cancel safety
    /// Safe: no event is lost.
    pub async fn next(&mut self) -> Option<Next> {
        match self.0.recv().await {
            Ok(event) => Some(Next::Event(event)),
            Err(broadcast::error::RecvError::Lagged(missed)) => Some(Next::Missed(missed)),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

/// Where subscribers come in. It does not keep the stream open: the engine does.
#[derive(Debug)]
pub(crate) struct Subscribe(broadcast::WeakSender<Event>);

impl Subscribe {
    pub fn subscribe(&self) -> Events {
        Events(match self.0.upgrade() {
            Some(sender) => sender.subscribe(),
            None => broadcast::channel(1).1,
        })
    }
}

/// The engine's end.
pub(crate) struct Reporter {
    store: &'static str,
    owner: Arc<str>,
    events: broadcast::Sender<Event>,
}

impl Reporter {
    pub fn new(store: &'static str, owner: Arc<str>) -> (Self, Subscribe) {
        let events = broadcast::channel(BACKLOG).0;
        let subscribe = Subscribe(events.downgrade());
        (Self { store, owner, events }, subscribe)
    }

    pub fn report(&self, name: &Name, token: Option<Token>, kind: EventKind) {
        self.trace(name, token, &kind);
        if self.events.receiver_count() > 0 {
            // No receiver: gone since the line above, which is nobody's loss.
            let _ = self.events.send(Event { name: name.clone(), token, kind });
        }
    }

    fn trace(&self, name: &Name, token: Option<Token>, kind: &EventKind) {
        macro_rules! log {
            ($level:ident, $target:literal, $message:literal $(, $key:ident = $value:expr)?) => {
                tracing::$level!(
                    target: $target,
                    name = name.as_str(),
                    owner = &*self.owner,
                    token = token.map(|token| token.0),
                    store = self.store,
                    $($key = $value,)?
                    $message
                )
            };
        }
        match kind {
            EventKind::Acquired => log!(debug, "tenure::lock", "acquired"),
            EventKind::Contended(holder) => log!(debug, "tenure::lock", "contended", holder = holder.as_deref()),
            EventKind::Released => log!(debug, "tenure::lock", "released"),
            EventKind::Renewed => log!(trace, "tenure::renew", "renewed"),
            EventKind::TokenRotated(before) => log!(debug, "tenure::renew", "token rotated", before = before.0),
            EventKind::RenewalFailed(error) => {
                log!(warn, "tenure::renew", "renewal failed", error = tracing::field::display(error))
            }
            EventKind::AtRisk => log!(warn, "tenure::renew", "at risk"),
            EventKind::Lost(why) => log!(error, "tenure::loss", "lost", why = tracing::field::display(why)),
            EventKind::ReleaseFailed(error) => {
                log!(error, "tenure::loss", "not released", error = tracing::field::display(error))
            }
        }
    }
}
