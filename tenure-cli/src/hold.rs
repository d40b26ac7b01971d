//! Holds a name while a command runs: the part that everything that runs commands has in common.
//!
//! The name is given back only when the command and everything below it is confirmed dead.

use std::ffi::OsString;
use std::fmt;

use anyhow::{Context, Result};
use rustix::process::Signal;
use tenure::{Error, Event, EventKind, Events, Guard, Lost, LostSignal, Name, Next, Status, Token, Ttl, Why};

use crate::news::News;
use crate::signals::Signals;
use crate::supervise::{Ended, Exit, Keyboard, Stop, Supervised};

/// What runs while the name is held.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The command with its arguments.
    pub command: &'a [OsString],
    /// The TTL that the name was acquired with.
    pub ttl: Ttl,
    /// Who hears ctrl-C.
    pub keyboard: Keyboard,
    /// Where to say what happens.
    pub news: News,
}

/// How it went; in either case the command and everything below it is dead, and the name was given back as far as possible.
#[derive(Debug)]
pub enum Outcome {
    /// The command ended while the name was held.
    Ended(Exit),
    /// The name was lost first.
    Lost(Loss),
}

/// What was lost, and why.
#[derive(Debug)]
pub struct Loss {
    pub name: Name,
    pub token: Token,
    pub why: String,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lost {} (token {}): {}", self.name, self.token, self.why)
    }
}

/// Runs the command, passes signals on to it, ends it when the name is lost, and gives the name back when it is dead.
///
/// `events` are those of the guard's process, from before the name was acquired.
pub async fn hold(guard: Guard, events: Events, signals: &mut Signals, job: Job<'_>) -> Result<Outcome> {
    job.news.acquired(&guard);
    let mut holding = Holding::start(guard, events, job)?;
    let ended = holding.watch(signals).await;
    // A ctrl-C that ended the command may have come together with the news of it, and is not meant for what follows.
    signals.drain().await;
    Ok(holding.finish(ended, signals).await)
}

struct Holding {
    /// `None` once it was given back.
    guard: Option<Guard>,
    command: Supervised,
    loss: LostSignal,
    lost: Option<Lost>,
    events: Events,
    /// The last failure to renew.
    failure: Option<Error>,
    news: News,
}

impl Holding {
    fn start(guard: Guard, events: Events, job: Job<'_>) -> Result<Self> {
        let env = environment(&guard);
        let deadline = guard.deadline().since_boot();
        let command = Supervised::start(job.command, &env, job.ttl.get(), deadline, job.keyboard)
            .context("can't start the watchdog")?;
        let loss = guard.lost();
        Ok(Self { guard: Some(guard), command, loss, lost: None, events, failure: None, news: job.news })
    }

    async fn watch(&mut self, signals: &mut Signals) -> Ended {
        loop {
            tokio::select! {
                biased;
                ended = self.command.ended() => return ended,
                lost = &mut self.loss, if self.lost.is_none() => self.stop(lost),
                Some(next) = self.events.next() => self.note(&next),
                signal = signals.next() => self.pass_on(signal),
            }
        }
    }

    fn stop(&mut self, lost: Lost) {
        let how = match lost.why {
            // The record is still ours for what is left of the term.
            Why::HeldTooLong => Stop::Gently,
            _ => Stop::Now,
        };
        self.lost = Some(lost);
        // A watchdog that can't be told is dead, and so is the command; `ended` says so next. Likewise below.
        let _ = self.command.stop(how);
    }

    fn note(&mut self, next: &Next) {
        let Some(guard) = &self.guard else { return };
        match next {
            Next::Event(Event { name, .. }) if name != guard.name() => {}
            Next::Event(Event { kind: EventKind::RenewalFailed(error), .. }) => self.failure = Some(error.clone()),
            Next::Event(Event { kind: EventKind::AtRisk, .. }) => self.news.at_risk(guard, &self.last_failure()),
            Next::Event(Event { kind: EventKind::Renewed, .. }) | Next::Missed(_) => {
                let _ = self.command.extend(guard.deadline().since_boot());
            }
            Next::Event(_) => {}
        }
    }

    fn pass_on(&mut self, signal: Signal) {
        let _ = self.command.signal(signal.as_raw());
    }

    fn last_failure(&self) -> String {
        self.failure.as_ref().map_or_else(|| "no renewal was answered".into(), Error::to_string)
    }

    async fn finish(mut self, ended: Ended, signals: &mut Signals) -> Outcome {
        let why = self.why_lost(ended);
        let Some(guard) = self.guard.take() else { unreachable!("the guard is taken here only") };
        let (name, token) = (guard.name().clone(), guard.token());
        match (why, ended, release(guard, signals).await) {
            (None, Ended::Exited(exit), Released::Yes) => {
                self.news.released(&name, token);
                Outcome::Ended(exit)
            }
            (None, Ended::Exited(exit), Released::No(why)) => {
                self.news.not_released(&name, token, &why);
                Outcome::Ended(exit)
            }
            // Without a reason: lost between the last renewal and the end of the command.
            (why, _, Released::TooLate(then)) => self.lost(name, token, why.unwrap_or(then)),
            (why, ..) => self.lost(name, token, why.unwrap_or_default()),
        }
    }

    fn lost(&self, name: Name, token: Token, why: String) -> Outcome {
        self.news.lost(&name, token, &why);
        Outcome::Lost(Loss { name, token, why })
    }

    /// Why the name was lost before the command ended, if it was.
    fn why_lost(&self, ended: Ended) -> Option<String> {
        let guard = self.guard.as_ref()?;
        let lost = self.lost.clone().or_else(|| match guard.status() {
            Status::Lost(lost) => Some(lost),
            _ => None,
        });
        match (lost.map(|lost| lost.why), ended) {
            (Some(Why::Expired(None)), _) if !guard.remaining().is_zero() => {
                Some("the store has forgotten it: its data was lost, or its clock was set forward".into())
            }
            (Some(why), _) => Some(why.to_string()),
            (None, Ended::Overdue) => Some(format!("it could not be renewed in time: {}", self.last_failure())),
            (None, Ended::Unguarded) => Some("the watchdog was killed".into()),
            (None, Ended::Exited(_)) => None,
        }
    }
}

impl Drop for Holding {
    /// Left early, by a panic: then nobody knows whether the command is dead, and the name must expire by itself.
    fn drop(&mut self) {
        std::mem::forget(self.guard.take());
    }
}

/// What the command is told.
fn environment(guard: &Guard) -> [(String, String); 3] {
    [
        ("TENURE_NAME".into(), guard.name().to_string()),
        ("TENURE_TOKEN".into(), guard.token().to_string()),
        ("TENURE_OWNER".into(), guard.owner().into()),
    ]
}

/// What came of giving the name back.
enum Released {
    Yes,
    /// It was lost already, for this reason.
    TooLate(String),
    /// It expires by itself; the store could not be told, for this reason.
    No(String),
}

/// Gives the name back. A store that is gone is waited for until the term runs out, unless somebody is impatient.
async fn release(guard: Guard, signals: &mut Signals) -> Released {
    let released = tokio::select! {
        biased;
        released = guard.release() => released,
        _ = signals.next_ending() => return Released::No("interrupted by a signal".into()),
    };
    match released {
        Ok(()) => Released::Yes,
        Err(Error::Lost(lost)) => Released::TooLate(lost.why.to_string()),
        Err(error) => Released::No(error.to_string()),
    }
}
