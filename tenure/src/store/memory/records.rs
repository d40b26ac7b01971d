//! The records, and what each operation does to one: the model that every other store follows.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use super::clock::{Clock, micros};
use crate::record::{LeaseId, Name, Record, Token};
use crate::store::{Claim, Ended, Gone, Grant, Outcome, Page, Renewal, Renewed, Row};

/// All records of a store. In order of names: look-ups cost a little more than with hashing, pages a lot less.
#[derive(Debug)]
pub(super) struct Records {
    pub clock: Clock,
    slots: BTreeMap<Name, Slot>,
}

/// What is kept of a name. It outlives its terms, to remember the token.
#[derive(Debug, Default)]
struct Slot {
    /// The newest token that was ever granted.
    token: u64,
    /// When the last term was released.
    free_since: u64,
    term: Option<Term>,
    evicted: Option<Evicted>,
    /// Whether somebody was refused who waits for a hint.
    awaited: bool,
}

#[derive(Debug)]
struct Term {
    lease: LeaseId,
    first: u64,
    owner: Arc<str>,
    data: Option<Arc<str>>,
    acquired: u64,
    renewed: u64,
    expires: u64,
    grace: u64,
}

/// The last term that an operator ended.
#[derive(Debug)]
struct Evicted {
    lease: LeaseId,
    first: u64,
    by: Arc<str>,
}

/// What a release did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Released {
    /// The term was over.
    Nothing,
    /// The name is free, and nobody has asked for it.
    Quietly,
    /// The name is free, and somebody waits for it.
    Awaited,
}

impl Records {
    pub fn new(clock: Clock) -> Self {
        Self { clock, slots: BTreeMap::new() }
    }

    pub fn claim(&mut self, claim: &Claim, now: u64) -> Outcome {
        self.slots.entry(claim.name.clone()).or_default().claim(claim, now)
    }

    pub fn renew(&mut self, renewal: &Renewal, now: u64) -> Renewed {
        match self.slots.get_mut(&renewal.name) {
            Some(slot) => slot.renew(renewal, now),
            None => Renewed::Gone(Gone::Expired),
        }
    }

    pub fn release(&mut self, ended: &Ended, now: u64) -> Released {
        self.slots.get_mut(&ended.name).map_or(Released::Nothing, |slot| slot.release(ended, now))
    }

    pub fn list(&self, page: &Page, now: u64) -> Vec<Record> {
        let Some(start) = start(page) else { return Vec::new() };
        let slots = self.slots.range((start, Bound::Unbounded));
        slots
            .take_while(|(name, _)| name.as_str().starts_with(&page.prefix))
            .filter_map(|(name, slot)| slot.record(name, now))
            .take(page.limit)
            .collect()
    }

    pub fn prune(&mut self, idle: Duration, now: u64) -> u64 {
        let before = self.slots.len();
        let limit = now.saturating_sub(micros(idle));
        self.slots.retain(|_, slot| slot.closed_until() > limit || slot.token >= limit);
        (before - self.slots.len()) as u64
    }
}

/// Where a page's names begin; `None` if its prefix is no name, so that no name can begin with it.
fn start(page: &Page) -> Option<Bound<Name>> {
    let prefix = if page.prefix.is_empty() { None } else { Some(Name::new(&page.prefix).ok()?) };
    Some(match (&page.after, prefix) {
        (Some(after), Some(prefix)) if *after < prefix => Bound::Included(prefix),
        (Some(after), _) => Bound::Excluded(after.clone()),
        (None, Some(prefix)) => Bound::Included(prefix),
        (None, None) => Bound::Unbounded,
    })
}

impl Slot {
    fn claim(&mut self, claim: &Claim, now: u64) -> Outcome {
        match &self.term {
            Some(term) if term.lease == claim.lease && term.expires > now => {
                let (first, acquired) = (term.first, term.acquired);
                self.begin(claim, first, acquired, now)
            }
            Some(term) if term.lease != claim.lease && term.closed_until() > now => {
                self.awaited |= claim.waits;
                Outcome::Busy(self.record(&claim.name, now).map(Box::new))
            }
            _ => {
                self.raise_token(now);
                self.begin(claim, self.token, now, now)
            }
        }
    }

    fn begin(&mut self, claim: &Claim, first: u64, acquired: u64, now: u64) -> Outcome {
        self.term = Some(Term {
            lease: claim.lease,
            first,
            owner: claim.owner.clone(),
            data: claim.data.clone(),
            acquired,
            renewed: now,
            expires: now + micros(claim.ttl.get()),
            grace: micros(claim.grace),
        });
        Outcome::Granted(Grant::new(Token(self.token)))
    }

    fn raise_token(&mut self, now: u64) {
        self.token = now.max(self.token + 1);
    }

    fn renew(&mut self, renewal: &Renewal, now: u64) -> Renewed {
        let Some(term) = self.live_term(renewal.lease, Some(renewal.first), now) else {
            return Renewed::Gone(self.why_gone(renewal, now));
        };
        term.renewed = now;
        term.expires = now + micros(renewal.ttl.get());
        if renewal.rotate {
            self.raise_token(now);
        }
        Renewed::Kept(Grant::new(Token(self.token)))
    }

    fn why_gone(&self, renewal: &Renewal, now: u64) -> Gone {
        let same = |lease, first| lease == renewal.lease && first == renewal.first.0;
        if let Some(mark) = self.evicted.as_ref().filter(|mark| same(mark.lease, mark.first)) {
            return Gone::Evicted(mark.by.as_ref().into());
        }
        let taken = self.record(&renewal.name, now).filter(|record| !same(record.lease, record.first.0));
        taken.map_or(Gone::Expired, |record| Gone::Taken(Box::new(record)))
    }

    fn release(&mut self, ended: &Ended, now: u64) -> Released {
        let Some(term) = self.live_term(ended.lease, ended.first, now) else { return Released::Nothing };
        let (lease, first) = (term.lease, term.first);
        if let Some(by) = ended.evicted_by.clone() {
            self.evicted = Some(Evicted { lease, first, by });
        }
        self.term = None;
        self.free_since = now;
        if std::mem::take(&mut self.awaited) { Released::Awaited } else { Released::Quietly }
    }

    /// The term, if it is the one that is meant and has not expired.
    fn live_term(&mut self, lease: LeaseId, first: Option<Token>, now: u64) -> Option<&mut Term> {
        let meant = |term: &&mut Term| term.lease == lease && first.is_none_or(|first| first.0 == term.first);
        self.term.as_mut().filter(meant).filter(|term| term.expires > now)
    }

    fn closed_until(&self) -> u64 {
        self.term.as_ref().map_or(self.free_since, Term::closed_until)
    }

    fn record(&self, name: &Name, now: u64) -> Option<Record> {
        let term = self.term.as_ref()?;
        let row = Row {
            name: name.clone(),
            owner: term.owner.as_ref().into(),
            lease: term.lease,
            first: Token(term.first),
            token: Token(self.token),
            acquired: term.acquired,
            renewed: term.renewed,
            expires: term.expires,
            grace: term.grace,
            data: term.data.as_deref().map(Into::into),
        };
        Some(row.at(now))
    }
}

impl Term {
    fn closed_until(&self) -> u64 {
        self.expires.saturating_add(self.grace)
    }
}
