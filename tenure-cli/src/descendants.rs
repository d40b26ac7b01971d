//! Finds, signals and reaps every process below this one, but those that were there before CMD: a shell that became
//! this process by `exec` has left its own children to us.
//!
//! This process must be a subreaper: whatever daemonises below it then becomes its child. On systems
//! other than Linux there is no such thing: only CMD's process group is reached, and whoever left it is not.

use std::collections::{HashMap, HashSet};
use std::io;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions};
use rustix::process::{getpid, kill_process, kill_process_group, wait, waitid};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

use crate::link::Exit;

#[cfg(target_os = "linux")]
mod tree;

/// How often those are tried again that didn't die of SIGKILL at once.
const RETRY: Duration = Duration::from_millis(10);

/// How many times in a row newly born processes are looked for before the killing goes on without.
const FREEZE_ROUNDS: usize = 100;

/// Looks whether a child is dead and leaves it to be reaped.
const PEEK: WaitIdOptions = WaitIdOptions::EXITED.union(WaitIdOptions::NOHANG).union(WaitIdOptions::NOWAIT);

/// Everything of CMD's below this process, which nobody else in it may wait for.
#[derive(Debug)]
pub struct Descendants {
    /// CMD. It is reaped last: until then its number is nobody else's, and the group that it leads can be signalled
    /// without a risk.
    first: Option<Pid>,
    exit: Option<Exit>,
    /// Those that are not CMD's, with the time of their birth: a number may pass to another process. They are neither
    /// signalled nor reaped, nor is what is below them.
    spared: HashMap<Pid, u64>,
    deaths: tokio::signal::unix::Signal,
}

impl Descendants {
    /// Starts to watch for the deaths of children. What is there already will be spared.
    pub fn new() -> io::Result<Self> {
        let deaths = signal(SignalKind::child())?;
        Ok(Self { first: None, exit: None, spared: births(tree::descendants(|_| false)), deaths })
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

    /// Spares all but the watchdog and what is below it, if it lives: CMD's orphans are then its children, and those
    /// that have become ours come from somebody else.
    pub fn spare_all_but(&mut self, watchdog: Pid) {
        let others = births(tree::descendants(|process| process == watchdog));
        // Asked afterwards: had it been dead before, CMD's orphans could be among the others.
        if is_running(watchdog) {
            self.spared = others;
        }
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

    /// Sends these signals to each process of CMD's.
    pub fn signal(&self, signals: &[Signal]) {
        if cfg!(not(target_os = "linux")) {
            signals.iter().for_each(|&signal| self.signal_group(signal));
        }
        // All are found before the first is signalled: the children of one that dies change their parent.
        for process in self.all() {
            tree::signal(process, signals);
        }
    }

    /// Stops all, so that nobody forks while they are killed one by one. In a storm of forks a death would
    /// only make room for the next birth.
    fn freeze(&self) {
        let mut seen = HashSet::new();
        for _ in 0..FREEZE_ROUNDS {
            let mut new = self.all();
            new.retain(|&process| seen.insert(process));
            if new.is_empty() {
                return;
            }
            for process in new {
                tree::signal(process, &[Signal::STOP]);
            }
        }
    }

    /// Reaps the dead. `true` when nothing of CMD's is left below this process.
    pub fn settle(&mut self) -> bool {
        if let Some(command) = self.first {
            self.exit = exit_of(command);
        }
        let mut others = tree::children(getpid());
        others.retain(|&child| Some(child) != self.first && !self.is_spared(child) && !reap(child));
        if !others.is_empty() || (self.first.is_some() && self.exit.is_none()) {
            return false;
        }
        if cfg!(not(target_os = "linux")) {
            self.signal_group(Signal::KILL);
        }
        self.first = None;
        // Those who died meanwhile may have left us children that are not in the list.
        if self.spared.is_empty() { no_child_left() } else { self.only_spared_left() }
    }

    /// As `no_child_left`, which would reap the spared ones too, and wait for them.
    fn only_spared_left(&self) -> bool {
        let children = tree::children(getpid());
        // The spared ones stay there, dead or alive: without them the list could not be read.
        !children.is_empty() && children.into_iter().all(|child| self.is_spared(child))
    }

    /// Kills one child and returns when it is dead. Cancel safe.
    pub async fn kill_child(&mut self, child: Pid) {
        while !reap(child) {
            let _ = kill_process(child, Signal::KILL);
            let _ = timeout(RETRY, self.death()).await;
        }
    }

    /// Kills everything of CMD's below this process and returns when all of it is dead. Cancel safe: begins afresh.
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

    /// All of CMD's processes.
    fn all(&self) -> Vec<Pid> {
        tree::descendants(|process| self.is_spared(process))
    }

    fn is_spared(&self, process: Pid) -> bool {
        self.spared.get(&process).is_some_and(|&birth| tree::birth(process) == Some(birth))
    }
}

fn births(processes: Vec<Pid>) -> HashMap<Pid, u64> {
    processes.into_iter().filter_map(|process| Some((process, tree::birth(process)?))).collect()
}

fn is_running(child: Pid) -> bool {
    matches!(waitid(WaitId::Pid(child), PEEK), Ok(None))
}

/// Reaps one child if it is dead.
fn reap(child: Pid) -> bool {
    let reaped = waitid(WaitId::Pid(child), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    !matches!(reaped, Ok(None))
}

/// How a child ended, leaving it to be reaped.
fn exit_of(child: Pid) -> Option<Exit> {
    let status = waitid(WaitId::Pid(child), PEEK).ok()??;
    match status.terminating_signal() {
        Some(signal) => Some(Exit::Signal(signal)),
        None => status.exit_status().map(Exit::Code),
    }
}

/// Reaps all dead children. `true` if there is no other.
fn no_child_left() -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => {}
            Ok(None) => return false,
            Err(error) => return error == Errno::CHILD,
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

    pub fn descendants(_: impl Fn(Pid) -> bool) -> Vec<Pid> {
        Vec::new()
    }

    pub fn birth(_: Pid) -> Option<u64> {
        None
    }

    pub fn signal(_: Pid, _: &[Signal]) {}
}
