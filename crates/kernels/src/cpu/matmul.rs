//! Matrix products as loops of the pool: division into items, placement of their sums, and epilogues.

mod epilogue;
mod panels;
mod plan;

use std::ops::Range;

use self::epilogue::{GateSums, StoreSums};
pub(super) use self::epilogue::{get, put};
use self::panels::panel_sums;
pub(super) use self::plan::Plan;
use self::plan::{Item, PlanWork};
use super::activations::{Activations, Input};
use super::aligned::{AlignedArray, SharedPointer};
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use super::amx;
use super::gemm::{Columns, UNIT_STREAM_COLUMNS_MAX};
use super::lanes::dispatch;
use super::matrix::{ActKind, CpuMatrix, PANEL_ROWS, STREAM_PANELS, Segment};
use super::pool::PoolTurn;
use super::rows::Rows;
use super::tier::Tier;
use hanzo_engine_ops::{Activation, KernelError};

/// Number of columns from which they count as many. A packed panel is then expanded to bytes once, rather than
/// unpacked again for each tile. With fewer columns reading weights takes most time, and panels are streamed.
const WIDE_COLUMNS_MIN: usize = 8;
/// Inputs of a panel that are expanded at a time: 16 KiB, a third of a first-level cache.
const EXPAND_INPUTS: usize = 1024;
/// Inputs of a float panel that are multiplied at a time: 24 KiB of f32, half a first-level cache.
const FLOAT_INPUTS: usize = 384;
/// Largest number of columns of an item, so that its sums fit the thread's scratch.
const ITEM_COLUMNS_MAX: usize = 512;
/// Largest size of an item's activations in bytes, so that they stay in the second-level cache.
const ITEM_ACTIVATION_BYTES: usize = 768 << 10;
/// Same as `ITEM_ACTIVATION_BYTES`, for activations that are split for the matrix unit.
const ITEM_SPLIT_BYTES: usize = 1 << 20;
/// Approximate time that a thread works before it takes more items.
const CHUNK_NS: usize = 60_000;
/// Largest number of panels of an item when there are many columns.
const WIDE_PANELS: usize = 8;
/// Items of few columns that a thread computes as one.
const JOINED_ITEMS: usize = 4;
/// Largest number of sums of an item: `(panels, columns, 16)`.
const SLAB: usize = 2 * ITEM_COLUMNS_MAX * PANEL_ROWS;
/// Sums of a thread: slabs for gate and for up, and one panel for partial panels.
const SUMS: usize = 2 * SLAB + ITEM_COLUMNS_MAX * PANEL_ROWS;
/// Bytes of a thread's memory for expanded codes or for the matrix unit's planes.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
const EXPANDED: usize =
    if amx::PLANE_BYTES > EXPAND_INPUTS * PANEL_ROWS { amx::PLANE_BYTES } else { EXPAND_INPUTS * PANEL_ROWS };
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
const EXPANDED: usize = EXPAND_INPUTS * PANEL_ROWS;
/// Blocks of 256 that are decoded together, if panels hold blocks as stored.
const STORED_RUN: usize = EXPAND_INPUTS / 256;
const _: () = assert!(STREAM_PANELS * UNIT_STREAM_COLUMNS_MAX * PANEL_ROWS <= SLAB);
const _: () = assert!(JOINED_ITEMS * STREAM_PANELS * WIDE_COLUMNS_MIN * PANEL_ROWS <= SLAB);

/// Whether items are cut for the matrix unit: always for floats; for bytes if it computes all kinds. Kinds that it
/// computes with fewer columns (`amx::takes`) are streamed, in items cut as for vectors.
fn unit_takes(tier: Tier, floats: bool, columns: usize) -> bool {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    return tier == Tier::Amx && (floats || columns >= amx::COLUMNS_MIN);
    #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
    {
        let _ = (tier, floats, columns);
        false
    }
}

/// Scratch of one thread for products.
#[derive(Debug)]
pub(super) struct PanelScratch {
    expanded: AlignedArray<u8>, // (EXPAND_INPUTS / 4, 16, 4), or planes
    scales: AlignedArray<f32>,  // (EXPAND_INPUTS / 16, 16)
    sums: AlignedArray<f32>,    // 2 slabs and a panel
}

impl PanelScratch {
    pub(super) const BYTES: usize = EXPANDED + EXPAND_INPUTS * 4 + SUMS * 4;

    pub(super) fn new() -> Result<PanelScratch, KernelError> {
        let what = "matrix product scratch";
        Ok(PanelScratch {
            expanded: AlignedArray::zeroed(EXPANDED, what)?,
            scales: AlignedArray::zeroed(EXPAND_INPUTS, what)?,
            sums: AlignedArray::zeroed(SUMS, what)?,
        })
    }
}

impl PanelScratch {
    /// Numbers that a loop may use between products.
    pub(super) fn numbers(&mut self) -> &mut [f32] {
        &mut self.sums
    }
}

/// Resources of a product.
pub(super) struct Product<'a> {
    pub(super) tier: Tier,
    pub(super) turn: &'a mut PoolTurn,
    pub(super) activations: &'a mut Activations,
    pub(super) plan: &'a mut Plan,
    /// Scratch of each thread of the pool.
    pub(super) scratch: &'a mut [PanelScratch],
}

/// Matrices of one shape, each for some columns of the input: a single matrix for all columns, or experts.
#[derive(Clone, Copy)]
pub(super) struct Groups<'a> {
    pub(super) matrices: &'a [CpuMatrix],
    /// Matrix g applies to the columns from `firsts[g]` to `firsts[g + 1]`.
    pub(super) firsts: &'a [u32],
}

/// Columns prepared in `Activations`, valid until others are prepared.
pub(super) struct PreparedColumns {
    kind: ActKind,
    window: Range<usize>,
    columns: Columns,
}

/// Operations on a sum before it is stored as an output.
#[derive(Clone, Copy, Default)]
pub(super) struct Epilogue<'a> {
    /// Bias of each output of each matrix.
    pub(super) bias: Option<&'a [f32]>,
    pub(super) activation: Option<Activation>,
}

/// Rows of those matrices that are `wanted`.
struct Selection<'a> {
    groups: Groups<'a>,
    wanted: &'a dyn Fn(&CpuMatrix) -> bool,
    rows: Range<usize>,
}

/// Processing of an item's sums, which are in slab 0 of the scratch. It is given the item's place in the output.
type Finish<'a> = dyn Fn(&Item, &PanelScratch, *mut f32) + Sync + 'a;

impl<'a> Groups<'a> {
    /// Matrices that have columns in a window, with their indices and those columns.
    fn within(self, window: Range<usize>) -> impl Iterator<Item = (usize, &'a CpuMatrix, Range<usize>)> {
        self.matrices.iter().zip(self.firsts.windows(2)).enumerate().filter_map(
            move |(group, (matrix, ends))| {
                let columns = window.start.max(ends[0] as usize)..window.end.min(ends[1] as usize);
                (!columns.is_empty()).then_some((group, matrix, columns))
            },
        )
    }

    /// Outputs and inputs of every matrix.
    fn shape(self) -> (usize, usize) {
        let shape = |matrix: &CpuMatrix| (matrix.rows(), matrix.cols());
        let first = self.matrices.first().map_or((0, 0), shape);
        assert!(self.matrices.iter().all(|matrix| shape(matrix) == first), "matrices of one shape");
        first
    }
}

impl Product<'_> {
    /// `out[r][i] = activation(matrix[i] · x[r] + bias[i])`; `out` is `(input.rows, matrix.rows)`.
    ///
    /// # Safety
    /// `input.x` holds `(input.rows, matrix.cols)` numbers.
    pub(super) unsafe fn store(
        &mut self,
        matrix: &CpuMatrix,
        bias: Option<&[f32]>,
        activation: Option<Activation>,
        input: Input<'_>,
        out: &mut [f32],
    ) {
        let groups = Groups { matrices: std::slice::from_ref(matrix), firsts: &[0, input.columns() as u32] };
        // SAFETY: the caller's promise.
        unsafe {
            let epilogue = Epilogue { bias, activation };
            self.store_rows(groups, 0..matrix.rows(), epilogue, input, &mut None, out);
        }
    }

    /// `out[c][i] = matrix[i] · x[c] + bias[i]` of each group's matrix for its columns.
    ///
    /// # Safety
    /// `input.x` holds the rows, as far as they reach.
    pub(super) unsafe fn spread(
        &mut self,
        groups: Groups<'_>,
        bias: Option<&[f32]>,
        input: Input<'_>,
        Rows { numbers: out, stride }: Rows<&mut [f32]>,
    ) {
        let (outputs, columns, tier) = (groups.shape().0, input.columns(), self.tier);
        assert!(stride >= outputs, "columns of {outputs} outputs do not overlap");
        assert!(columns == 0 || out.len() >= (columns - 1) * stride + outputs, "out holds every column");
        let biases = outputs * groups.matrices.len();
        assert!(bias.is_none_or(|bias| bias.len() == biases), "one bias an output");
        let rows = Selection { groups, wanted: &|_| true, rows: 0..outputs };
        // SAFETY: the caller's promise on `input`; `out` holds what is written to it (asserted); each item owns its
        // part of it, and its sums are there.
        unsafe {
            let to = Rows { numbers: SharedPointer::new(out), stride };
            self.rows(rows, input, &mut None, to, &|item, scratch, out| {
                let bias = bias.map(|bias| bias[item.group * outputs + item.row_first..].as_ptr());
                let (sums, columns, rows) = (scratch.sums.as_ptr(), item.columns, item.rows);
                let activation = None;
                dispatch(tier, StoreSums { sums, columns, rows, bias, activation, out, stride });
            });
        }
    }

    /// Same as `store`, for the outputs `range` of each group's matrix and its columns; `out` is `(input.columns(),
    /// range.len())`.
    ///
    /// # Safety
    /// `input.x` holds `(input.rows, cols)` numbers, and its places are all different; what `prepared` holds was
    /// prepared of this input and no other since.
    pub(super) unsafe fn store_rows(
        &mut self,
        groups: Groups<'_>,
        range: Range<usize>,
        epilogue: Epilogue<'_>,
        input: Input<'_>,
        prepared: &mut Option<PreparedColumns>,
        out: &mut [f32],
    ) {
        let Epilogue { bias, activation } = epilogue;
        let (outputs, stride) = (groups.shape().0, range.len());
        assert!(range.end <= outputs, "rows {range:?} of a matrix of {outputs}");
        assert!(out.len() >= input.columns() * stride, "out does not hold [{}, {stride}]", input.columns());
        let biases = outputs * groups.matrices.len();
        assert!(bias.is_none_or(|bias| bias.len() == biases), "one bias an output");
        let (tier, rows) = (self.tier, Selection { groups, wanted: &|_| true, rows: range });
        // SAFETY: the caller's promise on `input` and `prepared`; `out` holds what is written to it (asserted); each
        // item owns its part of it, and its sums are there.
        unsafe {
            let to = Rows { numbers: SharedPointer::new(out), stride };
            self.rows(rows, input, prepared, to, &|item, scratch, out| {
                let bias = bias.map(|bias| bias[item.group * outputs + item.row_first..].as_ptr());
                let (sums, columns, rows) = (scratch.sums.as_ptr(), item.columns, item.rows);
                dispatch(tier, StoreSums { sums, columns, rows, bias, activation, out, stride });
            });
        }
    }

    /// `hidden[c][i] = activation(matrix[i] · x[c]) * (matrix[i + half] · x[c])` of each group's matrix for its
    /// columns, `half = matrix.rows / 2`, each product with its bias; `hidden` is `(input.columns(), half)`.
    ///
    /// # Safety
    /// `input.x` holds `(input.rows, cols)` numbers, and its places are all different.
    pub(super) unsafe fn gated(
        &mut self,
        groups: Groups<'_>,
        activation: Activation,
        bias: Option<&[f32]>,
        input: Input<'_>,
        hidden: &mut [f32],
    ) {
        let ((outputs, cols), columns) = (groups.shape(), input.columns());
        let stride = outputs / 2;
        assert!(outputs.is_multiple_of(2), "gate and up have as many rows");
        assert!(hidden.len() >= columns * stride, "hidden does not hold [{columns}, {stride}]");
        let biases = outputs * groups.matrices.len();
        assert!(bias.is_none_or(|bias| bias.len() == biases), "one bias an output");
        let bias = |group: usize, row: usize| bias.map(|bias| bias[group * outputs + row..].as_ptr());
        let (tier, out) = (self.tier, SharedPointer::new(hidden));
        for kind in ActKind::ALL {
            let joint = |matrix: &CpuMatrix| matrix.acts() == Some(kind);
            let alike = groups.within(0..columns).filter(|(_, matrix, _)| joint(matrix)).count();
            if alike == 0 {
                continue;
            }
            let most = self.activations.columns_max(kind, &input, cols);
            for first in (0..columns).step_by(most) {
                let window = first..columns.min(first + most);
                // SAFETY: the caller's promise on `input`.
                let prepared = unsafe {
                    self.activations.prepare(kind, &input, window.clone(), cols, self.tier, self.turn)
                };
                let body = |item: &Item, scratch: &mut PanelScratch| {
                    let matrix = &groups.matrices[item.group];
                    // SAFETY: the rows are the matrix's, the columns the window's; the slabs hold what
                    // `Plan` bounds an item by; each item owns its part of `hidden`.
                    unsafe {
                        let columns = prepared.from(item.column_first - first);
                        let target = out.get().add(item.column_first * stride + item.row_first);
                        row_sums(tier, matrix, item.rows(), columns, item.columns, scratch, 0);
                        let columns = if item.columns >= WIDE_COLUMNS_MIN {
                            columns.towards(target, stride)
                        } else {
                            columns
                        };
                        let up_first = stride + item.row_first;
                        let up = up_first..up_first + item.rows;
                        row_sums(tier, matrix, up, columns, item.columns, scratch, 1);
                        let gate = Some(scratch.sums.as_ptr());
                        let up = scratch.sums.as_ptr().add(SLAB);
                        let biases = [bias(item.group, item.row_first), bias(item.group, up_first)];
                        let (columns, rows, out) = (item.columns, item.rows, target);
                        dispatch(tier, GateSums { gate, up, biases, columns, rows, activation, out, stride });
                    }
                };
                self.plan.clear();
                for (group, matrix, columns) in
                    groups.within(window.clone()).filter(|(_, matrix, _)| joint(matrix))
                {
                    let panel = matrix.segments().iter().map(|segment| segment.panel_bytes).max();
                    let panel_bytes = 2 * panel.unwrap_or(0);
                    let (rows, column_bytes, floats) = (0..stride, kind.bytes(cols), kind == ActKind::Float);
                    let work =
                        PlanWork { group, rows, panel_bytes, columns, column_bytes, cols, floats, alike };
                    self.add(work, &body);
                }
                self.plan.run(self.turn, self.scratch, &body);
            }
        }
        // If gate and up need their input prepared differently, gate's outputs wait in `hidden` for up's.
        let apart = |matrix: &CpuMatrix| matrix.acts().is_none();
        if groups.within(0..columns).any(|(_, matrix, _)| apart(matrix)) {
            let rows = |rows| Selection { groups, wanted: &apart, rows };
            // SAFETY: the caller's promise on `input`; each item owns its part of `hidden`, its sums are there.
            unsafe {
                let to = Rows { numbers: out, stride };
                self.rows(rows(0..stride), input, &mut None, to, &|item, scratch, out| {
                    let bias = bias(item.group, item.row_first);
                    let (sums, columns, rows) = (scratch.sums.as_ptr(), item.columns, item.rows);
                    let activation = None;
                    dispatch(tier, StoreSums { sums, columns, rows, bias, activation, out, stride });
                });
                self.rows(rows(stride..outputs), input, &mut None, to, &|item, scratch, out| {
                    let biases = [None, bias(item.group, item.row_first)];
                    let (gate, up, columns, rows) = (None, scratch.sums.as_ptr(), item.columns, item.rows);
                    dispatch(tier, GateSums { gate, up, biases, columns, rows, activation, out, stride });
                });
            }
        }
    }

    /// Computes the sums of the selected rows, item by item. Calls `finish` with each item, whose rows count from the
    /// matrix's first, and its place in `out`, which has a row for each column.
    ///
    /// # Safety
    /// `input.x` holds `(input.rows, cols)` numbers, and its places are all different; `out` is what it says; what
    /// `prepared` holds was prepared of this input and no other since.
    unsafe fn rows(
        &mut self,
        selection: Selection<'_>,
        input: Input<'_>,
        prepared: &mut Option<PreparedColumns>,
        Rows { numbers: out, stride }: Rows<SharedPointer<f32>>,
        finish: &Finish<'_>,
    ) {
        let Selection { groups, wanted, rows: range } = selection;
        let (tier, row_first) = (self.tier, range.start);
        let (cols, columns_all) = (groups.shape().1, input.columns());
        let overlap = |segment: &Segment| {
            range.start.max(segment.row_first)..range.end.min(segment.row_first + segment.rows)
        };
        for kind in ActKind::ALL {
            let parts = |window: Range<usize>| {
                groups.within(window).filter(|(_, matrix, _)| wanted(matrix)).flat_map(
                    move |(group, matrix, columns)| {
                        let segments =
                            matrix.segments().iter().filter(move |segment| segment.kind.acts() == kind);
                        segments.map(move |segment| (group, segment, columns.clone()))
                    },
                )
            };
            let parts = |window| parts(window).filter(|(_, segment, _)| !overlap(segment).is_empty());
            let alike = parts(0..columns_all).count();
            if alike == 0 {
                continue;
            }
            let most = self.activations.columns_max(kind, &input, cols);
            for first in (0..columns_all).step_by(most) {
                let window = first..columns_all.min(first + most);
                // SAFETY: the caller's promise on `input` and `prepared`.
                let columns_here = unsafe { self.prepare(kind, &input, &window, cols, prepared) };
                let body = |item: &Item, scratch: &mut PanelScratch| {
                    let matrix = &groups.matrices[item.group];
                    // SAFETY: the rows are the matrix's, the columns the window's; `Plan` bounds the sums; `out` holds
                    // the item's part.
                    unsafe {
                        let out = out.get().add(item.column_first * stride + item.row_first - row_first);
                        let mut columns = columns_here.from(item.column_first - first);
                        if item.columns >= WIDE_COLUMNS_MIN {
                            columns = columns.towards(out, stride);
                        }
                        row_sums(tier, matrix, item.rows(), columns, item.columns, scratch, 0);
                        finish(item, scratch, out);
                    }
                };
                self.plan.clear();
                for (group, segment, columns) in parts(window) {
                    let (rows, panel_bytes) = (overlap(segment), segment.panel_bytes);
                    let (column_bytes, floats) = (kind.bytes(cols), kind == ActKind::Float);
                    let work =
                        PlanWork { group, rows, panel_bytes, columns, column_bytes, cols, floats, alike };
                    self.add(work, &body);
                }
                self.plan.run(self.turn, self.scratch, &body);
            }
        }
    }

    /// Adds work to the plan, and first runs a plan that is full.
    fn add(&mut self, work: PlanWork, body: &(dyn Fn(&Item, &mut PanelScratch) + Sync)) {
        if self.plan.is_full() {
            self.plan.run(self.turn, self.scratch, body);
        }
        self.plan.add(self.tier, self.turn.threads(), work);
    }

    /// Prepares columns of the input for a kind, unless they already are prepared.
    ///
    /// # Safety
    /// As for `rows`.
    unsafe fn prepare(
        &mut self,
        kind: ActKind,
        input: &Input<'_>,
        window: &Range<usize>,
        cols: usize,
        prepared: &mut Option<PreparedColumns>,
    ) -> Columns {
        if let Some(prepared) = prepared
            && prepared.kind == kind
            && prepared.window == *window
        {
            return prepared.columns;
        }
        // SAFETY: the caller's promise.
        let columns =
            unsafe { self.activations.prepare(kind, input, window.clone(), cols, self.tier, self.turn) };
        *prepared = Some(PreparedColumns { kind, window: window.clone(), columns });
        columns
    }
}

/// Computes sums of some of a matrix's rows into slab `slab` of the scratch, `(panels, columns, 16)`. Panels count
/// from the first of these rows, independent of the panels and segments that they are stored in.
///
/// # Safety
/// `rows` panels by `columns` fit a slab; `columns` columns are there; `tier` is available.
unsafe fn row_sums(
    tier: Tier,
    matrix: &CpuMatrix,
    rows: Range<usize>,
    columns: Columns,
    count: usize,
    scratch: &mut PanelScratch,
    slab: usize,
) {
    let mut done = 0;
    for segment in matrix.segments() {
        while done < rows.len() {
            let row = rows.start + done;
            if row < segment.row_first || row >= segment.row_first + segment.rows {
                break;
            }
            let local = row - segment.row_first;
            let left = (rows.len() - done).min(segment.rows - local);
            let (panel, lane, lane_out) = (local / PANEL_ROWS, local % PANEL_ROWS, done % PANEL_ROWS);
            let slab_at = slab * SLAB + done / PANEL_ROWS * count * PANEL_ROWS;
            if lane == 0 && lane_out == 0 {
                let panels = left.div_ceil(PANEL_ROWS);
                // SAFETY: the caller's promise; these panels are in the segment.
                unsafe {
                    panel_sums(tier, segment, panel..panel + panels, columns, count, scratch, slab_at);
                }
                done += left;
                continue;
            }
            let part = left.min(PANEL_ROWS - lane).min(PANEL_ROWS - lane_out);
            let spare = 2 * SLAB;
            // SAFETY: as above; after the slabs is space for one panel.
            unsafe { panel_sums(tier, segment, panel..panel + 1, columns, count, scratch, spare) };
            for column in 0..count {
                let from = spare + column * PANEL_ROWS + lane;
                scratch.sums.copy_within(from..from + part, slab_at + column * PANEL_ROWS + lane_out);
            }
            done += part;
        }
    }
}
