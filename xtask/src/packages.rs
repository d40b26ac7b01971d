//! Installs what the machine lacks.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result};
use xtask::tools::{Tool, find};

const INSTALL: &str = include_str!("install.sh");

/// Installs those of the tools that the machine lacks, all at once.
pub fn provide(tools: impl Iterator<Item = &'static Tool>) -> Result<()> {
    let missing: Vec<&Tool> = tools.filter(|tool| !tool.package.is_empty() && find(tool.command).is_err()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let commands: BTreeSet<&str> = missing.iter().map(|tool| tool.command).collect();
    let packages: BTreeSet<&str> = missing.iter().map(|tool| tool.package).collect();
    eprintln!("xtask: missing {commands:?}: installing {packages:?}");
    crate::run(Command::new("sh").args(["-c", INSTALL, "install.sh"]).args(&packages))
        .with_context(|| format!("install {commands:?} by hand (Debian packages {packages:?})"))
}
