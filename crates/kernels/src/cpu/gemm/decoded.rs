//! Panels of codebook and ternary types, decoded a run of blocks at a time.

#![allow(unsafe_op_in_unsafe_fn)] // The contract is that of `lanes`, and of the makers of the kernels.
#![allow(clippy::needless_range_loop)] // Loops over constants by index: they unroll, and the arrays become registers.

use super::unpack::group;
use super::{PanelFormat, TileArgs};
use crate::cpu::lanes::Lanes;
use crate::cpu::matrix::{PANEL_ROWS, PanelKind};
use hanzo_engine_ops::DType;

/// Blocks of a codebook or ternary type that [`super::stored`] has decoded: codes plus 64, then `(16, 16)` f32 scales.
pub(in crate::cpu) struct Decoded;

/// Zero of decoded blocks.
pub(in crate::cpu) const DECODED_ZERO: i32 = 64;

impl PanelFormat for Decoded {
    const KIND: PanelKind = PanelKind::Stored(DType::IQ2_XXS);
    const CODE_STRIDE: usize = 256 * PANEL_ROWS;
    const SCALE_STRIDE: usize = 16 * PANEL_ROWS * 4;

    /// Never prefetches: decoding takes longer than any tile.
    #[inline(always)]
    unsafe fn panels<L: Lanes, const NP: usize, const NC: usize, const EXPANDED: bool>(
        args: &TileArgs,
        sums: &mut [[L::F; NC]; NP],
    ) {
        for (p, sums) in sums.iter_mut().enumerate() {
            panel::<L, NC>(&args.panel(p), sums);
        }
    }
}

/// Computes a single panel; `args.codes` and `args.scales` are those of `block_first`.
///
/// # Safety
/// Inside `L::vectorize`; `args` covers the panel and NC columns.
#[inline(always)]
unsafe fn panel<L: Lanes, const NC: usize>(args: &TileArgs, sums: &mut [L::F; NC]) {
    let x = &args.columns;
    for b in args.block_first..args.block_end {
        let scales = args.scales.add((b - args.block_first) * Decoded::SCALE_STRIDE).cast::<f32>();
        let mut parts = [L::splat(0.0); NC];
        for g in 0..8 {
            let w = group::<Decoded, L, true>(args, b, g);
            for half in 0..2 {
                let scale = L::load(scales.add(16 * (2 * g + half)));
                for (c, part) in parts.iter_mut().enumerate() {
                    let a = x.codes.add(c * x.codes_stride + 256 * b + 32 * g + 16 * half);
                    let offset = x.offset_of_16::<L>(c, 16 * b + 2 * g + half);
                    let init = L::splat_i(offset * (DECODED_ZERO / 32));
                    let dot = L::dot16::<7>(init, &w, 4 * half, a);
                    *part = L::fma(L::to_f(dot), scale, *part);
                }
            }
        }
        for (c, sum) in sums.iter_mut().enumerate() {
            let factor = L::splat(x.scales.add(c * x.scales_stride + b).read());
            *sum = L::fma(parts[c], factor, *sum);
        }
    }
}
