//! Servers that come back without their data, or with old data.

use std::time::Instant;

use super::five::{Five, an_hour_ahead};
use super::support::{SECOND, assert_is_transient, connect, free_for, hold, is_closed_to, renewed, run, soon, until};

/// The longest that anybody closes a name for in these tests.
const TTL: std::time::Duration = std::time::Duration::from_secs(3);

#[test]
fn a_held_name_lives_on_when_one_and_two_of_five_are_emptied() {
    let Some(five) = Five::start() else { return };
    run("emptied", async {
        let (locks, other) = (connect(&five.url()).await, connect(&five.url()).await);
        (0..5).for_each(|server| five.raise_floor(server, an_hour_ahead()));
        let guard = hold(&locks, "held", TTL).await;
        let first = guard.token();
        for server in [0, 3] {
            five.0[server].restart_empty().unwrap();
            renewed(&locks, "held").await;
            assert!(!is_granted(&other, "held").await, "granted to another");
        }
        until("the servers vote again", async || five.votes(0) && five.votes(3)).await;
        five.renew([0, 3], "held").await;
        five.0[1].kill().unwrap();
        five.0[2].kill().unwrap();
        renewed(&locks, "held").await;
        assert_eq!(guard.token(), first);
        assert!(!is_granted(&other, "held").await, "granted to another");
        guard.release().await.unwrap();
        // Two of the three that are left had lost all tokens.
        let next = soon("free", other.lock("held").ttl(TTL)).await.unwrap();
        assert!(next.token() > first, "{} follows {first}", next.token());
    });
}

/// The token is known to three. Two of them lose it, and vote again with what the third has told them; then it is gone.
#[test]
fn tokens_rise_though_most_that_knew_the_last_one_were_emptied() {
    let Some(five) = Five::start() else { return };
    run("floor", async {
        let locks = connect(&five.url()).await;
        five.all_vote().await;
        five.0[1].pause().unwrap();
        five.0[2].pause().unwrap();
        five.raise_floor(0, an_hour_ahead());
        let guard = soon("free", locks.lock("name").ttl(TTL)).await.unwrap();
        let token = guard.token();
        guard.release().await.unwrap();
        five.0[1].resume().unwrap();
        five.0[2].resume().unwrap();
        five.0[0].restart_empty().unwrap();
        five.0[3].restart_empty().unwrap();
        drop(soon("free", locks.lock("other").ttl(TTL)).await.unwrap());
        until("the servers vote again", async || five.votes(0) && five.votes(3)).await;
        five.0[4].kill().unwrap();
        let next = soon("free", locks.lock("name").ttl(TTL)).await.unwrap();
        assert!(next.token() > token, "{} follows {token}", next.token());
    });
}

#[test]
fn an_emptied_server_does_not_vote_before_the_longest_term_is_over() {
    let Some(five) = Five::start() else { return };
    run("no vote", async {
        let locks = connect(&five.url()).await;
        soon("free", locks.lock("name").ttl(TTL)).await.unwrap().release().await.unwrap();
        let emptied = Instant::now();
        five.0[0].restart_empty().unwrap();
        five.0[1].restart_empty().unwrap();
        five.0[2].pause().unwrap();
        let error = soon("an answer", locks.lock("name").ttl(TTL).wait(SECOND)).await.unwrap_err();
        assert_is_transient(&error);
        assert!(error.to_string().contains("has no vote"), "{error}");
        five.0[2].resume().unwrap();
        drop(soon("free", locks.lock("name").ttl(TTL)).await.unwrap());
        until("the servers vote again", async || five.votes(0) && five.votes(1)).await;
        assert!(emptied.elapsed() >= TTL, "they vote after {:?}", emptied.elapsed());
        five.0[2].pause().unwrap();
        drop(soon("free", locks.lock("name").ttl(TTL)).await.unwrap());
    });
}

/// A restart is noticed whatever was saved: the last moments may be missing.
#[test]
fn a_restarted_server_has_no_vote_though_it_has_kept_its_marker() {
    let Some(five) = Five::start() else { return };
    run("restarted", async {
        let locks = connect(&five.url()).await;
        let guard = hold(&locks, "held", TTL).await;
        five.all_vote().await;
        let restarted = Instant::now();
        five.0[4].kill().unwrap();
        five.0[4].restart().unwrap();
        until("it is greeted", async || !five.votes(4)).await;
        until("it votes again", async || five.votes(4)).await;
        assert!(restarted.elapsed() >= TTL, "it votes after {:?}", restarted.elapsed());
        assert!(guard.is_held());
    });
}

#[test]
fn emptied_in_the_middle_of_their_run_servers_have_no_vote_either() {
    let Some(five) = Five::start() else { return };
    run("flushed", async {
        let (locks, other) = (connect(&five.url()).await, connect(&five.url()).await);
        let guard = hold(&locks, "held", TTL).await;
        five.all_vote().await;
        let flushed = Instant::now();
        for server in [1, 2] {
            redis::cmd("FLUSHALL").exec(&mut five.raw(server)).unwrap();
        }
        assert!(!is_granted(&other, "held").await, "granted to another");
        until("they vote again", async || five.votes(1) && five.votes(2)).await;
        assert!(flushed.elapsed() >= TTL, "they vote after {:?}", flushed.elapsed());
        five.renew([1, 2], "held").await;
        assert!(guard.is_held() && is_closed_to(&other, "held").await);
    });
}

/// Then the terms are lost, and their holders told; the clocks keep the tokens in order.
#[test]
fn an_emptied_majority_is_told_and_begins_anew() {
    let Some(five) = Five::start() else { return };
    run("majority", async {
        let locks = connect(&five.url()).await;
        let guard = hold(&locks, "held", TTL).await;
        let emptied = Instant::now();
        for server in [0, 1, 2] {
            five.0[server].restart_empty().unwrap();
        }
        soon("the loss is told", guard.lost()).await;
        let next = free_for(&locks, "held", "when the servers vote again").await;
        assert!(next.token() > guard.token(), "{} follows {}", next.token(), guard.token());
        assert!(emptied.elapsed() >= TTL, "granted after {:?}", emptied.elapsed());
    });
}

/// Whether somebody gets it at once, or after some time in which nobody could say.
async fn is_granted(locks: &tenure::Locks, name: &str) -> bool {
    soon("an answer", locks.lock(name).ttl(TTL).wait(SECOND / 2)).await.is_ok()
}
