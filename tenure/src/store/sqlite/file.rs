//! The database's file: where it may be, whether it is still the same one, and what its errors mean.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::STORE;
use crate::error::{Error, Result};
use crate::store::Finding;

/// The path of a database.
pub(super) struct DatabaseFile {
    /// Absolute: the process may change its directory, and SQLite takes a path that begins with `file:` for a URL.
    path: PathBuf,
}

impl DatabaseFile {
    pub fn new(path: &Path) -> Result<Self> {
        let refuse = |why: &str| Err(Error::invalid("sqlite path", why));
        match path.to_str() {
            Some("") => refuse("is empty: name a file, or use memory: for a store in memory"),
            Some(":memory:") => refuse(":memory: would be a database of each connection's own: use memory:"),
            None => refuse(&format!("{path:?} is not UTF-8, which SQLite needs: rename it")),
            Some(_) => match std::path::absolute(path) {
                Ok(path) => Ok(Self { path }),
                Err(error) => refuse(&format!("{path:?} has no absolute form: {error}")),
            },
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Refuses a place where SQLite can't work, or can't exclude others.
    pub fn check_place(&self) -> Result<()> {
        let directory = self.path.parent().unwrap_or(&self.path);
        match fs::metadata(directory) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => return Err(self.refuse(&format!("{} is not a directory", directory.display()))),
            Err(error) => return Err(self.refuse(&format!("{}: {error}: make the directory", directory.display()))),
        }
        if self.path.is_dir() {
            return Err(self.refuse("it is a directory: name a file in it"));
        }
        self.check_file_system(directory)
    }

    fn check_file_system(&self, directory: &Path) -> Result<()> {
        // The path may be a link to another file system.
        let place = if self.path.exists() { &self.path } else { directory };
        match network::file_system(place) {
            None => Ok(()),
            Some(kind) => Err(self.refuse(&format!(
                "it is on a network file system ({kind}), where SQLite can't exclude other machines: use a local path, \
                 or a database server"
            ))),
        }
    }

    fn refuse(&self, why: &str) -> Error {
        Error::permanent(STORE, format!("can't keep locks in {}: {why}", self.path.display()))
    }

    /// What there is to say about the place.
    pub fn findings(&self) -> Vec<Finding> {
        let size = fs::metadata(&self.path).map_or(0, |found| found.len().div_ceil(1024));
        let fuse = network::is_fuse(&self.path);
        let doubt = if fuse { ", on FUSE, which may be a network (sshfs): use it from one machine only" } else { "" };
        let says = format!("{}, {size} KiB{doubt}", self.path.display());
        vec![Finding { what: "file".into(), says, weakens: fuse }]
    }

    /// The file is no longer the one that was in use.
    pub fn replaced(&self) -> Error {
        let path = self.path.display();
        Error::transient(STORE, format!("{path} was deleted or replaced while in use: going on with what is there now"))
    }

    /// What the driver said, and what it means here.
    pub fn explain(&self, error: sqlx::Error) -> Error {
        let path = self.path.display();
        match &error {
            sqlx::Error::Database(said) => {
                let (transient, meaning) = meaning(result_code(&error));
                let reason = format!("{path} {meaning} (SQLite: {})", said.message());
                if transient { Error::transient(STORE, reason) } else { Error::permanent(STORE, reason) }
            }
            // The connection, not the database: the next call gets another.
            _ => Error::transient(STORE, format!("{path}: {error}")),
        }
    }
}

/// Which file it is, whatever its path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// The file that is at `path` now.
    ///
    /// It is not opened for this: when a process closes any descriptor of a file, it loses all its locks on that
    /// file, and SQLite's are among them.
    pub fn of(path: &Path) -> io::Result<Self> {
        fs::metadata(path).map(|found| Self { device: found.dev(), inode: found.ino() })
    }
}

const ERROR: i32 = 1;
const PERM: i32 = 3;
pub(super) const BUSY: i32 = 5;
const LOCKED: i32 = 6;
const NOMEM: i32 = 7;
const READONLY: i32 = 8;
const INTERRUPT: i32 = 9;
const IOERR: i32 = 10;
const CORRUPT: i32 = 11;
const FULL: i32 = 13;
const CANTOPEN: i32 = 14;
const PROTOCOL: i32 = 15;
const SCHEMA: i32 = 17;
const NOTADB: i32 = 26;

/// SQLite's primary result code, which is the last byte of the extended one.
pub(super) fn result_code(error: &sqlx::Error) -> Option<i32> {
    let extended: i32 = error.as_database_error()?.code()?.parse().ok()?;
    Some(extended & 0xff)
}

/// Whether a retry can help, and what the result means to somebody who only wanted a lock.
fn meaning(code: Option<i32>) -> (bool, &'static str) {
    match code {
        Some(BUSY | LOCKED | PROTOCOL | SCHEMA) => (true, "was kept busy by others for too long"),
        Some(FULL) => (true, "is on a full disk: make room"),
        Some(IOERR | NOMEM | INTERRUPT) => (true, "could not be read or written"),
        Some(PERM | READONLY) => (false, "may not be written: allow it, for the file and its directory"),
        Some(CANTOPEN) => (false, "can't be opened: check the rights on the file and its directory"),
        Some(CORRUPT | NOTADB) => {
            (false, "is not a database, or is damaged: name another file, or move this one away and a new one is made")
        }
        Some(ERROR) => (false, "doesn't have Tenure's table as this version makes it: see `tenure schema`"),
        _ => (false, "was refused"),
    }
}

#[cfg(target_os = "linux")]
mod network {
    use std::path::Path;

    /// The kernel's file systems that several machines can share, by their magic numbers in statfs(2).
    const KINDS: &[(u32, &str)] = &[
        (0x6969, "NFS"),
        (0x517b, "SMB"),
        (0xff53_4d42, "CIFS"),
        (0xfe53_4d42, "SMB 2"),
        (0x564c, "NCP"),
        (0x5346_414f, "AFS"),
        (0x6b41_4653, "kAFS"),
        (0x7375_7245, "Coda"),
        (0x00c3_6400, "Ceph"),
        (0x0102_1997, "9P"),
        (0x0bd0_0bd0, "Lustre"),
        (0x4750_4653, "GPFS"),
        (0x1983_0326, "BeeGFS"),
        (0x2003_0528, "OrangeFS"),
        (0x0116_1970, "GFS2"),
        (0x7461_636f, "OCFS2"),
        (0xaad7_aaea, "PanFS"),
    ];

    const FUSE: u32 = 0x6573_5546;

    /// The kind of network file system that `place` is on.
    pub fn file_system(place: &Path) -> Option<&'static str> {
        kind(magic(place)?)
    }

    pub fn is_fuse(place: &Path) -> bool {
        magic(place) == Some(FUSE)
    }

    /// The field's type differs between architectures; the numbers have 32 bits.
    fn magic(place: &Path) -> Option<u32> {
        rustix::fs::statfs(place).ok().map(|found| found.f_type as u32)
    }

    pub(super) fn kind(magic: u32) -> Option<&'static str> {
        KINDS.iter().find(|(known, _)| *known == magic).map(|(_, kind)| *kind)
    }
}

#[cfg(target_os = "macos")]
mod network {
    use std::path::Path;

    /// `MNT_LOCAL` in sys/mount.h.
    const LOCAL: u32 = 0x1000;

    /// Whether `place` is on a network file system; the kernel doesn't say which.
    pub fn file_system(place: &Path) -> Option<&'static str> {
        let found = rustix::fs::statfs(place).ok()?;
        (found.f_flags & LOCAL == 0).then_some("not local")
    }

    pub fn is_fuse(_: &Path) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_name_no_file_are_refused_with_a_hint() {
        let why = |path: &str| DatabaseFile::new(Path::new(path)).err().unwrap().to_string();
        assert!(why("").contains("memory:"));
        assert!(why(":memory:").contains("use memory:"));
    }

    #[test]
    fn a_directory_that_is_missing_or_a_path_that_is_one_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let why = |path: &Path| DatabaseFile::new(path).unwrap().check_place().unwrap_err();
        let missing = why(&directory.path().join("no/such/locks.db"));
        assert!(!missing.is_transient() && missing.to_string().contains("no/such: "), "{missing}");
        assert!(why(directory.path()).to_string().contains("is a directory"));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn network_file_systems_are_known_by_their_numbers() {
        assert_eq!(network::kind(0x6969), Some("NFS"));
        assert_eq!(network::kind(0xff53_4d42), Some("CIFS"));
        let ext4 = 0xef53;
        assert_eq!(network::kind(ext4), None);
    }
}
