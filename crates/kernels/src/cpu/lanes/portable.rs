//! Plain Rust arrays, for any processor, and the model for the other implementations.

use half::{bf16, f16};

use super::{Kernel, Lanes};

/// Implementation without a particular instruction set.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Portable;

const LANES: usize = 16;

#[inline(always)]
fn map(f: impl Fn(usize) -> f32) -> [f32; LANES] {
    std::array::from_fn(f)
}

#[inline(always)]
unsafe fn dot_quads(init: [i32; LANES], w: &[[u8; 64]], a: *const i8) -> [i32; LANES] {
    let mut dot = init;
    for (j, w) in w.iter().enumerate() {
        for (lane, dot) in dot.iter_mut().enumerate() {
            for t in 0..4 {
                *dot += i32::from(w[4 * lane + t]) * i32::from(a.add(4 * j + t).read());
            }
        }
    }
    dot
}

impl Lanes for Portable {
    type F = [f32; LANES];
    type I = [i32; LANES];
    type W = [u8; 64];
    const COLS: usize = 4;

    #[inline(never)]
    unsafe fn vectorize<K: Kernel>(kernel: K) -> K::Out {
        kernel.run::<Portable>()
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::F {
        from.cast::<Self::F>().read_unaligned()
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, x: Self::F) {
        to.cast::<Self::F>().write_unaligned(x)
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self::F {
        map(|i| f16::from_bits(from.add(i).read_unaligned()).to_f32())
    }
    #[inline(always)]
    unsafe fn store_f16(to: *mut u16, x: Self::F) {
        for (i, x) in x.into_iter().enumerate() {
            to.add(i).write_unaligned(f16::from_f32(x).to_bits());
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self::F {
        map(|i| bf16::from_bits(from.add(i).read_unaligned()).to_f32())
    }

    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        map(|i| a[i] + b[i])
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        map(|i| a[i] - b[i])
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        map(|i| a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        map(|i| a[i] / b[i])
    }
    // Two roundings: a fused multiply-add without the instruction is a slow library call.
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        map(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    unsafe fn fnma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        map(|i| c[i] - a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        map(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        map(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn abs(a: Self::F) -> Self::F {
        map(|i| a[i].abs())
    }
    #[inline(always)]
    unsafe fn round(a: Self::F) -> Self::F {
        map(|i| a[i].round_ties_even())
    }
    #[inline(always)]
    unsafe fn scale2(x: Self::F, n: Self::F) -> Self::F {
        map(|i| f32::from_bits(x[i].to_bits().wrapping_add(((n[i] as i32) << 23) as u32)))
    }
    #[inline(always)]
    unsafe fn keep_from(x: Self::F, limit: Self::F, value: Self::F) -> Self::F {
        map(|i| if x[i] >= limit[i] { value[i] } else { 0.0 })
    }
    #[inline(always)]
    unsafe fn sum(a: Self::F) -> f32 {
        let eight: [f32; 8] = std::array::from_fn(|i| a[i] + a[i + 8]);
        let four: [f32; 4] = std::array::from_fn(|i| eight[i] + eight[i + 4]);
        (four[0] + four[2]) + (four[1] + four[3])
    }
    #[inline(always)]
    unsafe fn top(a: Self::F) -> f32 {
        a.into_iter().fold(a[0], |top, x| if x > top { x } else { top })
    }
    #[inline(always)]
    unsafe fn store_i8(to: *mut i8, x: Self::F) {
        to.cast::<[i8; LANES]>().write(x.map(|x| x as i8));
    }

    #[inline(always)]
    unsafe fn splat_i(x: i32) -> Self::I {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn bytes_u(from: *const u8) -> Self::I {
        std::array::from_fn(|i| i32::from(from.add(i).read()))
    }
    #[inline(always)]
    unsafe fn bytes_i(from: *const u8) -> Self::I {
        std::array::from_fn(|i| i32::from(from.add(i).read() as i8))
    }
    #[inline(always)]
    unsafe fn nibbles<const HIGH: bool>(from: *const u8) -> Self::I {
        Self::bytes_u(from).map(|b| if HIGH { b >> 4 } else { b & 15 })
    }
    #[inline(always)]
    unsafe fn mul_add(a: Self::I, b: Self::I, c: Self::I) -> Self::I {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    unsafe fn to_f(x: Self::I) -> Self::F {
        x.map(|x| x as f32)
    }

    #[inline(always)]
    unsafe fn load_w(from: *const u8) -> Self::W {
        from.cast::<Self::W>().read()
    }
    #[inline(always)]
    unsafe fn prefetch(_at: *const u8) {}
    #[inline(always)]
    unsafe fn prefetch_write(_at: *const f32) {}
    #[inline(always)]
    unsafe fn store_w(to: *mut u8, w: Self::W) {
        to.cast::<Self::W>().write(w);
    }
    #[inline(always)]
    unsafe fn and(w: Self::W, mask: u8) -> Self::W {
        w.map(|b| b & mask)
    }
    #[inline(always)]
    unsafe fn or(a: Self::W, b: Self::W) -> Self::W {
        std::array::from_fn(|i| a[i] | b[i])
    }
    #[inline(always)]
    unsafe fn shr(w: Self::W, n: usize) -> Self::W {
        w.map(|b| b >> n)
    }
    #[inline(always)]
    unsafe fn shl(w: Self::W, n: usize) -> Self::W {
        w.map(|b| b << n)
    }
    #[inline(always)]
    unsafe fn lookup(table: &[u8; 16], w: Self::W) -> Self::W {
        w.map(|b| table[usize::from(b & 15)])
    }

    #[inline(always)]
    unsafe fn dot32<const BITS: u32>(init: Self::I, w: &[Self::W; 8], a: *const i8) -> Self::I {
        dot_quads(init, w, a)
    }
    #[inline(always)]
    unsafe fn dot4(init: Self::I, w: Self::W, a: *const i8) -> Self::I {
        dot_quads(init, &[w], a)
    }
    #[inline(always)]
    unsafe fn dot16<const BITS: u32>(init: Self::I, w: &[Self::W; 8], first: usize, a: *const i8) -> Self::I {
        dot_quads(init, &w[first..first + 4], a)
    }
    #[inline(always)]
    unsafe fn dot_pair(init: Self::I, m: *const u8, a: *const i16) -> Self::I {
        let (one, two) = (i32::from(a.read_unaligned()), i32::from(a.add(1).read_unaligned()));
        let mut dot = init;
        for (i, dot) in dot.iter_mut().enumerate() {
            *dot += i32::from(m.add(2 * i).read()) * one + i32::from(m.add(2 * i + 1).read()) * two;
        }
        dot
    }
}
