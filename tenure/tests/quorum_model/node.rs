//! A node: what it keeps of the one name there is, and what it does when asked.

use super::world::{Rule, SecondRound, Time, Token};

/// An acquisition.
pub type Lease = u8;

/// What a client asks of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ask {
    /// The first round.
    Claim,
    /// The second round: the token that the term gets.
    Confirm(Token),
    /// A term's renewal; the first round of one that raises the token.
    Renew {
        rotate: bool,
    },
    /// A renewal found that this node lacks the record of a term that a majority has.
    PutBack(Token),
    Release,
}

impl Ask {
    /// Whether it may do something where the lease has no record, and never will.
    pub fn is_unconditional(self, rule: &Rule) -> bool {
        rule.second_round == SecondRound::Unconditional && matches!(self, Self::Confirm(_))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node {
    pub record: Option<Record>,
    /// No smaller token is made here.
    pub floor: Token,
    pub standing: Standing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Record {
    pub lease: Lease,
    pub token: Token,
    pub expires: Time,
    /// The second round was here.
    pub confirmed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Standing {
    Votes,
    /// It lost its data, was found so at this time, and has copied the floor of the others, or not yet.
    Newborn {
        since: Time,
        copied: Option<Token>,
    },
}

impl Node {
    pub fn new(floor: Token) -> Self {
        Self { record: None, floor, standing: Standing::Votes }
    }

    /// Restarts with nothing, or with what it had saved long ago: its marker, but none of what it promised since.
    pub fn lose(&mut self, now: Time, rule: &Rule) {
        let newborn = Standing::Newborn { since: now, copied: None };
        *self = Self { standing: if rule.notices_restart { newborn } else { Standing::Votes }, ..Self::new(0) };
    }

    /// Its answer, if it votes: the token that it has for the lease, or nothing if it refuses.
    pub fn answer(&mut self, lease: Lease, ask: Ask, now: Time, clock: Token, rule: &Rule) -> Option<Token> {
        if self.standing != Standing::Votes {
            return None;
        }
        match ask {
            Ask::Claim => self.claim(lease, now, clock, rule),
            Ask::Confirm(token) => self.confirm(lease, token, now, rule),
            Ask::Renew { rotate } => self.renew(lease, rotate, now, clock, rule),
            Ask::PutBack(token) => self.put_back(lease, token, now, rule),
            Ask::Release => self.release(lease, now),
        }
    }

    fn live(&mut self, now: Time) -> Option<&mut Record> {
        self.record.as_mut().filter(|record| now < record.expires)
    }

    fn own(&mut self, lease: Lease, now: Time) -> Option<&mut Record> {
        self.live(now).filter(|record| record.lease == lease)
    }

    fn claim(&mut self, lease: Lease, now: Time, clock: Token, rule: &Rule) -> Option<Token> {
        if let Some(record) = self.live(now) {
            return (record.lease == lease).then_some(record.token);
        }
        let token = self.raise(clock);
        self.record = Some(Record { lease, token, expires: now + rule.ttl, confirmed: false });
        Some(token)
    }

    fn raise(&mut self, clock: Token) -> Token {
        self.floor = clock.max(self.floor + 1);
        self.floor
    }

    fn confirm(&mut self, lease: Lease, token: Token, now: Time, rule: &Rule) -> Option<Token> {
        if rule.second_round == SecondRound::Unconditional {
            let record = self.record.get_or_insert(Record { lease, token, expires: now + rule.ttl, confirmed: true });
            (record.token, self.floor) = (token, token);
            return Some(token);
        }
        let record = self.own(lease, now)?;
        (record.token, record.confirmed) = (token, true);
        self.floor = self.floor.max(token);
        Some(token)
    }

    fn renew(&mut self, lease: Lease, rotate: bool, now: Time, clock: Token, rule: &Rule) -> Option<Token> {
        self.own(lease, now).filter(|record| record.confirmed)?;
        let raised = if rotate { Some(self.raise(clock)) } else { None };
        let record = self.own(lease, now)?;
        record.expires = now + rule.ttl;
        record.token = raised.unwrap_or(record.token);
        Some(record.token)
    }

    fn put_back(&mut self, lease: Lease, token: Token, now: Time, rule: &Rule) -> Option<Token> {
        let ours_or_free = self.live(now).is_none_or(|record| record.lease == lease);
        if ours_or_free {
            self.record = Some(Record { lease, token, expires: now + rule.ttl, confirmed: true });
            self.floor = self.floor.max(token);
        }
        ours_or_free.then_some(token)
    }

    fn release(&mut self, lease: Lease, now: Time) -> Option<Token> {
        let token = self.own(lease, now)?.token;
        self.record = None;
        Some(token)
    }
}
