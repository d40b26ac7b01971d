//! A table in PostgreSQL, 13 or later.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use sqlx::Row as _;
use sqlx::postgres::{PgConnectOptions, PgPool, PgRow};
use tokio::sync::mpsc;

use self::link::Link;
use self::listener::Listener;
use self::statements::{Statements, statement};
use super::seen::{Found, Seen, micros, unreadable};
use super::url::{Identifier, StoreUrl};
use super::{About, Changes, Claim, Ended, Finding, Grant, Outcome, Page, Renewal, Renewed, Store};
use crate::error::{Error, Result};
use crate::record::{Name, Record, Token, Ttl};

mod examine;
mod hold;
mod link;
mod listener;
mod statements;

pub use self::hold::hold_in;

const STORE: &str = "postgres";

const TABLE: &str = "tenure_locks";

const BATCH: usize = 4096;

/// Claims, and as many releases, that are under way at once: two, so that the next batch gathers while one commits.
const CALLS: usize = 2;

/// Waiting for a name that another session is inserting is limited by the statement itself, to a quarter of a second.
const STATEMENT_LIMIT: Duration = Duration::from_secs(4);

/// A backstop: releases are told by notification.
const POLL_WITH_PUSH: Duration = Duration::from_secs(1);

/// A refused look costs the server a fraction of a millisecond.
const POLL_ALONE: Duration = Duration::from_millis(100);

/// A name whose row was locked when it was claimed is looked at again after this time: nobody will tell of its release.
const LOOK_AGAIN: Duration = Duration::from_millis(25);

/// The driver's options that a URL may have.
const OPTIONS: &[&str] = &[
    "sslmode",
    "ssl-mode",
    "sslrootcert",
    "ssl-root-cert",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
    "options",
    "statement-cache-capacity",
];

/// A store in a table of a PostgreSQL database, which is made if it is missing.
///
/// It opens connections of its own, on the engine's thread: up to four for claims, releases and lists, one that is reserved
/// for renewals, and one that listens for releases.
pub struct PostgresStore {
    link: Link,
    table: Table,
    mode: OnceLock<Mode>,
    /// Names to look at again, for whoever reads the changes.
    again: Again,
}

/// How this server can be talked to.
#[derive(Clone, Copy, Debug)]
struct Mode {
    /// Notifications arrive.
    push: bool,
}

/// Names whose release will not be notified.
struct Again {
    send: mpsc::UnboundedSender<Vec<Name>>,
    receive: std::sync::Mutex<Option<mpsc::UnboundedReceiver<Vec<Name>>>>,
}

/// Where the records are.
#[derive(Clone, Debug)]
struct Table {
    schema: Option<Identifier>,
    name: Identifier,
}

impl Table {
    /// As it stands in SQL. An identifier has nothing in it that would have to be escaped.
    fn quoted(&self) -> String {
        match &self.schema {
            Some(_) => format!("{}.\"{}\"", self.quoted_schema(), self.name.as_str()),
            None => format!("\"{}\"", self.name.as_str()),
        }
    }

    fn quoted_schema(&self) -> String {
        self.schema.as_ref().map_or_else(String::new, |schema| format!("\"{}\"", schema.as_str()))
    }
}

impl PostgresStore {
    /// A store in the table `tenure_locks` of the database that `options` lead to.
    ///
    /// # Errors
    /// None today; a table that is in the way is found when the store is opened.
    pub fn new(options: PgConnectOptions) -> Result<Self> {
        Ok(Self::in_table(options, Table { schema: None, name: Identifier::new(TABLE)? }))
    }

    /// The same with the settings of a pool that you have: server, user, password, TLS. Only the settings: the pool's
    /// connections stand still when your runtime does, and renewals must not.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn like(pool: &PgPool) -> Result<Self> {
        Self::new(PgConnectOptions::clone(&pool.connect_options()))
    }

    /// The same in another table, and in `schema` if it is given: else in the first of the user's search path.
    #[must_use]
    pub fn with_table(self, schema: Option<&Identifier>, table: &Identifier) -> Self {
        Self::in_table(self.link.options, Table { schema: schema.cloned(), name: table.clone() })
    }

    fn in_table(options: PgConnectOptions, table: Table) -> Self {
        let (send, receive) = mpsc::unbounded_channel();
        let again = Again { send, receive: std::sync::Mutex::new(Some(receive)) };
        Self { link: Link::new(options, Statements::new(&table)), table, mode: OnceLock::new(), again }
    }

    pub(super) fn from_url(url: &StoreUrl) -> Result<Arc<dyn Store>> {
        url.check_options(OPTIONS)?;
        let options = url.for_driver().parse().map_err(|error| url.refuse(format!("can't be read: {error}")))?;
        let table = url.identifier("table")?.map_or_else(|| Identifier::new(TABLE), Ok)?;
        Ok(Arc::new(Self::in_table(options, Table { schema: url.identifier("schema")?, name: table })))
    }

    fn push(&self) -> bool {
        self.mode.get().is_none_or(|mode| mode.push)
    }

    /// Has names that were refused, and whose release nobody will tell of, looked at again soon.
    fn look_again(&self, names: Vec<Name>) {
        if !names.is_empty() && self.push() {
            let send = self.again.send.clone();
            tokio::spawn(async move {
                tokio::time::sleep(LOOK_AGAIN).await;
                // Nobody listens any more: nobody waits.
                let _ = send.send(names);
            });
        }
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresStore({}, {})", self.link.place, self.table.quoted())
    }
}

#[async_trait]
impl Store for PostgresStore {
    fn about(&self) -> About {
        About {
            store: STORE,
            place: Some(self.table.quoted()),
            push: self.push(),
            poll: if self.push() { POLL_WITH_PUSH } else { POLL_ALONE },
            calls: CALLS,
            batch: BATCH,
            statement_limit: STATEMENT_LIMIT,
            min_ttl: Ttl::MIN,
            durability: "survives a crash of the server, as its synchronous_commit says; a fail-over to an asynchronous \
                         replica may undo the last moments",
            caveats: vec![
                "the server's clock decides: setting it forward, or failing over to a server whose clock is ahead, ends \
                 terms early"
                    .into(),
                "a fail-over that loses commits may lose a grant: two may then hold a name, and only a fence tells them \
                 apart"
                    .into(),
            ],
        }
    }

    async fn open(&self) -> Result<()> {
        self.link.open().await?;
        let listener = Listener::probe(&self.link, &self.table).await?;
        let _ = self.mode.set(Mode { push: listener.is_some() });
        *self.link.listener.lock().await = listener;
        Ok(())
    }

    async fn claim(&self, claims: &[Claim]) -> Result<Vec<Result<Outcome>>> {
        let texts = |text: fn(&Claim) -> &str| claims.iter().map(text).collect::<Vec<_>>();
        let claim = statement(&self.link.statements.claim)
            .bind(texts(|claim| claim.name.as_str()))
            .bind(claims.iter().map(|claim| claim.lease.to_string()).collect::<Vec<_>>())
            .bind(texts(|claim| &claim.owner))
            .bind(claims.iter().map(|claim| claim.data.as_deref()).collect::<Vec<_>>())
            .bind(claims.iter().map(|claim| micros(claim.ttl.get()).cast_signed()).collect::<Vec<_>>())
            .bind(claims.iter().map(|claim| micros(claim.grace).cast_signed()).collect::<Vec<_>>())
            .bind(claims.iter().map(|claim| claim.waits).collect::<Vec<_>>());
        let answers = answers(&self.link.call(claim, claims.len()).await?, claims, |claim| &claim.name)?;
        let untold = claims.iter().zip(&answers).filter(|(claim, answer)| claim.waits && answer.is_untold());
        self.look_again(untold.map(|(claim, _)| claim.name.clone()).collect());
        Ok(answers.into_iter().map(|answer| answer.found.outcome()).collect())
    }

    async fn renew(&self, terms: &[Renewal]) -> Result<Vec<Result<Renewed>>> {
        let renew = statement(&self.link.statements.renew)
            .bind(terms.iter().map(|term| term.name.as_str()).collect::<Vec<_>>())
            .bind(terms.iter().map(|term| term.lease.to_string()).collect::<Vec<_>>())
            .bind(terms.iter().map(|term| term.first.0.cast_signed()).collect::<Vec<_>>())
            .bind(terms.iter().map(|term| micros(term.ttl.get()).cast_signed()).collect::<Vec<_>>())
            .bind(terms.iter().map(|term| term.rotate).collect::<Vec<_>>());
        let answers = answers(&self.link.renew(renew, terms.len()).await?, terms, |term| &term.name)?;
        let renewed = |(answer, term): (Answer, &Renewal)| match answer.flag {
            true => Err(locked(&term.name)),
            false => answer.found.renewed(term),
        };
        Ok(answers.into_iter().zip(terms).map(renewed).collect())
    }

    async fn release(&self, terms: &[Ended]) -> Result<Vec<Result<bool>>> {
        let release = statement(&self.link.statements.release)
            .bind(terms.iter().map(|term| term.name.as_str()).collect::<Vec<_>>())
            .bind(terms.iter().map(|term| term.lease.to_string()).collect::<Vec<_>>())
            .bind(terms.iter().map(|term| term.first.map(|first| first.0.cast_signed())).collect::<Vec<_>>())
            .bind(terms.iter().map(|term| term.evicted_by.as_deref()).collect::<Vec<_>>());
        let mut answers: Vec<_> = terms.iter().map(|_| Ok(false)).collect();
        for row in self.link.call(release, terms.len()).await? {
            let (entry, freed, is_locked): (_, bool, bool) = (entry(&row)?, get(&row, 1)?, get(&row, 2)?);
            answers[entry] = if is_locked { Err(locked(&terms[entry].name)) } else { Ok(freed) };
        }
        Ok(answers)
    }

    async fn list(&self, page: &Page) -> Result<Vec<Record>> {
        let after = page.after.as_ref().map_or("", Name::as_str);
        let list = || {
            statement(&self.link.statements.list)
                .bind(after.max(&page.prefix).to_owned())
                .bind(after.to_owned())
                .bind(page.end())
                .bind(i64::try_from(page.limit).unwrap_or(i64::MAX))
        };
        let rows = self.link.look(list).await?;
        let seen = rows.iter().map(|row| seen(get(row, 0)?)?.record());
        seen.filter_map(Result::transpose).collect()
    }

    async fn prune(&self, idle: Duration) -> Result<u64> {
        let prune = statement(&self.link.statements.prune).bind(micros(idle).cast_signed());
        let rows = self.link.call(prune, 1).await?;
        rows.first().map_or(Ok(0), |row| get(row, 0).map(i64::cast_unsigned))
    }

    async fn changes(&self) -> Result<Option<Box<dyn Changes>>> {
        let listener = self.link.listener.lock().await.take();
        let again = self.again.receive.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        Ok(listener.zip(again).map(|(listener, again)| listener.with(again)))
    }

    fn schema(&self) -> Option<String> {
        Some(self.link.statements.create.as_ref().into())
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        let rows = self.link.look(|| statement(&self.link.statements.examine)).await?;
        rows.first().map_or(Ok(Vec::new()), |row| examine::findings(row, self.push()))
    }
}

/// What has become of an entry.
struct Answer {
    found: Found,
    /// For a claim: its asker will be told of a release. For a renewal: somebody else has the row locked.
    flag: bool,
}

impl Answer {
    /// Refused, and nobody will tell when the name is free.
    fn is_untold(&self) -> bool {
        matches!(self.found, Found::Other(_)) && !self.flag
    }
}

/// What has become of each of the entries; a name without a row has been forgotten, or is just being made.
fn answers<E>(rows: &[PgRow], entries: &[E], name: impl Fn(&E) -> &Name) -> Result<Vec<Answer>> {
    let mut answers: Vec<_> = entries.iter().map(|_| Answer { found: Found::Other(None), flag: false }).collect();
    for row in rows {
        let token: Option<i64> = get(row, 2)?;
        let found = match token {
            Some(token) => Found::Ours(Grant::new(Token(token.cast_unsigned()))),
            None => Found::Other(Some(Box::new(seen(get(row, 3)?)?))),
        };
        // What was inserted is known by its name alone. Entries come in order of names.
        let place = match get::<Option<&str>>(row, 1)? {
            Some(made) => entries.binary_search_by(|entry| name(entry).as_str().cmp(made)).ok(),
            None => Some(entry(row)?),
        };
        if let Some(answer) = place.and_then(|place| answers.get_mut(place)) {
            *answer = Answer { found, flag: get(row, 4)? };
        }
    }
    Ok(answers)
}

/// The number of the entry that a row is about; SQL counts from one.
fn entry(row: &PgRow) -> Result<usize> {
    let number: i64 = get(row, 0)?;
    usize::try_from(number - 1).map_err(|error| unreadable(STORE, error))
}

fn seen(json: &str) -> Result<Seen> {
    serde_json::from_str(json).map_err(|error| unreadable(STORE, error))
}

fn get<'r, T>(row: &'r PgRow, column: usize) -> Result<T>
where
    T: sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
{
    row.try_get(column).map_err(|error| unreadable(STORE, error))
}

fn locked(name: &Name) -> Error {
    Error::transient(STORE, format!("another session has the row of {name} locked"))
}
