//! Releases, by holders and by operators.

use std::sync::Arc;
use std::time::Duration;

use super::STORE;
use super::cluster::Cluster;
use super::leases::Kind;
use super::messages::{Against, Compare, LeaseGrantRequest, Op, TxnRequest};
use super::parts::{all, parts};
use super::records::{Found, Mark};
use crate::error::Result;
use crate::record::Token;
use crate::store::{Ended, answered};

/// How much longer than a term the word of its eviction stays.
const MARK_MORE: Duration = Duration::from_secs(60);

/// A term that is to be ended, as it is in etcd.
struct End {
    first: Token,
    create: i64,
    on: i64,
    ttl: Duration,
}
impl Cluster {
    pub async fn release(self: &Arc<Self>, terms: &[Ended]) -> Result<Vec<Result<bool>>> {
        self.bury();
        let ends = self.ends_of(terms).await?;
        let mark = self.lease_for_marks(terms, &ends).await?;
        let entries: Vec<usize> = (0..terms.len()).filter(|entry| ends[*entry].is_some()).collect();
        let size = |entry: &usize| terms[*entry].evicted_by.as_ref().map_or(0, |by| by.len() * 2) + 1024;
        let parts = parts(&entries, size);
        let answers = all(parts.iter().map(|part| self.end_part(terms, &ends, part, mark))).await;
        let mut freed: Vec<Result<bool>> = terms.iter().map(|_| Ok(false)).collect();
        for (part, answer) in parts.iter().zip(answers) {
            for (place, entry) in part.iter().enumerate() {
                freed[*entry] = answer.as_ref().map(|answers| answers[place]).map_err(Clone::clone);
            }
        }
        Ok(freed)
    }

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
        answered(STORE, part.len(), answer.parts().map(|part| part.succeeded).collect())
    }
}
