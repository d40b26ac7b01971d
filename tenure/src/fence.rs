//! The resource's side: refuses whoever is no longer the holder.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::record::Token;

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub mod row;

/// Lets a token pass unless a larger one was seen before: in memory, one for each resource.
///
/// A fence protects where a lock can't: a holder that was paused, and comes back believing that it still holds,
/// is refused as soon as its successor has passed. So a new holder passes the fence *before* it reads what it
/// protects.
///
/// ```
/// use tenure::{Fence, Token};
///
/// let fence = Fence::new();
/// fence.check(Token(7))?;
/// fence.check(Token(7))?; // one holder, many requests
/// fence.check(Token(8))?; // the next holder
/// assert!(fence.check(Token(7)).is_err()); // the one before, back from a pause
/// # Ok::<(), tenure::Stale>(())
/// ```
#[derive(Debug, Default)]
pub struct Fence {
    highest: Mutex<Option<Token>>,
    rule: Rule,
}

/// A token that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("token {token} is stale: {highest} was seen")]
pub struct Stale {
    /// The token that was refused.
    pub token: Token,
    /// The largest seen so far.
    pub highest: Token,
}

impl Fence {
    /// Accepts the largest token seen so far and anything larger.
    pub fn new() -> Self {
        Self::default()
    }

    /// Accepts only what is larger than everything seen so far, for callers that rotate the token for each request.
    pub fn strict() -> Self {
        Self { rule: Rule::Strict, ..Self::default() }
    }

    /// The largest token seen so far.
    pub fn highest(&self) -> Option<Token> {
        *self.locked()
    }

    /// Lets `token` pass and remembers it, or refuses it.
    ///
    /// # Errors
    /// [`Stale`] if a larger one was seen; in strict mode also if this one was.
    pub fn check(&self, token: Token) -> Result<(), Stale> {
        self.run(token, || ())
    }

    /// Checks `token` and, if it passes, acts while no other can pass: check and act are one.
    ///
    /// # Errors
    /// As [`check`](Fence::check).
    pub fn run<T>(&self, token: Token, act: impl FnOnce() -> T) -> Result<T, Stale> {
        let mut highest = self.locked();
        self.rule.judge(token, *highest)?;
        *highest = Some(token);
        Ok(act())
    }

    /// A panic in an act doesn't undo that its token was seen.
    fn locked(&self) -> MutexGuard<'_, Option<Token>> {
        self.highest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is refused: the same wherever the largest token is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rule {
    /// Whatever is older than the largest seen.
    #[default]
    Older,
    /// Equals too.
    Strict,
}

impl Rule {
    /// Whether `token` passes a fence that has seen `highest`.
    pub fn judge(self, token: Token, highest: Option<Token>) -> Result<(), Stale> {
        match highest {
            Some(highest) if token < highest || (self == Self::Strict && token == highest) => {
                Err(Stale { token, highest })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_token_is_refused_and_an_equal_one_passes() {
        let fence = Fence::new();
        assert_eq!(fence.check(Token(2)), Ok(()));
        assert_eq!(fence.check(Token(2)), Ok(()));
        assert_eq!(fence.check(Token(1)), Err(Stale { token: Token(1), highest: Token(2) }));
        assert_eq!(fence.highest(), Some(Token(2)));
    }

    #[test]
    fn a_strict_fence_refuses_equals_too() {
        let fence = Fence::strict();
        assert_eq!(fence.check(Token(2)), Ok(()));
        assert_eq!(fence.check(Token(2)), Err(Stale { token: Token(2), highest: Token(2) }));
        assert_eq!(fence.check(Token(3)), Ok(()));
    }

    #[test]
    fn a_refused_token_does_not_act() {
        let fence = Fence::new();
        assert_eq!(fence.run(Token(2), || "written"), Ok("written"));
        assert!(fence.run(Token(1), || unreachable!("a stale token must not act")).is_err());
    }
}
