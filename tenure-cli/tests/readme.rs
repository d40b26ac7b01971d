//! Every command in the README does what the README shows. (Its Rust programs are doctests of the library.)
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

const README: &str = include_str!("../../README.md");
const CI: &str = include_str!("../../.ci/run");

/// The fenced blocks of one language.
fn blocks(language: &str) -> Vec<&'static str> {
    let mut parts = README.split("\n```");
    parts.next();
    // Between the fences: code, prose, code, …
    let code = parts.step_by(2).filter_map(|part| part.split_once('\n'));
    code.filter(|(found, _)| *found == language).map(|(_, code)| code).collect()
}

/// What differs from run to run and from machine to machine: numbers, times, owners, and so the width of columns.
fn without_chance(text: &str) -> String {
    let word = |word: &str| match word {
        owner if owner.split('/').count() == 3 => "OWNER".into(),
        word if word.trim_start_matches('(').starts_with(|first: char| first.is_ascii_digit()) => "NUMBER".into(),
        word => word.to_owned(),
    };
    let line = |line: &str| line.split_whitespace().map(word).collect::<Vec<String>>().join(" ");
    text.trim_end().lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Runs a command line as in a fresh shell, with `tenure` on the path and a home of its own.
fn run(line: &str, home: &Path) -> String {
    let tenure = Path::new(env!("CARGO_BIN_EXE_tenure"));
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", tenure.parent().unwrap().display());
    let line = line.replace("cargo run --quiet --package tenure-cli --", "tenure");
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("exec 2>&1\n{line}")]).current_dir(home).env_clear().env("PATH", path).env("HOME", home);
    String::from_utf8(shell.output().unwrap().stdout).unwrap()
}

#[test]
fn every_command_shows_what_the_readme_shows() {
    let home = tempfile::tempdir().unwrap();
    let sessions = blocks("console");
    assert!(!sessions.is_empty());
    for session in sessions {
        let commands = format!("\n{session}");
        for command in commands.split("\n$ ").skip(1) {
            let (line, expected) = command.split_once('\n').unwrap_or((command, ""));
            let shown = run(line, home.path());
            assert_eq!(without_chance(&shown), without_chance(expected), "of: {line}");
        }
    }
}

#[test]
fn the_test_command_is_what_ci_runs() {
    assert_eq!(blocks("sh"), ["cargo xtask test"]);
    assert!(CI.lines().any(|line| line == "step cargo xtask test"));
}
