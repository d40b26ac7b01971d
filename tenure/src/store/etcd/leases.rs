//! What this process holds, and on which etcd leases.
//!
//! One etcd lease serves all names with the same TTL and grace, so a term's time counts from the sending of the lease's last
//! successful grant or keep-alive, and the lease may outlive a term whose holder has stopped renewing it: hence a time of
//! each name's own, and [`orphans`](Leases::orphans).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::records::{Found, Keys};
use crate::clock::Moment;
use crate::record::{LeaseId, Name, Token, Ttl};
use crate::store::Claim;

/// What names on one lease have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Kind {
    pub ttl: Duration,
    pub grace: Duration,
}

impl Kind {
    pub fn of(claim: &Claim) -> Self {
        Self { ttl: claim.ttl.get(), grace: claim.grace }
    }

    /// The lease is longer than the term, by the grace; etcd counts in seconds.
    pub fn seconds(self) -> i64 {
        let time = self.ttl.saturating_add(self.grace);
        let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
        // A century: etcd refuses much longer ones.
        seconds.min(9_000_000_000 / 3).cast_signed()
    }

    /// When a term that was renewed then is over, by our own clock: just when the engine says so.
    fn over(self, since: Moment) -> Moment {
        since + self.ttl - Ttl::new(self.ttl).map_or(self.ttl / 100, Ttl::margin)
    }
}

/// An etcd lease of ours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shared {
    pub id: i64,
    pub kind: Kind,
    /// The sending of its last successful grant or keep-alive.
    pub since: Moment,
}

impl Shared {
    fn is_over(&self, now: Moment) -> bool {
        self.kind.over(self.since) <= now
    }

    /// Whether it is time to keep it alive before more names are put on it.
    pub fn is_worn(&self) -> bool {
        self.since + self.kind.ttl / 4 <= Moment::now()
    }
}

/// A name that is held here.
#[derive(Clone, Debug)]
pub(super) struct Held {
    /// With owner and data, for when it is written again.
    pub claim: Claim,
    pub first: Token,
    pub token: Token,
    pub create: i64,
    pub modified: i64,
    pub acquired: u64,
    /// The etcd lease that it is on.
    pub on: i64,
    kind: Kind,
    /// The lease's, when the term was last renewed.
    since: Moment,
}

impl Held {
    pub fn is(&self, lease: LeaseId, first: Option<Token>) -> bool {
        self.claim.lease == lease && first.is_none_or(|first| first == self.first)
    }

    fn is_over(&self, now: Moment) -> bool {
        self.kind.over(self.since) <= now
    }

    pub fn ttl(&self) -> Duration {
        self.kind.ttl
    }
}

/// What is written of a name when it is granted.
pub(super) struct Granted {
    pub first: Token,
    pub token: Token,
    pub create: i64,
    pub modified: i64,
    pub acquired: u64,
}

#[derive(Default)]
pub(super) struct Leases {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The leases that names are put on.
    current: HashMap<Kind, i64>,
    leases: HashMap<i64, Shared>,
    held: HashMap<Name, Held>,
    /// Claims that are under way: their keys may be there already.
    claiming: HashMap<Name, Vec<LeaseId>>,
}

impl Leases {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lease for new names of this kind, if there is one with time left.
    pub fn current(&self, kind: Kind) -> Option<Shared> {
        let state = self.state();
        let shared = state.leases.get(state.current.get(&kind)?)?;
        (!shared.is_over(Moment::now())).then_some(*shared)
    }

    pub fn add(&self, shared: Shared) {
        let mut state = self.state();
        state.current.insert(shared.kind, shared.id);
        state.leases.insert(shared.id, shared);
    }

    pub fn get(&self, id: i64) -> Option<Shared> {
        self.state().leases.get(&id).copied()
    }

    /// A keep-alive that was sent then has succeeded. `None` if the lease was lost by our own clock in the meantime: then it
    /// is not ours any more, whatever the server says.
    pub fn kept(&self, id: i64, sent: Moment) -> Option<Shared> {
        let mut state = self.state();
        let shared = state.leases.get_mut(&id).filter(|shared| !shared.is_over(Moment::now()))?;
        shared.since = shared.since.max(sent);
        Some(*shared)
    }

    /// The server has no such lease any more, nor its keys.
    pub fn lost(&self, id: i64) {
        let mut state = self.state();
        state.leases.remove(&id);
        state.current.retain(|_, current| *current != id);
        state.held.retain(|_, held| held.on != id);
    }

    /// Forgets the leases that were lost by our own clock, and returns those to revoke: the others are to close their
    /// names for the length of a grace.
    pub fn bury(&self) -> Vec<i64> {
        let now = Moment::now();
        let dead: Vec<Shared> = self.state().leases.values().filter(|shared| shared.is_over(now)).copied().collect();
        dead.iter().for_each(|shared| self.lost(shared.id));
        dead.into_iter().filter(|shared| shared.kind.grace.is_zero()).map(|shared| shared.id).collect()
    }

    /// Notes that claims are under way, until the guard goes.
    pub fn claiming(self: &Arc<Self>, claims: &[Claim]) -> Claiming {
        let claims: Vec<(Name, LeaseId)> = claims.iter().map(|claim| (claim.name.clone(), claim.lease)).collect();
        let mut state = self.state();
        claims.iter().for_each(|(name, lease)| state.claiming.entry(name.clone()).or_default().push(*lease));
        Claiming { leases: self.clone(), claims }
    }

    pub fn hold(&self, claim: &Claim, shared: &Shared, granted: Granted) {
        let Granted { first, token, create, modified, acquired } = granted;
        let (on, kind, since) = (shared.id, shared.kind, shared.since);
        let held = Held { claim: claim.clone(), first, token, create, modified, acquired, on, kind, since };
        self.state().held.insert(claim.name.clone(), held);
    }

    /// A term that is held here and not over.
    pub fn find(&self, name: &Name, lease: LeaseId, first: Option<Token>) -> Option<Held> {
        let state = self.state();
        let held = state.held.get(name).filter(|held| held.is(lease, first));
        held.filter(|held| !held.is_over(Moment::now())).cloned()
    }

    /// Whether a term that was held here is over by our own clock.
    pub fn is_over(&self, name: &Name, lease: LeaseId, first: Option<Token>) -> bool {
        let state = self.state();
        state.held.get(name).is_some_and(|held| held.is(lease, first) && held.is_over(Moment::now()))
    }

    /// A term was renewed with its lease; returns its token.
    pub fn renewed(&self, name: &Name, create: i64, since: Moment) -> Option<Token> {
        let mut state = self.state();
        let held = state.held.get_mut(name).filter(|held| held.create == create)?;
        held.since = held.since.max(since);
        Some(held.token)
    }

    /// The key was written again.
    pub fn rewritten(&self, name: &Name, create: i64, token: Token, modified: i64) {
        let mut state = self.state();
        if let Some(held) = state.held.get_mut(name).filter(|held| held.create == create) {
            (held.token, held.modified) = (token, modified);
        }
    }

    pub fn forget(&self, name: &Name, create: i64) {
        let mut state = self.state();
        if state.held.get(name).is_some_and(|held| held.create == create) {
            state.held.remove(name);
        }
    }

    /// Those of a lease's keys that nobody holds: of claims that were given up, and of terms that nobody has renewed; and
    /// of claims that are under way, which only a look at the key tells from the others.
    pub fn orphans(&self, id: i64, keys: &Keys, listed: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let (state, now) = (self.state(), Moment::now());
        let is_wanted = |name: &Name| {
            let held = state.held.get(name).filter(|held| held.on == id);
            held.is_some_and(|held| now < held.since + held.kind.ttl + held.kind.grace)
        };
        let is_orphan = |key: &&Vec<u8>| keys.read(key).is_some_and(|name| !is_wanted(&name));
        listed.iter().filter(is_orphan).cloned().collect()
    }

    /// Whether somebody here holds or claims what is at a key now.
    pub fn is_wanted(&self, found: &Found) -> bool {
        let (state, now) = (self.state(), Moment::now());
        let held = state.held.get(&found.name).filter(|held| held.create == found.create);
        let is_claimed = state.claiming.get(&found.name).is_some_and(|leases| leases.contains(&found.lease));
        is_claimed || held.is_some_and(|held| now < held.since + held.kind.ttl + held.kind.grace)
    }
}

/// Claims that are under way.
pub(super) struct Claiming {
    leases: Arc<Leases>,
    claims: Vec<(Name, LeaseId)>,
}

impl Drop for Claiming {
    fn drop(&mut self) {
        let mut state = self.leases.state();
        for (name, lease) in &self.claims {
            if let Some(leases) = state.claiming.get_mut(name) {
                leases.iter().position(|other| other == lease).map(|place| leases.swap_remove(place));
                if leases.is_empty() {
                    state.claiming.remove(name);
                }
            }
        }
    }
}
