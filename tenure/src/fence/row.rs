//! The fence as a row in the user's own database, passed inside the user's own transaction.

use std::future::Future;

use sqlx::error::DatabaseError;
use sqlx::{Database, Pool, Transaction};

use super::{Rule, Stale};
use crate::error::{Error, Result};
use crate::record::{Name, Token};
use crate::store::url::Identifier;

#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

const TABLE: &str = "tenure_fences";

/// Tokens stay below 2^53. A larger one, let in by mistake, would close its resource for good.
const TOKENS_END: u64 = 1 << 53;

/// How often a table is made until it is there: of several who do it at once, PostgreSQL fails all but one.
const ATTEMPTS: usize = 3;

/// Lets a token pass unless a larger one was seen before: a row for each resource, in your own database and inside your
/// own transaction.
///
/// The row stays locked until the transaction ends, so that check and act are one: nobody else passes in between, and
/// whoever waited is judged by what was committed. If the transaction is rolled back, the raise is taken back with
/// it, which is right: so is what was done.
///
/// ```no_run
/// # #[cfg(feature = "sqlite")]
/// # async fn pay(guard: &tenure::Guard) -> Result<(), Box<dyn std::error::Error>> {
/// use tenure::RowFence;
///
/// let pool = sqlx::SqlitePool::connect("sqlite:bank.db").await?;
/// let fence = RowFence::new();
/// fence.create(&pool).await?; // once; or run `schema` yourself
///
/// let mut tx = pool.begin().await?;
/// fence.check(&mut tx, "account/42", guard.token()).await?; // before anything is read
/// sqlx::query("update accounts set balance = balance - 100 where id = 42").execute(&mut *tx).await?;
/// tx.commit().await?;
/// # Ok(())
/// # }
/// ```
///
/// Make the check the first statement of the transaction:
/// - what was read before it, another holder may have changed since;
/// - under REPEATABLE READ, which is MySQL's default, a read before it fixes what all later ones show;
/// - on SQLite a transaction that has read before it writes fails if somebody else wrote meanwhile, with a transient
///   error and without waiting: `pool.begin_with("begin immediate")` if you must.
///
/// Transactions that check several resources should do so in the same order, or the database may have to end one of
/// them as a deadlock (a transient error).
///
/// Rows are few and small, and stay. Delete one only when nobody can come back with an old token for its resource.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct RowFence {
    table: Identifier,
    rule: Rule,
}

/// A database that a [`RowFence`] can be in. Only Tenure implements it.
pub trait FenceDatabase: Dialect {}

impl RowFence {
    /// A fence in the table `tenure_fences`. It accepts the largest token seen so far and anything larger.
    pub fn new() -> Self {
        Self::in_table(TABLE).expect("its name is an identifier")
    }

    /// The same in another table: one of its own, not one of yours.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `table` is no [`Identifier`].
    pub fn in_table(table: &str) -> Result<Self> {
        Ok(Self { table: Identifier::parse("table", table)?, rule: Rule::default() })
    }

    /// Accepts only what is larger than everything seen so far, for callers that rotate the token for each request.
    pub fn strict(self) -> Self {
        Self { rule: Rule::Strict, ..self }
    }

    /// The statement that makes the table, for those who may not do it themselves:
    /// `RowFence::new().schema::<sqlx::Postgres>()`.
    pub fn schema<DB: FenceDatabase>(&self) -> String {
        DB::schema(self.table.as_str())
    }

    /// Makes the table, if it is missing. Several processes may do so at once; one that finds the table needs no right
    /// to make it.
    ///
    /// # Errors
    /// [`Error::Store`] if the database can't be reached or refuses, or if a table of that name has other columns.
    ///
    /// # Cancel safety
    /// Safe: the table is there or it is not.
    pub async fn create<DB: FenceDatabase>(&self, pool: &Pool<DB>) -> Result<()> {
        let mut connection = pool.acquire().await.map_err(explain::<DB>)?;
        let look = DB::probe(self.table.as_str());
        let mut found = DB::run(&mut connection, look.clone()).await;
        for _ in 0..ATTEMPTS {
            if found.is_ok() {
                break;
            }
            let made = DB::run(&mut connection, self.schema::<DB>()).await;
            found = DB::run(&mut connection, look.clone()).await.map_err(|missing| made.err().unwrap_or(missing));
        }
        found.map_err(explain::<DB>)
    }

    /// Lets `token` pass and remembers it, or refuses it; waits for other transactions that passed with this resource.
    ///
    /// What it found out holds until the transaction ends. A resource is whatever you protect: text by the rule of a
    /// [`Name`], compared byte by byte.
    ///
    /// # Errors
    /// - [`Error::Stale`] if a larger one was seen; in strict mode also if this one was. Roll back.
    /// - [`Error::Store`] if the database failed, with the `sqlx::Error` as its reason. If it
    ///   [is transient](Error::is_transient) (a deadlock, a lock waited for in vain, REPEATABLE READ and somebody else was
    ///   faster), do the whole transaction again.
    /// - [`Error::Invalid`] if `resource` is no name, or `token` is 2^53 or more; nothing was sent.
    ///
    /// # Cancel safety
    /// Dropping the future leaves open whether the token has passed: drop the transaction too, which rolls it back.
    pub async fn check<DB: FenceDatabase>(
        &self,
        transaction: &mut Transaction<'_, DB>,
        resource: &str,
        token: Token,
    ) -> Result<()> {
        let resource = checked(resource)?;
        if token.0 >= TOKENS_END {
            return Err(Error::invalid("token", format!("{token} is not one of Tenure's: they are below 2^53")));
        }
        let check = Check { table: self.table.as_str(), rule: self.rule, resource: resource.as_str(), token };
        let passed = DB::check(transaction, check).await.map_err(explain::<DB>)?;
        Ok(passed?)
    }
}

impl Default for RowFence {
    fn default() -> Self {
        Self::new()
    }
}

/// A resource obeys the rule of a name, and is called a resource if it doesn't.
fn checked(resource: &str) -> Result<Name> {
    Name::new(resource).map_err(|error| match error {
        Error::Invalid { why, .. } => Error::invalid("resource", why),
        other => other,
    })
}

fn explain<DB: Dialect>(error: sqlx::Error) -> Error {
    let transient = match &error {
        sqlx::Error::Database(said) => DB::is_transient(said.as_ref()),
        sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::WorkerCrashed => true,
        _ => false,
    };
    if transient { Error::transient(DB::STORE, error) } else { Error::permanent(DB::STORE, error) }
}

/// What is asked of a fence.
#[derive(Clone, Copy)]
pub struct Check<'a> {
    table: &'a str,
    rule: Rule,
    resource: &'a str,
    token: Token,
}

impl Check<'_> {
    /// The token as a column has it. It fits: tokens end long before.
    fn token(&self) -> i64 {
        self.token.0.cast_signed()
    }

    /// The refusal, once the row has told its token.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    fn refused(&self, highest: i64) -> Stale {
        Stale { token: self.token, highest: Token(highest.cast_unsigned()) }
    }
}

/// How one database does it. `table` is always an [`Identifier`], and quoted; everything else is bound.
pub trait Dialect: Database {
    /// For errors.
    const STORE: &'static str;

    fn schema(table: &str) -> String;

    /// Fails if there is no table, or another one.
    fn probe(table: &str) -> String;

    /// Runs a statement that answers nothing.
    fn run(connection: &mut Self::Connection, sql: String) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Locks the row until the transaction ends, and raises it or refuses.
    fn check(
        connection: &mut Self::Connection,
        check: Check<'_>,
    ) -> impl Future<Output = sqlx::Result<Result<(), Stale>>> + Send;

    /// Whether the same transaction, made again, may succeed.
    fn is_transient(error: &dyn DatabaseError) -> bool;
}

/// PostgreSQL's and SQLite's check. It writes the row even if the token is the one that it has: so it is locked, and
/// a transaction with an older snapshot fails instead of going on with what it saw.
///
/// No row is affected if the token is refused; PostgreSQL locks the row even then.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
fn upsert(check: &Check<'_>) -> String {
    let passes = match check.rule {
        Rule::Older => "<=",
        Rule::Strict => "<",
    };
    format!(
        r#"
insert into "{table}" as seen (resource, token) values ($1, $2)
on conflict (resource) do update set token = excluded.token where seen.token {passes} excluded.token"#,
        table = check.table
    )
}

/// The largest token seen, behind an [`upsert`] that was refused.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
fn highest(check: &Check<'_>) -> String {
    format!(r#"select token from "{}" where resource = $1"#, check.table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_outside_the_rule_is_refused_before_there_is_any_sql() {
        for bad in ["", "2nd", "a-b", "public.fences", "a\"; drop table accounts; --", "a`b"] {
            assert!(matches!(RowFence::in_table(bad), Err(Error::Invalid { .. })), "{bad}");
        }
        assert!(RowFence::in_table("Payment_fences").is_ok());
        assert_eq!(RowFence::default(), RowFence::in_table("tenure_fences").unwrap());
    }

    #[test]
    fn a_refused_resource_is_called_a_resource() {
        assert!(checked("").unwrap_err().to_string().starts_with("resource is empty"));
    }
}
