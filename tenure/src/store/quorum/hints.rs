//! Releases that others tell of: a release is told by each server that it has reached.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::member::Member;
use super::votes::majority;
use crate::record::Name;
use crate::store::redis::listener::Hints;
use crate::store::{Change, Changes};

/// A release that only some servers tell of is passed on after this time: others may be out of reach.
const FOR_OTHERS: Duration = Duration::from_millis(10);

/// What is told later is another release.
const FORGET: Duration = Duration::from_secs(1);

/// What all servers tell, each name once.
pub(super) struct Merged {
    servers: usize,
    heard: mpsc::UnboundedReceiver<(usize, Change)>,
    names: HashMap<Name, Told>,
    /// Names that were told, in order of time.
    waiting: VecDeque<(Instant, Name)>,
}

/// Which servers have told of a name.
struct Told {
    by: Vec<usize>,
    since: Instant,
    passed_on: bool,
}

impl Merged {
    /// Listens to all of them, for as long as somebody wants to know.
    pub fn new(members: &[Arc<Member>]) -> Self {
        let (send, heard) = mpsc::unbounded_channel();
        for (number, member) in members.iter().enumerate() {
            let (send, mut hints) = (send.clone(), Hints::unopened(member.node.clone()));
            tokio::spawn(async move { while send.send((number, hints.next().await)).is_ok() {} });
        }
        Self { servers: members.len(), heard, names: HashMap::new(), waiting: VecDeque::new() }
    }

    /// The name, if it is to be passed on now: when a majority is free, a claim can succeed.
    fn hear(&mut self, by: usize, name: Name) -> Option<Name> {
        let now = Instant::now();
        let told = self.names.get(&name).is_some_and(|told| !told.by.contains(&by) && told.since + FORGET > now);
        if !told {
            self.names.insert(name.clone(), Told { by: Vec::new(), since: now, passed_on: false });
            self.waiting.push_back((now, name.clone()));
        }
        let told = self.names.get_mut(&name)?;
        told.by.push(by);
        let enough = told.by.len() >= majority(self.servers) && !told.passed_on;
        told.passed_on |= enough;
        enough.then_some(name)
    }

    /// A name that has waited long enough, if it was not passed on before.
    fn overdue(&mut self) -> Option<Name> {
        let now = Instant::now();
        self.names.retain(|_, told| told.since + FORGET > now);
        while let Some((_, name)) = self.waiting.pop_front_if(|(since, _)| *since + FOR_OTHERS <= now) {
            if let Some(told) = self.names.get_mut(&name).filter(|told| !told.passed_on) {
                told.passed_on = true;
                return Some(name);
            }
        }
        None
    }
}

#[async_trait]
impl Changes for Merged {
    async fn next(&mut self) -> Change {
        loop {
            let due = self.waiting.front().map(|(since, _)| *since + FOR_OTHERS);
            let passed_on = tokio::select! {
                Some((by, change)) = self.heard.recv() => match change {
                    Change::Freed(name) => self.hear(by, name),
                    Change::LostTrack => return Change::LostTrack,
                },
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => self.overdue(),
            };
            if let Some(name) = passed_on {
                return Change::Freed(name);
            }
        }
    }
}
