//! Keys in etcd, 3.4 or later.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tonic::transport::Endpoint;

use self::address::Address;
use self::cluster::Cluster;
use self::link::{Link, Login};
use self::messages::{RangeRequest, StatusRequest};
use self::records::{Found, Keys};
use self::watch::Hints;
use super::url::StoreUrl;
use super::{About, Changes, Claim, Ended, Finding, Outcome, Page, Renewal, Renewed, Store};
use crate::error::{Error, Result};
use crate::record::{Name, Record};

mod address;
mod claims;
mod cluster;
mod examine;
mod leases;
mod link;
mod messages;
mod parts;
mod records;
mod releases;
mod renewals;
mod watch;

const STORE: &str = "etcd";

const PREFIX: &str = "tenure";

/// Renewals of so many names are two calls; claims and releases are split, see below.
const BATCH: usize = 16_384;

/// Claims, and as many releases, that are under way at once: two, so that the next batch gathers while one commits.
const CALLS: usize = 2;

/// A call is given up after two seconds, and what was proposed by then is carried out when there is a leader again. What is
/// carried out later still ends with its lease.
const STATEMENT_LIMIT: Duration = Duration::from_secs(4);

/// A backstop: releases are told by the watch.
const POLL: Duration = Duration::from_secs(1);

/// The shortest lease of a server with usual settings.
const MIN_TTL: Duration = Duration::from_secs(2);

/// A store in the keys of an etcd cluster, below a prefix.
///
/// It opens connections of its own, on the engine's thread: one for claims, releases and lists, one for renewals, and one
/// that watches for releases. Each goes to one endpoint at a time, in the order in which they are given, and on to the
/// next if that fails.
///
/// Tokens come from etcd's own revisions, so a name that nobody holds leaves nothing behind, and there is nothing to prune.
pub struct EtcdStore {
    cluster: Arc<Cluster>,
}
impl EtcdStore {
    /// A store below the prefix `tenure` of the cluster at `endpoints`, of which each is a member or leads to some.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there are none.
    pub fn new(endpoints: Vec<Endpoint>) -> Result<Self> {
        match endpoints.is_empty() {
            true => Err(Error::invalid("endpoints", "are empty: give at least one")),
            false => Ok(Self::on(Link::new(endpoints, None), PREFIX)),
        }
    }

    /// The same as a user with a password.
    #[must_use]
    pub fn with_login(self, user: impl Into<String>, password: impl Into<String>) -> Self {
        let (prefix, login) = (self.cluster.keys.place(), Login { user: user.into(), password: password.into() });
        match Arc::try_unwrap(self.cluster) {
            Ok(cluster) => Self::on(cluster.link.with_login(login), &prefix),
            Err(cluster) => Self { cluster },
        }
    }

    /// The same below another prefix. It must not lie below that of another store.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is outside the rule for names.
    pub fn with_prefix(self, prefix: &str) -> Result<Self> {
        let prefix = Name::new(prefix).map_err(|error| Error::invalid("prefix", error.to_string()))?;
        Ok(match Arc::try_unwrap(self.cluster) {
            Ok(cluster) => Self::on(cluster.link, prefix.as_str()),
            Err(cluster) => Self { cluster },
        })
    }

    fn on(link: Link, prefix: &str) -> Self {
        Self { cluster: Arc::new(Cluster::new(link, Keys::new(prefix))) }
    }

    pub(super) fn from_url(url: &StoreUrl) -> Result<Arc<dyn Store>> {
        let Address { endpoints, login, tls } = Address::read(url)?;
        let link = Link::new(endpoints, tls);
        let link = match login {
            Some(login) => link.with_login(login),
            None => link,
        };
        let store = Self::on(link, PREFIX);
        Ok(Arc::new(match url.setting("prefix") {
            Some(prefix) => store.with_prefix(prefix)?,
            None => store,
        }))
    }
}

impl fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EtcdStore({}, {})", self.cluster.link.place, self.cluster.keys.place())
    }
}

#[async_trait]
impl Store for EtcdStore {
    fn about(&self) -> About {
        About {
            store: STORE,
            place: Some(self.cluster.keys.place()),
            push: true,
            poll: POLL,
            calls: CALLS,
            batch: BATCH,
            statement_limit: STATEMENT_LIMIT,
            min_ttl: self.cluster.floor.get().copied().unwrap_or(MIN_TTL),
            durability: "survives the loss of a minority of the members: a grant is on the disks of a majority before \
                         its holder hears of it",
            caveats: vec![
                "all names of a process with the same TTL are on one etcd lease: whoever revokes it ends them all"
                    .into(),
                "a cluster restored from a snapshot goes on with old tokens: delete the key `base` below the prefix \
                 before it is used again"
                    .into(),
                "times in records are by the clocks of the machines that hold and read them, and what is left of a \
                 term is known to the second; neither decides anything"
                    .into(),
            ],
        }
    }

    async fn open(&self) -> Result<()> {
        let (cluster, link) = (&self.cluster, &self.cluster.link);
        link.prepare().await?;
        let status = link.look(&link.main, StatusRequest {}).await?;
        examine::check_version(link, &status.version)?;
        // The connection for renewals is there before it is needed.
        let (base, floor, renewals) =
            tokio::join!(cluster.base(), cluster.find_floor(), link.call(&link.renewals, StatusRequest {}));
        base?;
        floor?;
        renewals?;
        Ok(())
    }

    async fn claim(&self, claims: &[Claim]) -> Result<Vec<Result<Outcome>>> {
        self.cluster.claim(claims).await
    }

    async fn renew(&self, terms: &[Renewal]) -> Result<Vec<Result<Renewed>>> {
        self.cluster.renew(terms).await
    }

    async fn release(&self, terms: &[Ended]) -> Result<Vec<Result<bool>>> {
        self.cluster.release(terms).await
    }

    async fn list(&self, page: &Page) -> Result<Vec<Record>> {
        let cluster = &self.cluster;
        let (key, range_end) = cluster.keys.page(page);
        let limit = i64::try_from(page.limit).unwrap_or(i64::MAX);
        let range =
            cluster.link.look(&cluster.link.main, RangeRequest { key, range_end, limit, count_only: false }).await?;
        let found: Result<Vec<Found>> = range.kvs.into_iter().map(|kv| Found::read(&cluster.keys, kv)).collect();
        Ok(cluster.records(found?).await)
    }

    /// Tokens come from revisions: nothing is kept of a name that nobody holds.
    async fn prune(&self, _: Duration) -> Result<u64> {
        Ok(0)
    }

    async fn changes(&self) -> Result<Option<Box<dyn Changes>>> {
        Ok(Some(Box::new(Hints::new(self.cluster.clone()))))
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        examine::findings(&self.cluster).await
    }
}
