//! Nodes, clients, and all that may happen to them.

use stateright::{Model, Property};

use super::client::{Client, Renewal};
use super::node::{Ask, Lease, Node, Standing};

pub type Time = u8;
pub type Token = u8;
/// Some of the nodes: those whose bits are set.
type Nodes = u8;

pub const NODES: usize = 3;
pub const MAJORITY: usize = 2;
const CLIENTS: u8 = 2;
/// One node has made larger tokens before than the others have seen.
const FLOORS: [Token; NODES] = [8, 0, 0];
/// How far each node's clock is ahead.
const AHEAD: [Token; NODES] = [0, 0, 5];

pub const EXCLUSION: &str = "two never believe that they hold";
pub const TOKENS: &str = "tokens rise, and a holder's is the newest that a fence can have seen";
pub const PROMISES: [&str; 2] = [EXCLUSION, TOKENS];

const TAKEN_OVER: &str = "a name passes on";
const RENEWED: &str = "a term is renewed beyond its first end";
const ROTATED: &str = "a token rises within its term";
const VOTES_AGAIN: &str = "a node that lost its data votes again";
pub const EXAMPLES: [&str; 4] = [TAKEN_OVER, RENEWED, ROTATED, VOTES_AGAIN];

/// The rule, and the parts of it that can be left out.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    pub ttl: Time,
    pub second_round: SecondRound,
    /// The time that has passed is taken after the second round.
    pub timed_after: bool,
    /// Rotation has a second round.
    pub rotates_twice: bool,
    /// A node that has restarted counts as new, whatever it has kept.
    pub notices_restart: bool,
    /// It doesn't vote until every term that it may have forgotten is over.
    pub waits: bool,
    /// Nor without the floor of a majority of the others, …
    pub copies_floor: bool,
    /// … as it is then: a term that it forgot may get its second round until it is over.
    pub copies_after_wait: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecondRound {
    /// Only where our lease is live.
    Conditional,
    /// Whoever has the record.
    Unconditional,
    LeftOut,
}

impl Rule {
    pub fn whole() -> Self {
        Self {
            ttl: 1,
            second_round: SecondRound::Conditional,
            timed_after: true,
            rotates_twice: true,
            notices_restart: true,
            waits: true,
            copies_floor: true,
            copies_after_wait: true,
        }
    }
}

/// How far the search goes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub ttl: Time,
    pub time: Time,
    /// How many acquires all clients begin.
    pub leases: u8,
    pub renewals: u8,
    pub rotations: u8,
    /// How often a node loses its data.
    pub losses: u8,
    /// Whether messages may arrive when whoever sent them has ceased to wait for their answers: while it still has the
    /// lease, or at any time.
    pub stragglers: bool,
    pub late: bool,
}

impl Limits {
    const NONE: Self =
        Self { ttl: 1, time: 0, leases: 0, renewals: 0, rotations: 0, losses: 0, stragglers: false, late: false };

    pub fn late() -> Self {
        Self { time: 2, leases: 2, late: true, ..Self::NONE }
    }

    pub fn pausing() -> Self {
        Self { late: false, ..Self::late() }
    }

    pub fn overwriting() -> Self {
        Self { time: 1, renewals: 1, ..Self::late() }
    }

    pub fn renewing() -> Self {
        Self { ttl: 2, time: 3, leases: 2, renewals: 1, ..Self::NONE }
    }

    pub fn rotating() -> Self {
        Self { leases: 2, rotations: 1, stragglers: true, ..Self::NONE }
    }

    pub fn losing() -> Self {
        Self { time: 3, leases: 2, losses: 1, ..Self::NONE }
    }

    /// Whether such a thing can happen within these limits.
    pub fn allow(&self, example: &str) -> bool {
        match example {
            RENEWED => self.renewals > 0,
            ROTATED => self.rotations > 0,
            VOTES_AGAIN => self.losses > 0,
            _ => true,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct State {
    now: Time,
    nodes: [Node; NODES],
    clients: [Client; CLIENTS as usize],
    /// On their way. One that never arrives is lost.
    messages: Vec<Message>,
    /// The newest token that was granted.
    newest: Token,
    fell: bool,
    used: Used,
}

/// What has happened so far, of what is limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Used {
    leases: u8,
    grants: u8,
    renewals: u8,
    rotations: u8,
    losses: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Message {
    to: usize,
    lease: Lease,
    ask: Ask,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Time,
    Begin(usize),
    Arrives(Message),
    Proceeds(usize),
    /// Releases, or asks no more; its release reaches some of the nodes.
    GivesUp(usize, Nodes),
    Renews(usize, bool),
    LosesData(usize),
    CopiesFloor(usize),
    VotesAgain(usize),
}

pub struct World {
    pub rule: Rule,
    pub limits: Limits,
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            now: 0,
            nodes: FLOORS.map(Node::new),
            clients: [Client::Idle; CLIENTS as usize],
            messages: Vec::new(),
            newest: 0,
            fell: false,
            used: Used::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // What is broken stays broken.
        if state.fell {
            return;
        }
        if state.now < self.limits.time {
            actions.push(Action::Time);
        }
        actions.extend(state.messages.iter().map(|message| Action::Arrives(*message)));
        (0..CLIENTS as usize).for_each(|client| self.client_actions(state, client, actions));
        (0..NODES).for_each(|node| self.node_actions(state, node, actions));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Time => state.now += 1,
            Action::Begin(client) => state.begin(client),
            Action::Arrives(message) => state.arrives(message, true, &self.rule),
            Action::Proceeds(client) => state.proceed(client, &self.rule),
            Action::GivesUp(client, nodes) => state.give_up(client, nodes, &self.rule),
            Action::Renews(client, rotate) => state.renew(client, rotate),
            Action::LosesData(node) => state.lose(node, &self.rule),
            Action::CopiesFloor(node) => state.copy_floor(node),
            Action::VotesAgain(node) => state.vote_again(node),
        }
        state.tidy(&self.rule, &self.limits);
        let mirrored = state.mirrored();
        Some(state.min(mirrored))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let exclusion = |_: &World, state: &State| {
            let holders = state.clients.iter().filter(|client| client.believes(state.now).is_some()).count();
            holders < 2
        };
        let tokens = |_: &World, state: &State| {
            let newest = |client: &Client| client.believes(state.now).is_none_or(|token| token == state.newest);
            !state.fell && state.clients.iter().all(newest)
        };
        vec![
            Property::always(EXCLUSION, exclusion),
            Property::always(TOKENS, tokens),
            Property::sometimes(TAKEN_OVER, |_, state: &State| state.used.grants >= 2),
            Property::sometimes(RENEWED, |world, state: &State| {
                state.used.leases == 1
                    && state
                        .clients
                        .iter()
                        .any(|client| client.believes(state.now).is_some() && state.now > world.limits.ttl)
            }),
            Property::sometimes(ROTATED, |_, state: &State| state.used.leases == 1 && state.used.grants == 2),
            Property::sometimes(VOTES_AGAIN, |_, state: &State| {
                state.used.losses > 0 && state.nodes.iter().all(|node| node.standing == Standing::Votes)
            }),
        ]
    }
}

impl World {
    fn client_actions(&self, state: &State, index: usize, actions: &mut Vec<Action>) {
        let client = &state.clients[index];
        match client {
            Client::Idle if state.used.leases < self.limits.leases && (index == 0 || state.used.leases > 0) => {
                actions.push(Action::Begin(index))
            }
            Client::Idle => {}
            _ => {}
        }
        if client.step(state.now, &self.rule).is_some() {
            actions.push(Action::Proceeds(index));
        }
        if let Client::Holding { until, renewal: None, .. } = client
            && state.now < *until
        {
            if state.used.renewals < self.limits.renewals {
                actions.push(Action::Renews(index, false));
            }
            if state.used.rotations < self.limits.rotations {
                actions.push(Action::Renews(index, true));
            }
        }
        if let Some(lease) = client.lease() {
            let some = state.some_with(lease).map(|nodes| Action::GivesUp(index, nodes));
            match client {
                Client::Holding { .. } => actions.extend(some),
                // A release that arrives nowhere, or everywhere, will do.
                _ => actions.extend(some.last()),
            }
        }
    }

    fn node_actions(&self, state: &State, node: usize, actions: &mut Vec<Action>) {
        let others = |others: &Standing| *others == Standing::Votes;
        let votes = state.nodes.iter().map(|node| node.standing).filter(others).count();
        match state.nodes[node].standing {
            // Of a majority there is always one that has lost nothing.
            Standing::Votes if state.used.losses < self.limits.losses && votes > MAJORITY => {
                actions.push(Action::LosesData(node));
            }
            Standing::Votes => {}
            Standing::Newborn { since, copied } => {
                let waited = state.now >= since + self.limits.ttl;
                if copied.is_none() && (waited || !self.rule.copies_after_wait || !self.rule.waits) {
                    actions.push(Action::CopiesFloor(node));
                }
                if (waited || !self.rule.waits) && (copied.is_some() || !self.rule.copies_floor) {
                    actions.push(Action::VotesAgain(node));
                }
            }
        }
    }
}

impl State {
    fn send(&mut self, lease: Lease, ask: Ask) {
        self.messages.extend((0..NODES).map(|to| Message { to, lease, ask }));
    }

    /// The same with the two nodes swapped whose clocks are equal: of two such worlds, one will do.
    fn mirrored(&self) -> Self {
        let mut other = self.clone();
        other.nodes.swap(0, 1);
        other.clients.iter_mut().for_each(Client::mirror);
        for message in &mut other.messages {
            message.to = [1, 0, 2][message.to];
        }
        other.messages.sort_unstable();
        other
    }

    /// Equal worlds are to look equal: messages are in order, and those that can change nothing any more are gone.
    fn tidy(&mut self, rule: &Rule, limits: &Limits) {
        for client in &mut self.clients {
            client.notice_end(self.now, rule);
        }
        let clients = &self.clients;
        let awaited = |message: &Message| {
            let client = &clients[usize::from(message.lease % CLIENTS)];
            let straggler = limits.stragglers && client.lease() == Some(message.lease);
            straggler || client.awaits(message.lease, message.ask)
        };
        self.messages.retain(|message| limits.late || awaited(message));
        let makes_record = |message: &Message| matches!(message.ask, Ask::Claim | Ask::PutBack(_));
        let made: Vec<Message> = self.messages.iter().copied().filter(makes_record).collect();
        let (nodes, now) = (&self.nodes, self.now);
        self.messages.retain(|message| {
            let is_there =
                nodes[message.to].record.is_some_and(|record| record.lease == message.lease && now < record.expires);
            let may_come = made.iter().any(|other| other.to == message.to && other.lease == message.lease);
            is_there || may_come || message.ask.is_unconditional(rule)
        });
        self.messages.sort_unstable();
        for node in &mut self.nodes {
            node.record = node.record.filter(|record| now < record.expires);
        }
    }

    fn begin(&mut self, client: usize) {
        let lease = client as Lease + CLIENTS * self.used.leases;
        self.used.leases += 1;
        self.clients[client] = Client::Claiming { lease, sent: self.now, answers: [None; NODES] };
        self.send(lease, Ask::Claim);
    }

    fn arrives(&mut self, message: Message, heard: bool, rule: &Rule) {
        self.messages.retain(|other| *other != message);
        let Message { to, lease, ask } = message;
        let clock = self.now + 1 + AHEAD[to];
        let answer = self.nodes[to].answer(lease, ask, self.now, clock, rule);
        if heard {
            self.clients[usize::from(lease % CLIENTS)].hear(to, lease, ask, answer);
        }
    }

    fn proceed(&mut self, index: usize, rule: &Rule) {
        let Some(step) = self.clients[index].step(self.now, rule) else { return };
        self.clients[index] = step.client;
        if let Some((lease, ask)) = step.ask {
            self.send(lease, ask);
        }
        if let Some((to, lease, token)) = step.put_back {
            self.messages.push(Message { to, lease, ask: Ask::PutBack(token) });
        }
        if let Some(token) = step.granted {
            self.fell = token <= self.newest;
            self.newest = self.newest.max(token);
            self.used.grants += 1;
        }
    }

    /// It doesn't believe any more, and says so.
    fn give_up(&mut self, index: usize, nodes: Nodes, rule: &Rule) {
        let Some(lease) = self.clients[index].lease() else { return };
        self.clients[index] = Client::Idle;
        self.release(lease, nodes, rule);
    }

    fn release(&mut self, lease: Lease, nodes: Nodes, rule: &Rule) {
        for to in (0..NODES).filter(|node| nodes & (1 << node) != 0) {
            self.arrives(Message { to, lease, ask: Ask::Release }, false, rule);
        }
    }

    /// All choices of nodes that have the lease's record.
    fn some_with(&self, lease: Lease) -> impl Iterator<Item = Nodes> {
        let has = |node: &usize| self.nodes[*node].record.is_some_and(|record| record.lease == lease);
        let all: Nodes = (0..NODES).filter(has).map(|node| 1 << node).sum();
        (0..1 << NODES).filter(move |some| some & !all == 0)
    }

    fn renew(&mut self, index: usize, rotate: bool) {
        let Client::Holding { lease, renewal, .. } = &mut self.clients[index] else { return };
        *renewal = Some(Renewal { sent: self.now, rotate, second: None, answers: [None; NODES] });
        let lease = *lease;
        if rotate {
            self.used.rotations += 1
        } else {
            self.used.renewals += 1
        }
        self.send(lease, Ask::Renew { rotate });
    }

    fn lose(&mut self, node: usize, rule: &Rule) {
        self.used.losses += 1;
        self.nodes[node].lose(self.now, rule);
    }

    fn copy_floor(&mut self, node: usize) {
        let votes = self.nodes.iter().filter(|other| other.standing == Standing::Votes);
        let floors: Vec<Token> = votes.map(|other| other.floor).collect();
        if let Standing::Newborn { copied, .. } = &mut self.nodes[node].standing
            && floors.len() >= MAJORITY
        {
            *copied = floors.into_iter().max();
        }
    }

    fn vote_again(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        if let Standing::Newborn { copied, .. } = node.standing {
            node.floor = node.floor.max(copied.unwrap_or(0));
            node.standing = Standing::Votes;
        }
    }
}
