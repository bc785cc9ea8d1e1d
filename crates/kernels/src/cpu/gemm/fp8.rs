//! Panels of 8-bit floats: one byte a weight from memory, widened in registers. A block's products are summed before
//! its scale is multiplied in, so that a weight costs one multiply-add.

#![allow(unsafe_op_in_unsafe_fn)] // The contract is that of `lanes`, and of the makers of the kernels.
#![allow(clippy::needless_range_loop)] // Loops over constants by index: they unroll, and the arrays become registers.

use super::floats::opaque;
use super::{Fp8, PanelFormat, TileArgs};
use crate::cpu::lanes::Lanes;
use crate::cpu::matrix::{PANEL_ROWS, PanelKind};

/// Bytes of a panel's input as f32.
const WIDE: usize = 4 * PANEL_ROWS;
/// Factor that `Lanes::load_e4m3` leaves out of each number.
const LEFT_OUT: f32 = 256.0;

impl<const BLOCK: u8> PanelFormat for Fp8<BLOCK> {
    const KIND: PanelKind = PanelKind::Fp8 { block: BLOCK };
    const GROUPS: usize = 0;
    const EXPANDED_BYTES: usize = WIDE * BLOCK as usize;

    #[inline(always)]
    unsafe fn expand<L: Lanes>(codes: *const u8, first: usize, end: usize, out: *mut u8) {
        let mut out = out;
        for block in first..end {
            for four in 0..BLOCK as usize / 4 {
                for w in four_inputs::<L>(codes.add(block * Self::CODE_STRIDE + 4 * PANEL_ROWS * four)) {
                    L::store(out.cast(), w);
                    out = out.add(WIDE);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn panels<L: Lanes, const NP: usize, const NC: usize, const EXPANDED: bool>(
        args: &TileArgs,
        sums: &mut [[L::F; NC]; NP],
    ) {
        // Three columns for each address, as in panels of floats.
        const { assert!(NC <= 12) };
        let stride = args.columns.floats_stride;
        let mut x = [args.columns.floats.wrapping_add(args.block_first * BLOCK as usize); 4];
        for (i, x) in x.iter_mut().enumerate() {
            *x = opaque(x.wrapping_add(3 * i * stride));
        }
        for b in args.block_first..args.block_end {
            let codes = match EXPANDED {
                true => args.codes.add((b - args.block_first) * Self::EXPANDED_BYTES),
                false => args.codes.add(b * Self::CODE_STRIDE),
            };
            let mut parts = [[L::splat(0.0); NC]; NP];
            for four in 0..BLOCK as usize / 4 {
                let mut w = [[L::splat(0.0); 4]; NP];
                for (p, w) in w.iter_mut().enumerate() {
                    let codes = codes.add(p * args.codes_stride);
                    if EXPANDED {
                        for (k, w) in w.iter_mut().enumerate() {
                            *w = L::load(codes.add(WIDE * (4 * four + k)).cast());
                        }
                    } else {
                        *w = four_inputs::<L>(codes.add(4 * PANEL_ROWS * four));
                    }
                }
                for k in 0..4 {
                    for c in 0..NC {
                        let x = L::splat(x[c / 3].wrapping_add(c % 3 * stride + k).read());
                        for p in 0..NP {
                            parts[p][c] = L::fma(w[p][k], x, parts[p][c]);
                        }
                    }
                }
                for x in x.iter_mut().take(NC.div_ceil(3)) {
                    *x = x.wrapping_add(4);
                }
            }
            for (p, (sums, parts)) in sums.iter_mut().zip(&parts).enumerate() {
                let scale = L::load(args.scales.add(p * args.scales_stride + b * Self::SCALE_STRIDE).cast());
                for (sum, &part) in sums.iter_mut().zip(parts) {
                    *sum = L::fma(L::mul(part, L::splat(LEFT_OUT)), scale, *sum);
                }
            }
        }
    }
}

/// Loads four inputs of 16 rows, and prefetches some way ahead as streams of codes do.
#[inline(always)]
unsafe fn four_inputs<L: Lanes>(codes: *const u8) -> [L::F; 4] {
    L::prefetch(codes.wrapping_add(L::AHEAD));
    L::load_e4m3(codes)
}
