//! The connections, and what errors mean.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::postgres::{PgConnectOptions, PgConnection, PgDatabaseError, PgRow, PgSeverity};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Row as _};
use tokio::sync::Mutex;

use super::listener::Listener;
use super::statements::{Statement, Statements, TUNE, statement};
use super::{CALLS, STORE};
use crate::error::{Error, Result};
use crate::store::lanes::{Failed, Lane, Taken, why_unconnected};

const OLDEST: i32 = 13;

/// For a session whose transactions may be of another kind, or that a pooler may give another server for each.
const BEGIN: &str = "begin isolation level read committed read write";

/// Connections to one server.
pub(super) struct Link {
    pub options: PgConnectOptions,
    pub statements: Statements,
    /// Where the server is, for people.
    pub place: String,
    main: Lane<PgConnection>,
    renewals: Lane<PgConnection>,
    /// Between `open` and `changes`.
    pub listener: Mutex<Option<Listener>>,
    /// Statements are put into transactions.
    in_transactions: AtomicBool,
    /// Each connection has a session of its own.
    is_direct: AtomicBool,
}

impl Link {
    pub fn new(options: PgConnectOptions, statements: Statements) -> Self {
        // A pooler refuses settings that it doesn't know; and statements are not for the application's log.
        let options = options.extra_float_digits(None).disable_statement_logging();
        let options = match options.get_application_name() {
            Some(_) => options,
            None => options.application_name("tenure"),
        };
        Self {
            place: place(&options),
            options,
            statements,
            main: Lane::new(2 * CALLS),
            renewals: Lane::new(1),
            listener: Mutex::default(),
            in_transactions: AtomicBool::new(false),
            is_direct: AtomicBool::new(false),
        }
    }

    /// Opens the first connection and the one for renewals, and makes the table.
    pub async fn open(&self) -> Result<()> {
        let mut main = self.main.take(self.connect()).await?;
        self.prepare(&mut main.connection).await?;
        main.put_back();
        self.renewals.take(self.connect()).await?.put_back();
        Ok(())
    }

    async fn connect(&self) -> Result<PgConnection> {
        let connected = self.options.connect().await;
        let mut connection = connected.map_err(|error| self.explain(why_unconnected(error)))?;
        if self.is_direct.load(Ordering::Relaxed) {
            self.tune(&mut connection).await?;
        }
        Ok(connection)
    }

    /// No pooler is in between: sessions are ours alone, and may have settings of their own.
    pub async fn use_sessions(&self) -> Result<()> {
        for lane in [&self.main, &self.renewals] {
            let mut taken = lane.take(self.connect()).await?;
            self.tune(&mut taken.connection).await?;
            taken.put_back();
        }
        self.is_direct.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn tune(&self, connection: &mut PgConnection) -> Result<()> {
        sqlx::raw_sql(TUNE).execute(connection).await.map_err(|error| self.explain(error))?;
        Ok(())
    }

    async fn prepare(&self, connection: &mut PgConnection) -> Result<()> {
        let explain = |error| self.explain(error);
        let found = sqlx::raw_sql(AssertSqlSafe(self.statements.probe.clone())).fetch_one(&mut *connection).await;
        let found = found.map_err(explain)?;
        self.check_server(&found)?;
        if !found.try_get::<bool, _>("made").map_err(explain)? {
            let schema_made: bool = found.try_get("schema_made").map_err(explain)?;
            let make = if schema_made { &self.statements.make } else { &self.statements.make_in_schema };
            sqlx::raw_sql(AssertSqlSafe(make.clone())).execute(&mut *connection).await.map_err(explain)?;
        }
        sqlx::raw_sql(AssertSqlSafe(self.statements.check.clone())).execute(connection).await.map_err(explain)?;
        Ok(())
    }

    /// Refuses a server that is too old, or a role that may not write.
    fn check_server(&self, found: &PgRow) -> Result<()> {
        let explain = |error| self.explain(error);
        let version: i32 = found.try_get("version").map_err(explain)?;
        if version < OLDEST * 10_000 {
            let name: String = found.try_get("version_name").map_err(explain)?;
            return Err(self.refuse(&format!("is PostgreSQL {name}: {OLDEST} or later is needed")));
        }
        let missing: Vec<String> = found.try_get("missing_rights").map_err(explain)?;
        if !missing.is_empty() {
            let (user, missing) = (self.options.get_username(), missing.join(", "));
            return Err(
                self.refuse(&format!("does not let {user} {missing} in the table: grant {missing} on it to {user}"))
            );
        }
        let usual: bool = found.try_get("usual").map_err(explain)?;
        self.in_transactions.store(!usual, Ordering::Relaxed);
        Ok(())
    }

    /// From now on a statement is never split from its preparation: a pooler may have another server for each transaction.
    pub fn use_transactions(&self) {
        self.in_transactions.store(true, Ordering::Relaxed);
    }

    /// The server's process for the first connection.
    pub async fn backend(&self) -> Result<i32> {
        let mut main = self.main.take(self.connect()).await?;
        let backend = backend_of(&mut main.connection).await.map_err(|error| self.explain(error))?;
        main.put_back();
        Ok(backend)
    }

    /// Sends a notification, in a way that works through a pooler too.
    pub async fn notify(&self, channel: &str) -> Result<()> {
        let notify = statement(&self.statements.notify).bind(channel);
        let mut taken = self.main.take(self.connect()).await?;
        fetch_in_transaction(&mut taken.connection, notify).await.map_err(|error| self.explain(error))?;
        taken.put_back();
        Ok(())
    }

    /// Carries out a statement about `entries` entries.
    pub async fn call(&self, query: Statement<'_>, entries: usize) -> Result<Vec<PgRow>> {
        self.fetch(&self.main, query).await.map_err(|error| self.failed(error, entries))
    }

    /// The same on the connection for renewals.
    pub async fn renew(&self, query: Statement<'_>, entries: usize) -> Result<Vec<PgRow>> {
        self.fetch(&self.renewals, query).await.map_err(|error| self.failed(error, entries))
    }

    /// A statement that only reads: if it fails because a connection was broken, it is made again.
    pub async fn look<'q>(&self, query: impl Fn() -> Statement<'q>) -> Result<Vec<PgRow>> {
        match self.fetch(&self.main, query()).await {
            Err(Failed::Broken(_)) => self.fetch(&self.main, query()).await,
            fetched => fetched,
        }
        .map_err(|error| self.failed(error, 1))
    }

    async fn fetch(&self, lane: &Lane<PgConnection>, query: Statement<'_>) -> Result<Vec<PgRow>, Failed> {
        let mut taken: Taken<'_, PgConnection> = lane.take(self.connect()).await.map_err(Failed::Connect)?;
        let in_transaction = self.in_transactions.load(Ordering::Relaxed);
        let fetched = match in_transaction {
            true => fetch_in_transaction(&mut taken.connection, query).await,
            false => query.fetch_all(&mut taken.connection).await,
        };
        match fetched {
            Ok(rows) => {
                taken.put_back();
                Ok(rows)
            }
            Err(error @ sqlx::Error::Database(_)) => {
                // There may be no room on the server for another.
                if !in_transaction && !is_fatal(&error) {
                    taken.put_back();
                }
                Err(Failed::Refused(error))
            }
            Err(error) => {
                lane.clear();
                Err(Failed::Broken(error))
            }
        }
    }

    fn failed(&self, failed: Failed, entries: usize) -> Error {
        match failed {
            Failed::Connect(error) => error,
            Failed::Broken(error) => self.explain(error),
            Failed::Refused(error) => {
                let locked = code(&error).as_deref() == Some(LOCK_NOT_AVAILABLE);
                if code(&error).is_some_and(|code| POOLED.contains(&&*code)) {
                    self.use_transactions();
                }
                match self.explain(error) {
                    // Not transient: the others are to be tried without the one that is locked.
                    Error::Store { reason, .. } if locked && entries > 1 => Error::permanent(STORE, reason),
                    error => error,
                }
            }
        }
    }

    fn refuse(&self, why: &str) -> Error {
        Error::permanent(STORE, format!("{} {why}", self.place))
    }

    /// What the driver said, and what it means here.
    pub fn explain(&self, error: sqlx::Error) -> Error {
        let place = &self.place;
        match &error {
            sqlx::Error::Database(said) => {
                let (transient, meaning) = meaning(&said.code().unwrap_or_default());
                let reason = format!("{place} {meaning} (PostgreSQL: {})", said.message());
                if transient { Error::transient(STORE, reason) } else { Error::permanent(STORE, reason) }
            }
            sqlx::Error::Configuration(why) => Error::permanent(STORE, format!("{place}: {why}")),
            sqlx::Error::Tls(why) => Error::permanent(STORE, format!("{place}: no TLS connection: {why}")),
            // The connection, not the database: the next call gets another.
            _ => Error::transient(STORE, format!("{place}: {error}")),
        }
    }
}

/// The server's process for a connection.
pub(super) async fn backend_of<'e>(connection: impl sqlx::PgExecutor<'e>) -> sqlx::Result<i32> {
    sqlx::raw_sql("select pg_backend_pid()").fetch_one(connection).await?.try_get(0)
}

async fn fetch_in_transaction(connection: &mut PgConnection, query: Statement<'_>) -> sqlx::Result<Vec<PgRow>> {
    let mut transaction = connection.begin_with(BEGIN).await?;
    let rows = query.persistent(false).fetch_all(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(rows)
}

fn place(options: &PgConnectOptions) -> String {
    let database = options.get_database().unwrap_or_else(|| options.get_username());
    match options.get_socket() {
        Some(socket) => format!("{}/{database}", socket.display()),
        None => format!("{}:{}/{database}", options.get_host(), options.get_port()),
    }
}

const LOCK_NOT_AVAILABLE: &str = "55P03";

/// A prepared statement that isn't there, or is there already: a pooler is in between.
const POOLED: &[&str] = &["26000", "42P05"];

/// Whether the server has ended the connection with it.
fn is_fatal(error: &sqlx::Error) -> bool {
    let said = error.as_database_error().and_then(|said| said.try_downcast_ref::<PgDatabaseError>());
    said.is_none_or(|said| said.severity() != PgSeverity::Error)
}

fn code(error: &sqlx::Error) -> Option<Arc<str>> {
    error.as_database_error()?.code().map(|code| code.into())
}

/// Whether a retry can help, and what an SQLSTATE means to somebody who only wanted a lock.
fn meaning(code: &str) -> (bool, &'static str) {
    match code {
        "28P01" => (false, "refuses the user or the password"),
        "28000" => (false, "does not let this user in: is there such a role, and does pg_hba.conf allow it?"),
        "3D000" => (false, "does not exist: create the database, or name another"),
        "3F000" => (false, "has no such schema: create it, or name another"),
        "42501" => (false, "does not give this user the right: see `tenure schema` for what is needed"),
        "42P01" => (false, "has no table for the locks any more: create it again with `tenure schema`"),
        "42703" | "42804" | "42883" | "42P10" | "42809" => {
            (false, "has another kind of table in the place of the locks: name another with tenure.table")
        }
        "25006" => (true, "can only be read: is it a standby?"),
        "53300" => (true, "has no connection left"),
        LOCK_NOT_AVAILABLE => (true, "has the row locked by another session"),
        "26000" | "42P05" => (true, "is behind a pooler that changes servers: going on without prepared statements"),
        // Connections, rollbacks, resources, objects in use, an operator, the system, PostgreSQL itself.
        _ if ["08", "40", "53", "55", "57", "58", "XX"].contains(&code.get(..2).unwrap_or_default()) => {
            (true, "could not do it now")
        }
        _ => (false, "refused"),
    }
}
