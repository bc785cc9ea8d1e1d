//! Matrix products as loops of the pool: what is one item, where its sums go, and what is done with them.

mod epilogue;
mod panels;
mod plan;

use std::ops::Range;

use self::epilogue::{GateSums, StoreSums};
use self::panels::panel_sums;
use self::plan::{Item, Plan};
use super::activations::Activations;
use super::aligned::{Aligned, Shared};
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use super::amx;
use super::gemm::Columns;
use super::lanes::dispatch;
use super::matrix::{ActKind, CpuMatrix, PANEL_ROWS, STREAM_PANELS};
use super::pool::Turn;
use super::tier::Tier;
use crate::{Activation, KernelError};

/// Columns that count as many: a packed panel is expanded to bytes once, rather than unpacked again for each tile. With
/// fewer the weights are what takes the time, and panels are streamed.
const WIDE_COLUMNS_MIN: usize = 8;
/// Inputs of a panel that are expanded at a time: 16 KiB, a third of a first-level cache.
const EXPAND_INPUTS: usize = 1024;
/// Columns an item covers at most, so that its sums fit the thread's scratch.
const ITEM_COLUMNS_MAX: usize = 512;
/// Bytes of activations an item covers at most, so that they stay in the second-level cache.
const ITEM_ACTIVATION_BYTES: usize = 768 << 10;
/// About how long a thread works before it asks for more.
const CHUNK_NS: usize = 60_000;
/// Panels of an item at most when there are many columns.
const WIDE_PANELS: usize = 8;
/// Sums of an item at most: `(panels, columns, 16)`.
const SLAB: usize = 2 * ITEM_COLUMNS_MAX * PANEL_ROWS;
/// Sums of a thread: slabs for gate and for up, and a panel of which only part is wanted.
const SUMS: usize = 2 * SLAB + ITEM_COLUMNS_MAX * PANEL_ROWS;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
const _: () = assert!(amx::PLANE_BYTES <= EXPAND_INPUTS * PANEL_ROWS);
/// Blocks of 256 that are decoded together where panels hold them as stored.
const STORED_RUN: usize = EXPAND_INPUTS / 256;
const _: () = assert!(STREAM_PANELS * WIDE_COLUMNS_MIN * PANEL_ROWS <= SLAB);

/// What one thread needs while it works on products.
#[derive(Debug)]
pub(super) struct PanelScratch {
    expanded: Aligned<u8>, // (EXPAND_INPUTS / 4, 16, 4)
    scales: Aligned<f32>,  // (EXPAND_INPUTS / 16, 16)
    sums: Aligned<f32>,    // 2 slabs and a panel
}

impl PanelScratch {
    pub(super) const BYTES: usize = EXPAND_INPUTS * PANEL_ROWS + EXPAND_INPUTS * 4 + SUMS * 4;

    pub(super) fn new() -> Result<PanelScratch, KernelError> {
        let what = "matrix product scratch";
        Ok(PanelScratch {
            expanded: Aligned::zeroed(EXPAND_INPUTS * PANEL_ROWS, what)?,
            scales: Aligned::zeroed(EXPAND_INPUTS, what)?,
            sums: Aligned::zeroed(SUMS, what)?,
        })
    }
}

/// What a product runs with.
pub(super) struct Product<'a> {
    pub(super) tier: Tier,
    pub(super) turn: &'a mut Turn,
    pub(super) activations: &'a mut Activations,
    /// One for each thread of the pool.
    pub(super) scratch: &'a mut [PanelScratch],
}

/// `(rows, cols)` f32 that a product reads.
#[derive(Clone, Copy)]
pub(super) struct Input {
    pub(super) x: *const f32,
    pub(super) rows: usize,
}

impl Product<'_> {
    /// `out[r][i] = matrix[i] · x[r] + bias[i]`; `out` is `(input.rows, matrix.rows)`.
    ///
    /// # Safety
    /// `input.x` holds `(input.rows, matrix.cols)` numbers.
    pub(super) unsafe fn store(
        &mut self,
        matrix: &CpuMatrix,
        bias: Option<&[f32]>,
        input: Input,
        out: &mut [f32],
    ) {
        let (rows, stride) = (input.rows, matrix.rows());
        assert!(out.len() >= rows * stride, "out does not hold [{rows}, {stride}]");
        assert!(bias.is_none_or(|bias| bias.len() == stride), "one bias an output");
        let tier = self.tier;
        // SAFETY: the caller's promise on `input.x`; `out` holds what is written to it (asserted); each item owns its
        // part of it, and its sums are there.
        unsafe {
            self.rows(matrix, 0..stride, input, Shared::new(out), &|item, scratch, out| {
                let bias = bias.map(|bias| bias[item.row_first..].as_ptr());
                let (sums, columns, rows) = (scratch.sums.as_ptr(), item.columns, item.rows);
                dispatch(tier, StoreSums { sums, columns, rows, bias, out, stride });
            });
        }
    }

    /// `hidden[r][i] = activation(matrix[i] · x[r]) * (matrix[i + half] · x[r])`, `half = matrix.rows / 2`;
    /// `hidden` is `(input.rows, half)`.
    ///
    /// # Safety
    /// `input.x` holds `(input.rows, matrix.cols)` numbers.
    pub(super) unsafe fn gated(
        &mut self,
        matrix: &CpuMatrix,
        activation: Activation,
        input: Input,
        hidden: &mut [f32],
    ) {
        let (rows, stride) = (input.rows, matrix.rows() / 2);
        assert!(matrix.rows().is_multiple_of(2), "gate and up have as many rows");
        assert!(hidden.len() >= rows * stride, "hidden does not hold [{rows}, {stride}]");
        let (tier, out) = (self.tier, Shared::new(hidden));
        let kind = matrix.segments().first().map_or(ActKind::Float, |segment| segment.kind.acts());
        if matrix.segments().iter().any(|segment| segment.kind.acts() != kind) {
            // Gate and up want their input prepared differently: gate's outputs wait in `hidden` for up's.
            // SAFETY: the caller's promise on `input.x`; each item owns its part of `hidden`, its sums are there.
            unsafe {
                self.rows(matrix, 0..stride, input, out, &|item, scratch, out| {
                    let (sums, bias, columns, rows) = (scratch.sums.as_ptr(), None, item.columns, item.rows);
                    dispatch(tier, StoreSums { sums, columns, rows, bias, out, stride });
                });
                self.rows(matrix, stride..2 * stride, input, out, &|item, scratch, out| {
                    let (gate, up, columns, rows) = (None, scratch.sums.as_ptr(), item.columns, item.rows);
                    dispatch(tier, GateSums { gate, up, columns, rows, activation, out, stride });
                });
            }
            return;
        }
        // SAFETY: the caller's promise on `input.x`.
        let columns =
            unsafe { self.activations.prepare(kind, input.x, rows, matrix.cols(), self.tier, self.turn) };
        let panel_bytes = matrix.segments().iter().map(|segment| segment.panel_bytes).max().unwrap_or(0);
        let column = (rows, kind.bytes(matrix.cols()));
        let plan = Plan::new(tier, self.turn.threads(), (stride, 2 * panel_bytes), column, matrix.cols());
        plan.run(self.turn, self.scratch, &|item, scratch| {
            // SAFETY: the rows are the matrix's, the columns the input's; the slabs hold what
            // `Plan` bounds an item by; each item owns its part of `hidden`.
            unsafe {
                let columns = columns.from(item.column_first);
                let target = out.get().add(item.column_first * stride + item.row_first);
                row_sums(tier, matrix, item.row_first, item.rows, columns, item.columns, scratch, 0);
                let columns =
                    if item.columns >= WIDE_COLUMNS_MIN { columns.towards(target, stride) } else { columns };
                row_sums(tier, matrix, stride + item.row_first, item.rows, columns, item.columns, scratch, 1);
                let gate = Some(scratch.sums.as_ptr());
                let up = scratch.sums.as_ptr().add(SLAB);
                let (columns, rows, out) = (item.columns, item.rows, target);
                dispatch(tier, GateSums { gate, up, columns, rows, activation, out, stride });
            }
        });
    }

    /// Computes sums of a range of matrix rows, item by item in slab 0 of a thread's scratch, and calls `finish` with
    /// each item, whose rows count from the matrix's first, and its place in `out`, `(input.rows, range.len())`.
    ///
    /// # Safety
    /// `input.x` holds `(input.rows, matrix.cols)` numbers, `out` what it says.
    unsafe fn rows(
        &mut self,
        matrix: &CpuMatrix,
        range: Range<usize>,
        input: Input,
        out: Shared<f32>,
        finish: &(dyn Fn(&Item, &PanelScratch, *mut f32) + Sync),
    ) {
        let tier = self.tier;
        for kind in [ActKind::Float, ActKind::Int32, ActKind::Int256] {
            let mut prepared = None;
            for segment in matrix.segments().iter().filter(|segment| segment.kind.acts() == kind) {
                let first = range.start.max(segment.row_first);
                let end = range.end.min(segment.row_first + segment.rows);
                if first >= end {
                    continue;
                }
                let columns = *prepared.get_or_insert_with(|| {
                    // SAFETY: the caller's promise on `input.x`.
                    unsafe {
                        self.activations.prepare(kind, input.x, input.rows, matrix.cols(), tier, self.turn)
                    }
                });
                let (outputs, column) =
                    ((end - first, segment.panel_bytes), (input.rows, kind.bytes(segment.cols)));
                let plan = Plan::new(tier, self.turn.threads(), outputs, column, segment.cols);
                plan.run(self.turn, self.scratch, &|item, scratch| {
                    let item = Item { row_first: first + item.row_first, ..item };
                    // SAFETY: the rows are the matrix's, the columns the input's; `Plan` bounds the sums; `out` holds
                    // the item's part.
                    unsafe {
                        let out =
                            out.get().add(item.column_first * range.len() + item.row_first - range.start);
                        let mut columns = columns.from(item.column_first);
                        if item.columns >= WIDE_COLUMNS_MIN {
                            columns = columns.towards(out, range.len());
                        }
                        row_sums(tier, matrix, item.row_first, item.rows, columns, item.columns, scratch, 0);
                        finish(&item, scratch, out);
                    }
                });
            }
        }
    }
}

/// Sums of matrix rows `row_first..row_first + rows` into slab `slab` of the scratch, `(panels, columns, 16)`, in
/// panels counted from `row_first` whatever panels of which segments they lie in.
///
/// # Safety
/// `rows` panels by `columns` fit a slab; `columns` columns are there; `tier` is available.
unsafe fn row_sums(
    tier: Tier,
    matrix: &CpuMatrix,
    row_first: usize,
    rows: usize,
    columns: Columns,
    count: usize,
    scratch: &mut PanelScratch,
    slab: usize,
) {
    let mut done = 0;
    for segment in matrix.segments() {
        while done < rows {
            let row = row_first + done;
            if row < segment.row_first || row >= segment.row_first + segment.rows {
                break;
            }
            let local = row - segment.row_first;
            let left = (rows - done).min(segment.rows - local);
            let (panel, lane, lane_out) = (local / PANEL_ROWS, local % PANEL_ROWS, done % PANEL_ROWS);
            let slab_at = slab * SLAB + done / PANEL_ROWS * count * PANEL_ROWS;
            if lane == 0 && lane_out == 0 {
                let panels = left.div_ceil(PANEL_ROWS);
                // SAFETY: the caller's promise; these panels are in the segment.
                unsafe { panel_sums(tier, segment, panel, panels, columns, count, scratch, slab_at) };
                done += left;
                continue;
            }
            let part = left.min(PANEL_ROWS - lane).min(PANEL_ROWS - lane_out);
            let spare = 2 * SLAB;
            // SAFETY: as above; after the slabs is space for one panel.
            unsafe { panel_sums(tier, segment, panel, 1, columns, count, scratch, spare) };
            for column in 0..count {
                let from = spare + column * PANEL_ROWS + lane;
                scratch.sums.copy_within(from..from + part, slab_at + column * PANEL_ROWS + lane_out);
            }
            done += part;
        }
    }
}
