//! A Redis cluster: all keys of a prefix are on one of its servers, which may change.

use std::future::IntoFuture as _;

use tokio::time::sleep;
use xtask::services::Redis;

use super::kind::Kind;
use super::push::{is_told, waiter};
use super::support::{LONG, SECOND, connect, free_for, hold, is_closed_to, renewed, soon, within};

/// The server that has the keys, and the others.
fn parted(cluster: &[Redis]) -> (&Redis, Vec<&Redis>) {
    let has = |server: &&Redis| server.cli(&["hlen", "{tenure}:terms"]).is_ok();
    let owner = cluster.iter().find(has).unwrap();
    (owner, cluster.iter().filter(|server| server.port() != owner.port()).collect())
}

fn url(servers: &[&Redis]) -> String {
    let hosts: Vec<_> = servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
    format!("redis+cluster://{}", hosts.join(","))
}

/// Any server will do to connect to, by either kind of URL; releases are told to those who listen at another.
pub async fn a_cluster_keeps_names_wherever_they_are_asked_for(_: &Kind) {
    let cluster = Redis::start_cluster(3).unwrap();
    let (owner, others) = parted(&cluster);
    let locks = connect(&owner.url()).await;
    let first = connect(&others[0].url()).await;
    let second = connect(&url(&others)).await;
    let guard = free_for(&locks, "name", "").await;
    assert!(is_closed_to(&first, "name").await && is_closed_to(&second, "name").await);
    let (waiting, token) = (waiter(&second, "name").await, guard.token());
    guard.release().await.unwrap();
    let next = soon("a waiter at another server", waiting).await.unwrap().unwrap();
    assert!(next.token() > token);
    assert_eq!(first.list("").await.unwrap().len(), 1);
    next.release().await.unwrap();
    is_told(&first, &second).await;
}

/// The replica takes over without loss: the term goes on with its token, and the next one has a larger.
pub async fn a_cluster_that_fails_over_loses_nothing(_: &Kind) {
    let cluster = Redis::start_cluster(3).unwrap();
    let (owner, _) = parted(&cluster);
    let replica = Redis::start_cluster_replica(owner).unwrap();
    let all = url(&cluster.iter().collect::<Vec<_>>());
    let (locks, other) = (connect(&all).await, connect(&all).await);
    let guard = hold(&locks, "name", 90 * SECOND).await;
    let (token, waiting) = (guard.token(), tokio::spawn(other.lock("name").ttl(LONG).into_future()));
    // The others vote for it only when they have heard of it.
    let takes_over = async {
        while !replica.cli(&["info", "replication"]).unwrap().contains("role:master") {
            let _ = replica.cli(&["cluster", "failover"]);
            sleep(SECOND).await;
        }
    };
    within(60 * SECOND, "the replica takes over", takes_over).await;
    owner.kill().unwrap();
    renewed(&locks, "name").await;
    assert_eq!(guard.token(), token);
    assert!(guard.is_held() && !waiting.is_finished());
    guard.release().await.unwrap();
    let next = soon("a waiter outlives a fail-over", waiting).await.unwrap().unwrap();
    assert!(next.token() > token, "{} follows {token}", next.token());
}
