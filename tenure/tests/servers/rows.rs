//! Rows that somebody else has locked: a backup, an administrator, a transaction that was forgotten.

use std::future::IntoFuture as _;
use std::time::{Duration, SystemTime};

use tenure::EventKind;
use tenure::store::{Outcome, Renewed};
use tokio::time::sleep;

use super::bare::{Bare, claim_of};
use super::child::Child;
use super::kind::Kind;
use super::support::{
    LONG, News, Raw, SECOND, TABLE, TICK, assert_is_transient, connect, free_for, frees, hold, renewed, soon, unique,
};

const BATCH: usize = 20;
/// The one of a batch whose row is locked.
const LOCKED: usize = 7;

/// It is not granted meanwhile, and its term begins when the row is unlocked, whether it was free or had expired.
pub async fn a_name_whose_row_was_locked_gets_its_full_term(kind: &Kind) {
    let (free, old) = (unique("free"), unique("expired"));
    let locks = connect(&kind.shared().url()).await;
    free_for(&locks, &free, "").await.release().await.unwrap();
    leave_expired(kind, &old).await;
    tokio::join!(is_granted_in_full(kind, &free), is_granted_in_full(kind, &old));
}

async fn is_granted_in_full(kind: &Kind, name: &str) {
    let ttl = 4 * SECOND;
    let locks = connect(&kind.shared().url()).await;
    let mut foreign = Raw::to(&kind.shared().url()).await;
    foreign.lock_row(TABLE, name).await;
    let asked = tokio::spawn(locks.lock(name).ttl(ttl).renew_every(ttl / 2).into_future());
    sleep(2 * SECOND).await;
    assert!(!asked.is_finished(), "{name} was granted while its row was locked");
    let unlocked = foreign.number(kind.sql().clock).await.unsigned_abs();
    foreign.run("rollback").await;
    let guard = soon("the name is granted when its row is unlocked", asked).await.unwrap().unwrap();
    let record = locks.get(name).await.unwrap().expect("the name is held");
    assert_eq!(record.token, guard.token());
    let unlocked = SystemTime::UNIX_EPOCH + Duration::from_micros(unlocked);
    assert!(
        record.acquired_at >= unlocked,
        "the term began {:?} too early",
        unlocked.duration_since(record.acquired_at)
    );
    let term = record.expires_at.duration_since(record.renewed_at).unwrap();
    assert!(term >= ttl.mul_f64(0.95), "the term is {term:?}");
}

/// A name whose holder is gone.
async fn leave_expired(kind: &Kind, name: &str) {
    let bare = Bare::open(&kind.shared().url()).await;
    let claim = claim_of(name, Duration::from_millis(100));
    bare.grant(std::slice::from_ref(&claim)).await;
    let locks = connect(&kind.shared().url()).await;
    while locks.get(name).await.unwrap().is_some() {
        sleep(TICK).await;
    }
}

/// Claims, renewals and releases of the other names are answered while the row is locked; its own entry says so.
pub async fn a_locked_row_delays_none_of_its_batch(kind: &Kind) {
    let bare = Bare::open(&kind.shared().url()).await;
    let prefix = unique("batch");
    let claims: Vec<_> = (0..BATCH).map(|number| claim_of(&format!("{prefix}/{number:02}"), LONG)).collect();
    let tokens = bare.grant(&claims).await;
    let mut foreign = Raw::to(&kind.shared().url()).await;
    foreign.lock_row(TABLE, claims[LOCKED].name.as_str()).await;

    let kept = bare.renew(&claims, &tokens).await;
    all_but_the_locked(&kept, |renewed| matches!(renewed, Ok(Renewed::Kept(_))));
    assert_is_transient(kept[LOCKED].as_ref().unwrap_err());
    let freed = bare.release(&claims, &tokens).await;
    all_but_the_locked(&freed, |freed| matches!(freed, Ok(true)));
    assert_is_transient(freed[LOCKED].as_ref().unwrap_err());
    foreign.run("rollback").await;
    let freed = bare.release(&claims[LOCKED..=LOCKED], &tokens[LOCKED..=LOCKED]).await;
    assert!(matches!(freed[..], [Ok(true)]), "{freed:?}");

    foreign.lock_row(TABLE, claims[LOCKED].name.as_str()).await;
    let outcomes = bare.claim(&claims).await;
    all_but_the_locked(&outcomes, |outcome| matches!(outcome, Ok(Outcome::Granted(_))));
    assert!(matches!(outcomes[LOCKED], Ok(Outcome::Busy(_))), "{:?}", outcomes[LOCKED]);
    foreign.run("rollback").await;
    bare.grant(&claims[LOCKED..=LOCKED]).await;
}

/// The row still has the term that began with the first attempt, and no new one: the retry is not granted what it
/// asks for.
pub async fn a_retry_at_a_locked_row_is_not_granted(kind: &Kind) {
    let (bare, claim) = (Bare::open(&kind.shared().url()).await, [claim_of(&unique("retry"), LONG)]);
    let tokens = bare.grant(&claim).await;
    let mut foreign = Raw::to(&kind.shared().url()).await;
    foreign.lock_row(TABLE, claim[0].name.as_str()).await;
    let outcome = bare.claim(&claim).await.remove(0);
    assert!(!matches!(outcome, Ok(Outcome::Granted(_))), "{outcome:?}");
    foreign.run("rollback").await;
    assert_eq!(bare.grant(&claim).await, tokens, "a retry has another token");
}

fn all_but_the_locked<T: std::fmt::Debug>(answers: &[T], is_well: impl Fn(&T) -> bool) {
    assert_eq!(answers.len(), BATCH);
    for (number, answer) in answers.iter().enumerate().filter(|(number, _)| *number != LOCKED) {
        assert!(is_well(answer), "number {number}: {answer:?}");
    }
}

/// The renewals of the others pass; its own is tried again until it passes, and so is its release.
pub async fn a_held_name_whose_row_is_locked_for_a_while_is_kept(kind: &Kind) {
    let locks = connect(&kind.shared().url()).await;
    let (name, other) = (unique("locked"), unique("other"));
    let (guard, beside) = (hold(&locks, &name, 20 * SECOND).await, hold(&locks, &other, 20 * SECOND).await);
    let (token, mut news) = (guard.token(), News::of(&locks));
    let mut foreign = Raw::to(&kind.shared().url()).await;
    foreign.lock_row(TABLE, &name).await;
    news.renewal_failed(&name).await;
    renewed(&locks, &other).await;
    assert!(guard.is_held() && beside.is_held());
    foreign.run("rollback").await;
    renewed(&locks, &name).await;
    assert_eq!(guard.token(), token);

    foreign.lock_row(TABLE, &name).await;
    let releasing = tokio::spawn(guard.release());
    soon("a release beside a locked row", beside.release()).await.unwrap();
    assert!(!releasing.is_finished(), "released while the row was locked");
    foreign.run("rollback").await;
    soon("a release of a row that was locked", releasing).await.unwrap().unwrap();
    news.next(&name, |kind| matches!(kind, EventKind::Released)).await;
}

pub async fn a_claim_whose_client_was_killed_at_a_locked_row_leaves_nothing(kind: &Kind) {
    let (name, locks) = (unique("locked"), connect(&kind.shared().url()).await);
    free_for(&locks, &name, "").await.release().await.unwrap();
    let mut foreign = Raw::to(&kind.shared().url()).await;
    foreign.lock_row(TABLE, &name).await;
    leaves_nothing(kind, foreign, &name).await;
}

/// Somebody is inserting the name: here a claim has to wait, in the server.
pub async fn a_claim_whose_client_was_killed_at_a_new_row_leaves_nothing(kind: &Kind) {
    let (name, mut foreign) = (unique("new"), Raw::to(&kind.shared().url()).await);
    connect(&kind.shared().url()).await;
    foreign.run("begin").await;
    foreign.run((kind.sql().insert)(TABLE, &name)).await;
    leaves_nothing(kind, foreign, &name).await;
}

/// What a killed client has asked for, for long, is not granted after the store's own limit.
async fn leaves_nothing(kind: &Kind, mut foreign: Raw, name: &str) {
    let locks = connect(&kind.shared().url()).await;
    let mut child = Child::start("claim", &kind.shared().url(), name);
    assert_eq!(child.line().await.as_deref(), Some("asking"));
    sleep(SECOND).await;
    drop(child);
    sleep(locks.about().statement_limit + SECOND).await;
    foreign.run("rollback").await;
    frees(&locks, name, "after a client that waited for it was killed").await;
}
