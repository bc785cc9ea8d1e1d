//! AVX2 with FMA and F16C: sixteen lanes in two registers; with or without the int8 dot product (AVX-VNNI).

mod columns;

use std::arch::x86_64::*;

use self::columns::{four_columns, four_signed_columns};
use super::{E4M3_IN_HALF, Kernel, Lanes};

/// AVX2, FMA, F16C; and AVX-VNNI if the parameter says so.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Avx2<const VNNI: bool>;

#[target_feature(enable = "avx2,fma,f16c")]
#[inline(never)]
unsafe fn enter<K: Kernel>(kernel: K) -> K::Out {
    kernel.run::<Avx2<false>>()
}

#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
#[inline(never)]
unsafe fn enter_vnni<K: Kernel>(kernel: K) -> K::Out {
    kernel.run::<Avx2<true>>()
}

/// Four activation bytes in every lane.
#[inline(always)]
unsafe fn quad(a: *const i8) -> __m256i {
    _mm256_set1_epi32(a.cast::<i32>().read_unaligned())
}

/// Adjacent i16 added into i32.
#[inline(always)]
unsafe fn widen(pairs: __m256i) -> __m256i {
    _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
}

#[inline(always)]
unsafe fn half_mask(x: __m256, limit: __m256, value: __m256) -> __m256 {
    _mm256_and_ps(_mm256_cmp_ps::<_CMP_GE_OQ>(x, limit), value)
}

/// A scale in both words of a lane: multiplying sums of words by it also widens them.
#[inline(always)]
unsafe fn in_both_words(scale: [__m256i; 2]) -> [__m256i; 2] {
    let both = _mm_setr_epi32(0x0100_0100, 0x0504_0504, 0x0908_0908, 0x0d0c_0d0c);
    let both = _mm256_broadcastsi128_si256(both);
    [_mm256_shuffle_epi8(scale[0], both), _mm256_shuffle_epi8(scale[1], both)]
}

/// Initial value of sums of words, which makes codes count from their zero.
#[inline(always)]
unsafe fn words_from(zero: i32, word_sums: i32) -> __m256i {
    _mm256_mullo_epi16(_mm256_set1_epi32(word_sums), _mm256_set1_epi16(-zero as i16))
}

impl<const VNNI: bool> Lanes for Avx2<VNNI> {
    type F = [__m256; 2];
    type I = [__m256i; 2];
    type W = [__m256i; 2];
    const COLS: usize = 4;
    const WORDS: bool = !VNNI;
    const AHEAD: usize = if VNNI { 2048 } else { 512 };

    #[inline(always)]
    unsafe fn vectorize<K: Kernel>(kernel: K) -> K::Out {
        if VNNI && K::MULTIPLIES_BYTES { enter_vnni(kernel) } else { enter(kernel) }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        [_mm256_set1_ps(x); 2]
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::F {
        [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))]
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, x: Self::F) {
        _mm256_storeu_ps(to, x[0]);
        _mm256_storeu_ps(to.add(8), x[1]);
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self::F {
        [_mm256_cvtph_ps(_mm_loadu_si128(from.cast())), _mm256_cvtph_ps(_mm_loadu_si128(from.add(8).cast()))]
    }
    #[inline(always)]
    unsafe fn store_f16(to: *mut u16, x: Self::F) {
        _mm_storeu_si128(to.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x[0]));
        _mm_storeu_si128(to.add(8).cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x[1]));
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self::F {
        let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
        let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(8).cast()));
        [
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
        ]
    }
    #[inline(always)]
    unsafe fn load_fp8(from: *const u8) -> Self::F {
        let wide = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(_mm_loadu_si128(from.cast())));
        let halves = _mm256_and_si256(wide, _mm256_set1_epi16(E4M3_IN_HALF));
        let [low, high] = [_mm256_castsi256_si128(halves), _mm256_extracti128_si256::<1>(halves)];
        let factor = _mm256_set1_ps(256.0);
        [_mm256_mul_ps(_mm256_cvtph_ps(low), factor), _mm256_mul_ps(_mm256_cvtph_ps(high), factor)]
    }
    #[inline(always)]
    unsafe fn load_e4m3(from: *const u8) -> [Self::F; 4] {
        let places = _mm256_set1_epi16(E4M3_IN_HALF);
        let wide = |halves: __m256i| {
            let (low, high) = (_mm256_castsi256_si128(halves), _mm256_extracti128_si256::<1>(halves));
            [_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)]
        };
        let mut inputs = [Self::splat(0.0); 4];
        for pair in 0..2 {
            let both = _mm256_loadu_si256(from.add(32 * pair).cast());
            let odd = _mm256_and_si256(_mm256_srai_epi16::<1>(both), places);
            let even = _mm256_and_si256(_mm256_srai_epi16::<1>(_mm256_slli_epi16::<8>(both)), places);
            (inputs[2 * pair], inputs[2 * pair + 1]) = (wide(even), wide(odd));
        }
        inputs
    }

    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])]
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])]
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])]
    }
    #[inline(always)]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])]
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])]
    }
    #[inline(always)]
    unsafe fn fnma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        [_mm256_fnmadd_ps(a[0], b[0], c[0]), _mm256_fnmadd_ps(a[1], b[1], c[1])]
    }
    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])]
    }
    #[inline(always)]
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        [_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])]
    }
    #[inline(always)]
    unsafe fn abs(a: Self::F) -> Self::F {
        let sign = _mm256_set1_ps(-0.0);
        [_mm256_andnot_ps(sign, a[0]), _mm256_andnot_ps(sign, a[1])]
    }
    #[inline(always)]
    unsafe fn round(a: Self::F) -> Self::F {
        [
            _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a[0]),
            _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a[1]),
        ]
    }
    #[inline(always)]
    unsafe fn scale2(x: Self::F, n: Self::F) -> Self::F {
        let one = _mm256_slli_epi32::<23>(_mm256_cvtps_epi32(n[0]));
        let two = _mm256_slli_epi32::<23>(_mm256_cvtps_epi32(n[1]));
        [
            _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x[0]), one)),
            _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x[1]), two)),
        ]
    }
    #[inline(always)]
    unsafe fn keep_from(x: Self::F, limit: Self::F, value: Self::F) -> Self::F {
        [half_mask(x[0], limit[0], value[0]), half_mask(x[1], limit[1], value[1])]
    }
    #[inline(always)]
    unsafe fn sum(a: Self::F) -> f32 {
        let eight = _mm256_add_ps(a[0], a[1]);
        let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
    }
    #[inline(always)]
    unsafe fn top(a: Self::F) -> f32 {
        let eight = _mm256_max_ps(a[0], a[1]);
        let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
        let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
    }
    #[inline(always)]
    unsafe fn store_i8(to: *mut i8, x: Self::F) {
        let words = _mm256_packs_epi32(_mm256_cvtps_epi32(x[0]), _mm256_cvtps_epi32(x[1]));
        // The pack works on 128-bit halves: put the quarters back in order.
        let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
        let bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
        _mm_storeu_si128(to.cast(), bytes);
    }

    #[inline(always)]
    unsafe fn splat_i(x: i32) -> Self::I {
        [_mm256_set1_epi32(x); 2]
    }
    #[inline(always)]
    unsafe fn bytes_u(from: *const u8) -> Self::I {
        [
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast())),
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.add(8).cast())),
        ]
    }
    #[inline(always)]
    unsafe fn bytes_i(from: *const u8) -> Self::I {
        [
            _mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast())),
            _mm256_cvtepi8_epi32(_mm_loadl_epi64(from.add(8).cast())),
        ]
    }
    #[inline(always)]
    unsafe fn nibbles<const HIGH: bool>(from: *const u8) -> Self::I {
        let low = _mm256_set1_epi32(15);
        Self::bytes_u(from).map(|b| if HIGH { _mm256_srli_epi32::<4>(b) } else { _mm256_and_si256(b, low) })
    }
    #[inline(always)]
    unsafe fn mul_add(a: Self::I, b: Self::I, c: Self::I) -> Self::I {
        [
            _mm256_add_epi32(_mm256_mullo_epi32(a[0], b[0]), c[0]),
            _mm256_add_epi32(_mm256_mullo_epi32(a[1], b[1]), c[1]),
        ]
    }
    #[inline(always)]
    unsafe fn to_f(x: Self::I) -> Self::F {
        [_mm256_cvtepi32_ps(x[0]), _mm256_cvtepi32_ps(x[1])]
    }

    #[inline(always)]
    unsafe fn load_w(from: *const u8) -> Self::W {
        [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())]
    }
    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[inline(always)]
    unsafe fn prefetch_write(at: *const f32) {
        _mm_prefetch::<_MM_HINT_ET0>(at.cast());
    }
    #[inline(always)]
    unsafe fn store_w(to: *mut u8, w: Self::W) {
        _mm256_storeu_si256(to.cast(), w[0]);
        _mm256_storeu_si256(to.add(32).cast(), w[1]);
    }
    #[inline(always)]
    unsafe fn and(w: Self::W, mask: u8) -> Self::W {
        let mask = _mm256_set1_epi8(mask as i8);
        [_mm256_and_si256(w[0], mask), _mm256_and_si256(w[1], mask)]
    }
    #[inline(always)]
    unsafe fn or(a: Self::W, b: Self::W) -> Self::W {
        [_mm256_or_si256(a[0], b[0]), _mm256_or_si256(a[1], b[1])]
    }
    #[inline(always)]
    unsafe fn shr(w: Self::W, n: usize) -> Self::W {
        let count = _mm_cvtsi32_si128(n as i32);
        [_mm256_srl_epi16(w[0], count), _mm256_srl_epi16(w[1], count)]
    }
    #[inline(always)]
    unsafe fn shl(w: Self::W, n: usize) -> Self::W {
        let count = _mm_cvtsi32_si128(n as i32);
        [_mm256_sll_epi16(w[0], count), _mm256_sll_epi16(w[1], count)]
    }
    #[inline(always)]
    unsafe fn lookup(table: &[u8; 16], w: Self::W) -> Self::W {
        let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
        [_mm256_shuffle_epi8(table, w[0]), _mm256_shuffle_epi8(table, w[1])]
    }

    #[inline(always)]
    unsafe fn dot32<const BITS: u32>(init: Self::I, w: &[Self::W; 8], a: *const i8) -> Self::I {
        let mut dot = init;
        for half in 0..2 {
            let mut sum = init[half];
            if VNNI {
                for (j, w) in w.iter().enumerate() {
                    sum = _mm256_dpbusd_avx_epi32(sum, w[half], quad(a.add(4 * j)));
                }
            } else if BITS == 8 {
                // 255 * 127 twice does not fit an i16, so the weights themselves, signed, are multiplied: their
                // magnitudes by the activations with the weights' signs. Their correction, `init`, is not needed.
                sum = _mm256_setzero_si256();
                for (j, w) in w.iter().enumerate() {
                    let w = _mm256_xor_si256(w[half], _mm256_set1_epi8(-0x80));
                    let a = _mm256_sign_epi8(quad(a.add(4 * j)), w);
                    sum = _mm256_add_epi32(sum, widen(_mm256_maddubs_epi16(_mm256_abs_epi8(w), a)));
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
                let mut pairs = _mm256_setzero_si256();
                for (j, w) in w.iter().enumerate() {
                    let product = _mm256_maddubs_epi16(w[half], quad(a.add(4 * j)));
                    pairs = if j % run == 0 { product } else { _mm256_add_epi16(pairs, product) };
                    if j % run == run - 1 {
                        sum = _mm256_add_epi32(sum, widen(pairs));
                    }
                }
            }
            dot[half] = sum;
        }
        dot
    }
    #[inline(always)]
    unsafe fn dot4(init: Self::I, w: Self::W, a: *const i8) -> Self::I {
        let a = quad(a);
        let mut dot = init;
        for (dot, w) in dot.iter_mut().zip(w) {
            *dot = if VNNI {
                _mm256_dpbusd_avx_epi32(*dot, w, a)
            } else {
                let low = _mm256_maddubs_epi16(_mm256_and_si256(w, _mm256_set1_epi8(0x7f)), a);
                let high = _mm256_maddubs_epi16(_mm256_and_si256(w, _mm256_set1_epi8(-0x80)), a);
                _mm256_add_epi32(*dot, _mm256_add_epi32(widen(low), widen(high)))
            };
        }
        dot
    }
    #[inline(always)]
    unsafe fn dot16<const BITS: u32>(init: Self::I, w: &[Self::W; 8], first: usize, a: *const i8) -> Self::I {
        let mut dot = init;
        for half in 0..2 {
            if VNNI || BITS == 7 {
                for j in 0..4 {
                    let (w, a) = (w[first + j][half], quad(a.add(4 * j)));
                    dot[half] = if VNNI {
                        _mm256_dpbusd_avx_epi32(dot[half], w, a)
                    } else {
                        _mm256_add_epi32(dot[half], widen(_mm256_maddubs_epi16(w, a)))
                    };
                }
                continue;
            }
            for j in [0, 2] {
                let one = _mm256_maddubs_epi16(w[first + j][half], quad(a.add(4 * j)));
                let two = _mm256_maddubs_epi16(w[first + j + 1][half], quad(a.add(4 * j + 4)));
                dot[half] = _mm256_add_epi32(dot[half], widen(_mm256_add_epi16(one, two)));
            }
        }
        dot
    }
    #[inline(always)]
    unsafe fn words<const NC: usize, const N: usize>(
        products_max: usize,
        codes: *const u8,
        scale: Self::I,
        a: *const i8,
        stride: usize,
        zero_point: Option<(i32, *const i32, usize)>,
        parts: &mut [Self::I; NC],
    ) {
        debug_assert!(
            N.is_multiple_of(4) && products_max >= 4 && (zero_point.is_none() || products_max >= N)
        );
        let scale = in_both_words(scale);
        let mut words = [[_mm256_setzero_si256(); 2]; NC];
        if let Some((zero, sums, stride)) = zero_point {
            // Sums may wrap around on the way, but the final value fits.
            for (c, words) in words.iter_mut().enumerate() {
                *words = [words_from(zero, sums.add(c * stride).read()); 2];
            }
        }
        for first in (0..N).step_by(4) {
            let fresh = if first == 0 { zero_point.is_none() } else { products_max < N };
            if first > 0 && fresh {
                words = [[_mm256_setzero_si256(); 2]; NC];
            }
            let codes = codes.add(64 * first);
            if let Some(words) = words.first_chunk_mut::<4>().filter(|_| NC == 4) {
                let a = a.add(4 * first);
                if fresh {
                    four_columns::<true>(codes, a, stride, words);
                } else {
                    four_columns::<false>(codes, a, stride, words);
                }
            } else {
                for j in 0..4 {
                    let w = Self::load_w(codes.add(64 * j));
                    for (c, words) in words.iter_mut().enumerate() {
                        let a = quad(a.add(c * stride + 4 * (first + j)));
                        for (word, w) in words.iter_mut().zip(w) {
                            *word = _mm256_add_epi16(*word, _mm256_maddubs_epi16(w, a));
                        }
                    }
                }
            }
            if first + 4 < N && products_max >= N {
                continue;
            }
            for (part, words) in parts.iter_mut().zip(&words) {
                for ((part, &word), scale) in part.iter_mut().zip(words).zip(scale) {
                    *part = _mm256_add_epi32(*part, _mm256_madd_epi16(word, scale));
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn word_dot<const N: usize>(
        products_max: usize,
        w: &[Self::W; N],
        scale: Self::I,
        a: *const i8,
        zero_point: Option<(i32, i32)>,
        part: Self::I,
    ) -> Self::I {
        let scale = in_both_words(scale);
        let mut part = part;
        for half in 0..2 {
            let mut words = match zero_point {
                Some((zero, sums)) => words_from(zero, sums),
                None => _mm256_setzero_si256(),
            };
            for (j, w) in w.iter().enumerate() {
                let product = _mm256_maddubs_epi16(w[half], quad(a.add(4 * j)));
                words =
                    if j % products_max == 0 && j > 0 { product } else { _mm256_add_epi16(words, product) };
                if j % products_max == products_max - 1 || j == N - 1 {
                    part[half] = _mm256_add_epi32(part[half], _mm256_madd_epi16(words, scale[half]));
                }
            }
        }
        part
    }
    #[inline(always)]
    unsafe fn signed_words<const NC: usize>(
        codes: *const u8,
        a: *const i8,
        stride: usize,
        d: Self::F,
        factors: *const f32,
        factors_stride: usize,
        sums: &mut [Self::F; NC],
    ) {
        if let Some(sums) = sums.first_chunk_mut::<4>().filter(|_| NC == 4) {
            four_signed_columns(codes, a, stride, &d, factors, factors_stride, sums);
            return;
        }
        let mut dots = [[_mm256_setzero_si256(); 2]; NC];
        for j in 0..8 {
            let flip = _mm256_set1_epi8(-0x80);
            let [low, high] = Self::load_w(codes.add(64 * j));
            let w = [_mm256_xor_si256(low, flip), _mm256_xor_si256(high, flip)];
            let magnitudes = [_mm256_abs_epi8(w[0]), _mm256_abs_epi8(w[1])];
            for (c, dots) in dots.iter_mut().enumerate() {
                let a = quad(a.add(c * stride + 4 * j));
                for ((dot, w), magnitude) in dots.iter_mut().zip(w).zip(magnitudes) {
                    let product = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(a, w));
                    *dot = _mm256_add_epi32(*dot, widen(product));
                }
            }
        }
        for (c, (sum, dot)) in sums.iter_mut().zip(dots).enumerate() {
            let factor = Self::splat(factors.add(c * factors_stride).read());
            *sum = Self::fma(Self::to_f(dot), Self::mul(d, factor), *sum);
        }
    }
    #[inline(always)]
    unsafe fn word_sums(a: *const i8) -> i32 {
        let pairs = _mm_maddubs_epi16(_mm_set1_epi8(1), _mm_loadu_si128(a.cast()));
        let two = _mm_add_epi16(pairs, _mm_shuffle_epi32::<0b01_00_11_10>(pairs));
        _mm_cvtsi128_si32(_mm_add_epi16(two, _mm_shuffle_epi32::<0b10_11_00_01>(two)))
    }
    #[inline(always)]
    unsafe fn dot_pair(init: Self::I, m: *const u8, a: *const i16) -> Self::I {
        let a = _mm256_set1_epi32(a.cast::<i32>().read_unaligned());
        let mut dot = init;
        for (half, dot) in dot.iter_mut().enumerate() {
            let m = _mm256_cvtepu8_epi16(_mm_loadu_si128(m.add(16 * half).cast()));
            *dot = if VNNI {
                _mm256_dpwssd_avx_epi32(*dot, m, a)
            } else {
                _mm256_add_epi32(*dot, _mm256_madd_epi16(m, a))
            };
        }
        dot
    }
}
