//! What promises share: bounds, polling by hand, a store without an engine.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::Subject;
use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::locks::Locks;
use crate::record::{LeaseId, Name, Record, Token, Ttl};
use crate::store::{Claim, Ended, Outcome, Page, Renewal, Renewed, Store};

/// For what happens at once, on a machine that is busy.
pub const SOON: Duration = Duration::from_secs(10);
/// A TTL that does not run out while a promise is checked: what becomes free was freed.
pub const LONG: Duration = Duration::from_secs(120);
/// A pause between two looks.
pub const TICK: Duration = Duration::from_millis(10);

/// Any number.
pub fn random() -> u32 {
    getrandom::u32().expect("the operating system has random numbers")
}

/// Up to this long.
pub fn at_most(time: Duration) -> Duration {
    time.mul_f64(f64::from(random()) / f64::from(u32::MAX))
}

/// Waits for what is to happen at once.
pub async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    match timeout(SOON, future).await {
        Ok(output) => output,
        Err(_) => panic!("{what}: not within {SOON:?}"),
    }
}

/// Polls a future once.
pub async fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    poll_fn(|context| Poll::Ready(Pin::new(&mut *future).poll(context))).await
}

/// Polls a future at most this often, each time that it wakes up; `None` if it is not ready by then.
pub async fn poll_times<F: Future + Unpin>(times: usize, future: &mut F) -> Option<F::Output> {
    let mut polled = 0;
    poll_fn(|context| {
        if polled == times {
            return Poll::Ready(None);
        }
        polled += 1;
        match Pin::new(&mut *future).poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if polled == times => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Waits until the engine has taken in all that it was asked so far.
pub async fn taken_in(locks: &Locks) {
    locks.holding().await;
}

/// Acquires for longer than the promise is checked.
pub async fn hold(locks: &Locks, name: &Name) -> Guard {
    soon("a free name is granted", locks.lock(name).ttl(LONG).into_future()).await.expect("a free name is granted")
}

/// Waits until somebody else can have the name.
pub async fn free_for(locks: &Locks, name: &Name, after: &str) {
    let free = async {
        while locks.try_lock(name).ttl(LONG).await.expect("the store answers").is_none() {
            sleep(TICK).await;
        }
    };
    soon(&format!("{name} is free {after}"), free).await;
}

/// Whether somebody else is kept out of the name.
pub async fn is_closed_to(locks: &Locks, name: &Name) -> bool {
    locks.try_lock(name).ttl(LONG).await.expect("the store answers").is_none()
}

/// A claim that nobody waits for.
pub fn claim_of(name: &Name, ttl: Duration) -> Claim {
    Claim {
        name: name.clone(),
        lease: LeaseId::random(),
        owner: "conformance".into(),
        ttl: Ttl::new(ttl).expect("the TTL is within the limits"),
        grace: Duration::ZERO,
        data: None,
        waits: false,
    }
}

/// The renewal of what a claim was granted.
pub fn renewal_of(claim: &Claim, first: Token) -> Renewal {
    Renewal { name: claim.name.clone(), lease: claim.lease, first, ttl: claim.ttl, rotate: false }
}

/// The end of what a claim was granted.
pub fn end_of(claim: &Claim, first: Token) -> Ended {
    Ended { name: claim.name.clone(), lease: claim.lease, first: Some(first), evicted_by: None }
}

/// A store without an engine, one entry at a time. Failures that pass are ridden out, as the engine would.
pub struct Bare(pub Arc<dyn Store>);

impl Bare {
    /// Another process, as far as the store can tell.
    pub async fn open(subject: &Subject) -> Self {
        let store = subject.instance();
        store.open().await.expect("the store can be opened");
        Self(store)
    }

    pub async fn claim(&self, claim: &Claim) -> Outcome {
        insist(async || only(self.0.claim(std::slice::from_ref(claim)).await?)).await
    }

    /// Claims what must be free.
    pub async fn grant(&self, claim: &Claim, when: &str) -> Token {
        match self.claim(claim).await {
            Outcome::Granted(grant) => grant.token,
            Outcome::Busy(record) => panic!("{} must be granted {when}, but is busy: {record:?}", claim.name),
        }
    }

    /// Claims what must be busy.
    pub async fn refuse(&self, claim: &Claim, when: &str) -> Option<Box<Record>> {
        match self.claim(claim).await {
            Outcome::Granted(grant) => panic!("{} must be busy {when}, but was granted: {}", claim.name, grant.token),
            Outcome::Busy(record) => record,
        }
    }

    pub async fn renew(&self, renewal: &Renewal) -> Renewed {
        insist(async || only(self.0.renew(std::slice::from_ref(renewal)).await?)).await
    }

    /// Renews what must still be held.
    pub async fn keep(&self, renewal: &Renewal, when: &str) -> Token {
        match self.renew(renewal).await {
            Renewed::Kept(grant) => grant.token,
            Renewed::Gone(gone) => panic!("{} must be renewed {when}, but is gone: {gone:?}", renewal.name),
        }
    }

    pub async fn release(&self, ended: &Ended) -> bool {
        insist(async || only(self.0.release(std::slice::from_ref(ended)).await?)).await
    }

    pub async fn find(&self, name: &Name) -> Option<Record> {
        let found = insist(async || self.0.list(&Page::of(name)).await).await;
        found.into_iter().find(|record| record.name == *name)
    }
}

fn only<T>(answers: Vec<Result<T>>) -> Result<T> {
    let count = answers.len();
    let mut answers = answers.into_iter();
    match (answers.next(), count) {
        (Some(answer), 1) => answer,
        _ => panic!("a call with one entry was given {count} answers"),
    }
}

/// Makes a call until it does not fail for the moment.
pub async fn insist<T>(call: impl AsyncFn() -> Result<T>) -> T {
    let success = async {
        loop {
            match call().await {
                Err(error @ Error::Store { transient: true, .. }) => tracing::debug!(%error, "again"),
                result => return result.expect("the store answers"),
            }
            sleep(TICK).await;
        }
    };
    soon("the store answers", success).await
}
