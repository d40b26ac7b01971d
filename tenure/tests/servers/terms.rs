//! What a term goes through while it is held.

use std::sync::Arc;
use std::time::Duration;

use mongodb::options::ClientOptions;
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;
use tenure::clock::Moment;
use tenure::store::Store;
use tenure::store::mongodb::MongoStore;
use tenure::store::mysql::MySqlStore;
use tenure::store::postgres::PostgresStore;
use tenure::{EventKind, Guard, Locks, Token};

use super::kind::{Kind, Running};
use super::support::{LONG, News, SECOND, connect, free_for, is_closed_to, soon, unique};

/// The numbers of a heartbeat ten times slower: TTL 60 s, renewed every 10 s, rotated every 20 s.
const TTL: Duration = Duration::from_secs(6);
const RENEW: Duration = Duration::from_secs(1);
const ROTATE: Duration = Duration::from_secs(2);

/// Renewals leave the token alone; it rises once a period, and at every change of hands.
pub async fn rotation_raises_the_token_once_a_period(kind: &Kind) {
    let (locks, other) = (connect(&kind.shared().url()).await, connect(&kind.shared().url()).await);
    let name = unique("rotation");
    let mut news = News::of(&locks);
    let lock = locks.lock(&name).ttl(TTL).renew_every(RENEW).rotate_every(ROTATE);
    let guard = soon("a free name is granted", lock).await.unwrap();
    let mut last = (guard.token(), Moment::now());
    for period in 0..3 {
        let (token, renewals) = next_rotation(&mut news, &guard, last.0).await;
        assert!(renewals > 0, "the token has risen with every renewal");
        let now = Moment::now();
        // The first period began with the grant. News may come late, but those before it not early.
        assert!(period > 0 || now - last.1 > ROTATE / 2, "rotated after {:?}", now - last.1);
        last = (token, now);
    }
    let record = other.get(&name).await.unwrap().expect("the name is held");
    assert!(record.token >= last.0);
    other.evict(&name, "an operator").await.unwrap();
    let next = free_for(&other, &name, "after the eviction").await;
    assert!(next.token() > guard.token().max(record.token), "{} follows {}", next.token(), record.token);
}

/// Waits until the token has risen; says to what, and how many renewals left it alone before.
async fn next_rotation(news: &mut News, guard: &Guard, before: Token) -> (Token, usize) {
    let mut renewals = 0;
    loop {
        let telling = |kind: &EventKind| matches!(kind, EventKind::Renewed | EventKind::TokenRotated(_));
        let event = news.next(guard.name().as_str(), telling).await;
        let token = event.token.unwrap();
        match event.kind {
            EventKind::TokenRotated(from) => {
                assert_eq!(from, before);
                assert!(token > before, "rotated from {before} to {token}");
                return (token, renewals);
            }
            _ if token == before => renewals += 1,
            // The renewal that raises it is told first.
            _ => {}
        }
    }
}

/// Tenure's connections are its own, also with the settings of a pool that lives in the blocked runtime.
pub async fn heartbeats_go_on_while_the_runtime_of_the_pool_is_blocked(kind: &Kind) {
    let url = kind.shared().url();
    match kind.shared() {
        Running::Postgres(_) => {
            let pool = PgPoolOptions::new().max_connections(2).connect(&url).await.unwrap();
            sqlx::query("select 1").execute(&pool).await.unwrap();
            is_held_while_all_is_blocked(kind, Arc::new(PostgresStore::like(&pool).unwrap())).await;
        }
        Running::MariaDb(_) => {
            let pool = MySqlPoolOptions::new().max_connections(2).connect(&url).await.unwrap();
            sqlx::query("select 1").execute(&pool).await.unwrap();
            is_held_while_all_is_blocked(kind, Arc::new(MySqlStore::like(&pool).unwrap())).await;
        }
        Running::MongoDb(_) => {
            let options = ClientOptions::parse(&url).await.unwrap();
            let client = mongodb::Client::with_options(options.clone()).unwrap();
            client.database("tenure").run_command(mongodb::bson::doc! { "ping": 1 }).await.unwrap();
            is_held_while_all_is_blocked(kind, Arc::new(MongoStore::like(&options).unwrap())).await;
        }
        Running::Redis(_) | Running::Etcd(_) => unreachable!("there is no pool for it"),
    }
}

pub async fn is_held_while_all_is_blocked(kind: &Kind, store: Arc<dyn Store>) {
    let ttl = 2 * SECOND;
    let locks = Locks::on(store).await.unwrap();
    let (name, other) = (unique("blocked"), connect(&kind.shared().url()).await);
    let guard = locks.lock(&name).ttl(ttl).await.unwrap();
    let token = guard.token();
    std::thread::sleep(3 * ttl);
    assert!(guard.is_held(), "{:?}", guard.status());
    assert_eq!(guard.token(), token);
    assert!(is_closed_to(&other, &name).await, "granted to another while its holder's runtime was blocked");
    guard.release().await.unwrap();
    drop(soon("the next", other.lock(&name).ttl(LONG)).await.unwrap());
}
