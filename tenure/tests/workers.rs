//! The example `workers` tells what it promises. It is compiled in, so that it is never an old one that is run.
#![allow(clippy::unwrap_used)]

use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Trial};

#[path = "../examples/workers.rs"]
mod workers;

/// Makes this program the example: all of its processes.
const BE_THE_EXAMPLE: &str = "TENURE_TEST_WORKERS";

fn main() -> ExitCode {
    if std::env::var_os(BE_THE_EXAMPLE).is_some() {
        workers::main().unwrap();
        return ExitCode::SUCCESS;
    }
    let test = Trial::test("a_hundred_topics_are_shared_out_over_three_processes", || {
        check(&told());
        Ok(())
    });
    libtest_mimic::run(&Arguments::from_args(), vec![test]).exit_code()
}

fn told() -> String {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", folder.path().join("topics.db").display());
    let mut example = Command::new(std::env::current_exe().unwrap());
    let example = example.args(["--store", &store, "--for", "10"]).env(BE_THE_EXAMPLE, "1").output().unwrap();
    assert!(example.status.success(), "{example:?}");
    String::from_utf8(example.stdout).unwrap()
}

/// At some time three processes have 100 topics, about as many each.
fn check(told: &str) {
    let counts = |table: &str| {
        let lines = table.lines().filter(|line| line.starts_with("  process"));
        let mut counts: Vec<String> = lines.map(|line| line.split_whitespace().nth(2).unwrap().into()).collect();
        counts.sort();
        counts
    };
    let tables = told.split("\n\n");
    assert!(tables.map(counts).any(|counts| counts == ["33", "33", "34"]), "{told}");
    assert!(told.contains("100 of 100 topics are held, 0 unassigned"), "{told}");
}
