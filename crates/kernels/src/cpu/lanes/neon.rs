//! Arm NEON: sixteen lanes in four registers, with or without the int8 dot product and the int8 matrix product. These
//! products and the conversions of f16 have no stable intrinsics yet, so each is one instruction of assembly.
//!
//! The matrix product, `usmmla`, multiplies two rows by two columns over eight inputs, twice the work of a dot
//! product. Its codes are unsigned and its activations signed, as they are stored. Its accumulator holds the sums of
//! two rows for two columns, `[r0c0, r0c1, r1c0, r1c1]`. So sums are put into pairs by a zip of two columns' lanes,
//! and taken out by an unzip.

use std::arch::aarch64::*;
use std::arch::asm;
use std::hint::black_box;

use super::{E4M3_IN_HALF, Kernel, Lanes};

/// NEON alone.
pub(in crate::cpu) const PLAIN: u8 = 0;
/// NEON and the dot product, `sdot`.
pub(in crate::cpu) const DOT: u8 = 1;
/// NEON, the dot product, and the products of unsigned by signed bytes, `usdot` and `usmmla`.
pub(in crate::cpu) const I8MM: u8 = 2;

/// NEON at one of the three levels.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Neon<const LEVEL: u8>;

#[target_feature(enable = "neon")]
#[inline(never)]
unsafe fn enter<K: Kernel>(kernel: K) -> K::Out {
    kernel.run::<Neon<PLAIN>>()
}

#[target_feature(enable = "neon,dotprod")]
#[inline(never)]
unsafe fn enter_dot<K: Kernel>(kernel: K) -> K::Out {
    kernel.run::<Neon<DOT>>()
}

#[target_feature(enable = "neon,dotprod,i8mm")]
#[inline(never)]
unsafe fn enter_i8mm<K: Kernel>(kernel: K) -> K::Out {
    kernel.run::<Neon<I8MM>>()
}

#[inline(always)]
unsafe fn widen_f16(x: uint16x4_t) -> float32x4_t {
    let wide: float32x4_t;
    asm!("fcvtl {wide:v}.4s, {x:v}.4h", wide = lateout(vreg) wide, x = in(vreg) x,
        options(pure, nomem, nostack, preserves_flags));
    wide
}

#[inline(always)]
unsafe fn narrow_f16(x: float32x4_t) -> uint16x4_t {
    let narrow: uint16x4_t;
    asm!("fcvtn {narrow:v}.4h, {x:v}.4s", narrow = lateout(vreg) narrow, x = in(vreg) x,
        options(pure, nomem, nostack, preserves_flags));
    narrow
}

/// Adds to each i32 the four products of its bytes. The bytes of `w` are below 128, or signed, or unsigned at level
/// `I8MM`.
#[inline(always)]
unsafe fn dot4<const LEVEL: u8>(sum: int32x4_t, w: uint8x16_t, a: int8x16_t) -> int32x4_t {
    if LEVEL == PLAIN {
        let w = vreinterpretq_s8_u8(w);
        let low = vpaddlq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(a)));
        let high = vpaddlq_s16(vmull_high_s8(w, a));
        return vaddq_s32(sum, vpaddq_s32(low, high));
    }
    let mut sum = sum;
    if LEVEL == DOT {
        asm!("sdot {sum:v}.4s, {w:v}.16b, {a:v}.16b", sum = inout(vreg) sum, w = in(vreg) w, a = in(vreg) a,
            options(pure, nomem, nostack, preserves_flags));
    } else {
        asm!("usdot {sum:v}.4s, {w:v}.16b, {a:v}.16b", sum = inout(vreg) sum, w = in(vreg) w, a = in(vreg) a,
            options(pure, nomem, nostack, preserves_flags));
    }
    sum
}

/// `dot4` of all rows. Indices are constants, because only then do sums stay in registers.
#[inline(always)]
unsafe fn step<const LEVEL: u8>(dot: [int32x4_t; 4], w: [uint8x16_t; 4], a: int8x16_t) -> [int32x4_t; 4] {
    [
        dot4::<LEVEL>(dot[0], w[0], a),
        dot4::<LEVEL>(dot[1], w[1], a),
        dot4::<LEVEL>(dot[2], w[2], a),
        dot4::<LEVEL>(dot[3], w[3], a),
    ]
}

/// Adds the products of eight codes of each of two rows with eight activations of each of two columns.
#[inline(always)]
unsafe fn square(sums: int32x4_t, w: uint8x16_t, a: int8x16_t) -> int32x4_t {
    let mut sums = sums;
    asm!("usmmla {sums:v}.4s, {w:v}.16b, {a:v}.16b", sums = inout(vreg) sums, w = in(vreg) w, a = in(vreg) a,
        options(pure, nomem, nostack, preserves_flags));
    sums
}

/// `Lanes::dots` of a panel's rows 4 Q to 4 Q + 3. `pairs[c][i]` are inputs 8 i.. of columns c and c + 1, c even; an
/// odd last column is paired with itself.
#[inline(always)]
unsafe fn quarter<const Q: usize, const NC: usize, const N: usize>(
    codes: *const u8,
    pairs: &[[int8x16_t; N]; NC],
    dots: &mut [[int32x4_t; 4]; NC],
) {
    let mut sums = [[vdupq_n_s32(0); 2]; NC];
    for c in (0..NC).step_by(2) {
        let (one, two) = (dots[c][Q], dots[(c + 1).min(NC - 1)][Q]);
        sums[c] = [vzip1q_s32(one, two), vzip2q_s32(one, two)];
    }
    for i in 0..N / 2 {
        let from = codes.add(i / 2 * 256 + Q * 64 + i % 2 * 32);
        let (r01, r23) = (vld1q_u8(from), vld1q_u8(from.add(16)));
        for c in (0..NC).step_by(2) {
            sums[c][0] = square(sums[c][0], r01, pairs[c][i]);
            sums[c][1] = square(sums[c][1], r23, pairs[c][i]);
        }
    }
    for c in (0..NC).step_by(2) {
        let [r01, r23] = sums[c];
        dots[c][Q] = vuzp1q_s32(r01, r23);
        dots[(c + 1).min(NC - 1)][Q] = vuzp2q_s32(r01, r23);
    }
}

/// Sums of matrix products that [`multiply_only`] keeps in flight: enough for four units of a latency of four.
const SQUARES: usize = 16;

/// Multiplies and adds in registers as tiles do, `rounds` times. Returns the number of operations, counting a
/// multiplication and an addition as two.
///
/// # Safety
/// The processor has what [`I8MM`] says.
#[target_feature(enable = "neon,dotprod,i8mm")]
pub(in crate::cpu) unsafe fn multiply_only(rounds: usize) -> u64 {
    let (codes, activations) = (black_box([5u8; 64]), black_box([3i8; 64]));
    let mut sums = [vdupq_n_s32(0); SQUARES];
    let mut w = [vld1q_u8(codes.as_ptr()); 4];
    let mut a = [vld1q_s8(activations.as_ptr()); 4];
    for i in 1..4 {
        w[i] = vld1q_u8(codes.as_ptr().add(16 * i));
        a[i] = vld1q_s8(activations.as_ptr().add(16 * i));
    }
    for _ in 0..rounds {
        for (i, sums) in sums.iter_mut().enumerate() {
            *sums = square(*sums, w[i % 4], a[i / 4]);
        }
    }
    for sums in sums {
        black_box(vaddvq_s32(sums));
    }
    2 * (rounds * SQUARES * 4 * 8) as u64
}

#[inline(always)]
unsafe fn quad(a: *const i8) -> int8x16_t {
    vreinterpretq_s8_s32(vdupq_n_s32(a.cast::<i32>().read_unaligned()))
}

#[inline(always)]
unsafe fn widen_u8(x: uint8x16_t) -> [int32x4_t; 4] {
    let (low, high) = (vmovl_u8(vget_low_u8(x)), vmovl_high_u8(x));
    [
        vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(low))),
        vreinterpretq_s32_u32(vmovl_high_u16(low)),
        vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(high))),
        vreinterpretq_s32_u32(vmovl_high_u16(high)),
    ]
}

#[inline(always)]
unsafe fn widen_i8(x: int8x16_t) -> [int32x4_t; 4] {
    let (low, high) = (vmovl_s8(vget_low_s8(x)), vmovl_high_s8(x));
    [vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(high)), vmovl_high_s16(high)]
}

/// Applies the same operation to each of the four registers.
macro_rules! each {
    ($f:ident($($x:expr),+)) => {
        [$f($($x[0]),+), $f($($x[1]),+), $f($($x[2]),+), $f($($x[3]),+)]
    };
}

impl<const LEVEL: u8> Lanes for Neon<LEVEL> {
    type F = [float32x4_t; 4];
    type I = [int32x4_t; 4];
    type W = [uint8x16_t; 4];
    const COLS: usize = 4;
    const PAIRS: bool = LEVEL == I8MM;

    #[inline(always)]
    unsafe fn vectorize<K: Kernel>(kernel: K) -> K::Out {
        match LEVEL {
            PLAIN => enter(kernel),
            DOT => enter_dot(kernel),
            _ => enter_i8mm(kernel),
        }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        [vdupq_n_f32(x); 4]
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::F {
        [vld1q_f32(from), vld1q_f32(from.add(4)), vld1q_f32(from.add(8)), vld1q_f32(from.add(12))]
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, x: Self::F) {
        for (i, x) in x.into_iter().enumerate() {
            vst1q_f32(to.add(4 * i), x);
        }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self::F {
        [
            widen_f16(vld1_u16(from)),
            widen_f16(vld1_u16(from.add(4))),
            widen_f16(vld1_u16(from.add(8))),
            widen_f16(vld1_u16(from.add(12))),
        ]
    }
    #[inline(always)]
    unsafe fn store_f16(to: *mut u16, x: Self::F) {
        for (i, x) in x.into_iter().enumerate() {
            vst1_u16(to.add(4 * i), narrow_f16(x));
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self::F {
        let wide = [vld1_u16(from), vld1_u16(from.add(4)), vld1_u16(from.add(8)), vld1_u16(from.add(12))];
        [
            vreinterpretq_f32_u32(vshll_n_u16::<16>(wide[0])),
            vreinterpretq_f32_u32(vshll_n_u16::<16>(wide[1])),
            vreinterpretq_f32_u32(vshll_n_u16::<16>(wide[2])),
            vreinterpretq_f32_u32(vshll_n_u16::<16>(wide[3])),
        ]
    }
    #[inline(always)]
    unsafe fn load_e4m3(from: *const u8) -> [Self::F; 4] {
        let places = vdupq_n_s16(E4M3_IN_HALF);
        let mut inputs = [Self::splat(0.0); 4];
        for pair in 0..2 {
            for half in 0..2 {
                let both = vreinterpretq_s16_u8(vld1q_u8(from.add(32 * pair + 16 * half)));
                let odd = vreinterpretq_u16_s16(vandq_s16(vshrq_n_s16::<1>(both), places));
                let even = vshrq_n_s16::<1>(vshlq_n_s16::<8>(both));
                let even = vreinterpretq_u16_s16(vandq_s16(even, places));
                for (input, halves) in [(2 * pair, even), (2 * pair + 1, odd)] {
                    inputs[input][2 * half] = widen_f16(vget_low_u16(halves));
                    inputs[input][2 * half + 1] = widen_f16(vget_high_u16(halves));
                }
            }
        }
        inputs
    }

    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        each!(vaddq_f32(a, b))
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        each!(vsubq_f32(a, b))
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        each!(vmulq_f32(a, b))
    }
    #[inline(always)]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        each!(vdivq_f32(a, b))
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        each!(vfmaq_f32(c, a, b))
    }
    #[inline(always)]
    unsafe fn fnma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        each!(vfmsq_f32(c, a, b))
    }
    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        each!(vmaxq_f32(a, b))
    }
    #[inline(always)]
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        each!(vminq_f32(a, b))
    }
    #[inline(always)]
    unsafe fn abs(a: Self::F) -> Self::F {
        each!(vabsq_f32(a))
    }
    #[inline(always)]
    unsafe fn round(a: Self::F) -> Self::F {
        each!(vrndnq_f32(a))
    }
    #[inline(always)]
    unsafe fn scale2(x: Self::F, n: Self::F) -> Self::F {
        let mut scaled = x;
        for (x, n) in scaled.iter_mut().zip(n) {
            let shifted = vshlq_n_s32::<23>(vcvtq_s32_f32(n));
            *x = vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(*x), shifted));
        }
        scaled
    }
    #[inline(always)]
    unsafe fn keep_from(x: Self::F, limit: Self::F, value: Self::F) -> Self::F {
        let mut kept = value;
        for (i, kept) in kept.iter_mut().enumerate() {
            let mask = vcgeq_f32(x[i], limit[i]);
            *kept = vreinterpretq_f32_u32(vandq_u32(mask, vreinterpretq_u32_f32(*kept)));
        }
        kept
    }
    #[inline(always)]
    unsafe fn sum(a: Self::F) -> f32 {
        vaddvq_f32(vaddq_f32(vaddq_f32(a[0], a[2]), vaddq_f32(a[1], a[3])))
    }
    #[inline(always)]
    unsafe fn top(a: Self::F) -> f32 {
        vmaxvq_f32(vmaxq_f32(vmaxq_f32(a[0], a[2]), vmaxq_f32(a[1], a[3])))
    }
    #[inline(always)]
    unsafe fn store_i8(to: *mut i8, x: Self::F) {
        let words = each!(vcvtnq_s32_f32(x));
        let low = vcombine_s16(vmovn_s32(words[0]), vmovn_s32(words[1]));
        let high = vcombine_s16(vmovn_s32(words[2]), vmovn_s32(words[3]));
        vst1q_s8(to, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
    }

    #[inline(always)]
    unsafe fn splat_i(x: i32) -> Self::I {
        [vdupq_n_s32(x); 4]
    }
    #[inline(always)]
    unsafe fn bytes_u(from: *const u8) -> Self::I {
        widen_u8(vld1q_u8(from))
    }
    #[inline(always)]
    unsafe fn bytes_i(from: *const u8) -> Self::I {
        widen_i8(vld1q_s8(from.cast()))
    }
    #[inline(always)]
    unsafe fn nibbles<const HIGH: bool>(from: *const u8) -> Self::I {
        let bytes = vld1q_u8(from);
        widen_u8(if HIGH { vshrq_n_u8::<4>(bytes) } else { vandq_u8(bytes, vdupq_n_u8(15)) })
    }
    #[inline(always)]
    unsafe fn mul_add(a: Self::I, b: Self::I, c: Self::I) -> Self::I {
        each!(vmlaq_s32(c, a, b))
    }
    #[inline(always)]
    unsafe fn to_f(x: Self::I) -> Self::F {
        each!(vcvtq_f32_s32(x))
    }

    #[inline(always)]
    unsafe fn load_w(from: *const u8) -> Self::W {
        [vld1q_u8(from), vld1q_u8(from.add(16)), vld1q_u8(from.add(32)), vld1q_u8(from.add(48))]
    }
    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        asm!("prfm pldl1keep, [{at}]", at = in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[inline(always)]
    unsafe fn prefetch_write(at: *const f32) {
        asm!("prfm pstl1keep, [{at}]", at = in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[inline(always)]
    unsafe fn store_w(to: *mut u8, w: Self::W) {
        for (i, w) in w.into_iter().enumerate() {
            vst1q_u8(to.add(16 * i), w);
        }
    }
    #[inline(always)]
    unsafe fn and(w: Self::W, mask: u8) -> Self::W {
        let mask = [vdupq_n_u8(mask); 4];
        each!(vandq_u8(w, mask))
    }
    #[inline(always)]
    unsafe fn or(a: Self::W, b: Self::W) -> Self::W {
        each!(vorrq_u8(a, b))
    }
    #[inline(always)]
    unsafe fn shr(w: Self::W, n: usize) -> Self::W {
        let by = [vdupq_n_s8(-(n as i8)); 4];
        each!(vshlq_u8(w, by))
    }
    #[inline(always)]
    unsafe fn shl(w: Self::W, n: usize) -> Self::W {
        let by = [vdupq_n_s8(n as i8); 4];
        each!(vshlq_u8(w, by))
    }
    #[inline(always)]
    unsafe fn lookup(table: &[u8; 16], w: Self::W) -> Self::W {
        let table = [vld1q_u8(table.as_ptr()); 4];
        each!(vqtbl1q_u8(table, w))
    }

    #[inline(always)]
    unsafe fn dot32<const BITS: u32>(init: Self::I, w: &[Self::W; 8], a: *const i8) -> Self::I {
        // If codes of eight bits must be signed, they become the weights themselves, and their correction, `init`, is
        // not needed.
        let signed = BITS == 8 && LEVEL < I8MM;
        let mut dot = if signed { [vdupq_n_s32(0); 4] } else { init };
        for j in 0..8 {
            let w = if signed { w[j].map(|w| veorq_u8(w, vdupq_n_u8(0x80))) } else { w[j] };
            dot = step::<LEVEL>(dot, w, quad(a.add(4 * j)));
        }
        dot
    }
    #[inline(always)]
    unsafe fn dot4(init: Self::I, w: Self::W, a: *const i8) -> Self::I {
        let a = quad(a);
        let mut dot = init;
        for (dot, w) in dot.iter_mut().zip(w) {
            if LEVEL == I8MM {
                *dot = dot4::<LEVEL>(*dot, w, a);
                continue;
            }
            // The eighth bit of a code separately, because the instruction would take it as a sign.
            let eighths = dot4::<LEVEL>(vdupq_n_s32(0), vshrq_n_u8::<7>(w), a);
            let low = vandq_u8(w, vdupq_n_u8(0x7f));
            *dot = dot4::<LEVEL>(vaddq_s32(*dot, vshlq_n_s32::<7>(eighths)), low, a);
        }
        dot
    }
    /// Interleaves the inputs of each quarter of the rows, 16 inputs at a time: rows 0 and 1, then rows 2 and 3, for
    /// eight inputs and then for eight more.
    #[inline(always)]
    unsafe fn paired(w: [Self::W; 8]) -> [Self::W; 8] {
        if LEVEL < I8MM {
            return w;
        }
        let zip = |a, b| {
            let (a, b) = (vreinterpretq_s32_u8(a), vreinterpretq_s32_u8(b));
            [vreinterpretq_u8_s32(vzip1q_s32(a, b)), vreinterpretq_u8_s32(vzip2q_s32(a, b))]
        };
        let mut pairs = w;
        for half in 0..2 {
            for quarter in 0..4 {
                let [one, two, three, four] = [0, 1, 2, 3].map(|j| w[4 * half + j][quarter]);
                let ([r01, r23], [r01_next, r23_next]) = (zip(one, two), zip(three, four));
                pairs[4 * half + quarter] = [r01, r23, r01_next, r23_next];
            }
        }
        pairs
    }
    #[inline(always)]
    unsafe fn dots<const NP: usize, const NC: usize, const N: usize>(
        codes: &[*const u8; NP],
        a: *const i8,
        stride: usize,
        dots: &mut [[Self::I; NC]; NP],
    ) {
        if LEVEL < I8MM {
            return super::dots_one_by_one::<Self, NP, NC, N>(codes, a, stride, dots);
        }
        // Eight inputs of a column and of its partner, the next; an odd last column is its own partner.
        let mut pairs = [[vdupq_n_s8(0); N]; NC];
        for c in (0..NC).step_by(2) {
            let (one, two) = (a.add(c * stride), a.add((c + 1).min(NC - 1) * stride));
            for i in (0..N / 2).step_by(2) {
                let one = vreinterpretq_s64_s8(vld1q_s8(one.add(8 * i)));
                let two = vreinterpretq_s64_s8(vld1q_s8(two.add(8 * i)));
                pairs[c][i] = vreinterpretq_s8_s64(vzip1q_s64(one, two));
                pairs[c][i + 1] = vreinterpretq_s8_s64(vzip2q_s64(one, two));
            }
        }
        // Quarters of the rows one after the other, all columns together: each code is loaded once, and few enough
        // sums are in flight for the registers. Unrolled by hand, because only sums at constant indices stay in
        // registers.
        for p in 0..NP {
            quarter::<0, NC, N>(codes[p], &pairs, &mut dots[p]);
            quarter::<1, NC, N>(codes[p], &pairs, &mut dots[p]);
            quarter::<2, NC, N>(codes[p], &pairs, &mut dots[p]);
            quarter::<3, NC, N>(codes[p], &pairs, &mut dots[p]);
        }
    }
    #[inline(always)]
    unsafe fn dot16<const BITS: u32>(init: Self::I, w: &[Self::W; 8], first: usize, a: *const i8) -> Self::I {
        let mut dot = init;
        for j in 0..4 {
            dot = step::<LEVEL>(dot, w[first + j], quad(a.add(4 * j)));
        }
        dot
    }
    #[inline(always)]
    unsafe fn dot_pair(init: Self::I, m: *const u8, a: *const i16) -> Self::I {
        let pair = vreinterpretq_s16_s32(vdupq_n_s32(a.cast::<i32>().read_unaligned()));
        let mut dot = init;
        for (half, m) in [vld1q_u8(m), vld1q_u8(m.add(16))].into_iter().enumerate() {
            for (quarter, m) in [vmovl_u8(vget_low_u8(m)), vmovl_high_u8(m)].into_iter().enumerate() {
                let m = vreinterpretq_s16_u16(m);
                let low = vmull_s16(vget_low_s16(m), vget_low_s16(pair));
                let high = vmull_high_s16(m, pair);
                let sum = &mut dot[2 * half + quarter];
                *sum = vaddq_s32(*sum, vpaddq_s32(low, high));
            }
        }
        dot
    }
}
