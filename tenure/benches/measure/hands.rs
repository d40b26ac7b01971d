//! Two processes that hand a name over to each other.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use tenure::clock::Moment;
use tenure::{EventKind, Next};

/// A child gets the store's URL in this variable.
const CHILD: &str = "TENURE_BENCH_CHILD";

/// Plays the child, if this process was started as one.
pub fn played() -> bool {
    let Ok(url) = std::env::var(CHILD) else { return false };
    child(&url);
    true
}

/// Two processes, of which the first has the name.
pub struct Hands {
    hands: [Hand; 2],
}

impl Hands {
    pub fn new(url: &str) -> Self {
        let mut hands = [Hand::new(url), Hand::new(url)];
        hands[0].lock();
        hands[0].granted();
        Self { hands }
    }

    /// From the release in one process to the grant in the other that waits, in microseconds.
    pub fn hand_over(&mut self) -> f64 {
        let [from, to] = &mut self.hands;
        to.lock();
        to.said("waits");
        from.tell("release");
        let released: u64 = from.said("released").parse().expect("a time");
        let taken = to.granted() - released;
        self.hands.swap(0, 1);
        taken as f64 / 1e3
    }
}

/// A process that locks and releases as it is told.
struct Hand {
    child: Child,
    orders: ChildStdin,
    words: BufReader<ChildStdout>,
}

impl Hand {
    fn new(url: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("a path"))
            .env(CHILD, url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program can be started again");
        let orders = child.stdin.take().expect("it is piped");
        let words = BufReader::new(child.stdout.take().expect("it is piped"));
        Self { child, orders, words }
    }

    fn tell(&mut self, order: &str) {
        writeln!(self.orders, "{order}").expect("the child listens");
    }

    fn lock(&mut self) {
        self.tell("lock");
    }

    fn granted(&mut self) -> u64 {
        self.said("granted").parse().expect("a time")
    }

    /// What the child says behind `word`; other words are passed over.
    fn said(&mut self, word: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.words.read_line(&mut line).expect("the child speaks") > 0, "the child has ended");
            if let Some(rest) = line.trim_end().strip_prefix(word) {
                return rest.trim().to_owned();
            }
        }
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn child(url: &str) {
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
