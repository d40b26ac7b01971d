//! Tenure holds names on the database that you already run: at most one program has a name at a time, for a term
//! that it keeps renewing, with a fencing token on every grant.
//!
//! Start with [`connect`], then [`Locks::lock`].

pub mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
mod engine;
mod error;
mod event;
mod fence;
mod guard;
mod lock;
mod locks;
mod options;
mod record;
pub mod store;

pub use engine::Unreleased;
pub use error::{Error, Result};
pub use event::{Event, EventKind, Events, Next};
pub use fence::{Fence, Stale};
pub use guard::{Guard, Lost, LostSignal, Status, Watch, Why};
pub use lock::{Acquire, Lock, TryAcquire, TryLock};
pub use locks::{Connect, Holding, Locks, Scope, Stats, connect};
pub use record::{LeaseId, Name, Record, Token, Ttl};
