//! Settings of the server: what weakens the promises is said, and what doesn't changes nothing.

use tenure::Locks;
use tenure::conformance::{History, Verdict};
use tenure::store::{Finding, Outcome};
use tokio::task::JoinSet;

use super::bare::{Bare, claim_of};
use super::kind::Kind;
use super::support::{Raw, SECOND, as_user, connect, soon, unique};

const PROCESSES: usize = 4;
const ROUNDS: usize = 15;

pub fn weak(findings: &[Finding]) -> Vec<&str> {
    findings.iter().filter(|finding| finding.weakens).map(|finding| finding.what.as_str()).collect()
}

/// With word of what to do about it.
pub async fn a_server_that_may_forget_grants_is_told(kind: &Kind) {
    let server = kind.start_with(&[("synchronous_commit", "off"), ("fsync", "off"), ("full_page_writes", "off")]);
    let findings = connect(&server.url()).await.examine().await.unwrap();
    assert_eq!(weak(&findings), ["synchronous_commit", "disk"], "{findings:#?}");
    let disk = findings.iter().find(|finding| finding.what == "disk").unwrap();
    assert!(disk.says.contains("fsync") && disk.says.contains("full_page_writes"), "{disk:?}");
}

pub async fn a_usual_server_weakens_nothing(kind: &Kind) {
    let findings = connect(&kind.shared().url()).await.examine().await.unwrap();
    assert_eq!(weak(&findings), [""; 0], "{findings:#?}");
}

pub async fn notifications_that_arrive_are_told(kind: &Kind) {
    let findings = connect(&kind.shared().url()).await.examine().await.unwrap();
    let notifications = findings.iter().find(|finding| finding.what == "notifications").unwrap();
    assert!(notifications.says.contains("arrive: "), "{notifications:?}");
}

/// A role whose transactions are of a stricter kind than Tenure's need to be.
pub async fn another_default_isolation_changes_nothing(kind: &Kind) {
    for level in ["repeatable read", "serializable"] {
        let user = unique("strict");
        let mut operator = Raw::to(&kind.shared().url()).await;
        operator.run(format!("create role {user} login superuser")).await;
        operator.run(format!("alter role {user} set default_transaction_isolation = '{level}'")).await;
        let url = as_user(&kind.shared().url(), &user, "");
        contend(&url).await;
        contend_bare(&url).await;
    }
}

/// Without an engine, which would try again: a claim that meets another is refused, and doesn't fail.
pub async fn contend_bare(url: &str) {
    let name = unique("contended");
    let mut tasks = JoinSet::new();
    for _ in 0..PROCESSES {
        let (bare, claim) = (Bare::open(url).await, claim_of(&name, 10 * SECOND));
        tasks.spawn(async move {
            for _ in 0..4 * ROUNDS {
                if let Outcome::Granted(grant) = bare.claim(std::slice::from_ref(&claim)).await.remove(0).unwrap() {
                    // The row may be locked by a claim: then it is refused for now, which is no failure either.
                    while let Err(error) = bare.release(std::slice::from_ref(&claim), &[grant.token]).await.remove(0) {
                        assert!(error.to_string().contains("locked"), "{error}");
                    }
                }
            }
        });
    }
    soon("all have asked", tasks.join_all()).await;
}

/// Several processes want one name, again and again: no two have it at a time, and all of them get it.
pub async fn contend(url: &str) {
    let (history, name) = (History::new(), unique("contended"));
    let mut tasks = JoinSet::new();
    for process in 0..PROCESSES {
        let (locks, history, name) = (connect(url).await, history.clone(), name.clone());
        tasks.spawn(async move { take_turns(&locks, &name, &history, &process.to_string()).await });
    }
    soon("all get their turns", tasks.join_all()).await;
    assert_eq!(history.check(), Verdict::Ok);
    assert_eq!(history.operations().len(), 2 * PROCESSES * ROUNDS);
}

async fn take_turns(locks: &Locks, name: &str, history: &History, holder: &str) {
    for _ in 0..ROUNDS {
        let guard = locks.lock(name).ttl(10 * SECOND).await.unwrap();
        assert!(history.granted(holder, &guard));
        tokio::task::yield_now().await;
        history.ended(holder, &guard);
        guard.release().await.unwrap();
    }
}
