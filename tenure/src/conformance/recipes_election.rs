//! Elections: one leader, work that ends with the term, observers.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::support::{LONG, TICK, free_for, hold, is_closed_to, soon};
use super::{Call, Fault, Subject};
use crate::clock::Moment;
use crate::election::{Election, Observed};
use crate::error::Error;
use crate::locks::Locks;
use crate::record::{Name, Record, Token};
use crate::term::Term;

/// Tells when it is dropped, and how its term stood then.
struct Mark(mpsc::UnboundedSender<Term>, Term);

impl Drop for Mark {
    fn drop(&mut self) {
        // The promise may be over.
        let _ = self.0.send(self.1.clone());
    }
}

/// An election's `lead` in the background, whose work tells of its beginning and its end.
struct Leading {
    begun: mpsc::UnboundedReceiver<Term>,
    ended: mpsc::UnboundedReceiver<Term>,
    task: JoinHandle<Error>,
}

impl Leading {
    /// The work goes on until it is told to stop, if it listens.
    fn start(election: &Election, listens: bool) -> Self {
        Self::work(election, move |term| async move {
            if listens {
                term.cancelled().await
            } else {
                pending().await
            }
            Ok(())
        })
    }

    fn work<W>(election: &Election, work: impl Fn(Term) -> W + Send + Sync + 'static) -> Self
    where
        W: Future<Output = Result<(), String>> + Send,
    {
        let ((begin, begun), (end, ended)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        let (election, work) = (election.clone(), Arc::new(work));
        let task = tokio::spawn(async move {
            let serve = |term: Term| {
                let (mark, work) = (Mark(end.clone(), term.clone()), work.clone());
                let _ = begin.send(term.clone());
                async move {
                    let _mark = mark;
                    work(term).await
                }
            };
            election.lead(serve).await
        });
        Self { begun, ended, task }
    }

    async fn begins(&mut self) -> Term {
        soon("the leader's work begins", self.begun.recv()).await.expect("the work begins")
    }

    async fn ends(&mut self) -> Term {
        soon("the leader's work ends", self.ended.recv()).await.expect("the work ends")
    }
}

impl Drop for Leading {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn candidate(subject: &Subject, name: &Name, word: &str) -> (Locks, Election) {
    let locks = subject.connect().await;
    let election = locks.election(name.as_str()).ttl(LONG).data(word);
    (locks, election)
}

fn token_of(record: Option<Record>) -> Option<Token> {
    record.map(|record| record.token)
}

/// One of two candidates leads, with its word to others; the other does when the first resigns.
pub async fn a_leader_is_followed_when_it_resigns(subject: &Subject) {
    let name = subject.name();
    let (_a, first) = candidate(subject, &name, "first").await;
    let (_b, second) = candidate(subject, &name, "second").await;
    assert!(second.leader().await.expect("the store answers").is_none(), "somebody leads before the first campaign");
    let leads = soon("the first campaign", first.campaign()).await.expect("nobody else campaigns");
    let waits = tokio::spawn({
        let second = second.clone();
        async move { second.campaign().await }
    });
    let leader = second.leader().await.expect("the store answers").expect("somebody leads");
    assert_eq!((leader.token, leader.owner.as_str()), (leads.token(), leads.owner()));
    assert_eq!(leader.data::<String>().expect("the word is text").as_deref(), Some("first"));
    assert!(!waits.is_finished(), "two lead at a time");
    let before = leads.token();
    soon("a resignation", leads.resign()).await.expect("a leader can resign");
    let follows = soon("the second campaign", waits).await.expect("no panic").expect("the name is granted");
    assert!(follows.token() > before, "token {} follows {before}", follows.token());
    assert_eq!(token_of(first.leader().await.expect("the store answers")), Some(follows.token()));
}

/// The work of a leader that loses its term is dropped at once, and it campaigns again.
pub async fn the_leaders_work_is_dropped_on_loss(subject: &Subject) {
    let (locks, faulty) = subject.connect_faulty().await;
    let election = locks.election(subject.name().as_str()).ttl(subject.ttl());
    let mut leading = Leading::start(&election, false);
    let term = leading.begins().await;
    assert!(term.is_held() && !term.is_cancelled());
    faulty.always(Call::Renew, Fault::Fail);
    let ended = leading.ends().await;
    assert!(!ended.is_held() && ended.is_cancelled(), "the work was dropped while its term was held");
    soon("the signal", term.cancelled()).await;
    assert!(ended.why().is_some(), "lost without a reason");
    faulty.heal();
    let next = leading.begins().await;
    assert!(next.token() > term.token(), "token {} follows {}", next.token(), term.token());
}

/// The name is not released before the leader's work has ended, which it is told to by a step-down; then others have their turn.
pub async fn a_leader_steps_down_when_its_work_has_ended(subject: &Subject) {
    let name = subject.name();
    let (_a, first) = candidate(subject, &name, "first").await;
    let (_b, second) = candidate(subject, &name, "second").await;
    let (go, gate) = tokio::sync::watch::channel(false);
    let first = first.stop_within(LONG);
    let mut leading = Leading::work(&first, move |term| {
        let mut gate = gate.clone();
        async move {
            term.cancelled().await;
            let _ = gate.wait_for(|open| *open).await;
            Ok(())
        }
    });
    assert!(!second.step_down(), "a candidate that leads nothing steps down");
    let term = leading.begins().await;
    let rival = tokio::spawn(async move { second.campaign().await });
    assert!(first.step_down(), "the leader can't be told to step down");
    soon("the work is told", term.cancelled()).await;
    sleep(20 * TICK).await;
    assert!(term.is_held() && !rival.is_finished(), "released before the leader's work had ended");
    assert!(is_closed_to(&subject.connect().await, &name).await, "released before the leader's work had ended");
    go.send_replace(true);
    leading.ends().await;
    let rival = soon("the other's turn", rival).await.expect("no panic").expect("the name is granted");
    assert!(!term.is_held() && rival.token() > term.token());
    drop(rival);
    let again = leading.begins().await;
    assert!(again.token() > term.token());
}

/// Work that does not end when it is told to is dropped when its time is over, and the name released.
pub async fn a_leader_that_does_not_step_down_is_cut_off(subject: &Subject) {
    let (other, name) = (subject.connect().await, subject.name());
    let (_a, election) = candidate(subject, &name, "first").await;
    let election = election.stop_within(Duration::from_millis(200));
    let mut leading = Leading::start(&election, false);
    leading.begins().await;
    let told = Moment::now();
    assert!(election.step_down());
    let term = leading.ends().await;
    assert!(Moment::now() - told >= Duration::from_millis(200), "cut off before its time was over");
    assert!(term.is_cancelled() && term.why().is_none(), "stepping down counts as loss");
    free_for(&other, &name, "after a step-down").await;
}

/// Work that ends or fails is followed by another campaign, and the name is free for others in between.
pub async fn a_leader_whose_work_fails_campaigns_again(subject: &Subject) {
    let name = subject.name();
    let (_a, election) = candidate(subject, &name, "first").await;
    let mut leading = Leading::work(&election, |_| async { Err("no luck".to_owned()) });
    let mut last = Token(0);
    for _ in 0..3 {
        let term = leading.begins().await;
        assert!(term.token() > last, "token {} follows {last}", term.token());
        last = term.token();
        leading.ends().await;
        assert!(!leading.task.is_finished(), "a failure of the work ended the campaign");
    }
    free_for(&subject.connect().await, &name, "after the leader's work has failed").await;
}

/// Dropping `lead` drops the work, and frees the name.
pub async fn a_dropped_lead_frees(subject: &Subject) {
    let name = subject.name();
    let (_a, election) = candidate(subject, &name, "first").await;
    let mut leading = Leading::start(&election, false);
    let term = leading.begins().await;
    leading.task.abort();
    let ended = leading.ends().await;
    assert_eq!(ended.token(), term.token());
    free_for(&subject.connect().await, &name, "after `lead` was dropped").await;
}

/// A shutdown tells the leader's work, waits for it, and ends the campaign with a reason; a bad option does, too.
pub async fn leading_ends_with_a_reason(subject: &Subject) {
    let name = subject.name();
    let (locks, election) = candidate(subject, &name, "first").await;
    let mut leading = Leading::start(&election, true);
    let term = leading.begins().await;
    let left = soon("a shutdown", locks.shutdown(LONG)).await;
    assert!(left.is_empty() && term.is_cancelled() && term.why().is_none(), "{left:?}, {:?}", term.why());
    leading.ends().await;
    let why = soon("the end of the campaign", &mut leading.task).await.expect("no panic");
    assert!(matches!(why, Error::Closed), "after a shutdown, `lead` says {why}");
    free_for(&subject.connect().await, &name, "after a shutdown").await;

    let locks = subject.connect().await;
    let nothing = |_: Term| async { Ok::<_, String>(()) };
    let why = soon("a refusal", locks.election("").lead(nothing)).await;
    assert!(why.to_string().starts_with("name is empty"), "an empty name is refused with {why}");
    let election = locks.election(name.as_str()).ttl(Duration::from_secs(2)).renew_every(Duration::from_secs(3));
    let why = soon("a refusal", election.lead(nothing)).await.to_string();
    assert!(why.contains("ttl (2s)") && why.contains("renew_every (3s)"), "contradictory times are refused with {why}");
}

/// Observers see each term at most once, in token order, with owner and data, and that nobody leads.
pub async fn observers_see_each_term_once_and_in_order(subject: &Subject) {
    let name = subject.name();
    let watching = subject.connect().await;
    let mut observer = watching.election(name.as_str()).observe();
    let first = soon("how it stands", observer.next()).await.expect("the store answers");
    assert!(matches!(first, Observed::Nobody), "before the first campaign, observers see {first:?}");
    let (mut seen, mut led) = (Vec::new(), Vec::new());
    for word in ["one", "two", "three"] {
        let (_locks, election) = candidate(subject, &name, word).await;
        // Rotation makes the token rise within the term, which is not another term.
        let election = election.ttl(4 * subject.ttl()).rotate_every(subject.ttl() / 4);
        let leads = soon("a campaign", election.campaign()).await.expect("nobody else campaigns");
        led.push((word.to_owned(), leads.owner().to_owned()));
        seen.push(leader(soon("the next term", observer.next()).await));
        let again = timeout(subject.ttl(), observer.next()).await;
        assert!(again.is_err(), "the same term is seen as {again:?}");
        soon("a resignation", leads.resign()).await.expect("a leader can resign");
        let next = soon("the end of the term", observer.next()).await.expect("the store answers");
        assert!(matches!(next, Observed::Nobody), "after a resignation, observers see {next:?}");
    }
    let told =
        seen.iter().map(|record| (record.data().expect("the word is text").unwrap_or_default(), record.owner.clone()));
    assert_eq!(told.collect::<Vec<(String, String)>>(), led);
    assert!(seen.is_sorted_by(|a, b| a.token < b.token && a.first < b.first), "out of order: {seen:?}");
}

/// An observer whose `next` is dropped again and again misses nothing, and does not look more often for it.
pub async fn a_dropped_look_of_an_observer_loses_nothing(subject: &Subject) {
    let (locks, name) = (subject.connect().await, subject.name());
    let guard = hold(&locks, &name).await;
    let mut observer = locks.election(name.as_str()).observe();
    let look = async {
        let mut patience = Duration::ZERO;
        loop {
            if let Ok(seen) = timeout(patience, observer.next()).await {
                return leader(seen);
            }
            patience += TICK / 5;
        }
    };
    assert_eq!(soon("the leader is seen", look).await.token, guard.token());
}

fn leader(observed: crate::Result<Observed>) -> Record {
    match observed.expect("the store answers") {
        Observed::Leader(record) => *record,
        Observed::Nobody => panic!("nobody is seen to lead"),
    }
}
