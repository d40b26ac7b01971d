//! Claims: two rounds, and what is taken back.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::ask::ask_all;
use super::member::Confirmation;
use super::votes::{Claimed, by_entry, claimed, majority, too_few};
use super::{FOR_STRAGGLERS, QuorumStore, STORE, node_limit};
use crate::error::{Error, Result};
use crate::record::{Token, Ttl};
use crate::store::redis::link::On;
use crate::store::{Claim, Ended, Grant, Outcome};

/// What a round of claims has come to, by the number of the claim.
#[derive(Default)]
struct Sorted {
    won: Vec<(usize, Token)>,
    again: Vec<usize>,
    lost: Vec<(usize, Result<Outcome>)>,
    /// Those of the lost ones that some servers may have granted.
    traces: Vec<usize>,
}

impl Sorted {
    fn lose(&mut self, at: usize, outcome: Result<Outcome>, traces: bool) {
        self.lost.push((at, outcome));
        self.traces.extend(traces.then_some(at));
    }
}

impl QuorumStore {
    /// The first round, and what follows from it for each name.
    pub(super) async fn claim_all(&self, claims: Vec<Claim>, tries: u32) -> Vec<Result<Outcome>> {
        let limit = node_limit(claims_ttl(&claims));
        let claims = Arc::<[Claim]>::from(claims);
        let answers = self.ask(On::Main, limit, |member| {
            let claims = claims.clone();
            async move { member.node.claim(&claims).await }
        });
        let mut sorted = Sorted::default();
        for (at, answers) in by_entry(claims.len(), answers.await).into_iter().enumerate() {
            match claimed(claims[at].lease, answers) {
                Claimed::Won(token) => sorted.won.push((at, token)),
                Claimed::Again if tries > 1 => sorted.again.push(at),
                Claimed::Again => sorted.lose(at, Ok(Outcome::Busy(None)), true),
                Claimed::Lost { outcome, traces } => sorted.lose(at, outcome, traces),
            }
        }
        self.follow_up(&claims, sorted, limit, tries).await
    }

    async fn follow_up(&self, claims: &[Claim], sorted: Sorted, limit: Duration, tries: u32) -> Vec<Result<Outcome>> {
        let Sorted { won, again, mut lost, traces } = sorted;
        let retry = async {
            if again.is_empty() {
                return Vec::new();
            }
            sleep(FOR_STRAGGLERS).await;
            let claims = again.iter().map(|at| claims[*at].clone()).collect();
            let outcomes = Box::pin(self.claim_all(claims, tries - 1)).await;
            again.iter().copied().zip(outcomes).collect()
        };
        let lose = self.take_back(claims, traces.into_iter());
        let (granted, retried, ()) = tokio::join!(self.confirm_claims(claims, &won, limit), retry, lose);
        lost.extend(granted);
        lost.extend(retried);
        lost.sort_unstable_by_key(|(at, _)| *at);
        lost.into_iter().map(|(_, outcome)| outcome).collect()
    }

    /// The second round of claims that were won. What is not confirmed is given back.
    async fn confirm_claims(
        &self,
        claims: &[Claim],
        won: &[(usize, Token)],
        limit: Duration,
    ) -> Vec<(usize, Result<Outcome>)> {
        let entry = |(at, token): &(usize, Token)| {
            let claim = &claims[*at];
            Confirmation { name: claim.name.clone(), lease: claim.lease, first: None, token: *token }
        };
        let confirmed = self.confirm(On::Main, won.iter().map(entry).collect(), limit).await;
        let outcome = |((at, token), confirmed): (&(usize, Token), Result<()>)| {
            (*at, confirmed.map(|()| Outcome::Granted(Grant::new(*token))))
        };
        let outcomes: Vec<_> = won.iter().zip(confirmed).map(outcome).collect();
        let failed = outcomes.iter().filter(|(_, outcome)| outcome.is_err());
        self.take_back(claims, failed.map(|(at, _)| *at)).await;
        outcomes
    }

    /// Writes tokens where their leases are live, and says which of them a majority has confirmed.
    pub(super) async fn confirm(&self, on: On, entries: Vec<Confirmation>, limit: Duration) -> Vec<Result<()>> {
        if entries.is_empty() {
            return Vec::new();
        }
        let entries = Arc::<[Confirmation]>::from(entries);
        let answers = self.ask(on, limit, |member| {
            let entries = entries.clone();
            async move { Ok(member.confirm(on, &entries).await?.into_iter().map(Ok).collect::<Vec<Result<bool>>>()) }
        });
        let answers = by_entry(entries.len(), answers.await);
        answers.iter().map(|answers| self.is_confirmed(answers)).collect()
    }

    fn is_confirmed(&self, answers: &[Result<bool>]) -> Result<()> {
        let (servers, mut errors) = (self.members.len(), Vec::new());
        errors.extend(answers.iter().filter_map(|answer| answer.as_ref().err().cloned()));
        match answers.iter().filter(|answer| matches!(answer, Ok(true))).count() {
            confirmed if confirmed >= majority(servers) => Ok(()),
            _ if !errors.is_empty() => Err(too_few(servers, &errors)),
            confirmed => Err(Error::transient(STORE, format!("{confirmed} of {servers} servers confirmed the token"))),
        }
    }

    /// Frees what was claimed in vain, on all servers: also on those that have not answered.
    async fn take_back(&self, claims: &[Claim], lost: impl Iterator<Item = usize>) {
        let end = |at: usize| {
            let claim = &claims[at];
            Ended { name: claim.name.clone(), lease: claim.lease, first: None, evicted_by: None }
        };
        let ends: Vec<Ended> = lost.map(end).collect();
        if !ends.is_empty() {
            self.end(ends).await;
        }
    }

    pub(super) async fn end(&self, ends: Vec<Ended>) -> Vec<Vec<Result<bool>>> {
        let ends = Arc::<[Ended]>::from(ends);
        let answers = ask_all(&self.members, Some(FOR_STRAGGLERS), |member| {
            let ends = ends.clone();
            async move { Ok(member.release(&ends).await?.into_iter().map(Ok).collect()) }
        });
        by_entry(ends.len(), answers.await)
    }
}

fn claims_ttl(claims: &[Claim]) -> Duration {
    claims.iter().map(|claim| claim.ttl.get()).min().unwrap_or(Ttl::MAX)
}
