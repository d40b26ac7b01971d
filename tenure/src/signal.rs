//! The end of a service in order, when the operating system asks for it.

use std::future::pending;
use std::io;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::engine::Unreleased;
use crate::guard::Lost;
use crate::locks::Locks;

/// How a shutdown by [`shutdown_on_signal`] went. If both lists are empty, everything came to its end in order.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Shutdown {
    /// What was taken from its holder, who did not let go in time: it was released all the same.
    pub cut_off: Vec<Lost>,
    /// What could not be released; it is free when its term has run out.
    pub unreleased: Vec<Unreleased>,
}

/// Shuts `locks` down when this process gets SIGTERM or SIGINT, and says what was cut off.
///
/// From then on nothing new is acquired; holders and tasks are told ([`Status::Closing`](crate::Status::Closing),
/// [`Term::cancelled`](crate::Term::cancelled)) and have `within` to end, while renewal goes on; each name is released as soon as its
/// holder lets go; members leave at once. What is left then is released too. A second signal ends the wait at once.
///
/// The signals are caught from this call on, for the rest of the process's life: await the future, and end the program after it.
///
/// ```no_run
/// # use std::time::Duration;
/// # async fn f(locks: tenure::Locks) -> std::io::Result<()> {
/// let shutdown = tenure::shutdown_on_signal(&locks, Duration::from_secs(20))?;
/// // Start what is to run.
/// let shutdown = shutdown.await;
/// shutdown.cut_off.iter().for_each(|lost| eprintln!("cut off: {}", lost.name));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If the operating system refuses to deliver signals.
///
/// # Panics
/// Outside of a tokio runtime that has I/O enabled.
///
/// # Cancel safety
/// Dropped before a signal, the signals are caught and nothing is done; dropped after it, the shutdown goes on.
pub fn shutdown_on_signal(
    locks: &Locks,
    within: Duration,
) -> io::Result<impl Future<Output = Shutdown> + Send + 'static> {
    let mut signals = Signals::catch()?;
    let locks = locks.clone();
    Ok(async move {
        signals.next().await;
        tokio::select! {
            shutdown = shut_down(&locks, within) => shutdown,
            () = hurry(&locks, &mut signals) => pending().await,
        }
    })
}

async fn shut_down(locks: &Locks, within: Duration) -> Shutdown {
    let (cut_off, unreleased) = locks.end_all(within).await;
    Shutdown { cut_off, unreleased }
}

/// The second signal: a shutdown that has no time.
async fn hurry(locks: &Locks, signals: &mut Signals) {
    signals.next().await;
    locks.shutdown(Duration::ZERO).await;
    // The first one answers.
    pending().await
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn catch() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
