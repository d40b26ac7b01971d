//! Who is to have how many tasks, and which: worked out by every member alike from what the store lists, so that they
//! agree without a word between them.
//!
//! Nothing here does any I/O. A member looks, plans, carries out its own part of the plan, and looks again.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

/// For so many rounds a member may leave what is due to it. One that does is blocked, or does not know the tasks; what it
/// leaves is then offered to others, who would otherwise leave it too, for ever.
const PATIENCE: u32 = 6;
/// After so many it is offered one task again, and if it takes that, the rest.
const PROBATION: u32 = 60;

/// A member, as the store lists it.
#[derive(Clone, Debug)]
pub struct Present {
    pub id: String,
    /// What stands for it in the order of preference.
    pub place: String,
    pub capacity: u32,
    /// By the store's clock, so that all members count it in at about the same time.
    pub present_for: Duration,
}

/// What a member sees in a round.
#[derive(Clone, Debug, Default)]
pub struct Look {
    pub me: String,
    pub members: Vec<Present>,
    /// The tasks that are held, each with its member's id. An id that is none of the members': it has died, or not settled.
    pub held: BTreeMap<String, String>,
    /// The tasks that there are.
    pub wanted: BTreeSet<String>,
    /// Which of mine can be given up.
    pub working: BTreeSet<String>,
    /// How many of mine are being given up already.
    pub stopping: usize,
}

/// What to do about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub level: u32,
    pub claim: Vec<String>,
    pub give_up: Vec<String>,
    /// Free tasks that no member has room for.
    pub unassigned: Vec<String>,
    pub shares: Vec<Share>,
}

/// What a member has, and what it is to have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Share {
    pub id: String,
    pub place: String,
    pub capacity: u32,
    pub held: u32,
    /// How many it may have: its capacity, unless it is passed over.
    room: u32,
    /// How many of the free tasks are for it.
    due: u32,
    /// How many it is to give up …
    surplus: u32,
    /// … and how many that others give up are for it.
    awaited: u32,
}

impl Share {
    fn planned(&self) -> u32 {
        self.held + self.due + self.awaited - self.surplus
    }

    fn has_room(&self) -> bool {
        self.planned() < self.room
    }
}

/// Plans each round, and remembers who leaves what is due to it.
#[derive(Debug)]
pub struct Planner {
    settle: Duration,
    /// For each member how many it held, and for how many rounds it has left what was due to it.
    left: HashMap<String, (u32, u32)>,
}

impl Planner {
    pub fn new(settle: Duration) -> Self {
        Self { settle, left: HashMap::new() }
    }

    pub fn plan(&mut self, look: &Look) -> Plan {
        let free: Vec<&str> = look.wanted.iter().filter(|task| !look.held.contains_key(*task)).map(|t| &**t).collect();
        let mut shares = shares_of(settled(&look.members, self.settle), &look.held);
        shares.iter_mut().for_each(|share| share.room = self.room(share, &look.me));
        let level = level(shares.iter().map(|share| share.room), count(look.held.len() + free.len()));
        fill(&mut shares, count(free.len()), level);
        even_out(&mut shares);
        self.note(&shares);
        let mut assigned = assign(&free, &shares);
        // Before anybody has settled nobody can tell.
        let unassigned = assigned.remove(&None).filter(|_| !shares.is_empty()).unwrap_or_default();
        let mine = shares.iter().position(|share| share.id == look.me);
        let claim = mine.and_then(|me| assigned.remove(&Some(me))).unwrap_or_default();
        let give_up = mine.map(|me| surplus(look, &shares, me)).unwrap_or_default();
        Plan { level, claim, give_up, unassigned, shares }
    }

    fn room(&self, share: &Share, me: &str) -> u32 {
        match self.left.get(&share.id) {
            Some((held, rounds)) if *held == share.held && share.id != me => match *rounds {
                ..PATIENCE => share.capacity,
                PATIENCE..PROBATION => share.held,
                PROBATION.. => share.capacity.min(share.held + 1),
            },
            _ => share.capacity,
        }
    }

    fn note(&mut self, shares: &[Share]) {
        let before = std::mem::take(&mut self.left);
        for share in shares {
            let rounds = match before.get(&share.id) {
                Some((held, rounds)) if *held == share.held => *rounds,
                _ => 0,
            };
            let rounds = rounds + u32::from(share.due > 0 || rounds >= PATIENCE);
            let rounds = if rounds < PROBATION + 2 * PATIENCE { rounds } else { PATIENCE };
            self.left.insert(share.id.clone(), (share.held, rounds));
        }
    }
}

/// Those that count: they have been there for the settling time. Those that came together count together, so that the first
/// of them is not given what the next is to have; but nobody is kept waiting for more than twice the time.
fn settled(members: &[Present], settle: Duration) -> Vec<&Present> {
    let calm = members.iter().all(|member| member.present_for >= settle);
    let time = if calm { settle } else { 2 * settle };
    members.iter().filter(|member| member.present_for >= time).collect()
}

/// The members in order of their ids, each with what it holds.
fn shares_of(members: Vec<&Present>, held: &BTreeMap<String, String>) -> Vec<Share> {
    let mut counts: HashMap<&str, u32> = HashMap::new();
    held.values().for_each(|id| *counts.entry(id).or_default() += 1);
    let share = |member: &Present| Share {
        id: member.id.clone(),
        place: member.place.clone(),
        capacity: member.capacity,
        held: counts.get(&*member.id).copied().unwrap_or_default(),
        ..Share::default()
    };
    let mut shares: Vec<Share> = members.into_iter().map(share).collect();
    shares.sort_by(|a, b| a.id.cmp(&b.id));
    shares
}

/// The smallest L with Σ min(capacity, L) ≥ tasks; the largest capacity if they don't suffice.
fn level(capacities: impl Iterator<Item = u32>, tasks: u32) -> u32 {
    let mut capacities: Vec<u32> = capacities.collect();
    capacities.sort_unstable();
    let (mut level, mut left) = (0, tasks);
    for (index, capacity) in capacities.iter().enumerate() {
        let members = count(capacities.len() - index);
        let each = left.div_ceil(members);
        if each <= *capacity {
            return each;
        }
        (level, left) = (*capacity, left - capacity);
    }
    level
}

/// Free tasks go to whoever has the fewest, up to the level. Ties go by id: so all come to the same result, and to the same
/// again when a part of it has been carried out.
fn fill(shares: &mut [Share], free: u32, level: u32) {
    for _ in 0..free {
        let below = shares.iter_mut().filter(|share| share.has_room() && share.planned() < level);
        let Some(least) = below.min_by_key(|share| share.planned()) else { return };
        least.due += 1;
    }
}

/// While one has at least two more than another with room, it gives one up. Nothing else moves.
fn even_out(shares: &mut [Share]) {
    loop {
        let most = (0..shares.len()).filter(|i| shares[*i].surplus < shares[*i].held);
        let most = most.max_by_key(|i| (shares[*i].planned(), Reverse(*i)));
        let least = (0..shares.len()).filter(|i| shares[*i].has_room()).min_by_key(|i| shares[*i].planned());
        match (most, least) {
            (Some(most), Some(least)) if shares[most].planned() >= shares[least].planned() + 2 => {
                shares[most].surplus += 1;
                shares[least].awaited += 1;
            }
            _ => return,
        }
    }
}

/// Which member each free task is for: of those to whom some are due, the one that stands highest with it.
fn assign(free: &[&str], shares: &[Share]) -> HashMap<Option<usize>, Vec<String>> {
    let mut due: Vec<u32> = shares.iter().map(|share| share.due).collect();
    let mut assigned: HashMap<Option<usize>, Vec<String>> = HashMap::new();
    for task in free {
        let open = (0..shares.len()).filter(|i| due[*i] > 0);
        let best = open.max_by_key(|i| (standing(&shares[*i].place, task), Reverse(*i)));
        if let Some(best) = best {
            due[best] -= 1;
        }
        assigned.entry(best).or_default().push((*task).to_owned());
    }
    assigned
}

/// Those of mine that others have a better claim to, as many as I have too many.
fn surplus(look: &Look, shares: &[Share], me: usize) -> Vec<String> {
    let many = (shares[me].surplus as usize).saturating_sub(look.stopping);
    let best = |task: &str| {
        shares.iter().filter(|share| share.awaited > 0).map(|share| standing(&share.place, task)).max().unwrap_or(0)
    };
    let mut tasks: Vec<&String> = look.working.iter().collect();
    tasks.sort_by_cached_key(|task| Reverse(best(task)));
    tasks.into_iter().take(many).cloned().collect()
}

/// How high a place stands with a task (rendezvous hashing). Every member must come to the same number, whatever its
/// build: so this is not the hasher of the standard library, which may change.
fn standing(place: &str, task: &str) -> u64 {
    let bytes = place.bytes().chain([0xff]).chain(task.bytes());
    // FNV-1a, and then the finish of splitmix64: without it names that differ at the end only have close numbers.
    let mut hash =
        bytes.fold(0xcbf2_9ce4_8422_2325_u64, |h, byte| (h ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

fn count(many: usize) -> u32 {
    u32::try_from(many).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
