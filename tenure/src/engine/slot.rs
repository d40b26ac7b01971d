//! A name's slot: everything that this process does with the name, in order; and the desk that slots work at.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::Ticket;
use super::closing::Unreleased;
use super::queue::Queue;
use super::releases::End;
use super::terms::Term;
use crate::clock::Moment;
use crate::event::Reporter;
use crate::record::{LeaseId, Name, Record};
use crate::store::About;

/// What slots work with: the time, what they want of the store, when they want to be looked at.
pub(super) struct Desk {
    pub now: Moment,
    pub about: About,
    pub owner: Arc<str>,
    pub report: Reporter,
    pub to_claim: VecDeque<Name>,
    pub to_release: VecDeque<Name>,
    /// When to look at a name again.
    pub alarms: BTreeSet<(Moment, Name)>,
    /// When to renew a name.
    pub due: BTreeSet<(Moment, Name)>,
    pub closing: bool,
    pub unreleased: Vec<Unreleased>,
}

impl Desk {
    pub fn new(about: About, owner: Arc<str>, report: Reporter) -> Self {
        Self {
            now: Moment::now(),
            about,
            owner,
            report,
            to_claim: VecDeque::new(),
            to_release: VecDeque::new(),
            alarms: BTreeSet::new(),
            due: BTreeSet::new(),
            closing: false,
            unreleased: Vec::new(),
        }
    }

    /// The wait before try number `failures + 1`: doubling from `least` to `most`, with jitter, so that processes
    /// that failed together do not come back together.
    pub fn backoff(&self, failures: u32, least: Duration, most: Duration) -> Moment {
        self.now + jittered((least * 2u32.pow(failures.min(16))).min(most))
    }
}

/// Between half of it and all of it.
pub(crate) fn jittered(time: Duration) -> Duration {
    let random = getrandom::u32().expect("the operating system has random numbers");
    time.mul_f64(0.5 + f64::from(random) / f64::from(u32::MAX) / 2.0)
}

/// What is under way for a name; nothing else is sent for it until the answer is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Under {
    /// A claim for this asker; `unsure` if an earlier attempt with its lease is of unknown outcome.
    Claim {
        ticket: Ticket,
        unsure: bool,
    },
    Renew,
    Release(LeaseId),
}

/// Everything that this process does with one name.
pub(super) struct Slot {
    pub name: Name,
    /// Only the first talks to the store.
    pub waiters: Queue,
    pub term: Option<Term>,
    pub ends: Vec<End>,
    pub under: Option<Under>,
    /// Stands in one of the desk's queues.
    pub queued: bool,
    /// No claim before this.
    pub claim_at: Option<Moment>,
    /// Who had it when a claim was last refused.
    pub holder: Option<Box<Record>>,
    /// A hint came while a claim was under way: its answer may be from before.
    pub hinted: bool,
    pub alarm: Option<Moment>,
    pub due: Option<Moment>,
}

impl Slot {
    pub fn new(name: Name) -> Self {
        Self {
            name,
            waiters: Queue::default(),
            term: None,
            ends: Vec::new(),
            under: None,
            queued: false,
            claim_at: None,
            holder: None,
            hinted: false,
            alarm: None,
            due: None,
        }
    }

    /// Brings the slot in line with the time, and puts what it wants next on the desk.
    pub fn settle(&mut self, desk: &mut Desk) {
        self.watch_term(desk);
        self.give_up_ends(desk);
        self.time_out_waiters(desk);
        if self.under.is_none() && !self.queued {
            self.queue(desk);
        }
        self.set_alarms(desk);
    }

    fn queue(&mut self, desk: &mut Desk) {
        let queue = if self.ready_end(desk.now).is_some() {
            &mut desk.to_release
        } else if self.wants_claim(desk.now) {
            &mut desk.to_claim
        } else {
            return;
        };
        queue.push_back(self.name.clone());
        self.queued = true;
    }

    fn set_alarms(&mut self, desk: &mut Desk) {
        let times = [self.term_alarm(), self.ends_alarm(desk.now), self.waiters_alarm(desk.now)];
        set_alarm(&mut desk.alarms, &mut self.alarm, times.into_iter().flatten().min(), &self.name);
        let due = if self.under.is_none() { self.term.as_ref().and_then(Term::due) } else { None };
        set_alarm(&mut desk.due, &mut self.due, due, &self.name);
    }

    pub fn is_idle(&self) -> bool {
        self.is_done() && self.ends.is_empty()
    }

    /// Nothing is left but to look again, later, after a claim that was most likely never granted.
    pub fn is_done(&self) -> bool {
        self.waiters.is_empty()
            && self.term.is_none()
            && self.under.is_none()
            && self.ends.iter().all(End::is_afterthought)
    }

    /// The name may have become free.
    pub fn hint(&mut self) {
        self.claim_at = None;
        self.hinted = true;
    }
}

fn set_alarm(alarms: &mut BTreeSet<(Moment, Name)>, current: &mut Option<Moment>, wanted: Option<Moment>, name: &Name) {
    if *current == wanted {
        return;
    }
    if let Some(moment) = current.take() {
        alarms.remove(&(moment, name.clone()));
    }
    if let Some(moment) = wanted {
        alarms.insert((moment, name.clone()));
    }
    *current = wanted;
}
