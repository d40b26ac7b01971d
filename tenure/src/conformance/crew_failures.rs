//! Crews on a store that fails, and crews that fail themselves.

use std::time::Duration;

use tokio::time::sleep;

use super::contention::nemesis;
use super::crew::{ROUND, Site, until};
use super::support::{LONG, SOON, soon};
use super::{Call, Fault, Subject};
use crate::error::Error;
use crate::locks::Locks;

/// Rounds to look on for.
const ROUNDS: u32 = 20;
/// Calls in that time of one that makes two a round: a round is half of its length at the least.
const FEW: u64 = 4 * ROUNDS as u64;

/// Makes the only member of a crew one that was counted as gone.
async fn evict_member(locks: &Locks, site: &Site<'_>) {
    let members = locks.members(site.group.as_str()).list().await.expect("members can be listed");
    let name = format!("{}/members/{}", site.group, members[0].id);
    soon("an eviction", locks.evict(&name, "an operator")).await.expect("a name can be evicted");
}

/// A crew that can't see the store looks again in the next round, not at once, though it was given tasks meanwhile; and a task that
/// is removed is stopped all the same.
pub async fn a_crew_that_cannot_see_the_store_is_patient(subject: &Subject) {
    let site = Site::new(subject, 3);
    let (locks, store) = subject.connect_faulty().await;
    let a = site.start_on(locks, 50, Duration::ZERO, LONG);
    site.shared_out(&[&a], &[3]).await;
    let under_way = store.lists();
    store.always(Call::List, Fault::Fail);
    until("a look fails", || store.lists() > under_way).await;
    let before = store.lists();
    a.handle.add("new").expect("a task can be added");
    assert!(a.handle.remove("task-00"));
    until("a removed task is stopped", || a.count() == 2).await;
    sleep(ROUNDS * ROUND).await;
    assert!(store.lists() - before <= FEW, "{} looks in {ROUNDS} rounds", store.lists() - before);
    store.heal();
    site.shared_out(&[&a], &[3]).await;
    a.stop().await;
    site.check_history();
}

/// A member that was counted as gone, and that the store refuses to take back, asks again in the next round, not at once. Its workers
/// go on; a shutdown ends it in order.
pub async fn a_crew_member_that_cannot_join_again_is_patient(subject: &Subject) {
    let site = Site::new(subject, 3);
    let (locks, store) = subject.connect_faulty().await;
    let mut a = site.start_on(locks, 50, Duration::ZERO, LONG);
    site.shared_out(&[&a], &[3]).await;
    store.always(Call::Claim, Fault::Refuse);
    evict_member(&a.locks, &site).await;
    let before = store.calls(Call::Claim);
    sleep(ROUNDS * ROUND).await;
    let asked = store.calls(Call::Claim) - before;
    assert!((1..=FEW).contains(&asked), "asked {asked} times in {ROUNDS} rounds");
    assert_eq!(a.count(), 3, "its workers went on");
    let unreleased = soon("the shutdown", a.locks.shutdown(SOON)).await;
    assert!(unreleased.is_empty(), "{unreleased:?}");
    soon("the end", &mut a.work).await.expect("no panic").expect("a shutdown is no failure");
    site.check_history();
}

/// A crew that is told to stop does so at once, also while it waits for a store that does not answer.
pub async fn a_crew_stops_while_it_waits_for_the_store(subject: &Subject) {
    let mut site = Site::new(subject, 3);
    site.ttl = LONG;
    let (locks, store) = subject.connect_faulty().await;
    let a = site.start_on(locks, 50, Duration::ZERO, LONG);
    site.shared_out(&[&a], &[3]).await;
    // It asks for its membership again until a TTL is over.
    store.always(Call::Claim, Fault::Fail);
    let before = store.calls(Call::Claim);
    evict_member(&a.locks, &site).await;
    store.arrived(Call::Claim, before + 1).await;
    a.stop().await;
    assert_eq!(subject.connect().await.list(site.group.as_str()).await.expect("the store answers"), []);
    site.check_history();
}

/// Whatever calls fail, hang, or are answered late or not at all: no task runs twice at a time, and all are shared out in the end.
pub async fn a_crew_on_a_faulty_store_runs_no_task_twice(subject: &Subject) {
    let mut site = Site::new(subject, 12);
    site.ttl = 2 * subject.ttl();
    let (mut instances, mut stores) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let (locks, store) = subject.connect_faulty().await;
        instances.push(site.start_on(locks, 50, Duration::ZERO, LONG));
        stores.push(store);
    }
    nemesis(&stores).await;
    site.shared_out(&instances.iter().collect::<Vec<_>>(), &[4, 4, 4]).await;
    for instance in instances {
        instance.stop().await;
    }
    site.check_history();
}

/// A panic on the way to a worker is that task's alone.
pub async fn a_crew_survives_a_panic_on_the_way_to_a_worker(subject: &Subject) {
    let site = Site::new(subject, 3);
    let locks = subject.connect().await;
    let crew = site.crew(&locks);
    let (handle, mut starts) = (crew.handle(), 0);
    let work = tokio::spawn(crew.work(move |_, term| {
        starts += 1;
        if starts == 2 {
            // Unlike `panic!` it prints nothing, and unwinds all the same.
            std::panic::resume_unwind(Box::new("told to panic"));
        }
        async move { term.cancelled().await }
    }));
    site.listed_as(3).await;
    handle.stop();
    soon("the end", work).await.expect("the crew has survived").expect("it was stopped in order");
}

/// Whoever follows a crew whose options were refused, or that was never started, is told that there is nothing to follow.
pub async fn a_crew_that_never_works_is_told_to_its_handles(subject: &Subject) {
    let locks = subject.connect().await;
    let crew = locks.crew(subject.prefix() + "crew").capacity(0);
    let mut handle = crew.handle();
    let follow = async { while handle.changed().await.is_some() {} };
    let (refused, ()) = soon("both end", async { tokio::join!(crew.work(async |_, _| ()), follow) }).await;
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    let mut handle = locks.crew(subject.prefix() + "crew").handle();
    soon("no more reports", async { while handle.changed().await.is_some() {} }).await;
}

/// A crew whose workers did not end within the time of a shutdown says so.
pub async fn a_crew_that_was_cut_off_says_so(subject: &Subject) {
    let (site, other) = (Site::new(subject, 3), subject.connect().await);
    let mut a = site.start_with(50, LONG, LONG).await;
    site.shared_out(&[&a], &[3]).await;
    let unreleased = soon("the shutdown", a.locks.shutdown(Duration::from_millis(200))).await;
    assert!(unreleased.is_empty(), "{unreleased:?}");
    let ended = soon("the end", &mut a.work).await.expect("no panic");
    assert!(matches!(ended, Err(Error::Closed)), "workers were cut off, and it says {ended:?}");
    assert_eq!(other.list(site.group.as_str()).await.expect("the store answers"), []);
    site.check_history();
}
