//! What all servers have in common: they can be killed, paused, stopped and started again.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::home::Home;
use super::port::Port;
use super::processes;

/// To start, crash recovery included, on a busy machine.
const START_PATIENCE: Duration = Duration::from_secs(120);
/// To stop when asked to; then it is killed.
const STOP_PATIENCE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(30);

/// A server of our own, on the loopback address. Dropping it stops it and removes its data.
pub struct Server {
    /// Before `home`: a server is dead before its folder goes.
    run: Mutex<Run>,
    url: fn(u16) -> String,
    port: Port,
    stop: Signal,
    home: Home,
}

/// What differs between one kind of server and the other.
pub(super) struct Kind {
    /// Runs the server itself, in the foreground. Its folder is among the arguments: the keeper knows it by that.
    pub(super) launch: Command,
    /// Succeeds when the server answers.
    pub(super) probe: Command,
    /// Its URL at a port.
    pub(super) url: fn(u16) -> String,
    /// Stops it without waiting for clients.
    pub(super) stop: Signal,
}

struct Run {
    launch: Command,
    probe: Command,
    child: Option<Child>,
}

impl Server {
    pub(super) fn start(home: Home, port: Port, kind: Kind) -> Result<Self> {
        let run = Run { launch: kind.launch, probe: kind.probe, child: None };
        let server = Self { run: Mutex::new(run), url: kind.url, port, stop: kind.stop, home };
        server.restart()?;
        Ok(server)
    }

    /// The database `tenure`, with all rights.
    pub fn url(&self) -> String {
        self.url_at(self.port())
    }

    /// The same through another port: that of a proxy.
    pub fn url_at(&self, port: u16) -> String {
        (self.url)(port)
    }

    /// It stays the same over restarts, and belongs to nobody else in between.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The file that the server logs to.
    pub fn log(&self) -> PathBuf {
        self.home.log()
    }

    /// The process id of the server's first process, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.run().child.as_ref().map(Child::id)
    }

    /// Kills all its processes at once, as a crash of the machine would: `SIGKILL`.
    ///
    /// # Errors
    /// If one of them doesn't die.
    pub fn kill(&self) -> Result<()> {
        let mut run = self.run();
        if let Some(child) = &run.child {
            processes::kill_family(pid_of(child))?;
        }
        self.forget(&mut run)
    }

    /// Shuts it down in order; kills it if that takes too long.
    ///
    /// # Errors
    /// If one of its processes doesn't die.
    pub fn stop(&self) -> Result<()> {
        self.resume()?;
        let mut run = self.run();
        let Some(child) = &mut run.child else { return Ok(()) };
        processes::send(pid_of(child), self.stop)?;
        if !ends_within(STOP_PATIENCE, pid_of(child)) {
            processes::kill_family(pid_of(child))?;
        }
        self.forget(&mut run)
    }

    /// Stops the clocks of all its processes: connections stay open, and nothing is answered. `SIGSTOP`.
    ///
    /// # Errors
    /// If it is not running.
    pub fn pause(&self) -> Result<()> {
        let run = self.run();
        let child = run.child.as_ref().context("a server that is down can't be paused")?;
        processes::freeze(pid_of(child)).map(drop)
    }

    /// Lets it go on after a pause. `SIGCONT`.
    ///
    /// # Errors
    /// If the signal can't be sent.
    pub fn resume(&self) -> Result<()> {
        self.run().child.as_ref().map_or(Ok(()), |child| processes::thaw(pid_of(child)))
    }

    /// Starts it again, on the same data and port, and waits until it answers. If it still runs, it is killed first.
    ///
    /// # Errors
    /// If it doesn't come up; its log is in the error.
    pub fn restart(&self) -> Result<()> {
        self.kill()?;
        let mut run = self.run();
        let child = run.launch.spawn().with_context(|| format!("{:?}", run.launch))?;
        let pid = pid_of(&child);
        run.child = Some(child);
        self.home.keep(Some(pid))?;
        self.wait_until_it_answers(&mut run)
    }

    fn wait_until_it_answers(&self, run: &mut Run) -> Result<()> {
        let start = Instant::now();
        while !answers(&mut run.probe)? {
            let ended = run.child.as_ref().is_none_or(|child| processes::has_ended(pid_of(child)));
            if ended || start.elapsed() > START_PATIENCE {
                bail!("{:?} doesn't come up:\n{}", run.launch, self.home.end_of_log());
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Runs a command of the server's to its end, such as one that changes its data.
    pub(super) fn run_command(&self, command: &mut Command) -> Result<()> {
        self.home.run(command)
    }

    pub(super) fn home(&self) -> &Home {
        &self.home
    }

    /// The keeper first: once a process is waited for, its id may become a stranger's.
    fn forget(&self, run: &mut Run) -> Result<()> {
        if let Some(mut child) = run.child.take() {
            let told = self.home.keep(None);
            child.wait()?;
            told?;
        }
        Ok(())
    }

    fn run(&self) -> MutexGuard<'_, Run> {
        self.run.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            eprintln!("a server may be left behind: {error:#}");
        }
    }
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(child.id().cast_signed())
}

/// It is not waited for yet: so its id stays its own.
fn ends_within(patience: Duration, pid: Pid) -> bool {
    let start = Instant::now();
    while !processes::has_ended(pid) {
        if start.elapsed() > patience {
            return false;
        }
        std::thread::sleep(POLL);
    }
    true
}

/// A server that is not up yet says so at length, many times: not into the log.
fn answers(probe: &mut Command) -> Result<bool> {
    let status = probe.stdout(Stdio::null()).stderr(Stdio::null()).status();
    Ok(status.with_context(|| format!("{probe:?}"))?.success())
}
