//! A name's record as etcd has it: a key on a lease, with a JSON value.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::STORE;
use super::leases::{Held, Kind};
use super::messages::{KeyValue, LeaseTimeToLiveResponse};
use crate::clock::Moment;
use crate::error::{Error, Result};
use crate::record::{LeaseId, Name, Record, Token};
use crate::store::{Claim, Page, Row};

const SECOND: u64 = 1_000_000;

/// Where everything is.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    prefix: String,
}

impl Keys {
    pub fn new(prefix: &str) -> Self {
        Self { prefix: prefix.trim_end_matches('/').into() }
    }

    /// Where the names are, for people.
    pub fn place(&self) -> String {
        format!("{}/", self.prefix)
    }

    /// What is added to a revision to make a token.
    pub fn base(&self) -> Vec<u8> {
        format!("{}/base", self.prefix).into()
    }

    pub fn name(&self, name: &str) -> Vec<u8> {
        format!("{}/names/{name}", self.prefix).into()
    }

    /// Who ended a name's term, and which.
    pub fn mark(&self, name: &Name) -> Vec<u8> {
        format!("{}/evicted/{name}", self.prefix).into()
    }

    /// Behind all names: the character after the slash.
    pub fn end_of_names(&self) -> Vec<u8> {
        format!("{}/names0", self.prefix).into()
    }

    /// The keys of a page: from the first, to behind the last.
    pub fn page(&self, page: &Page) -> (Vec<u8>, Vec<u8>) {
        let mut first = self.name(&page.prefix);
        if let Some(after) = page.after.as_ref().filter(|after| *after.as_str() >= *page.prefix) {
            first = self.name(after.as_str());
            first.push(0);
        }
        (first, page.end().map_or_else(|| self.end_of_names(), |end| self.name(&end)))
    }

    /// The name of a key.
    pub fn read(&self, key: &[u8]) -> Option<Name> {
        let key = std::str::from_utf8(key).ok()?;
        let name = key.strip_prefix(&self.prefix)?.strip_prefix("/names/")?;
        Name::new(name).ok()
    }
}

/// What a record's key holds. Times are in microseconds, by the clock of the holder's machine, for people.
#[derive(Serialize, Deserialize)]
pub(super) struct Value {
    lease: String,
    owner: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<String>,
    ttl: u64,
    grace: u64,
    acquired: u64,
    /// When the etcd lease's time last began to run, as of this writing.
    renewed: u64,
    /// With the revisions of the key it makes the tokens.
    base: u64,
    /// The term's first token, where the key was written again since.
    #[serde(skip_serializing_if = "Option::is_none")]
    first: Option<u64>,
    /// The token, where the key was written again without raising it.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<u64>,
}

impl Value {
    pub fn new(claim: &Claim, base: u64, since: Moment) -> Self {
        let now = now();
        Self {
            lease: claim.lease.to_string(),
            owner: claim.owner.as_ref().into(),
            data: claim.data.as_deref().map(Into::into),
            ttl: micros(claim.ttl.get()),
            grace: micros(claim.grace),
            acquired: now,
            renewed: now.saturating_sub(micros(Moment::now() - since)),
            base,
            first: None,
            token: None,
        }
    }

    /// The same term, written again: its tokens stay.
    pub fn again(claim: &Claim, found: &Found, since: Moment) -> Self {
        let (first, token) = (Some(found.first().0), Some(found.token().0));
        Self { acquired: found.value.acquired, first, token, ..Self::new(claim, found.value.base, since) }
    }

    /// The same term, written again to raise its token.
    pub fn rotated(held: &Held, base: u64, since: Moment) -> Self {
        Self { acquired: held.acquired, first: Some(held.first.0), ..Self::new(&held.claim, base, since) }
    }

    pub fn acquired(&self) -> u64 {
        self.acquired
    }

    pub fn bytes(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(|error| Error::permanent(STORE, error))
    }
}

/// A record that was read.
pub(super) struct Found {
    pub name: Name,
    pub lease: LeaseId,
    pub value: Value,
    pub create: i64,
    pub modified: i64,
    /// The etcd lease that it is on.
    pub on: i64,
}

impl Found {
    pub fn read(keys: &Keys, kv: KeyValue) -> Result<Self> {
        let unreadable = |why: &dyn std::fmt::Display| {
            let key = String::from_utf8_lossy(&kv.key);
            Error::permanent(STORE, format!("the record at {key} can't be read: {why}"))
        };
        let value: Value = serde_json::from_slice(&kv.value).map_err(|error| unreadable(&error))?;
        Ok(Self {
            name: keys.read(&kv.key).ok_or_else(|| unreadable(&"its key is no name"))?,
            lease: LeaseId::from_hex(&value.lease).ok_or_else(|| unreadable(&"it has no lease of Tenure's"))?,
            value,
            create: kv.create_revision,
            modified: kv.mod_revision,
            on: kv.lease,
        })
    }

    pub fn first(&self) -> Token {
        Token(self.value.first.unwrap_or_else(|| self.value.base + self.create.unsigned_abs()))
    }

    pub fn token(&self) -> Token {
        Token(self.value.token.unwrap_or_else(|| self.value.base + self.modified.unsigned_abs()))
    }

    pub fn is(&self, lease: LeaseId, first: Option<Token>) -> bool {
        self.lease == lease && first.is_none_or(|first| first == self.first())
    }

    pub fn kind(&self) -> Kind {
        Kind { ttl: Duration::from_micros(self.value.ttl), grace: Duration::from_micros(self.value.grace) }
    }

    /// The record, with what its etcd lease has left; without word of it, as its holder last wrote.
    pub fn record(self, lease: Option<&LeaseTimeToLiveResponse>) -> Record {
        let now = now();
        let left = self.left(lease, now);
        let expires = now + left;
        let row = Row {
            first: self.first(),
            token: self.token(),
            name: self.name,
            owner: self.value.owner,
            lease: self.lease,
            acquired: self.value.acquired,
            renewed: expires.saturating_sub(self.value.ttl).max(self.value.acquired),
            expires,
            grace: self.value.grace,
            data: self.value.data,
        };
        row.at(now)
    }

    /// What is left of the term. etcd tells whole seconds, rounded down: if they fit what the holder wrote, that says the
    /// rest; else it is rounded up, as a held name must not look expired.
    fn left(&self, lease: Option<&LeaseTimeToLiveResponse>, now: u64) -> u64 {
        let written = |granted: u64| (self.value.renewed + granted).saturating_sub(now);
        let Some(lease) = lease else { return written(self.value.ttl) };
        let Ok(least) = u64::try_from(lease.ttl) else { return 0 };
        let (least, granted) = (least * SECOND, lease.granted.unsigned_abs() * SECOND);
        let (written, most) = (written(granted), granted.min(least + SECOND));
        let left = if (least..=most).contains(&written) && written > 0 { written } else { most };
        left.saturating_sub(granted.saturating_sub(self.value.ttl))
    }
}

/// Who ended a term.
#[derive(Serialize, Deserialize)]
pub(super) struct Mark {
    lease: String,
    first: u64,
    by: String,
}

impl Mark {
    pub fn new(lease: LeaseId, first: Token, by: &str) -> Self {
        Self { lease: lease.to_string(), first: first.0, by: by.into() }
    }

    pub fn bytes(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(|error| Error::permanent(STORE, error))
    }

    /// Who ended this very term, if this is about it.
    pub fn by(kv: &KeyValue, lease: LeaseId, first: Token) -> Option<String> {
        let mark: Self = serde_json::from_slice(&kv.value).ok()?;
        (LeaseId::from_hex(&mark.lease) == Some(lease) && mark.first == first.0).then_some(mark.by)
    }
}

/// This machine's clock, in microseconds since 1970.
pub(super) fn now() -> u64 {
    micros(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX / 4)
}
