//! PgBouncer, in front of a PostgreSQL server.

use std::ops::Deref;

use anyhow::Result;
use nix::sys::signal::Signal;

use super::home::Home;
use super::port::Port;
use super::postgres::{Postgres, psql};
use super::server::{Kind, Server};
use crate::tools::Tool;

/// It has nothing to lose, and the milder signals mean different things in different versions.
const STOP: Signal = Signal::SIGKILL;

/// A PgBouncer that gives out connections for one transaction at a time.
pub struct PgBouncer {
    server: Server,
}

impl PgBouncer {
    /// What it needs on the machine, besides PostgreSQL.
    pub const TOOLS: &[Tool] = &[Tool { command: "pgbouncer", package: "pgbouncer" }];

    /// Starts a new one in front of a server, which must outlive it.
    ///
    /// # Errors
    /// If it is not installed, or doesn't come up.
    pub fn start(postgres: &Postgres) -> Result<Self> {
        Self::start_with(postgres, &[])
    }

    /// The same with settings: `[("default_pool_size", "1")]`.
    ///
    /// # Errors
    /// If it is not installed, or doesn't come up.
    pub fn start_with(postgres: &Postgres, settings: &[(&str, &str)]) -> Result<Self> {
        let home = Home::new("pgbouncer", "postgres", STOP)?;
        let port = Port::reserve()?;
        let file = home.write("pgbouncer.ini", &configuration(postgres.port(), port.number(), settings))?;
        let mut launch = home.command("pgbouncer")?;
        launch.arg(file);
        let probe = psql(&home, port.number(), "tenure", &["SELECT 1"])?;
        let server = Server::start(home, port, Kind { launch, probe, url, stop: STOP })?;
        Ok(Self { server })
    }
}

impl Deref for PgBouncer {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

fn url(port: u16) -> String {
    format!("postgres://postgres@127.0.0.1:{port}/tenure")
}

/// Few connections, so that tests share them.
fn configuration(postgres: u16, own: u16, settings: &[(&str, &str)]) -> String {
    let mut text = format!(
        "[databases]\n\
         tenure = host=127.0.0.1 port={postgres} dbname=tenure user=postgres\n\
         [pgbouncer]\n\
         listen_addr = 127.0.0.1\n\
         listen_port = {own}\n\
         unix_socket_dir =\n\
         auth_type = any\n\
         pool_mode = transaction\n\
         default_pool_size = 3\n"
    );
    settings.iter().for_each(|(name, value)| text += &format!("{name} = {value}\n"));
    text
}
