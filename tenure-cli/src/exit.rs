//! How `tenure` itself ends: its exit codes, and the one line that says what failed.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use serde_json::json;

use crate::output::{one_line, printable, shortened, without_passwords};

/// How much of a wrong value is repeated.
const VALUE_WIDTH: usize = 60;

/// It was done.
pub const DONE: u8 = 0;
/// The plain "no": a stale token, a name that nobody holds, a store with weaknesses. Never a failure.
pub const NO: u8 = 1;
/// Options, names, values, URLs that are outside their rules (`EX_USAGE`).
pub const USAGE: u8 = 64;
/// The store, or the fence's folder, is out of reach or refuses (`EX_UNAVAILABLE`).
pub const OUT_OF_REACH: u8 = 69;
/// The operating system refuses (`EX_OSERR`).
pub const SYSTEM: u8 = 71;
/// Somebody else has the name (`EX_TEMPFAIL`).
pub const BUSY: u8 = 75;
/// The name was lost while CMD ran.
pub const LOST: u8 = 76;

/// A failure whose exit code is known where it happens.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// Ends `tenure` with `code` and this line.
    pub fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// A failure by wrong use.
pub fn usage(message: impl Into<String>) -> Failure {
    Failure::new(USAGE, message)
}

/// What killed by this signal looks like to a shell.
pub fn by_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

/// Says what failed, and returns its code.
pub fn failed(error: &anyhow::Error, json: bool) -> ExitCode {
    if is_broken_pipe(error) {
        // Whoever read our output has seen enough.
        return ExitCode::from(DONE);
    }
    let code = code_of(error);
    say(&format!("{error:#}"), code, json);
    ExitCode::from(code)
}

/// What `clap` has to say: help and version as they are, anything else as one line.
pub fn not_understood(error: &clap::Error, json: bool) -> ExitCode {
    let is_help = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if is_help || !error.use_stderr() {
        return match error.print() {
            Ok(()) => ExitCode::from(if is_help { USAGE } else { DONE }),
            Err(error) => failed(&error.into(), false),
        };
    }
    let text = shown_value(error);
    let first = text.split("\n\n").next().unwrap_or(&text).trim_start_matches("error: ");
    say(&format!("{first}{} (see --help)", tip(error, &text)), USAGE, json);
    ExitCode::from(USAGE)
}

/// What may have been meant.
fn tip(error: &clap::Error, text: &str) -> String {
    match error.get(ContextKind::InvalidArg) {
        // `tenure run NAME CMD`: the commonest mistake.
        Some(ContextValue::String(word)) if error.kind() == ErrorKind::UnknownArgument && !word.starts_with('-') => {
            ": put -- before a command that is to be run".into()
        }
        _ => text.lines().filter_map(|line| line.trim().strip_prefix("tip: ")).map(|tip| format!("; {tip}")).collect(),
    }
}

/// The error's text, in which a value that is long or has line breaks doesn't bury the rest.
fn shown_value(error: &clap::Error) -> String {
    let text = error.to_string();
    match error.get(ContextKind::InvalidValue) {
        Some(ContextValue::String(value)) if !value.is_empty() => {
            text.replace(value, &shortened(&printable(value), VALUE_WIDTH))
        }
        _ => text,
    }
}

fn say(message: &str, code: u8, json: bool) {
    let message = without_passwords(&one_line(message));
    let line = if json { json!({ "error": message, "exit": code }).to_string() } else { format!("tenure: {message}") };
    // Nobody reads standard error: then nobody is told.
    let _ = writeln!(io::stderr(), "{line}");
}

fn code_of(error: &anyhow::Error) -> u8 {
    if let Some(failure) = error.downcast_ref::<Failure>() {
        return failure.code;
    }
    match error.downcast_ref::<tenure::Error>() {
        Some(tenure::Error::Invalid { .. }) => USAGE,
        Some(tenure::Error::TimedOut { .. } | tenure::Error::AlreadyHeld { .. }) => BUSY,
        Some(tenure::Error::Lost(_)) => LOST,
        Some(_) => OUT_OF_REACH,
        None => SYSTEM,
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_failure_has_its_code() {
        assert_eq!(code_of(&tenure::Error::invalid("ttl", "is odd").into()), USAGE);
        assert_eq!(code_of(&tenure::Error::transient("sqlite", "gone").into()), OUT_OF_REACH);
        assert_eq!(code_of(&tenure::Error::Closed.into()), OUT_OF_REACH);
        assert_eq!(code_of(&usage("no").into()), USAGE);
        assert_eq!(code_of(&io::Error::other("no processes").into()), SYSTEM);
        assert_eq!(by_signal(15), 143);
    }

    #[test]
    fn context_does_not_hide_the_code() {
        let error = anyhow::Error::from(tenure::Error::transient("sqlite", "gone")).context("listing");
        assert_eq!(code_of(&error), OUT_OF_REACH);
    }
}
