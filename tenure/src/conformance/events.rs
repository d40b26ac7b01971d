//! Subscribers hear what happens to names.

use std::time::Duration;

use tokio::time::timeout;

use super::support::{LONG, SOON, hold, soon};
use super::{Call, Fault, Subject};
use crate::event::{Event, EventKind, Events, Next};
use crate::guard::Why;
use crate::locks::Locks;
use crate::record::Name;

/// An acquire, its contention, its renewals, its rotation and its release are told, with name and token.
pub async fn events_tell_of_an_ordinary_term(subject: &Subject) {
    let owner = "who holds it";
    let locks = Locks::on(subject.instance()).owner(owner).await.expect("the store can be opened");
    let (mut events, name) = (locks.events(), subject.name());
    let every = Duration::from_millis(200);
    let lock = locks.lock(&name).ttl(LONG).renew_every(every).rotate_every(2 * every);
    let guard = soon("a free name is granted", lock.into_future()).await.expect("a free name is granted");
    let granted = guard.token();
    assert_eq!(until(&mut events, &name, |kind| matches!(kind, EventKind::Acquired)).await.token, Some(granted));

    soon("an answer", locks.try_lock(&name).into_future()).await.expect("busy is no error");
    until(&mut events, &name, |kind| matches!(kind, EventKind::Contended(Some(holder)) if holder == owner)).await;
    until(&mut events, &name, |kind| matches!(kind, EventKind::Renewed)).await;
    let rotated = until(&mut events, &name, |kind| matches!(kind, EventKind::TokenRotated(_))).await;
    assert!(rotated.token > Some(granted), "rotated from {granted} to {:?}", rotated.token);
    soon("a release", guard.release()).await.expect("a held name can be released");
    until(&mut events, &name, |kind| matches!(kind, EventKind::Released)).await;
}

/// A failed renewal, a term at risk and its loss are told, in this order.
pub async fn events_tell_of_a_loss(subject: &Subject) {
    let (locks, faulty) = subject.connect_faulty().await;
    let (mut events, name) = (locks.events(), subject.name());
    faulty.always(Call::Renew, Fault::Fail);
    let lock = locks.lock(&name).ttl(subject.ttl());
    let guard = soon("a free name is granted", lock.into_future()).await.expect("a free name is granted");
    until(&mut events, &name, |kind| matches!(kind, EventKind::RenewalFailed(_))).await;
    let risk = until(&mut events, &name, |kind| matches!(kind, EventKind::AtRisk)).await;
    let lost = until(&mut events, &name, |kind| matches!(kind, EventKind::Lost(Why::Expired(Some(_))))).await;
    assert_eq!([risk.token, lost.token], [Some(guard.token()); 2]);
}

/// Contention with another process is told, with its owner; so is the end of the stream when the engine has ended.
pub async fn events_tell_of_contention_and_end_with_the_engine(subject: &Subject) {
    let holder = Locks::on(subject.instance()).owner("the other one").await.expect("the store can be opened");
    let (locks, name) = (subject.connect().await, subject.name());
    let _guard = hold(&holder, &name).await;
    let mut events = locks.events();
    soon("an answer", locks.try_lock(&name).into_future()).await.expect("busy is no error");
    let theirs = |kind: &EventKind| matches!(kind, EventKind::Contended(Some(holder)) if holder == "the other one");
    assert_eq!(until(&mut events, &name, theirs).await.token, None, "a refusal has a token");
    soon("a shutdown", locks.shutdown(Duration::ZERO)).await;
    let end = soon("the end of the events", events.next()).await;
    assert!(end.is_none(), "after the engine has ended: {end:?}");
}

/// The next event of this kind; others may come before.
async fn until(events: &mut Events, name: &Name, wanted: impl Fn(&EventKind) -> bool) -> Event {
    let mut seen = Vec::new();
    let found = timeout(SOON, async {
        loop {
            match events.next().await {
                Some(Next::Event(event)) if event.name == *name && wanted(&event.kind) => return Some(event),
                Some(Next::Event(event)) => seen.push(event.kind),
                Some(Next::Missed(_)) | None => return None,
            }
        }
    });
    match found.await {
        Ok(Some(event)) => event,
        Ok(None) => panic!("events were missed, after {seen:?}"),
        Err(_) => panic!("an event did not come within {SOON:?}, only {seen:?}"),
    }
}
