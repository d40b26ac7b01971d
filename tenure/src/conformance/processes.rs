//! Real processes: what ends with them, and that they exclude each other.

use std::any::Any;
use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::contention::{TIME, Workload, judge};
use super::fleet::{self, CrewOrders};
use super::support::{LONG, SOON, TICK, free_for, is_closed_to, soon};
use super::{History, Operation, Subject, What, recipes_processes};
use crate::clock::Moment;
use crate::locks::{Connect, Locks};
use crate::record::{Name, Token};

/// Tells a process that it is a child, and what to do.
const ORDERS: &str = "TENURE_CONFORMANCE_CHILD";

/// What a child process is to do.
#[derive(Serialize, Deserialize)]
pub(super) struct Orders {
    role: Role,
    url: String,
    pub names: Vec<String>,
    pub ttl: Duration,
    pub crew: Option<CrewOrders>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Role {
    /// Holds a name until told to end, and still when `main` ends.
    Hold,
    /// The same, in a task of a runtime.
    HoldInTask,
    /// The same, but `main` panics.
    Panic,
    /// Contends for names, and tells the history.
    Contend,
    /// Works in a crew, and tells what it does.
    Crew,
    /// Serves until it is told to end by a signal, and has this long for it.
    Serve { within: Duration },
}

/// What a child process holds when its `main` ends. See [`child_role`].
pub struct Child(#[expect(dead_code, reason = "it is there to be dropped")] Box<dyn Any>);

impl fmt::Debug for Child {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Child")
    }
}

/// Plays the child, if this process was started as one by a promise about real processes. To be called first in the
/// `main` of the test program, which must keep what it returns until it ends:
///
/// ```no_run
/// fn main() -> std::process::ExitCode {
///     let child = tenure::conformance::child_role(|url| tenure::connect(url));
///     if child.is_some() {
///         return std::process::ExitCode::SUCCESS;
///     }
///     // Run the promises.
/// # std::process::ExitCode::SUCCESS
/// }
/// ```
pub fn child_role(connect: impl FnOnce(&str) -> Connect) -> Option<Child> {
    let orders = std::env::var(ORDERS).ok()?;
    let orders: Orders = serde_json::from_str(&orders).expect("the parent's orders can be read");
    let locks = connect(&orders.url).blocking().expect("the store can be opened");
    Some(Child(match orders.role {
        Role::Hold => Box::new(hold(&locks, &orders)),
        Role::Panic => {
            let _guard = hold(&locks, &orders);
            std::panic::resume_unwind(Box::new("told to panic"))
        }
        Role::HoldInTask => Box::new(hold_in_task(locks, &orders)),
        Role::Contend => Box::new(contend(locks, &orders)),
        Role::Crew => {
            fleet::work(&locks, &orders);
            Box::new(())
        }
        Role::Serve { within } => {
            recipes_processes::serve(locks, &orders, within);
            Box::new(())
        }
    }))
}

fn hold(locks: &Locks, orders: &Orders) -> crate::Guard {
    let guard = locks.lock(&orders.names[0]).ttl(orders.ttl).blocking().expect("a free name is granted");
    say(&guard.token());
    wait_for_the_end();
    guard
}

fn hold_in_task(locks: Locks, orders: &Orders) -> tokio::runtime::Runtime {
    let runtime = runtime();
    let lock = locks.lock(&orders.names[0]).ttl(orders.ttl);
    let guard = runtime.block_on(lock.into_future()).expect("a free name is granted");
    say(&guard.token());
    runtime.spawn(async move {
        let _guard = guard;
        std::future::pending::<()>().await;
    });
    runtime.block_on(tokio::task::yield_now());
    wait_for_the_end();
    runtime
}

fn contend(locks: Locks, orders: &Orders) -> History {
    let names = orders.names.iter().map(|name| Name::new(name).expect("the parent's names are names")).collect();
    let load = Workload { names, ttl: orders.ttl, tasks: 4, pause: Duration::from_millis(20) };
    let history = runtime().block_on(async { load.run(&[locks], sleep(TIME)).await });
    for operation in history.operations() {
        say(&serde_json::to_string(&Line::from(operation)).expect("an operation is JSON"));
    }
    history
}

pub(super) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime can be made")
}

pub(super) fn say(word: &dyn fmt::Display) {
    let mut out = std::io::stdout().lock();
    // A parent that is gone is no reason to panic.
    let _ = writeln!(out, "{word}").and_then(|()| out.flush());
}

/// The parent says so, or is gone.
fn wait_for_the_end() {
    let _ = std::io::stdin().lock().read_line(&mut String::new());
}

/// An operation as a child tells it.
#[derive(Serialize, Deserialize)]
pub(super) struct Line {
    name: String,
    holder: String,
    granted: Option<u64>,
    at: u64,
}

impl From<Operation> for Line {
    fn from(Operation { name, holder, what, at }: Operation) -> Self {
        let granted = match what {
            What::Granted(token) => Some(token.0),
            What::Ended => None,
        };
        Self { name: name.as_str().into(), holder, granted, at: at.as_nanos() }
    }
}

impl From<Line> for Operation {
    fn from(Line { name, holder, granted, at }: Line) -> Self {
        let what = granted.map_or(What::Ended, |token| What::Granted(Token(token)));
        Self { name: Name::new(name).expect("a child's names are names"), holder, what, at: Moment::from_nanos(at) }
    }
}

/// A child process, killed if it is still there when this is dropped.
pub(super) struct Process {
    pub child: std::process::Child,
    pub lines: mpsc::UnboundedReceiver<String>,
}

impl Process {
    pub fn start(subject: &Subject, role: Role, names: &[Name], ttl: Duration) -> Self {
        Self::with(subject, role, names.iter().map(Name::to_string).collect(), ttl, None)
    }

    pub fn with(subject: &Subject, role: Role, names: Vec<String>, ttl: Duration, crew: Option<CrewOrders>) -> Self {
        let url = subject.location().expect("this promise needs a store with a URL").into();
        let orders = Orders { role, url, names, ttl, crew };
        let mut child = Command::new(std::env::current_exe().expect("this program has a path"))
            .env(ORDERS, serde_json::to_string(&orders).expect("orders are JSON"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program can be started again");
        let out = BufReader::new(child.stdout.take().expect("the child's output is piped"));
        let (send, lines) = mpsc::unbounded_channel();
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        Self { child, lines }
    }

    pub async fn line(&mut self) -> Option<String> {
        timeout(TIME + SOON, self.lines.recv()).await.expect("a child says something")
    }

    async fn token(&mut self) -> Token {
        let line = self.line().await.expect("the child holds the name: was `child_role` called in main?");
        Token(line.parse().unwrap_or_else(|_| panic!("the child says {line:?}")))
    }

    /// Lets it end by itself.
    pub async fn end(&mut self) -> ExitStatus {
        drop(self.child.stdin.take());
        let ended = async {
            loop {
                match self.child.try_wait().expect("the child can be waited for") {
                    Some(status) => return status,
                    None => sleep(TICK).await,
                }
            }
        };
        soon("the child ends", ended).await
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process that ends while it holds: the name is closed until then, and free afterwards.
async fn frees_at_its_end(subject: &Subject, role: Role, code: i32) {
    let (locks, name) = (subject.connect().await, subject.name());
    let mut process = Process::start(subject, role, std::slice::from_ref(&name), LONG);
    let token = process.token().await;
    assert!(is_closed_to(&locks, &name).await, "granted to two processes at once ({role:?})");
    let record = locks.get(&name).await.expect("the store answers").expect("the name is held");
    assert_eq!(record.token, token, "the store has another token than the process that holds");
    let status = process.end().await;
    assert_eq!(status.code(), Some(code), "the process ended with {status} ({role:?})");
    free_for(&locks, &name, &format!("after the process that held it has ended ({role:?})")).await;
}

/// A guard that is still held when `main` ends is released before the process is gone.
pub async fn a_guard_held_at_the_end_of_main_frees(subject: &Subject) {
    frees_at_its_end(subject, Role::Hold, 0).await;
}

/// A guard that a task still holds when `main` ends is released before the process is gone.
pub async fn a_guard_held_by_a_task_at_the_end_of_main_frees(subject: &Subject) {
    frees_at_its_end(subject, Role::HoldInTask, 0).await;
}

/// A guard that is held when `main` panics is released before the process is gone.
pub async fn a_panic_in_main_frees(subject: &Subject) {
    frees_at_its_end(subject, Role::Panic, 101).await;
}

/// The name of a process that was killed is free when its term has run out, and no sooner.
pub async fn a_killed_process_frees_when_its_term_is_over(subject: &Subject) {
    let (locks, name, ttl) = (subject.connect().await, subject.name(), 2 * subject.ttl());
    let mut process = Process::start(subject, Role::Hold, std::slice::from_ref(&name), ttl);
    let token = process.token().await;
    drop(process);
    let record = locks.get(&name).await.expect("the store answers");
    let guard = timeout(ttl + SOON, locks.lock(&name).ttl(LONG).into_future()).await;
    let guard = guard.expect("a killed holder's name passes on").expect("the name is granted");
    assert!(guard.token() > token, "token {} follows {token}", guard.token());
    let record = record.expect("the name was freed when its holder was killed, before its term was over");
    assert_eq!(record.token, token);
}

/// Several processes want the same few names for some seconds: no two have one at a time, and tokens rise.
pub async fn contending_processes_yield_a_history_without_overlap(subject: &Subject) {
    let names = subject.names(2);
    let start = || Process::start(subject, Role::Contend, &names, subject.ttl());
    let mut processes = [start(), start(), start()];
    let history = History::new();
    for process in &mut processes {
        while let Some(line) = process.line().await {
            let line: Line = serde_json::from_str(&line).unwrap_or_else(|_| panic!("a child says {line:?}"));
            history.extend([line.into()]);
        }
        assert!(process.end().await.success(), "a contending process failed");
    }
    judge(&history, 20);
    let owners = history.operations().into_iter().map(|operation| operation.holder);
    let owners: std::collections::HashSet<_> =
        owners.filter_map(|holder| holder.split('/').next().map(str::to_owned)).collect();
    assert!(owners.len() > 1, "only the processes {owners:?} were ever granted a name");
}
