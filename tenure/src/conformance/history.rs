//! What holders did, as they saw it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::checker::{Verdict, check};
use crate::clock::Moment;
use crate::guard::Guard;
use crate::record::{Name, Token};

/// Something that a holder did, or that befell it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The name.
    pub name: Name,
    /// Who: a task, a process; it holds the name at most once at a time.
    pub holder: String,
    /// What.
    pub what: What,
    /// When, by the machine's clock: the same for all its processes.
    pub at: Moment,
}

/// What a holder did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// It began to believe that it holds the name, with this token.
    Granted(Token),
    /// It ceased to believe so: about to release, or lost.
    Ended,
}

/// The operations of many holders. Clones are the same history.
#[derive(Clone, Debug, Default)]
pub struct History(Arc<Mutex<Vec<Operation>>>);

impl History {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// `holder` was handed this guard. Says whether it is held still: else there was nothing to believe.
    pub fn granted(&self, holder: &str, guard: &Guard) -> bool {
        let now = Moment::now();
        let held = now < guard.deadline();
        if held {
            self.add(holder, guard, What::Granted(guard.token()), now);
        }
        held
    }

    /// `holder` is about to let go of this guard, or has found it lost: then its belief ended at the deadline.
    pub fn ended(&self, holder: &str, guard: &Guard) {
        self.add(holder, guard, What::Ended, Moment::now().min(guard.deadline()));
    }

    /// Adds what somebody else saw.
    pub fn extend(&self, operations: impl IntoIterator<Item = Operation>) {
        self.locked().extend(operations);
    }

    /// All operations so far.
    pub fn operations(&self) -> Vec<Operation> {
        self.locked().clone()
    }

    /// Whether it could have happened without two holders at a time.
    pub fn check(&self) -> Verdict {
        check(&self.operations())
    }

    fn add(&self, holder: &str, guard: &Guard, what: What, at: Moment) {
        self.extend([Operation { name: guard.name().clone(), holder: holder.into(), what, at }]);
    }

    fn locked(&self) -> MutexGuard<'_, Vec<Operation>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
