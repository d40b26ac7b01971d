//! What the server answers: the documents of names, and what became of commands.

use std::time::Duration;

use mongodb::bson::oid::ObjectId;
use mongodb::bson::{DateTime, Document, deserialize_from_document};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::STORE;
use crate::error::Result;
use crate::record::{LeaseId, Token};
use crate::store::seen::{Found, Seen, unreadable};
use crate::store::{Grant, Renewal};

/// A name's document. See `commands` for what its parts mean.
#[derive(Deserialize)]
pub(super) struct Kept {
    #[serde(rename = "_id", deserialize_with = "text_or_nothing")]
    pub name: String,
    token: i64,
    term: Option<Term>,
    ended: Option<End>,
    evicted: Option<Eviction>,
    now: DateTime,
}

#[derive(Deserialize)]
struct Term {
    lease: String,
    owner: String,
    data: Option<String>,
    first: i64,
    acquired: DateTime,
    renewed: DateTime,
    expires: DateTime,
    grace: i64,
    call: ObjectId,
}

#[derive(Deserialize)]
struct End {
    call: ObjectId,
}

#[derive(Deserialize)]
struct Eviction {
    lease: String,
    first: i64,
    by: String,
}

impl Kept {
    /// Granted if this very call wrote it: the lease alone would not do, as an earlier attempt of the same claim, which was
    /// held up, may have got a term that began earlier.
    pub fn after_claim(self, call: ObjectId) -> Found {
        match &self.term {
            Some(term) if term.call == call => self.granted(),
            _ => Found::Other(Some(Box::new(self.seen()))),
        }
    }

    pub fn after_renewal(self, asked: &Renewal) -> Found {
        match &self.term {
            Some(term) if term.is(asked) && term.expires > self.now => self.granted(),
            _ => Found::Other(Some(Box::new(self.seen()))),
        }
    }

    fn granted(&self) -> Found {
        Found::Ours(Grant::new(Token(self.token.cast_unsigned())))
    }

    pub fn was_ended_by(&self, call: ObjectId) -> bool {
        self.ended.as_ref().is_some_and(|end| end.call == call)
    }

    pub fn ttl(&self) -> Option<Duration> {
        let term = self.term.as_ref()?;
        Some(Duration::from_micros(micros(term.expires).checked_sub(micros(term.renewed))?))
    }

    pub fn seen(self) -> Seen {
        let (lease, term) = (self.term.as_ref().map(|term| term.lease.clone()), self.term);
        let at = |time: fn(&Term) -> DateTime| term.as_ref().map_or(0, |term| micros(time(term)));
        Seen {
            name: self.name,
            token: Token(self.token.cast_unsigned()),
            acquired: at(|term| term.acquired),
            renewed: at(|term| term.renewed),
            expires: at(|term| term.expires),
            lease,
            first: Token(term.as_ref().map_or(0, |term| term.first.cast_unsigned())),
            grace: term.as_ref().map_or(0, |term| term.grace.cast_unsigned() * 1000),
            evicted_lease: self.evicted.as_ref().map(|evicted| evicted.lease.clone()),
            evicted_first: self.evicted.as_ref().map(|evicted| Token(evicted.first.cast_unsigned())),
            evicted_by: self.evicted.map(|evicted| evicted.by),
            now: micros(self.now),
            owner: term.as_ref().map(|term| term.owner.clone()),
            data: term.and_then(|term| term.data),
        }
    }
}

impl Term {
    fn is(&self, asked: &Renewal) -> bool {
        LeaseId::from_hex(&self.lease) == Some(asked.lease) && self.first.cast_unsigned() == asked.first.0
    }
}

/// The answer to `findAndModify`.
#[derive(Deserialize)]
pub(super) struct Changed {
    pub value: Option<Kept>,
    #[serde(rename = "writeConcernError")]
    pub unacknowledged: Option<Unacknowledged>,
}

/// The answer to `update` and `delete`.
#[derive(Deserialize)]
pub(super) struct Written {
    /// Of documents that were found, or inserted.
    #[serde(rename = "n")]
    pub count: usize,
    #[serde(rename = "writeErrors", default)]
    pub errors: Vec<WriteError>,
    #[serde(rename = "writeConcernError")]
    pub unacknowledged: Option<Unacknowledged>,
}

#[derive(Deserialize)]
pub(super) struct WriteError {
    pub index: usize,
    pub code: i32,
    #[serde(rename = "errmsg", default)]
    pub said: String,
}

#[derive(Deserialize)]
pub(super) struct Unacknowledged {
    #[serde(rename = "errmsg", default)]
    pub said: String,
}

pub(super) fn read<T: DeserializeOwned>(document: Document) -> Result<T> {
    deserialize_from_document(document).map_err(|error| unreadable(STORE, error))
}

fn micros(date: DateTime) -> u64 {
    u64::try_from(date.timestamp_millis()).unwrap_or(0) * 1000
}

/// What can't be a name has none.
fn text_or_nothing<'de, D: serde::Deserializer<'de>>(id: D) -> Result<String, D::Error> {
    let id = mongodb::bson::Bson::deserialize(id)?;
    Ok(id.as_str().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Name, Ttl};

    fn kept(call: ObjectId) -> Kept {
        let at = DateTime::from_millis;
        let term = Term {
            lease: LeaseId(7).to_string(),
            owner: "owner".into(),
            data: None,
            first: 5,
            acquired: at(1000),
            renewed: at(2000),
            expires: at(9000),
            grace: 3,
            call,
        };
        Kept { name: "name".into(), token: 6, term: Some(term), ended: None, evicted: None, now: at(4000) }
    }

    /// An attempt that was held up, and was carried out behind the later one, has a term that began earlier.
    #[test]
    fn a_grant_to_another_attempt_is_not_ours() {
        let (call, other) = (ObjectId::new(), ObjectId::new());
        assert!(matches!(kept(call).after_claim(call), Found::Ours(grant) if grant.token == Token(6)));
        assert!(matches!(kept(other).after_claim(call), Found::Other(Some(_))));
    }

    #[test]
    fn a_document_is_read_as_a_record() {
        let record = kept(ObjectId::new()).seen().record().unwrap().unwrap();
        assert_eq!((record.name.as_str(), record.owner.as_str(), record.data.as_deref()), ("name", "owner", None));
        assert_eq!((record.lease, record.first, record.token), (LeaseId(7), Token(5), Token(6)));
        assert_eq!((record.held_for, record.remaining), (Duration::from_secs(3), Duration::from_secs(5)));
        assert_eq!(record.grace, Duration::from_millis(3));
    }

    #[test]
    fn a_term_that_is_over_was_not_renewed() {
        let asked = Renewal {
            name: Name::new("name").unwrap(),
            lease: LeaseId(7),
            first: Token(5),
            ttl: Ttl::DEFAULT,
            rotate: false,
        };
        let found = |changed: fn(&mut Kept)| {
            let mut kept = kept(ObjectId::new());
            changed(&mut kept);
            matches!(kept.after_renewal(&asked), Found::Ours(_))
        };
        assert!(found(|_| {}));
        assert!(!found(|kept| kept.now = DateTime::from_millis(9000)));
        assert!(!found(|kept| kept.term = None));
        assert!(!found(|kept| kept.term.as_mut().unwrap().first = 4));
    }
}
