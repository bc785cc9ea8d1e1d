//! Sixteen lanes: the vector that every kernel is written in, and its implementations.
//!
//! A kernel is written once, generic over [`Lanes`], and compiled once per instruction set. [`Lanes::vectorize`] is a
//! function compiled with the instruction set's features, into which the generic code, all of it `inline(always)`, is
//! inlined. Sixteen lanes are one AVX-512 register, two of AVX2, four of NEON, or an array.
//!
//! # The contract of every `unsafe fn` here
//!
//! The caller is inside `vectorize` of the same type, so the processor has its instructions. A pointer argument is
//! valid for what the method says it reads or writes, at any alignment. There are no other requirements. That is why
//! these files, whose every line is such a call, allow unsafe operations in unsafe functions without a block each.

#![allow(unsafe_op_in_unsafe_fn)]
#![allow(clippy::needless_range_loop)] // Loops over constants by index: they unroll, and the arrays become registers.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
pub(super) mod portable;

use super::tier::Tier;

/// Bits of an f16 that an 8-bit float (E4M3) has too: the sign, the lower four of the exponent, the upper three of the
/// mantissa.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const E4M3_IN_HALF: i16 = 0xbf80_u16 as i16;

/// Code that [`Lanes::vectorize`] compiles for an instruction set.
pub(super) trait Kernel {
    /// Result of the code.
    type Out;

    /// Whether it multiplies bytes. A kernel that does not is compiled once for both tiers: with the dot product of bytes and
    /// without it.
    const MULTIPLIES_BYTES: bool = true;

    /// Runs the code. Implementations are `inline(always)`.
    ///
    /// # Safety
    /// Called by `L::vectorize` only; what else must hold is said by the constructor of the implementing type.
    unsafe fn run<L: Lanes>(self) -> Self::Out;
}

/// A vector of sixteen lanes on some instruction set.
pub(super) trait Lanes: Copy + 'static {
    /// Sixteen f32.
    type F: Copy;
    /// Sixteen i32.
    type I: Copy;
    /// Sixteen groups of four bytes: lane i holds four consecutive inputs of weight row i.
    type W: Copy;
    /// Columns of the widest tile whose accumulators fit the registers, 4 or 8; attention uses it for queries.
    const COLS: usize;

    /// Whether tiles of two panels by six columns fit the registers and `dot4` is one instruction.
    const JOINT: bool = false;

    /// Whether `dots` multiplies columns two at a time, faster than one by one, with codes in the order of `paired`.
    const PAIRS: bool = false;

    /// Whether `words` is faster than `dots`: products of bytes are first summed in pairs, to words. Its initial value
    /// is then prepared with the activations, by `word_sums`.
    const WORDS: bool = false;

    /// Prefetch distance of streamed weights, in bytes.
    const AHEAD: usize = 2048;

    /// Runs a kernel with the instruction set's features enabled. Never inlined, so that a kernel called from another
    /// is a function that has all registers for itself, which the tiles need.
    ///
    /// # Safety
    /// The processor has the instruction set; the kernel's own demands hold.
    unsafe fn vectorize<K: Kernel>(kernel: K) -> K::Out;

    /// The same number in every lane.
    unsafe fn splat(x: f32) -> Self::F;
    /// Reads 16 f32.
    unsafe fn load(from: *const f32) -> Self::F;
    /// Writes 16 f32.
    unsafe fn store(to: *mut f32, x: Self::F);
    /// Reads 16 IEEE halves.
    unsafe fn load_f16(from: *const u16) -> Self::F;
    /// Writes 16 IEEE halves, rounded to nearest even.
    unsafe fn store_f16(to: *mut u16, x: Self::F);
    /// Reads 16 bfloat16.
    unsafe fn load_bf16(from: *const u16) -> Self::F;
    /// Reads 16 8-bit floats (E4M3). NaN has no representation in the result and becomes some number.
    #[inline(always)]
    unsafe fn load_fp8(from: *const u8) -> Self::F {
        let mut halves = [0u16; 16];
        for (i, half) in halves.iter_mut().enumerate() {
            let float = u16::from(from.add(i).read());
            *half = (float & 0x80) << 8 | (float & 0x7f) << 7;
        }
        Self::mul(Self::load_f16(halves.as_ptr()), Self::splat(256.0))
    }
    /// Reads 64 8-bit floats (E4M3) as four inputs of 16 rows, with two inputs of a row adjacent. Returns 2^-8 of each
    /// number, the value of the same bits as f16. NaN has no representation there and becomes some number.
    #[inline(always)]
    unsafe fn load_e4m3(from: *const u8) -> [Self::F; 4] {
        let mut inputs = [Self::splat(0.0); 4];
        for (k, input) in inputs.iter_mut().enumerate() {
            let mut halves = [0u16; 16];
            for (row, half) in halves.iter_mut().enumerate() {
                let float = u16::from(from.add(32 * (k / 2) + 2 * row + k % 2).read());
                *half = (float & 0x80) << 8 | (float & 0x7f) << 7;
            }
            *input = Self::load_f16(halves.as_ptr());
        }
        inputs
    }

    /// Transposes sixteen rows of sixteen f32, `stride` apart, times a factor: `to[i * to_stride + j]` is `from[j *
    /// stride + i] * factor`.
    #[inline(always)]
    unsafe fn transpose(from: *const f32, stride: usize, factor: f32, to: *mut f32, to_stride: usize) {
        transpose_part(from, stride, 16, 16, factor, to, to_stride);
    }

    /// a + b.
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    /// a - b.
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    /// a * b.
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    /// a / b.
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// a * b + c.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// c - a * b.
    unsafe fn fnma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The larger.
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    /// The smaller.
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    /// |a|.
    unsafe fn abs(a: Self::F) -> Self::F;
    /// The nearest whole number, ties to even.
    unsafe fn round(a: Self::F) -> Self::F;
    /// `x * 2^n` for whole n with the result's exponent in the normal range.
    unsafe fn scale2(x: Self::F, n: Self::F) -> Self::F;
    /// `value` where `x >= limit`, else 0.
    unsafe fn keep_from(x: Self::F, limit: Self::F, value: Self::F) -> Self::F;
    /// The sum of all lanes, in one fixed order.
    unsafe fn sum(a: Self::F) -> f32;
    /// The largest lane.
    unsafe fn top(a: Self::F) -> f32;
    /// Writes the lanes as signed bytes; they are whole and within a byte.
    unsafe fn store_i8(to: *mut i8, x: Self::F);

    /// The same number in every lane.
    unsafe fn splat_i(x: i32) -> Self::I;
    /// Reads 16 unsigned bytes.
    unsafe fn bytes_u(from: *const u8) -> Self::I;
    /// Reads 16 signed bytes.
    unsafe fn bytes_i(from: *const u8) -> Self::I;
    /// Reads 16 bytes and keeps their low nibbles, or their high ones.
    unsafe fn nibbles<const HIGH: bool>(from: *const u8) -> Self::I;
    /// a * b + c, without overflow.
    unsafe fn mul_add(a: Self::I, b: Self::I, c: Self::I) -> Self::I;
    /// To f32, rounded to nearest even.
    unsafe fn to_f(x: Self::I) -> Self::F;

    /// Reads 64 bytes.
    unsafe fn load_w(from: *const u8) -> Self::W;
    /// Prefetches the cache line at an address, which need not be valid.
    unsafe fn prefetch(at: *const u8);
    /// Prefetches a cache line of streamed weights, [`Lanes::AHEAD`] bytes before its use. Any address will do.
    #[inline(always)]
    unsafe fn prefetch_stream(at: *const u8) {
        Self::prefetch(at);
    }
    /// Prefetches the cache line at an address, which need not be valid, for writing.
    unsafe fn prefetch_write(at: *const f32);
    /// Writes 64 bytes.
    unsafe fn store_w(to: *mut u8, w: Self::W);
    /// Bitwise and of each byte with `mask`.
    unsafe fn and(w: Self::W, mask: u8) -> Self::W;
    /// Bitwise or.
    unsafe fn or(a: Self::W, b: Self::W) -> Self::W;
    /// Shifts right by `n` bits, below 8. Bits of a neighbouring byte may come in: mask afterwards.
    unsafe fn shr(w: Self::W, n: usize) -> Self::W;
    /// Shifts left by `n` bits, below 8. Bits of a neighbouring byte may come in, as for `shr`.
    unsafe fn shl(w: Self::W, n: usize) -> Self::W;
    /// `table[byte]` for each byte, all below 16.
    unsafe fn lookup(table: &[u8; 16], w: Self::W) -> Self::W;

    /// `init + Σ w · a` over 32 inputs: eight `w` of codes below 2^BITS and 32 signed bytes at `a`, none -128.
    /// BITS is at most 8; when it is 8, codes are weights plus 128 and every lane of `init` must be `-128 * Σ a`.
    /// Exact.
    unsafe fn dot32<const BITS: u32>(init: Self::I, w: &[Self::W; 8], a: *const i8) -> Self::I;
    /// `init + Σ w · a` over 4 inputs: codes of up to 8 bits, the same `a` for all lanes. Exact.
    unsafe fn dot4(init: Self::I, w: Self::W, a: *const i8) -> Self::I;
    /// Reorders the eight vectors of 32 inputs for `dots`. The first four results depend only on the first four
    /// vectors.
    #[inline(always)]
    unsafe fn paired(w: [Self::W; 8]) -> [Self::W; 8] {
        w
    }
    /// Adds `Σ w · a` over 4 N inputs to the dots of NP panels by NC columns. N is 4 or 8. A panel's N vectors of
    /// codes of up to 8 bits are at its place in `codes`, in the order of `paired`; column c's activations are at `a +
    /// c * stride`. Exact.
    #[inline(always)]
    unsafe fn dots<const NP: usize, const NC: usize, const N: usize>(
        codes: &[*const u8; NP],
        a: *const i8,
        stride: usize,
        dots: &mut [[Self::I; NC]; NP],
    ) {
        dots_one_by_one::<Self, NP, NC, N>(codes, a, stride, dots);
    }
    /// `init + Σ w · a` over 16 inputs, the four `w` from `first` on: codes below 2^BITS, at most 7. Exact.
    unsafe fn dot16<const BITS: u32>(init: Self::I, w: &[Self::W; 8], first: usize, a: *const i8) -> Self::I;
    /// Adds `scale * Σ (w - zero) · a` over 4 N inputs to the parts of NC columns. N vectors of codes are at `codes`;
    /// a column's activations are at `a`, one stride apart. Up to `products_max` products, at least 4, of two codes
    /// and two bytes fit an i16. `zero_point`: the zero, if there is one and N products fit, and the address of the
    /// columns' `word_sums`. Exact.
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
        let _ = (products_max, codes, scale, a, stride, zero_point, parts);
        unreachable!("this instruction set adds to 32 bits at once");
    }
    /// Same as `words` for one column, whose part is passed and returned, of codes `w`. Its `zero_point` is the zero
    /// and the column's `word_sums`.
    #[inline(always)]
    unsafe fn word_dot<const N: usize>(
        products_max: usize,
        w: &[Self::W; N],
        scale: Self::I,
        a: *const i8,
        zero_point: Option<(i32, i32)>,
        part: Self::I,
    ) -> Self::I {
        let _ = (products_max, w, scale, a, zero_point, part);
        unreachable!("this instruction set adds to 32 bits at once");
    }
    /// Adds `Σ (w - 128) · a` over 32 inputs, times `d` and the column's factor, to the sums of NC columns, for codes
    /// of 8 bits. A column's factor is at `factors`, one stride apart; the rest is as for `words`. The integers are
    /// exact.
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
        let _ = (codes, a, stride, d, factors, factors_stride, sums);
        unreachable!("this instruction set adds to 32 bits at once");
    }
    /// Sums over 16 activations: of the first two of every four in the low word, and of the last two in the high word.
    #[inline(always)]
    unsafe fn word_sums(a: *const i8) -> i32 {
        let mut sums = [0i16; 2];
        for i in 0..16 {
            sums[i % 4 / 2] += i16::from(a.add(i).read());
        }
        i32::from(sums[1]) << 16 | i32::from(sums[0] as u16)
    }
    /// `init + m0 * a[0] + m1 * a[1]` where lane i's (m0, m1) are the unsigned bytes `2i, 2i + 1` at `m`. Exact.
    unsafe fn dot_pair(init: Self::I, m: *const u8, a: *const i16) -> Self::I;
}

/// Same as `Lanes::transpose`, for `rows` of `cols` numbers each.
#[inline(always)]
pub(super) unsafe fn transpose_part(
    from: *const f32,
    stride: usize,
    rows: usize,
    cols: usize,
    factor: f32,
    to: *mut f32,
    to_stride: usize,
) {
    for i in 0..cols {
        for j in 0..rows {
            to.add(i * to_stride + j).write(from.add(j * stride + i).read() * factor);
        }
    }
}

/// `Lanes::dots` of codes in the order of inputs by `dot4`; one broadcast activation serves all panels.
#[inline(always)]
unsafe fn dots_one_by_one<L: Lanes, const NP: usize, const NC: usize, const N: usize>(
    codes: &[*const u8; NP],
    a: *const i8,
    stride: usize,
    dots: &mut [[L::I; NC]; NP],
) {
    for j in 0..N {
        let mut w = [L::load_w(codes[0].add(64 * j)); NP];
        for p in 1..NP {
            w[p] = L::load_w(codes[p].add(64 * j));
        }
        for c in 0..NC {
            for p in 0..NP {
                dots[p][c] = L::dot4(dots[p][c], w[p], a.add(c * stride + 4 * j));
            }
        }
    }
}

/// Runs a kernel on a tier.
///
/// # Safety
/// `tier.is_available()`; the kernel's own demands hold.
#[inline]
pub(super) unsafe fn dispatch<K: Kernel>(tier: Tier, kernel: K) -> K::Out {
    match tier {
        #[cfg(target_arch = "x86_64")]
        Tier::Avx2 => avx2::Avx2::<false>::vectorize(kernel),
        #[cfg(target_arch = "x86_64")]
        Tier::AvxVnni => avx2::Avx2::<true>::vectorize(kernel),
        #[cfg(target_arch = "x86_64")]
        Tier::Avx512 => avx512::Avx512::<false>::vectorize(kernel),
        #[cfg(target_arch = "x86_64")]
        Tier::Avx512Vnni | Tier::Amx => avx512::Avx512::<true>::vectorize(kernel),
        #[cfg(target_arch = "aarch64")]
        Tier::Neon => neon::Neon::<{ neon::PLAIN }>::vectorize(kernel),
        #[cfg(target_arch = "aarch64")]
        Tier::NeonDot => neon::Neon::<{ neon::DOT }>::vectorize(kernel),
        #[cfg(target_arch = "aarch64")]
        Tier::NeonI8mm => neon::Neon::<{ neon::I8MM }>::vectorize(kernel),
        _ => portable::Portable::vectorize(kernel),
    }
}
