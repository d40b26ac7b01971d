//! One of the quorum's servers: what it is asked, for how long an answer is waited for, and when it is left alone.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use redis::{Cmd, ConnectionInfo, Value};
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

use super::scripts::{OwnScripts, greeting, voting};
use super::{MEND_LIMIT, NODE_LIMIT, STATEMENT_LIMIT, STORE};
use crate::error::{Error, Result};
use crate::record::{LeaseId, Name, Record, Token};
use crate::store::redis::address::TlsFiles;
use crate::store::redis::link::{Link, On, is_late, is_without_vote};
use crate::store::redis::node::Node;
use crate::store::redis::term::{digits, seen, text, unexpected};
use crate::store::seen::micros;
use crate::store::{Ended, answered};

/// Between attempts to reach a server again.
const MEND_EVERY: Duration = Duration::from_millis(100);

/// More than this is left to expire.
const MOST_OWED: usize = 65_536;

/// One of the servers.
pub(super) struct Member {
    pub node: Arc<Node>,
    own: OwnScripts,
    /// Told when it is found to have no vote.
    without_vote: Arc<Notify>,
    /// Why it is left alone, until it answers again; renewals apart from the rest, so that they don't suffer with it.
    down: [watch::Sender<Option<Error>>; 2],
    /// Releases that it has not got.
    owed: Mutex<VecDeque<Ended>>,
}

/// A token that is to be written where the lease is live.
#[derive(Clone)]
pub(super) struct Confirmation {
    pub name: Name,
    pub lease: LeaseId,
    /// The term's first token; none if it begins with this one.
    pub first: Option<Token>,
    pub token: Token,
}

/// A term that a server lacks.
#[derive(Clone)]
pub(super) struct Missing {
    pub record: Record,
    pub ttl: Duration,
}

/// How a server stands in the quorum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    pub votes: bool,
    /// Since when it is as it is, by its own clock: it tells one loss of its data from the next.
    pub since: u64,
    pub age: Duration,
    pub floor: u64,
    pub longest: Duration,
}

impl Member {
    pub fn new(server: ConnectionInfo, tls: TlsFiles, prefix: &str, without_vote: Arc<Notify>) -> Self {
        let link = Link::in_quorum(server, tls, prefix, greeting(), STATEMENT_LIMIT);
        let node = Arc::new(Node { link, scripts: voting(), replicas: 0 });
        Self { node, own: OwnScripts::new(), without_vote, down: Default::default(), owed: Mutex::default() }
    }

    pub fn place(&self) -> &str {
        &self.node.link.place
    }

    /// Waits for an answer, so long and no longer. A server that owes one is left alone until it answers again, also by
    /// those who wait their turn: what would pile up there would be carried out when nobody wants it any more.
    pub async fn within<T>(
        self: &Arc<Self>,
        on: On,
        limit: Duration,
        ask: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let mut down = self.down(on).subscribe();
        if let Some(why) = down.borrow_and_update().clone() {
            return Err(why);
        }
        let late = || Error::transient(STORE, format!("{}: no answer within {limit:?}", self.place()));
        let answer = tokio::select! {
            answer = timeout(limit, ask) => answer.unwrap_or_else(|_| Err(late())),
            _ = down.changed() => return Err(down.borrow().clone().unwrap_or_else(late)),
        };
        match &answer {
            Err(error) if is_without_vote(error) => self.without_vote.notify_one(),
            Err(error) if error.is_transient() && !is_late(error) => self.leave_alone(on, error),
            _ => {}
        }
        answer
    }

    fn leave_alone(self: &Arc<Self>, on: On, why: &Error) {
        let was_up = self.down(on).send_replace(Some(why.clone())).is_none();
        if was_up {
            tokio::spawn(Self::mend(Arc::downgrade(self), on));
        }
    }

    /// Tries to reach it until it answers, and gives it the releases that it has not got.
    async fn mend(member: Weak<Self>, on: On) {
        while let Some(member) = member.upgrade() {
            let back = async {
                member.node.link.open_anew(on).await?;
                if matches!(on, On::Renewals) { Ok(()) } else { member.settle().await }
            };
            match timeout(MEND_LIMIT, back).await {
                Ok(Ok(())) => return drop(member.down(on).send_replace(None)),
                Ok(Err(error)) => drop(member.down(on).send_replace(Some(error))),
                Err(_) => {}
            }
            drop(member);
            sleep(MEND_EVERY).await;
        }
    }

    /// Ends terms; what it does not get now, it gets when it is back.
    pub async fn release(self: &Arc<Self>, ends: &[Ended]) -> Result<Vec<bool>> {
        let answer = self.within(On::Main, NODE_LIMIT, self.node.release(ends)).await;
        if answer.is_err() {
            let mut owed = self.owed();
            owed.extend(ends.iter().cloned());
            let surplus = owed.len().saturating_sub(MOST_OWED);
            owed.drain(..surplus);
        }
        answer
    }

    async fn settle(&self) -> Result<()> {
        let owed: Vec<Ended> = self.owed().iter().cloned().collect();
        for part in owed.chunks(super::BATCH) {
            match self.node.release(part).await {
                Err(error) if !is_without_vote(&error) => return Err(error),
                _ => drop(self.owed().drain(..part.len())),
            }
        }
        Ok(())
    }

    fn down(&self, on: On) -> &watch::Sender<Option<Error>> {
        &self.down[usize::from(matches!(on, On::Renewals))]
    }

    fn owed(&self) -> std::sync::MutexGuard<'_, VecDeque<Ended>> {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects, and makes what is missing.
    pub async fn open(&self) -> Result<()> {
        self.node.open().await
    }

    pub async fn standing(&self) -> Result<Standing> {
        let standing = self.look_up_standing().await?;
        if standing.since > 0 {
            return Ok(standing);
        }
        self.node.link.open_anew(On::Main).await?;
        self.look_up_standing().await
    }

    async fn look_up_standing(&self) -> Result<Standing> {
        let answer = self.node.link.call(On::Main, &self.own.standing, |_| {}).await?;
        let number = |at: usize| match answer.entries.get(at) {
            Some(Value::Int(number)) => Ok(number.cast_unsigned()),
            _ => Err(unexpected(&Value::Array(answer.entries.clone()))),
        };
        Ok(Standing {
            votes: number(0)? == 1,
            since: number(1)?,
            age: Duration::from_micros(number(2)?),
            floor: number(3)?,
            longest: Duration::from_micros(number(4)?),
        })
    }

    /// Lets it vote, unless it has lost its data again since it was found to stand so.
    pub async fn admit(&self, since: u64, floor: u64, longest: Duration) -> Result<bool> {
        let fill = |command: &mut Cmd| {
            command.arg(since).arg(floor).arg(micros(longest));
        };
        let answer = self.node.link.call(On::Main, &self.own.admit, fill).await?;
        Ok(answer.entries.first() == Some(&Value::Int(1)))
    }

    /// The second round: where the lease is live.
    pub async fn confirm(&self, on: On, entries: &[Confirmation]) -> Result<Vec<bool>> {
        let fill = |command: &mut Cmd| entries.iter().for_each(|entry| add_confirmation(command, entry));
        let answer = self.node.link.call(on, &self.own.confirm, fill).await?;
        flags(entries.len(), answer.entries)
    }

    /// The records of these names.
    pub async fn look(&self, names: &[Name]) -> Result<Vec<Option<Record>>> {
        let fill = |command: &mut Cmd| {
            names.iter().for_each(|name| {
                command.arg(name.as_str());
            })
        };
        let answer = self.node.link.call(On::Renewals, &self.own.look, fill).await?;
        let entries = answered(STORE, names.len(), answer.entries)?;
        let record = |(name, entry): (&Name, &Value)| {
            let Value::Array(parts) = entry else { return Err(unexpected(entry)) };
            let part = |at: usize| parts.get(at).map_or(Ok(None), text);
            part(0)?.map_or(Ok(None), |term| seen(name.as_str(), term, part(1)?, answer.now)?.record())
        };
        names.iter().zip(&entries).map(record).collect()
    }

    /// Puts back what it lacks, unless somebody else has the name there.
    pub async fn put_back(&self, entries: &[Missing]) -> Result<Vec<bool>> {
        let fill = |command: &mut Cmd| entries.iter().for_each(|entry| add_missing(command, entry));
        let answer = self.node.link.call(On::Renewals, &self.own.put_back, fill).await?;
        flags(entries.len(), answer.entries)
    }
}

fn flags(asked: usize, entries: Vec<Value>) -> Result<Vec<bool>> {
    Ok(answered(STORE, asked, entries)?.iter().map(|entry| *entry == Value::Int(1)).collect())
}

fn add_confirmation(command: &mut Cmd, entry: &Confirmation) {
    command
        .arg(entry.name.as_str())
        .arg(entry.lease.to_string())
        .arg(entry.first.map(digits).unwrap_or_default())
        .arg(digits(entry.token));
}

fn add_missing(command: &mut Cmd, Missing { record, ttl }: &Missing) {
    command
        .arg(record.name.as_str())
        .arg(record.lease.to_string())
        .arg(digits(record.first))
        .arg(digits(record.token))
        .arg(micros(*ttl))
        .arg(micros(record.held_for))
        .arg(micros(record.grace))
        .arg(&record.owner)
        .arg(record.data.as_deref().unwrap_or_default());
}
