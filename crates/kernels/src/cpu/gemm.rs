//! The inner loops of every matrix product: a tile of panels by columns, for each kind of panel.
//!
//! A *column* is one row of activations. A tile computes 16 outputs of each of NP panels for NC columns over a run of
//! blocks, adding to sums kept in memory: `sums[panel][column][16]`. Per output the order of floating-point
//! operations is that of the blocks and nothing else: the integer sum of a block, small scales included, is exact, and
//! each block then takes the same steps whatever NP and NC are and wherever the run of blocks is cut. So a row's result has the same
//! bits whether it is computed alone or among others, streamed or from an expanded panel.

#![allow(unsafe_op_in_unsafe_fn)] // The contract is that of `lanes`, and of the makers of the kernels below.

use std::marker::PhantomData;

use super::lanes::{Kernel, Lanes};
use super::matrix::{PANEL_ROWS, PanelKind};

/// Bytes ahead of the weights in use that the next ones are asked for.
const AHEAD: usize = 4096;

/// Where a tile finds its activations. Strides count elements from one column to the next.
#[derive(Clone, Copy)]
pub(super) struct Columns {
    /// For float panels: (columns, cols).
    pub(super) floats: *const f32,
    pub(super) floats_stride: usize,
    /// For integer panels: (columns, cols), none -128.
    pub(super) codes: *const i8,
    pub(super) codes_stride: usize,
    /// One factor per 32 or 256 codes.
    pub(super) scales: *const f32,
    pub(super) scales_stride: usize,
    /// Per 32 codes, `-128 * sum`; or, where scales are per 256, per 16 codes, `-32 * sum`.
    pub(super) offsets: *const i32,
    pub(super) offsets_stride: usize,
    /// Sum of 32 codes; only where scales are per 256.
    pub(super) sums: *const i16,
    pub(super) sums_stride: usize,
    /// Where the outputs of the columns' first row will be written, or null. They are far apart, so their cache lines
    /// are asked for while there is still arithmetic to do; nothing is read or written through this.
    pub(super) out: *const f32,
    pub(super) out_stride: usize,
}

// SAFETY: the pointers are read from only, while a loop runs whose caller keeps what they point to alive and unchanged.
unsafe impl Send for Columns {}
// SAFETY: as above.
unsafe impl Sync for Columns {}

impl Columns {
    /// The columns from `first` on.
    ///
    /// # Safety
    /// There are at least `first` columns.
    #[inline(always)]
    pub(super) unsafe fn from(self, first: usize) -> Columns {
        Columns {
            floats: self.floats.wrapping_add(first * self.floats_stride),
            codes: self.codes.wrapping_add(first * self.codes_stride),
            scales: self.scales.wrapping_add(first * self.scales_stride),
            offsets: self.offsets.wrapping_add(first * self.offsets_stride),
            sums: self.sums.wrapping_add(first * self.sums_stride),
            out: if self.out.is_null() { self.out } else { self.out.wrapping_add(first * self.out_stride) },
            ..self
        }
    }

    /// The columns, whose outputs will go to `(columns, stride)` at `out`.
    pub(super) fn towards(self, out: *const f32, stride: usize) -> Columns {
        Columns { out, out_stride: stride, ..self }
    }

    /// Asks for the lines that the outputs of columns `from..to` of panel `panel` will go to.
    ///
    /// # Safety
    /// Inside `L::vectorize`.
    #[inline(always)]
    pub(super) unsafe fn ask<L: Lanes>(&self, panel: usize, from: usize, to: usize) {
        if !self.out.is_null() {
            for column in from..to {
                L::prefetch_write(self.out.wrapping_add(column * self.out_stride + panel * PANEL_ROWS));
            }
        }
    }
}

/// What a tile reads and adds to.
#[derive(Clone, Copy)]
pub(super) struct TileArgs {
    /// Codes of the first panel's block 0; or, expanded, of block `block_first`, a byte each.
    pub(super) codes: *const u8,
    /// Scales of the first panel's block 0.
    pub(super) scales: *const u8,
    /// Bytes from a panel to the next.
    pub(super) panel_bytes: usize,
    pub(super) columns: Columns,
    pub(super) block_first: usize,
    pub(super) block_end: usize,
    /// `(NP, sums_stride / 16, 16)`, the first tile's column first. Whatever they are, block 0 starts from zeros.
    pub(super) sums: *mut f32,
    /// Elements from a panel's sums to the next panel's.
    pub(super) sums_stride: usize,
}

/// The arithmetic of one kind of panel.
pub(super) trait Format: 'static {
    /// Its layout.
    const KIND: PanelKind;
    /// Bytes from a block's codes to the next block's.
    const CODE_STRIDE: usize = Self::KIND.code_stride();
    /// Bytes from a block's scales to the next block's.
    const SCALE_STRIDE: usize = Self::KIND.scales_at(0, 1);
    /// Sub-blocks of 32 whose codes must be unpacked before use: 0 where the stored form is used as it is.
    const PACKED_GROUPS: usize;

    /// Adds blocks to the sums of one panel. `EXPANDED` codes are a byte each.
    ///
    /// # Safety
    /// Inside `L::vectorize`; `args` covers NP = 1 panel and NC columns.
    unsafe fn panel<L: Lanes, const NC: usize, const EXPANDED: bool>(args: &TileArgs, sums: &mut [L::F; NC]);

    /// Adds blocks to the sums of NP panels, which advance together: memory is read fastest as several streams.
    ///
    /// # Safety
    /// Inside `L::vectorize`; `args` covers NP panels and NC columns, not expanded where NP is not 1.
    #[inline(always)]
    unsafe fn panels<L: Lanes, const NP: usize, const NC: usize, const EXPANDED: bool>(
        args: &TileArgs,
        sums: &mut [[L::F; NC]; NP],
    ) {
        if NP == 1 {
            return Self::panel::<L, NC, EXPANDED>(args, &mut sums[0]);
        }
        for block in args.block_first..args.block_end {
            for (p, sums) in sums.iter_mut().enumerate() {
                let offset = p * args.panel_bytes;
                let one = TileArgs {
                    codes: args.codes.add(offset),
                    scales: args.scales.add(offset),
                    block_first: block,
                    block_end: block + 1,
                    ..*args
                };
                Self::panel::<L, NC, EXPANDED>(&one, sums);
            }
        }
    }

    /// The codes of sub-block `group` of the block at `codes`, unpacked to eight vectors.
    ///
    /// # Safety
    /// Inside `L::vectorize`; the block is there.
    unsafe fn unpack<L: Lanes>(codes: *const u8, group: usize) -> [L::W; 8];
}

/// A tile as a kernel. The maker vouches for `args`: NP panels, NC columns, blocks inside them, sums for all.
pub(super) struct Tile<F, const NP: usize, const NC: usize, const EXPANDED: bool> {
    pub(super) args: TileArgs,
    pub(super) format: PhantomData<F>,
}

impl<F: Format, const NP: usize, const NC: usize, const EXPANDED: bool> Kernel for Tile<F, NP, NC, EXPANDED> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let args = self.args;
        let mut sums = [[L::splat(0.0); NC]; NP];
        if args.block_first > 0 {
            for (p, sums) in sums.iter_mut().enumerate() {
                for (c, sum) in sums.iter_mut().enumerate() {
                    *sum = L::load(args.sums.add(p * args.sums_stride + c * PANEL_ROWS));
                }
            }
        }
        F::panels::<L, NP, NC, EXPANDED>(&args, &mut sums);
        for (p, sums) in sums.iter().enumerate() {
            for (c, &sum) in sums.iter().enumerate() {
                L::store(args.sums.add(p * args.sums_stride + c * PANEL_ROWS), sum);
            }
        }
    }
}

/// Unpacks blocks `first..end` of one panel to a byte a code, for use by many columns.
pub(super) struct Expand<F> {
    pub(super) codes: *const u8,
    pub(super) first: usize,
    pub(super) end: usize,
    pub(super) out: *mut u8,
    pub(super) format: PhantomData<F>,
}

impl<F: Format> Kernel for Expand<F> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let mut out = self.out;
        for block in self.first..self.end {
            for group in 0..F::PACKED_GROUPS {
                for w in F::unpack::<L>(self.codes.add(block * F::CODE_STRIDE), group) {
                    L::store_w(out, w);
                    out = out.add(64);
                }
            }
        }
    }
}

/// Eight stored vectors of a byte a code.
#[inline(always)]
unsafe fn vectors<L: Lanes>(codes: *const u8) -> [L::W; 8] {
    let mut w = [L::load_w(codes); 8];
    for (j, w) in w.iter_mut().enumerate() {
        *w = L::load_w(codes.add(64 * j));
    }
    w
}

/// Low nibbles of four stored vectors, then high nibbles.
#[inline(always)]
unsafe fn nibbles<L: Lanes>(codes: *const u8) -> [L::W; 8] {
    let mut w = [L::load_w(codes); 8];
    for j in 0..4 {
        let stored = L::load_w(codes.add(64 * j));
        w[j] = L::and(stored, 15);
        w[j + 4] = L::and(L::shr::<4>(stored), 15);
    }
    w
}

/// The codes of a sub-block, from the block or from its expansion.
#[inline(always)]
unsafe fn group<F: Format, L: Lanes, const EXPANDED: bool>(
    args: &TileArgs,
    block: usize,
    group: usize,
) -> [L::W; 8] {
    if EXPANDED {
        vectors::<L>(args.codes.add(((block - args.block_first) * F::PACKED_GROUPS + group) * 512))
    } else {
        let codes = args.codes.add(block * F::CODE_STRIDE);
        ahead::<L>(codes.wrapping_add(group * F::CODE_STRIDE / 8), F::CODE_STRIDE / 8);
        F::unpack::<L>(codes, group)
    }
}

/// Asks for `bytes` some way ahead of those at `at`. Weights that are streamed once come from memory, and the
/// processor on its own does not ask for enough of them at a time.
#[inline(always)]
unsafe fn ahead<L: Lanes>(at: *const u8, bytes: usize) {
    for line in (0..bytes).step_by(64) {
        L::prefetch(at.wrapping_add(AHEAD + line));
    }
}

/// Floats: one fused multiply-add an input.
macro_rules! float_format {
    ($(#[$doc:meta])* $name:ident, $bytes:literal, $load:ident, $element:ty) => {
        $(#[$doc])*
        pub(super) struct $name;

        impl Format for $name {
            const KIND: PanelKind = PanelKind::$name;
            const PACKED_GROUPS: usize = 0;

            #[inline(always)]
            unsafe fn panel<L: Lanes, const NC: usize, const EXPANDED: bool>(
                args: &TileArgs,
                sums: &mut [L::F; NC],
            ) {
                let mut all = [*sums];
                Self::panels::<L, 1, NC, EXPANDED>(args, &mut all);
                *sums = all[0];
            }

            // The panels advance together: a sum waits for its last multiply-add, so several must be under way.
            #[inline(always)]
            unsafe fn panels<L: Lanes, const NP: usize, const NC: usize, const EXPANDED: bool>(
                args: &TileArgs,
                sums: &mut [[L::F; NC]; NP],
            ) {
                for k in args.block_first..args.block_end {
                    let mut w = [L::splat(0.0); NP];
                    for (p, w) in w.iter_mut().enumerate() {
                        let at = args.codes.add(p * args.panel_bytes + k * $bytes);
                        *w = L::$load(at.cast::<$element>());
                    }
                    for c in 0..NC {
                        let x = L::splat(args.columns.floats.add(c * args.columns.floats_stride + k).read());
                        for p in 0..NP {
                            sums[p][c] = L::fma(w[p], x, sums[p][c]);
                        }
                    }
                }
            }

            #[inline(always)]
            unsafe fn unpack<L: Lanes>(codes: *const u8, _group: usize) -> [L::W; 8] {
                vectors::<L>(codes)
            }
        }
    };
}

float_format!(
    /// `PanelKind::F32`.
    F32, 64, load, f32
);
float_format!(
    /// `PanelKind::F16`.
    F16, 32, load_f16, u16
);
float_format!(
    /// `PanelKind::Bf16`.
    Bf16, 32, load_bf16, u16
);

/// `PanelKind::Q8`, and with an f32 scale `PanelKind::Q8Wide`.
pub(super) struct Q8<const WIDE: bool>;

impl<const WIDE: bool> Format for Q8<WIDE> {
    const KIND: PanelKind = if WIDE { PanelKind::Q8Wide } else { PanelKind::Q8 };
    const PACKED_GROUPS: usize = 0;

    #[inline(always)]
    unsafe fn panel<L: Lanes, const NC: usize, const EXPANDED: bool>(args: &TileArgs, sums: &mut [L::F; NC]) {
        let x = &args.columns;
        for b in args.block_first..args.block_end {
            let codes = args.codes.add(b * Self::CODE_STRIDE);
            ahead::<L>(codes, Self::CODE_STRIDE);
            let w = vectors::<L>(codes);
            let scales = args.scales.add(b * Self::SCALE_STRIDE);
            let d = if WIDE { L::load(scales.cast()) } else { L::load_f16(scales.cast()) };
            for (c, sum) in sums.iter_mut().enumerate() {
                let offset = L::splat_i(x.offsets.add(c * x.offsets_stride + b).read());
                let dot = L::dot32::<8>(offset, &w, x.codes.add(c * x.codes_stride + 32 * b));
                let scale = L::mul(d, L::splat(x.scales.add(c * x.scales_stride + b).read()));
                *sum = L::fma(L::to_f(dot), scale, *sum);
            }
        }
    }

    #[inline(always)]
    unsafe fn unpack<L: Lanes>(codes: *const u8, _group: usize) -> [L::W; 8] {
        vectors::<L>(codes)
    }
}

/// `PanelKind::Q8Min`.
pub(super) struct Q8Min;

impl Format for Q8Min {
    const KIND: PanelKind = PanelKind::Q8Min;
    const PACKED_GROUPS: usize = 0;

    #[inline(always)]
    unsafe fn panel<L: Lanes, const NC: usize, const EXPANDED: bool>(args: &TileArgs, sums: &mut [L::F; NC]) {
        let x = &args.columns;
        for b in args.block_first..args.block_end {
            let codes = args.codes.add(b * Self::CODE_STRIDE);
            ahead::<L>(codes, Self::CODE_STRIDE);
            let w = vectors::<L>(codes);
            let scales = args.scales.add(b * Self::SCALE_STRIDE).cast::<u16>();
            let (d, m) = (L::load_f16(scales), L::load_f16(scales.add(16)));
            for (c, sum) in sums.iter_mut().enumerate() {
                let dot = L::dot32::<5>(L::splat_i(0), &w, x.codes.add(c * x.codes_stride + 32 * b));
                let scale = x.scales.add(c * x.scales_stride + b).read();
                let total = x.offsets.add(c * x.offsets_stride + b).read() as f32 * (-1.0 / 128.0);
                *sum = L::fma(L::to_f(dot), L::mul(d, L::splat(scale)), *sum);
                *sum = L::fma(m, L::splat(scale * total), *sum);
            }
        }
    }

    #[inline(always)]
    unsafe fn unpack<L: Lanes>(codes: *const u8, _group: usize) -> [L::W; 8] {
        vectors::<L>(codes)
    }
}

/// `PanelKind::Q4K` and, with BITS = 5, `PanelKind::Q5K`.
pub(super) struct KMin<const BITS: u32>;

impl<const BITS: u32> Format for KMin<BITS> {
    const KIND: PanelKind = if BITS == 4 { PanelKind::Q4K } else { PanelKind::Q5K };
    const PACKED_GROUPS: usize = 8;

    #[inline(always)]
    unsafe fn panel<L: Lanes, const NC: usize, const EXPANDED: bool>(args: &TileArgs, sums: &mut [L::F; NC]) {
        let x = &args.columns;
        for b in args.block_first..args.block_end {
            let scales = args.scales.add(b * Self::SCALE_STRIDE);
            let mut parts = [L::splat_i(0); NC];
            for g in 0..8 {
                let w = group::<Self, L, EXPANDED>(args, b, g);
                let scale = L::bytes_u(scales.add(64 + 16 * g));
                for (c, part) in parts.iter_mut().enumerate() {
                    let a = x.codes.add(c * x.codes_stride + 256 * b + 32 * g);
                    *part = L::mul_add(L::dot32::<BITS>(L::splat_i(0), &w, a), scale, *part);
                }
            }
            let (d, dmin) = (L::load_f16(scales.cast()), L::load_f16(scales.add(32).cast()));
            for (c, sum) in sums.iter_mut().enumerate() {
                let mut mins = L::splat_i(0);
                for pair in 0..4 {
                    let a = x.sums.add(c * x.sums_stride + 8 * b + 2 * pair);
                    mins = L::dot_pair(mins, scales.add(192 + 32 * pair), a);
                }
                let factor = L::splat(x.scales.add(c * x.scales_stride + b).read());
                *sum = L::fma(L::to_f(parts[c]), L::mul(d, factor), *sum);
                *sum = L::fnma(L::to_f(mins), L::mul(dmin, factor), *sum);
            }
        }
    }

    #[inline(always)]
    unsafe fn unpack<L: Lanes>(codes: *const u8, group: usize) -> [L::W; 8] {
        let codes = codes.add(group * 64 * BITS as usize);
        let mut w = nibbles::<L>(codes);
        if BITS == 5 {
            let bits = L::load_w(codes.add(256));
            let high = [
                L::shl::<4>(bits),
                L::shl::<3>(bits),
                L::shl::<2>(bits),
                L::shl::<1>(bits),
                bits,
                L::shr::<1>(bits),
                L::shr::<2>(bits),
                L::shr::<3>(bits),
            ];
            for j in 0..8 {
                w[j] = L::or(w[j], L::and(high[j], 16));
            }
        }
        w
    }
}

/// `PanelKind::Q6K`.
pub(super) struct Q6K;

impl Format for Q6K {
    const KIND: PanelKind = PanelKind::Q6K;
    const PACKED_GROUPS: usize = 8;

    #[inline(always)]
    unsafe fn panel<L: Lanes, const NC: usize, const EXPANDED: bool>(args: &TileArgs, sums: &mut [L::F; NC]) {
        let x = &args.columns;
        for b in args.block_first..args.block_end {
            let scales = args.scales.add(b * Self::SCALE_STRIDE);
            let mut parts = [L::splat_i(0); NC];
            for g in 0..8 {
                let w = group::<Self, L, EXPANDED>(args, b, g);
                let low = L::bytes_i(scales.add(32 + 32 * g));
                let high = L::bytes_i(scales.add(48 + 32 * g));
                for (c, part) in parts.iter_mut().enumerate() {
                    let a = x.codes.add(c * x.codes_stride + 256 * b + 32 * g);
                    let offsets = x.offsets.add(c * x.offsets_stride + 16 * b + 2 * g);
                    let one = L::dot16(L::splat_i(offsets.read()), &w, 0, a);
                    let two = L::dot16(L::splat_i(offsets.add(1).read()), &w, 4, a.add(16));
                    *part = L::mul_add(one, low, *part);
                    *part = L::mul_add(two, high, *part);
                }
            }
            let d = L::load_f16(scales.cast());
            for (c, sum) in sums.iter_mut().enumerate() {
                let factor = L::splat(x.scales.add(c * x.scales_stride + b).read());
                *sum = L::fma(L::to_f(parts[c]), L::mul(d, factor), *sum);
            }
        }
    }

    #[inline(always)]
    unsafe fn unpack<L: Lanes>(codes: *const u8, group: usize) -> [L::W; 8] {
        let codes = codes.add(group * 384);
        let mut w = nibbles::<L>(codes);
        for half in 0..2 {
            let bits = L::load_w(codes.add(256 + 64 * half));
            let high = [L::shl::<4>(bits), L::shl::<2>(bits), bits, L::shr::<2>(bits)];
            for j in 0..4 {
                w[4 * half + j] = L::or(w[4 * half + j], L::and(high[j], 48));
            }
        }
        w
    }
}
