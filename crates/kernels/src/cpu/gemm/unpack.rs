//! Unpacking of codes from the bit planes of panels to one byte each.

#![allow(unsafe_op_in_unsafe_fn)] // The contract is that of `lanes`, and of the makers of the kernels.
#![allow(clippy::needless_range_loop)] // Loops over constants by index: they unroll, and the arrays become registers.

use super::{PanelFormat, TileArgs};
use crate::cpu::lanes::Lanes;
use crate::cpu::matrix::{PanelKind, Plane};

/// Loads eight vectors of one byte a code.
#[inline(always)]
unsafe fn vectors<L: Lanes>(codes: *const u8) -> [L::W; 8] {
    let mut w = [L::load_w(codes); 8];
    for (j, w) in w.iter_mut().enumerate() {
        *w = L::load_w(codes.add(64 * j));
    }
    w
}

/// Unpacks sub-block `group` of the block at `codes` to one byte a code, after table look-up. `kind` is a constant
/// here.
///
/// # Safety
/// Inside `L::vectorize`; the block is there.
#[inline(always)]
pub(in crate::cpu) unsafe fn unpack<L: Lanes>(kind: PanelKind, codes: *const u8, group: usize) -> [L::W; 8] {
    let codes = codes.add(group * (kind.code_bytes() / (kind.block() / 32)));
    let [low, high] = kind.planes();
    if low.width == 8 {
        return vectors::<L>(codes);
    }
    let mut w = [L::load_w(codes); 8];
    for (vector, w) in w.iter_mut().enumerate() {
        *w = plane::<L>(low, codes, vector);
        if high.width > 0 {
            *w = L::or(*w, plane::<L>(high, codes, vector));
        }
        if let Some(table) = kind.table() {
            *w = L::lookup(table, *w);
        }
    }
    w
}

/// Bits of one plane of a vector, shifted into place.
#[inline(always)]
unsafe fn plane<L: Lanes>(plane: Plane, codes: *const u8, vector: usize) -> L::W {
    let Plane { width, first, at } = plane;
    let stored = L::load_w(codes.add(at + 64 * (vector % width)));
    let from = vector / width * width;
    let mask = ((1u16 << width) - 1) << first;
    let placed = if from > first {
        L::shr(stored, from - first)
    } else if from < first {
        L::shl(stored, first - from)
    } else {
        stored
    };
    L::and(placed, mask as u8)
}

/// Codes of a sub-block, from the block or from its expansion.
#[inline(always)]
pub(super) unsafe fn group<F: PanelFormat, L: Lanes, const EXPANDED: bool>(
    args: &TileArgs,
    block: usize,
    group: usize,
) -> [L::W; 8] {
    if EXPANDED {
        vectors::<L>(args.codes.add(((block - args.block_first) * F::GROUPS + group) * 512))
    } else {
        let codes = args.codes.add(block * F::CODE_STRIDE);
        ahead_of::<F, L>(codes, group);
        unpack::<L>(F::KIND, codes, group)
    }
}

/// Prefetches as many bytes as a sub-block has, some way ahead of sub-block `group` of the block at `codes`. Weights
/// that are streamed once come from memory, and the hardware prefetcher does not fetch enough of them at a time.
#[inline(always)]
unsafe fn ahead_of<F: PanelFormat, L: Lanes>(codes: *const u8, group: usize) {
    let bytes = F::CODE_STRIDE / (F::KIND.block() / 32);
    for line in (0..bytes).step_by(64) {
        L::prefetch_stream(codes.wrapping_add(L::AHEAD + group * bytes + line));
    }
}
