//! Choice of a daemon among the candidates: a pure function of their state and of a pseudo-random number.

use super::{
    affinity::{attraction, mixed},
    report::Has,
};
use crate::limits::{LOAD_ALWAYS_BORNE, LOAD_OVER_MEAN_PERCENT};

/// Daemon that a request may go to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    /// Hash of its name, the same in every gateway.
    pub(crate) id: u64,
    pub(crate) has: Has,
    /// Ejected: asked only if there is no other.
    pub(crate) out: bool,
    /// Known number of its requests.
    pub(crate) load: usize,
}

/// Reason of a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// Less loaded than another one drawn at random, or the only one.
    Load,
    /// Requests with this prefix go there.
    Affinity,
    /// The daemon for this prefix has too much load, and this one is next.
    Overflow,
}

/// Index of the best candidate. `key` is the affinity key of the prefix, `model` a hash of the model's name.
pub(crate) fn pick(
    candidates: &[Candidate],
    key: Option<u64>,
    model: u64,
    drawn: u64,
) -> Option<(usize, Why)> {
    let rank = |candidate: &Candidate| (candidate.out, candidate.has);
    let best = candidates.iter().map(rank).min()?;
    let able: Vec<(usize, Candidate)> =
        candidates.iter().copied().enumerate().filter(|(_, candidate)| rank(candidate) == best).collect();
    match (best.1, key) {
        // Requests for a model that is not loaded go to the same daemon, so that only one loads it.
        (Has::Loading | Has::Stored | Has::Nothing, _) => Some((most_attracted(&able, model)?, Why::Load)),
        (Has::Ready, Some(key)) => by_key(&able, key),
        (Has::Ready, None) => Some((less_loaded_of_two(&able, drawn)?, Why::Load)),
    }
}

fn most_attracted(able: &[(usize, Candidate)], key: u64) -> Option<usize> {
    able.iter().max_by_key(|(_, candidate)| attraction(key, candidate.id)).map(|(at, _)| *at)
}

/// Rendezvous hashing with bounded loads: the highest score among those below the bound.
fn by_key(able: &[(usize, Candidate)], key: u64) -> Option<(usize, Why)> {
    let total: usize = able.iter().map(|(_, candidate)| candidate.load).sum();
    // Bound: a percentage above the mean load, with this request included.
    let bound = ((total + 1) * LOAD_OVER_MEAN_PERCENT).div_ceil(able.len() * 100).max(LOAD_ALWAYS_BORNE);
    let bears = able.iter().copied().filter(|(_, candidate)| candidate.load < bound);
    let bears: Vec<(usize, Candidate)> = bears.collect();
    let home = most_attracted(able, key)?;
    // At least one is below the bound, so this default is not used.
    let at = most_attracted(&bears, key).unwrap_or(home);
    Some((at, if at == home { Why::Affinity } else { Why::Overflow }))
}

/// Less loaded of two random candidates (power of two choices).
fn less_loaded_of_two(able: &[(usize, Candidate)], drawn: u64) -> Option<usize> {
    let count = able.len() as u64;
    if count == 0 {
        return None;
    }
    let one = drawn % count;
    let other = (one + 1 + mixed(drawn) % count.saturating_sub(1).max(1)) % count;
    let (one, other) = (&able[one as usize], &able[other as usize]);
    Some(if other.1.load < one.1.load { other.0 } else { one.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(loads: &[usize]) -> Vec<Candidate> {
        let one = |(at, load): (usize, &usize)| Candidate {
            id: mixed(at as u64),
            has: Has::Ready,
            out: false,
            load: *load,
        };
        loads.iter().enumerate().map(one).collect()
    }

    #[test]
    fn the_less_loaded_of_two_is_taken_and_the_most_loaded_of_all_never() {
        let all = candidates(&[3, 9, 1]);
        let mut taken = [0; 3];
        for drawn in (0..3000).map(mixed) {
            taken[pick(&all, None, 0, drawn).unwrap().0] += 1;
        }
        assert_eq!(taken[1], 0, "{taken:?}");
        assert!(taken[2] > 1800 && taken[0] > 800, "{taken:?}");
        assert_eq!(pick(&[], None, 0, 7), None);
        assert_eq!(pick(&candidates(&[5]), None, 0, 7), Some((0, Why::Load)));
    }

    #[test]
    fn loads_stay_close_where_nothing_else_tells_daemons_apart() {
        let mut loads = vec![0; 10];
        for drawn in (0..10_000).map(mixed) {
            let (at, _) = pick(&candidates(&loads), None, 0, drawn).unwrap();
            loads[at] += 1;
        }
        let (least, most) = (loads.iter().min().unwrap(), loads.iter().max().unwrap());
        assert!(most - least < 12, "{loads:?}");
    }

    #[test]
    fn one_key_goes_to_one_daemon_until_that_has_too_much_to_do() {
        let mut all = candidates(&[0, 0, 0]);
        let (home, why) = pick(&all, Some(42), 0, 1).unwrap();
        assert_eq!(why, Why::Affinity);
        for drawn in 0..50 {
            assert_eq!(pick(&all, Some(42), 0, drawn), Some((home, Why::Affinity)));
        }
        // A few requests are always accepted, whatever the load of the others.
        all[home].load = LOAD_ALWAYS_BORNE - 1;
        assert_eq!(pick(&all, Some(42), 0, 1), Some((home, Why::Affinity)));
        all[home].load = LOAD_ALWAYS_BORNE;
        let (other, why) = pick(&all, Some(42), 0, 1).unwrap();
        assert!(other != home && why == Why::Overflow);
        // If all have the same load, the choice stays.
        let equal = candidates(&[100, 100, 100]);
        assert_eq!(pick(&equal, Some(42), 0, 1), Some((home, Why::Affinity)));
        let mut over = equal.clone();
        over[home].load = 1000;
        assert_eq!(pick(&over, Some(42), 0, 1).unwrap().0, other);
    }

    #[test]
    fn keys_never_pile_up_beyond_the_bound() {
        // Worst case: every request has the same key.
        let mut loads = vec![0; 4];
        for _ in 0..1000 {
            let (at, _) = pick(&candidates(&loads), Some(7), 0, 0).unwrap();
            loads[at] += 1;
        }
        let most = *loads.iter().max().unwrap();
        assert!(most <= 1000 * LOAD_OVER_MEAN_PERCENT / 400 + 1, "{loads:?}");
    }

    #[test]
    fn who_has_the_model_goes_before_who_stores_it_and_who_is_left_alone_comes_last() {
        let mut all = candidates(&[90, 0, 0, 0]);
        (all[1].has, all[2].has, all[3].has) = (Has::Loading, Has::Stored, Has::Nothing);
        assert_eq!(pick(&all, None, 0, 3), Some((0, Why::Load)));
        all[0].out = true;
        assert_eq!(pick(&all, None, 0, 3), Some((1, Why::Load)));
        (all[1].out, all[2].out) = (true, true);
        assert_eq!(pick(&all, Some(1), 0, 3), Some((3, Why::Load)));
        all[3].out = true;
        assert_eq!(pick(&all, None, 0, 3), Some((0, Why::Load)), "where none is in, the best is tried");
    }

    #[test]
    fn whoever_asks_for_a_model_that_none_has_loaded_asks_the_same_daemon() {
        let mut all = candidates(&[0, 3, 9]);
        all.iter_mut().for_each(|candidate| candidate.has = Has::Stored);
        let first = pick(&all, Some(1), 77, 0).unwrap().0;
        for drawn in 0..20 {
            assert_eq!(pick(&all, Some(drawn), 77, drawn).unwrap().0, first);
        }
        let others = (0..40).map(|model| pick(&all, None, mixed(model), 0).unwrap().0);
        assert!(others.collect::<std::collections::BTreeSet<_>>().len() == 3, "models spread over daemons");
    }
}
