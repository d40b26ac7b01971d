//! The commands that servers are made of: where they are, and which Debian package brings them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Where Debian puts each version of PostgreSQL; only the client's commands are on the path.
const POSTGRES_VERSIONS: &str = "/usr/lib/postgresql";

/// Servers are here, and these are on the path of root only.
const SERVER_FOLDERS: &[&str] = &["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// Stores whose absence is a failure, not a skip: `postgres,mysql`.
pub const REQUIRE: &str = "TENURE_TEST_REQUIRE";

/// A command, and the Debian package that brings it.
#[derive(Debug)]
pub struct Tool {
    /// The command's name.
    pub command: &'static str,
    /// The package; empty if none has it, and [`MongoDb::provide`](crate::services::MongoDb::provide) makes it.
    pub package: &'static str,
}

/// Makes the keys and certificates of the servers.
pub const OPENSSL: Tool = Tool { command: "openssl", package: "openssl" };

/// Those of the tools that this machine lacks.
pub fn missing(tools: &[Tool]) -> Vec<&Tool> {
    tools.iter().filter(|tool| find(tool.command).is_err()).collect()
}

/// Whether to skip a test of this store, because its tools are missing and nobody required it; says so.
///
/// # Panics
/// If the tools are missing, and `TENURE_TEST_REQUIRE` lists the store.
pub fn skip(store: &str, tools: &[Tool]) -> bool {
    let missing = missing(tools);
    if missing.is_empty() {
        return false;
    }
    assert!(!is_required(store), "{REQUIRE} lists {store}, and there is no {missing:?}");
    eprintln!("skipped: no {store} here, for want of {missing:?}");
    true
}

fn is_required(store: &str) -> bool {
    std::env::var(REQUIRE).unwrap_or_default().split(',').any(|listed| listed.trim() == store)
}

/// The path of a command.
///
/// # Errors
/// If it is nowhere.
pub fn find(command: &str) -> Result<PathBuf> {
    let found = folders().into_iter().map(|folder| folder.join(command)).find(|path| path.is_file());
    found.with_context(|| format!("{command} is not installed"))
}

/// The newest PostgreSQL comes first: `psql` on the path is Debian's wrapper, which looks for clusters of its own.
fn folders() -> Vec<PathBuf> {
    let mut folders = postgres_folders(Path::new(POSTGRES_VERSIONS));
    folders.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    folders.extend(SERVER_FOLDERS.iter().map(PathBuf::from));
    folders.extend(crate::services::mongodb::folder().map(|folder| folder.join("bin")));
    folders
}

fn postgres_folders(versions: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(versions).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    folders.sort_by_key(|folder| std::cmp::Reverse(version(folder)));
    folders.into_iter().map(|folder| folder.join("bin")).collect()
}

/// As numbers: 9.6 comes before 15.
fn version(folder: &Path) -> Vec<u32> {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    name.split('.').map(|part| part.parse().unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_postgres_is_first() {
        let mut versions = ["15", "9.6", "16", "9.4"].map(Path::new);
        versions.sort_by_key(|folder| version(folder));
        assert_eq!(versions, ["9.4", "9.6", "15", "16"].map(Path::new));
    }

    #[test]
    fn a_command_is_found_by_its_name() {
        assert!(find("sh").is_ok_and(|path| path.is_absolute()));
        assert_eq!(find("no-such-command").unwrap_err().to_string(), "no-such-command is not installed");
    }
}
