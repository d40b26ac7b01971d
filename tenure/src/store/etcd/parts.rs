//! Calls with more entries than a transaction takes.

use std::future::poll_fn;
use std::task::Poll;

use super::STORE;
use crate::error::Result;
use crate::store::{Claim, answered};

/// A transaction takes 127 others within it, unless the server is told otherwise.
pub(super) const PART: usize = 120;

/// Below what a server takes in one request: 1.5 MiB unless it is told otherwise.
const PART_BYTES: usize = 1 << 20;

/// How many parts of one call are under way at once.
const SIDE_BY_SIDE: usize = 8;

/// Splits entries into parts that fit one transaction each, and that are about as large as each other.
pub(super) fn parts(entries: &[usize], size: impl Fn(&usize) -> usize) -> Vec<Vec<usize>> {
    let most = entries.len().div_ceil(entries.len().div_ceil(PART).max(1)).max(1);
    let mut parts: Vec<Vec<usize>> = Vec::new();
    let mut bytes = 0;
    for entry in entries {
        let more = size(entry);
        match parts.last_mut().filter(|part| part.len() < most && bytes + more <= PART_BYTES) {
            Some(part) => {
                part.push(*entry);
                bytes += more;
            }
            None => {
                parts.push(vec![*entry]);
                bytes = more;
            }
        }
    }
    parts
}

/// What a claim takes in a request, at the most.
pub(super) fn size(claim: &Claim) -> usize {
    let escaped = |text: &str| text.len() + text.bytes().filter(|byte| matches!(byte, b'"' | b'\\')).count();
    escaped(&claim.owner) + claim.data.as_deref().map_or(0, escaped) + 3 * claim.name.as_str().len() + 512
}

/// The answers of all parts, in the order of the entries. What failed alone fails as a whole.
pub(super) fn gather<'a, T>(
    entries: usize,
    parts: impl ExactSizeIterator<Item = (&'a [usize], Result<Vec<Result<T>>>)>,
) -> Result<Vec<Result<T>>> {
    let alone = parts.len() == 1;
    let mut answers: Vec<Option<Result<T>>> = (0..entries).map(|_| None).collect();
    for (part, answered) in parts {
        match answered {
            Err(error) if alone => return Err(error),
            Err(error) => part.iter().for_each(|entry| answers[*entry] = Some(Err(error.clone()))),
            Ok(answered) => part.iter().zip(answered).for_each(|(entry, answer)| answers[*entry] = Some(answer)),
        }
    }
    answered(STORE, entries, answers.into_iter().flatten().collect())
}

/// Makes calls side by side, a few at a time: each has its limit, and the last must not wait for it behind the first.
pub(super) async fn all<F: Future>(calls: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut calls: Vec<_> = calls.map(|call| (Box::pin(call), None)).collect();
    poll_fn(|context| {
        let mut open = 0;
        for (call, answer) in calls.iter_mut().filter(|(_, answer)| answer.is_none()) {
            match call.as_mut().poll(context) {
                Poll::Ready(done) => *answer = Some(done),
                Poll::Pending => open += 1,
            }
            if open == SIDE_BY_SIDE {
                break;
            }
        }
        if open > 0 { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    calls.into_iter().filter_map(|(_, answer)| answer).collect()
}
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_has_neither_too_many_entries_nor_too_many_bytes() {
        let entries: Vec<usize> = (0..1000).collect();
        let split = parts(&entries, |_| 1);
        assert!(split.iter().all(|part| part.len() <= PART), "{split:?}");
        assert_eq!((split.len(), split.concat()), (9, entries.clone()));
        assert!(split.iter().all(|part| part.len() >= 1000 / 10), "they are about as large as each other: {split:?}");
        let split = parts(&entries[..40], |_| PART_BYTES / 3);
        assert!(split.iter().all(|part| part.len() <= 3), "{split:?}");
        assert_eq!(split.concat(), entries[..40]);
        assert_eq!(parts(&[7], |_| 2 * PART_BYTES), [[7]], "one that is too large is on its own");
        assert!(parts(&[], |_| 1).is_empty());
    }

    #[tokio::test]
    async fn calls_are_made_a_few_at_a_time_and_answered_in_order() {
        let under_way = std::cell::Cell::new((0_usize, 0_usize));
        let call = |number: usize| {
            let under_way = &under_way;
            async move {
                let (now, most) = under_way.get();
                under_way.set((now + 1, most.max(now + 1)));
                for _ in 0..number % 5 {
                    tokio::task::yield_now().await;
                }
                under_way.set((under_way.get().0 - 1, under_way.get().1));
                number
            }
        };
        assert_eq!(all((0..50).map(call)).await, (0..50).collect::<Vec<_>>());
        assert!(under_way.get().1 <= SIDE_BY_SIDE, "{under_way:?}");
    }
}
