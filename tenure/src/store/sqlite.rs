//! One file on one machine, shared by its processes.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use self::answers::{findings, found, number, read};
use self::file::DatabaseFile;
use self::lane::{Database, Lane};
use self::statements::{Statements, statement};
use super::entries::{ClaimEntry, EndedEntry, RenewalEntry, json};
use super::seen::{Found, Seen, micros};
use super::url::{Identifier, StoreUrl};
use super::{About, Claim, Ended, Finding, Outcome, Page, Renewal, Renewed, Store};
use crate::error::{Error, Result};
use crate::record::{Name, Record, Ttl};

mod answers;
mod file;
mod lane;
mod statements;
#[cfg(test)]
mod tests;

const STORE: &str = "sqlite";

const TABLE: &str = "tenure_locks";

const BATCH: usize = 4096;

/// How long a statement waits while other processes write. Shorter than the five seconds that a call may take.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);

/// That wait, and ample time for the work itself, which takes milliseconds.
const STATEMENT_LIMIT: Duration = Duration::from_secs(3);

/// Nothing tells a process that another one wrote the file. A refused claim takes about 0.1 ms, so that twenty a second
/// cost a waiter 0.2 % of a core, and people don't notice the wait.
const POLL: Duration = Duration::from_millis(50);

/// A store in an SQLite file, which is made if it is missing. It may be a file that holds other tables too.
///
/// Any number of processes may use the file at once, on one machine: a path on a network file system is refused.
/// The file is put into WAL mode. Beside it there are then two more, `-wal` and `-shm`; the three belong together. The
/// process keeps the file open when the store is dropped, until it ends: closing it would cost more than all its use.
pub struct SqliteStore {
    database: Database,
    main: Lane,
    renewals: Lane,
}

impl SqliteStore {
    /// A store in the file at `path`, in the table `tenure_locks`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `path` is empty, `:memory:` or not UTF-8.
    pub fn new(path: impl AsRef<Path>) -> Result<Self> {
        let file = DatabaseFile::new(path.as_ref())?;
        let statements = Statements::new(&Identifier::new(TABLE)?);
        Ok(Self { database: Database { file, statements }, main: Lane::default(), renewals: Lane::default() })
    }

    /// The same in another table.
    #[must_use]
    pub fn with_table(mut self, table: &Identifier) -> Self {
        self.database.statements = Statements::new(table);
        self
    }

    pub(super) fn from_url(url: &StoreUrl) -> Result<Arc<dyn Store>> {
        url.refuse_options()?;
        let store = Self::new(url.path()?)?;
        Ok(Arc::new(match url.identifier("table")? {
            Some(table) => store.with_table(&table),
            None => store,
        }))
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SqliteStore({:?})", self.database.file.path())
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.renewals.park(&self.database);
        self.main.park(&self.database);
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn about(&self) -> About {
        About {
            store: STORE,
            place: Some(TABLE.into()),
            push: false,
            poll: POLL,
            calls: 1,
            batch: BATCH,
            statement_limit: STATEMENT_LIMIT,
            min_ttl: Ttl::MIN,
            durability: "survives the end of any process; a crash of the machine may undo the last moments, but ends \
                         all holders too, and tokens follow the clock",
            caveats: vec![
                "it excludes the processes of one machine only".into(),
                "the machine's clock decides: setting it forward ends terms early, setting it back keeps the names of \
                 dead holders closed for longer"
                    .into(),
                "deleting or replacing the file while it is in use forgets who holds what".into(),
            ],
        }
    }

    async fn open(&self) -> Result<()> {
        self.main.open(&self.database).await
    }

    async fn claim(&self, claims: &[Claim]) -> Result<Vec<Result<Outcome>>> {
        let entries = json(STORE, claims.iter().map(ClaimEntry::new))?;
        let claim = statement(&self.database.statements.claim).bind(entries);
        let found = found(&self.main.fetch(&self.database, claim).await?, claims.len())?;
        Ok(found.into_iter().map(Found::outcome).collect())
    }

    async fn renew(&self, terms: &[Renewal]) -> Result<Vec<Result<Renewed>>> {
        let entries = json(STORE, terms.iter().map(RenewalEntry::new))?;
        let renew = statement(&self.database.statements.renew).bind(entries);
        let found = found(&self.renewals.fetch(&self.database, renew).await?, terms.len())?;
        Ok(found.into_iter().zip(terms).map(|(found, term)| found.renewed(term)).collect())
    }

    async fn release(&self, terms: &[Ended]) -> Result<Vec<Result<bool>>> {
        let entries = json(STORE, terms.iter().map(EndedEntry::new))?;
        let mark = getrandom::u64().map_err(|error| Error::permanent(STORE, error))?.cast_signed();
        let release = statement(&self.database.statements.release).bind(entries).bind(mark);
        let freed: Vec<usize> = read(&self.main.fetch(&self.database, release).await?)?;
        let mut answers: Vec<_> = terms.iter().map(|_| Ok(false)).collect();
        freed.into_iter().for_each(|entry| answers[entry] = Ok(true));
        Ok(answers)
    }

    async fn list(&self, page: &Page) -> Result<Vec<Record>> {
        let after = page.after.as_ref().map_or("", Name::as_str);
        let list = statement(&self.database.statements.list)
            .bind(after.max(&page.prefix))
            .bind(after)
            .bind(page.end())
            .bind(i64::try_from(page.limit).unwrap_or(i64::MAX));
        let seen: Vec<Seen> = read(&self.main.fetch(&self.database, list).await?)?;
        seen.into_iter().filter_map(|seen| seen.record().transpose()).collect()
    }

    async fn prune(&self, idle: Duration) -> Result<u64> {
        let prune = statement(&self.database.statements.prune).bind(micros(idle).cast_signed());
        let rows = self.main.fetch(&self.database, prune).await?;
        rows.first().map_or(Ok(0), |row| number(row, 0))
    }

    fn schema(&self) -> Option<String> {
        Some(self.database.statements.create.as_ref().into())
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        let rows = self.main.fetch(&self.database, statement(&self.database.statements.examine)).await?;
        let mut findings = rows.first().map_or(Ok(Vec::new()), findings)?;
        findings.extend(self.database.file.findings());
        Ok(findings)
    }
}
