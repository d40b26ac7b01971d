//! Signals between a test and the calls that it watches.

use std::fmt;
use std::sync::Arc;

use tokio::sync::watch;

/// Where calls wait until a test lets them pass. Clones are the same gate.
#[derive(Clone)]
pub struct Gate(Arc<watch::Sender<GateState>>);

#[derive(Debug, Default)]
struct GateState {
    reached: u64,
    passed: u64,
    open: bool,
}

impl Gate {
    /// A closed one.
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(GateState::default())))
    }

    /// Lets all pass, from now on.
    pub fn open(&self) {
        self.0.send_modify(|gate| gate.open = true);
    }

    /// Waits until a call has come to the gate.
    pub async fn reached(&self) {
        self.until(|gate| gate.reached > 0).await;
    }

    /// Waits until a call that came to the gate has been carried out.
    pub async fn passed(&self) {
        self.until(|gate| gate.passed > 0).await;
    }

    async fn until(&self, condition: impl FnMut(&GateState) -> bool) {
        // It fails only without a sender, and this is one.
        let _ = self.0.subscribe().wait_for(condition).await;
    }

    pub(super) async fn wait(&self) {
        self.0.send_modify(|gate| gate.reached += 1);
        self.until(|gate| gate.open).await;
    }

    pub(super) fn let_pass(&self) {
        self.0.send_modify(|gate| gate.passed += 1);
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.borrow().fmt(f)
    }
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}
