//! `tenure run` on a terminal, with a shell around it.

use std::{
    fs::{self, DirEntry, File, OpenOptions},
    io::{Read, Write},
    os::unix::fs::OpenOptionsExt,
    process::{Child, Command},
    sync::{Arc, Mutex},
    thread,
};

use rustix::{
    fs::OFlags,
    process::{Pid, Signal, kill_process},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
};
use tempfile::TempDir;

use super::{eventually, stat};

/// A shell script that runs in a session of its own, with a terminal that the test types into.
struct Terminal {
    keyboard: File,
    screen: Arc<Mutex<String>>,
    shell: Child,
    _dir: TempDir,
}

impl Terminal {
    /// In the script, `$TENURE` is the command, and `$RUN` is `tenure run` up to CMD.
    fn start(script: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let keyboard = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&keyboard).unwrap();
        unlockpt(&keyboard).unwrap();
        let path = ptsname(&keyboard, Vec::new()).unwrap().into_string().unwrap();
        let flags = OFlags::NOCTTY.bits().cast_signed();
        let tty = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).unwrap();
        let store = format!("sqlite:{}", dir.path().join("locks.db").display());
        let tenure = env!("CARGO_BIN_EXE_tenure");
        let shell = Command::new("setsid")
            .args(["--ctty", "bash", "-c", script])
            .env("TENURE_STORE", store)
            .env("TENURE", tenure)
            .env("RUN", format!("{tenure} run job --ttl 60s --"))
            .stdin(tty.try_clone().unwrap())
            .stdout(tty.try_clone().unwrap())
            .stderr(tty)
            .spawn()
            .unwrap();
        let keyboard = File::from(keyboard);
        let screen = Arc::default();
        watch(keyboard.try_clone().unwrap(), Arc::clone(&screen));
        Self { keyboard, screen, shell, _dir: dir }
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

impl Drop for Terminal {
    /// Shows what happened if the test failed, and leaves nothing behind.
    fn drop(&mut self) {
        println!("{}", self.screen.lock().unwrap());
        let session = self.shell.id().to_string();
        for pid in fs::read_dir("/proc").unwrap().flatten().filter_map(pid_of) {
            if stat(pid).is_some_and(|fields| fields[3] == session) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        let _ = self.shell.wait();
    }
}

fn pid_of(entry: DirEntry) -> Option<Pid> {
    Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)
}

fn watch(mut keyboard: File, screen: Arc<Mutex<String>>) {
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(read) = keyboard.read(&mut buffer) {
            let text = String::from_utf8_lossy(&buffer[..read]);
            screen.lock().unwrap().push_str(&text);
        }
    });
}

#[test]
fn command_reads_the_terminal_and_gives_it_back() {
    let mut terminal = Terminal::start(
        r#"$RUN sh -c 'echo ready; read line; echo "command got $line"; exit 3'
        echo "code $?"; read line; echo "shell got $line""#,
    );
    terminal.shows("ready");
    terminal.types("one\n");
    terminal.shows("command got one");
    terminal.shows("code 3");
    terminal.types("two\n");
    terminal.shows("shell got two");
    assert_eq!(terminal.ends(), Some(0));
}

#[test]
fn ctrl_c_ends_the_command_with_130() {
    let mut terminal = Terminal::start(
        r#"set -m
        $RUN cat
        echo "code $?"; read line; echo "shell got $line""#,
    );
    terminal.types("ready\n");
    terminal.shows("ready\r\nready");
    terminal.types("\x03");
    terminal.shows("code 130");
    terminal.types("two\n");
    terminal.shows("shell got two");
    assert_eq!(terminal.ends(), Some(0));
}

#[test]
fn ctrl_c_ends_the_wait_for_a_name() {
    let mut terminal = Terminal::start(
        r#"set -m
        $RUN sh -c 'echo held; sleep 1000; :' & sleep 0.1
        while ! $TENURE show job > /dev/null; do sleep 0.05; done
        $RUN true; echo "code $?"; kill %1; wait"#,
    );
    terminal.shows("waiting for job");
    terminal.types("\x03");
    terminal.shows("code 130");
    terminal.ends();
}

#[test]
fn ctrl_c_reaches_a_script_around_tenure_too() {
    let mut terminal = Terminal::start(
        r#"trap 'echo "script interrupted"' INT
        $RUN cat
        echo "code $?"; $TENURE show job; true"#,
    );
    terminal.types("ready\n");
    terminal.shows("ready\r\nready");
    terminal.types("\x03");
    terminal.shows("script interrupted");
    terminal.shows("code 130");
    terminal.shows("free");
    assert_eq!(terminal.ends(), Some(0));
}

#[test]
fn command_that_handles_ctrl_c_goes_on() {
    let mut terminal = Terminal::start(
        r#"$RUN sh -c 'trap "echo handled; over=1" INT; echo ready
            while [ -z "$over" ]; do sleep 0.05; done
            read line; echo "command got $line"; exit 4'
        echo "code $?""#,
    );
    terminal.shows("ready");
    terminal.types("\x03");
    terminal.shows("handled");
    terminal.types("one\n");
    terminal.shows("command got one");
    terminal.shows("code 4");
    assert_eq!(terminal.ends(), Some(0));
}

#[test]
fn ctrl_c_ends_lead_whatever_the_command_makes_of_it() {
    for (command, code) in
        [("trap 'exit 7' INT; echo begun; while :; do sleep 0.1; done", 7), ("echo begun; sleep 100", 130)]
    {
        let mut terminal = Terminal::start(&format!("$TENURE lead job -- sh -c \"{command}\""));
        terminal.shows("begun");
        terminal.types("\x03");
        assert_eq!(terminal.ends(), Some(code), "{command}");
    }
}

#[test]
fn pager_behind_tenure_has_the_terminal_too() {
    let mut terminal = Terminal::start(
        r#"set -m
        $RUN sh -c 'echo out; read key < /dev/tty; echo "$key"' |
            (read line; echo "pager got $line"; read line; echo "pager got $line"; stty echo < /dev/tty
            read key < /dev/tty; echo "pager got $key")
        echo "codes ${PIPESTATUS[*]}""#,
    );
    terminal.shows("pager got out");
    terminal.types("one\n");
    terminal.shows("pager got one");
    terminal.types("two\n");
    terminal.shows("pager got two");
    terminal.shows("codes 0 0");
    assert_eq!(terminal.ends(), Some(0));
}

#[test]
fn ctrl_c_ends_a_pipeline() {
    let mut terminal = Terminal::start(
        r#"set -m
        $RUN sh -c 'trap "echo interrupted >&2; exit 9" INT; echo ready >&2; while :; do sleep 0.05; done' |
            (trap '' INT; cat)
        echo "codes ${PIPESTATUS[*]}""#,
    );
    terminal.shows("ready");
    terminal.types("\x03");
    terminal.shows("codes 9 0");
    let times = terminal.screen.lock().unwrap().matches("interrupted").count();
    assert_eq!(times, 1);
    assert_eq!(terminal.ends(), Some(0));
}

#[test]
fn ctrl_z_does_not_stop_a_holder() {
    let mut terminal = Terminal::start(
        r#"set -m
        $RUN sh -c 'echo ready; read line; echo "command got $line"'
        echo "code $?""#,
    );
    terminal.shows("ready");
    terminal.types("\x1a");
    terminal.types("one\n");
    terminal.shows("command got one");
    terminal.shows("code 0");
    assert_eq!(terminal.ends(), Some(0));
}

#[test]
fn background_job_leaves_the_terminal_alone() {
    let mut terminal = Terminal::start(
        r#"set -m
        $RUN sh -c 'echo started; read line < /dev/tty || echo "no terminal"; sleep 1; echo done' &
        read line; echo "shell got $line"; wait; echo "code $?""#,
    );
    terminal.shows("no terminal");
    terminal.types("one\n");
    terminal.shows("shell got one");
    terminal.shows("done");
    terminal.shows("code 0");
    assert_eq!(terminal.ends(), Some(0));
}

#[test]
fn terminal_modes_are_put_back_after_a_command_that_was_killed() {
    let terminal = Terminal::start(r#"$RUN sh -c 'stty raw -echo; kill -9 $$'; echo "code $?"; stty -a"#);
    terminal.shows("code 137");
    terminal.shows(" icanon");
    terminal.shows(" echo ");
    assert_eq!(terminal.ends(), Some(0));
}
