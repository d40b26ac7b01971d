//! Releases: terms that end, and claims of unknown outcome that nobody wants any more.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::calls::Freed;
use super::closing::Unreleased;
use super::slot::{Desk, Slot, Under};
use super::terms::{Term, why_over};
use crate::clock::Moment;
use crate::error::{Error, Result};
use crate::event::EventKind;
use crate::guard::{Held, Status};
use crate::record::{LeaseId, Token, Ttl};
use crate::store::Ended;

/// The wait before a release that failed is tried again.
const RETRY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// A release to be carried out.
pub(super) struct End {
    lease: LeaseId,
    first: Option<Token>,
    /// The holder's term; none for an orphan, a claim whose asker is gone.
    of: Option<Arc<Held>>,
    reply: Option<oneshot::Sender<Result<()>>>,
    /// Not before.
    at: Moment,
    /// Afterwards the record has expired by itself.
    until: Moment,
    /// The last failure: after one, the outcome is unknown.
    error: Option<Error>,
    tries: u32,
}

impl End {
    /// An orphan that was not there when last looked for.
    pub fn is_afterthought(&self) -> bool {
        self.of.is_none() && self.tries > 0 && self.error.is_none()
    }

    fn answer(&mut self, answer: Result<()>) {
        if let Some(reply) = self.reply.take() {
            let _ = reply.send(answer);
        }
    }
}

impl Slot {
    /// Ends a term: its holder released or dropped it, or was told to and time is up.
    pub(super) fn release(&mut self, held: &Arc<Held>, reply: Option<oneshot::Sender<Result<()>>>, desk: &Desk) {
        let Some(term) = self.term.take_if(|term| term.held.ticket == held.ticket) else {
            if let Some(reply) = reply {
                let lost = match held.status() {
                    Status::Lost(lost) => lost,
                    _ => held.lost_for(why_over(None)),
                };
                let _ = reply.send(Err(lost.into()));
            }
            return;
        };
        held.tell(Status::Released);
        self.end_duplicates(&term, desk);
        self.ends.push(End {
            lease: term.held.lease,
            first: Some(term.first),
            of: Some(held.clone()),
            reply,
            at: desk.now,
            until: held.deadline().max(desk.now) + held.ttl.margin(),
            error: None,
            tries: 0,
        });
    }

    /// A claim of the term's lease that is still under way in the store would take the name anew.
    pub(super) fn end_duplicates(&mut self, term: &Term, desk: &Desk) {
        if let Some(moment) = term.unsure_until.filter(|moment| *moment > desk.now) {
            self.add_orphan(term.held.lease, None, moment, moment + term.held.ttl.get());
        }
    }

    /// A claim that was granted, or may have been, and that nobody wants.
    pub(super) fn end_orphan(&mut self, lease: LeaseId, first: Option<Token>, ttl: Ttl, desk: &Desk) {
        self.add_orphan(lease, first, desk.now, desk.now + desk.about.statement_limit + ttl.get());
    }

    fn add_orphan(&mut self, lease: LeaseId, first: Option<Token>, at: Moment, until: Moment) {
        self.ends.push(End { lease, first, of: None, reply: None, at, until, error: None, tries: 0 });
    }

    /// A claim now would only find our own record. An orphan that is looked at again later is no reason to wait.
    pub(super) fn is_releasing(&self, now: Moment) -> bool {
        self.ends.iter().any(|end| end.of.is_some() || end.at <= now || end.error.is_some())
    }

    /// An orphan waits while the name is ours: it can't be granted meanwhile, and must not keep renewals from going out.
    pub(super) fn ready_end(&self, now: Moment) -> Option<&End> {
        self.ends.iter().find(|end| end.at <= now && (end.of.is_some() || self.term.is_none()))
    }

    pub(super) fn send_end(&mut self, desk: &mut Desk) -> Option<Ended> {
        // A renewal may have gone out while this stood in the queue.
        let end = self.ready_end(desk.now).filter(|_| self.under.is_none())?;
        let entry = Ended { name: self.name.clone(), lease: end.lease, first: end.first, evicted_by: None };
        self.under = Some(Under::Release(end.lease));
        Some(entry)
    }

    pub(super) fn ended(&mut self, entry: &Ended, answer: Result<Freed>, desk: &mut Desk) {
        self.under = None;
        let Some(index) = self.ends.iter().position(|end| end.lease == entry.lease && end.first == entry.first) else {
            return;
        };
        let end = &mut self.ends[index];
        end.tries += 1;
        match answer {
            // It was made more than once, perhaps, and the store may still be at another attempt.
            Ok(Freed::Now) if end.first.is_none() && end.tries == 1 => self.look_again(index, desk),
            Ok(Freed::Now) => self.finish_end(index, Ok(()), desk),
            Ok(Freed::Before(gone)) if end.of.is_some() => {
                // An attempt before this one may have done it.
                let ours = end.error.is_some() && desk.now < end.until;
                let lost = || end.of.as_ref().map(|held| held.lost_for(why_over(gone)));
                let result = if ours { None } else { lost() }.map_or(Ok(()), |lost| Err(lost.into()));
                self.finish_end(index, result, desk);
            }
            Ok(Freed::Before(_)) => self.look_again(index, desk),
            Err(error) => {
                end.at = desk.backoff(end.tries - 1, RETRY.0, RETRY.1);
                end.error = Some(error);
            }
        }
    }

    fn finish_end(&mut self, index: usize, result: Result<()>, desk: &Desk) {
        let mut end = self.ends.remove(index);
        if let Some(held) = &end.of {
            let kind = match &result {
                Ok(()) => EventKind::Released,
                Err(Error::Lost(lost)) => EventKind::Lost(lost.why.clone()),
                Err(error) => EventKind::ReleaseFailed(error.clone()),
            };
            desk.report.report(&self.name, Some(held.token()), kind);
        }
        end.answer(result);
    }

    /// Not granted, so far as is known. The store may still be at it, so it is asked again when it must have stopped.
    fn look_again(&mut self, index: usize, desk: &Desk) {
        let limit = desk.about.statement_limit;
        if limit.is_zero() || self.ends[index].first.is_some() {
            self.ends.remove(index);
        } else {
            let end = &mut self.ends[index];
            end.error = None;
            end.at = desk.now + limit * 2u32.pow(end.tries.min(8) - 1);
        }
    }

    /// What could not be released by now has expired.
    pub(super) fn give_up_ends(&mut self, desk: &mut Desk) {
        let under = self.under;
        let over = |end: &End| end.until <= desk.now && under != Some(Under::Release(end.lease));
        while let Some(index) = self.ends.iter().position(over) {
            let end = &self.ends[index];
            let error = end.error.clone().unwrap_or_else(|| super::calls::late(desk.about.store, end.until - end.at));
            if let Some(held) = &end.of {
                let (name, token, error) = (self.name.clone(), held.token(), error.clone());
                desk.unreleased.extend(desk.closing.then_some(Unreleased { name, token, error }));
            }
            self.finish_end(index, Err(error), desk);
        }
    }

    pub(super) fn ends_alarm(&self, now: Moment) -> Option<Moment> {
        let waiting = self.ends.iter().filter(|end| self.under != Some(Under::Release(end.lease)));
        waiting.map(|end| if end.at > now { end.at.min(end.until) } else { end.until }).min()
    }

    /// What is not released yet, when the engine can wait no longer.
    pub(super) fn unreleased(&self, desk: &Desk) -> Vec<Unreleased> {
        let of = |end: &End| {
            let error = end.error.clone().unwrap_or_else(|| super::calls::late(desk.about.store, super::CALL_LIMIT));
            end.of.as_ref().map(|held| Unreleased { name: self.name.clone(), token: held.token(), error })
        };
        self.ends.iter().filter_map(of).collect()
    }
}
