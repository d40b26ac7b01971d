//! A MariaDB server.

use std::ops::Deref;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use nix::sys::signal::Signal;

use super::certificate::Certificate;
use super::home::Home;
use super::port::Port;
use super::server::{Kind, Server};
use crate::tools::{OPENSSL, Tool};

const STOP: Signal = Signal::SIGTERM;

const PREPARE: &str = "CREATE DATABASE tenure";

/// A MariaDB server with TLS, whose root has no password.
pub struct MariaDb {
    server: Server,
    certificate: Certificate,
}

impl MariaDb {
    /// What it needs on the machine.
    pub const TOOLS: &[Tool] = &[Tool { command: "mariadbd", package: "mariadb-server" }, OPENSSL];

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
        let home = Home::new("mariadb", "mysql", STOP)?;
        let certificate = Certificate::make(&home)?;
        make_data(&home)?;
        let port = Port::reserve()?;
        let mut launch = launch(&home, &port, &certificate)?;
        settings.iter().for_each(|(name, value)| set(&mut launch, name, value));
        let probe = client(&home, &port, "SELECT 1")?;
        let mut prepare = client(&home, &port, PREPARE)?;
        let server = Server::start(home, port, Kind { launch, probe, url, stop: STOP })?;
        server.run_command(&mut prepare)?;
        Ok(Self { server, certificate })
    }

    /// The authority that vouches for its certificate, in a file that everybody may read.
    pub fn ca_file(&self) -> &Path {
        &self.certificate.authority
    }
}

impl Deref for MariaDb {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

fn url(port: u16) -> String {
    format!("mysql://root@127.0.0.1:{port}/tenure")
}

fn make_data(home: &Home) -> Result<()> {
    let mut install = home.command("mariadb-install-db")?;
    install.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]);
    home.run(install.arg(format!("--datadir={}", home.join("data").display())))
}

fn launch(home: &Home, port: &Port, certificate: &Certificate) -> Result<Command> {
    let mut mariadbd = home.command("mariadbd")?;
    mariadbd.arg("--no-defaults");
    set(&mut mariadbd, "datadir", &home.join("data").to_string_lossy());
    set(&mut mariadbd, "port", &port.number().to_string());
    set(&mut mariadbd, "bind-address", "127.0.0.1");
    // In the data folder, and named from there: the path of a socket must be short.
    set(&mut mariadbd, "socket", "socket");
    set(&mut mariadbd, "pid-file", "pid");
    // Or a user `root@127.0.0.1` is looked up as `root@localhost`.
    mariadbd.arg("--skip-name-resolve");
    set(&mut mariadbd, "max-connections", "200");
    set(&mut mariadbd, "innodb-buffer-pool-size", "32M");
    set(&mut mariadbd, "ssl-cert", &certificate.certificate.to_string_lossy());
    set(&mut mariadbd, "ssl-key", &certificate.key.to_string_lossy());
    Ok(mariadbd)
}

fn set(mariadbd: &mut Command, name: &str, value: &str) {
    mariadbd.arg(format!("--{name}={value}"));
}

fn client(home: &Home, port: &Port, statement: &str) -> Result<Command> {
    let mut client = home.command("mariadb")?;
    client.args(["--no-defaults", "--protocol=tcp", "--host=127.0.0.1", "--user=root", "--connect-timeout=5"]);
    client.arg(format!("--port={}", port.number())).args(["-e", statement]);
    Ok(client)
}
