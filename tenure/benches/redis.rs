//! What a lock costs on Redis: `cargo bench --package tenure --features redis --bench redis`.
//!
//! It starts a Redis of its own, without persistence, on the same machine. Every figure that is compared with another
//! was measured in the same run, turn about; the median of the rounds is printed, and their range.

mod figures;
mod hand;
mod hands;
mod measure;

use std::process::Command;
use std::time::{Duration, Instant};

use figures::{Spread, median};
use hands::Hands;
use measure::cycles;
use redis::aio::MultiplexedConnection;
use rslock::LockManager;
use tenure::{EventKind, Locks, Next};
use xtask::services::Redis;
use xtask::tools;

const TASKS: usize = 256;
const ROUNDS: usize = 5;
const CYCLES: usize = 400;
const HAND_OVERS: usize = 200;
const HELD: usize = 10_000;

fn main() {
    if let Some(url) = hand::url() {
        return hands::child(&url);
    }
    let server = Redis::start_with(&[("appendonly", "no")]).expect("Redis starts");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let locks = tenure::connect(server.url()).await.expect("the store opens");
        compare(&locks, &server).await;
        hand_over(&server).await;
        renewals(&locks, &server).await;
    });
}

/// Lock cycles of many tasks, beside the `rslock` crate and beside `redis-benchmark` with our scripts.
async fn compare(locks: &Locks, server: &Redis) {
    let others = LockManager::new(vec![server.url()]);
    let scripts = Scripts::load(server).await;
    cycles(locks, TASKS, 20).await;
    rslock_cycles(&others, 20).await;
    let (mut ours, mut theirs, mut bare) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.push(cycles(locks, TASKS, CYCLES).await);
        theirs.push(rslock_cycles(&others, CYCLES / 4).await);
        bare.push(scripts.cycles(server));
    }
    let ratio = |others: &[f64]| Spread(ours.iter().zip(others).map(|(ours, others)| ours / others).collect());
    println!("redis: {TASKS} tasks, distinct names: {} cycles/s", Spread(ours.clone()));
    println!("redis: rslock, {TASKS} tasks, distinct names: {} cycles/s", Spread(theirs.clone()));
    println!("redis: ratio to rslock {}", ratio(&theirs));
    println!("redis: redis-benchmark, {TASKS} calls of our scripts under way: {} cycles/s", Spread(bare.clone()));
    println!("redis: ratio to redis-benchmark {}", ratio(&bare));
}

async fn rslock_cycles(manager: &LockManager, count: usize) -> f64 {
    let begun = Instant::now();
    let running: Vec<_> = (0..TASKS)
        .map(|task| {
            let manager = manager.clone();
            tokio::spawn(async move {
                let name = format!("rslock/{task}");
                for _ in 0..count {
                    let lock = manager.lock(name.as_bytes(), Duration::from_secs(30)).await.expect("the name is free");
                    manager.unlock(&lock).await;
                }
            })
        })
        .collect();
    for task in running {
        task.await.expect("no panic");
    }
    (TASKS * count) as f64 / begun.elapsed().as_secs_f64()
}

/// Our scripts, called for one name at a time by `redis-benchmark`.
struct Scripts {
    claim: String,
    release: String,
    keys: Vec<String>,
}

impl Scripts {
    const CALLS: usize = 100_000;
    const NAMES: &str = "256";
    const LEASE: &str = "0123456789abcdef0123456789abcdef";

    async fn load(server: &Redis) -> Self {
        let (texts, keys) = tenure::store::redis::scripts_of("bench");
        let mut connection = connection(server).await;
        let mut hashes = Vec::new();
        for text in texts {
            let load = redis::cmd("SCRIPT").arg("LOAD").arg(text).clone();
            hashes.push(load.query_async(&mut connection).await.expect("a good script"));
        }
        let [claim, release] = hashes.try_into().expect("two scripts");
        Self { claim, release, keys: keys.into() }
    }

    /// Cycles a second: the time of a claim and that of a release, added up.
    fn cycles(&self, server: &Redis) -> f64 {
        let name = "cycle/__rand_int__";
        let claims = self.calls(server, &self.claim, &[name, Self::LEASE, "30000000", "0", "1", "owner", ""]);
        let releases = self.calls(server, &self.release, &[name, Self::LEASE, "", ""]);
        1.0 / (1.0 / claims + 1.0 / releases)
    }

    /// Calls a second, with as many under way as we have tasks.
    fn calls(&self, server: &Redis, hash: &str, entry: &[&str]) -> f64 {
        let mut benchmark = Command::new(tools::find("redis-benchmark").expect("it comes with redis-cli"));
        benchmark.args(["-p", &server.port().to_string(), "-c", "4", "-P", &(TASKS / 4).to_string()]);
        benchmark.args(["-n", &Self::CALLS.to_string(), "-r", Self::NAMES, "--csv"]);
        benchmark.args(["EVALSHA", hash, "6"]).args(&self.keys).args(["9000000000000000", "channel"]).args(entry);
        let out = benchmark.output().expect("redis-benchmark runs");
        let text = String::from_utf8_lossy(&out.stdout);
        let rate = text.lines().nth(1).and_then(|line| line.rsplit("\",\"").nth(6)?.parse().ok());
        rate.unwrap_or_else(|| panic!("redis-benchmark says {text} {}", String::from_utf8_lossy(&out.stderr)))
    }
}

/// From a release in one process to the grant in another that waits, beside a round trip.
async fn hand_over(server: &Redis) {
    let mut connection = connection(server).await;
    let mut hands = Hands::new(&server.url());
    let (mut times, mut trips) = (Vec::new(), Vec::new());
    for _ in 0..HAND_OVERS {
        times.push(hands.hand_over());
        let begun = Instant::now();
        let () = redis::cmd("PING").query_async(&mut connection).await.expect("Redis answers");
        trips.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    println!("redis: hand-over between two processes: {} µs", Spread(times.clone()));
    println!("redis: a round trip: {} µs", Spread(trips.clone()));
    println!("redis: ratio of the medians {:.1}", median(&times) / median(&trips));
}

/// Calls that it takes to renew many names once.
async fn renewals(locks: &Locks, server: &Redis) {
    let ttl = Duration::from_secs(30);
    let mut guards = Vec::new();
    for part in 0..HELD / 500 {
        let asked: Vec<_> = (0..500).map(|n| locks.lock(format!("held/{}", part * 500 + n)).ttl(ttl)).collect();
        let asked: Vec<_> = asked.into_iter().map(|lock| tokio::spawn(lock.into_future())).collect();
        for lock in asked {
            guards.push(lock.await.expect("no panic").expect("the name is free"));
        }
    }
    let mut connection = connection(server).await;
    let before = calls(&mut connection).await;
    let mut events = locks.events();
    let mut renewed = 0;
    while renewed < HELD {
        match events.next().await {
            Some(Next::Event(event)) if matches!(event.kind, EventKind::Renewed) => renewed += 1,
            Some(Next::Missed(missed)) => renewed += usize::try_from(missed).unwrap_or(0),
            Some(_) => {}
            None => panic!("the engine has ended"),
        }
    }
    println!("redis: {HELD} held names, renewed once: {} calls", calls(&mut connection).await - before);
}

/// Scripts that the server has run so far.
async fn calls(connection: &mut MultiplexedConnection) -> u64 {
    let info: String = redis::cmd("INFO").arg("commandstats").query_async(connection).await.expect("Redis answers");
    let line = info.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")).unwrap_or("0");
    line.split(',').next().and_then(|count| count.parse().ok()).unwrap_or(0)
}

async fn connection(server: &Redis) -> MultiplexedConnection {
    let client = redis::Client::open(server.url()).expect("a good URL");
    client.get_multiplexed_async_connection().await.expect("Redis answers")
}
