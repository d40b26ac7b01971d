//! `tenure run`: who gets the name, what the command sees, how it ends.
#![cfg(unix)]
#![allow(missing_docs, clippy::unwrap_used)]

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use support::{WORK, World, eventually, is_dead, json_lines};

mod support;

/// Long enough that nobody loses a name by accident.
const LONG: &str = "30s";

#[test]
fn the_command_is_told_name_token_and_owner() {
    let world = World::new();
    let said = world.run(&["run", "a/b", "--", "sh", "-c", "echo $TENURE_NAME $TENURE_TOKEN $TENURE_OWNER"]);
    let words: Vec<_> = said.out.split_whitespace().collect();
    assert_eq!((said.code, words[0], said.err.as_str()), (0, "a/b", ""));
    assert!(words[1].parse::<u64>().unwrap() > 1_600_000_000_000_000);
    assert_eq!(words[2].split('/').count(), 3, "host/pid/random");
}

#[test]
fn each_run_has_a_larger_token() {
    let world = World::new();
    let token = || world.run(&["run", "x", "--", "sh", "-c", "echo $TENURE_TOKEN"]).out.trim().parse::<u64>().unwrap();
    let (first, second, third) = (token(), token(), token());
    assert!(first < second && second < third);
}

#[test]
fn input_and_output_are_the_commands() {
    let world = World::new();
    let mut command = world.tenure(&["run", "x", "--", "sh", "-c", "cat; echo oops >&2"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"some input").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"some input"[..], &b"oops\n"[..]));
}

#[test]
fn two_at_once_take_turns() {
    let world = World::new();
    let script = "echo begin >> $DIR/log; sleep 0.3; echo end >> $DIR/log";
    let runs: Vec<_> = (0..4).map(|_| world.start_run("x", LONG, script)).collect();
    for run in runs {
        assert_eq!(run.said().code, 0);
    }
    assert_eq!(world.lines("log"), ["begin", "end"].repeat(4));
}

#[test]
fn other_names_do_not_wait() {
    let world = World::new();
    let _holder = world.start_run("x", LONG, WORK);
    world.wait_for("pids", 1);
    assert_eq!(world.run(&["run", "X", "--try", "--", "true"]).code, 0);
}

#[test]
fn try_is_refused_with_75_and_says_who_holds() {
    let world = World::new();
    let holder = world.start_run("x", LONG, WORK);
    world.wait_for("pids", 1);
    let said = world.run(&["run", "x", "--try", "--", "touch", "ran"]);
    assert_eq!((said.code, said.out.as_str()), (75, ""));
    assert!(
        said.err.starts_with("tenure: x is held by ") && said.err.contains(&format!("/{}/", holder.pid())),
        "{said:?}"
    );
    assert!(!world.path("ran").exists());
}

#[test]
fn busy_has_the_exit_code_of_choice() {
    let world = World::new();
    let _holder = world.start_run("x", LONG, WORK);
    world.wait_for("pids", 1);
    let said = world.run(&["run", "x", "--try", "--busy-exit-code", "9", "--", "true"]);
    assert_eq!(said.code, 9);
    let said = world.run(&["run", "x", "--try", "--busy-exit-code", "0", "--", "touch", "ran"]);
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    assert!(!world.path("ran").exists());
}

#[test]
fn a_wait_ends_with_75() {
    let world = World::new();
    let mut holder = world.start_run("x", LONG, WORK);
    world.wait_for("pids", 1);
    let begun = Instant::now();
    let said = world.run(&["run", "x", "--wait", "700ms", "--", "true"]);
    assert_eq!(said.code, 75, "{said:?}");
    assert!(begun.elapsed() >= Duration::from_millis(700));
    assert!(holder.is_running());
}

#[test]
fn a_signal_ends_the_wait_and_leaves_nothing() {
    let world = World::new();
    let holder = world.start_run("x", LONG, WORK);
    world.wait_for("pids", 1);
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        let waiter = world.start(&["run", "x", "-v", "--", "touch", "ran"]);
        eventually("it waits", || waiter.err().contains("waiting for x"));
        waiter.signal(signal);
        assert_eq!(waiter.said().code, code);
    }
    holder.signal(Signal::TERM);
    assert_eq!(holder.said().code, 143);
    assert_eq!(world.run(&["run", "x", "--try", "--", "true"]).code, 0, "nobody is left in the way");
    assert!(!world.path("ran").exists());
}

#[test]
fn the_exit_code_is_the_commands() {
    let world = World::new();
    fs::write(world.path("plain"), "no program").unwrap();
    fs::set_permissions(world.path("plain"), fs::Permissions::from_mode(0o644)).unwrap();
    let plain = world.path("plain");
    let cases: [(&[&str], i32); 6] = [
        (&["true"], 0),
        (&["sh", "-c", "exit 1"], 1),
        (&["sh", "-c", "exit 75"], 75),
        (&["sh", "-c", "kill -9 $$"], 137),
        (&[plain.to_str().unwrap()], 126),
        (&["no-such-command"], 127),
    ];
    for (command, code) in cases {
        let said = world.run(&[&["run", "x", "--"], command].concat());
        assert_eq!(said.code, code, "{command:?}: {said:?}");
        assert_eq!(said.err.lines().count(), usize::from(code == 126 || code == 127), "{said:?}");
    }
}

#[test]
fn signals_are_passed_on() {
    let world = World::new();
    let signals = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::USR1, Signal::USR2, Signal::WINCH, Signal::CONT];
    let traps =
        "for s in HUP INT QUIT USR1 USR2 WINCH CONT; do trap \"echo $s >> $DIR/got\" $s; done; trap 'exit 9' TERM;";
    let run = world.start_run("x", LONG, &format!("{traps} {WORK}"));
    world.wait_for("pids", 1);
    for (sent, signal) in signals.into_iter().enumerate() {
        run.signal(signal);
        world.wait_for("got", sent + 1);
    }
    assert_eq!(world.lines("got"), ["HUP", "INT", "QUIT", "USR1", "USR2", "WINCH", "CONT"]);
    run.signal(Signal::TERM);
    assert_eq!(run.said().code, 9);
}

#[test]
fn a_signal_that_was_ignored_stays_so() {
    let world = World::new();
    let nohup = format!("trap '' HUP; exec $TENURE run x -- sh -c '{WORK}'");
    let mut run = world.spawn(world.command("sh").args(["-c", &nohup]));
    world.wait_for("pids", 1);
    run.signal(Signal::HUP);
    std::thread::sleep(Duration::from_millis(300));
    assert!(run.is_running() && !is_dead(world.pids()[0]));
}

#[test]
fn an_evicted_holder_is_told_and_its_command_killed_at_once() {
    let world = World::new();
    let run = world.start_run("x", "2s", &format!("trap 'echo TERM >> $DIR/got' TERM; {WORK}"));
    world.wait_for("pids", 1);
    let evicted = world.run(&["evict", "x", "--why", "it hangs"]);
    assert_eq!(evicted.code, 0, "{evicted:?}");
    let said = run.said();
    assert_eq!(said.code, 76);
    assert!(said.err.starts_with("tenure: lost x (token ") && said.err.contains("evicted by tester@"), "{said:?}");
    assert!(said.err.trim_end().ends_with(": it hangs"), "{said:?}");
    assert_eq!(world.read("got"), "", "no time for a SIGTERM: the name may be another's by now");
    assert!(is_dead(world.pids()[0]));
}

#[test]
fn a_holder_evicted_between_its_last_renewal_and_its_end_is_told_too() {
    let world = World::new();
    // Renewed every 10 s: the command is done long before.
    let said = world.start_run("x", LONG, "$TENURE evict x --why 'too late' > $DIR/log; exit 0").said();
    assert_eq!(said.code, 76, "{said:?}");
    assert!(said.err.contains("too late"), "{said:?}");
}

#[test]
fn max_hold_ends_the_command_and_frees_the_name() {
    let world = World::new();
    let script = format!("trap 'echo TERM >> $DIR/got; exit 0' TERM; {WORK}");
    // With such a TTL nothing else would end it in time.
    let run = world.start(&["run", "x", "--ttl", "10m", "--max-hold", "500ms", "--", "sh", "-c", &script]);
    let said = run.said();
    assert_eq!(said.code, 76, "{said:?}");
    assert!(said.err.contains("held longer than max_hold"), "{said:?}");
    assert_eq!(world.lines("got"), ["TERM"]);
    assert!(is_dead(world.pids()[0]));
    assert_eq!(world.run(&["run", "x", "--try", "--", "true"]).code, 0, "free long before the TTL is over");
}

#[test]
fn a_name_is_renewed_for_as_long_as_the_command_runs() {
    let world = World::new();
    let mut run = world.start_run("x", "2s", WORK);
    world.wait_for("pids", 1);
    std::thread::sleep(Duration::from_secs(5));
    assert!(run.is_running());
    assert_eq!(world.run(&["run", "x", "--try", "--", "true"]).code, 75);
    run.signal(Signal::TERM);
    assert_eq!(run.said().code, 143);
}

#[test]
fn json_tells_what_happens_on_standard_error() {
    let world = World::new();
    let said = world.run(&["--json", "run", "x", "--", "echo", "hi"]);
    let events = json_lines(&said.err);
    assert_eq!((said.code, said.out.as_str(), events.len()), (0, "hi\n", 2));
    assert_eq!((&events[0]["event"], &events[1]["event"]), (&"acquired".into(), &"released".into()));
    assert_eq!(events[0]["name"], "x");
    assert_eq!(events[0]["token"], events[1]["token"]);

    let holder = world.start_run("x", LONG, WORK);
    world.wait_for("pids", 1);
    let said = world.run(&["--json", "run", "x", "--wait", "300ms", "--", "true"]);
    let events = json_lines(&said.err);
    assert_eq!((said.code, &events[0]["event"], &events[0]["name"]), (75, &"waiting".into(), &"x".into()));
    assert_eq!(events[1]["exit"], 75);
    assert!(events[1]["error"].as_str().unwrap().contains("is held by"));
    drop(holder);
}

#[test]
fn data_and_grace_are_in_the_record() {
    let world = World::new();
    let data = r#"{"b": [1, 12345678901234567890123], "a": null}"#;
    let _holder = world.start(&["run", "x", "--grace", "5s", "--data", data, "--", "sh", "-c", WORK]);
    world.wait_for("pids", 1);
    let shown = world.run(&["show", "x", "--json"]).out;
    assert!(shown.contains(r#""grace_ms":5000,"data":{"b":[1,12345678901234567890123],"a":null}}"#), "{shown}");
}

#[test]
fn a_release_that_fails_is_said_and_changes_no_exit_code() {
    let world = World::new();
    let script = "mv $DIR/locks.db $DIR/away.db; mkdir $DIR/locks.db; exit 4";
    let said = world.start_run("x", "2s", script).said();
    assert_eq!(said.code, 4, "{said:?}");
    assert!(
        said.err.starts_with("tenure: x was not released, and stays held until its term ends: sqlite: "),
        "{said:?}"
    );
}

#[test]
fn the_default_store_is_in_the_state_folder() {
    let world = World::new();
    let run = |variable: &str| {
        let mut command = world.tenure(&["run", "x", "--", "true"]);
        command.env("TENURE_STORE", "").env("XDG_STATE_HOME", variable);
        world.spawn(&mut command).said().code
    };
    assert_eq!(run("relative/is/ignored"), 0);
    assert!(world.path("home/.local/state/tenure/locks.db").exists());
    assert_eq!(run(world.path("my state 100%?").to_str().unwrap()), 0);
    assert!(world.path("my state 100%?/tenure/locks.db").exists());
}
