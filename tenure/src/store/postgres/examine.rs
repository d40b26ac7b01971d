//! What weakens the promises on this very server.

use sqlx::postgres::PgRow;
use sqlx::{ColumnIndex, Row as _};

use super::STORE;
use crate::error::Result;
use crate::store::Finding;
use crate::store::seen::unreadable;

/// What the server says of itself.
pub(super) fn findings(row: &PgRow, push: bool) -> Result<Vec<Finding>> {
    let version = format!("PostgreSQL {}", text(row, "version")?);
    let records = format!(
        "{} held, {} expired, {} free: prune forgets those that stay unused",
        number(row, "held")?,
        number(row, "expired")?,
        number(row, "free")?
    );
    Ok(vec![
        Finding::fine("version", version),
        Finding::fine("rights", "select, insert, update and delete are granted".into()),
        commits(row)?,
        disk(row)?,
        replicas(row)?,
        connections(row)?,
        pooler(push),
        Finding::fine("records", records),
    ])
}

fn commits(row: &PgRow) -> Result<Finding> {
    let setting = text(row, "synchronous_commit")?;
    Ok(match setting.as_str() {
        "off" => Finding::weak(
            "synchronous_commit",
            "is off: a crash of the server may undo a grant that its holder goes by, and two hold the name; set it to \
             on for this role: alter role … set synchronous_commit = on"
                .into(),
        ),
        _ => Finding::fine(
            "synchronous_commit",
            format!("is {setting}: a grant is on disk before its holder hears of it"),
        ),
    })
}

fn disk(row: &PgRow) -> Result<Finding> {
    let off: Vec<_> = [("fsync", text(row, "fsync")?), ("full_page_writes", text(row, "full_page_writes")?)]
        .into_iter()
        .filter_map(|(setting, value)| (value == "off").then_some(setting))
        .collect();
    Ok(match off.is_empty() {
        true => Finding::fine("disk", "fsync and full_page_writes are on".into()),
        false => Finding::weak(
            "disk",
            format!(
                "{} off: a crash of the machine may undo grants or damage the table; turn it on",
                off.join(" and ")
            ),
        ),
    })
}

fn replicas(row: &PgRow) -> Result<Finding> {
    let (all, synchronous) = (number(row, "replicas")?, number(row, "synchronous_replicas")?);
    Ok(if flag(row, "standby")? {
        Finding::weak("replication", "this server is a standby: it can't grant anything; connect to the primary".into())
    } else if all > synchronous {
        Finding::weak(
            "replication",
            format!(
                "{} of {all} replicas are asynchronous: a fail-over to one of them may lose the last grants, and two hold a \
                 name; name them in synchronous_standby_names, or check tokens with a fence",
                all - synchronous
            ),
        )
    } else if all > 0 {
        Finding::fine("replication", format!("{all} replicas, all synchronous"))
    } else {
        Finding::fine("replication", "no replica is connected".into())
    })
}

fn connections(row: &PgRow) -> Result<Finding> {
    let (used, allowed) = (number(row, "connections")?, number(row, "connections_allowed")?);
    let says = format!("{used} of {allowed} in use; each process takes up to six");
    Ok(Finding { what: "connections".into(), says, weakens: used + 6 > allowed })
}

fn pooler(push: bool) -> Finding {
    match push {
        true => Finding::fine("notifications", "arrive: a release wakes those who wait for it".into()),
        false => Finding::fine(
            "notifications",
            "don't arrive: a pooler in transaction mode is in between, or they are swallowed. Locks work, but those who \
             wait find out by looking, and each call takes four round trips; give Tenure a direct connection if that \
             is too slow"
                .into(),
        ),
    }
}

fn text(row: &PgRow, column: &str) -> Result<String> {
    row.try_get(column).map_err(|error| unreadable(STORE, error))
}

fn flag(row: &PgRow, column: &str) -> Result<bool> {
    row.try_get(column).map_err(|error| unreadable(STORE, error))
}

fn number(row: &PgRow, column: impl ColumnIndex<PgRow>) -> Result<i64> {
    row.try_get(column).map_err(|error| unreadable(STORE, error))
}
