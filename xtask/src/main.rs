//! Tenure's chores: `cargo xtask test` runs every test on every store.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

/// A store that the tests run on, and the tools that it needs on the machine.
struct Store {
    name: &'static str,
    tools: &'static [Tool],
}

/// A command, and the Debian package that brings it.
struct Tool {
    command: &'static str,
    package: &'static str,
}

/// The bundled SQLite is compiled from C.
const C_COMPILER: Tool = Tool { command: "cc", package: "gcc" };

const STORES: &[Store] = &[Store { name: "memory", tools: &[] }, Store { name: "sqlite", tools: &[C_COMPILER] }];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.first().map(String::as_str) {
        Some("test") => test(&arguments[1..]),
        _ => Err(anyhow::anyhow!("usage: cargo xtask test [ARGUMENTS FOR cargo test]")),
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
    for store in STORES {
        println!("xtask: store {}", store.name);
        store.tools.iter().try_for_each(provide)?;
    }
    let required: Vec<&str> = STORES.iter().map(|store| store.name).collect();
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["test", "--workspace", "--all-features", "--locked"]).args(arguments);
    cargo.env("TENURE_TEST_REQUIRE", required.join(","));
    run(&mut cargo)
}

/// Installs a tool if the machine lacks it.
fn provide(tool: &Tool) -> Result<()> {
    if is_on_path(tool.command) {
        return Ok(());
    }
    println!("xtask: {} is missing: installing {}", tool.command, tool.package);
    run(Command::new("apt-get").args(["update", "-qq"]))?;
    run(Command::new("apt-get").args(["install", "-qq", "--yes", tool.package]))
        .with_context(|| format!("install {} by hand (Debian package {})", tool.command, tool.package))
}

fn is_on_path(command: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(command).is_file())
}

fn run(command: &mut Command) -> Result<()> {
    println!("xtask: {command:?}");
    let status = command.status().with_context(|| format!("{command:?} could not be started"))?;
    if !status.success() {
        bail!("{command:?} failed: {status}");
    }
    Ok(())
}
