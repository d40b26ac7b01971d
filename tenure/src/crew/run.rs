//! An instance at work: it looks, plans, claims and gives up, and drives its workers meanwhile.

use std::collections::BTreeMap;
use std::future::IntoFuture;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use super::plan::{Look, Plan, Planner};
use super::pool::Pool;
use super::view::{Card, Sign, View};
use super::{CrewMember, Report, Setup};
use crate::elector::{caught, without_panic};
use crate::engine::jittered;
use crate::error::{Error, Result};
use crate::guard::{Guard, Status, Why};
use crate::lock::TryAcquire;
use crate::locks::Locks;
use crate::members::{Join, Membership};
use crate::record::Record;
use crate::term::{Cancel, Keeper, Ran, Term};

/// How long a task whose worker has ended by itself stays held, so that one which ends at once is not started again and again by
/// everybody in turn.
const RESTART: Duration = Duration::from_secs(1);

/// How far this instance is with a task.
enum Mine {
    Claiming,
    Working(Arc<Cancel>),
    Stopping,
}

/// An instance at work. `S` starts workers; `T` is one, from the grant to the release.
struct Run<S, T> {
    setup: Setup,
    start: S,
    workers: Pool<T>,
    claims: Pool<TryAcquire>,
    mine: BTreeMap<String, Mine>,
    planner: Planner,
    /// How many wishes have been carried out.
    wishes: u64,
    /// Whether the last look failed.
    blind: bool,
    /// Whether the end of the engine, or of a shutdown's time, took a task from its worker.
    cut_off: bool,
    report: Report,
}

/// Whether a worker was cut off by the end of the engine.
struct CutOff(bool);

/// Works until it is to stop.
pub(super) async fn run<W: Future<Output = ()>>(setup: Setup, mut work: impl FnMut(String, Term) -> W) -> Result<()> {
    let (limit, locks) = (setup.stop_within, setup.locks.clone());
    let start = |keeper: Keeper| {
        let term = keeper.term();
        let worker = caught(|| work(term.key().to_owned(), term));
        tend(worker, keeper, limit, locks.clone())
    };
    let planner = Planner::new(setup.settle);
    let (workers, claims, mine, report) = (Pool::new(), Pool::new(), BTreeMap::new(), Report::default());
    let (wishes, blind, cut_off) = (0, false, false);
    Run { setup, start, workers, claims, mine, planner, wishes, blind, cut_off, report }.run().await
}

/// Runs a worker, and frees its name when it has ended: not before, and also if this is dropped.
async fn tend<W>(worker: Result<W, String>, keeper: Keeper, limit: Duration, locks: Locks) -> CutOff
where
    W: Future<Output = ()>,
{
    let term = keeper.term();
    match keeper.run(async { without_panic(worker?).await }, limit).await {
        Ran::Lost(lost) => {
            tracing::warn!(target: "tenure::recipe", %lost, "a worker was dropped");
            return CutOff(matches!(lost.why, Why::Closed));
        }
        Ran::CutOff => tracing::warn!(target: "tenure::recipe", name = %term.name(), "a worker was cut off"),
        Ran::Done(ended) => {
            if let Err(panic) = ended {
                tracing::error!(target: "tenure::recipe", name = %term.name(), panic, "a worker panicked");
            }
            tokio::select! {
                _ = locks.pause(RESTART) => {}
                () = term.cancelled() => {}
            }
        }
    }
    // Tried until the term is over: then it is free, too.
    let _ = keeper.release().await;
    CutOff(false)
}

impl<S: FnMut(Keeper) -> T, T: Future<Output = CutOff>> Run<S, T> {
    async fn run(mut self) -> Result<()> {
        let control = self.setup.control.clone();
        let mut membership = tokio::select! {
            joined = self.join().into_future() => joined?,
            () = control.until_stopped() => return Ok(()),
        };
        tokio::select! {
            () = control.until_stopped() => {}
            () = self.rounds(&mut membership) => {}
        }
        self.cut_off = is_closed(&membership);
        self.wind_up(membership).await;
        if self.cut_off { Err(Error::Closed) } else { Ok(()) }
    }

    /// Until a shutdown begins, or the engine has ended. May be dropped at any time.
    async fn rounds(&mut self, membership: &mut Membership) {
        while !is_closing(membership) {
            if has_lapsed(membership) && matches!(self.join_again(membership).await, Err(Error::Closed)) {
                return;
            }
            self.heed();
            self.look().await;
            self.rest(membership).await;
        }
    }

    fn join(&self) -> Join {
        let Setup { locks, group, id, place, capacity, ttl, heartbeat, .. } = &self.setup;
        let card = Card { capacity: *capacity, place: place.clone() };
        let join = locks.members(group.as_str()).join_as(id.clone(), &card).ttl(*ttl);
        heartbeat.iter().fold(join, |join, every| join.heartbeat(*every))
    }

    /// Others have counted this member as gone; its tasks are names of their own, and go on. On failure the old, lapsed membership stays for
    /// now.
    async fn join_again(&mut self, lapsed: &mut Membership) -> Result<()> {
        let join = self.join();
        let joined = self.meanwhile(join.into_future()).await.inspect_err(|error| {
            tracing::warn!(target: "tenure::recipe", group = self.setup.group, %error, "can't join again");
        });
        *lapsed = joined?;
        Ok(())
    }

    /// Drives claims and workers while waiting for something else.
    async fn meanwhile<O>(&mut self, other: impl Future<Output = O>) -> O {
        let mut other = pin!(other);
        loop {
            tokio::select! {
                output = &mut other => return output,
                (task, claimed) = self.claims.next() => self.claimed(task, claimed),
                (task, cut_off) = self.workers.next() => self.ended(&task, cut_off),
            }
        }
    }

    /// Until the next round, or until there is something to do at once.
    async fn rest(&mut self, membership: &Membership) {
        let (locks, control, wishes) = (self.setup.locks.clone(), self.setup.control.clone(), self.wishes);
        // Instances that were started together need not ask together for ever.
        let round = jittered(self.setup.round);
        // One that lapsed, and could not be had again, is tried for again in the next round.
        let lapsed = has_lapsed(membership);
        self.meanwhile(async {
            tokio::select! {
                // An engine that has ended is told as the membership's loss.
                _ = locks.pause(round) => {}
                () = control.other_than(wishes) => {}
                () = membership.guard.held.until(|held| held.is_ending().then_some(())), if !lapsed => {}
            }
        })
        .await;
    }

    /// Takes the wishes in. Removed tasks are stopped, whether or not the store can be seen.
    fn heed(&mut self) {
        let control = self.setup.control.clone();
        let wishes = control.wishes();
        self.wishes = wishes.count;
        let removed: Vec<String> = self.mine.keys().filter(|task| !wishes.tasks.contains(*task)).cloned().collect();
        drop(wishes);
        removed.iter().for_each(|task| self.stop(task));
    }

    async fn look(&mut self) {
        let (locks, prefix) = (self.setup.locks.clone(), format!("{}/", self.setup.group));
        let blind = match self.meanwhile(locks.list(prefix)).await {
            Ok(records) => {
                self.act(&records);
                None
            }
            // Workers go on while their names are held; who is lost is told without the store.
            Err(error) => Some(error),
        };
        // Once, not in every round.
        if let Some(error) = blind.as_ref().filter(|_| !self.blind) {
            tracing::warn!(target: "tenure::recipe", group = self.setup.group, %error, "can't look");
        }
        self.blind = blind.is_some();
    }

    fn act(&mut self, records: &[Record]) {
        let look = self.see(View::read(records, &self.setup.group));
        let plan = self.planner.plan(&look);
        plan.give_up.iter().for_each(|task| self.stop(task));
        plan.claim.iter().for_each(|task| self.claim(task));
        self.tell(&look, plan);
    }

    /// What the store lists, and what is known better here.
    fn see(&self, view: View) -> Look {
        let wanted = self.setup.control.wishes().tasks.clone();
        let me = self.setup.id.clone();
        let mut look = Look { me: me.clone(), members: view.members, held: view.held, wanted, ..Look::default() };
        for (task, mine) in self.mine.iter().filter(|(task, _)| look.wanted.contains(*task)) {
            look.held.entry(task.clone()).or_insert_with(|| me.clone());
            match mine {
                Mine::Claiming => {}
                Mine::Working(_) => drop(look.working.insert(task.clone())),
                Mine::Stopping => look.stopping += 1,
            }
        }
        look
    }

    fn claim(&mut self, task: &str) {
        let Setup { locks, group, id, ttl, heartbeat, .. } = &self.setup;
        let lock = locks.try_lock(format!("{group}/tasks/{task}")).ttl(*ttl).data(&Sign { member: id.clone() });
        let lock = heartbeat.iter().fold(lock, |lock, every| lock.renew_every(*every));
        self.claims.push(task.to_owned(), lock.into_future());
        self.mine.insert(task.to_owned(), Mine::Claiming);
    }

    fn claimed(&mut self, task: String, claimed: Result<Option<Guard>>) {
        match claimed {
            Ok(Some(guard)) if self.setup.control.wishes().tasks.contains(&task) => self.begin(task, guard),
            // Another was quicker; or it is not wanted any more, and the guard goes.
            Ok(_) => drop(self.mine.remove(&task)),
            Err(error) => {
                tracing::debug!(target: "tenure::recipe", group = self.setup.group, task, %error, "can't claim");
                self.mine.remove(&task);
            }
        }
    }

    fn begin(&mut self, task: String, guard: Guard) {
        let keeper = Keeper::new(guard, &format!("{}/tasks/", self.setup.group));
        self.mine.insert(task.clone(), Mine::Working(keeper.canceller()));
        self.workers.push(task, (self.start)(keeper));
        self.publish();
    }

    /// Tells a worker to stop; a claim is left to be answered.
    fn stop(&mut self, task: &str) {
        if let Some(mine @ Mine::Working(_)) = self.mine.get_mut(task)
            && let Mine::Working(cancel) = std::mem::replace(mine, Mine::Stopping)
        {
            cancel.tell();
        }
    }

    fn ended(&mut self, task: &str, CutOff(cut_off): CutOff) {
        self.cut_off |= cut_off;
        self.mine.remove(task);
        self.publish();
    }

    fn tell(&mut self, look: &Look, plan: Plan) {
        let free = look.wanted.iter().filter(|task| !look.held.contains_key(*task)).count();
        self.report.free = free - plan.unassigned.len();
        self.report.unassigned = plan.unassigned;
        self.report.level = plan.level;
        let member =
            |share: super::plan::Share| CrewMember { id: share.id, capacity: share.capacity, tasks: share.held };
        self.report.members = plan.shares.into_iter().map(member).collect();
        self.publish();
    }

    fn publish(&mut self) {
        let at_work = self.mine.iter().filter(|(_, mine)| !matches!(mine, Mine::Claiming));
        self.report.mine = at_work.map(|(task, _)| task.clone()).collect();
        self.setup.control.report.send_if_modified(|before| {
            let news = *before != self.report;
            before.clone_from(&self.report);
            news
        });
    }

    /// Workers are told, and each task is released when its worker has ended. The membership goes first: others are not to
    /// leave what becomes free to this member.
    async fn wind_up(&mut self, membership: Membership) {
        self.claims.clear();
        self.mine.retain(|_, mine| !matches!(mine, Mine::Claiming));
        let tasks: Vec<String> = self.mine.keys().cloned().collect();
        tasks.iter().for_each(|task| self.stop(task));
        let leave = membership.leave();
        while !self.workers.is_empty() {
            let (task, cut_off) = self.workers.next().await;
            self.ended(&task, cut_off);
        }
        // It may have been lost; either way this member is gone.
        let _ = leave.await;
    }
}

/// Whether a shutdown has begun, or the engine has ended.
fn is_closing(membership: &Membership) -> bool {
    membership.guard.held.is_ending() && !has_lapsed(membership)
}

/// Whether the membership was lost, and can be had again.
fn has_lapsed(membership: &Membership) -> bool {
    matches!(membership.guard.status(), Status::Lost(_)) && !is_closed(membership)
}

/// Whether the membership was lost because this process's lock service has ended.
fn is_closed(membership: &Membership) -> bool {
    matches!(membership.guard.status(), Status::Lost(lost) if matches!(lost.why, Why::Closed))
}
