//! Every promise on every store: one line per store.
//!
//! A store that is not there is skipped, visibly; if `TENURE_TEST_REQUIRE` lists it (`memory,sqlite`), it fails.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Completion, Trial};
use tenure::conformance::{self, PROMISES, Promise, Subject};
use tenure::store::memory::{ManualClock, MemoryStore};
use tenure::store::url::store_at;

/// Stores whose absence is a failure.
const REQUIRE: &str = "TENURE_TEST_REQUIRE";

/// Promises wait most of their time, so many are checked at once.
const THREADS: usize = 8;

/// A store to test, or why it is not there.
type Found = Result<Arc<Subject>, String>;

fn main() -> ExitCode {
    // A child is over when this `main` is, and with it what it holds.
    let child = conformance::child_role(|url| tenure::connect(url));
    if child.is_some() {
        return ExitCode::SUCCESS;
    }
    let folder = Folder::new();
    let mut stores = BTreeMap::from([
        ("memory".to_owned(), memory()),
        ("sqlite".to_owned(), at_url(&format!("sqlite:{}", folder.0.join("locks.db").display()))),
        ("postgres".to_owned(), server("TENURE_TEST_POSTGRES")),
        ("mysql".to_owned(), server("TENURE_TEST_MYSQL")),
        ("mongodb".to_owned(), server("TENURE_TEST_MONGODB")),
        ("etcd".to_owned(), server("TENURE_TEST_ETCD")),
        ("redis".to_owned(), server("TENURE_TEST_REDIS")),
        ("redis+quorum".to_owned(), server("TENURE_TEST_REDIS_QUORUM")),
        ("redis_with_replica".to_owned(), server("TENURE_TEST_REDIS_REPLICATED")),
    ]);
    let required = required();
    for store in &required {
        stores.entry(store.clone()).or_insert_with(|| Err("there are no tests for it".into()));
    }
    let trials = stores.iter().flat_map(|(store, found)| trials(store, found, required.contains(store))).collect();
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(THREADS);
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn required() -> BTreeSet<String> {
    let listed = std::env::var(REQUIRE).unwrap_or_default();
    listed.split(',').map(str::trim).filter(|store| !store.is_empty()).map(Into::into).collect()
}

fn memory() -> Found {
    let store = MemoryStore::new();
    let by_hand = || {
        let clock = ManualClock::new();
        let store = MemoryStore::with_clock(clock.clone());
        Subject::new(move || Arc::new(store.clone())).moved(move |time| clock.advance(time))
    };
    Ok(Arc::new(Subject::new(move || Arc::new(store.clone())).with_clock(by_hand)))
}

/// A server that the variable `at` leads to.
fn server(at: &str) -> Found {
    at_url(&std::env::var(at).map_err(|_| format!("{at} is not set"))?)
}

/// A store that this process and others find by its URL.
fn at_url(url: &str) -> Found {
    let url = url.to_owned();
    store_at(&url).map_err(|error| error.to_string())?;
    let make = url.clone();
    Ok(Arc::new(Subject::new(move || store_at(&make).expect("the URL was good before")).url(url)))
}

fn trials(store: &str, found: &Found, required: bool) -> Vec<Trial> {
    match found {
        Ok(subject) => PROMISES.iter().map(|promise| trial(store, promise, subject.clone())).collect(),
        Err(why) if required => {
            let why = format!("{why}, and {REQUIRE} lists it");
            vec![Trial::test(format!("{store}::is_there"), move || Err(why.into()))]
        }
        Err(why) => vec![skip(format!("{store}::is_there"), why.clone())],
    }
}

fn trial(store: &str, promise: &'static Promise, subject: Arc<Subject>) -> Trial {
    let name = format!("{store}::{}", promise.name);
    if !promise.applies_to(&subject) {
        return skip(name, "the store is not for several processes".into());
    }
    Trial::test(name, move || {
        promise.run(&subject);
        Ok(())
    })
}

fn skip(name: String, why: String) -> Trial {
    Trial::ignorable_test(name, move || Ok(Completion::ignored_with(why)))
}

/// A folder of this run's own.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("conformance-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("the target folder can be written");
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What is left is in the way of nobody.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
