//! The folder that a server lives in, the user that it runs as, and the keeper that cleans up behind both.

use std::fs::{self, File, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use nix::unistd::{Pid, User, geteuid};

use crate::tools;

/// Waits for the end of this process, in a shell: tests have no other program of ours at hand.
const KEEPER: &str = include_str!("keeper.sh");

pub(super) struct Home {
    path: PathBuf,
    /// Whom to run as; servers refuse to run as root. `None`: as ourselves.
    account: Option<User>,
    keeper: Child,
    /// In an `Option` to be closed before the keeper is waited for.
    pid_to_keeper: Option<ChildStdin>,
}

impl Home {
    /// A new folder for a server of this kind, which runs as `account` if we are root, and stops on `stop`.
    pub(super) fn new(kind: &str, account: &str, stop: Signal) -> Result<Self> {
        let account = account_to_use(account)?;
        let path = make_folder(&services_folder(account.is_some())?, kind)?;
        let mut keeper = start_keeper(&path, stop)?;
        let pid_to_keeper = keeper.stdin.take();
        let home = Self { path, account, keeper, pid_to_keeper };
        home.give_away(&home.path)?;
        Ok(home)
    }

    pub(super) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub(super) fn log(&self) -> PathBuf {
        self.join("log")
    }

    /// A command that runs here, as the server's user. It sees nothing of our environment, where `PGOPTIONS` and the
    /// like would change what is tested, and gets no ctrl-C from our terminal: we stop it ourselves.
    pub(super) fn command(&self, tool: &str) -> Result<Command> {
        self.command_at(&tools::find(tool)?)
    }

    /// The same for a program that is found by its path alone.
    pub(super) fn command_at(&self, program: &Path) -> Result<Command> {
        let mut command = Command::new(program);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        // Of its own: a MariaDB that starts deletes the temporary tables of another that has the same.
        command.env("TMPDIR", &self.path);
        command.current_dir(&self.path).process_group(0).stdin(Stdio::null());
        if let Some(account) = &self.account {
            command.uid(account.uid.as_raw()).gid(account.gid.as_raw());
        }
        let log = File::options().create(true).append(true).open(self.log()).context("the log of the server")?;
        command.stdout(log.try_clone()?).stderr(log);
        Ok(command)
    }

    /// Runs a command to its end.
    pub(super) fn run(&self, command: &mut Command) -> Result<()> {
        let status = command.status().with_context(|| format!("{command:?}"))?;
        if !status.success() {
            bail!("{command:?} failed: {status}\n{}", self.end_of_log());
        }
        Ok(())
    }

    /// Writes a file that belongs to the server and that everybody may read.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.join(name);
        fs::write(&path, text).with_context(|| path.display().to_string())?;
        fs::set_permissions(&path, Permissions::from_mode(0o644))?;
        self.give_away(&path)?;
        Ok(path)
    }

    pub(super) fn give_away(&self, path: &Path) -> Result<()> {
        let Some(account) = &self.account else { return Ok(()) };
        chown(path, Some(account.uid.as_raw()), Some(account.gid.as_raw()))
            .with_context(|| format!("{} for {}", path.display(), account.name))
    }

    /// Tells the keeper what to stop if we die: call it before a process that ended is waited for, when its id is free.
    pub(super) fn keep(&self, server: Option<Pid>) -> Result<()> {
        let line = server.map(|pid| pid.to_string()).unwrap_or_default();
        let mut keeper = self.pid_to_keeper.as_ref().context("the keeper is told to the end")?;
        writeln!(keeper, "{line}").context("the keeper is gone")
    }

    pub(super) fn end_of_log(&self) -> String {
        let log = fs::read(self.log()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for Home {
    /// The keeper removes the folder.
    fn drop(&mut self) {
        drop(self.pid_to_keeper.take());
        let _ = self.keeper.wait();
    }
}

fn account_to_use(name: &str) -> Result<Option<User>> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    let account =
        User::from_name(name)?.with_context(|| format!("servers don't run as root, and no user is {name}"))?;
    Ok(Some(account))
}

/// In the target folder, so that `cargo clean` removes what a crash of the machine left; else in the temporary one, if the
/// server's user can't get there.
fn services_folder(other_user: bool) -> Result<PathBuf> {
    let can_be_used = |folder: &Path| !other_user || everybody_can_enter(folder);
    if let Some(target) = target_folder().filter(|target| can_be_used(target)) {
        let folder = target.join("services");
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        open_to_all(&folder)?;
        return Ok(folder);
    }
    let temporary = std::env::temp_dir();
    if !can_be_used(&temporary) {
        bail!("a server's user can enter neither the target folder nor {}: set TMPDIR", temporary.display());
    }
    Ok(temporary)
}

/// Whatever the umask is.
fn open_to_all(folder: &Path) -> Result<()> {
    fs::set_permissions(folder, Permissions::from_mode(0o755)).with_context(|| folder.display().to_string())
}

/// Cargo marks it.
fn target_folder() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    program.ancestors().find(|folder| folder.join("CACHEDIR.TAG").is_file()).map(Into::into)
}

fn everybody_can_enter(folder: &Path) -> bool {
    folder.ancestors().all(|folder| fs::metadata(folder).is_ok_and(|found| found.permissions().mode() & 0o001 != 0))
}

fn make_folder(services: &Path, kind: &str) -> Result<PathBuf> {
    let names = (0..).map(|n: u32| services.join(format!("tenure-{kind}-{}-{n}", std::process::id())));
    for folder in names {
        match fs::create_dir(&folder) {
            Ok(()) => return open_to_all(&folder).map(|()| folder),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).with_context(|| folder.display().to_string()),
        }
    }
    unreachable!("there is always a next number")
}

fn start_keeper(folder: &Path, stop: Signal) -> Result<Child> {
    let stop = stop.as_str().trim_start_matches("SIG");
    let mut keeper = Command::new("sh");
    keeper.args(["-c", KEEPER, "keeper.sh"]).arg(folder).arg(stop).process_group(0).current_dir("/");
    keeper.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    keeper.spawn().context("the keeper of a server's folder")
}
