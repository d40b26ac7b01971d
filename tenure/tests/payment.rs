//! The example `payment` tells what it promises. It is compiled in, so that it is never an old one that is run.
#![allow(clippy::unwrap_used)]

use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Trial};

#[path = "../examples/payment.rs"]
mod payment;

/// Makes this program the example: both of its processes.
const BE_THE_EXAMPLE: &str = "TENURE_TEST_PAYMENT";

fn main() -> ExitCode {
    if std::env::var_os(BE_THE_EXAMPLE).is_some() {
        payment::main().unwrap();
        return ExitCode::SUCCESS;
    }
    let test = Trial::test("the_payer_that_was_paused_is_refused_and_one_payment_is_made", || {
        check(&told());
        Ok(())
    });
    libtest_mimic::run(&Arguments::from_args(), vec![test]).exit_code()
}

fn told() -> String {
    let example = Command::new(std::env::current_exe().unwrap()).env(BE_THE_EXAMPLE, "1").output().unwrap();
    assert!(example.status.success(), "{example:?}");
    String::from_utf8(example.stdout).unwrap()
}

fn check(told: &str) {
    let expected = [
        "A holds account/42 with token ",
        "A is about to pay 100, and is paused",
        "B holds account/42 with token ",
        "B paid 100",
        "A goes on to pay 100, and is refused: token ",
        "A is told: lost account/42 ",
        "The balance was 500, and is 400",
    ];
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines.len(), expected.len(), "{told}");
    assert!(lines.iter().zip(expected).all(|(line, expected)| line.starts_with(expected)), "{told}");
    let token = |line: usize| lines[line].rsplit(' ').next().unwrap();
    let refusal = format!("token {} is stale: {} was seen", token(0), token(2));
    assert!(token(0) < token(2) && lines[4].ends_with(&refusal), "{told}");
}
