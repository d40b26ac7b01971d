//! Members: who is there, and who comes and goes.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::support::{LONG, SOON, TICK, soon};
use super::{Fault, Subject};
use crate::error::Error;
use crate::guard::Why;
use crate::locks::Locks;
use crate::members::{Member, MemberEvent, MemberObserver, Members};

/// How often these observers look.
const EVERY: Duration = Duration::from_millis(50);

fn group(subject: &Subject, locks: &Locks) -> Members {
    locks.members(subject.prefix() + "group").every(EVERY)
}

async fn list(members: &Members) -> Vec<Member> {
    soon("a list of members", members.list()).await.expect("members can be listed")
}

async fn next(observe: &mut MemberObserver) -> MemberEvent {
    soon("news of members", observe.next()).await.expect("members can be observed")
}

async fn until_gone(members: &Members, id: &str, within: Duration) {
    let gone = async {
        while list(members).await.iter().any(|member| member.id == id) {
            sleep(TICK).await;
        }
    };
    assert!(timeout(within, gone).await.is_ok(), "{id} is still listed after {within:?}");
}

/// A member is listed, with its data, until it leaves or is dropped; and each has an id of its own.
pub async fn a_member_is_listed_until_it_leaves(subject: &Subject) {
    let (locks, other) = (subject.connect().await, subject.connect().await);
    let members = locks.members(subject.prefix() + "group");
    let seen = other.members(members.group());
    let first = soon("a join", members.join("one").ttl(LONG).into_future()).await.expect("anybody can join");
    let second = soon("a join", members.join(&[2]).ttl(LONG).into_future()).await.expect("anybody can join");
    let listed = list(&seen).await;
    assert_eq!(listed.len(), 2, "{listed:?}");
    let found = listed.iter().find(|member| member.id == first.id()).expect("the first is listed");
    assert_eq!((found.owner.as_str(), found.data::<String>().ok()), (locks.owner(), Some(Some("one".into()))));
    assert!(listed.iter().any(|member| member.id == second.id() && member.data.as_deref() == Some("[2]")));
    let (one, two) = (first.id().to_owned(), second.id().to_owned());
    soon("a leave", first.leave()).await.expect("a member can leave");
    assert!(list(&seen).await.iter().all(|member| member.id != one), "listed after it left");
    drop(second);
    until_gone(&seen, &two, SOON).await;
}

/// A member leaves as soon as a shutdown begins, which does not wait for it; whoever has work has its time all the same.
pub async fn a_member_leaves_when_a_shutdown_begins(subject: &Subject) {
    let (locks, other, name) = (subject.connect().await, subject.connect().await, subject.name());
    let members = group(subject, &locks);
    let seen = other.members(members.group());
    let join = || async { soon("a join", members.join("me").ttl(LONG).into_future()).await.expect("anybody can join") };
    let (kept, left, guard) = (join().await, join().await, super::support::hold(&locks, &name).await);
    let mut watch = guard.watch();
    let shutdown = tokio::spawn({
        let locks = locks.clone();
        async move { locks.end_all(LONG).await }
    });
    soon("word of the shutdown", watch.changed()).await;
    until_gone(&seen, kept.id(), SOON).await;
    until_gone(&seen, left.id(), SOON).await;
    assert!(!kept.is_member() && guard.is_held() && !shutdown.is_finished());
    let again = soon("an answer", left.leave()).await;
    assert!(matches!(again, Err(Error::Closed)), "left twice: {again:?}");
    drop(guard);
    let (cut_off, unreleased) = soon("the shutdown", shutdown).await.expect("no panic");
    assert!(cut_off.is_empty() && unreleased.is_empty(), "{cut_off:?} {unreleased:?}");
}

/// A member that reaches the store no more is told so, and is gone for others when its term is over.
pub async fn a_member_that_is_cut_off_is_told_and_gone_after_its_ttl(subject: &Subject) {
    let ((locks, store), other) = (subject.connect_faulty().await, subject.connect().await);
    let (members, ttl) = (group(subject, &locks), 2 * subject.ttl());
    let seen = other.members(members.group());
    let membership = soon("a join", members.join("x").ttl(ttl).into_future()).await.expect("anybody can join");
    store.always_all(Fault::Hang);
    let lost = timeout(ttl + SOON, membership.lost()).await.expect("the loss is told");
    assert!(matches!(lost.why, Why::Expired(_)) && !membership.is_member(), "{lost}");
    until_gone(&seen, membership.id(), ttl + SOON).await;
}

/// A membership that an operator ended is told as lost.
pub async fn an_evicted_member_is_told(subject: &Subject) {
    let locks = subject.connect().await;
    let members = group(subject, &locks);
    let membership = soon("a join", members.join("x").ttl(LONG).into_future()).await.expect("anybody can join");
    let name = format!("{}/members/{}", members.group(), membership.id());
    let evicted = soon("an eviction", locks.evict(&name, "an operator")).await.expect("a name can be evicted");
    assert_eq!(evicted.map(|record| record.token), Some(membership.token()));
    let lost = soon("the loss", membership.lost()).await;
    assert!(matches!(&lost.why, Why::Evicted(by) if by == "an operator"), "{lost}");
}

/// An observer is told of those who are there, and of each change once, also if it stops waiting now and then.
pub async fn observers_are_told_of_each_change_once(subject: &Subject) {
    let (locks, other) = (subject.connect().await, subject.connect().await);
    let members = group(subject, &locks);
    let mut observe = other.members(members.group()).every(EVERY).observe();
    let first = members.join("first").ttl(LONG).await.expect("anybody can join");
    assert!(matches!(next(&mut observe).await, MemberEvent::Joined(member) if member.id == first.id()));
    let mut known = vec![first];
    for turn in 0..4 {
        // Gives up in the middle, again and again.
        for micros in [1, 700, 20_000, 60_000] {
            let early = timeout(Duration::from_micros(micros), observe.next()).await;
            assert!(early.is_err(), "news of nothing: {early:?}");
        }
        let id = if turn % 2 == 0 {
            known.push(members.join(&turn).ttl(LONG).await.expect("anybody can join"));
            known[known.len() - 1].id().to_owned()
        } else {
            let gone = known.remove(0);
            let id = gone.id().to_owned();
            gone.leave().await.expect("a member can leave");
            id
        };
        match next(&mut observe).await {
            MemberEvent::Joined(member) => assert_eq!((turn % 2, member.id), (0, id)),
            MemberEvent::Left(left) => assert_eq!((turn % 2, left), (1, id)),
        }
    }
}

/// A group without a name, and intervals that make no sense, are refused, by name.
pub async fn bad_members_options_are_refused(subject: &Subject) {
    let locks = subject.connect().await;
    for bad in ["", "group/"] {
        let joined = locks.members(bad).join("x").await.map(drop);
        let listed = locks.members(bad).list().await.map(drop);
        for refused in [joined, listed] {
            assert!(matches!(&refused, Err(Error::Invalid { what, .. }) if what == "group"), "{bad:?}: {refused:?}");
        }
    }
    let group = group(subject, &locks);
    let (ttl, heartbeat) = (Duration::from_secs(20), Duration::from_secs(15));
    let refused = group.join("x").ttl(ttl).heartbeat(heartbeat).await.map(drop);
    assert!(matches!(&refused, Err(Error::Invalid { what, .. }) if what == "ttl"), "{refused:?}");
    let refused = group.every(Duration::ZERO).observe().next().await.map(drop);
    assert!(matches!(&refused, Err(Error::Invalid { what, .. }) if what == "every"), "{refused:?}");
}
