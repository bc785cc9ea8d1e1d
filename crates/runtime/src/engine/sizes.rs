//! How large pieces of pictures are: as many products as take some part of a step of those who decode beside them, learned from how long pieces
//! took. A product of attention takes another time than one with weights, the more so the fewer bits those have, and of layers some are nearly
//! all the one and some the other, so both are learned. No number depends on it, only when it comes.

use crate::pace::{DISTURBED, NEWEST_FASTER, NEWEST_SLOWER};
use crate::vision::{Piece, Products};

/// Millions of products of a piece where nobody decodes: some tenths of a second, after which whoever has come meanwhile gets a turn.
const PRODUCTS_ALONE: f64 = 16_384.0;
/// And beside those who decode, as long as it isn't known how long they take, or it.
const PRODUCTS_FIRST: f64 = 512.0;
/// What a piece and drafted tokens together take of the time of a step beside them: with what a step takes longer once the caches are a
/// picture's, the next token of each comes after less than twice the time.
const SHARE: f64 = 0.5;
/// And a piece at least, as steps may draft all the time.
const SHARE_LEAST: f64 = 0.15;
/// As how many with weights a product of attention counts before that is known.
const ATTENTION_FIRST: f64 = 2.0;

/// See the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sizes {
    each_s: Option<[f64; 2]>, // a million products with weights, and of attention
}

impl Sizes {
    /// A piece where nobody decodes.
    pub(super) fn alone(&self) -> Piece {
        self.piece(PRODUCTS_ALONE)
    }

    /// One beside a step of those who decode that takes so long without what is drafted, and so long with it, if that is known.
    pub(super) fn beside(&self, others_s: Option<(f64, f64)>) -> Piece {
        self.piece(match (others_s, self.each_s) {
            (Some((plain_s, drafted_s)), Some([matrix_s, _])) => {
                let left_s = (SHARE * plain_s - (drafted_s - plain_s)).max(SHARE_LEAST * plain_s);
                (left_s / matrix_s).min(PRODUCTS_ALONE)
            }
            _ => PRODUCTS_FIRST,
        })
    }

    fn piece(&self, millions: f64) -> Piece {
        let attention = self.each_s.map_or(ATTENTION_FIRST, |[matrix_s, attention_s]| attention_s / matrix_s);
        Piece::Products { millions, attention }
    }

    /// A piece of so many products took so long.
    pub(super) fn took(&mut self, products: Products, seconds: f32) {
        let seconds = f64::from(seconds);
        let all = products.weighed(ATTENTION_FIRST);
        if !(seconds > 0.0 && seconds.is_finite() && all > 0.0) {
            return;
        }
        let Some(each_s) = &mut self.each_s else {
            self.each_s = Some([1.0, ATTENTION_FIRST].map(|one| one * seconds / all));
            return;
        };
        let parts_s = [each_s[0] * products.matrix, each_s[1] * products.attention];
        let expected_s: f64 = parts_s.iter().sum();
        let ratio = (seconds / expected_s).clamp(1.0 / DISTURBED, DISTURBED);
        let newest = if ratio > 1.0 { NEWEST_SLOWER } else { NEWEST_FASTER };
        // What a piece was mostly of is what it tells of.
        for (each_s, part_s) in each_s.iter_mut().zip(parts_s) {
            *each_s *= 1.0 + newest * (part_s / expected_s) * (ratio - 1.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tower on a device on which a million products of each kind take so long, cut as well as it can be: each piece is of one layer,
    /// whose products are so many of a matrix and so many of attention, in turns. What each piece took.
    fn pieces(each_s: [f64; 2], others_s: f64, layers: [[f64; 2]; 2]) -> Vec<f64> {
        let mut sizes = Sizes::default();
        let mut took = Vec::new();
        for piece in 0..400 {
            // Some pieces of the one kind of layer, then of the other.
            let [matrix, attention] = layers[piece / 40 % 2];
            let Piece::Products { millions, attention: price } = sizes.beside(Some((others_s, others_s)))
            else {
                panic!("pieces are told in products");
            };
            let share = millions / (matrix + attention * price);
            let products = Products { matrix: matrix * share, attention: attention * share };
            let seconds = products.matrix * each_s[0] + products.attention * each_s[1];
            sizes.took(products, seconds as f32);
            took.push(seconds);
        }
        took
    }

    #[test]
    fn a_piece_takes_its_share_of_a_step_whatever_it_is_of() {
        let kinds = [[1.0, 0.01], [0.4, 0.6]];
        for others_s in [1e-3, 0.02, 0.05] {
            // Weights of few bits are multiplied fast, and attention is not.
            for each_s in [[1e-5, 2e-5], [2e-6, 2e-5], [1e-5, 1e-5]] {
                let took = pieces(each_s, others_s, kinds);
                for (piece, seconds) in took.iter().enumerate().skip(120) {
                    let share = seconds / others_s;
                    assert!(
                        (0.75 * SHARE..1.25 * SHARE).contains(&share),
                        "{share} of {others_s} s, piece {piece}"
                    );
                }
                let at_once = took.iter().skip(1).map(|seconds| seconds / others_s).fold(0.0, f64::max);
                assert!(at_once < 6.0, "{at_once} of {others_s} s while nothing was known");
            }
        }
    }

    #[test]
    fn what_is_not_known_or_was_disturbed_changes_little() {
        let mut sizes = Sizes::default();
        let millions = |piece: Piece| match piece {
            Piece::Products { millions, .. } => millions,
            Piece::Layers(_) => panic!("pieces are told in products"),
        };
        assert_eq!(millions(sizes.alone()), PRODUCTS_ALONE);
        assert_eq!(millions(sizes.beside(Some((1.0, 1.0)))), PRODUCTS_FIRST);
        let products = Products { matrix: 500.0, attention: 10.0 };
        [0.0, -1.0, f32::NAN, f32::INFINITY].into_iter().for_each(|seconds| sizes.took(products, seconds));
        sizes.took(Products::default(), 1.0);
        assert_eq!(millions(sizes.beside(Some((1.0, 1.0)))), PRODUCTS_FIRST, "times that are none");
        sizes.took(products, 0.01);
        assert_eq!(millions(sizes.beside(None)), PRODUCTS_FIRST);
        let before = millions(sizes.beside(Some((0.01, 0.01))));
        assert!((before / (SHARE * 520.0) - 1.0).abs() < 1e-3, "{before}");
        let drafted =
            |plain_s, drafted_s| millions(sizes.beside(Some((plain_s, drafted_s)))) / before * SHARE;
        assert!((drafted(0.01, 0.013) - (SHARE - 0.3)).abs() < 1e-3, "drafts take their part");
        assert!((drafted(0.01, 0.05) - SHARE_LEAST).abs() < 1e-3, "and leave something");
        sizes.took(products, 60.0);
        let after = millions(sizes.beside(Some((0.01, 0.01))));
        assert!(after >= before / 2.1 && after < before, "{after} after {before}");
        (0..60).for_each(|_| sizes.took(products, 0.01));
        assert!((millions(sizes.beside(Some((0.01, 0.01)))) / before - 1.0).abs() < 0.1);
        // However fast it is, others get their turn.
        assert_eq!(millions(sizes.beside(Some((1e6, 1e6)))), PRODUCTS_ALONE);
    }
}
