//! Inner loops of attention: scores of a tile of keys, their running softmax, and the weighted sum of values.
//!
//! There are two paths through a tile, with the same bits: each score and each sum is one chain of the same operations
//! in the same order. A few vectors, or those of one row, as in decode, read the cache directly. Many vectors first
//! widen the tile to f32 in the thread's workspace, and then process it in groups that fill the registers.

#![allow(unsafe_op_in_unsafe_fn)] // The contract is that of `lanes`, and of the makers of the kernels below.

use std::marker::PhantomData;
use std::ops::Range;

use super::super::kv::{key_stride, value_stride};
use super::super::lanes::{Kernel, Lanes};
use super::format::{CacheFormat, F16Format, Fp8Format, Q8Format};
use super::latent::{self, LatentFormat};
use super::state::{SoftmaxState, width};
use super::{PARTITION, TILE, Vectors};
use hanzo_engine_ops::{BLOCK_TOKENS, KvType};

const LANES: usize = 16;
const TILE_BLOCKS: usize = TILE / BLOCK_TOKENS;
const _: () = assert!(BLOCK_TOKENS == LANES);
const CACHE_LINE: usize = 64; // bytes

/// Workspace of a thread for one item.
#[derive(Clone, Copy)]
pub(super) struct Workspace {
    pub(super) queries: *mut f32,  // (VECTORS, width), as the format packs them
    pub(super) scores: *mut f32,   // (VECTORS, TILE)
    pub(super) rescales: *mut f32, // (VECTORS)
    pub(super) keys: *mut f32,     // (TILE, width)
    pub(super) values: *mut f32,   // (TILE, width)
}

/// Kernel that writes an item's queries to the workspace. The creator guarantees the pointers.
pub(super) struct Pack {
    pub(super) vectors: Vectors,
    pub(super) workspace: Workspace,
}

/// Kernel that computes one partition of keys for some vectors whose queries are in the workspace, into a new state. The
/// creator guarantees the pointers, the blocks of the whole context, and a state of [`super::VECTORS`] or `vectors.count`.
pub(super) struct PartitionSums {
    pub(super) vectors: Vectors,
    pub(super) partition: usize,
    pub(super) state: SoftmaxState,
    pub(super) workspace: Workspace,
}

/// Number of vectors from `v` on that are processed together. If they read the cache directly they are of one row;
/// else the last group may be larger than the rest, and its surplus results are ignored.
#[inline(always)]
fn group_size<L: Lanes>(vectors: &Vectors, v: usize) -> usize {
    let left = vectors.count - v;
    let wide = L::COLS >= 8;
    if vectors.are_few() {
        let of_row = vectors.group - (vectors.first + v) % vectors.group;
        return match left.min(of_row) {
            8.. if wide => 8,
            4.. => 4,
            left => left.min(2),
        };
    }
    match left {
        9.. if wide => 12,
        5.. => {
            if wide {
                8
            } else {
                6
            }
        }
        3.. => 4,
        _ => {
            if wide {
                4
            } else {
                2
            }
        }
    }
}

impl Kernel for Pack {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        match self.vectors.kv_type {
            // Those of latents and of floats have the same layout.
            KvType::Q8_0 if !self.vectors.latent => self.queries::<L, Q8Format>(),
            _ => self.queries::<L, F16Format>(),
        }
    }
}

impl Pack {
    #[inline(always)]
    unsafe fn queries<L: Lanes, C: CacheFormat>(&self) {
        let mut v = 0;
        while v < self.vectors.count {
            v += match group_size::<L>(&self.vectors, v) {
                12 => self.group::<L, C, 12>(v),
                8 => self.group::<L, C, 8>(v),
                6 => self.group::<L, C, 6>(v),
                4 => self.group::<L, C, 4>(v),
                2 => self.group::<L, C, 2>(v),
                _ => self.group::<L, C, 1>(v),
            };
        }
    }

    #[inline(always)]
    unsafe fn group<L: Lanes, C: CacheFormat, const N: usize>(&self, v: usize) -> usize {
        let vectors = &self.vectors;
        let mut from = [vectors.q; N];
        for (q, from) in from.iter_mut().enumerate() {
            let v = vectors.first + (v + q).min(vectors.count - 1);
            *from =
                vectors.q.add(v / vectors.group * vectors.q_stride + v % vectors.group * vectors.head_dim);
        }
        C::pack::<L, N>(&from, vectors.head_dim, self.workspace.queries.add(v * width(vectors.head_dim)));
        N
    }
}

impl Kernel for PartitionSums {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        for v in 0..self.vectors.count {
            self.state.clear(v);
        }
        match (self.vectors.kv_type, self.vectors.latent) {
            (KvType::F16, false) => self.sums::<L, F16Format>(),
            (KvType::Q8_0, false) => self.sums::<L, Q8Format>(),
            (KvType::Fp8, false) => self.sums::<L, Fp8Format>(),
            (KvType::F16, true) => self.latent_sums::<L, LatentFormat<F16Format>>(),
            (KvType::Q8_0, true) => self.latent_sums::<L, LatentFormat<Q8Format>>(),
            (KvType::Fp8, true) => self.latent_sums::<L, LatentFormat<Fp8Format>>(),
        }
    }
}

impl PartitionSums {
    #[inline(always)]
    fn tiles(&self) -> Range<usize> {
        let (first, end) = self.vectors.span();
        let begin = first.max(self.partition * PARTITION) / TILE;
        begin..end.min((self.partition + 1) * PARTITION).div_ceil(TILE)
    }

    #[inline(always)] // All heads read the same latents, so they are widened even for one row.
    unsafe fn latent_sums<L: Lanes, C: CacheFormat>(&self) {
        self.tiles().for_each(|tile| self.widened::<L, C>(tile));
    }

    #[inline(always)]
    unsafe fn widened<L: Lanes, C: CacheFormat>(&self, tile: usize) {
        if L::COLS >= 8 { self.many::<L, C, 2>(tile) } else { self.many::<L, C, 1>(tile) }
    }

    #[inline(always)]
    unsafe fn sums<L: Lanes, C: CacheFormat>(&self) {
        for tile in self.tiles() {
            if self.vectors.are_few() {
                self.few::<L, C>(tile);
            } else {
                self.widened::<L, C>(tile);
            }
        }
    }

    /// Part of a tile that some vectors see.
    #[inline(always)]
    unsafe fn step(&self, tile: usize, v: usize, count: usize) -> TileStep<'_> {
        let vectors = &self.vectors;
        let count = count.min(vectors.count - v);
        let first = tile * TILE;
        let from = vectors.visible(v).0.saturating_sub(first).min(TILE);
        let to = vectors.visible(v + count - 1).1.saturating_sub(first).min(TILE);
        TileStep { vectors, state: self.state, workspace: self.workspace, tile, v, count, from, to }
    }

    #[inline(always)]
    unsafe fn few<L: Lanes, C: CacheFormat>(&self, tile: usize) {
        let mut v = 0;
        while v < self.vectors.count {
            let count = group_size::<L>(&self.vectors, v);
            let step = self.step(tile, v, count);
            match (count, L::COLS >= 8) {
                (8, _) => L::vectorize(OneRow::<C, 8, 2, 2>(step, PhantomData)),
                (4, true) => L::vectorize(OneRow::<C, 4, 4, 4>(step, PhantomData)),
                (4, false) => L::vectorize(OneRow::<C, 4, 1, 1>(step, PhantomData)),
                (2, true) => L::vectorize(OneRow::<C, 2, 4, 8>(step, PhantomData)),
                (2, false) => L::vectorize(OneRow::<C, 2, 2, 2>(step, PhantomData)),
                (_, true) => L::vectorize(OneRow::<C, 1, 4, 8>(step, PhantomData)),
                (_, false) => L::vectorize(OneRow::<C, 1, 4, 4>(step, PhantomData)),
            }
            v += count;
        }
    }

    #[inline(always)]
    unsafe fn many<L: Lanes, C: CacheFormat, const NV: usize>(&self, tile: usize) {
        let vectors = &self.vectors;
        let all = self.step(tile, 0, vectors.count);
        let finite = L::vectorize(Widen::<C, NV>(all, PhantomData));
        let mut v = 0;
        while v < vectors.count {
            let count = group_size::<L>(vectors, v);
            let step = self.step(tile, v, count);
            match count {
                12 => L::vectorize(Scores::<C, 12, NV>(step, PhantomData)),
                8 => L::vectorize(Scores::<C, 8, NV>(step, PhantomData)),
                6 => L::vectorize(Scores::<C, 6, NV>(step, PhantomData)),
                4 => L::vectorize(Scores::<C, 4, NV>(step, PhantomData)),
                _ => L::vectorize(Scores::<C, 2, NV>(step, PhantomData)),
            }
            v += count;
        }
        v = 0;
        while v < vectors.count {
            // Values that are not finite show even under a weight of 0: each vector reads only what it sees.
            let count = if finite { group_size::<L>(vectors, v) } else { 1 };
            let step = self.step(tile, v, count);
            match count {
                12 => L::vectorize(Values::<C, 12, NV>(step, PhantomData)),
                8 => L::vectorize(Values::<C, 8, NV>(step, PhantomData)),
                6 => L::vectorize(Values::<C, 6, NV>(step, PhantomData)),
                4 => L::vectorize(Values::<C, 4, NV>(step, PhantomData)),
                2 => L::vectorize(Values::<C, 2, NV>(step, PhantomData)),
                _ => L::vectorize(Values::<C, 1, NV>(step, PhantomData)),
            }
            v += count;
        }
    }
}

/// A tile for a few vectors.
#[derive(Clone, Copy)]
pub(super) struct TileStep<'a> {
    pub(super) vectors: &'a Vectors,
    pub(super) state: SoftmaxState,
    pub(super) workspace: Workspace,
    pub(super) tile: usize,
    /// First of the vectors, with their number: their queries, scores, rescales and states begin there.
    pub(super) v: usize,
    pub(super) count: usize,
    /// Range of the tile's keys that any vector sees. No value outside it is read.
    pub(super) from: usize,
    pub(super) to: usize,
}

impl TileStep<'_> {
    /// Whether no vector sees anything of the tile. Their states would keep their bits.
    #[inline(always)]
    fn is_empty(&self) -> bool {
        self.from >= self.to
    }

    #[inline(always)]
    unsafe fn block(&self, block: usize) -> usize {
        self.vectors.blocks.add(self.tile * TILE_BLOCKS + block - self.vectors.first_block).read() as usize
    }

    #[inline(always)]
    unsafe fn keys(&self, block: usize) -> *const u8 {
        self.vectors.keys.add(self.block(block) * self.vectors.key_block_stride)
    }

    #[inline(always)]
    pub(super) unsafe fn values(&self, block: usize) -> *const u8 {
        self.vectors.values.add(self.block(block) * self.vectors.value_block_stride)
    }

    #[inline(always)]
    unsafe fn queries(&self) -> *const f32 {
        self.workspace.queries.add(self.v * width(self.vectors.head_dim))
    }

    #[inline(always)]
    unsafe fn scores(&self) -> *mut f32 {
        self.workspace.scores.add(self.v * TILE)
    }

    /// Block of the next tile at the same place as this one, to be prefetched; the block itself at the end.
    #[inline(always)]
    fn next(&self, block: usize) -> usize {
        let next = block + TILE_BLOCKS;
        if (self.tile * TILE_BLOCKS + next) * BLOCK_TOKENS < self.vectors.context { next } else { block }
    }

    /// Prefetches the next tile's keys of a block.
    #[inline(always)]
    unsafe fn prefetch_keys<L: Lanes>(&self, block: usize) {
        let keys = self.keys(self.next(block));
        for at in (0..key_stride(self.vectors.kv_type, self.vectors.head_dim)).step_by(CACHE_LINE) {
            L::prefetch(keys.add(at));
        }
    }

    /// `sums = sums * rescale + weights · values` for ND chunks of the output, from `chunk` on, and N vectors.
    #[inline(always)]
    unsafe fn load_sums<L: Lanes, const N: usize, const ND: usize>(&self, chunk: usize) -> [[L::F; ND]; N] {
        let mut sums = [[L::splat(0.0); ND]; N];
        for (q, sums) in sums.iter_mut().enumerate() {
            let rescale = L::splat(self.workspace.rescales.add(self.v + q).read());
            for (d, sum) in sums.iter_mut().enumerate() {
                *sum = L::mul(L::load(self.state.sums(self.v + q).add((chunk + d) * LANES)), rescale);
            }
        }
        sums
    }

    #[inline(always)]
    unsafe fn store_sums<L: Lanes, const N: usize, const ND: usize>(
        &self,
        chunk: usize,
        sums: &[[L::F; ND]; N],
    ) {
        for (q, sums) in sums.iter().enumerate() {
            for (d, &sum) in sums.iter().enumerate() {
                L::store(self.state.sums(self.v + q).add((chunk + d) * LANES), sum);
            }
        }
    }
}

/// A tile for N vectors of one row, read from the cache: NB blocks of keys, then ND chunks of values at a time.
struct OneRow<'a, C, const N: usize, const NB: usize, const ND: usize>(TileStep<'a>, PhantomData<C>);

impl<C: CacheFormat, const N: usize, const NB: usize, const ND: usize> Kernel for OneRow<'_, C, N, NB, ND> {
    type Out = ();
    const MULTIPLIES_BYTES: bool = !C::WIDENS_KEYS;

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let step = &self.0;
        if step.is_empty() {
            return;
        }
        let (first, end) = (step.from / BLOCK_TOKENS, step.to.div_ceil(BLOCK_TOKENS));
        let mut block = first;
        while block < end {
            let mut keys = [step.vectors.keys; NB];
            for (b, keys) in keys.iter_mut().enumerate() {
                // Past the last block the last one is read again, and those scores are ignored.
                *keys = step.keys((block + b).min(end - 1));
            }
            let dots = C::dots::<L, N, NB>(step.queries(), &keys, step.vectors.head_dim);
            for (b, dots) in dots.iter().enumerate() {
                for (q, &dot) in dots.iter().enumerate() {
                    if block + b < end {
                        L::store(step.scores().add(q * TILE + (block + b) * BLOCK_TOKENS), dot);
                    }
                }
            }
            block += NB;
        }
        step.softmax::<L>();
        let chunks = step.vectors.head_dim.div_ceil(LANES);
        let mut chunk = 0;
        while chunk + ND <= chunks {
            self.values::<L, ND>(chunk);
            chunk += ND;
        }
        if ND > 2 {
            while chunk + 2 <= chunks {
                self.values::<L, 2>(chunk);
                chunk += 2;
            }
        }
        while chunk < chunks {
            self.values::<L, 1>(chunk);
            chunk += 1;
        }
    }
}

impl<C: CacheFormat, const N: usize, const NB: usize, const ND: usize> OneRow<'_, C, N, NB, ND> {
    #[inline(always)]
    unsafe fn values<L: Lanes, const D: usize>(&self, chunk: usize) {
        let step = &self.0;
        let &Vectors { kv_type, head_dim, .. } = step.vectors;
        let key_part = key_stride(kv_type, head_dim) / BLOCK_TOKENS;
        let value_part = value_stride(kv_type, head_dim) / BLOCK_TOKENS;
        let mut sums = step.load_sums::<L, N, D>(chunk);
        for block in step.from / BLOCK_TOKENS..step.to.div_ceil(BLOCK_TOKENS) {
            let next = step.next(block);
            let (next_keys, next_values) = (step.keys(next), step.values(next));
            let values = step.values(block);
            let scales = C::scales::<L>(values, step.vectors.head_dim, chunk, D);
            let weights = step.scores().add(block * BLOCK_TOKENS);
            let from = step.from.saturating_sub(block * BLOCK_TOKENS);
            for t in from..BLOCK_TOKENS.min(step.to - block * BLOCK_TOKENS) {
                if step.v == 0 && chunk == 0 {
                    // A little with each token, so that memory is always busy and never overloaded.
                    for at in (t * key_part..(t + 1) * key_part).step_by(CACHE_LINE) {
                        L::prefetch(next_keys.wrapping_add(at));
                    }
                    for at in (t * value_part..(t + 1) * value_part).step_by(CACHE_LINE) {
                        L::prefetch(next_values.wrapping_add(at));
                    }
                }
                for d in 0..D {
                    let value = C::value::<L>(values, step.vectors.head_dim, t, chunk + d, &scales, d);
                    for (q, sums) in sums.iter_mut().enumerate() {
                        sums[d] = L::fma(value, L::splat(weights.add(q * TILE + t).read()), sums[d]);
                    }
                }
            }
        }
        step.store_sums::<L, N, D>(chunk, &sums);
    }
}

/// Kernel that widens the visible part of a tile: keys, if the format needs it, to `(block / NV, head_dim, NV, 16)`;
/// values to `(chunk / NV, key, NV, 16)`, with zeros for missing chunks. Returns whether all values are finite.
struct Widen<'a, C, const NV: usize>(TileStep<'a>, PhantomData<C>);

impl<C: CacheFormat, const NV: usize> Kernel for Widen<'_, C, NV> {
    type Out = bool;
    const MULTIPLIES_BYTES: bool = false;

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) -> bool {
        let step = &self.0;
        let head_dim = step.vectors.head_dim;
        let chunks = step.vectors.value_dim.div_ceil(LANES);
        // A finite number times 0 is 0; any other gives NaN.
        let mut zeros = [L::splat(0.0); 2];
        for block in step.from / BLOCK_TOKENS..step.to.div_ceil(BLOCK_TOKENS) {
            let to = step.workspace.keys.add((block / NV * head_dim * NV + block % NV) * LANES);
            if C::LATENT {
                latent::widen_keys::<L, C>(step, block, to, NV * LANES);
            } else if C::WIDENS_KEYS {
                let keys = step.keys(block);
                for d in 0..head_dim {
                    L::store(to.add(d * NV * LANES), C::key::<L>(keys, d));
                }
            }
            let (values, first) = (step.values(block), block * BLOCK_TOKENS);
            let tokens = step.from.saturating_sub(first)..BLOCK_TOKENS.min(step.to - first);
            let to =
                |chunk: usize, t: usize| (chunk / NV * TILE * NV + (first + t) * NV + chunk % NV) * LANES;
            for chunk in 0..chunks {
                let scales = C::scales::<L>(values, head_dim, chunk, 1);
                for t in tokens.clone() {
                    let value = C::value::<L>(values, head_dim, t, chunk, &scales, 0);
                    L::store(step.workspace.values.add(to(chunk, t)), value);
                    zeros[t % 2] = L::fma(value, L::splat(0.0), zeros[t % 2]);
                }
            }
            if !chunks.is_multiple_of(NV) {
                for t in tokens {
                    L::store(step.workspace.values.add(to(chunks, t)), L::splat(0.0));
                }
            }
        }
        L::sum(L::add(zeros[0], zeros[1])) == 0.0
    }
}

/// Scores of N vectors and their softmax. The first vectors of an item also prefetch the next tile's keys.
struct Scores<'a, C, const N: usize, const NV: usize>(TileStep<'a>, PhantomData<C>);

impl<C: CacheFormat, const N: usize, const NV: usize> Kernel for Scores<'_, C, N, NV> {
    type Out = ();
    const MULTIPLIES_BYTES: bool = !C::WIDENS_KEYS;

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let step = &self.0;
        if step.is_empty() {
            return;
        }
        let (first, end) = (step.from / BLOCK_TOKENS, step.to.div_ceil(BLOCK_TOKENS));
        if !C::WIDENS_KEYS {
            for block in first..end {
                if step.v == 0 {
                    step.prefetch_keys::<L>(block);
                }
                let [dots] = C::dots::<L, N, 1>(step.queries(), &[step.keys(block)], step.vectors.head_dim);
                for (q, &dot) in dots.iter().enumerate() {
                    L::store(step.scores().add(q * TILE + block * BLOCK_TOKENS), dot);
                }
            }
        } else {
            for block in (first / NV * NV..end).step_by(NV) {
                if step.v == 0 {
                    self.wide_dots::<L, true>(block);
                } else {
                    self.wide_dots::<L, false>(block);
                }
            }
        }
        step.softmax::<L>();
    }
}

impl<C: CacheFormat, const N: usize, const NV: usize> Scores<'_, C, N, NV> {
    /// Dot products with NV blocks of widened keys.
    #[inline(always)]
    unsafe fn wide_dots<L: Lanes, const PREFETCH: bool>(&self, block: usize) {
        let step = &self.0;
        let (queries, head_dim) = (step.queries(), step.vectors.head_dim);
        let keys = step.workspace.keys.add(block * head_dim * LANES);
        let mut next = [step.vectors.keys; NV];
        for (b, next) in next.iter_mut().enumerate() {
            // The first of the NV may lie before the visible range, where there is no block any more.
            let seen = (block + b).clamp(step.from / BLOCK_TOKENS, step.to.div_ceil(BLOCK_TOKENS) - 1);
            *next = step.keys(step.next(seen));
        }
        let mut dots = [[L::splat(0.0); NV]; N];
        for d in 0..head_dim {
            if PREFETCH {
                for next in next {
                    L::prefetch(next.wrapping_add(d * C::ELEMENT_BYTES));
                }
            }
            let mut key = [L::splat(0.0); NV];
            for (b, key) in key.iter_mut().enumerate() {
                *key = L::load(keys.add((d * NV + b) * LANES));
            }
            for (q, dots) in dots.iter_mut().enumerate() {
                let query = L::splat(queries.add(d * N + q).read());
                for (dot, &key) in dots.iter_mut().zip(&key) {
                    *dot = L::fma(key, query, *dot);
                }
            }
        }
        for (q, dots) in dots.iter().enumerate() {
            for (b, &dot) in dots.iter().enumerate() {
                L::store(step.scores().add(q * TILE + (block + b) * BLOCK_TOKENS), dot);
            }
        }
    }
}

/// Weighted sum of values for N vectors. The first vectors of an item also prefetch the next tile's values.
struct Values<'a, C, const N: usize, const NV: usize>(TileStep<'a>, PhantomData<C>);

impl<C: CacheFormat, const N: usize, const NV: usize> Kernel for Values<'_, C, N, NV> {
    type Out = ();
    const MULTIPLIES_BYTES: bool = false;

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let step = &self.0;
        if step.is_empty() {
            return;
        }
        for chunk in (0..step.vectors.value_dim.div_ceil(LANES)).step_by(NV) {
            if step.v == 0 {
                self.chunks::<L, true>(chunk);
            } else {
                self.chunks::<L, false>(chunk);
            }
        }
    }
}

impl<C: CacheFormat, const N: usize, const NV: usize> Values<'_, C, N, NV> {
    /// Computes NV chunks of the sums.
    #[inline(always)]
    unsafe fn chunks<L: Lanes, const PREFETCH: bool>(&self, chunk: usize) {
        let step = &self.0;
        let &Vectors { kv_type, head_dim, .. } = step.vectors;
        let mut next = [step.vectors.values; TILE_BLOCKS];
        if PREFETCH {
            let part = value_stride(kv_type, head_dim) / head_dim.div_ceil(LANES) * chunk;
            let blocks = step.from / BLOCK_TOKENS..step.to.div_ceil(BLOCK_TOKENS);
            for (block, next) in next.iter_mut().enumerate().take(blocks.end).skip(blocks.start) {
                *next = step.values(step.next(block)).add(part);
            }
        }
        let mut sums = step.load_sums::<L, N, NV>(chunk);
        let values = step.workspace.values.add(chunk * TILE * LANES);
        for t in step.from..step.to {
            if PREFETCH {
                // These chunks' share of the block: each of 16 tokens prefetches one part of it.
                let part = NV * LANES * size_of::<u16>();
                L::prefetch(next[t / BLOCK_TOKENS].wrapping_add(t % BLOCK_TOKENS * part));
            }
            let mut value = [L::splat(0.0); NV];
            for (d, value) in value.iter_mut().enumerate() {
                *value = L::load(values.add((t * NV + d) * LANES));
            }
            for (q, sums) in sums.iter_mut().enumerate() {
                let weight = L::splat(step.scores().add(q * TILE + t).read());
                for (sum, &value) in sums.iter_mut().zip(&value) {
                    *sum = L::fma(value, weight, *sum);
                }
            }
        }
        step.store_sums::<L, N, NV>(chunk, &sums);
    }
}
