//! Panels of blocks of 256 codes, with small scales for groups of 16 or 32.

#![allow(unsafe_op_in_unsafe_fn)] // The contract is that of `lanes`, and of the makers of the kernels.
#![allow(clippy::needless_range_loop)] // Loops over constants by index: they unroll, and the arrays become registers.

use std::marker::PhantomData;

use super::unpack::group;
use super::{Columns, PanelFormat, PanelType, TileArgs, TileProperties, dot32, products_max_of};
use crate::cpu::lanes::Lanes;
use crate::cpu::matrix::{PANEL_ROWS, PanelKind};

/// Kinds with blocks of 256 codes.
pub(in crate::cpu) struct Block256<K>(PhantomData<K>);

impl<K: PanelType> PanelFormat for Block256<K> {
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
                Self::prefetch_next::<L, NP>(args, b, first..first + K::KIND.group());
                if TileProperties::<Self, L, NP>::WORDS {
                    for (p, parts) in parts.iter_mut().enumerate() {
                        words::<Self, L, NC, EXPANDED>(args, p, b, group, parts, &mut mins[p]);
                    }
                    continue;
                }
                let mut codes = [args.codes; NP];
                let mut dots = [[L::splat_i(0); NC]; NP];
                for p in 0..NP {
                    codes[p] = Self::bytes::<EXPANDED>(args, p, b, 0).add(PANEL_ROWS * first);
                }
                if K::KIND.zero() != 0 {
                    for c in 0..NC {
                        let initial = L::splat_i(initial_of_group::<L>(K::KIND, x, c, b, group));
                        for p in 0..NP {
                            dots[p][c] = initial;
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
                            let offset = x.offset_of_16::<L>(c, 16 * b + group);
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

/// Adds a group of codes to the integer sums of a panel's columns, with products summed in words.
///
/// # Safety
/// Inside `L::vectorize`; `args` covers the panel and NC columns.
#[inline(always)]
unsafe fn words<F: PanelFormat, L: Lanes, const NC: usize, const EXPANDED: bool>(
    args: &TileArgs,
    panel: usize,
    block: usize,
    group: usize,
    parts: &mut [L::I; NC],
    mins: &mut [L::I; NC],
) {
    let (x, first) = (&args.columns, group * F::KIND.group());
    let codes = F::bytes::<EXPANDED>(args, panel, block, 0).add(PANEL_ROWS * first);
    let scales = args.scales.add(panel * args.scales_stride + block * F::SCALE_STRIDE);
    let scale = group_scale::<L>(F::KIND, scales, group);
    let a = x.codes.add(256 * block + first);
    if F::KIND.group() == 32 {
        L::words::<NC, 8>(products_max_of(F::KIND), codes, scale, a, x.codes_stride, None, parts);
        return;
    }
    let at = x.offsets.add(16 * block + group);
    let zero_point = (F::KIND.zero() != 0).then_some((F::KIND.zero(), at, x.offsets_stride));
    L::words::<NC, 4>(products_max_of(F::KIND), codes, scale, a, x.codes_stride, zero_point, parts);
    if F::KIND.has_min() {
        for (c, sum) in mins.iter_mut().enumerate() {
            let offset = x.offset_of_16::<L>(c, 16 * block + group);
            *sum = L::mul_add(L::splat_i(offset), group_min::<L>(scales, group), *sum);
        }
    }
}

/// Adds sub-block `g` of 32 codes of block `b` of a panel to the integer sums of its columns: scaled products, and the
/// minimums of groups of 16.
///
/// # Safety
/// Inside `L::vectorize`; `args` covers the panel and NC columns.
#[inline(always)]
unsafe fn sub_block<K: PanelType, L: Lanes, const NC: usize, const EXPANDED: bool>(
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
            if TileProperties::<Block256<K>, L, 1>::WORDS {
                *part = L::word_dot::<8>(products_max_of(K::KIND), &w, scale, a, None, *part);
                continue;
            }
            let initial = L::splat_i(initial_of_group::<L>(K::KIND, x, c, b, g));
            let dot = dot32::<L>(K::KIND, initial, &w, a);
            *part = L::mul_add(dot, scale, *part);
        }
        return;
    }
    let [w0, w1, w2, w3, w4, w5, w6, w7] = w;
    for (half, w_half) in [[w0, w1, w2, w3], [w4, w5, w6, w7]].iter().enumerate() {
        let group = 2 * g + half;
        let scale = group_scale::<L>(K::KIND, scales, group);
        for c in 0..NC {
            let a = x.codes.add(c * x.codes_stride + 256 * b + 16 * group);
            if TileProperties::<Block256<K>, L, 1>::WORDS {
                let sums = x.offsets.add(c * x.offsets_stride + 16 * b + group).read();
                let zero_point = (K::KIND.zero() != 0).then_some((K::KIND.zero(), sums));
                parts[c] = L::word_dot::<4>(products_max_of(K::KIND), w_half, scale, a, zero_point, parts[c]);
            } else {
                let initial = L::splat_i(initial_of_group::<L>(K::KIND, x, c, b, group));
                let dot = L::dot16::<6>(initial, &w, 4 * half, a);
                parts[c] = L::mul_add(dot, scale, parts[c]);
            }
            if K::KIND.has_min() {
                let offset = x.offset_of_16::<L>(c, 16 * b + group);
                mins[c] = L::mul_add(L::splat_i(offset), group_min::<L>(scales, group), mins[c]);
            }
        }
    }
}

/// Initial value of the dot product of a group of a block of 256, which makes codes count from their zero.
#[inline(always)]
unsafe fn initial_of_group<L: Lanes>(
    kind: PanelKind,
    x: &Columns,
    column: usize,
    block: usize,
    group: usize,
) -> i32 {
    match (kind.zero(), kind.group()) {
        (0, _) => 0,
        (zero, 32) => -zero * i32::from(x.sums.add(column * x.sums_stride + 8 * block + group).read()),
        (32, _) => x.offset_of_16::<L>(column, 16 * block + group),
        (zero, _) => (x.offset_of_16::<L>(column, 16 * block + group) >> 5) * zero,
    }
}

/// Adds a block of 256 to the sums of a panel's columns. `mins` holds the minimums of groups of 16; those of groups of
/// 32 are computed here, and `mins` is zeros.
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

/// Small scale of a group in a block of 256.
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

/// Small minimum of a group of 16 of Q2_K.
///
/// # Safety
/// As for `group_scale`.
#[inline(always)]
pub(in crate::cpu) unsafe fn group_min<L: Lanes>(scales: *const u8, group: usize) -> L::I {
    L::nibbles::<true>(scales.add(64 + 16 * group))
}
