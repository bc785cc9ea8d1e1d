//! Attention inside sequences on the matrix unit, sixteen queries at a time.
//!
//! Queries, keys, values and weights are split in two as in `floats`: `x = hi + lo`, each a bfloat16, which loses up
//! to 2^-17 of it. A product of two such numbers is `lo · hi + hi · lo + hi · hi`. Leaving out `lo · lo` loses up to
//! 2^-15, but 4.4 · 10^-6 in the root mean square, and less for a sum of many. If one weight is nearly the whole
//! total, the loss of its value is added back, so that a row that sees one key gets exactly its value. A score keeps
//! its error: it is small beside 1 unless one element of a head makes a score of hundreds.
//!
//! Rows of the unit's results do not depend on each other, and keys are multiplied in the same steps of 32 in every
//! group, so a row's bits depend on its sequence alone. Weights of keys that a row does not see are zeros.
//!
//! Values needed once per row, its largest score and its total, are computed for all sixteen rows together.

#![allow(unsafe_op_in_unsafe_fn)] // The contract is that of `lanes`, and of the maker of the `Group`.

use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use super::{Shapes, V};
use crate::cpu::lanes::Lanes;
use crate::cpu::math;
use crate::cpu::self_attention::{
    Group, KEYS, KvBlock, LANES, QueryPart, SCORES, ScoreBias, TileLayout, width,
};
use crate::cpu::split::{high, pair_of, rounded};

/// Elements of a head, or keys, that the unit multiplies at a time.
const STEP: usize = 32;
/// Queries of a group.
const ROWS: usize = 16;
/// Bytes of a tile, and f32s of one.
const TILE: usize = 1024;
const SUMS: usize = TILE / size_of::<f32>();
/// Bytes of a step's keys, or of a chunk of its values: `hi`, then `lo`.
const STEP_BYTES: usize = 2 * TILE;
/// Bytes between the scores of two queries.
const SCORES_STRIDE: usize = SCORES * size_of::<f32>();
/// Number of rows ahead that keys and queries are prefetched: they lie kilobytes apart, which the hardware prefetcher
/// does not expect.
const PREFETCH_ROWS: usize = 32;
/// Total of weights below which the largest weight, which is 1, dominates: the split's loss of its value would be too
/// large a part of the sum, and is added afterwards.
const DOMINANT_TOTAL_MAX: f32 = 1.5;
/// A bfloat16 between such a weight and all others: 0.875.
const NEARLY_ONE: i16 = 0x3f60;
/// Logarithm of the smallest weight, which is negligible beside 1. Its `lo` is not subnormal, because subnormal
/// numbers cost the processor a hundred cycles.
const LOW: f32 = -100.0;

/// Sizes in f32s of the workspace's keys, values and queries: as many bytes as in f32, in whole steps.
pub(in crate::cpu) const fn parts(head_dim: usize) -> [usize; 3] {
    let step_width = head_dim.next_multiple_of(STEP);
    [KEYS * step_width, KEYS * width(head_dim), ROWS * step_width]
}

/// Computes a part.
///
/// # Safety
/// `is_available()`, what `QueryPart` promises, and a workspace of at least `parts`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")]
pub(in crate::cpu) unsafe fn attend(part: &QueryPart<'_>) {
    Shapes::load([(16, 64); 8]);
    part.attend::<MatrixUnit>();
    asm!("tilerelease", options(nostack, preserves_flags, nomem));
}

/// Processing of keys, values and queries on the matrix unit.
struct MatrixUnit;

impl TileLayout for MatrixUnit {
    const ROWS: usize = ROWS;

    #[inline(always)]
    unsafe fn pack(block: KvBlock) {
        pack_keys(&block);
        pack_values(&block);
    }

    #[inline(always)]
    unsafe fn group(group: Group) {
        split_queries(&group);
        let (first, end) = (group.from / STEP * 2, group.to.div_ceil(STEP) * 2);
        let mut block = first;
        while block + 4 <= end {
            dots(&group, block, true);
            block += 4;
        }
        if block < end {
            dots(&group, block, false);
        }
        let factors = weights(&group);
        for chunk in (0..group.head_dim.div_ceil(LANES)).step_by(2) {
            values(&group, chunk, &factors);
        }
    }
}

/// The first `count` numbers at `from`, then zeros.
#[inline(always)]
unsafe fn load_part(from: *const f32, count: usize) -> __m512 {
    _mm512_maskz_loadu_ps(((1_u32 << count) - 1) as u16, from)
}

/// Numbers, with NaNs replaced by a NaN that survives rounding.
#[inline(always)]
unsafe fn quiet_nan(x: __m512) -> __m512 {
    _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x), V::splat(f32::NAN))
}

/// Prefetches the cache lines of `count` numbers, which need not be valid memory.
#[inline(always)]
unsafe fn prefetch(from: *const f32, count: usize) {
    for at in (0..count).step_by(LANES) {
        V::prefetch(from.wrapping_add(at).cast());
    }
}

/// Writes a row of pairs to two tiles.
#[inline(always)]
unsafe fn put_pair(one: __m512, two: __m512, tiles: *mut u8) {
    let (hi, lo) = pair_of(one, two);
    V::store_w(tiles, hi);
    V::store_w(tiles.add(TILE), lo);
}

/// Writes keys to the workspace as `(blocks of 16, steps, 2, pairs of elements, 16)`.
#[inline(always)]
unsafe fn pack_keys(kv: &KvBlock) {
    let steps = kv.head_dim.div_ceil(STEP);
    let mut columns = MaybeUninit::<[__m512; STEP]>::uninit();
    let columns = columns.as_mut_ptr().cast::<f32>();
    let mut padded = MaybeUninit::<[__m512; STEP]>::uninit();
    let padded = padded.as_mut_ptr().cast::<f32>();
    for block in kv.from / LANES..kv.to.div_ceil(LANES) {
        let keys = kv.keys.add(block * LANES * kv.stride);
        let count = LANES.min(kv.to - block * LANES);
        for row in 0..LANES {
            prefetch(keys.wrapping_add((row + PREFETCH_ROWS) * kv.stride), kv.head_dim);
            prefetch(keys.wrapping_add(row * kv.stride + kv.value_offset), kv.head_dim);
        }
        for step in 0..steps {
            let cols = STEP.min(kv.head_dim - step * STEP);
            let (mut from, mut stride) = (keys.add(step * STEP), kv.stride);
            if count < LANES || cols < STEP {
                for row in 0..LANES {
                    for at in [0, LANES] {
                        let there = if row < count { cols.saturating_sub(at).min(LANES) } else { 0 };
                        V::store(
                            padded.add(row * STEP + at),
                            load_part(from.wrapping_add(row * stride + at), there),
                        );
                    }
                }
                (from, stride) = (padded, STEP);
            }
            V::transpose(from, stride, kv.scale, columns, LANES);
            V::transpose(from.add(LANES), stride, kv.scale, columns.add(LANES * LANES), LANES);
            let tiles = kv.workspace.keys.cast::<u8>().add((block * steps + step) * STEP_BYTES);
            for pair in 0..STEP / 2 {
                let at = columns.add(2 * pair * LANES);
                put_pair(V::load(at), V::load(at.add(LANES)), tiles.add(64 * pair));
            }
        }
    }
}

/// Writes values to the workspace as `(steps, chunks of 16 columns, 2, pairs of keys, 16)`, with zeros past the
/// sequence's end. Steps are whole whatever an item sees of them: with values that are not finite, even a weight of 0
/// would show.
#[inline(always)]
unsafe fn pack_values(kv: &KvBlock) {
    let chunks = width(kv.head_dim) / LANES;
    for key in (kv.from / STEP * STEP..kv.to.next_multiple_of(STEP)).step_by(2) {
        let values = kv.keys.wrapping_add(key * kv.stride + kv.value_offset);
        for chunk in 0..chunks {
            let cols = kv.head_dim.saturating_sub(chunk * LANES).min(LANES);
            let one = load_part(values.wrapping_add(chunk * LANES), if key < kv.there { cols } else { 0 });
            let two = values.wrapping_add(kv.stride + chunk * LANES);
            let two = load_part(two, if key + 1 < kv.there { cols } else { 0 });
            let tiles = kv.workspace.values.cast::<u8>().add((key / STEP * chunks + chunk) * STEP_BYTES);
            put_pair(quiet_nan(one), quiet_nan(two), tiles.add(64 * (key % STEP / 2)));
        }
    }
}

/// Writes 32 numbers as two rows of bfloat16: `hi`, then `lo`.
#[inline(always)]
unsafe fn split(one: __m512, two: __m512, hi: *mut u8, lo: *mut u8) {
    let (high_one, high_two) = (_mm512_castsi512_ps(high(one)), _mm512_castsi512_ps(high(two)));
    let low = rounded(V::sub(one, high_one), V::sub(two, high_two));
    V::store_w(hi, rounded(high_one, high_two));
    V::store_w(lo, low);
}

/// Writes the group's queries to the workspace as `(queries, steps, 2, 32)`.
#[inline(always)]
unsafe fn split_queries(group: &Group) {
    let steps = group.head_dim.div_ceil(STEP);
    for q in 0..group.count {
        let query = group.query.add(q * group.stride);
        let to = group.workspace.queries.cast::<u8>().add(q * steps * 4 * STEP);
        prefetch(query.wrapping_add(PREFETCH_ROWS * group.stride), group.head_dim);
        for step in 0..steps {
            let left = group.head_dim - step * STEP;
            let one = load_part(query.add(step * STEP), left.min(LANES));
            let two =
                load_part(query.wrapping_add(step * STEP + LANES), left.saturating_sub(LANES).min(LANES));
            let to = to.add(step * 4 * STEP);
            split(one, two, to, to.add(2 * STEP));
        }
    }
}

/// Computes dot products with four blocks of keys, or with two. Results for missing queries are ignored.
#[inline(always)]
unsafe fn dots(group: &Group, block: usize, four: bool) {
    let steps = group.head_dim.div_ceil(STEP);
    let stride = steps * 4 * STEP;
    tile_zero!("tmm0", "tmm1", "tmm2", "tmm3");
    for step in 0..steps {
        let queries = group.workspace.queries.cast::<u8>().add(step * 4 * STEP);
        let keys = group.workspace.keys.cast::<u8>().add((block * steps + step) * STEP_BYTES);
        tile_load!("tmm4", queries, stride);
        tile_load!("tmm5", queries.add(2 * STEP), stride);
        macro_rules! product {
            ($block:literal, $piece:literal, $key:literal, $sum:literal, $($query:literal)+) => {
                tile_load!($key, keys.add($block * steps * STEP_BYTES + $piece * TILE), 64usize);
                $(tile_dot!("tdpbf16ps", $sum, $query, $key);)+
            };
        }
        product!(0, 1, "tmm6", "tmm0", "tmm4");
        product!(1, 1, "tmm7", "tmm1", "tmm4");
        if four {
            product!(2, 1, "tmm6", "tmm2", "tmm4");
            product!(3, 1, "tmm7", "tmm3", "tmm4");
        }
        product!(0, 0, "tmm6", "tmm0", "tmm5" "tmm4");
        product!(1, 0, "tmm7", "tmm1", "tmm5" "tmm4");
        if four {
            product!(2, 0, "tmm6", "tmm2", "tmm5" "tmm4");
            product!(3, 0, "tmm7", "tmm3", "tmm5" "tmm4");
        }
    }
    let scores = group.workspace.scores.add(block * LANES);
    tile_store!("tmm0", scores, SCORES_STRIDE);
    tile_store!("tmm1", scores.add(LANES), SCORES_STRIDE);
    if four {
        tile_store!("tmm2", scores.add(2 * LANES), SCORES_STRIDE);
        tile_store!("tmm3", scores.add(3 * LANES), SCORES_STRIDE);
    }
}

/// Factors for the sums of values, by query.
struct Factors {
    /// Factors on the sums of earlier blocks. `last` holds the factors after the last block.
    rescales: [f32; ROWS],
    last: [f32; ROWS],
    /// Key of the block whose weight dominates all others so far, if there is one.
    dominant: [Option<usize>; ROWS],
}

/// Turns scores into weights relative to the largest so far, split as `(queries, steps, 2, 32)`.
#[inline(always)]
unsafe fn weights(group: &Group) -> Factors {
    let (first, end) = (group.from / STEP * STEP, group.to.next_multiple_of(STEP));
    let lowest = V::splat(f32::NEG_INFINITY);
    // Missing queries are ignored.
    let mut rows = [lowest; ROWS];
    for (q, top) in rows.iter_mut().enumerate().take(group.count) {
        let row = group.workspace.scores.add(q * SCORES);
        let (from, to) = group.visible.of(q, group.from, group.to);
        let mut tops = [lowest; 2];
        for at in (first..end).step_by(STEP) {
            let (mut one, mut two) = (V::load(row.add(at)), V::load(row.add(at + LANES)));
            if let ScoreBias::Distances = group.bias {
                let bias = group.workspace.distances.add(group.bias_at - q + at);
                (one, two) = (V::add(one, V::load(bias)), V::add(two, V::load(bias.add(LANES))));
                V::store(row.add(at), one);
                V::store(row.add(at + LANES), two);
            }
            if at < from || at + STEP > to {
                let visible = visible(from, to, at);
                one = _mm512_mask_mov_ps(lowest, visible as u16, one);
                two = _mm512_mask_mov_ps(lowest, (visible >> LANES) as u16, two);
            }
            tops = [V::max(tops[0], one), V::max(tops[1], two)];
        }
        *top = V::max(tops[0], tops[1]);
    }
    let state = group.workspace.states.add(group.state * (LANES + width(group.head_dim)));
    let (before, total) =
        if group.first { (lowest, V::splat(0.0)) } else { (V::load(state), V::load(state.add(LANES))) };
    let tops = V::max(V::max(before, tops_of(&rows)), V::splat(f32::MIN));
    let mut row_tops = [0.0; ROWS];
    V::store(row_tops.as_mut_ptr(), tops);
    let mut rows = [V::splat(0.0); ROWS];
    for (q, sum) in rows.iter_mut().enumerate().take(group.count) {
        let row = group.workspace.scores.add(q * SCORES);
        let (from, to) = group.visible.of(q, group.from, group.to);
        let top = V::splat(row_tops[q]);
        let mut sums = [V::splat(0.0); 2];
        for at in (first..end).step_by(STEP) {
            let (one, two) = (row.add(at), row.add(at + LANES));
            let mut weight_one = math::exp2_from::<V>(LOW, V::sub(V::load(one), top));
            let mut weight_two = math::exp2_from::<V>(LOW, V::sub(V::load(two), top));
            if at < from || at + STEP > to {
                let visible = visible(from, to, at);
                weight_one = _mm512_maskz_mov_ps(visible as u16, weight_one);
                weight_two = _mm512_maskz_mov_ps((visible >> LANES) as u16, weight_two);
            }
            sums = [V::add(sums[0], weight_one), V::add(sums[1], weight_two)];
            split(weight_one, weight_two, one.cast(), two.cast());
        }
        *sum = V::add(sums[0], sums[1]);
    }
    let rescale = math::exp2_falling::<V>(V::sub(before, tops));
    let total = V::fma(total, rescale, sums_of(&rows));
    if !group.last {
        V::store(state, tops);
        V::store(state.add(LANES), total);
    }
    let mut factors = Factors { rescales: [0.0; ROWS], last: [0.0; ROWS], dominant: [None; ROWS] };
    let there = (1_u32 << group.count) - 1;
    let mut few = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(total, V::splat(DOMINANT_TOTAL_MAX)) & there as u16;
    while few != 0 {
        let q = few.trailing_zeros() as usize;
        factors.dominant[q] = largest(group, q, first, end);
        few &= few - 1;
    }
    V::store(factors.rescales.as_mut_ptr(), rescale);
    V::store(factors.last.as_mut_ptr(), V::div(V::splat(1.0), total));
    factors
}

/// Key whose weight is nearly 1, if the block has it.
#[inline(always)]
unsafe fn largest(group: &Group, q: usize, first: usize, end: usize) -> Option<usize> {
    let nearly = _mm512_set1_epi16(NEARLY_ONE);
    for at in (first..end).step_by(STEP) {
        let weights = _mm512_loadu_si512(group.workspace.scores.add(q * SCORES + at).cast());
        let found = _mm512_cmpge_epu16_mask(weights, nearly);
        if found != 0 {
            return Some(at + found.trailing_zeros() as usize);
        }
    }
    None
}

/// Loss of numbers in the split.
#[inline(always)]
unsafe fn lost(x: __m512) -> __m512 {
    let (hi, lo) = pair_of(x, V::splat(0.0));
    let joined = V::add(upper(hi), upper(lo));
    // Exact, like the sum: 17 bits.
    V::sub(x, joined)
}

/// The lower halves of lanes, moved to the upper halves.
#[inline(always)]
unsafe fn upper(pairs: __m512i) -> __m512 {
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs))
}

/// Mask of the keys `from..to` among the 32 from `at` on.
#[inline(always)]
fn visible(from: usize, to: usize, at: usize) -> u32 {
    let before = |key: usize| ((1_u64 << key.saturating_sub(at).min(STEP)) - 1) as u32;
    before(to) & !before(from)
}

/// Reduces the lanes of row i with `$op` into lane i, in a fixed order.
macro_rules! of_rows {
    ($rows:expr, $op:path) => {{
        let rows: &[__m512; ROWS] = $rows;
        let mut fours = [V::splat(0.0); 4];
        for (four, rows) in fours.iter_mut().zip(rows.chunks_exact(4)) {
            let one = $op(_mm512_unpacklo_ps(rows[0], rows[1]), _mm512_unpackhi_ps(rows[0], rows[1]));
            let two = $op(_mm512_unpacklo_ps(rows[2], rows[3]), _mm512_unpackhi_ps(rows[2], rows[3]));
            let (one, two) = (_mm512_castps_pd(one), _mm512_castps_pd(two));
            let (even, odd) = (_mm512_unpacklo_pd(one, two), _mm512_unpackhi_pd(one, two));
            *four = $op(_mm512_castpd_ps(even), _mm512_castpd_ps(odd));
        }
        let [a, b, c, d] = fours;
        let one = $op(_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b));
        let two = $op(_mm512_shuffle_f32x4::<0x88>(c, d), _mm512_shuffle_f32x4::<0xdd>(c, d));
        $op(_mm512_shuffle_f32x4::<0x88>(one, two), _mm512_shuffle_f32x4::<0xdd>(one, two))
    }};
}

/// Largest number of each row.
#[inline(always)]
unsafe fn tops_of(rows: &[__m512; ROWS]) -> __m512 {
    of_rows!(rows, V::max)
}

/// Sum of each row.
#[inline(always)]
unsafe fn sums_of(rows: &[__m512; ROWS]) -> __m512 {
    of_rows!(rows, V::add)
}

/// `sums = sums * rescale + weights · values` for two chunks of columns. After the last block, multiplied by `last`,
/// they are the output.
#[inline(always)]
unsafe fn values(group: &Group, chunk: usize, factors: &Factors) {
    let width = width(group.head_dim);
    let mut sums = MaybeUninit::<[__m512; 4 * ROWS]>::uninit();
    let sums = sums.as_mut_ptr().cast::<f32>();
    tile_zero!("tmm0", "tmm1", "tmm2", "tmm3");
    for step in group.from / STEP..group.to.div_ceil(STEP) {
        let weights = group.workspace.scores.add(step * STEP).cast::<u8>();
        let one = group.workspace.values.cast::<u8>().add((step * (width / LANES) + chunk) * STEP_BYTES);
        let two = one.add(STEP_BYTES);
        tile_load!("tmm4", weights, SCORES_STRIDE);
        tile_load!("tmm6", one, 64usize);
        tile_dot!("tdpbf16ps", "tmm0", "tmm4", "tmm6");
        tile_load!("tmm7", two, 64usize);
        tile_dot!("tdpbf16ps", "tmm1", "tmm4", "tmm7");
        tile_load!("tmm5", weights.add(2 * STEP), SCORES_STRIDE);
        tile_dot!("tdpbf16ps", "tmm2", "tmm5", "tmm6");
        tile_dot!("tdpbf16ps", "tmm3", "tmm5", "tmm7");
        tile_load!("tmm6", one.add(TILE), 64usize);
        tile_dot!("tdpbf16ps", "tmm2", "tmm4", "tmm6");
        tile_load!("tmm7", two.add(TILE), 64usize);
        tile_dot!("tdpbf16ps", "tmm3", "tmm4", "tmm7");
    }
    tile_store!("tmm0", sums);
    tile_store!("tmm1", sums.add(SUMS));
    tile_store!("tmm2", sums.add(2 * SUMS));
    tile_store!("tmm3", sums.add(3 * SUMS));
    let states = group.workspace.states.add(group.state * (LANES + width) + ROWS * LANES);
    for q in 0..group.count {
        for v in 0..2 {
            let sum = sums.add(v * SUMS + q * LANES);
            let mut sum = V::add(V::load(sum), V::load(sum.add(2 * SUMS)));
            let cols = group.head_dim.saturating_sub((chunk + v) * LANES).min(LANES);
            if let Some(key) = factors.dominant[q] {
                let value = group.values.wrapping_add(key * group.stride + (chunk + v) * LANES);
                sum = V::add(sum, lost(load_part(value, cols)));
            }
            let state = states.add(q * width + (chunk + v) * LANES);
            if !group.first {
                sum = V::fma(V::load(state), V::splat(factors.rescales[q]), sum);
            }
            if group.last {
                let to = group.out.wrapping_add(q * group.out_stride + (chunk + v) * LANES);
                let mask = ((1_u32 << cols) - 1) as u16;
                _mm512_mask_storeu_ps(to, mask, V::mul(sum, V::splat(factors.last[q])));
            } else {
                V::store(state, sum);
            }
        }
    }
}
