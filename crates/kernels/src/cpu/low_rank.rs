//! Low-rank adapters: for rows with an adapter, changes of outputs and then `out += scale · B · (A · x)`.
//!
//! Up to four rows of one adapter are computed together, so that a matrix is read once for them. A row's bits depend
//! on the row alone: every product with A is two chains over the inputs, and every product with B is a chain over the
//! rank, whatever other rows are in the tile. A is stored row by row, padded to whole vectors; B is stored in panels
//! of 16 outputs.

use std::borrow::Borrow;
use std::ops::Range;

use half::{bf16, f16};

use super::adapted_rows::{TILE_ROWS, Tile};
use super::aligned::{AlignedArray, SharedPointer};
use super::cores::Cores;
use super::lanes::{Kernel, Lanes, dispatch};
use super::matmul::{get, put};
use super::output_change::{ChangedRow, FactoredOutputs};
use super::rows::Rows;
use hanzo_engine_ops::quant::{can_dequantize, dequantize_row};
use hanzo_engine_ops::{
    DType, KernelError, LowRankPair, LowRankShape, MatrixShape, MatrixSource, OutputDelta,
};

const LANES: usize = 16;
/// Ranks that one thread takes at a time; likewise panels of outputs.
const RANKS_A_TIME: usize = 8;
const PANELS_A_TIME: usize = 16;

/// Change by one adapter to one matrix.
#[derive(Debug)]
pub struct CpuLowRank {
    changes: Vec<FactoredOutputs>,
    parts: Vec<RankPart>,
    cols: usize,
    ranks: usize, // of all parts that have A
    panels: usize,
}

#[derive(Debug)]
struct RankPart {
    ranks: Range<usize>, // of all parts' ranks; empty without A
    inner: usize,        // length of B's inputs: the rank, or the inputs
    panels: Range<usize>,
    first: usize, // first output
    outputs: usize,
    scale: f32,
    a: Option<Floats>, // (rank, cols padded to 16)
    b: Floats,         // (panels, inner, 16)
}

/// Numbers in their stored type.
#[derive(Debug)]
enum Floats {
    F32(AlignedArray<f32>),
    F16(AlignedArray<u16>),
    Bf16(AlignedArray<u16>),
}

/// Pointer to the numbers.
#[derive(Clone, Copy)]
enum NumberPointer {
    F32(*const f32),
    F16(*const u16),
    Bf16(*const u16),
}

/// Type in which numbers of a type are kept.
fn kept(dtype: DType) -> DType {
    if matches!(dtype, DType::F16 | DType::BF16) { dtype } else { DType::F32 }
}

impl Floats {
    fn zeroed(dtype: DType, len: usize) -> Result<Self, KernelError> {
        const WHAT: &str = "an adapter";
        Ok(match kept(dtype) {
            DType::F16 => Floats::F16(AlignedArray::zeroed(len, WHAT)?),
            DType::BF16 => Floats::Bf16(AlignedArray::zeroed(len, WHAT)?),
            _ => Floats::F32(AlignedArray::zeroed(len, WHAT)?),
        })
    }

    /// Exact: the number was of this type or is kept as f32.
    fn set(&mut self, at: usize, value: f32) {
        match self {
            Floats::F32(numbers) => numbers[at] = value,
            Floats::F16(numbers) => numbers[at] = f16::from_f32(value).to_bits(),
            Floats::Bf16(numbers) => numbers[at] = bf16::from_f32(value).to_bits(),
        }
    }

    fn at(&self) -> NumberPointer {
        match self {
            Floats::F32(numbers) => NumberPointer::F32(numbers.as_ptr()),
            Floats::F16(numbers) => NumberPointer::F16(numbers.as_ptr()),
            Floats::Bf16(numbers) => NumberPointer::Bf16(numbers.as_ptr()),
        }
    }
}

/// Refuses pairs of matrices whose shapes do not fit.
pub(super) fn check(pairs: &[LowRankPair<'_>], device: &str) -> Result<(), KernelError> {
    let bad = |source: &MatrixSource<'_>, reason: String| {
        Err(KernelError::BadShape { tensor: source.name.to_owned(), reason })
    };
    for pair in pairs {
        for source in pair.a.iter().chain([&pair.b]) {
            let MatrixShape { rows, cols, dtype } = source.shape;
            let tensor = source.name.to_owned();
            if !can_dequantize(dtype) {
                return Err(KernelError::UnsupportedType { tensor, dtype, device: device.to_owned() });
            }
            let Some(expected) = dtype.bytes_of(cols).and_then(|row| row.checked_mul(rows)) else {
                return bad(source, format!("a row of {cols} is not whole blocks of {dtype}"));
            };
            if source.bytes.len() != expected {
                let found = source.bytes.len();
                return Err(KernelError::WrongSize { tensor, rows, cols, dtype, expected, found });
            }
        }
        if let Some(a) = pair.a.filter(|a| a.shape.rows != pair.b.shape.cols) {
            let reason = format!("{} columns beside a rank of {}", pair.b.shape.cols, a.shape.rows);
            return bad(&pair.b, reason);
        }
        let (inputs, first) = (pair.shape().inputs(), pairs[0].shape().inputs());
        if inputs != first {
            let reason = format!("{inputs} columns beside {first}");
            return bad(pair.a.as_ref().unwrap_or(&pair.b), reason);
        }
    }
    Ok(())
}

impl CpuLowRank {
    /// Bytes that [`CpuLowRank::new`] allocates.
    pub(super) fn bytes(pairs: &[LowRankShape], changes: &[usize]) -> usize {
        let size = |dtype| kept(dtype).block_bytes();
        let of_pair = |LowRankShape { a, b }: &LowRankShape| {
            let of_a = a.map_or(0, |a| {
                let numbers = a.rows.saturating_mul(a.cols.next_multiple_of(LANES));
                numbers.saturating_mul(size(a.dtype))
            });
            let of_b = b.rows.next_multiple_of(LANES).saturating_mul(b.cols);
            of_a.saturating_add(of_b.saturating_mul(size(b.dtype)))
        };
        let of_changes = changes.iter().map(|&outputs| FactoredOutputs::bytes(outputs)).sum();
        pairs.iter().map(of_pair).fold(of_changes, usize::saturating_add)
    }

    /// Packs an adapter's changes and pairs.
    pub(super) fn new(
        &OutputDelta { changes, pairs }: &OutputDelta<'_>,
        device: &str,
    ) -> Result<Self, KernelError> {
        check(pairs, device)?;
        let (mut parts, mut ranks, mut panels) = (Vec::with_capacity(pairs.len()), 0, 0);
        for pair in pairs {
            let (rank, inner) = (pair.a.map_or(0, |a| a.shape.rows), pair.b.shape.cols);
            let outputs = pair.b.shape.rows;
            let a = pair.a.as_ref().map(rows_of_a).transpose()?;
            let count = outputs.div_ceil(LANES);
            let mut b = Floats::zeroed(pair.b.shape.dtype, count * inner * LANES)?;
            each_row(&pair.b, |row, numbers| {
                let at = row / LANES * inner * LANES + row % LANES;
                numbers.iter().enumerate().for_each(|(j, &number)| b.set(at + j * LANES, number));
            });
            parts.push(RankPart {
                ranks: ranks..ranks + rank,
                inner,
                panels: panels..panels + count,
                first: pair.first,
                outputs,
                scale: pair.scale,
                a,
                b,
            });
            (ranks, panels) = (ranks + rank, panels + count);
        }
        let cols = pairs.first().map_or(0, |pair| pair.shape().inputs());
        let changes = changes.iter().map(FactoredOutputs::new).collect();
        Ok(Self { changes, parts, cols, ranks, panels })
    }

    fn outputs_end(&self) -> usize {
        let parts = self.parts.iter().map(|part| part.first + part.outputs);
        parts.chain(self.changes.iter().map(FactoredOutputs::end)).max().unwrap_or(0)
    }

    fn reads_inputs(&self) -> bool {
        self.changes.iter().any(|change| change.reads_input)
    }
}

/// Rows of A, each padded to whole vectors.
fn rows_of_a(a: &MatrixSource<'_>) -> Result<Floats, KernelError> {
    let stride = a.shape.cols.next_multiple_of(LANES);
    let mut rows = Floats::zeroed(a.shape.dtype, a.shape.rows * stride)?;
    each_row(a, |row, numbers| {
        numbers.iter().enumerate().for_each(|(col, &number)| rows.set(row * stride + col, number));
    });
    Ok(rows)
}

/// Calls `take` with each row of a matrix.
fn each_row(source: &MatrixSource<'_>, mut take: impl FnMut(usize, &[f32])) {
    let mut numbers = vec![0.0; source.shape.cols];
    let row_bytes = source.bytes.len() / source.shape.rows.max(1);
    for (row, bytes) in source.bytes.chunks_exact(row_bytes.max(1)).enumerate() {
        dequantize_row(source.shape.dtype, bytes, &mut numbers);
        take(row, &numbers);
    }
}

/// Element types that can be read as vectors.
trait Element: Copy {
    /// # Safety
    /// Inside `L::vectorize`; sixteen of them may be read.
    unsafe fn load<L: Lanes>(from: *const Self) -> L::F;
}

/// IEEE halves.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Half(#[allow(dead_code)] u16);

/// bfloat16.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Brain(#[allow(dead_code)] u16);

impl Element for f32 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(from: *const Self) -> L::F {
        // SAFETY: the caller's promise.
        unsafe { L::load(from) }
    }
}

impl Element for Half {
    #[inline(always)]
    unsafe fn load<L: Lanes>(from: *const Self) -> L::F {
        // SAFETY: the caller's promise.
        unsafe { L::load_f16(from.cast()) }
    }
}

impl Element for Brain {
    #[inline(always)]
    unsafe fn load<L: Lanes>(from: *const Self) -> L::F {
        // SAFETY: the caller's promise.
        unsafe { L::load_bf16(from.cast()) }
    }
}

/// Kernel for `low = A · x` of the given ranks. The creator guarantees the pointers: rows of `stride` for the ranks at
/// `a`, the tile's rows of `cols` at `x`, and of the ranks at `low`.
struct Narrow<'a> {
    tile: &'a Tile,
    a: NumberPointer,
    cols: usize,
    ranks: Range<usize>,
    x: *const f32,
    low: *mut f32, // at the part's first rank
    low_stride: usize,
}

impl Kernel for Narrow<'_> {
    type Out = ();
    const MULTIPLIES_BYTES: bool = false;

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        // SAFETY: the maker's promise.
        unsafe {
            match self.a {
                NumberPointer::F32(a) => self.of::<L, f32>(a),
                NumberPointer::F16(a) => self.of::<L, Half>(a.cast()),
                NumberPointer::Bf16(a) => self.of::<L, Brain>(a.cast()),
            }
        }
    }
}

impl Narrow<'_> {
    /// # Safety
    /// As for `run`.
    #[inline(always)]
    unsafe fn of<L: Lanes, E: Element>(&self, a: *const E) {
        // SAFETY: the caller's promise; a tile has one to four rows.
        unsafe {
            match self.tile.count {
                1 => self.rows::<L, E, 1>(a),
                2 => self.rows::<L, E, 2>(a),
                3 => self.rows::<L, E, 3>(a),
                _ => self.rows::<L, E, 4>(a),
            }
        }
    }

    /// # Safety
    /// As for `run`; the tile has N rows.
    #[inline(always)]
    unsafe fn rows<L: Lanes, E: Element, const N: usize>(&self, a: *const E) {
        let (stride, whole) = (self.cols.next_multiple_of(LANES), self.cols / LANES * LANES);
        // SAFETY: every vector of `x` is before `cols`, or cut there; A is filled up to whole vectors.
        unsafe {
            let x: [*const f32; N] =
                std::array::from_fn(|i| self.x.add(self.tile.rows[i] as usize * self.cols));
            for rank in self.ranks.clone() {
                let a = a.add(rank * stride);
                let (mut even, mut odd) = ([L::splat(0.0); N], [L::splat(0.0); N]);
                let mut at = 0;
                while at + 2 * LANES <= whole {
                    let (w, v) = (E::load::<L>(a.add(at)), E::load::<L>(a.add(at + LANES)));
                    for i in 0..N {
                        even[i] = L::fma(w, L::load(x[i].add(at)), even[i]);
                        odd[i] = L::fma(v, L::load(x[i].add(at + LANES)), odd[i]);
                    }
                    at += 2 * LANES;
                }
                if at < whole {
                    let w = E::load::<L>(a.add(at));
                    for i in 0..N {
                        even[i] = L::fma(w, L::load(x[i].add(at)), even[i]);
                    }
                }
                if whole < self.cols {
                    let w = E::load::<L>(a.add(whole));
                    for i in 0..N {
                        odd[i] = L::fma(w, get::<L>(x[i].add(whole), self.cols - whole), odd[i]);
                    }
                }
                for i in 0..N {
                    let row = self.tile.rows[i] as usize;
                    self.low.add(row * self.low_stride + rank).write(L::sum(L::add(even[i], odd[i])));
                }
            }
        }
    }
}

/// Kernel for `out += scale · B · low` of the given panels; the creator guarantees the pointers as for [`Narrow`].
struct Widen<'a> {
    tile: &'a Tile,
    part: &'a RankPart,
    panels: Range<usize>, // of the part
    low: *const f32,      // at the part's first rank, or the inputs
    low_stride: usize,
    out: *mut f32, // at the part's first output
    out_stride: usize,
}

impl Kernel for Widen<'_> {
    type Out = ();
    const MULTIPLIES_BYTES: bool = false;

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        // SAFETY: the maker's promise.
        unsafe {
            match self.part.b.at() {
                NumberPointer::F32(b) => self.of::<L, f32>(b),
                NumberPointer::F16(b) => self.of::<L, Half>(b.cast()),
                NumberPointer::Bf16(b) => self.of::<L, Brain>(b.cast()),
            }
        }
    }
}

impl Widen<'_> {
    /// # Safety
    /// As for `run`.
    #[inline(always)]
    unsafe fn of<L: Lanes, E: Element>(&self, b: *const E) {
        let mut panel = self.panels.start;
        // A chain waits for its own results, so several run side by side.
        // SAFETY: the caller's promise; a tile has one to four rows, and the panels are the part's.
        unsafe {
            while panel < self.panels.end {
                let many = panel + 4 <= self.panels.end;
                match (self.tile.count, many) {
                    (1, true) => self.panels::<L, E, 1, 4>(b, panel),
                    (1, false) => self.panels::<L, E, 1, 1>(b, panel),
                    (2, true) => self.panels::<L, E, 2, 4>(b, panel),
                    (2, false) => self.panels::<L, E, 2, 1>(b, panel),
                    (3, _) => self.panels::<L, E, 3, 1>(b, panel),
                    _ => self.panels::<L, E, 4, 1>(b, panel),
                }
                panel += if many && self.tile.count <= 2 { 4 } else { 1 };
            }
        }
    }

    /// # Safety
    /// As for `run`; the tile has N rows, and P panels from `panel` on are the part's.
    #[inline(always)]
    unsafe fn panels<L: Lanes, E: Element, const N: usize, const P: usize>(&self, b: *const E, panel: usize) {
        let rank = self.part.inner;
        // SAFETY: the caller's promise; what is written is cut at the part's last output.
        unsafe {
            let low: [*const f32; N] =
                std::array::from_fn(|i| self.low.add(self.tile.rows[i] as usize * self.low_stride));
            let mut sums = [[L::splat(0.0); P]; N];
            for j in 0..rank {
                let t: [L::F; N] = std::array::from_fn(|i| L::splat(low[i].add(j).read()));
                for p in 0..P {
                    let w = E::load::<L>(b.add(((panel + p) * rank + j) * LANES));
                    for (sums, &t) in sums.iter_mut().zip(&t) {
                        sums[p] = L::fma(w, t, sums[p]);
                    }
                }
            }
            let scale = L::splat(self.part.scale);
            for (&row, sums) in self.tile.outs.iter().zip(&sums) {
                let out = self.out.add(row as usize * self.out_stride);
                for (p, &sum) in sums.iter().enumerate() {
                    let at = (panel + p) * LANES;
                    let count = LANES.min(self.part.outputs - at);
                    let sum = L::fma(scale, sum, get::<L>(out.add(at), count));
                    put::<L>(out.add(at), sum, count);
                }
            }
        }
    }
}

/// Largest sizes among the adapters of some tiles.
#[derive(Default)]
struct TileExtent {
    ranks: usize,
    panels: usize,
    inner: usize,
    changes: usize,
}

impl TileExtent {
    /// Includes a tile, and asserts that the buffers hold its rows.
    fn include(
        &mut self,
        tile: &Tile,
        delta: &CpuLowRank,
        x: Rows<&[f32]>,
        low: Rows<&[f32]>,
        out: Rows<&[f32]>,
    ) {
        let (cols, low_stride, out_stride) = (x.stride, low.stride, out.stride);
        assert!(delta.parts.is_empty() || delta.cols == cols, "an adapter of other inputs");
        assert!(!delta.reads_inputs() || cols == out_stride, "changes of inputs that are no outputs");
        assert!(delta.ranks <= low_stride, "scratch of {low_stride} columns for a rank of {}", delta.ranks);
        assert!(delta.outputs_end() <= out_stride, "an adapter of more outputs than the matrix has");
        let end = |rows: &[u32]| rows[..tile.count].iter().max().map_or(0, |&row| row as usize + 1);
        let (rows_end, outs_end) = (end(&tile.rows), end(&tile.outs));
        assert!(x.numbers.len() >= rows_end * cols, "rows in the buffers");
        assert!(low.numbers.len() >= rows_end * low_stride, "rows in the buffers");
        assert!(out.numbers.len() >= outs_end * out_stride, "rows in the buffers");
        self.ranks = self.ranks.max(delta.ranks);
        self.panels = self.panels.max(delta.panels);
        self.changes = self.changes.max(delta.changes.len());
        self.inner = self.inner.max(delta.parts.iter().map(|part| part.inner).max().unwrap_or(0));
    }
}

/// Applies the element-wise changes of outputs.
fn change_rows<'a>(
    Cores { tier, turn }: Cores<'_>,
    tiles: &[Tile],
    of: &(dyn Fn(&Tile) -> Option<&'a CpuLowRank> + Sync),
    Rows { numbers: x, stride: cols }: Rows<&[f32]>,
    Rows { numbers: out, stride: out_stride }: Rows<SharedPointer<f32>>,
) {
    turn.run(tiles.len(), (1 << 12) / out_stride.max(1) + 1, &|_, range| {
        for tile in &tiles[range] {
            for change in of(tile).map_or(&[][..], |delta| &delta.changes) {
                for (&row, &at) in tile.rows.iter().zip(&tile.outs).take(tile.count) {
                    // SAFETY: the caller has asserted that buffers hold the tiles' rows; a row is of one tile, which
                    // is in one range of one thread; the backend has checked its tier.
                    unsafe {
                        let x = x.as_ptr().add(row as usize * cols);
                        let out = out.get().add(at as usize * out_stride);
                        dispatch(tier, ChangedRow { change, x, out });
                    }
                }
            }
        }
    });
}

/// Changes outputs, then `out[r] += scale · B · (A · x[r])`, for the tiles' rows. `x` is (rows, cols), and the buffers
/// hold all rows of the tiles.
pub(super) fn add<L: Borrow<CpuLowRank> + Sync>(
    Cores { tier, turn }: Cores<'_>,
    tiles: &[Tile],
    deltas: &[Option<L>],
    x: Rows<&[f32]>,
    low: Option<Rows<&mut [f32]>>,
    out: Rows<&mut [f32]>,
) {
    let low = low.unwrap_or_default();
    let of = |tile: &Tile| deltas.get(tile.adapter as usize)?.as_ref().map(Borrow::borrow);
    let mut extent = TileExtent::default();
    for tile in tiles {
        if let Some(delta) = of(tile) {
            extent.include(tile, delta, x, low.read(), out.read());
        }
    }
    let TileExtent { ranks, panels, inner, changes } = extent;
    let (low, low_stride) = (SharedPointer::new(low.numbers), low.stride);
    let (out, out_stride) = (SharedPointer::new(out.numbers), out.stride);
    if changes > 0 {
        let out = Rows { numbers: out, stride: out_stride };
        change_rows(Cores { tier, turn }, tiles, &of, x, out);
    }
    let (x, cols) = (x.numbers, x.stride);
    if ranks > 0 {
        let blocks = ranks.div_ceil(RANKS_A_TIME);
        let grain = (1 << 16) / (cols * RANKS_A_TIME * TILE_ROWS) + 1;
        turn.run(tiles.len() * blocks, grain, &|_, range| {
            for item in range {
                let (tile, from) = (&tiles[item / blocks], item % blocks * RANKS_A_TIME);
                for part in of(tile).map_or(&[][..], |delta| &delta.parts) {
                    let ranks = within(&part.ranks, from..from + RANKS_A_TIME);
                    let Some(a) = part.a.as_ref().filter(|_| !ranks.is_empty()) else { continue };
                    // SAFETY: the asserts above; the tile's rows of these ranks are of one item, which is in one range
                    // of one thread; the backend has checked its tier.
                    unsafe {
                        let low = low.get().add(part.ranks.start);
                        let (a, x) = (a.at(), x.as_ptr());
                        dispatch(tier, Narrow { tile, a, cols, ranks, x, low, low_stride });
                    }
                }
            }
        });
    }
    if panels == 0 {
        return;
    }
    let blocks = panels.div_ceil(PANELS_A_TIME);
    let grain = (1 << 16) / (inner.max(1) * PANELS_A_TIME * LANES * TILE_ROWS) + 1;
    turn.run(tiles.len() * blocks, grain, &|_, range| {
        for item in range {
            let (tile, from) = (&tiles[item / blocks], item % blocks * PANELS_A_TIME);
            for part in of(tile).map_or(&[][..], |delta| &delta.parts) {
                let panels = within(&part.panels, from..from + PANELS_A_TIME);
                if !panels.is_empty() {
                    // SAFETY: as above; the loop before has written `low`, outputs of parts do not overlap, and
                    // without A the part reads whole rows of inputs.
                    unsafe {
                        let (low, low_stride) = match part.a {
                            Some(_) => (low.get().add(part.ranks.start).cast_const(), low_stride),
                            None => (x.as_ptr(), cols),
                        };
                        let out = out.get().add(part.first);
                        dispatch(tier, Widen { tile, part, panels, low, low_stride, out, out_stride });
                    }
                }
            }
        }
    });
}

/// The part of a range that lies within `part`, counted from the part's start.
fn within(part: &Range<usize>, range: Range<usize>) -> Range<usize> {
    let (start, end) = (part.start.max(range.start), part.end.min(range.end));
    start.max(part.start) - part.start..end.max(start) - part.start
}
