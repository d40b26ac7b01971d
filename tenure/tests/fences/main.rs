//! `RowFence` on real databases: `promises.rs` is compiled once for each of them.
//!
//! PostgreSQL and MySQL are found through `TENURE_TEST_POSTGRES` and `TENURE_TEST_MYSQL` (URLs). One that is not there is
//! skipped, visibly; if `TENURE_TEST_REQUIRE` lists it, it fails.
#![allow(clippy::unwrap_used, clippy::duplicate_mod)]

use std::collections::BTreeSet;
use std::io::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
mod sqlite;

fn is_required(store: &str) -> bool {
    let listed = std::env::var("TENURE_TEST_REQUIRE").unwrap_or_default();
    listed.split(',').any(|required| required.trim() == store)
}

/// Where a server is; `None`, said once, if there is none and none is required.
#[cfg_attr(not(any(feature = "postgres", feature = "mysql")), expect(dead_code))]
fn server(store: &'static str) -> Option<String> {
    static SAID: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
    let variable = format!("TENURE_TEST_{}", store.to_uppercase());
    let url = std::env::var(&variable).ok();
    assert!(url.is_some() || !is_required(store), "{variable} is not set, and TENURE_TEST_REQUIRE lists {store}");
    if url.is_none() && SAID.lock().unwrap().insert(store) {
        // Not by `eprintln`, which the test harness keeps to itself.
        let skipped = format!("skipped: fences on {store}: {variable} is not set\n");
        std::io::stderr().write_all(skipped.as_bytes()).unwrap();
    }
    url
}

/// A table's name that no other test has, nor a run before.
fn fresh_table() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    format!("fences_{now}_{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

#[test]
fn what_is_required_is_compiled_in() {
    for (store, is_in) in [("postgres", cfg!(feature = "postgres")), ("mysql", cfg!(feature = "mysql"))] {
        assert!(is_in || !is_required(store), "the feature {store} is off, and TENURE_TEST_REQUIRE lists it");
    }
}
