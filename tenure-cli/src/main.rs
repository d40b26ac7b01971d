//! The command `tenure`: runs a program while holding a name, shows who holds what, checks fencing tokens.

mod args;
mod commands;
mod descendants;
mod exit;
mod fence_file;
mod hold;
mod link;
mod news;
mod output;
mod shim;
mod signals;
mod state;
mod supervise;
mod terminal;
mod watchdog;

use std::io;
use std::process::ExitCode;

use anyhow::Context;
use args::{Args, Globals};
use clap::Parser;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    // The watchdog and the exec shim are this binary too; they have nothing to do with what follows.
    if let Some(code) = supervise::helper_main() {
        return code;
    }
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return exit::not_understood(&error, wants_json()),
    };
    let globals = args.globals.clone();
    match run(args) {
        Ok(code) => ExitCode::from(code),
        Err(error) => exit::failed(&error, globals.json),
    }
}

/// Whether `--json` was given, where the rest was not understood.
fn wants_json() -> bool {
    std::env::args_os().take_while(|arg| arg != "--").any(|arg| arg == "--json")
}

fn run(args: Args) -> anyhow::Result<u8> {
    start_log(&args.globals)?;
    // One thread: the library has its own for the store, and this one only waits.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no async runtime")?;
    runtime.block_on(commands::run(args.command, &args.globals))
}

/// Quiet unless asked: what happens to a command is said by its exit code and one line.
fn start_log(globals: &Globals) -> anyhow::Result<()> {
    let filter = match std::env::var("TENURE_LOG") {
        Ok(filter) if !filter.is_empty() => filter,
        _ if globals.verbose => "tenure=debug".into(),
        _ => return Ok(()),
    };
    let filter = EnvFilter::try_new(&filter)
        .map_err(|error| exit::usage(format!("TENURE_LOG {filter:?} is not a filter such as debug: {error}")))?;
    let colour = output::colour(&io::stderr());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(colour).init();
    Ok(())
}
