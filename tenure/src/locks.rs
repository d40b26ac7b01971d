//! The way in: a store's names, as one process sees and holds them.

use std::fmt;
use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::election::Election;
use crate::elector::Elector;
use crate::engine::{CALL_LIMIT, Leavings, Message, Shared, Starting, Unreleased};
use crate::error::{Error, Result};
use crate::event::Events;
use crate::guard::{Held, Status};
use crate::lock::{Lock, TryLock};
use crate::options::{Options, limits, option_setters};
use crate::record::{Name, Record, Token};
use crate::stats::Stats;
use crate::store::{About, Ended, Finding, Page, Store, url};

/// How many records are asked for at once.
const PAGE: usize = 1000;
/// Housekeeping looks at every record.
const PRUNE_LIMIT: Duration = Duration::from_secs(60);
/// A name that changes hands as quickly as it is evicted is not stuck.
const EVICT_TRIES: usize = 4;
/// Longer than a renewal takes.
const EVICT_PAUSE: Duration = Duration::from_millis(100);

/// Connects to the store that `url` names: `memory:`, `sqlite:PATH`, `postgres://…`, `mysql://…`.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let locks = tenure::connect("memory:").await?;
/// let guard = locks.lock("report/daily").await?;
/// println!("held, token {}", guard.token());
/// # Ok(()) })
/// # }
/// ```
pub fn connect(url: impl AsRef<str>) -> Connect {
    Connect { store: url::store_at(url.as_ref()), owner: None }
}

/// A connection in the making. Nothing happens until it is awaited.
#[must_use = "nothing is connected until this is awaited"]
#[derive(Debug)]
pub struct Connect {
    store: Result<Arc<dyn Store>>,
    owner: Option<String>,
}

impl Connect {
    /// Who holds, as people will see it: `host/pid/random` unless set. Never used to decide anything.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// Connects from code without a runtime.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad URL or owner, [`Error::Store`] if the store can't be opened.
    ///
    /// # Panics
    /// Inside an async runtime.
    pub fn blocking(self) -> Result<Locks> {
        Ok(Locks::new(self.start()?.ready_blocking()?))
    }

    fn start(self) -> Result<Starting> {
        let owner = self.owner.map_or_else(|| Ok(default_owner()), checked_owner)?;
        Ok(Starting::new(self.store?, owner.into()))
    }
}

impl IntoFuture for Connect {
    type Output = Result<Locks>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Locks>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async { Ok(Locks::new(self.start()?.ready().await?)) })
    }
}

fn default_owner() -> String {
    let random = getrandom::u32().expect("the operating system has random numbers");
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}/{}/{random:08x}", std::process::id())
}

fn checked_owner(owner: String) -> Result<String> {
    match Name::new(&owner) {
        Ok(_) => Ok(owner),
        Err(_) => Err(Error::invalid("owner", format!("{owner:?} must be 1 to 255 bytes without control characters"))),
    }
}

/// The names of a store, for this process to hold. Cheap to clone; all clones share one engine.
///
/// The last handle to go, `Locks` or [`Guard`](crate::Guard), waits for the releases that are under way, at most a second: so the
/// end of `main` frees everything, unless a handle lives on in a `static`. In async code [`shutdown`](Locks::shutdown) does that
/// without blocking.
#[derive(Clone)]
pub struct Locks {
    shared: Arc<Shared>,
}

impl Locks {
    fn new(shared: Shared) -> Self {
        Self { shared: Arc::new(shared) }
    }

    /// Connects to a store of your own making.
    pub fn on(store: Arc<dyn Store>) -> Connect {
        Connect { store: Ok(store), owner: None }
    }

    /// Asks for a name and waits for it.
    ///
    /// # Errors
    /// [`Error::TimedOut`] if [`wait`](Lock::wait) was set and is over; [`Error::Store`] if the store fails, after failures that
    /// may pass were ridden out for one TTL (or the time to wait); [`Error::Invalid`] for a bad name or option;
    /// [`Error::Closed`] after a shutdown.
    ///
    /// # Cancel safety
    /// Dropping the future withdraws the request: the name is left free, whatever had become of it.
    pub fn lock(&self, name: impl AsRef<str>) -> Lock {
        Lock::new(self.shared.clone(), Name::new(name), Options::default())
    }

    /// Asks for a name once; `None` if somebody has it, this process included.
    ///
    /// # Errors
    /// As [`lock`](Locks::lock), but never `TimedOut`.
    ///
    /// # Cancel safety
    /// As [`lock`](Locks::lock).
    pub fn try_lock(&self, name: impl AsRef<str>) -> TryLock {
        TryLock::new(self.shared.clone(), Name::new(name), Options::default())
    }

    /// [`lock`](Locks::lock) for code without a runtime; with options, `locks.lock(name).ttl(…).blocking()`.
    ///
    /// # Errors
    /// As [`lock`](Locks::lock).
    ///
    /// # Panics
    /// Inside an async runtime.
    pub fn lock_blocking(&self, name: impl AsRef<str>) -> Result<crate::Guard> {
        self.lock(name).blocking()
    }

    /// Names that begin with `prefix/`, with defaults of their own. The prefix has no `/` at its end.
    pub fn scope(&self, prefix: impl Into<String>) -> Scope {
        Scope { locks: self.clone(), prefix: prefix.into(), options: Options::default() }
    }

    /// The choice of a leader among all who campaign for `name`.
    pub fn election(&self, name: impl Into<String>) -> Election {
        Election::new(self.clone(), name.into())
    }

    /// Tasks by key, each in at most one process at a time; a key is the name `scope/key`.
    pub fn elector(&self, scope: impl Into<String>) -> Elector {
        Elector::new(self.clone(), scope.into())
    }

    /// Who holds this name, by the store's word; `None` if it is free.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::Store`], [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn get(&self, name: impl AsRef<str>) -> Result<Option<Record>> {
        let name = Name::new(name)?;
        let records = self.page(Page::of(&name)).await?;
        Ok(records.into_iter().find(|record| record.name == name && record.is_live()))
    }

    /// The names held in this process, without asking the store.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn holding(&self) -> Vec<Holding> {
        let (reply, answer) = oneshot::channel();
        self.shared.send(Message::Holding(reply));
        let mut holding: Vec<Holding> = answer.await.unwrap_or_default().iter().map(|held| Holding::of(held)).collect();
        holding.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        holding
    }

    /// Who holds what: the live records whose names begin with `prefix`, in byte order of names.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn list(&self, prefix: impl Into<String>) -> Result<Vec<Record>> {
        let mut live = Vec::new();
        self.each(prefix.into(), |record| live.extend(record.is_live().then_some(record))).await?;
        Ok(live)
    }

    /// One page of records, expired ones included: for those who have too many to list at once.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn page(&self, page: Page) -> Result<Vec<Record>> {
        self.shared.call(CALL_LIMIT, |store| async move { store.list(&page).await }).await
    }

    async fn each(&self, prefix: String, mut see: impl FnMut(Record)) -> Result<()> {
        let mut page = Page { prefix, after: None, limit: PAGE };
        loop {
            let records = self.page(page.clone()).await?;
            page.after = records.last().map(|record| record.name.clone());
            let more = records.len() == page.limit;
            records.into_iter().for_each(&mut see);
            if !more {
                return Ok(());
            }
        }
    }

    /// Frees a name that somebody holds. `by` says who does it and why; the holder is told so at its next
    /// renewal, and until then believes that it still holds: this is the one way to have two at work. Returns the term that was ended; `None` if the name was free.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::Store`], [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Once polled, the name may be freed even if this is dropped.
    pub async fn evict(&self, name: impl AsRef<str>, by: impl AsRef<str>) -> Result<Option<Record>> {
        let name = Name::new(name)?;
        let by: Arc<str> = checked_owner(by.as_ref().into()).map_err(|_| bad_by(by.as_ref()))?.into();
        let mut failed = None;
        for _ in 0..EVICT_TRIES {
            let Some(record) = self.get(&name).await? else { return Ok(None) };
            let end = Ended {
                name: name.clone(),
                lease: record.lease,
                first: Some(record.first),
                evicted_by: Some(by.clone()),
            };
            match self.end(end).await? {
                Ok(true) => {
                    self.shared.send(Message::Evicted(name));
                    return Ok(Some(record));
                }
                Ok(false) => failed = None,
                // Somebody has the record locked for a moment: the holder, who renews, as a rule.
                Err(error) if error.is_transient() => {
                    failed = Some(error);
                    self.pause(EVICT_PAUSE).await?;
                }
                Err(error) => return Err(error),
            }
        }
        failed.map_or(Ok(None), Err)
    }

    async fn end(&self, end: Ended) -> Result<Result<bool>> {
        let mut freed = self.shared.call(CALL_LIMIT, |store| async move { store.release(&[end]).await }).await?;
        Ok(freed.pop().unwrap_or(Ok(false)))
    }

    /// Figures about all names of the store.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn stats(&self) -> Result<Stats> {
        let mut stats = Stats::default();
        self.each(String::new(), |record| stats.count(&record)).await?;
        Ok(stats)
    }

    /// What happens to this process's names from now on.
    pub fn events(&self) -> Events {
        self.shared.events()
    }

    /// Forgets names that nobody has held for `idle`, a minute at least, and says how many. A name that is forgotten can be
    /// held again at any time, with a token larger than before.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::Store`], [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Once polled, names may be forgotten even if this is dropped.
    pub async fn prune(&self, idle: Duration) -> Result<u64> {
        if idle < limits::IDLE {
            return Err(Error::invalid("idle", format!("({idle:?}) must be at least {:?}", limits::IDLE)));
        }
        self.shared.call(PRUNE_LIMIT, move |store| async move { store.prune(idle).await }).await
    }

    /// Lets time pass; see [`Shared::pause`].
    pub(crate) async fn pause(&self, time: Duration) -> Result<()> {
        self.shared.pause(time).await
    }

    /// What this kind of store is and promises.
    pub fn about(&self) -> &About {
        &self.shared.about
    }

    /// Who holds what is held here, as others see it.
    pub fn owner(&self) -> &str {
        &self.shared.owner
    }

    /// What weakens the promises on this very store: settings, rights, versions.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn examine(&self) -> Result<Vec<Finding>> {
        self.shared.call(CALL_LIMIT, |store| async move { store.examine().await }).await
    }

    /// Ends it all in order: no new acquires; every holder is told ([`Status::Closing`]) and has `within` to release,
    /// while renewal goes on; then what is left is released. [Members](Locks::members) leave at once. Returns what could not be released. A second shutdown that leaves less time
    /// shortens the first.
    ///
    /// # Cancel safety
    /// Once polled, the shutdown goes on even if this is dropped.
    pub async fn shutdown(&self, within: Duration) -> Vec<Unreleased> {
        self.end_all(within).await.1
    }

    pub(crate) async fn end_all(&self, within: Duration) -> Leavings {
        let (reply, answer) = oneshot::channel();
        self.shared.send(Message::Shutdown { within, reply });
        answer.await.unwrap_or_default()
    }
}

fn bad_by(by: &str) -> Error {
    Error::invalid("by", format!("{by:?} must be 1 to 255 bytes without control characters"))
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks").field("store", &self.about().store).field("owner", &self.owner()).finish()
    }
}

/// A prefix of names with defaults of its own. Made by [`Locks::scope`].
#[derive(Clone, Debug)]
pub struct Scope {
    locks: Locks,
    prefix: String,
    options: Options,
}

impl Scope {
    option_setters!();

    /// Waits at most this long for a name; for ever unless set.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.options.wait = Some(wait);
        self
    }

    /// [`Locks::lock`] for `prefix/name`, with this scope's defaults.
    pub fn lock(&self, name: impl AsRef<str>) -> Lock {
        Lock::new(self.locks.shared.clone(), self.name(name), self.options.clone())
    }

    /// [`Locks::try_lock`] for `prefix/name`, with this scope's defaults.
    pub fn try_lock(&self, name: impl AsRef<str>) -> TryLock {
        TryLock::new(self.locks.shared.clone(), self.name(name), self.options.clone())
    }

    /// A scope within this one, with the same defaults.
    pub fn scope(&self, prefix: impl AsRef<str>) -> Self {
        Self { prefix: format!("{}/{}", self.prefix, prefix.as_ref()), ..self.clone() }
    }

    /// [`Locks::list`] for the names of this scope.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn list(&self) -> Result<Vec<Record>> {
        self.locks.list(format!("{}/", self.prefix)).await
    }

    /// `q` and `q/` would be two scopes that look like one.
    pub(crate) fn name(&self, name: impl AsRef<str>) -> Result<Name> {
        if self.prefix.is_empty() || self.prefix.ends_with('/') {
            return Err(Error::invalid("scope", format!("{:?} must not be empty or end with a /", self.prefix)));
        }
        Name::new(format!("{}/{}", self.prefix, name.as_ref()))
    }
}

/// A name held in this process.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Holding {
    /// The name.
    pub name: Name,
    /// Its token.
    pub token: Token,
    /// What is left of the term unless renewed, by this machine's clock.
    pub remaining: Duration,
    /// How it stands.
    pub status: Status,
}

impl Holding {
    fn of(held: &Held) -> Self {
        let (token, remaining) = (held.token(), held.deadline().remaining());
        Self { name: held.name.clone(), token, remaining, status: held.status() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_whose_names_would_look_like_anothers_is_refused() {
        let locks = connect("memory:scopes").blocking().unwrap();
        for prefix in ["", "q/"] {
            let error = locks.scope(prefix).lock("x").blocking().unwrap_err();
            assert!(error.to_string().starts_with("scope"), "{error}");
        }
        let guard = locks.scope("q").scope("r").lock("x").blocking().unwrap();
        assert_eq!(guard.name().as_str(), "q/r/x");
    }
}
