//! The example `leader` does what it says. It is compiled in, so that it is never an old one that is run.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Trial};

#[path = "../examples/leader.rs"]
mod leader;

/// Makes this program the example.
const BE_THE_EXAMPLE: &str = "TENURE_TEST_LEADER";

fn main() -> ExitCode {
    if std::env::var_os(BE_THE_EXAMPLE).is_some() {
        leader::main().unwrap();
        return ExitCode::SUCCESS;
    }
    let test = Trial::test("the_next_one_leads_when_the_first_is_interrupted", || {
        check();
        Ok(())
    });
    libtest_mimic::run(&Arguments::from_args(), vec![test]).exit_code()
}

/// A process of the example; killed if a test leaves it.
struct Example {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Example {
    fn start(url: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let mut child = command.arg(url).env(BE_THE_EXAMPLE, "1").stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Reads on to a line that begins so, and returns the rest of it.
    fn says(&mut self, begin: &str) -> String {
        let line = self.lines.by_ref().map(Result::unwrap).find(|line| line.starts_with(begin));
        line.unwrap_or_else(|| panic!("it never says {begin:?}"))[begin.len()..].to_owned()
    }

    fn interrupt(&self) {
        let kill = Command::new("kill").args(["-INT", &self.child.id().to_string()]).status().unwrap();
        assert!(kill.success());
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn check() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    let mut first = Example::start(&url);
    let me = first.says("I am ");
    let token = first.says("I lead, with token ");
    let mut second = Example::start(&url);
    assert_eq!(second.says(&format!("{me} leads, with token ")), format!("{token}, and says \"hello\""));
    let asked = Instant::now();
    first.interrupt();
    first.says("I tidy up, and resign");
    first.says("the end: ");
    assert!(first.child.wait().unwrap().success());
    assert!(second.says("I lead, with token ") > token);
    assert!(asked.elapsed() < Duration::from_secs(5), "led after a TTL, not at once");
}
