//! `tenure run`: holds a name while a command runs.

use std::future::{IntoFuture, pending};
use std::time::Duration;

use anyhow::Result;
use tenure::{Error, Event, EventKind, Events, Guard, Lock, Locks, Name, Next, Record};

use crate::args::{Globals, Hold, Run};
use crate::exit::{self, Failure};
use crate::hold::{Job, Outcome, hold};
use crate::news::News;
use crate::output::{age, printable};
use crate::signals::Signals;
use crate::state;
use crate::supervise::Keyboard;

/// Acquires the name, runs the command, and returns the command's exit code.
pub async fn run(args: &Run, globals: &Globals) -> Result<u8> {
    let mut signals = Signals::catch()?;
    let news = News::new(globals);
    let acquired = tokio::select! {
        // Dropping the acquire withdraws it.
        signal = signals.next_ending() => return Ok(exit::by_signal(signal.as_raw())),
        acquired = acquire(args, globals, news) => acquired?,
    };
    let Acquired::Held { guard, events, .. } = acquired else { return Ok(exit::DONE) };
    let job = Job { command: &args.hold.command, ttl: args.hold.ttl, keyboard: Keyboard::Lent, news };
    match hold(guard, events, &mut signals, job).await? {
        Outcome::Ended(exit) => Ok(exit.code()),
        Outcome::Lost(loss) => Err(Failure::new(exit::LOST, loss.to_string()).into()),
    }
}

/// What came of asking.
enum Acquired {
    /// The name is ours. The `Locks` goes last, when everything was released.
    Held { guard: Guard, events: Events, _locks: Locks },
    /// Somebody has the name, and that is fine.
    Busy,
}

async fn acquire(args: &Run, globals: &Globals, news: News) -> Result<Acquired> {
    let locks = state::connect(globals).await?;
    warn_about_memory(&locks, news);
    let events = locks.events();
    let lock = asked(&locks, &args.hold);
    let lock = match (args.once, args.wait) {
        (true, _) => lock.wait(Duration::ZERO),
        (false, Some(wait)) => lock.wait(wait),
        (false, None) => lock,
    };
    let acquired = tokio::select! {
        acquired = lock.into_future() => acquired,
        () = tell_who_holds(&locks, &args.hold.name, news) => pending().await,
    };
    match acquired {
        Ok(guard) => Ok(Acquired::Held { guard, events, _locks: locks }),
        Err(Error::TimedOut { .. }) if args.busy_exit_code == exit::DONE => Ok(Acquired::Busy),
        Err(Error::TimedOut { name, holder, .. }) => {
            Err(Failure::new(args.busy_exit_code, busy(&name, holder.as_deref())).into())
        }
        Err(error) => Err(error.into()),
    }
}

/// It is for trying things out.
pub fn warn_about_memory(locks: &Locks, news: News) {
    if locks.about().store == "memory" {
        news.warn("memory: is known to this process only, and excludes nobody");
    }
}

/// The request, as the options of everything that holds have it.
pub fn asked(locks: &Locks, options: &Hold) -> Lock {
    let mut lock = locks.lock(&options.name).ttl(options.ttl.get()).grace(options.grace);
    if let Some(max_hold) = options.max_hold {
        lock = lock.max_hold(max_hold);
    }
    if let Some(data) = &options.data {
        lock = lock.data(data);
    }
    lock
}

fn busy(name: &Name, holder: Option<&Record>) -> String {
    match holder {
        Some(record) => {
            let (owner, held, left) = (printable(&record.owner), age(record.held_for), age(record.remaining));
            format!("{name} is held by {owner} since {held} ({left} left unless renewed)")
        }
        None => format!("{name} is held by somebody else"),
    }
}

/// Says once who has the name, when it turns out that somebody has it; never returns, lest it end the wait.
pub async fn tell_who_holds(locks: &Locks, name: &Name, news: News) {
    let mut events = locks.events();
    while news.tells_of_waiting() {
        match events.next().await {
            Some(Next::Event(Event { kind: EventKind::Contended(_), .. })) => break,
            Some(_) => {}
            None => return pending().await,
        }
    }
    if news.tells_of_waiting()
        && let Ok(Some(record)) = locks.get(name).await
    {
        news.waiting(&record);
    }
    pending().await
}
