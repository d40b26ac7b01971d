//! Claims.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::STORE;
use super::cluster::Cluster;
use super::leases::{Granted, Kind, Shared};
use super::link::Failed;
use super::messages::{Against, Compare, Op, TxnRequest, TxnResponse};
use super::parts::{all, gather, parts, size};
use super::records::{self, Found, Value};
use crate::error::{Error, Result};
use crate::store::{Claim, Grant, Outcome, answered};

/// How often a claim is sent anew because its lease, or the base of its token, has changed.
pub(super) const ATTEMPTS: usize = 3;

impl Cluster {
    pub async fn claim(self: &Arc<Self>, claims: &[Claim]) -> Result<Vec<Result<Outcome>>> {
        self.bury();
        let _under_way = self.leases.claiming(claims);
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
            self.claim_part(*kind, &part).await
        }));
        gather(claims.len(), parts.iter().map(|(_, part)| part.as_slice()).zip(answers.await))
    }

    async fn claim_part(self: &Arc<Self>, kind: Kind, claims: &[&Claim]) -> Result<Vec<Result<Outcome>>> {
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

    /// A claim does not extend its lease, and a term on one that is nearly over is short. What is given up on the lease must
    /// not live on with it, and there may be no renewals that would find it.
    async fn keep_if_worn(self: &Arc<Self>, shared: &Shared) {
        if !shared.is_worn() {
            return;
        }
        // If it fails, the grant says how much is left.
        if let Ok(Some(kept)) = self.keep_alive(&self.link.main, shared.id).await {
            let cluster = self.clone();
            tokio::spawn(async move { cluster.look_for_orphans(&cluster.link.main, kept.id).await });
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
        let mut outcomes = answered(STORE, claims.len(), outcomes)?;
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

    pub async fn refused(&self, busy: Vec<(usize, Found)>) -> Vec<(usize, Result<Outcome>)> {
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
