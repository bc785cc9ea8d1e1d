//! Latents as both keys and values.

#![allow(unsafe_op_in_unsafe_fn)] // The contract is that of `lanes`, and what each method says of its pointers.

use std::marker::PhantomData;

use super::super::lanes::{Lanes, transpose_part};
use super::format::{CacheFormat, F16Format, Scales};
use super::tile::TileStep;
use hanzo_engine_ops::BLOCK_TOKENS;

const LANES: usize = 16;

/// Format of a cache of latents, which are keys, and whose first elements are values. They are stored like values, and
/// widened for all heads together.
pub(super) struct LatentFormat<C>(PhantomData<C>);

impl<C: CacheFormat> CacheFormat for LatentFormat<C> {
    const WIDENS_KEYS: bool = true;
    const ELEMENT_BYTES: usize = C::ELEMENT_BYTES;
    const LATENT: bool = true;

    #[inline(always)]
    unsafe fn pack<L: Lanes, const N: usize>(from: &[*const f32; N], head_dim: usize, to: *mut f32) {
        F16Format::pack::<L, N>(from, head_dim, to);
    }

    #[inline(always)]
    unsafe fn dots<L: Lanes, const N: usize, const NB: usize>(
        _: *const f32,
        _: &[*const u8; NB],
        _: usize,
    ) -> [[L::F; N]; NB] {
        unreachable!("keys of latents are widened first")
    }

    #[inline(always)]
    unsafe fn scales<L: Lanes>(values: *const u8, head_dim: usize, chunk: usize, chunks: usize) -> Scales {
        C::scales::<L>(values, head_dim, chunk, chunks)
    }

    #[inline(always)]
    unsafe fn value<L: Lanes>(
        values: *const u8,
        head_dim: usize,
        token: usize,
        chunk: usize,
        scales: &Scales,
        nth: usize,
    ) -> L::F {
        C::value::<L>(values, head_dim, token, chunk, scales, nth)
    }
}

/// Widens the visible part of a block of latents as keys, `(head_dim, stride)`, 16 elements of 16 tokens at a time.
/// Invisible tokens become zeros.
#[inline(always)]
pub(super) unsafe fn widen_keys<L: Lanes, C: CacheFormat>(
    step: &TileStep<'_>,
    block: usize,
    to: *mut f32,
    stride: usize,
) {
    let (latents, head_dim) = (step.values(block), step.vectors.head_dim);
    let from = step.from.saturating_sub(block * BLOCK_TOKENS);
    let tokens = from..BLOCK_TOKENS.min(step.to - block * BLOCK_TOKENS);
    let mut square = [0.0f32; LANES * LANES];
    for chunk in 0..head_dim.div_ceil(LANES) {
        let scales = C::scales::<L>(latents, head_dim, chunk, 1);
        for t in tokens.clone() {
            let value = C::value::<L>(latents, head_dim, t, chunk, &scales, 0);
            L::store(square.as_mut_ptr().add(t * LANES), value);
        }
        let (to, cols) = (to.add(chunk * LANES * stride), LANES.min(head_dim - chunk * LANES));
        if cols == LANES {
            L::transpose(square.as_ptr(), LANES, 1.0, to, stride);
        } else {
            transpose_part(square.as_ptr(), LANES, LANES, cols, 1.0, to, stride);
        }
    }
}
