//! The store under test, and what promises need of it.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::Faulty;
use crate::clock::Moment;
use crate::locks::Locks;
use crate::record::Name;
use crate::store::Store;

/// Short, and still long enough for a busy machine to renew in time.
const USUAL_TTL: Duration = Duration::from_secs(1);

type Make = dyn Fn() -> Arc<dyn Store> + Send + Sync;

/// The store under test.
///
/// ```
/// use std::sync::Arc;
/// use tenure::conformance::{PROMISES, Subject};
/// use tenure::store::memory::MemoryStore;
///
/// let store = MemoryStore::new();
/// let subject = Subject::new(move || Arc::new(store.clone()));
/// for promise in PROMISES.iter().filter(|promise| promise.applies_to(&subject)).take(3) {
///     promise.run(&subject);
/// }
/// ```
pub struct Subject {
    make: Arc<Make>,
    by_hand: Option<Arc<dyn Fn() -> Self + Send + Sync>>,
    clock: Option<HandClock>,
    url: Option<String>,
    ttl: Duration,
    prefix: String,
    prefixes: AtomicU64,
}

impl Subject {
    /// A store that `make` makes an instance of: each stands for another process, and all are on the same data.
    pub fn new(make: impl Fn() -> Arc<dyn Store> + Send + Sync + 'static) -> Self {
        let random = getrandom::u64().expect("the operating system has random numbers");
        let ttl = USUAL_TTL.max(make().about().min_ttl);
        Self {
            make: Arc::new(make),
            by_hand: None,
            clock: None,
            url: None,
            ttl,
            prefix: format!("conformance/{random:016x}"),
            prefixes: AtomicU64::new(0),
        }
    }

    /// Where other processes find the same data: the promises about real processes need it.
    #[must_use]
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.url = Some(url.into());
        self
    }

    /// The TTL of names that are meant to be renewed or to expire: a second unless set, or the shortest that the store
    /// can keep, if that is longer. Raise it for a store that is slow.
    #[must_use]
    pub fn with_ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// A way to make a fresh store whose clock stands still until it is moved (see [`moved`](Subject::moved)): for
    /// the promises that use the [`Store`] trait alone, so that they need not wait.
    #[must_use]
    pub fn with_clock(mut self, by_hand: impl Fn() -> Self + Send + Sync + 'static) -> Self {
        self.by_hand = Some(Arc::new(by_hand));
        self
    }

    /// This store's clock stands still except when `advance` moves it.
    #[must_use]
    pub fn moved(mut self, advance: impl Fn(Duration) + Send + Sync + 'static) -> Self {
        self.clock = Some(HandClock { advance: Box::new(advance), moved: Mutex::default() });
        self
    }

    pub(super) fn location(&self) -> Option<&str> {
        self.url.as_deref()
    }

    /// The subject for a promise that uses the trait alone.
    pub(super) fn by_hand(&self) -> Self {
        match &self.by_hand {
            Some(by_hand) => by_hand(),
            None => {
                let make = self.make.clone();
                Self { ttl: self.ttl, ..Self::new(move || make()) }
            }
        }
    }

    /// Whether time passes here without waiting.
    pub(super) fn leaps(&self) -> bool {
        self.clock.is_some()
    }

    /// Lets the store's time pass.
    pub(super) async fn pass(&self, time: Duration) {
        match &self.clock {
            Some(clock) => clock.advance(time),
            None => tokio::time::sleep(time).await,
        }
    }

    /// A clock that runs with the store's.
    pub(super) fn now(&self) -> Duration {
        match &self.clock {
            Some(clock) => clock.moved(),
            None => Moment::now().since_boot(),
        }
    }

    pub(super) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// A prefix that nobody else uses; it ends with a slash.
    pub(super) fn prefix(&self) -> String {
        format!("{}/{}/", self.prefix, self.prefixes.fetch_add(1, Ordering::Relaxed))
    }

    /// A name that nobody else uses.
    pub(super) fn name(&self) -> Name {
        Name::new(self.prefix() + "name").expect("the name is within the rule")
    }

    /// Names that nobody else uses, in order.
    pub(super) fn names(&self, count: usize) -> Vec<Name> {
        let prefix = self.prefix();
        let name = |number| Name::new(format!("{prefix}{number:04}")).expect("the name is within the rule");
        (0..count).map(name).collect()
    }

    /// Another instance, not opened.
    pub(super) fn instance(&self) -> Arc<dyn Store> {
        (self.make)()
    }

    /// Another process, as far as the store can tell.
    pub(super) async fn connect(&self) -> Locks {
        Locks::on(self.instance()).await.expect("the store can be opened")
    }

    /// Another process, whose store fails as it is told to.
    pub(super) async fn connect_faulty(&self) -> (Locks, Faulty) {
        self.connect_to(Faulty::new(self.instance())).await
    }

    pub(super) async fn connect_to(&self, store: Faulty) -> (Locks, Faulty) {
        (Locks::on(Arc::new(store.clone())).await.expect("the store can be opened"), store)
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject").field("url", &self.url).field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// A store's clock that is moved by hand.
struct HandClock {
    advance: Box<dyn Fn(Duration) + Send + Sync>,
    moved: Mutex<Duration>,
}

impl HandClock {
    fn advance(&self, time: Duration) {
        (self.advance)(time);
        *self.moved.lock().unwrap_or_else(PoisonError::into_inner) += time;
    }

    fn moved(&self) -> Duration {
        *self.moved.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
