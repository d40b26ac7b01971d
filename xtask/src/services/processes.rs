//! Signals to a server and all that it started. PostgreSQL's processes are each in a session of their own, so no process
//! group reaches them: they are found by their parent.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// For what takes milliseconds, unless the disk hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// Kills a process and its descendants; none of them gets to run between the first death and the last.
pub(super) fn kill_family(root: Pid) -> Result<()> {
    let family = freeze(root)?;
    family.iter().try_for_each(|&pid| send(pid, Signal::SIGKILL))?;
    family.iter().try_for_each(|&pid| wait_for(pid, has_ended))
}

/// Stops a process and its descendants, and returns them. Each is stopped before its children are looked for, so that it
/// starts no more of them.
pub(super) fn freeze(root: Pid) -> Result<Vec<Pid>> {
    send(root, Signal::SIGSTOP)?;
    wait_for(root, is_still)?;
    let mut family = vec![root];
    for child in children(root) {
        family.extend(freeze(child)?);
    }
    Ok(family)
}

/// Lets a process and its descendants go on.
pub(super) fn thaw(root: Pid) -> Result<()> {
    children(root).into_iter().try_for_each(thaw)?;
    send(root, Signal::SIGCONT)
}

/// A signal to a process that is gone is no error: it was about to end anyway.
pub(super) fn send(pid: Pid, signal: Signal) -> Result<()> {
    match kill(pid, signal) {
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(error) => bail!("{signal} to process {pid}: {error}"),
    }
}

/// Whether nothing is left of a process but its exit status.
pub(super) fn has_ended(pid: Pid) -> bool {
    matches!(state_and_parent(pid), None | Some(('Z' | 'X', _)))
}

fn is_still(pid: Pid) -> bool {
    has_ended(pid) || matches!(state_and_parent(pid), Some(('T' | 't', _)))
}

fn wait_for(pid: Pid, reached: fn(Pid) -> bool) -> Result<()> {
    let start = Instant::now();
    while !reached(pid) {
        if start.elapsed() > PATIENCE {
            bail!("process {pid} ignores a signal that can't be ignored, for {PATIENCE:?}");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn children(parent: Pid) -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).map(Pid::from_raw);
    processes.filter(|&pid| state_and_parent(pid).is_some_and(|(_, its_parent)| its_parent == parent)).collect()
}

/// From `PID (NAME) STATE PARENT …`, where the name may hold spaces and brackets.
fn state_and_parent(pid: Pid) -> Option<(char, Pid)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?.chars().next()?;
    Some((state, Pid::from_raw(fields.next()?.parse().ok()?)))
}
