//! What is MariaDB's own: its settings, its waits, and the weight of its JSON.

use std::time::{Duration, SystemTime};

use tenure::Error;
use tenure::clock::Moment;
use tenure::store::Outcome;

use super::bare::{Bare, claim_of};
use super::kind::Kind;
use super::settings::{contend, contend_bare, weak};
use super::support::{LONG, Raw, SECOND, TABLE, connect, hold, renewed, soon, unique};

/// Each with word of what to do about it; the server is told to change while it runs.
pub async fn settings_that_weaken_a_promise_are_told(kind: &Kind) {
    let server = kind.start_with(&[("log-bin", "binlog"), ("sysdate-is-now", "1"), ("sync_binlog", "0")]);
    let mut operator = Raw::to(&server.url()).await;
    operator.run("set global innodb_flush_log_at_trx_commit = 2").await;
    let locks = connect(&server.url()).await;
    let findings = locks.examine().await.unwrap();
    assert_eq!(weak(&findings), ["innodb_flush_log_at_trx_commit", "sync_binlog", "clock"], "{findings:#?}");
    operator.run("set global innodb_flush_log_at_trx_commit = 1, global sync_binlog = 1, global read_only = 1").await;
    let findings = locks.examine().await.unwrap();
    assert_eq!(weak(&findings), ["read_only", "clock"], "{findings:#?}");
    operator.run("set global read_only = 0, global binlog_format = 'STATEMENT'").await;
    let refused = soon("a refusal", tenure::connect(server.url())).await.unwrap_err();
    assert!(matches!(refused, Error::Store { transient: false, .. }), "{refused:?}");
    assert!(refused.to_string().contains("binlog_format"), "{refused}");
}

/// A server whose sessions begin with everything set otherwise.
pub async fn other_defaults_change_nothing(kind: &Kind) {
    let server = kind.start_with(&[
        ("default-time-zone", "+05:00"),
        ("transaction-isolation", "SERIALIZABLE"),
        ("sql-mode", "ANSI_QUOTES,PIPES_AS_CONCAT,SIMULTANEOUS_ASSIGNMENT,ORACLE"),
        ("character-set-server", "latin1"),
        ("autocommit", "0"),
        ("completion-type", "CHAIN"),
        ("group-concat-max-len", "4"),
        ("innodb-lock-wait-timeout", "100"),
    ]);
    let mut operator = Raw::to(&server.url()).await;
    operator.run("set global sql_safe_updates = 1, global sql_select_limit = 1, global max_join_size = 1").await;
    let locks = connect(&server.url()).await;
    let (guard, _other) = (hold(&locks, "täg/ẞ", 3 * SECOND).await, hold(&locks, "other", 3 * SECOND).await);
    renewed(&locks, "other").await;
    let listed = locks.list("").await.unwrap();
    assert_eq!(listed.iter().map(|record| record.name.as_str()).collect::<Vec<_>>(), ["other", "täg/ẞ"]);
    let age = SystemTime::now().duration_since(listed[1].acquired_at).unwrap_or_default();
    assert!(age < 60 * SECOND, "acquired {age:?} ago");
    assert!(listed[1].acquired_at < SystemTime::now() + 60 * SECOND, "acquired at {:?}", listed[1].acquired_at);
    guard.release().await.unwrap();
    assert_eq!(locks.prune(60 * SECOND).await.unwrap(), 0);
    assert_eq!(weak(&locks.examine().await.unwrap()), [""; 0]);
    contend(&server.url()).await;
    contend_bare(&server.url()).await;
}

/// A transaction that has inserted a name and doesn't end: the name is busy at once, and so nobody waits behind it.
pub async fn a_name_that_another_inserts_delays_nobody(kind: &Kind) {
    let (bare, prefix) = (Bare::open(&kind.shared().url()).await, unique("inserted"));
    let claims: Vec<_> = (0..3).map(|number| claim_of(&format!("{prefix}/{number}"), LONG)).collect();
    let mut foreign = Raw::to(&kind.shared().url()).await;
    foreign.run("begin").await;
    foreign.run((kind.sql().insert)(TABLE, claims[1].name.as_str())).await;
    // The fastest of some, as the machine may be busy; a session waits for a lock for a second.
    let mut fastest = SECOND;
    for _ in 0..3 {
        let began = Moment::now();
        let outcomes = bare.claim(&claims).await;
        fastest = fastest.min(Moment::now() - began);
        assert!(matches!(outcomes[0], Ok(Outcome::Granted(_))), "{outcomes:?}");
        assert!(matches!(outcomes[1], Ok(Outcome::Busy(_))), "{outcomes:?}");
        assert!(matches!(outcomes[2], Ok(Outcome::Granted(_))), "{outcomes:?}");
    }
    assert!(fastest < Duration::from_millis(800), "the others were answered after {fastest:?}");
    foreign.run("rollback").await;
    bare.grant(&claims[1..2]).await;
}

/// The server reads a text of JSON again and again: its cost is more than its length.
pub async fn much_data_at_once_is_kept(kind: &Kind) {
    let (locks, prefix) = (connect(&kind.shared().url()).await, unique("much"));
    let data = "x".repeat(60_000);
    let mut asked = tokio::task::JoinSet::new();
    for number in 0..200 {
        let lock = locks.lock(format!("{prefix}/{number:03}")).ttl(LONG).data(&data);
        asked.spawn(std::future::IntoFuture::into_future(lock));
    }
    let held: Vec<_> = soon("all are granted", asked.join_all()).await.into_iter().map(Result::unwrap).collect();
    let listed = locks.list(&format!("{prefix}/")).await.unwrap();
    assert_eq!(listed.len(), held.len());
    assert!(listed.iter().all(|record| record.data::<String>().unwrap().as_deref() == Some(&*data)));
    drop(held);
}
