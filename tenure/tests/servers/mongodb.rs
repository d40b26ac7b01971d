//! What is MongoDB's own: texts that look like paths, users, acknowledgments, and servers of other kinds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{Binary, Bson, DateTime, Document, doc};
use tenure::store::url::store_at;
use tenure::store::{Claim, Ended, Gone, Outcome, Page, Renewal, Renewed};
use tenure::{Error, Token};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use xtask::services::MongoDb;

use super::bare::{Bare, claim_of};
use super::fake::{Fake, SILENCE};
use super::kind::{Kind, Running};
use super::settings::weak;
use super::support::{LONG, SECOND, assert_is_transient, connect, hold, renewed, soon, unique, with};

/// Names, owners, data and reasons that begin with `$`, in calls of one entry and of several.
pub async fn what_looks_like_a_path_is_kept_as_it_is(kind: &Kind) {
    let store = store_at(&kind.shared().url()).unwrap();
    store.open().await.unwrap();
    let (bare, prefix) = (Bare(store.clone()), unique("$$NOW"));
    let claim = |name: &str| Claim {
        owner: "$term.lease".into(),
        data: Some("$token".into()),
        ..claim_of(&format!("{prefix}/{name}"), LONG)
    };
    let claims = [claim("$_id"), claim("$a.b"), claim("{$ne: 1}")];
    let mut tokens = bare.grant(&claims[..1]).await;
    tokens.extend(bare.grant(&claims[1..]).await);
    let page = Page { prefix: prefix.clone(), after: None, limit: 10 };
    let listed = store.list(&page).await.unwrap();
    assert!(listed.iter().map(|record| &record.name).eq(claims.iter().map(|claim| &claim.name)), "{listed:?}");
    assert!(listed.iter().all(|record| record.owner == "$term.lease" && record.data.as_deref() == Some("$token")));
    let evict = |(claim, first): (&Claim, &Token)| Ended {
        name: claim.name.clone(),
        lease: claim.lease,
        first: Some(*first),
        evicted_by: Some("$$ROOT".into()),
    };
    let evictions: Vec<_> = claims.iter().zip(&tokens).map(evict).collect();
    assert!(store.release(&evictions).await.unwrap().into_iter().all(Result::unwrap));
    for renewal in bare.renew(&claims, &tokens).await {
        assert!(matches!(&renewal, Ok(Renewed::Gone(Gone::Evicted(by))) if by == "$$ROOT"), "{renewal:?}");
    }
}

/// Some were over, by a release before.
pub async fn a_batch_of_releases_tells_which_were_over(kind: &Kind) {
    let (bare, prefix) = (Bare::open(&kind.shared().url()).await, unique("over"));
    let claims: Vec<_> = (0..4).map(|number| claim_of(&format!("{prefix}/{number}"), LONG)).collect();
    let tokens = bare.grant(&claims).await;
    let freed = |answers: Vec<Result<bool, Error>>| answers.into_iter().map(Result::unwrap).collect::<Vec<_>>();
    assert_eq!(freed(bare.release(&claims[1..2], &tokens[1..2]).await), [true]);
    // Another holds it by now.
    bare.grant(&[claim_of(claims[1].name.as_str(), LONG)]).await;
    assert_eq!(freed(bare.release(&claims, &tokens).await), [true, false, true, true]);
    assert_eq!(freed(bare.release(&claims, &tokens).await), [false; 4]);
}

/// A renewal, or a claim, that was held up for long on its way ends no earlier than one that overtook it.
pub async fn a_late_renewal_takes_no_time_away(kind: &Kind) {
    let store = store_at(&kind.shared().url()).unwrap();
    store.open().await.unwrap();
    let (bare, claim) = (Bare(store.clone()), claim_of(&unique("late"), LONG));
    let token = bare.grant(std::slice::from_ref(&claim)).await[0];
    // As if it had been sent long ago: it would end sooner.
    let late = claim_of(claim.name.as_str(), SECOND);
    let late = Claim { lease: claim.lease, ..late };
    let renewal = Renewal { name: late.name.clone(), lease: late.lease, first: token, ttl: late.ttl, rotate: false };
    assert!(matches!(store.renew(&[renewal]).await.unwrap()[0], Ok(Renewed::Kept(_))));
    assert_eq!(bare.grant(&[late]).await, [token], "a retry has another token");
    let record = store.list(&Page::of(&claim.name)).await.unwrap().remove(0);
    assert!(record.remaining > LONG / 2, "{:?} are left of {LONG:?}", record.remaining);
}

pub async fn what_a_server_alone_can_lose_is_told(kind: &Kind) {
    let findings = connect(&kind.shared().url()).await.examine().await.unwrap();
    assert_eq!(weak(&findings), ["replica set"], "{findings:#?}");
}

/// If it acknowledges nothing, it is not even tried.
pub async fn a_weak_write_concern_is_told(kind: &Kind) {
    let url = kind.shared().url();
    let findings = connect(&with(&url, "w=1")).await.examine().await.unwrap();
    assert_eq!(weak(&findings), ["replica set", "write concern"], "{findings:#?}");
    let error = store_at(&with(&url, "w=0")).map(drop).unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
}

/// With the right password all works; without, it is told, and no password.
pub async fn users_and_passwords_are_checked(kind: &Kind) {
    if tenure_of(kind).is_none() {
        return;
    }
    let server = MongoDb::start_with_users().unwrap();
    let as_user = |user: &str| server.url().replace("127.0.0.1", &format!("{user}@127.0.0.1")) + "?authSource=admin";
    let locks = connect(&as_user("tenure:secret")).await;
    let guard = hold(&locks, "name", 3 * SECOND).await;
    renewed(&locks, "name").await;
    guard.release().await.unwrap();
    for url in [as_user("tenure:hunter2"), as_user("nobody:hunter2"), server.url()] {
        let error = soon("a refusal", tenure::connect(&url)).await.unwrap_err();
        assert!(matches!(error, Error::Store { transient: false, .. }), "{url}: {error:?}");
        let whole = format!("{error} {error:?} {:?}", store_at(&url).unwrap());
        assert!(!whole.contains("hunter2"), "{whole}");
    }
}

/// FerretDB; not every `mongod` is set up with users.
fn tenure_of(kind: &Kind) -> Option<()> {
    matches!(kind.shared(), Running::MongoDb(_)).then_some(())?;
    xtask::tools::find("mongod").is_err().then_some(())
}

pub async fn refusals_say_what_is_wrong(kind: &Kind) {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (nowhere, nobody) = (kind.shared().url_at(closed), kind.shared().url().replace("127.0.0.1", "nobody.invalid"));
    for (url, says) in [(nowhere, "refused"), (nobody, "nobody.invalid")] {
        let error = soon("a refusal", tenure::connect(&url)).await.unwrap_err();
        assert_is_transient(&error);
        assert!(error.to_string().contains(says), "{error}");
    }
    let plain = with(&kind.shared().url(), "tls=true");
    let error = soon("a refusal", tenure::connect(&plain)).await.unwrap_err();
    assert!(matches!(error, Error::Store { .. }), "{error:?}");
}

/// When connecting, not at the first lock.
pub async fn a_server_without_a_clock_in_updates_is_refused(_: &Kind) {
    let fake = Fake::start(|command| match command.keys().next().map(String::as_str) {
        Some("findAndModify") => doc! { "ok": 0, "code": 17276, "errmsg": "Use of undefined variable: NOW" },
        _ => usual(command),
    })
    .await;
    let error = soon("a refusal", tenure::connect(fake.url())).await.unwrap_err();
    assert!(matches!(error, Error::Store { transient: false, .. }), "{error:?}");
    assert!(error.to_string().contains("$$NOW") && error.to_string().contains("MongoDB 5"), "{error}");
}

/// Case, accents: two names would be one.
pub async fn a_collection_that_folds_names_is_refused(_: &Kind) {
    let fake = Fake::start(|command| match command.keys().next().map(String::as_str) {
        Some("listCollections") => {
            let options = doc! { "collation": { "locale": "en", "strength": 1 } };
            let made = doc! { "name": "tenure_locks", "type": "collection", "options": options };
            doc! { "ok": 1, "cursor": { "id": 0_i64, "ns": "tenure.$cmd.listCollections", "firstBatch": [made] } }
        }
        _ => usual(command),
    })
    .await;
    let error = soon("a refusal", tenure::connect(fake.url())).await.unwrap_err();
    assert!(matches!(error, Error::Store { transient: false, .. }), "{error:?}");
    assert!(error.to_string().contains("collation"), "{error}");
}

/// Many insert each of some names at the same moment: one gets it, the others find it there, and nobody fails.
pub async fn new_names_that_many_claim_at_once_go_to_one(kind: &Kind) {
    let (prefix, start) = (unique("race"), Arc::new(Barrier::new(8)));
    let mut asking = JoinSet::new();
    for _ in 0..8 {
        let (bare, prefix, start) = (Bare::open(&kind.shared().url()).await, prefix.clone(), start.clone());
        asking.spawn(async move {
            let mut granted = 0;
            for round in 0..12 {
                start.wait().await;
                let names = if round % 2 == 0 { 1 } else { 3 };
                let claims: Vec<_> = (0..names).map(|n| claim_of(&format!("{prefix}/{round}/{n}"), LONG)).collect();
                let outcomes = bare.claim(&claims).await.into_iter().map(Result::unwrap);
                granted += outcomes.filter(|outcome| matches!(outcome, Outcome::Granted(_))).count();
            }
            granted
        });
    }
    let granted: usize = soon("all are answered", asking.join_all()).await.into_iter().sum();
    assert_eq!(granted, 6 + 6 * 3, "each name once");
}

/// Two insert a name at the same moment: whoever is told so looks again, and finds it there.
pub async fn a_name_that_another_inserts_is_claimed_again(_: &Kind) {
    let told = AtomicUsize::new(0);
    let fake = Fake::start(move |command| {
        let name = command.keys().next().map_or("", String::as_str);
        let is_first = || told.fetch_add(1, Ordering::Relaxed).is_multiple_of(2);
        match name {
            "findAndModify" if is_first() => doc! { "ok": 0, "code": 11000, "errmsg": "E11000 duplicate key" },
            "update" if command.get_array("updates").unwrap().len() > 1 => {
                let error = doc! { "index": 1, "code": 11000, "errmsg": "E11000 duplicate key" };
                doc! { "ok": 1, "n": 2, "writeErrors": [error] }
            }
            _ => usual(command),
        }
    })
    .await;
    let bare = Bare::open(&fake.url()).await;
    bare.grant(&[claim_of("one", LONG)]).await;
    let outcomes = bare.claim(&[claim_of("a", LONG), claim_of("b", LONG), claim_of("c", LONG)]).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    let updates = |command: &Document| Some(command.get_array("updates").ok()?.len());
    assert_eq!(fake.commands().iter().filter_map(updates).collect::<Vec<_>>(), [3, 1], "names of each attempt");
}

/// The server accepts connections, and takes no word for an answer; then all is well, but for those. More of them than the
/// driver opens at a time.
pub async fn connections_that_are_never_finished_stop_nothing(_: &Kind) {
    let silent = Arc::new(AtomicBool::new(false));
    let is_silent = silent.clone();
    let fake = Fake::start(move |command| match command.keys().next().map(String::as_str) {
        _ if is_silent.load(Ordering::Relaxed) => doc! { SILENCE: true },
        Some("saslStart") => doc! { "ok": 1, "conversationId": 1, "done": true, "payload": binary() },
        _ => usual(command),
    })
    .await;
    let url = fake.url().replace("//", "//me:secret@") + "?authMechanism=PLAIN";
    let store = store_at(&url).unwrap();
    soon("opening", store.open()).await.unwrap();
    let claim = claim_of("name", LONG);
    let renewal = Renewal { name: claim.name, lease: claim.lease, first: Token(1), ttl: claim.ttl, rotate: false };
    silent.store(true, Ordering::Relaxed);
    for _ in 0..8 {
        let given_up =
            tokio::time::timeout(Duration::from_millis(200), store.renew(std::slice::from_ref(&renewal))).await;
        assert!(given_up.is_err(), "{given_up:?}");
    }
    silent.store(false, Ordering::Relaxed);
    soon("the next renewal", store.renew(&[renewal])).await.unwrap();
}

fn binary() -> Binary {
    Binary { subtype: BinarySubtype::Generic, bytes: Vec::new() }
}

/// It may be undone: its outcome is unknown.
pub async fn a_write_that_no_majority_acknowledges_is_not_granted(_: &Kind) {
    let fake = Fake::start(|command| {
        let mut answer = usual(command);
        if command.contains_key("writeConcern") {
            answer.insert("writeConcernError", doc! { "code": 64, "errmsg": "waiting for replication timed out" });
        }
        answer
    })
    .await;
    let error = soon("a refusal", tenure::connect(fake.url())).await.unwrap_err();
    assert_is_transient(&error);
    assert!(error.to_string().contains("did not acknowledge"), "{error}");
}

/// Whatever the client that its settings are taken from does; and reads of a replica set are sure.
pub async fn writes_ask_for_a_majority_and_have_a_limit(_: &Kind) {
    let fake = Fake::start(usual).await;
    let options = "?retryWrites=true&readPreference=secondary&maxPoolSize=1&readConcernLevel=local&replicaSet=set";
    let store = store_at(&(fake.url() + options)).unwrap();
    store.open().await.unwrap();
    store.claim(&[claim_of("one", LONG)]).await.unwrap();
    store.claim(&[claim_of("a", LONG), claim_of("b", LONG)]).await.unwrap();
    store.list(&Page { prefix: "a".into(), after: None, limit: 1 }).await.unwrap();
    let commands = fake.commands();
    let of = |name: &str| {
        commands.iter().filter(|command| command.keys().next().is_some_and(|key| key == name)).collect::<Vec<_>>()
    };
    for command in ["findAndModify", "update", "delete"].iter().flat_map(|name| of(name)) {
        assert_eq!(command.get_document("writeConcern").unwrap().get_str("w").unwrap(), "majority", "{command}");
        assert!(command.contains_key("maxTimeMS") && !command.contains_key("txnNumber"), "{command}");
    }
    assert_eq!((of("findAndModify").len(), of("update").len()), (2, 1));
    let level = |find: &&Document| find.get_document("readConcern").unwrap().get_str("level").unwrap().to_owned();
    assert_eq!(of("find").iter().map(level).collect::<Vec<_>>(), ["majority", "linearizable"]);
}

/// What a member of a replica set says that grants everything.
fn usual(command: &Document) -> Document {
    let name = command.keys().next().map_or("", String::as_str);
    match name {
        "findAndModify" => {
            let set = command.get_array("update").unwrap()[0].as_document().unwrap().get_document("$set").unwrap();
            let call = set.get_document("term").unwrap().get_array("$cond").unwrap()[1].as_document().unwrap();
            let call = call.get_document("call").unwrap().get("$literal").unwrap();
            doc! { "ok": 1, "value": kept("name".into(), call.clone()) }
        }
        "find" => doc! { "ok": 1, "cursor": { "id": 0_i64, "ns": "tenure.tenure_locks", "firstBatch": [] } },
        "listCollections" => doc! { "ok": 1, "cursor": { "id": 0_i64, "ns": "tenure.$cmd.x", "firstBatch": [] } },
        _ => doc! { "ok": 1, "n": 1 },
    }
}

fn kept(name: Bson, call: Bson) -> Document {
    let now = DateTime::now();
    let expires = DateTime::from_millis(now.timestamp_millis() + 30_000);
    let term = doc! {
        "lease": "0", "owner": "o", "data": null, "first": 1_i64, "acquired": now, "renewed": now,
        "expires": expires, "grace": 0_i64, "call": call,
    };
    doc! { "_id": name, "token": 1_i64, "term": term, "now": now }
}
