//! A hundred topics, shared out over three processes. Kill some, start some, and see who has what.
//!
//! ```sh
//! cargo run --example workers --features sqlite           # starts two more processes by itself
//! cargo run --example workers --features sqlite -- --join # in another terminal: one more; as often as you like
//! kill -9 PID                                             # a process from the table
//! ```
//!
//! Ctrl-C ends them in order: each gives its topics back and leaves. A process that is killed is missed when its term is over, 4 s later.
//! The store is a file in the folder for temporary files, or `--store URL`. `--for SECONDS` ends it by itself.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write;
use std::io::IsTerminal;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tenure::{Crew, Handle, Locks, Term};

const GROUP: &str = "example/topics";
const TOPICS: usize = 100;
const CAPACITY: u32 = 60;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// What your own program will have: the same in every process.
fn crew(locks: &Locks) -> Crew {
    locks
        .crew(GROUP)
        .tasks((0..TOPICS).map(|topic| format!("topic-{topic:02}")))
        .capacity(CAPACITY)
        .ttl(Duration::from_secs(4)) // short, so that you need not wait long for what a dead process had
        .settle(Duration::from_secs(2))
}

/// Consumes a topic until it is to stop. The token goes along with whatever is written.
async fn consume(_topic: String, term: Term) {
    let _token = term.token();
    term.cancelled().await;
}

struct Arguments {
    join: bool,
    store: String,
    time: Option<Duration>,
}

fn arguments() -> Result<Arguments> {
    let default = std::env::temp_dir().join("tenure-example-workers.db");
    let mut found = Arguments { join: false, store: format!("sqlite:{}", default.display()), time: None };
    let mut given = std::env::args().skip(1);
    while let Some(argument) = given.next() {
        match argument.as_str() {
            "--join" => found.join = true,
            "--store" => found.store = given.next().ok_or("--store needs a URL")?,
            "--for" => found.time = Some(Duration::from_secs(given.next().ok_or("--for needs seconds")?.parse()?)),
            _ => return Err(format!("unknown argument {argument}: give --join, --store URL, --for SECONDS").into()),
        }
    }
    Ok(found)
}

/// One more, which works until ctrl-C, or until its input ends: so it ends in order when the one that started it does.
async fn join(locks: &Locks) -> Result<()> {
    let crew = crew(locks);
    let handle = crew.handle();
    tokio::spawn(stop_on_ctrl_c(crew.handle()));
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        handle.stop();
    });
    Ok(crew.work(consume).await?)
}

async fn stop_on_ctrl_c(handle: Handle) {
    tokio::signal::ctrl_c().await.expect("ctrl-C can be caught");
    handle.stop();
}

fn start_another(store: &str) -> Result<Child> {
    let program = std::env::current_exe()?;
    Ok(Command::new(program).args(["--join", "--store", store]).stdin(Stdio::piped()).spawn()?)
}

/// Who has what, by the store's word: those that work, and those that have died but whose terms are not over.
async fn table(locks: &Locks, handle: &Handle) -> Result<String> {
    let mut topics: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for member in locks.members(GROUP).list().await? {
        topics.entry(member.owner).or_default();
    }
    for record in locks.list(format!("{GROUP}/tasks/")).await? {
        let topic = record.name.as_str().rsplit('-').next().unwrap_or_default().to_owned();
        topics.entry(record.owner).or_default().push(topic);
    }
    let (report, held) = (handle.report(), topics.values().map(Vec::len).sum::<usize>());
    let mut table = format!("{held} of {TOPICS} topics are held, {} unassigned\n", report.unassigned.len());
    for (owner, topics) in topics {
        // The owner is host/pid/random.
        let pid = owner.split('/').nth(1).unwrap_or_default();
        writeln!(table, "  process {pid:>8}  {:>3}  {}", topics.len(), topics.join(" "))?;
    }
    Ok(table)
}

async fn show(locks: &Locks, handle: &Handle) -> Result<()> {
    let mut shown = String::new();
    loop {
        let table = table(locks, handle).await?;
        if table != shown {
            let clear = if std::io::stdout().is_terminal() { "\x1b[2J\x1b[H" } else { "" };
            println!("{clear}{table}");
            shown = table;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

async fn lead(locks: &Locks, arguments: &Arguments) -> Result<()> {
    let mut others = [start_another(&arguments.store)?, start_another(&arguments.store)?];
    let crew = crew(locks);
    let handle = crew.handle();
    tokio::spawn(stop_on_ctrl_c(crew.handle()));
    let end = async {
        match arguments.time {
            Some(time) => tokio::time::sleep(time).await,
            None => std::future::pending().await,
        }
        handle.stop();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        ended = crew.work(consume) => ended?,
        failed = show(locks, &handle) => failed?,
        () = end => {}
    }
    for other in &mut others {
        drop(other.stdin.take());
        other.wait()?;
    }
    Ok(())
}

/// Public for the test that runs it.
#[tokio::main]
pub async fn main() -> Result<()> {
    let arguments = arguments()?;
    let locks = tenure::connect(&arguments.store).await?;
    if arguments.join { join(&locks).await } else { lead(&locks, &arguments).await }
}
