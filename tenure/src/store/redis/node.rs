//! One server's records: what a batch asks of its scripts, and what they answer.

use std::time::Duration;

use redis::{Cmd, Value};

use super::STORE;
use super::examine::Info;
use super::link::{Copies, Link, On};
use super::scripts::Scripts;
use super::term::{digits, found, seen, text, unexpected};
use crate::error::{Error, Result};
use crate::record::{Name, Record};
use crate::store::seen::{Found, micros};
use crate::store::{Claim, Ended, Page, Renewal, answered};

/// How many names are forgotten in one step: others wait for it.
const PRUNED_AT_ONCE: u64 = 1000;

/// How long a write may take to the replicas, at the most.
const COPY_LIMIT: Duration = Duration::from_secs(1);

/// The records of one prefix on one server.
pub(in crate::store) struct Node {
    pub link: Link,
    pub scripts: Scripts,
    /// Replicas that must have a grant or a renewal before it counts.
    pub replicas: usize,
}

impl Node {
    pub fn new(link: Link, replicas: usize) -> Self {
        Self { link, scripts: Scripts::new(), replicas }
    }

    /// Makes what is missing, checks the rights, and opens the connection for renewals.
    pub async fn open(&self) -> Result<()> {
        if let Some(why) = Info::of(&self.link).await?.and_then(|info| info.too_old()) {
            return Err(self.link.refuse(&why));
        }
        self.link.call(On::Main, &self.scripts.open, |_| {}).await?;
        self.link.open_renewals().await
    }

    /// What has become of each claim.
    pub async fn claim(&self, claims: &[Claim]) -> Result<Vec<Result<Found>>> {
        let copies = self.copies(COPY_LIMIT);
        let answer = self.link.call_and_copy(On::Main, &self.scripts.claim, copies, |command| {
            claims.iter().for_each(|claim| add_claim(command, claim));
        });
        let answer = answer.await?;
        let entries = answered(STORE, claims.len(), answer.entries)?;
        let name = |at: usize| claims[at].name.as_str();
        let found = entries.iter().enumerate().map(|(at, entry)| found(name(at), entry, answer.now)).collect();
        if answer.copies >= self.replicas { Ok(found) } else { self.take_back(claims, found, answer.copies).await }
    }

    /// Too few replicas have the grants: they are ended, as a fail-over might forget them.
    async fn take_back(
        &self,
        claims: &[Claim],
        found: Vec<Result<Found>>,
        copies: usize,
    ) -> Result<Vec<Result<Found>>> {
        let is_grant = |found: &Result<Found>| matches!(found, Ok(Found::Ours(_)));
        let granted = claims.iter().zip(&found).filter(|(_, found)| is_grant(found));
        let ends: Vec<_> = granted
            .map(|(claim, _)| Ended { name: claim.name.clone(), lease: claim.lease, first: None, evicted_by: None })
            .collect();
        if !ends.is_empty() {
            self.release(&ends).await?;
        }
        Ok(found.into_iter().map(|found| if is_grant(&found) { Err(self.too_few(copies)) } else { found }).collect())
    }

    /// What has become of each term.
    pub async fn renew(&self, terms: &[Renewal]) -> Result<Vec<Result<Found>>> {
        let shortest = terms.iter().map(|term| term.ttl.get()).min().unwrap_or(COPY_LIMIT);
        // The caller waits for a quarter of the TTL.
        let copies = self.copies(COPY_LIMIT.min(shortest / 8));
        let answer = self.link.call_and_copy(On::Renewals, &self.scripts.renew, copies, |command| {
            terms.iter().for_each(|term| add_renewal(command, term));
        });
        let answer = answer.await?;
        let too_few = answer.copies < self.replicas;
        let entries = answered(STORE, terms.len(), answer.entries)?;
        let renewed = |(term, entry): (&Renewal, &Value)| match found(term.name.as_str(), entry, answer.now)? {
            Found::Ours(_) if too_few => Err(self.too_few(answer.copies)),
            found => Ok(found),
        };
        Ok(terms.iter().zip(&entries).map(renewed).collect())
    }

    /// Whether each term has ended now.
    pub async fn release(&self, terms: &[Ended]) -> Result<Vec<bool>> {
        let answer = self.link.call(On::Main, &self.scripts.release, |command| {
            terms.iter().for_each(|term| add_end(command, term));
        });
        let entries = answered(STORE, terms.len(), answer.await?.entries)?;
        Ok(entries.iter().map(|entry| *entry == Value::Int(1)).collect())
    }

    pub async fn list(&self, page: &Page) -> Result<Vec<Record>> {
        let (from, to) = bounds(page);
        let answer = self.link.call(On::Reads, &self.scripts.list, |command| {
            command.arg(&from).arg(&to).arg(page.limit);
        });
        let answer = answer.await?;
        let records = answer.entries.iter().map(|entry| {
            let Value::Array(parts) = entry else { return Err(unexpected(entry)) };
            let [name, term, data] = &parts[..] else { return Err(unexpected(entry)) };
            let (name, term) = (text(name)?.unwrap_or_default(), text(term)?.unwrap_or_default());
            seen(name, term, text(data)?, answer.now)?.record()
        });
        records.filter_map(Result::transpose).collect()
    }

    pub async fn prune(&self, idle: Duration) -> Result<u64> {
        let mut pruned = 0;
        loop {
            let answer = self.link.call(On::Main, &self.scripts.prune, |command| {
                command.arg(micros(idle)).arg(PRUNED_AT_ONCE);
            });
            let count = match answer.await?.entries.first() {
                Some(Value::Int(count)) => count.cast_unsigned(),
                _ => 0,
            };
            pruned += count;
            if count < PRUNED_AT_ONCE {
                return Ok(pruned);
            }
        }
    }

    fn copies(&self, within: Duration) -> Option<Copies> {
        (self.replicas > 0).then_some(Copies { wanted: self.replicas, within })
    }

    fn too_few(&self, copies: usize) -> Error {
        let (place, wanted) = (&self.link.place, self.replicas);
        Error::transient(
            STORE,
            format!("{place}: {copies} replicas have it in time, and tenure.wait_replicas is {wanted}"),
        )
    }
}

fn add_claim(command: &mut Cmd, claim: &Claim) {
    command
        .arg(claim.name.as_str())
        .arg(claim.lease.to_string())
        .arg(micros(claim.ttl.get()))
        .arg(format!("{:016}", micros(claim.grace)))
        .arg(u8::from(claim.waits))
        .arg(&*claim.owner)
        .arg(claim.data.as_deref().unwrap_or_default());
}

fn add_renewal(command: &mut Cmd, term: &Renewal) {
    command
        .arg(term.name.as_str())
        .arg(term.lease.to_string())
        .arg(digits(term.first))
        .arg(micros(term.ttl.get()))
        .arg(u8::from(term.rotate));
}

fn add_end(command: &mut Cmd, term: &Ended) {
    command
        .arg(term.name.as_str())
        .arg(term.lease.to_string())
        .arg(term.first.map(digits).unwrap_or_default())
        .arg(term.evicted_by.as_deref().unwrap_or_default());
}

/// Where a page's names begin and end, as Redis writes bounds.
fn bounds(page: &Page) -> (String, String) {
    let after = page.after.as_ref().map_or("", Name::as_str);
    let from = match (after, page.prefix.as_str()) {
        ("", "") => "-".into(),
        (after, prefix) if after < prefix => format!("[{prefix}"),
        (after, _) => format!("({after}"),
    };
    (from, page.end().map_or_else(|| "+".into(), |end| format!("({end}")))
}
