//! A client: one acquire after the other, each with a lease of its own.

use super::node::{Ask, Lease};
use super::world::{MAJORITY, NODES, Rule, SecondRound, Time, Token};

/// What the nodes have answered in a round.
pub type Answers = [Option<Token>; NODES];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Client {
    Idle,
    Claiming {
        lease: Lease,
        sent: Time,
        answers: Answers,
    },
    Confirming {
        lease: Lease,
        sent: Time,
        timed: Time,
        token: Token,
        answers: Answers,
    },
    /// It believes that it holds until then; afterwards it knows that it doesn't.
    Holding {
        lease: Lease,
        until: Time,
        token: Token,
        renewal: Option<Renewal>,
    },
}

/// A renewal under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Renewal {
    pub sent: Time,
    pub rotate: bool,
    /// The token that the second round writes, when it has come to that.
    pub second: Option<Token>,
    pub answers: Answers,
}

/// What a client does next, when it has heard from a majority.
pub struct Step {
    pub client: Client,
    /// To all nodes.
    pub ask: Option<(Lease, Ask)>,
    /// To a node that lacks the record.
    pub put_back: Option<(usize, Lease, Token)>,
    /// A token that the client may show to others from now on.
    pub granted: Option<Token>,
}

impl Client {
    pub fn believes(&self, now: Time) -> Option<Token> {
        match self {
            Self::Holding { until, token, .. } if now < *until => Some(*token),
            _ => None,
        }
    }

    /// Asks no more when nothing can come of it.
    pub fn notice_end(&mut self, now: Time, rule: &Rule) {
        let over = match self {
            Self::Idle => return,
            Self::Claiming { sent, .. } | Self::Confirming { sent, .. } => rule.timed_after && now >= *sent + rule.ttl,
            Self::Holding { until, .. } => now >= *until,
        };
        if over {
            *self = Self::Idle;
        }
    }

    /// The same with the two nodes swapped whose clocks are equal.
    pub fn mirror(&mut self) {
        match self {
            Self::Claiming { answers, .. } | Self::Confirming { answers, .. } => answers.swap(0, 1),
            Self::Holding { renewal: Some(renewal), .. } => renewal.answers.swap(0, 1),
            Self::Idle | Self::Holding { renewal: None, .. } => {}
        }
    }

    pub fn lease(&self) -> Option<Lease> {
        match self {
            Self::Idle => None,
            Self::Claiming { lease, .. } | Self::Confirming { lease, .. } | Self::Holding { lease, .. } => Some(*lease),
        }
    }

    /// Whether it waits for an answer to this.
    pub fn awaits(&self, lease: Lease, ask: Ask) -> bool {
        let mut client = *self;
        matches!(ask, Ask::PutBack(_)) && self.lease() == Some(lease) || client.answers(lease, ask).is_some()
    }

    /// The answers to what was asked last, if it was this.
    fn answers(&mut self, lease: Lease, ask: Ask) -> Option<&mut Answers> {
        if self.lease() != Some(lease) {
            return None;
        }
        match (self, ask) {
            (Self::Claiming { answers, .. }, Ask::Claim) => Some(answers),
            (Self::Confirming { answers, .. }, Ask::Confirm(_)) => Some(answers),
            (Self::Holding { renewal: Some(renewal), .. }, Ask::Renew { .. }) => {
                renewal.second.is_none().then_some(&mut renewal.answers)
            }
            (Self::Holding { renewal: Some(renewal), .. }, Ask::Confirm(token)) => {
                (renewal.second == Some(token)).then_some(&mut renewal.answers)
            }
            _ => None,
        }
    }

    /// Takes a node's answer, if it is one to what was asked last.
    pub fn hear(&mut self, node: usize, lease: Lease, ask: Ask, answer: Option<Token>) {
        if let Some(answers) = self.answers(lease, ask) {
            answers[node] = answers[node].max(answer);
        }
    }

    /// What follows from the answers, once a majority has given one.
    pub fn step(&self, now: Time, rule: &Rule) -> Option<Step> {
        match *self {
            Self::Idle | Self::Holding { renewal: None, .. } => None,
            Self::Claiming { lease, sent, answers } => {
                let token = largest(&answers)?;
                if rule.second_round == SecondRound::LeftOut {
                    return Some(hold(lease, sent + rule.ttl, token, now));
                }
                let client = Self::Confirming { lease, sent, timed: now, token, answers: [None; NODES] };
                Some(Step { ask: Some((lease, Ask::Confirm(token))), ..still(client) })
            }
            Self::Confirming { lease, sent, timed, token, answers } => {
                largest(&answers)?;
                // What was left of the term when it was timed, counted from now on, is too much.
                let until =
                    if rule.timed_after { sent + rule.ttl } else { now + (sent + rule.ttl).saturating_sub(timed) };
                Some(hold(lease, until, token, now))
            }
            Self::Holding { lease, until, token, renewal: Some(renewal) } => {
                let largest = largest(&renewal.answers)?;
                if now >= until {
                    return Some(Step { ask: Some((lease, Ask::Release)), ..still(Self::Idle) });
                }
                Some(renewed(lease, until, token, renewal, largest, rule))
            }
        }
    }
}

fn renewed(lease: Lease, until: Time, token: Token, renewal: Renewal, largest: Token, rule: &Rule) -> Step {
    let Renewal { sent, second, answers, .. } = renewal;
    if second.is_none() && largest != token && rule.rotates_twice {
        let renewal = Renewal { second: Some(largest), answers: [None; NODES], ..renewal };
        let client = Client::Holding { lease, until, token, renewal: Some(renewal) };
        return Step { ask: Some((lease, Ask::Confirm(largest))), ..still(client) };
    }
    let client = Client::Holding { lease, until: sent + rule.ttl, token: largest, renewal: None };
    let lacks = answers.iter().position(Option::is_none);
    let put_back = lacks.map(|node| (node, lease, largest));
    Step { put_back, granted: (largest != token).then_some(largest), ..still(client) }
}

/// The term begins, unless it is over already.
fn hold(lease: Lease, until: Time, token: Token, now: Time) -> Step {
    if now < until {
        Step { granted: Some(token), ..still(Client::Holding { lease, until, token, renewal: None }) }
    } else {
        Step { ask: Some((lease, Ask::Release)), ..still(Client::Idle) }
    }
}

fn still(client: Client) -> Step {
    Step { client, ask: None, put_back: None, granted: None }
}

/// The largest token, if a majority has answered with one.
fn largest(answers: &Answers) -> Option<Token> {
    let votes = answers.iter().flatten().count();
    answers.iter().flatten().max().copied().filter(|_| votes >= MAJORITY)
}
