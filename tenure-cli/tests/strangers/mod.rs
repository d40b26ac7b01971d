//! `tenure run` in the place of a shell that had children of its own: they are not the command's.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

use super::{FAMILY, Run, STUBBORN, eventually, is_dead, output, parent, pids_in, signal, store, tenure};

/// A child of the shell.
const CHILD: &str = r#"sleep 1000 & echo $! >> "$STRANGERS"; "#;
/// A child of a child, which becomes an orphan when the command runs.
const ORPHAN: &str = r#"(sleep 1000 & echo $! >> "$STRANGERS"; until [ -e "$PIDS" ]; do sleep 0.01; done) & "#;
/// One that is born, and becomes an orphan, while the command runs.
const LATE_ORPHAN: &str = r#"(until [ -e "$PIDS" ]; do sleep 0.01; done; sleep 1000 & echo $! >> "$STRANGERS") & "#;

/// A `tenure run` in the place of a shell, whose children put their numbers into `$STRANGERS`.
struct Execed(Run);

impl Execed {
    fn start(before: &str, script: &str, processes: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let child = in_bash(&format!(r#"{before} exec "$@""#), dir.path())
            .args(["sh", "-c", script])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        let execed = Self(Run { child, dir });
        eventually("the script starts", || execed.0.pids().len() >= processes);
        execed
    }

    fn strangers(&self) -> Vec<Pid> {
        pids_in(&self.0.dir.path().join("strangers"))
    }

    /// Waits until there are two, one of them an orphan that is now tenure's.
    fn has_adopted_an_orphan(&self) {
        eventually("tenure has two strangers for children", || {
            let strangers = self.strangers();
            strangers.len() == 2 && strangers.into_iter().all(|pid| parent(pid) == Some(self.0.tenure()))
        });
    }

    fn strangers_live(&self) -> bool {
        self.strangers().len() == 2 && !self.strangers().into_iter().any(is_dead)
    }
}

impl Drop for Execed {
    fn drop(&mut self) {
        for pid in self.strangers().into_iter().filter(|&pid| !is_dead(pid)) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// A shell whose arguments are `tenure run` up to CMD.
fn in_bash(script: &str, dir: &Path) -> Command {
    let tenure = tenure(dir);
    let mut bash = Command::new("bash");
    bash.args(["-c", script, "bash"]).arg(tenure.get_program()).args(tenure.get_args());
    bash.env("PIDS", dir.join("pids")).env("STRANGERS", dir.join("strangers")).stdin(Stdio::null());
    bash
}

#[test]
fn children_of_the_shell_that_became_tenure_survive_the_command() {
    for orphan in [ORPHAN, LATE_ORPHAN] {
        let script = r#"echo $$ >> "$PIDS"; until [ -e "$PIDS.go" ]; do sleep 0.01; done; exit 7"#;
        let mut execed = Execed::start(&format!("{CHILD}{orphan}"), script, 1);
        execed.has_adopted_an_orphan();
        fs::write(execed.0.dir.path().join("pids.go"), "").unwrap();
        assert_eq!(execed.0.exit_code(), Some(7));
        assert!(execed.strangers_live());
    }
}

#[test]
fn children_of_the_shell_that_became_tenure_survive_when_the_watchdog_is_killed() {
    let mut execed = Execed::start(&format!("{CHILD}{ORPHAN}"), &format!("{STUBBORN}{FAMILY}"), 4);
    execed.has_adopted_an_orphan();
    signal(execed.0.watchdog(), Signal::KILL);
    assert_eq!(execed.0.exit_code(), Some(76));
    assert!(execed.0.all_dead());
    assert!(execed.strangers_live());
}

#[test]
fn children_of_the_shell_that_became_tenure_survive_when_the_watchdog_is_stopped() {
    let mut execed = Execed::start(&format!("{CHILD}{LATE_ORPHAN}"), &format!("{STUBBORN}{FAMILY}"), 4);
    execed.has_adopted_an_orphan();
    let watchdog = execed.0.watchdog();
    signal(watchdog, Signal::STOP);
    // Which tenure learns at its next renewal; the watchdog does not listen, and tenure does the killing itself.
    let evicted = Command::new(env!("CARGO_BIN_EXE_tenure"))
        .env("TENURE_STORE", store(execed.0.dir.path()))
        .args(["evict", "job"])
        .output()
        .unwrap();
    assert!(evicted.status.success());
    assert_eq!(execed.0.exit_code(), Some(76));
    assert!(is_dead(watchdog) && execed.0.all_dead());
    assert!(execed.strangers_live());
}

#[test]
fn child_of_the_shell_that_ended_before_the_command_is_no_obstacle() {
    let mut execed = Execed::start("true &", r#"echo $$ >> "$PIDS"; exit 7"#, 1);
    assert_eq!(execed.0.exit_code(), Some(7));
}

#[test]
fn output_through_a_process_substitution_arrives() {
    for _ in 0..10 {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let script = r#"exec "$@" echo hello > >(sleep 0.05; tee "$LOG" > /dev/null)"#;
        let status = in_bash(script, dir.path()).env("LOG", &log).status().unwrap();
        assert_eq!(status.code(), Some(0));
        eventually("the output arrives", || fs::read(&log).is_ok_and(|log| log == b"hello\n"));
    }
}

#[test]
fn watchdog_has_a_name_of_its_own() {
    let name = String::from_utf8(output(&["sh", "-c", "cat /proc/$PPID/comm"]).stdout).unwrap();
    assert!(name.contains("watchdog") && !name.contains("tenure"), "{name}");
}
