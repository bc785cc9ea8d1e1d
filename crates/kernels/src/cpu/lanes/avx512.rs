//! AVX-512: one register of sixteen lanes, with or without the int8 dot product (VNNI).

use std::arch::x86_64::*;

use super::{E4M3_IN_HALF, Kernel, Lanes};

/// AVX-512 F, BW, DQ, VL; and VNNI if the parameter says so.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Avx512<const VNNI: bool>;

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
#[inline(never)]
unsafe fn enter<K: Kernel>(kernel: K) -> K::Out {
    kernel.run::<Avx512<false>>()
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
#[inline(never)]
unsafe fn enter_vnni<K: Kernel>(kernel: K) -> K::Out {
    kernel.run::<Avx512<true>>()
}

/// Four activation bytes in every lane.
#[inline(always)]
unsafe fn quad(a: *const i8) -> __m512i {
    _mm512_set1_epi32(a.cast::<i32>().read_unaligned())
}

/// Adjacent i16 added into i32.
#[inline(always)]
unsafe fn widen(pairs: __m512i) -> __m512i {
    _mm512_madd_epi16(pairs, _mm512_set1_epi16(1))
}

impl<const VNNI: bool> Lanes for Avx512<VNNI> {
    type F = __m512;
    type I = __m512i;
    type W = __m512i;
    const COLS: usize = 8;
    const JOINT: bool = VNNI;

    #[inline(always)]
    unsafe fn vectorize<K: Kernel>(kernel: K) -> K::Out {
        if VNNI && K::MULTIPLIES_BYTES { enter_vnni(kernel) } else { enter(kernel) }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        _mm512_set1_ps(x)
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m512 {
        _mm512_loadu_ps(from)
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, x: __m512) {
        _mm512_storeu_ps(to, x)
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> __m512 {
        _mm512_cvtph_ps(_mm256_loadu_si256(from.cast()))
    }
    #[inline(always)]
    unsafe fn store_f16(to: *mut u16, x: __m512) {
        _mm256_storeu_si256(to.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x))
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> __m512 {
        let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
    }
    #[inline(always)]
    unsafe fn load_fp8(from: *const u8) -> __m512 {
        let wide = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(_mm_loadu_si128(from.cast())));
        let halves = _mm256_and_si256(wide, _mm256_set1_epi16(E4M3_IN_HALF));
        _mm512_mul_ps(_mm512_cvtph_ps(halves), _mm512_set1_ps(256.0))
    }
    #[inline(always)]
    unsafe fn load_e4m3(from: *const u8) -> [__m512; 4] {
        let (both, places) = (_mm512_loadu_si512(from.cast()), _mm512_set1_epi16(E4M3_IN_HALF));
        let odd = _mm512_and_si512(_mm512_srai_epi16::<1>(both), places);
        let even = _mm512_and_si512(_mm512_srai_epi16::<1>(_mm512_slli_epi16::<8>(both)), places);
        [
            _mm512_cvtph_ps(_mm512_castsi512_si256(even)),
            _mm512_cvtph_ps(_mm512_castsi512_si256(odd)),
            _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(even)),
            _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(odd)),
        ]
    }

    #[inline(always)]
    unsafe fn transpose(from: *const f32, stride: usize, factor: f32, to: *mut f32, to_stride: usize) {
        let factor = _mm512_set1_ps(factor);
        // Four rows at a time: each quarter of `fours[4 * r + c]` holds column c of four rows, for four neighbouring
        // columns, a quarter each.
        let mut fours = [factor; 16];
        for r in 0..4 {
            let mut rows = [factor; 4];
            for j in 0..4 {
                rows[j] = _mm512_mul_ps(_mm512_loadu_ps(from.add((4 * r + j) * stride)), factor);
            }
            let [a, b, c, d] = rows;
            let (ab, cd) = (_mm512_unpacklo_ps(a, b), _mm512_unpacklo_ps(c, d));
            let (ab_high, cd_high) = (_mm512_unpackhi_ps(a, b), _mm512_unpackhi_ps(c, d));
            fours[4 * r] = _mm512_shuffle_ps::<0b01_00_01_00>(ab, cd);
            fours[4 * r + 1] = _mm512_shuffle_ps::<0b11_10_11_10>(ab, cd);
            fours[4 * r + 2] = _mm512_shuffle_ps::<0b01_00_01_00>(ab_high, cd_high);
            fours[4 * r + 3] = _mm512_shuffle_ps::<0b11_10_11_10>(ab_high, cd_high);
        }
        for c in 0..4 {
            let (a, b, d, e) = (fours[c], fours[4 + c], fours[8 + c], fours[12 + c]);
            let (even, odd) =
                (_mm512_shuffle_f32x4::<0b10_00_10_00>(a, b), _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b));
            let (even_rest, odd_rest) =
                (_mm512_shuffle_f32x4::<0b10_00_10_00>(d, e), _mm512_shuffle_f32x4::<0b11_01_11_01>(d, e));
            let columns = [
                _mm512_shuffle_f32x4::<0b10_00_10_00>(even, even_rest),
                _mm512_shuffle_f32x4::<0b10_00_10_00>(odd, odd_rest),
                _mm512_shuffle_f32x4::<0b11_01_11_01>(even, even_rest),
                _mm512_shuffle_f32x4::<0b11_01_11_01>(odd, odd_rest),
            ];
            for (quarter, column) in columns.into_iter().enumerate() {
                _mm512_storeu_ps(to.add((4 * quarter + c) * to_stride), column);
            }
        }
    }

    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        _mm512_add_ps(a, b)
    }
    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        _mm512_sub_ps(a, b)
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        _mm512_mul_ps(a, b)
    }
    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        _mm512_div_ps(a, b)
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        _mm512_fmadd_ps(a, b, c)
    }
    #[inline(always)]
    unsafe fn fnma(a: __m512, b: __m512, c: __m512) -> __m512 {
        _mm512_fnmadd_ps(a, b, c)
    }
    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        _mm512_max_ps(a, b)
    }
    #[inline(always)]
    unsafe fn min(a: __m512, b: __m512) -> __m512 {
        _mm512_min_ps(a, b)
    }
    #[inline(always)]
    unsafe fn abs(a: __m512) -> __m512 {
        _mm512_abs_ps(a)
    }
    #[inline(always)]
    unsafe fn round(a: __m512) -> __m512 {
        _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT }>(a)
    }
    #[inline(always)]
    unsafe fn scale2(x: __m512, n: __m512) -> __m512 {
        let shifted = _mm512_slli_epi32::<23>(_mm512_cvtps_epi32(n));
        _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), shifted))
    }
    #[inline(always)]
    unsafe fn keep_from(x: __m512, limit: __m512, value: __m512) -> __m512 {
        _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_GE_OQ>(x, limit), value)
    }
    #[inline(always)]
    unsafe fn sum(a: __m512) -> f32 {
        _mm512_reduce_add_ps(a)
    }
    #[inline(always)]
    unsafe fn top(a: __m512) -> f32 {
        _mm512_reduce_max_ps(a)
    }
    #[inline(always)]
    unsafe fn store_i8(to: *mut i8, x: __m512) {
        _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x)))
    }

    #[inline(always)]
    unsafe fn splat_i(x: i32) -> __m512i {
        _mm512_set1_epi32(x)
    }
    #[inline(always)]
    unsafe fn bytes_u(from: *const u8) -> __m512i {
        _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()))
    }
    #[inline(always)]
    unsafe fn bytes_i(from: *const u8) -> __m512i {
        _mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))
    }
    #[inline(always)]
    unsafe fn nibbles<const HIGH: bool>(from: *const u8) -> __m512i {
        let bytes = Self::bytes_u(from);
        if HIGH { _mm512_srli_epi32::<4>(bytes) } else { _mm512_and_si512(bytes, _mm512_set1_epi32(15)) }
    }
    #[inline(always)]
    unsafe fn mul_add(a: __m512i, b: __m512i, c: __m512i) -> __m512i {
        _mm512_add_epi32(_mm512_mullo_epi32(a, b), c)
    }
    #[inline(always)]
    unsafe fn to_f(x: __m512i) -> __m512 {
        _mm512_cvtepi32_ps(x)
    }

    #[inline(always)]
    unsafe fn load_w(from: *const u8) -> __m512i {
        _mm512_loadu_si512(from.cast())
    }
    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    /// Into the second-level cache: the first level has buffers for too few lines on their way from memory.
    #[inline(always)]
    unsafe fn prefetch_stream(at: *const u8) {
        _mm_prefetch::<_MM_HINT_T1>(at.cast());
    }
    #[inline(always)]
    unsafe fn prefetch_write(at: *const f32) {
        _mm_prefetch::<_MM_HINT_ET0>(at.cast());
    }
    #[inline(always)]
    unsafe fn store_w(to: *mut u8, w: __m512i) {
        _mm512_storeu_si512(to.cast(), w)
    }
    #[inline(always)]
    unsafe fn and(w: __m512i, mask: u8) -> __m512i {
        _mm512_and_si512(w, _mm512_set1_epi8(mask as i8))
    }
    #[inline(always)]
    unsafe fn or(a: __m512i, b: __m512i) -> __m512i {
        _mm512_or_si512(a, b)
    }
    #[inline(always)]
    unsafe fn shr(w: __m512i, n: usize) -> __m512i {
        _mm512_srl_epi16(w, _mm_cvtsi32_si128(n as i32))
    }
    #[inline(always)]
    unsafe fn shl(w: __m512i, n: usize) -> __m512i {
        _mm512_sll_epi16(w, _mm_cvtsi32_si128(n as i32))
    }
    #[inline(always)]
    unsafe fn lookup(table: &[u8; 16], w: __m512i) -> __m512i {
        _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), w)
    }

    #[inline(always)]
    unsafe fn dot32<const BITS: u32>(init: __m512i, w: &[__m512i; 8], a: *const i8) -> __m512i {
        let mut dot = init;
        if VNNI {
            for (j, &w) in w.iter().enumerate() {
                dot = _mm512_dpbusd_epi32(dot, w, quad(a.add(4 * j)));
            }
        } else if BITS == 8 {
            // 255 * 127 twice does not fit an i16; seven bits do, and the eighth does separately.
            for (j, &w) in w.iter().enumerate() {
                let a = quad(a.add(4 * j));
                let low = _mm512_maddubs_epi16(_mm512_and_si512(w, _mm512_set1_epi8(0x7f)), a);
                let high = _mm512_maddubs_epi16(_mm512_and_si512(w, _mm512_set1_epi8(-0x80)), a);
                dot = _mm512_add_epi32(dot, _mm512_add_epi32(widen(low), widen(high)));
            }
        } else {
            // As many products of a code and a byte as an i16 holds: 2^15 / (2 * 127 * 2^BITS).
            let run = if BITS <= 4 {
                8
            } else if BITS == 5 {
                4
            } else {
                2
            };
            let mut pairs = _mm512_setzero_si512();
            for (j, &w) in w.iter().enumerate() {
                let product = _mm512_maddubs_epi16(w, quad(a.add(4 * j)));
                pairs = if j % run == 0 { product } else { _mm512_add_epi16(pairs, product) };
                if j % run == run - 1 {
                    dot = _mm512_add_epi32(dot, widen(pairs));
                }
            }
        }
        dot
    }
    #[inline(always)]
    unsafe fn dot4(init: __m512i, w: __m512i, a: *const i8) -> __m512i {
        if VNNI {
            return _mm512_dpbusd_epi32(init, w, quad(a));
        }
        let low = _mm512_maddubs_epi16(_mm512_and_si512(w, _mm512_set1_epi8(0x7f)), quad(a));
        let high = _mm512_maddubs_epi16(_mm512_and_si512(w, _mm512_set1_epi8(-0x80)), quad(a));
        _mm512_add_epi32(init, _mm512_add_epi32(widen(low), widen(high)))
    }
    #[inline(always)]
    unsafe fn dot16<const BITS: u32>(init: __m512i, w: &[__m512i; 8], first: usize, a: *const i8) -> __m512i {
        let mut dot = init;
        if VNNI {
            for j in 0..4 {
                dot = _mm512_dpbusd_epi32(dot, w[first + j], quad(a.add(4 * j)));
            }
        } else if BITS == 7 {
            for j in 0..4 {
                dot = _mm512_add_epi32(dot, widen(_mm512_maddubs_epi16(w[first + j], quad(a.add(4 * j)))));
            }
        } else {
            for j in [0, 2] {
                let one = _mm512_maddubs_epi16(w[first + j], quad(a.add(4 * j)));
                let two = _mm512_maddubs_epi16(w[first + j + 1], quad(a.add(4 * j + 4)));
                dot = _mm512_add_epi32(dot, widen(_mm512_add_epi16(one, two)));
            }
        }
        dot
    }
    #[inline(always)]
    unsafe fn dot_pair(init: __m512i, m: *const u8, a: *const i16) -> __m512i {
        let m = _mm512_cvtepu8_epi16(_mm256_loadu_si256(m.cast()));
        let a = _mm512_set1_epi32(a.cast::<i32>().read_unaligned());
        if VNNI { _mm512_dpwssd_epi32(init, m, a) } else { _mm512_add_epi32(init, _mm512_madd_epi16(m, a)) }
    }
}
