//! `tenure evict`: an operator frees somebody's name.

use std::io::{self, Write};

use anyhow::Result;
use serde_json::json;
use tenure::{Name, Record};

use crate::args::{Evict, Globals};
use crate::exit::{self, Failure};
use crate::output::{RecordJson, age, json_line, printable};
use crate::state;

/// Ends the term that holds the name, if any; says whose it was.
pub async fn evict(args: &Evict, globals: &Globals) -> Result<u8> {
    let by = by(args.why.as_deref())?;
    let locks = state::connect_existing(globals).await?;
    match locks.evict(&args.name, &by).await? {
        Some(record) => told(&record, &by, globals.json)?,
        None => return Err(Failure::new(exit::NO, format!("{} is free: there is nobody to evict", args.name)).into()),
    }
    Ok(exit::DONE)
}

fn told(record: &Record, by: &str, json: bool) -> io::Result<()> {
    if json {
        return json_line(&json!({ "evicted": RecordJson::from(record), "by": by }));
    }
    let (name, owner, token) = (&record.name, printable(&record.owner), record.token);
    let held = age(record.held_for);
    writeln!(io::stdout(), "{name} was held by {owner} (token {token}) for {held}; it is free now")?;
    writeln!(io::stdout(), "its holder hears of it at its next renewal, and until then believes that it still holds")
}

/// Who does it and why, as the holder will be told.
fn by(why: Option<&str>) -> Result<String, Failure> {
    let by = match why {
        Some(why) => format!("{}: {why}", operator()),
        None => operator(),
    };
    match Name::new(&by) {
        Ok(_) => Ok(by),
        Err(_) => Err(exit::usage(format!(
            "--why {why:?} must have no control characters, and at most 255 bytes together with {:?}",
            operator(),
            why = why.unwrap_or_default(),
        ))),
    }
}

fn operator() -> String {
    let user =
        ["USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok().filter(|user| !user.is_empty()));
    let user = user.unwrap_or_else(|| format!("uid {}", rustix::process::getuid().as_raw()));
    format!("{user}@{}", rustix::system::uname().nodename().to_string_lossy())
}
