//! The side of `tenure run`: starts the watchdog with CMD below it, tells it each new deadline, and learns
//! when CMD and everything below it is dead.
//!
//! Whichever of the two processes is killed or stopped, the other one kills CMD's whole tree in time. If both are
//! killed, CMD dies too, but not what is below it. Out of reach are a machine or cgroup that is frozen as a whole,
//! processes of another user, and work that CMD handed to somebody else's process (a container daemon, a service
//! manager). Fencing is for those.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow, Signal::SIGCHLD};
use rustix::fs::{FileType, fstat};
use rustix::process::{Pid, Signal, kill_current_process_group};
use rustix::stdio::{stdin, stdout};
use tokio::net::UnixStream;
use tokio::time::sleep;

use crate::descendants::Descendants;
pub use crate::link::{Ended, Exit, Stop};
use crate::link::{GRACE, Order, TICK, boot_time, kill_margin, next_frame, send_frame, send_with_fd};
use crate::shim::{Ground, SHIM, shim_main};
use crate::terminal::Lent;
use crate::watchdog::{WATCHDOG, watchdog_main};

/// How long a living watchdog takes at most to do what it is told to do at once.
const REACTION: Duration = Duration::from_secs(1);

/// Runs as the watchdog or the shim if this process was started as one of them. To be asked before
/// anything else in `main`.
pub fn helper_main() -> Option<ExitCode> {
    let mut args = env::args_os().skip(1);
    let first = args.next()?;
    if first == WATCHDOG {
        Some(watchdog_main(args))
    } else if first == SHIM {
        Some(shim_main(args))
    } else {
        None
    }
}

/// A command to start this very binary again, also when its file has been replaced since.
pub fn this_binary() -> io::Result<Command> {
    let path = env::current_exe()?;
    let path = if path.exists() { &path } else { Path::new("/proc/self/exe") };
    let mut command = Command::new(path);
    command.arg0("tenure");
    Ok(command)
}

/// Who hears ctrl-C, if there is a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keyboard {
    /// CMD alone, which has the terminal to itself, unless the rest of a pipeline needs it too.
    Lent,
    /// This process too.
    Shared,
}

/// CMD, running under a watchdog.
///
/// This process becomes a subreaper. Children that it had before are left alone, but it must start no others. It must
/// be one that SIGINT doesn't kill: a ctrl-C that ended CMD reaches the rest of this process's group too, when this is
/// dropped.
///
/// Dropped before the end, CMD is stopped gently, and nobody waits for that.
#[derive(Debug)]
pub struct Supervised {
    link: UnixStream,
    below: Descendants,
    watchdog: Pid,
    ground: Ground,
    lent: Option<Lent>,
    interrupted: bool,
    ttl: Duration,
    deadline: Duration,
    /// When the watchdog, told to end CMD, must have done so.
    obeyed_by: Option<Duration>,
    ended: Option<Ended>,
}

impl Supervised {
    /// Starts the watchdog, and CMD below it with `env` added to its environment. `deadline` is when the
    /// term ends, on the clock that counts since boot.
    ///
    /// A CMD that can't be run is not an error here: a line on standard error says why, and it ends with 126 or 127.
    ///
    /// # Errors
    ///
    /// If no process can be started.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn start(
        command: &[OsString],
        env: &[(String, String)],
        ttl: Duration,
        deadline: Duration,
        keyboard: Keyboard,
    ) -> io::Result<Self> {
        Descendants::adopt()?;
        let below = Descendants::new()?;
        let lent = Lent::prepare();
        let ground = match &lent {
            None => Ground::Background,
            Some(_) if keyboard == Keyboard::Shared || is_in_pipeline() => Ground::Shared,
            Some(_) => Ground::Foreground,
        };
        let (ours, theirs) = net::UnixStream::pair()?;
        send_with_fd(&ours, Order::Deadline(deadline).encode(), stdin())?;
        let mut helper = this_binary()?;
        helper
            .args([WATCHDOG, &ttl.as_nanos().to_string(), ground.as_str()])
            .args(command)
            .envs(env.iter().cloned())
            .stdin(OwnedFd::from(theirs));
        ours.set_nonblocking(true)?;
        let link = UnixStream::from_std(ours)?;
        // Last, so that an error means that nothing was started.
        let watchdog = spawn_blocked(&mut helper)?;
        Ok(Self {
            link,
            below,
            watchdog,
            ground,
            lent,
            interrupted: false,
            ttl,
            deadline,
            obeyed_by: None,
            ended: None,
        })
    }

    /// Tells the watchdog that the term has been extended.
    ///
    /// # Errors
    ///
    /// If the watchdog is dead or doesn't listen. [`ended`](Self::ended) will say so too.
    pub fn extend(&mut self, deadline: Duration) -> io::Result<()> {
        self.order(Order::Deadline(deadline))?;
        self.deadline = deadline;
        Ok(())
    }

    /// Passes a signal on to CMD's process group.
    ///
    /// # Errors
    ///
    /// As [`extend`](Self::extend).
    pub fn signal(&mut self, signal: i32) -> io::Result<()> {
        let from_keyboard = [Signal::INT.as_raw(), Signal::QUIT.as_raw()].contains(&signal);
        if self.ground == Ground::Shared && from_keyboard {
            // The terminal has sent it to CMD as well.
            return Ok(());
        }
        self.order(Order::Signal(signal))
    }

    /// Ends CMD and everything below it. Await [`ended`](Self::ended) afterwards.
    ///
    /// # Errors
    ///
    /// As [`extend`](Self::extend).
    pub fn stop(&mut self, how: Stop) -> io::Result<()> {
        let grace = match how {
            Stop::Gently => GRACE,
            Stop::Now => Duration::ZERO,
        };
        let by = boot_time() + grace + REACTION;
        self.obeyed_by = Some(self.obeyed_by.map_or(by, |earlier| earlier.min(by)));
        self.order(Order::Stop(how))
    }

    /// Waits until CMD and everything below it is dead, and takes the terminal back.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe. Called again after the end, it gives the same answer.
    pub async fn ended(&mut self) -> Ended {
        let ended = match self.ended {
            Some(ended) => ended,
            None => self.report().await,
        };
        self.ended = Some(ended);
        match ended {
            // The watchdog has seen all the others die, and has nothing left to do.
            Ended::Exited(_) => self.below.kill_child(self.watchdog).await,
            Ended::Overdue | Ended::Unguarded => self.below.kill().await,
        }
        self.take_back(ended);
        ended
    }

    /// What the watchdog says, or what its silence means.
    async fn report(&mut self) -> Ended {
        loop {
            let pause = self.own_kill_at().saturating_sub(boot_time()).min(TICK);
            tokio::select! {
                biased;
                frame = next_frame(&self.link) => return Ended::decode(frame),
                () = sleep(pause) => {}
            }
            // Now and then: once the watchdog is dead, its orphans can't be told from those of others.
            self.below.spare_all_but(self.watchdog);
            let now = boot_time();
            if now >= self.own_kill_at() {
                return Ended::Overdue;
            }
            if self.obeyed_by.is_some_and(|by| now >= by) {
                return Ended::Unguarded;
            }
        }
    }

    /// When this process kills everything itself. The watchdog was due earlier, so somebody must have stopped it.
    fn own_kill_at(&self) -> Duration {
        self.deadline.saturating_sub(kill_margin(self.ttl) / 2)
    }

    fn take_back(&mut self, ended: Ended) {
        let Some(lent) = self.lent.take() else { return };
        self.interrupted =
            self.ground == Ground::Foreground && ended == Ended::Exited(Exit::Signal(Signal::INT.as_raw()));
        // Nothing can be done about a terminal that has gone.
        let _ = lent.take_back();
        if !matches!(ended, Ended::Exited(Exit::Code(_))) {
            let _ = lent.reset();
        }
    }

    fn order(&self, order: Order) -> io::Result<()> {
        send_frame(&self.link, order.encode())
    }
}

impl Drop for Supervised {
    /// A script or a loop around CMD would have had the ctrl-C too, if CMD hadn't had the terminal. It gets it now and
    /// not earlier, when this process had still to give the name back.
    fn drop(&mut self) {
        if self.interrupted {
            let _ = kill_current_process_group(Signal::INT);
        }
    }
}

/// Whether others in our process group may need the terminal while CMD runs, such as a pager that reads from us.
fn is_in_pipeline() -> bool {
    let is_pipe = |fd| fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_fifo());
    is_pipe(stdin()) || is_pipe(stdout())
}

/// Starts a process that has all signals blocked but SIGCHLD from its first instruction on.
fn spawn_blocked(command: &mut Command) -> io::Result<Pid> {
    let mut blocked = SigSet::all();
    blocked.remove(SIGCHLD);
    let before = blocked.thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let spawned = command.spawn();
    before.thread_set_mask()?;
    spawned.map(|child| Pid::from_child(&child))
}
