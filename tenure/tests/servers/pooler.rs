//! Behind PgBouncer in transaction mode, where each transaction may be on another connection of the server.

use std::sync::Arc;

use libtest_mimic::{Completion, Trial};
use tenure::conformance::{PROMISES, Subject};
use tenure::store::url::store_at;
use xtask::services::PgBouncer;
use xtask::tools;

use super::kind::Kind;
use super::support::{SECOND, connect, hold, is_closed_to, renewed, soon, unique, with};

/// LISTEN is accepted and nothing arrives: it is found out, and said; everything else works.
pub async fn a_pooler_is_found_out_and_names_are_held_through_it(kind: &Kind) {
    if tools::skip(kind.name, PgBouncer::TOOLS) {
        return;
    }
    let (url, name) = (kind.pooler().url(), unique("pooled"));
    let (locks, other) = (connect(&url).await, connect(&url).await);
    assert!(!locks.about().push, "a pooler was not found out");
    let guard = hold(&locks, &name, 6 * SECOND).await;
    renewed(&locks, &name).await;
    assert!(is_closed_to(&other, &name).await);
    assert!(is_closed_to(&connect(&kind.shared().url()).await, &name).await, "direct, it is another table");
    guard.release().await.unwrap();
    drop(soon("the next", other.lock(&name)).await.unwrap());
    let findings = locks.examine().await.unwrap();
    let notifications = findings.iter().find(|finding| finding.what == "notifications").unwrap();
    assert!(notifications.says.contains("pooler"), "{notifications:?}");
}

pub async fn contention_through_a_pooler_has_no_overlap(kind: &Kind) {
    if !tools::skip(kind.name, PgBouncer::TOOLS) {
        super::settings::contend(&kind.pooler().url()).await;
    }
}

/// TLS that was demanded is not done without.
pub async fn a_pooler_without_tls_is_told(kind: &Kind) {
    if tools::skip(kind.name, PgBouncer::TOOLS) {
        return;
    }
    let url = with(&kind.pooler().url(), "sslmode=require");
    let error = soon("a refusal", tenure::connect(url)).await.unwrap_err();
    assert!(!error.is_transient() && error.to_string().contains("TLS"), "{error:?}");
}

/// What every store promises, through the pooler.
pub fn promises(kind: &Arc<Kind>) -> Vec<Trial> {
    if tools::skip(kind.name, PgBouncer::TOOLS) {
        let skipped = || Ok(Completion::ignored_with("no pgbouncer"));
        return vec![Trial::ignorable_test(format!("{}::pooler::is_there", kind.name), skipped)];
    }
    let trial = |promise: &'static tenure::conformance::Promise| {
        let kind = kind.clone();
        Trial::test(format!("{}::pooler::{}", kind.name, promise.name), move || {
            promise.run(&subject(&kind.pooler().url()));
            Ok(())
        })
    };
    PROMISES.iter().map(trial).collect()
}

fn subject(url: &str) -> Subject {
    let make = url.to_owned();
    Subject::new(move || store_at(&make).unwrap()).url(url)
}
