//! Blocks of 256 on the matrix unit. Small scales are multiplied into the codes beforehand, once for all columns. The
//! products have too many bits for a byte, so they form two planes, whose sums are joined afterwards.
//!
//! If there are minimums, codes and scales are not negative, and the planes are the codes times the low three bits of
//! their scale and times the other bits. No product exceeds its byte, so one multiplication of words computes two of
//! them. Otherwise the planes are the low and the high byte of the whole product.

use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::{AmxJob, PANEL_PLANES, PLANE, Shapes, TILE, V};
use crate::cpu::gemm::{self, Columns, PanelType};
use crate::cpu::lanes::Lanes;
use crate::cpu::matrix::{PANEL_ROWS, PanelKind};

/// Columns of two tiles. Up to this number, columns are computed while the next planes are made.
pub(super) const FEW: usize = 32;
/// Bits of a scale in the low plane, if the scale is what is split.
const SCALE_BITS: u32 = 3;
/// Prefetch distance of streamed codes, in bytes.
const AHEAD: usize = 4096;

/// A block of a panel with up to 32 columns, multiplied but not yet added.
#[derive(Clone, Copy)]
struct Unit {
    /// The block's scales.
    scales: *const u8,
    block: usize,
    column: usize,
    /// Columns, up to 32.
    count: usize,
    sums: *mut f32, // (columns, 16)
}

impl Unit {
    /// A unit before the first, with nothing to add.
    #[inline(always)]
    unsafe fn none(job: &AmxJob) -> Unit {
        let scales = job.panel.add(job.kind.scales_at(job.blocks, 0));
        Unit { scales, block: 0, column: 0, count: 0, sums: job.sums }
    }

    /// Sums so far. Before block 0 they are zeros, whatever the memory holds.
    #[inline(always)]
    unsafe fn before(&self, sums: *const f32) -> __m512 {
        if self.block == 0 { V::splat(0.0) } else { V::load(sums) }
    }
}

/// Whether the high plane is empty: a code of 2 bits times a scale of 4 fits a byte.
const fn is_narrow(kind: PanelKind) -> bool {
    matches!(kind, PanelKind::Q2K)
}

/// Adds the previous unit while the products of a unit are in flight, a quarter after each quarter, so that the matrix
/// unit and the vectors work at the same time. The processor looks ahead only some hundred instructions.
#[inline(always)]
pub(super) unsafe fn sums<K: PanelType>(job: &AmxJob) {
    if job.column_count <= 16 {
        few_sums::<K, false>(job)
    } else if job.column_count <= FEW {
        few_sums::<K, true>(job)
    } else {
        many_sums::<K>(job)
    }
}

/// `sums` of many columns: the planes of a block of all panels are made once and used for all columns.
#[inline(always)]
unsafe fn many_sums<K: PanelType>(job: &AmxJob) {
    let mut tiles = MaybeUninit::<[__m512i; 4 * TILE / 16]>::uninit();
    let tiles = tiles.as_mut_ptr().cast::<i32>();
    let x = &job.columns;
    let mut shape = (0, 0);
    let mut before = Unit::none(job);
    for block in 0..job.blocks {
        for p in 0..job.panels {
            let (codes, scales) = place(job, p, block);
            planes::<K>(codes, scales, job.planes.add(p * PANEL_PLANES), 0..8);
        }
        for column in (0..job.column_count).step_by(32) {
            let left = job.column_count - column;
            let counts = (left.min(16), left.saturating_sub(16).min(16));
            // A missing second group is replaced by one row of the first, whose result is discarded.
            let rows = (counts.0 as u8, counts.1.max(1) as u8);
            if rows != shape {
                shape = rows;
                load_shapes(rows.0, rows.1);
            }
            let one = x.codes.add(column * x.codes_stride + 256 * block);
            let two = if counts.1 > 0 { one.add(16 * x.codes_stride) } else { one };
            for p in 0..job.panels {
                if block + 1 == job.blocks {
                    x.prefetch_out::<V>(p, column, column + left.min(32));
                }
                let scales = BlockScales::load::<K>(before.scales);
                tile_zero!("tmm0", "tmm1", "tmm2", "tmm3");
                for k in 0..4 {
                    quarter::<K, true>(one, two, x.codes_stride, job.planes.add(p * PANEL_PLANES), k);
                    scales.finish::<K>(&before, x, 8 * k, before.count.min(8 * k + 8), tiles);
                }
                store_tiles::<true>(tiles);
                before = Unit {
                    scales: place(job, p, block).1,
                    block,
                    column,
                    count: left.min(32),
                    sums: job.sums.add((p * job.column_count + column) * PANEL_ROWS),
                };
            }
        }
    }
    BlockScales::load::<K>(before.scales).finish_all::<K>(&before, x, tiles);
}

/// `sums` of up to FEW columns, in one tile or, if `TWO`, two. Weights are streamed, and their planes are used once.
/// While a block is multiplied, the planes of the next are made and the sums of the previous one are added.
#[inline(always)]
unsafe fn few_sums<K: PanelType, const TWO: bool>(job: &AmxJob) {
    let mut tiles = MaybeUninit::<[__m512i; 4 * TILE / 16]>::uninit();
    let tiles = tiles.as_mut_ptr().cast::<i32>();
    let x = &job.columns;
    let count = job.column_count;
    load_shapes(count.min(16) as u8, count.saturating_sub(16).max(1) as u8);
    let (mut now, mut next) = (job.planes, job.planes.add(PANEL_PLANES));
    let (codes, scales) = place(job, 0, 0);
    planes::<K>(codes, scales, now, 0..8);
    let mut before = Unit::none(job);
    for p in 0..job.panels {
        for block in 0..job.blocks {
            let is_last = block + 1 == job.blocks;
            if is_last {
                x.prefetch_out::<V>(p, 0, count);
            }
            // After the last block its own planes are made once more and discarded.
            let (codes, scales) = match (is_last, p + 1 == job.panels) {
                (false, _) => place(job, p, block + 1),
                (true, false) => place(job, p + 1, 0),
                (true, true) => place(job, p, block),
            };
            let one = x.codes.add(256 * block);
            let two = if TWO { one.add(16 * x.codes_stride) } else { one };
            let factors = BlockScales::load::<K>(before.scales);
            tile_zero!("tmm0", "tmm1", "tmm2", "tmm3");
            for k in 0..4 {
                quarter::<K, TWO>(one, two, x.codes_stride, now, k);
                let bytes = K::KIND.code_bytes() / 4;
                for line in (0..bytes).step_by(64) {
                    V::prefetch(codes.wrapping_add(AHEAD + bytes * k + line));
                }
                planes::<K>(codes, scales, next, 2 * k..2 * k + 2);
                let columns = if TWO { 8 } else { 4 };
                factors.finish::<K>(&before, x, columns * k, before.count.min(columns * (k + 1)), tiles);
            }
            store_tiles::<TWO>(tiles);
            (now, next) = (next, now);
            before = Unit {
                scales: place(job, p, block).1,
                block,
                column: 0,
                count,
                sums: job.sums.add(p * count * PANEL_ROWS),
            };
        }
    }
    BlockScales::load::<K>(before.scales).finish_all::<K>(&before, x, tiles);
}

/// Addresses of the codes and the scales of a block.
#[inline(always)]
unsafe fn place(job: &AmxJob, p: usize, block: usize) -> (*const u8, *const u8) {
    let panel = job.panel.add(p * job.panel_stride);
    (panel.add(job.kind.codes_at(block)), panel.add(job.kind.scales_at(job.blocks, block)))
}

/// Loads tile shapes: tiles 0 to 3 are sums, low and high for each group of columns; 4 and 5 are columns, as many as
/// each group has; 6 and 7 are weights.
#[inline(always)]
unsafe fn load_shapes(a: u8, b: u8) {
    Shapes::load([(a, 64), (a, 64), (b, 64), (b, 64), (a, 64), (b, 64), (16, 64), (16, 64)]);
}

/// Multiplies a quarter of a block, 64 inputs, with columns `one` and, if TWO, `two`.
#[inline(always)]
unsafe fn quarter<K: PanelType, const TWO: bool>(
    one: *const i8,
    two: *const i8,
    stride: usize,
    planes: *const u8,
    k: usize,
) {
    tile_load!("tmm4", one.add(64 * k), stride);
    tile_load!("tmm6", planes.add(1024 * k), 64usize);
    tile_dot!("tdpbsud", "tmm0", "tmm4", "tmm6");
    if TWO {
        tile_load!("tmm5", two.add(64 * k), stride);
        tile_dot!("tdpbsud", "tmm2", "tmm5", "tmm6");
    }
    if is_narrow(K::KIND) {
        return;
    }
    tile_load!("tmm7", planes.add(PLANE + 1024 * k), 64usize);
    if K::KIND.has_min() {
        tile_dot!("tdpbsud", "tmm1", "tmm4", "tmm7");
    } else {
        tile_dot!("tdpbssd", "tmm1", "tmm4", "tmm7");
    }
    if TWO && K::KIND.has_min() {
        tile_dot!("tdpbsud", "tmm3", "tmm5", "tmm7");
    } else if TWO {
        tile_dot!("tdpbssd", "tmm3", "tmm5", "tmm7");
    }
}

#[inline(always)]
unsafe fn store_tiles<const TWO: bool>(tiles: *mut i32) {
    tile_store!("tmm0", tiles);
    tile_store!("tmm1", tiles.add(TILE));
    if TWO {
        tile_store!("tmm2", tiles.add(2 * TILE));
        tile_store!("tmm3", tiles.add(3 * TILE));
    }
}

/// Integer sum of one column over both planes.
#[inline(always)]
unsafe fn joined<K: PanelType>(low: *const i32) -> __m512i {
    let high = _mm512_loadu_si512(low.add(TILE).cast());
    let low = _mm512_loadu_si512(low.cast());
    if is_narrow(K::KIND) {
        low
    } else if K::KIND.has_min() {
        _mm512_add_epi32(low, _mm512_slli_epi32::<SCALE_BITS>(high))
    } else {
        _mm512_add_epi32(low, _mm512_slli_epi32::<8>(high))
    }
}

/// Splits products of even and of odd bytes, as words, into their low and high bytes.
#[inline(always)]
unsafe fn split(even: __m512i, odd: __m512i, low: *mut u8) {
    let byte = _mm512_set1_epi16(0xff);
    let lows = _mm512_or_si512(_mm512_and_si512(even, byte), _mm512_slli_epi16::<8>(odd));
    let highs = _mm512_or_si512(_mm512_srli_epi16::<8>(even), _mm512_andnot_si512(byte, odd));
    _mm512_storeu_si512(low.cast(), lows);
    _mm512_storeu_si512(low.add(PLANE).cast(), highs);
}

/// A row's scale in both words of its lane.
#[inline(always)]
unsafe fn twice(scale: __m512i) -> __m512i {
    _mm512_or_si512(_mm512_and_si512(scale, _mm512_set1_epi32(0xffff)), _mm512_slli_epi32::<16>(scale))
}

/// Makes the planes of some sub-blocks of 32 of a block: codes less their zero, times their small scales. With
/// minimums nothing is negative, and both planes are unsigned; otherwise the high plane is signed.
#[inline(always)]
unsafe fn planes<K: PanelType>(codes: *const u8, scales: *const u8, planes: *mut u8, groups: Range<usize>) {
    let zero = _mm512_set1_epi16(K::KIND.zero() as i16);
    let byte = _mm512_set1_epi16(0xff);
    let low_bits = _mm512_set1_epi16((1 << SCALE_BITS) - 1);
    for group in groups {
        let scales: [__m512i; 2] = if K::KIND.group() == 32 {
            [twice(gemm::group_scale::<V>(K::KIND, scales, group)); 2]
        } else {
            [0, 1].map(|half| twice(gemm::group_scale::<V>(K::KIND, scales, 2 * group + half)))
        };
        for (j, w) in gemm::unpack::<V>(K::KIND, codes, group).into_iter().enumerate() {
            let at = planes.add(64 * (8 * group + j));
            let scale = scales[j / 4];
            if is_narrow(K::KIND) {
                V::store_w(at, _mm512_mullo_epi16(w, scale));
            } else if K::KIND.has_min() {
                V::store_w(at, _mm512_mullo_epi16(w, _mm512_and_si512(scale, low_bits)));
                V::store_w(at.add(PLANE), _mm512_mullo_epi16(w, _mm512_srli_epi16::<SCALE_BITS>(scale)));
            } else {
                // Stored codes are not negative; the contribution of their zero is subtracted from the products.
                let offset = _mm512_mullo_epi16(scale, zero);
                let (first, second) = (_mm512_and_si512(scale, byte), _mm512_slli_epi16::<8>(scale));
                let even = _mm512_sub_epi16(_mm512_maddubs_epi16(w, first), offset);
                let odd = _mm512_sub_epi16(_mm512_maddubs_epi16(w, second), offset);
                split(even, odd, at);
            }
        }
    }
}

/// A block's scales for the last pass, in registers.
struct BlockScales {
    d: __m512,
    dmin: __m512,
    /// Minimums of groups of 32, in the form that `minimums` reads.
    mins: [__m512i; 4],
    at: *const u8,
}

impl BlockScales {
    #[inline(always)]
    unsafe fn load<K: PanelType>(at: *const u8) -> BlockScales {
        let mut scales =
            BlockScales { d: V::load_f16(at.cast()), dmin: V::splat(0.0), mins: [V::splat_i(0); 4], at };
        if K::KIND.has_min() {
            scales.dmin = V::load_f16(at.add(32).cast());
            if K::KIND.group() == 32 {
                for (pair, mins) in scales.mins.iter_mut().enumerate() {
                    *mins = _mm512_cvtepu8_epi16(_mm256_loadu_si256(at.add(192 + 32 * pair).cast()));
                }
            }
        }
        scales
    }

    /// Adds the integer sums of columns `from..to` of a unit, which are in one of its tiles, with the operations of
    /// `gemm::Block256`.
    #[inline(always)]
    unsafe fn finish<K: PanelType>(
        &self,
        unit: &Unit,
        x: &Columns,
        from: usize,
        to: usize,
        tiles: *const i32,
    ) {
        let (column, block) = (unit.column + from, unit.block);
        let mut factor_at = x.scales.wrapping_add(column * x.scales_stride + block);
        let mut sums_at = x.sums.wrapping_add(column * x.sums_stride + 8 * block);
        let mut offsets_at = x.offsets.wrapping_add(column * x.offsets_stride + 16 * block);
        // For each 16 columns there is a tile of low parts, then one of high parts.
        let mut tile = tiles.add(from / 16 * 2 * TILE + 16 * (from % 16));
        let mut at = unit.sums.wrapping_add(from * PANEL_ROWS);
        let end = unit.sums.wrapping_add(to * PANEL_ROWS);
        while at < end {
            let factor = factor_at.read();
            let scale = V::mul(self.d, V::splat(factor));
            let mut sum = V::fma(V::to_f(joined::<K>(tile)), scale, unit.before(at));
            if K::KIND.has_min() && K::KIND.group() == 32 {
                let total = minimums(&self.mins, sums_at);
                sum = V::fnma(V::to_f(total), V::mul(self.dmin, V::splat(factor)), sum);
                sums_at = sums_at.wrapping_add(x.sums_stride);
            } else if K::KIND.has_min() {
                let mut total = V::splat_i(0);
                for group in 0..16 {
                    let min = gemm::group_min::<V>(self.at, group);
                    total = V::mul_add(V::splat_i(offsets_at.add(group).read()), min, total);
                }
                sum = V::fma(V::to_f(total), V::mul(self.dmin, V::splat(factor * (1.0 / 32.0))), sum);
                offsets_at = offsets_at.wrapping_add(x.offsets_stride);
            }
            V::store(at, sum);
            factor_at = factor_at.wrapping_add(x.scales_stride);
            tile = tile.wrapping_add(16);
            at = at.wrapping_add(PANEL_ROWS);
        }
    }

    /// All columns of a unit.
    #[inline(always)]
    unsafe fn finish_all<K: PanelType>(&self, unit: &Unit, x: &Columns, tiles: *const i32) {
        for from in (0..unit.count).step_by(16) {
            self.finish::<K>(unit, x, from, unit.count.min(from + 16), tiles);
        }
    }
}

/// The eight minimums of a block times the eight sums of a column. In assembly, because the compiler would split the
/// instruction into a product and a sum, for a latency that does not matter here.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn minimums(mins: &[__m512i; 4], sums: *const i16) -> __m512i {
    let mut total = _mm512_setzero_si512();
    asm!(
        "vpdpwssd {total}, {m0}, dword ptr [{sums}]{{1to16}}",
        "vpdpwssd {total}, {m1}, dword ptr [{sums} + 4]{{1to16}}",
        "vpdpwssd {total}, {m2}, dword ptr [{sums} + 8]{{1to16}}",
        "vpdpwssd {total}, {m3}, dword ptr [{sums} + 12]{{1to16}}",
        total = inout(zmm_reg) total,
        m0 = in(zmm_reg) mins[0],
        m1 = in(zmm_reg) mins[1],
        m2 = in(zmm_reg) mins[2],
        m3 = in(zmm_reg) mins[3],
        sums = in(reg) sums,
        options(pure, readonly, nostack, preserves_flags)
    );
    total
}
