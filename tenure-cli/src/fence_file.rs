//! A fence in the file system: the largest token seen for a resource, kept through crashes of the machine.
//!
//! A resource has two files. `….lock` is locked while a token is checked and acted upon; it is never replaced, since whoever
//! waits for a lock holds on to the file that it opened. `….token` has the largest token seen; it is only ever replaced as a
//! whole, so that a crash leaves the old token or the new one.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::io::{FdFlags, fcntl_setfd};
use tenure::{Name, Stale, Token};

use crate::exit::{Failure, OUT_OF_REACH};

/// A file's name has at most 255 bytes; some are left for the endings.
const MAX_PART: usize = 240;

/// A fence that this process has locked. Dropping it opens it to others.
#[derive(Debug)]
pub struct FenceFile {
    /// Holds the lock while it is open, here or in a process that inherited it.
    lock: File,
    path: PathBuf,
}

impl FenceFile {
    /// Waits until nobody else is at this fence, and locks it.
    pub fn lock(folder: &Path, resource: &Name) -> Result<Self> {
        let path = folder.join(encoded(resource));
        let lock_path = path.with_extension("lock");
        make_folder(parent(&lock_path)).with_context(|| out_of_reach(&lock_path))?;
        let open = || OpenOptions::new().create(true).truncate(false).write(true).open(&lock_path);
        let lock = open().with_context(|| out_of_reach(&lock_path))?;
        lock.lock().with_context(|| out_of_reach(&lock_path))?;
        Ok(Self { lock, path: path.with_extension("token") })
    }

    /// Lets `token` pass, and remembers it durably, unless a larger one was seen (with `strict`, or this one).
    pub fn check(&self, token: Token, strict: bool) -> Result<Result<(), Stale>> {
        match self.highest()? {
            Some(highest) if token < highest || (strict && token == highest) => {
                return Ok(Err(Stale { token, highest }));
            }
            Some(highest) if token == highest => self.sync(),
            _ => self.remember(token),
        }
        .with_context(|| out_of_reach(&self.path))?;
        Ok(Ok(()))
    }

    /// Lets a command that is started from now on keep the lock for as long as it runs, should this process be killed.
    pub fn bequeath(&self) -> io::Result<()> {
        Ok(fcntl_setfd(&self.lock, FdFlags::empty())?)
    }

    fn highest(&self) -> Result<Option<Token>> {
        match fs::read_to_string(&self.path) {
            Ok(text) => Ok(Some(parse(&text).ok_or_else(|| damaged(&self.path))?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(damaged(&self.path).into()),
            Err(error) => Err(error).with_context(|| out_of_reach(&self.path)),
        }
    }

    fn remember(&self, token: Token) -> io::Result<()> {
        let new = self.path.with_extension("new");
        let mut file = File::create(&new)?;
        writeln!(file, "{token}")?;
        file.sync_all()?;
        fs::rename(&new, &self.path)?;
        self.sync()
    }

    /// Also for a token that is there already: whoever put it there may have been killed before this.
    fn sync(&self) -> io::Result<()> {
        sync_folder(parent(&self.path))
    }
}

/// A whole line, so that a file that was cut short is noticed.
fn parse(text: &str) -> Option<Token> {
    text.strip_suffix('\n')?.parse().ok().map(Token)
}

fn damaged(path: &Path) -> Failure {
    let advice = "write a number into it that is at least as large as all tokens so far, such as the time in microseconds since 1970";
    Failure::new(OUT_OF_REACH, format!("the fence {} is damaged: {advice}", path.display()))
}

fn out_of_reach(path: &Path) -> Failure {
    Failure::new(OUT_OF_REACH, format!("the fence {} is out of reach", path.display()))
}

/// A path for any name, another one for each, also where file names ignore case.
fn encoded(name: &Name) -> PathBuf {
    let mut path = PathBuf::new();
    let mut part = String::new();
    for byte in name.as_str().bytes() {
        if part.len() + 3 > MAX_PART {
            path.push(std::mem::take(&mut part));
        }
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => part.push(byte.into()),
            _ => part.push_str(&format!("%{byte:02x}")),
        }
    }
    path.join(part)
}

/// Creates a folder, so that it is there after a crash of the machine too.
fn make_folder(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let parent = parent(folder);
    if parent != folder {
        make_folder(parent)?;
    }
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(_) if folder.is_dir() => {}
        made => made?,
    }
    sync_folder(parent)
}

/// The folder that a path is in.
fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => path,
    }
}

/// Makes sure that what was created or renamed in a folder survives a crash of the machine.
fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn check(folder: &Path, token: u64, strict: bool) -> Result<(), Stale> {
        FenceFile::lock(folder, &Name::new("a/B").unwrap()).unwrap().check(Token(token), strict).unwrap()
    }

    #[test]
    fn the_largest_token_is_remembered_and_older_ones_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(check(folder.path(), 7, false), Ok(()));
        assert_eq!(check(folder.path(), 7, false), Ok(()));
        assert_eq!(check(folder.path(), 6, false), Err(Stale { token: Token(6), highest: Token(7) }));
        assert_eq!(check(folder.path(), 7, true), Err(Stale { token: Token(7), highest: Token(7) }));
        assert_eq!(check(folder.path(), 8, true), Ok(()));
    }

    #[test]
    fn a_file_that_was_cut_short_is_not_taken_for_a_token() {
        assert_eq!(parse("17\n"), Some(Token(17)));
        for text in ["", "17", "\n", "17\n18\n", "x\n", "\0\0\0"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn every_name_has_a_path_of_its_own() {
        let long = "Ü".repeat(127);
        let names = ["a", "A", "a/b", "a%2fb", "a.b", ".", "..", "a ", "ü", &long, &long[..long.len() - 2]];
        let paths: HashSet<_> = names.iter().map(|name| encoded(&Name::new(name).unwrap())).collect();
        assert_eq!(paths.len(), names.len());
        let longest = paths.iter().flat_map(|path| path.iter()).map(|part| part.len()).max();
        assert!(longest.unwrap() <= MAX_PART);
        assert!(paths.iter().all(|path| path.is_relative() && !path.to_string_lossy().contains('.')));
    }

    #[test]
    fn every_path_is_in_a_folder() {
        for (path, folder) in [("a", "."), ("a/b", "a"), ("/a", "/"), ("/", "/"), (".", ".")] {
            assert_eq!(parent(Path::new(path)), Path::new(folder));
        }
    }
}
