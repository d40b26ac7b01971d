//! What goes into a statement, for databases that take a batch as one JSON text.

use serde::Serialize;

use super::seen::micros;
use super::{Claim, Ended, Renewal};
use crate::error::{Error, Result};

#[derive(Serialize)]
pub(super) struct ClaimEntry<'a> {
    name: &'a str,
    owner: &'a str,
    lease: String,
    ttl: u64,
    grace: u64,
    /// Last: whoever looks for another field need not read past it.
    data: Option<&'a str>,
}

impl<'a> ClaimEntry<'a> {
    pub fn new(claim: &'a Claim) -> Self {
        Self {
            name: claim.name.as_str(),
            owner: &claim.owner,
            lease: claim.lease.to_string(),
            ttl: micros(claim.ttl.get()),
            grace: micros(claim.grace),
            data: claim.data.as_deref(),
        }
    }
}

#[derive(Serialize)]
pub(super) struct RenewalEntry<'a> {
    name: &'a str,
    lease: String,
    first: u64,
    ttl: u64,
    rotate: bool,
}

impl<'a> RenewalEntry<'a> {
    pub fn new(term: &'a Renewal) -> Self {
        let (name, lease) = (term.name.as_str(), term.lease.to_string());
        Self { name, lease, first: term.first.0, ttl: micros(term.ttl.get()), rotate: term.rotate }
    }
}

#[derive(Serialize)]
pub(super) struct EndedEntry<'a> {
    name: &'a str,
    lease: String,
    first: Option<u64>,
    evicted_by: Option<&'a str>,
}

impl<'a> EndedEntry<'a> {
    pub fn new(term: &'a Ended) -> Self {
        let (name, lease) = (term.name.as_str(), term.lease.to_string());
        Self { name, lease, first: term.first.map(|first| first.0), evicted_by: term.evicted_by.as_deref() }
    }
}

/// One JSON array of all entries.
pub(super) fn json(store: &'static str, entries: impl Iterator<Item = impl Serialize>) -> Result<String> {
    serde_json::to_string(&entries.collect::<Vec<_>>()).map_err(|error| Error::permanent(store, error))
}
