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

/// What the search found, of the promises.
fn broken(rule: Rule, limits: Limits) -> Vec<String> {
    let first = HasDiscoveries::AnyFailures;
    let begun = std::time::Instant::now();
    let checker = World { rule: Rule { ttl: limits.ttl, ..rule }, limits }
        .checker()
        .timeout(std::time::Duration::from_secs(45))
        .threads(2)
        .finish_when(first)
        .spawn_bfs()
        .join();
    println!("{:?}", begun.elapsed());
    println!("{} states, of which {} are different", checker.state_count(), checker.unique_state_count());
    let mut found = Vec::new();
    for (property, path) in checker.discoveries() {
        if world::PROMISES.contains(&property) {
            println!("{property}, broken by:\n{:#?}", path.into_actions());
            found.push(property.to_owned());
        }
    }
    for example in world::EXAMPLES.iter().filter(|_| found.is_empty()) {
        assert!(checker.discovery(example).is_some() || !limits.allow(example), "never seen: {example}");
    }
    found.sort();
    found
}

fn assert_found(rule: Rule, limits: Limits, promise: &str) {
    let found = broken(rule, limits);
    assert!(found.iter().any(|broken| broken == promise), "not found: {promise}; found: {found:?}");
}

#[test]
fn the_whole_rule_holds_when_messages_are_late_and_clients_pause() {
    assert_eq!(broken(Rule::whole(), Limits::late()), [""; 0]);
}

#[test]
fn the_whole_rule_holds_while_terms_are_renewed_and_rotated() {
    assert_eq!(broken(Rule::whole(), Limits::renewing()), [""; 0]);
}

#[test]
fn the_whole_rule_holds_when_nodes_lose_their_data() {
    assert_eq!(broken(Rule::whole(), Limits::losing()), [""; 0]);
}

#[test]
fn without_the_second_round_tokens_fall() {
    assert_found(Rule { second_round: SecondRound::LeftOut, ..Rule::whole() }, Limits::late(), world::TOKENS);
}

#[test]
fn with_an_unconditional_second_round_tokens_fall() {
    assert_found(
        Rule { second_round: SecondRound::Unconditional, ..Rule::whole() },
        Limits::overwriting(),
        world::TOKENS,
    );
}

#[test]
fn with_time_taken_before_the_second_round_two_hold() {
    assert_found(Rule { timed_after: false, ..Rule::whole() }, Limits::late(), world::EXCLUSION);
}

#[test]
fn with_one_round_of_rotation_tokens_fall() {
    assert_found(Rule { rotates_twice: false, ..Rule::whole() }, Limits::renewing(), world::TOKENS);
}

#[test]
fn with_a_vote_right_after_the_loss_two_hold() {
    assert_found(Rule { waits: false, ..Rule::whole() }, Limits::losing(), world::EXCLUSION);
}

#[test]
fn with_a_restart_that_goes_unnoticed_two_hold() {
    assert_found(Rule { notices_restart: false, ..Rule::whole() }, Limits::losing(), world::EXCLUSION);
}

#[test]
fn without_the_floor_of_the_others_tokens_fall() {
    assert_found(Rule { copies_floor: false, ..Rule::whole() }, Limits::losing(), world::TOKENS);
}

#[test]
fn with_the_floor_copied_before_the_wait_tokens_fall() {
    assert_found(Rule { copies_after_wait: false, ..Rule::whole() }, Limits::losing(), world::TOKENS);
}
