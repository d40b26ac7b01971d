//! Who is there: a member is a held name, so that one that dies is gone when its term is over.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::IntoFuture;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::clock::Moment;
use crate::error::{Error, Result};
use crate::guard::{Guard, LostSignal, Status};
use crate::lock::{Acquire, Lock};
use crate::locks::Locks;
use crate::options::limits;
use crate::record::{LeaseId, Record, Token};

/// Looking more often than this burdens the store, and people don't notice.
const LEAST_INTERVAL: Duration = Duration::from_millis(250);
/// The shortest interval that can be asked for.
const MIN_INTERVAL: Duration = Duration::from_millis(10);

/// How often a recipe looks at the store, unless it was told how often.
pub(crate) fn interval(locks: &Locks, asked: Option<Duration>) -> Duration {
    asked.unwrap_or_else(|| locks.about().poll.clamp(LEAST_INTERVAL, 4 * LEAST_INTERVAL))
}

/// `q` and `q/` would be two groups that look like one.
pub(crate) fn checked_group(group: &str) -> Result<()> {
    if group.is_empty() || group.ends_with('/') {
        return Err(Error::invalid("group", format!("{group:?} must not be empty or end with a /")));
    }
    Ok(())
}

pub(crate) fn checked_interval(what: &str, time: Option<Duration>) -> Result<()> {
    match time {
        Some(time) if !(MIN_INTERVAL..=limits::TIME).contains(&time) => {
            Err(Error::invalid(what, format!("({time:?}) must be at least {MIN_INTERVAL:?}, and at most a year")))
        }
        _ => Ok(()),
    }
}

impl Locks {
    /// The members of a group: who is there, with what to say, and who comes and goes.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let locks = tenure::connect("memory:").await?;
    /// let group = locks.members("workers");
    /// let membership = group.join("10.0.0.7:8080").await?;
    /// for member in group.list().await? {
    ///     println!("{} at {:?}", member.id, member.data::<String>()?);
    /// }
    /// membership.leave().await?;
    /// # Ok(()) })
    /// # }
    /// ```
    pub fn members(&self, group: impl Into<String>) -> Members {
        Members { locks: self.clone(), group: group.into(), every: None }
    }
}

/// The members of a group. Made by [`Locks::members`]; cheap to clone.
///
/// A member is a held name, `group/members/<id>`, and its data. It is renewed by itself, on Tenure's own thread: so it says that
/// the process is alive and reaches the store, not that its tasks make progress. It leaves as soon as a [shutdown](Locks::shutdown) begins:
/// others are not to turn to a process that is about to end.
#[derive(Clone, Debug)]
pub struct Members {
    locks: Locks,
    group: String,
    every: Option<Duration>,
}

impl Members {
    /// How often [`observe`](Members::observe) looks: as often as a waiter on this store, 250 ms to 1 s, unless set.
    #[must_use]
    pub fn every(mut self, every: Duration) -> Self {
        self.every = Some(every);
        self
    }

    /// Becomes a member, under an id of its own, with data for others to see: 64 KiB of JSON at most.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad group, option or data; [`Error::Store`], [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Dropping the future withdraws: nobody has joined.
    pub fn join(&self, data: &(impl Serialize + ?Sized)) -> Join {
        self.join_as(format!("{:016x}", LeaseId::random().0 as u64), data)
    }

    pub(crate) fn join_as(&self, id: String, data: &(impl Serialize + ?Sized)) -> Join {
        let lock = self.locks.lock(self.prefix() + &id).data(data).workless();
        Join { refused: checked_group(&self.group).err(), lock, id }
    }

    /// Who is there, in the order of ids.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad group, [`Error::Store`], [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn list(&self) -> Result<Vec<Member>> {
        checked_group(&self.group)?;
        let prefix = self.prefix();
        let records = self.locks.list(prefix.as_str()).await?;
        Ok(records.into_iter().filter_map(|record| Member::read(record, &prefix)).collect())
    }

    /// Follows who comes and goes, beginning with those who are there.
    pub fn observe(&self) -> MemberObserver {
        MemberObserver { members: self.clone(), known: BTreeMap::new(), news: VecDeque::new(), due: None }
    }

    /// The group's name.
    pub fn group(&self) -> &str {
        &self.group
    }

    fn prefix(&self) -> String {
        format!("{}/members/", self.group)
    }
}

/// Becomes a member. Made by [`Members::join`]; nothing happens until it is awaited.
#[must_use = "nobody joins until this is awaited"]
#[derive(Debug)]
pub struct Join {
    lock: Lock,
    id: String,
    refused: Option<Error>,
}

impl Join {
    /// How long the member counts as there without a sign of life: 30 s unless set, which is three missed ones.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.lock = self.lock.ttl(ttl);
        self
    }

    /// How often the member gives a sign of life: a third of the TTL unless set, 10 s; at most half of it.
    pub fn heartbeat(mut self, every: Duration) -> Self {
        self.lock = self.lock.renew_every(every);
        self
    }
}

impl IntoFuture for Join {
    type Output = Result<Membership>;
    type IntoFuture = Joining;

    fn into_future(self) -> Joining {
        Joining { acquire: self.lock.into_future(), id: self.id, refused: self.refused }
    }
}

/// A join under way. Dropping it withdraws.
#[must_use = "futures do nothing unless polled"]
#[derive(Debug)]
pub struct Joining {
    acquire: Acquire,
    id: String,
    refused: Option<Error>,
}

impl Future for Joining {
    type Output = Result<Membership>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(error) = self.refused.take() {
            return Poll::Ready(Err(error));
        }
        let guard = ready!(Pin::new(&mut self.acquire).poll(context))?;
        Poll::Ready(Ok(Membership { guard, id: std::mem::take(&mut self.id) }))
    }
}

/// Being a member. Kept up by itself while this lives; dropping it leaves.
#[must_use = "dropping the membership leaves the group"]
#[derive(Debug)]
pub struct Membership {
    pub(crate) guard: Guard,
    id: String,
}

impl Membership {
    /// The member's id: unique, and new each time that somebody joins.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The fencing token of this membership.
    pub fn token(&self) -> Token {
        self.guard.token()
    }

    /// Whether it stands at this moment, by this machine's clock; no I/O.
    pub fn is_member(&self) -> bool {
        !matches!(self.guard.status(), Status::Released | Status::Lost(_))
    }

    /// Resolves when the membership is lost: others count this member as gone. Join again to be back, under another id.
    ///
    /// # Cancel safety
    /// Safe: it may be dropped, cloned and awaited as often as you like.
    pub fn lost(&self) -> LostSignal {
        self.guard.lost()
    }

    /// Leaves, and waits until the store has it.
    ///
    /// # Errors
    /// As [`Guard::release`]: [`Error::Closed`] after a shutdown has begun, which leaves by itself.
    ///
    /// # Cancel safety
    /// The leave is under way as soon as this is called; dropping the future does not stop it.
    pub fn leave(self) -> impl Future<Output = Result<()>> + Send + 'static {
        let has_left = matches!(self.guard.status(), Status::Released);
        let left = self.guard.release();
        async move { if has_left { Err(Error::Closed) } else { left.await } }
    }
}

/// Somebody who is there.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Member {
    /// Unique, and new each time that somebody joins.
    pub id: String,
    /// Who it is, for people.
    pub owner: String,
    /// The JSON text that it attached.
    pub data: Option<String>,
    /// When it joined, by the store's clock.
    pub since: SystemTime,
    lease: LeaseId,
}

impl Member {
    fn read(record: Record, prefix: &str) -> Option<Self> {
        let id = record.name.as_str().strip_prefix(prefix)?.to_owned();
        Some(Self { id, owner: record.owner, data: record.data, since: record.acquired_at, lease: record.lease })
    }

    /// The member's data, read as a `T`; `None` if it attached none.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the data is not a `T`.
    pub fn data<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        let Some(json) = &self.data else { return Ok(None) };
        serde_json::from_str(json)
            .map(Some)
            .map_err(|error| Error::invalid("data", format!("of the member {}: {error}", self.id)))
    }
}

/// What [`MemberObserver::next`] yields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberEvent {
    /// Somebody has joined, or was there already.
    Joined(Member),
    /// The member with this id has left, or has died and its term is over.
    Left(String),
}

/// Follows who comes and goes. See [`Members::observe`].
///
/// It looks at intervals, so whoever comes and goes in between may be missed; but each `Joined` is followed by one `Left`.
pub struct MemberObserver {
    members: Members,
    known: BTreeMap<String, Member>,
    news: VecDeque<MemberEvent>,
    /// When to look again.
    due: Option<Moment>,
}

impl MemberObserver {
    /// Waits for the next change; each is told once. Failures of the store that may pass are ridden out.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad group or interval, [`Error::Store`] if the store refuses for good, [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Safe: no change is lost or told twice.
    pub async fn next(&mut self) -> Result<MemberEvent> {
        checked_interval("every", self.members.every)?;
        loop {
            if let Some(news) = self.news.pop_front() {
                return Ok(news);
            }
            if let Some(due) = self.due {
                self.members.locks.pause(due.remaining()).await?;
            }
            let listed = self.members.list().await;
            self.due = Some(Moment::now() + interval(&self.members.locks, self.members.every));
            match listed {
                Ok(members) => self.compare(members),
                Err(error) if error.is_transient() => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn compare(&mut self, members: Vec<Member>) {
        let now: BTreeMap<String, Member> = members.into_iter().map(|member| (member.id.clone(), member)).collect();
        let same = |a: &Member, b: Option<&Member>| b.is_some_and(|b| a.lease == b.lease);
        let left = self.known.values().filter(|known| !same(known, now.get(&known.id)));
        self.news.extend(left.map(|known| MemberEvent::Left(known.id.clone())));
        let joined = now.values().filter(|member| !same(member, self.known.get(&member.id)));
        self.news.extend(joined.cloned().map(MemberEvent::Joined));
        self.known = now;
    }
}

impl fmt::Debug for MemberObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemberObserver").field("group", &self.members.group).finish_non_exhaustive()
    }
}
