//! The one error type.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::fence::Stale;
use crate::guard::Lost;
use crate::record::{Name, Record};

/// A result with Tenure's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The name was still held when the time to wait was over.
    #[error("{name} is still held{} after {}ms", by(.holder.as_deref()), .waited.as_millis())]
    TimedOut {
        /// The name that was asked for.
        name: Name,
        /// How long was waited.
        waited: Duration,
        /// Who had it when last looked.
        holder: Option<Box<Record>>,
    },
    /// This process holds the name already, and re-entry was refused.
    #[error("{name} is already held by this process")]
    AlreadyHeld {
        /// The name that was asked for.
        name: Name,
    },
    /// The term ended before it was released.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// A fence refused the token: a later holder has passed it.
    #[error(transparent)]
    Stale(#[from] Stale),
    /// An option, a name, a URL is outside its rule; nothing was written.
    #[error("{what} {why}")]
    Invalid {
        /// The thing that was wrong.
        what: String,
        /// Its value, the rule, and what to do.
        why: String,
    },
    /// The store could not be reached, or refused.
    #[error("{store}: {reason}")]
    Store {
        /// The kind of store.
        store: &'static str,
        /// Whether trying again can help.
        transient: bool,
        /// What the store or its driver said.
        reason: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// This `Locks` was shut down, or its engine has died.
    #[error("the lock service of this process is shut down")]
    Closed,
}

impl Error {
    /// An [`Error::Invalid`].
    pub fn invalid(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Invalid { what: what.into(), why: why.into() }
    }

    /// An [`Error::Store`] that trying again may cure.
    pub fn transient(store: &'static str, reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Store { store, transient: true, reason: reason.into().into() }
    }

    /// An [`Error::Store`] that trying again won't cure.
    pub fn permanent(store: &'static str, reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Store { store, transient: false, reason: reason.into().into() }
    }

    /// Whether the same call, made again later, may succeed.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::TimedOut { .. } => true,
            Self::Store { transient, .. } => *transient,
            _ => false,
        }
    }
}

fn by(holder: Option<&Record>) -> impl fmt::Display {
    match holder {
        Some(record) => format!(" by {}", record.owner),
        None => String::new(),
    }
}
