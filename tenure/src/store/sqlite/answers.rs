//! What comes out of a statement: as a rule one row with one JSON text, since each row costs the waking of a thread.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use sqlx::sqlite::SqliteRow;
use sqlx::{ColumnIndex, Row as _};

use super::STORE;
use crate::error::{Error, Result};
use crate::record::Token;
use crate::store::seen::{self, Found, Seen};
use crate::store::{Finding, Grant};

/// What has become of an entry.
#[derive(Deserialize)]
pub(super) struct Answer {
    /// Which one.
    entry: usize,
    token: Option<Token>,
    #[serde(default)]
    seen: Option<Seen>,
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

fn unreadable(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    seen::unreadable(STORE, why)
}
