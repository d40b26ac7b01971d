//! What a large crew costs its store: rounds, claims, calls.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use tenure::conformance::{Call, Fault, Faulty};
use tenure::store::memory::MemoryStore;
use tenure::{Handle, Locks};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

const TASKS: usize = 1000;
const INSTANCES: usize = 50;
const EACH: usize = TASKS / INSTANCES;
const ROUND: Duration = Duration::from_millis(500);
const SETTLE: Duration = Duration::from_secs(3);
/// Far more than it takes.
const LIMIT: Duration = Duration::from_secs(60);

struct Instance {
    store: Faulty,
    handle: Handle,
}

impl Instance {
    async fn start(store: &MemoryStore, crews: &mut JoinSet<()>) -> Self {
        let store = Faulty::new(Arc::new(store.clone()));
        // As long as a call to a server takes: what is asked meanwhile travels in the next one.
        store.always(Call::Claim, Fault::Delay(Duration::from_millis(10)));
        let locks = Locks::on(Arc::new(store.clone())).await.unwrap();
        let crew = locks.crew("large").tasks((0..TASKS).map(|task| task.to_string())).capacity(2 * EACH as u32);
        let crew = crew.round(ROUND).settle(SETTLE);
        let handle = crew.handle();
        crews.spawn(async { crew.work(async |_, term| term.cancelled().await).await.unwrap() });
        Self { store, handle }
    }

    /// Waits until it has its share; in how many rounds, from the first in which anybody counts.
    async fn rounds(&mut self) -> u64 {
        let mut first = None;
        loop {
            let report = self.handle.changed().await.unwrap();
            if !report.members.is_empty() {
                first.get_or_insert(self.store.lists());
            }
            if report.mine.len() == EACH {
                // A list of 1,050 names has two pages.
                return 1 + (self.store.lists() - first.unwrap()) / 2;
            }
        }
    }
}

/// 1,000 tasks on 50 instances are shared out within three rounds, with at most 2,000 claims in all, and each round costs an
/// instance a handful of calls. Later rounds cost a list and nothing else.
#[tokio::test]
async fn a_large_crew_is_shared_out_in_three_rounds_with_few_calls() {
    let (store, mut crews, mut instances) = (MemoryStore::new(), JoinSet::new(), Vec::new());
    for _ in 0..INSTANCES {
        instances.push(Instance::start(&store, &mut crews).await);
    }
    let mut most = 0;
    for instance in &mut instances {
        most = most.max(timeout(LIMIT, instance.rounds()).await.unwrap());
    }
    let claims: u64 = instances.iter().map(|instance| instance.store.entries(Call::Claim)).sum();
    let calls = instances.iter().map(|instance| instance.store.calls(Call::Claim)).max().unwrap();
    println!("{most} rounds, {claims} claims, at most {calls} calls to claim of an instance");
    assert!(most <= 3, "{most} rounds");
    assert!(claims as usize <= 2 * TASKS + INSTANCES, "{claims} claims, of {TASKS} tasks and {INSTANCES} members");
    // Its membership, and then three rounds of claims: an engine sends the first at once, and the rest together.
    assert!(calls <= 1 + 3 * 4, "{calls} calls to claim by one instance");
    check_rest(&instances).await;
    for instance in &instances {
        assert_eq!((instance.handle.report().mine.len(), instance.store.breaches()), (EACH, Vec::new()));
        instance.handle.stop();
    }
    timeout(LIMIT, crews.join_all()).await.unwrap();
}

async fn check_rest(instances: &[Instance]) {
    let count = |call: Call| instances.iter().map(|instance| instance.store.calls(call)).sum::<u64>();
    let lists = || instances.iter().map(|instance| instance.store.lists()).sum::<u64>();
    let before = (count(Call::Claim), count(Call::Release), lists());
    sleep(6 * ROUND).await;
    assert_eq!((count(Call::Claim), count(Call::Release)), (before.0, before.1), "calls though nothing changed");
    let (listed, rounds) = ((lists() - before.2) as usize, 6 * 4 / 3 + 1);
    assert!(listed <= 2 * rounds * INSTANCES, "{listed} pages were listed in at most {rounds} rounds");
}
