//! Finds, signals and reaps every process below this one.
//!
//! This process must be a subreaper: whatever daemonises below it then becomes its child. On systems
//! other than Linux there is no such thing: only CMD's process group is reached, and whoever left it is not.

use std::collections::HashSet;
use std::io;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions};
use rustix::process::{getpid, kill_process, kill_process_group, wait, waitid};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

use crate::link::Exit;

/// How often those are tried again that didn't die of SIGKILL at once.
const RETRY: Duration = Duration::from_millis(10);

/// How many times in a row newly born processes are looked for before the killing goes on without.
const FREEZE_ROUNDS: usize = 100;

/// Everything below this process, which nobody else in it may wait for.
#[derive(Debug)]
pub struct Descendants {
    /// CMD. It is reaped last: until then its number is nobody else's, and the group that it leads can be signalled
    /// without a risk.
    first: Option<Pid>,
    exit: Option<Exit>,
    deaths: tokio::signal::unix::Signal,
}

impl Descendants {
    /// Starts to watch for the deaths of children.
    pub fn new() -> io::Result<Self> {
        Ok(Self { first: None, exit: None, deaths: signal(SignalKind::child())? })
    }

    /// Makes this process the one that inherits all orphans below it.
    pub fn adopt() -> io::Result<()> {
        #[cfg(target_os = "linux")]
        rustix::process::set_child_subreaper(Some(getpid()))?;
        Ok(())
    }

    /// CMD, a child of this process, is all there is so far.
    pub fn start_with(&mut self, command: Pid) {
        self.first = Some(command);
    }

    /// How CMD ended, as of the last `settle`.
    pub fn exit(&self) -> Option<Exit> {
        self.exit
    }

    /// Waits until a child may have died. Cancel safe.
    pub async fn death(&mut self) {
        self.deaths.recv().await;
    }

    /// Signals CMD's process group: all of it in one step, which no fork can escape. CMD alone if it leads none.
    pub fn signal_group(&self, signal: Signal) {
        if let Some(command) = self.first {
            let _ = kill_process_group(command, signal).or_else(|_| kill_process(command, signal));
        }
    }

    /// Sends these signals to each process below this one.
    pub fn signal(&self, signals: &[Signal]) {
        if cfg!(not(target_os = "linux")) {
            signals.iter().for_each(|&signal| self.signal_group(signal));
        }
        // All are found before the first is signalled: the children of one that dies change their parent.
        for process in tree::descendants() {
            tree::signal(process, signals);
        }
    }

    /// Stops all, so that nobody forks while they are killed one by one. In a storm of forks a death would
    /// only make room for the next birth.
    fn freeze(&self) {
        let mut seen = HashSet::new();
        for _ in 0..FREEZE_ROUNDS {
            let mut new = tree::descendants();
            new.retain(|&process| seen.insert(process));
            if new.is_empty() {
                return;
            }
            for process in new {
                tree::signal(process, &[Signal::STOP]);
            }
        }
    }

    /// Reaps the dead. `true` when nothing is left below this process.
    pub fn settle(&mut self) -> bool {
        if let Some(command) = self.first {
            self.exit = exit_of(command);
        }
        let mut others = tree::children(getpid());
        others.retain(|&child| Some(child) != self.first && !reap(child));
        if !others.is_empty() || (self.first.is_some() && self.exit.is_none()) {
            return false;
        }
        if cfg!(not(target_os = "linux")) {
            self.signal_group(Signal::KILL);
        }
        self.first = None;
        // The list of children may have missed some; waiting for them doesn't.
        none_left()
    }

    /// Kills everything below this process and returns when all of it is dead. Cancel safe: begins afresh.
    pub async fn kill(&mut self) {
        self.signal_group(Signal::KILL);
        self.signal(&[Signal::KILL]);
        while timeout(RETRY, self.settled()).await.is_err() {
            self.freeze();
            self.signal(&[Signal::KILL]);
        }
    }

    async fn settled(&mut self) {
        while !self.settle() {
            self.death().await;
        }
    }
}

/// Reaps one child if it is dead.
fn reap(child: Pid) -> bool {
    let reaped = waitid(WaitId::Pid(child), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    !matches!(reaped, Ok(None))
}

/// How a child ended, leaving it to be reaped.
fn exit_of(child: Pid) -> Option<Exit> {
    let peek = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let status = waitid(WaitId::Pid(child), peek).ok()??;
    match status.terminating_signal() {
        Some(signal) => Some(Exit::Signal(signal)),
        None => status.exit_status().map(Exit::Code),
    }
}

/// Reaps all dead children. `true` if there is no other.
fn none_left() -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => {}
            Ok(None) => return false,
            Err(error) => return error == Errno::CHILD,
        }
    }
}

/// The tree of processes, as /proc shows it.
#[cfg(target_os = "linux")]
mod tree {
    use std::fs;
    use std::path::Path;

    use rustix::process::{Pid, PidfdFlags, Signal, getpid, kill_process, pidfd_open, pidfd_send_signal};

    /// The children of a process, the dead ones that are not yet reaped among them.
    pub fn children(process: Pid) -> Vec<Pid> {
        if Path::new("/proc/thread-self/children").exists() {
            listed_children(process)
        } else {
            searched_children(process)
        }
    }

    fn listed_children(process: Pid) -> Vec<Pid> {
        let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else {
            return Vec::new();
        };
        let lists = threads.flatten().filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
        lists.flat_map(|list| list.split_whitespace().filter_map(parse).collect::<Vec<_>>()).collect()
    }

    /// For kernels that were built without the lists (`CONFIG_PROC_CHILDREN`): slower, as it reads all of /proc.
    fn searched_children(process: Pid) -> Vec<Pid> {
        let Ok(entries) = fs::read_dir("/proc") else {
            return Vec::new();
        };
        entries
            .flatten()
            .filter_map(|entry| parse(entry.file_name().to_str()?))
            .filter(|&other| parent(other) == Some(process))
            .collect()
    }

    /// Every process below this one.
    pub fn descendants() -> Vec<Pid> {
        let mut found = children(getpid());
        let mut next = 0;
        while let Some(&process) = found.get(next) {
            found.extend(children(process));
            next += 1;
        }
        found
    }

    /// Signals a descendant, unless its number has passed to another process since it was found. It may have died,
    /// or be another user's: both show when it is waited for.
    pub fn signal(process: Pid, signals: &[Signal]) {
        if parent(process) == Some(getpid()) {
            // Nobody but us can reap our child, so the number stays its own.
            for &signal in signals {
                let _ = kill_process(process, signal);
            }
        } else if let Ok(pinned) = pidfd_open(process, PidfdFlags::empty())
            && is_below_us(process)
        {
            for &signal in signals {
                let _ = pidfd_send_signal(&pinned, signal);
            }
        }
    }

    fn is_below_us(process: Pid) -> bool {
        let us = getpid();
        std::iter::successors(parent(process), |&ancestor| parent(ancestor)).any(|ancestor| ancestor == us)
    }

    fn parent(process: Pid) -> Option<Pid> {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // "pid (name) state parent …", and the name may hold anything.
        let (_, after_name) = stat.rsplit_once(')')?;
        parse(after_name.split_whitespace().nth(1)?)
    }

    fn parse(number: &str) -> Option<Pid> {
        Pid::from_raw(number.parse().ok()?)
    }

    #[cfg(test)]
    mod tests {
        use std::process::Command;

        use super::*;

        #[test]
        fn both_ways_of_looking_find_a_child() {
            let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
            let pid = Pid::from_child(&child);
            let found = [children(getpid()), listed_children(getpid()), searched_children(getpid())];
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(found.iter().all(|found| found.contains(&pid)), "{pid} in {found:?}");
        }
    }
}

/// Without /proc nothing is found.
#[cfg(not(target_os = "linux"))]
mod tree {
    use rustix::process::{Pid, Signal};

    pub fn children(_: Pid) -> Vec<Pid> {
        Vec::new()
    }

    pub fn descendants() -> Vec<Pid> {
        Vec::new()
    }

    pub fn signal(_: Pid, _: &[Signal]) {}
}
