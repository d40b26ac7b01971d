//! `tenure show`: one name in full.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use tenure::store::Page;
use tenure::{Name, Record};

use crate::args::{Globals, Show};
use crate::exit;
use crate::output::{RecordJson, age, compact, json_line, printable, state, utc};
use crate::state::connect_existing;

/// Shows a name's record: the live one, or the expired one that nobody has taken over yet.
pub async fn show(args: &Show, globals: &Globals) -> Result<u8> {
    let locks = connect_existing(globals).await?;
    let mut records = locks.page(Page::of(&args.name)).await?;
    match records.pop().filter(|record| record.name == args.name) {
        Some(record) if globals.json => json_line(&RecordJson::from(&record)).map(|()| code(&record)),
        Some(record) => print(&record).map(|()| code(&record)),
        None => free(&args.name, globals.json).map(|()| exit::NO),
    }
    .map_err(Into::into)
}

fn code(record: &Record) -> u8 {
    if record.is_live() { exit::DONE } else { exit::NO }
}

fn free(name: &Name, json: bool) -> io::Result<()> {
    if json {
        json_line(&json!({ "name": name.as_str(), "state": "free" }))
    } else {
        line("name", name).and(line("state", "free"))
    }
}

fn print(record: &Record) -> io::Result<()> {
    let ttl = record.expires_at.duration_since(record.renewed_at).unwrap_or_default();
    line("name", &record.name)?;
    line("state", state(record))?;
    line("owner", printable(&record.owner))?;
    line("token", record.token)?;
    line("acquired", format!("{} (held for {})", utc(record.acquired_at), age(record.held_for)))?;
    line("renewed", format!("{} (ttl {})", utc(record.renewed_at), age(ttl)))?;
    line("expires", format!("{}{}", utc(record.expires_at), left(record.remaining)))?;
    if !record.grace.is_zero() {
        line("grace", age(record.grace))?;
    }
    record.data.as_deref().map_or(Ok(()), |data| line("data", printable(&compact(data))))
}

fn left(remaining: Duration) -> String {
    if remaining.is_zero() { String::new() } else { format!(" ({} left)", age(remaining)) }
}

fn line(what: &str, value: impl std::fmt::Display) -> io::Result<()> {
    writeln!(io::stdout(), "{what:<9} {value}")
}
