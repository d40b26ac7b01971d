//! Keys in etcd, 3.4 or later.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use tonic::transport::Endpoint;

use self::address::Address;
use self::leases::{Granted, Held, Kind, Leases, Shared};
use self::link::{Failed, Link, Login};
use self::messages::{
    Against, Compare, KeyValue, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest,
    LeaseTimeToLiveResponse, Op, RangeRequest, StatusRequest, TxnRequest, TxnResponse,
};
use self::records::{Found, Keys, Mark, Value};
use self::watch::Hints;
use super::url::StoreUrl;
use super::{About, Changes, Claim, Ended, Finding, Gone, Grant, Outcome, Page, Renewal, Renewed, Store};
use crate::clock::Moment;
use crate::error::{Error, Result};
use crate::record::{Name, Record, Token};

mod address;
mod examine;
mod leases;
mod link;
mod messages;
mod records;
mod watch;

const STORE: &str = "etcd";

const PREFIX: &str = "tenure";

/// Renewals of so many names are two calls; claims and releases are split, see below.
const BATCH: usize = 16_384;

/// A transaction takes 127 others within it, unless the server is told otherwise.
const PART: usize = 120;

/// Below what a server takes in one request: 1.5 MiB unless it is told otherwise.
const PART_BYTES: usize = 1 << 20;

/// Claims, and as many releases, that are under way at once: two, so that the next batch gathers while one commits.
const CALLS: usize = 2;

/// How many parts of one call are under way at once.
const SIDE_BY_SIDE: usize = 8;

/// A call is given up after two seconds, and what was proposed by then is carried out when there is a leader again. What is
/// carried out later still ends with its lease.
const STATEMENT_LIMIT: Duration = Duration::from_secs(4);

/// A backstop: releases are told by the watch.
const POLL: Duration = Duration::from_secs(1);

/// The shortest lease of a server with usual settings.
const MIN_TTL: Duration = Duration::from_secs(2);

/// How often a claim is sent anew because its lease, or the base of its token, has changed.
const ATTEMPTS: usize = 3;

/// How much longer than a term the word of its eviction stays.
const MARK_MORE: Duration = Duration::from_secs(60);

/// A store in the keys of an etcd cluster, below a prefix.
///
/// It opens connections of its own, on the engine's thread: one for claims, releases and lists, one for renewals, and one
/// that watches for releases. Each goes to one endpoint at a time, in the order in which they are given, and on to the
/// next if that fails.
///
/// Tokens come from etcd's own revisions, so a name that nobody holds leaves nothing behind, and there is nothing to prune.
pub struct EtcdStore {
    cluster: Arc<Cluster>,
}

struct Cluster {
    link: Link,
    keys: Keys,
    leases: Arc<Leases>,
    base: Mutex<Base>,
    /// One lease at a time is taken, not one by each who finds none.
    granting: tokio::sync::Mutex<()>,
    floor: OnceLock<Duration>,
}

/// What is added to a revision to make a token.
#[derive(Default)]
struct Base {
    /// As the cluster has it, as far as is known.
    current: Option<u64>,
    /// The largest token that was seen: a cluster that has lost its base gets a larger one.
    highest: u64,
}

impl EtcdStore {
    /// A store below the prefix `tenure` of the cluster at `endpoints`, of which each is a member or leads to some.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there are none.
    pub fn new(endpoints: Vec<Endpoint>) -> Result<Self> {
        match endpoints.is_empty() {
            true => Err(Error::invalid("endpoints", "are empty: give at least one")),
            false => Ok(Self::on(Link::new(endpoints, None), PREFIX)),
        }
    }

    /// The same as a user with a password.
    #[must_use]
    pub fn with_login(self, user: impl Into<String>, password: impl Into<String>) -> Self {
        let (prefix, login) = (self.cluster.keys.place(), Login { user: user.into(), password: password.into() });
        match Arc::try_unwrap(self.cluster) {
            Ok(cluster) => Self::on(cluster.link.with_login(login), &prefix),
            Err(cluster) => Self { cluster },
        }
    }

    /// The same below another prefix. It must not lie below that of another store.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is outside the rule for names.
    pub fn with_prefix(self, prefix: &str) -> Result<Self> {
        let prefix = Name::new(prefix).map_err(|error| Error::invalid("prefix", error.to_string()))?;
        Ok(match Arc::try_unwrap(self.cluster) {
            Ok(cluster) => Self::on(cluster.link, prefix.as_str()),
            Err(cluster) => Self { cluster },
        })
    }

    fn on(link: Link, prefix: &str) -> Self {
        let keys = Keys::new(prefix);
        let (leases, base, granting, floor) = Default::default();
        Self { cluster: Arc::new(Cluster { link, keys, leases, base, granting, floor }) }
    }

    pub(super) fn from_url(url: &StoreUrl) -> Result<Arc<dyn Store>> {
        let Address { endpoints, login, tls } = Address::read(url)?;
        let link = Link::new(endpoints, tls);
        let link = match login {
            Some(login) => link.with_login(login),
            None => link,
        };
        let store = Self::on(link, PREFIX);
        Ok(Arc::new(match url.setting("prefix") {
            Some(prefix) => store.with_prefix(prefix)?,
            None => store,
        }))
    }
}

impl fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EtcdStore({}, {})", self.cluster.link.place, self.cluster.keys.place())
    }
}

#[async_trait]
impl Store for EtcdStore {
    fn about(&self) -> About {
        About {
            store: STORE,
            place: Some(self.cluster.keys.place()),
            push: true,
            poll: POLL,
            calls: CALLS,
            batch: BATCH,
            statement_limit: STATEMENT_LIMIT,
            min_ttl: self.cluster.floor.get().copied().unwrap_or(MIN_TTL),
            durability: "survives the loss of a minority of the members: a grant is on the disks of a majority before \
                         its holder hears of it",
            caveats: vec![
                "all names of a process with the same TTL are on one etcd lease: whoever revokes it ends them all"
                    .into(),
                "a cluster restored from a snapshot goes on with old tokens: delete the key `base` below the prefix \
                 before it is used again"
                    .into(),
                "times in records are by the clocks of the machines that hold and read them, and what is left of a \
                 term is known to the second; neither decides anything"
                    .into(),
            ],
        }
    }

    async fn open(&self) -> Result<()> {
        let (cluster, link) = (&self.cluster, &self.cluster.link);
        link.prepare().await?;
        let status = link.look(&link.main, StatusRequest {}).await?;
        examine::check_version(link, &status.version)?;
        // The connection for renewals is there before it is needed.
        let (base, floor, renewals) =
            tokio::join!(cluster.base(), cluster.find_floor(), link.call(&link.renewals, StatusRequest {}));
        base?;
        floor?;
        renewals?;
        Ok(())
    }

    async fn claim(&self, claims: &[Claim]) -> Result<Vec<Result<Outcome>>> {
        let cluster = &self.cluster;
        cluster.bury();
        let _under_way = cluster.leases.claiming(claims.iter().map(|claim| claim.name.clone()));
        let mut kinds: BTreeMap<Kind, Vec<usize>> = BTreeMap::new();
        for (entry, claim) in claims.iter().enumerate() {
            kinds.entry(Kind::of(claim)).or_default().push(entry);
        }
        let split = |(kind, entries): (Kind, Vec<usize>)| {
            let parts = parts(&entries, |entry| size(&claims[*entry]));
            parts.into_iter().map(move |part| (kind, part))
        };
        let parts: Vec<(Kind, Vec<usize>)> = kinds.into_iter().flat_map(split).collect();
        let answers = all(parts.iter().map(|(kind, part)| async {
            let part: Vec<&Claim> = part.iter().map(|entry| &claims[*entry]).collect();
            cluster.claim_part(*kind, &part).await
        }));
        gather(claims.len(), parts.iter().map(|(_, part)| part.as_slice()).zip(answers.await))
    }

    async fn renew(&self, terms: &[Renewal]) -> Result<Vec<Result<Renewed>>> {
        let cluster = &self.cluster;
        cluster.bury();
        let find = |term: &Renewal| cluster.leases.find(&term.name, term.lease, Some(term.first));
        let held: Vec<Option<Held>> = terms.iter().map(find).collect();
        let leases: HashSet<i64> = held.iter().flatten().map(|held| held.on).collect();
        let rounds = all(leases.iter().map(|id| async { (*id, cluster.renew_lease(*id).await) })).await;
        let rounds: BTreeMap<i64, Result<Option<Round>>> = rounds.into_iter().collect();
        let mut answers: Vec<Option<Result<Renewed>>> = Vec::with_capacity(terms.len());
        for (term, held) in terms.iter().zip(&held) {
            let round = held.as_ref().and_then(|held| rounds.get(&held.on));
            answers.push(cluster.renewed(term, held.as_ref(), round));
        }
        cluster.look_for_the_missing(terms, &held, &rounds, &mut answers).await?;
        cluster.rotate(terms, &held, &mut answers).await;
        let unanswered = || Err(Error::transient(STORE, "no answer"));
        Ok(answers.into_iter().map(|answer| answer.unwrap_or_else(unanswered)).collect())
    }

    async fn release(&self, terms: &[Ended]) -> Result<Vec<Result<bool>>> {
        let cluster = &self.cluster;
        cluster.bury();
        let ends = cluster.ends_of(terms).await?;
        let mark = cluster.lease_for_marks(terms, &ends).await?;
        let entries: Vec<usize> = (0..terms.len()).filter(|entry| ends[*entry].is_some()).collect();
        let size = |entry: &usize| terms[*entry].evicted_by.as_ref().map_or(0, |by| by.len() * 2) + 1024;
        let parts = parts(&entries, size);
        let answers = all(parts.iter().map(|part| cluster.end_part(terms, &ends, part, mark))).await;
        let mut freed: Vec<Result<bool>> = terms.iter().map(|_| Ok(false)).collect();
        for (part, answer) in parts.iter().zip(answers) {
            for (place, entry) in part.iter().enumerate() {
                freed[*entry] = answer.as_ref().map(|answers| answers[place]).map_err(Clone::clone);
            }
        }
        Ok(freed)
    }

    async fn list(&self, page: &Page) -> Result<Vec<Record>> {
        let cluster = &self.cluster;
        let (key, range_end) = cluster.keys.page(page);
        let limit = i64::try_from(page.limit).unwrap_or(i64::MAX);
        let range =
            cluster.link.look(&cluster.link.main, RangeRequest { key, range_end, limit, count_only: false }).await?;
        let found: Result<Vec<Found>> = range.kvs.into_iter().map(|kv| Found::read(&cluster.keys, kv)).collect();
        Ok(cluster.records(found?).await)
    }

    /// Tokens come from revisions: nothing is kept of a name that nobody holds.
    async fn prune(&self, _: Duration) -> Result<u64> {
        Ok(0)
    }

    async fn changes(&self) -> Result<Option<Box<dyn Changes>>> {
        Ok(Some(Box::new(Hints::new(self.cluster.clone()))))
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        examine::findings(&self.cluster).await
    }
}

/// A lease that was kept alive: since when it counts, and its keys.
struct Round {
    since: Moment,
    keys: HashSet<Vec<u8>>,
}

/// A term that is to be ended, as it is in etcd.
struct End {
    first: Token,
    create: i64,
    on: i64,
    ttl: Duration,
}

/// Leases, and what tokens are made of.
impl Cluster {
    async fn find_floor(&self) -> Result<()> {
        let probe = self.call(LeaseGrantRequest { ttl: 1 }).await?;
        let _ = self.floor.set(Duration::from_secs(probe.ttl.unsigned_abs()).max(MIN_TTL));
        self.call(LeaseRevokeRequest { id: probe.id }).await?;
        Ok(())
    }

    async fn call<R: messages::Request>(&self, request: R) -> Result<R::Answer, Failed> {
        self.link.call(&self.link.main, request).await
    }

    /// What the cluster adds to its revisions. Whoever finds none writes one.
    async fn base(&self) -> Result<u64> {
        let known = self.base_state().current;
        if let Some(base) = known {
            return Ok(base);
        }
        let (key, fresh) = (self.keys.base(), records::now().max(self.base_state().highest + 1));
        let is_new = Compare::new(&key, Against::Created(0));
        let put = Op::put(&key, fresh.to_string().into(), 0);
        let answer =
            self.call(TxnRequest { compare: vec![is_new], success: vec![put], failure: vec![Op::get(&key)] }).await?;
        let base = match answer.succeeded {
            true => fresh,
            false => self.read_base(answer.found().flatten().next())?,
        };
        self.base_state().current = Some(base);
        Ok(base)
    }

    fn read_base(&self, kv: Option<KeyValue>) -> Result<u64> {
        let text = kv.and_then(|kv| String::from_utf8(kv.value).ok());
        text.and_then(|text| text.parse().ok()).ok_or_else(|| {
            let key = String::from_utf8_lossy(&self.keys.base()).into_owned();
            self.link.refuse(&format!("has something at {key} that is not Tenure's: name another with tenure.prefix"))
        })
    }

    fn base_state(&self) -> MutexGuard<'_, Base> {
        self.base.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cluster has another one: its data was lost, or somebody has deleted it.
    fn base_changed(&self, from: u64) {
        self.base_state().current.take_if(|current| *current == from);
    }

    fn is_base(&self, base: u64) -> Compare {
        Compare::new(&self.keys.base(), Against::Value(base.to_string().into()))
    }

    /// The token of what was written at this revision.
    fn token(&self, base: u64, revision: i64) -> Token {
        let token = base + revision.unsigned_abs();
        let mut state = self.base_state();
        state.highest = state.highest.max(token);
        Token(token)
    }

    /// The lease for names of this kind.
    async fn lease(&self, kind: Kind) -> Result<Shared, Failed> {
        if let Some(shared) = self.leases.current(kind) {
            return Ok(shared);
        }
        let _turn = self.granting.lock().await;
        if let Some(shared) = self.leases.current(kind) {
            return Ok(shared);
        }
        let since = Moment::now();
        let granted = self.call(LeaseGrantRequest { ttl: kind.seconds() }).await?;
        let shared = Shared { id: granted.id, kind, since };
        self.leases.add(shared);
        Ok(shared)
    }

    /// Keeps a lease alive. `None` if it is lost, to the server or by our own clock.
    async fn keep_alive(&self, lane: &link::Lane, id: i64) -> Result<Option<Shared>, Failed> {
        let Some(sent) = self.leases.get(id).map(|_| Moment::now()) else { return Ok(None) };
        let answer = self.link.call(lane, LeaseKeepAliveRequest { id }).await?;
        if answer.ttl <= 0 {
            self.leases.lost(id);
        }
        Ok(self.leases.kept(id, sent))
    }

    /// Gives up the leases that were lost by our own clock; they are never used again.
    fn bury(self: &Arc<Self>) {
        for id in self.leases.bury() {
            let cluster = self.clone();
            tokio::spawn(async move {
                // If it fails, the lease ends by itself.
                let _ = cluster.call(LeaseRevokeRequest { id }).await;
            });
        }
    }

    /// What is left of leases.
    async fn time_to_live(&self, leases: HashSet<i64>) -> BTreeMap<i64, LeaseTimeToLiveResponse> {
        let asked = all(leases.into_iter().map(|id| async move {
            let answer = self.call(LeaseTimeToLiveRequest { id, keys: false }).await;
            answer.ok().map(|answer| (id, answer))
        }));
        asked.await.into_iter().flatten().collect()
    }

    async fn records(&self, found: Vec<Found>) -> Vec<Record> {
        let times = self.time_to_live(found.iter().map(|found| found.on).collect()).await;
        found.into_iter().map(|found| (times.get(&found.on), found)).map(|(time, found)| found.record(time)).collect()
    }

    /// What is at each of some keys.
    async fn fetch(&self, lane: &link::Lane, keys: &[Vec<u8>]) -> Result<Vec<Option<KeyValue>>> {
        let fetched = all(keys.chunks(PART).map(|part| {
            let success = part.iter().map(|key| Op::get(key)).collect();
            self.link.look(lane, TxnRequest { success, ..TxnRequest::default() })
        }));
        let mut found = Vec::with_capacity(keys.len());
        for part in fetched.await {
            found.extend(part?.found());
        }
        super::answered(STORE, keys.len(), found)
    }
}

/// Claims.
impl Cluster {
    async fn claim_part(&self, kind: Kind, claims: &[&Claim]) -> Result<Vec<Result<Outcome>>> {
        for _ in 0..ATTEMPTS {
            let base = self.base().await?;
            let shared = self.lease(kind).await?;
            let request = self.claim_request(claims, base, &shared)?;
            let (answer, _) = tokio::join!(self.call(request), self.keep_if_worn(&shared));
            match answer {
                // One unknown lease fails them all, and nothing was done.
                Err(Failed::NoLease) => self.leases.lost(shared.id),
                Err(Failed::Because(error)) => return Err(error),
                Ok(answer) if answer.succeeded => {
                    let shared = self.leases.get(shared.id).unwrap_or(shared);
                    return self.claimed(claims, base, &shared, answer).await;
                }
                Ok(_) => self.base_changed(base),
            }
        }
        Err(Error::transient(STORE, "its leases, or the base of its tokens, keep changing"))
    }

    /// Each name on its own: if its key is there, the key is returned.
    fn claim_request(&self, claims: &[&Claim], base: u64, shared: &Shared) -> Result<TxnRequest> {
        let claim = |claim: &&Claim| {
            let key = self.keys.name(claim.name.as_str());
            let put = Op::put(&key, Value::new(claim, base, shared.since).bytes()?, shared.id);
            Ok(Op::when(vec![Compare::new(&key, Against::Created(0))], vec![put], vec![Op::get(&key)]))
        };
        let success = claims.iter().map(claim).collect::<Result<_>>()?;
        Ok(TxnRequest { compare: vec![self.is_base(base)], success, failure: Vec::new() })
    }

    /// A claim does not extend its lease, and a term on one that is nearly over is short.
    async fn keep_if_worn(&self, shared: &Shared) {
        if shared.is_worn() {
            // If it fails, the grant says how much is left.
            let _ = self.keep_alive(&self.link.main, shared.id).await;
        }
    }

    async fn claimed(
        &self,
        claims: &[&Claim],
        base: u64,
        shared: &Shared,
        answer: TxnResponse,
    ) -> Result<Vec<Result<Outcome>>> {
        let revision = answer.header.as_ref().map_or(0, |header| header.revision);
        let mut outcomes: Vec<Option<Result<Outcome>>> = Vec::with_capacity(claims.len());
        let (mut ours, mut busy) = (Vec::new(), Vec::new());
        for ((entry, claim), part) in claims.iter().enumerate().zip(answer.parts()) {
            let succeeded = part.succeeded;
            let found = part.found().flatten().next().map(|kv| Found::read(&self.keys, kv)).transpose();
            outcomes.push(match found {
                _ if succeeded => Some(Ok(Outcome::Granted(self.granted(claim, base, shared, revision)))),
                Ok(None) => Some(Ok(Outcome::Busy(None))),
                Ok(Some(found)) if found.lease == claim.lease => {
                    ours.push((entry, found));
                    None
                }
                Ok(Some(found)) => {
                    busy.push((entry, found));
                    None
                }
                Err(error) => Some(Err(error)),
            });
        }
        let mut outcomes = super::answered(STORE, claims.len(), outcomes)?;
        let (again, busy) = tokio::join!(self.claim_again(claims, shared, ours), self.refused(busy));
        again.into_iter().chain(busy).for_each(|(entry, outcome)| outcomes[entry] = Some(outcome));
        Ok(outcomes.into_iter().flatten().collect())
    }

    fn granted(&self, claim: &Claim, base: u64, shared: &Shared, revision: i64) -> Grant {
        let token = self.token(base, revision);
        let acquired = records::now();
        let written = Granted { first: token, token, create: revision, modified: revision, acquired };
        self.leases.hold(claim, shared, written);
        Grant { token, since: Some(shared.since) }
    }

    async fn refused(&self, busy: Vec<(usize, Found)>) -> Vec<(usize, Result<Outcome>)> {
        let (entries, found): (Vec<usize>, Vec<Found>) = busy.into_iter().unzip();
        let records = self.records(found).await.into_iter();
        entries.into_iter().zip(records.map(|record| Ok(Outcome::Busy(Some(Box::new(record)))))).collect()
    }

    /// Claims that were carried out before: each is written again, with its token, on a lease that was just kept alive. Should
    /// somebody be about to delete what looked given up, one of the two changes comes first, and the other fails.
    async fn claim_again(
        &self,
        claims: &[&Claim],
        shared: &Shared,
        ours: Vec<(usize, Found)>,
    ) -> Vec<(usize, Result<Outcome>)> {
        if ours.is_empty() {
            return Vec::new();
        }
        let written = async {
            let kept = self.keep_alive(&self.link.main, shared.id).await?;
            let shared = kept.ok_or(Failed::NoLease)?;
            let write = |(entry, found): &(usize, Found)| {
                let key = self.keys.name(found.name.as_str());
                let value = Value::again(claims[*entry], found, shared.since).bytes()?;
                let is_unchanged = Compare::new(&key, Against::Modified(found.modified));
                Ok(Op::when(vec![is_unchanged], vec![Op::put(&key, value, shared.id)], Vec::new()))
            };
            let success = ours.iter().map(write).collect::<Result<_>>()?;
            Ok((shared, self.call(TxnRequest { success, ..TxnRequest::default() }).await?))
        };
        let written: Result<(Shared, TxnResponse)> = written.await.map_err(|failed: Failed| failed.into());
        let (shared, answer) = match written {
            Ok(written) => written,
            Err(error) => return ours.into_iter().map(|(entry, _)| (entry, Err(error.clone()))).collect(),
        };
        let revision = answer.header.as_ref().map_or(0, |header| header.revision);
        let outcome = |((entry, found), part): ((usize, Found), TxnResponse)| {
            if !part.succeeded {
                return (entry, Err(Error::transient(STORE, format!("{} changed just now", found.name))));
            }
            let (first, token, acquired) = (found.first(), found.token(), found.value.acquired());
            let written = Granted { first, token, create: found.create, modified: revision, acquired };
            self.leases.hold(claims[entry], &shared, written);
            (entry, Ok(Outcome::Granted(Grant { token, since: Some(shared.since) })))
        };
        ours.into_iter().zip(answer.parts()).map(outcome).collect()
    }
}

/// Renewals.
impl Cluster {
    /// Two calls, however many names are on the lease. `None` if it is lost.
    async fn renew_lease(self: &Arc<Self>, id: i64) -> Result<Option<Round>> {
        let lane = &self.link.renewals;
        let Some(shared) = self.keep_alive(lane, id).await? else { return Ok(None) };
        let answer = self.link.call(lane, LeaseTimeToLiveRequest { id, keys: true }).await?;
        if answer.ttl < 0 {
            self.leases.lost(id);
            return Ok(None);
        }
        self.delete_orphans(self.leases.orphans(id, &self.keys, &answer.keys));
        Ok(Some(Round { since: shared.since, keys: answer.keys.into_iter().collect() }))
    }

    /// What became of a term; `None` if that is not known yet.
    fn renewed(
        &self,
        term: &Renewal,
        held: Option<&Held>,
        round: Option<&Result<Option<Round>>>,
    ) -> Option<Result<Renewed>> {
        match round {
            Some(Err(error)) => Some(Err(error.clone())),
            Some(Ok(Some(round))) if round.keys.contains(&self.keys.name(term.name.as_str())) => {
                let token = self.leases.renewed(&term.name, held?.create, round.since)?;
                Some(Ok(Renewed::Kept(Grant { token, since: Some(round.since) })))
            }
            _ => None,
        }
    }

    /// Why terms are over, if they are: a member may be a moment behind, and not know of a key that was just made.
    async fn look_for_the_missing(
        &self,
        terms: &[Renewal],
        held: &[Option<Held>],
        rounds: &BTreeMap<i64, Result<Option<Round>>>,
        answers: &mut [Option<Result<Renewed>>],
    ) -> Result<()> {
        let missing: Vec<usize> = (0..terms.len()).filter(|entry| answers[*entry].is_none()).collect();
        let keys = |entry: &usize| {
            let name = &terms[*entry].name;
            [self.keys.name(name.as_str()), self.keys.mark(name)]
        };
        let found = self.fetch(&self.link.renewals, &missing.iter().flat_map(keys).collect::<Vec<_>>()).await?;
        let mut taken = Vec::new();
        for (entry, pair) in missing.into_iter().zip(found.chunks(2)) {
            let (term, held) = (&terms[entry], held[entry].as_ref());
            let record = pair[0].clone().map(|kv| Found::read(&self.keys, kv)).transpose()?;
            let round = held.and_then(|held| rounds.get(&held.on)?.as_ref().ok()?.as_ref());
            let evicted = pair[1].as_ref().and_then(|kv| Mark::by(kv, term.lease, term.first));
            answers[entry] = Some(Ok(match (record, held.zip(round)) {
                (Some(record), Some((held, round))) if record.create == held.create && record.on == held.on => {
                    let token = self.leases.renewed(&term.name, held.create, round.since).unwrap_or(held.token);
                    Renewed::Kept(Grant { token, since: Some(round.since) })
                }
                _ if evicted.is_some() => Renewed::Gone(Gone::Evicted(evicted.unwrap_or_default())),
                (Some(record), _) if !record.is(term.lease, Some(term.first)) => {
                    taken.push((entry, record));
                    continue;
                }
                _ => Renewed::Gone(Gone::Expired),
            }));
            if let (Some(Ok(Renewed::Gone(_))), Some(held)) = (&answers[entry], held) {
                self.leases.forget(&term.name, held.create);
            }
        }
        for (entry, outcome) in self.refused(taken).await {
            let Ok(Outcome::Busy(Some(record))) = outcome else { continue };
            answers[entry] = Some(Ok(Renewed::Gone(Gone::Taken(record))));
            if let Some(held) = &held[entry] {
                self.leases.forget(&terms[entry].name, held.create);
            }
        }
        Ok(())
    }

    /// Raises the tokens of the terms that are to get a new one, and were kept.
    async fn rotate(&self, terms: &[Renewal], held: &[Option<Held>], answers: &mut [Option<Result<Renewed>>]) {
        let is_kept = |entry: &usize| matches!(answers[*entry], Some(Ok(Renewed::Kept(_)))) && held[*entry].is_some();
        let entries: Vec<usize> = (0..terms.len()).filter(|entry| terms[*entry].rotate && is_kept(entry)).collect();
        let parts = parts(&entries, |entry| held[*entry].as_ref().map_or(0, |held| size(&held.claim)));
        let rotated = all(parts
            .iter()
            .map(|part| self.rotate_part(part.iter().filter_map(|entry| held[*entry].as_ref()).collect())));
        for (part, tokens) in parts.iter().zip(rotated.await) {
            for (place, entry) in part.iter().enumerate() {
                let token = tokens.as_ref().map_err(Clone::clone).and_then(|tokens| tokens[place].clone());
                answers[*entry] = match (token, answers[*entry].take()) {
                    (Ok(token), Some(Ok(Renewed::Kept(grant)))) => Some(Ok(Renewed::Kept(Grant { token, ..grant }))),
                    (Err(error), _) => Some(Err(error)),
                    (_, answer) => answer,
                };
            }
        }
    }

    async fn rotate_part(&self, terms: Vec<&Held>) -> Result<Vec<Result<Token>>> {
        for _ in 0..ATTEMPTS {
            let base = self.base().await?;
            let rotate = |held: &&Held| {
                let key = self.keys.name(held.claim.name.as_str());
                let since = self.leases.get(held.on).map_or_else(Moment::now, |shared| shared.since);
                let put = Op::put(&key, Value::rotated(held, base, since).bytes()?, held.on);
                let is_unchanged = Compare::new(&key, Against::Modified(held.modified));
                Ok(Op::when(vec![is_unchanged], vec![put], vec![Op::get(&key)]))
            };
            let success = terms.iter().map(rotate).collect::<Result<_>>()?;
            let request = TxnRequest { compare: vec![self.is_base(base)], success, failure: Vec::new() };
            let answer = self.link.call(&self.link.renewals, request).await?;
            if !answer.succeeded {
                self.base_changed(base);
                continue;
            }
            let revision = answer.header.as_ref().map_or(0, |header| header.revision);
            let tokens = terms.iter().zip(answer.parts()).map(|(held, part)| self.rotated(held, base, revision, part));
            return super::answered(STORE, terms.len(), tokens.collect());
        }
        Err(Error::transient(STORE, "the base of its tokens keeps changing"))
    }

    /// If the key had changed, an earlier rotation whose answer was lost has raised the token, or it is not ours any more.
    fn rotated(&self, held: &Held, base: u64, revision: i64, part: TxnResponse) -> Result<Token> {
        let (token, modified) = match part.succeeded {
            true => (self.token(base, revision), revision),
            false => {
                let found = part.found().flatten().next().map(|kv| Found::read(&self.keys, kv)).transpose()?;
                let found = found.filter(|found| found.create == held.create && found.on == held.on);
                let name = &held.claim.name;
                let found = found.ok_or_else(|| Error::transient(STORE, format!("{name} was ended just now")))?;
                (found.token(), found.modified)
            }
        };
        self.leases.rewritten(&held.claim.name, held.create, token, modified);
        Ok(token)
    }

    /// Deletes keys that are on a lease of ours and that nobody here holds: kept alive with the others, they would be closed
    /// for ever.
    fn delete_orphans(self: &Arc<Self>, keys: Vec<Vec<u8>>) {
        if keys.is_empty() {
            return;
        }
        let cluster = self.clone();
        tokio::spawn(async move {
            // If it fails, the next renewal finds them again.
            let Ok(found) = cluster.fetch(&cluster.link.main, &keys).await else { return };
            let found = found.into_iter().flatten().filter_map(|kv| Found::read(&cluster.keys, kv).ok());
            let orphans: Vec<Found> =
                found.filter(|found| !cluster.leases.is_wanted(&found.name, found.create)).collect();
            let delete = |found: &Found| {
                let key = cluster.keys.name(found.name.as_str());
                let is_unchanged = Compare::new(&key, Against::Modified(found.modified));
                Op::when(vec![is_unchanged], vec![Op::delete(&key)], Vec::new())
            };
            for part in orphans.chunks(PART) {
                let success = part.iter().map(delete).collect();
                let _ = cluster.call(TxnRequest { success, ..TxnRequest::default() }).await;
            }
        });
    }
}

/// Releases.
impl Cluster {
    /// What is to be ended: as it is known here, or else as it is found. `None` if it is over.
    async fn ends_of(&self, terms: &[Ended]) -> Result<Vec<Option<End>>> {
        let known = |term: &Ended| {
            let held = self.leases.find(&term.name, term.lease, term.first)?;
            Some(End { first: held.first, create: held.create, on: held.on, ttl: held.ttl() })
        };
        let mut ends: Vec<Option<End>> = terms.iter().map(known).collect();
        let unknown: Vec<usize> = (0..terms.len())
            .filter(|entry| ends[*entry].is_none())
            .filter(|entry| !self.leases.is_over(&terms[*entry].name, terms[*entry].lease, terms[*entry].first))
            .collect();
        let keys: Vec<_> = unknown.iter().map(|entry| self.keys.name(terms[*entry].name.as_str())).collect();
        let mut graceful = Vec::new();
        for (entry, kv) in unknown.into_iter().zip(self.fetch(&self.link.main, &keys).await?) {
            let found = kv.map(|kv| Found::read(&self.keys, kv)).transpose()?;
            let Some(found) = found.filter(|found| found.is(terms[entry].lease, terms[entry].first)) else { continue };
            let end = End { first: found.first(), create: found.create, on: found.on, ttl: found.kind().ttl };
            match found.kind().grace.is_zero() {
                true => ends[entry] = Some(end),
                false => graceful.push((entry, end, found)),
            }
        }
        self.leave_graces(graceful, &mut ends).await;
        Ok(ends)
    }

    /// A name that is closed for its grace only is not released.
    async fn leave_graces(&self, found: Vec<(usize, End, Found)>, ends: &mut [Option<End>]) {
        let (places, found): (Vec<_>, Vec<_>) =
            found.into_iter().map(|(entry, end, found)| ((entry, end), found)).unzip();
        for ((entry, end), record) in places.into_iter().zip(self.records(found).await) {
            ends[entry] = record.is_live().then_some(end);
        }
    }

    /// The word of an eviction outlives the evicted holder's term.
    async fn lease_for_marks(&self, terms: &[Ended], ends: &[Option<End>]) -> Result<i64> {
        let evicted = terms.iter().zip(ends).filter(|(term, _)| term.evicted_by.is_some());
        let Some(longest) = evicted.filter_map(|(_, end)| end.as_ref()).map(|end| end.ttl).max() else { return Ok(0) };
        let kind = Kind { ttl: longest, grace: MARK_MORE };
        Ok(self.call(LeaseGrantRequest { ttl: kind.seconds() }).await?.id)
    }

    async fn end_part(&self, terms: &[Ended], ends: &[Option<End>], part: &[usize], mark: i64) -> Result<Vec<bool>> {
        let pairs: Vec<(&Ended, &End)> =
            part.iter().filter_map(|entry| Some((&terms[*entry], ends[*entry].as_ref()?))).collect();
        let end = |(term, end): &(&Ended, &End)| {
            let key = self.keys.name(term.name.as_str());
            // Its lease, too: a cluster that has lost its data counts revisions anew.
            let compare =
                vec![Compare::new(&key, Against::Created(end.create)), Compare::new(&key, Against::Lease(end.on))];
            let mut success = vec![Op::delete(&key)];
            if let Some(by) = &term.evicted_by {
                let value = Mark::new(term.lease, end.first, by).bytes()?;
                success.push(Op::put(&self.keys.mark(&term.name), value, mark));
            }
            Ok(Op::when(compare, success, Vec::new()))
        };
        let success = pairs.iter().map(end).collect::<Result<_>>()?;
        let answer = self.call(TxnRequest { success, ..TxnRequest::default() }).await?;
        pairs.iter().for_each(|(term, end)| self.leases.forget(&term.name, end.create));
        super::answered(STORE, part.len(), answer.parts().map(|part| part.succeeded).collect())
    }
}

/// Splits entries into parts that fit one transaction each, and that are about as large as each other.
fn parts(entries: &[usize], size: impl Fn(&usize) -> usize) -> Vec<Vec<usize>> {
    let most = entries.len().div_ceil(entries.len().div_ceil(PART).max(1)).max(1);
    let mut parts: Vec<Vec<usize>> = Vec::new();
    let mut bytes = 0;
    for entry in entries {
        let more = size(entry);
        match parts.last_mut().filter(|part| part.len() < most && bytes + more <= PART_BYTES) {
            Some(part) => {
                part.push(*entry);
                bytes += more;
            }
            None => {
                parts.push(vec![*entry]);
                bytes = more;
            }
        }
    }
    parts
}

/// What a claim takes in a request, at the most.
fn size(claim: &Claim) -> usize {
    let escaped = |text: &str| text.len() + text.bytes().filter(|byte| matches!(byte, b'"' | b'\\')).count();
    escaped(&claim.owner) + claim.data.as_deref().map_or(0, escaped) + 3 * claim.name.as_str().len() + 512
}

/// The answers of all parts, in the order of the entries. What failed alone fails as a whole.
fn gather<'a, T>(
    entries: usize,
    parts: impl ExactSizeIterator<Item = (&'a [usize], Result<Vec<Result<T>>>)>,
) -> Result<Vec<Result<T>>> {
    let alone = parts.len() == 1;
    let mut answers: Vec<Option<Result<T>>> = (0..entries).map(|_| None).collect();
    for (part, answered) in parts {
        match answered {
            Err(error) if alone => return Err(error),
            Err(error) => part.iter().for_each(|entry| answers[*entry] = Some(Err(error.clone()))),
            Ok(answered) => part.iter().zip(answered).for_each(|(entry, answer)| answers[*entry] = Some(answer)),
        }
    }
    super::answered(STORE, entries, answers.into_iter().flatten().collect())
}

/// Makes calls side by side, a few at a time: each has its limit, and the last must not wait for it behind the first.
async fn all<F: Future>(calls: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut calls: Vec<_> = calls.map(|call| (Box::pin(call), None)).collect();
    poll_fn(|context| {
        let mut open = 0;
        for (call, answer) in calls.iter_mut().filter(|(_, answer)| answer.is_none()) {
            match call.as_mut().poll(context) {
                Poll::Ready(done) => *answer = Some(done),
                Poll::Pending => open += 1,
            }
            if open == SIDE_BY_SIDE {
                break;
            }
        }
        if open > 0 { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    calls.into_iter().filter_map(|(_, answer)| answer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_has_neither_too_many_entries_nor_too_many_bytes() {
        let entries: Vec<usize> = (0..1000).collect();
        let split = parts(&entries, |_| 1);
        assert!(split.iter().all(|part| part.len() <= PART), "{split:?}");
        assert_eq!((split.len(), split.concat()), (9, entries.clone()));
        assert!(split.iter().all(|part| part.len() >= 1000 / 10), "they are about as large as each other: {split:?}");
        let split = parts(&entries[..40], |_| PART_BYTES / 3);
        assert!(split.iter().all(|part| part.len() <= 3), "{split:?}");
        assert_eq!(split.concat(), entries[..40]);
        assert_eq!(parts(&[7], |_| 2 * PART_BYTES), [[7]], "one that is too large is on its own");
        assert!(parts(&[], |_| 1).is_empty());
    }

    #[tokio::test]
    async fn calls_are_made_a_few_at_a_time_and_answered_in_order() {
        let under_way = std::cell::Cell::new((0_usize, 0_usize));
        let call = |number: usize| {
            let under_way = &under_way;
            async move {
                let (now, most) = under_way.get();
                under_way.set((now + 1, most.max(now + 1)));
                for _ in 0..number % 5 {
                    tokio::task::yield_now().await;
                }
                under_way.set((under_way.get().0 - 1, under_way.get().1));
                number
            }
        };
        assert_eq!(all((0..50).map(call)).await, (0..50).collect::<Vec<_>>());
        assert!(under_way.get().1 <= SIDE_BY_SIDE, "{under_way:?}");
    }
}
