//! The signals that `tenure` passes on to the command that it runs.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind, signal};

/// What asks a program to end.
const ENDING: [Signal; 4] = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM];
/// What a program may have its own use for.
const OTHERS: [Signal; 5] = [Signal::USR1, Signal::USR2, Signal::WINCH, Signal::CONT, Signal::ALARM];

/// The signals that this process receives, one after the other.
#[derive(Debug)]
pub struct Signals {
    caught: Vec<(Signal, unix::Signal)>,
    last_ending: Option<Signal>,
}

impl Signals {
    /// Catches all that can be passed on, but those that this process was started to ignore (`nohup`, a script's
    /// background job): they stay ignored, for the command too.
    pub fn catch() -> io::Result<Self> {
        let ignored = ignored();
        let heard = ENDING.into_iter().chain(OTHERS).filter(|signal| !is_in(ignored, *signal));
        let catch = |number: Signal| Ok((number, signal(SignalKind::from_raw(number.as_raw()))?));
        Ok(Self { caught: heard.map(catch).collect::<io::Result<_>>()?, last_ending: None })
    }

    /// The next signal. Cancel safe.
    pub async fn next(&mut self) -> Signal {
        poll_fn(|context| self.poll(context)).await
    }

    /// The next signal that asks to end. Cancel safe.
    pub async fn next_ending(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if ENDING.contains(&signal) {
                return signal;
            }
        }
    }

    /// Takes note of what has arrived by now: the command that it was for is no more.
    pub async fn drain(&mut self) {
        poll_fn(|context| {
            while self.poll(context).is_ready() {}
            Poll::Ready(())
        })
        .await;
    }

    /// The last signal that asked to end, whoever was told of it.
    pub fn last_ending(&self) -> Option<Signal> {
        self.last_ending
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Signal> {
        let arrived =
            |(_, stream): &mut (Signal, unix::Signal)| matches!(stream.poll_recv(context), Poll::Ready(Some(())));
        let Some(index) = self.caught.iter_mut().position(arrived) else { return Poll::Pending };
        let signal = self.caught[index].0;
        if ENDING.contains(&signal) {
            self.last_ending = Some(signal);
        }
        Poll::Ready(signal)
    }
}

/// The set of signals that this process ignores, where the system tells.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or_default()
}

fn is_in(set: u64, signal: Signal) -> bool {
    set >> (signal.as_raw() - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_their_set() {
        // SIGHUP (1) and SIGPIPE (13).
        let set = 0x1001;
        assert!(is_in(set, Signal::HUP) && is_in(set, Signal::PIPE));
        assert!(!is_in(set, Signal::INT) && !is_in(set, Signal::TERM));
    }
}
