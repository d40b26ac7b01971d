//! `tenure lead`: who leads, what follows the end of its command, how it ends itself.
#![cfg(unix)]
#![allow(missing_docs, clippy::unwrap_used)]

use rustix::process::Signal;
use support::{Process, WORK, World, eventually, is_dead};

mod support;

/// Long enough that nobody loses a name by accident, and far longer than what happens at once takes.
const LONG: &str = "120s";

fn lead(world: &World, ttl: &str, script: &str) -> Process {
    world.start(&["lead", "x", "--ttl", ttl, "--", "sh", "-c", script])
}

fn tokens(world: &World) -> Vec<u64> {
    world.lines("tokens").iter().map(|token| token.parse().unwrap()).collect()
}

#[test]
fn the_command_is_started_again_after_it_ends() {
    let world = World::new();
    let leader = lead(&world, LONG, "echo $TENURE_TOKEN >> $DIR/tokens; exit 3");
    world.wait_for("tokens", 3);
    leader.signal(Signal::TERM);
    let said = leader.said();
    assert!(tokens(&world).is_sorted_by(|a, b| a < b), "{:?}", tokens(&world));
    assert!(said.err.contains("tenure: x: CMD ended with 3; campaigning again"), "{said:?}");
    assert!(said.code == 143 || said.code == 3, "{said:?}");
    assert_eq!(world.run(&["run", "x", "--try", "--", "true"]).code, 0, "the name is free");
}

#[test]
fn another_leads_at_once_when_the_leader_is_told_to_end() {
    let world = World::new();
    let first = lead(&world, LONG, WORK);
    world.wait_for("pids", 1);
    let mut second = lead(&world, LONG, WORK);
    assert_eq!(world.run(&["run", "x", "--try", "--", "true"]).code, 75);
    first.signal(Signal::TERM);
    world.wait_for("pids", 2);
    assert!(is_dead(world.pids()[0]), "two lead at a time");
    assert_eq!(first.said().code, 143);
    assert!(second.is_running());
    second.signal(Signal::INT);
    assert!(second.said().code > 128);
    assert!(world.pids().into_iter().all(is_dead));
    assert!(tokens(&world).is_sorted_by(|a, b| a < b));
    assert_eq!(world.run(&["run", "x", "--try", "--", "true"]).code, 0, "the name is free");
}

#[test]
fn another_leads_after_a_term_when_the_leader_is_killed() {
    let world = World::new();
    let first = lead(&world, "2s", WORK);
    world.wait_for("pids", 1);
    let _second = lead(&world, LONG, WORK);
    first.signal(Signal::KILL);
    world.wait_for("pids", 2);
    assert!(is_dead(world.pids()[0]), "two lead at a time");
    assert!(tokens(&world).is_sorted_by(|a, b| a < b));
}

#[test]
fn a_leader_that_loses_its_name_campaigns_again() {
    let world = World::new();
    let leader = lead(&world, "2s", WORK);
    world.wait_for("pids", 1);
    assert_eq!(world.run(&["evict", "x"]).code, 0);
    world.wait_for("pids", 2);
    assert!(is_dead(world.pids()[0]), "the work of a lost term goes on");
    eventually("it says so", || leader.err().contains("evicted by") && leader.err().contains("campaigning again"));
    leader.signal(Signal::TERM);
    assert_eq!(leader.said().code, 143);
}

#[test]
fn the_exit_code_is_the_commands_own_when_it_is_told_to_end() {
    let world = World::new();
    let script = format!("trap 'echo >> $DIR/hups' HUP; trap 'exit 0' TERM; {WORK}");
    let leader = lead(&world, LONG, &script);
    world.wait_for("pids", 1);
    leader.signal(Signal::HUP);
    world.wait_for("hups", 1);
    leader.signal(Signal::TERM);
    assert_eq!(leader.said().code, 0);
    assert_eq!(world.lines("pids").len(), 1, "started again");
}

#[test]
fn a_candidate_that_does_not_lead_ends_at_once() {
    let world = World::new();
    let _holder = world.start_run("x", LONG, WORK);
    world.wait_for("pids", 1);
    let candidate = world.start(&["--json", "lead", "x", "--", "touch", "led"]);
    eventually("it waits", || candidate.err().contains("\"waiting\""));
    candidate.signal(Signal::TERM);
    assert_eq!(candidate.said().code, 143);
    assert!(!world.path("led").exists());
}

#[test]
fn wrong_use_is_refused() {
    let world = World::new();
    for args in [
        &["lead", "x"][..],
        &["lead", "", "--", "true"],
        &["lead", "x", "--ttl", "1ms", "--", "true"],
        &["lead", "x", "--try", "--", "true"],
    ] {
        assert_eq!(world.run(args).code, 64, "{args:?}");
    }
}
