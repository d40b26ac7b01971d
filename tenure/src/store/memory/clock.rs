//! The memory store's clock, and one for tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use crate::clock::Moment;

/// Shows microseconds since 1970.
#[derive(Debug)]
pub(super) enum Clock {
    /// The wall clock, read once, and the time that has passed since. The wall clock itself may be set back: that would
    /// keep dead holders' names closed, and give a name that was pruned an older token.
    Real {
        start: u64,
        since: Moment,
    },
    Manual(ManualClock),
}

impl Clock {
    pub fn real() -> Self {
        Self::Real { start: wall_clock(), since: Moment::now() }
    }

    pub fn now(&self) -> u64 {
        match self {
            Self::Real { start, since } => start + micros(Moment::now() - *since),
            Self::Manual(clock) => clock.micros(),
        }
    }
}

/// A clock for tests: it starts at the present and stands still until it is moved. Clones are the same clock.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// A clock that shows the present.
    pub fn new() -> Self {
        Self(Arc::new(AtomicU64::new(wall_clock())))
    }

    /// Moves it forward.
    pub fn advance(&self, time: Duration) {
        self.0.fetch_add(micros(time), Ordering::SeqCst);
    }

    /// What it shows.
    pub fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_micros(self.micros())
    }

    fn micros(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

fn wall_clock() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, micros)
}

pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
