use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Instant, SystemTime};

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions as _, Connection as _, Row as _};
use tempfile::TempDir;

use super::*;
use crate::record::{LeaseId, Token};
use crate::store::Gone;

const MINUTE: Duration = Duration::from_secs(60);

fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    (folder, path)
}

async fn open(path: &Path) -> SqliteStore {
    let store = SqliteStore::new(path).unwrap();
    store.open().await.unwrap();
    store
}

/// A connection of somebody else.
async fn stranger(path: &Path) -> SqliteConnection {
    SqliteConnectOptions::new().filename(path).create_if_missing(true).connect().await.unwrap()
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn claim(text: &str) -> Claim {
    let (owner, ttl) = ("somebody".into(), Ttl::new(MINUTE).unwrap());
    let (lease, grace) = (LeaseId::random(), Duration::ZERO);
    Claim { name: name(text), lease, owner, ttl, grace, data: None, waits: false }
}

/// It tries again where a caller would: on a busy machine, others may keep the file for seconds.
async fn outcome(store: &SqliteStore, claim: &Claim) -> Outcome {
    loop {
        match store.claim(std::slice::from_ref(claim)).await {
            Err(error) if error.is_transient() => {}
            answered => return answered.unwrap().remove(0).unwrap(),
        }
    }
}

async fn token(store: &SqliteStore, claim: &Claim) -> Token {
    match outcome(store, claim).await {
        Outcome::Granted(grant) => grant.token,
        refused => panic!("{refused:?}"),
    }
}

fn renewal(claim: &Claim, first: Token) -> Renewal {
    Renewal { name: claim.name.clone(), lease: claim.lease, first, ttl: claim.ttl, rotate: false }
}

fn everything() -> Page {
    Page { prefix: String::new(), after: None, limit: 100 }
}

#[test]
fn urls_without_a_file_are_refused_with_a_hint() {
    for url in ["sqlite:", "sqlite://", "sqlite::memory:"] {
        let error = crate::store::url::store_at(url).unwrap_err();
        assert!(error.to_string().contains("use memory:"), "{error}");
    }
}

#[tokio::test]
async fn two_stores_on_one_file_exclude_each_other() {
    let (_folder, path) = folder();
    let (one, two) = (open(&path).await, open(&path).await);
    let (ours, theirs) = (claim("a"), claim("a"));
    let first = token(&one, &ours).await;
    let Outcome::Busy(Some(holder)) = outcome(&two, &theirs).await else { panic!("two holders") };
    assert_eq!((holder.lease, holder.token), (ours.lease, first));
    let ended = Ended { name: ours.name, lease: ours.lease, first: Some(first), evicted_by: None };
    assert!(one.release(&[ended]).await.unwrap().remove(0).unwrap());
    assert!(token(&two, &theirs).await > first);
}

#[tokio::test]
async fn ten_processes_that_start_at_once_on_no_file_make_one_table_and_one_holder() {
    let (_folder, path) = folder();
    let start = SystemTime::now() + Duration::from_millis(300);
    let children: Vec<Child> = (0..10).map(|_| spawn_claimant(&path, start)).collect();
    let said: Vec<String> = children.into_iter().map(said).collect();
    assert_eq!(said.iter().filter(|word| word.contains("granted")).count(), 1, "{said:?}");
    assert_eq!(said.iter().filter(|word| word.contains("busy")).count(), 9, "{said:?}");
}

const DATABASE: &str = "TENURE_TEST_DATABASE";
const START: &str = "TENURE_TEST_START";

fn spawn_claimant(path: &Path, start: SystemTime) -> Child {
    let start = start.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis();
    Command::new(env::current_exe().unwrap())
        .args(["--exact", "store::sqlite::tests::claimant", "--ignored", "--nocapture"])
        .env(DATABASE, path)
        .env(START, start.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn said(child: Child) -> String {
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
}

/// What the other processes of a test do.
#[tokio::test]
#[ignore = "run by another test, in processes of its own"]
async fn claimant() {
    let (Ok(path), Ok(start)) = (env::var(DATABASE), env::var(START)) else { return };
    let start = SystemTime::UNIX_EPOCH + Duration::from_millis(start.parse().unwrap());
    tokio::time::sleep(start.duration_since(SystemTime::now()).unwrap_or_default()).await;
    match outcome(&SqliteStore::new(path).unwrap(), &claim("a")).await {
        Outcome::Granted(_) => println!("granted"),
        Outcome::Busy(_) => println!("busy"),
    }
}

#[tokio::test]
async fn a_claim_that_waited_for_the_file_gets_its_whole_term() {
    let (_folder, path) = folder();
    let store = open(&path).await;
    let mut stranger = stranger(&path).await;
    let transaction = stranger.begin_with("begin immediate").await.unwrap();
    let claim = claim("a");
    let (ours, free_at) = tokio::join!(token(&store, &claim), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let free_at = SystemTime::now();
        transaction.rollback().await.unwrap();
        free_at
    });
    let held = store.list(&everything()).await.unwrap().remove(0);
    let tick = Duration::from_millis(1);
    assert!(held.expires_at + tick >= free_at + MINUTE, "the term began before the file was free");
    assert!(SystemTime::UNIX_EPOCH + Duration::from_micros(ours.0) + tick >= free_at, "so did the token");
}

#[tokio::test]
async fn a_refused_claim_writes_nothing() {
    let (_folder, path) = folder();
    let store = open(&path).await;
    token(&store, &claim("a")).await;
    let written = || fs::metadata(path.with_extension("db-wal")).unwrap().len();
    let before = written();
    assert!(matches!(outcome(&store, &claim("a")).await, Outcome::Busy(Some(_))));
    assert_eq!(written(), before);
    token(&store, &claim("b")).await;
    assert!(written() > before);
}

#[tokio::test]
async fn a_call_that_is_given_up_does_not_hold_up_the_next() {
    let (_folder, path) = folder();
    let store = open(&path).await;
    let mut stranger = stranger(&path).await;
    let transaction = stranger.begin_with("begin immediate").await.unwrap();
    let stuck = claim("a");
    let given_up = tokio::time::timeout(Duration::from_millis(50), outcome(&store, &stuck)).await;
    assert!(given_up.is_err());
    let started = Instant::now();
    store.list(&everything()).await.unwrap();
    assert!(started.elapsed() < BUSY_TIMEOUT * 3 / 4, "it waited for the one before");
    transaction.rollback().await.unwrap();
}

#[tokio::test]
async fn a_file_that_stays_locked_is_a_transient_error() {
    let (_folder, path) = folder();
    let store = open(&path).await;
    let mut stranger = stranger(&path).await;
    let _transaction = stranger.begin_with("begin immediate").await.unwrap();
    let error = store.claim(&[claim("a")]).await.unwrap_err();
    assert!(error.is_transient() && error.to_string().contains("busy"), "{error}");
}

#[tokio::test]
async fn a_file_that_is_replaced_while_in_use_is_noticed_and_then_used() {
    let (_folder, path) = folder();
    let (store, claim) = (open(&path).await, claim("a"));
    let first = token(&store, &claim).await;
    store.renew(&[renewal(&claim, first)]).await.unwrap();
    for file in ["db", "db-wal", "db-shm"] {
        fs::remove_file(path.with_extension(file)).unwrap();
    }
    let other = open(&path).await;
    let error = store.renew(&[renewal(&claim, first)]).await.unwrap_err();
    assert!(error.is_transient() && error.to_string().contains("replaced"), "{error}");
    let renewed = store.renew(&[renewal(&claim, first)]).await.unwrap().remove(0).unwrap();
    assert!(matches!(renewed, Renewed::Gone(Gone::Expired)), "{renewed:?}");
    let error = store.claim(std::slice::from_ref(&claim)).await.unwrap_err();
    assert!(error.is_transient(), "the other lane had the old file too: {error}");
    assert!(token(&store, &claim).await > first);
    assert_eq!(other.list(&everything()).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_file_that_is_no_database_is_named_and_left_alone() {
    let (_folder, path) = folder();
    let letter = "Dear Sir or Madam, ".repeat(100);
    fs::write(&path, &letter).unwrap();
    let error = SqliteStore::new(&path).unwrap().open().await.unwrap_err();
    assert!(!error.is_transient());
    assert!(error.to_string().contains("locks.db is not a database"), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), letter);
}

#[tokio::test]
async fn a_table_of_somebody_else_is_left_alone() {
    let (_folder, path) = folder();
    sqlx::query("create table tenure_locks (x)").execute(&mut stranger(&path).await).await.unwrap();
    let error = open(&path).await.claim(&[claim("a")]).await.unwrap_err();
    assert!(!error.is_transient() && error.to_string().contains("tenure schema"), "{error}");
}

#[tokio::test]
async fn a_database_with_other_tables_keeps_them_and_gets_the_wal() {
    let (_folder, path) = folder();
    let mut stranger = stranger(&path).await;
    sqlx::raw_sql("create table notes (x); insert into notes values (1)").execute(&mut stranger).await.unwrap();
    stranger.close().await.unwrap();
    let store = open(&path).await;
    token(&store, &claim("a")).await;
    let mut stranger = self::stranger(&path).await;
    let notes = sqlx::query("select x from notes").fetch_all(&mut stranger).await.unwrap();
    assert_eq!(notes.len(), 1);
    let found = store.examine().await.unwrap();
    assert!(found.iter().any(|finding| finding.says.contains("journal mode wal")), "{found:?}");
    assert!(found.iter().any(|finding| finding.says.contains("1 held")), "{found:?}");
}

#[tokio::test]
async fn the_schema_that_is_printed_is_the_one_that_is_made() {
    let (_folder, path) = folder();
    let store = SqliteStore::new(&path).unwrap().with_table(&Identifier::new("order").unwrap());
    store.open().await.unwrap();
    token(&store, &claim("a")).await;
    let made = sqlx::query("select sql from sqlite_schema where type = 'table' and name = 'order'");
    let made: String = made.fetch_one(&mut stranger(&path).await).await.unwrap().get(0);
    let (_, body) = made.split_once('(').unwrap();
    assert!(store.schema().unwrap().contains(body), "{body}");
}

#[tokio::test]
async fn the_file_stays_open_for_the_process_when_its_store_is_dropped() {
    let (_folder, path) = folder();
    let (store, ours) = (open(&path).await, claim("a"));
    token(&store, &ours).await;
    drop(store);
    assert!(fs::metadata(path.with_extension("db-wal")).unwrap().len() > 0, "the WAL was written back and deleted");
    assert!(matches!(outcome(&open(&path).await, &claim("a")).await, Outcome::Busy(Some(_))));
}

#[tokio::test]
async fn every_statement_finds_its_names_by_the_primary_key() {
    let (_folder, path) = folder();
    let (store, mut stranger) = (open(&path).await, stranger(&path).await);
    let sql = &store.database.statements;
    let parts = [&sql.claim, &sql.renew, &sql.release, &sql.list].into_iter().flat_map(|sql| sql.split(';'));
    for sql in parts.filter(|sql| ["select", "update"].iter().any(|word| sql.trim().starts_with(word))) {
        let plan = format!("explain query plan {sql}").into();
        let steps = statement(&plan).fetch_all(&mut stranger).await.unwrap();
        let steps: Vec<String> = steps.iter().map(|step| step.get("detail")).collect();
        assert!(steps.iter().any(|step| step.contains("USING PRIMARY KEY (name")), "{sql}: {steps:?}");
        let whole = |step: &&String| step.starts_with("SCAN held") || step.starts_with("SCAN tenure");
        assert_eq!(steps.iter().find(whole), None, "{sql}");
    }
}

#[tokio::test]
async fn a_page_reaches_the_last_name_there_can_be() {
    let (_folder, path) = folder();
    let store = open(&path).await;
    let last = "\u{10ffff}\u{10ffff}";
    for text in ["a", "b", last] {
        token(&store, &claim(text)).await;
    }
    let list = async |prefix: &str, after: Option<&str>| {
        let page = Page { prefix: prefix.into(), after: after.map(name), limit: 10 };
        let found = store.list(&page).await.unwrap();
        found.into_iter().map(|record| record.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(list("", None).await, ["a", "b", last]);
    assert_eq!(list("", Some("a")).await, ["b", last]);
    assert_eq!(list("\u{10ffff}", Some("a")).await, [last]);
    assert!(list("\u{10ffff}", Some(last)).await.is_empty());
}

#[tokio::test]
async fn a_full_batch_is_one_call() {
    let (_folder, path) = folder();
    let store = open(&path).await;
    let claims: Vec<Claim> = (0..store.about().batch).map(|i| claim(&format!("n/{i:05}"))).collect();
    let granted = store.claim(&claims).await.unwrap();
    assert!(granted.iter().all(|outcome| matches!(outcome, Ok(Outcome::Granted(_)))));
    let pruned = store.prune(MINUTE).await.unwrap();
    assert_eq!(pruned, 0, "all are held");
}
