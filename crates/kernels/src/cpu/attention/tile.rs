//! The inner loops of attention: scores of a tile of keys, their softmax as it grows, and the weighted sum of values.

#![allow(unsafe_op_in_unsafe_fn)] // The contract is that of `lanes`, and of the makers of the kernels below.

use super::super::kv::padded;
use super::super::lanes::{Kernel, Lanes};
use super::super::math;
use super::{PARTITION, TILE, TOGETHER, Vectors};
use crate::BLOCK_TOKENS;

const LANES: usize = 16;
const TILE_BLOCKS: usize = TILE / BLOCK_TOKENS;
const _: () = assert!(BLOCK_TOKENS == LANES);

/// Softmax sums of some vectors: for each `(maximum, total, padding, weighted sum of values)`.
#[derive(Clone, Copy)]
pub(super) struct State {
    pub(super) first: *mut f32,
    pub(super) head_dim: usize,
}

impl State {
    /// f32s a vector takes.
    pub(super) fn size(head_dim: usize) -> usize {
        LANES + padded(head_dim)
    }

    #[inline(always)]
    unsafe fn top(&self, v: usize) -> *mut f32 {
        self.first.add(v * State::size(self.head_dim))
    }

    #[inline(always)]
    unsafe fn total(&self, v: usize) -> *mut f32 {
        self.top(v).add(1)
    }

    #[inline(always)]
    unsafe fn sums(&self, v: usize) -> *mut f32 {
        self.top(v).add(LANES)
    }

    #[inline(always)]
    unsafe fn clear(&self, v: usize) {
        std::ptr::write_bytes(self.top(v), 0, State::size(self.head_dim));
        self.top(v).write(f32::NEG_INFINITY);
    }
}

/// One partition of keys for some vectors, into a fresh state. The maker vouches for the vectors' pointers, the
/// blocks of the whole context, a state of `vectors.count` and scores of `(TOGETHER, TILE)`.
pub(super) struct PartitionSums {
    pub(super) vectors: Vectors,
    pub(super) partition: usize,
    pub(super) state: State,
    pub(super) scores: *mut f32,
}

impl Kernel for PartitionSums {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let vectors = &self.vectors;
        for v in 0..vectors.count {
            self.state.clear(v);
        }
        let (first_key, end) = vectors.span();
        let begin = first_key.max(self.partition * PARTITION) / TILE;
        let end = end.min((self.partition + 1) * PARTITION);
        for tile in begin..end.div_ceil(TILE) {
            let keys = (end - tile * TILE).min(TILE);
            let keys_first = first_key.saturating_sub(tile * TILE);
            let mut v = 0;
            while v < vectors.count {
                let left = vectors.count - v;
                let step =
                    TileStep { vectors, state: self.state, scores: self.scores, tile, keys_first, keys, v };
                v += match left {
                    TOGETHER.. if L::COLS >= TOGETHER => L::vectorize(Wide::<TOGETHER>(step)),
                    4.. => L::vectorize(Wide::<4>(step)),
                    2.. => L::vectorize(Wide::<2>(step)),
                    _ => L::vectorize(Wide::<1>(step)),
                };
            }
        }
    }
}

/// One tile for a few vectors from `v` on.
struct TileStep<'a> {
    vectors: &'a Vectors,
    state: State,
    scores: *mut f32, // (NQ, TILE)
    tile: usize,
    /// Keys of the tile that any vector of the item sees, first and end. No value outside is read, so that whatever
    /// lies there, NaN included, has no weight.
    keys_first: usize,
    keys: usize,
    v: usize,
}

struct Wide<'a, const NQ: usize>(TileStep<'a>);

impl<const NQ: usize> Kernel for Wide<'_, NQ> {
    type Out = usize;

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) -> usize {
        let step = &self.0;
        let (first, end) = (step.tile * TILE, step.tile * TILE + step.keys);
        let unseen = (0..NQ).all(|q| {
            let (from, to) = step.vectors.visible(step.v + q);
            from.max(first) >= to.min(end)
        });
        // A vector that sees nothing of a tile comes out of it with the bits it went in with; this only saves time.
        if !unseen {
            step.scores::<L, NQ>();
            let mut fade = [0.0; NQ];
            for (q, fade) in fade.iter_mut().enumerate() {
                *fade = step.softmax::<L>(q);
            }
            step.values::<L, NQ>(&fade);
        }
        NQ
    }
}

impl TileStep<'_> {
    #[inline(always)]
    unsafe fn block(&self, block: usize) -> usize {
        self.vectors.blocks.add(self.tile * TILE_BLOCKS + block).read() as usize
    }

    /// Dot products of NQ queries with the tile's keys, several blocks at a time so that enough sums are under way.
    #[inline(always)]
    unsafe fn scores<L: Lanes, const NQ: usize>(&self) {
        match L::COLS / NQ {
            0 | 1 => self.scores_of::<L, NQ, 1>(),
            2 | 3 => self.scores_of::<L, NQ, 2>(),
            _ => self.scores_of::<L, NQ, 4>(),
        }
    }

    #[inline(always)]
    unsafe fn scores_of<L: Lanes, const NQ: usize, const NB: usize>(&self) {
        let vectors = self.vectors;
        let mut queries = [vectors.q; NQ];
        for (q, query) in queries.iter_mut().enumerate() {
            let v = vectors.first + self.v + q;
            *query =
                vectors.q.add(v / vectors.group * vectors.q_stride + v % vectors.group * vectors.head_dim);
        }
        let blocks = self.keys.div_ceil(BLOCK_TOKENS);
        for first in (0..blocks).step_by(NB) {
            let mut keys = [vectors.keys; NB];
            for (b, keys) in keys.iter_mut().enumerate() {
                // Past the last block the last one is read again; those scores are never looked at.
                let id = self.block((first + b).min(blocks - 1));
                *keys = vectors.keys.add(id * vectors.key_block_stride);
            }
            let mut dots = [[L::splat(0.0); NQ]; NB];
            for d in 0..vectors.head_dim {
                for b in 0..NB {
                    let key = L::load_f16(keys[b].add(d * BLOCK_TOKENS));
                    for q in 0..NQ {
                        dots[b][q] = L::fma(key, L::splat(queries[q].add(d).read()), dots[b][q]);
                    }
                }
            }
            for (b, dots) in dots.iter().enumerate() {
                for (q, &dot) in dots.iter().enumerate() {
                    L::store(self.scores.add(q * TILE + (first + b) * BLOCK_TOKENS), dot);
                }
            }
        }
    }

    /// Turns vector q's scores into weights, adds them to its total, and says what its sums so far must be
    /// multiplied by.
    #[inline(always)]
    unsafe fn softmax<L: Lanes>(&self, q: usize) -> f32 {
        let vectors = self.vectors;
        let scores = self.scores.add(q * TILE);
        let scale = L::splat(vectors.scale);
        let mut s = [L::splat(0.0); TILE_BLOCKS];
        for (b, s) in s.iter_mut().enumerate() {
            *s = L::mul(L::load(scores.add(b * LANES)), scale);
            if let Some(cap) = vectors.softcap {
                *s = L::mul(math::tanh::<L>(L::div(*s, L::splat(cap))), L::splat(cap));
            }
        }
        let (from, to) = vectors.visible(self.v + q);
        let first = self.tile * TILE;
        if from > first || to < first + TILE {
            for (b, &s) in s.iter().enumerate() {
                L::store(scores.add(b * LANES), s);
            }
            for key in 0..TILE {
                if first + key < from || first + key >= to {
                    scores.add(key).write(f32::NEG_INFINITY);
                }
            }
            for (b, s) in s.iter_mut().enumerate() {
                *s = L::load(scores.add(b * LANES));
            }
        }
        let top_before = self.state.top(self.v + q).read();
        let top_tile = L::top(L::max(L::max(s[0], s[1]), L::max(s[2], s[3])));
        let top = if top_tile > top_before { top_tile } else { top_before };
        if top == f32::NEG_INFINITY {
            std::ptr::write_bytes(scores, 0, TILE);
            return 1.0;
        }
        for (b, s) in s.iter_mut().enumerate() {
            *s = math::exp::<L>(L::sub(*s, L::splat(top)));
            L::store(scores.add(b * LANES), *s);
        }
        let sum = L::sum(L::add(L::add(s[0], s[1]), L::add(s[2], s[3])));
        let fade = weight::<L>(top_before, top);
        let total = self.state.total(self.v + q);
        total.write(total.read() * fade + sum);
        self.state.top(self.v + q).write(top);
        fade
    }

    /// `sums = sums * fade + weights · values`.
    #[inline(always)]
    unsafe fn values<L: Lanes, const NQ: usize>(&self, fade: &[f32; NQ]) {
        let chunks = padded(self.vectors.head_dim) / LANES;
        let mut chunk = 0;
        if 2 * L::COLS / NQ >= 8 {
            while chunk + 4 <= chunks {
                self.values_of::<L, NQ, 4>(fade, chunk);
                chunk += 4;
            }
        }
        if L::COLS / NQ >= 2 || L::COLS >= 8 {
            while chunk + 2 <= chunks {
                self.values_of::<L, NQ, 2>(fade, chunk);
                chunk += 2;
            }
        }
        while chunk < chunks {
            self.values_of::<L, NQ, 1>(fade, chunk);
            chunk += 1;
        }
    }

    #[inline(always)]
    unsafe fn values_of<L: Lanes, const NQ: usize, const ND: usize>(&self, fade: &[f32; NQ], chunk: usize) {
        let vectors = self.vectors;
        let width = padded(vectors.head_dim);
        let mut sums = [[L::splat(0.0); ND]; NQ];
        for (q, sums) in sums.iter_mut().enumerate() {
            for (d, sum) in sums.iter_mut().enumerate() {
                let at = self.state.sums(self.v + q).add((chunk + d) * LANES);
                *sum = L::mul(L::load(at), L::splat(fade[q]));
            }
        }
        for block in self.keys_first / BLOCK_TOKENS..self.keys.div_ceil(BLOCK_TOKENS) {
            let values = vectors.values.add(self.block(block) * vectors.value_block_stride + chunk * LANES);
            let scores = self.scores.add(block * BLOCK_TOKENS);
            let from = self.keys_first.saturating_sub(block * BLOCK_TOKENS);
            for t in from..BLOCK_TOKENS.min(self.keys - block * BLOCK_TOKENS) {
                let mut value = [L::splat(0.0); ND];
                for (d, value) in value.iter_mut().enumerate() {
                    *value = L::load_f16(values.add(t * width + d * LANES));
                }
                for (q, sums) in sums.iter_mut().enumerate() {
                    let weight = L::splat(scores.add(q * TILE + t).read());
                    for (sum, &value) in sums.iter_mut().zip(&value) {
                        *sum = L::fma(value, weight, *sum);
                    }
                }
            }
        }
        for (q, sums) in sums.iter().enumerate() {
            for (d, &sum) in sums.iter().enumerate() {
                L::store(self.state.sums(self.v + q).add((chunk + d) * LANES), sum);
            }
        }
    }
}

/// `exp(x - top)`.
#[inline(always)]
unsafe fn weight<L: Lanes>(x: f32, top: f32) -> f32 {
    L::top(math::exp::<L>(L::splat(x - top)))
}

/// Adds a part to a total. The maker vouches for `count` vectors in both.
pub(super) struct Merge<'a> {
    pub(super) total: &'a mut State,
    pub(super) part: &'a mut State,
    pub(super) count: usize,
}

impl Kernel for Merge<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        for v in 0..self.count {
            let (one, two) = (self.total.top(v).read(), self.part.top(v).read());
            // A part that saw nothing changes nothing; a total that saw nothing becomes the part.
            if two == f32::NEG_INFINITY {
                continue;
            }
            let top = if one > two { one } else { two };
            let (fade, gain) = (weight::<L>(one, top), weight::<L>(two, top));
            let total = self.total.total(v);
            total.write(total.read() * fade + self.part.total(v).read() * gain);
            self.total.top(v).write(top);
            for at in (0..padded(self.total.head_dim)).step_by(LANES) {
                let sum = self.total.sums(v).add(at);
                let part = L::mul(L::load(self.part.sums(v).add(at)), L::splat(gain));
                L::store(sum, L::fma(L::load(sum), L::splat(fade), part));
            }
        }
    }
}

/// Divides by the totals, sinks included, and writes the output. The maker vouches for the state and the output.
pub(super) struct Finish {
    pub(super) vectors: Vectors,
    pub(super) state: State,
}

impl Kernel for Finish {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let vectors = &self.vectors;
        for v in 0..vectors.count {
            let (row, head) = ((vectors.first + v) / vectors.group, (vectors.first + v) % vectors.group);
            let (top, mut total) = (self.state.top(v).read(), self.state.total(v).read());
            let mut factor = 1.0;
            if let Some(sinks) = vectors.sinks {
                let sink = sinks.add(head).read();
                let with_sink = if sink > top { sink } else { top };
                factor = weight::<L>(top, with_sink);
                total = total * factor + weight::<L>(sink, with_sink);
            }
            let factor = factor / total;
            let out = vectors.out.add(row * vectors.out_stride + head * vectors.head_dim);
            for at in (0..vectors.head_dim).step_by(LANES) {
                let value = L::mul(L::load(self.state.sums(v).add(at)), L::splat(factor));
                if at + LANES <= vectors.head_dim {
                    L::store(out.add(at), value);
                } else {
                    let mut lanes = [0.0f32; LANES];
                    L::store(lanes.as_mut_ptr(), value);
                    std::ptr::copy_nonoverlapping(lanes.as_ptr(), out.add(at), vectors.head_dim - at);
                }
            }
        }
    }
}
