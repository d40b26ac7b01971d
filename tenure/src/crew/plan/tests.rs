//! A world of members that look, plan and act, without a store: all that can be said of the plan alone.

use super::*;

const SETTLE: Duration = Duration::from_secs(10);
const ROUND: Duration = Duration::from_secs(1);
/// Rounds that a worker takes to stop.
const STOPPING: u32 = 2;

/// Numbers that look random, the same in every run of a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (standing(&self.0.to_string(), "dice") % limit as u64) as usize
    }
}

struct Member {
    present: Present,
    planner: Planner,
    blocked: bool,
    /// Tasks that are being given up, and for how many rounds still.
    stopping: BTreeMap<String, u32>,
}

#[derive(Default)]
struct World {
    members: BTreeMap<String, Member>,
    wanted: BTreeSet<String>,
    held: BTreeMap<String, String>,
    claims: usize,
    /// How often a task was given up.
    moves: usize,
    dice: Option<Dice>,
}

impl World {
    fn new(tasks: usize) -> Self {
        Self { wanted: (0..tasks).map(|task| format!("topic-{task}")).collect(), ..Self::default() }
    }

    fn with(tasks: usize, members: usize, capacity: u32) -> Self {
        let mut world = Self::new(tasks);
        (0..members).for_each(|member| world.join(&format!("m{member:02}"), capacity));
        world
    }

    /// A member that has settled.
    fn join(&mut self, id: &str, capacity: u32) {
        self.arrive(id, id, capacity, 2 * SETTLE);
    }

    fn arrive(&mut self, id: &str, place: &str, capacity: u32, present_for: Duration) {
        let present = Present { id: id.into(), place: place.into(), capacity, present_for };
        let member = Member { present, planner: Planner::new(SETTLE), blocked: false, stopping: BTreeMap::new() };
        self.members.insert(id.into(), member);
    }

    fn leave(&mut self, id: &str) {
        self.members.remove(id);
        self.held.retain(|_, holder| holder != id);
    }

    fn presents(&self) -> Vec<Present> {
        self.members.values().map(|member| member.present.clone()).collect()
    }

    fn plan(&mut self, id: &str, members: Vec<Present>, held: BTreeMap<String, String>) -> Plan {
        let member = self.members.get_mut(id).unwrap();
        let mine = held.iter().filter(|(task, holder)| *holder == id && !member.stopping.contains_key(*task));
        let working = mine.map(|(task, _)| task.clone()).collect();
        let stopping = member.stopping.len();
        let look = Look { me: id.into(), members, wanted: self.wanted.clone(), working, stopping, held };
        member.planner.plan(&look)
    }

    fn act(&mut self, id: &str, plan: Plan) {
        for task in plan.claim {
            self.claims += 1;
            self.held.entry(task).or_insert_with(|| id.into());
        }
        let member = self.members.get_mut(id).unwrap();
        member.stopping.extend(plan.give_up.into_iter().map(|task| (task, STOPPING)));
        let mine = self.held.values().filter(|holder| *holder == id).count();
        assert!(mine <= member.present.capacity as usize, "{id} has {mine}");
    }

    fn go_on_stopping(&mut self, id: &str) {
        let member = self.members.get_mut(id).unwrap();
        member.stopping.values_mut().for_each(|rounds| *rounds -= 1);
        let stopped: Vec<String> =
            member.stopping.extract_if(.., |_, rounds| *rounds == 0).map(|(task, _)| task).collect();
        self.moves += stopped.len();
        stopped.iter().for_each(|task| drop(self.held.remove(task)));
    }

    /// Everybody looks, and then everybody acts: the worst case. With dice, some act before others look.
    fn round(&mut self) {
        let mut ids: Vec<String> = self.members.keys().cloned().collect();
        while !ids.is_empty() {
            let many = self.dice.as_mut().map_or(ids.len(), |dice| 1 + dice.below(ids.len()));
            let some: Vec<String> = ids.drain(..many).collect();
            let (members, held) = (self.presents(), self.held.clone());
            let able: Vec<String> = some.into_iter().filter(|id| !self.members[id].blocked).collect();
            let plans: Vec<Plan> = able.iter().map(|id| self.plan(id, members.clone(), held.clone())).collect();
            able.iter().for_each(|id| self.go_on_stopping(id));
            able.iter().zip(plans).for_each(|(id, plan)| self.act(id, plan));
        }
        self.members.values_mut().for_each(|member| member.present.present_for += ROUND);
    }

    /// Rounds until nothing changes any more; how many.
    fn settle_down(&mut self) -> usize {
        let mut changed = 0;
        for round in 1..200 {
            let before = self.held.clone();
            self.round();
            if before != self.held {
                changed = round;
            }
            if round - changed > 2 * STOPPING as usize + PATIENCE as usize {
                return changed;
            }
        }
        panic!("still changing: {:?}", self.counts());
    }

    fn counts(&self) -> Vec<usize> {
        self.members.keys().map(|id| self.held.values().filter(|holder| *holder == id).count()).collect()
    }

    fn unassigned(&mut self) -> usize {
        let id = self.members.keys().next().unwrap().clone();
        let (members, held) = (self.presents(), self.held.clone());
        self.plan(&id, members, held).unassigned.len()
    }

    /// Every task is held unless all are full, and nobody has two more than another with room.
    fn check_shared_out(&self) {
        let counts = self.counts();
        let capacities: Vec<usize> = self.members.values().map(|member| member.present.capacity as usize).collect();
        let expected = self.wanted.len().min(capacities.iter().sum());
        assert_eq!(counts.iter().sum::<usize>(), expected, "{counts:?} of {capacities:?}");
        let with_room = counts.iter().zip(&capacities).filter(|(count, capacity)| count < capacity);
        let least = with_room.map(|(count, _)| *count).min().unwrap_or(usize::MAX);
        assert!(counts.iter().all(|count| *count <= least.saturating_add(1)), "{counts:?} of {capacities:?}");
    }
}

#[test]
fn the_level_is_the_smallest_that_suffices() {
    let level = |capacities: &[u32], tasks| level(capacities.iter().copied(), tasks);
    assert_eq!(level(&[20; 10], 100), 10);
    assert_eq!(level(&[20; 11], 100), 10);
    assert_eq!(level(&[20; 5], 100), 20);
    assert_eq!(level(&[20; 4], 100), 20);
    assert_eq!(level(&[5, 20], 20), 15);
    assert_eq!(level(&[1, 2, 3, u32::MAX], 10), 4);
    assert_eq!(level(&[7], 0), 0);
    assert_eq!(level(&[], 3), 0);
    for tasks in 0..40 {
        let capacities = [3, 9, 1, 12, 9];
        let enough = |level: u32| capacities.iter().map(|capacity| level.min(*capacity)).sum::<u32>() >= tasks;
        let smallest = (0..=12).find(|level| enough(*level)).unwrap_or(12);
        assert_eq!(level(&capacities, tasks), smallest, "{tasks} tasks");
    }
}

#[test]
fn a_hundred_tasks_are_shared_out_as_members_come_and_go() {
    let mut world = World::with(100, 10, 20);
    world.settle_down();
    assert_eq!((world.counts(), world.moves), (vec![10; 10], 0));
    (0..5).for_each(|member| world.leave(&format!("m{member:02}")));
    world.settle_down();
    assert_eq!((world.counts(), world.moves), (vec![20; 5], 0));
    world.leave("m05");
    world.settle_down();
    assert_eq!((world.counts(), world.moves, world.unassigned()), (vec![20; 4], 0, 20));
    (0..6).for_each(|member| world.join(&format!("m{member:02}"), 20));
    world.settle_down();
    assert_eq!((world.counts(), world.moves), (vec![10; 10], 40), "four gave up ten each, and nothing else moved");
    world.join("m10", 20);
    world.settle_down();
    assert_eq!((world.counts()[10], world.moves), (9, 49), "an eleventh gets nine");
}

#[test]
fn a_thousand_tasks_on_fifty_members_take_three_rounds_and_few_claims() {
    for seed in 0..3 {
        let mut world = World::with(1000, 50, 40);
        world.dice = (seed > 0).then_some(Dice(seed));
        let rounds = world.settle_down();
        assert_eq!(world.counts(), [20; 50]);
        assert!(rounds <= 3 && world.claims <= 2000, "{rounds} rounds, {} claims", world.claims);
        (0..25).for_each(|member| world.leave(&format!("m{member:02}")));
        world.claims = 0;
        let rounds = world.settle_down();
        assert_eq!(world.counts(), [40; 25]);
        assert!(rounds <= 3 && world.claims <= 1000, "half of them gone: {rounds} rounds, {} claims", world.claims);
        assert_eq!(world.moves, 0);
    }
}

/// Members of all sizes come and go at random: it always settles down, shared out as evenly as can be, and no more
/// tasks are given up than those of which one had too many.
#[test]
fn whoever_comes_and_goes_it_settles_down_and_no_task_moves_without_need() {
    for seed in 0..60 {
        let mut dice = Dice(seed << 32);
        let mut world = World::new(dice.below(120));
        world.dice = Some(Dice(seed));
        for step in 0..8 {
            if step == 0 || dice.below(3) > 0 {
                world.join(&format!("m{}-{step}", dice.below(100)), 1 + dice.below(30) as u32);
            } else if world.members.len() > 1 {
                let gone = world.members.keys().nth(dice.below(world.members.len())).unwrap().clone();
                world.leave(&gone);
            }
            let (before, owned) = (world.moves, by_member(&world));
            world.settle_down();
            world.check_shared_out();
            let fewer = |(id, count): (&String, &usize)| count.saturating_sub(*by_member(&world).get(id).unwrap_or(&0));
            let needed: usize = owned.iter().map(fewer).sum();
            assert_eq!(world.moves - before, needed, "seed {seed}, step {step}: moved without need");
        }
    }
}

fn by_member(world: &World) -> BTreeMap<String, usize> {
    world.members.keys().cloned().zip(world.counts()).collect()
}

#[test]
fn a_task_added_or_removed_moves_no_other() {
    let mut world = World::with(50, 7, 10);
    world.settle_down();
    let before = world.held.clone();
    world.wanted.insert("another".into());
    world.settle_down();
    world.check_shared_out();
    assert!(world.moves == 0 && before.iter().all(|(task, holder)| world.held[task] == *holder));
    world.wanted.remove("topic-7");
    world.held.remove("topic-7");
    world.settle_down();
    world.check_shared_out();
    assert!(world.moves <= 1, "{} moves", world.moves);
}

#[test]
fn a_member_that_comes_and_goes_within_the_settling_time_moves_nothing() {
    let mut world = World::with(100, 5, 30);
    world.settle_down();
    let before = world.held.clone();
    for time in 0..3 {
        world.arrive(&format!("flapping-{time}"), "flapping", 30, Duration::ZERO);
        (0..9).for_each(|_| world.round());
        world.leave(&format!("flapping-{time}"));
        world.round();
    }
    assert_eq!(world.held, before);
    world.arrive("staying", "staying", 30, Duration::ZERO);
    (0..20).for_each(|_| world.round());
    world.check_shared_out();
}

#[test]
fn those_that_come_one_after_another_count_together() {
    let mut world = World::new(100);
    for member in 0..10 {
        world.arrive(&format!("m{member}"), &format!("m{member}"), 20, Duration::ZERO);
        world.round();
    }
    world.settle_down();
    assert_eq!((world.counts(), world.moves, world.claims), (vec![10; 10], 0, 100));
}

#[test]
fn newcomers_without_end_do_not_keep_a_member_waiting() {
    let mut world = World::new(10);
    world.arrive("m", "m", 20, Duration::ZERO);
    for time in 0..=20 {
        world.arrive(&format!("flapping-{time}"), "flapping", 20, Duration::ZERO);
        world.round();
        world.leave(&format!("flapping-{time}"));
    }
    assert_eq!(world.counts(), [10]);
}

#[test]
fn what_a_blocked_member_leaves_is_taken_by_others() {
    let mut world = World::with(30, 3, 30);
    world.members.get_mut("m01").unwrap().blocked = true;
    world.settle_down();
    assert_eq!(world.counts(), [15, 0, 15]);
    let before = world.held.clone();
    (0..4 * PROBATION).for_each(|_| world.round());
    assert!(world.moves <= 8, "{} moves to one that takes nothing", world.moves);
    assert_eq!(before.len(), world.held.len());
    world.members.get_mut("m01").unwrap().blocked = false;
    (0..2 * PROBATION).for_each(|_| world.round());
    world.check_shared_out();
}

#[test]
fn a_task_of_a_member_that_is_not_listed_is_not_free() {
    let mut world = World::with(4, 2, 4);
    world.held.insert("topic-0".into(), "dead".into());
    world.settle_down();
    let mut counts = world.counts();
    counts.sort_unstable();
    assert_eq!((counts, &*world.held["topic-0"]), (vec![1, 2], "dead"));
}

#[test]
fn tasks_return_to_the_place_where_they_were() {
    let mut world = World::with(200, 10, 40);
    world.settle_down();
    let before: BTreeSet<String> =
        world.held.iter().filter(|(_, id)| *id == "m03").map(|(task, _)| task.clone()).collect();
    world.leave("m03");
    world.settle_down();
    world.arrive("another id", "m03", 40, 2 * SETTLE);
    world.settle_down();
    let back = before.iter().filter(|task| world.held[*task] == "another id").count();
    assert!(back >= before.len() / 2, "{back} of {} came back", before.len());
}
