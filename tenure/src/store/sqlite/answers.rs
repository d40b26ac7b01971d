//! What comes out of a statement: as a rule one row with one JSON text, since each row costs the waking of a thread.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use sqlx::sqlite::SqliteRow;
use sqlx::{ColumnIndex, Row as _};

use super::STORE;
use crate::error::{Error, Result};
use crate::record::{LeaseId, Name, Record, Token};
use crate::store::{Finding, Gone, Grant, Renewal, Row};

/// What has become of an entry.
#[derive(Deserialize)]
pub(super) struct Answer {
    /// Which one.
    entry: usize,
    token: Option<Token>,
    #[serde(default)]
    seen: Option<Seen>,
}

/// The term that an entry has got or kept, or else what its name's row says.
pub(super) enum Found {
    Ours(Grant),
    Other(Option<Box<Seen>>),
}

/// What was found for each of `count` entries; a name without a row has been forgotten.
pub(super) fn found(rows: &[SqliteRow], count: usize) -> Result<Vec<Found>> {
    let mut found: Vec<Found> = (0..count).map(|_| Found::Other(None)).collect();
    for answer in read::<Vec<Answer>>(rows)? {
        found[answer.entry] = match answer.token {
            Some(token) => Found::Ours(Grant::new(token)),
            None => Found::Other(answer.seen.map(Box::new)),
        };
    }
    Ok(found)
}

/// The JSON text that a statement answered with.
pub(super) fn read<T: DeserializeOwned>(rows: &[SqliteRow]) -> Result<T> {
    let row = rows.first().ok_or_else(|| unreadable("no answer"))?;
    serde_json::from_str(row.try_get(0).map_err(unreadable)?).map_err(unreadable)
}

/// A name's row, and the time when it was read.
#[derive(Deserialize)]
pub(super) struct Seen {
    name: String,
    owner: Option<String>,
    data: Option<String>,
    token: Token,
    acquired: u64,
    renewed: u64,
    expires: u64,
    lease: Option<String>,
    first: Token,
    grace: u64,
    evicted_lease: Option<String>,
    evicted_first: Option<Token>,
    evicted_by: Option<String>,
    now: u64,
}

impl Seen {
    /// The record; `None` if the name is free.
    pub fn record(self) -> Result<Option<Record>> {
        let Some(lease) = self.lease else { return Ok(None) };
        let found = Row {
            name: Name::new(self.name)?,
            owner: self.owner.unwrap_or_default(),
            lease: LeaseId::from_hex(&lease).ok_or_else(|| unreadable(format!("lease {lease:?}")))?,
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
    pub fn why_gone(self, term: &Renewal) -> Result<Gone> {
        let evicted = self.evicted_lease.as_deref().and_then(LeaseId::from_hex);
        if evicted == Some(term.lease) && self.evicted_first == Some(term.first) {
            return Ok(Gone::Evicted(self.evicted_by.unwrap_or_default()));
        }
        let other = |record: &Record| record.lease != term.lease || record.first != term.first;
        let taken = self.record()?.filter(other);
        Ok(taken.map_or(Gone::Expired, |record| Gone::Taken(Box::new(record))))
    }
}

/// What the database says of itself.
pub(super) fn findings(row: &SqliteRow) -> Result<Vec<Finding>> {
    let finding = |what: &str, says| Finding { what: what.into(), says, weakens: false };
    let version = format!("SQLite {}, journal mode {}", text(row, "version")?, text(row, "mode")?);
    let (held, expired, free) = (number(row, "held")?, number(row, "expired")?, number(row, "free")?);
    let records = format!("{held} held, {expired} expired, {free} free: prune forgets those that stay unused");
    Ok(vec![finding("version", version), finding("records", records)])
}

fn text(row: &SqliteRow, column: &str) -> Result<String> {
    row.try_get(column).map_err(unreadable)
}

pub(super) fn number(row: &SqliteRow, column: impl ColumnIndex<SqliteRow>) -> Result<u64> {
    row.try_get(column).map(i64::cast_unsigned).map_err(unreadable)
}

/// Somebody has written into the table by hand.
fn unreadable(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::permanent(STORE, format!("a record can't be read: {}", why.into()))
}
