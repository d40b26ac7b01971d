//! A Redis that forgets, and one whose replicas lag behind.

use std::time::Duration;

use tenure::clock::Moment;
use tenure::{Fence, Lost, Why};
use xtask::proxy::Proxy;
use xtask::services::Redis;

use super::bare::{Bare, claim_of};
use super::kind::Kind;
use super::support::{
    LONG, SECOND, assert_is_transient, connect, expired, free_for, frees, hold, is_closed_to, soon, unique, until, with,
};

/// The holder is told by its next renewal, and not only by its own clock; the next token is larger all the same.
pub async fn a_server_restarted_empty_is_told_and_tokens_rise(kind: &Kind) {
    let server = kind.start();
    is_told_and_tokens_rise(server.redis(), || server.redis().restart_empty().unwrap()).await;
}

pub async fn a_flushed_server_is_told_and_tokens_rise(kind: &Kind) {
    let server = kind.start();
    is_told_and_tokens_rise(server.redis(), || drop(server.redis().cli(&["flushall"]).unwrap())).await;
}

async fn is_told_and_tokens_rise(server: &Redis, forget: impl FnOnce()) {
    let (locks, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let guard = hold(&locks, "name", 6 * SECOND).await;
    forget();
    let lost = soon("a loss is told", guard.lost()).await;
    assert!(matches!(lost, Lost { why: Why::Expired(_), .. }), "{lost}");
    let next = free_for(&other, "name", "on a server that has forgotten all").await;
    assert!(next.token() > guard.token(), "{} follows {}", next.token(), guard.token());
    assert!(is_closed_to(&locks, "name").await);
    let listed = other.list("").await.unwrap();
    assert_eq!(listed.iter().map(|record| record.name.as_str()).collect::<Vec<_>>(), ["name"]);
}

/// What replication without waiting costs: for a while two believe that they hold the name. It is no more than a term,
/// and whatever checks tokens refuses the one that lost it.
pub async fn a_promoted_replica_that_lacks_a_grant_lets_two_hold_and_the_fence_tell_them_apart(_: &Kind) {
    let primary = Redis::start().unwrap();
    let between = Proxy::to(primary.port()).unwrap();
    let replica = Redis::start_replica_through(between.port()).unwrap();
    let ttl = 10 * SECOND;
    let (locks, fence) = (connect(&primary.url()).await, Fence::new());
    between.black_hole();
    let stale = hold(&locks, "name", ttl).await;
    fence.check(stale.token()).unwrap();
    primary.kill().unwrap();
    replica.cli(&["replicaof", "no", "one"]).unwrap();
    let other = connect(&replica.url()).await;
    let current = free_for(&other, "name", "on a replica that never heard of it").await;
    let both = Moment::now();
    assert!(stale.is_held(), "the grant was not lost");
    assert!(current.token() > stale.token(), "{} follows {}", current.token(), stale.token());
    fence.check(current.token()).unwrap();
    assert_eq!(fence.check(stale.token()).unwrap_err().token, stale.token());
    expired(&stale).await;
    let overlap = stale.deadline() - both;
    println!("after a fail-over that lost a grant of {ttl:?}, two held the name for {overlap:?}");
    assert!(overlap <= ttl, "{overlap:?}");
    assert!(current.is_held());
}

/// With `tenure.wait_replicas`, a grant that a fail-over would lose is none; the name is free again.
pub async fn a_grant_that_a_replica_lacks_does_not_count(_: &Kind) {
    let (primary, replica, url) = replicated();
    let locks = connect(&url).await;
    let guard = soon("a free name", locks.lock("name").ttl(LONG)).await.unwrap();
    assert_eq!(token_in(&replica, "name"), guard.token().to_string());
    guard.release().await.unwrap();
    replica.pause().unwrap();
    let error = soon("an acquire ends", locks.lock("name").ttl(LONG).wait(3 * SECOND)).await.unwrap_err();
    assert_is_transient(&error);
    assert!(error.to_string().contains("0 replicas have it in time, and tenure.wait_replicas is 1"), "{error}");
    // Without an engine, which would follow it up.
    let (bare, claim) = (Bare::open(&url).await, claim_of("bare", LONG));
    assert_is_transient(bare.claim(std::slice::from_ref(&claim)).await[0].as_ref().unwrap_err());
    let direct = connect(&primary.url()).await;
    assert!(direct.get("bare").await.unwrap().is_none(), "a grant that doesn't count was left behind");
    frees(&direct, "name", "when its grant didn't count").await;
    replica.resume().unwrap();
    frees(&locks, "name", "when the replica is back").await;
}

/// A renewal that only the primary has is none: the holder is told before the replica's copy would end.
pub async fn a_renewal_that_a_replica_lacks_does_not_count(_: &Kind) {
    let (_primary, replica, url) = replicated();
    let locks = connect(&url).await;
    let guard = hold(&locks, "name", 3 * SECOND).await;
    replica.pause().unwrap();
    let error = expired(&guard).await;
    assert_is_transient(&error);
    assert!(error.to_string().contains("replicas"), "{error}");
    replica.resume().unwrap();
    let next = free_for(&locks, "name", "when the replica is back").await;
    assert!(next.token() > guard.token());
}

fn replicated() -> (Redis, Redis, String) {
    let primary = Redis::start().unwrap();
    let replica = Redis::start_replica(&primary).unwrap();
    let url = with(&primary.url(), "tenure.wait_replicas=1");
    (primary, replica, url)
}

/// As it stands in the record.
fn token_in(server: &Redis, name: &str) -> String {
    let term = server.cli(&["hget", "{tenure}:terms", name]).unwrap();
    term.split(' ').nth(2).unwrap_or_default().to_owned()
}

/// Claims clean up behind those who have died: nobody has to prune.
pub async fn what_expired_long_ago_is_forgotten(kind: &Kind) {
    let server = kind.start();
    let (server, bare) = (server.redis(), Bare::open(&server.url()).await);
    let claim = claim_of("name", Duration::from_millis(100));
    bare.grant(std::slice::from_ref(&claim)).await;
    let locks = connect(&server.url()).await;
    let is_there = || server.cli(&["hexists", "{tenure}:terms", "name"]).unwrap().trim() == "1";
    until("it expires", async || locks.get("name").await.unwrap().is_none()).await;
    frees(&locks, "other", "").await;
    assert!(is_there(), "it is to be looked at for a while");
    // As if it had expired two days ago.
    let expiry: u64 = server.cli(&["zscore", "{tenure}:expiries", "name"]).unwrap().trim().parse().unwrap();
    server.cli(&["zadd", "{tenure}:expiries", &(expiry - 172_800_000_000).to_string(), "name"]).unwrap();
    frees(&locks, "other", "").await;
    assert!(!is_there(), "it was not forgotten");
    let keys = server.cli(&["keys", "*"]).unwrap();
    assert_eq!(keys.trim(), "{tenure}:floor", "something is left");
}

/// A clock that was set back, as after a fail-over to a server whose clock is behind.
pub async fn tokens_rise_though_the_clock_is_behind_them(kind: &Kind) {
    let prefix = unique("floor");
    let (server, floor) = (kind.shared().redis(), format!("{{{prefix}}}:floor"));
    let locks = connect(&with(&server.url(), &format!("tenure.prefix={prefix}"))).await;
    let guard = free_for(&locks, "name", "").await;
    let ahead = guard.token().0 + 3_600_000_000;
    server.cli(&["set", &floor, &format!("{ahead:016}")]).unwrap();
    guard.release().await.unwrap();
    assert_eq!(free_for(&locks, "name", "").await.token().0, ahead + 1);
    assert_eq!(free_for(&locks, "name", "").await.token().0, ahead + 2);
}

/// Somebody else's data is not touched, and the error says what to do.
pub async fn what_is_under_the_keys_already_is_told(kind: &Kind) {
    let prefix = unique("taken");
    let (server, key) = (kind.shared().redis(), format!("{{{prefix}}}:terms"));
    server.cli(&["set", &key, "mine"]).unwrap();
    let error = super::refusals::refusal(&with(&server.url(), &format!("tenure.prefix={prefix}"))).await;
    assert!(!error.is_transient() && error.to_string().contains("another tenure.prefix"), "{error:?}");
    assert_eq!(server.cli(&["get", &key]).unwrap().trim(), "mine");
}
