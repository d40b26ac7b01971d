//! Tenure's chores: `cargo xtask test` runs every test on every store, `cargo xtask services` starts servers for tests by hand.

mod packages;
mod stores;

use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{SigSet, Signal};
use stores::{STORES, Service};
use xtask::services::MongoDb;
use xtask::tools;

const USAGE: &str = "usage: cargo xtask test [ARGUMENTS FOR cargo test] | cargo xtask services";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.first().map(String::as_str) {
        Some("test") => test(&arguments[1..]),
        Some("services") => services(),
        _ => Err(anyhow::anyhow!(USAGE)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs every test on every store; a store whose tests can't run is a failure, not a skip.
fn test(arguments: &[String]) -> Result<()> {
    packages::provide(stores::tools())?;
    let cargo = || {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["test", "--workspace", "--all-features", "--locked"]);
        cargo
    };
    // The server that is made, not installed, is made while the tests are being built.
    let made = std::thread::spawn(MongoDb::provide);
    run(cargo().arg("--no-run").args(arguments))?;
    made.join().map_err(|_| anyhow::anyhow!("the making of a server panicked"))??;
    // Of a store whose servers are all given, none is started.
    let services = stores::start(|variable| std::env::var_os(variable).is_none())?;
    let required: Vec<&str> = STORES.iter().map(|store| store.name).collect();
    let mut cargo = cargo();
    cargo.args(arguments).env(tools::REQUIRE, required.join(","));
    cargo.envs(services.iter().filter(|service| service.wanted).map(|service| (service.variable, service.url())));
    run(&mut cargo)
}

/// Starts all servers, says where they are, and stops them on ctrl-C or `SIGTERM`.
fn services() -> Result<()> {
    packages::provide(stores::tools())?;
    MongoDb::provide()?;
    let services = stores::start(|_| true)?;
    // Only now, as the servers would inherit it. A signal before this ends us, and the servers with us.
    let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM]);
    signals.thread_block()?;
    services.iter().for_each(|service: &Service| println!("export {}={}", service.variable, service.url()));
    eprintln!("xtask: ctrl-C stops them");
    signals.wait()?;
    Ok(())
}

fn run(command: &mut Command) -> Result<()> {
    eprintln!("xtask: {command:?}");
    let status = command.status().with_context(|| format!("{command:?} could not be started"))?;
    if !status.success() {
        bail!("{command:?} failed: {status}");
    }
    Ok(())
}
