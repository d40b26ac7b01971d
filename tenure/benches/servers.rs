//! What a lock costs on a database server: `cargo bench --package tenure --all-features --bench servers`.
//!
//! It starts a PostgreSQL and a MariaDB of its own, with durable commits, which is their default, and connects without
//! TLS, on the same machine. Every figure that is
//! compared with another was measured in the same run, turn about; the median of the rounds is printed, and their range.

mod figures;
mod hand;
mod hands;
mod measure;

use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};

use figures::{Spread, median};
use hands::Hands;
use measure::cycles;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions as _, Connection as _, Executor as _};
use tenure::store::{Claim, Ended, Outcome, Store, url::store_at};
use tenure::{LeaseId, Locks, Name, Ttl};
use xtask::services::{MariaDb, Postgres};
use xtask::tools;

const TASKS: usize = 256;
const ROUNDS: usize = 5;
/// How long each round of somebody else's statements takes.
const ROUND: Duration = Duration::from_secs(2);
const HAND_OVERS: usize = 200;

fn main() {
    if let Some(url) = hand::url() {
        return hands::child(&url);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        if asked_for("postgres") {
            postgres().await;
        }
        if asked_for("mysql") {
            mysql().await;
        }
    });
}

/// All stores are, unless some are named on the command line.
fn asked_for(store: &str) -> bool {
    let named: Vec<_> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    named.is_empty() || named.iter().any(|name| name == store)
}

async fn postgres() {
    let server = Postgres::start().expect("PostgreSQL starts");
    let url = server.url() + "?sslmode=disable";
    let bench = PgBench::new(&url).await;
    let locks = tenure::connect(&url).await.expect("the store opens");
    let best = best(&[16, 32, 64, 128], |connections| bench.run(connections));
    compare("postgres", &locks, &format!("pgbench, {best} connections, an upsert and an update a cycle"), || {
        std::future::ready(bench.run(best))
    })
    .await;
    one_task("postgres", &url).await;
    hand_over(&url, bench.connection).await;
}

async fn mysql() {
    let server = MariaDb::start().expect("MariaDB starts");
    let url = server.url() + "?ssl-mode=disabled";
    let options: MySqlConnectOptions = url.parse().expect("a good URL");
    let mut connection = options.clone().disable_statement_logging().connect().await.expect("MariaDB answers");
    connection.execute(PlainRows::CREATE).await.expect("the table is made");
    let locks = tenure::connect(&url).await.expect("the store opens");
    let mut rates = Vec::new();
    for connections in [1, 8, 16, 32, 64] {
        rates.push((PlainRows::run(&options, connections).await, connections));
    }
    let best = rates.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).map_or(1, |(_, connections)| connections);
    compare("mysql", &locks, &format!("{best} connections, an upsert and an update a cycle"), || {
        PlainRows::run(&options, best)
    })
    .await;
    one_task("mysql", &url).await;
}

/// The number of connections with which `run` is fastest.
fn best(connections: &[usize], run: impl Fn(usize) -> f64) -> usize {
    let rates = connections.iter().map(|&connections| (run(connections), connections));
    rates.max_by(|a, b| a.0.total_cmp(&b.0)).map_or(1, |(_, connections)| connections)
}

/// Lock cycles of many tasks, beside one statement for each claim and each release.
async fn compare<F: Future<Output = f64>>(store: &str, locks: &Locks, other: &str, plain: impl Fn() -> F) {
    cycles(locks, TASKS, 20).await;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.push(cycles(locks, TASKS, 200).await);
        theirs.push(plain().await);
    }
    let ratios = ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).collect();
    println!("{store}: {TASKS} tasks, distinct names: {} cycles/s", Spread(ours));
    println!("{store}: {other}: {} cycles/s", Spread(theirs));
    println!("{store}: ratio {}", Spread(ratios));
}

/// One task's cycle through the engine, beside the same two calls made of the store itself: the same statements on a
/// connection of their own, without the engine.
async fn one_task(store: &str, url: &str) {
    let locks = tenure::connect(url).await.expect("the store opens");
    let bare = store_at(url).expect("a good URL");
    bare.open().await.expect("the store opens");
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        with.push(1e6 / cycles(&locks, 1, 500).await);
        without.push(bare_cycles(&*bare, 500).await);
    }
    let more = with.iter().zip(&without).map(|(with, without)| with - without).collect();
    println!("{store}: one task, a cycle: {} µs", Spread(with));
    println!("{store}: the same statements on a bare connection: {} µs", Spread(without));
    println!("{store}: difference {} µs", Spread(more));
}

async fn bare_cycles(store: &dyn Store, count: usize) -> f64 {
    let name = Name::new("bare/0").expect("a name");
    let begun = Instant::now();
    for _ in 0..count {
        let lease = LeaseId::random();
        let claim = Claim {
            name: name.clone(),
            lease,
            owner: "bench".into(),
            ttl: Ttl::DEFAULT,
            grace: Duration::ZERO,
            data: None,
            waits: true,
        };
        let mut outcome = store.claim(&[claim]).await.expect("the store answers");
        let Some(Ok(Outcome::Granted(grant))) = outcome.pop() else { panic!("the name is free") };
        let end = Ended { name: name.clone(), lease, first: Some(grant.token), evicted_by: None };
        store.release(&[end]).await.expect("the store answers");
    }
    begun.elapsed().as_secs_f64() * 1e6 / count as f64
}

/// What people paste, with pgbench.
struct PgBench {
    url: String,
    script: tempfile::NamedTempFile,
    connection: PgConnection,
}

impl PgBench {
    const CREATE: &str =
        "create table plain (name text collate \"C\" primary key, token bigint, lease text, owner text,
        expires timestamptz) with (fillfactor = 70)";

    const CYCLE: &[u8] = b"\\set n random(1, 1000000000)
insert into plain as l (name, token, lease, owner, expires)
values ('cycle/' || :client_id, (extract(epoch from clock_timestamp()) * 1000000)::bigint, :n::text, 'owner',
        clock_timestamp() + interval '30 s')
on conflict (name) do update set
  token = greatest(l.token + 1, (extract(epoch from clock_timestamp()) * 1000000)::bigint),
  lease = excluded.lease, owner = excluded.owner, expires = clock_timestamp() + interval '30 s'
where l.lease is null or l.expires <= clock_timestamp() returning token;
update plain set lease = null where name = 'cycle/' || :client_id and lease = :n::text;
";

    async fn new(url: &str) -> Self {
        let options: PgConnectOptions = url.parse().expect("a good URL");
        let mut connection = options.disable_statement_logging().connect().await.expect("PostgreSQL answers");
        connection.execute(Self::CREATE).await.expect("the table is made");
        let mut script = tempfile::NamedTempFile::new().expect("a file");
        script.write_all(Self::CYCLE).expect("the script is written");
        Self { url: url.into(), script, connection }
    }

    /// Cycles a second.
    fn run(&self, connections: usize) -> f64 {
        let mut pgbench = Command::new(tools::find("pgbench").expect("pgbench comes with PostgreSQL"));
        pgbench.args(["-n", "-M", "prepared", "-j", "2", "-c", &connections.to_string()]);
        pgbench.args(["-T", &ROUND.as_secs().to_string(), "-f"]).arg(self.script.path()).arg(&self.url);
        let out = pgbench.output().expect("pgbench runs");
        let text = String::from_utf8_lossy(&out.stdout);
        let tps = text.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
        tps.unwrap_or_else(|| panic!("pgbench says {text} {}", String::from_utf8_lossy(&out.stderr)))
    }
}

/// What people paste, on MariaDB.
struct PlainRows;

impl PlainRows {
    const CREATE: &str = "create table plain (name varbinary(255) primary key, token bigint, lease varchar(32),
        owner varchar(255), expires datetime(6))";
    const CLAIM: &str = "insert into plain values (?, timestampdiff(microsecond, '1970-01-01', sysdate(6)), ?, 'owner',
          sysdate(6) + interval 30 second)
        on duplicate key update
          token = if(lease is null or expires <= sysdate(6), greatest(token + 1, values(token)), token),
          owner = if(lease is null or expires <= sysdate(6), values(owner), owner),
          expires = if(lease is null or expires <= sysdate(6), values(expires), expires),
          lease = if(lease is null, values(lease), lease)";
    const RELEASE: &str = "update plain set lease = null where name = ? and lease = ?";

    /// Cycles a second.
    async fn run(options: &MySqlConnectOptions, connections: usize) -> f64 {
        let mut links = Vec::new();
        for _ in 0..connections {
            links.push(options.clone().disable_statement_logging().connect().await.expect("MariaDB answers"));
        }
        let begun = Instant::now();
        let running: Vec<_> = links
            .into_iter()
            .enumerate()
            .map(|(task, link)| tokio::spawn(Self::cycle(link, task, begun + ROUND)))
            .collect();
        let mut count = 0;
        for task in running {
            count += task.await.expect("no panic");
        }
        count as f64 / begun.elapsed().as_secs_f64()
    }

    async fn cycle(mut link: MySqlConnection, task: usize, until: Instant) -> usize {
        let mut count = 0;
        while Instant::now() < until {
            let (name, lease) = (format!("cycle/{task}"), format!("{count:032x}"));
            let claim = sqlx::query(Self::CLAIM).bind(name.as_bytes()).bind(&lease);
            claim.execute(&mut link).await.expect("the name is free");
            let release = sqlx::query(Self::RELEASE).bind(name.as_bytes()).bind(&lease);
            release.execute(&mut link).await.expect("it is held");
            count += 1;
        }
        // It may be gone.
        let _ = link.close().await;
        count
    }
}

/// From a release in one process to the grant in another that waits, beside a bare commit of one row.
async fn hand_over(url: &str, mut connection: PgConnection) {
    let mut hands = Hands::new(url);
    let (mut times, mut commits) = (Vec::new(), Vec::new());
    for _ in 0..HAND_OVERS {
        times.push(hands.hand_over());
        commits.push(commit(&mut connection).await);
    }
    println!("postgres: hand-over between two processes: {} µs", Spread(times.clone()));
    println!("postgres: a bare commit of one row: {} µs", Spread(commits.clone()));
    println!("postgres: ratio of the medians {:.1}", median(&times) / median(&commits));
}

async fn commit(connection: &mut PgConnection) -> f64 {
    let upsert = "insert into plain values ('commit', 1) on conflict (name) do update set token = plain.token + 1";
    let begun = Instant::now();
    connection.execute(sqlx::query(upsert)).await.expect("PostgreSQL answers");
    begun.elapsed().as_secs_f64() * 1e6
}
