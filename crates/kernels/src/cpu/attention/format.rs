//! Differences between cache types: the layout of queries, the dot products, and the decoding of stored values.

#![allow(unsafe_op_in_unsafe_fn)] // The contract is that of `lanes`, and what each method says of its pointers.

use std::marker::PhantomData;

use super::super::activations::quantize;
use super::super::kv::{GROUP, padded};
use super::super::lanes::Lanes;
use hanzo_engine_ops::BLOCK_TOKENS;

const LANES: usize = 16;

/// Value scales of a block that are loaded at a time: those of eight chunks.
pub(super) type Scales = [[f32; BLOCK_TOKENS]; 4];

/// Cache type. Pointers to keys and values are one head's part of a block, with heads of `head_dim` elements; a
/// *chunk* is 16 elements of a value.
pub(super) trait CacheFormat: 'static {
    /// Whether dot products are of f32, so that keys read by many queries are best widened once for all.
    const WIDENS_KEYS: bool;
    /// Approximate bytes per element of a block's keys: the prefetch distance in the next block while this block is
    /// multiplied.
    const ELEMENT_BYTES: usize;
    /// Whether keys and values are the same.
    const LATENT: bool = false;

    /// Packs N queries for `dots`, in at most N times `head_dim` f32.
    unsafe fn pack<L: Lanes, const N: usize>(from: &[*const f32; N], head_dim: usize, to: *mut f32);

    /// Dot products of N packed queries with the 16 keys of each of NB blocks.
    unsafe fn dots<L: Lanes, const N: usize, const NB: usize>(
        queries: *const f32,
        keys: &[*const u8; NB],
        head_dim: usize,
    ) -> [[L::F; N]; NB];

    /// Element `d` of each of a block's keys, if keys are widened.
    unsafe fn key<L: Lanes>(keys: *const u8, d: usize) -> L::F {
        unreachable!("element {d} of keys at {keys:p}, which are not widened")
    }

    /// Scales that `value` needs for up to eight chunks from `chunk` on. `chunk` is even unless `chunks` is one.
    unsafe fn scales<L: Lanes>(values: *const u8, head_dim: usize, chunk: usize, chunks: usize) -> Scales;

    /// Chunk `chunk` of a token's value; `nth` is its index from the start of `scales`.
    unsafe fn value<L: Lanes>(
        values: *const u8,
        head_dim: usize,
        token: usize,
        chunk: usize,
        scales: &Scales,
        nth: usize,
    ) -> L::F;
}

/// Float formats of a cache, which are loaded number by number.
pub(super) trait Floats: 'static {
    /// Bytes of a number.
    const BYTES: usize;

    /// Loads 16 numbers.
    unsafe fn load<L: Lanes>(from: *const u8) -> L::F;
}

/// IEEE halves (f16).
pub(super) struct Halves;

impl Floats for Halves {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load<L: Lanes>(from: *const u8) -> L::F {
        L::load_f16(from.cast())
    }
}

/// 8-bit floats (E4M3).
pub(super) struct Eighths;

impl Floats for Eighths {
    const BYTES: usize = 1;

    #[inline(always)]
    unsafe fn load<L: Lanes>(from: *const u8) -> L::F {
        L::load_fp8(from)
    }
}

/// Cache of floats.
pub(super) struct FloatFormat<T>(PhantomData<T>);
pub(super) type F16Format = FloatFormat<Halves>;
pub(super) type Fp8Format = FloatFormat<Eighths>;

impl<T: Floats> CacheFormat for FloatFormat<T> {
    const WIDENS_KEYS: bool = true;
    const ELEMENT_BYTES: usize = T::BYTES * BLOCK_TOKENS;

    /// `(head_dim, N)`.
    #[inline(always)]
    unsafe fn pack<L: Lanes, const N: usize>(from: &[*const f32; N], head_dim: usize, to: *mut f32) {
        for (q, from) in from.iter().enumerate() {
            for d in 0..head_dim {
                to.add(d * N + q).write(from.add(d).read());
            }
        }
    }

    #[inline(always)]
    unsafe fn dots<L: Lanes, const N: usize, const NB: usize>(
        queries: *const f32,
        keys: &[*const u8; NB],
        head_dim: usize,
    ) -> [[L::F; N]; NB] {
        let mut dots = [[L::splat(0.0); N]; NB];
        for d in 0..head_dim {
            for (keys, dots) in keys.iter().zip(&mut dots) {
                let key = Self::key::<L>(*keys, d);
                for (q, dot) in dots.iter_mut().enumerate() {
                    *dot = L::fma(key, L::splat(queries.add(d * N + q).read()), *dot);
                }
            }
        }
        dots
    }

    #[inline(always)]
    unsafe fn key<L: Lanes>(keys: *const u8, d: usize) -> L::F {
        T::load::<L>(keys.add(d * BLOCK_TOKENS * T::BYTES))
    }

    #[inline(always)]
    unsafe fn scales<L: Lanes>(_: *const u8, _: usize, _: usize, _: usize) -> Scales {
        Scales::default()
    }

    #[inline(always)]
    unsafe fn value<L: Lanes>(
        values: *const u8,
        head_dim: usize,
        token: usize,
        chunk: usize,
        _: &Scales,
        _: usize,
    ) -> L::F {
        T::load::<L>(values.add((token * padded(head_dim) + chunk * LANES) * T::BYTES))
    }
}

/// Cache of Q8_0, with a scale for each 32 elements. Queries are quantised in the same way, so that dot products are
/// of bytes and exact within a group.
pub(super) struct Q8Format;

/// Size in f32s of a query's group: 32 codes, the correction for keys stored with 128 added, the scale.
const PACKED_GROUP: usize = GROUP / 4 + 2;
const _: () = assert!(PACKED_GROUP <= GROUP);

impl CacheFormat for Q8Format {
    const WIDENS_KEYS: bool = false;
    const ELEMENT_BYTES: usize = BLOCK_TOKENS;

    /// `(head_dim / 32, N, PACKED_GROUP)`.
    #[inline(always)]
    unsafe fn pack<L: Lanes, const N: usize>(from: &[*const f32; N], head_dim: usize, to: *mut f32) {
        for group in 0..head_dim / GROUP {
            for (q, from) in from.iter().enumerate() {
                let to = to.add((group * N + q) * PACKED_GROUP);
                let mut sums = [0; 2];
                let scale = quantize::<L, 2>(from.add(group * GROUP), to.cast(), &mut sums);
                to.add(GROUP / 4).cast::<i32>().write(-128 * (sums[0] + sums[1]));
                to.add(GROUP / 4 + 1).write(scale);
            }
        }
    }

    #[inline(always)]
    unsafe fn dots<L: Lanes, const N: usize, const NB: usize>(
        queries: *const f32,
        keys: &[*const u8; NB],
        head_dim: usize,
    ) -> [[L::F; N]; NB] {
        let mut dots = [[L::splat(0.0); N]; NB];
        for group in 0..head_dim / GROUP {
            for (keys, dots) in keys.iter().zip(&mut dots) {
                let codes = keys.add(group * GROUP * BLOCK_TOKENS);
                let mut w = [L::load_w(codes); 8];
                for (i, w) in w.iter_mut().enumerate() {
                    *w = L::load_w(codes.add(i * 4 * BLOCK_TOKENS));
                }
                let scales = keys.add(head_dim * BLOCK_TOKENS).cast::<u16>().add(group * BLOCK_TOKENS);
                let scales = L::load_f16(scales);
                for (q, dot) in dots.iter_mut().enumerate() {
                    let query = queries.add((group * N + q) * PACKED_GROUP);
                    let correction = L::splat_i(query.add(GROUP / 4).cast::<i32>().read());
                    let sum = L::to_f(L::dot32::<8>(correction, &w, query.cast()));
                    let scales = L::mul(scales, L::splat(query.add(GROUP / 4 + 1).read()));
                    *dot = L::fma(sum, scales, *dot);
                }
            }
        }
        dots
    }

    #[inline(always)]
    unsafe fn scales<L: Lanes>(values: *const u8, head_dim: usize, chunk: usize, chunks: usize) -> Scales {
        let mut scales = Scales::default();
        let halves = values.add(head_dim * BLOCK_TOKENS).cast::<u16>();
        for (i, scales) in scales.iter_mut().enumerate().take(chunks.div_ceil(2)) {
            let group = chunk * LANES / GROUP + i;
            L::store(scales.as_mut_ptr(), L::load_f16(halves.add(group * BLOCK_TOKENS)));
        }
        scales
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
        let codes = L::to_f(L::bytes_i(values.add(token * head_dim + chunk * LANES)));
        // Exact: a code of 7 bits times an f16 of 11 bits.
        L::mul(codes, L::splat(scales[nth / 2][token]))
    }
}
