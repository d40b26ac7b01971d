//! What an acquire can ask for, and the rules that its options obey.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::error::{Error, Result};
use crate::record::Ttl;

/// Renewing three times a term leaves room for one failure and a retry before the holder is at risk.
const RENEWALS_PER_TERM: u32 = 3;

/// The limits of what can be asked for, for those who check their input early. [`Ttl`] and [`Name`](crate::Name) have
/// their own.
pub mod limits {
    use std::time::Duration;

    /// The largest data, in bytes of JSON: enough to say who and what; a record is not a place for documents.
    pub const DATA_BYTES: usize = 64 * 1024;
    /// The longest time of any option: beyond, it is a mistake.
    pub const TIME: Duration = Duration::from_secs(366 * 24 * 3600);
    /// The shortest idle time to prune after. Sooner, a claim under way could insert an older token than the one forgotten.
    pub const IDLE: Duration = Duration::from_secs(60);
}

/// What was asked for, unchecked until awaited.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub ttl: Duration,
    pub renew_every: Option<Duration>,
    pub rotate_every: Option<Duration>,
    pub grace: Duration,
    pub max_hold: Option<Duration>,
    pub wait: Option<Duration>,
    pub data: Result<Option<Arc<str>>, String>,
    pub refuse_reentry: bool,
    /// Nobody is at work under the name: a shutdown releases it at once.
    pub workless: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ttl: Ttl::DEFAULT.get(),
            renew_every: None,
            rotate_every: None,
            grace: Duration::ZERO,
            max_hold: None,
            wait: None,
            data: Ok(None),
            refuse_reentry: false,
            workless: false,
        }
    }
}

/// How a term is to be held: options that obey the rules.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub ttl: Ttl,
    pub renew_every: Duration,
    pub rotate_every: Option<Duration>,
    pub grace: Duration,
    pub max_hold: Option<Duration>,
    pub data: Option<Arc<str>>,
    pub refuse_reentry: bool,
    pub workless: bool,
}

impl Options {
    pub fn set_data(&mut self, data: &(impl Serialize + ?Sized)) {
        self.data = serde_json::to_string(data).map(|json| Some(json.into())).map_err(|error| error.to_string());
    }

    /// Checks every option, and each against the others.
    pub fn check(self, min_ttl: Duration) -> Result<Plan> {
        let ttl = Ttl::new(self.ttl)?;
        if self.ttl < min_ttl {
            return Err(Error::invalid("ttl", format!("({:?}) must be at least {min_ttl:?} on this store", self.ttl)));
        }
        self.check_times()?;
        self.check_rotation()?;
        Ok(Plan {
            ttl,
            renew_every: self.renewal_interval(),
            rotate_every: self.rotate_every,
            grace: self.grace,
            max_hold: self.max_hold,
            data: checked_data(self.data)?,
            refuse_reentry: self.refuse_reentry,
            workless: self.workless,
        })
    }

    /// A token can rise only with a renewal, so renewals come at least as often as rotations.
    fn renewal_interval(&self) -> Duration {
        let usual = self.ttl / RENEWALS_PER_TERM;
        self.renew_every.unwrap_or_else(|| usual.min(self.rotate_every.unwrap_or(usual)))
    }

    fn check_times(&self) -> Result<()> {
        let least = Duration::from_millis(1);
        at_least("max_hold", self.max_hold, least)?;
        at_least("renew_every", self.renew_every, least)?;
        at_least("rotate_every", self.rotate_every, least)?;
        for (what, time) in [("grace", Some(self.grace)), ("max_hold", self.max_hold), ("wait", self.wait)] {
            if let Some(time) = time.filter(|time| *time > limits::TIME) {
                return Err(Error::invalid(what, format!("({time:?}) must be at most a year")));
            }
        }
        twice("renew_every", self.renew_every, self.ttl)
    }

    fn check_rotation(&self) -> Result<()> {
        twice("rotate_every", self.rotate_every, self.ttl)?;
        match (self.renew_every, self.rotate_every) {
            (Some(renew), Some(rotate)) if renew > rotate => Err(Error::invalid(
                "rotate_every",
                format!("({rotate:?}) must be at least renew_every ({renew:?}): tokens rise while renewing"),
            )),
            _ => Ok(()),
        }
    }
}

fn at_least(what: &str, time: Option<Duration>, least: Duration) -> Result<()> {
    match time {
        Some(time) if time < least => Err(Error::invalid(what, format!("({time:?}) must be at least {least:?}"))),
        _ => Ok(()),
    }
}

fn twice(what: &str, every: Option<Duration>, ttl: Duration) -> Result<()> {
    match every {
        Some(every) if ttl < every.saturating_mul(2) => Err(Error::invalid(
            "ttl",
            format!("({ttl:?}) must be at least twice {what} ({every:?}): raise ttl or lower {what}"),
        )),
        _ => Ok(()),
    }
}

fn checked_data(data: Result<Option<Arc<str>>, String>) -> Result<Option<Arc<str>>> {
    let data = data.map_err(|why| Error::invalid("data", format!("is not JSON: {why}")))?;
    match &data {
        Some(json) if json.len() > limits::DATA_BYTES => Err(Error::invalid(
            "data",
            format!("has {} bytes as JSON: give at most {}", json.len(), limits::DATA_BYTES),
        )),
        _ => Ok(data),
    }
}

/// The setters that every builder of an acquire has, and a [`Scope`](crate::Scope) for its defaults.
macro_rules! option_setters {
    () => {
        /// How long the name stays held without renewal: 100 ms to 24 h; 30 s unless set.
        ///
        /// After a crash others wait this long. Renewal goes on by itself while the guard lives.
        pub fn ttl(mut self, ttl: std::time::Duration) -> Self {
            self.options.ttl = ttl;
            self
        }

        /// How often the term is renewed: a third of the TTL unless set; at most half of it.
        pub fn renew_every(mut self, every: std::time::Duration) -> Self {
            self.options.renew_every = Some(every);
            self
        }

        /// Raises the token once per period while renewing, so that a downstream can tell how fresh an
        /// instruction is. Off unless set; the TTL must be at least twice as long.
        pub fn rotate_every(mut self, every: std::time::Duration) -> Self {
            self.options.rotate_every = Some(every);
            self
        }

        /// Keeps the name closed for this long after the term *expires* (a release opens it at once), for
        /// resources that can't check tokens. Off unless set.
        pub fn grace(mut self, grace: std::time::Duration) -> Self {
            self.options.grace = grace;
            self
        }

        /// Ends the term after this long even if the holder is alive: a stuck holder must not hold for ever.
        ///
        /// The holder is told ([`Why::HeldTooLong`](crate::Why::HeldTooLong)) and renewing stops. The name is
        /// freed when the holder lets go of it, and at the latest when what is left of the term has passed.
        pub fn max_hold(mut self, max_hold: std::time::Duration) -> Self {
            self.options.max_hold = Some(max_hold);
            self
        }

        /// Attaches data for others to read with [`Record::data`](crate::Record::data): 64 KiB of JSON at most.
        pub fn data(mut self, data: &(impl serde::Serialize + ?Sized)) -> Self {
            self.options.set_data(data);
            self
        }

        /// Answers [`Error::AlreadyHeld`](crate::Error::AlreadyHeld) if this process holds the name already,
        /// instead of waiting for itself or answering that it is busy.
        pub fn refuse_reentry(mut self) -> Self {
            self.options.refuse_reentry = true;
            self
        }
    };
}
pub(crate) use option_setters;

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn why(change: impl FnOnce(&mut Options)) -> String {
        let mut options = Options::default();
        change(&mut options);
        options.check(Duration::ZERO).unwrap_err().to_string()
    }

    #[test]
    fn contradictions_are_refused_and_name_both_options() {
        assert_eq!(
            why(|o| (o.ttl, o.rotate_every) = (20 * SECOND, Some(60 * SECOND))),
            "ttl (20s) must be at least twice rotate_every (60s): raise ttl or lower rotate_every"
        );
        assert!(why(|o| o.renew_every = Some(16 * SECOND)).contains("twice renew_every (16s)"));
        assert!(
            why(|o| (o.renew_every, o.rotate_every) = (Some(10 * SECOND), Some(5 * SECOND)))
                .contains("rotate_every (5s) must be at least renew_every (10s)")
        );
    }

    #[test]
    fn absurd_times_are_refused() {
        assert!(why(|o| o.ttl = Duration::ZERO).contains("ttl (0ns)"));
        assert!(why(|o| o.ttl = 25 * 3600 * SECOND).contains("24h"));
        assert!(why(|o| o.max_hold = Some(Duration::ZERO)).contains("max_hold"));
        assert!(why(|o| o.grace = Duration::MAX).contains("grace"));
        assert!(why(|o| o.renew_every = Some(Duration::MAX)).contains("renew_every"));
        assert!(Options::default().check(60 * SECOND).is_err(), "below the store's own floor");
    }

    #[test]
    fn data_must_be_json_and_small() {
        assert!(why(|o| o.set_data(&"x".repeat(limits::DATA_BYTES))).contains("65538 bytes"));
        assert!(why(|o| o.set_data(&std::collections::HashMap::from([((1, 2), 3)]))).contains("not JSON"));
    }

    #[test]
    fn renewals_come_at_least_as_often_as_rotations() {
        let plan = Options { rotate_every: Some(5 * SECOND), ..Options::default() }.check(Duration::ZERO).unwrap();
        assert_eq!(plan.renew_every, 5 * SECOND);
    }
}
