//! Futures that run together within one, so that a crew needs no runtime to spawn on.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// Futures with keys. Only those that have been woken are polled.
pub struct Pool<F> {
    entries: Vec<Entry<F>>,
    driver: Arc<Mutex<Option<Waker>>>,
}

struct Entry<F> {
    key: String,
    future: Pin<Box<F>>,
    bell: Arc<Bell>,
}

/// Rung when the future of an entry can go on.
struct Bell {
    rung: AtomicBool,
    driver: Arc<Mutex<Option<Waker>>>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.rung.store(true, Ordering::Release);
        let driver = self.driver.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(driver) = driver {
            driver.wake();
        }
    }
}

impl<F: Future> Pool<F> {
    pub fn new() -> Self {
        Self { entries: Vec::new(), driver: Arc::default() }
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// It is polled for the first time by the next [`next`](Pool::next).
    pub fn push(&mut self, key: String, future: F) {
        let bell = Arc::new(Bell { rung: AtomicBool::new(true), driver: self.driver.clone() });
        self.entries.push(Entry { key, future: Box::pin(future), bell });
    }

    /// Drops all of them.
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// Drives all, until one is done; waits for ever if there is none. May be dropped at any time.
    pub async fn next(&mut self) -> (String, F::Output) {
        poll_fn(|context| self.poll_next(context)).await
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<(String, F::Output)> {
        // First, so that a bell that rings while others are polled is heard.
        *self.driver.lock().unwrap_or_else(PoisonError::into_inner) = Some(context.waker().clone());
        for index in 0..self.entries.len() {
            let entry = &mut self.entries[index];
            if !entry.bell.rung.swap(false, Ordering::AcqRel) {
                continue;
            }
            let waker = Waker::from(entry.bell.clone());
            if let Poll::Ready(output) = entry.future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return Poll::Ready((self.entries.swap_remove(index).key, output));
            }
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn all_are_driven_and_each_is_told_once() {
        let mut pool = Pool::new();
        let mut senders = Vec::new();
        for key in ["a", "b", "c"] {
            let (send, receive) = oneshot::channel::<u8>();
            senders.push(send);
            pool.push(key.into(), receive);
        }
        let sender = std::thread::spawn(|| senders.into_iter().rev().zip(1..).for_each(|(s, n)| s.send(n).unwrap()));
        let mut told = [pool.next().await, pool.next().await, pool.next().await].map(|(key, n)| (key, n.unwrap()));
        told.sort();
        assert_eq!(told, [("a".into(), 3), ("b".into(), 2), ("c".into(), 1)]);
        assert!(pool.is_empty());
        sender.join().unwrap();
    }

    #[tokio::test]
    async fn only_those_that_were_woken_are_polled() {
        let polls = std::cell::Cell::new(0);
        let mut pool = Pool::new();
        let never: Pin<Box<dyn Future<Output = ()>>> = Box::pin(poll_fn(|_| {
            polls.set(polls.get() + 1);
            Poll::Pending
        }));
        pool.push("never".into(), never);
        for key in ["x", "y"] {
            pool.push(key.into(), Box::pin(tokio::task::yield_now()));
        }
        let told = [pool.next().await.0, pool.next().await.0];
        assert!(told.contains(&"x".into()) && told.contains(&"y".into()), "{told:?}");
        assert_eq!(polls.get(), 1);
    }
}
