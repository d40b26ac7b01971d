//! What `tenure run` says while it works.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;
use tenure::{Guard, Name, Record, Token};

use crate::args::Globals;
use crate::output::{age, millis, printable};

/// What happens to a name, one line each.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event<'a> {
    Waiting { name: &'a str, owner: &'a str, held_ms: u64 },
    Acquired { name: &'a str, token: u64, owner: &'a str, left_ms: u64 },
    AtRisk { name: &'a str, token: u64, left_ms: u64, why: &'a str },
    Lost { name: &'a str, token: u64, why: &'a str },
    Released { name: &'a str, token: u64 },
    Warning { what: &'a str },
    NotReleased { name: &'a str, token: u64, why: &'a str },
}

/// Writes to standard error; standard output is the command's.
#[derive(Clone, Copy, Debug)]
pub struct News {
    json: bool,
    /// Somebody watches: say what they wait for.
    watched: bool,
}

impl News {
    /// As the options have it.
    pub fn new(globals: &Globals) -> Self {
        Self { json: globals.json, watched: globals.verbose || io::stderr().is_terminal() }
    }

    /// Something that is allowed, but hardly meant.
    pub fn warn(self, what: &str) {
        if self.json {
            self.write(&Event::Warning { what });
        } else {
            let _ = writeln!(io::stderr(), "tenure: {what}");
        }
    }

    /// Whether anybody wants to know who holds the name that is waited for.
    pub fn tells_of_waiting(self) -> bool {
        self.json || self.watched
    }

    /// The name is somebody else's.
    pub fn waiting(self, record: &Record) {
        let (name, owner) = (record.name.as_str(), &record.owner);
        if self.json {
            self.write(&Event::Waiting { name, owner, held_ms: millis(record.held_for) });
        } else if self.watched {
            let (owner, age) = (printable(owner), age(record.held_for));
            let _ = writeln!(io::stderr(), "tenure: waiting for {name}, held by {owner} since {age}");
        }
    }

    /// The name is ours.
    pub fn acquired(self, guard: &Guard) {
        let (name, owner) = (guard.name().as_str(), guard.owner());
        self.write(&Event::Acquired { name, token: guard.token().0, owner, left_ms: millis(guard.remaining()) });
    }

    /// Renewals fail.
    pub fn at_risk(self, guard: &Guard, why: &str) {
        let left_ms = millis(guard.remaining());
        self.write(&Event::AtRisk { name: guard.name().as_str(), token: guard.token().0, left_ms, why });
    }

    /// The name is no longer ours. People are told when all is over, by the line that goes with the exit code.
    pub fn lost(self, name: &Name, token: Token, why: &str) {
        self.write(&Event::Lost { name: name.as_str(), token: token.0, why });
    }

    /// The name was given back.
    pub fn released(self, name: &Name, token: Token) {
        self.write(&Event::Released { name: name.as_str(), token: token.0 });
    }

    /// The name could not be given back. The command has done its work all the same.
    pub fn not_released(self, name: &Name, token: Token, why: &str) {
        if self.json {
            self.write(&Event::NotReleased { name: name.as_str(), token: token.0, why });
        } else {
            let _ =
                writeln!(io::stderr(), "tenure: {name} was not released, and stays held until its term ends: {why}");
        }
    }

    fn write(self, event: &Event) {
        if self.json
            && let Ok(line) = serde_json::to_string(event)
        {
            // Nobody reads standard error: then nobody is told.
            let _ = writeln!(io::stderr(), "{line}");
        }
    }
}
