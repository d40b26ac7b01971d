//! How soon the next one leads, and what a large crew costs: `cargo bench --package tenure --all-features --bench failover`.
//!
//! Leaders are real processes: one that is killed (`kill -9`) is followed when its term is over, one that resigns at once.
//! A crew's instances are in this process, each with an engine and connections of its own. Every store that is there is
//! measured, a server at the URL of its variable, or else one that is started; name some, after `--`, to leave out the others.

mod figures;
mod hand;

use std::error::Error;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use figures::{Spread, median};
use hand::Hand;
use tenure::clock::Moment;
use tenure::conformance::{Call, Faulty};
use tenure::store::{Claim, Outcome, Renewal, Store, memory::MemoryStore, url::store_at};
use tenure::{EventKind, LeaseId, Locks, Name, Next, Ttl};
use tokio::task::JoinSet;
use xtask::services::{MariaDb, Postgres, Server};

/// The shortest that every store can keep.
const TTL: Duration = Duration::from_secs(2);
const KILLS: u32 = 12;
const RESIGNATIONS: usize = 200;

const TASKS: usize = 1000;
const INSTANCES: usize = 50;
const EACH: usize = TASKS / INSTANCES;
const ROUND: Duration = Duration::from_secs(1);
/// Longer than it takes all instances to join, so that they count together.
const SETTLE: Duration = Duration::from_secs(5);

/// A server that runs until it is dropped.
type Running = Box<dyn Deref<Target = Server>>;
type Start = fn() -> Result<Running, Box<dyn Error>>;

/// The servers to measure on: the variable that leads to one, and how one is started if it is not set.
const SERVERS: &[(&str, &str, Start)] = &[
    // Each instance of the crew has up to ten connections.
    ("postgres", "TENURE_TEST_POSTGRES", || Ok(Box::new(Postgres::start_with(&[("max_connections", "600")])?))),
    ("mysql", "TENURE_TEST_MYSQL", || Ok(Box::new(MariaDb::start_with(&[("max_connections", "600")])?))),
];

fn main() {
    if let Some(url) = hand::url() {
        return child(&url);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        if is_wanted("memory") {
            println!("memory: has no other processes to lead");
            let store = MemoryStore::new();
            crew("memory", || Arc::new(store.clone())).await;
        }
        if is_wanted("sqlite") {
            let folder = tempfile::tempdir().expect("a folder");
            measure("sqlite", &format!("sqlite:{}", folder.path().join("locks.db").display())).await;
        }
        for (store, variable, start) in SERVERS.iter().filter(|(store, ..)| is_wanted(store)) {
            match std::env::var(variable) {
                Ok(url) => measure(store, &url).await,
                Err(_) => match start() {
                    Ok(server) => measure(store, &server.url()).await,
                    Err(error) => println!("{store}: not here: {error}"),
                },
            }
        }
    });
}

fn is_wanted(store: &str) -> bool {
    let mut named = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).peekable();
    named.peek().is_none() || named.any(|name| name == store)
}

async fn measure(store: &str, url: &str) {
    kill(store, url);
    resign(store, url).await;
    crew(store, || store_at(url).expect("a good URL")).await;
}

/// From the death of a leader to the next one's start.
fn kill(store: &str, url: &str) {
    let mut times = Vec::new();
    let mut leader = Hand::new(url);
    leader.tell("campaign");
    leader.said("leads");
    for turn in 0..KILLS {
        let mut next = Hand::new(url);
        next.tell("campaign");
        next.said("waits");
        // At another moment since its last renewal each time.
        std::thread::sleep(TTL / KILLS * turn);
        let killed = Moment::now();
        drop(leader);
        times.push((next.said_at("leads") - killed.since_boot().as_nanos() as u64) as f64 / 1e6);
        leader = next;
    }
    let goal = (TTL + Duration::from_millis(300)).as_millis();
    println!("{store}: from kill -9 of a leader to the next one: {} ms; the goal is at most {goal}", Spread(times));
}

/// From a leader's resignation to the next one's start, beside a round trip: a renewal of one name, without the engine.
async fn resign(store: &str, url: &str) {
    let mut hands = [Hand::new(url), Hand::new(url)];
    let (mut times, mut trips, trip) = (Vec::new(), Vec::new(), RoundTrip::new(url).await);
    hands[0].tell("campaign");
    hands[0].said("leads");
    for turn in 0..RESIGNATIONS {
        let [first, second] = &mut hands;
        let (from, to) = if turn % 2 == 0 { (first, second) } else { (second, first) };
        to.tell("campaign");
        to.said("waits");
        from.tell("resign");
        let resigned = from.said_at("resigns");
        times.push((to.said_at("leads") - resigned) as f64 / 1e3);
        trips.push(trip.make().await);
    }
    let ratio = median(&times) / median(&trips);
    println!("{store}: from a leader's resignation to the next one: {} µs", Spread(times));
    println!("{store}: a round trip: {} µs", Spread(trips));
    let about = trip.0.about();
    match about.push {
        true => println!("{store}: {ratio:.1} round trips; the goal is 3"),
        false => println!("{store}: {ratio:.1} round trips; no goal: it is polled every {:?}", about.poll),
    }
}

/// A name that is held, to be renewed.
struct RoundTrip(Arc<dyn Store>, Renewal);

impl RoundTrip {
    async fn new(url: &str) -> Self {
        let store = store_at(url).expect("a good URL");
        store.open().await.expect("the store opens");
        let (name, lease) = (Name::new("failover/trip").expect("a name"), LeaseId::random());
        let ttl = Ttl::new(Duration::from_secs(600)).expect("a TTL");
        let claim = Claim {
            name: name.clone(),
            lease,
            owner: "bench".into(),
            ttl,
            grace: Duration::ZERO,
            data: None,
            waits: false,
        };
        let mut outcome = store.claim(&[claim]).await.expect("the store answers");
        let Some(Ok(Outcome::Granted(grant))) = outcome.pop() else { panic!("the name is free") };
        Self(store, Renewal { name, lease, first: grant.token, ttl, rotate: false })
    }

    /// In µs.
    async fn make(&self) -> f64 {
        let begun = Instant::now();
        self.0.renew(std::slice::from_ref(&self.1)).await.expect("the store answers");
        begun.elapsed().as_secs_f64() * 1e6
    }
}

/// Campaigns and resigns as it is told, and says when.
fn child(url: &str) {
    let locks = tenure::connect(url).blocking().expect("the store opens");
    let mut events = locks.events();
    std::thread::spawn(move || {
        runtime().block_on(async {
            while let Some(next) = events.next().await {
                if matches!(&next, Next::Event(event) if matches!(event.kind, EventKind::Contended(_))) {
                    println!("waits");
                }
            }
        });
    });
    let election = locks.election("failover/leader").ttl(TTL);
    let (runtime, mut orders) = (runtime(), std::io::stdin().lines());
    while orders.next().is_some() {
        let leadership = runtime.block_on(election.campaign()).expect("it is elected in time");
        println!("leads {}", Moment::now().since_boot().as_nanos());
        orders.next();
        let resigned = Moment::now();
        runtime.block_on(leadership.resign()).expect("it leads");
        println!("resigns {}", resigned.since_boot().as_nanos());
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime")
}

/// A large crew, from the first round in which anybody counts until each instance has its share.
async fn crew(store: &str, make: impl Fn() -> Arc<dyn Store>) {
    let mut instances = Vec::new();
    for _ in 0..INSTANCES {
        let counter = Faulty::new(make());
        instances.push((Locks::on(Arc::new(counter.clone())).await.expect("the store opens"), counter));
    }
    let (mut crews, mut shares, mut handles) = (JoinSet::new(), JoinSet::new(), Vec::new());
    for (locks, counter) in &instances {
        let crew = locks.crew("failover/crew").tasks((0..TASKS).map(|task| format!("task-{task:04}")));
        let crew = crew.capacity(2 * EACH as u32).round(ROUND).settle(SETTLE);
        shares.spawn(share(crew.handle(), counter.clone()));
        handles.push(crew.handle());
        crews.spawn(async { crew.work(async |_, term| term.cancelled().await).await.expect("it is stopped") });
    }
    let mut all = Vec::new();
    while let Some(share) = shares.join_next().await {
        all.push(share.expect("no panic"));
    }
    let claims: u64 = instances.iter().map(|(_, counter)| counter.entries(Call::Claim)).sum();
    let claims = claims as usize - INSTANCES;
    let rounds: Vec<f64> = all.iter().map(|share| share.rounds as f64).collect();
    let calls = all.iter().map(|share| share.calls as f64 / share.rounds as f64).collect();
    let time = all.iter().map(|share| share.time.as_secs_f64()).collect();
    println!(
        "{store}: {TASKS} tasks on {INSTANCES} instances, rounds of {ROUND:?}: each has its share after {} rounds",
        Spread(rounds)
    );
    println!("{store}: which is after {} s; the goal is 3 rounds", Spread(time));
    println!("{store}: {claims} claims; the goal is at most {}", 2 * TASKS);
    println!("{store}: calls a round and instance: {}", Spread(calls));
    handles.iter().for_each(tenure::Handle::stop);
    crews.join_all().await;
}

/// How an instance came to its share.
struct Share {
    rounds: u64,
    time: Duration,
    /// Claims and pages of lists.
    calls: u64,
}

async fn share(mut handle: tenure::Handle, counter: Faulty) -> Share {
    let calls = || counter.calls(Call::Claim) + counter.lists();
    let mut first = None;
    loop {
        let report = handle.changed().await.expect("it works");
        if report.members.is_empty() {
            continue;
        }
        // The list of this round, of which the pages are as many as in each, has been made.
        let (begun, lists, before) = *first.get_or_insert_with(|| (Instant::now(), counter.lists(), calls()));
        if report.mine.len() == EACH {
            let rounds = 1 + (counter.lists() - lists).div_ceil(PAGES);
            return Share { rounds, time: begun.elapsed(), calls: calls() - before + PAGES };
        }
    }
}

/// A list of the tasks and the members has so many.
const PAGES: u64 = 2;
