//! What databases that keep a record as a row have in common: their integers, and what a statement answers.

use std::time::Duration;

use serde::Deserialize;

use super::{Gone, Grant, Outcome, Renewal, Renewed, Row};
use crate::error::{Error, Result};
use crate::record::{LeaseId, Name, Record, Token};

/// The longest time that is told from longer ones: a century. Sums with the clock then stay exact.
const LONGEST: u64 = 100 * 365 * 24 * 3600 * 1_000_000;

/// A length of time as databases get it: in microseconds.
pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(LONGEST).min(LONGEST)
}

/// The term that an entry has got or kept, or else what its name's row says.
pub(super) enum Found {
    Ours(Grant),
    Other(Option<Box<Seen>>),
}

impl Found {
    /// What it means for a claim.
    pub fn outcome(self) -> Result<Outcome> {
        match self {
            Self::Ours(grant) => Ok(Outcome::Granted(grant)),
            Self::Other(seen) => {
                let holder = seen.map_or(Ok(None), |seen| seen.record())?;
                Ok(Outcome::Busy(holder.map(Box::new)))
            }
        }
    }

    /// What it means for a renewal.
    pub fn renewed(self, term: &Renewal) -> Result<Renewed> {
        match self {
            Self::Ours(grant) => Ok(Renewed::Kept(grant)),
            Self::Other(None) => Ok(Renewed::Gone(Gone::Expired)),
            Self::Other(Some(seen)) => seen.why_gone(term).map(Renewed::Gone),
        }
    }
}

/// A name's row, and the time when it was read. It is read from a JSON array of its columns, in this order.
#[derive(Deserialize)]
pub(super) struct Seen {
    pub name: String,
    pub owner: Option<String>,
    pub data: Option<String>,
    pub token: Token,
    pub acquired: u64,
    pub renewed: u64,
    pub expires: u64,
    pub lease: Option<String>,
    pub first: Token,
    pub grace: u64,
    pub evicted_lease: Option<String>,
    pub evicted_first: Option<Token>,
    pub evicted_by: Option<String>,
    pub now: u64,
}

impl Seen {
    /// The record; `None` if the name is free.
    pub fn record(self) -> Result<Option<Record>> {
        let Some(lease) = self.lease else { return Ok(None) };
        let found = Row {
            name: Name::new(self.name)?,
            owner: self.owner.unwrap_or_default(),
            lease: LeaseId::from_hex(&lease).ok_or_else(|| {
                Error::invalid("record", format!("has the lease {lease:?}, which Tenure never wrote"))
            })?,
            first: self.first,
            token: self.token,
            acquired: self.acquired,
            renewed: self.renewed,
            expires: self.expires,
            grace: self.grace,
            data: self.data,
        };
        Ok(Some(found.at(self.now)))
    }

    /// Why `term` is over, if this is what is left of its name.
    fn why_gone(self, term: &Renewal) -> Result<Gone> {
        let evicted = self.evicted_lease.as_deref().and_then(LeaseId::from_hex);
        if evicted == Some(term.lease) && self.evicted_first == Some(term.first) {
            return Ok(Gone::Evicted(self.evicted_by.unwrap_or_default()));
        }
        let other = |record: &Record| record.lease != term.lease || record.first != term.first;
        let taken = self.record()?.filter(other);
        Ok(taken.map_or(Gone::Expired, |record| Gone::Taken(Box::new(record))))
    }
}

/// Somebody has written into the table by hand.
pub(super) fn unreadable(store: &'static str, why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::permanent(store, format!("a record can't be read: {}", why.into()))
}
