//! What the server keeps of a name, and what scripts answer.

use redis::Value;

use super::STORE;
use crate::error::{Error, Result};
use crate::record::{LeaseId, Token};
use crate::store::Grant;
use crate::store::seen::{Found, Seen, unreadable};

/// A token as scripts compare it: as text.
pub(in crate::store) fn digits(token: Token) -> String {
    format!("{:016}", token.0)
}

/// What has become of a claim or a renewal: a token, or what there is instead.
pub(super) fn found(name: &str, answer: &Value, now: u64) -> Result<Found> {
    match answer {
        Value::Int(token) => Ok(Found::Ours(Grant::new(Token(token.cast_unsigned())))),
        Value::Array(parts) => {
            let part = |at: usize| parts.get(at).map_or(Ok(None), text);
            instead(name, part(0)?, part(1)?, part(2)?, now)
        }
        other => Err(unexpected(other)),
    }
}

/// A term, or the mark of an eviction, or both.
fn instead(name: &str, term: Option<&str>, data: Option<&str>, mark: Option<&str>, now: u64) -> Result<Found> {
    let mut found = match term {
        Some(term) => Some(seen(name, term, data, now)?),
        None => mark.map(|_| free(name, now)),
    };
    if let (Some(found), Some(mark)) = (&mut found, mark) {
        let mut fields = mark.splitn(4, ' ');
        found.evicted_lease = fields.next().map(Into::into);
        found.evicted_first = fields.next().and_then(|first| first.parse().ok()).map(Token);
        found.evicted_by = fields.nth(1).map(Into::into);
    }
    Ok(Found::Other(found.map(Box::new)))
}

/// Reads `LEASE FIRST TOKEN EXPIRES ACQUIRED RENEWED GRACE FLAGS OWNER`: numbers of sixteen digits, times in
/// microseconds; only the owner, which comes last, may have a blank in it.
pub(in crate::store) fn seen(name: &str, term: &str, data: Option<&str>, now: u64) -> Result<Seen> {
    let bad = || unreadable(STORE, format!("{name} has {term:?}, which Tenure never wrote"));
    let mut fields = term.splitn(9, ' ');
    let lease = fields.next().filter(|lease| LeaseId::from_hex(lease).is_some()).ok_or_else(bad)?;
    let mut number = || fields.next().and_then(|field| field.parse().ok()).ok_or_else(bad);
    let (first, token, expires) = (number()?, number()?, number()?);
    let (acquired, renewed, grace) = (number()?, number()?, number()?);
    let owner = fields.nth(1).ok_or_else(bad)?;
    Ok(Seen {
        owner: Some(owner.into()),
        data: data.map(Into::into),
        token: Token(token),
        acquired,
        renewed,
        expires,
        lease: Some(lease.into()),
        first: Token(first),
        grace,
        ..free(name, now)
    })
}

/// A name that nobody has.
fn free(name: &str, now: u64) -> Seen {
    Seen {
        name: name.into(),
        owner: None,
        data: None,
        token: Token(0),
        acquired: 0,
        renewed: 0,
        expires: 0,
        lease: None,
        first: Token(0),
        grace: 0,
        evicted_lease: None,
        evicted_first: None,
        evicted_by: None,
        now,
    }
}

/// A text, if there is one.
pub(in crate::store) fn text(value: &Value) -> Result<Option<&str>> {
    match value {
        Value::Nil => Ok(None),
        Value::BulkString(bytes) => std::str::from_utf8(bytes).map(Some).map_err(|error| unreadable(STORE, error)),
        other => Err(unexpected(other)),
    }
}

pub(in crate::store) fn unexpected(answer: &Value) -> Error {
    Error::permanent(STORE, format!("a script answered {answer:?}"))
}
