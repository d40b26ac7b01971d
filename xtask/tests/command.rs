//! `cargo xtask services` leaves nothing behind, however it ends.

#![allow(missing_docs, clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use xtask::services::{Etcd, MariaDb, MongoDb, PgBouncer, Postgres, Redis};
use xtask::tools::skip;

const VARIABLES: [&str; 8] = [
    "TENURE_TEST_ETCD",
    "TENURE_TEST_MONGODB",
    "TENURE_TEST_MYSQL",
    "TENURE_TEST_PGBOUNCER",
    "TENURE_TEST_POSTGRES",
    "TENURE_TEST_REDIS",
    "TENURE_TEST_REDIS_QUORUM",
    "TENURE_TEST_REDIS_REPLICATED",
];

#[test]
fn its_servers_end_with_it() {
    let stores = [
        ("postgres", Postgres::TOOLS),
        ("postgres", PgBouncer::TOOLS),
        ("mysql", MariaDb::TOOLS),
        ("mongodb", MongoDb::tools()),
        ("redis", Redis::TOOLS),
        ("etcd", Etcd::TOOLS),
    ];
    if stores.into_iter().any(|(store, tools)| skip(store, tools)) {
        return;
    }
    for (signal, in_order) in [(Signal::SIGTERM, true), (Signal::SIGKILL, false)] {
        let (mut services, ports) = start();
        assert!(ports.iter().all(|&port| is_open(port)));
        kill(Pid::from_raw(services.id().cast_signed()), signal).unwrap();
        assert_eq!(services.wait().unwrap().success(), in_order, "after {signal}");
        if in_order {
            assert!(!ports.iter().any(|&port| is_open(port)), "they are down when it is");
        }
        wait_until_closed(&ports);
    }
}

/// The command, once it has said where its servers are.
fn start() -> (Child, Vec<u16>) {
    let mut services =
        Command::new(env!("CARGO_BIN_EXE_xtask")).arg("services").stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(services.stdout.take().unwrap()).lines().take(VARIABLES.len());
    let mut exports: Vec<(String, Vec<u16>)> = lines.map(|line| variable_and_ports(&line.unwrap())).collect();
    exports.sort();
    let (variables, ports): (Vec<_>, Vec<_>) = exports.into_iter().unzip();
    assert_eq!(variables, VARIABLES);
    (services, ports.concat())
}

/// Of `export VARIABLE=scheme://user@127.0.0.1:PORT,127.0.0.1:PORT/tenure`.
fn variable_and_ports(line: &str) -> (String, Vec<u16>) {
    let (variable, url) = line.strip_prefix("export ").unwrap().split_once('=').unwrap();
    let number = |text: &str| text.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap();
    (variable.into(), url.split("127.0.0.1:").skip(1).map(number).collect())
}

fn is_open(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

fn wait_until_closed(ports: &[u16]) {
    let start = Instant::now();
    while ports.iter().any(|&port| is_open(port)) {
        assert!(start.elapsed() < Duration::from_secs(20), "a server outlived its owner");
        std::thread::sleep(Duration::from_millis(20));
    }
}
