//! The table, and the rights to it.

use tenure::store::url::store_at;
use tenure::{Error, EventKind, Why};

use super::kind::Kind;
use super::support::{
    LONG, News, Raw, SECOND, TABLE, as_user, connect, free_for, frees, hold, is_closed_to, renewed, soon, unique, with,
    within,
};

const RIGHTS: [&str; 4] = ["select", "insert", "update", "delete"];

/// It is told to whoever asks, at once; when the table is there again, nobody has to connect anew.
pub async fn a_dropped_table_is_told_at_once_and_recovered_from(kind: &Kind) {
    let (server, table) = (kind.shared(), unique("dropped"));
    let url = with(&server.url(), &format!("tenure.table={table}"));
    let locks = connect(&url).await;
    let guard = hold(&locks, "held", 3 * SECOND).await;
    let mut operator = Raw::to(&server.url()).await;
    operator.run(format!("drop table {table}")).await;
    let asked = within(10 * SECOND, "an acquire without a table", locks.lock("name").ttl(LONG)).await;
    says_what_is_wrong_with_the_table(&asked.unwrap_err());
    says_what_is_wrong_with_the_table(&soon("an answer", locks.get("name")).await.unwrap_err());
    operator.run(store_at(&url).unwrap().schema().unwrap()).await;
    let next = free_for(&locks, "name", "in the new table").await;
    assert!(is_closed_to(&connect(&url).await, "name").await);
    next.release().await.unwrap();
    let lost = soon("the loss of a term is told", guard.lost()).await;
    assert!(matches!(lost.why, Why::Expired(_)), "{lost}");
    let again = free_for(&locks, "held", "in the new table").await;
    assert!(again.token() > guard.token(), "{} follows {}", again.token(), guard.token());
}

fn says_what_is_wrong_with_the_table(error: &Error) {
    assert!(matches!(error, Error::Store { transient: false, .. }), "{error:?}");
    let said = error.to_string();
    assert!(said.contains("no table") && said.contains("dropped_"), "{said}");
}

/// After a fail-over to a server whose clock is behind: tokens rise by one, and what is told is what is stored.
pub async fn a_token_ahead_of_the_clock_still_rises(kind: &Kind) {
    let (url, name) = (kind.shared().url(), unique("ahead"));
    let locks = connect(&url).await;
    let token = hold(&locks, &name, 30 * SECOND).await.token().0;
    frees(&locks, &name, "").await;
    let ahead = token + 3_600_000_000;
    let mut operator = Raw::to(&url).await;
    operator.run(format!("update {TABLE} set token = {ahead} where name = '{name}'")).await;
    let rotating = locks.lock(&name).ttl(3 * SECOND).renew_every(SECOND / 4).rotate_every(SECOND);
    let guard = soon("a free name is granted", rotating).await.unwrap();
    assert_eq!(guard.token().0, ahead + 1);
    assert_eq!(locks.get(&name).await.unwrap().expect("the name is held").token.0, ahead + 1);
    let mut news = News::of(&locks);
    let rotated = news.next(&name, |kind| matches!(kind, EventKind::TokenRotated(_))).await;
    assert_eq!(rotated.token.map(|token| token.0), Some(ahead + 2));
}

/// Once the table is there.
pub async fn rights_on_the_table_are_enough(kind: &Kind) {
    let role = Role::with(kind, &RIGHTS).await;
    let (locks, other) = (connect(&role.url).await, connect(&role.url).await);
    let guard = hold(&locks, "name", 3 * SECOND).await;
    renewed(&locks, "name").await;
    assert!(is_closed_to(&other, "name").await);
    assert_eq!(other.list("").await.unwrap().len(), 1);
    assert_eq!(other.prune(60 * SECOND).await.unwrap(), 0);
    assert!(!other.examine().await.unwrap().is_empty());
    other.evict("name", "an operator").await.unwrap().expect("a held name is evicted");
    let lost = soon("an eviction is told", guard.lost()).await;
    assert!(matches!(lost.why, Why::Evicted(_)), "{lost}");
    free_for(&other, "name", "after the eviction").await.release().await.unwrap();
}

/// When connecting, not at the first lock.
pub async fn a_role_that_lacks_a_right_is_told_which(kind: &Kind) {
    for lacking in RIGHTS {
        let others: Vec<_> = RIGHTS.into_iter().filter(|right| *right != lacking).collect();
        let role = Role::with(kind, &others).await;
        let error = soon("a refusal", tenure::connect(&role.url)).await.unwrap_err();
        assert!(matches!(error, Error::Store { transient: false, .. }), "{error:?}");
        let says = |right: &str| error.to_string().to_lowercase().contains(right);
        assert!(says(lacking), "without {lacking}: {error}");
        assert!(!others.iter().any(|right| says(right)), "without {lacking}: {error}");
        assert!(!format!("{error} {error:?}").contains(&role.password), "the password is in {error:?}");
    }
}

/// And what to run instead, by somebody who may.
pub async fn a_role_that_may_not_make_the_table_is_told(kind: &Kind) {
    let role = Role::with(kind, &RIGHTS).await;
    let error = soon("a refusal", tenure::connect(role.url + "_that_is_missing")).await.unwrap_err();
    assert!(matches!(error, Error::Store { transient: false, .. }), "{error:?}");
    assert!(error.to_string().contains("`tenure schema`"), "{error}");
}

/// A user with rights on a table and nothing else.
struct Role {
    url: String,
    password: String,
}

impl Role {
    async fn with(kind: &Kind, rights: &[&str]) -> Self {
        let (server, table) = (kind.shared(), unique("rights"));
        let (user, password) = (unique("user"), unique("password"));
        let url = with(&server.url(), &format!("tenure.table={table}"));
        connect(&url).await;
        let mut operator = Raw::to(&server.url()).await;
        operator.run((kind.sql().make_user)(&user, &password)).await;
        for right in rights {
            operator.run((kind.sql().grant)(right, &table, &user)).await;
        }
        Self { url: as_user(&url, &user, &password), password }
    }
}
