//! Independent Redis or Valkey servers, of which a majority decides.
//!
//! A name is claimed on all servers at once, and won where a majority grants it. Each makes tokens by its own clock, so
//! there is a second round: the largest token of that majority is written wherever the lease is live, and a majority must
//! confirm it. From then on every majority has a server that makes only larger ones.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;
use tokio::time::sleep;

use self::ask::ask_all;
use self::hints::Merged;
use self::member::Member;
use self::standing::admissions;
use self::votes::{listed, majority, released, too_few};
use super::redis::address::{TlsFiles, servers};
use super::redis::link::On;
use super::redis::{prefix, rights};
use super::url::StoreUrl;
use super::{About, Changes, Claim, Ended, Finding, Outcome, Page, Renewal, Renewed, Store};
use crate::error::{Error, Result};
use crate::record::{Name, Record, Ttl};

mod ask;
mod claims;
mod examine;
mod hints;
mod member;
mod renewals;
mod scripts;
mod standing;
mod votes;

const STORE: &str = "redis+quorum";

/// Fewer can't lose one and go on.
const FEWEST: usize = 3;

const BATCH: usize = 4096;

/// Claims, and as many releases, that are under way at once. Each server carries out what it is asked one by one.
const CALLS: usize = 2;

/// How long a server may take for an answer, at the most; less where a TTL is short.
const NODE_LIMIT: Duration = Duration::from_secs(1);
const LEAST_NODE_LIMIT: Duration = Duration::from_millis(20);

/// Pruning is many small calls.
const PRUNE_LIMIT: Duration = Duration::from_secs(60);

/// How long connecting again may take.
const MEND_LIMIT: Duration = Duration::from_secs(2);

/// What is carried out later than this changes nothing. Longer than anybody waits: what is known of a server's clock may be
/// older than it seems when this process is busy.
const STATEMENT_LIMIT: Duration = Duration::from_secs(3);

/// When a majority has answered, the others have as much time again, and at least this.
const FOR_STRAGGLERS: Duration = Duration::from_millis(2);

/// A backstop: releases are published.
const POLL: Duration = Duration::from_secs(1);

/// How often a claim is made again when nobody has got a majority.
const TRIES: u32 = 4;

/// How often a server without a vote is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A store in several independent Redis or Valkey servers, of which a majority decides.
///
/// To each it opens connections of its own, on the engine's thread: one for claims, releases and lists, one for renewals,
/// one that listens for releases.
pub struct QuorumStore {
    members: Arc<[Arc<Member>]>,
    prefix: String,
    without_vote: Arc<Notify>,
}

impl QuorumStore {
    pub(super) fn from_url(url: &StoreUrl) -> Result<Arc<dyn Store>> {
        let (servers, tls, prefix) = (servers(url)?, TlsFiles::of(url)?, prefix(url)?);
        if servers.len() < FEWEST {
            return Err(url.refuse(format!("names {} servers: a quorum needs {FEWEST} or more", servers.len())));
        }
        let mut places: Vec<String> = servers.iter().map(|server| server.addr().to_string().to_lowercase()).collect();
        places.sort_unstable();
        if let Some(twice) = places.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(url.refuse(format!("names {} twice: each server has one vote", twice[0])));
        }
        let without_vote = Arc::new(Notify::new());
        let member = |server| Arc::new(Member::new(server, tls.clone(), &prefix, without_vote.clone()));
        let members = servers.into_iter().map(member).collect();
        Ok(Arc::new(Self { members, prefix, without_vote }))
    }

    /// Asks all servers at once, and waits for a majority.
    async fn ask<T, F>(&self, on: On, limit: Duration, ask: impl Fn(Arc<Member>) -> F) -> Vec<Result<T>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let within = |member: Arc<Member>| {
            let asked = ask(member.clone());
            async move { member.within(on, limit, asked).await }
        };
        ask_all(&self.members, Some(FOR_STRAGGLERS), within).await
    }

    /// Lets servers vote that may, and says when to look again; `None` if there is nothing to wait for.
    async fn admit(members: &[Arc<Member>], for_stragglers: Option<Duration>) -> Option<Duration> {
        let ask = |member: Arc<Member>| async move {
            member.within(On::Main, standing::READ_WITHIN, member.standing()).await
        };
        let found = ask_all(members, for_stragglers, ask).await;
        let found: Vec<_> = found.into_iter().map(Result::ok).collect();
        let (admitted, next) = admissions(&found);
        // One that can't be asked now may have none when it is back.
        let mut left = found.iter().filter(|found| found.is_none_or(|standing| !standing.votes)).count();
        for admission in admitted {
            let member = &members[admission.member];
            let admit = member.admit(admission.since, admission.floor, admission.longest);
            if matches!(member.within(On::Main, NODE_LIMIT, admit).await, Ok(true)) {
                tracing::info!(server = member.place(), "has a vote");
                left -= 1;
            }
        }
        (left > 0).then(|| next.map_or(LOOK_EVERY, |next| next.min(LOOK_EVERY)))
    }

    /// Looks after servers without a vote, for as long as the store is there.
    async fn look_after(members: Weak<[Arc<Member>]>, without_vote: Arc<Notify>) {
        let mut next = None;
        loop {
            match next {
                Some(next) => sleep(next).await,
                None => without_vote.notified().await,
            }
            let Some(members) = members.upgrade() else { return };
            next = Self::admit(&members, None).await;
        }
    }
}

/// How long each server may take, far below the shortest TTL.
fn node_limit(ttl: Duration) -> Duration {
    (ttl / 8).clamp(LEAST_NODE_LIMIT, NODE_LIMIT)
}

impl fmt::Debug for QuorumStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places: Vec<&str> = self.members.iter().map(|member| member.place()).collect();
        write!(f, "QuorumStore({}, {})", places.join(", "), self.prefix)
    }
}

#[async_trait]
impl Store for QuorumStore {
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
            durability: "survives the loss of a minority of the servers, with their data; a server that has restarted \
                         has no vote until the longest TTL has passed",
            caveats: vec![
                "the servers' clocks decide, each about its own records: setting a majority's forward ends terms early"
                    .into(),
                "if a majority is wiped, tokens are only as good as the servers' clocks agree, and two may hold a name"
                    .into(),
                "every process must name the same servers".into(),
            ],
        }
    }

    async fn open(&self) -> Result<()> {
        let opened = self.ask(On::Main, MEND_LIMIT, |member| async move { member.open().await }).await;
        let errors: Vec<Error> = opened.into_iter().filter_map(Result::err).collect();
        if self.members.len() - errors.len() < majority(self.members.len()) {
            return Err(too_few(self.members.len(), &errors));
        }
        Self::admit(&self.members, Some(FOR_STRAGGLERS)).await;
        // Whoever was too slow for that is asked again.
        self.without_vote.notify_one();
        tokio::spawn(Self::look_after(Arc::downgrade(&self.members), self.without_vote.clone()));
        Ok(())
    }

    async fn claim(&self, claims: &[Claim]) -> Result<Vec<Result<Outcome>>> {
        Ok(self.claim_all(claims.to_vec(), TRIES).await)
    }

    async fn renew(&self, terms: &[Renewal]) -> Result<Vec<Result<Renewed>>> {
        Ok(self.renew_all(terms).await)
    }

    async fn release(&self, terms: &[Ended]) -> Result<Vec<Result<bool>>> {
        let answers = self.end(terms.to_vec()).await;
        Ok(answers.iter().map(|answers| released(answers)).collect())
    }

    async fn list(&self, page: &Page) -> Result<Vec<Record>> {
        let (mut found, mut page, limit) = (Vec::new(), page.clone(), page.limit);
        loop {
            let (records, end) = self.list_part(&page).await?;
            found.extend(records);
            match end.filter(|_| found.len() < limit) {
                Some(end) => page.after = Some(end),
                None => break,
            }
        }
        found.truncate(limit);
        Ok(found)
    }

    async fn prune(&self, idle: Duration) -> Result<u64> {
        let pruned = self
            .heard(self.ask(On::Main, PRUNE_LIMIT, move |member| async move { member.node.prune(idle).await }).await)?;
        Ok(pruned.into_iter().max().unwrap_or(0))
    }

    async fn changes(&self) -> Result<Option<Box<dyn Changes>>> {
        Ok(Some(Box::new(Merged::new(&self.members))))
    }

    fn schema(&self) -> Option<String> {
        Some(rights(&self.prefix))
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        examine::findings(&self.members).await
    }
}

impl QuorumStore {
    /// The answers, if a majority has answered.
    fn heard<T>(&self, answers: Vec<Result<T>>) -> Result<Vec<T>> {
        let servers = self.members.len();
        let (mut heard, mut errors) = (Vec::new(), Vec::new());
        for answer in answers {
            match answer {
                Ok(answer) => heard.push(answer),
                Err(error) => errors.push(error),
            }
        }
        if heard.len() < majority(servers) { Err(too_few(servers, &errors)) } else { Ok(heard) }
    }

    /// The records that a page of each server shows, up to where one of them has no more; and where that is.
    async fn list_part(&self, page: &Page) -> Result<(Vec<Record>, Option<Name>)> {
        let asked = Arc::new(page.clone());
        let pages = self.ask(On::Main, NODE_LIMIT, |member| {
            let page = asked.clone();
            async move { member.node.list(&page).await }
        });
        let pages = self.heard(pages.await)?;
        let full = pages.iter().filter(|records| records.len() >= page.limit);
        let end = full.filter_map(|records| records.last()).map(|last| last.name.clone()).min();
        let unheard = self.members.len() - pages.len();
        let mut names = std::collections::BTreeMap::<Name, Vec<Record>>::new();
        for record in pages.into_iter().flatten().filter(|record| end.as_ref().is_none_or(|end| record.name <= *end)) {
            names.entry(record.name.clone()).or_default().push(record);
        }
        let records = names.into_values().filter_map(|records| listed(self.members.len(), unheard, records));
        Ok((records.collect(), end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::url::store_at;

    fn refusal(url: &str) -> String {
        store_at(url).map(|store| format!("{url} opened {store:?}")).unwrap_err().to_string()
    }

    #[test]
    fn a_quorum_needs_three_servers_each_of_them_once() {
        assert!(refusal("redis+quorum://a").contains("names 1 servers: a quorum needs 3"));
        assert!(refusal("redis+quorum://a,b:7").contains("names 2 servers"));
        assert!(refusal("redis+quorum://a,b,A:6379").contains("names a:6379 twice"));
        assert!(store_at("redis+quorum://a,b,c").is_ok());
        assert!(store_at("rediss+quorum://me:hunter2@a,b:7,c,d/3?tenure.prefix=x").is_ok());
    }

    #[test]
    fn what_a_quorum_does_not_know_is_refused() {
        let why = refusal("redis+quorum://a,b,c?timeout=3");
        assert!(why.contains("\"timeout\"") && why.contains("protocol"), "{why}");
        let why = refusal("redis+quorum://me:hunter2@a,b,c?tenure.wait_replicas=1");
        assert!(why.contains("tenure.wait_replicas") && why.contains("knows tenure.prefix"), "{why}");
        assert!(!why.contains("hunter2"), "{why}");
    }

    #[test]
    fn a_server_may_take_far_less_than_the_term_lasts() {
        assert_eq!(node_limit(Ttl::DEFAULT.get()), NODE_LIMIT);
        assert_eq!(node_limit(Duration::from_secs(2)), Duration::from_millis(250));
        assert_eq!(node_limit(Ttl::MIN), LEAST_NODE_LIMIT);
    }
}
