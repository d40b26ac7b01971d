//! Where `tenure` keeps what it must remember when no store is named: the user's state folder.

use std::env;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tenure::Locks;
use tenure::store::url::{StoreUrl, store_at};

use crate::args::Globals;
use crate::exit::{Failure, OUT_OF_REACH, usage};

/// The store's file in the state folder.
const LOCKS: &str = "locks.db";

/// Connects to the store that the options, the environment or the state folder name.
pub async fn connect(globals: &Globals) -> Result<Locks> {
    if globals.store_url().is_none() {
        make_folder(&folder()?)?;
    }
    Ok(tenure::connect(store_url(globals)?).await?)
}

/// The same, to look around or mend, which makes no new file: a name that was mistyped is not an empty store.
pub async fn connect_existing(globals: &Globals) -> Result<Locks> {
    if let Some(url) = globals.store_url().filter(|url| url.starts_with("sqlite:")) {
        store_at(&url)?;
        let path = StoreUrl::parse(&url)?.path()?;
        if matches!(Path::new(&path).try_exists(), Ok(false)) {
            let why = format!("sqlite: {path} doesn't exist: no name was ever held there");
            return Err(Failure::new(OUT_OF_REACH, why).into());
        }
    }
    connect(globals).await
}

/// The URL of the store: `--store`, `TENURE_STORE`, or a file in the state folder.
pub fn store_url(globals: &Globals) -> Result<String> {
    match globals.store_url() {
        Some(url) => Ok(url),
        None => Ok(sqlite_url(&folder()?.join(LOCKS))?),
    }
}

/// `$XDG_STATE_HOME/tenure`, or `~/.local/state/tenure`.
pub fn folder() -> Result<PathBuf, Failure> {
    // The XDG rule: a relative path is ignored.
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || absolute("HOME").map(|home| home.join(".local/state"));
    absolute("XDG_STATE_HOME")
        .or_else(home)
        .map(|base| base.join("tenure"))
        .ok_or_else(|| usage("HOME is not set to an absolute path: give --store URL, or set TENURE_STORE or HOME"))
}

fn sqlite_url(path: &Path) -> Result<String, Failure> {
    let path = path
        .to_str()
        .ok_or_else(|| usage(format!("{} is not UTF-8: give --store URL or set TENURE_STORE", path.display())))?;
    Ok(format!("sqlite:{}", path.replace('%', "%25").replace('?', "%3F").replace('#', "%23")))
}

/// Creates the state folder, the user's own as XDG has it. A crash of the machine may undo that, but ends all holders too.
fn make_folder(folder: &Path) -> Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.with_context(|| {
        Failure::new(OUT_OF_REACH, format!("can't create the folder {} (or give --store)", folder.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_paths_survive_in_a_url() {
        assert_eq!(sqlite_url(Path::new("/a b/100%?#.db")).unwrap(), "sqlite:/a b/100%25%3F%23.db");
    }
}
