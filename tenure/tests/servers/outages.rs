//! A server that crashes, is down, hangs, or is full.

use std::future::IntoFuture as _;

use tokio::time::timeout;

use super::kind::Kind;
use super::support::{
    LONG, Raw, SECOND, assert_is_transient, connect, expired, free_for, hold, is_closed_to, renewed, soon,
};

/// All names of a process live on, with their tokens, and those who wait go on waiting.
pub async fn a_crash_shorter_than_the_term_loses_nothing(kind: &Kind) {
    let server = kind.start();
    let (locks, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let (first, second) = (hold(&locks, "first", 30 * SECOND).await, hold(&locks, "second", 30 * SECOND).await);
    let tokens = [first.token(), second.token()];
    let waiting = tokio::spawn(other.lock("first").ttl(LONG).into_future());
    server.kill().unwrap();
    server.restart().unwrap();
    renewed(&locks, "first").await;
    renewed(&locks, "second").await;
    assert_eq!([first.token(), second.token()], tokens, "a crash has changed a token");
    let record = other.get("second").await.unwrap().expect("a held name is on disk");
    assert_eq!(record.token, tokens[1]);
    assert!(is_closed_to(&other, "second").await, "granted to another after a crash");
    assert!(!waiting.is_finished(), "a waiter was granted a held name");
    first.release().await.unwrap();
    let next = soon("a waiter outlives a crash", waiting).await.unwrap().unwrap();
    assert!(next.token() > tokens[0], "{} follows {}", next.token(), tokens[0]);
}

/// The holder hears of it by its own clock, with what the store said; then the name can be had again.
pub async fn a_server_down_for_longer_than_the_term_is_told_with_its_error(kind: &Kind) {
    let server = kind.start();
    let locks = connect(&server.url()).await;
    let guard = hold(&locks, "name", 2 * SECOND).await;
    server.kill().unwrap();
    assert_is_transient(&expired(&guard).await);
    server.restart().unwrap();
    let next = free_for(&locks, "name", "after its server was down for longer than its term").await;
    assert!(next.token() > guard.token(), "{} follows {}", next.token(), guard.token());
}

/// Connections stay open, and nothing is answered: not even that hangs, and what was sent meanwhile has no late effect.
pub async fn a_server_paused_for_longer_than_the_term_is_told(kind: &Kind) {
    let server = kind.start();
    let (locks, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let guard = hold(&locks, "name", 2 * SECOND).await;
    server.pause().unwrap();
    let asked = tokio::spawn(other.lock("name").ttl(LONG).wait(3 * SECOND).into_future());
    assert_is_transient(&expired(&guard).await);
    let error = soon("an acquire at a paused server ends", asked).await.unwrap().unwrap_err();
    assert!(error.is_transient(), "{error:?}");
    server.resume().unwrap();
    let next = free_for(&other, "name", "after its server was paused for longer than its term").await;
    assert!(next.token() > guard.token(), "{} follows {}", next.token(), guard.token());
    assert!(!guard.is_held(), "two hold the name");
    next.release().await.unwrap();
    let last = free_for(&locks, "name", "for the process that had lost it").await;
    assert!(is_closed_to(&other, "name").await);
    last.release().await.unwrap();
}

/// Renewals need no new connection; whoever needs one is told that there is none.
pub async fn a_server_without_free_connections_loses_nothing(kind: &Kind) {
    let ttl = 2 * SECOND;
    let server = kind.start_with(&[kind.sql().few_connections]);
    let (locks, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let guard = hold(&locks, "name", ttl).await;
    let waiting = tokio::spawn(other.lock("name").ttl(LONG).into_future());
    let mut taken = Vec::new();
    while let Ok(connection) = Raw::try_to(&server.url()).await {
        taken.push(connection);
    }
    assert!(!taken.is_empty(), "the server was full from the start");
    let refused = soon("a full server refuses", tenure::connect(server.url())).await.unwrap_err();
    assert_is_transient(&refused);
    assert!(refused.to_string().contains("connection"), "{refused}");
    let lost = timeout(5 * ttl, guard.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    renewed(&locks, "name").await;
    guard.release().await.unwrap();
    drop(soon("a waiter is served by a full server", waiting).await.unwrap().unwrap());
    drop(taken);
    soon("a server that was full", async { while tenure::connect(server.url()).await.is_err() {} }).await;
}
