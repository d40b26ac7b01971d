//! A Redis server.

use std::ops::Deref;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;

use super::certificate::Certificate;
use super::home::Home;
use super::port::Port;
use super::server::{Kind, Server};
use crate::tools::{OPENSSL, Tool};

const STOP: Signal = Signal::SIGTERM;

/// A Redis server that keeps what it acknowledged when it is killed. It speaks TLS at a second port.
pub struct Redis {
    server: Server,
    tls: Port,
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
        let (port, tls) = (Port::reserve()?, Port::reserve()?);
        let file = home.write("redis.conf", &configuration(&home, &port, &tls, &certificate, settings))?;
        let mut launch = home.command("redis-server")?;
        launch.arg(file);
        let probe = cli(&home, &port)?;
        let server = Server::start(home, port, Kind { launch, probe, url, stop: STOP })?;
        Ok(Self { server, tls, certificate })
    }

    /// Starts a replica of another. It has copied it when this returns.
    ///
    /// # Errors
    /// If it is not installed, doesn't come up or gets no copy.
    pub fn start_replica(primary: &Self) -> Result<Self> {
        let replica = Self::start_with(&[("replicaof", &format!("127.0.0.1 {}", primary.port()))])?;
        let mut wait = replica.home().command("sh")?;
        let copied = format!(
            "for look in $(seq 400); do redis-cli -p {} info replication | grep -q master_link_status:up && exit; \
             sleep 0.05; done; exit 1",
            replica.port()
        );
        replica.run_command(wait.args(["-c", &copied])).context("a replica that follows its primary")?;
        Ok(replica)
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

/// The last of two lines about one setting counts.
fn configuration(home: &Home, port: &Port, tls: &Port, certificate: &Certificate, settings: &[(&str, &str)]) -> String {
    let mut text = format!(
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
    );
    settings.iter().for_each(|(name, value)| text += &format!("{name} {value}\n"));
    text
}

/// Succeeds with any answer, also with one that asks for a password.
fn cli(home: &Home, port: &Port) -> Result<Command> {
    let mut cli = home.command("redis-cli")?;
    cli.args(["-p", &port.number().to_string(), "ping"]);
    Ok(cli)
}
