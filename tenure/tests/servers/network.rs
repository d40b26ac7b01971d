//! A network that swallows, delays, and loses a single answer.

use std::future::IntoFuture as _;
use std::time::Duration;

use tenure::{Acquire, EventKind, Locks};
use xtask::proxy::Proxy;

use super::kind::Kind;
use super::support::{
    LONG, News, SECOND, SOON, assert_is_transient, connect, expired, free_for, frees, hold, is_closed_to, renewed,
    soon, unique, until, with, within,
};

/// A process behind a proxy to the shared server, and one that isn't.
struct Behind {
    proxy: Proxy,
    locks: Locks,
    direct: Locks,
    name: String,
    /// What the request has in it that claims the name.
    claim_request: String,
}

impl Behind {
    async fn new(kind: &Kind) -> Self {
        let server = kind.shared();
        let proxy = Proxy::to(server.port()).unwrap();
        let locks = connect(&with(&server.url_at(proxy.port()), kind.in_clear)).await;
        let name = unique("network");
        Self { proxy, locks, direct: connect(&server.url()).await, claim_request: (kind.claim_request)(&name), name }
    }

    /// An acquire whose claim was granted, and whose reply was lost.
    async fn unheard(&self, acquire: impl FnOnce(tenure::Lock) -> tenure::Lock) -> Acquire {
        // The first claim of a process may need a connection first.
        frees(&self.locks, &unique("first"), "").await;
        self.proxy.lose_reply_to(self.claim_request.as_bytes());
        let mut acquire = acquire(self.locks.lock(&self.name)).into_future();
        let lost = until("a reply is lost", async || self.proxy.lost_replies() == 1);
        tokio::select! {
            biased;
            () = lost => acquire,
            granted = &mut acquire => panic!("{granted:?}, and no reply was lost"),
        }
    }
}

/// Renewals that hang cost their connection, and not the term.
pub async fn a_silent_cut_shorter_than_the_term_loses_nothing(kind: &Kind) {
    let behind = Behind::new(kind).await;
    let guard = hold(&behind.locks, &behind.name, 12 * SECOND).await;
    let (token, mut news) = (guard.token(), News::of(&behind.locks));
    behind.proxy.black_hole();
    news.renewal_failed(&behind.name).await;
    behind.proxy.pass();
    renewed(&behind.locks, &behind.name).await;
    assert!(guard.is_held());
    assert_eq!(guard.token(), token);
}

pub async fn lost_requests_are_told_and_recovered_from(kind: &Kind) {
    is_told_and_recovered_from(kind, Proxy::lose_requests).await;
}

pub async fn lost_replies_are_told_and_recovered_from(kind: &Kind) {
    is_told_and_recovered_from(kind, Proxy::lose_replies).await;
}

pub async fn a_black_hole_is_told_and_recovered_from(kind: &Kind) {
    is_told_and_recovered_from(kind, Proxy::black_hole).await;
}

/// The holder is told, an acquire ends, and when the fault is over all is well, on new connections.
async fn is_told_and_recovered_from(kind: &Kind, fault: fn(&Proxy)) {
    let (behind, ttl) = (Behind::new(kind).await, 2 * SECOND);
    let guard = hold(&behind.locks, &behind.name, ttl).await;
    let free = unique("free");
    let accepted = behind.proxy.accepted();
    fault(&behind.proxy);
    let asked = tokio::spawn(behind.locks.lock(&free).ttl(ttl).into_future());
    assert_is_transient(&expired(&guard).await);
    // Its patience, a TTL, begins with the first failure, and the last call may begin just before its end.
    let error = within(ttl + SOON, "an acquire ends", asked).await.unwrap().unwrap_err();
    assert_is_transient(&error);
    behind.proxy.pass();
    let next = free_for(&behind.locks, &behind.name, "when the network works again").await;
    assert!(next.token() > guard.token(), "{} follows {}", next.token(), guard.token());
    assert!(behind.proxy.accepted() > accepted, "a broken connection is used again");
    frees(&behind.direct, &free, "when nobody wants it any more").await;
}

/// Every call takes a while; terms are renewed all the same.
pub async fn a_slow_network_loses_nothing(kind: &Kind) {
    let behind = Behind::new(kind).await;
    behind.proxy.delay(Duration::from_millis(100));
    let guard = hold(&behind.locks, &behind.name, 6 * SECOND).await;
    renewed(&behind.locks, &behind.name).await;
    assert!(is_closed_to(&behind.direct, &behind.name).await);
    guard.release().await.unwrap();
    frees(&behind.direct, &behind.name, "after a slow release").await;
}

/// A network that was split and heals delivers what was sent long ago: renewals of a term that is over, claims that
/// nobody waits for.
pub async fn what_arrives_when_the_term_is_over_changes_nothing(kind: &Kind) {
    let behind = Behind::new(kind).await;
    let guard = hold(&behind.locks, &behind.name, 2 * SECOND).await;
    behind.proxy.hold();
    let asked = tokio::spawn(behind.locks.lock(unique("asked")).ttl(LONG).wait(SECOND).into_future());
    assert_is_transient(&expired(&guard).await);
    let next = hold(&behind.direct, &behind.name, 6 * SECOND).await;
    assert!(soon("an acquire ends", asked).await.unwrap().is_err());
    behind.proxy.pass();
    // When this is answered, what was sent before it on other connections has arrived, or is about to.
    frees(&behind.locks, &unique("after"), "when the network is whole again").await;
    renewed(&behind.direct, &behind.name).await;
    assert!(next.is_held() && !guard.is_held());
    let record = behind.direct.get(&behind.name).await.unwrap().expect("the name is held");
    assert_eq!(record.token, next.token(), "a late renewal has changed the next term");
}

/// The claim is made again with the same lease, and is the same term: one holder, one token.
pub async fn a_claim_whose_reply_was_lost_is_granted_once(kind: &Kind) {
    let behind = Behind::new(kind).await;
    let acquire = behind.unheard(|lock| lock.ttl(60 * SECOND)).await;
    let record = behind.direct.get(&behind.name).await.unwrap().expect("the claim was granted");
    let guard = soon("a claim is made again", acquire).await.unwrap();
    assert_eq!(guard.token(), record.token, "a retry has another token");
    assert!(is_closed_to(&behind.direct, &behind.name).await, "granted to two");
    let record = behind.direct.get(&behind.name).await.unwrap().unwrap();
    assert_eq!(record.token, guard.token());
    guard.release().await.unwrap();
    frees(&behind.direct, &behind.name, "after the release").await;
}

pub async fn an_acquire_dropped_after_its_reply_was_lost_leaves_nothing(kind: &Kind) {
    let behind = Behind::new(kind).await;
    let acquire = behind.unheard(|lock| lock.ttl(LONG)).await;
    assert!(is_closed_to(&behind.direct, &behind.name).await, "the claim was not granted");
    drop(acquire);
    frees(&behind.direct, &behind.name, "when its asker is gone").await;
}

pub async fn an_acquire_timed_out_after_its_reply_was_lost_leaves_nothing(kind: &Kind) {
    let behind = Behind::new(kind).await;
    let mut news = News::of(&behind.direct);
    let acquire = behind.unheard(|lock| lock.ttl(LONG).wait(SECOND)).await;
    let next = tokio::spawn(behind.direct.lock(&behind.name).ttl(LONG).into_future());
    news.next(&behind.name, |kind| matches!(kind, EventKind::Contended(_))).await;
    let error = soon("an acquire times out", acquire).await.unwrap_err();
    assert!(error.is_transient(), "{error:?}");
    drop(soon("the name is free when its asker has given up", next).await.unwrap().unwrap());
}
