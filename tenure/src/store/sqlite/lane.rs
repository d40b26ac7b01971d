//! A connection of its own for each kind of call, opened when it is needed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex as StdMutex, PoisonError};
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteRow, SqliteSynchronous};
use sqlx::{AssertSqlSafe, ConnectOptions, Row, SqliteConnection};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::file::{BUSY, DatabaseFile, FileId, result_code};
use super::statements::{Statement, Statements, statement};
use super::{BATCH, BUSY_TIMEOUT};
use crate::error::Result;

/// How many pages the WAL gathers before they are moved to the database, which costs two to four fsyncs.
///
/// The first process that opens the file has to read all of it: with SQLite's own 1000 pages that took up to 5 ms of
/// its start, with 250 one.
const WAL_PAGES: &str = "250";

/// Between attempts to make the table while other processes do.
const RETRY_PAUSE: Duration = Duration::from_millis(10);

/// One connection a file that is not in use and stays open until the process ends.
///
/// Closing a file's last connection moves the WAL to the database and deletes it: two fsyncs, and two more for the
/// next process, which has to make a new WAL. A process that just ends, ends without.
static PARKED: StdMutex<BTreeMap<PathBuf, Link>> = StdMutex::new(BTreeMap::new());

/// The file and the SQL for it.
pub(super) struct Database {
    pub file: DatabaseFile,
    pub statements: Statements,
}

/// A place for one connection; calls on a lane are made one after the other.
#[derive(Default)]
pub(super) struct Lane(Mutex<Option<Link>>);

impl Lane {
    /// Runs one statement.
    ///
    /// The connection is away from its place meanwhile. If the call fails, or its future is dropped, it doesn't come
    /// back, and the next call opens another instead of waiting for what the old one is still doing.
    pub async fn fetch(&self, database: &Database, query: Statement<'_>) -> Result<Vec<SqliteRow>> {
        let mut place = self.0.lock().await;
        let mut link = match place.take() {
            Some(link) => link,
            None => Link::open(database).await?,
        };
        let rows = query.fetch_all(&mut link.connection).await.map_err(|error| database.file.explain(error))?;
        // SQLite goes on with a deleted file, while others claim the same names in a new one. Looking afterwards
        // finds that whenever it happened; what the old file answered doesn't count.
        if !link.is_on(database.file.path()) {
            return Err(database.file.replaced());
        }
        *place = Some(link);
        Ok(rows)
    }

    /// Opens the connection, if there is none.
    pub async fn open(&self, database: &Database) -> Result<()> {
        let mut place = self.0.lock().await;
        if place.is_none() {
            *place = Some(Link::open(database).await?);
        }
        Ok(())
    }

    /// Keeps the connection for the next store on its file.
    pub fn park(&mut self, database: &Database) {
        if let Some(link) = self.0.get_mut().take() {
            let mut parked = PARKED.lock().unwrap_or_else(PoisonError::into_inner);
            parked.retain(|path, link| link.is_on(path));
            parked.insert(database.file.path().into(), link);
        }
    }
}

/// A connection, and the file that it has open.
struct Link {
    connection: SqliteConnection,
    file: FileId,
}

impl Link {
    /// Opens the file and makes what is missing. While others do the same, SQLite may say that it is busy without
    /// having waited: its busy handler is not asked when the journal mode changes.
    async fn open(database: &Database) -> Result<Self> {
        database.file.check_place()?;
        let started = Instant::now();
        loop {
            match Self::try_open(database).await {
                Err(error) if result_code(&error) == Some(BUSY) && started.elapsed() < BUSY_TIMEOUT => {
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
                opened => return opened.map_err(|error| database.file.explain(error)),
            }
        }
    }

    async fn try_open(database: &Database) -> sqlx::Result<Self> {
        let path = database.file.path();
        let mut link = match Self::unpark(path) {
            Some(link) => link,
            None => Self::connect(path).await?,
        };
        link.make(&database.statements).await?;
        Ok(link)
    }

    fn unpark(path: &Path) -> Option<Self> {
        let link = PARKED.lock().unwrap_or_else(PoisonError::into_inner).remove(path);
        link.filter(|link| link.is_on(path))
    }

    async fn connect(path: &Path) -> sqlx::Result<Self> {
        let before = FileId::of(path).ok();
        let connection = options(path).connect().await?;
        let file = FileId::of(path)?;
        // Replaced meanwhile: nobody can tell which of the two is open.
        if before.is_some_and(|before| before != file) {
            return Err(sqlx::Error::Io(std::io::Error::other("the file was replaced while it was opened")));
        }
        Ok(Self { connection, file })
    }

    async fn make(&mut self, statements: &Statements) -> sqlx::Result<()> {
        let found = statement(&statements.probe).fetch_one(&mut self.connection).await?;
        if found.try_get("made")? && found.try_get("wal")? {
            return Ok(());
        }
        let make = if found.try_get("fresh")? { &statements.make_fresh } else { &statements.make };
        sqlx::raw_sql(AssertSqlSafe(make.clone())).execute(&mut self.connection).await?;
        Ok(())
    }

    fn is_on(&self, path: &Path) -> bool {
        FileId::of(path).is_ok_and(|file| file == self.file)
    }
}

fn options(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .busy_timeout(BUSY_TIMEOUT)
        // No fsync at a commit. A crash of the machine can then undo the last commits, but not damage the file; and it
        // ends all who hold anything in it. Tokens don't fall back: they follow the clock.
        .synchronous(SqliteSynchronous::Normal)
        .pragma("wal_autocheckpoint", WAL_PAGES)
        // A statement commits when its last row was fetched: all must fit, or it would wait with the file locked.
        .row_buffer_size(BATCH + 1)
        .thread_name(|number| format!("tenure-sqlite-{number}"))
        .disable_statement_logging()
}
