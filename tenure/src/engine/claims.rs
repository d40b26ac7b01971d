//! Waiters: who asks for a name, in order.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::Ticket;
use super::slot::{Desk, Slot, Under, jittered};
use crate::clock::Moment;
use crate::error::{Error, Result};
use crate::event::EventKind;
use crate::guard::Held;
use crate::options::Plan;
use crate::record::{LeaseId, Name, Record};
use crate::store::{Claim, Grant, Outcome};

/// The wait before a claim that failed is tried again.
const RETRY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// Waiters come back this much after the holder's time is up, each at another moment.
const AFTER_EXPIRY: Duration = Duration::from_millis(20);

/// An acquire, as it arrives.
pub(crate) struct Request {
    pub name: Name,
    pub ticket: Ticket,
    pub plan: Plan,
    pub wait: Wait,
    pub reply: oneshot::Sender<Result<Answer>>,
}

/// How long an acquire waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// One answer from the store, whatever it is.
    Once,
    For(Duration),
    Forever,
}

/// What an acquire gets.
pub(crate) enum Answer {
    Granted(Arc<Held>),
    /// Somebody has it; only for [`Wait::Once`].
    Busy(Option<Box<Record>>),
}

/// An acquire that waits its turn.
pub(super) struct Waiter {
    pub ticket: Ticket,
    pub plan: Plan,
    pub lease: LeaseId,
    reply: oneshot::Sender<Result<Answer>>,
    wait: Wait,
    asked: Moment,
    contended: bool,
    /// The last attempt failed; since when attempts have, and how often.
    failing: Option<(Error, Moment, u32)>,
    /// An attempt with this lease, of unknown outcome, may still be granted until then.
    pub unsure_until: Option<Moment>,
}

impl Waiter {
    fn new(request: Request, now: Moment) -> Self {
        Self {
            ticket: request.ticket,
            plan: request.plan,
            lease: LeaseId::random(),
            reply: request.reply,
            wait: request.wait,
            asked: now,
            contended: false,
            failing: None,
            unsure_until: None,
        }
    }

    /// Failures are ridden out for a while: a store that restarts is back soon.
    fn patience(&self) -> Duration {
        match self.wait {
            Wait::Once => super::CALL_LIMIT,
            Wait::For(wait) => wait,
            Wait::Forever => self.plan.ttl.get(),
        }
    }

    pub fn gives_up_at(&self) -> Option<Moment> {
        match self.wait {
            // One answer takes no longer, unless others who are before it have to wait for theirs.
            Wait::Once => Some(self.asked + 2 * super::CALL_LIMIT),
            Wait::For(wait) => Some(self.asked + wait),
            Wait::Forever => None,
        }
    }

    /// Would not wait for its own process.
    pub fn is_impatient(&self) -> bool {
        self.wait == Wait::Once || self.plan.refuse_reentry
    }

    /// Told once that somebody has the name.
    fn contend(&mut self, holder: Option<&str>, name: &Name, desk: &Desk) {
        if !std::mem::replace(&mut self.contended, true) {
            desk.report.report(name, None, EventKind::Contended(holder.map(Into::into)));
        }
    }

    /// The name is this process's own.
    fn turn_away_from(self, ours: Record) {
        let answer = match self.plan.refuse_reentry {
            true => Err(Error::AlreadyHeld { name: ours.name }),
            false => Ok(Answer::Busy(Some(Box::new(ours)))),
        };
        self.answer(answer);
    }

    /// A dropped receiver has sent, or will send, its withdrawal.
    fn answer(self, answer: Result<Answer>) {
        let _ = self.reply.send(answer);
    }

    pub fn grant(self, held: Arc<Held>) {
        self.answer(Ok(Answer::Granted(held)));
    }

    /// It was granted, but could not be handed out in time.
    pub fn give_up(self, name: &Name, now: Moment) {
        let waited = now - self.asked;
        self.answer(Err(Error::TimedOut { name: name.clone(), waited, holder: None }));
    }

    /// A fresh attempt, after the name was granted too late.
    pub fn with_new_lease(mut self: Box<Self>) -> Box<Self> {
        self.lease = LeaseId::random();
        self.unsure_until = None;
        self
    }
}

impl Slot {
    pub(super) fn ask(&mut self, request: Request, desk: &mut Desk) {
        let mut waiter = Waiter::new(request, desk.now);
        if desk.closing {
            return waiter.answer(Err(Error::Closed));
        }
        if let Some(term) = &self.term {
            waiter.contend(Some(&*desk.owner), &self.name, desk);
            if waiter.is_impatient() {
                return waiter.turn_away_from(term.record(&self.name, &desk.owner));
            }
        } else if waiter.wait == Wait::Once {
            self.claim_at = None;
        }
        self.waiters.push(Box::new(waiter));
    }

    /// The asker is gone: what it asked for, or got, is given back.
    pub(super) fn withdraw(&mut self, ticket: Ticket, desk: &Desk) {
        if self.remove_waiter(ticket, desk).is_none() {
            self.give_back(ticket, desk);
        }
    }

    /// Takes a waiter out of the queue. A claim under way is followed up when it is answered, one of unknown
    /// outcome at once.
    fn remove_waiter(&mut self, ticket: Ticket, desk: &Desk) -> Option<Box<Waiter>> {
        let waiter = self.waiters.remove(ticket)?;
        let claiming = matches!(self.under, Some(Under::Claim { ticket, .. }) if ticket == waiter.ticket);
        if !claiming && waiter.unsure_until.is_some() {
            self.end_orphan(waiter.lease, None, waiter.plan.ttl, desk);
        }
        Some(waiter)
    }

    pub(super) fn wants_claim(&self, now: Moment) -> bool {
        self.term.is_none()
            && !self.waiters.is_empty()
            && !self.is_releasing(now)
            && self.claim_at.is_none_or(|moment| moment <= now)
    }

    pub(super) fn send_claim(&mut self, desk: &mut Desk) -> Option<Claim> {
        if self.under.is_some() || !self.wants_claim(desk.now) {
            return None;
        }
        let first = self.waiters.first()?;
        self.under = Some(Under::Claim { ticket: first.ticket, unsure: first.unsure_until.is_some() });
        self.hinted = false;
        Some(Claim {
            name: self.name.clone(),
            lease: first.lease,
            owner: desk.owner.clone(),
            ttl: first.plan.ttl,
            grace: first.plan.grace,
            data: first.plan.data.clone(),
            waits: first.wait != Wait::Once,
        })
    }

    pub(super) fn claimed(&mut self, claim: &Claim, sent: Moment, answer: Result<Outcome>, desk: &mut Desk) {
        let Some(Under::Claim { ticket, unsure }) = self.under.take() else { return };
        let asker = self.waiters.get_mut(ticket);
        match (answer, asker) {
            (Ok(Outcome::Granted(grant)), Some(_)) => self.granted(ticket, grant, sent, desk),
            (Ok(Outcome::Granted(grant)), None) => {
                // By its lease alone if an earlier attempt may still be granted, with another token.
                self.end_orphan(claim.lease, (!unsure).then_some(grant.token), claim.ttl, desk);
            }
            (Ok(Outcome::Busy(record)), asker) => {
                if let Some(asker) = asker {
                    asker.failing = None;
                    asker.contend(record.as_ref().map(|record| record.owner.as_str()), &self.name, desk);
                } else if unsure {
                    self.end_orphan(claim.lease, None, claim.ttl, desk);
                }
                self.refused(record, sent, desk);
            }
            (Err(error), Some(_)) => self.claim_failed(ticket, error, desk),
            (Err(_), None) => self.end_orphan(claim.lease, None, claim.ttl, desk),
        }
    }

    fn granted(&mut self, ticket: Ticket, grant: Grant, sent: Moment, desk: &mut Desk) {
        if let Some(waiter) = self.waiters.remove(ticket) {
            self.start_term(waiter, grant, sent, desk);
        }
    }

    /// The name is this process's now: those who would not wait for it are answered.
    pub(super) fn answer_the_impatient(&mut self, desk: &Desk) {
        let Some(term) = &self.term else { return };
        let record = self.waiters.impatient().next().map(|_| term.record(&self.name, &desk.owner));
        for ticket in self.waiters.impatient().map(|waiter| waiter.ticket).collect::<Vec<_>>() {
            if let (Some(waiter), Some(record)) = (self.remove_waiter(ticket, desk), record.clone()) {
                waiter.turn_away_from(record);
            }
        }
    }

    fn refused(&mut self, record: Option<Box<Record>>, sent: Moment, desk: &Desk) {
        self.claim_at = (!std::mem::take(&mut self.hinted)).then(|| next_look(record.as_deref(), desk));
        self.holder = record;
        let once = |waiter: &&Waiter| waiter.wait == Wait::Once;
        let heard = self.waiters.impatient().filter(once).filter(|waiter| waiter.asked <= sent);
        for ticket in heard.map(|waiter| waiter.ticket).collect::<Vec<_>>() {
            if let Some(waiter) = self.remove_waiter(ticket, desk) {
                waiter.answer(Ok(Answer::Busy(self.holder.clone())));
            }
        }
        // The answer is no answer for those who asked after the claim was sent; nor has the store, which pushes only
        // to those whom it has refused, heard of a first waiter that was not refused itself.
        let unheard = self.waiters.first().is_some_and(|first| !first.contended);
        if unheard || self.waiters.impatient().any(|waiter| once(&waiter)) {
            self.claim_at = None;
        }
    }

    fn claim_failed(&mut self, ticket: Ticket, error: Error, desk: &Desk) {
        let Some(asker) = self.waiters.get_mut(ticket) else { return };
        asker.unsure_until = Some(desk.now + desk.about.statement_limit);
        let (since, failures) = asker.failing.as_ref().map_or((desk.now, 0), |(_, since, count)| (*since, *count));
        let hopeless = !error.is_transient() || desk.now - since >= asker.patience();
        if !hopeless {
            asker.failing = Some((error, since, failures + 1));
            self.claim_at = Some(desk.backoff(failures, RETRY.0, RETRY.1));
        } else if let Some(waiter) = self.remove_waiter(ticket, desk) {
            waiter.answer(Err(error));
        }
    }

    pub(super) fn time_out_waiters(&mut self, desk: &Desk) {
        while let Some((moment, ticket)) = self.waiters.next_give_up()
            && moment <= desk.now
        {
            let error = self.why_in_vain(ticket, desk);
            if let Some(waiter) = self.remove_waiter(ticket, desk) {
                waiter.answer(Err(error));
            }
        }
    }

    /// Why a waiter has waited in vain: the store fails, for it or for whoever is before it, or somebody has the name.
    fn why_in_vain(&mut self, ticket: Ticket, desk: &Desk) -> Error {
        let failure = |waiter: &Waiter| waiter.failing.as_ref().map(|(error, ..)| error.clone());
        let before = self.waiters.first().and_then(failure);
        let Some(waiter) = self.waiters.get_mut(ticket) else { return Error::Closed };
        let (once, waited) = (waiter.wait == Wait::Once, desk.now - waiter.asked);
        match failure(waiter).or(before) {
            Some(error) => error,
            None if once => super::calls::late(desk.about.store, waited),
            None => Error::TimedOut { name: self.name.clone(), waited, holder: self.holder(desk) },
        }
    }

    /// Who has the name, as far as is known here.
    fn holder(&self, desk: &Desk) -> Option<Box<Record>> {
        let ours = self.term.as_ref().map(|term| Box::new(term.record(&self.name, &desk.owner)));
        ours.or_else(|| self.holder.clone())
    }

    /// When the queue wants to be looked at: for a waiter that gives up, or for the next claim.
    pub(super) fn waiters_alarm(&self, now: Moment) -> Option<Moment> {
        let give_up = self.waiters.next_give_up().map(|(moment, _)| moment);
        let claim = self.claim_at.filter(|moment| *moment > now && !self.waiters.is_empty());
        give_up.into_iter().chain(claim).min()
    }

    /// Every waiter is turned away: the engine closes.
    pub(super) fn turn_away(&mut self, desk: &Desk) {
        while let Some(ticket) = self.waiters.first().map(|waiter| waiter.ticket) {
            if let Some(waiter) = self.remove_waiter(ticket, desk) {
                waiter.answer(Err(Error::Closed));
            }
        }
    }
}

/// When the holder's time is up, and at the latest after the store's own interval.
fn next_look(record: Option<&Record>, desk: &Desk) -> Moment {
    let poll = jittered(desk.about.poll);
    let expiry = record.map(|record| record.remaining + record.grace + jittered(AFTER_EXPIRY));
    desk.now + expiry.map_or(poll, |expiry| expiry.min(poll))
}
