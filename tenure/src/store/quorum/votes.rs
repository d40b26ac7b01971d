//! What the servers' answers come to: a majority decides.

use std::collections::BTreeMap;

use super::STORE;
use crate::error::{Error, Result};
use crate::record::{LeaseId, Record, Token};
use crate::store::seen::Found;
use crate::store::{Gone, Outcome, Renewed};

/// How many servers are a majority of so many.
pub(super) fn majority(servers: usize) -> usize {
    servers / 2 + 1
}

/// Of each server an answer for each entry; turned around, of each entry the answer of each server.
pub(super) fn by_entry<T>(entries: usize, answers: Vec<Result<Vec<Result<T>>>>) -> Vec<Vec<Result<T>>> {
    let mut turned: Vec<Vec<Result<T>>> = (0..entries).map(|_| Vec::with_capacity(answers.len())).collect();
    for answer in answers {
        match answer {
            Ok(answer) => turned.iter_mut().zip(answer).for_each(|(entry, answer)| entry.push(answer)),
            Err(error) => turned.iter_mut().for_each(|entry| entry.push(Err(error.clone()))),
        }
    }
    turned
}

/// What a round of claims has come to, for one name.
#[derive(Debug)]
pub(super) enum Claimed {
    /// A majority has granted it; the largest of their tokens.
    Won(Token),
    /// Nobody has a majority, and we have more than the others: they give up theirs.
    Again,
    /// And whether some server has granted it, or may have.
    Lost { outcome: Result<Outcome>, traces: bool },
}

/// Counts the votes for a claim.
pub(super) fn claimed(lease: LeaseId, answers: Vec<Result<Found>>) -> Claimed {
    let (servers, mut tokens, mut others, mut errors) = (answers.len(), Vec::new(), Vec::new(), Vec::new());
    for answer in answers {
        match answer.and_then(Found::outcome) {
            Ok(Outcome::Granted(grant)) => tokens.push(grant.token),
            Ok(Outcome::Busy(record)) => others.extend(record),
            Err(error) => errors.push(error),
        }
    }
    let majority = majority(servers);
    if let Some(largest) = tokens.iter().max().filter(|_| tokens.len() >= majority) {
        return Claimed::Won(*largest);
    }
    if servers - errors.len() < majority {
        return Claimed::Lost { outcome: Err(too_few(servers, &errors)), traces: true };
    }
    let mut rivals = BTreeMap::<u128, usize>::new();
    others.iter().for_each(|record| *rivals.entry(record.lease.0).or_default() += 1);
    let ahead = |(rival, votes): (&u128, &usize)| (tokens.len(), *rival) > (*votes, lease.0);
    if !tokens.is_empty() && rivals.iter().all(ahead) {
        return Claimed::Again;
    }
    let traces = !(tokens.is_empty() && errors.is_empty());
    let holder = most_told(others.into_iter().map(|record| *record).collect()).map(Box::new);
    Claimed::Lost { outcome: Ok(Outcome::Busy(holder)), traces }
}

/// What a round of renewals has come to, for one name.
#[derive(Debug)]
pub(super) enum Counted {
    /// A majority has it; the largest of their tokens, and whether all have that one.
    Kept {
        token: Token,
        agreed: bool,
    },
    Over(Result<Renewed>),
}

/// Counts what has become of a term.
pub(super) fn renewed(lease: LeaseId, answers: &[Result<Renewed>]) -> Counted {
    let majority = majority(answers.len());
    let kept: Vec<Token> = answers.iter().filter_map(kept).collect();
    if let Some(token) = kept.iter().max().copied().filter(|_| kept.len() >= majority) {
        return Counted::Kept { token, agreed: kept.iter().all(|other| *other == token) };
    }
    let errors: Vec<Error> = answers.iter().filter_map(|answer| answer.as_ref().err().cloned()).collect();
    if kept.len() + errors.len() >= majority {
        return Counted::Over(Err(too_few(answers.len(), &errors)));
    }
    let gone = answers.iter().filter_map(|answer| match answer {
        Ok(Renewed::Gone(gone)) => Some(gone),
        _ => None,
    });
    Counted::Over(Ok(Renewed::Gone(why_gone(lease, gone))))
}

pub(super) fn kept(answer: &Result<Renewed>) -> Option<Token> {
    match answer {
        Ok(Renewed::Kept(grant)) => Some(grant.token),
        _ => None,
    }
}

/// An operator's word counts most, then who has it now.
fn why_gone<'a>(lease: LeaseId, gone: impl Iterator<Item = &'a Gone>) -> Gone {
    let mut takers = Vec::new();
    for gone in gone {
        match gone {
            Gone::Evicted(by) => return Gone::Evicted(by.clone()),
            Gone::Taken(record) if record.lease != lease => takers.push(Record::clone(record)),
            Gone::Taken(_) | Gone::Expired => {}
        }
    }
    most_told(takers).map_or(Gone::Expired, |record| Gone::Taken(Box::new(record)))
}

/// Whether a term has ended now: where no server says so it was over before, and so it was where most say so.
pub(super) fn released(answers: &[Result<bool>]) -> Result<bool> {
    let (servers, majority) = (answers.len(), majority(answers.len()));
    let ended = answers.iter().filter(|answer| matches!(answer, Ok(true))).count();
    let errors: Vec<Error> = answers.iter().filter_map(|answer| answer.as_ref().err().cloned()).collect();
    if servers - errors.len() < majority {
        return Err(too_few(servers, &errors));
    }
    Ok(ended > 0 && ended + errors.len() >= majority)
}

/// The term that a name's records show, if a majority may have it: those that were not heard may have it, too.
pub(super) fn listed(servers: usize, unheard: usize, records: Vec<Record>) -> Option<Record> {
    let mut terms = BTreeMap::<(u128, Token), Vec<Record>>::new();
    for record in records {
        terms.entry((record.lease.0, record.first)).or_default().push(record);
    }
    let most = terms.into_values().max_by_key(Vec::len)?;
    if most.len() + unheard < majority(servers) {
        return None;
    }
    most.into_iter().max_by_key(|record| record.remaining)
}

/// The record of the lease that most servers tell of, with the most time left.
fn most_told(records: Vec<Record>) -> Option<Record> {
    let told = |lease: LeaseId| records.iter().filter(|record| record.lease == lease).count();
    let best = records.iter().max_by_key(|record| (told(record.lease), record.remaining))?;
    Some(best.clone())
}

/// Not enough servers have answered. Trying again helps unless each of them has refused for good.
pub(super) fn too_few(servers: usize, errors: &[Error]) -> Error {
    let said: Vec<String> = errors.iter().map(said).collect();
    let (failed, needed) = (errors.len(), majority(servers));
    let why = format!("{failed} of {servers} servers failed, and {needed} are needed: {}", said.join("; "));
    match errors.iter().any(Error::is_transient) {
        true => Error::transient(STORE, why),
        false => Error::permanent(STORE, why),
    }
}

/// Without the kind of store, which is said once.
fn said(error: &Error) -> String {
    match error {
        Error::Store { reason, .. } => reason.to_string(),
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::record::Name;
    use crate::store::Grant;

    const OURS: LeaseId = LeaseId(5);

    fn record(lease: u128, first: u64) -> Record {
        Record {
            name: Name::new("name").unwrap(),
            owner: "me".into(),
            lease: LeaseId(lease),
            first: Token(first),
            token: Token(first),
            acquired_at: SystemTime::UNIX_EPOCH,
            renewed_at: SystemTime::UNIX_EPOCH,
            expires_at: SystemTime::UNIX_EPOCH,
            held_for: Duration::ZERO,
            remaining: Duration::from_secs(1),
            grace: Duration::ZERO,
            data: None,
        }
    }

    fn failed<T>() -> Result<T> {
        Err(Error::transient(STORE, "it is down"))
    }

    fn kept(token: u64) -> Result<Renewed> {
        Ok(Renewed::Kept(Grant::new(Token(token))))
    }

    fn taken(lease: u128) -> Result<Renewed> {
        Ok(Renewed::Gone(Gone::Taken(Box::new(record(lease, 1)))))
    }

    fn expired() -> Result<Renewed> {
        Ok(Renewed::Gone(Gone::Expired))
    }

    fn ours(token: u64) -> Result<Found> {
        Ok(Found::Ours(Grant::new(Token(token))))
    }

    #[test]
    fn a_majority_wins_with_its_largest_token() {
        assert!(matches!(claimed(OURS, vec![ours(3), failed(), ours(9), ours(4), failed()]), Claimed::Won(Token(9))));
    }

    #[test]
    fn a_minority_is_busy_or_unknown_and_leaves_traces() {
        let free = || Ok(Found::Other(None));
        let refused = claimed(OURS, vec![free(), free(), free()]);
        assert!(matches!(refused, Claimed::Lost { outcome: Ok(Outcome::Busy(None)), traces: false }), "{refused:?}");
        let unknown = claimed(OURS, vec![ours(1), failed(), failed()]);
        let Claimed::Lost { outcome: Err(error), traces: true } = unknown else { panic!("{unknown:?}") };
        assert!(
            error.is_transient() && error.to_string().contains("2 of 3 servers failed, and 2 are needed"),
            "{error}"
        );
    }

    #[test]
    fn refusals_for_good_are_told_as_such() {
        let refused = Error::permanent(STORE, "no such user");
        assert!(!too_few(3, &[refused.clone(), refused.clone()]).is_transient());
        assert!(too_few(3, &[refused, Error::transient(STORE, "down")]).is_transient());
    }

    #[test]
    fn a_term_lives_on_a_majority_alone() {
        let counted = renewed(OURS, &[kept(7), kept(7), failed(), expired(), kept(7)]);
        assert!(matches!(counted, Counted::Kept { token: Token(7), agreed: true }), "{counted:?}");
        let counted = renewed(OURS, &[kept(7), kept(9), kept(7)]);
        assert!(matches!(counted, Counted::Kept { token: Token(9), agreed: false }), "{counted:?}");
        // The two that failed may have it.
        assert!(matches!(renewed(OURS, &[kept(7), failed(), failed(), expired(), expired()]), Counted::Over(Err(_))));
        let counted = renewed(OURS, &[kept(7), kept(7), expired(), expired(), expired()]);
        assert!(matches!(counted, Counted::Over(Ok(Renewed::Gone(Gone::Expired)))), "{counted:?}");
    }

    #[test]
    fn who_ended_a_term_is_told_before_who_has_the_name_now() {
        let evicted = || Ok(Renewed::Gone(Gone::Evicted("me".into())));
        assert!(matches!(
            renewed(OURS, &[taken(6), evicted(), taken(6)]),
            Counted::Over(Ok(Renewed::Gone(Gone::Evicted(_))))
        ));
        let Counted::Over(Ok(Renewed::Gone(Gone::Taken(by)))) = renewed(OURS, &[taken(6), taken(5), taken(6)]) else {
            panic!("not taken")
        };
        assert_eq!(by.lease, LeaseId(6));
    }

    #[test]
    fn a_release_counts_where_a_majority_may_have_had_the_term() {
        assert!(released(&[Ok(true), Ok(true), Ok(false)]).unwrap());
        assert!(released(&[Ok(true), failed(), Ok(false), Ok(true), Ok(false)]).unwrap());
        assert!(!released(&[Ok(true), Ok(false), Ok(false)]).unwrap());
        assert!(!released(&[Ok(false), failed(), Ok(false)]).unwrap());
        assert!(released(&[Ok(true), failed(), failed()]).is_err());
    }

    #[test]
    fn what_a_majority_may_have_is_listed() {
        assert_eq!(listed(5, 0, vec![record(5, 1), record(5, 1)]), None);
        assert!(listed(5, 1, vec![record(5, 1), record(5, 1)]).is_some());
        // Terms that have not got their common token.
        assert_eq!(listed(3, 0, vec![record(5, 1), record(5, 2), record(5, 3)]), None);
        assert!(listed(3, 0, vec![record(5, 1), record(6, 2), record(5, 1)]).is_some_and(|found| found.lease == OURS));
    }
}
