//! Inner loops of every matrix product: a tile of panels by columns, for each kind of panel.
//!
//! A *column* is one row of activations. A tile computes 16 outputs of each of NP panels for NC columns over a run of
//! blocks, adding to sums kept in memory: `sums[panel][column][16]`. For each output, floating-point operations follow
//! the order of the blocks and nothing else. The integer sum of a block, small scales included, is exact, and each
//! block takes the same steps whatever NP and NC are and wherever the run of blocks is cut. So a row's result has the
//! same bits whether it is computed alone or among others, streamed or from an expanded panel.

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
/// Largest number of columns of a joint tile. With its panels these are as many sums as still fit the registers twice,
/// for a block's parts and for a sub-block's.
pub(super) const JOINT_COLUMNS_MAX: usize = 6;
/// Smallest number of columns of a joint tile: as many sums as hide the latency of the dot-product units.
pub(super) const JOINT_COLUMNS_MIN: usize = 4;

/// Number of float columns up to which the matrix unit streams panels, as vectors do with few columns.
pub(super) const UNIT_STREAM_COLUMNS_MAX: usize = 16;

/// Activations of a tile. Strides count elements from one column to the next.
#[derive(Clone, Copy)]
pub(super) struct Columns {
    /// Floats, for float panels: (columns, cols).
    pub(super) floats: *const f32,
    pub(super) floats_stride: usize,
    /// Codes for integer panels: (columns, cols), none -128. For float panels on the matrix unit: rows in the form of
    /// `amx::floats`.
    pub(super) codes: *const i8,
    pub(super) codes_stride: usize,
    /// Factor for each 32 or 256 codes. For rows on the matrix unit one number each, 0 if the row is split.
    pub(super) scales: *const f32,
    pub(super) scales_stride: usize,
    /// `-128 * sum` of each 32 codes. If scales are for 256 codes: for each 16 codes `-32 * sum`, or two words (see
    /// [`Columns::offset_of_16`]).
    pub(super) offsets: *const i32,
    pub(super) offsets_stride: usize,
    /// Sum of each 32 codes, only if scales are for 256 codes.
    pub(super) sums: *const i16,
    pub(super) sums_stride: usize,
    /// Destination of the outputs of the columns' first row, or null. Outputs are far apart, so their cache lines are
    /// prefetched during the arithmetic; nothing is read or written through this pointer.
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

    /// `-32 * sum` of 16 codes of a column whose scales are for 256 codes.
    ///
    /// # Safety
    /// The column has them, prepared by `L`.
    #[inline(always)]
    unsafe fn offset_of_16<L: Lanes>(&self, column: usize, group: usize) -> i32 {
        let offset = self.offsets.add(column * self.offsets_stride + group).read();
        if L::WORDS { -32 * (i32::from(offset as i16) + (offset >> 16)) } else { offset }
    }

    /// The same columns, with outputs at `out`, `(columns, stride)`.
    pub(super) fn towards(self, out: *const f32, stride: usize) -> Columns {
        Columns { out, out_stride: stride, ..self }
    }

    /// Prefetches the cache lines of the outputs of columns `from..to` of panel `panel`.
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

/// Inputs and sums of a tile.
#[derive(Clone, Copy)]
pub(super) struct TileArgs {
    /// Codes of the first panel's block 0. If expanded: codes of block `block_first`, one byte each.
    pub(super) codes: *const u8,
    /// Scales of the first panel's block 0.
    pub(super) scales: *const u8,
    /// Bytes from a panel's codes to the next panel's.
    pub(super) codes_stride: usize,
    /// Bytes from a panel's scales to the next panel's.
    pub(super) scales_stride: usize,
    /// Number of blocks that share scales, as a power of two; used for affine kinds only.
    pub(super) scale_shift: u32,
    /// Data after these blocks, `scales_stride` apart, if a joint tile or a tile of floats is to prefetch it while it
    /// computes; else null.
    pub(super) next: *const u8,
    /// Bytes between the lines that a tile of floats prefetches.
    pub(super) next_step: usize,
    pub(super) columns: Columns,
    pub(super) block_first: usize,
    pub(super) block_end: usize,
    /// `(NP, sums_stride / 16, 16)`, with the first tile's column first. Block 0 starts from zeros whatever the sums
    /// hold.
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

    /// Panel `index` of the covered panels.
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

/// Kind of panel as a type, so that each kind gets separately compiled loops.
pub(super) trait PanelType: 'static {
    const KIND: PanelKind;
}

macro_rules! kinds {
    ($($name:ident)*) => {
        $(
            #[doc = concat!("`PanelKind::", stringify!($name), "`.")]
            pub(super) struct $name;
            impl PanelType for $name {
                const KIND: PanelKind = PanelKind::$name;
            }
        )*
    };
}

/// `PanelKind::Affine` with codes of so many bits. The number of blocks that share scales is in
/// `TileArgs::scale_shift`.
pub(super) struct AffinePanel<const BITS: u8>;

impl<const BITS: u8> PanelType for AffinePanel<BITS> {
    const KIND: PanelKind = PanelKind::Affine { bits: BITS, shift: 0 };
}

/// `PanelKind::Fp8` with blocks of so many inputs.
pub(super) struct Fp8<const BLOCK: u8>;

impl<const BLOCK: u8> PanelType for Fp8<BLOCK> {
    const KIND: PanelKind = PanelKind::Fp8 { block: BLOCK };
}

kinds!(F32 F16 Bf16 Q4 Q4Min Q5 Q5Min Q8 Nl4 Mx4 Q2K Q3K Q4K Q5K Q6K Nl4K);

/// Arithmetic of one kind of panel.
pub(super) trait PanelFormat: 'static {
    /// Layout of the panel.
    const KIND: PanelKind;
    /// Bytes from a block's codes to the next block's.
    const CODE_STRIDE: usize = Self::KIND.code_stride();
    /// Bytes from a block's scales to the next block's.
    const SCALE_STRIDE: usize = Self::KIND.scales_at(0, 1);
    /// Sub-blocks of 32 codes in a block; 0 for floats.
    const GROUPS: usize = Self::KIND.block() / 32;
    /// Bytes of a panel's block after expansion.
    const EXPANDED_BYTES: usize = Self::GROUPS * 512;

    /// Expands blocks `first..end` of the panel at `codes` into `out`, in the form that tiles of `EXPANDED` codes
    /// read.
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

    /// Adds blocks to the sums of NP panels, one sub-block of each panel in turn. Streamed panels advance together
    /// because memory is read fastest as several streams. `EXPANDED` codes are one byte each.
    ///
    /// # Safety
    /// Inside `L::vectorize`; `args` covers NP panels and NC columns.
    unsafe fn panels<L: Lanes, const NP: usize, const NC: usize, const EXPANDED: bool>(
        args: &TileArgs,
        sums: &mut [[L::F; NC]; NP],
    );

    /// Same as `panels`, in one tile of registers, with integers by `Lanes::dots`. Codes are one byte each in the
    /// order of `Lanes::dots`, either `EXPANDED` or stored so. Other formats have no such tile and use `panels`.
    ///
    /// # Safety
    /// As for `panels`.
    #[inline(always)]
    unsafe fn joint<L: Lanes, const NP: usize, const NC: usize, const EXPANDED: bool>(
        args: &TileArgs,
        sums: &mut [[L::F; NC]; NP],
    ) {
        Self::panels::<L, NP, NC, EXPANDED>(args, sums);
    }

    /// Prefetches a share of the next blocks, in step with the progress of `inputs` of block `block` through these.
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

    /// Codes of a sub-block, one byte each.
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

/// Compile-time properties of NP panels of a format on an instruction set. Conditions on these leave no code behind.
/// That matters because there are some hundreds of tiles.
pub(super) struct TileProperties<F, L, const NP: usize>(PhantomData<(F, L)>);

impl<F: PanelFormat, L: Lanes, const NP: usize> TileProperties<F, L, NP> {
    /// Whether a panel's columns are multiplied in pairs. Not for panels that decode stored blocks: decoding takes
    /// longer than any tile, so the special order does not pay off.
    pub(super) const PAIRS: bool = L::PAIRS && F::GROUPS > 0 && !matches!(F::KIND, PanelKind::Stored(_));
    /// Whether codes are expanded, to one byte each in the order of tiles or to f32, before columns use them.
    pub(super) const EXPAND: bool = F::KIND.packed() || Self::PAIRS || Self::WIDENS;
    /// Whether codes are expanded to f32.
    pub(super) const WIDENS: bool = matches!(F::KIND, PanelKind::Fp8 { .. });
    /// Whether a panel's products are summed in words of 16 bits, because products of its codes and bytes are small
    /// enough.
    pub(super) const WORDS: bool = L::WORDS && words_fit(F::GROUPS, products_max_of(F::KIND));
    /// Whether a joint tile is the fastest for many columns.
    pub(super) const JOINT: bool = L::JOINT || (L::COLS >= 8 && matches!(F::KIND.acts(), ActKind::Float));
    /// Whether NP panels form a joint tile.
    pub(super) const TOGETHER: bool = NP == JOINT_PANELS;
    /// Whether the registers hold twelve columns of NP panels of floats.
    pub(super) const TWELVE: bool = L::COLS >= 8;
    /// Whether tiles of floats prefetch the weights of the next ones.
    pub(super) const PREFETCH_FLOATS: bool = F::GROUPS == 0 && !Self::TWELVE && !Self::WIDENS;
    /// Whether the registers hold eight columns of NP panels.
    pub(super) const EIGHT: bool = NP == 1 && L::COLS >= 8;
}

/// Whether words of 16 bits suffice for a kind with so many sub-blocks. `Lanes::words` needs at least four products;
/// whole bytes in blocks of 32 have a separate path.
const fn words_fit(groups: usize, products_max: usize) -> bool {
    match groups {
        1 => products_max == 0 || products_max >= 4,
        8 => products_max > 0,
        _ => false,
    }
}

/// Number of products of two codes and two bytes that an i16 holds; codes of groups of 16 count from their zero. 0 for
/// codes of 8 bits.
const fn products_max_of(kind: PanelKind) -> usize {
    if matches!(kind, PanelKind::Stored(_)) || kind.dot_bits() == 8 {
        return 0;
    }
    let top = (1 << kind.dot_bits()) - 1;
    let zero = if kind.group() == 16 { kind.zero() as usize } else { 0 };
    i16::MAX as usize / (2 * 127 * if zero > top - zero { zero } else { top - zero })
}

/// Kernel that computes a tile, `JOINT` or not. The creator guarantees `args`: NP panels, NC columns, blocks inside
/// them, and sums for all.
pub(super) struct Tile<F, const NP: usize, const NC: usize, const EXPANDED: bool, const JOINT: bool> {
    pub(super) args: TileArgs,
    pub(super) format: PhantomData<F>,
}

impl<F: PanelFormat, const NP: usize, const NC: usize, const EXPANDED: bool, const JOINT: bool> Kernel
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

/// Kernel that expands blocks `first..end` of one panel for use by many columns: to one byte a code, in the order of
/// `Lanes::paired`, or to f32.
pub(super) struct Expand<F> {
    pub(super) codes: *const u8,
    pub(super) first: usize,
    pub(super) end: usize,
    pub(super) out: *mut u8,
    pub(super) format: PhantomData<F>,
}

impl<F: PanelFormat> Kernel for Expand<F> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        F::expand::<L>(self.codes, self.first, self.end, self.out);
    }
}

/// `dot32` for the code width of a kind.
#[inline(always)]
unsafe fn dot32<L: Lanes>(kind: PanelKind, init: L::I, w: &[L::W; 8], a: *const i8) -> L::I {
    match kind.dot_bits() {
        0..=4 => L::dot32::<4>(init, w, a),
        5 => L::dot32::<5>(init, w, a),
        6 | 7 => L::dot32::<7>(init, w, a),
        _ => L::dot32::<8>(init, w, a),
    }
}
