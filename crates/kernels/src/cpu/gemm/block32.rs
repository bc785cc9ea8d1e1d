//! Panels of blocks of 32 codes.

#![allow(unsafe_op_in_unsafe_fn)] // The contract is that of `lanes`, and of the makers of the kernels.
#![allow(clippy::needless_range_loop)] // Loops over constants by index: they unroll, and the arrays become registers.

use std::marker::PhantomData;

use super::unpack::group;
use super::{PanelFormat, PanelType, TileArgs, TileProperties, dot32, products_max_of};
use crate::cpu::lanes::Lanes;
use crate::cpu::matrix::PanelKind;

/// Scale of a block of 32.
///
/// # Safety
/// Inside `L::vectorize`; the scales are there.
#[inline(always)]
pub(in crate::cpu) unsafe fn scale_of_32<L: Lanes>(kind: PanelKind, scales: *const u8) -> L::F {
    match kind {
        PanelKind::Mx4 => L::load_bf16(scales.cast()),
        PanelKind::Affine { .. } => L::load(scales.cast()),
        _ => L::load_f16(scales.cast()),
    }
}

/// Minimum of a block of 32, for a kind that has one.
///
/// # Safety
/// Inside `L::vectorize`; the scales are there.
#[inline(always)]
pub(in crate::cpu) unsafe fn min_of_32<L: Lanes>(kind: PanelKind, scales: *const u8) -> L::F {
    match kind {
        PanelKind::Affine { .. } => L::load(scales.add(64).cast()),
        _ => L::load_f16(scales.add(32).cast()),
    }
}

/// Address of the scales of a panel's block.
#[inline(always)]
unsafe fn scales_of<F: PanelFormat>(args: &TileArgs, panel: usize, block: usize) -> *const u8 {
    let at = if matches!(F::KIND, PanelKind::Affine { .. }) { block >> args.scale_shift } else { block };
    args.scales.add(panel * args.scales_stride + at * F::SCALE_STRIDE)
}

/// Kinds with blocks of 32 codes.
pub(in crate::cpu) struct Block32<K>(PhantomData<K>);

impl<K: PanelType> PanelFormat for Block32<K> {
    const KIND: PanelKind = K::KIND;

    #[inline(always)]
    unsafe fn panels<L: Lanes, const NP: usize, const NC: usize, const EXPANDED: bool>(
        args: &TileArgs,
        sums: &mut [[L::F; NC]; NP],
    ) {
        let x = &args.columns;
        for b in args.block_first..args.block_end {
            for (p, sums) in sums.iter_mut().enumerate() {
                let w = group::<Self, L, EXPANDED>(&args.panel(p), b, 0);
                let scales = scales_of::<Self>(args, p, b);
                let d = scale_of_32::<L>(K::KIND, scales);
                for (c, sum) in sums.iter_mut().enumerate() {
                    let offset = x.offsets.add(c * x.offsets_stride + b).read();
                    let a = x.codes.add(c * x.codes_stride + 32 * b);
                    let dot = dot32::<L>(K::KIND, L::splat_i(initial_of_32(K::KIND, offset)), &w, a);
                    let factor = x.scales.add(c * x.scales_stride + b).read();
                    add_of_32::<L>(K::KIND, dot, d, scales, offset, factor, sum);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn joint<L: Lanes, const NP: usize, const NC: usize, const EXPANDED: bool>(
        args: &TileArgs,
        sums: &mut [[L::F; NC]; NP],
    ) {
        let x = &args.columns;
        for b in args.block_first..args.block_end {
            Self::prefetch_next::<L, NP>(args, b, 0..32);
            let mut codes = [args.codes; NP];
            for (p, codes) in codes.iter_mut().enumerate() {
                *codes = Self::bytes::<EXPANDED>(args, p, b, 0);
            }
            let a = x.codes.add(32 * b);
            if TileProperties::<Self, L, NP>::WORDS && products_max_of(K::KIND) == 0 {
                for (p, (&codes, sums)) in codes.iter().zip(sums.iter_mut()).enumerate() {
                    let scales = scales_of::<Self>(args, p, b);
                    let (d, factors) = (scale_of_32::<L>(K::KIND, scales), x.scales.add(b));
                    L::signed_words::<NC>(codes, a, x.codes_stride, d, factors, x.scales_stride, sums);
                    if K::KIND.has_min() {
                        let min = min_of_32::<L>(K::KIND, scales);
                        for (c, sum) in sums.iter_mut().enumerate() {
                            let offset = x.offsets.add(c * x.offsets_stride + b).read();
                            let factor = x.scales.add(c * x.scales_stride + b).read();
                            *sum = L::fma(min, L::splat(factor * total_of_32(offset)), *sum);
                        }
                    }
                }
                continue;
            }
            let mut dots = [[L::splat_i(0); NC]; NP];
            for c in 0..NC {
                let offset = x.offsets.add(c * x.offsets_stride + b).read();
                for dots in &mut dots {
                    dots[c] = L::splat_i(initial_of_32(K::KIND, offset));
                }
            }
            if TileProperties::<Self, L, NP>::WORDS {
                for (&codes, dots) in codes.iter().zip(&mut dots) {
                    let (products_max, one) = (products_max_of(K::KIND), L::splat_i(1));
                    L::words::<NC, 8>(products_max, codes, one, a, x.codes_stride, None, dots);
                }
            } else {
                L::dots::<NP, NC, 8>(&codes, a, x.codes_stride, &mut dots);
            }
            for (p, (sums, dots)) in sums.iter_mut().zip(&dots).enumerate() {
                let scales = scales_of::<Self>(args, p, b);
                let d = scale_of_32::<L>(K::KIND, scales);
                for (c, sum) in sums.iter_mut().enumerate() {
                    let offset = x.offsets.add(c * x.offsets_stride + b).read();
                    let factor = x.scales.add(c * x.scales_stride + b).read();
                    add_of_32::<L>(K::KIND, dots[c], d, scales, offset, factor, sum);
                }
            }
        }
    }
}

/// Initial value of the dot product of a block of 32, which makes codes count from their zero.
#[inline(always)]
fn initial_of_32(kind: PanelKind, offset: i32) -> i32 {
    match kind.zero() {
        128 => offset,
        zero => (offset >> 7) * zero,
    }
}

/// Adds a block of 32 to a sum.
#[inline(always)]
unsafe fn add_of_32<L: Lanes>(
    kind: PanelKind,
    dot: L::I,
    d: L::F,
    scales: *const u8,
    offset: i32,
    factor: f32,
    sum: &mut L::F,
) {
    *sum = L::fma(L::to_f(dot), L::mul(d, L::splat(factor)), *sum);
    if kind.has_min() {
        *sum = L::fma(min_of_32::<L>(kind, scales), L::splat(factor * total_of_32(offset)), *sum);
    }
}

/// Sum of 32 activation codes, computed from their offset.
#[inline(always)]
pub(in crate::cpu) fn total_of_32(offset: i32) -> f32 {
    offset as f32 * (-1.0 / 128.0)
}
