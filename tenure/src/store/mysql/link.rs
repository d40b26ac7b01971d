//! The connections, and what errors mean.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlDatabaseError, MySqlRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Executor as _, Row as _};

use super::statements::{Call, ENTRIES, IDLE, SETUP, Statements};
use super::{CALLS, STORE, Table};
use crate::error::{Error, Result};
use crate::store::lanes::{Failed, Lane, why_unconnected};
use crate::store::url::Identifier;

/// The first versions with `skip locked` and `json_table`.
const OLDEST_MYSQL: (u32, u32, u32) = (8, 0, 4);
const OLDEST_MARIADB: (u32, u32, u32) = (10, 6, 0);

/// What a packet has besides the entries, amply.
const PACKET_HEAD: usize = 1024;

/// What was said to a call.
pub(super) struct Answered {
    /// Of the entries that all went well with.
    pub done: MySqlRow,
    /// Of the others, if there are any.
    pub rest: Vec<MySqlRow>,
}

/// Connections to one server.
pub(super) struct Link {
    pub options: MySqlConnectOptions,
    pub statements: Statements,
    /// Where the server is, for people.
    pub place: String,
    main: Lane<MySqlConnection>,
    renewals: Lane<MySqlConnection>,
    /// How many bytes of entries the server takes at a time.
    room: AtomicUsize,
}

impl Link {
    pub fn new(options: MySqlConnectOptions, table: &Table) -> Self {
        // The session is set up by ours alone, and statements are not for the application's log.
        let options = options
            .set_names(false)
            .timezone(None)
            .pipes_as_concat(false)
            .no_engine_substitution(false)
            .disable_statement_logging();
        Self {
            place: place(&options, table),
            options,
            statements: Statements::new(table),
            main: Lane::new(2 * CALLS),
            renewals: Lane::new(1),
            room: AtomicUsize::new(usize::MAX),
        }
    }

    /// Opens the first connection and the one for renewals, and makes the table.
    pub async fn open(&self) -> Result<()> {
        let mut main = self.main.take(self.connect()).await?;
        self.check_server(&mut main.connection).await?;
        self.check_table(&mut main.connection).await?;
        main.put_back();
        self.renewals.take(self.connect()).await?.put_back();
        Ok(())
    }

    async fn connect(&self) -> Result<MySqlConnection> {
        let mut connection = self.options.connect().await.map_err(|error| self.explain(why_unconnected(error)))?;
        sqlx::raw_sql(SETUP).execute(&mut connection).await.map_err(|error| self.explain(error))?;
        Ok(connection)
    }

    /// Refuses a server that is too old, or whose clock is not in UTC though it was told to be.
    async fn check_server(&self, connection: &mut MySqlConnection) -> Result<()> {
        let explain = |error| self.explain(error);
        let found = raw(&self.statements.probe).fetch_one(connection).await.map_err(explain)?;
        let version: String = found.try_get_unchecked("version").map_err(explain)?;
        if let Some(why) = too_old(&version) {
            return Err(self.refuse(&why));
        }
        let off_utc: i64 = found.try_get_unchecked("off_utc").map_err(explain)?;
        if off_utc > 1 {
            return Err(self.refuse("does not keep the session's time zone: is there a proxy that changes sessions?"));
        }
        let packet: u64 = found.try_get_unchecked("packet").map_err(explain)?;
        let room = usize::try_from(packet).unwrap_or(usize::MAX).saturating_sub(PACKET_HEAD);
        self.room.store(room, Ordering::Relaxed);
        Ok(())
    }

    /// Makes the table if it is missing. It is looked for by using it: that needs no other right than those to use it.
    async fn check_table(&self, connection: &mut MySqlConnection) -> Result<()> {
        let explain = |error| self.explain(error);
        let checked = raw(&self.statements.check).execute(&mut *connection).await;
        if checked.as_ref().is_err_and(|error| number(error) == Some(NO_TABLE)) {
            raw(&self.statements.make).execute(&mut *connection).await.map_err(explain)?;
            raw(&self.statements.check).execute(&mut *connection).await.map_err(explain)?;
        } else {
            checked.map_err(explain)?;
        }
        match raw(&self.statements.kind).fetch_optional(connection).await.map_err(explain)? {
            Some(row) => self.check_kind(&row),
            None => Ok(()),
        }
    }

    /// Refuses a table without transactions, or one that folds names.
    fn check_kind(&self, row: &MySqlRow) -> Result<()> {
        let text = |column| row.try_get_unchecked::<String, _>(column).map_err(|error| self.explain(error));
        let (engine, name) = (text(0)?, text(1)?);
        if !engine.eq_ignore_ascii_case("innodb") {
            return Err(self.refuse(&format!("has the table in the engine {engine}: it must be InnoDB")));
        }
        if !name.eq_ignore_ascii_case("varbinary") {
            return Err(self.refuse(&format!("has names as {name} in the table: they must be varbinary(255)")));
        }
        Ok(())
    }

    /// Makes a call for `count` entries, which are one JSON array.
    pub async fn call(&self, call: &Call, entries: String, count: usize) -> Result<Answered> {
        self.carry_out(&self.main, call, entries, count).await
    }

    /// The same on the connection for renewals.
    pub async fn renew(&self, call: &Call, entries: String, count: usize) -> Result<Answered> {
        self.carry_out(&self.renewals, call, entries, count).await
    }

    async fn carry_out(
        &self,
        lane: &Lane<MySqlConnection>,
        call: &Call,
        entries: String,
        count: usize,
    ) -> Result<Answered> {
        if entries.len() > self.room.load(Ordering::Relaxed) {
            // Not transient: the caller tries again with fewer.
            return Err(self.refuse("takes no packet of that size: raise its max_allowed_packet"));
        }
        let said = self.on(lane, async |connection| {
            let bind = sqlx::query(ENTRIES).bind(entries).bind(i64::try_from(count).unwrap_or(i64::MAX));
            bind.execute(&mut *connection).await?;
            let done = raw(&call.text).fetch_one(&mut *connection).await?;
            let is_all = !done.try_get_unchecked::<bool, _>(2)?;
            let rest = if is_all { Vec::new() } else { raw(&call.rest).fetch_all(connection).await? };
            Ok(Answered { done, rest })
        });
        said.await.map_err(|error| self.failed(error, count))
    }

    /// Carries out the statement that forgets unused names.
    pub async fn prune(&self, idle: i64) -> Result<Vec<MySqlRow>> {
        let pruned = self.on(&self.main, async |connection| {
            sqlx::query(IDLE).bind(idle).execute(&mut *connection).await?;
            raw(&self.statements.prune).fetch_all(connection).await
        });
        pruned.await.map_err(|error| self.failed(error, 1))
    }

    /// A statement that only reads: if it fails because a connection was broken, it is made again.
    pub async fn look<'q, Q>(&self, query: impl Fn() -> Q) -> Result<Vec<MySqlRow>>
    where
        Q: sqlx::Execute<'q, sqlx::MySql> + 'q,
    {
        let fetch = async || self.on(&self.main, async |connection| connection.fetch_all(query()).await).await;
        match fetch().await {
            Err(Failed::Broken(_)) => fetch().await,
            fetched => fetched,
        }
        .map_err(|error| self.failed(error, 1))
    }

    /// After an error of any kind the connection is dropped: a transaction may be open in it.
    async fn on<T>(
        &self,
        lane: &Lane<MySqlConnection>,
        call: impl AsyncFnOnce(&mut MySqlConnection) -> sqlx::Result<T>,
    ) -> Result<T, Failed> {
        let mut taken = lane.take(self.connect()).await.map_err(Failed::Connect)?;
        match call(&mut taken.connection).await {
            Ok(answer) => {
                taken.put_back();
                Ok(answer)
            }
            Err(error @ sqlx::Error::Database(_)) if !is_end(&error) => Err(Failed::Refused(error)),
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
                let alone = matches!(number(&error), Some(LOCK_WAIT_TIMEOUT));
                match self.explain(error) {
                    // Not transient: the others are to be tried without the one that is locked.
                    Error::Store { reason, .. } if alone && entries > 1 => Error::permanent(STORE, reason),
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
                let (transient, meaning) = meaning(number(&error).unwrap_or_default());
                let reason = format!("{place} {meaning} (it says: {})", said.message());
                if transient { Error::transient(STORE, reason) } else { Error::permanent(STORE, reason) }
            }
            // The driver's own words are about its features.
            sqlx::Error::Configuration(why) if why.to_string().contains("RSA") => {
                self.refuse("wants this user's password over TLS only: connect with sslmode=required")
            }
            sqlx::Error::Configuration(why) => Error::permanent(STORE, format!("{place}: {why}")),
            sqlx::Error::Tls(why) => Error::permanent(STORE, format!("{place}: no TLS connection: {why}")),
            // The connection, not the database: the next call gets another.
            _ => Error::transient(STORE, format!("{place}: {error}")),
        }
    }
}

/// A text of several statements, in the protocol that takes such. It is safe: only checked identifiers were put into it.
pub(super) fn raw(text: &Arc<str>) -> sqlx::RawSql {
    sqlx::raw_sql(AssertSqlSafe(text.clone()))
}

fn place(options: &MySqlConnectOptions, table: &Table) -> String {
    let schema = table.schema.as_ref().map(Identifier::as_str);
    let database = schema.or(options.get_database()).unwrap_or_default();
    match options.get_socket() {
        Some(socket) => format!("{}/{database}", socket.display()),
        None => format!("{}:{}/{database}", options.get_host(), options.get_port()),
    }
}

/// What is wrong with a version such as `8.4.2` or `10.11.6-MariaDB-log`.
fn too_old(version: &str) -> Option<String> {
    let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    let found = (next(), next(), next());
    let (kind, oldest) = match version.contains("MariaDB") {
        true => ("MariaDB", OLDEST_MARIADB),
        false => ("MySQL", OLDEST_MYSQL),
    };
    let (major, minor, patch) = oldest;
    (found < oldest).then(|| format!("is {kind} {version}: {major}.{minor}.{patch} or later is needed"))
}

const NO_TABLE: u16 = 1146;
const LOCK_WAIT_TIMEOUT: u16 = 1205;

fn number(error: &sqlx::Error) -> Option<u16> {
    let error = error.as_database_error()?.try_downcast_ref::<MySqlDatabaseError>()?;
    Some(error.number())
}

/// The server has ended the connection, and seldom one alone: it shuts down, or somebody killed it.
fn is_end(error: &sqlx::Error) -> bool {
    matches!(number(error), Some(1053 | 1927 | 4031))
}

/// Whether a retry can help, and what an error's number means to somebody who only wanted a lock.
fn meaning(number: u16) -> (bool, &'static str) {
    match number {
        1045 | 1698 => (false, "refuses the user or the password"),
        1044 => (false, "does not let this user into the database: grant the rights, or name another"),
        1049 => (false, "does not exist: create the database, or name another"),
        1046 => (false, "names no database: add one to the URL, or give tenure.schema"),
        1142 | 1143 | 1227 => (false, "does not give this user the right: see `tenure schema` for what is needed"),
        NO_TABLE => (false, "has no table for the locks any more: create it again with `tenure schema`"),
        1054 | 1136 | 1264 | 1265 | 1292 | 1364 | 1366 | 1406 => {
            (false, "has another kind of table in the place of the locks: name another with tenure.table")
        }
        1040 | 1203 | 1226 => (true, "has no connection left"),
        LOCK_WAIT_TIMEOUT => (true, "has the row or the table locked by another session"),
        1213 => (true, "undid it for another session's sake"),
        1290 | 1792 | 1836 => (true, "can only be read: is it a replica?"),
        1053 | 1927 | 4031 => (true, "has ended the connection"),
        1153 => (false, "takes no packet of that size: raise its max_allowed_packet"),
        1665 => (false, "has binlog_format=STATEMENT, which can't carry what Tenure writes: set it to ROW or MIXED"),
        // Memory, disk, interruptions, statements out of time, a cluster that has no majority.
        1020 | 1021 | 1037 | 1038 | 1041 | 1047 | 1129 | 1158..=1161 | 1180 | 1206 | 1317 | 1969 | 3024 => {
            (true, "could not do it now")
        }
        _ => (false, "refused"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_lack_something_are_refused() {
        for good in ["8.0.4", "8.0.36-0ubuntu0.22.04.1", "9.7.0", "10.6.0-MariaDB", "11.4.2-MariaDB-log"] {
            assert_eq!(too_old(good), None, "{good}");
        }
        for bad in ["5.7.44-log", "8.0.3", "10.5.22-MariaDB", "5.5.5", ""] {
            assert!(too_old(bad).is_some_and(|why| why.contains("or later is needed")), "{bad}");
        }
    }
}
