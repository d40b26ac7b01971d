//! What all calls need: leases, and what tokens are made of.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::leases::{Kind, Leases, Shared};
use super::link::{Failed, Lane, Link};
use super::messages::{
    Against, Compare, KeyValue, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest,
    LeaseTimeToLiveResponse, Op, Request, TxnRequest,
};
use super::parts::{PART, all};
use super::records::{self, Found, Keys};
use super::{MIN_TTL, STORE};
use crate::clock::Moment;
use crate::error::Result;
use crate::record::{Record, Token};
use crate::store::answered;

pub(super) struct Cluster {
    pub link: Link,
    pub keys: Keys,
    pub leases: Arc<Leases>,
    base: Mutex<Base>,
    /// One lease at a time is taken, not one by each who finds none.
    granting: tokio::sync::Mutex<()>,
    pub floor: OnceLock<Duration>,
}

/// What is added to a revision to make a token.
#[derive(Default)]
struct Base {
    /// As the cluster has it, as far as is known.
    current: Option<u64>,
    /// The largest token that was seen: a cluster that has lost its base gets a larger one.
    highest: u64,
}
impl Cluster {
    pub fn new(link: Link, keys: Keys) -> Self {
        let (leases, base, granting, floor) = Default::default();
        Self { link, keys, leases, base, granting, floor }
    }

    pub async fn find_floor(&self) -> Result<()> {
        let probe = self.call(LeaseGrantRequest { ttl: 1 }).await?;
        let _ = self.floor.set(Duration::from_secs(probe.ttl.unsigned_abs()).max(MIN_TTL));
        self.call(LeaseRevokeRequest { id: probe.id }).await?;
        Ok(())
    }

    pub async fn call<R: Request>(&self, request: R) -> Result<R::Answer, Failed> {
        self.link.call(&self.link.main, request).await
    }

    /// What the cluster adds to its revisions. Whoever finds none writes one.
    pub async fn base(&self) -> Result<u64> {
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
    pub fn base_changed(&self, from: u64) {
        self.base_state().current.take_if(|current| *current == from);
    }

    pub fn is_base(&self, base: u64) -> Compare {
        Compare::new(&self.keys.base(), Against::Value(base.to_string().into()))
    }

    /// The token of what was written at this revision.
    pub fn token(&self, base: u64, revision: i64) -> Token {
        let token = base + revision.unsigned_abs();
        let mut state = self.base_state();
        state.highest = state.highest.max(token);
        Token(token)
    }

    /// The lease for names of this kind.
    pub async fn lease(&self, kind: Kind) -> Result<Shared, Failed> {
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
    pub async fn keep_alive(&self, lane: &Lane, id: i64) -> Result<Option<Shared>, Failed> {
        let Some(sent) = self.leases.get(id).map(|_| Moment::now()) else { return Ok(None) };
        let answer = self.link.call(lane, LeaseKeepAliveRequest { id }).await?;
        if answer.ttl <= 0 {
            self.leases.lost(id);
        }
        Ok(self.leases.kept(id, sent))
    }

    /// Gives up the leases that were lost by our own clock; they are never used again.
    pub fn bury(self: &Arc<Self>) {
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

    pub async fn records(&self, found: Vec<Found>) -> Vec<Record> {
        let times = self.time_to_live(found.iter().map(|found| found.on).collect()).await;
        found.into_iter().map(|found| (times.get(&found.on), found)).map(|(time, found)| found.record(time)).collect()
    }

    /// What is at each of some keys.
    pub async fn fetch(&self, lane: &Lane, keys: &[Vec<u8>]) -> Result<Vec<Option<KeyValue>>> {
        let fetched = all(keys.chunks(PART).map(|part| {
            let success = part.iter().map(|key| Op::get(key)).collect();
            self.link.look(lane, TxnRequest { success, ..TxnRequest::default() })
        }));
        let mut found = Vec::with_capacity(keys.len());
        for part in fetched.await {
            found.extend(part?.found());
        }
        answered(STORE, keys.len(), found)
    }
}
