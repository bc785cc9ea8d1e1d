//! Activations in the form that products need, prepared once for each input of a product. For integer products they
//! are signed bytes, with a factor for each 32 or 256 of them, and the sums that correct for weights stored with an
//! offset. For float products they are used as they are, except that the matrix unit needs them split in two
//! (`split`). If rows are needed at several columns of a product, each row is prepared once and copied.

use std::ops::Range;

use super::aligned::{AlignedArray, SharedPointer};
use super::gemm::Columns;
use super::lanes::{Kernel, Lanes, dispatch};
use super::matrix::ActKind;
use super::pool::PoolTurn;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use super::split::{split_bytes, split_row};
use super::tier::Tier;
use hanzo_engine_ops::KernelError;

/// Rows of a product's inputs, in f32.
#[derive(Clone, Copy)]
pub(super) struct Input<'a> {
    pub(super) x: *const f32,
    pub(super) rows: usize,
    /// Elements from the start of a row to the start of the next, if rows do not simply follow each other. Rows may
    /// overlap.
    pub(super) step: Option<usize>,
    /// Columns of the product that the rows become. None: each row is one column.
    pub(super) places: Option<Places<'a>>,
}

/// Mapping of an input's rows to columns of the product.
#[derive(Clone, Copy)]
pub(super) struct Places<'a> {
    /// Columns that are copies of each row, all different; [`NOWHERE`] for none. `(rows, each)`
    pub(super) of: &'a [u32],
    pub(super) each: usize,
    /// Number of columns; each is a copy of one row.
    pub(super) columns: usize,
}

/// Placeholder for a copy that is not needed.
pub(super) const NOWHERE: u32 = u32::MAX;

impl Input<'_> {
    /// Columns of the product.
    pub(super) fn columns(&self) -> usize {
        self.places.map_or(self.rows, |places| places.columns)
    }
}

/// Scratch for the activations of one matmul.
#[derive(Debug)]
pub(super) struct Activations {
    rows: usize,
    width: usize,
    /// Whether floats are split for the matrix unit.
    splits: bool,
    codes: AlignedArray<i8>, // (rows, width + PAD); or as many copies of rows as f32, or split rows, as fit
    scales: AlignedArray<f32>, // (rows, width / 32)
    offsets: AlignedArray<i32>, // (rows, width / 16)
    sums: AlignedArray<i16>, // (rows, width / 32)
    gathered: AlignedArray<f32>, // (logit_rows, width)
}

/// Padding bytes between rows of codes, so that the same place of 16 rows falls on 16 cache lines of different sets.
const PAD: usize = 64;
/// Bytes for split rows, unless all of them need less. If there are more, a product handles as many at a time as fit.
const SPLIT_BYTES_MAX: usize = 16 << 20;
/// Rows whose largest magnitude is below this count as zeros, because the reciprocal would overflow.
const SMALLEST: f32 = 1.2e-36;

impl Activations {
    /// Bytes of scratch for `rows` columns of up to `width`. `logit_rows` rows may be picked out of order.
    pub(super) fn bytes(tier: Tier, rows: usize, width: usize, logit_rows: usize) -> usize {
        let width = width.next_multiple_of(256);
        let all = rows.max(logit_rows);
        all.saturating_mul(width / 32 * 4 + width / 16 * 4 + width / 32 * 2)
            .saturating_add(Self::code_bytes(tier, all, width))
            .saturating_add(logit_rows.saturating_mul(width * 4))
    }

    /// Bytes for codes, at least enough for one column of f32 or one split column.
    fn code_bytes(tier: Tier, rows: usize, width: usize) -> usize {
        let one = Self::split_stride(width).max(4 * width);
        let split = if tier == Tier::Amx { rows.saturating_mul(one).min(SPLIT_BYTES_MAX) } else { 0 };
        rows.saturating_mul(width + PAD).max(split).max(one)
    }

    /// Bytes from a split row of `cols` to the next.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    const fn split_stride(cols: usize) -> usize {
        split_bytes(cols) + PAD
    }

    #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
    const fn split_stride(_: usize) -> usize {
        0
    }

    pub(super) fn new(
        tier: Tier,
        rows: usize,
        width: usize,
        logit_rows: usize,
    ) -> Result<Activations, KernelError> {
        let width = width.next_multiple_of(256);
        let all = rows.max(logit_rows);
        let what = "quantised activations";
        Ok(Activations {
            rows: all,
            width,
            splits: tier == Tier::Amx,
            codes: AlignedArray::zeroed(Self::code_bytes(tier, all, width), what)?,
            scales: AlignedArray::zeroed(all.saturating_mul(width / 32), what)?,
            offsets: AlignedArray::zeroed(all.saturating_mul(width / 16), what)?,
            sums: AlignedArray::zeroed(all.saturating_mul(width / 32), what)?,
            gathered: AlignedArray::zeroed(logit_rows.saturating_mul(width), what)?,
        })
    }

    /// Copies rows of `x`, `(_, cols)`, next to each other and returns a pointer to the copies.
    pub(super) fn gather(&mut self, x: &[f32], cols: usize, rows: &[u32]) -> *const f32 {
        let out = &mut self.gathered[..rows.len() * cols];
        for (out, &row) in out.chunks_exact_mut(cols).zip(rows) {
            out.copy_from_slice(&x[row as usize * cols..][..cols]);
        }
        self.gathered.as_ptr()
    }

    /// Number of an input's columns that can be prepared at a time.
    pub(super) fn columns_max(&self, kind: ActKind, input: &Input<'_>, cols: usize) -> usize {
        match (kind, input.places) {
            (ActKind::Float, _) if self.splits => {
                (self.codes.len() / Self::split_stride(cols)).min(input.columns()).max(1)
            }
            (ActKind::Float, Some(_)) => self.codes.len() / (4 * cols),
            _ => input.columns().max(1),
        }
    }

    /// Prepares columns `window`, at most [`Activations::columns_max`] of them, of an input of `cols` for a kind of
    /// panel.
    ///
    /// # Safety
    /// `input.x` holds `(input.rows, cols)` f32 until the columns' last use; its places are all different; `tier` is
    /// available.
    pub(super) unsafe fn prepare(
        &mut self,
        kind: ActKind,
        input: &Input<'_>,
        window: Range<usize>,
        cols: usize,
        tier: Tier,
        turn: &mut PoolTurn,
    ) -> Columns {
        let group = match kind {
            ActKind::Float => 1,
            ActKind::Int32 => 32,
            ActKind::Int256 => 256,
        };
        let (scales_stride, offsets_stride) = match kind {
            ActKind::Float => (0, 0),
            ActKind::Int32 => (cols / 32, cols / 32),
            ActKind::Int256 => (cols / 256, cols / 16),
        };
        let step = input.step.unwrap_or(cols);
        let mut columns = Columns {
            floats: input.x.wrapping_add(window.start * step),
            floats_stride: step,
            codes: self.codes.as_ptr(),
            codes_stride: cols + PAD,
            scales: self.scales.as_ptr(),
            scales_stride,
            offsets: self.offsets.as_ptr(),
            offsets_stride,
            sums: self.sums.as_ptr(),
            sums_stride: cols / 32,
            out: std::ptr::null(),
            out_stride: 0,
        };
        let split = kind == ActKind::Float && self.splits;
        if split {
            columns.codes_stride = Self::split_stride(cols);
            columns.scales_stride = 1;
        }
        let copies = match (kind, input.places) {
            (ActKind::Float, _) if split => {
                window.len() * columns.codes_stride <= self.codes.len() && window.len() <= self.scales.len()
            }
            (ActKind::Float, None) => return columns,
            (ActKind::Float, Some(_)) => {
                (columns.floats, columns.floats_stride) = (self.codes.as_ptr().cast(), cols);
                window.len() * 4 * cols <= self.codes.len()
            }
            _ => window.len() <= self.rows && cols <= self.width,
        };
        assert!(copies, "[{}, {cols}] activations are over the step limits", window.len());
        assert!(cols.is_multiple_of(group), "quantised weights come in whole blocks");
        let places = input.places;
        assert!(
            places.is_none_or(|places| places.of.len() == input.rows * places.each),
            "places for each row"
        );
        let x = SharedPointer::new_const(input.x);
        let to = ColumnBuffers {
            kind,
            split,
            cols,
            codes: self.codes.shared(),
            codes_stride: columns.codes_stride,
            scales: self.scales.shared(),
            scales_stride: columns.scales_stride,
            offsets: self.offsets.shared(),
            offsets_stride,
            sums: self.sums.shared(),
        };
        let make = |range: Range<usize>| {
            for row in range {
                let own = [row as u32];
                let of = places.map_or(&own[..], |places| &places.of[row * places.each..][..places.each]);
                let mut made = None;
                for &place in of {
                    let place = place as usize;
                    if !window.contains(&place) {
                        continue;
                    }
                    let place = place - window.start;
                    // SAFETY: the window's columns lie inside each array by the assertions above (strides are at most
                    // the widths the arrays were made with); each is a copy of one row, which is in one range of one
                    // thread; and `x` is the caller's promise.
                    unsafe {
                        match made {
                            Some(from) => to.copy(from, place),
                            None => to.make(x.get().add(row * step).cast_const(), place, tier),
                        }
                    }
                    made = made.or(Some(place));
                }
            }
        };
        // Around 20 microseconds a chunk; less work is not worth waking other threads.
        let grain = (1 << 16) / (cols * places.map_or(1, |places| places.each)) + 1;
        if input.rows <= grain / 4 {
            make(0..input.rows);
        } else {
            turn.run(input.rows, grain, &|_, range| make(range));
        }
        columns
    }
}

/// Destination of prepared columns.
struct ColumnBuffers {
    kind: ActKind,
    /// Whether floats are split.
    split: bool,
    cols: usize,
    codes: SharedPointer<i8>,
    codes_stride: usize,
    scales: SharedPointer<f32>,
    scales_stride: usize,
    offsets: SharedPointer<i32>,
    offsets_stride: usize,
    sums: SharedPointer<i16>,
}

impl ColumnBuffers {
    /// Prepares a row at `x` as column `place`.
    ///
    /// # Safety
    /// `x` holds `cols` f32, the arrays the column, which nobody else has; `tier` is available.
    unsafe fn make(&self, x: *const f32, place: usize, tier: Tier) {
        let cols = self.cols;
        // SAFETY: the caller's promise.
        unsafe {
            let to = Quantize {
                x,
                cols,
                codes: self.codes.get().add(place * self.codes_stride),
                scales: self.scales.get().add(place * self.scales_stride),
                offsets: self.offsets.get().add(place * self.offsets_stride),
                sums: self.sums.get().add(place * (cols / 32)),
            };
            match self.kind {
                #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
                ActKind::Float if self.split => {
                    let split = split_row(x, cols, to.codes.cast());
                    to.scales.write(if split { 0.0 } else { 1.0 });
                }
                ActKind::Float => x.copy_to_nonoverlapping(self.floats(place), cols),
                ActKind::Int32 => dispatch(tier, Per32(to)),
                ActKind::Int256 => dispatch(tier, Per256(to)),
            }
        }
    }

    /// Copies column `from` to column `to`.
    ///
    /// # Safety
    /// The arrays hold both columns, which nobody else has and which are not the same.
    unsafe fn copy(&self, from: usize, to: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            if self.split {
                copy(&self.codes, self.codes_stride, from, to, self.codes_stride);
                copy(&self.scales, 1, from, to, 1);
                return;
            }
            if self.kind == ActKind::Float {
                self.floats(from).copy_to_nonoverlapping(self.floats(to), self.cols);
                return;
            }
            copy(&self.codes, self.codes_stride, from, to, self.cols);
            copy(&self.scales, self.scales_stride, from, to, self.scales_stride);
            copy(&self.offsets, self.offsets_stride, from, to, self.offsets_stride);
            if self.kind == ActKind::Int256 {
                copy(&self.sums, self.cols / 32, from, to, self.cols / 32);
            }
        }
    }

    /// A column as f32, stored in the memory of the codes.
    fn floats(&self, place: usize) -> *mut f32 {
        self.codes.get().cast::<f32>().wrapping_add(place * self.cols)
    }
}

/// Copies `count` elements of row `from` to row `to`.
///
/// # Safety
/// Both are there, nobody else has them, and they are not the same.
unsafe fn copy<T>(array: &SharedPointer<T>, stride: usize, from: usize, to: usize, count: usize) {
    // SAFETY: the caller's promise; rows `stride` apart of at most as many elements do not overlap.
    unsafe { array.get().add(from * stride).copy_to_nonoverlapping(array.get().add(to * stride), count) };
}

/// Source and destinations of one row.
struct Quantize {
    x: *const f32,
    cols: usize,
    codes: *mut i8,
    scales: *mut f32,
    offsets: *mut i32,
    sums: *mut i16,
}

struct Per32(Quantize);
struct Per256(Quantize);

/// Quantises N vectors with one scale, which it returns; `sums` get each vector's sum of codes.
///
/// # Safety
/// Inside `L::vectorize`; `x` and `codes` hold 16 N numbers.
#[inline(always)]
pub(super) unsafe fn quantize<L: Lanes, const N: usize>(
    x: *const f32,
    codes: *mut i8,
    sums: &mut [i32; N],
) -> f32 {
    // SAFETY: the caller's promise covers every vector below.
    unsafe {
        let mut top = L::splat(0.0);
        for i in 0..N {
            top = L::max(top, L::abs(L::load(x.add(16 * i))));
        }
        let top = L::top(top);
        let inverse = L::splat(if top < SMALLEST { 0.0 } else { 127.0 / top });
        // A value that is not a number has no code and would be lost, so it is kept in the scale instead. Infinity
        // leads here as 0 * infinity.
        let mut codes_sum = 0.0;
        for (i, sum) in sums.iter_mut().enumerate() {
            let whole = L::round(L::mul(L::load(x.add(16 * i)), inverse));
            L::store_i8(codes.add(16 * i), whole);
            let total = L::sum(whole);
            codes_sum += total;
            *sum = total as i32;
        }
        if codes_sum.is_nan() { f32::NAN } else { top * (1.0 / 127.0) }
    }
}

impl Kernel for Per32 {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let row = self.0;
        for block in 0..row.cols / 32 {
            let mut sums = [0; 2];
            // SAFETY: the maker of a `Quantize` vouches for its row.
            unsafe {
                let scale = quantize::<L, 2>(row.x.add(32 * block), row.codes.add(32 * block), &mut sums);
                row.scales.add(block).write(scale);
                row.offsets.add(block).write(-128 * (sums[0] + sums[1]));
            }
        }
    }
}

impl Kernel for Per256 {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let row = self.0;
        for block in 0..row.cols / 256 {
            let mut sums = [0; 16];
            // SAFETY: the maker of a `Quantize` vouches for its row.
            unsafe {
                let scale = quantize::<L, 16>(row.x.add(256 * block), row.codes.add(256 * block), &mut sums);
                row.scales.add(block).write(scale);
                for (i, pair) in sums.chunks_exact(2).enumerate() {
                    row.sums.add(8 * block + i).write((pair[0] + pair[1]) as i16);
                }
                for (i, sum) in sums.into_iter().enumerate() {
                    let group = 16 * block + i;
                    let offset = if L::WORDS { L::word_sums(row.codes.add(16 * group)) } else { -32 * sum };
                    row.offsets.add(group).write(offset);
                }
            }
        }
    }
}
