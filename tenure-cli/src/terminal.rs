//! The terminal, which is lent to CMD while it runs, as a shell lends it to a job.

use std::fs::File;
use std::io;

use nix::sys::signal::{SigSet, Signal};
use rustix::process::{getpgrp, test_kill_process_group};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

/// The terminal that controls this session.
#[derive(Debug)]
pub struct Terminal(File);

/// The terminal while CMD has it, and how it was set before.
#[derive(Debug)]
pub struct Lent {
    terminal: Terminal,
    modes: Termios,
}

impl Terminal {
    /// Opens it, whatever standard input and output are. An error means that there is none.
    pub fn open() -> io::Result<Self> {
        File::options().read(true).write(true).open("/dev/tty").map(Self)
    }

    /// Makes this process's group the one that reads from the terminal and gets its ctrl-C. SIGTTOU must be blocked,
    /// else it stops whoever isn't in that group yet.
    pub fn take(&self) -> io::Result<()> {
        Ok(tcsetpgrp(&self.0, getpgrp())?)
    }

    fn is_ours(&self) -> bool {
        tcgetpgrp(&self.0).is_ok_and(|foreground| foreground == getpgrp())
    }

    /// Whether the group that has the terminal is dead.
    fn is_abandoned(&self) -> bool {
        tcgetpgrp(&self.0).map_or(true, |foreground| test_kill_process_group(foreground).is_err())
    }
}

impl Lent {
    /// The terminal, if there is one and it is ours to lend. CMD's shim takes it.
    pub fn prepare() -> Option<Self> {
        let terminal = Terminal::open().ok().filter(Terminal::is_ours)?;
        let modes = tcgetattr(&terminal.0).ok()?;
        // For as long as CMD has it, we could be stopped for writing to it, and in the end for taking it back.
        let mut stops = SigSet::empty();
        stops.add(Signal::SIGTTOU);
        stops.thread_block().ok()?;
        Some(Self { terminal, modes })
    }

    /// Takes it back after CMD's death. In a pipeline another's CMD may have it by now, and keeps it.
    pub fn take_back(&self) -> io::Result<()> {
        if self.terminal.is_abandoned() { self.terminal.take() } else { Ok(()) }
    }

    /// Sets it as it was before, for a CMD that had no time to do so.
    pub fn reset(&self) -> io::Result<()> {
        Ok(tcsetattr(&self.terminal.0, OptionalActions::Now, &self.modes)?)
    }
}
