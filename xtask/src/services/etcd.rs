//! etcd: one member, or a cluster of three.

use std::ops::Deref;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;

use super::certificate::Certificate;
use super::home::Home;
use super::port::Port;
use super::server::{Kind, Server};
use crate::tools::{OPENSSL, Tool};

const STOP: Signal = Signal::SIGTERM;

/// For a cluster to choose its leader, on a busy machine.
const ELECTION_PATIENCE: Duration = Duration::from_secs(60);

/// A member, which answers in clear on one port and with TLS on another.
pub struct Etcd {
    server: Server,
    certificate: Certificate,
    tls: Port,
    _peers: Port,
}

impl Etcd {
    /// What it needs on the machine.
    pub const TOOLS: &[Tool] = &[
        Tool { command: "etcd", package: "etcd-server" },
        Tool { command: "etcdctl", package: "etcd-client" },
        OPENSSL,
    ];

    /// Starts a new one, which is a cluster of its own.
    ///
    /// # Errors
    /// If it is not installed, or doesn't come up.
    pub fn start() -> Result<Self> {
        Self::start_with(&[])
    }

    /// The same with settings: `[("election-timeout", "5000")]`.
    ///
    /// # Errors
    /// If it is not installed, or doesn't come up.
    pub fn start_with(settings: &[(&str, &str)]) -> Result<Self> {
        let peers = Port::reserve()?;
        let cluster = peer(0, &peers);
        Self::start_member(0, peers, &cluster, settings)
    }

    fn start_member(number: usize, peers: Port, cluster: &str, settings: &[(&str, &str)]) -> Result<Self> {
        let home = Home::new("etcd", "etcd", STOP)?;
        let certificate = Certificate::make(&home)?;
        let (port, tls) = (Port::reserve()?, Port::reserve()?);
        let mut launch = launch(&home, &port, &tls, &certificate)?;
        set(&mut launch, "name", &format!("m{number}"));
        set(&mut launch, "initial-cluster", cluster);
        for of in ["listen-peer-urls", "initial-advertise-peer-urls"] {
            set(&mut launch, of, &address(&peers));
        }
        settings.iter().for_each(|(name, value)| set(&mut launch, name, value));
        // It answers this without the others.
        let probe = etcdctl(&home, port.number(), &["endpoint", "status"])?;
        let server = Server::start(home, port, Kind { launch, probe, url, stop: STOP })?;
        Ok(Self { server, certificate, tls, _peers: peers })
    }

    /// The authority that vouches for its certificate, in a file that everybody may read.
    pub fn ca_file(&self) -> &Path {
        &self.certificate.authority
    }

    /// Where it answers with TLS.
    pub fn tls_url(&self) -> String {
        url(self.tls.number())
    }

    /// What `etcdctl` says.
    ///
    /// # Errors
    /// If it fails.
    pub fn ctl(&self, arguments: &[&str]) -> Result<String> {
        let mut command = etcdctl(self.server.home(), self.port(), arguments)?;
        let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output();
        let output = output.with_context(|| format!("{command:?}"))?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(output.status.success(), "{command:?}: {said}{}", String::from_utf8_lossy(&output.stderr));
        Ok(said)
    }

    /// Loses all its data: it is killed, and comes back empty. Only for one that is a cluster of its own.
    ///
    /// # Errors
    /// If it doesn't come up.
    pub fn wipe(&self) -> Result<()> {
        self.kill()?;
        std::fs::remove_dir_all(self.server.home().join("data"))?;
        self.restart()
    }
}

impl Deref for Etcd {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

/// Three members.
pub struct EtcdCluster {
    /// Each can be killed, paused and started again.
    pub members: Vec<Etcd>,
}

impl EtcdCluster {
    /// Starts a new one, and waits for its leader.
    ///
    /// # Errors
    /// If it is not installed, or doesn't come up.
    pub fn start() -> Result<Self> {
        let peers = [Port::reserve()?, Port::reserve()?, Port::reserve()?];
        let cluster: Vec<String> = peers.iter().enumerate().map(|(number, port)| peer(number, port)).collect();
        let cluster = cluster.join(",");
        // Together: one alone would wait for the others.
        let members: Result<Vec<Etcd>> = std::thread::scope(|scope| {
            let start = |(number, peers)| {
                let cluster = &cluster;
                scope.spawn(move || Etcd::start_member(number, peers, cluster, &[]))
            };
            let starting: Vec<_> = peers.into_iter().enumerate().map(start).collect();
            starting
                .into_iter()
                .map(|member| member.join().unwrap_or_else(|_| bail!("a member's start panicked")))
                .collect()
        });
        let started = Self { members: members? };
        started.leader()?;
        Ok(started)
    }

    /// All members.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.members.iter().map(|member| format!("127.0.0.1:{}", member.port())).collect();
        format!("etcd://{}", hosts.join(","))
    }

    /// Which of the members leads; waits for one to.
    ///
    /// # Errors
    /// If none does.
    pub fn leader(&self) -> Result<usize> {
        let start = Instant::now();
        while start.elapsed() < ELECTION_PATIENCE {
            let leads = |member: &Etcd| {
                let fields = member.ctl(&["endpoint", "status", "--write-out=fields"]).unwrap_or_default();
                let field = |name: &str| {
                    let line = fields.lines().find(|line| line.starts_with(&format!("\"{name}\"")))?;
                    line.split_once(" : ").map(|(_, value)| value.to_owned())
                };
                field("Leader").is_some_and(|leader| leader != "0" && Some(leader) == field("MemberID"))
            };
            let running = self.members.iter().enumerate().filter(|(_, member)| member.pid().is_some());
            if let Some((leader, _)) = running.into_iter().find(|(_, member)| leads(member)) {
                return Ok(leader);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!("no leader within {ELECTION_PATIENCE:?}")
    }
}

fn url(port: u16) -> String {
    format!("etcd://127.0.0.1:{port}")
}

fn address(port: &Port) -> String {
    format!("http://127.0.0.1:{}", port.number())
}

fn peer(number: usize, port: &Port) -> String {
    format!("m{number}={}", address(port))
}

fn launch(home: &Home, port: &Port, tls: &Port, certificate: &Certificate) -> Result<Command> {
    let mut etcd = home.command("etcd")?;
    set(&mut etcd, "data-dir", &home.join("data").to_string_lossy());
    // On one port for both, some versions give a connection to the wrong one.
    let both = format!("{},https://127.0.0.1:{}", address(port), tls.number());
    set(&mut etcd, "listen-client-urls", &both);
    set(&mut etcd, "advertise-client-urls", &address(port));
    set(&mut etcd, "cert-file", &certificate.certificate.to_string_lossy());
    set(&mut etcd, "key-file", &certificate.key.to_string_lossy());
    set(&mut etcd, "logger", "zap");
    Ok(etcd)
}

fn set(etcd: &mut Command, name: &str, value: &str) {
    etcd.arg(format!("--{name}={value}"));
}

fn etcdctl(home: &Home, port: u16, arguments: &[&str]) -> Result<Command> {
    let mut etcdctl = home.command("etcdctl")?;
    etcdctl
        .arg(format!("--endpoints=127.0.0.1:{port}"))
        .args(["--dial-timeout=2s", "--command-timeout=5s"])
        .args(arguments);
    Ok(etcdctl)
}
