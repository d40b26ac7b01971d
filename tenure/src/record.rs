//! What is held and by whom: names, tokens, leases, records.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// What is held: UTF-8, 1 to 255 bytes, no control characters; `/` separates parts.
///
/// Names are compared byte by byte: `Report` and `report` are two names, and so are `report` and `report `.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

impl Name {
    /// The longest name, in bytes.
    pub const MAX_BYTES: usize = 255;

    /// Checks `name` against the rule.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is empty, too long or has a control character.
    pub fn new(name: impl AsRef<str>) -> Result<Self> {
        let name = name.as_ref();
        let refuse = |why: String| Err(Error::invalid("name", why));
        if name.is_empty() {
            return refuse("is empty: give 1 to 255 bytes".into());
        }
        if name.len() > Self::MAX_BYTES {
            let start: String = name.chars().take(20).collect();
            return refuse(format!("{start:?}… has {} bytes: give 1 to 255", name.len()));
        }
        if name.chars().any(char::is_control) {
            return refuse(format!("{name:?} has a control character: remove it"));
        }
        Ok(Self(name.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What stands before the first `/`: statistics are grouped by it.
    pub fn first_part(&self) -> &str {
        self.0.split('/').next().unwrap_or(&self.0)
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// The fencing number: each grant of a name has a larger one than all grants of that name before it.
///
/// It fits a JSON number (it stays below 2^53) and follows the store's clock in microseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(pub u64);

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One acquisition's identity: 128 random bits, made before the first attempt and the same in every retry.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeaseId(pub u128);

impl LeaseId {
    /// A fresh one.
    pub fn random() -> Self {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).expect("the operating system has random numbers");
        Self(u128::from_ne_bytes(bytes))
    }

    /// Reads what [`Display`](fmt::Display) writes.
    pub fn from_hex(text: &str) -> Option<Self> {
        u128::from_str_radix(text, 16).ok().map(Self)
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeaseId({self})")
    }
}

/// How long a term lasts without renewal: 100 ms to 24 h.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ttl(Duration);

impl Ttl {
    /// The shortest.
    pub const MIN: Duration = Duration::from_millis(100);
    /// The longest.
    pub const MAX: Duration = Duration::from_secs(24 * 3600);
    /// Long enough to ride out a store's restart, short enough to wait for after a crash.
    pub const DEFAULT: Self = Self(Duration::from_secs(30));

    /// Checks `ttl` against the limits.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is outside.
    pub fn new(ttl: Duration) -> Result<Self> {
        if (Self::MIN..=Self::MAX).contains(&ttl) {
            Ok(Self(ttl))
        } else {
            Err(Error::invalid("ttl", format!("({ttl:?}) must be 100ms to 24h")))
        }
    }

    /// The duration.
    pub fn get(self) -> Duration {
        self.0
    }

    /// How much sooner than the store the holder counts its term as over: 1 % for clocks that run at
    /// different rates, and at least 2 ms for their resolution.
    pub fn margin(self) -> Duration {
        (self.0 / 100).max(Duration::from_millis(2))
    }
}

/// A name's record as the store has it: who holds the name, or held it until it expired.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// What is held.
    pub name: Name,
    /// Who holds it, for people.
    pub owner: String,
    /// The acquisition that holds it.
    pub lease: LeaseId,
    /// The term's first token; with the lease it identifies the term.
    pub first: Token,
    /// The current token.
    pub token: Token,
    /// When the term began, by the store's clock.
    pub acquired_at: SystemTime,
    /// When it was last renewed, by the store's clock.
    pub renewed_at: SystemTime,
    /// When it ends unless renewed, by the store's clock.
    pub expires_at: SystemTime,
    /// How long it has been held, by the store's clock.
    pub held_for: Duration,
    /// What is left of the term, by the store's clock; zero if it has expired.
    pub remaining: Duration,
    /// How long the name stays closed after an expiry.
    pub grace: Duration,
    /// The JSON text that the holder attached.
    pub data: Option<String>,
}

impl Record {
    /// Whether the term had not expired when the store was asked.
    pub fn is_live(&self) -> bool {
        !self.remaining.is_zero()
    }

    /// The holder's data, read as a `T`; `None` if it attached none.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the data is not a `T`.
    pub fn data<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        let Some(json) = &self.data else { return Ok(None) };
        serde_json::from_str(json)
            .map(Some)
            .map_err(|error| Error::invalid("data", format!("of {}: {error}", self.name)))
    }
}

/// A record in the integers that most stores keep: microseconds since 1970.
#[derive(Clone, Debug)]
pub struct Row {
    /// See [`Record::name`].
    pub name: Name,
    /// See [`Record::owner`].
    pub owner: String,
    /// See [`Record::lease`].
    pub lease: LeaseId,
    /// See [`Record::first`].
    pub first: Token,
    /// See [`Record::token`].
    pub token: Token,
    /// See [`Record::acquired_at`].
    pub acquired: u64,
    /// See [`Record::renewed_at`].
    pub renewed: u64,
    /// See [`Record::expires_at`].
    pub expires: u64,
    /// Microseconds; see [`Record::grace`].
    pub grace: u64,
    /// See [`Record::data`].
    pub data: Option<String>,
}

impl Row {
    /// The record, as it is when the store's clock shows `now`.
    pub fn at(self, now: u64) -> Record {
        let at = |micros| SystemTime::UNIX_EPOCH + Duration::from_micros(micros);
        Record {
            acquired_at: at(self.acquired),
            renewed_at: at(self.renewed),
            expires_at: at(self.expires),
            held_for: Duration::from_micros(now.min(self.expires).saturating_sub(self.acquired)),
            remaining: Duration::from_micros(self.expires.saturating_sub(now)),
            grace: Duration::from_micros(self.grace),
            name: self.name,
            owner: self.owner,
            lease: self.lease,
            first: self.first,
            token: self.token,
            data: self.data,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_outside_the_rule_are_refused_and_say_why() {
        let why = |name: &str| Name::new(name).unwrap_err().to_string();
        assert!(why("").contains("empty"));
        assert!(why(&"x".repeat(256)).contains("256 bytes"));
        assert!(why("a\nb").contains("control"));
        assert!(Name::new("ü".repeat(127)).is_ok());
        assert!(Name::new("x".repeat(255)).is_ok());
    }

    #[test]
    fn a_lease_is_read_back_as_it_was_written() {
        let lease = LeaseId(7);
        assert_eq!(LeaseId::from_hex(&lease.to_string()), Some(lease));
    }

    #[test]
    fn ttls_outside_the_limits_are_refused() {
        assert!(Ttl::new(Duration::from_millis(99)).is_err());
        assert!(Ttl::new(Duration::from_millis(100)).is_ok());
        assert!(Ttl::new(Ttl::MAX + Duration::from_millis(1)).is_err());
    }
}
