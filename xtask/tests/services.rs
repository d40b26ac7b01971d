//! Each server answers, dies, comes back, pauses, and leaves nothing behind.

#![allow(missing_docs, clippy::unwrap_used)]

use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use xtask::services::{Etcd, EtcdCluster, MariaDb, PgBouncer, Postgres, Redis, Server};
use xtask::tools::{find, skip};

/// Asks a server something and gives up after this time.
type Ask = fn(&Server, Duration) -> bool;

#[test]
fn postgres_answers_dies_and_comes_back() {
    if skip("postgres", Postgres::TOOLS) {
        return;
    }
    let postgres = Postgres::start().unwrap();
    answers_dies_and_comes_back(&postgres, ask_postgres);
    let rest = Rest::of(&postgres);
    drop(postgres);
    rest.is_gone();
}

#[test]
fn mariadb_answers_dies_and_comes_back() {
    if skip("mysql", MariaDb::TOOLS) {
        return;
    }
    let mariadb = MariaDb::start().unwrap();
    answers_dies_and_comes_back(&mariadb, ask_mariadb);
    let rest = Rest::of(&mariadb);
    drop(mariadb);
    rest.is_gone();
}

#[test]
fn etcd_answers_dies_and_comes_back() {
    if skip("etcd", Etcd::TOOLS) {
        return;
    }
    let etcd = Etcd::start().unwrap();
    answers_dies_and_comes_back(&etcd, ask_etcd);
    etcd.resume().unwrap();
    etcd.ctl(&["put", "key", "value"]).unwrap();
    etcd.wipe().unwrap();
    assert_eq!(etcd.ctl(&["get", "key", "--print-value-only"]).unwrap(), "", "wiped, and still there");
    let rest = Rest::of(&etcd);
    drop(etcd);
    rest.is_gone();
}

#[test]
fn redis_answers_dies_and_comes_back() {
    if skip("redis", Redis::TOOLS) {
        return;
    }
    let redis = Redis::start().unwrap();
    answers_dies_and_comes_back(&redis, ask_redis);
    let rest = Rest::of(&redis);
    drop(redis);
    rest.is_gone();
}

#[test]
fn an_etcd_cluster_has_another_leader_when_one_dies() {
    if skip("etcd", Etcd::TOOLS) {
        return;
    }
    let cluster = EtcdCluster::start().unwrap();
    let leader = cluster.leader().unwrap();
    cluster.members[leader].kill().unwrap();
    let next = cluster.leader().unwrap();
    assert_ne!(next, leader);
    cluster.members[next].ctl(&["put", "key", "value"]).unwrap();
    cluster.members[leader].restart().unwrap();
    assert_eq!(cluster.members[leader].ctl(&["get", "key", "--print-value-only"]).unwrap().trim(), "value");
}

#[test]
fn redis_keeps_its_data_unless_told_otherwise_and_is_copied() {
    if skip("redis", Redis::TOOLS) {
        return;
    }
    let primary = Redis::start_with(&[("maxclients", "77")]).unwrap();
    assert!(primary.cli(&["config", "get", "maxclients"]).unwrap().contains("77"));
    primary.cli(&["set", "key", "value"]).unwrap();
    primary.restart().unwrap();
    assert_eq!(primary.cli(&["get", "key"]).unwrap().trim(), "value");
    let replica = Redis::start_replica(&primary).unwrap();
    assert_eq!(replica.cli(&["get", "key"]).unwrap().trim(), "value");
    assert!(replica.cli(&["set", "key", "other"]).is_err(), "a replica can only be read");
    primary.restart_empty().unwrap();
    assert_eq!(primary.cli(&["get", "key"]).unwrap().trim(), "");
}

#[test]
fn redis_forms_a_cluster() {
    if skip("redis", Redis::TOOLS) {
        return;
    }
    let cluster = Redis::start_cluster(3).unwrap();
    let moved = cluster.iter().filter(|server| server.cli(&["set", "key", "value"]).is_err()).count();
    assert_eq!(moved, 2, "one server has the key, and the others say so");
}

#[test]
fn pgbouncer_answers_dies_and_comes_back() {
    if skip("postgres", Postgres::TOOLS) || skip("postgres", PgBouncer::TOOLS) {
        return;
    }
    let postgres = Postgres::start().unwrap();
    let bouncer = PgBouncer::start(&postgres).unwrap();
    answers_dies_and_comes_back(&bouncer, ask_postgres);
    let rest = Rest::of(&bouncer);
    drop(bouncer);
    rest.is_gone();
}

#[test]
fn postgres_asks_for_a_password_and_proves_who_it_is() {
    if skip("postgres", Postgres::TOOLS) {
        return;
    }
    let postgres = Postgres::start_with(&[("max_connections", "17")]).unwrap();
    let sql = |user: &str, more: &str, statement: &str| {
        let port = postgres.port();
        let mut psql = Command::new(find("psql").unwrap());
        psql.args(["-X", "-w", "-A", "-t", "-c", statement]);
        psql.arg(format!("host=127.0.0.1 port={port} user={user} dbname=tenure {more}"));
        let output = psql.output().unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap().trim().to_owned())
    };
    sql("postgres", "", "CREATE ROLE pw_one LOGIN PASSWORD 'open' IN ROLE needs_password").unwrap();
    assert_eq!(sql("pw_one", "", "SELECT 1"), None, "no password");
    assert_eq!(sql("pw_one", "password=shut", "SELECT 1"), None, "the wrong one");
    assert_eq!(sql("pw_one", "password=open", "SELECT 1").unwrap(), "1");
    let checked = format!("sslmode=verify-full sslrootcert={}", postgres.ca_file().display());
    assert_eq!(sql("postgres", &checked, "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").unwrap(), "t");
    assert_eq!(sql("postgres", "", "SHOW max_connections").unwrap(), "17");
}

#[test]
fn mariadb_proves_who_it_is() {
    if skip("mysql", MariaDb::TOOLS) {
        return;
    }
    let mariadb = MariaDb::start_with(&[("max-connections", "17")]).unwrap();
    let mut client = Command::new(find("mariadb").unwrap());
    client.args(["--no-defaults", "--protocol=tcp", "--host=127.0.0.1", "--user=root", "--ssl-verify-server-cert"]);
    client.arg(format!("--port={}", mariadb.port())).arg(format!("--ssl-ca={}", mariadb.ca_file().display()));
    client.args(["--batch", "-N", "-e", "SHOW STATUS LIKE 'Ssl_cipher'; SELECT @@max_connections"]);
    let output = client.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("TLS") && said.contains("17"), "{output:?}");
}

#[test]
fn a_server_that_cannot_start_says_why() {
    if skip("postgres", Postgres::TOOLS) {
        return;
    }
    let error = Postgres::start_with(&[("no_such_setting", "1")]).err().unwrap();
    assert!(format!("{error:#}").contains("unrecognized configuration parameter"), "{error:#}");
}

fn answers_dies_and_comes_back(server: &Server, ask: Ask) {
    let patient = Duration::from_secs(20);
    assert!(ask(server, patient), "it answers");
    let processes = processes_of(server);

    server.kill().unwrap();
    assert!(TcpStream::connect(("127.0.0.1", server.port())).is_err(), "a killed server refuses");
    assert_eq!(alive(&processes), Vec::<u32>::new(), "it is dead with all its processes");

    server.restart().unwrap();
    assert!(ask(server, patient), "it answers after a kill");

    server.pause().unwrap();
    assert!(!ask(server, Duration::from_millis(500)), "a paused server doesn't answer");
    assert!(TcpStream::connect(("127.0.0.1", server.port())).is_ok(), "but its port is open");
    server.resume().unwrap();
    assert!(ask(server, patient), "it answers after a pause");

    server.stop().unwrap();
    assert!(!ask(server, patient), "it is down");
    server.restart().unwrap();
    server.pause().unwrap(); // and dropped like that
}

fn ask_postgres(server: &Server, patience: Duration) -> bool {
    let mut psql = Command::new(find("psql").unwrap());
    psql.args(["-X", "-w", "-c", "SELECT 1", &server.url()]);
    succeeds_within(patience, psql)
}

fn ask_mariadb(server: &Server, patience: Duration) -> bool {
    let mut client = Command::new(find("mariadb").unwrap());
    client.args(["--no-defaults", "--protocol=tcp", "--host=127.0.0.1", "--user=root", "--database=tenure"]);
    client.arg(format!("--port={}", server.port())).args(["-e", "SELECT 1"]);
    succeeds_within(patience, client)
}

fn ask_etcd(server: &Server, patience: Duration) -> bool {
    let mut client = Command::new(find("etcdctl").unwrap());
    client.arg(format!("--endpoints=127.0.0.1:{}", server.port())).args(["--command-timeout=10s", "get", "key"]);
    succeeds_within(patience, client)
}

fn ask_redis(server: &Server, patience: Duration) -> bool {
    let mut client = Command::new(find("redis-cli").unwrap());
    client.args(["-p", &server.port().to_string(), "ping"]);
    succeeds_within(patience, client)
}

fn succeeds_within(patience: Duration, mut command: Command) -> bool {
    let mut child = command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn().unwrap();
    let ended = comes_true_within(patience, || child.try_wait().unwrap().is_some());
    let _ = child.kill();
    let status = child.wait().unwrap();
    ended && status.success()
}

/// What a server must not leave behind.
struct Rest {
    processes: Vec<u32>,
    folder: std::path::PathBuf,
}

impl Rest {
    fn of(server: &Server) -> Self {
        Self { processes: processes_of(server), folder: server.log().parent().unwrap().into() }
    }

    fn is_gone(&self) {
        let processes = &self.processes;
        assert!(!processes.is_empty());
        let gone = comes_true_within(Duration::from_secs(10), || alive(processes).is_empty() && !self.folder.exists());
        assert!(gone, "left behind: {:?}, or {}", alive(processes), self.folder.display());
    }
}

fn comes_true_within(patience: Duration, mut check: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !check() {
        if start.elapsed() > patience {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

/// The server's process and its children.
fn processes_of(server: &Server) -> Vec<u32> {
    let server = server.pid().unwrap();
    let all = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    all.filter(|&pid| pid == server || field(pid, 1) == Some(server.to_string())).collect()
}

/// A zombie is as good as gone.
fn alive(processes: &[u32]) -> Vec<u32> {
    processes.iter().copied().filter(|&pid| field(pid, 0).is_some_and(|state| state != "Z")).collect()
}

/// Of what follows the name in `/proc/PID/stat`: 0 is the state, 1 the parent.
fn field(pid: u32, which: usize) -> Option<String> {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(which).map(Into::into)
}
