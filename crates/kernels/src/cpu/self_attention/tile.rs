//! Inner loops: packed keys and values, scores of a few queries, and the weighted sum of values.

#![allow(unsafe_op_in_unsafe_fn)] // The contract is that of `lanes`, and of the makers of the kernels below.

use std::marker::PhantomData;

use super::super::lanes::{Kernel, Lanes, transpose_part};
use super::super::math;
use super::super::matmul::{get, put};
use super::{GROUP_MAX, KEYS, LANES, SCORES, TERMS, TileLayout, width};

/// Workspace of a thread for one item. Brackets give the layouts of the vector kernels; those of the matrix unit are
/// documented where it writes.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Workspace {
    pub(in crate::cpu) keys: *mut f32, // (16-key block / NV, head_dim, NV, 16), times the scale
    pub(in crate::cpu) values: *mut f32, // (chunk / NV, KEYS, NV, 16)
    pub(in crate::cpu) queries: *mut f32, // (width, 16)
    pub(in crate::cpu) scores: *mut f32, // (GROUP_MAX, SCORES)
    pub(in crate::cpu) states: *mut f32, // (QUERIES, LANES + width): maximum, total, padding, weighted sum of values
    pub(in crate::cpu) distances: *mut f32, // addends to scores, by distance
    pub(in crate::cpu) key_terms: *mut f32, // (head_dim, TERMS), times the scale
    pub(in crate::cpu) query_terms: *mut f32, // (head_dim, TERMS)
}

/// Vectors of keys, or of columns of values, in a tile.
pub(super) const fn vectors<L: Lanes>() -> usize {
    if L::COLS >= 8 { 2 } else { 1 }
}

/// Queries in a tile.
pub(super) const fn group_rows<L: Lanes>() -> usize {
    if L::COLS >= 8 { 12 } else { 6 }
}

/// Processing of keys, values and queries with vectors.
pub(super) struct Vectors<L>(PhantomData<L>);

impl<L: Lanes> TileLayout for Vectors<L> {
    const ROWS: usize = group_rows::<L>();

    #[inline(always)]
    unsafe fn pack(block: KvBlock) {
        L::vectorize(block);
    }

    #[inline(always)]
    unsafe fn group(group: Group) {
        group.run::<L>();
    }
}

/// Kernel that packs keys and values `from..to` of a block of keys. Missing keys of a vector become zeros.
pub(in crate::cpu) struct KvBlock {
    pub(in crate::cpu) workspace: Workspace,
    /// Address of the block's first key; values are `value_offset` further.
    pub(in crate::cpu) keys: *const f32,
    pub(in crate::cpu) value_offset: usize,
    pub(in crate::cpu) stride: usize,
    pub(in crate::cpu) head_dim: usize,
    pub(in crate::cpu) scale: f32,
    pub(in crate::cpu) from: usize,
    pub(in crate::cpu) to: usize,
    /// Keys of the block that the sequence has, for tiles that begin before `from` or end after `to`.
    #[cfg_attr(
        not(all(target_arch = "x86_64", target_os = "linux")),
        expect(dead_code, reason = "only the matrix unit asks")
    )]
    pub(in crate::cpu) there: usize,
}

impl Kernel for KvBlock {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let (nv, head_dim) = (const { vectors::<L>() }, self.head_dim);
        for block in self.from / LANES..self.to.div_ceil(LANES) {
            let from = self.keys.add(block * LANES * self.stride);
            let to = self.workspace.keys.add((block / nv * head_dim * nv + block % nv) * LANES);
            let rows = LANES.min(self.to - block * LANES);
            columns::<L>(from, self.stride, rows, head_dim, self.scale, to, nv * LANES);
        }
        let chunks = head_dim.div_ceil(LANES);
        for t in self.from..self.to {
            let from = self.keys.add(t * self.stride + self.value_offset);
            for chunk in 0..chunks.next_multiple_of(nv) {
                let at = (chunk / nv * KEYS * nv + t * nv + chunk % nv) * LANES;
                let count = LANES.min(head_dim.saturating_sub(chunk * LANES));
                let value = if count == 0 { L::splat(0.0) } else { get::<L>(from.add(chunk * LANES), count) };
                L::store(self.workspace.values.add(at), value);
            }
        }
    }
}

/// Transposes up to sixteen rows of `cols` numbers; missing rows become zeros.
#[inline(always)]
unsafe fn columns<L: Lanes>(
    from: *const f32,
    stride: usize,
    rows: usize,
    cols: usize,
    factor: f32,
    to: *mut f32,
    to_stride: usize,
) {
    let whole = if rows == LANES { cols / LANES * LANES } else { 0 };
    for at in (0..whole).step_by(LANES) {
        L::transpose(from.add(at), stride, factor, to.add(at * to_stride), to_stride);
    }
    if whole < cols {
        if rows < LANES {
            for at in whole..cols {
                L::store(to.add(at * to_stride), L::splat(0.0));
            }
        }
        let (from, to) = (from.add(whole), to.add(whole * to_stride));
        transpose_part(from, stride, rows, cols - whole, factor, to, to_stride);
    }
}

/// Turns scores into weights relative to these maxima. Not a closure, because that would be a function without the
/// instruction set.
#[inline(always)]
unsafe fn softmax_weights<L: Lanes>(scores: *mut f32, tops: L::F) -> L::F {
    let weights = math::exp2_falling::<L>(L::sub(L::load(scores), tops));
    L::store(scores, weights);
    weights
}

/// Addend to a score besides the dot product.
#[derive(Clone, Copy)]
pub(in crate::cpu) enum ScoreBias {
    None,
    /// The workspace's `distances`.
    Distances,
    /// Products with the workspace's terms, each if it is there.
    Terms {
        keys: bool,
        queries: bool,
    },
}

/// Up to [`GROUP_MAX`] queries that are processed together against a block of keys.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Group {
    pub(in crate::cpu) workspace: Workspace,
    pub(in crate::cpu) bias: ScoreBias,
    /// Address of the first query, the distance to the next, and their number.
    pub(in crate::cpu) query: *const f32,
    pub(in crate::cpu) stride: usize,
    pub(in crate::cpu) count: usize,
    /// Address of the value of the block's first key.
    #[cfg_attr(
        not(all(target_arch = "x86_64", target_os = "linux")),
        expect(dead_code, reason = "only the matrix unit asks")
    )]
    pub(in crate::cpu) values: *const f32,
    /// Rows from the first query on that may be read.
    pub(in crate::cpu) readable: usize,
    pub(in crate::cpu) head_dim: usize,
    /// Index of the first query's state in the workspace.
    pub(in crate::cpu) state: usize,
    /// Range of the block's keys that any query sees.
    pub(in crate::cpu) from: usize,
    pub(in crate::cpu) to: usize,
    /// Keys that the first query sees.
    pub(in crate::cpu) visible: VisibleKeys,
    /// Index of the addend for the first query and the block's first key; one less for each further query.
    pub(in crate::cpu) bias_at: usize,
    /// Whether this is the first block of keys that they see. `last`: whether it is the last.
    pub(in crate::cpu) first: bool,
    pub(in crate::cpu) last: bool,
    pub(in crate::cpu) out: *mut f32,
    pub(in crate::cpu) out_stride: usize,
}

/// Range of a block's keys that the first query of a group sees, counted from the block's first key and ignoring the
/// sequence's ends. Each further query's range is one key later. May lie outside the block.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct VisibleKeys {
    pub(in crate::cpu) from: isize,
    pub(in crate::cpu) to: isize,
}

impl VisibleKeys {
    /// Range of the keys that query `q` of the group sees, within a range.
    #[inline(always)]
    pub(in crate::cpu) fn of(&self, q: usize, from: usize, to: usize) -> (usize, usize) {
        let place = |at: isize| (at + q as isize).clamp(from as isize, to as isize) as usize;
        (place(self.from), place(self.to).max(place(self.from)))
    }
}

impl Kernel for Group {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        // Queries as columns: a tile reads one number of each.
        let quick = const { vectors::<L>() == 2 } && self.readable >= LANES;
        let rows = if quick { LANES } else { self.count };
        columns::<L>(self.query, self.stride, rows, self.head_dim, 1.0, self.workspace.queries, LANES);
        // Results that a larger tile computes for missing queries are ignored.
        if const { vectors::<L>() == 2 } {
            match self.count {
                9.. => L::vectorize(Tile::<12, 2>(self)),
                5.. => L::vectorize(Tile::<8, 2>(self)),
                _ => L::vectorize(Tile::<4, 2>(self)),
            }
        } else {
            match self.count {
                5.. => L::vectorize(Tile::<6, 1>(self)),
                3.. => L::vectorize(Tile::<4, 1>(self)),
                _ => L::vectorize(Tile::<2, 1>(self)),
            }
        }
    }
}

/// Tile of N queries by NV vectors.
struct Tile<const N: usize, const NV: usize>(Group);

impl<const N: usize, const NV: usize> Kernel for Tile<N, NV> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        const { assert!(N <= GROUP_MAX) };
        let group = &self.0;
        let (first, end) = (group.from / LANES, group.to.div_ceil(LANES));
        for block in (first / NV * NV..end).step_by(NV) {
            if NV > 1 && block + 1 == end {
                self.dots::<L, 1>(block);
            } else {
                self.dots::<L, NV>(block);
            }
        }
        if let ScoreBias::Terms { keys, queries } = group.bias {
            let mut block = first;
            while block < end {
                // Past the last block it reads whatever the workspace holds, and the result is ignored.
                self.terms::<L, 2>(block, keys, queries);
                block += 2;
            }
        }
        let mut rescales = [0.0; N];
        for (q, rescale) in rescales.iter_mut().enumerate().take(group.count) {
            *rescale = self.weights::<L>(q);
        }
        for chunk in (0..group.head_dim.div_ceil(LANES)).step_by(NV) {
            self.values::<L>(chunk, &rescales);
        }
        if group.last {
            self.finish::<L>();
        }
    }
}

impl<const N: usize, const NV: usize> Tile<N, NV> {
    /// Dot products with the first K of NV blocks of keys.
    #[inline(always)]
    unsafe fn dots<L: Lanes, const K: usize>(&self, block: usize) {
        let Group { workspace, head_dim, .. } = self.0;
        let keys = workspace.keys.add(block * head_dim * LANES);
        let mut dots = [[L::splat(0.0); K]; N];
        for d in 0..head_dim {
            let mut key = [L::splat(0.0); K];
            for (k, key) in key.iter_mut().enumerate() {
                *key = L::load(keys.add((d * NV + k) * LANES));
            }
            for (q, dots) in dots.iter_mut().enumerate() {
                let query = L::splat(workspace.queries.add(d * LANES + q).read());
                for (dot, &key) in dots.iter_mut().zip(&key) {
                    *dot = L::fma(key, query, *dot);
                }
            }
        }
        for (q, dots) in dots.iter().enumerate() {
            for (k, &dot) in dots.iter().enumerate() {
                L::store(workspace.scores.add(q * SCORES + (block + k) * LANES), dot);
            }
        }
    }

    /// Adds the terms of content and position to K blocks of keys.
    #[inline(always)]
    unsafe fn terms<L: Lanes, const K: usize>(&self, block: usize, with_keys: bool, with_queries: bool) {
        let Group { workspace, head_dim, count, bias_at, .. } = self.0;
        for q in 0..count {
            let scores = workspace.scores.add(q * SCORES + block * LANES);
            let at = bias_at - q + block * LANES;
            let mut sums = [L::splat(0.0); K];
            for (k, sum) in sums.iter_mut().enumerate() {
                *sum = L::load(scores.add(k * LANES));
            }
            for d in 0..head_dim {
                if with_keys {
                    let query = L::splat(workspace.queries.add(d * LANES + q).read());
                    for (k, sum) in sums.iter_mut().enumerate() {
                        let term = L::load(workspace.key_terms.add(d * TERMS + at + k * LANES));
                        *sum = L::fma(term, query, *sum);
                    }
                }
                if with_queries {
                    for (k, sum) in sums.iter_mut().enumerate() {
                        let block = block + k;
                        let key = (block / NV * head_dim * NV + d * NV + block % NV) * LANES;
                        let term = L::load(workspace.query_terms.add(d * TERMS + at + k * LANES));
                        *sum = L::fma(term, L::load(workspace.keys.add(key)), *sum);
                    }
                }
            }
            for (k, &sum) in sums.iter().enumerate() {
                L::store(scores.add(k * LANES), sum);
            }
        }
    }

    /// Turns query `q`'s scores into weights relative to the largest score so far and keeps maximum and total. Returns
    /// the factor for its weighted sum of earlier blocks, which is 0 before the first.
    #[inline(always)]
    unsafe fn weights<L: Lanes>(&self, q: usize) -> f32 {
        let group = &self.0;
        let (first, end) = (group.from / LANES * LANES, group.to.div_ceil(LANES) * LANES);
        let (from, to) = group.visible.of(q, group.from, group.to);
        let row = group.workspace.scores.add(q * SCORES);
        let state = self.state(q);
        if group.first {
            std::ptr::write_bytes(state, 0, LANES + width(group.head_dim));
            state.write(f32::NEG_INFINITY);
        }
        if from == to {
            std::slice::from_raw_parts_mut(row, end)[first..].fill(0.0);
            return 1.0;
        }
        if let ScoreBias::Distances = group.bias {
            let bias = group.workspace.distances.add(group.bias_at - q);
            for at in (first..end).step_by(LANES) {
                L::store(row.add(at), L::add(L::load(row.add(at)), L::load(bias.add(at))));
            }
        }
        let visible = std::slice::from_raw_parts_mut(row, end);
        visible[first..from].fill(f32::NEG_INFINITY);
        visible[to..].fill(f32::NEG_INFINITY);
        let mut tops = [L::splat(f32::NEG_INFINITY); 2];
        let mut at = first;
        while at + 2 * LANES <= end {
            tops[0] = L::max(tops[0], L::load(row.add(at)));
            tops[1] = L::max(tops[1], L::load(row.add(at + LANES)));
            at += 2 * LANES;
        }
        if at < end {
            tops[0] = L::max(tops[0], L::load(row.add(at)));
        }
        let here = L::top(L::max(tops[0], tops[1]));
        let before = state.read();
        let top = if before > here { before } else { here };
        let tops = L::splat(top);
        let mut sums = [L::splat(0.0); 2];
        at = first;
        while at + 2 * LANES <= end {
            sums[0] = L::add(sums[0], softmax_weights::<L>(row.add(at), tops));
            sums[1] = L::add(sums[1], softmax_weights::<L>(row.add(at + LANES), tops));
            at += 2 * LANES;
        }
        if at < end {
            sums[0] = L::add(sums[0], softmax_weights::<L>(row.add(at), tops));
        }
        let visible = std::slice::from_raw_parts_mut(row, end);
        visible[group.from..from].fill(0.0);
        visible[to..].fill(0.0);
        let rescale = L::top(math::exp2_falling::<L>(L::splat(before - top)));
        let total = state.add(1).read() * rescale;
        state.write(top);
        state.add(1).write(total + L::sum(L::add(sums[0], sums[1])));
        rescale
    }

    /// `sums = sums * rescale + weights · values` for NV chunks of columns.
    #[inline(always)]
    unsafe fn values<L: Lanes>(&self, chunk: usize, rescales: &[f32; N]) {
        let group = &self.0;
        let mut sums = [[L::splat(0.0); NV]; N];
        let states = self.state(0).add((1 + chunk) * LANES);
        let state_width = LANES + width(group.head_dim);
        for (q, sums) in sums.iter_mut().enumerate() {
            for (v, sum) in sums.iter_mut().enumerate() {
                let before = L::load(states.add(q * state_width + v * LANES));
                *sum = L::mul(before, L::splat(rescales[q]));
            }
        }
        let values = group.workspace.values.add(chunk * KEYS * LANES);
        for t in group.from..group.to {
            let mut value = [L::splat(0.0); NV];
            for (v, value) in value.iter_mut().enumerate() {
                *value = L::load(values.add((t * NV + v) * LANES));
            }
            for (q, sums) in sums.iter_mut().enumerate() {
                let weight = L::splat(group.workspace.scores.add(q * SCORES + t).read());
                for (sum, &value) in sums.iter_mut().zip(&value) {
                    *sum = L::fma(value, weight, *sum);
                }
            }
        }
        // All of them are stored plainly and processed in a separate loop: only sums that no large loop reads stay in
        // registers in the loop above.
        for (q, sums) in sums.iter().enumerate() {
            for (v, &sum) in sums.iter().enumerate() {
                L::store(states.add(q * state_width + v * LANES), sum);
            }
        }
    }

    /// Divides by the totals and writes the output.
    #[inline(always)]
    unsafe fn finish<L: Lanes>(&self) {
        let group = &self.0;
        for q in 0..group.count {
            let (state, out) = (self.state(q), group.out.add(q * group.out_stride));
            let factor = L::splat(1.0 / state.add(1).read());
            for at in (0..group.head_dim).step_by(LANES) {
                let value = L::mul(L::load(state.add(LANES + at)), factor);
                put::<L>(out.add(at), value, LANES.min(group.head_dim - at));
            }
        }
    }

    /// State of query `q`. The states of missing queries are spare.
    #[inline(always)]
    unsafe fn state(&self, q: usize) -> *mut f32 {
        let group = &self.0;
        group.workspace.states.add((group.state + q) * (LANES + width(group.head_dim)))
    }
}
