//! The exec shim: becomes CMD after it has set what only the process itself can set.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::thread::sleep;
use std::time::Duration;

use nix::sys::signal::SigSet;
use rustix::process::{Pid, getpgid, getppid};

use crate::terminal::Terminal;

/// The first argument that makes this binary the shim.
pub const SHIM: &str = "__exec";

/// CMD's place among the jobs of its terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ground {
    /// A process group of its own, which gets the terminal.
    Foreground,
    /// A process group of its own. There is no terminal, or it is somebody else's.
    Background,
    /// The process group of `tenure run`, which has the terminal together with the rest of a pipeline.
    Shared,
}

impl Ground {
    const ALL: [Self; 3] = [Self::Foreground, Self::Background, Self::Shared];

    /// As an argument.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Foreground => "foreground",
            Self::Background => "background",
            Self::Shared => "shared",
        }
    }

    /// From an argument.
    pub fn parse(argument: &OsStr) -> Option<Self> {
        Self::ALL.into_iter().find(|ground| argument == ground.as_str())
    }
}

/// Runs with the arguments `WATCHDOG-PID GROUND CMD…`; returns only if CMD can't be run.
pub fn shim_main(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let watchdog = args.next().and_then(|pid| Pid::from_raw(pid.to_str()?.parse().ok()?));
    let ground = args.next().and_then(|ground| Ground::parse(&ground));
    let (Some(watchdog), Some(ground), Some(program)) = (watchdog, ground, args.next()) else {
        eprintln!("tenure: {SHIM} is for tenure's own use");
        return ExitCode::from(64);
    };
    let error = match prepare(watchdog, ground) {
        Ok(()) => Command::new(&program).args(args).exec(),
        Err(error) => error,
    };
    ExitCode::from(cannot_run(&program, &error))
}

fn prepare(watchdog: Pid, ground: Ground) -> io::Result<()> {
    die_with(watchdog)?;
    part_from(watchdog)?;
    if ground == Ground::Foreground {
        // The terminal may just have gone, and CMD can do without.
        let _ = Terminal::open().and_then(|terminal| terminal.take());
    }
    // All are blocked until here, as they are in the watchdog.
    Ok(SigSet::empty().thread_set_mask()?)
}

/// Ties this process, and CMD after it, to the life of the watchdog.
fn die_with(watchdog: Pid) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    // It may have died before the signal was set.
    if getppid() == Some(watchdog) { Ok(()) } else { Err(io::Error::other("the watchdog is dead")) }
}

/// Waits until the watchdog has stepped aside, which it does at once after starting us: CMD must not touch the
/// terminal before.
fn part_from(watchdog: Pid) -> io::Result<()> {
    while getpgid(Some(watchdog))? != watchdog {
        sleep(Duration::from_micros(50));
    }
    Ok(())
}

/// Says why CMD didn't start, and answers as a shell does.
pub fn cannot_run(program: &OsStr, error: &io::Error) -> u8 {
    let reason = error.to_string();
    let reason = reason.split(" (os error").next().unwrap_or_default();
    eprintln!("tenure: {}: {reason}", program.display());
    if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 }
}
