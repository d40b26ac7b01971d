//! `tenure run` on a terminal: the command has it while it runs, and the shell has it back afterwards.
#![cfg(target_os = "linux")]
#![allow(missing_docs, clippy::unwrap_used)]

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::process::Child;
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::fs::OFlags;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use support::{World, eventually};

mod support;

/// A shell in a session of its own, with a terminal that the test types into.
struct Session {
    keyboard: File,
    screen: Arc<Mutex<String>>,
    shell: Child,
    _world: World,
}

impl Session {
    /// In the script, `$RUN` is `tenure run` up to the command.
    fn start(script: &str) -> Self {
        let world = World::new();
        let keyboard = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&keyboard).unwrap();
        unlockpt(&keyboard).unwrap();
        let path = ptsname(&keyboard, Vec::new()).unwrap().into_string().unwrap();
        let no_control = OFlags::NOCTTY.bits().cast_signed();
        let tty = OpenOptions::new().read(true).write(true).custom_flags(no_control).open(path).unwrap();
        let shell = world
            .command("setsid")
            .args(["--ctty", "bash", "-c", script])
            .env("RUN", format!("{} run job --", support::tenure()))
            .stdin(tty.try_clone().unwrap())
            .stdout(tty.try_clone().unwrap())
            .stderr(tty)
            .spawn()
            .unwrap();
        let keyboard = File::from(keyboard);
        let screen = Arc::default();
        watch(keyboard.try_clone().unwrap(), Arc::clone(&screen));
        Self { keyboard, screen, shell, _world: world }
    }

    fn types(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    fn shows(&self, text: &str) {
        eventually(&format!("the screen shows {text:?}"), || self.screen.lock().unwrap().contains(text));
    }

    /// The script's exit code, which must come by itself.
    fn ends(mut self) -> Option<i32> {
        eventually("the shell ends", || self.shell.try_wait().unwrap().is_some());
        self.shell.wait().unwrap().code()
    }
}

impl Drop for Session {
    /// Shows what happened if the test failed. The kernel hangs up on whatever is left in a session without its leader.
    fn drop(&mut self) {
        println!("{}", self.screen.lock().unwrap());
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

fn watch(mut keyboard: File, screen: Arc<Mutex<String>>) {
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(read) = keyboard.read(&mut buffer) {
            screen.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..read]));
        }
    });
}

#[test]
fn the_command_reads_the_terminal_and_the_shell_has_it_back() {
    let mut session = Session::start(
        r#"$RUN sh -c 'echo ready; read line; echo "command got $line"; exit 3'
        echo "code $?"; read line; echo "shell got $line""#,
    );
    session.shows("ready");
    session.types("one\n");
    session.shows("command got one");
    session.shows("code 3");
    session.types("two\n");
    session.shows("shell got two");
    assert_eq!(session.ends(), Some(0));
}

#[test]
fn ctrl_c_ends_the_command_and_the_name_is_free() {
    let mut session = Session::start(
        r#"trap 'echo "shell interrupted"' INT
        $RUN sh -c 'echo ready; sleep 1000; :'
        echo "code $?"; $TENURE show job"#,
    );
    session.shows("ready");
    session.types("\x03");
    session.shows("shell interrupted");
    session.shows("code 130");
    session.shows("free");
    session.ends();
}

#[test]
fn a_command_that_handles_ctrl_c_goes_on() {
    let mut session = Session::start(
        r#"$RUN sh -c 'trap "echo handled" INT; echo ready; read a; read b; echo "command got $b"; exit 4'
        echo "code $?""#,
    );
    session.shows("ready");
    session.types("\x03");
    session.shows("handled");
    session.types("a\nb\n");
    session.shows("code 4");
    assert_eq!(session.ends(), Some(0));
}

#[test]
fn ctrl_c_ends_the_wait_for_a_name() {
    let mut session = Session::start(
        r#"set -m
        $RUN sh -c 'echo held; sleep 1000; :' & sleep 0.1
        while ! $TENURE show job > /dev/null; do sleep 0.05; done
        $RUN true; echo "code $?"; kill %1; wait"#,
    );
    session.shows("waiting for job");
    session.types("\x03");
    session.shows("code 130");
    session.ends();
}
