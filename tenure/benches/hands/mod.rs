//! Two processes that hand a name over to each other.

use tenure::clock::Moment;
use tenure::{EventKind, Next};

use crate::hand::Hand;

/// The first of them has the name.
pub struct Hands([Hand; 2]);

impl Hands {
    pub fn new(url: &str) -> Self {
        let mut hands = [Hand::new(url), Hand::new(url)];
        hands[0].tell("lock");
        hands[0].said("granted");
        Self(hands)
    }

    /// From the release in one process to the grant in the other that waits, in microseconds.
    pub fn hand_over(&mut self) -> f64 {
        let [from, to] = &mut self.0;
        to.tell("lock");
        to.said("waits");
        from.tell("release");
        let released = from.said_at("released");
        let taken = to.said_at("granted") - released;
        self.0.swap(0, 1);
        taken as f64 / 1e3
    }
}

/// What each of the two does.
pub fn child(url: &str) {
    let locks = tenure::connect(url).blocking().expect("the store opens");
    let mut events = locks.events();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            while let Some(next) = events.next().await {
                if matches!(&next, Next::Event(event) if matches!(event.kind, EventKind::Contended(_))) {
                    println!("waits");
                }
            }
        });
    });
    let mut orders = std::io::stdin().lines();
    while orders.next().is_some() {
        let guard = locks.lock("hand-over").blocking().expect("it is free in time");
        println!("granted {}", Moment::now().since_boot().as_nanos());
        orders.next();
        let released = Moment::now();
        guard.release_blocking().expect("it is held");
        println!("released {}", released.since_boot().as_nanos());
    }
}
