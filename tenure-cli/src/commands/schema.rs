//! `tenure schema`: what an administrator creates for those who may not.

use std::io::{self, Write};

use anyhow::Result;
use serde_json::json;
use tenure::store::url::store_at;

use crate::args::{Globals, Schema};
use crate::exit;
use crate::output::json_line;
use crate::state;

/// Prints the statements of the store's URL, without connecting.
pub fn schema(args: &Schema, globals: &Globals) -> Result<u8> {
    let url = match &args.url {
        Some(url) => url.clone(),
        None => state::store_url(globals)?,
    };
    let store = store_at(&url)?;
    let (name, schema) = (store.about().store, store.schema());
    match schema {
        _ if globals.json => json_line(&json!({ "store": name, "schema": schema }))?,
        Some(schema) => writeln!(io::stdout(), "{}", schema.trim_end())?,
        None => writeln!(io::stderr(), "tenure: {name} needs no schema")?,
    }
    Ok(exit::DONE)
}
