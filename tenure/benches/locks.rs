//! What a lock costs: `cargo bench --package tenure --all-features`.
//!
//! Every figure that is compared with another was measured in the same run, turn about; the median of the rounds
//! is printed, and their range.

mod figures;
mod measure;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use figures::Spread;
use measure::cycles;
use rustix::time::{ClockId, clock_gettime};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Executor};
use tenure::conformance::{Call, Faulty};
use tenure::store::{Store, memory::MemoryStore, url::store_at};
use tenure::{Guard, Locks};

const TASKS: usize = 64;
const ROUNDS: usize = 5;
const HELD: usize = 10_000;
/// As long as the default TTL's, so that the share of a core is that of an ordinary program.
const PERIOD: Duration = Duration::from_secs(10);

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        memory().await;
        sqlite().await;
        held(Arc::new(MemoryStore::new())).await;
        let folder = folder();
        held(store(&folder.path().join("held.db"))).await;
    });
}

/// Lock cycles in memory: the engine alone.
async fn memory() {
    let locks = Locks::on(Arc::new(MemoryStore::new())).await.expect("memory opens");
    let mut rates = Vec::new();
    for _ in 0..ROUNDS {
        rates.push(cycles(&locks, TASKS, 2000).await);
    }
    println!("memory: {TASKS} tasks, distinct names: {} cycles/s", Spread(rates));
}

/// Lock cycles on a file, beside the same rows written one transaction at a time.
async fn sqlite() {
    let folder = folder();
    let locks = Locks::on(store(&folder.path().join("cycles.db"))).await.expect("the file opens");
    let mut bare = bare_connection(&folder.path().join("bare.db")).await;
    let (mut batched, mut single) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        batched.push(cycles(&locks, TASKS, 200).await);
        single.push(single_rows(&mut bare, 5000).await);
    }
    let ratios = batched.iter().zip(&single).map(|(batched, single)| batched / single).collect();
    println!("sqlite: {TASKS} tasks, distinct names: {} cycles/s", Spread(batched));
    println!(
        "sqlite: one claim row and one release row a cycle, each its own transaction: {} cycles/s",
        Spread(single)
    );
    println!("sqlite: ratio {}", Spread(ratios));
}

/// What holding costs, in calls to the store and in CPU, while nothing else happens.
async fn held(store: Arc<dyn Store>) {
    let store = Faulty::new(store);
    let locks = Locks::on(Arc::new(store.clone())).await.expect("the store opens");
    let guards = hold(&locks, HELD).await;
    // The first period brings terms that were acquired one after the other into step.
    tokio::time::sleep(PERIOD).await;
    let (calls, entries, cpu) = (store.calls(Call::Renew), store.entries(Call::Renew), cpu_time());
    tokio::time::sleep(2 * PERIOD).await;
    let calls = (store.calls(Call::Renew) - calls) as f64 / 2.0;
    let entries = (store.entries(Call::Renew) - entries) as f64 / 2.0;
    let share = (cpu_time() - cpu).as_secs_f64() / (2 * PERIOD).as_secs_f64() * 100.0;
    let name = store.about().store;
    println!(
        "{name}: {HELD} held: {calls} renewal calls and {entries} renewals a period of {PERIOD:?}, {share:.2} % of a core"
    );
    assert!(guards.iter().all(Guard::is_held));
    drop(guards);
    locks.shutdown(Duration::from_secs(5)).await;
}

async fn hold(locks: &Locks, count: usize) -> Vec<Guard> {
    let tasks: Vec<_> = (0..count).map(|i| tokio::spawn(locks.lock(format!("held/{i}")).into_future())).collect();
    let mut guards = Vec::with_capacity(count);
    for task in tasks {
        guards.push(task.await.expect("no panic").expect("the name is free"));
    }
    guards
}

/// The file that a pasted upsert would use, with the same durability as Tenure's.
async fn bare_connection(path: &Path) -> SqliteConnection {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Normal);
    let mut connection = options.connect().await.expect("the file opens");
    let create = "create table locks (name text primary key, lease text, owner text, expires integer)";
    connection.execute(create).await.expect("the table is made");
    connection
}

async fn single_rows(connection: &mut SqliteConnection, count: usize) -> f64 {
    const CLAIM: &str = "insert into locks values (?1, ?2, ?3, unixepoch() + 30) on conflict (name) do update
        set lease = excluded.lease, owner = excluded.owner, expires = excluded.expires
        where lease is null or expires < unixepoch() returning name";
    const RELEASE: &str = "update locks set lease = null where name = ?1 and lease = ?2";
    let start = Instant::now();
    for i in 0..count {
        let name = format!("cycle/{}", i % TASKS);
        let lease = format!("{i:032x}");
        let claim = sqlx::query(CLAIM).bind(&name).bind(&lease).bind("owner");
        claim.fetch_one(&mut *connection).await.expect("the name is free");
        sqlx::query(RELEASE).bind(&name).bind(&lease).execute(&mut *connection).await.expect("it is held");
    }
    count as f64 / start.elapsed().as_secs_f64()
}

fn store(path: &Path) -> Arc<dyn Store> {
    store_at(&format!("sqlite:{}", path.display())).expect("a good URL")
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder")
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
