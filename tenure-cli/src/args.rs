//! Every command and option, described once: the help, the man pages and the completions come from here.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};
use clap_complete::Shell;
use serde_json::value::RawValue;
use tenure::{Name, Token, Ttl, limits};

use crate::exit;

/// Where the options of all commands stand in the help.
const EVERYWHERE: &str = "Options of all commands";

const EXIT_CODES: &str = "\
Exit codes:
  0        done
  1        no: the name is free (show, evict), the token stale (fence), a promise weak (doctor)
  64       wrong use: an option, a name, a value or a kind of store that tenure doesn't know
  69       the store (or the folder of fences) is out of reach
  71       the operating system refused
  75       busy: somebody else has the name (run; see --busy-exit-code)
  76       lost: the name was lost while CMD ran (run, lead)
  126, 127 CMD can't be run, CMD was not found (run, fence)
  128+n    signal n ended CMD (run, lead, fence), or tenure while it waited
Other codes of run, lead and fence are CMD's own.

The store:
  --store URL, else TENURE_STORE, else a file in $XDG_STATE_HOME/tenure or ~/.local/state/tenure.
  A URL is postgres://USER:PASSWORD@HOST/DATABASE, mysql://…, mongodb://…, redis://…, redis+quorum://A,B,C, etcd://HOST:PORT,HOST:PORT, sqlite:PATH for all processes of a machine, or memory: for a \
single one, to try things out.";

const RUN_HELP: &str = "\
CMD gets TENURE_NAME, TENURE_TOKEN and TENURE_OWNER in its environment, its own process group, and the terminal if there \
is one. Signals sent to tenure are passed on to it.

CMD and all its descendants are dead before the name can pass to another: when the term can't be renewed they get SIGTERM with \
a third of the TTL left, and SIGKILL before it ends; also when tenure itself is killed or stopped (a watchdog process sees to it). \
When CMD exits, what it has left behind gets SIGTERM, and SIGKILL 5 s later; then the name is released. The exception is \
tenure evict: it frees the name at once, and CMD is killed when tenure hears of it, at the next renewal.

A lease is not a mutex: a machine that is frozen as a whole comes back with CMD running and the name lost. Let whatever CMD \
writes to check TENURE_TOKEN (see tenure fence).

With --json, tenure writes what happens to the name to standard error, one object a line: waiting, acquired, at_risk, lost, \
released, not_released. Standard output is CMD's alone.";

const LEAD_HELP: &str = "\
CMD runs while this one leads, as with tenure run: the same environment, the same watchdog, dead with all its descendants before the name can \
pass to another. It is started again after every win. When CMD ends, whatever its exit code, the name is released for others to win, and after a \
moment this one campaigns again; the pauses grow, up to 30 s, while CMD ends within 10 s of its start.

SIGTERM, SIGINT (ctrl-C) and SIGQUIT end it: CMD gets the signal too, and when it is dead the name is released. The exit code is then CMD's own, as with \
tenure run, or 128+n if this one did not lead. SIGHUP is passed on, and ends it only if CMD dies of it, or if this one does not lead.

Give others your word with --data: tenure show NAME tells who leads, and says it.";

const FENCE_HELP: &str = "\
Lets TOKEN pass unless a larger one was seen before for RESOURCE, and remembers it. Put it where the work is done:

  tenure run report -- sh -c 'make-report > new && tenure fence report \"$TENURE_TOKEN\" -- mv new report.html'

With CMD, the fence stays locked while CMD and whatever inherits its open files run, so that no newer holder can pass between the \
check and the act. TOKEN is remembered, durably, before CMD starts.

Exit code 1 always means that the token is stale, and nothing else: if CMD itself exits with 1, tenure exits with 123. Other codes of \
CMD are passed on. What was seen is kept in files of this user on this machine (see --dir); no store is needed. To forget what was seen, \
for good and on your own responsibility, delete RESOURCE.token there.";

const EVICT_HELP: &str = "\
The name is free at once. Its holder hears of it at its next renewal, a third of its TTL later at the most, and until then believes that it \
still holds: two may be at work. Its token is stale as soon as the next holder has passed the fence. tenure run kills its CMD when it hears of it.";

/// Holds names on the database that you already run.
///
/// Runs a program while holding a name, so that at most one has it at a time; shows who holds what; checks fencing tokens.
#[derive(Debug, Parser)]
#[command(name = "tenure", version, after_long_help = EXIT_CODES, max_term_width = 100)]
pub struct Args {
    #[command(flatten)]
    pub globals: Globals,
    #[command(subcommand)]
    pub command: Command,
}

/// Options of all commands.
#[derive(Clone, Debug, clap::Args)]
pub struct Globals {
    /// Where names are kept: postgres://…, mysql://…, mongodb://…, redis://…, etcd://…, sqlite:PATH, memory: [env: TENURE_STORE] [default: a file in the user's state folder]
    #[arg(long, value_name = "URL", global = true, help_heading = EVERYWHERE)]
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    store: Option<String>,
    /// Write JSON, one object a line, failures included
    #[arg(long, global = true, help_heading = EVERYWHERE)]
    pub json: bool,
    /// Log to standard error what happens; TENURE_LOG=trace (or a filter) says more
    #[arg(short, long, global = true, help_heading = EVERYWHERE)]
    pub verbose: bool,
}

impl Globals {
    /// The URL that was given, by option or environment; an empty variable is as good as none.
    pub fn store_url(&self) -> Option<String> {
        let variable = || std::env::var("TENURE_STORE").ok().filter(|url| !url.is_empty());
        self.store.clone().or_else(variable)
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Hold a name while a command runs
    Run(Run),
    /// Campaign for a name for ever, and run a command whenever this one leads
    Lead(Lead),
    /// List who holds what
    Ls(Ls),
    /// Show one name in full; exit code 1 if nobody holds it
    Show(Show),
    /// Free a name that somebody holds; its holder is told who did it and why
    Evict(Evict),
    /// Check a fencing token: 0 and remember it, or 1 if it is stale
    Fence(Fence),
    /// Count names by first part and owner, with mean and longest hold
    Stats,
    /// Forget names that nobody has held for a while
    Prune(Prune),
    /// Print the statements that create the store's tables, without connecting
    Schema(Schema),
    /// Say what this store can promise, and try it out; exit code 1 if a promise is weakened
    Doctor,
    /// Print shell completions
    Completions(Completions),
    /// Print a manual page: tenure man | man -l -
    Man(Man),
}

/// `tenure run`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = RUN_HELP)]
pub struct Run {
    #[command(flatten)]
    pub hold: Hold,
    /// Don't wait: exit with 75 if somebody has the name
    #[arg(long = "try", conflicts_with = "wait")]
    pub once: bool,
    /// Wait at most this long for the name, then exit with 75 [default: for ever]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub wait: Option<Duration>,
    /// Exit with this code instead of 75 if somebody has the name; with 0, silently
    #[arg(long, value_name = "N", default_value_t = exit::BUSY, hide_default_value = true)]
    pub busy_exit_code: u8,
}

/// `tenure lead`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = LEAD_HELP)]
pub struct Lead {
    #[command(flatten)]
    pub hold: Hold,
}

/// What is held, how, and what runs meanwhile.
#[derive(Debug, clap::Args)]
pub struct Hold {
    /// What to hold: 1 to 255 bytes without control characters, such as report/daily
    #[arg(value_parser = |text: &str| Name::new(text))]
    pub name: Name,
    /// How long the name stays held without renewal, 100ms (etcd: 2s) to 24h: after a crash others wait this long
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = ttl)]
    pub ttl: Ttl,
    /// Keep the name closed for this long after the term expired unreleased, for work that can't check tokens
    #[arg(long, value_name = "DURATION", default_value = "0s", hide_default_value = true, value_parser = duration)]
    pub grace: Duration,
    /// End CMD and free the name after this long, whatever CMD is doing (run: exit code 76)
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    pub max_hold: Option<Duration>,
    /// Attach data for others to see: JSON, 64 KiB at most
    #[arg(long, value_name = "JSON", value_parser = data)]
    pub data: Option<Box<RawValue>>,
    /// The command to run, with its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// `tenure ls`.
#[derive(Debug, clap::Args)]
pub struct Ls {
    /// Only names that begin with this
    #[arg(default_value = "", hide_default_value = true)]
    pub prefix: String,
    /// Also terms that expired and were neither taken over nor pruned
    #[arg(short, long)]
    pub all: bool,
}

/// `tenure show`.
#[derive(Debug, clap::Args)]
pub struct Show {
    /// The name
    #[arg(value_parser = |text: &str| Name::new(text))]
    pub name: Name,
}

/// `tenure evict`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EVICT_HELP)]
pub struct Evict {
    /// The name
    #[arg(value_parser = |text: &str| Name::new(text))]
    pub name: Name,
    /// The reason, which the holder is told
    #[arg(long, value_name = "TEXT")]
    pub why: Option<String>,
}

/// `tenure fence`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = FENCE_HELP)]
pub struct Fence {
    /// What is protected: 1 to 255 bytes without control characters
    #[arg(value_parser = |text: &str| Name::new(text))]
    pub resource: Name,
    /// The token of whoever wants to act: TENURE_TOKEN
    #[arg(value_parser = token)]
    pub token: Token,
    /// Refuse the largest token seen so far too, for callers that rotate the token for each request
    #[arg(long)]
    pub strict: bool,
    /// Where the tokens seen are kept [default: fences in the user's state folder]
    #[arg(long, value_name = "FOLDER")]
    pub dir: Option<PathBuf>,
    /// The act: runs if the token passes, while the fence is locked
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// `tenure prune`.
#[derive(Debug, clap::Args)]
pub struct Prune {
    /// For how long nobody must have held a name, 1m at least
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = idle)]
    pub idle: Duration,
}

/// `tenure schema`.
#[derive(Debug, clap::Args)]
pub struct Schema {
    /// The store; the same as --store
    pub url: Option<String>,
}

/// `tenure completions`.
#[derive(Debug, clap::Args)]
pub struct Completions {
    /// The shell
    pub shell: Shell,
}

/// `tenure man`.
#[derive(Debug, clap::Args)]
pub struct Man {
    /// The command whose page it is [default: tenure itself]
    pub command: Option<String>,
}

fn duration(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|_| "write it as 500ms, 30s, 5m or 24h")?;
    if time > limits::TIME { Err("must be at most a year".into()) } else { Ok(time) }
}

fn positive_duration(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    if time < Duration::from_millis(1) { Err("must be at least 1ms".into()) } else { Ok(time) }
}

fn idle(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    if time < limits::IDLE { Err("must be at least 1m".into()) } else { Ok(time) }
}

fn ttl(text: &str) -> Result<Ttl, String> {
    Ttl::new(duration(text)?).map_err(|error| error.to_string())
}

fn token(text: &str) -> Result<Token, String> {
    // One beyond all real ones would close the fence for good.
    let number = text.parse().ok().filter(|number| *number < 1 << 53);
    number.map(Token).ok_or_else(|| "a token is a whole number below 2^53".into())
}

fn data(text: &str) -> Result<Box<RawValue>, String> {
    if text.len() > limits::DATA_BYTES {
        return Err(format!("has {} bytes: give at most {}", text.len(), limits::DATA_BYTES));
    }
    serde_json::from_str(text).map_err(|error| format!("is not JSON: {error}"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definitions_do_not_contradict_each_other() {
        Args::command().debug_assert();
    }

    #[test]
    fn durations_are_read_as_people_write_them() {
        let second = Duration::from_secs(1);
        for (text, time) in
            [("500ms", second / 2), ("30s", 30 * second), ("5m", 300 * second), ("1h 30m", 5400 * second)]
        {
            assert_eq!(duration(text), Ok(time), "{text}");
        }
        for text in ["", "5", "s", "-1s", "5 parsecs", "2years"] {
            assert!(duration(text).is_err(), "{text}");
        }
        assert!(positive_duration("0s").is_err());
    }

    #[test]
    fn data_is_kept_as_it_was_written() {
        let text = r#"{"b": 1, "a": 12345678901234567890123}"#;
        assert_eq!(data(text).unwrap().get(), text);
        assert!(data("{").unwrap_err().contains("not JSON"));
        assert!(data(&"1".repeat(limits::DATA_BYTES + 1)).unwrap_err().contains("65537 bytes"));
    }
}
