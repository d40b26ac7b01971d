//! Judges histories: at most one holder of a name at a time, and tokens that rise.

use std::collections::{BTreeMap, HashMap};

use super::history::{Operation, What};
use crate::clock::Moment;
use crate::record::{Name, Token};

/// What the checker says of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every promise was kept.
    Ok,
    /// A promise was broken: which, by whom.
    Illegal(String),
    /// The history lacks something that would tell.
    Unknown(String),
}

/// From a grant to its end, as its holder saw it.
#[derive(Clone, Debug)]
struct Term {
    holder: String,
    token: Token,
    from: Moment,
    to: Option<Moment>,
}

/// Checks a history: no two holders of a name believe at the same time that they hold it, and the tokens of a name rise
/// strictly in the order of the grants. A holder's own operations must be in order; those of several may be mixed.
pub fn check(history: &[Operation]) -> Verdict {
    let mut terms = match terms(history) {
        Ok(terms) => terms,
        Err(unknown) => return unknown,
    };
    let verdicts = terms.iter_mut().map(|(name, terms)| check_name(name, terms));
    let mut worst = Verdict::Ok;
    for verdict in verdicts {
        match verdict {
            Verdict::Illegal(_) => return verdict,
            Verdict::Unknown(_) => worst = verdict,
            Verdict::Ok => {}
        }
    }
    worst
}

/// The terms of each name.
fn terms(history: &[Operation]) -> Result<BTreeMap<&Name, Vec<Term>>, Verdict> {
    let mut terms: BTreeMap<&Name, Vec<Term>> = BTreeMap::new();
    let mut open: HashMap<(&Name, &str), usize> = HashMap::new();
    for Operation { name, holder, what, at } in history {
        let of_name = terms.entry(name).or_default();
        match (what, open.remove(&(name, holder.as_str()))) {
            (What::Granted(token), None) => {
                open.insert((name, holder), of_name.len());
                of_name.push(Term { holder: holder.clone(), token: *token, from: *at, to: None });
            }
            (What::Ended, Some(index)) => of_name[index].to = Some(*at),
            (What::Granted(_), Some(_)) => return Err(unknown(name, holder, "was granted twice without an end")),
            (What::Ended, None) => return Err(unknown(name, holder, "ended what was never granted")),
        }
    }
    Ok(terms)
}

fn unknown(name: &Name, holder: &str, why: &str) -> Verdict {
    Verdict::Unknown(format!("{name}: {holder} {why}"))
}

fn check_name(name: &Name, terms: &mut [Term]) -> Verdict {
    terms.sort_by_key(|term| (term.from, term.to, term.token));
    let mut worst = Verdict::Ok;
    for pair in terms.windows(2) {
        match check_pair(name, &pair[0], &pair[1]) {
            Verdict::Ok => {}
            unknown @ Verdict::Unknown(_) => worst = unknown,
            illegal @ Verdict::Illegal(_) => return illegal,
        }
    }
    worst
}

/// Neighbours are enough: of terms that overlap, two are neighbours.
fn check_pair(name: &Name, earlier: &Term, later: &Term) -> Verdict {
    let both =
        format!("{name}: {} (token {}) and {} (token {})", earlier.holder, earlier.token, later.holder, later.token);
    if earlier.token >= later.token {
        return Verdict::Illegal(format!("{both}: the token did not rise"));
    }
    match earlier.to {
        Some(to) if later.from < to => Verdict::Illegal(format!("{both} both held it for {:?}", to - later.from)),
        Some(_) => Verdict::Ok,
        None => Verdict::Unknown(format!("{both}: the end of the first was not seen")),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::now() - Moment::now().since_boot() + Duration::from_millis(millis)
    }

    fn operation(name: &str, holder: &str, what: What, millis: u64) -> Operation {
        Operation { name: Name::new(name).unwrap(), holder: holder.into(), what, at: at(millis) }
    }

    /// One term: who, token, from, to.
    fn term(holder: &str, token: u64, from: u64, to: u64) -> [Operation; 2] {
        [granted(holder, token, from), operation("x", holder, What::Ended, to)]
    }

    fn granted(holder: &str, token: u64, from: u64) -> Operation {
        operation("x", holder, What::Granted(Token(token)), from)
    }

    fn verdict(terms: &[&[Operation]]) -> Verdict {
        check(&terms.concat())
    }

    fn illegal(terms: &[&[Operation]]) -> String {
        match verdict(terms) {
            Verdict::Illegal(why) => why,
            verdict => panic!("passed as {verdict:?}"),
        }
    }

    #[test]
    fn a_good_history_passes() {
        let good: [&[Operation]; 3] = [&term("a", 1, 0, 10), &term("b", 2, 10, 20), &term("a", 5, 21, 30)];
        assert_eq!(verdict(&good), Verdict::Ok);
        assert_eq!(verdict(&[]), Verdict::Ok);
    }

    #[test]
    fn the_order_in_which_holders_are_recorded_does_not_matter() {
        assert_eq!(verdict(&[&term("b", 2, 10, 20), &term("a", 1, 0, 10)]), Verdict::Ok);
    }

    #[test]
    fn names_do_not_exclude_each_other() {
        let elsewhere = [operation("y", "b", What::Granted(Token(1)), 5), operation("y", "b", What::Ended, 6)];
        assert_eq!(verdict(&[&term("a", 1, 0, 10), &elsewhere]), Verdict::Ok);
    }

    #[test]
    fn an_overlap_is_illegal() {
        assert!(illegal(&[&term("a", 1, 0, 10), &term("b", 2, 9, 20)]).contains("both held it for 1ms"));
        assert!(illegal(&[&term("a", 1, 0, 100), &term("b", 2, 10, 20), &term("c", 3, 30, 40)]).contains("both held"));
    }

    #[test]
    fn an_overlap_with_an_open_term_in_between_is_illegal() {
        illegal(&[&term("a", 1, 0, 100), &[granted("b", 2, 10)], &term("c", 3, 20, 30)]);
    }

    #[test]
    fn equal_tokens_are_illegal() {
        assert!(illegal(&[&term("a", 7, 0, 10), &term("b", 7, 20, 30)]).contains("did not rise"));
    }

    #[test]
    fn falling_tokens_are_illegal() {
        assert!(illegal(&[&term("a", 8, 0, 10), &term("b", 7, 20, 30)]).contains("did not rise"));
        illegal(&[&term("a", 8, 0, 10), &term("a", 7, 20, 30)]);
    }

    #[test]
    fn a_term_without_an_end_leaves_it_unknown_if_another_follows() {
        assert!(matches!(verdict(&[&[granted("a", 1, 0)], &term("b", 2, 10, 20)]), Verdict::Unknown(_)));
        assert_eq!(verdict(&[&term("b", 1, 0, 10), &[granted("a", 2, 20)]]), Verdict::Ok);
    }

    #[test]
    fn what_no_single_holder_can_do_leaves_it_unknown() {
        let ended = operation("x", "a", What::Ended, 5);
        assert!(matches!(verdict(&[std::slice::from_ref(&ended)]), Verdict::Unknown(_)));
        assert!(matches!(verdict(&[&[granted("a", 1, 0), granted("a", 2, 5)]]), Verdict::Unknown(_)));
    }
}
