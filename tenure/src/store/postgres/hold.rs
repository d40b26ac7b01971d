//! A lock's record in the user's own transaction.

use sqlx::{AssertSqlSafe, Postgres, Transaction};

use super::{STORE, statements};
use crate::engine::{CALL_LIMIT, Message};
use crate::error::{Error, Result};
use crate::guard::{Guard, Status, Why};
use crate::store::Page;

/// Makes sure that `guard`'s name can't pass to another before this transaction ends: what it writes is written by the
/// holder, or not at all.
///
/// It takes the name's record `for key share`, and then asks the store, on Tenure's own connection, whether the term is
/// still the guard's. A takeover waits until the commit or rollback; renewals don't, so that the transaction may be longer
/// than the TTL. It works at every isolation level. The transaction must be on the database that the guard's
/// store is in, and, at `repeatable read` or above, begun after the name was granted.
///
/// ```no_run
/// # async fn pay(pool: sqlx::PgPool, guard: tenure::Guard) -> Result<(), Box<dyn std::error::Error>> {
/// let mut tx = pool.begin().await?;
/// tenure::store::postgres::hold_in(&mut tx, &guard).await?;
/// sqlx::query("update accounts set balance = balance - 10 where id = 42").execute(&mut *tx).await?;
/// tx.commit().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Lost`] if the term is over; roll back. [`Error::Invalid`] if the guard is of another store, or its record
/// is not in this database. [`Error::Store`] if a database could not be asked.
///
/// # Cancel safety
/// If it is dropped, the record may be locked until the transaction ends.
pub async fn hold_in(transaction: &mut Transaction<'_, Postgres>, guard: &Guard) -> Result<()> {
    let about = &guard.shared.about;
    let Some(table) = about.place.as_deref().filter(|_| about.store == STORE) else {
        return Err(Error::invalid("guard", format!("is of a {} store: hold_in needs one of {STORE}", about.store)));
    };
    let hold = sqlx::query(AssertSqlSafe(statements::hold(table))).bind(guard.name().as_str());
    // What an error means is for the user to say, whose transaction it is.
    let found = hold.fetch_optional(&mut **transaction).await.map_err(|error| Error::transient(STORE, error))?;
    if found.is_none() {
        let rule = "use the store's own database, and begin the transaction after the lock was granted";
        return Err(Error::invalid("transaction", format!("doesn't see the record of {}: {rule}", guard.name())));
    }
    confirm(guard).await
}

/// Asks the store whether the term is still the guard's.
async fn confirm(guard: &Guard) -> Result<()> {
    if let Status::Lost(lost) = guard.status() {
        return Err(lost.into());
    }
    let page = Page::of(guard.name());
    let records = guard.shared.call(CALL_LIMIT, |store| async move { store.list(&page).await }).await?;
    let why = match records.into_iter().find(|record| record.name == *guard.name() && record.is_live()) {
        Some(record) if record.lease == guard.held.lease => return Ok(()),
        Some(record) => Why::Taken(record.owner, record.token),
        None => Why::Expired(None),
    };
    // The holder is to hear of it too, and not only at the next renewal.
    guard.shared.send(Message::Evicted(guard.name().clone()));
    Err(guard.held.lost_for(why).into())
}
