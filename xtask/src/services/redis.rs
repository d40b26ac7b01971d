//! A Redis server.

use std::ops::Deref;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use nix::sys::signal::Signal;

use super::certificate::Certificate;
use super::home::Home;
use super::port::Port;
use super::server::{Kind, Server};
use crate::tools::{OPENSSL, Tool};

const STOP: Signal = Signal::SIGTERM;

/// To copy a primary, or to agree on a cluster.
const PATIENCE: Duration = Duration::from_secs(60);
const SLOTS: usize = 16_384;

/// A Redis server that keeps what it acknowledged when it is killed. It speaks TLS at a second port.
pub struct Redis {
    server: Server,
    tls: Port,
    /// Where the servers of a cluster talk to each other.
    bus: Port,
    certificate: Certificate,
}

impl Redis {
    /// What it needs on the machine.
    pub const TOOLS: &[Tool] = &[
        Tool { command: "redis-server", package: "redis-server" },
        Tool { command: "redis-cli", package: "redis-tools" },
        OPENSSL,
    ];

    /// Starts a new one.
    ///
    /// # Errors
    /// If it is not installed, or doesn't come up.
    pub fn start() -> Result<Self> {
        Self::start_with(&[])
    }

    /// The same with settings, as in its configuration file: `[("maxmemory", "10mb")]`.
    ///
    /// # Errors
    /// If it is not installed, or doesn't come up.
    pub fn start_with(settings: &[(&str, &str)]) -> Result<Self> {
        let home = Home::new("redis", "redis", STOP)?;
        let certificate = Certificate::make(&home)?;
        let (port, tls, bus) = (Port::reserve()?, Port::reserve()?, Port::reserve()?);
        let mut text = configuration(&home, &port, &tls, &certificate);
        settings.iter().for_each(|(name, value)| text += &format!("{name} {value}\n"));
        if settings.contains(&CLUSTER) {
            text += &format!("cluster-port {}\ncluster-node-timeout 2000\n", bus.number());
        }
        let file = home.write("redis.conf", &text)?;
        let mut launch = home.command("redis-server")?;
        launch.arg(file);
        let probe = cli(&home, port.number(), &["ping"])?;
        let server = Server::start(home, port, Kind { launch, probe, url, stop: STOP })?;
        Ok(Self { server, tls, bus, certificate })
    }

    /// Starts a replica of another. It has copied it when this returns.
    ///
    /// # Errors
    /// If it is not installed, doesn't come up or gets no copy.
    pub fn start_replica(primary: &Self) -> Result<Self> {
        Self::start_replica_through(primary.port())
    }

    /// The same through another port: that of a proxy.
    ///
    /// # Errors
    /// If it is not installed, doesn't come up or gets no copy.
    pub fn start_replica_through(port: u16) -> Result<Self> {
        let replica = Self::start_with(&[("replicaof", &format!("127.0.0.1 {port}"))])?;
        replica
            .wait_until("a copy of its primary", || replica.says(&["info", "replication"], "master_link_status:up"))?;
        Ok(replica)
    }

    /// Starts several that share out the slots of a cluster among them, without replicas.
    ///
    /// # Errors
    /// If they are not installed, don't come up or don't agree.
    pub fn start_cluster(size: usize) -> Result<Vec<Self>> {
        let servers = (0..size).map(|_| Self::start_with(&[CLUSTER])).collect::<Result<Vec<_>>>()?;
        for (number, server) in servers.iter().enumerate() {
            let (from, to) = (SLOTS * number / size, SLOTS * (number + 1) / size - 1);
            server.cli(&["cluster", "addslotsrange", &from.to_string(), &to.to_string()])?;
            server.cli(&["config", "set", "cluster-allow-reads-when-down", "no"])?;
            server.meet(&servers[0])?;
        }
        for server in &servers {
            let known = format!("cluster_known_nodes:{size}\r");
            let agrees = || {
                Ok(server.says(&["cluster", "info"], "cluster_state:ok")?
                    && server.says(&["cluster", "info"], &known)?)
            };
            server.wait_until("a cluster", agrees)?;
        }
        Ok(servers)
    }

    /// Starts a replica of one server of a cluster.
    ///
    /// # Errors
    /// If it is not installed, doesn't come up or gets no copy.
    pub fn start_cluster_replica(primary: &Self) -> Result<Self> {
        let replica = Self::start_with(&[CLUSTER])?;
        replica.meet(primary)?;
        let id = primary.cli(&["cluster", "myid"])?;
        replica.wait_until("a place in the cluster", || replica.says(&["cluster", "nodes"], id.trim()))?;
        replica.cli(&["cluster", "replicate", id.trim()])?;
        replica
            .wait_until("a copy of its primary", || replica.says(&["info", "replication"], "master_link_status:up"))?;
        Ok(replica)
    }

    fn meet(&self, other: &Self) -> Result<()> {
        let (port, bus) = (other.port().to_string(), other.bus.number().to_string());
        self.cli(&["cluster", "meet", "127.0.0.1", &port, &bus]).map(drop)
    }

    /// Says something to it as an operator would, and returns what it answers.
    ///
    /// # Errors
    /// If it doesn't answer, or answers with an error.
    pub fn cli(&self, words: &[&str]) -> Result<String> {
        let mut cli = cli(self.home(), self.port(), words)?;
        let output = cli.stdout(Stdio::piped()).stderr(Stdio::piped()).output()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            bail!("{words:?}: {said}{}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(said)
    }

    fn says(&self, words: &[&str], what: &str) -> Result<bool> {
        Ok(self.cli(words)?.contains(what))
    }

    fn wait_until(&self, what: &str, is_so: impl Fn() -> Result<bool>) -> Result<()> {
        let begun = Instant::now();
        while !is_so()? {
            if begun.elapsed() > PATIENCE {
                bail!("no {what} within {PATIENCE:?}:\n{}", self.home().end_of_log());
            }
            std::thread::sleep(Duration::from_millis(30));
        }
        Ok(())
    }

    /// Its URL with TLS.
    pub fn tls_url(&self) -> String {
        format!("rediss://127.0.0.1:{}", self.tls.number())
    }

    /// The authority that vouches for its certificate, in a file that everybody may read.
    pub fn ca_file(&self) -> &Path {
        &self.certificate.authority
    }

    /// Kills it and starts it again without its data.
    ///
    /// # Errors
    /// If it doesn't come up.
    pub fn restart_empty(&self) -> Result<()> {
        self.kill()?;
        for entry in std::fs::read_dir(self.home().join(""))? {
            let path = entry?.path();
            match path.file_name().and_then(|name| name.to_str()) {
                Some("appendonlydir") => std::fs::remove_dir_all(path)?,
                Some("dump.rdb") => std::fs::remove_file(path)?,
                _ => {}
            }
        }
        self.restart()
    }
}

impl Deref for Redis {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

fn url(port: u16) -> String {
    format!("redis://127.0.0.1:{port}")
}

/// The setting of a server that is part of a cluster.
const CLUSTER: (&str, &str) = ("cluster-enabled", "yes");

/// The last of two lines about one setting counts.
fn configuration(home: &Home, port: &Port, tls: &Port, certificate: &Certificate) -> String {
    format!(
        "bind 127.0.0.1\n\
         port {}\n\
         tls-port {}\n\
         tls-cert-file {}\n\
         tls-key-file {}\n\
         tls-ca-cert-file {}\n\
         tls-auth-clients no\n\
         dir {}\n\
         save \"\"\n\
         appendonly yes\n\
         appendfsync always\n\
         repl-diskless-sync-delay 0\n",
        port.number(),
        tls.number(),
        certificate.certificate.display(),
        certificate.key.display(),
        certificate.authority.display(),
        home.join("").display(),
    )
}

/// With `-e` it fails if the server answers with an error.
fn cli(home: &Home, port: u16, words: &[&str]) -> Result<Command> {
    let mut cli = home.command("redis-cli")?;
    cli.args(["-e", "-p", &port.to_string()]).args(words);
    Ok(cli)
}
