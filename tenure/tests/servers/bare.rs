//! The store without an engine.

use std::sync::Arc;
use std::time::Duration;

use tenure::store::url::store_at;
use tenure::store::{Claim, Ended, Outcome, Renewal, Renewed, Store};
use tenure::{Error, LeaseId, Name, Token, Ttl};

use super::support::soon;

/// A store, called as its engine would.
pub struct Bare(pub Arc<dyn Store>);

impl Bare {
    pub async fn open(url: &str) -> Self {
        let store = store_at(url).unwrap();
        soon("opening", store.open()).await.unwrap();
        Self(store)
    }

    pub async fn claim(&self, claims: &[Claim]) -> Vec<Result<Outcome, Error>> {
        soon("claims", self.0.claim(claims)).await.unwrap()
    }

    /// Claims what must be free.
    pub async fn grant(&self, claims: &[Claim]) -> Vec<Token> {
        let granted = |outcome| match outcome {
            Ok(Outcome::Granted(grant)) => grant.token,
            outcome => panic!("{outcome:?}"),
        };
        self.claim(claims).await.into_iter().map(granted).collect()
    }

    pub async fn renew(&self, claims: &[Claim], tokens: &[Token]) -> Vec<Result<Renewed, Error>> {
        let renewal = |(claim, first): (&Claim, &Token)| Renewal {
            name: claim.name.clone(),
            lease: claim.lease,
            first: *first,
            ttl: claim.ttl,
            rotate: false,
        };
        let renewals: Vec<_> = claims.iter().zip(tokens).map(renewal).collect();
        soon("renewals", self.0.renew(&renewals)).await.unwrap()
    }

    pub async fn release(&self, claims: &[Claim], tokens: &[Token]) -> Vec<Result<bool, Error>> {
        let end = |(claim, first): (&Claim, &Token)| Ended {
            name: claim.name.clone(),
            lease: claim.lease,
            first: Some(*first),
            evicted_by: None,
        };
        let ends: Vec<_> = claims.iter().zip(tokens).map(end).collect();
        soon("releases", self.0.release(&ends)).await.unwrap()
    }
}

/// A claim that nobody waits for.
pub fn claim_of(name: &str, ttl: Duration) -> Claim {
    Claim {
        name: Name::new(name).unwrap(),
        lease: LeaseId::random(),
        owner: "servers".into(),
        ttl: Ttl::new(ttl).unwrap(),
        grace: Duration::ZERO,
        data: None,
        waits: false,
    }
}
