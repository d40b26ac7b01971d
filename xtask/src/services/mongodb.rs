//! A server that speaks MongoDB's protocol: `mongod`, if the machine has it, else FerretDB in front of PostgreSQL with DocumentDB.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use nix::unistd::geteuid;

use super::certificate::Certificate;
use super::home::Home;
use super::port::Port;
use super::server::{Kind, Server};
use crate::tools::{self, OPENSSL, Tool};

const STOP: Signal = Signal::SIGTERM;

const FERRETDB: &str = "2.7.0";

const INSTALL: &str = include_str!("mongodb/install.sh");

const RUN: &str = include_str!("mongodb/run.sh");

/// A server that anybody may use, over TLS too.
pub struct MongoDb {
    server: Server,
    certificate: Certificate,
    tls: u16,
    /// Those besides the server's own.
    _ports: [Port; 2],
}

impl MongoDb {
    /// What it needs from the machine's packages.
    pub const PACKAGES: &[Tool] = &[OPENSSL];

    /// What it needs in all.
    pub fn tools() -> &'static [Tool] {
        const MONGOD: Tool = Tool { command: "mongod", package: "" };
        // It runs as the user that this brings.
        const POSTGRES: Tool = Tool { command: "postgres", package: "postgresql" };
        const OF_MONGOD: &[Tool] = &[MONGOD, OPENSSL];
        const OF_FERRETDB: &[Tool] = &[Tool { command: "ferretdb", package: "" }, POSTGRES, OPENSSL];
        if has_mongod() { OF_MONGOD } else { OF_FERRETDB }
    }

    /// Puts the server into a folder of this user's, where it stays, unless it is there or the machine has `mongod`. It takes
    /// minutes the first time.
    ///
    /// # Errors
    /// If the packages or the sources can't be fetched.
    pub fn provide() -> Result<()> {
        let folder = folder()?;
        if has_mongod() || folder.is_dir() {
            return Ok(());
        }
        let mut install = Command::new("sh");
        let status = install.args(["-c", INSTALL, "install.sh"]).arg(&folder).arg(FERRETDB).status()?;
        if !status.success() {
            bail!("no server for the tests of mongodb could be made: put mongod on the PATH instead");
        }
        Ok(())
    }

    /// Starts a new one.
    ///
    /// # Errors
    /// If it is not there, or doesn't come up.
    pub fn start() -> Result<Self> {
        Self::start_with("no-auth")
    }

    /// One that wants a user and a password: `tenure` and `secret`. Not for `mongod`.
    ///
    /// # Errors
    /// If it is not there, or doesn't come up.
    pub fn start_with_users() -> Result<Self> {
        Self::start_with("auth")
    }

    fn start_with(auth: &str) -> Result<Self> {
        let home = Home::new("mongodb", "postgres", STOP)?;
        let certificate = Certificate::make(&home)?;
        let (port, tls, behind) = (Port::reserve()?, Port::reserve()?, Port::reserve()?);
        let (launch, tls_port) = match has_mongod() {
            true => (mongod(&home, &port, &certificate)?, port.number()),
            false => (ferretdb(&home, [&behind, &port, &tls], auth)?, tls.number()),
        };
        let probe = probe(&home, port.number())?;
        let server = Server::start(home, port, Kind { launch, probe, url, stop: STOP })?;
        if auth == "auth" {
            let create = "create role tenure login superuser password 'secret'";
            server.run_command(&mut psql(server.home(), &folder()?, behind.number(), create)?)?;
        }
        Ok(Self { server, certificate, tls: tls_port, _ports: [tls, behind] })
    }

    /// The port where it speaks TLS; FerretDB has one of its own for it.
    pub fn tls_port(&self) -> u16 {
        self.tls
    }

    /// The authority that vouches for its certificate, in a file that everybody may read.
    pub fn ca_file(&self) -> &Path {
        &self.certificate.authority
    }
}

impl Drop for MongoDb {
    fn drop(&mut self) {
        let _ = self.server.stop();
        super::postgres::remove_memory(self.server.home());
    }
}

impl Deref for MongoDb {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

fn has_mongod() -> bool {
    tools::find("mongod").is_ok()
}

/// Where it is or will be. What it runs as must get there: not below the home of root.
pub(crate) fn folder() -> Result<PathBuf> {
    let cache = if geteuid().is_root() {
        PathBuf::from("/var/cache")
    } else {
        let cache = std::env::var_os("XDG_CACHE_HOME").filter(|cache| !cache.is_empty()).map(PathBuf::from);
        let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
        cache.or_else(home).context("neither XDG_CACHE_HOME nor HOME is set")?
    };
    Ok(cache.join(format!("tenure/ferretdb-{FERRETDB}")))
}

fn url(port: u16) -> String {
    format!("mongodb://127.0.0.1:{port}/tenure")
}

fn ferretdb(home: &Home, ports: [&Port; 3], auth: &str) -> Result<Command> {
    let installed = folder()?;
    let mut initdb = of_postgres(home, &installed, "initdb")?;
    initdb.args(["-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C", "-D"]);
    home.run(initdb.arg(home.join("data")))?;
    let script = home.write("run.sh", RUN)?;
    let mut run = home.command("sh")?;
    run.arg(script).arg(home.join("")).arg(installed);
    run.args(ports.map(|port| port.number().to_string())).arg(auth);
    Ok(run)
}

fn of_postgres(home: &Home, installed: &Path, program: &str) -> Result<Command> {
    home.command_at(&installed.join("usr/lib/postgresql/18/bin").join(program))
}

fn psql(home: &Home, installed: &Path, port: u16, statement: &str) -> Result<Command> {
    let mut psql = of_postgres(home, installed, "psql")?;
    psql.args(["-X", "-q", "-w", "-c", statement, "-d"]);
    psql.arg(format!("host=127.0.0.1 port={port} user=postgres dbname=postgres"));
    Ok(psql)
}

fn mongod(home: &Home, port: &Port, certificate: &Certificate) -> Result<Command> {
    std::fs::create_dir(home.join("data"))?;
    home.give_away(&home.join("data"))?;
    let read = |file: &Path| std::fs::read_to_string(file).with_context(|| file.display().to_string());
    let both = home.write("both.pem", &(read(&certificate.certificate)? + &read(&certificate.key)?))?;
    let mut mongod = home.command("mongod")?;
    mongod.arg("--dbpath").arg(home.join("data")).args(["--bind_ip", "127.0.0.1", "--nounixsocket"]);
    mongod.args(["--tlsMode", "preferTLS", "--tlsCertificateKeyFile"]).arg(both);
    mongod.arg("--port").arg(port.number().to_string());
    Ok(mongod)
}

/// Nothing that speaks the protocol is sure to be there; but neither server listens before it can answer.
fn probe(home: &Home, port: u16) -> Result<Command> {
    let mut probe = home.command("bash")?;
    probe.args(["-c", &format!("exec 3<>/dev/tcp/127.0.0.1/{port}")]);
    Ok(probe)
}
