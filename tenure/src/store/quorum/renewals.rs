//! Renewals: a term lives on a majority alone, and its record is put back where it is missing.

use std::sync::Arc;
use std::time::Duration;

use super::member::{Confirmation, Missing};
use super::votes::{Counted, by_entry, kept, renewed};
use super::{QuorumStore, node_limit};
use crate::error::Result;
use crate::record::{Name, Record, Token, Ttl};
use crate::store::redis::link::On;
use crate::store::{Grant, Renewal, Renewed};

/// A term that a majority has, and some server hasn't.
struct Lacking<'a> {
    term: &'a Renewal,
    token: Token,
    /// A server that has it.
    source: usize,
}

impl<'a> Lacking<'a> {
    fn found(counted: &Counted, answers: &[Result<Renewed>], term: &'a Renewal) -> Option<Self> {
        let Counted::Kept { token, .. } = *counted else { return None };
        let is_lacking = answers.iter().any(|answer| matches!(answer, Ok(Renewed::Gone(_))));
        let source = answers.iter().position(|answer| kept(answer) == Some(token)).filter(|_| is_lacking)?;
        Some(Self { term, token, source })
    }

    fn of(&self, found: Option<Record>) -> Option<Missing> {
        let record = found.filter(|record| record.lease == self.term.lease && record.first == self.term.first)?;
        Some(Missing { record: Record { token: self.token, ..record }, ttl: self.term.ttl.get() })
    }
}

impl QuorumStore {
    /// Renews terms; those whose tokens rise, or differ, have a second round.
    pub(super) async fn renew_all(&self, terms: &[Renewal]) -> Vec<Result<Renewed>> {
        let limit = node_limit(terms.iter().map(|term| term.ttl.get()).min().unwrap_or(Ttl::MAX));
        let answers = self.ask_renewals(terms, limit).await;
        let counted: Vec<Counted> =
            answers.iter().zip(terms).map(|(answers, term)| renewed(term.lease, answers)).collect();
        let unsettled = counted.iter().zip(terms).filter_map(|(counted, term)| risen(counted, term)).collect();
        let confirmed = self.confirm(On::Renewals, unsettled, limit).await;
        let lacking = counted.iter().zip(&answers).zip(terms);
        let lacking: Vec<_> =
            lacking.filter_map(|((counted, answers), term)| Lacking::found(counted, answers, term)).collect();
        self.put_back(&lacking, limit).await;
        let mut confirmed = confirmed.into_iter();
        let result = |(counted, term): (Counted, &Renewal)| {
            let confirmed = risen(&counted, term).and_then(|_| confirmed.next()).unwrap_or(Ok(()));
            match counted {
                Counted::Over(result) => result,
                Counted::Kept { token, .. } => confirmed.map(|()| Renewed::Kept(Grant::new(token))),
            }
        };
        counted.into_iter().zip(terms).map(result).collect()
    }

    /// The first round of renewals: of each term the answer of each server.
    async fn ask_renewals(&self, terms: &[Renewal], limit: Duration) -> Vec<Vec<Result<Renewed>>> {
        let asked = Arc::<[Renewal]>::from(terms.to_vec());
        let answers = self.ask(On::Renewals, limit, |member| {
            let terms = asked.clone();
            async move {
                let found = member.node.renew(&terms).await?;
                Ok(found.into_iter().zip(terms.iter()).map(|(found, term)| found?.renewed(term)).collect())
            }
        });
        by_entry(terms.len(), answers.await)
    }

    /// Puts the records of terms that a majority has back where they are missing.
    async fn put_back(&self, missing: &[Lacking<'_>], limit: Duration) {
        for (source, member) in self.members.iter().enumerate() {
            let here: Vec<&Lacking> = missing.iter().filter(|lacking| lacking.source == source).collect();
            if here.is_empty() {
                continue;
            }
            let names: Vec<Name> = here.iter().map(|lacking| lacking.term.name.clone()).collect();
            // What can't be put back now is put back by the next renewal.
            let Ok(found) = member.within(On::Renewals, limit, member.look(&names)).await else { continue };
            let entries: Arc<[Missing]> =
                here.iter().zip(found).filter_map(|(lacking, found)| lacking.of(found)).collect();
            self.ask(On::Renewals, limit, |member| {
                let entries = entries.clone();
                async move { member.put_back(&entries).await }
            })
            .await;
        }
    }
}

/// The token that a renewed term's servers must agree on, if they don't.
fn risen(counted: &Counted, term: &Renewal) -> Option<Confirmation> {
    let Counted::Kept { token, agreed } = *counted else { return None };
    let (name, lease, first) = (term.name.clone(), term.lease, Some(term.first));
    (term.rotate || !agreed).then_some(Confirmation { name, lease, first, token })
}
