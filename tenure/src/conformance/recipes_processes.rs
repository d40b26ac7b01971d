//! A real process that serves, and is told to end.

use std::future::{IntoFuture, pending};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::sleep;

use super::Subject;
use super::processes::{Orders, Process, Role, say};
use super::support::{LONG, TICK, is_closed_to, soon};
use crate::locks::Locks;
use crate::record::Name;
use crate::signal::shutdown_on_signal;
use crate::term::Term;

/// How long its tasks take to end.
const TIDYING: Duration = Duration::from_millis(200);
/// How many ask for names all the time meanwhile.
const BUSY: usize = 8;

/// What the process says, apart from the names.
const READY: &str = "ready";
const TIDY: &str = "tidy ";
const CUT_OFF: &str = "cut off ";
const END: &str = "end";

/// Leads the first name, runs a task for each of the others, of which the last one does not end when it is told to, and asks for
/// names of its own all the time. Ends by a signal, in order.
pub(super) fn serve(locks: Locks, orders: &Orders, within: Duration) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
    runtime.block_on(async {
        let shutdown = shutdown_on_signal(&locks, within).expect("signals can be caught");
        let [leads, keys @ .., stubborn] = orders.names.as_slice() else { panic!("too few names") };
        let (scope, _) = stubborn.rsplit_once('/').expect("the parent's names have a scope");
        let election = locks.election(leads.clone()).ttl(orders.ttl);
        let leading = tokio::spawn(async move {
            let work = |term| async {
                tidy_up(term).await;
                Ok::<_, String>(())
            };
            election.lead(work).await;
        });
        let elector = locks.elector(scope).ttl(orders.ttl);
        for name in keys {
            assert!(elector.start(key_of(name), tidy_up).await.expect("the store answers"));
        }
        assert!(elector.start(key_of(stubborn), |_| pending()).await.expect("the store answers"));
        for number in 0..BUSY {
            tokio::spawn(be_busy(locks.clone(), format!("{scope}/busy/{}", number / 2)));
        }
        while locks.get(leads).await.expect("the store answers").is_none() {
            sleep(TICK).await;
        }
        say(&READY);
        let shutdown = shutdown.await;
        assert!(shutdown.unreleased.is_empty(), "{:?}", shutdown.unreleased);
        shutdown.cut_off.iter().for_each(|lost| say(&format!("{CUT_OFF}{}", lost.name)));
        leading.await.expect("no panic");
        say(&END);
    });
}

fn key_of(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

async fn tidy_up(term: Term) {
    term.cancelled().await;
    sleep(TIDYING).await;
    if term.is_held() {
        say(&format!("{TIDY}{}", term.name()));
    }
}

/// Until the shutdown.
async fn be_busy(locks: Locks, name: String) {
    while let Ok(guard) = locks.lock(&name).ttl(LONG).await {
        drop(guard);
    }
}

/// A process that serves.
async fn serving(subject: &Subject, names: &[Name], within: Duration) -> Process {
    let mut process = Process::start(subject, Role::Serve { within }, names, LONG);
    assert_eq!(process.line().await.as_deref(), Some(READY));
    process
}

fn send(process: &Process, signal: Signal) {
    kill_process(Pid::from_child(&process.child), signal).expect("the child can be signalled");
}

/// What else it says, until its end, which must be a good one.
async fn rest(process: &mut Process) -> Vec<String> {
    let mut told = Vec::new();
    while let Some(line) = process.line().await {
        told.push(line);
    }
    let status = process.end().await;
    assert!(status.success(), "the process ended with {status}, and said {told:?}");
    assert_eq!(told.last().map(String::as_str), Some(END), "{told:?}");
    told
}

fn with<'a>(word: &str, told: &'a [String]) -> Vec<&'a str> {
    let mut names: Vec<_> = told.iter().filter_map(|line| line.strip_prefix(word)).collect();
    names.sort_unstable();
    names
}

/// A process that is told to end by SIGTERM, under load, lets its tasks end while their names are held, says what was cut off, and
/// leaves nothing in the store: its successor starts at once, not after a TTL.
pub async fn a_process_told_to_end_leaves_nothing(subject: &Subject) {
    let (locks, names) = (subject.connect().await, subject.names(5));
    let mut process = serving(subject, &names, Duration::from_secs(5)).await;
    for name in &names {
        assert!(is_closed_to(&locks, name).await, "{name} is not held");
    }
    let successor = tokio::spawn(locks.lock(&names[0]).ttl(LONG).into_future());
    send(&process, Signal::TERM);
    let leads = soon("the successor starts", successor).await.expect("no panic").expect("the name is granted");
    let told = rest(&mut process).await;
    assert_eq!(with(CUT_OFF, &told), [names[4].as_str()], "cut off: {told:?}");
    assert_eq!(
        with(TIDY, &told),
        names[..4].iter().map(Name::as_str).collect::<Vec<_>>(),
        "ended while held: {told:?}"
    );
    let prefix = names[0].as_str().trim_end_matches("0000");
    let left = locks.list(prefix).await.expect("the store answers");
    let left: Vec<_> = left.iter().map(|record| (&record.name, record.token)).collect();
    assert_eq!(left, [(&names[0], leads.token())], "something is left in the store");
}

/// A process that is told to end a second time waits no longer for what does not end, and still leaves nothing.
pub async fn a_process_told_to_end_twice_hurries(subject: &Subject) {
    let (locks, names) = (subject.connect().await, subject.names(3));
    let mut process = serving(subject, &names, LONG).await;
    send(&process, Signal::TERM);
    for _ in 0..2 {
        let line = process.line().await.expect("its tasks end");
        assert!(line.starts_with(TIDY), "it says {line:?}");
    }
    send(&process, Signal::INT);
    let told = soon("its end", rest(&mut process)).await;
    assert_eq!(with(CUT_OFF, &told), [names[2].as_str()], "cut off: {told:?}");
    let left = locks.list(names[0].as_str().trim_end_matches("0000")).await.expect("the store answers");
    assert!(left.is_empty(), "something is left in the store: {left:?}");
}
