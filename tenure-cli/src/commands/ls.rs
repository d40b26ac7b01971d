//! `tenure ls`: who holds what.

use std::io::{self, IsTerminal};

use anyhow::Result;
use tenure::Record;
use tenure::store::Page;

use crate::args::{Globals, Ls};
use crate::exit;
use crate::output::{RecordJson, Table, age, compact, json_lines, printable, shortened};
use crate::state;

/// How many records are in memory at a time: there may be millions.
const PAGE: usize = 1000;
/// How much of a record's data fits a line on a terminal.
const DATA_WIDTH: usize = 60;

/// Lists records page by page, as they come.
pub async fn ls(args: &Ls, globals: &Globals) -> Result<u8> {
    let locks = state::connect_existing(globals).await?;
    let mut table = Table::new(["NAME", "OWNER", "TOKEN", "HELD", "LEFT", "DATA"]);
    let mut page = Page { prefix: args.prefix.clone(), after: None, limit: PAGE };
    loop {
        let mut records = locks.page(page.clone()).await?;
        let more = records.len() == page.limit;
        page.after = records.last().map(|record| record.name.clone());
        records.retain(|record| args.all || record.is_live());
        if globals.json {
            json_lines(records.iter().map(RecordJson::from))?;
        } else {
            table.print(&records.iter().map(row).collect::<Vec<_>>())?;
        }
        if !more {
            return Ok(exit::DONE);
        }
    }
}

fn row(record: &Record) -> [String; 6] {
    let data = printable(&compact(record.data.as_deref().unwrap_or_default()));
    [
        record.name.to_string(),
        printable(&record.owner),
        record.token.to_string(),
        age(record.held_for),
        if record.is_live() { age(record.remaining) } else { "expired".into() },
        if io::stdout().is_terminal() { shortened(&data, DATA_WIDTH) } else { data },
    ]
}
