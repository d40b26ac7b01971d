//! Who may do what on a Redis, and what those are told who may not.

use std::collections::BTreeSet;

use tenure::store::url::store_at;
use xtask::services::Redis;

use super::kind::Kind;
use super::push::waiter;
use super::refusals::{closed_port, refusal};
use super::support::{SECOND, assert_is_transient, connect, free_for, hold, soon, unique, with};

/// A user of a prefix of its own, with what `tenure schema` says.
struct User {
    name: String,
    password: String,
    prefix: String,
    rule: String,
}

impl User {
    fn new(server: &Redis) -> Self {
        let (name, password, prefix) = (unique("user"), unique("password"), unique("prefix"));
        let url = with(&server.url(), &format!("tenure.prefix={prefix}"));
        let rule = store_at(&url).unwrap().schema().unwrap();
        let rule = rule.replace("SETUSER tenure ", &format!("SETUSER {name} ")).replace("PASSWORD", &password);
        server.cli(&rule.split_whitespace().collect::<Vec<_>>()).unwrap();
        Self { name, password, prefix, rule }
    }

    fn url(&self, server: &Redis) -> String {
        let url = server.url().replace("://", &format!("://{}:{}@", self.name, self.password));
        with(&url, &format!("tenure.prefix={}", self.prefix))
    }
}

/// For all that a lock is used for.
pub async fn the_rights_that_the_schema_grants_are_enough(kind: &Kind) {
    let server = kind.shared().redis();
    let user = User::new(server);
    let (locks, other) = (connect(&user.url(server)).await, connect(&user.url(server)).await);
    let guard = soon("a name with data", locks.lock("name").data(&"data")).await.unwrap();
    let waiting = waiter(&other, "name").await;
    assert_eq!(other.list("").await.unwrap().len(), 1);
    guard.release().await.unwrap();
    drop(soon("a waiter", waiting).await.unwrap().unwrap());
    let next = hold(&other, "name", 3 * SECOND).await;
    locks.evict("name", "an operator").await.unwrap().unwrap();
    soon("an eviction is told", next.lost()).await;
    locks.prune(std::time::Duration::from_secs(60)).await.unwrap();
    let findings = locks.examine().await.unwrap();
    assert!(findings.len() > 1, "{findings:?}");
    // And for no more.
    let outside =
        with(&server.url().replace("://", &format!("://{}:{}@", user.name, user.password)), "tenure.prefix=x");
    assert!(refusal(&outside).await.to_string().contains("right"));
}

/// Already when it connects, whichever it is; what only `doctor`, `prune` and other URLs need may be missing.
pub async fn a_user_that_lacks_a_right_is_told(kind: &Kind) {
    let server = kind.start();
    let server = server.redis();
    let user = User::new(server);
    let rights: Vec<_> = user.rule.split_whitespace().filter_map(|word| word.strip_prefix('+')).collect();
    let (spare, needed): (Vec<&str>, Vec<&str>) = rights
        .into_iter()
        .partition(|right| ["info", "config|get", "hgetall", "wait", "select", "ping"].contains(right));
    for right in needed {
        server.cli(&["acl", "setuser", &user.name, &format!("-{right}")]).unwrap();
        // A server that knows a script needs no EVAL.
        server.cli(&["script", "flush"]).unwrap();
        let error = refusal(&user.url(server)).await;
        let said = error.to_string();
        assert!(!error.is_transient(), "{error:?}");
        assert!(said.contains("right") && said.contains("tenure schema"), "{right}: {said}");
        server.cli(&["acl", "setuser", &user.name, &format!("+{right}")]).unwrap();
    }
    for right in spare {
        server.cli(&["acl", "setuser", &user.name, &format!("-{right}")]).unwrap();
    }
    let locks = connect(&user.url(server)).await;
    drop(free_for(&locks, "name", "").await);
    assert_eq!(locks.examine().await.unwrap().len(), 1);
    server.cli(&["acl", "setuser", &user.name, "resetchannels"]).unwrap();
    assert!(refusal(&user.url(server)).await.to_string().contains("right"));
}

/// Each in other words, and only those that may pass as such.
pub async fn each_refusal_of_redis_says_what_is_wrong_and_no_password(kind: &Kind) {
    let server = kind.start();
    let server = server.redis();
    let (password, wrong) = (unique("password"), unique("wrong"));
    server.cli(&["config", "set", "requirepass", &password]).unwrap();
    let as_user = |url: &str, user: &str| url.replace("://", &format!("://{user}@"));
    let url = server.url();
    let mut said = BTreeSet::new();
    for (url, transient, says) in [
        (as_user(&url, &format!(":{wrong}")), false, "password"),
        (as_user(&url, &format!("nobody:{password}")), false, "password"),
        (url.clone(), false, "password"),
        (as_user(&format!("{url}/9999"), &format!(":{password}")), false, "database"),
        (as_user(&server.url_at(closed_port()), &format!(":{password}")), true, "refused"),
        (as_user(&url.replace("127.0.0.1", "nobody.invalid"), &format!(":{password}")), true, "nobody.invalid"),
    ] {
        let error = refusal(&url).await;
        let whole = format!("{error} {error:?}");
        assert!(![&password, &wrong].into_iter().any(|secret| whole.contains(secret)), "a password is in {whole}");
        assert_eq!(error.is_transient(), transient, "{error:?}");
        assert!(error.to_string().contains(says), "{error} doesn't say {says:?}");
        said.insert(error.to_string());
    }
    assert!(said.len() >= 5, "{said:#?}");
    let locks = connect(&as_user(&url, &format!(":{password}"))).await;
    assert!(!format!("{locks:?}").contains(&password));
    drop(free_for(&locks, "name", "").await);
}

/// It may be promoted, so trying again can help.
pub async fn a_replica_is_told(_: &Kind) {
    let primary = Redis::start().unwrap();
    let replica = Redis::start_replica(&primary).unwrap();
    let error = refusal(&replica.url()).await;
    assert_is_transient(&error);
    assert!(error.to_string().contains("replica"), "{error}");
    // One that becomes a replica while it is used, as after a fail-over.
    let locks = connect(&primary.url()).await;
    let other = Redis::start().unwrap();
    primary.cli(&["replicaof", "127.0.0.1", &other.port().to_string()]).unwrap();
    let error = soon("an acquire ends", locks.try_lock("name")).await.unwrap_err();
    assert_is_transient(&error);
    primary.cli(&["replicaof", "no", "one"]).unwrap();
    drop(free_for(&locks, "name", "when it is a primary again").await);
}
