//! Terms: what this process holds, renewed in batches until it is released or lost.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::oneshot;

use super::slot::{Desk, Slot, Under};
use super::{Engine, Ticket};
use crate::clock::Moment;
use crate::engine::claims::Waiter;
use crate::error::{Error, Result};
use crate::event::EventKind;
use crate::guard::{Held, Lost, Status, Why};
use crate::options::Plan;
use crate::record::{Name, Record, Token};
use crate::store::{Gone, Grant, Renewal, Renewed};

/// A term in the making, held, or told to end.
pub(super) struct Term {
    pub held: Arc<Held>,
    pub first: Token,
    /// The one last granted: it may have risen by rotation.
    token: Token,
    pub unsure_until: Option<Moment>,
    plan: Plan,
    began: Moment,
    rotated: Moment,
    /// When to renew; not at all once the holder was told to end.
    due: Option<Moment>,
    /// How many renewals have failed in a row.
    failures: u32,
    at_risk: bool,
    /// Its grant was slow: handed out only once renewed.
    pending: Option<Box<Waiter>>,
}

impl Term {
    pub fn due(&self) -> Option<Moment> {
        self.due
    }

    /// What the holder has of it, once it was handed out.
    pub fn handed(&self) -> Option<Arc<Held>> {
        self.pending.is_none().then(|| self.held.clone())
    }

    /// As the store would list it, by this machine's clock.
    pub fn record(&self, name: &Name, owner: &str) -> Record {
        let (held_for, remaining) = (Moment::now() - self.began, self.held.deadline().remaining());
        let now = SystemTime::now();
        Record {
            name: name.clone(),
            owner: owner.into(),
            lease: self.held.lease,
            first: self.first,
            token: self.held.token(),
            acquired_at: now - held_for,
            renewed_at: now - self.plan.ttl.get().saturating_sub(remaining),
            expires_at: now + remaining,
            held_for,
            remaining,
            grace: self.plan.grace,
            data: self.plan.data.as_deref().map(Into::into),
        }
    }

    /// When to tell that it has lasted too long, while that is to come.
    fn ends_at(&self) -> Option<Moment> {
        let to_come = !self.was_told_to_end() && self.pending.is_none();
        self.plan.max_hold.filter(|_| to_come).map(|max_hold| self.began + max_hold)
    }

    /// When to tell that it is at risk, while that is to come.
    fn at_risk_at(&self) -> Option<Moment> {
        let failing = self.failures > 0 && !self.at_risk && !self.was_told_to_end();
        failing.then(|| self.held.deadline() - self.plan.ttl.get() / 2)
    }

    fn was_told_to_end(&self) -> bool {
        self.due.is_none()
    }
}

/// If the engine dies, so do its terms, and their holders hear of it.
impl Drop for Term {
    fn drop(&mut self) {
        self.held.tell(Status::Lost(self.held.lost_for(Why::Closed)));
    }
}

fn deadline(plan: &Plan, grant: Grant, sent: Moment) -> Moment {
    grant.since.unwrap_or(sent).min(sent) + plan.ttl.get() - plan.ttl.margin()
}

impl Slot {
    /// A claim was granted. If its answer was slow it is renewed first; if it came too late, claimed afresh.
    pub(super) fn start_term(&mut self, waiter: Box<Waiter>, grant: Grant, sent: Moment, desk: &mut Desk) {
        let plan = waiter.plan.clone();
        let deadline = deadline(&plan, grant, sent);
        if deadline <= desk.now {
            self.end_orphan(waiter.lease, Some(grant.token), plan.ttl, desk);
            return self.waiters.push(waiter.with_new_lease());
        }
        let slow = deadline - desk.now < plan.ttl.get() / 2;
        let term = Term {
            held: Arc::new(Held::new(self.name.clone(), waiter.ticket, waiter.lease, plan.ttl, grant.token, deadline)),
            first: grant.token,
            token: grant.token,
            unsure_until: waiter.unsure_until,
            began: desk.now,
            rotated: desk.now,
            due: Some(if slow { desk.now } else { sent + plan.renew_every }),
            failures: 0,
            at_risk: false,
            pending: None,
            plan,
        };
        self.term = Some(term);
        match slow {
            true => self.term_mut().pending = Some(waiter),
            false => self.hand_out(*waiter, desk),
        }
        self.answer_the_impatient(desk);
    }

    fn term_mut(&mut self) -> &mut Term {
        self.term.as_mut().expect("the slot has a term here")
    }

    fn hand_out(&mut self, waiter: Waiter, desk: &Desk) {
        let term = self.term_mut();
        term.began = desk.now;
        let held = term.held.clone();
        desk.report.report(&self.name, Some(held.token()), EventKind::Acquired);
        waiter.grant(held);
    }

    pub(super) fn renew_now(&mut self, desk: &Desk) {
        if let Some(term) = &mut self.term {
            term.due = term.due.map(|due| due.min(desk.now));
        }
    }

    pub(super) fn send_renewal(&mut self, desk: &Desk) -> Option<Renewal> {
        let term = self.term.as_ref()?;
        self.under = Some(Under::Renew);
        let rotate = term.plan.rotate_every.is_some_and(|every| term.rotated + every <= desk.now + every / 8);
        Some(Renewal { name: self.name.clone(), lease: term.held.lease, first: term.first, ttl: term.plan.ttl, rotate })
    }

    pub(super) fn renewed(&mut self, renewal: &Renewal, sent: Moment, answer: Result<Renewed>, desk: &mut Desk) {
        self.under = None;
        // Released, or lost by our own clock, while the renewal was under way.
        let Some(term) = self.term.as_ref().filter(|term| term.held.lease == renewal.lease && !term.was_told_to_end())
        else {
            return;
        };
        match answer {
            Ok(Renewed::Kept(grant)) if term.held.extend(grant.token, deadline(&term.plan, grant, sent)) => {
                self.kept(grant, sent, desk);
            }
            // Its release is on the way.
            Ok(Renewed::Kept(_)) if matches!(term.held.status(), Status::Released) => {}
            Ok(Renewed::Kept(_)) => self.kept_too_late(desk),
            Ok(Renewed::Gone(gone)) => self.lose(why_gone(gone), desk),
            Err(error) => self.renewal_failed(error, desk),
        }
    }

    fn kept(&mut self, grant: Grant, sent: Moment, desk: &Desk) {
        let term = self.term_mut();
        let before = std::mem::replace(&mut term.token, grant.token);
        term.due = Some(sent + term.plan.renew_every);
        term.failures = 0;
        if std::mem::take(&mut term.at_risk) {
            term.held.tell(if desk.closing { Status::Closing } else { Status::Held });
        }
        if grant.token != before {
            term.rotated = desk.now;
        }
        let pending = term.pending.take();
        desk.report.report(&self.name, Some(grant.token), EventKind::Renewed);
        if grant.token != before {
            desk.report.report(&self.name, Some(grant.token), EventKind::TokenRotated(before));
        }
        if let Some(waiter) = pending {
            self.hand_out(*waiter, desk);
        }
    }

    /// Its holder may have been told that it was lost, and that is final; but its record was lengthened.
    fn kept_too_late(&mut self, desk: &mut Desk) {
        self.term_mut().failures += 1;
        self.lose(Why::Expired(None), desk);
    }

    /// The holder lets go, in time or not.
    pub(super) fn let_go(&mut self, held: &Arc<Held>, reply: Option<oneshot::Sender<Result<()>>>, desk: &mut Desk) {
        let ours = self.term.as_ref().is_some_and(|term| term.held.ticket == held.ticket);
        if ours && matches!(held.status(), Status::Lost(Lost { why: Why::Expired(_), .. })) {
            self.lose(Why::Expired(None), desk);
        }
        self.release(held, reply, desk);
    }

    /// Neither loss nor success: tried again, sooner than usual, until the deadline.
    fn renewal_failed(&mut self, error: Error, desk: &mut Desk) {
        let term = self.term_mut();
        let interval = term.plan.renew_every;
        term.due = Some(desk.backoff(term.failures, interval / 8, interval / 2));
        term.failures += 1;
        term.held.note(error.clone());
        let token = Some(term.held.token());
        desk.report.report(&self.name, token, EventKind::RenewalFailed(error));
    }

    /// What the clock does to a term.
    pub(super) fn watch_term(&mut self, desk: &mut Desk) {
        let Some(term) = &mut self.term else { return };
        if term.held.deadline() <= desk.now {
            return self.run_out(desk);
        }
        if let Some(waiter) = term.pending.take_if(|waiter| waiter.gives_up_at().is_some_and(|at| at <= desk.now)) {
            let held = term.held.clone();
            self.release(&held, None, desk);
            return waiter.give_up(&self.name, desk.now);
        }
        if term.ends_at().is_some_and(|moment| moment <= desk.now) {
            term.due = None;
            self.tell_lost(Why::HeldTooLong, desk);
        } else if term.at_risk_at().is_some_and(|moment| moment <= desk.now) {
            term.at_risk = true;
            if term.held.tell(Status::AtRisk) {
                desk.report.report(&self.name, Some(term.held.token()), EventKind::AtRisk);
            }
        }
    }

    fn run_out(&mut self, desk: &mut Desk) {
        let Some(term) = &self.term else { return };
        if !term.was_told_to_end() {
            return self.lose(Why::Expired(None), desk);
        }
        // It was told in time. A grace is for holders that may not have stopped: then let it expire.
        let (grace, held) = (term.plan.grace, term.held.clone());
        if grace.is_zero() { self.release(&held, None, desk) } else { self.term = None }
    }

    /// Tells the holder, and whoever follows the events; not a holder that has just released.
    pub(super) fn tell_lost(&mut self, why: Why, desk: &Desk) {
        let Some(term) = &self.term else { return };
        term.held.tell(Status::Lost(term.held.lost_for(why)));
        if let Status::Lost(lost) = term.held.status() {
            desk.report.report(&self.name, Some(lost.token), EventKind::Lost(lost.why));
        }
    }

    /// The term is over. If it was never handed out, its asker goes on waiting.
    fn lose(&mut self, why: Why, desk: &mut Desk) {
        let expired = matches!(why, Why::Expired(_));
        match self.term_mut().pending.take() {
            Some(waiter) => self.waiters.push(waiter.with_new_lease()),
            None => self.tell_lost(why, desk),
        }
        let Some(term) = self.term.take() else { return };
        self.end_duplicates(&term, desk);
        // A renewal of unknown outcome may have lengthened the record of a term that is over. With a grace, it is to stay.
        let unsure = term.failures > 0 || self.under == Some(Under::Renew);
        if expired && unsure && term.plan.grace.is_zero() {
            self.end_orphan(term.held.lease, None, term.plan.ttl, desk);
        }
    }

    /// A shutdown has begun: the holder is told. Where nobody is at work, there is nobody to wait for.
    pub(super) fn begin_to_close(&mut self, desk: &Desk) {
        let Some(term) = &self.term else { return };
        let held = term.held.clone();
        match term.plan.workless {
            true => self.release(&held, None, desk),
            false => drop(held.tell(Status::Closing)),
        }
    }

    /// A grant that nobody received, because its asker is gone.
    pub(super) fn give_back(&mut self, ticket: Ticket, desk: &Desk) {
        let Some(term) = self.term.as_ref().filter(|term| term.held.ticket == ticket) else { return };
        let held = term.held.clone();
        held.tell(Status::Released);
        self.release(&held, None, desk);
    }

    /// When the term wants to be looked at.
    pub(super) fn term_alarm(&self) -> Option<Moment> {
        let term = self.term.as_ref()?;
        let pending = term.pending.as_ref().and_then(|waiter| waiter.gives_up_at());
        [Some(term.held.deadline()), term.at_risk_at(), term.ends_at(), pending].into_iter().flatten().min()
    }
}

fn why_gone(gone: Gone) -> Why {
    match gone {
        Gone::Expired => Why::Expired(None),
        Gone::Taken(record) => Why::Taken(record.owner, record.token),
        Gone::Evicted(by) => Why::Evicted(by),
    }
}

pub(super) fn why_over(gone: Option<Gone>) -> Why {
    gone.map_or(Why::Expired(None), why_gone)
}

impl Engine {
    /// The terms that are due, and those that will be soon: renewed together they stay together.
    pub(super) fn collect_due(&mut self) -> Vec<Renewal> {
        let mut names = Vec::new();
        if self.desk.due.first().is_some_and(|(at, _)| *at <= self.desk.now) {
            let soon = |slots: &std::collections::HashMap<Name, Slot>, at: Moment, name: &Name| {
                let every = slots.get(name).and_then(|slot| slot.term.as_ref()).map(|term| term.plan.renew_every);
                at <= self.desk.now + every.unwrap_or_default() / 4
            };
            let due = self.desk.due.iter().take_while(|(at, name)| soon(&self.slots, *at, name));
            names.extend(due.take(self.desk.about.batch).map(|(_, name)| name.clone()));
        }
        names.sort_unstable();
        let mut renewals = Vec::with_capacity(names.len());
        for name in names {
            self.with(name, |slot, desk| renewals.extend(slot.send_renewal(desk)));
        }
        renewals
    }

    /// The shortest of the terms held. A store too slow for it is soon rid of it, and has more time for the others.
    pub(super) fn shortest_ttl(&self) -> Duration {
        let ttls = self.slots.values().filter_map(|slot| slot.term.as_ref()).map(|term| term.plan.ttl.get());
        ttls.min().unwrap_or(super::CALL_LIMIT)
    }
}
