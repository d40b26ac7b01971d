//! Real processes: this test program, started again.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::time::Duration;

use tenure::Locks;
use tenure::clock::Moment;
use tokio::sync::mpsc;

use super::support::{LONG, SECOND, SOON};

/// Tells a process that it is a child, and what to do: `ROLE URL NAME`.
const ORDERS: &str = "TENURE_SERVERS_CHILD";

/// How often each child of a crowd takes its turn.
pub const TURNS: usize = 3;

/// Plays the child, if this process was started as one.
pub fn play() -> bool {
    let Ok(orders) = std::env::var(ORDERS) else { return false };
    let [role, url, name] = orders.split(' ').collect::<Vec<_>>()[..] else { panic!("{orders:?}") };
    let locks = tenure::connect(url).blocking().unwrap();
    match role {
        "claim" => claim(&locks, name),
        "turns" => take_turns(&locks, name),
        "start" => say(&locks.lock_blocking(name).unwrap().token()),
        _ => panic!("{orders:?}"),
    }
    true
}

/// Asks for a name that it would hold for long, and holds it until it is killed.
fn claim(locks: &Locks, name: &str) {
    say(&"asking");
    let guard = locks.lock(name).ttl(LONG).blocking().unwrap();
    say(&guard.token());
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// Holds a name for a moment, a few times, and tells from when to when.
fn take_turns(locks: &Locks, name: &str) {
    for _ in 0..TURNS {
        let guard = locks.lock(name).ttl(10 * SECOND).blocking().unwrap();
        let from = Moment::now().since_boot().as_nanos();
        std::thread::sleep(Duration::from_millis(5));
        assert!(guard.is_held());
        let to = Moment::now().since_boot().as_nanos();
        say(&format!("{} {from} {to}", guard.token()));
        guard.release_blocking().unwrap();
    }
}

fn say(word: &dyn std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    // A parent that is gone is no reason to panic.
    let _ = writeln!(out, "{word}").and_then(|()| out.flush());
}

/// A child process, killed if it is still there when this is dropped.
pub struct Child {
    process: std::process::Child,
    lines: mpsc::UnboundedReceiver<String>,
}

impl Child {
    pub fn start(role: &str, url: &str, name: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .env(ORDERS, format!("{role} {url} {name}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(process.stdout.take().unwrap());
        let (send, lines) = mpsc::unbounded_channel();
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        Self { process, lines }
    }

    /// What it says next; `None` if it has ended.
    pub async fn line(&mut self) -> Option<String> {
        super::support::within(3 * SOON, "a word of a child", self.lines.recv()).await
    }
}

impl Drop for Child {
    /// `SIGKILL`.
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
