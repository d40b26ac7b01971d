//! What only a Redis server does.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use tenure::clock::Moment;
use tenure::store::redis::RedisStore;
use tenure::store::url::store_at;
use tokio::time::{sleep, timeout};
use xtask::proxy::Proxy;
use xtask::services::Redis;

use super::bare::claim_of;
use super::kind::Kind;
use super::push::{ABOUT_THE_POLL, is_told, waiter};
use super::refusals::refusal;
use super::settings::weak;
use super::support::{
    LONG, SECOND, assert_is_transient, connect, expired, free_for, frees, hold, is_closed_to, renewed, soon, unique,
    until, with, within,
};
use super::terms::is_held_while_all_is_blocked;

/// Tenure's connections are its own, also with the settings of a client that lives in the blocked runtime.
pub async fn heartbeats_go_on_while_the_clients_runtime_is_blocked(kind: &Kind) {
    let client = redis::Client::open(kind.shared().url()).unwrap();
    let mut used = client.get_multiplexed_async_connection().await.unwrap();
    let _: String = redis::cmd("PING").query_async(&mut used).await.unwrap();
    is_held_while_all_is_blocked(kind, Arc::new(RedisStore::from_client(&client))).await;
}

/// Neither behind a network that held it back, nor by a server that stood still: whoever asked is gone.
pub async fn a_claim_that_arrives_late_is_not_granted(kind: &Kind) {
    let server = kind.start();
    let server = server.redis();
    let proxy = Proxy::to(server.port()).unwrap();
    let store = store_at(&server.url_at(proxy.port())).unwrap();
    let direct = connect(&server.url()).await;
    soon("opening", store.open()).await.unwrap();
    let limit = store.about().statement_limit;
    let (held, paused) = (claim_of("held", LONG), claim_of("paused", LONG));
    // The connection that is used stays open, as a network that is split closes nothing.
    let asking = store.claim(std::slice::from_ref(&held));
    proxy.hold();
    let (before, later) = (scripts_run(server), Moment::now());
    let mut asking = Box::pin(asking);
    assert!(timeout(limit + SECOND, &mut asking).await.is_err());
    proxy.pass();
    let error = soon("an answer", asking).await.unwrap_err();
    assert_is_transient(&error);
    assert!(error.to_string().contains("too late"), "{error} after {:?}", Moment::now() - later);
    assert!(scripts_run(server) > before, "it has arrived");
    assert!(direct.get("held").await.unwrap().is_none(), "granted {:?} after it was asked for", limit);
    // And one whose caller is gone.
    server.pause().unwrap();
    assert!(timeout(SECOND, store.claim(std::slice::from_ref(&paused))).await.is_err());
    sleep(limit + SECOND).await;
    server.resume().unwrap();
    frees(&direct, "other", "when the server goes on").await;
    until("what was sent has arrived", async || scripts_run(server) > before + 1).await;
    assert!(direct.get("paused").await.unwrap().is_none(), "granted to a caller that was gone");
    // What is asked for in time is granted.
    let granted = soon("a claim", store.claim(std::slice::from_ref(&held))).await.unwrap();
    assert!(matches!(granted[..], [Ok(tenure::store::Outcome::Granted(_))]), "{granted:?}");
}

fn scripts_run(server: &Redis) -> u64 {
    let info = server.cli(&["info", "commandstats"]).unwrap();
    let calls = info.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    calls.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
}

pub async fn scripts_that_were_flushed_are_sent_again(kind: &Kind) {
    let server = kind.start();
    let (server, locks) = (server.redis(), connect(&server.url()).await);
    let guard = hold(&locks, "name", 3 * SECOND).await;
    let token = guard.token();
    server.cli(&["script", "flush"]).unwrap();
    renewed(&locks, "name").await;
    assert_eq!(guard.token(), token);
    server.cli(&["script", "flush"]).unwrap();
    guard.release().await.unwrap();
    let next = free_for(&locks, "name", "without any script").await;
    assert!(next.token() > token);
}

/// Renewals need no new connection; whoever needs one is told so, or is just hung up on.
pub async fn a_server_without_free_connections_loses_nothing(kind: &Kind) {
    let server = kind.start_with(&[("maxclients", "14")]);
    let (locks, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let guard = hold(&locks, "name", 2 * SECOND).await;
    let mut taken = Vec::new();
    let full = loop {
        match timeout(SECOND, tenure::connect(server.url())).await {
            Ok(Ok(more)) => taken.push(more),
            Ok(Err(error)) => break error,
            Err(_) => panic!("a full server doesn't say so"),
        }
    };
    assert_is_transient(&full);
    renewed(&locks, "name").await;
    assert!(guard.is_held() && is_closed_to(&other, "name").await);
    drop(taken);
    soon("a server that was full", async { while tenure::connect(server.url()).await.is_err() {} }).await;
}

/// It refuses grants and renewals, and says why; releases still work.
pub async fn a_full_server_is_told_and_recovered_from(kind: &Kind) {
    let server = kind.start();
    let (server, locks) = (server.redis(), connect(&server.url()).await);
    let kept = free_for(&locks, "kept", "").await;
    let guard = hold(&locks, "name", 2 * SECOND).await;
    server.cli(&["config", "set", "maxmemory", "1"]).unwrap();
    let error = soon("an acquire ends", locks.lock("other").wait(SECOND)).await.unwrap_err();
    assert_is_transient(&error);
    assert!(error.to_string().contains("out of memory"), "{error}");
    let error = expired(&guard).await;
    assert!(error.is_transient() && error.to_string().contains("out of memory"), "{error}");
    kept.release().await.unwrap();
    server.cli(&["config", "set", "maxmemory", "0"]).unwrap();
    let next = free_for(&locks, "name", "when there is memory again").await;
    assert!(next.token() > guard.token());
}

/// What a server says that is loading, that can't save, that is a cluster in pieces: transient, and in plain words.
pub async fn each_error_is_told_from_the_others(_: &Kind) {
    for (says, transient, means) in [
        ("LOADING Redis is loading the dataset in memory", true, "still loading"),
        ("MISCONF Redis is configured to save RDB snapshots", true, "can't save"),
        ("NOREPLICAS Not enough good replicas to write.", true, "too few replicas"),
        ("MASTERDOWN Link with MASTER is down", true, "lost its primary"),
        ("BUSY Redis is busy running a script.", true, "busy"),
        ("CLUSTERDOWN The cluster is down", true, "cluster"),
        ("TRYAGAIN Multiple keys request during rehashing of slot", true, "cluster"),
        ("OOM command not allowed when used memory > 'maxmemory'.", true, "out of memory"),
        ("READONLY You can't write against a read only replica.", true, "replica"),
        ("NOAUTH Authentication required.", false, "password"),
        ("NOPERM this user has no permissions", false, "right"),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", false, "tenure.prefix"),
        ("ERR unknown command 'EVALSHA'", false, "refused"),
    ] {
        let error = refusal(&stubborn_server(says)).await;
        assert_eq!(error.is_transient(), transient, "{error:?}");
        let said = error.to_string();
        let word = says.split(' ').next_back().unwrap();
        assert!(said.contains(means) && said.contains(word), "{said}");
    }
}

/// A server that lets everybody in and answers every command with one error.
fn stubborn_server(says: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            std::thread::spawn(move || answer(stream, says));
        }
    });
    url
}

fn answer(mut stream: TcpStream, says: &str) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(count @ 1..) = stream.read(&mut bytes) {
        let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
        for command in text.split("\r\n*").map(|command| command.trim_start_matches('*')) {
            let hello = command.contains("HELLO") || command.contains("SETINFO");
            let reply = if hello { "+OK\r\n".into() } else { format!("-{says}\r\n") };
            if stream.write_all(reply.as_bytes()).is_err() {
                return;
            }
        }
    }
}

/// With word of what to do about it.
pub async fn settings_that_weaken_a_promise_are_told(kind: &Kind) {
    let lossy = kind.start_with(&[("appendonly", "no"), ("maxmemory", "100mb"), ("maxmemory-policy", "allkeys-lru")]);
    let findings = connect(&lossy.url()).await.examine().await.unwrap();
    assert_eq!(weak(&findings), ["maxmemory-policy", "persistence"], "{findings:#?}");
    let primary = Redis::start_with(&[("appendfsync", "everysec")]).unwrap();
    let _replica = Redis::start_replica(&primary).unwrap();
    let findings = connect(&primary.url()).await.examine().await.unwrap();
    assert_eq!(weak(&findings), ["persistence", "replication"], "{findings:#?}");
    let waiting = connect(&with(&primary.url(), "tenure.wait_replicas=1")).await.examine().await.unwrap();
    assert_eq!(weak(&waiting), ["persistence"], "{waiting:#?}");
}

/// A prefix of the test's own: its channel is, too.
fn own_prefix(kind: &Kind) -> (String, String) {
    let prefix = unique("push");
    (with(&kind.shared().url(), &format!("tenure.prefix={prefix}")), format!("{{{prefix}}}:freed"))
}

/// Nobody waits, nobody is told.
pub async fn only_a_contended_release_is_published(kind: &Kind) {
    let (url, channel) = own_prefix(kind);
    let (locks, other) = (connect(&url).await, connect(&url).await);
    let (send, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let resp3 = with(&kind.shared().url(), "protocol=resp3");
    let config = redis::AsyncConnectionConfig::new().set_push_sender(send);
    let client = redis::Client::open(resp3).unwrap();
    let mut listener = client.get_multiplexed_async_connection_with_config(&config).await.unwrap();
    listener.subscribe(&channel).await.unwrap();
    for _ in 0..5 {
        let guard = free_for(&locks, "quiet", "").await;
        assert!(other.try_lock("quiet").await.unwrap().is_none());
        guard.release().await.unwrap();
    }
    for name in ["contended", "last"] {
        let guard = free_for(&locks, name, "").await;
        let waiting = waiter(&other, name).await;
        guard.release().await.unwrap();
        // Released in turn, when nobody waits for it any more.
        soon("a waiter is served", waiting).await.unwrap().unwrap().release().await.unwrap();
    }
    let mut names = Vec::new();
    while names.last().is_none_or(|name| name != "last") {
        let push = soon("a message", heard.recv()).await.unwrap();
        if let Some(message) = redis::Msg::from_push_info(push) {
            names.push(message.get_payload::<String>().unwrap());
        }
    }
    assert_eq!(names, ["contended", "last"]);
}

pub async fn a_release_wakes_a_waiter_sooner_than_its_poll(kind: &Kind) {
    let (url, _) = own_prefix(kind);
    let (locks, other) = (connect(&url).await, connect(&url).await);
    assert!(other.about().push && other.about().poll >= SECOND);
    is_told(&locks, &other).await;
}

/// The waiter gets its name, and those after it are told again.
pub async fn a_killed_listener_comes_back(kind: &Kind) {
    let server = kind.start();
    let (server, url) = (server.redis(), server.url());
    let (locks, other) = (connect(&url).await, connect(&url).await);
    let guard = free_for(&locks, "name", "").await;
    let waiting = waiter(&other, "name").await;
    server.cli(&["client", "kill", "type", "pubsub"]).unwrap();
    guard.release().await.unwrap();
    drop(within(ABOUT_THE_POLL, "a waiter whose listener is gone", waiting).await.unwrap().unwrap());
    until("both listen again", async || {
        server.cli(&["pubsub", "numsub", "{tenure}:freed"]).unwrap().trim().ends_with('2')
    })
    .await;
    is_told(&locks, &other).await;
}

/// A connection that the network has swallowed tells nothing, not even that; the waiter looks by itself, and those after
/// it are told again.
pub async fn a_silenced_listener_delays_no_longer_than_the_poll(kind: &Kind) {
    let server = kind.start();
    let (server, proxy) = (server.redis(), Proxy::to(server.port()).unwrap());
    let (locks, other) = (connect(&server.url()).await, connect(&server.url_at(proxy.port())).await);
    let guard = free_for(&locks, "name", "").await;
    // Only the listener gets to hear something while replies are lost, and is lost with it.
    proxy.lose_replies();
    server.cli(&["publish", "{tenure}:freed", "nothing"]).unwrap();
    sleep(Duration::from_millis(300)).await;
    proxy.pass();
    let (waiting, accepted) = (waiter(&other, "name").await, proxy.accepted());
    guard.release().await.unwrap();
    drop(within(ABOUT_THE_POLL, "a waiter whose listener is silent", waiting).await.unwrap().unwrap());
    until("it listens on another connection", async || proxy.accepted() > accepted).await;
    is_told(&locks, &other).await;
}

/// A look needs no second try by its caller when the server was restarted in between.
pub async fn a_look_after_a_restart_succeeds(kind: &Kind) {
    let server = kind.start();
    let locks = connect(&server.url()).await;
    free_for(&locks, "name", "").await.release().await.unwrap();
    server.restart().unwrap();
    assert_eq!(soon("a list", locks.list("")).await.unwrap().len(), 0);
}

pub async fn prefixes_and_databases_are_apart(kind: &Kind) {
    let url = kind.shared().url();
    let name = unique("name");
    let mut guards = Vec::new();
    for url in
        [url.clone(), format!("{url}/1"), with(&url, "tenure.prefix=a"), with(&format!("{url}/1"), "tenure.prefix=a")]
    {
        let locks = connect(&url).await;
        let guard = soon("a name of its own", locks.try_lock(&name)).await.unwrap().expect("nobody has it here");
        assert!(is_closed_to(&connect(&url).await, &name).await);
        guards.push(guard);
    }
}
