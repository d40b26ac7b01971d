//! Grants whose answers were slow.

use std::future::IntoFuture;
use std::time::Duration;

use tokio::time::sleep;

use super::support::{Bare, SOON, poll_once, soon};
use super::{Call, Fault, Gate, Subject};
use crate::clock::Moment;

/// A grant whose answer comes when its term is over is not handed out: the name is claimed afresh.
pub async fn a_slow_grant_is_never_handed_out_expired(subject: &Subject) {
    let (locks, faulty) = subject.connect_faulty().await;
    let (bare, name, gate) = (Bare::open(subject).await, subject.name(), Gate::new());
    faulty.next(Call::Claim, Fault::HoldReply(gate.clone()));
    let mut acquire = locks.lock(&name).ttl(subject.ttl()).into_future();
    assert!(poll_once(&mut acquire).await.is_pending());
    soon("the claim is carried out", gate.reached()).await;
    let slow = bare.find(&name).await.expect("the claim was granted");
    sleep(subject.ttl() + Duration::from_millis(20)).await;
    gate.open();
    let opened = Moment::now();

    let guard = soon("the name is granted", acquire).await.expect("the name is granted");
    assert!(guard.token() > slow.token, "handed out token {}, which had expired", slow.token);
    let least = opened + subject.ttl() / 2;
    assert!(guard.deadline() > least, "handed out with less than half of its term");
    let record = bare.find(&name).await.expect("a held name is listed");
    assert!(record.lease != slow.lease, "claimed afresh with the lease that had expired");
}

/// A grant of which less than half is left when its answer comes is renewed before it is handed out.
pub async fn a_slow_grant_is_renewed_before_it_is_handed_out(subject: &Subject) {
    // Half of it is the time that a busy machine has to answer.
    let ttl = Duration::from_secs(4);
    let (locks, faulty) = subject.connect_faulty().await;
    let gate = Gate::new();
    faulty.next(Call::Claim, Fault::HoldReply(gate.clone()));
    let renewal = Gate::new();
    faulty.next(Call::Renew, Fault::Hold(renewal.clone()));
    let mut acquire = locks.lock(subject.name()).ttl(ttl).into_future();
    assert!(poll_once(&mut acquire).await.is_pending());
    soon("the claim is carried out", gate.reached()).await;
    sleep(ttl / 2 + Duration::from_millis(20)).await;
    gate.open();

    let opened = Moment::now();
    soon("a renewal", renewal.reached()).await;
    assert!(poll_once(&mut acquire).await.is_pending(), "handed out before it was renewed");
    assert!(locks.holding().await.is_empty(), "counted as held before it was handed out");
    renewal.open();
    let guard = tokio::time::timeout(SOON, acquire).await.expect("handed out").expect("the name is granted");
    assert!(guard.deadline() > opened + ttl / 2, "handed out with less than half of its term");
}
