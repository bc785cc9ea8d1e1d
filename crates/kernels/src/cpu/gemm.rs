//! The inner loops of every matrix product: a tile of panels by columns, for each kind of panel.
//!
//! A *column* is one row of activations. A tile computes 16 outputs of each of NP panels for NC columns over a run of
//! blocks, adding to sums kept in memory: `sums[panel][column][16]`. Per output the order of floating-point
//! operations is that of the blocks and nothing else: the integer sum of a block, small scales included, is exact, and
//! each block then takes the same steps whatever NP and NC are and wherever the run of blocks is cut. So a row's result has the same
//! bits whether it is computed alone or among others, streamed or from an expanded panel.

#![allow(unsafe_op_in_unsafe_fn)] // The contract is that of `lanes`, and of the makers of the kernels below.
#![allow(clippy::needless_range_loop)] // Loops over constants by index: they unroll, and the arrays become registers.

use std::marker::PhantomData;

use super::lanes::{Kernel, Lanes};
use super::matrix::{ActKind, PANEL_ROWS, PanelKind, Plane};
use crate::DType;

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
    /// Bytes from a panel's codes to the next panel's.
    pub(super) codes_stride: usize,
    /// Bytes from a panel's scales to the next panel's.
    pub(super) scales_stride: usize,
    pub(super) columns: Columns,
    pub(super) block_first: usize,
    pub(super) block_end: usize,
    /// `(NP, sums_stride / 16, 16)`, the first tile's column first. Whatever they are, block 0 starts from zeros.
    pub(super) sums: *mut f32,
    /// Elements from a panel's sums to the next panel's.
    pub(super) sums_stride: usize,
}

/// A kind of panel as a type, so that each has loops of its own.
pub(super) trait Kind: 'static {
    const KIND: PanelKind;
}

macro_rules! kinds {
    ($($name:ident)*) => {
        $(
            #[doc = concat!("`PanelKind::", stringify!($name), "`.")]
            pub(super) struct $name;
            impl Kind for $name {
                const KIND: PanelKind = PanelKind::$name;
            }
        )*
    };
}

kinds!(F32 F16 Bf16 Q4 Q4Min Q5 Q5Min Q8 Nl4 Mx4 Q2K Q3K Q4K Q5K Q6K Nl4K);

/// The arithmetic of one kind of panel.
pub(super) trait Format: 'static {
    /// Its layout.
    const KIND: PanelKind;
    /// Bytes from a block's codes to the next block's.
    const CODE_STRIDE: usize = Self::KIND.code_stride();
    /// Bytes from a block's scales to the next block's.
    const SCALE_STRIDE: usize = Self::KIND.scales_at(0, 1);
    /// Sub-blocks of 32 of a block whose codes must be unpacked before use: 0 where the stored form is used as it is.
    const PACKED_GROUPS: usize = if Self::KIND.packed() { Self::KIND.block() / 32 } else { 0 };

    /// Adds blocks to the sums of one panel. `EXPANDED` codes are a byte each.
    ///
    /// # Safety
    /// Inside `L::vectorize`; `args` covers NP = 1 panel and NC columns.
    unsafe fn panel<L: Lanes, const NC: usize, const EXPANDED: bool>(args: &TileArgs, sums: &mut [L::F; NC]);

    /// As `panel` for NP panels in one tile of registers, so that an activation once broadcast serves them all. Codes
    /// are a byte each, `EXPANDED` or stored so.
    ///
    /// # Safety
    /// As for `panel`; `args` covers NP panels.
    unsafe fn joint<L: Lanes, const NP: usize, const NC: usize, const EXPANDED: bool>(
        args: &TileArgs,
        sums: &mut [[L::F; NC]; NP],
    );

    /// Adds blocks to the sums of NP panels. Streamed panels advance together: memory is read fastest as several
    /// streams.
    ///
    /// # Safety
    /// Inside `L::vectorize`; `args` covers NP panels and NC columns.
    #[inline(always)]
    unsafe fn panels<L: Lanes, const NP: usize, const NC: usize, const EXPANDED: bool>(
        args: &TileArgs,
        sums: &mut [[L::F; NC]; NP],
    ) {
        if NP == 1 {
            return Self::panel::<L, NC, EXPANDED>(args, &mut sums[0]);
        }
        if NP == JOINT_PANELS {
            return Self::joint::<L, NP, NC, EXPANDED>(args, sums);
        }
        for block in args.block_first..args.block_end {
            for (p, sums) in sums.iter_mut().enumerate() {
                let one = TileArgs {
                    codes: args.codes.add(p * args.codes_stride),
                    scales: args.scales.add(p * args.scales_stride),
                    block_first: block,
                    block_end: block + 1,
                    ..*args
                };
                Self::panel::<L, NC, EXPANDED>(&one, sums);
            }
        }
    }

    /// Whether a joint tile is the fastest for many columns.
    #[inline(always)]
    fn is_joint<L: Lanes>() -> bool {
        L::JOINT || (L::COLS >= 8 && matches!(Self::KIND.acts(), ActKind::Float))
    }

    /// Codes of a sub-block, a byte each.
    ///
    /// # Safety
    /// The block is there.
    #[inline(always)]
    unsafe fn bytes<const EXPANDED: bool>(
        args: &TileArgs,
        panel: usize,
        block: usize,
        group: usize,
    ) -> *const u8 {
        let codes = args.codes.add(panel * args.codes_stride + 512 * group);
        if EXPANDED {
            codes.add((block - args.block_first) * Self::PACKED_GROUPS * 512)
        } else {
            codes.add(block * Self::CODE_STRIDE)
        }
    }
}

/// Panels of a joint tile.
pub(super) const JOINT_PANELS: usize = 2;
/// Columns of a joint tile: with the panels, as many sums as keep the dot-product units busy for their latency and
/// still fit the registers twice, for a block's parts and a sub-block's.
pub(super) const JOINT_COLUMNS: usize = 6;

/// Adds the products of N vectors at `codes` and the columns' activations at `a` to dots.
///
/// # Safety
/// Inside `L::vectorize`; codes and activations are there.
#[inline(always)]
unsafe fn joint_dots<L: Lanes, const NP: usize, const NC: usize, const N: usize>(
    codes: &[*const u8; NP],
    a: *const i8,
    stride: usize,
    dots: &mut [[L::I; NC]; NP],
) {
    for j in 0..N {
        let mut w = [L::load_w(codes[0].add(64 * j)); NP];
        for p in 1..NP {
            w[p] = L::load_w(codes[p].add(64 * j));
        }
        for c in 0..NC {
            for p in 0..NP {
                dots[p][c] = L::dot4(dots[p][c], w[p], a.add(c * stride + 4 * j));
            }
        }
    }
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
                for w in unpack::<L>(F::KIND, self.codes.add(block * F::CODE_STRIDE), group) {
                    L::store_w(out, w);
                    out = out.add(64);
                }
            }
        }
    }
}

/// Eight vectors of a byte a code.
#[inline(always)]
unsafe fn vectors<L: Lanes>(codes: *const u8) -> [L::W; 8] {
    let mut w = [L::load_w(codes); 8];
    for (j, w) in w.iter_mut().enumerate() {
        *w = L::load_w(codes.add(64 * j));
    }
    w
}

/// The codes of sub-block `group` of the block at `codes`, a byte each and looked up. `kind` is a constant here.
///
/// # Safety
/// Inside `L::vectorize`; the block is there.
#[inline(always)]
pub(super) unsafe fn unpack<L: Lanes>(kind: PanelKind, codes: *const u8, group: usize) -> [L::W; 8] {
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

/// One plane's bits of a vector, in their places.
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
        let bytes = F::CODE_STRIDE / (F::KIND.block() / 32);
        ahead::<L>(codes.wrapping_add(group * bytes), bytes);
        unpack::<L>(F::KIND, codes, group)
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
    ($name:ident, $bytes:literal, $load:ident, $element:ty) => {
        impl Format for $name {
            const KIND: PanelKind = PanelKind::$name;

            #[inline(always)]
            unsafe fn panel<L: Lanes, const NC: usize, const EXPANDED: bool>(
                args: &TileArgs,
                sums: &mut [L::F; NC],
            ) {
                let mut all = [*sums];
                Self::panels::<L, 1, NC, EXPANDED>(args, &mut all);
                *sums = all[0];
            }

            #[inline(always)]
            unsafe fn joint<L: Lanes, const NP: usize, const NC: usize, const EXPANDED: bool>(
                args: &TileArgs,
                sums: &mut [[L::F; NC]; NP],
            ) {
                Self::panels::<L, NP, NC, EXPANDED>(args, sums);
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
                        let at = args.codes.add(p * args.codes_stride + k * $bytes);
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
        }
    };
}

float_format!(F32, 64, load, f32);
float_format!(F16, 32, load_f16, u16);
float_format!(Bf16, 32, load_bf16, u16);

/// `dot32` of codes of a kind's width.
#[inline(always)]
unsafe fn dot32<L: Lanes>(kind: PanelKind, init: L::I, w: &[L::W; 8], a: *const i8) -> L::I {
    match kind.dot_bits() {
        0..=4 => L::dot32::<4>(init, w, a),
        5 => L::dot32::<5>(init, w, a),
        6 | 7 => L::dot32::<7>(init, w, a),
        _ => L::dot32::<8>(init, w, a),
    }
}

/// The scale of a block of 32.
///
/// # Safety
/// Inside `L::vectorize`; the scales are there.
#[inline(always)]
pub(super) unsafe fn scale_of_32<L: Lanes>(kind: PanelKind, scales: *const u8) -> L::F {
    if matches!(kind, PanelKind::Mx4) { L::load_bf16(scales.cast()) } else { L::load_f16(scales.cast()) }
}

/// Kinds with blocks of 32 codes.
pub(super) struct Block32<K>(PhantomData<K>);

impl<K: Kind> Format for Block32<K> {
    const KIND: PanelKind = K::KIND;

    #[inline(always)]
    unsafe fn panel<L: Lanes, const NC: usize, const EXPANDED: bool>(args: &TileArgs, sums: &mut [L::F; NC]) {
        let x = &args.columns;
        for b in args.block_first..args.block_end {
            let w = group::<Self, L, EXPANDED>(args, b, 0);
            let scales = args.scales.add(b * Self::SCALE_STRIDE);
            let d = scale_of_32::<L>(K::KIND, scales);
            for (c, sum) in sums.iter_mut().enumerate() {
                let offset = x.offsets.add(c * x.offsets_stride + b).read();
                let a = x.codes.add(c * x.codes_stride + 32 * b);
                let dot = dot32::<L>(K::KIND, L::splat_i(start_of_32(K::KIND, offset)), &w, a);
                let factor = x.scales.add(c * x.scales_stride + b).read();
                add_of_32::<L>(K::KIND, dot, d, scales, offset, factor, sum);
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
            let mut codes = [args.codes; NP];
            for (p, codes) in codes.iter_mut().enumerate() {
                *codes = Self::bytes::<EXPANDED>(args, p, b, 0);
            }
            let mut dots = [[L::splat_i(0); NC]; NP];
            for c in 0..NC {
                let offset = x.offsets.add(c * x.offsets_stride + b).read();
                for dots in &mut dots {
                    dots[c] = L::splat_i(start_of_32(K::KIND, offset));
                }
            }
            joint_dots::<L, NP, NC, 8>(&codes, x.codes.add(32 * b), x.codes_stride, &mut dots);
            for (p, (sums, dots)) in sums.iter_mut().zip(&dots).enumerate() {
                let scales = args.scales.add(p * args.scales_stride + b * Self::SCALE_STRIDE);
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

/// What the dot product of a block of 32 begins with, so that codes count from their zero.
#[inline(always)]
fn start_of_32(kind: PanelKind, offset: i32) -> i32 {
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
        let min = L::load_f16(scales.add(32).cast());
        *sum = L::fma(min, L::splat(factor * total_of_32(offset)), *sum);
    }
}

/// The sum of 32 activation codes, from their offset.
#[inline(always)]
pub(super) fn total_of_32(offset: i32) -> f32 {
    offset as f32 * (-1.0 / 128.0)
}

/// Kinds with blocks of 256 codes.
pub(super) struct Block256<K>(PhantomData<K>);

impl<K: Kind> Format for Block256<K> {
    const KIND: PanelKind = K::KIND;

    #[inline(always)]
    unsafe fn panel<L: Lanes, const NC: usize, const EXPANDED: bool>(args: &TileArgs, sums: &mut [L::F; NC]) {
        let x = &args.columns;
        for b in args.block_first..args.block_end {
            let scales = args.scales.add(b * Self::SCALE_STRIDE);
            let mut parts = [L::splat_i(0); NC];
            let mut mins = [L::splat_i(0); NC];
            for g in 0..8 {
                let w = group::<Self, L, EXPANDED>(args, b, g);
                if K::KIND.group() == 32 {
                    let scale = group_scale::<L>(K::KIND, scales, g);
                    for (c, part) in parts.iter_mut().enumerate() {
                        let a = x.codes.add(c * x.codes_stride + 256 * b + 32 * g);
                        let start = L::splat_i(start_of_group(K::KIND, x, c, b, g));
                        let dot = dot32::<L>(K::KIND, start, &w, a);
                        *part = L::mul_add(dot, scale, *part);
                    }
                    continue;
                }
                for half in 0..2 {
                    let scale = group_scale::<L>(K::KIND, scales, 2 * g + half);
                    for c in 0..NC {
                        let a = x.codes.add(c * x.codes_stride + 256 * b + 32 * g + 16 * half);
                        let offset = x.offsets.add(c * x.offsets_stride + 16 * b + 2 * g + half).read();
                        let start = L::splat_i(start_of_group(K::KIND, x, c, b, 2 * g + half));
                        let dot = L::dot16::<6>(start, &w, 4 * half, a);
                        parts[c] = L::mul_add(dot, scale, parts[c]);
                        if K::KIND.has_min() {
                            let min = group_min::<L>(scales, 2 * g + half);
                            mins[c] = L::mul_add(L::splat_i(offset), min, mins[c]);
                        }
                    }
                }
            }
            add_of_256::<L, NC>(K::KIND, x, b, scales, &parts, &mins, sums);
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
                    joint_dots::<L, NP, NC, 8>(&codes, a, x.codes_stride, &mut dots);
                } else {
                    joint_dots::<L, NP, NC, 4>(&codes, a, x.codes_stride, &mut dots);
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
pub(super) unsafe fn group_scale<L: Lanes>(kind: PanelKind, scales: *const u8, group: usize) -> L::I {
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
pub(super) unsafe fn group_min<L: Lanes>(scales: *const u8, group: usize) -> L::I {
    L::nibbles::<true>(scales.add(64 + 16 * group))
}

/// Blocks of a codebook or ternary type that [`super::stored`] has decoded: codes plus 64, then `(16, 16)` f32 scales.
pub(super) struct Decoded;

/// The zero of decoded blocks.
pub(super) const DECODED_ZERO: i32 = 64;

impl Format for Decoded {
    const KIND: PanelKind = PanelKind::Stored(DType::IQ2_XXS);
    const CODE_STRIDE: usize = 256 * PANEL_ROWS;
    const SCALE_STRIDE: usize = 16 * PANEL_ROWS * 4;
    const PACKED_GROUPS: usize = 8;

    /// Never asked for: decoding takes longer than any tile.
    #[inline(always)]
    unsafe fn joint<L: Lanes, const NP: usize, const NC: usize, const EXPANDED: bool>(
        args: &TileArgs,
        sums: &mut [[L::F; NC]; NP],
    ) {
        for (p, sums) in sums.iter_mut().enumerate() {
            let one = TileArgs {
                codes: args.codes.add(p * args.codes_stride),
                scales: args.scales.add(p * args.scales_stride),
                ..*args
            };
            Self::panel::<L, NC, EXPANDED>(&one, sums);
        }
    }

    /// `args.codes` and `args.scales` are those of `block_first`.
    #[inline(always)]
    unsafe fn panel<L: Lanes, const NC: usize, const EXPANDED: bool>(args: &TileArgs, sums: &mut [L::F; NC]) {
        let x = &args.columns;
        for b in args.block_first..args.block_end {
            let scales = args.scales.add((b - args.block_first) * Self::SCALE_STRIDE).cast::<f32>();
            let mut parts = [L::splat(0.0); NC];
            for g in 0..8 {
                let w = group::<Self, L, true>(args, b, g);
                for half in 0..2 {
                    let scale = L::load(scales.add(16 * (2 * g + half)));
                    for (c, part) in parts.iter_mut().enumerate() {
                        let a = x.codes.add(c * x.codes_stride + 256 * b + 32 * g + 16 * half);
                        let offset = x.offsets.add(c * x.offsets_stride + 16 * b + 2 * g + half).read();
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
}
