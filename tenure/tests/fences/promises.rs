//! What a `RowFence` promises, on the database that is `super`.

use std::sync::Arc;
use std::time::Duration;

use sqlx::{AssertSqlSafe, Pool, Transaction};
use tenure::{Error, Result, RowFence, Stale, Token};
use tokio::task::JoinHandle;

use super::{Db, Home, begin, begin_repeatable, hurry, open};
use crate::fresh_table;

#[path = "crowd.rs"]
mod crowd;

const ACCOUNT: &str = "account/42";

/// Long enough for a statement that waits for nothing to be done.
const MOMENT: Duration = Duration::from_millis(200);

/// A fence of a test's own, and the table of what was done behind it.
pub struct Bank {
    pub pool: Pool<Db>,
    table: String,
    pub fence: RowFence,
    _home: Home,
}

impl Bank {
    /// `None` if the database is not there.
    pub async fn open() -> Option<Arc<Self>> {
        let (pool, home) = open().await?;
        let table = fresh_table();
        let bank = Self { fence: RowFence::in_table(&table).unwrap(), pool, table, _home: home };
        bank.fence.create(&bank.pool).await.unwrap();
        bank.sql("create table T_done (resource varchar(255), n bigint, token bigint, primary key (resource, n))")
            .await;
        Some(Arc::new(bank))
    }

    /// Runs a statement, in which `T` stands for the fence's table.
    async fn sql(&self, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(self.named(sql))).execute(&self.pool).await.unwrap();
    }

    fn named(&self, sql: &str) -> String {
        sql.replace('T', &self.table)
    }

    pub async fn close(&self) {
        self.sql("drop table T_done").await;
        self.sql("drop table T").await;
    }

    /// Passes the fence in a transaction that does nothing else.
    async fn pass(&self, resource: &str, token: u64) -> Result<()> {
        self.pass_as(&self.fence, resource, token).await
    }

    async fn pass_as(&self, fence: &RowFence, resource: &str, token: u64) -> Result<()> {
        let mut tx = begin(&self.pool).await;
        fence.check(&mut tx, resource, Token(token)).await?;
        tx.commit().await.unwrap();
        Ok(())
    }

    /// The same in a task, as another process would.
    fn pass_elsewhere(self: &Arc<Self>, token: u64) -> JoinHandle<Result<()>> {
        let bank = self.clone();
        tokio::spawn(async move { bank.pass(ACCOUNT, token).await })
    }

    /// A transaction that has passed and not ended yet.
    async fn passed(&self, token: u64) -> Transaction<'static, Db> {
        let mut tx = begin(&self.pool).await;
        self.fence.check(&mut tx, ACCOUNT, Token(token)).await.unwrap();
        tx
    }
}

fn assert_stale(result: Result<()>, token: u64, highest: u64) {
    match result {
        Err(Error::Stale(stale)) => assert_eq!(stale, Stale { token: Token(token), highest: Token(highest) }),
        other => panic!("{token} after {highest}: {other:?}"),
    }
}

async fn assert_waits(task: &mut JoinHandle<Result<()>>) {
    assert!(tokio::time::timeout(MOMENT, task).await.is_err(), "it did not wait for the row");
}

#[tokio::test]
async fn an_older_token_is_refused_and_the_highest_is_named() {
    let Some(bank) = Bank::open().await else { return };
    bank.pass(ACCOUNT, 7).await.unwrap();
    assert_stale(bank.pass(ACCOUNT, 6).await, 6, 7);
    bank.pass(ACCOUNT, 8).await.unwrap();
    assert_stale(bank.pass(ACCOUNT, 7).await, 7, 8);
    bank.pass("account/43", 1).await.unwrap();
    bank.close().await;
}

#[tokio::test]
async fn an_equal_token_passes_again_and_again() {
    let Some(bank) = Bank::open().await else { return };
    for _ in 0..3 {
        bank.pass(ACCOUNT, 7).await.unwrap();
    }
    let mut tx = bank.passed(7).await;
    bank.fence.check(&mut tx, ACCOUNT, Token(7)).await.unwrap();
    tx.commit().await.unwrap();
    bank.close().await;
}

#[tokio::test]
async fn a_strict_fence_refuses_equals_but_not_the_first() {
    let Some(bank) = Bank::open().await else { return };
    let strict = bank.fence.clone().strict();
    for first in [0, 7] {
        let resource = format!("request/{first}");
        bank.pass_as(&strict, &resource, first).await.unwrap();
        assert_stale(bank.pass_as(&strict, &resource, first).await, first, first);
        bank.pass_as(&strict, &resource, first + 1).await.unwrap();
        assert_stale(bank.pass_as(&strict, &resource, first).await, first, first + 1);
    }
    bank.close().await;
}

#[tokio::test]
async fn a_rollback_takes_the_raise_back() {
    let Some(bank) = Bank::open().await else { return };
    bank.passed(9).await.rollback().await.unwrap();
    bank.pass(ACCOUNT, 5).await.unwrap();
    drop(bank.passed(9).await);
    bank.pass(ACCOUNT, 6).await.unwrap();
    assert_stale(bank.pass(ACCOUNT, 5).await, 5, 6);
    bank.close().await;
}

#[tokio::test]
async fn a_newer_holder_waits_for_the_one_before_it() {
    let Some(bank) = Bank::open().await else { return };
    // Twice: the first time there is no row yet.
    for token in [5, 15] {
        let tx = bank.passed(token).await;
        let mut newer = bank.pass_elsewhere(token + 1);
        assert_waits(&mut newer).await;
        tx.commit().await.unwrap();
        newer.await.unwrap().unwrap();
        assert_stale(bank.pass(ACCOUNT, token).await, token, token + 1);
    }
    bank.close().await;
}

#[tokio::test]
async fn a_stale_holder_waits_for_a_newer_one_and_is_judged_by_its_raise() {
    let Some(bank) = Bank::open().await else { return };
    for token in [5, 15] {
        let tx = bank.passed(token + 1).await;
        let mut stale = bank.pass_elsewhere(token);
        assert_waits(&mut stale).await;
        tx.commit().await.unwrap();
        assert_stale(stale.await.unwrap(), token, token + 1);
    }
    bank.close().await;
}

#[tokio::test]
async fn whoever_waited_for_a_transaction_that_was_rolled_back_passes() {
    let Some(bank) = Bank::open().await else { return };
    for token in [5, 15] {
        let tx = bank.passed(token + 1).await;
        let mut older = bank.pass_elsewhere(token);
        assert_waits(&mut older).await;
        tx.rollback().await.unwrap();
        older.await.unwrap().unwrap();
    }
    bank.close().await;
}

#[tokio::test]
async fn two_who_waited_for_the_same_row_both_pass() {
    let Some(bank) = Bank::open().await else { return };
    for token in [5, 15] {
        let tx = bank.passed(token).await;
        let mut waiting = [bank.pass_elsewhere(token + 1), bank.pass_elsewhere(token + 1)];
        for task in &mut waiting {
            assert_waits(task).await;
        }
        tx.commit().await.unwrap();
        for task in waiting {
            task.await.unwrap().unwrap();
        }
    }
    bank.close().await;
}

/// Equal tokens are one holder's, and its transactions are still one after the other.
#[tokio::test]
async fn a_row_that_did_not_change_is_locked_too() {
    let Some(bank) = Bank::open().await else { return };
    bank.pass(ACCOUNT, 7).await.unwrap();
    let tx = bank.passed(7).await;
    let mut newer = bank.pass_elsewhere(8);
    assert_waits(&mut newer).await;
    tx.commit().await.unwrap();
    newer.await.unwrap().unwrap();
    bank.close().await;
}

/// It may be refused at once, or told to begin again and refused then.
#[tokio::test]
async fn a_snapshot_from_before_the_raise_lets_no_stale_token_pass() {
    let Some(bank) = Bank::open().await else { return };
    for existing in [None, Some(1)] {
        let resource = format!("account/{existing:?}");
        if let Some(token) = existing {
            bank.pass(&resource, token).await.unwrap();
        }
        let mut stale = begin_repeatable(&bank.pool).await;
        sqlx::query(AssertSqlSafe(bank.named("select token from T"))).fetch_all(&mut *stale).await.unwrap();
        bank.pass(&resource, 6).await.unwrap();
        let judged = match bank.fence.check(&mut stale, &resource, Token(5)).await {
            Err(error) if error.is_transient() => bank.pass(&resource, 5).await,
            judged => judged,
        };
        assert_stale(judged, 5, 6);
    }
    bank.close().await;
}

#[tokio::test]
async fn waiting_in_vain_is_transient_and_the_driver_says_why() {
    let Some(bank) = Bank::open().await else { return };
    let holder = bank.passed(5).await;
    let mut tx = begin(&bank.pool).await;
    hurry(&mut tx).await;
    let error = bank.fence.check(&mut tx, ACCOUNT, Token(6)).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    let Error::Store { reason, .. } = error else { panic!("{error:?}") };
    assert!(matches!(reason.downcast_ref(), Some(sqlx::Error::Database(_))), "{reason:?}");
    drop((holder, tx));
    bank.close().await;
}

#[tokio::test]
async fn ten_may_create_it_at_once() {
    let Some(bank) = Bank::open().await else { return };
    for _ in 0..5 {
        let table = fresh_table();
        let create = |_| {
            let (fence, pool) = (RowFence::in_table(&table).unwrap(), bank.pool.clone());
            tokio::spawn(async move { fence.create(&pool).await })
        };
        let tasks: Vec<_> = (0..10).map(create).collect();
        for task in tasks {
            task.await.unwrap().unwrap();
        }
        bank.sql(&format!("drop table {table}")).await;
    }
    bank.close().await;
}

#[tokio::test]
async fn a_table_of_another_kind_is_no_fence() {
    let Some(bank) = Bank::open().await else { return };
    bank.sql("create table T_other (id bigint)").await;
    let error = RowFence::in_table(&bank.named("T_other")).unwrap().create(&bank.pool).await.unwrap_err();
    assert!(matches!(error, Error::Store { transient: false, .. }), "{error:?}");
    bank.sql("drop table T_other").await;
    bank.close().await;
}

#[tokio::test]
async fn a_table_may_have_the_name_of_a_keyword() {
    let Some(bank) = Bank::open().await else { return };
    let fence = RowFence::in_table("Order").unwrap();
    fence.create(&bank.pool).await.unwrap();
    bank.pass_as(&fence, ACCOUNT, u64::pow(2, 53) - 1).await.unwrap();
    let quoted = fence.schema::<Db>().split(' ').nth(5).unwrap().to_owned();
    bank.sql(&format!("drop table {quoted}")).await;
    bank.close().await;
}

#[tokio::test]
async fn resources_that_look_alike_are_kept_apart() {
    let Some(bank) = Bank::open().await else { return };
    let longest = "ü".repeat(127) + "x";
    let also_long = "ü".repeat(127) + "y";
    let odd = ["a", "A", "a ", " a", "a  ", "ä", "a\u{308}", "Ä", "ß", "ss", "%", "_", "'", "\"", "\\", "\\\\", "😀"];
    let resources: Vec<&str> = odd.into_iter().chain([longest.as_str(), &also_long]).collect();
    let token = |index: usize| 100 - index as u64;
    for (index, resource) in resources.iter().enumerate() {
        bank.pass(resource, token(index)).await.unwrap();
    }
    for (index, resource) in resources.iter().enumerate() {
        assert_stale(bank.pass(resource, 1).await, 1, token(index));
    }
    bank.close().await;
}

#[tokio::test]
async fn what_is_outside_the_rules_is_refused_and_the_transaction_goes_on() {
    let Some(bank) = Bank::open().await else { return };
    let mut tx = begin(&bank.pool).await;
    for (resource, token) in
        [("", 1), ("a\0b", 1), ("x".repeat(256).as_str(), 1), ("a", u64::pow(2, 53)), ("a", u64::MAX)]
    {
        let refused = bank.fence.check(&mut tx, resource, Token(token)).await;
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{resource:?} {token}: {refused:?}");
    }
    bank.fence.check(&mut tx, ACCOUNT, Token(1)).await.unwrap();
    tx.commit().await.unwrap();
    bank.close().await;
}
