//! Tenure holds names on the database that you already run: at most one program has a name at a time, for a term
//! that it keeps renewing, with a fencing token on every grant and a loss signal that can't be missed.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let locks = tenure::connect("memory:").blocking()?;
//! let guard = locks.lock_blocking("report/daily")?;
//! println!("held, with token {}", guard.token());
//! guard.release_blocking()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Which one do I need?
//!
//! - [`connect`] a store, get [`Locks`]; [`lock`](Locks::lock) waits for a name, [`try_lock`](Locks::try_lock) doesn't.
//! - The [`Guard`] is the held name: [`run`](Guard::run) work that is stopped if the name is lost, or watch
//!   [`lost`](Guard::lost) yourself. Dropping it frees the name.
//! - A lease is not a mutex: a process that was paused may come back late. Send [`Guard::token`] along, and check it
//!   where the damage would be done: with a [`Fence`] in memory, with a `RowFence` in a transaction of your database.
//! - Many names of a kind, with the same options: [`Locks::scope`].
//! - One process of many that does the work, and another when it is gone: [`Locks::election`]. Many such tasks in a process, by
//!   key: [`Locks::elector`].
//! - Who is there: [`Locks::members`]. Many tasks, spread evenly over all processes there are: [`Locks::crew`].
//! - [`Locks::list`], [`get`](Locks::get), [`stats`](Locks::stats), [`evict`](Locks::evict) are for people who look after it.
//!
//! # Features
//!
//! - `sqlite`: the store `sqlite:PATH`, for the processes of one machine. `memory:` is always there.
//! - `postgres`: the store `postgres://…`, and [`hold_in`](store::postgres::hold_in).
//! - `mysql`: the store `mysql://…`, for MySQL and MariaDB.
//! - `mongodb`: the stores `mongodb://…` and `mongodb+srv://…`, for MongoDB and what speaks its protocol.
//! - `etcd`: the store `etcd://…`.
//! - `redis`: the stores `redis://…`, `redis+cluster://…` and `redis+quorum://…`, for Redis and Valkey.
//! - `sqlite`, `postgres`, `mysql`: `RowFence`, the fence that is a row in your own database.
//! - `signal`: [`shutdown_on_signal`], for services that run on tokio.
//! - `conformance`: the tests that every store has to pass, for a store of your own.
//!
//! # Logs
//!
//! Through the crate `tracing`, with the fields `name`, `owner`, `token` and `store`. Targets: `tenure::lock` (acquired,
//! contended, released: debug), `tenure::renew` (renewed: trace; token rotated: debug; renewal failed, at risk: warn),
//! `tenure::loss` (lost, not released: error). The same comes as [`Events`]. Elections, electors and crews say in `tenure::recipe` how
//! their work ended (done: debug; cut off, lost: warn; failed, panicked: error).

pub mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
mod crew;
mod election;
mod elector;
mod engine;
mod error;
mod event;
mod fence;
mod guard;
mod lock;
mod locks;
mod members;
mod options;
mod record;
#[cfg(feature = "signal")]
mod signal;
mod stats;
pub mod store;
mod term;

pub use crew::{Crew, CrewMember, Handle, Report};
pub use election::{Election, Leadership, Observed, Observer};
pub use elector::{Elector, Ending, Spawned};
pub use engine::Unreleased;
pub use error::{Error, Result};
pub use event::{Event, EventKind, Events, Next};
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub use fence::row::{FenceDatabase, RowFence};
pub use fence::{Fence, Stale};
pub use guard::{Guard, Lost, LostSignal, Status, Watch, Why};
pub use lock::{Acquire, Lock, TryAcquire, TryLock};
pub use locks::{Connect, Holding, Locks, Scope, connect};
pub use members::{Join, Joining, Member, MemberEvent, MemberObserver, Members, Membership};
pub use options::limits;
pub use record::{LeaseId, Name, Record, Token, Ttl};
#[cfg(feature = "signal")]
pub use signal::{Shutdown, shutdown_on_signal};
pub use stats::Stats;
pub use term::{Cancelled, Term};

#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

#[cfg(doctest)]
#[doc = include_str!("../../docs/recipes.md")]
struct Recipes;

/// It shows all three databases.
#[cfg(all(doctest, feature = "postgres", feature = "mysql", feature = "sqlite"))]
#[doc = include_str!("../../docs/fencing.md")]
struct Fencing;
