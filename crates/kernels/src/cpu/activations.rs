//! Activations as signed bytes, made once per matmul input: a factor per 32 or per 256 of them, and the sums that
//! correct for weights stored with an offset.

use super::aligned::Aligned;
use super::gemm::Columns;
use super::lanes::{Kernel, Lanes, dispatch};
use super::matrix::ActKind;
use super::pool::Turn;
use super::tier::Tier;
use crate::KernelError;

/// Scratch for the activations of one matmul.
#[derive(Debug)]
pub(super) struct Activations {
    rows: usize,
    width: usize,
    codes: Aligned<i8>,     // (rows, width + PAD)
    scales: Aligned<f32>,   // (rows, width / 32)
    offsets: Aligned<i32>,  // (rows, width / 16)
    sums: Aligned<i16>,     // (rows, width / 32)
    gathered: Aligned<f32>, // (logit_rows, width)
}

/// Bytes between rows of codes, so that the same place of 16 rows falls on 16 lines of a cache and not on few.
const PAD: usize = 64;
/// A row below this is taken for zeros: its reciprocal would overflow.
const SMALLEST: f32 = 1.2e-36;

impl Activations {
    /// Bytes of scratch for `rows` rows of up to `width`, of which `logit_rows` may be picked out of order.
    pub(super) fn bytes(rows: usize, width: usize, logit_rows: usize) -> usize {
        let width = width.next_multiple_of(256);
        let all = rows.max(logit_rows);
        all.saturating_mul(width + PAD + width / 32 * 4 + width / 16 * 4 + width / 32 * 2)
            .saturating_add(logit_rows.saturating_mul(width * 4))
    }

    pub(super) fn new(rows: usize, width: usize, logit_rows: usize) -> Result<Activations, KernelError> {
        let width = width.next_multiple_of(256);
        let all = rows.max(logit_rows);
        let what = "quantised activations";
        Ok(Activations {
            rows: all,
            width,
            codes: Aligned::zeroed(all.saturating_mul(width + PAD), what)?,
            scales: Aligned::zeroed(all.saturating_mul(width / 32), what)?,
            offsets: Aligned::zeroed(all.saturating_mul(width / 16), what)?,
            sums: Aligned::zeroed(all.saturating_mul(width / 32), what)?,
            gathered: Aligned::zeroed(logit_rows.saturating_mul(width), what)?,
        })
    }

    /// Copies rows of `x`, `(_, cols)`, next to each other and gives the place back.
    pub(super) fn gather(&mut self, x: &[f32], cols: usize, rows: &[u32]) -> *const f32 {
        let out = &mut self.gathered[..rows.len() * cols];
        for (out, &row) in out.chunks_exact_mut(cols).zip(rows) {
            out.copy_from_slice(&x[row as usize * cols..][..cols]);
        }
        self.gathered.as_ptr()
    }

    /// Prepares `rows` rows of `cols` at `x` for panels of a kind.
    ///
    /// # Safety
    /// `x` holds `(rows, cols)` f32 until the columns' last use; `tier` is available.
    pub(super) unsafe fn prepare(
        &mut self,
        kind: ActKind,
        x: *const f32,
        rows: usize,
        cols: usize,
        tier: Tier,
        turn: &mut Turn,
    ) -> Columns {
        let group = match kind {
            ActKind::Float => 0,
            ActKind::Int32 => 32,
            ActKind::Int256 => 256,
        };
        let (scales_stride, offsets_stride) = match kind {
            ActKind::Float => (0, 0),
            ActKind::Int32 => (cols / 32, cols / 32),
            ActKind::Int256 => (cols / 256, cols / 16),
        };
        let columns = Columns {
            floats: x,
            floats_stride: cols,
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
        if kind == ActKind::Float {
            return columns;
        }
        assert!(
            rows <= self.rows && cols <= self.width,
            "[{rows}, {cols}] activations are over the step limits"
        );
        assert!(cols.is_multiple_of(group), "quantised weights come in whole blocks");
        let x = super::aligned::Shared::new_const(x);
        let (codes, scales) = (self.codes.shared(), self.scales.shared());
        let (offsets, sums) = (self.offsets.shared(), self.sums.shared());
        // Some 20 microseconds a chunk.
        let grain = (1 << 16) / cols + 1;
        turn.run(rows, grain, &|_, range| {
            for row in range {
                // SAFETY: the row lies inside each array by the assertion above (strides are at most the widths the
                // arrays were made with), each row is in one range of one thread, and `x` is the caller's promise.
                unsafe {
                    let at = Quantize {
                        x: x.get().add(row * cols).cast_const(),
                        cols,
                        codes: codes.get().add(row * (cols + PAD)),
                        scales: scales.get().add(row * scales_stride),
                        offsets: offsets.get().add(row * offsets_stride),
                        sums: sums.get().add(row * (cols / 32)),
                    };
                    match kind {
                        ActKind::Int256 => dispatch(tier, Per256(at)),
                        _ => dispatch(tier, Per32(at)),
                    }
                }
            }
        });
        columns
    }
}

/// One row: where it is and where its parts go.
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
        // What is not a number has no code and would be lost; it is kept in the scale instead. Infinity comes here
        // as 0 * infinity.
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
                    row.offsets.add(16 * block + 2 * i).write(-32 * pair[0]);
                    row.offsets.add(16 * block + 2 * i + 1).write(-32 * pair[1]);
                }
            }
        }
    }
}
