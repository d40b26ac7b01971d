//! What `tenure run` promises about CMD: it and everything below it is dead before the term can pass to
//! another, whoever is killed or stopped. Real processes, real signals, a real terminal.
#![cfg(target_os = "linux")]
#![allow(missing_docs, clippy::unwrap_used)]

use std::{
    fs,
    io::Write,
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread::sleep,
    time::{Duration, Instant, SystemTime},
};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tempfile::TempDir;

mod strangers;
mod terminal;

/// Long enough for a busy machine; only a test that fails waits for it.
const PATIENCE: Duration = Duration::from_secs(30);
const TTL: Duration = Duration::from_secs(6);

/// `tenure run` as a user would type it, with a store of its own in `dir`.
fn tenure(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command.arg("--store").arg(store(dir));
    command.args(["run", "job", "--ttl", &format!("{}s", TTL.as_secs()), "--"]);
    command
}

fn store(dir: &Path) -> String {
    format!("sqlite:{}", dir.join("locks.db").display())
}

fn output(command: &[&str]) -> Output {
    let dir = tempfile::tempdir().unwrap();
    tenure(dir.path()).args(command).output().unwrap()
}

/// A `tenure run` whose CMD is a shell script. Processes of the script put their numbers into `$PIDS`.
struct Run {
    child: Child,
    dir: TempDir,
}

impl Run {
    /// Starts it and waits until `processes` of them have reported.
    fn start(script: &str, processes: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let child = tenure(dir.path())
            .args(["sh", "-c", script])
            .env("PIDS", dir.path().join("pids"))
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        let run = Self { child, dir };
        eventually("the script starts", || run.pids().len() >= processes);
        run
    }

    fn pids(&self) -> Vec<Pid> {
        pids_in(&self.dir.path().join("pids"))
    }

    fn tenure(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// The parent of CMD, which must be the first to report.
    fn watchdog(&self) -> Pid {
        parent(self.pids()[0]).unwrap()
    }

    fn all_dead(&self) -> bool {
        self.pids().into_iter().all(is_dead)
    }

    /// How long after `start` the last of a `FAMILY` did anything. The confirmation of death may come later on a busy
    /// machine: one that is killed needs its turn to die, though it can't do anything else.
    fn lived_until(&self, start: SystemTime) -> Duration {
        let life = fs::metadata(self.dir.path().join("pids.life")).unwrap();
        life.modified().unwrap().duration_since(start).unwrap_or_default()
    }

    fn exit_code(&mut self) -> Option<i32> {
        eventually("tenure ends", || self.child.try_wait().unwrap().is_some());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Run {
    /// A test that failed leaves nothing behind.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for pid in self.pids().into_iter().filter(|&pid| !is_dead(pid)) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

fn pids_in(file: &Path) -> Vec<Pid> {
    let reported = fs::read_to_string(file).unwrap_or_default();
    reported.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)).collect()
}

fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
        sleep(Duration::from_millis(10));
    }
}

/// The fields of /proc/PID/stat that follow the name: state, parent, ….
fn stat(pid: Pid) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(')')?.1.split_whitespace().map(str::to_owned).collect())
}

fn is_dead(pid: Pid) -> bool {
    stat(pid).is_none_or(|fields| fields[0] == "Z" || fields[0] == "X")
}

fn parent(pid: Pid) -> Option<Pid> {
    Pid::from_raw(stat(pid)?[1].parse().ok()?)
}

/// CMD, a child, a grandchild and one that left by a session of its own and a dead parent. All show that they live.
const FAMILY: &str = r#"
    cat > "$PIDS.member" <<'END'
        echo $$ >> "$PIDS"
        while :; do : > "$PIDS.life"; sleep 0.1; done
END
    echo $$ >> "$PIDS"
    sh "$PIDS.member" &
    sh -c 'sh "$PIDS.member"; :' &
    (setsid sh "$PIDS.member" &)
    wait
"#;
const STUBBORN: &str = r#"trap '' TERM HUP INT; "#;

fn signal(pid: Pid, signal: Signal) {
    kill_process(pid, signal).unwrap();
}

#[test]
fn exit_code_is_that_of_the_command() {
    let codes: [(&[&str], i32); 5] = [
        (&["true"], 0),
        (&["sh", "-c", "exit 7"], 7),
        (&["sh", "-c", "kill -9 $$"], 137),
        (&["/dev/null"], 126),
        (&["no-such-command"], 127),
    ];
    for (command, code) in codes {
        assert_eq!(output(command).status.code(), Some(code), "{command:?}");
    }
}

#[test]
fn command_that_cannot_run_is_named() {
    let said = String::from_utf8(output(&["no-such-command"]).stderr).unwrap();
    assert_eq!(said, "tenure: no-such-command: No such file or directory\n");
}

#[test]
fn command_starts_as_it_would_without_tenure() {
    let look = "ls /proc/self/fd; grep ^Sig[BIC] /proc/self/status; pwd; cat";
    let run = |mut command: Command| {
        let mut child = command
            .args(["-c", look])
            .current_dir("/usr")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(b"from standard input").unwrap();
        String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
    };
    let dir = tempfile::tempdir().unwrap();
    let mut under_tenure = tenure(dir.path());
    under_tenure.arg("sh");
    assert_eq!(run(under_tenure), run(Command::new("sh")));
}

#[test]
fn killing_tenure_ends_the_whole_family_before_the_deadline() {
    let run = Run::start(FAMILY, 4);
    let start = SystemTime::now();
    signal(run.tenure(), Signal::KILL);
    eventually("all are dead", || run.all_dead());
    assert!(run.lived_until(start) < TTL);
}

#[test]
fn killing_tenure_ends_those_that_ignore_sigterm_before_the_deadline() {
    let run = Run::start(&format!("{STUBBORN}{FAMILY}"), 4);
    let start = SystemTime::now();
    signal(run.tenure(), Signal::KILL);
    eventually("all are dead", || run.all_dead());
    assert!(run.lived_until(start) < TTL);
}

#[test]
fn killing_all_of_tenures_process_group_ends_the_whole_family_too() {
    let run = Run::start(FAMILY, 4);
    kill_process_group(run.tenure(), Signal::KILL).unwrap();
    eventually("all are dead", || run.all_dead());
}

#[test]
fn stopping_tenure_ends_the_whole_family_before_the_deadline() {
    let mut run = Run::start(&format!("{STUBBORN}{FAMILY}"), 4);
    let start = SystemTime::now();
    signal(run.tenure(), Signal::STOP);
    eventually("all are dead", || run.all_dead());
    assert!(run.lived_until(start) < TTL);
    signal(run.tenure(), Signal::CONT);
    assert_eq!(run.exit_code(), Some(76));
}

#[test]
fn tenure_ends_only_after_what_the_command_left_behind() {
    let left = r#"(setsid sh -c 'trap "" TERM; echo $$ >> "$PIDS"; sleep 1000; :' &)
        while ! [ -s "$PIDS" ]; do sleep 0.01; done
        exit 3"#;
    let mut run = Run::start(left, 1);
    assert!(!run.all_dead());
    assert_eq!(run.exit_code(), Some(3));
    assert!(run.all_dead());
}

#[test]
fn killing_the_watchdog_ends_the_whole_family() {
    let mut run = Run::start(&format!("{STUBBORN}{FAMILY}"), 4);
    signal(run.watchdog(), Signal::KILL);
    assert_eq!(run.exit_code(), Some(76));
    assert!(run.all_dead());
}

#[test]
fn killing_tenure_and_the_watchdog_ends_the_command() {
    let run = Run::start(r#"echo $$ >> "$PIDS"; while :; do sleep 0.1; done"#, 1);
    let (tenure, watchdog) = (run.tenure(), run.watchdog());
    signal(tenure, Signal::STOP);
    signal(watchdog, Signal::KILL);
    signal(tenure, Signal::KILL);
    eventually("the command is dead", || run.all_dead());
}

#[test]
fn watchdog_outlives_what_ends_a_session_or_a_service() {
    let mut run = Run::start(r#"echo $$ >> "$PIDS"; while ! [ -e "$PIDS.go" ]; do sleep 0.01; done"#, 1);
    for polite in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
        signal(run.watchdog(), polite);
    }
    fs::write(run.dir.path().join("pids.go"), "").unwrap();
    assert_eq!(run.exit_code(), Some(0));
}

#[test]
fn those_that_keep_forking_are_ended_too() {
    // One that hops from process to process and session to session, and one that has children without end.
    let run = Run::start(
        r#"trap '' TERM
        cat > "$PIDS.hop" <<'END'
            echo $$ >> "$PIDS"
            sleep 0.01
            setsid sh "$PIDS.hop" &
END
        sh "$PIDS.hop"
        while :; do
            (setsid sh -c 'echo $$ >> "$PIDS"; exec sleep 1000' &)
            sleep 0.01
        done"#,
        10,
    );
    signal(run.tenure(), Signal::KILL);
    eventually("nobody forks any more", || {
        let before = run.pids().len();
        sleep(Duration::from_millis(500));
        run.pids().len() == before && run.all_dead()
    });
}

#[test]
fn signals_that_the_command_handles_are_its_own_affair() {
    let mut run = Run::start(r#"trap 'exit 5' TERM; echo $$ >> "$PIDS"; while :; do sleep 0.01; done"#, 1);
    signal(run.tenure(), Signal::TERM);
    assert_eq!(run.exit_code(), Some(5));
}
