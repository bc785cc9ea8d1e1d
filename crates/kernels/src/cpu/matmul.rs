//! Matrix products as loops of the pool: what is one item, where its sums go, and what is done with them.

mod epilogue;

use std::marker::PhantomData;
use std::ops::Range;

use self::epilogue::{GateSums, StoreSums};
use super::activations::Activations;
use super::aligned::{Aligned, Shared};
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use super::amx;
use super::gemm::{
    self, Block32, Block256, Columns, Decoded, Expand, Format, JOINT_COLUMNS, JOINT_PANELS, Tile, TileArgs,
};
use super::lanes::{Kernel, Lanes, dispatch};
use super::matrix::{ActKind, CpuMatrix, PANEL_ROWS, PanelKind, STREAM_PANELS, Segment};
use super::pool::Turn;
use super::stored;
use super::tier::Tier;
use crate::{Activation, DType, KernelError};

/// Columns from which a packed panel is expanded to bytes once, rather than unpacked again for each tile.
const EXPAND_COLUMNS_MIN: usize = 16;
/// Inputs of a panel that are expanded at a time: 16 KiB, a third of a first-level cache.
const EXPAND_INPUTS: usize = 1024;
/// Columns an item covers at most, so that its sums fit the thread's scratch.
const ITEM_COLUMNS_MAX: usize = 512;
/// Bytes of activations an item covers at most, so that they stay in the second-level cache.
const ITEM_ACTIVATION_BYTES: usize = 768 << 10;
/// About how long a thread works before it asks for more.
const CHUNK_NS: usize = 60_000;
/// Columns that count as few: the weights are what takes the time.
const STREAM_COLUMNS_MAX: usize = 8;
/// Panels of an item at most when there are many columns.
const WIDE_PANELS: usize = 2;
/// Sums of an item: `(panels, columns, 16)`.
const SLAB: usize = WIDE_PANELS * ITEM_COLUMNS_MAX * PANEL_ROWS;
/// Sums of a thread: slabs for gate and for up, and a panel of which only part is wanted.
const SUMS: usize = 2 * SLAB + ITEM_COLUMNS_MAX * PANEL_ROWS;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
const _: () = assert!(amx::PLANE_BYTES <= EXPAND_INPUTS * PANEL_ROWS);
/// Blocks of 256 that are decoded together where panels hold them as stored.
const STORED_RUN: usize = EXPAND_INPUTS / 256;
const _: () = assert!(STREAM_PANELS * STREAM_COLUMNS_MAX * PANEL_ROWS <= SLAB);

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
                    if item.columns > STREAM_COLUMNS_MAX { columns.towards(target, stride) } else { columns };
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
                        if item.columns > STREAM_COLUMNS_MAX {
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

/// How the outputs of a product are cut into items.
#[derive(Clone, Copy, Debug)]
struct Plan {
    rows: usize,
    columns: usize,
    item_rows: usize,
    item_columns: usize,
    grain: usize,
}

/// Rows of weights by columns of activations that one thread computes at a time.
struct Item {
    row_first: usize,
    rows: usize,
    column_first: usize,
    columns: usize,
}

impl Plan {
    /// `rows` outputs, panels of `panel_bytes`, by `columns` columns of `column_bytes`, each of `cols` inputs.
    fn new(
        tier: Tier,
        threads: usize,
        (rows, panel_bytes): (usize, usize),
        (columns, column_bytes): (usize, usize),
        cols: usize,
    ) -> Plan {
        // 1000 multiply-adds take 6 ns by vectors, 2 by matrices; 10 bytes take 1 ns to stream.
        let (mut panels, mut item_columns) = (STREAM_PANELS, columns);
        let ns_per_1000 = if tier == Tier::Amx { 2 } else { 6 };
        if columns > STREAM_COLUMNS_MAX {
            item_columns =
                (ITEM_ACTIVATION_BYTES / column_bytes.max(1)).clamp(64, ITEM_COLUMNS_MAX) / 32 * 32;
            let items = rows.div_ceil(WIDE_PANELS * PANEL_ROWS) * columns.div_ceil(item_columns);
            panels = if items >= 8 * threads { WIDE_PANELS } else { 1 };
        }
        let products = panels * PANEL_ROWS * cols * columns.min(item_columns);
        let item_ns = panels * panel_bytes / 10 + products / 1000 * ns_per_1000;
        let grain = CHUNK_NS / (item_ns + 1) + 1;
        Plan { rows, columns, item_rows: panels * PANEL_ROWS, item_columns: item_columns.max(1), grain }
    }

    /// Items that share columns follow each other, so that their activations are still in the cache.
    fn item(&self, index: usize) -> Item {
        let down = self.rows.div_ceil(self.item_rows);
        let (row_first, column_first) = (index % down * self.item_rows, index / down * self.item_columns);
        Item {
            row_first,
            rows: self.item_rows.min(self.rows - row_first),
            column_first,
            columns: self.item_columns.min(self.columns - column_first),
        }
    }

    fn run(
        &self,
        turn: &mut Turn,
        scratch: &mut [PanelScratch],
        body: &(dyn Fn(Item, &mut PanelScratch) + Sync),
    ) {
        assert!(scratch.len() >= turn.threads(), "scratch for every thread");
        let items = self.rows.div_ceil(self.item_rows) * self.columns.div_ceil(self.item_columns);
        let scratch = Shared::new(scratch);
        turn.run(items, self.grain, &|worker, range| {
            // SAFETY: the pool gives each thread a number of its own below the length asserted above.
            let scratch = unsafe { &mut *scratch.get().add(worker) };
            for index in range {
                body(self.item(index), scratch);
            }
        });
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

/// Sums of `count` whole panels for `columns` columns at element `at` of the scratch sums, `(count, columns, 16)`.
///
/// # Safety
/// The panels are in the segment; the columns are there and prepared for its kind; the sums fit the scratch;
/// `tier` is available.
unsafe fn panel_sums(
    tier: Tier,
    segment: &Segment,
    panel_first: usize,
    count: usize,
    columns: Columns,
    column_count: usize,
    scratch: &mut PanelScratch,
    at: usize,
) {
    debug_assert!(panel_first + count <= segment.panels());
    let mut done = 0;
    while done < count {
        let (even, stride) = segment.even_panels(panel_first + done, count - done);
        let sums = &mut scratch.sums[at + done * column_count * PANEL_ROWS..];
        let job = PanelJob {
            panel: segment.panel(panel_first + done).as_ptr(),
            panel_stride: stride,
            panels: even,
            blocks: segment.blocks(),
            columns,
            column_count,
            sums: sums[..even * column_count * PANEL_ROWS].as_mut_ptr(),
            expanded: scratch.expanded.as_mut_ptr(),
        };
        // SAFETY: the job's pointers are those of the segment's panels and the caller's columns and sums.
        unsafe { even_sums(tier, segment.kind, &job, &mut scratch.scales) };
        done += even;
    }
}

/// `panel_sums` of panels at equal distances.
///
/// # Safety
/// The job's pointers are good for its panels of `kind`, its columns and its sums; `tier` is available.
unsafe fn even_sums(tier: Tier, kind: PanelKind, job: &PanelJob, scales: &mut [f32]) {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    if tier == Tier::Amx && job.column_count >= amx::COLUMNS_MIN && amx::supports(kind) {
        for first in (0..job.panels).step_by(amx::PANELS_MAX) {
            // SAFETY: the tier is available, there is a kernel, and the job's pointers are the caller's; the scratch
            // holds a job's planes (asserted above).
            unsafe {
                amx::panel_sums(&amx::Job {
                    kind,
                    panel: job.panel.add(first * job.panel_stride),
                    panel_stride: job.panel_stride,
                    panels: amx::PANELS_MAX.min(job.panels - first),
                    blocks: job.blocks,
                    columns: job.columns,
                    column_count: job.column_count,
                    sums: job.sums.add(first * job.column_count * PANEL_ROWS),
                    planes: job.expanded,
                });
            }
        }
        return;
    }
    let job = *job;
    // SAFETY: the caller's promise.
    unsafe {
        match kind {
            PanelKind::F32 => dispatch(tier, PanelSums::<gemm::F32>(job, PhantomData)),
            PanelKind::F16 => dispatch(tier, PanelSums::<gemm::F16>(job, PhantomData)),
            PanelKind::Bf16 => dispatch(tier, PanelSums::<gemm::Bf16>(job, PhantomData)),
            PanelKind::Q4 => dispatch(tier, PanelSums::<Block32<gemm::Q4>>(job, PhantomData)),
            PanelKind::Q4Min => dispatch(tier, PanelSums::<Block32<gemm::Q4Min>>(job, PhantomData)),
            PanelKind::Q5 => dispatch(tier, PanelSums::<Block32<gemm::Q5>>(job, PhantomData)),
            PanelKind::Q5Min => dispatch(tier, PanelSums::<Block32<gemm::Q5Min>>(job, PhantomData)),
            PanelKind::Q8 => dispatch(tier, PanelSums::<Block32<gemm::Q8>>(job, PhantomData)),
            PanelKind::Nl4 => dispatch(tier, PanelSums::<Block32<gemm::Nl4>>(job, PhantomData)),
            PanelKind::Mx4 => dispatch(tier, PanelSums::<Block32<gemm::Mx4>>(job, PhantomData)),
            PanelKind::Q2K => dispatch(tier, PanelSums::<Block256<gemm::Q2K>>(job, PhantomData)),
            PanelKind::Q3K => dispatch(tier, PanelSums::<Block256<gemm::Q3K>>(job, PhantomData)),
            PanelKind::Q4K => dispatch(tier, PanelSums::<Block256<gemm::Q4K>>(job, PhantomData)),
            PanelKind::Q5K => dispatch(tier, PanelSums::<Block256<gemm::Q5K>>(job, PhantomData)),
            PanelKind::Q6K => dispatch(tier, PanelSums::<Block256<gemm::Q6K>>(job, PhantomData)),
            PanelKind::Nl4K => dispatch(tier, PanelSums::<Block256<gemm::Nl4K>>(job, PhantomData)),
            PanelKind::Stored(dtype) => stored_sums(tier, dtype, &job, scales),
        }
    }
}

/// `panel_sums` of blocks as stored: some are decoded, then used for all columns.
///
/// # Safety
/// The job's pointers are good for its panels, columns and sums; `tier` is available.
unsafe fn stored_sums(tier: Tier, dtype: DType, job: &PanelJob, scales: &mut [f32]) {
    let kind = PanelKind::Stored(dtype);
    for panel in 0..job.panels {
        for first in (0..job.blocks).step_by(STORED_RUN) {
            let end = job.blocks.min(first + STORED_RUN);
            // SAFETY: the blocks are in the panel, whose bytes nothing writes; the scratch holds a run of codes.
            unsafe {
                let blocks = std::slice::from_raw_parts(
                    job.panel.add(panel * job.panel_stride + kind.codes_at(first)),
                    kind.codes_at(end) - kind.codes_at(first),
                );
                let codes = std::slice::from_raw_parts_mut(job.expanded, (end - first) * 256 * PANEL_ROWS);
                stored::decode(dtype, blocks, codes, scales);
                let args = TileArgs {
                    codes: job.expanded,
                    scales: scales.as_ptr().cast(),
                    codes_stride: 0,
                    scales_stride: 0,
                    columns: job.columns,
                    block_first: first,
                    block_end: end,
                    sums: job.sums.add(panel * job.column_count * PANEL_ROWS),
                    sums_stride: job.column_count * PANEL_ROWS,
                };
                dispatch(tier, DecodedSums(args, job.column_count));
            }
        }
    }
}

/// Tiles of one decoded run. The maker vouches for its arguments.
struct DecodedSums(TileArgs, usize);

impl Kernel for DecodedSums {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        // SAFETY: the maker's promise.
        unsafe { across::<Decoded, L, 1, true>(self.0, self.1) };
    }
}

/// What `panel_sums` computes.
#[derive(Clone, Copy)]
struct PanelJob {
    panel: *const u8,
    /// Bytes from a panel to the next.
    panel_stride: usize,
    panels: usize,
    blocks: usize,
    columns: Columns,
    column_count: usize,
    sums: *mut f32,
    expanded: *mut u8,
}

struct PanelSums<F>(PanelJob, PhantomData<F>);

impl<F: Format> Kernel for PanelSums<F> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let job = self.0;
        let args = TileArgs {
            // SAFETY: these are the first block's places in a panel.
            codes: unsafe { job.panel.add(F::KIND.codes_at(0)) },
            // SAFETY: as above.
            scales: unsafe { job.panel.add(F::KIND.scales_at(job.blocks, 0)) },
            codes_stride: job.panel_stride,
            scales_stride: job.panel_stride,
            columns: job.columns,
            block_first: 0,
            block_end: job.blocks,
            sums: job.sums,
            sums_stride: job.column_count * PANEL_ROWS,
        };
        let many = job.column_count >= EXPAND_COLUMNS_MIN;
        let together = match job.column_count {
            0..STREAM_COLUMNS_MAX => STREAM_PANELS,
            _ if many && F::is_joint::<L>() => JOINT_PANELS,
            _ => 1,
        };
        let mut panel = 0;
        while panel < job.panels {
            let count = if panel + together <= job.panels { together } else { 1 };
            // SAFETY: the maker of a `PanelJob` vouches for panels, columns and sums; runs of blocks stay inside them.
            unsafe {
                let args = TileArgs {
                    codes: args.codes.add(panel * job.panel_stride),
                    scales: args.scales.add(panel * job.panel_stride),
                    sums: args.sums.add(panel * args.sums_stride),
                    ..args
                };
                match count {
                    STREAM_PANELS => across::<F, L, STREAM_PANELS, false>(args, job.column_count),
                    JOINT_PANELS => runs::<F, L, JOINT_PANELS>(args, &job, panel),
                    _ if many => runs::<F, L, 1>(args, &job, panel),
                    _ => across::<F, L, 1, false>(args, job.column_count),
                }
            }
            panel += count;
        }
    }
}

/// NP panels by many columns, a run of blocks at a time: its codes, unpacked once, stay in the nearest cache for all
/// columns.
///
/// # Safety
/// Inside `L::vectorize`; `args` covers NP panels, `panel` the first of them, and the job's columns.
#[inline(always)]
unsafe fn runs<F: Format, L: Lanes, const NP: usize>(args: TileArgs, job: &PanelJob, panel: usize) {
    let run = (EXPAND_INPUTS / (NP * F::KIND.block())).max(1);
    for first in (0..job.blocks).step_by(run) {
        let end = job.blocks.min(first + run);
        let mut args = TileArgs { block_first: first, block_end: end, ..args };
        // SAFETY: the run's blocks are in the panels; NP expanded runs are at most EXPAND_INPUTS inputs.
        unsafe {
            if end == job.blocks {
                for p in panel..panel + NP {
                    job.columns.ask::<L>(p, 0, job.column_count);
                }
            }
            if F::PACKED_GROUPS == 0 {
                across::<F, L, NP, false>(args, job.column_count);
                continue;
            }
            args.codes_stride = (end - first) * F::PACKED_GROUPS * 512;
            for p in 0..NP {
                let codes = args.codes.add(p * args.scales_stride);
                let out = job.expanded.add(p * args.codes_stride);
                L::vectorize(Expand::<F> { codes, first, end, out, format: PhantomData });
            }
            args.codes = job.expanded;
            across::<F, L, NP, true>(args, job.column_count);
        }
    }
}

/// Tiles of NP panels over all columns, the widest first.
///
/// # Safety
/// Inside `L::vectorize`; `args` covers NP panels and `columns` columns.
#[inline(always)]
unsafe fn across<F: Format, L: Lanes, const NP: usize, const EXPANDED: bool>(args: TileArgs, columns: usize) {
    let mut column = 0;
    while column < columns {
        let left = columns - column;
        // SAFETY: `column + the tile's columns <= columns`.
        unsafe {
            let args = TileArgs {
                columns: args.columns.from(column),
                sums: args.sums.add(column * PANEL_ROWS),
                ..args
            };
            let format = PhantomData;
            if NP == JOINT_PANELS && left >= JOINT_COLUMNS {
                L::vectorize(Tile::<F, NP, JOINT_COLUMNS, EXPANDED> { args, format });
                column += JOINT_COLUMNS;
            } else if L::COLS >= 8 && NP == 1 && left >= 8 {
                L::vectorize(Tile::<F, NP, 8, EXPANDED> { args, format });
                column += 8;
            } else if left >= 4 {
                L::vectorize(Tile::<F, NP, 4, EXPANDED> { args, format });
                column += 4;
            } else if left >= 2 {
                L::vectorize(Tile::<F, NP, 2, EXPANDED> { args, format });
                column += 2;
            } else {
                L::vectorize(Tile::<F, NP, 1, EXPANDED> { args, format });
                column += 1;
            }
        }
    }
}
