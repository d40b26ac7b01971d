//! Leader election: a lock whose data is the leader's word to the others.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::Moment;
use crate::engine::jittered;
use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::locks::Locks;
use crate::options::{Options, option_setters};
use crate::record::{Record, Token};
use crate::term::{Cancel, Keeper, Ran, STOP_WITHIN, Term};

/// The pause before the next campaign: on a store that is polled, others need it to win. It doubles while work ends soon.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// The longest such pause: what was wrong may have been put right meanwhile.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Work that lasted this long has begun well, and the pauses start from the first again.
const LASTED: Duration = Duration::from_secs(10);
/// How long one that stepped down leaves the name to others, at least: more than they take to notice.
const REST: Duration = Duration::from_secs(1);
/// The shortest time between two looks of an observer, whatever the store could bear: there may be many.
const LEAST_LOOK: Duration = Duration::from_millis(100);

/// The choice of one leader among all who campaign for a name. Made by [`Locks::election`].
///
/// [`lead`](Election::lead) is for most: it runs your work whenever this process leads. [`campaign`](Election::campaign) leaves
/// the rest to you. Others follow with [`leader`](Election::leader) and [`observe`](Election::observe), and read the leader's
/// [`data`](Election::data). Clones are one candidate: [`step_down`](Election::step_down) on any of them is meant for all.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # let locks = tenure::connect("memory:").await?;
/// let election = locks.election("scheduler").data("http://10.0.0.7:8080");
/// let leadership = election.campaign().await?;
/// let leader = election.leader().await?.expect("somebody leads");
/// assert_eq!(leader.token, leadership.token());
/// assert_eq!(leader.data::<String>()?.as_deref(), Some("http://10.0.0.7:8080"));
/// leadership.resign().await?;
/// # Ok(()) })
/// # }
/// ```
#[must_use = "nobody campaigns until one of its methods is awaited"]
#[derive(Clone, Debug)]
pub struct Election {
    locks: Locks,
    name: String,
    options: Options,
    stop_within: Option<Duration>,
    chair: Arc<Chair>,
}

impl Election {
    pub(crate) fn new(locks: Locks, name: String) -> Self {
        Self { locks, name, options: Options::default(), stop_within: Some(STOP_WITHIN), chair: Arc::default() }
    }

    option_setters!();

    /// How long the work of [`lead`](Election::lead) may take to end when it is told to step down: 10 s unless set;
    /// `None` is as long as it likes. It is dropped then. In a [shutdown](Locks::shutdown), the shutdown's own time counts.
    pub fn stop_within(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.stop_within = limit.into();
        self
    }

    /// Waits until this process leads. Nobody else does until the leadership is [resigned](Leadership::resign), dropped or lost.
    ///
    /// # Errors
    /// As [`Locks::lock`].
    ///
    /// # Cancel safety
    /// Dropping the future withdraws from the election, whatever had become of it.
    pub async fn campaign(&self) -> Result<Leadership> {
        self.locks.lock(&self.name).with(self.options.clone()).await.map(Leadership)
    }

    /// Who leads, by the store's word; `None` if nobody does.
    ///
    /// # Errors
    /// As [`Locks::get`].
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn leader(&self) -> Result<Option<Record>> {
        self.locks.get(&self.name).await
    }

    /// Follows who leads.
    pub fn observe(&self) -> Observer {
        Observer { locks: self.locks.clone(), name: self.name.clone(), seen: Seen::default(), due: None }
    }

    /// Campaigns for ever, and runs `work` whenever this process leads. Returns only when there is no point in going on, and
    /// says why: [`Error::Closed`] after a shutdown, [`Error::Invalid`] for a bad name or option, a store that refuses for good.
    ///
    /// The work is dropped at once when the term is lost. When it ends, with or without an error, or when it was told to
    /// [step down](Election::step_down), the name is released, and after a pause this one campaigns again, so that others have their
    /// chance. The pauses grow, up to 30 s, while the work ends within 10 s of its beginning. Errors are logged as `tenure::recipe`.
    ///
    /// # Cancel safety
    /// Dropping it drops the work, and then frees the name.
    pub async fn lead<F, W, E>(&self, mut work: F) -> Error
    where
        F: FnMut(Term) -> W,
        W: Future<Output = Result<(), E>>,
        E: fmt::Display,
    {
        let mut pauses = Pauses::default();
        loop {
            let end = match self.campaign().await {
                Ok(Leadership(guard)) => self.serve(guard, &mut work).await,
                Err(error) if error.is_transient() => self.in_vain(&error),
                Err(error) => return error,
            };
            let pause = pauses.after(&end, self.locks.about().poll);
            if let Err(closed) = self.locks.pause(jittered(pause)).await {
                return closed;
            }
        }
    }

    /// Makes the work that [`lead`](Election::lead) runs in this process end in order: its term is
    /// [cancelled](Term::cancelled), it has [`stop_within`](Election::stop_within) to end, and then the name is released. This
    /// one campaigns again after a moment, in which others have their turn. Says whether there was anybody to tell.
    pub fn step_down(&self) -> bool {
        let cancel = self.chair.seat().clone();
        cancel.is_some_and(|cancel| {
            cancel.tell();
            true
        })
    }

    /// One term, from the grant to the release.
    async fn serve<F, W, E>(&self, guard: Guard, work: &mut F) -> End
    where
        F: FnMut(Term) -> W,
        W: Future<Output = Result<(), E>>,
        E: fmt::Display,
    {
        let keeper = Keeper::new(guard, "");
        let (term, cancel, began) = (keeper.term(), keeper.canceller(), Moment::now());
        let seated = self.chair.sit(&cancel);
        tracing::debug!(target: "tenure::recipe", name = %term.name(), token = term.token().0, "leads");
        let ran = keeper.run(work(term.clone()), self.stop_within.unwrap_or(Duration::MAX)).await;
        drop(seated);
        if let Err(error) = keeper.release().await {
            // Loss and a failed release are told by the engine, too.
            tracing::debug!(target: "tenure::recipe", name = %term.name(), %error, "not released");
        }
        report(&term, &ran);
        if cancel.is_told() { End::SteppedDown } else { End::After(Moment::now() - began) }
    }

    fn in_vain(&self, error: &Error) -> End {
        tracing::warn!(target: "tenure::recipe", name = self.name, %error, "can't campaign; will try again");
        End::Unelected
    }
}

fn report<E: fmt::Display>(term: &Term, ran: &Ran<Result<(), E>>) {
    let (name, token) = (term.name(), term.token().0);
    match ran {
        Ran::Done(Ok(())) => tracing::debug!(target: "tenure::recipe", %name, token, "the leader's work is done"),
        Ran::Done(Err(error)) => {
            tracing::error!(target: "tenure::recipe", %name, token, %error, "the leader's work failed");
        }
        Ran::Lost(lost) => tracing::warn!(target: "tenure::recipe", %name, token, why = %lost.why, "leads no more"),
        Ran::CutOff => {
            tracing::warn!(target: "tenure::recipe", %name, token, "the leader's work was cut off: it did not end in time");
        }
    }
}

/// How a term ended.
enum End {
    /// It did not begin: the store has failed for a TTL.
    Unelected,
    SteppedDown,
    /// After this long, by whatever else.
    After(Duration),
}

/// The pauses between campaigns.
#[derive(Default)]
struct Pauses {
    /// How many ended soon, one after the other.
    vain: u32,
}

impl Pauses {
    fn after(&mut self, end: &End, poll: Duration) -> Duration {
        match end {
            End::SteppedDown => return REST.max(2 * poll),
            // The engine has tried for long, with pauses of its own; whoever tries first when the store is back leads.
            End::Unelected => return FIRST_PAUSE,
            End::After(lasted) if *lasted >= LASTED => self.vain = 0,
            End::After(_) => self.vain += 1,
        }
        FIRST_PAUSE.saturating_mul(1 << self.vain.saturating_sub(1).min(16)).min(LONGEST_PAUSE)
    }
}

/// Where the leader of this process sits, and can be told to get up.
#[derive(Debug, Default)]
struct Chair(Mutex<Option<Arc<Cancel>>>);

impl Chair {
    fn seat(&self) -> MutexGuard<'_, Option<Arc<Cancel>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sit<'a>(&'a self, cancel: &'a Arc<Cancel>) -> Seated<'a> {
        *self.seat() = Some(cancel.clone());
        Seated { chair: self, cancel }
    }
}

/// Gets up when it is dropped, unless another has sat down meanwhile.
struct Seated<'a> {
    chair: &'a Chair,
    cancel: &'a Arc<Cancel>,
}

impl Drop for Seated<'_> {
    fn drop(&mut self) {
        self.chair.seat().take_if(|cancel| Arc::ptr_eq(cancel, self.cancel));
    }
}

/// That this process leads. Dropping it resigns, too; it is a [`Guard`] in everything else.
#[must_use = "dropping the leadership resigns"]
#[derive(Debug)]
pub struct Leadership(Guard);

impl Leadership {
    /// Ends the leadership, and waits until the store has it.
    ///
    /// # Errors
    /// As [`Guard::release`].
    ///
    /// # Cancel safety
    /// The release is under way as soon as this is called; dropping the future does not stop it.
    pub fn resign(self) -> impl Future<Output = Result<()>> + Send + 'static {
        self.0.release()
    }
}

impl Deref for Leadership {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.0
    }
}

/// What an [`Observer`] saw.
#[derive(Clone, Debug)]
pub enum Observed {
    /// A term that was not seen before: who leads, with which token and data.
    Leader(Box<Record>),
    /// Nobody leads at the moment.
    Nobody,
}

/// Follows who leads. Made by [`Election::observe`].
///
/// Each term is seen at most once, and tokens never fall. It looks at the store now and then, so short terms may be missed.
#[derive(Debug)]
pub struct Observer {
    locks: Locks,
    name: String,
    seen: Seen,
    /// Not before then is the store asked again.
    due: Option<Moment>,
}

impl Observer {
    /// The next change; at first, how it stands. Failures of the store that may pass are ridden out.
    ///
    /// # Errors
    /// As [`Locks::get`]; [`Error::Closed`] after a shutdown.
    ///
    /// # Cancel safety
    /// Safe: nothing that was seen is lost.
    pub async fn next(&mut self) -> Result<Observed> {
        loop {
            if let Some(due) = self.due {
                self.locks.pause(due.remaining()).await?;
            }
            self.due = Some(Moment::now() + jittered(self.locks.about().poll.max(LEAST_LOOK)));
            match self.locks.get(&self.name).await {
                Ok(record) => {
                    if let Some(observed) = self.seen.note(record) {
                        return Ok(observed);
                    }
                }
                Err(error) if error.is_transient() => {
                    tracing::debug!(target: "tenure::recipe", name = self.name, %error, "can't see who leads");
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// What was told so far.
#[derive(Debug, Default)]
struct Seen {
    /// The first token of the last term.
    last: Option<Token>,
    nobody: bool,
}

impl Seen {
    /// What is new about it.
    fn note(&mut self, record: Option<Record>) -> Option<Observed> {
        match record {
            Some(record) if self.last.is_none_or(|last| last < record.first) => {
                (self.last, self.nobody) = (Some(record.first), false);
                Some(Observed::Leader(Box::new(record)))
            }
            Some(_) => None,
            None => (!std::mem::replace(&mut self.nobody, true)).then_some(Observed::Nobody),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{LeaseId, Name, Row};

    fn term(first: u64, token: u64) -> Option<Record> {
        let name = Name::new("x").unwrap();
        let (first, token, lease) = (Token(first), Token(token), LeaseId::random());
        let (owner, data) = (String::new(), None);
        Some(Row { name, owner, lease, first, token, acquired: 1, renewed: 1, expires: 2, grace: 0, data }.at(1))
    }

    #[test]
    fn an_observer_tells_of_no_term_twice_or_late() {
        let mut seen = Seen::default();
        let looks =
            [None, term(5, 5), term(5, 8), None, None, term(5, 9), term(3, 3), term(7, 7), term(6, 6), term(9, 9)];
        let told = looks.into_iter().filter_map(|look| seen.note(look)).map(|observed| match observed {
            Observed::Leader(record) => record.token.0,
            Observed::Nobody => 0,
        });
        assert_eq!(told.collect::<Vec<_>>(), [0, 5, 0, 7, 9]);
    }

    #[test]
    fn pauses_grow_while_work_ends_soon() {
        let mut pauses = Pauses::default();
        let mut after = |end| pauses.after(&end, Duration::from_secs(1));
        assert_eq!(after(End::SteppedDown), Duration::from_secs(2), "longer than others take to look");
        assert_eq!(
            [after(End::After(Duration::ZERO)), after(End::After(Duration::ZERO))],
            [FIRST_PAUSE, 2 * FIRST_PAUSE]
        );
        assert_eq!((0..30).map(|_| after(End::After(Duration::ZERO))).max(), Some(LONGEST_PAUSE));
        assert_eq!([after(End::After(LASTED)), after(End::After(Duration::ZERO))], [FIRST_PAUSE, FIRST_PAUSE]);
        assert!((0..30).all(|_| after(End::Unelected) == FIRST_PAUSE), "a store that is back is noticed soon");
    }
}
