//! What the other commands show: `ls`, `show`, `evict`, `stats`, `prune`, `schema`, `doctor`, `completions`, `man`.
#![cfg(unix)]
#![allow(missing_docs, clippy::unwrap_used)]

use std::fs::OpenOptions;
use std::io::Read;
use std::time::Duration;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::json;
use support::{World, eventually, json_lines};
use tenure::{Guard, Locks, Name};

mod support;

const TTL: Duration = Duration::from_secs(60);

/// This test's own process as a holder.
fn connect(world: &World) -> Locks {
    tenure::connect(format!("sqlite:{}", world.db().display())).owner("me/1/x").blocking().unwrap()
}

fn hold(locks: &Locks, name: &str) -> Guard {
    locks.lock(name).ttl(TTL).blocking().unwrap()
}

#[test]
fn ls_lists_who_holds_what_in_aligned_columns() {
    let world = World::new();
    let locks = connect(&world);
    let plain = hold(&locks, "b/日本");
    let with_data = locks.lock("a").ttl(TTL).data(&json!({ "job": 7 })).blocking().unwrap();
    let said = world.run(&["ls"]);
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    let lines: Vec<Vec<_>> = said.out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["NAME", "OWNER", "TOKEN", "HELD", "LEFT", "DATA"]);
    assert_eq!((lines[1][0], lines[1][1], *lines[1].last().unwrap()), ("a", "me/1/x", "{\"job\":7}"));
    assert_eq!((lines[2][0], lines[2][2]), ("b/日本", plain.token().to_string().as_str()));
    let owners: Vec<_> = said.out.lines().map(|line| column_of(line, ["OWNER", "me/1/x"])).collect();
    assert!(owners.iter().all(|column| *column == owners[0]), "{owners:?}: {}", said.out);
    assert!(!said.out.contains('\x1b'), "no colour but on a terminal");
    drop(with_data);
}

/// Where a text begins on a line, on a screen: the names in these tests are twice as wide as they are long.
fn column_of(line: &str, texts: [&str; 2]) -> usize {
    let byte = texts.into_iter().find_map(|text| line.find(text)).unwrap();
    line[..byte].chars().map(|c| if c.is_ascii() { 1 } else { 2 }).sum()
}

#[test]
fn ls_lists_a_prefix_only_and_nothing_is_nothing() {
    let world = World::new();
    let locks = connect(&world);
    let _held = [hold(&locks, "a/1"), hold(&locks, "a/2"), hold(&locks, "ab"), hold(&locks, "b")];
    let names = |args: &[&str]| {
        let records = json_lines(&world.run(args).out);
        records.iter().map(|record| record["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&["ls", "--json"]), ["a/1", "a/2", "ab", "b"]);
    assert_eq!(names(&["ls", "a/", "--json"]), ["a/1", "a/2"]);
    assert_eq!(names(&["ls", "c", "--json"]).len(), 0);
    assert_eq!(world.run(&["ls", "c"]).out, "");
}

#[test]
fn ls_pages_through_more_names_than_fit_a_page() {
    let world = World::new();
    let locks = connect(&world);
    let names: Vec<_> = (0..2500).map(|number| format!("n/{number:04}")).collect();
    let _held: Vec<_> = names.iter().map(|name| hold(&locks, name)).collect();
    let said = world.run(&["ls"]);
    let listed: Vec<_> = said.out.lines().skip(1).map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(listed, names);
}

#[test]
fn ls_leaves_out_what_has_expired_unless_asked() {
    let world = World::new();
    // A real process that is killed, so that its name expires.
    let holder = world.start_run("old", "200ms", "echo ready >> $DIR/log; sleep 1000; :");
    world.wait_for("log", 1);
    drop(holder);
    eventually("it has expired", || world.run(&["ls"]).out.is_empty());
    let all = world.run(&["ls", "--all"]);
    assert!(all.out.contains("old") && all.out.contains("expired"), "{all:?}");
    let shown = world.run(&["show", "old"]);
    assert_eq!(shown.code, 1);
    assert!(shown.out.contains("state     expired"), "{shown:?}");
}

#[test]
fn what_others_wrote_cannot_command_the_terminal() {
    let world = World::new();
    let _guard = connect(&world).lock("x").data("\u{9b}31m\u{7f}").blocking().unwrap();
    for args in [&["ls"][..], &["show", "x"]] {
        let said = world.run(args);
        assert!(said.out.contains("\\u{9b}31m\\u{7f}"), "{said:?}");
    }
}

#[test]
fn colour_is_for_terminals_only_and_no_color_is_respected() {
    let world = World::new();
    let _guard = hold(&connect(&world), "x");
    assert!(on_terminal(&world, &["ls"], "").contains("\x1b[1mNAME"));
    let plain = on_terminal(&world, &["ls"], "1");
    assert!(plain.contains("NAME") && !plain.contains('\x1b'), "{plain:?}");
}

#[test]
fn on_a_terminal_a_waiter_says_once_what_it_waits_for() {
    let world = World::new();
    let _guard = hold(&connect(&world), "x");
    let screen = on_terminal(&world, &["run", "x", "--wait", "500ms", "--", "true"], "");
    assert_eq!(screen.matches("tenure: waiting for x, held by me/1/x since ").count(), 1, "{screen}");
    let quiet = world.run(&["run", "x", "--wait", "300ms", "--", "true"]);
    assert!(!quiet.err.contains("waiting"), "{quiet:?}");
}

/// What a command shows on a terminal.
fn on_terminal(world: &World, args: &[&str], no_color: &str) -> String {
    let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&screen).unwrap();
    unlockpt(&screen).unwrap();
    let path = ptsname(&screen, Vec::new()).unwrap().into_string().unwrap();
    let tty = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut command = world.tenure(args);
    let mut child = command.env("NO_COLOR", no_color).stdout(tty.try_clone().unwrap()).stderr(tty).spawn().unwrap();
    drop(command);
    child.wait().unwrap();
    let mut shown = Vec::new();
    // The end of a terminal is an error.
    let _ = std::fs::File::from(screen).read_to_end(&mut shown);
    String::from_utf8(shown).unwrap()
}

#[test]
fn show_shows_one_name_in_full() {
    let world = World::new();
    let locks = connect(&world);
    let guard = locks.lock("x").ttl(TTL).data(&json!([1, "two"])).blocking().unwrap();
    let said = world.run(&["show", "x"]);
    assert_eq!(said.code, 0);
    for part in
        ["name      x", "state     held", "owner     me/1/x", &guard.token().to_string(), "data      [1,\"two\"]"]
    {
        assert!(said.out.contains(part), "{part}: {said:?}");
    }
    let shown = &json_lines(&world.run(&["show", "x", "--json"]).out)[0];
    assert_eq!(
        (&shown["state"], &shown["token"], &shown["data"][1]),
        (&json!("held"), &json!(guard.token().0), &json!("two"))
    );
    assert!(shown["left_ms"].as_u64().unwrap() > 1000);
}

#[test]
fn show_says_1_if_nobody_holds_the_name() {
    let world = World::new();
    let _other = hold(&connect(&world), "xy");
    let said = world.run(&["show", "x"]);
    assert_eq!((said.code, said.out.as_str()), (1, "name      x\nstate     free\n"));
    let said = world.run(&["show", "x", "--json"]);
    assert_eq!((said.code, json_lines(&said.out)), (1, vec![json!({ "name": "x", "state": "free" })]));
}

#[test]
fn evict_frees_a_name_and_says_1_if_it_was_free() {
    let world = World::new();
    let locks = connect(&world);
    let guard = hold(&locks, "x");
    let said = world.run(&["evict", "x", "--json"]);
    let evicted = &json_lines(&said.out)[0];
    assert_eq!((said.code, &evicted["evicted"]["token"]), (0, &json!(guard.token().0)));
    assert!(evicted["by"].as_str().unwrap().starts_with("tester@"));
    assert_eq!(world.run(&["show", "x"]).code, 1);
    let said = world.run(&["evict", "x"]);
    assert_eq!((said.code, said.err.as_str()), (1, "tenure: x is free: there is nobody to evict\n"));
}

#[test]
fn stats_count_by_first_part_and_owner() {
    let world = World::new();
    let locks = connect(&world);
    let _held = [hold(&locks, "a/1"), hold(&locks, "a/2"), hold(&locks, "b")];
    let said = world.run(&["stats"]);
    for part in ["held          3", "expired       0", "2     a", "1     b", "3     me/1/x", "longest hold"] {
        assert!(said.out.contains(part), "{part}: {}", said.out);
    }
    let stats = &json_lines(&world.run(&["stats", "--json"]).out)[0];
    assert_eq!((&stats["held"], &stats["by_part"]), (&json!(3), &json!({ "a": 2, "b": 1 })));
    assert_eq!(stats["longest_held"], "a/1");
}

#[test]
fn prune_forgets_only_what_nobody_has_used() {
    let world = World::new();
    let locks = connect(&world);
    let _held = hold(&locks, "x");
    assert_eq!(world.run(&["prune"]).out, "forgot 0 names\n");
    assert_eq!(json_lines(&world.run(&["prune", "--idle", "1m", "--json"]).out), [json!({ "pruned": 0 })]);
}

#[test]
fn schema_prints_statements_without_touching_the_store() {
    let world = World::new();
    let said = world.run(&["schema"]);
    assert!(said.code == 0 && said.out.contains("create table if not exists \"tenure_locks\""), "{said:?}");
    let said = world.run(&["schema", "sqlite:other.db?tenure.table=mine", "--json"]);
    let schema = &json_lines(&said.out)[0];
    assert!(schema["store"] == "sqlite" && schema["schema"].as_str().unwrap().contains("\"mine\""), "{said:?}");
    assert!(!world.db().exists() && !world.path("other.db").exists());
}

#[test]
fn doctor_says_what_the_store_is_and_tries_it_out() {
    let world = World::new();
    let said = world.run(&["doctor"]);
    assert_eq!((said.code, said.err.as_str()), (0, ""), "{said:?}");
    for part in [
        "store       sqlite",
        "durability",
        "caveat",
        "fine        file: ",
        "latency     connect ",
        "renewal     works",
        "clock  ",
    ] {
        assert!(said.out.contains(part), "{part}: {}", said.out);
    }
    let found = &json_lines(&world.run(&["doctor", "--json"]).out)[0];
    assert_eq!((&found["store"], &found["push"], &found["renewed"]), (&json!("sqlite"), &json!(false), &json!(true)));
    assert!(found["clock_ahead_ms"].as_f64().unwrap().abs() < 60_000.0);
    assert_eq!(world.run(&["ls"]).out, "", "the probe's name was released");
}

#[test]
fn completions_and_man_pages_know_the_options() {
    let world = World::new();
    for shell in ["bash", "zsh", "fish"] {
        let said = world.run(&["completions", shell]);
        assert!(said.code == 0 && said.out.contains("busy-exit-code"), "{shell}");
    }
    assert!(world.run(&["man"]).out.contains("tenure\\-run(1)"));
    assert!(world.run(&["man", "run"]).out.contains("busy\\-exit\\-code"));
    assert_eq!(world.run(&["man", "fly"]).code, 64);
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let world = World::new();
    let locks = connect(&world);
    let _held: Vec<_> = (0..500).map(|number| hold(&locks, &format!("{number:0200}"))).collect();
    let script = "$TENURE ls | head -1 > /dev/null; $TENURE ls --json | head -1 > /dev/null; $TENURE man | true";
    let said = world.spawn(world.command("bash").args(["-c", &format!("set -o pipefail; {script}")])).said();
    assert_eq!((said.code, said.err.as_str()), (0, ""));
}

#[test]
fn names_of_255_bytes_are_shown_whole() {
    let world = World::new();
    let name = Name::new("é".repeat(127)).unwrap();
    let _guard = hold(&connect(&world), name.as_str());
    assert!(world.run(&["ls"]).out.contains(name.as_str()));
}
