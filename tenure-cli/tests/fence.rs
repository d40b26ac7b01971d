//! `tenure fence`: 0 and remember, or 1 if stale; with a command, check and act are one.
#![cfg(unix)]
#![allow(missing_docs, clippy::unwrap_used)]

use std::fs;
use std::time::Duration;

use rustix::process::Signal;
use support::{World, eventually, files, is_dead, json_lines};

mod support;

#[test]
fn an_older_token_is_refused_with_1_and_an_equal_one_passes() {
    let world = World::new();
    for (token, code) in [("7", 0), ("7", 0), ("6", 1), ("8", 0), ("7", 1), ("9007199254740991", 0)] {
        let said = world.run(&["fence", "report", token]);
        assert_eq!((said.code, said.out.as_str()), (code, ""), "{token}: {said:?}");
    }
    let said = world.run(&["fence", "report", "9"]);
    assert_eq!(said.err, "tenure: report: token 9 is stale: 9007199254740991 was seen\n");
    assert!(!world.db().exists(), "no store is needed");
}

#[test]
fn strict_refuses_equals_too() {
    let world = World::new();
    for (token, code) in [("7", 0), ("7", 1), ("8", 0)] {
        assert_eq!(world.run(&["fence", "report", token, "--strict"]).code, code);
    }
}

#[test]
fn resources_do_not_mix() {
    let world = World::new();
    let long = "Ü".repeat(127);
    for resource in ["a", "A", "a/b", "a%2fb", "..", ".", "../../etc", " ", "日本", &long] {
        assert_eq!(world.run(&["fence", resource, "5"]).code, 0, "{resource}");
        assert_eq!(world.run(&["fence", resource, "4"]).code, 1, "{resource}");
    }
    let state = world.path("home/.local/state/tenure/fences");
    let outside = files(&world.path("")).into_iter().filter(|path| path.to_string_lossy().contains(".token"));
    assert!(outside.clone().count() == 10 && outside.clone().all(|path| path.starts_with(&state)), "{outside:?}");
}

#[test]
fn the_folder_is_made_where_it_is_said_to_be() {
    let world = World::new();
    for folder in ["here", "here/there", "."] {
        assert_eq!(world.run(&["fence", "r", "5", "--dir", folder]).code, 0, "{folder}");
        assert_eq!(world.run(&["fence", "r", "4", "--dir", folder]).code, 1, "{folder}");
        assert_eq!(world.read(&format!("{folder}/r.token")), "5\n");
    }
}

#[test]
fn a_stale_token_does_not_act() {
    let world = World::new();
    assert_eq!(world.run(&["fence", "r", "7", "--", "touch", "acted"]).code, 0);
    assert!(world.path("acted").exists());
    assert_eq!(world.run(&["fence", "r", "6", "--", "touch", "stale"]).code, 1);
    assert!(!world.path("stale").exists());
}

#[test]
fn one_never_means_anything_but_stale() {
    let world = World::new();
    let code = |token: &str, command: &[&str]| world.run(&[&["fence", "r", token, "--"], command].concat()).code;
    assert_eq!(code("7", &["sh", "-c", "exit 1"]), 123);
    assert_eq!(code("7", &["sh", "-c", "exit 2"]), 2);
    assert_eq!(code("7", &["sh", "-c", "kill -9 $$"]), 137);
    assert_eq!(code("7", &["no-such-command"]), 127);
    assert_eq!(code("7", &["/dev/null"]), 126);
    assert_eq!(world.run(&["fence", "r", "many"]).code, 64);
    assert_eq!(world.run(&["fence", "", "7"]).code, 64);
    assert_eq!(world.run(&["fence", "r", "7", "--dir", "/dev/null/x"]).code, 69);
    assert_eq!(code("6", &["sh", "-c", "exit 1"]), 1);
}

#[test]
fn a_damaged_fence_lets_nobody_pass() {
    let world = World::new();
    let fence = |token: &str| world.run(&["fence", "r", token, "--dir", "fences", "--", "touch", "acted"]);
    for damage in ["", "7", "seven\n", "\0\0\0"] {
        fs::create_dir_all(world.path("fences")).unwrap();
        fs::write(world.path("fences/r.token"), damage).unwrap();
        let said = fence("9");
        assert_eq!(said.code, 69, "{damage:?}: {said:?}");
        assert!(said.err.contains("r.token is damaged"), "{said:?}");
        assert!(!world.path("acted").exists());
    }
    fs::write(world.path("fences/r.token"), "7\n").unwrap();
    assert_eq!(fence("9").code, 0);
}

#[test]
fn a_token_is_remembered_before_the_command_runs() {
    let world = World::new();
    let act = world.start(&["fence", "r", "7", "--", "sh", "-c", "echo $$ >> $DIR/pids; exec sleep 1000"]);
    world.wait_for("pids", 1);
    assert_eq!(world.read("home/.local/state/tenure/fences/r.token"), "7\n");
    act.signal(Signal::TERM);
    assert_eq!(act.said().code, 143, "the signal was passed on");
    eventually("the command is dead", || world.pids().into_iter().all(is_dead));
    assert_eq!(world.run(&["fence", "r", "6"]).code, 1);
}

#[test]
fn at_once_they_pass_one_by_one_and_in_order() {
    let world = World::new();
    let act = "echo begin $0 >> $DIR/log; sleep 0.05; echo end $0 >> $DIR/log";
    let acts: Vec<_> = (1..=12)
        .map(|token: u32| {
            let token = token.to_string();
            world.start(&["fence", "r", &token, "--", "sh", "-c", act, &token])
        })
        .collect();
    let codes: Vec<_> = acts.into_iter().map(|act| act.said().code).collect();
    assert!(codes.iter().all(|code| *code == 0 || *code == 1), "{codes:?}");
    let log = world.lines("log");
    let passed: Vec<u32> = log.chunks(2).map(|act| acted(&act[0], &act[1])).collect();
    assert!(passed.is_sorted(), "{passed:?}");
    assert_eq!(passed.len(), codes.iter().filter(|code| **code == 0).count());
    assert_eq!(passed.last(), Some(&12));
}

fn acted(begin: &str, end: &str) -> u32 {
    let token = begin.strip_prefix("begin ").unwrap();
    assert_eq!(end.strip_prefix("end "), Some(token), "two acted at once");
    token.parse().unwrap()
}

#[test]
fn the_fence_stays_locked_while_the_command_lives_even_if_tenure_is_killed() {
    let world = World::new();
    let script = "echo $$ >> $DIR/pids; sleep 1; echo first >> $DIR/log";
    let act = world.start(&["fence", "r", "7", "--", "sh", "-c", script]);
    world.wait_for("pids", 1);
    act.signal(Signal::KILL);
    assert_eq!(world.run(&["fence", "r", "8", "--", "sh", "-c", "echo second >> $DIR/log"]).code, 0);
    assert_eq!(world.lines("log"), ["first", "second"]);
}

#[test]
fn those_who_wait_at_a_fence_can_be_interrupted() {
    let world = World::new();
    let act = world.start(&["fence", "r", "7", "--", "sh", "-c", "echo $$ >> $DIR/pids; exec sleep 1000"]);
    world.wait_for("pids", 1);
    let mut waiter = world.start(&["fence", "r", "8"]);
    std::thread::sleep(Duration::from_millis(200));
    assert!(waiter.is_running());
    waiter.signal(Signal::INT);
    assert_eq!(waiter.said().code, -1, "killed by the signal");
    drop(act);
}

#[test]
fn json_says_that_it_passed_or_why_not() {
    let world = World::new();
    let passed = json_lines(&world.run(&["fence", "r", "7", "--json"]).out);
    assert_eq!(passed, [serde_json::json!({ "resource": "r", "token": 7, "passed": true })]);
    let refused = json_lines(&world.run(&["fence", "r", "6", "--json"]).err);
    assert_eq!(refused, [serde_json::json!({ "error": "r: token 6 is stale: 7 was seen", "exit": 1 })]);
}
