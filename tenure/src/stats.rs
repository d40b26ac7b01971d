//! Figures about what a store holds.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::record::{Name, Record};

/// Figures about the names of a store.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// How many names are held.
    pub held: u64,
    /// How many of them by the first part of the name.
    pub by_part: BTreeMap<String, u64>,
    /// How many of them by owner.
    pub by_owner: BTreeMap<String, u64>,
    /// How long they have been held, all together.
    pub total_hold: Duration,
    /// The one that has been held the longest, and for how long.
    pub longest_hold: Option<(Name, Duration)>,
    /// How many have expired and were neither taken over nor pruned.
    pub expired: u64,
}

impl Stats {
    /// How long a name has been held, on average.
    pub fn mean_hold(&self) -> Duration {
        self.total_hold.checked_div(u32::try_from(self.held).unwrap_or(u32::MAX)).unwrap_or_default()
    }

    pub(crate) fn count(&mut self, record: &Record) {
        if !record.is_live() {
            self.expired += 1;
            return;
        }
        self.held += 1;
        *self.by_part.entry(record.name.first_part().into()).or_default() += 1;
        *self.by_owner.entry(record.owner.clone()).or_default() += 1;
        self.total_hold += record.held_for;
        if self.longest_hold.as_ref().is_none_or(|(_, longest)| record.held_for > *longest) {
            self.longest_hold = Some((record.name.clone(), record.held_for));
        }
    }
}
