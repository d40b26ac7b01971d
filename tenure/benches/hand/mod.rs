//! A process that does as it is told: the benchmark itself, started again.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A child gets the store's URL in this variable.
const CHILD: &str = "TENURE_BENCH_CHILD";

/// The store's URL, if this process is a child.
pub fn url() -> Option<String> {
    std::env::var(CHILD).ok()
}

/// A child, as its parent sees it; killed when it is dropped.
pub struct Hand {
    child: Child,
    orders: ChildStdin,
    words: BufReader<ChildStdout>,
}

impl Hand {
    pub fn new(url: &str) -> Self {
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

    pub fn tell(&mut self, order: &str) {
        writeln!(self.orders, "{order}").expect("the child listens");
    }

    /// What the child says behind `word`; other words are passed over.
    pub fn said(&mut self, word: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.words.read_line(&mut line).expect("the child speaks") > 0, "the child has ended");
            if let Some(rest) = line.trim_end().strip_prefix(word) {
                return rest.trim().to_owned();
            }
        }
    }

    /// The moment that the child says behind `word`.
    pub fn said_at(&mut self, word: &str) -> u64 {
        self.said(word).parse().expect("a time")
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
