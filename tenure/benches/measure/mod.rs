//! What the benchmarks have in common.

use std::time::Instant;

use tenure::Locks;

/// Cycles a second: each task locks and releases a name of its own, over and over.
pub async fn cycles(locks: &Locks, tasks: usize, count: usize) -> f64 {
    let start = Instant::now();
    let running: Vec<_> =
        (0..tasks).map(|task| tokio::spawn(cycle(locks.clone(), format!("cycle/{task}"), count))).collect();
    for task in running {
        task.await.expect("no panic");
    }
    (tasks * count) as f64 / start.elapsed().as_secs_f64()
}

async fn cycle(locks: Locks, name: String, count: usize) {
    for _ in 0..count {
        let guard = locks.lock(&name).await.expect("the name is free");
        guard.release().await.expect("it is held");
    }
}
