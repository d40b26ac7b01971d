//! A table in MySQL, 8 or later, or MariaDB, 10.6 or later.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::Row as _;
use sqlx::mysql::{MySqlConnectOptions, MySqlPool, MySqlRow};

use self::link::{Answered, Link, raw};
use self::statements::{PRUNE_ROUND, statement};
use super::entries::{ClaimEntry, EndedEntry, RenewalEntry, json};
use super::seen::{Found, Seen, micros, unreadable};
use super::url::{Identifier, StoreUrl};
use super::{About, Claim, Ended, Finding, Grant, Outcome, Page, Renewal, Renewed, Store};
use crate::error::{Error, Result};
use crate::record::{Name, Record, Token, Ttl};

mod examine;
mod link;
mod statements;

const STORE: &str = "mysql";

const TABLE: &str = "tenure_locks";

/// Statements look numbers up in lists: from here on that would cost more than the batch saves.
const BATCH: usize = 1024;

/// Claims, and as many releases, that are under way at once: two, so that the next batch gathers while one commits.
const CALLS: usize = 2;

/// A session waits for a lock for a second at the most, and only for a name that another one is inserting.
const STATEMENT_LIMIT: Duration = Duration::from_secs(4);

/// A refused look costs the server a fraction of a millisecond.
const POLL: Duration = Duration::from_millis(100);

/// The driver's options that a URL may have. Not among them: those for character sets and the time zone, which are
/// Tenure's own to set.
const OPTIONS: &[&str] = &[
    "sslmode",
    "ssl-mode",
    "sslca",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "socket",
    "statement-cache-capacity",
];

/// A store in a table of a MySQL or MariaDB database. The table is made if it is missing; the database is not.
///
/// It opens connections of its own, on the engine's thread: up to four for claims, releases and lists, and one that is
/// reserved for renewals. They must be sessions of their own: a proxy that gives each statement another server is not
/// supported.
///
/// Nothing tells of releases: those who wait look again, ten times a second.
pub struct MySqlStore {
    link: Link,
    table: Table,
}

/// Where the records are.
#[derive(Clone, Debug)]
struct Table {
    /// A database: MySQL has no other schemas.
    schema: Option<Identifier>,
    name: Identifier,
}

impl Table {
    /// As it stands in SQL. An identifier has nothing in it that would have to be escaped.
    fn quoted(&self) -> String {
        match &self.schema {
            Some(schema) => format!("`{}`.`{}`", schema.as_str(), self.name.as_str()),
            None => format!("`{}`", self.name.as_str()),
        }
    }
}

impl MySqlStore {
    /// A store in the table `tenure_locks` of the database that `options` lead to.
    ///
    /// A user whose password MySQL keeps as `caching_sha2_password`, its default, needs TLS.
    ///
    /// # Errors
    /// None today; a table that is in the way is found when the store is opened.
    pub fn new(options: MySqlConnectOptions) -> Result<Self> {
        Ok(Self::in_table(options, Table { schema: None, name: Identifier::new(TABLE)? }))
    }

    /// The same with the settings of a pool that you have: server, user, password, TLS. Only the settings: the pool's
    /// connections stand still when your runtime does, and renewals must not.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn like(pool: &MySqlPool) -> Result<Self> {
        Self::new(MySqlConnectOptions::clone(&pool.connect_options()))
    }

    /// The same in another table, and in the database `schema` if it is given.
    #[must_use]
    pub fn with_table(self, schema: Option<&Identifier>, table: &Identifier) -> Self {
        Self::in_table(self.link.options, Table { schema: schema.cloned(), name: table.clone() })
    }

    fn in_table(options: MySqlConnectOptions, table: Table) -> Self {
        Self { link: Link::new(options, &table), table }
    }

    pub(super) fn from_url(url: &StoreUrl) -> Result<Arc<dyn Store>> {
        url.check_options(OPTIONS)?;
        let options = url.for_driver().parse().map_err(|error| url.refuse(format!("can't be read: {error}")))?;
        let table = url.identifier("table")?.map_or_else(|| Identifier::new(TABLE), Ok)?;
        Ok(Arc::new(Self::in_table(options, Table { schema: url.identifier("schema")?, name: table })))
    }
}

impl fmt::Debug for MySqlStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MySqlStore({}, {})", self.link.place, self.table.quoted())
    }
}

#[async_trait]
impl Store for MySqlStore {
    fn about(&self) -> About {
        About {
            store: STORE,
            place: Some(self.table.quoted()),
            push: false,
            poll: POLL,
            calls: CALLS,
            batch: BATCH,
            statement_limit: STATEMENT_LIMIT,
            min_ttl: Ttl::MIN,
            durability: "survives a crash of the server, as its innodb_flush_log_at_trx_commit says; a fail-over to an \
                         asynchronous replica may undo the last moments",
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
        self.link.open().await
    }

    async fn claim(&self, claims: &[Claim]) -> Result<Vec<Result<Outcome>>> {
        let entries = json(STORE, claims.iter().map(ClaimEntry::new))?;
        let Answered { done, rest } = self.link.call(&self.link.statements.claim, entries, claims.len()).await?;
        let (now, retries) = (now(&done)?, numbers(get(&done, 3)?)?);
        let mut answers = unanswered(claims.len());
        for (entry, before) in tokens(get(&done, 0)?)? {
            let token = if retries.contains(&entry) { before } else { risen(before, now) };
            answers[entry] = Answer::ours(token);
        }
        if let Some((granted, refused)) = rest.split_first() {
            for (entry, token) in tokens(get(granted, 0)?)? {
                answers[entry] = Answer::ours(token);
            }
            look_at(refused, &mut answers)?;
        }
        Ok(answers.into_iter().zip(claims).map(|(answer, claim)| answer.found(&claim.name)?.outcome()).collect())
    }

    async fn renew(&self, terms: &[Renewal]) -> Result<Vec<Result<Renewed>>> {
        let entries = json(STORE, terms.iter().map(RenewalEntry::new))?;
        let Answered { done, rest } = self.link.renew(&self.link.statements.renew, entries, terms.len()).await?;
        let now = now(&done)?;
        let mut answers = unanswered(terms.len());
        for (entry, before) in tokens(get(&done, 0)?)? {
            let token = if terms[entry].rotate { risen(before, now) } else { before };
            answers[entry] = Answer::ours(token);
        }
        look_at(&rest, &mut answers)?;
        Ok(answers.into_iter().zip(terms).map(|(answer, term)| answer.found(&term.name)?.renewed(term)).collect())
    }

    async fn release(&self, terms: &[Ended]) -> Result<Vec<Result<bool>>> {
        let statements = &self.link.statements;
        let evicts = terms.iter().any(|term| term.evicted_by.is_some());
        let release = if evicts { &statements.evict } else { &statements.release };
        let entries = json(STORE, terms.iter().map(EndedEntry::new))?;
        let Answered { done, rest } = self.link.call(release, entries, terms.len()).await?;
        let mut answers: Vec<_> = terms.iter().map(|_| Ok(false)).collect();
        for (entry, _) in tokens(get(&done, 0)?)? {
            answers[entry] = Ok(true);
        }
        for row in &rest {
            let entry = entry(get(row, 0)?)?;
            answers[entry] = Err(locked(&terms[entry].name));
        }
        Ok(answers)
    }

    async fn list(&self, page: &Page) -> Result<Vec<Record>> {
        let after = page.after.as_ref().map_or("", Name::as_str);
        // Behind all names: no UTF-8 has this byte.
        let end = page.end().map_or(vec![0xff], String::into_bytes);
        let list = || {
            statement(&self.link.statements.list)
                .bind(after.max(&page.prefix).as_bytes().to_owned())
                .bind(end.clone())
                .bind(after.as_bytes().to_owned())
                .bind(i64::try_from(page.limit).unwrap_or(i64::MAX))
        };
        let rows = self.link.look(list).await?;
        let seen = rows.iter().map(|row| seen(get(row, 0)?)?.record());
        seen.filter_map(Result::transpose).collect()
    }

    /// In rounds, so that no transaction is a long one.
    async fn prune(&self, idle: Duration) -> Result<u64> {
        let mut pruned = 0;
        loop {
            let rows = self.link.prune(micros(idle).cast_signed()).await?;
            let round = rows.first().map_or(Ok(0), |row| get::<i64>(row, 0))?.cast_unsigned();
            pruned += round;
            if round < PRUNE_ROUND {
                return Ok(pruned);
            }
        }
    }

    fn schema(&self) -> Option<String> {
        Some(self.link.statements.create.as_ref().into())
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        let rows = self.link.look(|| raw(&self.link.statements.examine)).await?;
        examine::findings(&rows)
    }
}

/// What has become of an entry.
enum Answer {
    Found(Found),
    /// Nothing: somebody else has the row locked.
    Locked,
}

impl Answer {
    fn ours(token: Token) -> Self {
        Self::Found(Found::Ours(Grant::new(token)))
    }

    fn found(self, name: &Name) -> Result<Found> {
        match self {
            Self::Found(found) => Ok(found),
            Self::Locked => Err(locked(name)),
        }
    }
}

/// What is to be believed of entries of which nothing was said: a name without a row has been forgotten, or is just
/// being made.
fn unanswered(count: usize) -> Vec<Answer> {
    (0..count).map(|_| Answer::Found(Found::Other(None))).collect()
}

/// Takes in the rows of names that are not the asker's.
fn look_at(rows: &[MySqlRow], answers: &mut [Answer]) -> Result<()> {
    for row in rows {
        let json: Option<&str> = get(row, 1)?;
        let seen = json.map(seen).transpose()?;
        answers[entry(get(row, 0)?)?] =
            seen.map_or(Answer::Locked, |seen| Answer::Found(Found::Other(Some(Box::new(seen)))));
    }
    Ok(())
}

/// The token that a row gets, as the server works it out from the one before.
fn risen(before: Token, now: u64) -> Token {
    Token(now.max(before.0 + 1))
}

/// The server's clock, at a call.
fn now(done: &MySqlRow) -> Result<u64> {
    get::<&str>(done, 1)?.parse().map_err(|error| unreadable(STORE, error))
}

/// The entries and tokens in a list of both: `1 1794771390759693,3 1794771390759693`.
fn tokens(list: Option<&str>) -> Result<Vec<(usize, Token)>> {
    let pairs = list.into_iter().flat_map(|list| list.split(','));
    let pair = |pair: &str| {
        let (number, token) = pair.split_once(' ').unwrap_or((pair, ""));
        let token = token.parse().map_err(|error| unreadable(STORE, error))?;
        Ok((entry(number.parse().map_err(|error| unreadable(STORE, error))?)?, Token(token)))
    };
    pairs.map(pair).collect()
}

/// The entries in a list of their numbers.
fn numbers(list: Option<&str>) -> Result<Vec<usize>> {
    let numbers = list.into_iter().flat_map(|list| list.split(','));
    numbers.map(|number| entry(number.parse().map_err(|error| unreadable(STORE, error))?)).collect()
}

/// The entry of a number; SQL counts from one.
fn entry(number: i64) -> Result<usize> {
    usize::try_from(number - 1).map_err(|error| unreadable(STORE, error))
}

fn seen(json: &str) -> Result<Seen> {
    serde_json::from_str(json).map_err(|error| unreadable(STORE, error))
}

/// Unchecked: servers differ in the types that they say their expressions have.
fn get<'r, T: sqlx::Decode<'r, sqlx::MySql>>(row: &'r MySqlRow, column: usize) -> Result<T> {
    row.try_get_unchecked(column).map_err(|error| unreadable(STORE, error))
}

fn locked(name: &Name) -> Error {
    Error::transient(STORE, format!("another session has the row of {name} locked"))
}
