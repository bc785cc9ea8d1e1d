//! Panels of blocks of 256 codes, with small scales for groups of 16 or 32.

#![allow(unsafe_op_in_unsafe_fn)] // The contract is that of `lanes`, and of the makers of the kernels.
#![allow(clippy::needless_range_loop)] // Loops over constants by index: they unroll, and the arrays become registers.

use std::marker::PhantomData;

use super::unpack::group;
use super::{Columns, Format, Kind, TileArgs, dot32};
use crate::cpu::lanes::Lanes;
use crate::cpu::matrix::{PANEL_ROWS, PanelKind};

/// Kinds with blocks of 256 codes.
pub(in crate::cpu) struct Block256<K>(PhantomData<K>);

impl<K: Kind> Format for Block256<K> {
    const KIND: PanelKind = K::KIND;

    #[inline(always)]
    unsafe fn panels<L: Lanes, const NP: usize, const NC: usize, const EXPANDED: bool>(
        args: &TileArgs,
        sums: &mut [[L::F; NC]; NP],
    ) {
        let x = &args.columns;
        for b in args.block_first..args.block_end {
            let mut parts = [[L::splat_i(0); NC]; NP];
            let mut mins = [[L::splat_i(0); NC]; NP];
            for g in 0..8 {
                for p in 0..NP {
                    sub_block::<K, L, NC, EXPANDED>(&args.panel(p), b, g, &mut parts[p], &mut mins[p]);
                }
            }
            for (p, sums) in sums.iter_mut().enumerate() {
                let scales = args.scales.add(p * args.scales_stride + b * Self::SCALE_STRIDE);
                add_of_256::<L, NC>(K::KIND, x, b, scales, &parts[p], &mins[p], sums);
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
            let mut parts = [[L::splat_i(0); NC]; NP];
            let mut mins = [[L::splat_i(0); NC]; NP];
            let groups = 256 / K::KIND.group();
            for group in 0..groups {
                let first = group * K::KIND.group();
                Self::ask::<L, NP>(args, b, first..first + K::KIND.group());
                let mut codes = [args.codes; NP];
                let mut dots = [[L::splat_i(0); NC]; NP];
                for p in 0..NP {
                    codes[p] = Self::bytes::<EXPANDED>(args, p, b, 0).add(PANEL_ROWS * first);
                }
                if K::KIND.zero() != 0 {
                    for c in 0..NC {
                        let start = L::splat_i(start_of_group(K::KIND, x, c, b, group));
                        for p in 0..NP {
                            dots[p][c] = start;
                        }
                    }
                }
                let a = x.codes.add(256 * b + first);
                if K::KIND.group() == 32 {
                    L::dots::<NP, NC, 8>(&codes, a, x.codes_stride, &mut dots);
                } else {
                    L::dots::<NP, NC, 4>(&codes, a, x.codes_stride, &mut dots);
                }
                for p in 0..NP {
                    let scales = args.scales.add(p * args.scales_stride + b * Self::SCALE_STRIDE);
                    let scale = group_scale::<L>(K::KIND, scales, group);
                    for c in 0..NC {
                        parts[p][c] = L::mul_add(dots[p][c], scale, parts[p][c]);
                        if K::KIND.has_min() && K::KIND.group() == 16 {
                            let offset = x.offsets.add(c * x.offsets_stride + 16 * b + group).read();
                            let min = group_min::<L>(scales, group);
                            mins[p][c] = L::mul_add(L::splat_i(offset), min, mins[p][c]);
                        }
                    }
                }
            }
            for (p, sums) in sums.iter_mut().enumerate() {
                let scales = args.scales.add(p * args.scales_stride + b * Self::SCALE_STRIDE);
                add_of_256::<L, NC>(K::KIND, x, b, scales, &parts[p], &mins[p], sums);
            }
        }
    }
}

/// Adds sub-block `g` of 32 codes of block `b` of a panel to the integer sums of its columns: scaled products, and of
/// groups of 16 the minimums.
///
/// # Safety
/// Inside `L::vectorize`; `args` covers the panel and NC columns.
#[inline(always)]
unsafe fn sub_block<K: Kind, L: Lanes, const NC: usize, const EXPANDED: bool>(
    args: &TileArgs,
    b: usize,
    g: usize,
    parts: &mut [L::I; NC],
    mins: &mut [L::I; NC],
) {
    let x = &args.columns;
    let scales = args.scales.add(b * Block256::<K>::SCALE_STRIDE);
    let w = group::<Block256<K>, L, EXPANDED>(args, b, g);
    if K::KIND.group() == 32 {
        let scale = group_scale::<L>(K::KIND, scales, g);
        for (c, part) in parts.iter_mut().enumerate() {
            let a = x.codes.add(c * x.codes_stride + 256 * b + 32 * g);
            let start = L::splat_i(start_of_group(K::KIND, x, c, b, g));
            let dot = dot32::<L>(K::KIND, start, &w, a);
            *part = L::mul_add(dot, scale, *part);
        }
        return;
    }
    for half in 0..2 {
        let group = 2 * g + half;
        let scale = group_scale::<L>(K::KIND, scales, group);
        for c in 0..NC {
            let a = x.codes.add(c * x.codes_stride + 256 * b + 16 * group);
            let start = L::splat_i(start_of_group(K::KIND, x, c, b, group));
            let dot = L::dot16::<6>(start, &w, 4 * half, a);
            parts[c] = L::mul_add(dot, scale, parts[c]);
            if K::KIND.has_min() {
                let offset = x.offsets.add(c * x.offsets_stride + 16 * b + group).read();
                mins[c] = L::mul_add(L::splat_i(offset), group_min::<L>(scales, group), mins[c]);
            }
        }
    }
}

/// What the dot product of a group of a block of 256 begins with, so that codes count from their zero.
#[inline(always)]
unsafe fn start_of_group(kind: PanelKind, x: &Columns, column: usize, block: usize, group: usize) -> i32 {
    match (kind.zero(), kind.group()) {
        (0, _) => 0,
        (zero, 32) => -zero * i32::from(x.sums.add(column * x.sums_stride + 8 * block + group).read()),
        (32, _) => x.offsets.add(column * x.offsets_stride + 16 * block + group).read(),
        (zero, _) => (x.offsets.add(column * x.offsets_stride + 16 * block + group).read() >> 5) * zero,
    }
}

/// Adds a block of 256 to the sums of a panel's columns. `mins` are those of groups of 16; of groups of 32 they are
/// computed here, and `mins` is zeros.
#[inline(always)]
unsafe fn add_of_256<L: Lanes, const NC: usize>(
    kind: PanelKind,
    x: &Columns,
    block: usize,
    scales: *const u8,
    parts: &[L::I; NC],
    mins: &[L::I; NC],
    sums: &mut [L::F; NC],
) {
    let d = L::load_f16(scales.cast());
    for (c, sum) in sums.iter_mut().enumerate() {
        let factor = x.scales.add(c * x.scales_stride + block).read();
        *sum = L::fma(L::to_f(parts[c]), L::mul(d, L::splat(factor)), *sum);
        if !kind.has_min() {
            continue;
        }
        let dmin = L::load_f16(scales.add(32).cast());
        if kind.group() == 16 {
            *sum = L::fma(L::to_f(mins[c]), L::mul(dmin, L::splat(factor * (1.0 / 32.0))), *sum);
            continue;
        }
        let mut min = mins[c];
        for pair in 0..4 {
            let a = x.sums.add(c * x.sums_stride + 8 * block + 2 * pair);
            min = L::dot_pair(min, scales.add(192 + 32 * pair), a);
        }
        *sum = L::fnma(L::to_f(min), L::mul(dmin, L::splat(factor)), *sum);
    }
}

/// The small scale of a group in a block of 256.
///
/// # Safety
/// Inside `L::vectorize`; the scales are there.
#[inline(always)]
pub(in crate::cpu) unsafe fn group_scale<L: Lanes>(kind: PanelKind, scales: *const u8, group: usize) -> L::I {
    match kind {
        PanelKind::Q2K => L::nibbles::<false>(scales.add(64 + 16 * group)),
        PanelKind::Q4K | PanelKind::Q5K => L::bytes_u(scales.add(64 + 16 * group)),
        _ => L::bytes_i(scales.add(32 + 16 * group)),
    }
}

/// The small minimum of a group of 16 of Q2_K.
///
/// # Safety
/// As for `group_scale`.
#[inline(always)]
pub(in crate::cpu) unsafe fn group_min<L: Lanes>(scales: *const u8, group: usize) -> L::I {
    L::nibbles::<true>(scales.add(64 + 16 * group))
}
