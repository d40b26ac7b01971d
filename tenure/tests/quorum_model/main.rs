//! A model of the quorum's rule, searched for schedules that break a promise: three nodes whose clocks differ, two clients,
//! messages that arrive late, in any order or never, pauses, nodes that lose their data.
//!
//! With the whole rule nothing is found. Each other test leaves a part of the rule out, and the search has to find what
//! that part is for: a model that can't be broken shows nothing.

mod client;
mod node;
mod world;

use stateright::{Checker, HasDiscoveries, Model};

use world::{Limits, Rule, SecondRound, World};

/// Searches everything within the limits. What is to be shown must be able to happen there.
fn assert_holds(limits: Limits) {
    let checker = world(Rule::whole(), limits).checker().threads(2).spawn_bfs().join();
    println!("{} states, {} of them different", checker.state_count(), checker.unique_state_count());
    for promise in world::PROMISES {
        checker.assert_no_discovery(promise);
    }
    for example in world::EXAMPLES.iter().filter(|example| limits.allow(example)) {
        checker.assert_any_discovery(example);
    }
}

/// Searches until a schedule is found that breaks the promise, and prints it.
fn assert_breaks(rule: Rule, limits: Limits, promise: &'static str) {
    let found = HasDiscoveries::AllOf([promise].into());
    let checker = world(rule, limits).checker().finish_when(found).spawn_dfs().join();
    println!("{:#?}", checker.assert_any_discovery(promise).into_actions());
}

fn world(rule: Rule, limits: Limits) -> World {
    World { rule: Rule { ttl: limits.ttl, ..rule }, limits }
}

#[test]
fn the_whole_rule_holds_when_messages_are_late_and_clients_pause() {
    assert_holds(Limits::late());
}

#[test]
fn the_whole_rule_holds_while_terms_are_renewed() {
    assert_holds(Limits::renewing());
}

#[test]
fn the_whole_rule_holds_while_tokens_rotate() {
    assert_holds(Limits::rotating());
}

#[test]
fn the_whole_rule_holds_when_nodes_lose_their_data() {
    assert_holds(Limits::losing());
}

#[test]
fn without_the_second_round_tokens_fall() {
    assert_breaks(Rule { second_round: SecondRound::LeftOut, ..Rule::whole() }, Limits::pausing(), world::TOKENS);
}

#[test]
fn with_an_unconditional_second_round_tokens_fall() {
    assert_breaks(
        Rule { second_round: SecondRound::Unconditional, ..Rule::whole() },
        Limits::overwriting(),
        world::TOKENS,
    );
}

#[test]
fn with_time_taken_before_the_second_round_two_hold() {
    assert_breaks(Rule { timed_after: false, ..Rule::whole() }, Limits::pausing(), world::EXCLUSION);
}

#[test]
fn with_one_round_of_rotation_tokens_fall() {
    assert_breaks(Rule { rotates_twice: false, ..Rule::whole() }, Limits::rotating(), world::TOKENS);
}

#[test]
fn with_a_vote_right_after_the_loss_two_hold() {
    assert_breaks(Rule { waits: false, ..Rule::whole() }, Limits::losing(), world::EXCLUSION);
}

#[test]
fn with_a_restart_that_goes_unnoticed_two_hold() {
    assert_breaks(Rule { notices_restart: false, ..Rule::whole() }, Limits::losing(), world::EXCLUSION);
}

#[test]
fn without_the_floor_of_the_others_tokens_fall() {
    assert_breaks(Rule { copies_floor: false, ..Rule::whole() }, Limits::losing(), world::TOKENS);
}

#[test]
fn with_the_floor_copied_before_the_wait_tokens_fall() {
    assert_breaks(Rule { copies_after_wait: false, ..Rule::whole() }, Limits::losing(), world::TOKENS);
}
