//! What a lock costs on etcd: `cargo bench --package tenure --features etcd --bench etcd`.
//!
//! It starts a cluster of three members of its own, with usual settings, on the same machine. Every figure that is compared
//! with another was measured in the same run, turn about; the median of the rounds is printed, and their range.

mod figures;
mod hand;
mod hands;
mod measure;

use std::future::IntoFuture as _;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use figures::{Spread, median};
use hands::Hands;
use measure::cycles;
use tenure::store::{Claim, Ended, Outcome, Store, url::store_at};
use tenure::{LeaseId, Locks, Name, Ttl};
use xtask::services::EtcdCluster;

const TASKS: usize = 256;
const ROUNDS: usize = 5;
/// How long each round of one transaction a lock takes.
const ROUND: Duration = Duration::from_secs(3);
const HAND_OVERS: usize = 200;
const HELD: usize = 10_000;
/// Of the names that are held.
const TTL: Duration = Duration::from_secs(30);
const RENEW_EVERY: Duration = Duration::from_secs(5);

fn main() {
    if let Some(url) = hand::url() {
        return hands::child(&url);
    }
    let cluster = EtcdCluster::start().expect("etcd starts");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let url = cluster.url();
        let (locks, bare) = (tenure::connect(&url).await.expect("the store opens"), open(&url).await);
        compare(&locks, &bare).await;
        hand_over(&url, &*bare).await;
        renewals(&locks, &cluster).await;
    });
}

async fn open(url: &str) -> Arc<dyn Store> {
    let store = store_at(url).expect("a good URL");
    store.open().await.expect("the store opens");
    store
}

/// Lock cycles of many tasks, beside the same client with one transaction for each claim and each release.
async fn compare(locks: &Locks, bare: &Arc<dyn Store>) {
    let mut rates = Vec::new();
    for tasks in [16, 64, 256] {
        rates.push((plain(bare, tasks).await, tasks));
    }
    let best = rates.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).map_or(TASKS, |(_, tasks)| tasks);
    cycles(locks, TASKS, 20).await;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.push(cycles(locks, TASKS, 50).await);
        theirs.push(plain(bare, best).await);
    }
    let ratios = ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).collect();
    println!("etcd: {TASKS} tasks, distinct names: {} cycles/s", Spread(ours));
    println!("etcd: one transaction a claim and one a release, {best} under way: {} cycles/s", Spread(theirs));
    println!("etcd: ratio {}", Spread(ratios));
}

/// Cycles a second, each a claim and a release on its own.
async fn plain(bare: &Arc<dyn Store>, tasks: usize) -> f64 {
    let begun = Instant::now();
    let task = |number: usize| {
        let bare = bare.clone();
        tokio::spawn(async move {
            let (name, mut count) = (Name::new(format!("plain/{number}")).expect("a name"), 0);
            while begun.elapsed() < ROUND {
                cycle(&*bare, &name).await;
                count += 1;
            }
            count
        })
    };
    let mut count = 0;
    for task in (0..tasks).map(task).collect::<Vec<_>>() {
        count += task.await.expect("no panic");
    }
    f64::from(count) / begun.elapsed().as_secs_f64()
}

/// A claim and a release; returns how long each took on the average, in microseconds.
async fn cycle(bare: &dyn Store, name: &Name) -> f64 {
    let (lease, begun) = (LeaseId::random(), Instant::now());
    let claim = Claim {
        name: name.clone(),
        lease,
        owner: "bench".into(),
        ttl: Ttl::DEFAULT,
        grace: Duration::ZERO,
        data: None,
        waits: true,
    };
    let mut outcome = bare.claim(&[claim]).await.expect("the store answers");
    let Some(Ok(Outcome::Granted(grant))) = outcome.pop() else { panic!("the name is free") };
    let end = Ended { name: name.clone(), lease, first: Some(grant.token), evicted_by: None };
    bare.release(&[end]).await.expect("the store answers");
    begun.elapsed().as_secs_f64() * 1e6 / 2.0
}

/// From a release in one process to the grant in another that waits, beside a single transaction.
async fn hand_over(url: &str, bare: &dyn Store) {
    let (mut hands, name) = (Hands::new(url), Name::new("plain/0").expect("a name"));
    let (mut times, mut trips) = (Vec::new(), Vec::new());
    for _ in 0..HAND_OVERS {
        times.push(hands.hand_over());
        trips.push(cycle(bare, &name).await);
    }
    println!("etcd: hand-over between two processes: {} µs", Spread(times.clone()));
    println!("etcd: a transaction of one name: {} µs", Spread(trips.clone()));
    println!("etcd: ratio of the medians {:.1}", median(&times) / median(&trips));
}

/// How many calls it takes to renew many names, by the servers' count.
async fn renewals(locks: &Locks, cluster: &EtcdCluster) {
    let lock = |number: usize| locks.lock(format!("held/{number}")).ttl(TTL).renew_every(RENEW_EVERY).into_future();
    let asked: Vec<_> = (0..HELD).map(|number| tokio::spawn(lock(number))).collect();
    let mut guards = Vec::with_capacity(HELD);
    for guard in asked {
        guards.push(guard.await.expect("no panic").expect("the name is free"));
    }
    // They were granted at different moments, and come together.
    tokio::time::sleep(2 * RENEW_EVERY).await;
    let (before, begun) = (calls(cluster), Instant::now());
    tokio::time::sleep(6 * RENEW_EVERY).await;
    let (calls, periods) = (calls(cluster) - before, begun.elapsed().as_secs_f64() / RENEW_EVERY.as_secs_f64());
    assert!(guards.iter().all(tenure::Guard::is_held), "lost while renewing");
    println!("etcd: {HELD} held names, renewed every {RENEW_EVERY:?}: {calls} calls in {periods:.1} periods");
}

/// The calls that the members have been asked by clients, as they count them.
fn calls(cluster: &EtcdCluster) -> u64 {
    let of = |port: u16| {
        let mut link = TcpStream::connect(("127.0.0.1", port)).expect("the member listens");
        write!(link, "GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n").expect("the member listens");
        let mut text = String::new();
        link.read_to_string(&mut text).expect("the member answers");
        let started = text.lines().filter(|line| line.starts_with("grpc_server_started_total"));
        started.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum::<u64>()
    };
    cluster.members.iter().map(|member| of(member.port())).sum()
}
