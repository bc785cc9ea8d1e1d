//! Conversion of a tile's scores into weights, relative to the largest score so far.

#![allow(unsafe_op_in_unsafe_fn)] // The contract is that of `lanes`, and of the maker of a `TileStep`.

use super::super::lanes::Lanes;
use super::super::math;
use super::TILE;
use super::tile::TileStep;

const LANES: usize = 16;
const VECTORS: usize = TILE / LANES;
const _: () = assert!(VECTORS == 4);
/// Lane indices.
const NUMBERS: [f32; LANES] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];

impl TileStep<'_> {
    /// Turns the vectors' dot products into weights, adds these to their totals, and stores the factors for their
    /// earlier sums. Keys that a vector does not see get weight 0, whatever their score.
    #[inline(always)]
    pub(super) unsafe fn softmax<L: Lanes>(&self) {
        let mut before = [f32::NEG_INFINITY; LANES];
        let mut tops = [f32::NEG_INFINITY; LANES];
        for q in 0..self.count {
            before[q] = self.state.top(self.v + q).read();
            tops[q] = self.logits::<L>(q);
        }
        let top = L::max(L::load(tops.as_ptr()), L::load(before.as_ptr()));
        let mut rescales = [0.0; LANES];
        L::store(rescales.as_mut_ptr(), math::exp::<L>(L::sub(L::load(before.as_ptr()), top)));
        L::store(tops.as_mut_ptr(), top);
        for q in 0..self.count {
            let row = self.workspace.scores.add((self.v + q) * TILE);
            let rescale = self.workspace.rescales.add(self.v + q);
            if tops[q] == f32::NEG_INFINITY {
                std::ptr::write_bytes(row, 0, TILE);
                rescale.write(1.0);
                continue;
            }
            let mut weights = [L::splat(0.0); VECTORS];
            for (i, weights) in weights.iter_mut().enumerate() {
                *weights = math::exp::<L>(L::sub(L::load(row.add(i * LANES)), L::splat(tops[q])));
                L::store(row.add(i * LANES), *weights);
            }
            let sum = L::sum(L::add(L::add(weights[0], weights[1]), L::add(weights[2], weights[3])));
            let total = self.state.total(self.v + q);
            total.write(total.read() * rescales[q] + sum);
            self.state.top(self.v + q).write(tops[q]);
            rescale.write(rescales[q]);
        }
    }

    /// Scales and caps vector q's dot products, masks invisible keys, and returns the largest.
    #[inline(always)]
    unsafe fn logits<L: Lanes>(&self, q: usize) -> f32 {
        let vectors = self.vectors;
        let row = self.workspace.scores.add((self.v + q) * TILE);
        let (from, to) = vectors.visible(self.v + q);
        let from = from.saturating_sub(self.tile * TILE).min(TILE);
        let to = to.saturating_sub(self.tile * TILE).min(TILE);
        let mut scores = [L::splat(0.0); VECTORS];
        let slope = vectors.slopes.map(|slopes| {
            let slope = slopes.add((vectors.first + self.v + q) % vectors.group);
            // A row is the last key that it sees itself; keys after it are masked below.
            (L::splat(slope.read()), (self.tile * TILE) as f32 - (vectors.visible(self.v + q).1 - 1) as f32)
        });
        for (i, score) in scores.iter_mut().enumerate() {
            *score = L::mul(L::load(row.add(i * LANES)), L::splat(vectors.scale));
            if let Some(cap) = vectors.softcap {
                *score = L::mul(math::tanh::<L>(L::div(*score, L::splat(cap))), L::splat(cap));
            }
            if let Some((slope, first)) = slope {
                let distance = L::add(L::load(NUMBERS.as_ptr()), L::splat(first + (i * LANES) as f32));
                *score = L::fma(slope, distance, *score);
            }
            L::store(row.add(i * LANES), *score);
        }
        if from > 0 || to < TILE {
            let row = std::slice::from_raw_parts_mut(row, TILE);
            row[..from].fill(f32::NEG_INFINITY);
            row[to.max(from)..].fill(f32::NEG_INFINITY);
            for (i, score) in scores.iter_mut().enumerate() {
                *score = L::load(row[i * LANES..].as_ptr());
            }
        }
        L::top(L::max(L::max(scores[0], scores[1]), L::max(scores[2], scores[3])))
    }
}
