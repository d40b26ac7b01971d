//! Electors: a task runs where its key was won, and its key is free when it has ended.

use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use super::support::{LONG, TICK, hold, is_closed_to, soon};
use super::{Call, Fault, Subject};
use crate::clock::Moment;
use crate::elector::{Elector, Ending};
use crate::error::Error;
use crate::guard::Why;
use crate::locks::Locks;
use crate::record::Name;
use crate::term::Term;

/// A scope that nobody else uses, an elector for it, and the name of the key `a`.
async fn elector(subject: &Subject) -> (Locks, Elector, Name) {
    let locks = subject.connect().await;
    let (elector, name) = on(subject, &locks);
    (locks, elector.ttl(LONG), name)
}

fn on(subject: &Subject, locks: &Locks) -> (Elector, Name) {
    let scope = subject.prefix() + "scope";
    let name = Name::new(format!("{scope}/a")).expect("the name is within the rule");
    (locks.elector(scope), name)
}

/// Waits until nobody has the name. It only looks: the key is to be won again.
async fn is_free(locks: &Locks, name: &Name, after: &str) {
    let free = async {
        while locks.get(name).await.expect("the store answers").is_some() {
            sleep(TICK).await;
        }
    };
    soon(&format!("{name} is free {after}"), free).await;
}

/// A task that runs until it is told to stop.
async fn until_told(term: Term) {
    term.cancelled().await;
}

async fn must_win<W>(elector: &Elector, key: &str, work: impl FnOnce(Term) -> W + Send + 'static)
where
    W: Future<Output = ()> + Send + 'static,
{
    let won = soon("a start", elector.start(key, work)).await.expect("the store answers");
    assert!(won, "a free key was not won");
}

/// One of two processes wins a key and runs its task, with a term that knows its key; the other is told so, and sees who has it.
pub async fn one_process_wins_a_key(subject: &Subject) {
    let (locks, ours, name) = elector(subject).await;
    let theirs = subject.connect().await;
    let theirs = theirs.elector(name.as_str().trim_end_matches("/a")).ttl(LONG);
    let (begin, mut begun) = mpsc::unbounded_channel();
    must_win(&ours, "a", move |term| async move {
        let _ = begin.send(term.clone());
        until_told(term).await;
    })
    .await;
    let term = soon("the task runs", begun.recv()).await.expect("the task runs");
    assert_eq!((term.name(), term.key()), (&name, "a"));
    let won = soon("a start", theirs.start("a", |_| async { panic!("two run at a time") })).await;
    assert!(matches!(won, Ok(false)), "a key that another process has: {won:?}");
    assert_eq!(ours.holding().iter().map(Term::token).collect::<Vec<_>>(), [term.token()]);
    assert!(theirs.holding().is_empty());
    let locked = theirs.locked().await.expect("the store answers");
    assert_eq!((locked.len(), locked[0].token, locked[0].owner.as_str()), (1, term.token(), locks.owner()));
}

/// A key that this process has, by whatever means, is refused with the reason; also while its task is starting or stopping.
pub async fn a_key_is_not_started_twice(subject: &Subject) {
    let (locks, elector, name) = elector(subject).await;
    let (first, second) = tokio::join!(elector.start("a", until_told), elector.start("a", until_told));
    assert!(matches!(first, Ok(true)), "a free key: {first:?}");
    for refused in [second, elector.start("a", until_told).await] {
        assert!(matches!(&refused, Err(Error::AlreadyHeld { name: held }) if *held == name), "twice: {refused:?}");
    }
    soon("a stop", elector.stop("a")).await.expect("the key can be released").expect("the task runs here");
    let guard = hold(&locks, &name).await;
    let refused = elector.start("a", until_told).await;
    assert!(matches!(refused, Err(Error::AlreadyHeld { .. })), "held by the same process: {refused:?}");
    drop(guard);
    is_free(&subject.connect().await, &name, "after a release").await;
    must_win(&elector, "a", until_told).await;
}

/// Stopping tells the task, waits until it has ended, and only then releases its key.
pub async fn a_stopped_task_ends_before_its_key_is_free(subject: &Subject) {
    let (_locks, elector, name) = elector(subject).await;
    let (elector, other) = (Arc::new(elector.stop_within(None)), subject.connect().await);
    let (go, mut gate) = watch::channel(false);
    let ended = Arc::new(AtomicBool::new(false));
    let end = ended.clone();
    must_win(&elector, "a", move |term| async move {
        term.cancelled().await;
        let _ = gate.wait_for(|open| *open).await;
        end.store(true, Ordering::SeqCst);
    })
    .await;
    let term = elector.holding().remove(0);
    assert!(!term.is_cancelled());
    let stop = tokio::spawn({
        let elector = elector.clone();
        async move { elector.stop("a").await }
    });
    soon("the task is told", term.cancelled()).await;
    let refused = elector.start("a", until_told).await;
    assert!(matches!(refused, Err(Error::AlreadyHeld { .. })), "started while it is stopping: {refused:?}");
    sleep(20 * TICK).await;
    assert!(is_closed_to(&other, &name).await, "released before the task had ended");
    assert!(term.is_held() && !stop.is_finished(), "stopped before the task had ended");
    go.send_replace(true);
    let ending = soon("the stop", stop).await.expect("no panic").expect("the key can be released");
    assert!(matches!(ending, Some(Ending::Done)), "the task ended with {ending:?}");
    assert!(ended.load(Ordering::SeqCst), "the task was not waited for");
    is_free(&other, &name, "after its task was stopped").await;
    let again = elector.stop("a").await.expect("nothing is asked of the store");
    assert!(again.is_none(), "a task that does not run ended with {again:?}");
}

/// A task that does not stop is dropped when its time is over, and its key is free.
pub async fn a_task_that_does_not_stop_is_cut_off(subject: &Subject) {
    let limit = Duration::from_millis(200);
    let (_locks, elector, name) = elector(subject).await;
    let elector = elector.stop_within(limit);
    must_win(&elector, "a", |_| pending()).await;
    let told = Moment::now();
    let ending = soon("the stop", elector.stop("a")).await.expect("the key can be released");
    assert!(matches!(ending, Some(Ending::CutOff)), "the task ended with {ending:?}");
    assert!(Moment::now() - told >= limit, "cut off before its time was over");
    is_free(&subject.connect().await, &name, "after its task was cut off").await;
}

/// A release that fails is made again before a stop says that all is done; one that can't be made is told.
pub async fn a_stop_releases_again_what_failed(subject: &Subject) {
    let (locks, faulty) = subject.connect_faulty().await;
    let (elector, name) = on(subject, &locks);
    let elector = elector.ttl(LONG);
    must_win(&elector, "a", until_told).await;
    faulty.next_calls(2, Call::Release, Fault::Fail);
    let ending = soon("the stop", elector.stop("a")).await.expect("the key is released in the end");
    assert!(matches!(ending, Some(Ending::Done)), "the task ended with {ending:?}");
    assert!(faulty.calls(Call::Release) > 2, "a release that failed was not made again");
    is_free(&subject.connect().await, &name, "after its task was stopped").await;
    let elector = elector.ttl(subject.ttl());
    must_win(&elector, "a", until_told).await;
    faulty.always(Call::Release, Fault::Fail);
    let failed = soon("the stop", elector.stop("a")).await;
    assert!(matches!(failed, Err(Error::Store { .. })), "a key that could not be released: {failed:?}");
    assert!(elector.holding().is_empty());
}

/// A task that ends, or panics, frees its key; a panic is told, and touches no other task.
pub async fn a_task_that_ends_or_panics_frees_its_key(subject: &Subject) {
    let (_locks, elector, name) = elector(subject).await;
    let told = Arc::new(Mutex::new(Vec::new()));
    let (tell, mut endings) = mpsc::unbounded_channel();
    let elector = elector.on_end(move |key, ending| {
        let _ = tell.send((key.to_owned(), ending.clone()));
    });
    must_win(&elector, "b", until_told).await;
    for panics in [false, true] {
        let ran = told.clone();
        must_win(&elector, "a", move |term| async move {
            ran.lock().expect("nobody panics here").push(term.token());
            if panics {
                // Without the message that a panic prints.
                std::panic::resume_unwind(Box::new("told to panic"));
            }
        })
        .await;
        let (key, ending) = soon("the task ends", endings.recv()).await.expect("the elector is there");
        assert_eq!(key, "a");
        match (panics, ending) {
            (false, Ending::Done) => {}
            (true, Ending::Panicked(words)) => assert_eq!(words, "told to panic"),
            (_, ending) => panic!("the task ended with {ending:?} (panics: {panics})"),
        }
        is_free(&subject.connect().await, &name, "after its task has ended").await;
    }
    assert!(told.lock().expect("nobody panics here").is_sorted());
    assert_eq!(elector.holding().iter().map(Term::key).collect::<Vec<_>>(), ["b"], "another task was touched");
}

/// Failures to renew are ridden out until two intervals are left; then the task is told, while its key is still held.
pub async fn a_task_is_told_with_two_intervals_left(subject: &Subject) {
    let (locks, faulty) = subject.connect_faulty().await;
    let (elector, _) = on(subject, &locks);
    let (ttl, every) = (4 * subject.ttl(), subject.ttl() / 2);
    let elector = elector.ttl(ttl).renew_every(every).stop_within(LONG);
    must_win(&elector, "a", |_| pending()).await;
    let term = elector.holding().remove(0);
    faulty.next_calls(2, Call::Renew, Fault::Fail);
    soon("renewals that fail are made again", faulty.answered(Call::Renew, 3)).await;
    assert!(term.is_held() && !term.is_cancelled(), "failures that pass were not ridden out");
    faulty.always(Call::Renew, Fault::Fail);
    soon("the task is told", term.cancelled()).await;
    let left = term.remaining();
    assert!(left <= 2 * every, "told with {left:?} left");
    assert!(term.is_held(), "told when it was too late");
    soon("loss", term.lost()).await;
    let gone = async {
        while !elector.holding().is_empty() {
            sleep(TICK).await;
        }
    };
    soon("the task is dropped on loss", gone).await;
}

/// A task whose key is lost is dropped, and it is told why.
pub async fn a_task_whose_key_is_lost_is_dropped(subject: &Subject) {
    let (locks, elector, name) = elector(subject).await;
    let (tell, mut endings) = mpsc::unbounded_channel();
    let elector = elector.on_end(move |_, ending| drop(tell.send(ending.clone())));
    let (alive, mut gone) = mpsc::channel::<()>(1);
    must_win(&elector, "a", move |_| async move {
        let _alive = alive;
        pending().await
    })
    .await;
    let term = elector.holding().remove(0);
    locks.evict(&name, "conformance").await.expect("the store answers").expect("the key is held");
    soon("the task is dropped", gone.recv()).await;
    assert!(term.is_cancelled() && !term.is_held(), "dropped while its key was held");
    match soon("its end is told", endings.recv()).await {
        Some(Ending::Lost(lost)) => assert!(matches!(lost.why, Why::Evicted(_)), "the reason is {}", lost.why),
        ending => panic!("the task ended with {ending:?}"),
    }
    must_win(&elector, "a", until_told).await;
}

/// Closing tells all tasks at once to stop, and waits for them; nothing is started any more.
pub async fn closing_an_elector_stops_all(subject: &Subject) {
    let (_locks, elector, name) = elector(subject).await;
    let elector = elector.stop_within(Duration::from_secs(3));
    must_win(&elector, "b", until_told).await;
    let other = elector.holding().remove(0);
    // The first in order, which waits for the second to be told.
    must_win(&elector, "a", move |term| async move {
        term.cancelled().await;
        other.cancelled().await;
    })
    .await;
    must_win(&elector, "c", |_| pending()).await;
    let endings = soon("the close", elector.close()).await;
    let ended = |key: &str| endings.iter().find(|(ended, _)| ended == key).map(|(_, ending)| ending);
    assert!(matches!(ended("a"), Some(Ok(Ending::Done))), "told one after the other: {endings:?}");
    assert!(matches!(ended("b"), Some(Ok(Ending::Done))), "{endings:?}");
    assert!(matches!(ended("c"), Some(Ok(Ending::CutOff))), "{endings:?}");
    let refused = elector.start("d", until_told).await;
    assert!(matches!(refused, Err(Error::Closed)), "after a close, a start says {refused:?}");
    let left = elector.locked().await.expect("the store answers");
    assert!(elector.holding().is_empty() && left.is_empty(), "left after a close of {name}: {left:?}");
}

/// A dropped elector tells its tasks to stop, and their keys are free when they have.
pub async fn a_dropped_elector_frees(subject: &Subject) {
    let (_locks, elector, name) = elector(subject).await;
    must_win(&elector, "a", until_told).await;
    let term = elector.holding().remove(0);
    drop(elector);
    soon("the task is told", term.cancelled()).await;
    is_free(&subject.connect().await, &name, "after its elector was dropped").await;
}

/// A shutdown tells all tasks, waits for those that need time, and cuts off what does not end.
pub async fn a_shutdown_ends_an_electors_tasks(subject: &Subject) {
    let (locks, elector, name) = elector(subject).await;
    // The shutdown's time counts, not the elector's.
    let elector = elector.stop_within(Duration::ZERO);
    let (done, mut word) = mpsc::unbounded_channel();
    must_win(&elector, "a", move |term| async move {
        term.cancelled().await;
        sleep(10 * TICK).await;
        let _ = done.send(term.is_held());
    })
    .await;
    must_win(&elector, "b", |_| pending()).await;
    let left = soon("a shutdown", locks.shutdown(100 * TICK)).await;
    assert!(left.is_empty(), "a shutdown says that {left:?} could not be released");
    assert_eq!(word.try_recv(), Ok(true), "a task was not given the time to end while its key is held");
    let other = subject.connect().await;
    let left = other.list(name.as_str().trim_end_matches('a')).await.expect("the store answers");
    assert!(left.is_empty(), "left after a shutdown: {left:?}");
}

/// Bad scopes, keys and options are refused, with what was wrong; nothing is started.
pub async fn an_elector_refuses_bad_input(subject: &Subject) {
    let (locks, elector, _) = elector(subject).await;
    let why = async |elector: &Elector, key: &str| {
        elector.start(key, async |_| panic!("started")).await.expect_err("it is refused").to_string()
    };
    for scope in ["", "ends/"] {
        assert!(why(&locks.elector(scope), "a").await.starts_with("scope"), "scope {scope:?}");
        let listed = locks.elector(scope).locked().await.expect_err("it is refused").to_string();
        assert!(listed.starts_with("scope"), "{listed}");
    }
    assert!(why(&elector, "a\nb").await.contains("control character"));
    let times = elector.ttl(Duration::from_secs(5)).renew_every(Duration::from_secs(3));
    let why = why(&times, "a").await;
    assert!(why.contains("ttl (5s)") && why.contains("twice renew_every (3s)"), "{why}");
    assert!(times.holding().is_empty());
}

/// Tasks run where their spawner puts them.
pub async fn a_spawner_runs_the_tasks(subject: &Subject) {
    let (_locks, elector, name) = elector(subject).await;
    let (put, mut tasks) = mpsc::unbounded_channel();
    let (tell, mut told) = mpsc::unbounded_channel();
    let elector = elector.spawner(move |task| drop(put.send(task)));
    let elector = elector.on_end(move |key, ending| drop(tell.send((key.to_owned(), ending.clone()))));
    must_win(&elector, "a", |_| async {}).await;
    let other = subject.connect().await;
    assert!(is_closed_to(&other, &name).await, "free before its task was run");
    soon("the task", tasks.try_recv().expect("the spawner was given the task")).await;
    is_free(&other, &name, "after its task has ended").await;
    // A task that is never run frees its key when it is dropped.
    must_win(&elector, "a", |_| async { panic!("never run") }).await;
    drop(tasks.try_recv().expect("the spawner was given the task"));
    is_free(&other, &name, "after its task was dropped").await;
    assert!(elector.holding().is_empty());
    let ends = [told.try_recv(), told.try_recv()];
    let [Ok((one, Ending::Done)), Ok((other, Ending::CutOff))] = &ends else { panic!("told of {ends:?}") };
    assert_eq!([one, other], ["a", "a"]);
}
