//! Asking all servers at once.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::STORE;
use super::member::Member;
use super::votes::majority;
use crate::error::{Error, Result};

/// Asks servers at once. It is over when all have answered, or a majority, and the others have had as much time again, and
/// at least the time for stragglers, if one is given; they go on for as long as they may, and nobody waits for them.
pub(super) async fn ask_all<T, F>(
    members: &[Arc<Member>],
    for_stragglers: Option<Duration>,
    ask: impl Fn(Arc<Member>) -> F,
) -> Vec<Result<T>>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let (send, mut receive) = mpsc::unbounded_channel();
    for (number, member) in members.iter().cloned().enumerate() {
        let (send, asked) = (send.clone(), ask(member));
        tokio::spawn(async move {
            // Nobody waits for it any more.
            let _ = send.send((number, asked.await));
        });
    }
    drop(send);
    let mut answers: Vec<Option<Result<T>>> = members.iter().map(|_| None).collect();
    let (begun, mut until) = (Instant::now(), None);
    while let Some((number, answer)) = match until {
        None => receive.recv().await,
        Some(until) => timeout_at(until, receive.recv()).await.ok().flatten(),
    } {
        answers[number] = Some(answer);
        let heard = answers.iter().flatten().filter(|answer| answer.is_ok()).count();
        if let Some(least) = for_stragglers.filter(|_| until.is_none() && heard >= majority(members.len())) {
            until = Some(Instant::now() + begun.elapsed().max(least));
        }
    }
    let slow = |member: &Member| Error::transient(STORE, format!("{} is slower than the others", member.place()));
    answers.into_iter().zip(members).map(|(answer, member)| answer.unwrap_or_else(|| Err(slow(member)))).collect()
}
