//! The command and everything below it is dead before the name passes to another, whatever happens to `tenure`.
#![cfg(target_os = "linux")]
#![allow(missing_docs, clippy::unwrap_used)]

use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};
use support::{Process, WORK, World, eventually, is_dead, parent};

mod support;

const TTL: &str = "2s";

/// The next holder: looks who of those before is still there, and reports its own token.
const LOOK: &str = r#"
    for pid in $(cat $DIR/pids); do grep -h ^State /proc/$pid/status; done 2>/dev/null | grep -v Z > $DIR/survivors
    echo $TENURE_TOKEN >> $DIR/tokens
"#;

/// The command itself, a grandchild, and one that left by a session of its own and a dead parent; all ignore SIGTERM.
const STUBBORN_FAMILY: &str = r#"
    trap '' TERM HUP INT
    echo $TENURE_TOKEN >> $DIR/tokens
    echo $$ >> $DIR/pids
    sh -c 'sh -c "echo \$\$ >> $DIR/pids; sleep 1000; :"; :' &
    (setsid sh -c 'echo $$ >> $DIR/pids; sleep 1000; :' &)
    while :; do sleep 0.05; done
"#;

fn start_family(world: &World) -> Process {
    let holder = world.start_run("job", TTL, STUBBORN_FAMILY);
    world.wait_for("pids", 3);
    holder
}

/// Runs the next holder, and checks what it found.
fn next_finds_nobody(world: &World) {
    let next = world.start_run("job", TTL, LOOK).said();
    assert_eq!(next.code, 0, "{next:?}");
    assert_eq!(world.read("survivors"), "", "somebody was alive when the next one ran");
    assert_eq!(world.lines("tokens").len(), 2);
}

/// The fence lets the newer token pass, and then refuses the older one.
fn fence_tells_them_apart(world: &World) {
    let tokens = world.lines("tokens");
    assert_eq!(world.run(&["fence", "report", &tokens[1]]).code, 0);
    let stale = world.run(&["fence", "report", &tokens[0]]);
    assert_eq!(stale.code, 1, "{stale:?}");
}

#[test]
fn a_killed_holder_takes_its_family_along_and_the_next_runs_when_the_term_is_over() {
    let world = World::new();
    let holder = start_family(&world);
    let begun = Instant::now();
    holder.signal(Signal::KILL);
    next_finds_nobody(&world);
    // The last renewal was at most a third of the TTL before the kill.
    assert!(begun.elapsed() > Duration::from_secs(1), "the name passed on too early");
    fence_tells_them_apart(&world);
}

#[test]
fn a_stopped_holder_finds_its_family_dead_its_name_lost_and_its_token_refused() {
    let world = World::new();
    let holder = start_family(&world);
    holder.signal(Signal::STOP);
    next_finds_nobody(&world);
    fence_tells_them_apart(&world);
    holder.signal(Signal::CONT);
    let said = holder.said();
    assert_eq!(said.code, 76, "{said:?}");
    assert!(said.err.starts_with("tenure: lost job (token "), "{said:?}");
}

#[test]
fn a_holder_killed_together_with_its_watchdog_takes_its_command_along() {
    let world = World::new();
    let holder = world.start_run("job", TTL, WORK);
    world.wait_for("tokens", 1);
    let watchdog = parent(world.pids()[0]);
    // Stopped first, so that it can't act when it sees its watchdog die.
    holder.signal(Signal::STOP);
    kill_process(watchdog, Signal::KILL).unwrap();
    holder.signal(Signal::KILL);
    next_finds_nobody(&world);
    fence_tells_them_apart(&world);
}

#[test]
fn a_holder_whose_watchdog_is_killed_ends_with_its_family() {
    let world = World::new();
    let holder = start_family(&world);
    kill_process(parent(world.pids()[0]), Signal::KILL).unwrap();
    let said = holder.said();
    assert_eq!(said.code, 76, "{said:?}");
    assert!(world.pids().into_iter().all(is_dead));
    next_finds_nobody(&world);
}

#[test]
fn what_the_command_leaves_behind_is_dead_before_the_name_is_released() {
    let world = World::new();
    let leave = "echo $TENURE_TOKEN >> $DIR/tokens
        (setsid sh -c 'trap \"\" TERM; echo $$ >> $DIR/pids; sleep 1000; :' &)
        while ! [ -s $DIR/pids ]; do sleep 0.01; done
        exit 5";
    let holder = world.start_run("job", "30s", leave);
    world.wait_for("pids", 1);
    assert!(!is_dead(world.pids()[0]));
    next_finds_nobody(&world);
    assert_eq!(holder.said().code, 5);
}

#[test]
fn a_holder_that_cannot_renew_is_ended_before_its_term_is() {
    let world = World::new();
    let holder = start_family(&world);
    // As if the disk were gone: neither the file nor a new one in its place can be had.
    std::fs::rename(world.db(), world.path("away.db")).unwrap();
    std::fs::create_dir(world.db()).unwrap();
    let said = holder.said();
    assert_eq!(said.code, 76, "{said:?}");
    assert!(said.err.starts_with("tenure: lost job") && said.err.contains("locks.db"), "{said:?}");
    assert_eq!(said.err.lines().count(), 1, "{said:?}");
    assert!(world.pids().into_iter().all(is_dead));
}

#[test]
fn a_store_that_is_deleted_while_in_use_is_a_loss() {
    let world = World::new();
    let holder = start_family(&world);
    for ending in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(world.path(&format!("locks.db{ending}")));
    }
    let said = holder.said();
    assert_eq!(said.code, 76, "{said:?}");
    let reasons = ["was deleted or replaced", "the store has forgotten it"];
    assert!(reasons.iter().any(|reason| said.err.contains(reason)), "{said:?}");
    eventually("all are dead", || world.pids().into_iter().all(is_dead));
}
