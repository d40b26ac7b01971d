//! `tenure lead`: campaigns for ever, and runs a command whenever it leads.

use std::future::{IntoFuture, pending};
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::process::Signal;
use tenure::{Events, Guard, Locks};
use tokio::time::sleep;

use super::run::{asked, tell_who_holds, warn_about_memory};
use crate::args::{Globals, Hold, Lead};
use crate::exit::{self, Failure};
use crate::hold::{Job, Outcome, hold};
use crate::news::News;
use crate::signals::Signals;
use crate::state;
use crate::supervise::{Exit, Keyboard};

/// The pause after CMD has ended, in which others may win. It doubles while CMD ends soon.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// The longest such pause: what was wrong with CMD may have been put right meanwhile.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A CMD that lasted this long has begun well, and the pauses start from the first again.
const LASTED: Duration = Duration::from_secs(10);

/// Runs the command in every term that is won, until a signal asks to end; returns the exit code.
pub async fn lead(args: &Lead, globals: &Globals) -> Result<u8> {
    let mut signals = Signals::catch()?;
    let news = News::new(globals);
    let locks = tokio::select! {
        signal = signals.next_ending() => return Ok(exit::by_signal(signal.as_raw())),
        locks = state::connect(globals) => locks?,
    };
    warn_about_memory(&locks, news);
    let mut pauses = Pauses::default();
    loop {
        let won = tokio::select! {
            biased;
            // Dropping the campaign withdraws it.
            signal = signals.next_ending() => return Ok(exit::by_signal(signal.as_raw())),
            won = campaign(&locks, &args.hold, news) => won,
        };
        let pause = match won {
            Ok((guard, events)) => {
                let began = Instant::now();
                // A CMD that handles ctrl-C and ends would be started again, for ever.
                let keyboard = Keyboard::Shared;
                let job = Job { command: &args.hold.command, ttl: args.hold.ttl, keyboard, news };
                let outcome = hold(guard, events, &mut signals, job).await?;
                if is_asked_to_end(&signals, &outcome) {
                    return last(outcome);
                }
                tell(&outcome, args, news);
                pauses.after(began.elapsed())
            }
            // It was tried for a TTL, and is to be noticed soon when the store is back.
            Err(error) if error.is_transient() => {
                news.warn(&format!("can't campaign for {}: {error}", args.hold.name));
                FIRST_PAUSE
            }
            Err(error) => return Err(error.into()),
        };
        tokio::select! {
            biased;
            signal = signals.next_ending() => return Ok(exit::by_signal(signal.as_raw())),
            () = sleep(pause) => {}
        }
    }
}

async fn campaign(locks: &Locks, options: &Hold, news: News) -> tenure::Result<(Guard, Events)> {
    let events = locks.events();
    let guard = tokio::select! {
        guard = asked(locks, options).into_future() => guard?,
        () = tell_who_holds(locks, &options.name, news) => pending().await,
    };
    Ok((guard, events))
}

/// SIGHUP tells many programs to read their settings again: it is meant to end this only if it has ended CMD.
fn is_asked_to_end(signals: &Signals, outcome: &Outcome) -> bool {
    match signals.last_ending() {
        Some(Signal::HUP) => matches!(outcome, Outcome::Ended(Exit::Signal(by)) if *by == Signal::HUP.as_raw()),
        last => last.is_some(),
    }
}

/// As `tenure run` would end.
fn last(outcome: Outcome) -> Result<u8> {
    match outcome {
        Outcome::Ended(exit) => Ok(exit.code()),
        Outcome::Lost(loss) => Err(Failure::new(exit::LOST, loss.to_string()).into()),
    }
}

/// A CMD that goes on failing must not do so unseen.
fn tell(outcome: &Outcome, args: &Lead, news: News) {
    match outcome {
        Outcome::Ended(exit) if exit.code() == exit::DONE => {}
        Outcome::Ended(exit) => {
            news.warn(&format!("{}: CMD ended with {}; campaigning again", args.hold.name, exit.code()))
        }
        Outcome::Lost(loss) => news.warn(&format!("{loss}; campaigning again")),
    }
}

#[derive(Debug, Default)]
struct Pauses {
    /// How many ended soon, one after the other.
    vain: u32,
}

impl Pauses {
    fn after(&mut self, lasted: Duration) -> Duration {
        self.vain = if lasted >= LASTED { 0 } else { self.vain + 1 };
        FIRST_PAUSE.saturating_mul(1 << self.vain.saturating_sub(1).min(16)).min(LONGEST_PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_while_the_command_ends_soon() {
        let mut pauses = Pauses::default();
        let mut after = |lasted| pauses.after(lasted);
        assert_eq!([after(Duration::ZERO), after(Duration::ZERO)], [FIRST_PAUSE, 2 * FIRST_PAUSE]);
        assert_eq!((0..30).map(|_| after(Duration::ZERO)).max(), Some(LONGEST_PAUSE));
        assert_eq!([after(LASTED), after(Duration::ZERO)], [FIRST_PAUSE, FIRST_PAUSE]);
    }
}
