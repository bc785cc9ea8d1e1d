//! Which daemon a request goes to, of those that can be asked: a function of what is known of them, and of a number
//! that is as good as drawn.

use super::{
    affinity::{attraction, mixed},
    report::Has,
};
use crate::limits::{LOAD_ALWAYS_BORNE, LOAD_OVER_MEAN_PERCENT};

/// One that can be asked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    /// What it is known by to every gateway.
    pub(crate) id: u64,
    pub(crate) has: Has,
    /// It is left alone for now: asked only where there is no other.
    pub(crate) out: bool,
    /// Requests that it has, as far as that is known.
    pub(crate) load: usize,
}

/// Why the one that was picked was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// Of two that were drawn it has less to do; or there is no other.
    Load,
    /// It is where what begins like this goes.
    Affinity,
    /// The one where what begins like this goes has too much to do, and this one is next.
    Overflow,
}

/// The best of the candidates, by its place among them. `key`: what requests that share a prefix have in common;
/// `model`: a number of the model's name.
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
        // Whoever asks for a model that nobody has loaded yet is sent where others were, so that one daemon loads it.
        (Has::Loading | Has::Stored | Has::Nothing, _) => Some((most_attracted(&able, model)?, Why::Load)),
        (Has::Ready, Some(key)) => by_key(&able, key),
        (Has::Ready, None) => Some((less_loaded_of_two(&able, drawn)?, Why::Load)),
    }
}

fn most_attracted(able: &[(usize, Candidate)], key: u64) -> Option<usize> {
    able.iter().max_by_key(|(_, candidate)| attraction(key, candidate.id)).map(|(at, _)| *at)
}

/// Rendezvous hashing with bounded loads: the most attracted of those that have not too much to do.
fn by_key(able: &[(usize, Candidate)], key: u64) -> Option<(usize, Why)> {
    let total: usize = able.iter().map(|(_, candidate)| candidate.load).sum();
    // With this request, over all of them, and so much more than the mean.
    let bound = ((total + 1) * LOAD_OVER_MEAN_PERCENT).div_ceil(able.len() * 100).max(LOAD_ALWAYS_BORNE);
    let bears = able.iter().copied().filter(|(_, candidate)| candidate.load < bound);
    let bears: Vec<(usize, Candidate)> = bears.collect();
    let home = most_attracted(able, key)?;
    // Not all are over the mean.
    let at = most_attracted(&bears, key).unwrap_or(home);
    Some((at, if at == home { Why::Affinity } else { Why::Overflow }))
}

/// The power of two choices.
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
        // Alone it bears a few, whatever the others have.
        all[home].load = LOAD_ALWAYS_BORNE - 1;
        assert_eq!(pick(&all, Some(42), 0, 1), Some((home, Why::Affinity)));
        all[home].load = LOAD_ALWAYS_BORNE;
        let (other, why) = pick(&all, Some(42), 0, 1).unwrap();
        assert!(other != home && why == Why::Overflow);
        // Where all have as much, it stays.
        let equal = candidates(&[100, 100, 100]);
        assert_eq!(pick(&equal, Some(42), 0, 1), Some((home, Why::Affinity)));
        let mut over = equal.clone();
        over[home].load = 1000;
        assert_eq!(pick(&over, Some(42), 0, 1).unwrap().0, other);
    }

    #[test]
    fn keys_never_pile_up_beyond_the_bound() {
        // The worst: every request has the same key.
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
