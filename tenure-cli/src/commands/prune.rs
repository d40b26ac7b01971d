//! `tenure prune`: forgets names that nobody uses any more.

use std::io::{self, Write};

use anyhow::Result;
use serde_json::json;

use crate::args::{Globals, Prune};
use crate::exit;
use crate::output::json_line;
use crate::state;

/// Forgets names that nobody has held for a while, and says how many.
pub async fn prune(args: &Prune, globals: &Globals) -> Result<u8> {
    let forgotten = state::connect_existing(globals).await?.prune(args.idle).await?;
    if globals.json {
        json_line(&json!({ "pruned": forgotten }))?;
    } else {
        let names = if forgotten == 1 { "name" } else { "names" };
        writeln!(io::stdout(), "forgot {forgotten} {names}")?;
    }
    Ok(exit::DONE)
}
