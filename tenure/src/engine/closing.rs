//! The engine's end: asked for by `shutdown`, or because nobody is left to ask for anything.

use std::sync::mpsc as blocking;
use std::time::Duration;

use tokio::sync::oneshot;

use super::slot::{Desk, Slot};
use super::{CALL_LIMIT, Engine};
use crate::clock::Moment;
use crate::error::Error;
use crate::guard::{Lost, Status, Why};
use crate::record::{Name, Token};

/// A name that a shutdown could not release; it is free when its term has run out.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Unreleased {
    /// The name.
    pub name: Name,
    /// The term's token.
    pub token: Token,
    /// Why not.
    pub error: Error,
}

/// What the end leaves to be told: what was taken from its holder, who did not let go in time, and what could not be released.
pub(crate) type Leavings = (Vec<Lost>, Vec<Unreleased>);

/// How far the end has come.
#[derive(Default)]
pub(super) struct Closing {
    /// Holders have until then; `None` once what they left was taken from them, or if there are no holders.
    holders_until: Option<Moment>,
    /// Releases have until then.
    until: Option<Moment>,
    cut_off: Vec<Lost>,
    replies: Vec<oneshot::Sender<Leavings>>,
    parting: Vec<blocking::Sender<()>>,
}

impl Closing {
    pub fn wake(&self) -> Option<Moment> {
        self.holders_until.or(self.until)
    }
}

impl Slot {
    /// Takes what the holder has left. Says so, unless it was lost or released already.
    fn cut_off(&mut self, desk: &mut Desk) -> Option<Lost> {
        let held = self.term.as_ref()?.held.clone();
        self.tell_lost(Why::Closed, desk);
        self.release(&held, None, desk);
        match held.status() {
            Status::Lost(lost) if matches!(lost.why, Why::Closed) => Some(lost),
            _ => None,
        }
    }
}

impl Engine {
    /// No new acquires; holders are told, and have until `within` to release.
    pub(super) fn shut_down(&mut self, within: Duration, reply: oneshot::Sender<Leavings>) {
        let holders_until = Some(self.desk.now + within);
        self.close(Closing { holders_until, replies: vec![reply], ..Closing::default() });
        self.with_all(|slot, desk| slot.begin_to_close(desk));
    }

    /// No handle is left, so no holder either: only releases are still under way.
    pub(super) fn part(&mut self, done: Option<blocking::Sender<()>>) {
        let parting = done.into_iter().collect();
        self.close(Closing { parting, ..Closing::default() });
    }

    /// The first wish sets the times, and a later one that is in a greater hurry; all wait together.
    fn close(&mut self, wish: Closing) {
        self.desk.closing = true;
        match &mut self.closing {
            Some(closing) => {
                closing.holders_until =
                    closing.holders_until.map(|until| wish.holders_until.unwrap_or(until).min(until));
                closing.replies.extend(wish.replies);
                closing.parting.extend(wish.parting);
            }
            None => self.closing = Some(wish),
        }
        self.with_all(|slot, desk| slot.turn_away(desk));
    }

    /// When the holders' time is up, takes what they have left.
    pub(super) fn go_on_closing(&mut self) {
        let now = self.desk.now;
        let Some(closing) = &mut self.closing else { return };
        if closing.holders_until.take_if(|until| *until <= now).is_some() {
            closing.until = Some(now + CALL_LIMIT);
            let mut cut_off = Vec::new();
            self.with_all(|slot, desk| cut_off.extend(slot.cut_off(desk)));
            self.closing.iter_mut().for_each(|closing| closing.cut_off.append(&mut cut_off));
        }
    }

    /// Whether all is done, or can wait no longer. Then those who asked for the end are told.
    pub(super) fn is_over(&mut self) -> bool {
        let now = self.desk.now;
        let late = |closing: &mut Closing| closing.until.is_some_and(|until| until <= now);
        let done = self.closing.is_some() && self.slots.values().all(Slot::is_done);
        let Some(closing) = self.closing.take_if(|closing| done || late(closing)) else { return false };
        let mut unreleased = std::mem::take(&mut self.desk.unreleased);
        unreleased.extend(self.slots.values().flat_map(|slot| slot.unreleased(&self.desk)));
        for reply in closing.replies {
            let _ = reply.send((closing.cut_off.clone(), unreleased.clone()));
        }
        true
    }
}
