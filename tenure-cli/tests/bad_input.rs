//! Wrong use is refused with 64, and a store that can't be had with 69, in one line; nothing is written.
#![cfg(unix)]
#![allow(missing_docs, clippy::unwrap_used)]

use std::fs;

use support::{Said, World, files};

mod support;

/// Nothing but what the test itself wrote down about the command.
fn assert_nothing_written(world: &World) {
    let written: Vec<_> = files(&world.path("")).into_iter().filter(|path| !is_output(path)).collect();
    assert!(written.is_empty(), "{written:?}");
}

fn is_output(path: &std::path::Path) -> bool {
    path.extension().is_some_and(|ending| ending == "out" || ending == "err")
}

fn assert_line(said: &Said, code: i32, parts: &[&str]) {
    assert_eq!((said.code, said.out.as_str()), (code, ""), "{said:?}");
    assert!(said.err.starts_with("tenure: ") && said.err.lines().count() == 1, "one line: {said:?}");
    for part in parts {
        assert!(said.err.contains(part), "{part:?} is not in {said:?}");
    }
}

fn assert_refused(args: &[&str], parts: &[&str]) {
    let world = World::new();
    assert_line(&world.run(args), 64, parts);
    assert_nothing_written(&world);
}

#[test]
fn names_outside_the_rule() {
    let long = "x".repeat(256);
    for (name, why) in
        [("", "empty"), (long.as_str(), "256 bytes"), ("a\nb", "control character"), ("a\u{9b}b", "control")]
    {
        for command in ["run", "show", "evict"] {
            let end: &[&str] = if command == "run" { &["--", "touch", "ran"] } else { &[] };
            assert_refused(&[&[command, name], end].concat(), &["<NAME>", why]);
        }
        assert_refused(&["fence", name, "7"], &["<RESOURCE>", why]);
    }
}

#[test]
fn durations_outside_the_rule() {
    for (option, value, why) in [
        ("--ttl", "0s", "100ms to 24h"),
        ("--ttl", "99ms", "100ms to 24h"),
        ("--ttl", "25h", "100ms to 24h"),
        ("--ttl", "5", "500ms, 30s, 5m or 24h"),
        ("--ttl", "soon", "500ms, 30s, 5m or 24h"),
        ("--wait", "", "500ms, 30s, 5m or 24h"),
        ("--wait", "2years", "at most a year"),
        ("--grace", "x", "500ms"),
        ("--max-hold", "0s", "at least 1ms"),
    ] {
        assert_refused(&["run", "x", option, value, "--", "touch", "ran"], &[option, value, why]);
    }
    assert_refused(&["prune", "--idle", "x"], &["--idle", "'x'"]);
    assert_refused(&["prune", "--idle", "59s"], &["--idle", "59s", "at least 1m"]);
}

#[test]
fn data_that_is_not_json_or_too_large() {
    assert_refused(&["run", "x", "--data", "{job: 7}", "--", "touch", "ran"], &["--data", "not JSON"]);
    let large = format!("\"{}\"", "x".repeat(65_535));
    let world = World::new();
    let said = world.run(&["run", "x", "--data", &large, "--", "touch", "ran"]);
    assert_line(&said, 64, &["--data", "65537 bytes", "at most 65536"]);
    assert!(said.err.len() < 1000, "the value itself is left out: {} bytes", said.err.len());
    assert_nothing_written(&world);
}

#[test]
fn options_that_do_not_exist_or_exclude_each_other() {
    assert_refused(&["run", "x", "--try", "--wait", "1s", "--", "true"], &["--try", "--wait"]);
    assert_refused(&["run", "x", "--tll", "1s", "--", "true"], &["--tll"]);
    assert_refused(&["run", "x", "--busy-exit-code", "256", "--", "true"], &["--busy-exit-code", "256"]);
    assert_refused(&["run", "x"], &["<CMD>"]);
    assert_refused(&["run", "--", "true"], &["<NAME>"]);
    assert_refused(&["fly"], &["fly"]);
    assert_refused(&["fence", "x", "-1"], &["-1"]);
    assert_refused(&["fence", "x", "1.5"], &["<TOKEN>", "1.5", "whole number"]);
    assert_refused(&["evict", "x", "--why", "a\nb"], &["--why", "control"]);
    assert_refused(&["evict", "x", "--why", &"x".repeat(250)], &["--why", "255 bytes"]);
    assert_refused(&["completions", "tcl"], &["tcl"]);
}

#[test]
fn no_command_at_all_is_wrong_use_too() {
    let world = World::new();
    let said = world.run(&[]);
    assert_eq!((said.code, said.out.as_str()), (64, ""));
    assert!(said.err.contains("Usage: tenure"), "{said:?}");
}

#[test]
fn a_command_without_its_dashes_is_explained() {
    assert_refused(&["run", "backup", "echo", "hi"], &["'echo'", "put -- before a command"]);
    assert_refused(&["run", "backup", "--wiat", "1s", "--", "touch", "ran"], &["--wiat", "'--wait'"]);
    assert_refused(&["runn", "backup"], &["runn", "'run'"]);
}

#[test]
fn wrong_use_is_told_as_json_too() {
    let said = World::new().run(&["--json", "run", "--ttl", "5", "x", "--", "touch", "ran"]);
    let line: serde_json::Value = serde_json::from_str(&said.err).unwrap();
    assert_eq!((said.code, line["exit"].as_i64()), (64, Some(64)), "{said:?}");
}

#[test]
fn an_empty_store_is_not_the_default_one() {
    assert_refused(&["--store", "", "run", "x", "--", "touch", "ran"], &["--store"]);
}

#[test]
fn a_missing_file_is_not_an_empty_store_and_is_not_made() {
    for command in [&["ls"][..], &["show", "x"], &["evict", "x"], &["stats"], &["prune"]] {
        let world = World::new();
        let said = world.run(&[&["--store", "sqlite:nosuch.db"], command].concat());
        assert_line(&said, 69, &["nosuch.db doesn't exist"]);
        assert_nothing_written(&world);
    }
}

#[test]
fn stores_that_do_not_exist_are_refused_and_the_known_ones_listed() {
    for command in [&["run", "x", "--", "touch", "ran"][..], &["ls"], &["schema"], &["doctor"]] {
        let args = [&["--store", "zookeeper://me:hunter2@host/"], command].concat();
        assert_refused(&args, &["zookeeper", "memory:", "sqlite:"]);
    }
    assert_refused(&["--store", "locks.db", "ls"], &["no scheme"]);
    assert_refused(&["--store", "sqlite:", "ls"], &["sqlite"]);
    assert_refused(&["--store", "sqlite:x.db?tenure.tabel=y", "ls"], &["tenure.tabel", "tenure.table"]);
    assert_refused(&["--store", "sqlite:x.db?tenure.table=a%22b", "ls"], &["tenure.table"]);
}

#[test]
fn passwords_are_never_shown() {
    let world = World::new();
    for args in [
        &["--store", "zookeeper://me:hunter2@host/", "ls"][..],
        &["--store", "zookeeper://host/?password=hunter2", "ls"],
        &["zookeeper://me:hunter2@host/", "ls"],
        &["zookeeper://host/?user=me&password=hunter2", "ls"],
        &["ls", "--stroe", "zookeeper://me:hunter2@host/"],
        &["ls", "--stroe=zookeeper://me:hunter2@host/"],
        &["schema", "zookeeper://me:hunter2@host/"],
        &["-v", "--store", "zookeeper://me:hunter2@host/", "run", "x", "--", "true"],
    ] {
        let said = world.run(args);
        assert!(said.code == 64 && !said.err.contains("hunter2"), "{args:?}: {said:?}");
    }
    let mut help = world.tenure(&["run", "--help"]);
    let said = world.spawn(help.env("TENURE_STORE", "pg://me:hunter2@host/")).said();
    assert!(said.code == 0 && !said.out.contains("hunter2"), "{said:?}");
}

#[test]
fn a_file_that_cannot_be_created_is_out_of_reach() {
    let world = World::new();
    for (url, parts) in [
        ("sqlite:no/such/folder/locks.db", ["no/such/folder", "sqlite"]),
        ("sqlite:/dev/null/locks.db", ["/dev/null", "sqlite"]),
        ("sqlite:/", ["directory", "sqlite"]),
    ] {
        for command in [&["run", "x", "--", "touch", "ran"][..], &["ls"], &["doctor"]] {
            assert_line(&world.run(&[&["--store", url], command].concat()), 69, &parts);
        }
    }
    assert_nothing_written(&world);
}

#[test]
fn a_state_folder_that_cannot_be_created_is_out_of_reach() {
    let world = World::new();
    let run = |home: Option<&str>| {
        let mut command = world.tenure(&["run", "x", "--", "touch", "ran"]);
        command.env_remove("TENURE_STORE").env_remove("HOME").envs(home.map(|home| ("HOME", home)));
        world.spawn(&mut command).said()
    };
    assert_line(&run(Some("/dev/null")), 69, &["can't create the folder /dev/null"]);
    assert_line(&run(None), 64, &["HOME", "--store"]);
    assert_line(&run(Some("relative")), 64, &["HOME"]);
    assert_nothing_written(&world);
}

#[test]
fn a_corrupt_file_is_named_and_left_as_it_is() {
    let world = World::new();
    fs::write(world.db(), "this is no database".repeat(1000)).unwrap();
    for command in [&["run", "x", "--", "touch", "ran"][..], &["ls"], &["show", "x"], &["stats"], &["doctor"]] {
        assert_line(&world.run(command), 69, &["sqlite: ", "locks.db", "damaged"]);
    }
    assert!(!world.path("ran").exists());
    assert!(fs::read_to_string(world.db()).unwrap().starts_with("this is no database"));
}

#[test]
fn a_damaged_table_is_named() {
    let world = World::new();
    assert_eq!(world.run(&["run", "x", "--", "true"]).code, 0);
    let size = fs::metadata(world.db()).unwrap().len();
    // A file that was cut off, as after a full disk.
    fs::OpenOptions::new().write(true).open(world.db()).unwrap().set_len(size.min(100)).unwrap();
    let _ = fs::remove_file(world.path("locks.db-wal"));
    let _ = fs::remove_file(world.path("locks.db-shm"));
    let said = world.run(&["run", "x", "--", "touch", "ran"]);
    assert_line(&said, 69, &["locks.db"]);
    assert!(!world.path("ran").exists());
}

#[test]
fn an_odd_log_filter_is_wrong_use() {
    let world = World::new();
    let said = world.spawn(world.tenure(&["ls"]).env("TENURE_LOG", "a=b=c")).said();
    assert_line(&said, 64, &["TENURE_LOG", "a=b=c"]);
    assert_nothing_written(&world);
    let said = world.spawn(world.tenure(&["run", "x", "--", "true"]).env("TENURE_LOG", "debug")).said();
    assert!(said.code == 0 && said.err.contains("acquired"), "{said:?}");
}
