//! Connections of a store's own, opened when they are needed. Not a pool: a connection whose call failed, or was given
//! up, is never used again, and renewals never wait for others.

use std::sync::{Mutex, PoisonError};

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::error::Result;

/// Connections for one kind of call, at most so many at a time.
pub(super) struct Lane<C> {
    idle: Mutex<Vec<C>>,
    room: Semaphore,
}

impl<C> Lane<C> {
    pub fn new(connections: usize) -> Self {
        Self { idle: Mutex::default(), room: Semaphore::new(connections) }
    }

    /// Takes a connection out: an idle one, or what `connect` makes. It must be [put back](Taken::put_back) after a call
    /// that succeeded. If it is just dropped, it is gone, with whatever the server is still doing for it, and the next
    /// call opens another instead of waiting.
    pub async fn take(&self, connect: impl Future<Output = Result<C>>) -> Result<Taken<'_, C>> {
        let turn = self.room.acquire().await.expect("a lane is never closed");
        let idle = self.idle().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => connect.await?,
        };
        Ok(Taken { lane: self, connection, _turn: turn })
    }

    /// Forgets the idle connections: one of them was found broken, and it is seldom alone.
    pub fn clear(&self) {
        // Dropped after the lock was given back.
        let _broken = std::mem::take(&mut *self.idle());
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<C>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection on its way.
pub(super) struct Taken<'a, C> {
    lane: &'a Lane<C>,
    pub connection: C,
    _turn: SemaphorePermit<'a>,
}

impl<C> Taken<'_, C> {
    /// It works: the next call may have it.
    pub fn put_back(self) {
        self.lane.idle().push(self.connection);
    }
}

/// Why a statement has no rows.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(super) enum Failed {
    Connect(crate::error::Error),
    /// The server said no.
    Refused(sqlx::Error),
    /// The connection is gone.
    Broken(sqlx::Error),
}

/// Why there is no connection. The drivers say of a certificate that was refused that it is invalid data; it is not a
/// matter of trying again.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(super) fn why_unconnected(error: sqlx::Error) -> sqlx::Error {
    match error {
        sqlx::Error::Io(why) if why.kind() == std::io::ErrorKind::InvalidData => sqlx::Error::Tls(why.into()),
        error => error,
    }
}
