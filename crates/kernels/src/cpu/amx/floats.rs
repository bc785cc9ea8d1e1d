//! Products of floats on the matrix unit, which multiplies bfloat16 and adds in f32.
//!
//! A number is split in two, `x = hi + lo`, each a bfloat16, which loses up to 2^-17 of it. A product is then `lo ·
//! w.hi + hi · w.hi + hi · w.lo`, in this order for every 32 inputs; `lo · w.lo`, up to 2^-16, is left out. Errors of
//! both signs are equally likely. The error of one product is 4.4 · 10^-6 of it (root mean square; 2.6 · 10^-5 at
//! most), and that of a dot product of 384 similar numbers is 3.6 · 10^-7 of `Σ|w x|`.
//!
//! If few of a row's numbers dominate, errors do not average out, so the row is computed by vectors of f32 instead.
//! That is the case for `(Σ|x|)² < 16 Σx²`, and bounds the error by about 10^-6 of `Σ|w x|`. A split in three, with
//! six products, would be as exact as f32 for everything, at 0.6 to 0.8 of the speed. Weights that are bfloat16
//! already have no `lo`. Activations are split once a product (`cpu/split.rs`), weights where they are used, while the
//! unit works on the previous ones.
//!
//! The unit treats subnormal numbers as zeros, both as inputs and as results. Numbers that are not finite would become
//! NaN in the split (infinity less infinity) or beside a `lo` of zero. So a row of activations that holds such a
//! number is computed by vectors too, and so are all rows if the weights hold one. This choice depends only on the row
//! and the matrix.
//!
//! On this tier every number of columns is computed in this way, from one column to thousands: the operations of an
//! output are the same in all shapes of tiles.

#![allow(unsafe_op_in_unsafe_fn)] // The contract is that of `lanes`, and what `AmxJob` promises.

use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use super::{AmxJob, Shapes, V};
use crate::cpu::gemm::{self, UNIT_STREAM_COLUMNS_MAX};
use crate::cpu::lanes::Lanes;
use crate::cpu::matrix::{PANEL_ROWS, PanelKind};
use crate::cpu::split::{STEP, pair_of};

/// Bytes of a tile: 16 rows of 64.
const TILE: usize = 1024;
/// Bytes of a panel's weights for one step: `hi`, then `lo`.
const STEP_BYTES: usize = 2 * TILE;
/// Steps whose split weights are kept for all columns.
const RUN: usize = 48;
/// Pairs of inputs of a step.
const PAIRS: usize = STEP / 2;
/// Panels of a tile of more than 16 columns, and of a tile of at most 16.
const PANELS: usize = 2;
const PANELS_FEW: usize = 4;
/// Slots for a step of a panel's split weights, when there are few columns: two pairs of panels. The unit waits for
/// stores that it reads, so a pair is split while the pair before is multiplied.
const RING: usize = 4;
/// Bytes of planes that one thread needs: `(RUN, PANELS, 2, 16, 64)`.
pub(in crate::cpu) const PLANE_BYTES: usize = PANELS * RUN * STEP_BYTES;
/// Prefetch distance of a stream of weights: one step, which takes a round of panels. Half of that came too late.
const PREFETCH_BYTES: usize = 2048;

/// Weights of a kind, in the form of the matrix unit.
pub(super) trait SplitWeights {
    const KIND: PanelKind;
    /// Whether they have a `lo`.
    const LOW: bool;

    /// Offset of input `k` in a panel.
    #[inline(always)]
    fn place(k: usize) -> usize {
        k * Self::KIND.code_bytes()
    }

    /// Sixteen weights of input `k`.
    ///
    /// # Safety
    /// AVX-512; the panel has the input.
    unsafe fn load(panel: *const u8, k: usize) -> __m512;

    /// `hi` and `lo` of inputs `k` and `k + 1`: lane i holds both of row i.
    ///
    /// # Safety
    /// AVX-512; the panel has both inputs.
    #[inline(always)]
    unsafe fn pair(panel: *const u8, k: usize) -> (__m512i, __m512i) {
        pair_of(Self::load(panel, k), Self::load(panel, k + 1))
    }

    /// Same as `pair`, for `k` the last input.
    ///
    /// # Safety
    /// AVX-512; the panel has the input.
    #[inline(always)]
    unsafe fn last(panel: *const u8, k: usize) -> (__m512i, __m512i) {
        pair_of(Self::load(panel, k), V::splat(0.0))
    }
}

impl SplitWeights for gemm::F32 {
    const KIND: PanelKind = PanelKind::F32;
    const LOW: bool = true;

    #[inline(always)]
    unsafe fn load(panel: *const u8, k: usize) -> __m512 {
        V::load(panel.add(64 * k).cast())
    }
}

impl SplitWeights for gemm::F16 {
    const KIND: PanelKind = PanelKind::F16;
    const LOW: bool = true;

    #[inline(always)]
    unsafe fn load(panel: *const u8, k: usize) -> __m512 {
        V::load_f16(panel.add(32 * k).cast())
    }
}

impl SplitWeights for gemm::Bf16 {
    const KIND: PanelKind = PanelKind::Bf16;
    const LOW: bool = false;

    #[inline(always)]
    unsafe fn load(panel: *const u8, k: usize) -> __m512 {
        V::load_bf16(panel.add(32 * k).cast())
    }

    #[inline(always)]
    unsafe fn pair(panel: *const u8, k: usize) -> (__m512i, __m512i) {
        let one = _mm512_cvtepu16_epi32(_mm256_loadu_si256(panel.add(32 * k).cast()));
        let two = _mm512_cvtepu16_epi32(_mm256_loadu_si256(panel.add(32 * k + 32).cast()));
        (_mm512_or_si512(one, _mm512_slli_epi32::<16>(two)), _mm512_setzero_si512())
    }

    #[inline(always)]
    unsafe fn last(panel: *const u8, k: usize) -> (__m512i, __m512i) {
        let one = _mm512_cvtepu16_epi32(_mm256_loadu_si256(panel.add(32 * k).cast()));
        (one, _mm512_setzero_si512())
    }
}

/// The 16 rows' floats of inputs `k` and `k + 1`, `k` even, adjacent, as bits of f16; and the rows' scales.
#[inline(always)]
unsafe fn pair_of_fp8<const BLOCK: u8>(panel: *const u8, k: usize) -> ([__m512; 2], __m512) {
    let (block, kind) = (k / BLOCK as usize, gemm::Fp8::<BLOCK>::KIND);
    let both = _mm256_loadu_si256(panel.add(gemm::Fp8::<BLOCK>::place(k)).cast());
    let places = _mm256_set1_epi16(0xbf80_u16 as i16);
    let odd = _mm256_and_si256(_mm256_srai_epi16::<1>(both), places);
    let even = _mm256_and_si256(_mm256_srai_epi16::<1>(_mm256_slli_epi16::<8>(both)), places);
    // The f16 numbers are 2^-8 of the values.
    let wide = |halves| V::mul(_mm512_cvtph_ps(halves), V::splat(256.0));
    ([wide(even), wide(odd)], V::load(panel.add(kind.scales_at(0, block)).cast()))
}

impl<const BLOCK: u8> SplitWeights for gemm::Fp8<BLOCK> {
    const KIND: PanelKind = PanelKind::Fp8 { block: BLOCK };
    const LOW: bool = true;

    /// Offset of the first of a pair.
    #[inline(always)]
    fn place(k: usize) -> usize {
        let block = BLOCK as usize;
        Self::KIND.codes_at(k / block) + k % block / 2 * 2 * PANEL_ROWS
    }

    #[inline(always)]
    unsafe fn load(panel: *const u8, k: usize) -> __m512 {
        let (both, scale) = pair_of_fp8::<BLOCK>(panel, k);
        V::mul(both[k % 2], scale)
    }

    #[inline(always)]
    unsafe fn pair(panel: *const u8, k: usize) -> (__m512i, __m512i) {
        let ([one, two], scale) = pair_of_fp8::<BLOCK>(panel, k);
        pair_of(V::mul(one, scale), V::mul(two, scale))
    }
}

/// Splits pairs `from..to` of a step of a panel, all of which exist, into two tiles at `out`.
#[inline(always)]
unsafe fn split_pairs<W: SplitWeights>(panel: *const u8, step: usize, out: *mut u8, from: usize, to: usize) {
    for pair in from..to {
        let k = STEP * step + 2 * pair;
        let bytes = 2 * W::KIND.code_bytes() / W::KIND.block();
        for line in (0..bytes).step_by(64) {
            V::prefetch(panel.wrapping_add(W::place(k) + PREFETCH_BYTES + line));
        }
        put::<W>(out, pair, W::pair(panel, k));
    }
}

/// Splits a step of a panel of `cols` inputs into two tiles at `out`, with zeros past the last input.
#[inline(always)]
unsafe fn split_step<W: SplitWeights>(panel: *const u8, step: usize, cols: usize, out: *mut u8) {
    let left = cols - STEP * step;
    split_pairs::<W>(panel, step, out, 0, (left / 2).min(PAIRS));
    for pair in left / 2..PAIRS {
        let last = if 2 * pair < left { W::last(panel, cols - 1) } else { (V::splat_i(0), V::splat_i(0)) };
        put::<W>(out, pair, last);
    }
}

#[inline(always)]
unsafe fn put<W: SplitWeights>(out: *mut u8, pair: usize, (hi, lo): (__m512i, __m512i)) {
    V::store_w(out.add(64 * pair), hi);
    if W::LOW {
        V::store_w(out.add(TILE + 64 * pair), lo);
    }
}

/// Computes a job's sums.
///
/// # Safety
/// The unit for bfloat16 is there, and what `AmxJob` promises.
#[inline(always)]
pub(super) unsafe fn sums<W: SplitWeights>(job: &AmxJob) {
    if job.finite && job.column_count <= UNIT_STREAM_COLUMNS_MAX {
        few_columns::<W>(job);
    } else if job.finite {
        many_columns::<W>(job);
    }
    for column in 0..job.column_count {
        let split = *job.columns.scales.add(column * job.columns.scales_stride) == 0.0;
        if split && job.finite {
            continue;
        }
        for first in (0..job.panels).step_by(PANELS_FEW) {
            match job.panels - first {
                1 => by_vectors::<W, 1>(job, first, column, split),
                2 => by_vectors::<W, 2>(job, first, column, split),
                3 => by_vectors::<W, 3>(job, first, column, split),
                _ => by_vectors::<W, PANELS_FEW>(job, first, column, split),
            }
        }
    }
}

/// Computes up to 16 columns. The weights take most of the time, so each is split and used once. A sum waits for the
/// previous product, 52 cycles, so panels advance in pairs.
#[inline(always)]
unsafe fn few_columns<W: SplitWeights>(job: &AmxJob) {
    let mut ring = MaybeUninit::<[__m512i; RING * STEP_BYTES / 64]>::uninit();
    let ring = ring.as_mut_ptr().cast::<u8>();
    let (x, stride) = (job.columns.codes.cast::<u8>(), job.columns.codes_stride);
    let row = (job.column_count as u8, 64);
    Shapes::load([row, row, row, row, row, row, (16, 64), (16, 64)]);
    let steps = job.blocks.div_ceil(STEP);
    for first in (0..job.panels).step_by(PANELS_FEW) {
        // A missing panel of a pair is replaced by an existing one, whose result is discarded.
        let panels = (job.panels - first).min(PANELS_FEW);
        let pairs = panels.div_ceil(2);
        let panel = |p: usize| job.panel.add((first + p.min(panels - 1)) * job.panel_stride);
        let from = [panel(0), panel(1), panel(2), panel(3)];
        let sums = job.sums.add(first * job.column_count * PANEL_ROWS);
        let place = |unit: usize| ring.add(unit % RING * STEP_BYTES);
        tile_zero!("tmm0", "tmm1", "tmm2", "tmm3");
        // A step of a panel is a unit: the two of a pair follow each other, then come the pairs of the next step.
        split_step::<W>(from[0], 0, job.blocks, place(0));
        split_step::<W>(from[1], 0, job.blocks, place(1));
        for step in 0..steps {
            tile_load!("tmm4", x.add(4 * STEP * step), stride);
            tile_load!("tmm5", x.add(4 * STEP * step + 2 * STEP), stride);
            macro_rules! pair {
                ($p:literal, $one:literal, $two:literal) => {
                    if $p < pairs {
                        let unit = 2 * (step * pairs + $p);
                        let (w_one, w_two) = (place(unit), place(unit + 1));
                        let (out_one, out_two) = (place(unit + 2), place(unit + 3));
                        let (next, step_next) = if $p + 1 < pairs { ($p + 1, step) } else { (0, step + 1) };
                        let (next_one, next_two) = (from[2 * next], from[2 * next + 1]);
                        let whole = STEP * (step_next + 1) <= job.blocks;
                        macro_rules! split {
                            ($panel:expr, $out:expr, $from:literal, $to:literal) => {
                                if whole {
                                    split_pairs::<W>($panel, step_next, $out, $from, $to);
                                }
                            };
                        }
                        tile_load!("tmm6", w_one, 64usize);
                        tile_dot!("tdpbf16ps", $one, "tmm5", "tmm6");
                        split!(next_one, out_one, 0, 6);
                        tile_load!("tmm7", w_two, 64usize);
                        tile_dot!("tdpbf16ps", $two, "tmm5", "tmm7");
                        split!(next_one, out_one, 6, 11);
                        tile_dot!("tdpbf16ps", $one, "tmm4", "tmm6");
                        split!(next_one, out_one, 11, 16);
                        tile_dot!("tdpbf16ps", $two, "tmm4", "tmm7");
                        if W::LOW {
                            split!(next_two, out_two, 0, 6);
                            tile_load!("tmm6", w_one.add(TILE), 64usize);
                            tile_dot!("tdpbf16ps", $one, "tmm4", "tmm6");
                            split!(next_two, out_two, 6, 11);
                            tile_load!("tmm7", w_two.add(TILE), 64usize);
                            tile_dot!("tdpbf16ps", $two, "tmm4", "tmm7");
                            split!(next_two, out_two, 11, 16);
                        } else {
                            split!(next_two, out_two, 0, 16);
                        }
                        if !whole && step_next < steps {
                            split_step::<W>(next_one, step_next, job.blocks, out_one);
                            split_step::<W>(next_two, step_next, job.blocks, out_two);
                        }
                    }
                };
            }
            pair!(0, "tmm0", "tmm1");
            pair!(1, "tmm2", "tmm3");
        }
        macro_rules! store {
            ($p:literal, $sum:literal) => {
                if $p < panels {
                    tile_store!($sum, sums.add($p * job.column_count * PANEL_ROWS));
                }
            };
        }
        store!(0, "tmm0");
        store!(1, "tmm1");
        store!(2, "tmm2");
        store!(3, "tmm3");
    }
}

/// Computes more than 16 columns: a run of steps is split while the first columns are multiplied, and used for all.
#[inline(always)]
unsafe fn many_columns<W: SplitWeights>(job: &AmxJob) {
    let (x, stride) = (job.columns.codes.cast::<u8>(), job.columns.codes_stride);
    let steps = job.blocks.div_ceil(STEP);
    let run = steps.div_ceil(steps.div_ceil(RUN));
    let mut shape = (0, 0);
    for first in (0..job.panels).step_by(PANELS) {
        // A missing second panel is replaced by the first, and its result is discarded.
        let second = usize::from(first + 1 < job.panels);
        let one = job.panel.add(first * job.panel_stride);
        let two = one.add(second * job.panel_stride);
        for begin in (0..steps).step_by(run) {
            let end = steps.min(begin + run);
            split_step::<W>(one, begin, job.blocks, job.planes);
            split_step::<W>(two, begin, job.blocks, job.planes.add(STEP_BYTES));
            for column in (0..job.column_count).step_by(32) {
                let left = job.column_count - column;
                let counts = (left.min(16), left.saturating_sub(16).min(16));
                // As with panels, a missing second group is replaced by one row of the first.
                let rows = (counts.0 as u8, counts.1.max(1) as u8);
                if rows != shape {
                    shape = rows;
                    let (a, b) = (rows.0, rows.1);
                    Shapes::load([(a, 64), (a, 64), (b, 64), (b, 64), (a, 64), (b, 64), (16, 64), (16, 64)]);
                }
                let x_one = x.add(column * stride);
                let x_two = if counts.1 > 0 { x_one.add(16 * stride) } else { x_one };
                let sums_one = job.sums.add((first * job.column_count + column) * PANEL_ROWS);
                let sums_two = sums_one.wrapping_add(job.column_count * PANEL_ROWS);
                tile_zero!("tmm0", "tmm1", "tmm2", "tmm3");
                if begin > 0 {
                    tile_load!("tmm0", sums_one, 64usize);
                    if second > 0 {
                        tile_load!("tmm1", sums_two, 64usize);
                    }
                    if counts.1 > 0 {
                        tile_load!("tmm2", sums_one.add(TILE / 4), 64usize);
                        if second > 0 {
                            tile_load!("tmm3", sums_two.add(TILE / 4), 64usize);
                        }
                    }
                }
                // A few at a time: more than the processor's outstanding loads would stall the unit.
                let prefetched = if end == steps { left.min(32).div_ceil(end - begin) } else { 0 };
                for step in begin..end {
                    for p in first..first + 1 + second {
                        let from = column + (step - begin) * prefetched;
                        job.columns.prefetch_out::<V>(
                            p,
                            from,
                            (from + prefetched).min(column + left.min(32)),
                        );
                    }
                    let (x_one, x_two) = (x_one.add(4 * STEP * step), x_two.add(4 * STEP * step));
                    let w_one = job.planes.add((step - begin) * PANELS * STEP_BYTES);
                    let w_two = w_one.add(STEP_BYTES);
                    // The following weights are split between its products, because the processor looks ahead only
                    // some hundred instructions.
                    macro_rules! products {
                        ($split:ident) => {
                            tile_load!("tmm4", x_one.add(2 * STEP), stride);
                            tile_load!("tmm6", w_one, 64usize);
                            tile_dot!("tdpbf16ps", "tmm0", "tmm4", "tmm6");
                            $split!(one, w_one, 0, 3);
                            tile_load!("tmm7", w_two, 64usize);
                            tile_dot!("tdpbf16ps", "tmm1", "tmm4", "tmm7");
                            $split!(one, w_one, 3, 6);
                            tile_load!("tmm5", x_two.add(2 * STEP), stride);
                            tile_dot!("tdpbf16ps", "tmm2", "tmm5", "tmm6");
                            $split!(one, w_one, 6, 9);
                            tile_dot!("tdpbf16ps", "tmm3", "tmm5", "tmm7");
                            $split!(one, w_one, 9, 12);
                            tile_load!("tmm4", x_one, stride);
                            tile_dot!("tdpbf16ps", "tmm0", "tmm4", "tmm6");
                            $split!(one, w_one, 12, 14);
                            tile_dot!("tdpbf16ps", "tmm1", "tmm4", "tmm7");
                            $split!(one, w_one, 14, 16);
                            tile_load!("tmm5", x_two, stride);
                            tile_dot!("tdpbf16ps", "tmm2", "tmm5", "tmm6");
                            $split!(two, w_two, 0, 2);
                            tile_dot!("tdpbf16ps", "tmm3", "tmm5", "tmm7");
                            $split!(two, w_two, 2, 4);
                            if W::LOW {
                                tile_load!("tmm6", w_one.add(TILE), 64usize);
                                tile_dot!("tdpbf16ps", "tmm0", "tmm4", "tmm6");
                                $split!(two, w_two, 4, 7);
                                tile_load!("tmm7", w_two.add(TILE), 64usize);
                                tile_dot!("tdpbf16ps", "tmm1", "tmm4", "tmm7");
                                $split!(two, w_two, 7, 10);
                                tile_dot!("tdpbf16ps", "tmm2", "tmm5", "tmm6");
                                $split!(two, w_two, 10, 13);
                                tile_dot!("tdpbf16ps", "tmm3", "tmm5", "tmm7");
                                $split!(two, w_two, 13, 16);
                            } else {
                                $split!(two, w_two, 4, 16);
                            }
                        };
                    }
                    macro_rules! split_next {
                        ($panel:ident, $plane:ident, $from:literal, $to:literal) => {
                            split_pairs::<W>($panel, step + 1, $plane.add(PANELS * STEP_BYTES), $from, $to)
                        };
                    }
                    macro_rules! split_nothing {
                        ($($any:tt)*) => {};
                    }
                    let splits = column == 0 && step + 1 < end;
                    if splits && STEP * (step + 2) <= job.blocks {
                        products!(split_next);
                        continue;
                    }
                    products!(split_nothing);
                    if splits {
                        split_step::<W>(one, step + 1, job.blocks, w_one.add(PANELS * STEP_BYTES));
                        split_step::<W>(two, step + 1, job.blocks, w_two.add(PANELS * STEP_BYTES));
                    }
                }
                tile_store!("tmm0", sums_one);
                if second > 0 {
                    tile_store!("tmm1", sums_two);
                }
                if counts.1 > 0 {
                    tile_store!("tmm2", sums_one.add(TILE / 4));
                    if second > 0 {
                        tile_store!("tmm3", sums_two.add(TILE / 4));
                    }
                }
            }
        }
    }
}

/// Computes one column of NP panels by vectors of f32, joining split numbers again.
#[inline(always)]
unsafe fn by_vectors<W: SplitWeights, const NP: usize>(
    job: &AmxJob,
    first: usize,
    column: usize,
    split: bool,
) {
    let x = job.columns.codes.cast::<u8>().add(column * job.columns.codes_stride);
    let panel = job.panel.add(first * job.panel_stride);
    let mut sums = [V::splat(0.0); NP];
    for k in 0..job.blocks {
        let x = if split {
            let at = x.cast::<u16>().add(k / STEP * 2 * STEP + k % STEP);
            f32::from_bits(u32::from(*at) << 16) + f32::from_bits(u32::from(*at.add(STEP)) << 16)
        } else {
            *x.cast::<f32>().add(k)
        };
        for (p, sum) in sums.iter_mut().enumerate() {
            *sum = V::fma(W::load(panel.add(p * job.panel_stride), k), V::splat(x), *sum);
        }
    }
    for (p, &sum) in sums.iter().enumerate() {
        V::store(job.sums.add(((first + p) * job.column_count + column) * PANEL_ROWS), sum);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::cpu::matrix::CpuMatrix;
    use crate::cpu::pool::ThreadPool;
    use hanzo_engine_ops::quant::{dequantize_row, quantize_row};
    use hanzo_engine_ops::{DType, MatrixShape, MatrixSource};

    /// Checks the unit's weights for 8-bit floats: the numbers, alone and split in pairs.
    fn check<const BLOCK: u8>(dtype: DType) {
        let (rows, cols) = (PANEL_ROWS, 256);
        let weights: Vec<f32> = (0..rows * cols).map(|i| ((i * 7919 % 1013) as f32 - 506.0) * 1e-3).collect();
        let mut bytes = vec![0; dtype.bytes_of(weights.len()).unwrap()];
        quantize_row(dtype, &weights, &mut bytes);
        let mut numbers = vec![0.0; weights.len()];
        dequantize_row(dtype, &bytes, &mut numbers);
        let source = MatrixSource { name: "w", shape: MatrixShape { rows, cols, dtype }, bytes: &bytes };
        let mut turn = Arc::new(ThreadPool::new(1)).turn();
        let matrix = CpuMatrix::pack(&[source], &mut turn, "cpu").unwrap();
        let segment = &matrix.segments()[0];
        assert!(segment.finite);
        let panel = segment.panel(0).as_ptr();
        for k in 0..cols {
            let expected: [f32; 16] = std::array::from_fn(|row| numbers[row * cols + k]);
            let mut found = [0.0f32; 16];
            // SAFETY: the caller asked for the instructions; the panel has the inputs, and the arrays 16 numbers.
            unsafe {
                V::store(found.as_mut_ptr(), gemm::Fp8::<BLOCK>::load(panel, k));
                if k % 2 == 0 {
                    let of_each = |k| gemm::Fp8::<BLOCK>::load(panel, k);
                    let (both, apart) =
                        (gemm::Fp8::<BLOCK>::pair(panel, k), pair_of(of_each(k), of_each(k + 1)));
                    let same = |a, b| _mm512_cmpneq_epi32_mask(a, b) == 0;
                    assert!(same(both.0, apart.0) && same(both.1, apart.1), "{dtype} {k}");
                }
            }
            assert_eq!(found, expected, "{dtype} {k}");
        }
    }

    #[test]
    fn small_floats_are_given_as_their_numbers() {
        if !is_x86_feature_detected!("avx512bf16") || !is_x86_feature_detected!("avx512vnni") {
            println!("skipped: this processor has no AVX-512 with bfloat16");
            return;
        }
        check::<128>(DType::FP8);
        check::<32>(DType::FP8_G32);
    }
}
