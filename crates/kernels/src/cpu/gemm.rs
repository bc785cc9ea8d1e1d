//! The inner loops of every matrix product: a tile of panels by columns, for each kind of panel.
//!
//! A *column* is one row of activations. A tile computes 16 outputs of each of NP panels for NC columns over a run of
//! blocks, adding to sums kept in memory: `sums[panel][column][16]`. Per output the order of floating-point
//! operations is that of the blocks and nothing else: the integer sum of a block, small scales included, is exact, and
//! each block then takes the same steps whatever NP and NC are and wherever the run of blocks is cut. So a row's result has the same
//! bits whether it is computed alone or among others, streamed or from an expanded panel.

#![allow(unsafe_op_in_unsafe_fn)] // The contract is that of `lanes`, and of the makers of the kernels below.
#![allow(clippy::needless_range_loop)] // Loops over constants by index: they unroll, and the arrays become registers.

mod block256;
mod block32;
mod decoded;
mod floats;
mod fp8;
mod unpack;

use std::marker::PhantomData;
use std::ops::Range;

pub(super) use block32::Block32;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(super) use block32::{min_of_32, scale_of_32, total_of_32};
pub(super) use block256::Block256;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(super) use block256::{group_min, group_scale};
pub(super) use decoded::{DECODED_ZERO, Decoded};
pub(super) use unpack::unpack;

use super::lanes::{Kernel, Lanes};
use super::matrix::{ActKind, PANEL_ROWS, PanelKind};

/// Panels of a joint tile.
pub(super) const JOINT_PANELS: usize = 2;
/// Columns of a joint tile at most: with the panels, as many sums as still fit the registers twice, for a block's parts
/// and a sub-block's.
pub(super) const JOINT_COLUMNS_MAX: usize = 6;
/// Columns of a joint tile at least: as many sums as keep the dot-product units busy for their latency.
pub(super) const JOINT_COLUMNS_MIN: usize = 4;

/// Columns of floats up to which the matrix unit streams panels, as vectors do with few of them.
pub(super) const UNIT_STREAM_COLUMNS_MAX: usize = 16;

/// Where a tile finds its activations. Strides count elements from one column to the next.
#[derive(Clone, Copy)]
pub(super) struct Columns {
    /// For float panels: (columns, cols).
    pub(super) floats: *const f32,
    pub(super) floats_stride: usize,
    /// For integer panels: (columns, cols), none -128. For float panels on the matrix unit, rows as `amx::floats` wants them.
    pub(super) codes: *const i8,
    pub(super) codes_stride: usize,
    /// One factor per 32 or 256 codes; for rows for the matrix unit one number each, 0 where the row is split.
    pub(super) scales: *const f32,
    pub(super) scales_stride: usize,
    /// Per 32 codes, `-128 * sum`; or, where scales are per 256, per 16 codes, `-32 * sum` or two words (see
    /// [`Columns::offset_of_16`]).
    pub(super) offsets: *const i32,
    pub(super) offsets_stride: usize,
    /// Sum of 32 codes; only where scales are per 256.
    pub(super) sums: *const i16,
    pub(super) sums_stride: usize,
    /// Where the outputs of the columns' first row will be written, or null. They are far apart, so their cache lines
    /// are prefetched while there is still arithmetic to do; nothing is read or written through this.
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

    /// `-32 * sum` of 16 codes of a column whose scales are per 256.
    ///
    /// # Safety
    /// The column has them, prepared by `L`.
    #[inline(always)]
    unsafe fn offset_of_16<L: Lanes>(&self, column: usize, group: usize) -> i32 {
        let offset = self.offsets.add(column * self.offsets_stride + group).read();
        if L::WORDS { -32 * (i32::from(offset as i16) + (offset >> 16)) } else { offset }
    }

    /// The columns, whose outputs will go to `(columns, stride)` at `out`.
    pub(super) fn towards(self, out: *const f32, stride: usize) -> Columns {
        Columns { out, out_stride: stride, ..self }
    }

    /// Prefetches the lines that the outputs of columns `from..to` of panel `panel` will go to.
    ///
    /// # Safety
    /// Inside `L::vectorize`.
    #[inline(always)]
    pub(super) unsafe fn prefetch_out<L: Lanes>(&self, panel: usize, from: usize, to: usize) {
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
    /// Blocks that share scales, as a power of two; of affine kinds only.
    pub(super) scale_shift: u32,
    /// Where what follows these blocks is stored, `scales_stride` apart, if a joint tile or one of floats is to prefetch it
    /// while it computes; else null.
    pub(super) next: *const u8,
    /// Bytes from a line that a tile of floats prefetches to the next.
    pub(super) next_step: usize,
    pub(super) columns: Columns,
    pub(super) block_first: usize,
    pub(super) block_end: usize,
    /// `(NP, sums_stride / 16, 16)`, the first tile's column first. Whatever they are, block 0 starts from zeros.
    pub(super) sums: *mut f32,
    /// Elements from a panel's sums to the next panel's.
    pub(super) sums_stride: usize,
}

impl TileArgs {
    /// The columns from `first` on.
    ///
    /// # Safety
    /// There are at least `first` columns.
    #[inline(always)]
    pub(super) unsafe fn from(self, first: usize) -> TileArgs {
        TileArgs { columns: self.columns.from(first), sums: self.sums.add(first * PANEL_ROWS), ..self }
    }

    /// Panel `index` of those covered.
    ///
    /// # Safety
    /// It is covered.
    #[inline(always)]
    pub(super) unsafe fn panel(self, index: usize) -> TileArgs {
        TileArgs {
            codes: self.codes.add(index * self.codes_stride),
            scales: self.scales.add(index * self.scales_stride),
            next: std::ptr::null(),
            sums: self.sums.add(index * self.sums_stride),
            ..self
        }
    }
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

/// `PanelKind::Affine` with codes of so many bits. How many blocks share scales is the tile's (`TileArgs::scale_shift`).
pub(super) struct Affine<const BITS: u8>;

impl<const BITS: u8> Kind for Affine<BITS> {
    const KIND: PanelKind = PanelKind::Affine { bits: BITS, shift: 0 };
}

/// `PanelKind::Fp8` with blocks of so many inputs.
pub(super) struct Fp8<const BLOCK: u8>;

impl<const BLOCK: u8> Kind for Fp8<BLOCK> {
    const KIND: PanelKind = PanelKind::Fp8 { block: BLOCK };
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
    /// Sub-blocks of 32 codes of a block; 0 of floats.
    const GROUPS: usize = Self::KIND.block() / 32;
    /// Bytes of a block of a panel once it is expanded.
    const EXPANDED_BYTES: usize = Self::GROUPS * 512;

    /// Writes blocks `first..end` of the panel at `codes` to `out` as tiles of `EXPANDED` codes want them.
    ///
    /// # Safety
    /// Inside `L::vectorize`; the blocks are there, and room for them.
    #[inline(always)]
    unsafe fn expand<L: Lanes>(codes: *const u8, first: usize, end: usize, out: *mut u8) {
        let mut out = out;
        for block in first..end {
            for group in 0..Self::GROUPS {
                let w = unpack::<L>(Self::KIND, codes.add(block * Self::CODE_STRIDE), group);
                for w in L::paired(w) {
                    L::store_w(out, w);
                    out = out.add(64);
                }
            }
        }
    }

    /// Adds blocks to the sums of NP panels, a sub-block of each in turn: streamed panels advance together, because memory
    /// is read fastest as several streams. `EXPANDED` codes are a byte each.
    ///
    /// # Safety
    /// Inside `L::vectorize`; `args` covers NP panels and NC columns.
    unsafe fn panels<L: Lanes, const NP: usize, const NC: usize, const EXPANDED: bool>(
        args: &TileArgs,
        sums: &mut [[L::F; NC]; NP],
    );

    /// As `panels`, in one tile of registers, integers by `Lanes::dots`: codes are a byte each in its order, `EXPANDED` or
    /// stored so.
    ///
    /// # Safety
    /// As for `panels`.
    unsafe fn joint<L: Lanes, const NP: usize, const NC: usize, const EXPANDED: bool>(
        args: &TileArgs,
        sums: &mut [[L::F; NC]; NP],
    );

    /// Prefetches the share of the next blocks that lies as far into them as `inputs` of block `block` do into these.
    ///
    /// # Safety
    /// Inside `L::vectorize`.
    #[inline(always)]
    unsafe fn prefetch_next<L: Lanes, const NP: usize>(args: &TileArgs, block: usize, inputs: Range<usize>) {
        if args.next.is_null() {
            return;
        }
        let bytes = |input: usize| input * Self::CODE_STRIDE / Self::KIND.block();
        let next = args.next.wrapping_add((block - args.block_first) * Self::CODE_STRIDE);
        for p in 0..NP {
            for line in (bytes(inputs.start)..bytes(inputs.end)).step_by(64) {
                L::prefetch(next.wrapping_add(p * args.scales_stride + line));
            }
        }
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
            codes.add((block - args.block_first) * Self::GROUPS * 512)
        } else {
            codes.add(block * Self::CODE_STRIDE)
        }
    }
}

/// What is known of NP panels of a format on an instruction set before anything runs. Conditions on these leave no code behind, and
/// every tile that is not compiled counts: there are some hundreds.
pub(super) struct Tiles<F, L, const NP: usize>(PhantomData<(F, L)>);

impl<F: Format, L: Lanes, const NP: usize> Tiles<F, L, NP> {
    /// Whether a panel's columns are multiplied in pairs. Decoding takes longer than any tile, so there it is not worth
    /// the order it needs.
    pub(super) const PAIRS: bool = L::PAIRS && F::GROUPS > 0 && !matches!(F::KIND, PanelKind::Stored(_));
    /// Whether codes are brought to a byte each, in the order of tiles, or to f32, before columns use them.
    pub(super) const EXPAND: bool = F::KIND.packed() || Self::PAIRS || Self::WIDENS;
    /// Whether what they are brought to is f32.
    pub(super) const WIDENS: bool = matches!(F::KIND, PanelKind::Fp8 { .. });
    /// Whether a panel's products are added up in words of 16 bits: its codes times bytes are small enough.
    pub(super) const WORDS: bool = L::WORDS && words_fit(F::GROUPS, products_max_of(F::KIND));
    /// Whether a joint tile is the fastest for many columns.
    pub(super) const JOINT: bool = L::JOINT || (L::COLS >= 8 && matches!(F::KIND.acts(), ActKind::Float));
    /// Whether NP panels are those of a joint tile.
    pub(super) const TOGETHER: bool = NP == JOINT_PANELS;
    /// Whether twelve columns of NP panels of floats fit the registers.
    pub(super) const TWELVE: bool = L::COLS >= 8;
    /// Whether tiles of floats prefetch the weights of the next ones.
    pub(super) const PREFETCH_FLOATS: bool = F::GROUPS == 0 && !Self::TWELVE && !Self::WIDENS;
    /// Whether eight columns of NP panels fit the registers.
    pub(super) const EIGHT: bool = NP == 1 && L::COLS >= 8;
}

/// Whether words are wide enough for a kind of so many sub-blocks: `Lanes::words` wants four products at least, and whole bytes in blocks
/// of 32 have a way of their own.
const fn words_fit(groups: usize, products_max: usize) -> bool {
    match groups {
        1 => products_max == 0 || products_max >= 4,
        8 => products_max > 0,
        _ => false,
    }
}

/// How many products of two codes and two bytes an i16 holds: codes of groups of 16 count from their zero. None of codes of
/// 8 bits.
const fn products_max_of(kind: PanelKind) -> usize {
    if matches!(kind, PanelKind::Stored(_)) || kind.dot_bits() == 8 {
        return 0;
    }
    let top = (1 << kind.dot_bits()) - 1;
    let zero = if kind.group() == 16 { kind.zero() as usize } else { 0 };
    i16::MAX as usize / (2 * 127 * if zero > top - zero { zero } else { top - zero })
}

/// A tile as a kernel; its panels are `JOINT` or not. The maker vouches for `args`: NP panels, NC columns, blocks inside
/// them, sums for all.
pub(super) struct Tile<F, const NP: usize, const NC: usize, const EXPANDED: bool, const JOINT: bool> {
    pub(super) args: TileArgs,
    pub(super) format: PhantomData<F>,
}

impl<F: Format, const NP: usize, const NC: usize, const EXPANDED: bool, const JOINT: bool> Kernel
    for Tile<F, NP, NC, EXPANDED, JOINT>
{
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
        if JOINT {
            F::joint::<L, NP, NC, EXPANDED>(&args, &mut sums);
        } else {
            F::panels::<L, NP, NC, EXPANDED>(&args, &mut sums);
        }
        for (p, sums) in sums.iter().enumerate() {
            for (c, &sum) in sums.iter().enumerate() {
                L::store(args.sums.add(p * args.sums_stride + c * PANEL_ROWS), sum);
            }
        }
    }
}

/// Expands blocks `first..end` of one panel for use by many columns: to a byte a code, in the order of `Lanes::paired`, or to f32.
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
        F::expand::<L>(self.codes, self.first, self.end, self.out);
    }
}

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
