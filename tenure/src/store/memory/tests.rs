use super::*;
use crate::record::{LeaseId, Token};
use crate::store::url::store_at;
use crate::store::{Gone, Page};

const TTL: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_micros(1);

fn store() -> (MemoryStore, ManualClock) {
    let clock = ManualClock::new();
    (MemoryStore::with_clock(clock.clone()), clock)
}

fn claim(name: &str) -> Claim {
    let (name, ttl) = (Name::new(name).unwrap(), Ttl::new(TTL).unwrap());
    let (lease, grace) = (LeaseId::random(), Duration::ZERO);
    Claim { name, lease, owner: "somebody".into(), ttl, grace, data: None, waits: true }
}

async fn ask(store: &dyn Store, claim: &Claim) -> Option<Token> {
    match store.claim(std::slice::from_ref(claim)).await.unwrap().remove(0).unwrap() {
        Outcome::Granted(grant) => Some(grant.token),
        Outcome::Busy(_) => None,
    }
}

async fn renew(store: &MemoryStore, claim: &Claim, first: Token, rotate: bool) -> Renewed {
    let renewal = Renewal { name: claim.name.clone(), lease: claim.lease, first, ttl: claim.ttl, rotate };
    store.renew(&[renewal]).await.unwrap().remove(0).unwrap()
}

async fn end(store: &MemoryStore, claim: &Claim, evicted_by: Option<&str>) -> bool {
    let (name, evicted_by) = (claim.name.clone(), evicted_by.map(Into::into));
    store.release(&[Ended { name, lease: claim.lease, first: None, evicted_by }]).await.unwrap().remove(0).unwrap()
}

fn micros(time: std::time::SystemTime) -> u64 {
    time.duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap().as_micros() as u64
}

#[tokio::test]
async fn tokens_follow_the_clock_and_rise_even_while_it_stands_still() {
    let (store, clock) = store();
    let (one, two, three) = (claim("a"), claim("a"), claim("a"));
    let first = ask(&store, &one).await.unwrap();
    assert_eq!(first.0, micros(clock.now()));
    assert!(end(&store, &one, None).await);
    assert_eq!(ask(&store, &two).await, Some(Token(first.0 + 1)));
    assert!(end(&store, &two, None).await);
    clock.advance(TTL);
    assert_eq!(ask(&store, &three).await, Some(Token(micros(clock.now()))));
}

#[tokio::test]
async fn a_retry_keeps_its_token_and_starts_its_term_anew() {
    let (store, clock) = store();
    let (ours, theirs) = (claim("a"), claim("a"));
    let first = ask(&store, &ours).await;
    clock.advance(TTL - TICK);
    assert_eq!(ask(&store, &ours).await, first);
    clock.advance(TTL - TICK);
    assert_eq!(ask(&store, &theirs).await, None);
    clock.advance(TICK);
    assert!(ask(&store, &ours).await > first, "it had expired: that was no retry");
}

#[tokio::test]
async fn an_expired_name_stays_closed_for_its_grace_and_a_released_one_does_not() {
    let (store, clock) = store();
    let (mut ours, theirs) = (claim("a"), claim("a"));
    ours.grace = TTL;
    ask(&store, &ours).await.unwrap();
    clock.advance(TTL + TTL - TICK);
    assert_eq!(ask(&store, &theirs).await, None);
    assert!(!end(&store, &ours, None).await, "it had expired");
    clock.advance(TICK);
    assert!(ask(&store, &theirs).await.is_some());
    assert!(end(&store, &theirs, None).await);
    assert!(ask(&store, &ours).await.is_some());
}

#[tokio::test]
async fn an_expired_term_is_never_revived() {
    let (store, clock) = store();
    let ours = claim("a");
    let first = ask(&store, &ours).await.unwrap();
    clock.advance(TTL - TICK);
    assert!(matches!(renew(&store, &ours, first, false).await, Renewed::Kept(_)));
    clock.advance(TTL);
    assert!(matches!(renew(&store, &ours, first, false).await, Renewed::Gone(Gone::Expired)));
    let taker = claim("a");
    ask(&store, &taker).await.unwrap();
    let Renewed::Gone(Gone::Taken(record)) = renew(&store, &ours, first, false).await else { panic!("not taken") };
    assert_eq!(record.lease, taker.lease);
}

#[tokio::test]
async fn only_a_rotation_raises_the_token_and_the_first_one_still_names_the_term() {
    let (store, clock) = store();
    let ours = claim("a");
    let first = ask(&store, &ours).await.unwrap();
    clock.advance(TICK * 5);
    let Renewed::Kept(same) = renew(&store, &ours, first, false).await else { panic!("gone") };
    assert_eq!(same.token, first);
    let Renewed::Kept(raised) = renew(&store, &ours, first, true).await else { panic!("gone") };
    assert_eq!(raised.token.0, first.0 + 5);
    assert!(matches!(renew(&store, &ours, first, false).await, Renewed::Kept(grant) if grant.token == raised.token));
    assert!(matches!(renew(&store, &ours, raised.token, false).await, Renewed::Gone(_)));
}

#[tokio::test]
async fn an_evicted_holder_hears_who_did_it_even_after_the_next_claim() {
    let (store, _) = store();
    let (ours, theirs) = (claim("a"), claim("a"));
    let first = ask(&store, &ours).await.unwrap();
    assert!(end(&store, &ours, Some("ops: stuck")).await);
    ask(&store, &theirs).await.unwrap();
    assert!(end(&store, &theirs, None).await);
    let renewed = renew(&store, &ours, first, false).await;
    assert!(matches!(&renewed, Renewed::Gone(Gone::Evicted(by)) if by == "ops: stuck"), "{renewed:?}");
}

#[tokio::test]
async fn prune_forgets_what_was_idle_for_long_enough_and_nothing_else() {
    let (store, clock) = store();
    let (held, free) = (claim("held"), claim("free"));
    let before = ask(&store, &free).await.unwrap();
    assert!(end(&store, &free, None).await);
    clock.advance(TTL);
    ask(&store, &held).await.unwrap();
    assert_eq!(store.prune(TTL).await.unwrap(), 0, "its token is not yet older than that");
    clock.advance(TICK);
    assert_eq!(store.prune(TTL).await.unwrap(), 1);
    assert_eq!(store.prune(TTL).await.unwrap(), 0);
    assert!(ask(&store, &free).await > Some(before));
}

#[tokio::test]
async fn pages_are_in_byte_order_and_keep_to_their_prefix() {
    let (store, _) = store();
    for name in ["b", "a/2", "a/1", "a", "a0", "A"] {
        ask(&store, &claim(name)).await.unwrap();
    }
    let list = async |prefix: &str, after: Option<&str>, limit| {
        let page = Page { prefix: prefix.into(), after: after.map(|name| Name::new(name).unwrap()), limit };
        store.list(&page).await.unwrap().into_iter().map(|record| record.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(list("", None, 9).await, ["A", "a", "a/1", "a/2", "a0", "b"]);
    assert_eq!(list("a/", None, 9).await, ["a/1", "a/2"]);
    assert_eq!(list("a/", Some("A"), 1).await, ["a/1"]);
    assert_eq!(list("a/", Some("a/1"), 9).await, ["a/2"]);
    assert!(list("a/", Some("b"), 9).await.is_empty());
    assert!(list("\n", None, 9).await.is_empty());
}

#[tokio::test]
async fn a_release_is_told_to_those_who_wait_for_it() {
    let (store, _) = store();
    let mut changes = store.changes().await.unwrap().unwrap();
    let (quiet, awaited) = (claim("quiet"), claim("awaited"));
    ask(&store, &quiet).await.unwrap();
    ask(&store, &awaited).await.unwrap();
    assert_eq!(ask(&store, &claim("awaited")).await, None);
    assert!(end(&store, &quiet, None).await);
    assert!(end(&store, &awaited, None).await);
    assert_eq!(changes.next().await, Change::Freed(awaited.name));
}

#[tokio::test]
async fn a_listener_that_falls_behind_is_told_that_it_lost_track() {
    let (store, _) = store();
    let mut changes = store.changes().await.unwrap().unwrap();
    for _ in 0..=HINTS {
        let ours = claim("a");
        ask(&store, &ours).await.unwrap();
        assert_eq!(ask(&store, &claim("a")).await, None);
        assert!(end(&store, &ours, None).await);
    }
    assert_eq!(changes.next().await, Change::LostTrack);
    assert!(matches!(changes.next().await, Change::Freed(_)));
}

#[tokio::test]
async fn the_same_url_is_the_same_data() {
    let (one, same, other) = (store_at("memory:same").unwrap(), MemoryStore::shared("same"), store_at("memory:other"));
    assert!(ask(&*one, &claim("a")).await.is_some());
    assert!(ask(&same, &claim("a")).await.is_none());
    assert!(ask(&*other.unwrap(), &claim("a")).await.is_some());
}
