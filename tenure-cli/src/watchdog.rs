//! The watchdog: CMD's parent, a process of its own that ends CMD and everything below it before the term
//! can pass to another, also when `tenure run` itself is killed or stopped.
//!
//! It was born with all signals blocked but SIGCHLD, so that neither ctrl-C, a hangup nor a service manager's
//! SIGTERM to the whole unit ends it before CMD.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;
use std::time::Duration;

use rustix::process::{Pid, Signal, setpgid, setsid};
use rustix::stdio::stdin;
use tokio::net::UnixStream;
use tokio::time::sleep;

use crate::descendants::Descendants;
use crate::link::{Ended, Exit, Frame, GRACE, Order, Stop, TICK};
use crate::link::{boot_time, kill_margin, next_frame, receive_with_fd, send_frame};
use crate::shim::{Ground, SHIM, cannot_run};
use crate::supervise::this_binary;
use crate::terminal::Terminal;

/// The first argument that makes this binary the watchdog.
pub const WATCHDOG: &str = "__watchdog";

/// Its name among the processes, unlike that of `tenure run`: `killall tenure` or `pkill tenure`, which looks for a part
/// of the name, must not hit both.
#[cfg(target_os = "linux")]
const COMM: &std::ffi::CStr = c"tnr-watchdog";

/// What it was started with.
struct Task {
    ttl: Duration,
    ground: Ground,
    command: Vec<OsString>,
}

/// Runs with the arguments `TTL GROUND CMD…` (the TTL in nanoseconds) and a socket to
/// `tenure run` as standard input.
pub fn watchdog_main(args: impl Iterator<Item = OsString>) -> ExitCode {
    // It does its work under any name.
    #[cfg(target_os = "linux")]
    let _ = nix::sys::prctl::set_name(COMM);
    let result = Task::parse(args).ok_or_else(|| io::Error::other("it is for tenure's own use")).and_then(|task| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(task.run())
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tenure: {WATCHDOG}: {error}");
            ExitCode::from(64)
        }
    }
}

impl Task {
    fn parse(mut args: impl Iterator<Item = OsString>) -> Option<Self> {
        Some(Self {
            ttl: Duration::from_nanos(args.next()?.to_str()?.parse().ok()?),
            ground: Ground::parse(&args.next()?)?,
            command: args.collect(),
        })
        .filter(|task| !task.command.is_empty())
    }

    async fn run(self) -> io::Result<()> {
        let link = net::UnixStream::from(stdin().try_clone_to_owned()?);
        let (first, input) = receive_with_fd(&link)?;
        link.set_nonblocking(true)?;
        let mut watchdog = Watchdog {
            link: Some(UnixStream::from_std(link)?),
            below: Descendants::new()?,
            ttl: self.ttl,
            deadline: Duration::ZERO,
            kill_at: None,
            overdue: false,
        };
        watchdog.obey(Some(first));
        let ended = watchdog.guard(&self, input).await?;
        watchdog.report(ended);
        Ok(())
    }

    fn spawn(&self, input: OwnedFd) -> io::Result<Pid> {
        let mut shim = this_binary()?;
        shim.args([SHIM, &std::process::id().to_string(), self.ground.as_str()]).args(&self.command).stdin(input);
        if self.ground != Ground::Shared {
            shim.process_group(0);
        }
        Ok(Pid::from_child(&shim.spawn()?))
    }
}

struct Watchdog {
    /// `None` once `tenure run` is gone.
    link: Option<UnixStream>,
    below: Descendants,
    ttl: Duration,
    deadline: Duration,
    /// Set when CMD has been told to end. That is never called off: CMD may be half shut down already.
    kill_at: Option<Duration>,
    overdue: bool,
}

impl Watchdog {
    /// Runs CMD and returns when it and everything below it is dead.
    async fn guard(&mut self, task: &Task, input: OwnedFd) -> io::Result<Ended> {
        if boot_time() >= self.last_moment() {
            return Ok(Ended::Overdue);
        }
        Descendants::adopt()?;
        match task.spawn(input) {
            Ok(command) => self.below.start_with(command),
            Err(error) => {
                let code = cannot_run(&task.command[0], &error);
                return Ok(Ended::Exited(Exit::Code(code.into())));
            }
        }
        step_aside()?;
        self.watch().await;
        Ok(match self.below.exit() {
            Some(exit) if !self.overdue => Ended::Exited(exit),
            _ => Ended::Overdue,
        })
    }

    async fn watch(&mut self) {
        while !self.below.settle() {
            let now = boot_time();
            if self.below.exit().is_some() {
                self.stop(now + GRACE);
            }
            if self.kill_at.is_none() && now >= self.at_risk() {
                self.overdue = true;
                self.stop(self.last_moment());
            }
            if self.kill_at.is_some_and(|at| now >= at) {
                return self.below.kill().await;
            }
            let next = self.kill_at.unwrap_or(self.at_risk());
            self.wait(next.saturating_sub(now).min(TICK)).await;
        }
    }

    async fn wait(&mut self, pause: Duration) {
        tokio::select! {
            frame = hear(self.link.as_ref()) => self.obey(frame),
            () = self.below.death() => {}
            () = sleep(pause) => {}
        }
    }

    fn obey(&mut self, frame: Option<Frame>) {
        match frame.and_then(Order::decode) {
            Some(Order::Deadline(deadline)) => self.deadline = deadline,
            Some(Order::Signal(number)) => {
                if let Some(signal) = Signal::from_named_raw(number) {
                    self.below.signal_group(signal);
                }
            }
            Some(Order::Stop(Stop::Gently)) => self.stop(boot_time() + GRACE),
            Some(Order::Stop(Stop::Now)) => self.kill_at = Some(Duration::ZERO),
            None => {
                self.link = None;
                self.stop(boot_time() + GRACE);
            }
        }
    }

    /// Tells everything below to end, once, and sets the time when patience ends.
    fn stop(&mut self, kill_at: Duration) {
        let kill_at = kill_at.min(self.last_moment());
        if let Some(earlier) = self.kill_at {
            self.kill_at = Some(earlier.min(kill_at));
            return;
        }
        self.kill_at = Some(kill_at);
        // One that is stopped would not see the first without the second.
        self.below.signal(&[Signal::TERM, Signal::CONT]);
    }

    /// When CMD is told to end if there was no extension.
    fn at_risk(&self) -> Duration {
        self.deadline.saturating_sub(self.ttl / 3)
    }

    /// When CMD is killed, whatever it is doing.
    fn last_moment(&self) -> Duration {
        self.deadline.saturating_sub(kill_margin(self.ttl))
    }

    fn report(&self, ended: Ended) {
        if let Some(link) = &self.link {
            // If nobody listens, nobody needs to know.
            let _ = send_frame(link, ended.encode());
        }
    }
}

/// Leaves the process group, so that a SIGKILL to all of it leaves us to our work; and the session if it has a
/// terminal. CMD, which stays there, then has no parent in it, and for such an orphan the kernel drops ctrl-Z and refuses
/// reads in the background: nothing stops CMD for ever while the name is held.
///
/// Without a terminal the session is not left for nothing: a new one is a new group to the scheduler (autogroup),
/// and on a machine short of processor time it was seen to wait for seconds (Linux 6.18).
fn step_aside() -> io::Result<()> {
    if Terminal::open().is_ok() {
        setsid()?;
    } else {
        setpgid(None, None)?;
    }
    Ok(())
}

/// The next frame; `None`, once, when `tenure run` is gone.
async fn hear(link: Option<&UnixStream>) -> Option<Frame> {
    match link {
        Some(link) => next_frame(link).await,
        None => std::future::pending().await,
    }
}
