//! What comes out of a statement: its rows.

use std::collections::{HashMap, HashSet};

use sqlx::sqlite::SqliteRow;
use sqlx::{ColumnIndex, Row as _};

use super::STORE;
use crate::error::{Error, Result};
use crate::record::{LeaseId, Name, Record, Token};
use crate::store::{Finding, Gone, Renewal, Row};

/// What a name's row says to somebody who doesn't have the name.
pub(super) struct Seen {
    pub record: Option<Record>,
    evicted: Option<Evicted>,
}

/// The last term that an operator ended.
struct Evicted {
    lease: String,
    first: u64,
    by: String,
}

impl Seen {
    pub fn read(row: &SqliteRow) -> Result<Self> {
        Ok(Self { record: record(row)?, evicted: Evicted::read(row)? })
    }

    /// Why `term` is over, if this is what is left of its name.
    pub fn why_gone(self, term: &Renewal) -> Gone {
        if let Some(mark) = self.evicted.filter(|mark| mark.is_of(term)) {
            return Gone::Evicted(mark.by);
        }
        let taken = self.record.filter(|record| record.lease != term.lease || record.first != term.first);
        taken.map_or(Gone::Expired, |record| Gone::Taken(Box::new(record)))
    }
}

impl Evicted {
    fn read(row: &SqliteRow) -> Result<Option<Self>> {
        let Some(lease) = optional_text(row, "evicted_lease")? else { return Ok(None) };
        Ok(Some(Self { lease, first: number(row, "evicted_first")?, by: text(row, "evicted_by")? }))
    }

    fn is_of(&self, term: &Renewal) -> bool {
        self.first == term.first.0 && LeaseId::from_hex(&self.lease) == Some(term.lease)
    }
}

/// The record of a row; `None` if the name is free.
pub(super) fn record(row: &SqliteRow) -> Result<Option<Record>> {
    let Some(lease) = optional_text(row, "lease")? else { return Ok(None) };
    let lease = LeaseId::from_hex(&lease).ok_or_else(|| unreadable(format!("lease {lease:?}")))?;
    let found = Row {
        name: Name::new(text(row, "name")?)?,
        owner: text(row, "owner")?,
        lease,
        first: Token(number(row, "first")?),
        token: Token(number(row, "token")?),
        acquired: number(row, "acquired")?,
        renewed: number(row, "renewed")?,
        expires: number(row, "expires")?,
        grace: number(row, "grace")?,
        data: optional_text(row, "data")?,
    };
    Ok(Some(found.at(number(row, "now")?)))
}

/// The tokens of the rows, by name.
pub(super) fn tokens(rows: &[SqliteRow]) -> Result<HashMap<String, Token>> {
    rows.iter().map(|row| Ok((text(row, "name")?, Token(number(row, "token")?)))).collect()
}

/// The names of the rows.
pub(super) fn names(rows: &[SqliteRow]) -> Result<HashSet<String>> {
    rows.iter().map(|row| text(row, "name")).collect()
}

/// What the database says of itself.
pub(super) fn findings(row: &SqliteRow) -> Result<Vec<Finding>> {
    let finding = |what: &str, says| Finding { what: what.into(), says, weakens: false };
    let version = format!("SQLite {}, journal mode {}", text(row, "version")?, text(row, "mode")?);
    let (held, expired, free) = (number(row, "held")?, number(row, "expired")?, number(row, "free")?);
    let records = format!("{held} held, {expired} expired, {free} free: prune forgets those that stay unused");
    Ok(vec![finding("version", version), finding("records", records)])
}

pub(super) fn text(row: &SqliteRow, column: &str) -> Result<String> {
    row.try_get(column).map_err(unreadable)
}

fn optional_text(row: &SqliteRow, column: &str) -> Result<Option<String>> {
    row.try_get(column).map_err(unreadable)
}

pub(super) fn number(row: &SqliteRow, column: impl ColumnIndex<SqliteRow>) -> Result<u64> {
    row.try_get(column).map(i64::cast_unsigned).map_err(unreadable)
}

/// Somebody has written into the table by hand.
fn unreadable(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::permanent(STORE, format!("a record can't be read: {}", why.into()))
}
