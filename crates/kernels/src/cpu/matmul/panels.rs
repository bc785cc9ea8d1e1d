//! Sums of whole panels, and the choice of tiles that cover them.

use std::marker::PhantomData;
use std::ops::Range;

use super::{EXPAND_INPUTS, FLOAT_INPUTS, PanelScratch, STORED_RUN, WIDE_COLUMNS_MIN};
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use crate::cpu::amx;
use crate::cpu::gemm::{
    self, Block32, Block256, Columns, Decoded, Expand, JOINT_COLUMNS_MAX, JOINT_COLUMNS_MIN, JOINT_PANELS,
    PanelFormat, Tile, TileArgs, TileProperties,
};
use crate::cpu::lanes::{Kernel, Lanes, dispatch};
use crate::cpu::matrix::{PANEL_ROWS, PanelKind, STREAM_PANELS, Segment};
use crate::cpu::stored;
use crate::cpu::tier::Tier;
use hanzo_engine_ops::DType;

/// Number of float columns up to which tiles prefetch the weights of the next ones. With more columns, reading weights
/// is the smaller part of the time.
const PREFETCH_COLUMNS_MAX: usize = 24;

/// Computes sums of whole panels for `column_count` columns at element `at` of the scratch sums, `(panels, columns,
/// 16)`.
///
/// # Safety
/// The panels are in the segment; the columns are there and prepared for its kind; the sums fit the scratch;
/// `tier` is available.
pub(super) unsafe fn panel_sums(
    tier: Tier,
    segment: &Segment,
    panels: Range<usize>,
    columns: Columns,
    column_count: usize,
    scratch: &mut PanelScratch,
    at: usize,
) {
    debug_assert!(panels.end <= segment.panels());
    let mut done = 0;
    while done < panels.len() {
        let first = panels.start + done;
        let (even, stride) = segment.even_panels(first, panels.end - first);
        let steps = segment.stream_steps(first, panels.end - first);
        let sums = &mut scratch.sums[at + done * column_count * PANEL_ROWS..];
        let job = PanelJob {
            panel: segment.panel(first).as_ptr(),
            panel_stride: stride,
            panels: even,
            steps,
            panel_bytes: segment.panel_bytes,
            after: segment.after(first + steps * even),
            blocks: segment.blocks(),
            scale_shift: segment.kind.scale_shift(),
            finite: segment.finite,
            columns,
            column_count,
            sums: sums[..steps * even * column_count * PANEL_ROWS].as_mut_ptr(),
            expanded: scratch.expanded.as_mut_ptr(),
        };
        // SAFETY: the job's pointers are those of the segment's panels and the caller's columns and sums.
        unsafe { even_sums(tier, segment.kind, &job, &mut scratch.scales) };
        done += steps * even;
    }
}

/// `panel_sums` of panels at equal distances.
///
/// # Safety
/// The job's pointers are good for its panels of `kind`, its columns and its sums; `tier` is available.
unsafe fn even_sums(tier: Tier, kind: PanelKind, job: &PanelJob, scales: &mut [f32]) {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    if tier == Tier::Amx && amx::takes(kind, job.column_count) {
        for step in 0..job.steps {
            // SAFETY: the tier is available, the unit takes the job, whose pointers are the caller's; the scratch holds
            // a job's planes (asserted above).
            unsafe {
                let job = job.step(step);
                amx::panel_sums(&amx::AmxJob {
                    kind,
                    panel: job.panel,
                    panel_stride: job.panel_stride,
                    panels: job.panels,
                    blocks: job.blocks,
                    finite: job.finite,
                    columns: job.columns,
                    column_count: job.column_count,
                    sums: job.sums,
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
            PanelKind::Fp8 { block: 32 } => dispatch(tier, PanelSums::<gemm::Fp8<32>>(job, PhantomData)),
            PanelKind::Fp8 { .. } => dispatch(tier, PanelSums::<gemm::Fp8<128>>(job, PhantomData)),
            PanelKind::Q4 => dispatch(tier, PanelSums::<Block32<gemm::Q4>>(job, PhantomData)),
            PanelKind::Q4Min => dispatch(tier, PanelSums::<Block32<gemm::Q4Min>>(job, PhantomData)),
            PanelKind::Q5 => dispatch(tier, PanelSums::<Block32<gemm::Q5>>(job, PhantomData)),
            PanelKind::Q5Min => dispatch(tier, PanelSums::<Block32<gemm::Q5Min>>(job, PhantomData)),
            PanelKind::Q8 => dispatch(tier, PanelSums::<Block32<gemm::Q8>>(job, PhantomData)),
            PanelKind::Nl4 => dispatch(tier, PanelSums::<Block32<gemm::Nl4>>(job, PhantomData)),
            PanelKind::Mx4 => dispatch(tier, PanelSums::<Block32<gemm::Mx4>>(job, PhantomData)),
            PanelKind::Affine { bits: 2, .. } => {
                dispatch(tier, PanelSums::<Block32<gemm::AffinePanel<2>>>(job, PhantomData))
            }
            PanelKind::Affine { bits: 3, .. } => {
                dispatch(tier, PanelSums::<Block32<gemm::AffinePanel<3>>>(job, PhantomData))
            }
            PanelKind::Affine { bits: 4, .. } => {
                dispatch(tier, PanelSums::<Block32<gemm::AffinePanel<4>>>(job, PhantomData))
            }
            PanelKind::Affine { bits: 5, .. } => {
                dispatch(tier, PanelSums::<Block32<gemm::AffinePanel<5>>>(job, PhantomData))
            }
            PanelKind::Affine { bits: 6, .. } => {
                dispatch(tier, PanelSums::<Block32<gemm::AffinePanel<6>>>(job, PhantomData))
            }
            PanelKind::Affine { .. } => {
                dispatch(tier, PanelSums::<Block32<gemm::AffinePanel<8>>>(job, PhantomData))
            }
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

/// `panel_sums` of blocks as stored: a run of blocks is decoded, then used for all columns.
///
/// # Safety
/// The job's pointers are good for its panels, columns and sums; `tier` is available.
unsafe fn stored_sums(tier: Tier, dtype: DType, job: &PanelJob, scales: &mut [f32]) {
    let kind = PanelKind::Stored(dtype);
    for panel in 0..job.steps * job.panels {
        // SAFETY: the job has that step.
        let (job, panel) = unsafe { (job.step(panel / job.panels), panel % job.panels) };
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
                    scale_shift: 0,
                    next: std::ptr::null(),
                    next_step: 0,
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

/// Kernel for the tiles of one decoded run. The creator guarantees its arguments.
struct DecodedSums(TileArgs, usize);

impl Kernel for DecodedSums {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        // SAFETY: the maker's promise.
        unsafe { across::<Decoded, L, 1, true>(self.0, self.1) };
    }
}

/// Parameters of `panel_sums`.
#[derive(Clone, Copy)]
struct PanelJob {
    panel: *const u8,
    /// Bytes from a panel to the next.
    panel_stride: usize,
    panels: usize,
    /// Number of times that so many panels are computed, each time `panel_bytes` further on.
    steps: usize,
    panel_bytes: usize,
    /// Address of the panel after the last, or null.
    after: *const u8,
    blocks: usize,
    /// Number of blocks that share scales, as a power of two.
    scale_shift: u32,
    #[cfg_attr(
        not(all(target_arch = "x86_64", target_os = "linux")),
        expect(dead_code, reason = "only the matrix unit asks")
    )]
    finite: bool,
    columns: Columns,
    column_count: usize,
    sums: *mut f32,
    expanded: *mut u8,
}

impl PanelJob {
    /// Step `index` of the job, as a job of one step.
    ///
    /// # Safety
    /// The job has that step.
    #[inline(always)]
    unsafe fn step(self, index: usize) -> PanelJob {
        // SAFETY: the job's pointers are good for each of its steps.
        let panel = unsafe { self.panel.add(index * self.panel_bytes) };
        // SAFETY: as above.
        let sums = unsafe { self.sums.add(index * self.panels * self.column_count * PANEL_ROWS) };
        let after = if index + 1 < self.steps { panel.wrapping_add(self.panel_bytes) } else { self.after };
        PanelJob { panel, sums, after, steps: 1, ..self }
    }
}

struct PanelSums<F>(PanelJob, PhantomData<F>);

impl<F: PanelFormat> Kernel for PanelSums<F> {
    type Out = ();
    // How far 8-bit floats are prefetched is another with that product.
    const MULTIPLIES_BYTES: bool = F::GROUPS > 0 || matches!(F::KIND, PanelKind::Fp8 { .. });

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        for step in 0..self.0.steps {
            // SAFETY: the maker of a `PanelJob` vouches for each of its steps.
            unsafe { step_sums::<F, L>(self.0.step(step)) };
        }
    }
}

/// Computes a job of one step.
///
/// # Safety
/// Inside `L::vectorize`; the job's pointers are good for its panels, columns and sums.
#[inline(always)]
unsafe fn step_sums<F: PanelFormat, L: Lanes>(job: PanelJob) {
    let args = TileArgs {
        // SAFETY: these are the first block's places in a panel.
        codes: unsafe { job.panel.add(F::KIND.codes_at(0)) },
        // SAFETY: as above.
        scales: unsafe { job.panel.add(F::KIND.scales_at(job.blocks, 0)) },
        codes_stride: job.panel_stride,
        scales_stride: job.panel_stride,
        scale_shift: job.scale_shift,
        next: std::ptr::null(),
        next_step: 0,
        columns: job.columns,
        block_first: 0,
        block_end: job.blocks,
        sums: job.sums,
        sums_stride: job.column_count * PANEL_ROWS,
    };
    // Sums of a stream's floats soon take too few registers.
    let floats_few = F::GROUPS == 0 && L::COLS < 8;
    let few = job.column_count < if floats_few { 4 } else { WIDE_COLUMNS_MIN };
    let mut panel = 0;
    while panel < job.panels {
        let left = job.panels - panel;
        // SAFETY: the maker of a `PanelJob` vouches for panels, columns and sums; runs of blocks stay inside them.
        unsafe {
            let args = TileArgs {
                codes: args.codes.add(panel * job.panel_stride),
                scales: args.scales.add(panel * job.panel_stride),
                sums: args.sums.add(panel * args.sums_stride),
                ..args
            };
            if few && left >= STREAM_PANELS {
                across::<F, L, STREAM_PANELS, false>(args, job.column_count);
                panel += STREAM_PANELS;
                continue;
            }
            if TileProperties::<F, L, 1>::JOINT && !few && left >= JOINT_PANELS {
                runs::<F, L, JOINT_PANELS>(args, &job, panel);
                panel += JOINT_PANELS;
            } else {
                runs::<F, L, 1>(args, &job, panel);
                panel += 1;
            }
        }
    }
}

/// Computes NP panels for all columns, a run of blocks at a time. The run's codes, unpacked once, stay in the nearest
/// cache for all columns.
///
/// # Safety
/// Inside `L::vectorize`; `args` covers NP panels, `panel` the first of them, and the job's columns.
#[inline(always)]
unsafe fn runs<F: PanelFormat, L: Lanes, const NP: usize>(args: TileArgs, job: &PanelJob, panel: usize) {
    let inputs = match F::GROUPS {
        // A weight takes as much memory as four codes.
        0 if TileProperties::<F, L, NP>::WIDENS => EXPAND_INPUTS / 4,
        0 => FLOAT_INPUTS,
        _ => EXPAND_INPUTS,
    };
    let run = (inputs / (NP * F::KIND.block())).max(1);
    for first in (0..job.blocks).step_by(run) {
        let end = job.blocks.min(first + run);
        let mut args = TileArgs { block_first: first, block_end: end, ..args };
        // SAFETY: the run's blocks are in the panels; NP expanded runs are at most EXPAND_INPUTS inputs.
        unsafe {
            if end == job.blocks {
                for p in panel..panel + NP {
                    job.columns.prefetch_out::<L>(p, 0, job.column_count);
                }
            }
            if TileProperties::<F, L, NP>::TOGETHER {
                // In a stream, panels follow each other: past the last block is the next panel's first.
                args.next = args.codes.wrapping_add(end * F::CODE_STRIDE);
            } else if TileProperties::<F, L, NP>::PREFETCH_FLOATS && job.column_count <= PREFETCH_COLUMNS_MAX
            {
                args.next = if end < job.blocks {
                    args.codes.wrapping_add(end * F::CODE_STRIDE)
                } else if panel + NP < job.panels {
                    args.codes.wrapping_add(NP * job.panel_stride)
                } else {
                    job.after
                };
            }
            if TileProperties::<F, L, NP>::EXPAND {
                args.codes_stride = (end - first) * F::EXPANDED_BYTES;
                for p in 0..NP {
                    let codes = args.codes.add(p * args.scales_stride);
                    let out = job.expanded.add(p * args.codes_stride);
                    L::vectorize(Expand::<F> { codes, first, end, out, format: PhantomData });
                }
                args.codes = job.expanded;
                if TileProperties::<F, L, NP>::WIDENS {
                    floats::<F, L, NP, true>(args, job.column_count);
                } else {
                    joint::<F, L, NP, true>(args, job.column_count);
                }
            } else if F::GROUPS == 0 {
                floats::<F, L, NP, false>(args, job.column_count);
            } else {
                joint::<F, L, NP, false>(args, job.column_count);
            }
        }
    }
}

/// Computes tiles of NP panels of floats over the columns, as wide as the registers allow. Each loaded weight is used
/// for all columns of a tile, each activation for all panels.
///
/// # Safety
/// As for `across`.
#[inline(always)]
unsafe fn floats<F: PanelFormat, L: Lanes, const NP: usize, const EXPANDED: bool>(
    args: TileArgs,
    columns: usize,
) {
    let (mut done, format) = (0, PhantomData);
    let (mut next, bytes) = (args.next, (args.block_end - args.block_first) * F::CODE_STRIDE);
    while done < columns {
        let left = columns - done;
        // SAFETY: `done + the tile's columns <= columns`.
        unsafe {
            let mut args = args.from(done);
            let width = float_columns(left, TileProperties::<F, L, NP>::TWELVE);
            if TileProperties::<F, L, NP>::PREFETCH_FLOATS {
                // Each of two tiles prefetches half of the next weights; a single tile prefetches every other line.
                (args.next, args.next_step) = (next, if width == columns { 128 } else { 64 });
                next = if done == 0 && !next.is_null() {
                    next.wrapping_add(bytes / 2)
                } else {
                    std::ptr::null()
                };
            }
            if TileProperties::<F, L, NP>::TWELVE {
                match width {
                    12 => L::vectorize(Tile::<F, NP, 12, EXPANDED, false> { args, format }),
                    8 => L::vectorize(Tile::<F, NP, 8, EXPANDED, false> { args, format }),
                    4 => L::vectorize(Tile::<F, NP, 4, EXPANDED, false> { args, format }),
                    2 => L::vectorize(Tile::<F, NP, 2, EXPANDED, false> { args, format }),
                    _ => L::vectorize(Tile::<F, NP, 1, EXPANDED, false> { args, format }),
                }
            } else {
                match width {
                    6 => L::vectorize(Tile::<F, NP, 6, EXPANDED, false> { args, format }),
                    5 => L::vectorize(Tile::<F, NP, 5, EXPANDED, false> { args, format }),
                    4 => L::vectorize(Tile::<F, NP, 4, EXPANDED, false> { args, format }),
                    3 => L::vectorize(Tile::<F, NP, 3, EXPANDED, false> { args, format }),
                    2 => L::vectorize(Tile::<F, NP, 2, EXPANDED, false> { args, format }),
                    _ => L::vectorize(Tile::<F, NP, 1, EXPANDED, false> { args, format }),
                }
            }
            done += width;
        }
    }
}

/// Columns of the next tile of floats. If at most six fit, columns are divided into as few tiles as possible, as
/// evenly as possible: a sum waits for its last multiply-add, so a small tile takes as long as a larger one.
fn float_columns(left: usize, twelve: bool) -> usize {
    if twelve {
        [12, 8, 4, 2].into_iter().find(|&width| width <= left).unwrap_or(1)
    } else {
        left.div_ceil(left.div_ceil(6))
    }
}

/// Columns of the next joint tile, so that columns are divided into as few tiles as possible, as evenly as possible. 0
/// for 7 columns and for fewer than 4.
fn joint_columns(left: usize) -> usize {
    if left < JOINT_COLUMNS_MIN || left == 7 { 0 } else { left.div_ceil(left.div_ceil(JOINT_COLUMNS_MAX)) }
}

/// Computes joint tiles of NP panels over the columns, if NP is more than one, and tiles of single panels for the
/// rest.
///
/// # Safety
/// As for `across`.
#[inline(always)]
unsafe fn joint<F: PanelFormat, L: Lanes, const NP: usize, const EXPANDED: bool>(
    args: TileArgs,
    columns: usize,
) {
    let (mut done, format) = (0, PhantomData);
    // SAFETY: `done + the tile's columns <= columns`.
    unsafe {
        if TileProperties::<F, L, NP>::TOGETHER {
            loop {
                let mut args = args.from(done);
                if done > 0 {
                    args.next = std::ptr::null();
                }
                match joint_columns(columns - done) {
                    6 => L::vectorize(Tile::<F, JOINT_PANELS, 6, EXPANDED, true> { args, format }),
                    5 => L::vectorize(Tile::<F, JOINT_PANELS, 5, EXPANDED, true> { args, format }),
                    4 => L::vectorize(Tile::<F, JOINT_PANELS, 4, EXPANDED, true> { args, format }),
                    _ => break,
                }
                done += joint_columns(columns - done);
            }
        }
        for panel in 0..NP {
            let args = args.panel(panel).from(done);
            if TileProperties::<F, L, NP>::WORDS || EXPANDED && TileProperties::<F, L, NP>::PAIRS {
                pairs::<F, L, EXPANDED>(args, columns - done);
            } else {
                across::<F, L, 1, EXPANDED>(args, columns - done);
            }
        }
    }
}

/// Computes tiles of one panel by `PanelFormat::joint` over all columns, in pairs except for an odd last one.
///
/// # Safety
/// Inside `L::vectorize`; `args` covers a panel and `columns` columns.
#[inline(always)]
unsafe fn pairs<F: PanelFormat, L: Lanes, const EXPANDED: bool>(args: TileArgs, columns: usize) {
    let (mut done, format) = (0, PhantomData);
    while done < columns {
        let left = columns - done;
        // SAFETY: `done + the tile's columns <= columns`.
        unsafe {
            let args = args.from(done);
            if left >= 4 {
                L::vectorize(Tile::<F, 1, 4, EXPANDED, true> { args, format });
                done += 4;
            } else if left >= 2 {
                L::vectorize(Tile::<F, 1, 2, EXPANDED, true> { args, format });
                done += 2;
            } else {
                L::vectorize(Tile::<F, 1, 1, EXPANDED, true> { args, format });
                done += 1;
            }
        }
    }
}

/// Computes tiles of NP panels over all columns, the widest first.
///
/// # Safety
/// Inside `L::vectorize`; `args` covers NP panels and `columns` columns.
#[inline(always)]
unsafe fn across<F: PanelFormat, L: Lanes, const NP: usize, const EXPANDED: bool>(
    args: TileArgs,
    columns: usize,
) {
    let (mut done, format) = (0, PhantomData);
    while done < columns {
        let left = columns - done;
        // SAFETY: `done + the tile's columns <= columns`.
        unsafe {
            let args = args.from(done);
            if TileProperties::<F, L, NP>::EIGHT && left >= 8 {
                L::vectorize(Tile::<F, NP, 8, EXPANDED, false> { args, format });
                done += 8;
            } else if left >= 4 {
                L::vectorize(Tile::<F, NP, 4, EXPANDED, false> { args, format });
                done += 4;
            } else if left >= 2 {
                L::vectorize(Tile::<F, NP, 2, EXPANDED, false> { args, format });
                done += 2;
            } else {
                L::vectorize(Tile::<F, NP, 1, EXPANDED, false> { args, format });
                done += 1;
            }
        }
    }
}
