//! Where records live: the [`Store`] trait with its contract, and the stores that a URL can name.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::clock::Moment;
use crate::error::{Error, Result};
pub use crate::record::Row;
use crate::record::{LeaseId, Name, Record, Token, Ttl};

#[cfg(any(feature = "sqlite", feature = "mysql"))]
mod entries;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "redis"))]
mod lanes;
pub mod memory;
#[cfg(feature = "mongodb")]
pub mod mongodb;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod quorum;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql", feature = "mongodb", feature = "redis"))]
mod seen;
#[cfg(feature = "sqlite")]
pub mod sqlite;
pub mod url;

/// One record a name, and a handful of operations on it. Implementors see this; users see [`Locks`](crate::Locks).
///
/// # Contract
///
/// **Batches.** `claim`, `renew` and `release` take many entries and answer with one result per entry, in the
/// order of the entries; as few round trips as the store allows. A caller sorts the entries by name, names no
/// name twice in a call, never has one name in two calls at once (an operator's release apart), and passes at
/// most [`About::batch`] entries. Each entry succeeds or fails alone: a bad entry is an inner `Err`, and a
/// record that somebody else has locked makes its entry [`Outcome::Busy`]; neither delays nor spoils the others.
///
/// **Errors.** An outer `Err` says that the outcome of *every* entry is unknown, an inner one that of its entry.
/// The caller may make the same call again. A call that fails as a whole with an error that is not transient is
/// made again in halves, so that a poisonous entry ends up alone.
///
/// **Time.** Only the store's clock decides whether a record has expired, and it is read after the record was
/// locked, where the store allows it: a claim that waited for a lock must not get a term that began before it. A
/// record is closed to others until `expires + grace`; a released one is free at once.
///
/// **Tokens.** A grant's token is `max(last token of the name + 1, the store's clock in microseconds since 1970)`,
/// worked out in the same atomic step as the grant, so that tokens rise across release, expiry, prune and loss of
/// the data; or a count of all writes to the store, above such a time. A claim of the lease that holds the name, live, keeps its token and starts its term anew: it is a
/// retry. A renewal leaves the token alone unless [`Renewal::rotate`] is set. A released record stays, to
/// remember the token, unless the store remembers it apart from its records.
///
/// **Terms.** `renew` and `release` act only on a record that carries the entry's lease (and first token, if
/// given) and has not expired; an expired term is never revived.
///
/// **Cancel safety.** The caller drops a call's future when its time limit passes. What was asked may then happen
/// or not, but no later than [`About::statement_limit`] after; the next call must not have to wait for it.
///
/// **Lanes.** `renew` must not wait behind `claim`, `release` or `list`: it has a connection of its own.
///
/// **Hints.** [`changes`](Store::changes) tells names that may have become free. It may miss some, repeat some and
/// tell of names that are taken again; after a gap it says [`Change::LostTrack`]. Waiters look again at the
/// latest after [`About::poll`], so hints make them quick, not correct.
///
/// **Before `open`** a store does no I/O and spawns nothing. All calls come from the engine's own thread, within its
/// tokio runtime (`open` first); the store may spawn tasks there. Nothing may block that thread.
#[async_trait]
pub trait Store: Debug + Send + Sync + 'static {
    /// What this store is and can promise. What it knows only when it is open, it may say then.
    fn about(&self) -> About;

    /// The first I/O: connects, and creates what is missing.
    async fn open(&self) -> Result<()>;

    /// Claims names: each is granted, or busy.
    async fn claim(&self, claims: &[Claim]) -> Result<Vec<Result<Outcome>>>;

    /// Renews terms.
    async fn renew(&self, terms: &[Renewal]) -> Result<Vec<Result<Renewed>>>;

    /// Ends terms; `false` says that the term was over already, and that nothing was changed.
    async fn release(&self, terms: &[Ended]) -> Result<Vec<Result<bool>>>;

    /// The records that carry a term, live or expired, in byte order of names. Linearizable for one name; not a
    /// snapshot across pages.
    async fn list(&self, page: &Page) -> Result<Vec<Record>>;

    /// Forgets names that nobody has held for `idle`, and says how many. A record is forgotten only if its token,
    /// too, is below the store's clock minus `idle`: else a claim under way could insert an older one. The
    /// caller keeps `idle` at a minute or more.
    async fn prune(&self, idle: Duration) -> Result<u64>;

    /// Names that may have become free; `None` if the store can't tell. Called once.
    async fn changes(&self) -> Result<Option<Box<dyn Changes>>> {
        Ok(None)
    }

    /// The statements that create what `open` would create, for those who may not.
    fn schema(&self) -> Option<String> {
        None
    }

    /// What weakens the promises here and now: settings, rights, versions.
    async fn examine(&self) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }
}

/// A store's stream of hints.
#[async_trait]
pub trait Changes: Send {
    /// Waits for the next one. It reconnects by itself, and then says [`Change::LostTrack`].
    async fn next(&mut self) -> Change;
}

/// A hint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// This name may have become free.
    Freed(Name),
    /// Some hints were missed: any name may have become free.
    LostTrack,
}

/// What a store is, and what its callers go by.
#[derive(Clone, Debug)]
pub struct About {
    /// The kind of store, for people and logs: `sqlite`.
    pub store: &'static str,
    /// Where the records are within it, in its own language: a table.
    pub place: Option<String>,
    /// Whether releases by other processes are pushed to waiters, or found by polling.
    pub push: bool,
    /// A waiter looks again at least this often.
    pub poll: Duration,
    /// How many claims (and as many releases) may be under way at once.
    pub calls: usize,
    /// How many entries a call may have.
    pub batch: usize,
    /// How long the store itself goes on with a call whose caller is gone, at the most.
    pub statement_limit: Duration,
    /// The shortest TTL that the store can keep.
    pub min_ttl: Duration,
    /// What survives what.
    pub durability: &'static str,
    /// What to know before trusting it.
    pub caveats: Vec<String>,
}

/// What [`Store::examine`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at.
    pub what: String,
    /// What was found, what it means for a lock, what to do.
    pub says: String,
    /// Whether it weakens a promise.
    pub weakens: bool,
}

impl Finding {
    /// Something that weakens no promise.
    pub fn fine(what: &str, says: String) -> Self {
        Self { what: what.into(), says, weakens: false }
    }

    /// Something that weakens a promise.
    pub fn weak(what: &str, says: String) -> Self {
        Self { what: what.into(), says, weakens: true }
    }
}

/// Asks for a name.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The name.
    pub name: Name,
    /// This acquisition.
    pub lease: LeaseId,
    /// Who asks, for people.
    pub owner: Arc<str>,
    /// How long the term lasts unless renewed.
    pub ttl: Ttl,
    /// How long the name stays closed if the term expires.
    pub grace: Duration,
    /// JSON text for the record.
    pub data: Option<Arc<str>>,
    /// Whether the asker waits if refused: a store that pushes on demand marks the record in the same step.
    pub waits: bool,
}

/// A claim's answer.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The name is the asker's.
    Granted(Grant),
    /// Somebody has it; the record is a hint and may be missing.
    Busy(Option<Box<Record>>),
}

/// A term, granted or renewed.
#[derive(Clone, Copy, Debug)]
pub struct Grant {
    /// The token.
    pub token: Token,
    /// When the term's time began to run, where that was earlier than the sending of this call.
    pub since: Option<Moment>,
}

impl Grant {
    /// A term that runs from the sending of the call.
    pub fn new(token: Token) -> Self {
        Self { token, since: None }
    }
}

/// Asks to go on holding.
#[derive(Clone, Debug)]
pub struct Renewal {
    /// The name.
    pub name: Name,
    /// The term: its lease …
    pub lease: LeaseId,
    /// … and its first token.
    pub first: Token,
    /// How long the term lasts from now.
    pub ttl: Ttl,
    /// Whether the token is to rise.
    pub rotate: bool,
}

/// A renewal's answer.
#[derive(Clone, Debug)]
pub enum Renewed {
    /// The term goes on.
    Kept(Grant),
    /// The term is over.
    Gone(Gone),
}

/// Why a term is over, as the store knows it.
#[derive(Clone, Debug)]
pub enum Gone {
    /// It ran out, or the store has forgotten it.
    Expired,
    /// Somebody else has the name now.
    Taken(Box<Record>),
    /// An operator ended it, and left word who and why.
    Evicted(String),
}

/// Ends a term.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The name.
    pub name: Name,
    /// The term's lease …
    pub lease: LeaseId,
    /// … and first token, where it is known.
    pub first: Option<Token>,
    /// Set if an operator ends it: who and why, kept in the record through the next claim, so that the holder's
    /// next renewal can say it.
    pub evicted_by: Option<Arc<str>>,
}

/// Which records to list.
#[derive(Clone, Debug)]
pub struct Page {
    /// Only names that begin with this.
    pub prefix: String,
    /// Only names after this one.
    pub after: Option<Name>,
    /// At most this many.
    pub limit: usize,
}

impl Page {
    /// Just this name.
    pub fn of(name: &Name) -> Self {
        Self { prefix: name.as_str().into(), after: None, limit: 1 }
    }

    /// The first text, in byte order, behind all that begin with the prefix; `None` if there is none.
    pub fn end(&self) -> Option<String> {
        let mut head: Vec<char> = self.prefix.chars().collect();
        while let Some(last) = head.pop() {
            if let Some(next) = (last..=char::MAX).nth(1) {
                head.push(next);
                return Some(head.into_iter().collect());
            }
        }
        None
    }
}

/// Checks that a store answered every entry.
pub(crate) fn answered<T>(store: &'static str, asked: usize, answers: Vec<T>) -> Result<Vec<T>> {
    if answers.len() == asked {
        Ok(answers)
    } else {
        Err(Error::permanent(store, format!("answered {} of {asked} entries", answers.len())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_ends_behind_all_names_with_its_prefix() {
        let end = |prefix: &str| Page { prefix: prefix.into(), after: None, limit: 1 }.end();
        assert_eq!(end("a/"), Some("a0".into()));
        assert_eq!(end("a\u{d7ff}"), Some("a\u{e000}".into()));
        assert_eq!(end("a\u{10ffff}"), Some("b".into()));
        assert_eq!(end("\u{10ffff}"), None);
        assert_eq!(end(""), None);
    }
}
