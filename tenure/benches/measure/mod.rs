//! What the benchmarks have in common.

#[allow(dead_code)]
pub mod hands;

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

/// The median, and the range.
pub struct Spread(pub Vec<f64>);

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let digits = if sorted[0] < 100.0 { 1 } else { 0 };
        let (least, most) = (sorted[0], sorted[sorted.len() - 1]);
        write!(f, "{:.digits$} ({least:.digits$} to {most:.digits$})", sorted[sorted.len() / 2])
    }
}

#[allow(dead_code)]
pub fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
