//! Split of a float into two bfloat16, `hi + lo`, the form that the matrix unit takes (`amx/floats.rs` describes the
//! cost). It is used for rows of activations, once a product, and for pairs of any other operands of the unit.

#![allow(unsafe_op_in_unsafe_fn)] // The contract is that of `lanes`.

use std::arch::x86_64::*;

use super::lanes::Lanes;
use super::lanes::avx512::Avx512;

type V = Avx512<true>;

/// Inputs that the unit multiplies at a time.
pub(super) const STEP: usize = 32;

/// Bytes of a row of split activations: `(cols / 32, hi and lo, 32)` bfloat16 in whole steps. Or of an unsplit row,
/// for vectors.
pub(super) const fn split_bytes(cols: usize) -> usize {
    cols.div_ceil(STEP) * 4 * STEP
}

/// Smallest ratio `(Σ|x|)² / Σx²` of a row that is split; n numbers of equal magnitude have the ratio n.
const LIKE_MIN: f32 = 16.0;

/// The upper halves of lanes.
const UPPER: i32 = 0xffff_0000_u32 as i32;
/// Half of a bfloat16's last bit.
const HALF: i32 = 0x8000;

/// Writes `cols` numbers at `x` to `out`, split for the unit, and returns true. Copies them unchanged and returns
/// false if the row does not suit the unit.
///
/// # Safety
/// The processor has AVX-512; `x` holds `cols` f32, and `split_bytes(cols)` at `out` may be written.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
pub(super) unsafe fn split_row(x: *const f32, cols: usize, out: *mut u8) -> bool {
    let (mut total, mut squares) = (V::splat(0.0), V::splat(0.0));
    for at in (0..cols.next_multiple_of(STEP)).step_by(STEP) {
        let mut halves = [V::splat(0.0); 2];
        for (half, at) in halves.iter_mut().zip([at, at + 16]) {
            let left = cols.saturating_sub(at).min(16);
            *half = _mm512_maskz_loadu_ps(((1_u32 << left) - 1) as u16, x.wrapping_add(at));
            total = V::add(total, V::abs(*half));
            squares = V::fma(*half, *half, squares);
        }
        let [one, two] = halves;
        let hi = rounded(one, two);
        let wide = |half: __m256i| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(half)));
        let (hi_one, hi_two) = (_mm512_castsi512_si256(hi), _mm512_extracti64x4_epi64::<1>(hi));
        let lo = rounded(V::sub(one, wide(hi_one)), V::sub(two, wide(hi_two)));
        let out = out.add(4 * at);
        V::store_w(out, hi);
        V::store_w(out.add(2 * STEP), lo);
    }
    let (total, squares) = (V::sum(total), V::sum(squares));
    // False for numbers that are not finite, and if squares are not. The remainders of rounding then are not in range
    // either.
    let even = total * total < f32::INFINITY && total * total >= LIKE_MIN * squares;
    if !even {
        x.copy_to_nonoverlapping(out.cast(), cols);
    }
    even
}

/// Numbers rounded to bfloat16, ties to even: those of `one`, then those of `two`. Subnormal numbers become zeros.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) fn rounded(one: __m512, two: __m512) -> __m512i {
    // SAFETY: 32 bfloat16 in one vector, whatever it is called.
    unsafe { std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(two, one)) }
}

/// A number rounded to bfloat16, ties away from zero.
#[inline(always)]
pub(super) unsafe fn high(w: __m512) -> __m512i {
    let rounded = _mm512_add_epi32(_mm512_castps_si512(w), _mm512_set1_epi32(HALF));
    _mm512_and_si512(rounded, _mm512_set1_epi32(UPPER))
}

/// Remainder of the rounding, with half a bfloat16's last bit added, so that its upper half is the rounded remainder.
#[inline(always)]
unsafe fn low(w: __m512, high: __m512i) -> __m512i {
    let rest = _mm512_sub_ps(w, _mm512_castsi512_ps(high));
    _mm512_add_epi32(_mm512_castps_si512(rest), _mm512_set1_epi32(HALF))
}

/// `hi` and `lo` of two vectors of numbers, with those of `one` in the lower halves of lanes. The processor's own
/// conversion, which would leave the lanes' numbers apart, was measured to be no faster here.
#[inline(always)]
pub(super) unsafe fn pair_of(one: __m512, two: __m512) -> (__m512i, __m512i) {
    let (high_one, high_two) = (high(one), high(two));
    let (low_one, low_two) = (low(one, high_one), low(two, high_two));
    let low_two = _mm512_and_si512(low_two, _mm512_set1_epi32(UPPER));
    (
        _mm512_or_si512(_mm512_srli_epi32::<16>(high_one), high_two),
        _mm512_or_si512(_mm512_srli_epi32::<16>(low_one), low_two),
    )
}
