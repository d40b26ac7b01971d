//! What only etcd does: leases that many names share, revisions that make tokens, and a cluster of members that fail alone.

use std::collections::BTreeSet;
use std::future::IntoFuture as _;
use std::time::Duration;

use tenure::store::url::store_at;
use tenure::store::{Change, Claim, Gone, Outcome, Renewed};
use tenure::{Error, Guard, Locks, Lost, Name, Token, Why};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;
use xtask::proxy::Proxy;
use xtask::services::{Etcd, EtcdCluster};

use super::bare::{Bare, claim_of};
use super::kind::Kind;
use super::settings::weak;
use super::support::{
    LONG, SECOND, assert_is_transient, connect, expired, free_for, frees, hold, is_closed_to, renewed, soon, unique,
    until, with,
};

/// A prefix of the test's own: where its keys are, and its URL.
struct Place {
    url: String,
    prefix: String,
}

impl Place {
    fn new(kind: &Kind) -> Self {
        let prefix = unique("place");
        Self { url: with(&kind.shared().url(), &format!("tenure.prefix={prefix}")), prefix }
    }

    fn key(&self, name: &str) -> String {
        format!("{}/names/{name}", self.prefix)
    }

    /// The etcd lease that a name is on, as `etcdctl` writes it.
    fn lease(&self, etcd: &Etcd, name: &str) -> String {
        let fields = etcd.ctl(&["get", &self.key(name), "--write-out=fields"]).unwrap();
        let line = fields.lines().find(|line| line.starts_with("\"Lease\"")).expect("the name has a key");
        let lease: i64 = line.split_once(" : ").unwrap().1.parse().unwrap();
        format!("{lease:x}")
    }
}

async fn lost(guard: &Guard) -> Why {
    let Lost { why, .. } = soon("a loss is told", guard.lost()).await;
    why
}

/// One lease for each TTL and grace, however many names there are.
pub async fn names_with_one_ttl_share_a_lease(kind: &Kind) {
    let (place, etcd) = (Place::new(kind), kind.shared().etcd());
    let locks = connect(&place.url).await;
    let mut guards = Vec::new();
    for number in 0..20 {
        guards.push(hold(&locks, &format!("same/{number}"), 60 * SECOND).await);
    }
    let other = hold(&locks, "other", 50 * SECOND).await;
    let leases: BTreeSet<String> = guards.iter().map(|guard| place.lease(etcd, guard.name().as_str())).collect();
    assert_eq!(leases.len(), 1, "{leases:?}");
    assert!(!leases.contains(&place.lease(etcd, "other")));
    drop(other);
}

/// Somebody revokes the lease: every name on it is lost, and told so; the next claims take another lease.
pub async fn a_lease_revoked_by_hand_is_told(kind: &Kind) {
    let (place, etcd) = (Place::new(kind), kind.shared().etcd());
    let locks = connect(&place.url).await;
    let guards = [hold(&locks, "one", 12 * SECOND).await, hold(&locks, "two", 12 * SECOND).await];
    let lease = place.lease(etcd, "one");
    etcd.ctl(&["lease", "revoke", &lease]).unwrap();
    for guard in &guards {
        let why = lost(guard).await;
        assert!(matches!(why, Why::Expired(None)), "{why}");
    }
    let next = hold(&locks, "one", 12 * SECOND).await;
    assert!(next.token() > guards[0].token());
    assert_ne!(place.lease(etcd, "one"), lease, "a lease that is gone was used again");
}

/// A lease that is gone is found out by a claim, too: it takes another.
pub async fn a_claim_on_a_lease_that_is_gone_takes_another(kind: &Kind) {
    let (place, etcd) = (Place::new(kind), kind.shared().etcd());
    let bare = Bare::open(&place.url).await;
    bare.grant(&[claim_of("one", 60 * SECOND)]).await;
    let lease = place.lease(etcd, "one");
    etcd.ctl(&["lease", "revoke", &lease]).unwrap();
    bare.grant(&[claim_of("one", 60 * SECOND), claim_of("two", 60 * SECOND)]).await;
    assert_ne!(place.lease(etcd, "two"), lease);
}

/// Its time is over here, though the server, which somebody else has asked, keeps it: it is revoked, and another taken.
pub async fn a_lease_lost_by_our_own_clock_is_not_used_again(kind: &Kind) {
    let (place, etcd) = (Place::new(kind), kind.shared().etcd());
    let bare = Bare::open(&place.url).await;
    let claim = claim_of("one", 3 * SECOND);
    let tokens = bare.grant(std::slice::from_ref(&claim)).await;
    let (lease, granted) = (place.lease(etcd, "one"), tenure::clock::Moment::now());
    while tenure::clock::Moment::now() - granted < 4 * SECOND {
        etcd.ctl(&["lease", "keep-alive", "--once", &lease]).unwrap();
        tokio::time::sleep(SECOND / 2).await;
    }
    assert_eq!(place.lease(etcd, "one"), lease, "the server has not kept it");
    bare.grant(&[claim_of("two", 3 * SECOND)]).await;
    assert_ne!(place.lease(etcd, "two"), lease, "a lease that was lost is used again");
    until("what was lost is revoked", async || etcd.ctl(&["get", &place.key("one")]).unwrap().is_empty()).await;
    let renewed = bare.renew(&[claim], &tokens).await.remove(0).unwrap();
    assert!(matches!(renewed, Renewed::Gone(Gone::Expired)), "{renewed:?}");
}

/// A claim does not extend its lease: its time counts from the last keep-alive, which a claim makes when that was long ago.
pub async fn a_term_counts_from_the_keep_alive_of_its_lease(kind: &Kind) {
    let bare = Bare::open(&Place::new(kind).url).await;
    let since = async |name: &str| match bare.claim(&[claim_of(name, 12 * SECOND)]).await.remove(0).unwrap() {
        Outcome::Granted(grant) => grant.since.expect("the lease has a time of its own"),
        busy @ Outcome::Busy(_) => panic!("{busy:?}"),
    };
    let first = since("first").await;
    assert_eq!(since("second").await, first, "a claim has extended the lease of another");
    tokio::time::sleep(4 * SECOND).await;
    let third = since("third").await;
    assert!(third >= first + 4 * SECOND, "a term has begun with {:?} of its time gone", third - first);
}

/// Somebody deletes a key: its holder is told, and the other names on its lease are not touched.
pub async fn a_key_deleted_by_hand_is_told(kind: &Kind) {
    let (place, etcd) = (Place::new(kind), kind.shared().etcd());
    let (locks, other) = (connect(&place.url).await, connect(&place.url).await);
    let (deleted, taken, kept) = (
        hold(&locks, "deleted", 12 * SECOND).await,
        hold(&locks, "taken", 12 * SECOND).await,
        hold(&locks, "kept", 12 * SECOND).await,
    );
    let waiting = tokio::spawn(other.lock("taken").ttl(LONG).into_future());
    etcd.ctl(&["del", &place.key("deleted")]).unwrap();
    etcd.ctl(&["del", &place.key("taken")]).unwrap();
    let next = soon("a key's end wakes a waiter", waiting).await.unwrap().unwrap();
    let why = lost(&deleted).await;
    assert!(matches!(why, Why::Expired(None)), "{why}");
    let why = lost(&taken).await;
    assert!(matches!(&why, Why::Taken(_, token) if *token == next.token()), "{why}");
    renewed(&locks, "kept").await;
    assert!(kept.is_held());
}

/// A key on our lease that nobody here holds, because its claim was given up, would be kept alive for ever.
pub async fn a_key_that_nobody_holds_is_deleted(kind: &Kind) {
    let (place, etcd) = (Place::new(kind), kind.shared().etcd());
    let (locks, other) = (connect(&place.url).await, connect(&place.url).await);
    let _held = hold(&locks, "held", 12 * SECOND).await;
    let value = etcd.ctl(&["get", &place.key("held"), "--print-value-only"]).unwrap();
    let lease = format!("--lease={}", place.lease(etcd, "held"));
    etcd.ctl(&["put", &lease, &place.key("orphan"), value.trim_end()]).unwrap();
    frees(&other, "orphan", "though its lease is kept alive").await;
    renewed(&locks, "held").await;
}

/// A term that nobody renews, on a lease that claims alone keep alive, would be closed for ever, too.
pub async fn a_term_that_was_held_too_long_does_not_live_on_with_its_lease(kind: &Kind) {
    let url = Place::new(kind).url;
    let (locks, other) = (connect(&url).await, connect(&url).await);
    let stuck = locks.lock("stuck").ttl(3 * SECOND).max_hold(SECOND / 2).await.unwrap();
    let claims = async {
        loop {
            hold(&locks, "short", 3 * SECOND).await.release().await.unwrap();
            tokio::time::sleep(SECOND / 5).await;
        }
    };
    let freed = async {
        assert!(matches!(lost(&stuck).await, Why::HeldTooLong));
        frees(&other, "stuck", "though claims keep its lease alive").await;
    };
    tokio::select! {
        () = claims => {}
        () = freed => {}
    }
}

/// Leads to a server; replies on the second connection, which is that for renewals, take so much longer.
async fn with_slow_renewals(server: u16, by: Duration) -> u16 {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        for number in 1.. {
            let (client, _) = listener.accept().await.unwrap();
            let server = tokio::net::TcpStream::connect(("127.0.0.1", server)).await.unwrap();
            let ((mut asks, mut hears), (mut replies, mut asked)) = (client.into_split(), server.into_split());
            tokio::spawn(async move { tokio::io::copy(&mut asks, &mut asked).await });
            let (send, mut sent) = tokio::sync::mpsc::unbounded_channel::<(tokio::time::Instant, Vec<u8>)>();
            tokio::spawn(async move {
                let mut piece = vec![0; 1 << 16];
                while let Ok(length @ 1..) = replies.read(&mut piece).await {
                    let at = tokio::time::Instant::now() + if number == 2 { by } else { Duration::ZERO };
                    let _ = send.send((at, piece[..length].to_vec()));
                }
            });
            tokio::spawn(async move {
                while let Some((at, piece)) = sent.recv().await {
                    tokio::time::sleep_until(at).await;
                    let _ = hears.write_all(&piece).await;
                }
            });
        }
    });
    port
}

/// What a renewal hears of its lease may be old: a name that was released since is somebody else's, and is left alone.
pub async fn a_name_that_passed_to_another_during_a_renewal_is_theirs(kind: &Kind) {
    let (place, server) = (Place::new(kind), kind.shared().port());
    let slow = with_slow_renewals(server, SECOND * 2 / 5).await;
    let ours = Bare::open(&place.url.replace(&server.to_string(), &slow.to_string())).await;
    let theirs = Bare::open(&place.url).await;
    let claims = ["kept", "passed"].map(|name| claim_of(name, 30 * SECOND));
    let tokens = ours.grant(&claims).await;
    let pass = async {
        // By now the lease was kept alive, and its keys were asked for.
        tokio::time::sleep(SECOND * 3 / 5).await;
        assert!(ours.release(&claims[1..], &tokens[1..]).await.remove(0).unwrap());
        let claim = claim_of("passed", 30 * SECOND);
        let tokens = theirs.grant(std::slice::from_ref(&claim)).await;
        (claim, tokens)
    };
    let (kept, (claim, tokens)) = tokio::join!(ours.renew(&claims[..1], &tokens[..1]), pass);
    assert!(renewal_is_kept(&kept), "{kept:?}");
    tokio::time::sleep(SECOND).await;
    let renewed = theirs.renew(&[claim], &tokens).await;
    assert!(renewal_is_kept(&renewed), "{renewed:?}");
}

fn renewal_is_kept(renewed: &[Result<Renewed, Error>]) -> bool {
    matches!(renewed, [Ok(Renewed::Kept(_))])
}

/// Renews one name, on and on, while `done` is not so.
async fn renew_until(bare: &Bare, claim: &Claim, token: Token, what: &str, mut done: impl AsyncFnMut() -> bool) {
    until(what, async || {
        let kept = bare.renew(std::slice::from_ref(claim), &[token]).await;
        assert!(renewal_is_kept(&kept), "{kept:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
        done().await
    })
    .await;
}

/// Two names on one lease, of which only one is renewed: the other one's term is over when its own time is.
pub async fn a_name_that_is_not_renewed_ends_though_its_lease_lives_on(kind: &Kind) {
    let place = Place::new(kind);
    let (bare, other) = (Bare::open(&place.url).await, connect(&place.url).await);
    let claims = [claim_of("idle", 3 * SECOND), claim_of("renewed", 3 * SECOND)];
    let tokens = bare.grant(&claims).await;
    assert!(is_closed_to(&other, "idle").await);
    renew_until(&bare, &claims[1], tokens[1], "the other name is free", async || !is_closed_to(&other, "idle").await)
        .await;
    let gone = bare.renew(&claims[..1], &tokens[..1]).await.remove(0).unwrap();
    assert!(matches!(gone, Renewed::Gone(_)), "{gone:?}");
}

/// The same with a grace: it is over, and closed until its grace is over too, not longer.
pub async fn a_grace_is_kept_though_its_lease_lives_on(kind: &Kind) {
    let place = Place::new(kind);
    let (bare, other) = (Bare::open(&place.url).await, connect(&place.url).await);
    let grace = 3 * SECOND;
    let claims = [claim_of("idle", 2 * SECOND), claim_of("renewed", 2 * SECOND)].map(|claim| Claim { grace, ..claim });
    let begun = tenure::clock::Moment::now();
    let tokens = bare.grant(&claims).await;
    renew_until(&bare, &claims[1], tokens[1], "the other name is free", async || !is_closed_to(&other, "idle").await)
        .await;
    let closed = tenure::clock::Moment::now() - begun;
    assert!(closed >= 2 * SECOND + grace, "closed for {closed:?} only");
}

/// Revisions begin anew, tokens don't. The old holder is told, and can't end the new one's term.
pub async fn a_cluster_that_lost_its_data_gives_larger_tokens(kind: &Kind) {
    let server = kind.start();
    let (locks, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let guard = hold(&locks, "name", 30 * SECOND).await;
    // More revisions than there will be in the new cluster.
    for _ in 0..20 {
        frees(&other, "busy", "").await;
    }
    server.etcd().wipe().unwrap();
    let next = free_for(&other, "name", "in a cluster that has lost its data").await;
    assert!(next.token() > guard.token(), "{} follows {}", next.token(), guard.token());
    let why = lost(&guard).await;
    assert!(matches!(&why, Why::Taken(_, token) if *token == next.token()), "{why}");
    assert!(guard.release().await.is_err());
    assert!(next.is_held() && is_closed_to(&locks, "name").await);
    let later = connect(&server.url()).await;
    drop(next);
    assert!(free_for(&later, "name", "").await.token() > Token(0));
}

pub async fn a_ttl_below_the_floor_is_refused(kind: &Kind) {
    let locks = connect(&kind.shared().url()).await;
    let name = unique("short");
    let error = locks.lock(&name).ttl(Duration::from_millis(1900)).await.unwrap_err();
    assert!(matches!(&error, Error::Invalid { what, .. } if what == "ttl"), "{error:?}");
    assert!(error.to_string().contains("2s") && error.to_string().contains("1.9s"), "{error}");
    drop(hold(&locks, &name, 2 * SECOND).await);
}

/// A cluster that takes its time to elect a leader has longer leases, and nobody is promised shorter ones.
pub async fn a_floor_that_is_higher_is_found_out(kind: &Kind) {
    let server = kind.start_with(&[("election-timeout", "4000"), ("heartbeat-interval", "400")]);
    let locks = connect(&server.url()).await;
    assert!(locks.about().min_ttl >= 5 * SECOND, "{:?}", locks.about().min_ttl);
    let error = locks.lock("name").ttl(4 * SECOND).await.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
}

/// A server with a user who may do everything with one prefix, and with authentication turned on.
fn guarded(kind: &Kind) -> super::kind::Running {
    let server = kind.start();
    let etcd = server.etcd();
    for arguments in [
        &["user", "add", "root:rootword"][..],
        &["role", "add", "locks"],
        &["role", "grant-permission", "--prefix", "locks", "readwrite", "tenure/"],
        &["user", "add", "me:hunter2"],
        &["user", "grant-role", "me", "locks"],
        &["user", "grant-role", "root", "root"],
        &["auth", "enable"],
    ] {
        etcd.ctl(arguments).unwrap();
    }
    server
}

fn login(server: &Etcd, user: &str) -> String {
    server.url().replace("etcd://", &format!("etcd://{user}@"))
}

async fn refusal(url: &str) -> Error {
    let error = soon("a refusal", tenure::connect(url)).await.unwrap_err();
    let whole = format!("{error} {error:?}");
    assert!(!whole.contains("hunter"), "a password is in {whole}");
    error
}

pub async fn each_refusal_says_what_is_wrong(kind: &Kind) {
    let server = guarded(kind);
    let etcd = server.etcd();
    let locks = connect(&login(etcd, "me:hunter2")).await;
    drop(hold(&locks, "name", 5 * SECOND).await);
    let closed = Proxy::to(1).unwrap().port();
    for (url, transient, says) in [
        (login(etcd, "me:hunter3"), false, "password"),
        (login(etcd, "nobody:hunter2"), false, "password"),
        (etcd.url(), false, "wants a user"),
        (login(kind.shared().etcd(), "me:hunter2"), false, "no users"),
        (format!("etcd://me:hunter2@127.0.0.1:{closed}"), true, "refused"),
        ("etcd://me:hunter2@nobody.invalid".into(), true, "nobody.invalid:2379"),
    ] {
        let error = refusal(&url).await;
        assert!(error.to_string().contains(says), "{error} doesn't say {says:?}");
        assert_eq!(error.is_transient(), transient, "{error:?}");
    }
}

/// What proves who we are is forgotten by a server that starts again: it is fetched anew, and nothing is lost.
pub async fn a_login_outlives_its_token(kind: &Kind) {
    let server = guarded(kind);
    let locks = connect(&login(server.etcd(), "me:hunter2")).await;
    let guard = hold(&locks, "name", 30 * SECOND).await;
    server.restart().unwrap();
    renewed(&locks, "name").await;
    let waiting = tokio::spawn(connect(&login(server.etcd(), "me:hunter2")).await.lock("name").ttl(LONG).into_future());
    guard.release().await.unwrap();
    drop(soon("a waiter", waiting).await.unwrap().unwrap());
}

/// Without the right to its prefix nothing is granted, and whose fault it is is said.
pub async fn a_user_who_may_not_is_told(kind: &Kind) {
    let server = guarded(kind);
    let error = refusal(&with(&login(server.etcd(), "me:hunter2"), "tenure.prefix=elsewhere")).await;
    assert!(!error.is_transient() && error.to_string().contains("readwrite"), "{error}");
}

/// After a cut, anything may have become free; then every release is told again.
pub async fn a_watch_comes_back_and_says_what_it_may_have_missed(kind: &Kind) {
    let place = Place::new(kind);
    let proxy = Proxy::to(kind.shared().port()).unwrap();
    let behind = place.url.replace(&kind.shared().port().to_string(), &proxy.port().to_string());
    let store = store_at(&behind).unwrap();
    soon("opening", store.open()).await.unwrap();
    let mut changes = store.changes().await.unwrap().expect("etcd tells of releases");
    let locks = connect(&place.url).await;
    for _ in 0..2 {
        assert_eq!(soon("a watch", changes.next()).await, Change::LostTrack);
        frees(&locks, "name", "").await;
        assert_eq!(soon("a hint", changes.next()).await, Change::Freed(Name::new("name").unwrap()));
        proxy.cut();
    }
    proxy.black_hole();
    proxy.cut();
    let silent = tokio::time::timeout(SECOND, changes.next()).await;
    assert!(silent.is_err(), "{silent:?} from a network that is silent");
    proxy.pass();
    assert_eq!(soon("a watch", changes.next()).await, Change::LostTrack);
}

/// Far more than a request may hold: it is split, and each name gets its own.
pub async fn much_data_at_once_is_kept(kind: &Kind) {
    let place = Place::new(kind);
    let (locks, other) = (connect(&place.url).await, connect(&place.url).await);
    let data = "\"".repeat(30_000);
    let names: Vec<String> = (0..60).map(|number| format!("{number:02}")).collect();
    let claims = names.iter().map(|name| locks.lock(name).ttl(LONG).data(&data).into_future());
    let guards = soon("all claims", claims.collect::<JoinSet<_>>().join_all()).await;
    assert!(guards.iter().all(Result::is_ok), "{guards:?}");
    for record in soon("a list", other.list("")).await.unwrap() {
        assert_eq!(record.data::<String>().unwrap().as_ref(), Some(&data));
    }
    for name in &names {
        assert!(is_closed_to(&other, name).await);
    }
    drop(guards);
    frees(&other, &names[59], "after its guard was dropped").await;
}

/// Somebody else's keys are left alone, and told of.
pub async fn what_is_not_ours_is_told(kind: &Kind) {
    let (place, etcd) = (Place::new(kind), kind.shared().etcd());
    let locks = connect(&place.url).await;
    etcd.ctl(&["put", &place.key("foreign"), "something"]).unwrap();
    let error = soon("an answer", locks.try_lock("foreign")).await.unwrap_err();
    assert!(!error.is_transient() && error.to_string().contains("can't be read"), "{error}");
    drop(hold(&locks, "name", 5 * SECOND).await);
    let place = Place::new(kind);
    etcd.ctl(&["put", &format!("{}/base", place.prefix), "something"]).unwrap();
    let error = refusal(&place.url).await;
    assert!(!error.is_transient() && error.to_string().contains("tenure.prefix"), "{error}");
}

/// A holder and one who waits, both on a cluster.
struct Scene {
    cluster: EtcdCluster,
    locks: Locks,
    other: Locks,
    guard: Guard,
}

impl Scene {
    async fn new() -> Self {
        let cluster = EtcdCluster::start().unwrap();
        let (locks, other) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
        let guard = hold(&locks, "name", 30 * SECOND).await;
        Self { cluster, locks, other, guard }
    }

    /// The holder still has its term, renews it, and passes the name on.
    async fn goes_on(self) {
        let token = self.guard.token();
        renewed(&self.locks, "name").await;
        assert!(self.guard.is_held());
        assert_eq!(self.guard.token(), token);
        let waiting = tokio::spawn(self.other.lock("name").ttl(LONG).into_future());
        until("the other one waits", async || !waiting.is_finished() && is_closed_to(&self.other, "name").await).await;
        soon("a release", self.guard.release()).await.unwrap();
        let next = soon("a waiter", waiting).await.unwrap().unwrap();
        assert!(next.token() > token, "{} follows {token}", next.token());
    }
}

pub async fn a_leader_killed_loses_nothing(_: &Kind) {
    let scene = Scene::new().await;
    scene.cluster.members[scene.cluster.leader().unwrap()].kill().unwrap();
    scene.goes_on().await;
}

/// Its connections stay open, and it answers nothing; later it comes back, and believes for a moment that it leads.
pub async fn a_leader_stopped_loses_nothing(_: &Kind) {
    let scene = Scene::new().await;
    let leader = scene.cluster.leader().unwrap();
    scene.cluster.members[leader].pause().unwrap();
    renewed(&scene.locks, "name").await;
    scene.cluster.members[leader].resume().unwrap();
    scene.goes_on().await;
}

/// The member that we are connected to dies.
pub async fn an_endpoint_that_is_gone_loses_nothing(_: &Kind) {
    let scene = Scene::new().await;
    scene.cluster.members[0].kill().unwrap();
    scene.goes_on().await;
}

/// The member that we are connected to can't be heard any more: nothing says so.
pub async fn an_endpoint_that_is_cut_off_loses_nothing(_: &Kind) {
    let cluster = EtcdCluster::start().unwrap();
    let proxy = Proxy::to(cluster.members[0].port()).unwrap();
    let url = format!("etcd://127.0.0.1:{},127.0.0.1:{}", proxy.port(), cluster.members[1].port());
    let (locks, other) = (connect(&url).await, connect(&cluster.url()).await);
    let guard = hold(&locks, "name", 20 * SECOND).await;
    proxy.black_hole();
    let scene = Scene { cluster, locks, other, guard };
    scene.goes_on().await;
}

/// Without a majority nobody is granted anything, and the holder is told by its own clock.
pub async fn a_majority_that_is_gone_is_told_and_recovered_from(_: &Kind) {
    let scene = Scene::new().await;
    let short = hold(&scene.locks, "short", 4 * SECOND).await;
    scene.cluster.members[1].kill().unwrap();
    scene.cluster.members[2].kill().unwrap();
    assert_is_transient(&expired(&short).await);
    let refused = soon("an answer", scene.other.lock("free").wait(SECOND)).await.unwrap_err();
    assert!(refused.is_transient(), "{refused:?}");
    std::thread::scope(|scope| {
        for member in &scene.cluster.members[1..] {
            scope.spawn(|| member.restart().unwrap());
        }
    });
    let next = free_for(&scene.other, "short", "when there is a majority again").await;
    assert!(next.token() > short.token(), "{} follows {}", next.token(), short.token());
}

pub async fn a_doctor_tells_what_weakens_the_promises(kind: &Kind) {
    let findings = connect(&kind.shared().url()).await.examine().await.unwrap();
    let said = weak(&findings);
    assert!(said.contains(&"members"), "{findings:#?}");
    let version = findings.iter().find(|finding| finding.what == "version").unwrap();
    assert_eq!(version.weakens, version.says.contains("a leader that hangs"), "{version:?}");
    let cluster = EtcdCluster::start().unwrap();
    let locks = connect(&cluster.url()).await;
    cluster.members[2].kill().unwrap();
    let findings = locks.examine().await.unwrap();
    let endpoints = findings.iter().find(|finding| finding.what == "endpoints").unwrap();
    assert!(endpoints.weakens && endpoints.says.contains("1 of 3"), "{endpoints:?}");
    assert!(!weak(&findings).contains(&"members"), "{findings:#?}");
}
