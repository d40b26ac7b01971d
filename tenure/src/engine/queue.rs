//! Those who wait for a name: first come, first served. Nothing here takes longer the more there are.

use std::collections::{BTreeMap, BTreeSet};

use super::Ticket;
use super::claims::Waiter;
use crate::clock::Moment;

/// Waiters in the order they asked, which is that of their tickets.
#[derive(Default)]
pub(super) struct Queue {
    waiters: BTreeMap<Ticket, Box<Waiter>>,
    /// Those who wait only so long.
    give_ups: BTreeSet<(Moment, Ticket)>,
    /// Those who would not wait for their own process.
    impatient: BTreeSet<Ticket>,
}

impl Queue {
    pub fn push(&mut self, waiter: Box<Waiter>) {
        let ticket = waiter.ticket;
        self.give_ups.extend(waiter.gives_up_at().map(|moment| (moment, ticket)));
        self.impatient.extend(waiter.is_impatient().then_some(ticket));
        self.waiters.insert(ticket, waiter);
    }

    pub fn remove(&mut self, ticket: Ticket) -> Option<Box<Waiter>> {
        let waiter = self.waiters.remove(&ticket)?;
        if let Some(moment) = waiter.gives_up_at() {
            self.give_ups.remove(&(moment, ticket));
        }
        self.impatient.remove(&ticket);
        Some(waiter)
    }

    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    pub fn first(&self) -> Option<&Waiter> {
        self.waiters.first_key_value().map(|(_, waiter)| &**waiter)
    }

    pub fn get_mut(&mut self, ticket: Ticket) -> Option<&mut Waiter> {
        self.waiters.get_mut(&ticket).map(|waiter| &mut **waiter)
    }

    /// The next to give up, and when.
    pub fn next_give_up(&self) -> Option<(Moment, Ticket)> {
        self.give_ups.first().copied()
    }

    pub fn impatient(&self) -> impl Iterator<Item = &Waiter> {
        self.impatient.iter().filter_map(|ticket| self.waiters.get(ticket)).map(|waiter| &**waiter)
    }
}
