//! Which servers have a vote. One that has restarted, or lost its data, gets it when every term that it may have forgotten
//! is over, with the floor of a majority of those that have kept theirs.

use std::time::Duration;

use super::member::Standing;

/// Standings that are read together are read within this time of each other.
pub(super) const READ_WITHIN: Duration = Duration::from_secs(1);

/// Servers that can't be asked may know of a term; if a majority is new, they are waited for no longer than this.
const FOR_OTHERS: Duration = Duration::from_secs(5);

/// What makes a voter of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Admission {
    pub member: usize,
    pub since: u64,
    pub floor: u64,
    pub longest: Duration,
}

/// Whom to let vote, by what the servers say; and how long to wait for the first of those who have to. `None` is a server
/// that could not be asked.
pub(super) fn admissions(found: &[Option<Standing>]) -> (Vec<Admission>, Option<Duration>) {
    let voters = found.iter().flatten().filter(|standing| standing.votes).count();
    let newborns = found.iter().flatten().count() - voters;
    let majority = found.len() / 2 + 1;
    // Without a majority of either, those that can't be asked may know of a term that is not over.
    if newborns == 0 || (voters < majority && newborns < majority) {
        return (Vec::new(), None);
    }
    let floor = found.iter().flatten().map(|standing| standing.floor).max().unwrap_or(0);
    let longest = found.iter().flatten().map(|standing| standing.longest).max().unwrap_or_default();
    let unheard = voters < majority && voters + newborns < found.len();
    let wait = wait(longest).max(if unheard { FOR_OTHERS } else { Duration::ZERO });
    let (mut admitted, mut next) = (Vec::new(), None::<Duration>);
    for (member, standing) in found.iter().enumerate() {
        let Some(Standing { votes: false, since, age, .. }) = *standing else { continue };
        match wait.checked_sub(age).filter(|left| !left.is_zero()) {
            None => admitted.push(Admission { member, since, floor, longest }),
            Some(left) => next = Some(next.map_or(left, |next| next.min(left))),
        }
    }
    (admitted, next)
}

/// After this time every term that a server has forgotten is over, by a clock whose rate differs by one in a hundred, and
/// no token of such a term is on its way any more. Where nobody has ever claimed anything, there is nothing to wait for.
fn wait(longest: Duration) -> Duration {
    if longest.is_zero() { Duration::ZERO } else { longest + longest / 50 + READ_WITHIN }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(30);

    fn voter(floor: u64) -> Option<Standing> {
        Some(Standing { votes: true, since: 1, age: TTL * 100, floor, longest: TTL })
    }

    fn newborn(age: Duration) -> Option<Standing> {
        Some(Standing { votes: false, since: 7, age, floor: 0, longest: Duration::ZERO })
    }

    #[test]
    fn new_servers_vote_at_once() {
        let (admitted, next) = admissions(&[newborn(Duration::ZERO); 3]);
        assert_eq!((admitted.len(), next), (3, None));
    }

    #[test]
    fn a_majority_of_new_servers_is_enough_to_begin_after_some_time() {
        let found = |age| [newborn(age), None, newborn(age)];
        assert_eq!(admissions(&found(Duration::ZERO)), (Vec::new(), Some(FOR_OTHERS)));
        assert_eq!(admissions(&found(FOR_OTHERS)).0.len(), 2);
    }

    #[test]
    fn an_emptied_server_waits_for_the_longest_term_and_gets_the_largest_floor() {
        let found = |age| [voter(5), voter(9), newborn(age)];
        let (admitted, next) = admissions(&found(TTL));
        assert_eq!(admitted, []);
        assert_eq!(next, Some(TTL / 50 + READ_WITHIN));
        let (admitted, _) = admissions(&found(2 * TTL));
        assert_eq!(admitted, [Admission { member: 2, since: 7, floor: 9, longest: TTL }]);
    }

    #[test]
    fn without_a_majority_that_has_kept_its_data_nobody_is_admitted() {
        let (admitted, _) = admissions(&[voter(5), None, newborn(2 * TTL)]);
        assert_eq!(admitted, []);
        let (admitted, _) = admissions(&[voter(5), voter(9), None, newborn(2 * TTL), newborn(2 * TTL)]);
        assert_eq!(admitted, []);
    }

    #[test]
    fn an_emptied_majority_waits_as_long_as_those_who_kept_their_data_say() {
        let found = |age| [voter(9), newborn(age), newborn(age)];
        assert_eq!(admissions(&found(TTL)).0, []);
        let (admitted, _) = admissions(&found(2 * TTL));
        assert_eq!(
            admitted.iter().map(|admission| (admission.member, admission.floor)).collect::<Vec<_>>(),
            [(1, 9), (2, 9)]
        );
    }
}
