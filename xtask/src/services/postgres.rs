//! A PostgreSQL server.

use std::ops::Deref;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use nix::sys::signal::Signal;

use super::certificate::Certificate;
use super::home::Home;
use super::port::Port;
use super::server::{Kind, Server};
use crate::tools::{self, OPENSSL, Tool};

/// "Fast": it doesn't wait for clients.
const STOP: Signal = Signal::SIGINT;

/// Who must give a password; all others are trusted. A test makes such a role with
/// `CREATE ROLE pw_name LOGIN PASSWORD '…' IN ROLE needs_password`.
const RULES: &str = "\
host all +needs_password 127.0.0.1/32 scram-sha-256
host all all 127.0.0.1/32 trust
";

const PREPARE: &[&str] = &["CREATE ROLE needs_password NOLOGIN", "CREATE DATABASE tenure"];

/// A PostgreSQL server with TLS, where every user is trusted but the members of the role `needs_password`.
pub struct Postgres {
    server: Server,
    certificate: Certificate,
}

impl Postgres {
    /// What it needs on the machine.
    pub const TOOLS: &[Tool] = &[Tool { command: "postgres", package: "postgresql" }, OPENSSL];

    /// Starts a new one.
    ///
    /// # Errors
    /// If it is not installed, or doesn't come up.
    pub fn start() -> Result<Self> {
        Self::start_with(&[])
    }

    /// The same with settings: `[("max_connections", "20")]`.
    ///
    /// # Errors
    /// If it is not installed, or doesn't come up.
    pub fn start_with(settings: &[(&str, &str)]) -> Result<Self> {
        let home = Home::new("postgres", "postgres", STOP)?;
        let certificate = Certificate::make(&home)?;
        make_data(&home)?;
        let port = Port::reserve()?;
        let mut launch = launch(&home, &port, &certificate)?;
        settings.iter().for_each(|(name, value)| set(&mut launch, name, value));
        let probe = psql(&home, port.number(), "postgres", &["SELECT 1"])?;
        let mut prepare = psql(&home, port.number(), "postgres", PREPARE)?;
        let server = Server::start(home, port, Kind { launch, probe, url, stop: STOP })?;
        server.run_command(&mut prepare)?;
        Ok(Self { server, certificate })
    }

    /// The authority that vouches for its certificate, in a file that everybody may read.
    pub fn ca_file(&self) -> &Path {
        &self.certificate.authority
    }
}

impl Deref for Postgres {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let _ = self.server.stop();
        remove_memory(self.server.home());
    }
}

/// A killed server leaves a piece of shared memory, by which the next start on its data knows that nobody else is at it.
/// There is none after the last.
pub(super) fn remove_memory(home: &Home) {
    let lock_file = std::fs::read_to_string(home.join("data/postmaster.pid")).unwrap_or_default();
    let Some(memory) = lock_file.lines().nth(6).and_then(|line| line.split_whitespace().nth(1)) else { return };
    if let Ok(ipcrm) = tools::find("ipcrm") {
        let _ = Command::new(ipcrm).args(["--shmem-id", memory]).output();
    }
}

fn url(port: u16) -> String {
    format!("postgres://postgres@127.0.0.1:{port}/tenure")
}

fn make_data(home: &Home) -> Result<()> {
    let mut initdb = home.command("initdb")?;
    initdb.args(["-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C.UTF-8", "-D"]);
    home.run(initdb.arg(home.join("data")))?;
    home.write("data/pg_hba.conf", RULES)?;
    Ok(())
}

/// The server itself, not `pg_ctl`: so it is our child, and its process id is ours to signal.
fn launch(home: &Home, port: &Port, certificate: &Certificate) -> Result<Command> {
    let mut postgres = home.command("postgres")?;
    postgres.arg("-D").arg(home.join("data"));
    set(&mut postgres, "port", &port.number().to_string());
    set(&mut postgres, "listen_addresses", "127.0.0.1");
    set(&mut postgres, "unix_socket_directories", "");
    set(&mut postgres, "max_connections", "200");
    // In a file of its folder: a killed server would leave it in the system's shared memory.
    set(&mut postgres, "dynamic_shared_memory_type", "mmap");
    set(&mut postgres, "ssl", "on");
    set(&mut postgres, "ssl_cert_file", &certificate.certificate.to_string_lossy());
    set(&mut postgres, "ssl_key_file", &certificate.key.to_string_lossy());
    Ok(postgres)
}

fn set(postgres: &mut Command, name: &str, value: &str) {
    postgres.arg("-c").arg(format!("{name}={value}"));
}

/// A statement each, as one that makes a database must be on its own.
pub(super) fn psql(home: &Home, port: u16, database: &str, statements: &[&str]) -> Result<Command> {
    let mut psql = home.command("psql")?;
    psql.args(["-X", "-q", "-w", "-v", "ON_ERROR_STOP=1", "-d"]);
    psql.arg(format!("host=127.0.0.1 port={port} user=postgres dbname={database} sslmode=disable connect_timeout=5"));
    statements.iter().for_each(|statement| {
        psql.args(["-c", statement]);
    });
    Ok(psql)
}
