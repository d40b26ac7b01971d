//! Servers that are killed or stand still: a minority changes nothing, a majority is told.

use std::time::Instant;

use tenure::Locks;

use super::five::{Five, an_hour_ahead};
use super::support::{LONG, SECOND, assert_is_transient, connect, expired, free_for, hold, renewed, run, soon, until};

/// The longest that anybody closes a name for, where servers are to vote again.
const TTL: std::time::Duration = std::time::Duration::from_secs(3);

/// A held name stays held, is renewed and closed to others; others can be had, each time with a larger token.
async fn goes_on(locks: &Locks, other: &Locks, held: &str, last: &mut tenure::Token) {
    renewed(locks, held).await;
    assert!(soon("an answer", other.try_lock(held).ttl(TTL)).await.unwrap().is_none(), "{held} was granted to another");
    for holder in [locks, other, locks] {
        let guard = soon("a free name is granted", holder.lock("passed on").ttl(TTL)).await.unwrap();
        assert!(guard.token() > *last, "{} follows {last}", guard.token());
        *last = guard.token();
        guard.release().await.unwrap();
    }
    assert!(other.get(held).await.unwrap().is_some(), "{held} is not listed");
}

#[test]
fn one_and_two_of_five_that_are_killed_change_nothing() {
    let Some(five) = Five::start() else { return };
    run("killed", async {
        let (locks, other) = (connect(&five.url()).await, connect(&five.url()).await);
        let (guard, mut last) = (hold(&locks, "held", TTL).await, tenure::Token(0));
        let token = guard.token();
        for server in [4, 0] {
            five.0[server].kill().unwrap();
            goes_on(&locks, &other, "held", &mut last).await;
        }
        five.0[4].restart().unwrap();
        five.0[0].restart().unwrap();
        five.all_vote().await;
        five.renew([0, 4], "held").await;
        five.0[1].kill().unwrap();
        five.0[2].kill().unwrap();
        goes_on(&locks, &other, "held", &mut last).await;
        assert_eq!(guard.token(), token);
        guard.release().await.unwrap();
        drop(free_for(&other, "held", "after its release").await);
    });
}

#[test]
fn one_and_two_of_five_that_stand_still_change_nothing_and_slow_nobody_down() {
    let Some(five) = Five::start() else { return };
    run("stopped", async {
        let (locks, other) = (connect(&five.url()).await, connect(&five.url()).await);
        let (guard, mut last) = (hold(&locks, "held", TTL).await, tenure::Token(0));
        for server in [3, 1] {
            five.0[server].pause().unwrap();
            goes_on(&locks, &other, "held", &mut last).await;
        }
        // A server may take a second with a TTL as long as this one: if calls waited for it, a cycle would take three.
        let begun = Instant::now();
        for _ in 0..20 {
            free_for(&other, "quick", "while two stand still").await.release().await.unwrap();
        }
        assert!(begun.elapsed() < 20 * SECOND, "20 cycles took {:?}", begun.elapsed());
        five.0[3].resume().unwrap();
        five.0[1].resume().unwrap();
        five.renew([3, 1], "held").await;
        five.0[0].pause().unwrap();
        five.0[2].pause().unwrap();
        goes_on(&locks, &other, "held", &mut last).await;
        assert!(guard.is_held());
        // What the others got too late has changed nothing there.
        drop(free_for(&locks, "quick", "without the servers that had it last").await);
    });
}

#[test]
fn three_of_five_that_are_gone_are_told() {
    let Some(five) = Five::start() else { return };
    run("gone", async {
        let (locks, other) = (connect(&five.url()).await, connect(&five.url()).await);
        let guard = hold(&locks, "held", 2 * SECOND).await;
        five.0[0].kill().unwrap();
        five.0[1].pause().unwrap();
        five.0[2].kill().unwrap();
        let error = soon("an answer", other.lock("other").wait(5 * SECOND)).await.unwrap_err();
        assert_is_transient(&error);
        assert!(error.to_string().contains("of 5 servers failed, and 3 are needed"), "{error}");
        assert_is_transient(&expired(&guard).await);
        assert_is_transient(&soon("an answer", other.list("")).await.unwrap_err());
        assert_is_transient(&soon("an answer", tenure::connect(five.url())).await.unwrap_err());
        five.0[1].resume().unwrap();
        let next = free_for(&other, "held", "when a majority is there again").await;
        assert!(next.token() > guard.token());
    });
}

/// The second round: what one server's clock has made is a floor to all others.
#[test]
fn a_token_of_a_clock_that_is_ahead_is_known_to_the_others() {
    let Some(five) = Five::start() else { return };
    run("ahead", async {
        let locks = connect(&five.url()).await;
        five.all_vote().await;
        let ahead = an_hour_ahead();
        five.raise_floor(0, ahead);
        let mut token = tenure::Token(0);
        // A server that is slow for once is not among those that count.
        until("the largest token counts", async || {
            let guard = free_for(&locks, "name", "before and after its releases").await;
            token = guard.token();
            guard.release().await.unwrap();
            token.0 > ahead
        })
        .await;
        five.0[0].kill().unwrap();
        let next = free_for(&locks, "name", "after its release").await;
        assert!(next.token() > token, "{} follows {token}", next.token());
    });
}

#[test]
fn a_rotated_token_of_a_clock_that_is_ahead_is_known_to_the_others() {
    let Some(five) = Five::start() else { return };
    run("rotated", async {
        let locks = connect(&five.url()).await;
        let guard = locks.lock("name").ttl(LONG).renew_every(SECOND / 10).rotate_every(SECOND).await.unwrap();
        five.all_vote().await;
        let ahead = an_hour_ahead();
        five.raise_floor(0, ahead);
        until("the token rises", async || guard.token().0 > ahead).await;
        five.0[0].kill().unwrap();
        let token = guard.token();
        guard.release().await.unwrap();
        let next = free_for(&locks, "name", "after its release").await;
        assert!(next.token() > token, "{} follows {token}", next.token());
    });
}
