//! Keys in Redis, 6.2 or later, or Valkey: one server, or a cluster.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use redis::Client;
use tokio::sync::Mutex;

use self::address::{TlsFiles, ours, servers};
use self::link::Link;
use self::listener::{Hints, Listener};
use self::node::Node;
use super::seen::Found;
use super::url::StoreUrl;
use super::{About, Changes, Claim, Ended, Finding, Outcome, Page, Renewal, Renewed, Store};
use crate::error::{Error, Result};
use crate::record::{Record, Ttl};

pub(super) mod address;
pub(super) mod examine;
pub(super) mod link;
pub(super) mod listener;
pub(super) mod node;
pub(super) mod scripts;
pub(super) mod term;

const STORE: &str = "redis";

/// What all keys begin with, in braces: a cluster keeps what has the same text in braces together.
const PREFIX: &str = "tenure";

/// A script of so many entries takes the server some 20 ms, in which it does nothing else.
const BATCH: usize = 4096;

/// Claims, and as many releases, that are under way at once: two, so that the next batch gathers while one is carried out.
const CALLS: usize = 2;

/// What arrives later changes nothing: see [`scripts`].
const STATEMENT_LIMIT: Duration = Duration::from_secs(4);

/// A backstop: releases are published.
const POLL: Duration = Duration::from_secs(1);

/// A store in a Redis or Valkey server, or in a cluster.
///
/// It opens connections of its own, on the engine's thread: up to four for claims, releases and lists, one that is reserved
/// for renewals, and one that listens for releases.
pub struct RedisStore {
    node: Arc<Node>,
    prefix: String,
    /// Between `open` and `changes`.
    listener: Mutex<Option<Listener>>,
}

impl RedisStore {
    /// A store in the server that `client` leads to, under the prefix `tenure`: address, user, password, database and TLS
    /// are the client's. Its connections are not used: they stand still when your runtime does, and renewals must not.
    pub fn from_client(client: &Client) -> Self {
        let link = Link::new(vec![ours(client.get_connection_info().clone())], TlsFiles::default(), PREFIX);
        Self::on(link, PREFIX, 0)
    }

    pub(super) fn from_url(url: &StoreUrl) -> Result<Arc<dyn Store>> {
        let servers = servers(url)?;
        if servers.len() > 1 && !url.for_driver().contains("+cluster:") {
            return Err(url.refuse("names several servers: begin with redis+cluster if they are a cluster"));
        }
        let (prefix, replicas) = (prefix(url)?, replicas(url)?);
        Ok(Arc::new(Self::on(Link::new(servers, TlsFiles::of(url)?, &prefix), &prefix, replicas)))
    }

    fn on(link: Link, prefix: &str, replicas: usize) -> Self {
        Self { node: Arc::new(Node::new(link, replicas)), prefix: prefix.into(), listener: Mutex::default() }
    }
}

/// The prefix of the keys. Braces would change where a cluster keeps them, and the rest of what is refused would have to
/// be escaped in the rules that let a user at them.
pub(super) fn prefix(url: &StoreUrl) -> Result<String> {
    let prefix = url.setting("prefix").unwrap_or(PREFIX);
    let plain = prefix.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.:/".contains(&byte));
    match (1..=63).contains(&prefix.len()) && plain {
        true => Ok(prefix.into()),
        false => {
            Err(Error::invalid("tenure.prefix", format!("{prefix:?} must be 1 to 63 letters, digits or any of _-.:/")))
        }
    }
}

fn replicas(url: &StoreUrl) -> Result<usize> {
    let Some(text) = url.setting("wait_replicas") else { return Ok(0) };
    let number = text.parse().ok().filter(|number| (1..=64).contains(number));
    number.ok_or_else(|| Error::invalid("tenure.wait_replicas", format!("{text:?} must be a number from 1 to 64")))
}

/// What an operator says to make a user that may do what this store does, and no more. INFO and CONFIG GET are for
/// `doctor` alone.
pub(super) fn rights(prefix: &str) -> String {
    format!(
        "ACL SETUSER tenure on >PASSWORD ~{{{prefix}}}:* &{{{prefix}}}:freed -@all +eval +evalsha +time +get +set +hget \
         +hmget +hgetall +hset +hdel +zadd +zrem +zrangebylex +zrangebyscore +publish +subscribe +ping +select +wait \
         +info +config|get\n"
    )
}

/// For a benchmark that runs them without us: the scripts of a claim and of a release, and their keys.
#[doc(hidden)]
pub fn scripts_of(prefix: &str) -> ([String; 2], [String; 7]) {
    let scripts = scripts::Scripts::new();
    ([scripts.claim.text, scripts.release.text], scripts::Keys::new(prefix).all)
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisStore({}, {})", self.node.link.place, self.prefix)
    }
}

#[async_trait]
impl Store for RedisStore {
    fn about(&self) -> About {
        About {
            store: STORE,
            place: Some(format!("{{{}}}", self.prefix)),
            push: true,
            poll: POLL,
            calls: CALLS,
            batch: BATCH,
            statement_limit: STATEMENT_LIMIT,
            min_ttl: Ttl::MIN,
            durability: "as the server's persistence says; a fail-over may undo the last moments, as replicas are \
                         asynchronous",
            caveats: vec![
                "the server's clock decides: setting it forward, or failing over to a server whose clock is ahead, ends \
                 terms early"
                    .into(),
                "a fail-over, or a restart without the latest data, may lose a grant: two may then hold a name, and only a \
                 fence tells them apart"
                    .into(),
            ],
        }
    }

    async fn open(&self) -> Result<()> {
        self.node.open().await?;
        *self.listener.lock().await = Some(Listener::open(&self.node.link).await?);
        Ok(())
    }

    async fn claim(&self, claims: &[Claim]) -> Result<Vec<Result<Outcome>>> {
        let found = self.node.claim(claims).await?;
        Ok(found.into_iter().map(|found| found.and_then(Found::outcome)).collect())
    }

    async fn renew(&self, terms: &[Renewal]) -> Result<Vec<Result<Renewed>>> {
        let found = self.node.renew(terms).await?;
        Ok(found.into_iter().zip(terms).map(|(found, term)| found.and_then(|found| found.renewed(term))).collect())
    }

    async fn release(&self, terms: &[Ended]) -> Result<Vec<Result<bool>>> {
        Ok(self.node.release(terms).await?.into_iter().map(Ok).collect())
    }

    async fn list(&self, page: &Page) -> Result<Vec<Record>> {
        self.node.list(page).await
    }

    async fn prune(&self, idle: Duration) -> Result<u64> {
        self.node.prune(idle).await
    }

    async fn changes(&self) -> Result<Option<Box<dyn Changes>>> {
        let listener = self.listener.lock().await.take();
        Ok(listener.map(|listener| Box::new(Hints::new(self.node.clone(), listener)) as Box<dyn Changes>))
    }

    fn schema(&self) -> Option<String> {
        Some(rights(&self.prefix))
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        examine::findings(&self.node.link, self.node.replicas).await
    }
}
