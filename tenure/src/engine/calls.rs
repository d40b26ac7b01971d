//! Calls to the store: what is collected goes out in batches, and the answers come back to their slots.

use std::collections::VecDeque;
use std::pin::Pin;
use std::time::Duration;

use tokio::time::timeout;

use super::slot::{Desk, Slot};
use super::{CALL_LIMIT, Engine};
use crate::clock::Moment;
use crate::error::{Error, Result};
use crate::record::Name;
use crate::store::{Claim, Ended, Gone, Outcome, Renewal, Renewed, Store, answered};

/// A call that fails as a whole is split to find the entry that spoils it; not for ever, if each part fails too.
const MAX_FAILED_PARTS: usize = 32;

/// What is shared out among calls that are made at once has at least so many entries in each.
const WORTH_A_CALL: usize = 64;

/// Data that a call carries, about: a store reads it several times within the call's limit. What is left goes out in the
/// next one.
const CALL_DATA: usize = 1 << 20;

/// An answered call: the entries, each with its answer.
pub(super) enum Done {
    Claim(Moment, Vec<(Claim, Result<Outcome>)>),
    Renew(Moment, Vec<(Renewal, Result<Renewed>)>),
    Release(Vec<(Ended, Result<Freed>)>),
}

/// A release's answer; where the term was over already, with the reason.
pub(super) enum Freed {
    Now,
    Before(Option<Gone>),
}

/// A call that took too long. Its outcome is unknown.
pub(super) fn late(store: &'static str, limit: Duration) -> Error {
    Error::transient(store, format!("no answer within {limit:?}"))
}

impl Engine {
    /// Sends what has been collected, as far as calls may be under way.
    ///
    /// Claims and releases go out side by side, and then wait for both: those who are answered first ask again while
    /// the others are still under way, and so gather. On their own, one call would be followed by many small ones.
    pub(super) fn send_calls(&mut self) {
        let calls = self.desk.about.calls;
        if self.claiming + self.releasing < calls {
            let part = self.share(self.desk.to_claim.len(), calls - self.claiming);
            while self.claiming < calls && !self.desk.to_claim.is_empty() {
                self.send_claims(part);
            }
            let part = self.share(self.desk.to_release.len(), calls - self.releasing);
            while self.releasing < calls && !self.desk.to_release.is_empty() {
                self.send_releases(part);
            }
        }
        if !self.renewing {
            self.send_renewals();
        }
    }

    /// How many of `waiting` entries go into one of several calls: shares, so that the store works on all of them at
    /// once, and the asking and answering for one goes on during the others; but none so small that it isn't worth it.
    fn share(&self, waiting: usize, calls: usize) -> usize {
        waiting.div_ceil(calls.max(1)).max(WORTH_A_CALL).min(self.desk.about.batch)
    }

    fn send_claims(&mut self, part: usize) {
        let mut data = 0;
        let mut claims = self.collect(
            part,
            |engine| &mut engine.desk.to_claim,
            Slot::send_claim,
            |claim| {
                data += claim.data.as_ref().map_or(0, |data| data.len());
                data < CALL_DATA
            },
        );
        if claims.is_empty() {
            return;
        }
        claims.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        self.claiming += 1;
        let (store, name, sent) = (self.store.clone(), self.desk.about.store, Moment::now());
        self.calls.spawn(async move {
            let answers = limited(&*store, name, CALL_LIMIT, &claims, |store, part| store.claim(part)).await;
            Some(Done::Claim(sent, claims.into_iter().zip(answers).collect()))
        });
    }

    fn send_releases(&mut self, part: usize) {
        let mut ends = self.collect(part, |engine| &mut engine.desk.to_release, Slot::send_end, |_| true);
        if ends.is_empty() {
            return;
        }
        ends.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        self.releasing += 1;
        let (store, name) = (self.store.clone(), self.desk.about.store);
        self.calls.spawn(async move {
            let answers = limited(&*store, name, CALL_LIMIT, &ends, |store, part| Box::pin(release(store, part))).await;
            Some(Done::Release(ends.into_iter().zip(answers).collect()))
        });
    }

    fn send_renewals(&mut self) {
        let terms = self.collect_due();
        if terms.is_empty() {
            return;
        }
        self.renewing = true;
        // A quarter: a call that hangs leaves time for another on a new connection.
        let limit = (self.shortest_ttl() / 4).min(CALL_LIMIT);
        let (store, name, sent) = (self.store.clone(), self.desk.about.store, Moment::now());
        self.calls.spawn(async move {
            let answers = limited(&*store, name, limit, &terms, |store, part| store.renew(part)).await;
            Some(Done::Renew(sent, terms.into_iter().zip(answers).collect()))
        });
    }

    /// Takes a batch of names off a queue, with what each slot still wants sent; no more when `has_room` says so.
    fn collect<T>(
        &mut self,
        part: usize,
        queue: impl Fn(&mut Self) -> &mut VecDeque<Name>,
        mut entry: impl FnMut(&mut Slot, &mut Desk) -> Option<T>,
        mut has_room: impl FnMut(&T) -> bool,
    ) -> Vec<T> {
        let size = queue(self).len().min(part);
        let mut entries: Vec<T> = Vec::with_capacity(size);
        for _ in 0..size {
            let Some(name) = queue(self).pop_front() else { break };
            let before = entries.len();
            self.with(name, |slot, desk| {
                slot.queued = false;
                entries.extend(entry(slot, desk));
            });
            if !entries[before..].iter().all(&mut has_room) {
                break;
            }
        }
        entries
    }

    pub(super) fn answered(&mut self, done: Done) {
        match done {
            Done::Claim(sent, answers) => {
                self.claiming -= 1;
                self.answers += answers.len();
                for (claim, answer) in answers {
                    self.with(claim.name.clone(), |slot, desk| slot.claimed(&claim, sent, answer, desk));
                }
            }
            Done::Renew(sent, answers) => {
                self.renewing = false;
                for (renewal, answer) in answers {
                    self.with(renewal.name.clone(), |slot, desk| slot.renewed(&renewal, sent, answer, desk));
                }
            }
            Done::Release(answers) => {
                self.releasing -= 1;
                self.answers += answers.len();
                for (end, answer) in answers {
                    self.with(end.name.clone(), |slot, desk| slot.ended(&end, answer, desk));
                }
            }
        }
    }
}

/// Releases, and asks what became of the terms that were over already: a renewal says it, and changes nothing.
async fn release(store: &dyn Store, ends: &[Ended]) -> Result<Vec<Result<Freed>>> {
    let freed = answered(store.about().store, ends.len(), store.release(ends).await?)?;
    let over = |(end, freed): (&Ended, &Result<bool>)| match (end.first, freed) {
        (Some(first), Ok(false)) => Some(Renewal {
            name: end.name.clone(),
            lease: end.lease,
            first,
            ttl: crate::record::Ttl::DEFAULT,
            rotate: false,
        }),
        _ => None,
    };
    let asked: Vec<Renewal> = ends.iter().zip(&freed).filter_map(over).collect();
    let mut reasons =
        if asked.is_empty() { Vec::new() } else { store.renew(&asked).await.unwrap_or_default() }.into_iter();
    let result = |(end, freed): (&Ended, Result<bool>)| {
        Ok(match freed? {
            true => Freed::Now,
            false => Freed::Before(end.first.and_then(|_| reasons.next()).and_then(|reason| match reason {
                Ok(Renewed::Gone(gone)) => Some(gone),
                _ => None,
            })),
        })
    };
    Ok(ends.iter().zip(freed).map(result).collect())
}

/// A call to the store, as its trait makes it.
type Calling<'a, A> = Pin<Box<dyn Future<Output = Result<Vec<Result<A>>>> + Send + 'a>>;

/// Makes a call within its limit; every entry gets an answer.
async fn limited<E: Sync, A: Send>(
    store: &dyn Store,
    name: &'static str,
    limit: Duration,
    entries: &[E],
    call: impl for<'a> Fn(&'a dyn Store, &'a [E]) -> Calling<'a, A>,
) -> Vec<Result<A>> {
    match timeout(limit, in_parts(store, name, entries, call)).await {
        Ok(answers) => answers,
        Err(_) => all(entries.len(), &late(name, limit)).collect(),
    }
}

/// Makes a call; if it fails as a whole, and not for the moment only, again in halves.
async fn in_parts<E: Sync, A: Send>(
    store: &dyn Store,
    name: &'static str,
    entries: &[E],
    call: impl for<'a> Fn(&'a dyn Store, &'a [E]) -> Calling<'a, A>,
) -> Vec<Result<A>> {
    let mut answers = Vec::with_capacity(entries.len());
    let mut parts = vec![entries];
    let mut failed = 0;
    while let Some(part) = parts.pop() {
        match call(store, part).await.and_then(|answers| answered(name, part.len(), answers)) {
            Ok(part) => answers.extend(part),
            Err(error) if part.len() > 1 && !error.is_transient() && failed < MAX_FAILED_PARTS => {
                failed += 1;
                let (first, second) = part.split_at(part.len() / 2);
                parts.extend([second, first]);
            }
            Err(error) => answers.extend(all(part.len(), &error)),
        }
    }
    answers
}

fn all<A>(count: usize, error: &Error) -> impl Iterator<Item = Result<A>> {
    std::iter::repeat_with(|| Err(error.clone())).take(count)
}
