//! Renewals.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::STORE;
use super::claims::ATTEMPTS;
use super::cluster::Cluster;
use super::leases::Held;
use super::link::Lane;
use super::messages::{Against, Compare, LeaseTimeToLiveRequest, Op, TxnRequest, TxnResponse};
use super::parts::{PART, all, parts, size};
use super::records::{Found, Mark, Value};
use crate::clock::Moment;
use crate::error::{Error, Result};
use crate::record::Token;
use crate::store::{Gone, Grant, Outcome, Renewal, Renewed, answered};

/// A lease that was kept alive: since when it counts, and its keys.
struct Round {
    since: Moment,
    keys: HashSet<Vec<u8>>,
}
impl Cluster {
    pub async fn renew(self: &Arc<Self>, terms: &[Renewal]) -> Result<Vec<Result<Renewed>>> {
        self.bury();
        let find = |term: &Renewal| self.leases.find(&term.name, term.lease, Some(term.first));
        let held: Vec<Option<Held>> = terms.iter().map(find).collect();
        let leases: HashSet<i64> = held.iter().flatten().map(|held| held.on).collect();
        let rounds = all(leases.iter().map(|id| async { (*id, self.renew_lease(*id).await) })).await;
        let rounds: BTreeMap<i64, Result<Option<Round>>> = rounds.into_iter().collect();
        let mut answers: Vec<Option<Result<Renewed>>> = Vec::with_capacity(terms.len());
        for (term, held) in terms.iter().zip(&held) {
            let round = held.as_ref().and_then(|held| rounds.get(&held.on));
            answers.push(self.renewed(term, held.as_ref(), round));
        }
        self.look_for_the_missing(terms, &held, &rounds, &mut answers).await?;
        self.rotate(terms, &held, &mut answers).await;
        let unanswered = || Err(Error::transient(STORE, "no answer"));
        Ok(answers.into_iter().map(|answer| answer.unwrap_or_else(unanswered)).collect())
    }

    /// Two calls, however many names are on the lease. `None` if it is lost.
    async fn renew_lease(self: &Arc<Self>, id: i64) -> Result<Option<Round>> {
        let lane = &self.link.renewals;
        let Some(shared) = self.keep_alive(lane, id).await? else { return Ok(None) };
        let keys = self.look_for_orphans(lane, id).await?;
        Ok(keys.map(|keys| Round { since: shared.since, keys: keys.into_iter().collect() }))
    }

    /// The keys of a lease; those that nobody holds are deleted. `None` if it is lost.
    pub async fn look_for_orphans(self: &Arc<Self>, lane: &Lane, id: i64) -> Result<Option<Vec<Vec<u8>>>> {
        let answer = self.link.call(lane, LeaseTimeToLiveRequest { id, keys: true }).await?;
        if answer.ttl < 0 {
            self.leases.lost(id);
            return Ok(None);
        }
        self.delete_orphans(id, self.leases.orphans(id, &self.keys, &answer.keys));
        Ok(Some(answer.keys))
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
            return answered(STORE, terms.len(), tokens.collect());
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
    /// for ever. By now somebody else may have such a name, on a lease of their own.
    fn delete_orphans(self: &Arc<Self>, id: i64, keys: Vec<Vec<u8>>) {
        if keys.is_empty() {
            return;
        }
        let cluster = self.clone();
        tokio::spawn(async move {
            // If it fails, the next renewal finds them again.
            let Ok(found) = cluster.fetch(&cluster.link.main, &keys).await else { return };
            let found = found.into_iter().flatten().filter_map(|kv| Found::read(&cluster.keys, kv).ok());
            let orphans: Vec<Found> =
                found.filter(|found| found.on == id && !cluster.leases.is_wanted(found)).collect();
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
