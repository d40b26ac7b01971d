//! The commands.
//!
//! A name's document:
//!
//! ```text
//! { _id: name, token,                                    the fencing number: rises with every grant
//!   term: { lease, owner, data, first, acquired, renewed, expires, grace, call },   null if the name is free
//!   ended: { at, call },                                 the last release
//!   evicted: { lease, first, by } }                      the last term that an operator ended
//! ```
//!
//! Times are dates by the server's clock. Whether a name is open, and what its next token is, is decided within the update,
//! by `$$NOW`: the time when the server began with the command, which is never later than the update itself. So that a
//! command which was held up for long takes back nothing that a later one has written, no update moves an expiry to an
//! earlier time.
//!
//! Whatever comes from a user is a `$literal`: else a text that begins with `$` would be read as the path of a field.

use std::time::Duration;

use mongodb::bson::oid::ObjectId;
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::WriteConcern;

use crate::record::{LeaseId, Name};
use crate::store::{Claim, Ended, Page, Renewal};

/// The server gives up a command after this time; an engine waits a little longer.
pub(super) const TIME: Duration = Duration::from_secs(3);

/// To forget names, all of them are looked at.
const PRUNE_TIME: Duration = Duration::from_secs(50);

/// How sure a read must be of what it says.
#[derive(Clone, Copy)]
pub(super) enum Sure {
    /// As far as this server knows: all that one without a replica set can say.
    Local,
    /// A majority has it.
    Majority,
    /// And nothing newer was acknowledged when the read began.
    Linearizable,
}

/// The commands for one collection.
pub(super) struct Commands {
    collection: String,
    /// How a write is acknowledged.
    concern: Document,
}

impl Commands {
    pub fn new(collection: &str, concern: &WriteConcern) -> Self {
        let acknowledged = doc! {
            "w": concern.w.clone().map_or("majority".into(), acknowledgment),
            "j": concern.journal.unwrap_or(true),
            "wtimeout": millis(TIME),
        };
        Self { collection: collection.into(), concern: acknowledged }
    }

    /// Claims one name, and answers with its document.
    pub fn claim_one(&self, id: impl Into<Bson>, claim: &Claim, call: ObjectId) -> Document {
        doc! {
            "findAndModify": &self.collection,
            "query": { "_id": id.into() },
            "update": claim_update(claim, call),
            "upsert": true,
            "new": true,
            "fields": seen(),
            "writeConcern": &self.concern,
            "maxTimeMS": millis(TIME),
        }
    }

    /// Carries out updates, each for itself.
    pub fn write(&self, updates: Vec<Document>) -> Document {
        doc! {
            "update": &self.collection,
            "updates": updates,
            "ordered": false,
            "writeConcern": &self.concern,
            "maxTimeMS": millis(TIME),
        }
    }

    /// The documents of these names.
    pub fn read(&self, names: &[&Name], sure: Sure) -> Document {
        let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
        let count = names.len();
        self.find(doc! { "_id": { "$in": names } }, count, sure)
    }

    /// Names in byte order, which is how the server compares texts; only texts: what else is there is not a name.
    pub fn list(&self, page: &Page, sure: Sure) -> Document {
        let mut names = match &page.after {
            Some(after) if after.as_str() >= page.prefix.as_str() => doc! { "$gt": after.as_str() },
            _ => doc! { "$gte": &page.prefix },
        };
        if let Some(end) = page.end() {
            names.insert("$lt", end);
        }
        let mut find = self.find(doc! { "_id": names, "term.lease": { "$gt": "" } }, page.limit, sure);
        find.insert("sort", doc! { "_id": 1 });
        find
    }

    fn find(&self, filter: Document, limit: usize, sure: Sure) -> Document {
        let level = match sure {
            Sure::Local => "local",
            Sure::Majority => "majority",
            Sure::Linearizable => "linearizable",
        };
        // All in one reply, as far as one can hold them; else the first would have 101.
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        doc! {
            "find": &self.collection,
            "filter": filter,
            "projection": seen(),
            "limit": limit,
            "batchSize": limit,
            "readConcern": { "level": level },
            "maxTimeMS": millis(TIME),
        }
    }

    /// Forgets the names that nobody has held for `idle`.
    pub fn prune(&self, idle: Duration) -> Document {
        let since = doc! { "$subtract": ["$$NOW", millis(idle)] };
        let ended = doc! { "$ifNull": [{ "$add": ["$term.expires", "$term.grace"] }, "$ended.at"] };
        let unused = doc! { "$and": [
            { "$lte": [ended, &since] },
            { "$lt": ["$token", micros(since)] },
        ] };
        let mut delete = self.delete(doc! { "$expr": unused }, 0);
        delete.insert("maxTimeMS", millis(PRUNE_TIME));
        delete
    }

    /// Forgets one document.
    pub fn forget(&self, id: impl Into<Bson>) -> Document {
        self.delete(doc! { "_id": id.into() }, 1)
    }

    /// At most `limit`; 0: all.
    fn delete(&self, filter: Document, limit: i32) -> Document {
        doc! {
            "delete": &self.collection,
            "deletes": [{ "q": filter, "limit": limit }],
            "writeConcern": &self.concern,
            "maxTimeMS": millis(TIME),
        }
    }

    /// How many names are held, free, there at all. In two steps: not every server has `$$NOW` in a sum.
    pub fn count(&self) -> Document {
        let one_if = |condition: Document| doc! { "$cond": [condition, 1, 0] };
        let each = doc! { "$project": { "held": one_if(live()), "free": one_if(doc! { "$not": ["$term.lease"] }) } };
        let all = doc! { "$group": {
            "_id": null,
            "held": { "$sum": "$held" },
            "free": { "$sum": "$free" },
            "all": { "$sum": 1 },
        } };
        doc! { "aggregate": &self.collection, "pipeline": [each, all], "cursor": {}, "maxTimeMS": millis(TIME) }
    }

    /// How the collection was made, if the server shows it.
    pub fn made(&self) -> Document {
        doc! { "listCollections": 1, "filter": { "name": &self.collection }, "maxTimeMS": millis(TIME) }
    }
}

/// What is read of a document, and the time when it was read.
fn seen() -> Document {
    doc! { "token": 1, "term": 1, "ended": 1, "evicted": 1, "now": "$$NOW" }
}

/// The update that claims a name, known or new. The marks of an eviction are left alone: they outlive the next claim.
pub(super) fn claim(claim: &Claim, call: ObjectId) -> Document {
    doc! { "q": { "_id": claim.name.as_str() }, "u": claim_update(claim, call), "upsert": true }
}

fn claim_update(claim: &Claim, call: ObjectId) -> Vec<Document> {
    let lease = claim.lease.to_string();
    let mine = doc! { "$eq": ["$term.lease", literal(lease.as_str())] };
    let over = doc! { "$lte": [{ "$add": ["$term.expires", "$term.grace"] }, "$$NOW"] };
    let open = doc! { "$or": [{ "$not": ["$term.lease"] }, &mine, over] };
    // The lease that holds the name, live, asks again.
    let retry = doc! { "$and": [mine, live()] };
    let kept_or = |kept: &str, new: Bson| doc! { "$cond": [&retry, kept, new] };
    let term = doc! {
        "lease": literal(lease),
        "owner": literal(&*claim.owner),
        "data": literal(claim.data.as_deref()),
        "first": kept_or("$term.first", next_token().into()),
        "acquired": kept_or("$term.acquired", "$$NOW".into()),
        "renewed": "$$NOW",
        "expires": { "$max": [kept_or("$term.expires", Bson::Null), in_time(claim.ttl.get())] },
        "grace": literal(millis(claim.grace)),
        "call": literal(call),
    };
    let token = doc! { "$cond": [{ "$and": [&open, { "$not": [&retry] }] }, next_token(), "$token"] };
    vec![doc! { "$set": { "token": token, "term": { "$cond": [open, term, "$term"] } } }]
}

/// The update that renews a term.
pub(super) fn renewal(term: &Renewal) -> Document {
    let mut set = doc! {
        "term.renewed": "$$NOW",
        "term.expires": { "$max": ["$term.expires", in_time(term.ttl.get())] },
    };
    if term.rotate {
        set.insert("token", next_token());
    }
    doc! { "q": ours(&term.name, term.lease, Some(term.first.0)), "u": [{ "$set": set }] }
}

/// The update that ends a term. The holder's own leaves the marks of an earlier eviction alone.
pub(super) fn end(term: &Ended, call: ObjectId) -> Document {
    let mut set = doc! { "term": literal(Bson::Null), "ended": { "at": "$$NOW", "call": literal(call) } };
    if let Some(by) = &term.evicted_by {
        set.insert("evicted", doc! { "lease": "$term.lease", "first": "$term.first", "by": literal(&**by) });
    }
    let first = term.first.map(|first| first.0);
    doc! { "q": ours(&term.name, term.lease, first), "u": [{ "$set": set }] }
}

/// The document of a live term.
fn ours(name: &Name, lease: LeaseId, first: Option<u64>) -> Document {
    let mut ours = doc! { "_id": name.as_str(), "term.lease": lease.to_string(), "$expr": live() };
    if let Some(first) = first {
        ours.insert("term.first", first.cast_signed());
    }
    ours
}

fn live() -> Document {
    doc! { "$gt": ["$term.expires", "$$NOW"] }
}

/// Larger than the name's last, and no smaller than the clock. A new name has no last: `$max` passes over it.
fn next_token() -> Document {
    doc! { "$max": [{ "$add": ["$token", 1_i64] }, micros("$$NOW")] }
}

fn micros(date: impl Into<Bson>) -> Document {
    doc! { "$multiply": [{ "$toLong": date.into() }, 1000_i64] }
}

fn in_time(time: Duration) -> Document {
    doc! { "$add": ["$$NOW", millis(time)] }
}

fn literal(value: impl Into<Bson>) -> Document {
    doc! { "$literal": value.into() }
}

/// Rounded up: dates are in milliseconds, and a term must not be too short.
fn millis(time: Duration) -> i64 {
    i64::try_from(crate::store::seen::micros(time).div_ceil(1000)).unwrap_or(i64::MAX)
}

fn acknowledgment(w: mongodb::options::Acknowledgment) -> Bson {
    use mongodb::options::Acknowledgment;
    match w {
        Acknowledgment::Nodes(nodes) => i64::from(nodes).into(),
        Acknowledgment::Custom(name) => name.into(),
        _ => "majority".into(),
    }
}
