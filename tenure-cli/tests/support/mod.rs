//! Real processes, with a store and a home of their own.
#![allow(dead_code, missing_docs, clippy::unwrap_used)]

use std::cell::Cell;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Long enough for a busy machine; only a test that fails waits for it.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A script that reports its number and token, and then works for ever.
pub const WORK: &str = "echo $$ >> $DIR/pids; echo $TENURE_TOKEN >> $DIR/tokens; while :; do sleep 0.05; done";

/// A folder with a store and a home in it, and nothing else.
pub struct World {
    folder: TempDir,
    started: Cell<u32>,
}

/// What a command has said.
#[derive(Debug)]
pub struct Said {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl World {
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), started: Cell::new(0) }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn db(&self) -> PathBuf {
        self.path("locks.db")
    }

    /// A command that sees this world only. Scripts find its folder in `$DIR`.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("USER", "tester")
            .env("HOME", self.path("home"))
            .env("DIR", self.folder.path())
            .env("TENURE", tenure())
            .env("TENURE_STORE", format!("sqlite:{}", self.db().display()))
            .current_dir(self.folder.path())
            .stdin(Stdio::null());
        command
    }

    pub fn tenure(&self, args: &[&str]) -> Command {
        let mut command = self.command(tenure());
        command.args(args);
        command
    }

    /// Runs `tenure` to its end.
    pub fn run(&self, args: &[&str]) -> Said {
        self.start(args).said()
    }

    /// Starts `tenure`.
    pub fn start(&self, args: &[&str]) -> Process {
        self.spawn(&mut self.tenure(args))
    }

    /// Starts `tenure run NAME --ttl TTL -- sh -c SCRIPT`.
    pub fn start_run(&self, name: &str, ttl: &str, script: &str) -> Process {
        self.start(&["run", name, "--ttl", ttl, "--", "sh", "-c", script])
    }

    pub fn spawn(&self, command: &mut Command) -> Process {
        let number = self.started.replace(self.started.get() + 1);
        let (out, err) = (self.path(&format!("{number}.out")), self.path(&format!("{number}.err")));
        let child = command.stdout(File::create(&out).unwrap()).stderr(File::create(&err).unwrap()).spawn().unwrap();
        Process { child, out, err }
    }

    /// What a script wrote; empty if it has not.
    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    pub fn lines(&self, name: &str) -> Vec<String> {
        self.read(name).lines().map(String::from).collect()
    }

    /// Waits until a file has that many lines.
    pub fn wait_for(&self, name: &str, lines: usize) {
        eventually(&format!("{name} has {lines} lines"), || self.read(name).matches('\n').count() >= lines);
    }

    /// The processes that scripts have reported.
    pub fn pids(&self) -> Vec<Pid> {
        self.read("pids").lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)).collect()
    }
}

impl Drop for World {
    /// What a failed test left running.
    fn drop(&mut self) {
        for pid in self.pids().into_iter().filter(|pid| !is_dead(*pid)) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// A process that doesn't outlive its test.
pub struct Process {
    child: Child,
    out: PathBuf,
    err: PathBuf,
}

impl Process {
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub fn out(&self) -> String {
        fs::read_to_string(&self.out).unwrap()
    }

    pub fn err(&self) -> String {
        fs::read_to_string(&self.err).unwrap()
    }

    /// Waits for the end.
    pub fn said(mut self) -> Said {
        let status = self.status();
        Said { code: status.code().unwrap_or(-1), out: self.out(), err: self.err() }
    }

    fn status(&mut self) -> ExitStatus {
        eventually("the process ends", || !self.is_running());
        self.child.wait().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn tenure() -> &'static str {
    env!("CARGO_BIN_EXE_tenure")
}

pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain until {what}");
        sleep(Duration::from_millis(10));
    }
}

/// The fields of /proc/PID/stat behind the process's name: state, parent, ….
fn stat(pid: Pid) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(')')?.1.split_whitespace().map(String::from).collect())
}

pub fn is_dead(pid: Pid) -> bool {
    stat(pid).is_none_or(|fields| fields[0] == "Z" || fields[0] == "X")
}

pub fn parent(pid: Pid) -> Pid {
    Pid::from_raw(stat(pid).unwrap()[1].parse().unwrap()).unwrap()
}

/// The lines of a text as JSON.
pub fn json_lines(text: &str) -> Vec<serde_json::Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line:?}: {error}"))).collect()
}

/// Everything below a folder.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let below =
        entries.flatten().map(|entry| entry.path()).flat_map(|path| [vec![path.clone()], files(&path)].concat());
    below.collect()
}
