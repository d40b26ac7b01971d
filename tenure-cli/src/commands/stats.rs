//! `tenure stats`: figures about all names.

use std::collections::BTreeMap;
use std::io::{self, Write};

use anyhow::Result;
use serde_json::json;
use tenure::Stats;

use crate::args::Globals;
use crate::exit;
use crate::output::{Table, age, json_line, millis, printable};
use crate::state;

/// Counts the names of the store.
pub async fn stats(globals: &Globals) -> Result<u8> {
    let stats = state::connect_existing(globals).await?.stats().await?;
    if globals.json {
        json_line(&as_json(&stats))?
    } else {
        print(&stats)?
    }
    Ok(exit::DONE)
}

fn as_json(stats: &Stats) -> serde_json::Value {
    let longest = stats.longest_hold.as_ref();
    json!({
        "held": stats.held,
        "expired": stats.expired,
        "mean_hold_ms": millis(stats.mean_hold()),
        "longest_hold_ms": longest.map(|(_, time)| millis(*time)),
        "longest_held": longest.map(|(name, _)| name.as_str()),
        "by_part": stats.by_part,
        "by_owner": stats.by_owner,
    })
}

fn print(stats: &Stats) -> io::Result<()> {
    let mut out = io::stdout();
    writeln!(out, "held          {}", stats.held)?;
    writeln!(out, "expired       {}", stats.expired)?;
    if let Some((name, longest)) = &stats.longest_hold {
        writeln!(out, "mean hold     {}", age(stats.mean_hold()))?;
        writeln!(out, "longest hold  {} ({name})", age(*longest))?;
    }
    print_counts("FIRST PART", &stats.by_part)?;
    print_counts("OWNER", &stats.by_owner)
}

/// The largest counts first.
fn print_counts(what: &'static str, counts: &BTreeMap<String, u64>) -> io::Result<()> {
    if counts.is_empty() {
        return Ok(());
    }
    let mut counts: Vec<_> = counts.iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let rows: Vec<_> = counts.into_iter().map(|(key, count)| [count.to_string(), printable(key)]).collect();
    writeln!(io::stdout())?;
    Table::new(["HELD", what]).print(&rows)
}
