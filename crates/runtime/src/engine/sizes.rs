//! Sizes of picture pieces. A piece should take a fixed part of the time of the decoding step beside it; the cost
//! is learned from measured times. Products of attention take longer than products with weights, all the more if
//! the weights have few bits. Some layers consist almost entirely of one kind, so the cost of each kind is learned.
//! Sizes never change results, only when they come.

use crate::pace::{DISTURBED, NEWEST_FASTER, NEWEST_SLOWER};
use crate::vision::{Piece, Products};

/// Millions of products of a piece when no sequence decodes: some tenths of a second, after which new arrivals get
/// a turn.
const PRODUCTS_ALONE: f64 = 16_384.0;
/// Millions of products of a piece beside decoding sequences while no times are known.
const PRODUCTS_FIRST: f64 = 512.0;
/// Time of a piece and the draft tokens together, as a share of the step beside them. A step also slows down
/// because a picture's data displaces its own from the processor's caches. Even so each next token comes after less
/// than twice the time.
const SHARE: f64 = 0.5;
/// Minimum share of a piece, because steps may always have draft tokens.
const SHARE_LEAST: f64 = 0.15;
/// Initial cost of a product of attention, relative to one with weights.
const ATTENTION_FIRST: f64 = 2.0;

/// See the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sizes {
    each_s: Option<[f64; 2]>, // seconds per million products: with weights, and of attention
}

impl Sizes {
    /// Piece for when no sequence decodes.
    pub(super) fn alone(&self) -> Piece {
        self.piece(PRODUCTS_ALONE)
    }

    /// Piece beside decoding sequences. `others_s` is the time of their step without and with draft tokens, if
    /// known.
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

    /// Records the time of a piece.
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
        // A measurement adjusts each kind by its share of the piece.
        for (each_s, part_s) in each_s.iter_mut().zip(parts_s) {
            *each_s *= 1.0 + newest * (part_s / expected_s) * (ratio - 1.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a tower on a device with these times for a million products of each kind. Pieces are cut ideally:
    /// each is of one layer, and `layers` gives two kinds of layers with their products of matrices and of
    /// attention, in turns. Returns the time of each piece.
    fn pieces(each_s: [f64; 2], others_s: f64, layers: [[f64; 2]; 2]) -> Vec<f64> {
        let mut sizes = Sizes::default();
        let mut took = Vec::new();
        for piece in 0..400 {
            // Some pieces of one kind of layer, then some of the other.
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
            // Weights of few bits make products with weights faster, but not attention.
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
        // However fast it is, other work gets its turn.
        assert_eq!(millions(sizes.beside(Some((1e6, 1e6)))), PRODUCTS_ALONE);
    }
}
