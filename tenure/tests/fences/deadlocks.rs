//! Databases that lock rows can find two transactions waiting for each other.

use tenure::Token;

use super::begin;
use super::promises::Bank;

#[tokio::test]
async fn a_deadlock_is_transient_and_only_one_is_ended() {
    let Some(bank) = Bank::open().await else { return };
    let mut one = begin(&bank.pool).await;
    let mut other = begin(&bank.pool).await;
    bank.fence.check(&mut one, "a", Token(1)).await.unwrap();
    bank.fence.check(&mut other, "b", Token(1)).await.unwrap();
    // Whoever is ended must let go at once, or the other waits for ever.
    let one = async {
        let checked = bank.fence.check(&mut one, "b", Token(1)).await;
        one.rollback().await.unwrap();
        checked
    };
    let other = async {
        let checked = bank.fence.check(&mut other, "a", Token(1)).await;
        other.rollback().await.unwrap();
        checked
    };
    let (one, other) = tokio::join!(one, other);
    let ended: Vec<_> = [one, other].into_iter().filter_map(Result::err).collect();
    assert!(ended.len() == 1 && ended[0].is_transient(), "{ended:?}");
    bank.close().await;
}
