//! Products of codes and bytes for four columns, unrolled by hand: compilers split up sums of integers, and then keep
//! more of them in flight than there are registers.

use std::arch::asm;
use std::arch::x86_64::*;

/// Adds the products of four vectors of codes and 16 activations of each of four columns to words. Replaces the words
/// instead if `FRESH`.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) unsafe fn four_columns<const FRESH: bool>(
    codes: *const u8,
    a: *const i8,
    stride: usize,
    words: &mut [[__m256i; 2]; 4],
) {
    macro_rules! column {
        (first $place:literal, $low:literal, $high:literal) => {
            concat!(
                "vpbroadcastd {q}, dword ptr [{a}",
                $place,
                "]\n",
                "vpmaddubsw {",
                $low,
                "}, {w0}, {q}\n",
                "vpmaddubsw {",
                $high,
                "}, {w1}, {q}\n",
            )
        };
        ($at:literal $place:literal, $low:literal, $high:literal) => {
            concat!(
                "vpbroadcastd {q}, dword ptr [{a}",
                $place,
                " + 4 * ",
                $at,
                "]\n",
                "vpmaddubsw {p0}, {w0}, {q}\n",
                "vpmaddubsw {p1}, {w1}, {q}\n",
                "vpaddw {",
                $low,
                "}, {",
                $low,
                "}, {p0}\n",
                "vpaddw {",
                $high,
                "}, {",
                $high,
                "}, {p1}\n",
            )
        };
    }
    macro_rules! vectors {
        ($offset:literal $($at:tt)*) => {
            concat!(
                "vmovdqu {w0}, ymmword ptr [{w} + 64 * ", $offset, "]\n",
                "vmovdqu {w1}, ymmword ptr [{w} + 64 * ", $offset, " + 32]\n",
                column!($($at)* "", "c0l", "c0h"),
                column!($($at)* " + {s}", "c1l", "c1h"),
                column!($($at)* " + 2 * {s}", "c2l", "c2h"),
                column!($($at)* " + {s3}", "c3l", "c3h"),
            )
        };
    }
    let [[c0l, c0h], [c1l, c1h], [c2l, c2h], [c3l, c3h]] = words;
    macro_rules! four {
        ($kind:ident, $first:expr) => {
            asm!(
                $first,
                vectors!(1 1),
                vectors!(2 2),
                vectors!(3 3),
                w = in(reg) codes,
                a = in(reg) a,
                s = in(reg) stride,
                s3 = in(reg) 3 * stride,
                w0 = out(ymm_reg) _,
                w1 = out(ymm_reg) _,
                q = out(ymm_reg) _,
                p0 = out(ymm_reg) _,
                p1 = out(ymm_reg) _,
                c0l = $kind(ymm_reg) *c0l,
                c0h = $kind(ymm_reg) *c0h,
                c1l = $kind(ymm_reg) *c1l,
                c1h = $kind(ymm_reg) *c1h,
                c2l = $kind(ymm_reg) *c2l,
                c2h = $kind(ymm_reg) *c2h,
                c3l = $kind(ymm_reg) *c3l,
                c3h = $kind(ymm_reg) *c3h,
                options(pure, readonly, nostack, preserves_flags)
            )
        };
    }
    if FRESH {
        four!(out, vectors!(0 first));
    } else {
        four!(inout, vectors!(0 0));
    }
}

/// Adds the products of eight vectors of codes, 128 above their weights, and 32 activations of each of four columns to
/// sums, times `d` and the column's factor. Two products of a weight's magnitude and a signed activation just fit a
/// word.
#[target_feature(enable = "avx2,fma")]
#[inline]
pub(super) unsafe fn four_signed_columns(
    codes: *const u8,
    a: *const i8,
    stride: usize,
    d: &[__m256; 2],
    factors: *const f32,
    factors_stride: usize,
    sums: &mut [[__m256; 2]; 4],
) {
    macro_rules! add {
        (0, $sum:literal, $product:literal) => {
            concat!("vpmaddwd {", $sum, "}, {", $product, "}, {ones}\n")
        };
        ($at:literal, $sum:literal, $product:literal) => {
            concat!(
                "vpmaddwd {",
                $product,
                "}, {",
                $product,
                "}, {ones}\n",
                "vpaddd {",
                $sum,
                "}, {",
                $sum,
                "}, {",
                $product,
                "}\n",
            )
        };
    }
    macro_rules! column {
        ($at:tt $place:literal, $low:literal, $high:literal) => {
            concat!(
                "vpbroadcastd {q}, dword ptr [{a}",
                $place,
                " + 4 * ",
                $at,
                "]\n",
                "vpsignb {p}, {q}, {w0}\n",
                "vpsignb {q}, {q}, {w1}\n",
                "vpmaddubsw {p}, {m0}, {p}\n",
                "vpmaddubsw {q}, {m1}, {q}\n",
                add!($at, $low, "p"),
                add!($at, $high, "q"),
            )
        };
    }
    macro_rules! vectors {
        ($($at:tt)*) => {
            concat!($(
                "vpxor {w0}, {flip}, ymmword ptr [{w} + 64 * ", $at, "]\n",
                "vpxor {w1}, {flip}, ymmword ptr [{w} + 64 * ", $at, " + 32]\n",
                "vpabsb {m0}, {w0}\n",
                "vpabsb {m1}, {w1}\n",
                column!($at "", "c0l", "c0h"),
                column!($at " + {s}", "c1l", "c1h"),
                column!($at " + 2 * {s}", "c2l", "c2h"),
                column!($at " + {s3}", "c3l", "c3h"),
            )*)
        };
    }
    macro_rules! sum {
        ($at:literal $place:literal, $low:literal, $high:literal) => {
            concat!(
                "vbroadcastss {q}, dword ptr [{f}",
                $place,
                "]\n",
                "vcvtdq2ps {",
                $low,
                "}, {",
                $low,
                "}\n",
                "vcvtdq2ps {",
                $high,
                "}, {",
                $high,
                "}\n",
                "vmulps {p}, {q}, ymmword ptr [{d}]\n",
                "vmulps {q}, {q}, ymmword ptr [{d} + 32]\n",
                "vfmadd213ps {",
                $low,
                "}, {p}, ymmword ptr [{sums} + 64 * ",
                $at,
                "]\n",
                "vfmadd213ps {",
                $high,
                "}, {q}, ymmword ptr [{sums} + 64 * ",
                $at,
                " + 32]\n",
                "vmovups ymmword ptr [{sums} + 64 * ",
                $at,
                "], {",
                $low,
                "}\n",
                "vmovups ymmword ptr [{sums} + 64 * ",
                $at,
                " + 32], {",
                $high,
                "}\n",
            )
        };
    }
    asm!(
        vectors!(0 1 2 3 4 5 6 7),
        sum!(0 "", "c0l", "c0h"),
        sum!(1 " + 4 * {fs}", "c1l", "c1h"),
        sum!(2 " + 8 * {fs}", "c2l", "c2h"),
        sum!(3 " + 4 * {fs3}", "c3l", "c3h"),
        w = in(reg) codes,
        a = in(reg) a,
        s = in(reg) stride,
        s3 = in(reg) 3 * stride,
        d = in(reg) d,
        f = in(reg) factors,
        fs = in(reg) factors_stride,
        fs3 = in(reg) 3 * factors_stride,
        sums = in(reg) sums,
        ones = in(ymm_reg) _mm256_set1_epi16(1),
        flip = in(ymm_reg) _mm256_set1_epi8(-0x80),
        w0 = out(ymm_reg) _,
        w1 = out(ymm_reg) _,
        m0 = out(ymm_reg) _,
        m1 = out(ymm_reg) _,
        q = out(ymm_reg) _,
        p = out(ymm_reg) _,
        c0l = out(ymm_reg) _,
        c0h = out(ymm_reg) _,
        c1l = out(ymm_reg) _,
        c1h = out(ymm_reg) _,
        c2l = out(ymm_reg) _,
        c2h = out(ymm_reg) _,
        c3l = out(ymm_reg) _,
        c3h = out(ymm_reg) _,
        options(nostack, preserves_flags)
    );
}
