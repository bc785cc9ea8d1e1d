//! Convolutions over grids. Along lines, adjacent rows are contiguous in memory, so a window of rows is a row of a matrix
//! product (`out[t] = Σ_j W_j · x[t·stride + j·dilation - padding]`). A transposed convolution makes several rows from a window
//! (`out[t·stride + j - padding] += W_j · x[t]`). Long sums of many channels take fewer multiplications ([`points`]). Other
//! grids are plain loops.
//!
//! The line is processed in chunks. Between them the pool may serve other steps.

mod before;
mod direct;
mod points;

pub(super) use self::before::{LineActivation, LineInput, activate};
use self::direct::Direct;
use self::points::{KernelSplit, Points};
use super::activations::Input;
use super::aligned::{AlignedArray, SharedPointer};
use super::matmul::{Groups, Product};
use super::matrix::CpuMatrix;
use super::pool::PoolTurn;
use super::rows::Rows;
use hanzo_engine_ops::{ConvParams, DType, KernelError, KernelUse, MatrixShape, MatrixSource};

/// Approximate multiply-adds of a chunk: two milliseconds of a core.
const CHUNK_PRODUCTS: usize = 1 << 27;
/// Numbers of a chunk in memory at a time, so that they stay about within the second-level cache.
const CHUNK_NUMBERS: usize = 1 << 20;
/// Smallest chunk of a line in places.
const CHUNK_PLACES_MIN: usize = 64;
/// Numbers in one piece of a parallel loop.
const PIECE_NUMBERS: usize = 1 << 14;

/// Kernel of a convolution, laid out for it.
#[derive(Debug)]
pub(super) struct CpuKernel {
    of: KernelUse,
    channels: usize,
    outputs: usize,
    method: Method,
}

#[derive(Debug)]
enum Method {
    Windows(CpuMatrix),    // (outputs) of (taps, channels)
    Points(Box<Points>),   // along lines with stride 1
    Transposed(CpuMatrix), // (stride, outputs) of (places of a window, channels)
    Direct(Direct),        // any grid
}

/// Scratch of convolutions, for the largest kernel that was packed.
#[derive(Debug)]
pub(super) struct ConvScratch {
    numbers: [AlignedArray<f32>; 3],
    /// A number for each channel.
    channels: AlignedArray<f32>,
}

/// Numbers of each array of [`ConvScratch`], and the largest number of channels.
pub(super) type ConvScratchSize = [usize; 4];

/// Scratch of one kernel.
pub(super) type LineScratch<'a> = [&'a mut [f32]; 3];

/// Grid of a convolution, with its input and output.
pub(super) struct Grid<'a> {
    pub(super) params: ConvParams,
    pub(super) x: &'a [f32], // (places, channels)
    pub(super) before: LineInput<'a>,
    pub(super) bias: Option<&'a [f32]>,
    pub(super) add: Option<&'a [f32]>, // (places of the output, outputs)
    pub(super) out: &'a mut [f32],     // the same
}

impl ConvScratch {
    pub(super) fn new(size: ConvScratchSize) -> Result<ConvScratch, KernelError> {
        let [first, second, third, own] =
            size.map(|numbers| AlignedArray::zeroed(numbers, "convolution scratch"));
        Ok(ConvScratch { numbers: [first?, second?, third?], channels: own? })
    }

    /// Scratch of a kernel, and a number for each channel.
    pub(super) fn parts(&mut self) -> (LineScratch<'_>, &mut [f32]) {
        (self.numbers.each_mut().map(|numbers| &mut numbers[..]), &mut self.channels)
    }

    /// Whether it is as large as needed.
    pub(super) fn fits(&self, size: ConvScratchSize) -> bool {
        let own = self.numbers.iter().chain([&self.channels]);
        own.zip(size).all(|(numbers, size)| numbers.len() >= size)
    }
}

/// Channels of the input, outputs and taps of a kernel with weights of this shape.
fn sizes(shape: &MatrixShape, of: &KernelUse) -> [usize; 3] {
    let (taps, groups) = (of.params.taps(), of.params.groups);
    match of.transposed {
        false => [shape.cols / taps * groups, shape.rows, taps],
        true => [shape.rows, shape.cols / taps * groups, taps],
    }
}

/// Whether a line is computed by products of its windows.
fn by_products(of: &KernelUse) -> bool {
    let ConvParams { stride, dilation, groups, .. } = of.params;
    of.params.is_line() && groups == 1 && (dilation[2] == 1 || stride[2] == 1 && !of.transposed)
}

/// Shape of each matrix that a kernel is packed as, and their number.
fn packed_as(shape: &MatrixShape, of: &KernelUse) -> (MatrixShape, usize) {
    let [channels, outputs, taps] = sizes(shape, of);
    let f32 = |rows, cols| MatrixShape { rows, cols, dtype: DType::F32 };
    if !by_products(of) {
        return (f32(shape.rows, shape.cols), 1);
    }
    if of.transposed {
        let stride = of.params.stride[2];
        return (f32(stride * outputs, taps.div_ceil(stride) * channels), 1);
    }
    match KernelSplit::of([outputs, channels, taps]).filter(|_| of.params.stride[2] == 1) {
        Some(split) => (f32(outputs, split.parts() * channels), split.points()),
        None => (f32(outputs, taps * channels), 1),
    }
}

impl CpuKernel {
    /// Bytes of a packed kernel.
    pub(super) fn bytes(shape: &MatrixShape, of: &KernelUse) -> usize {
        let (each, count) = packed_as(shape, of);
        super::matrix::packed_bytes(&each).saturating_mul(count)
    }

    /// Lays a kernel out. `numbers` are the weights in the shape that the op states.
    pub(super) fn pack(
        source: &MatrixSource<'_>,
        of: &KernelUse,
        numbers: &[f32],
        turn: &mut PoolTurn,
        device: &str,
    ) -> Result<CpuKernel, KernelError> {
        let [channels, outputs, taps] = sizes(&source.shape, of);
        let (shape, _) = packed_as(&source.shape, of);
        let mut pack = |numbers: &[f32]| {
            let bytes = bytemuck::cast_slice(numbers);
            CpuMatrix::pack(&[MatrixSource { name: source.name, shape, bytes }], turn, device)
        };
        let split = KernelSplit::of([outputs, channels, taps]).filter(|_| of.params.stride[2] == 1);
        let method = match (by_products(of), of.transposed, split) {
            (false, ..) => Method::Direct(Direct::new(numbers.to_vec())),
            (true, true, _) => Method::Transposed(pack(&turned_over(
                [channels, outputs, taps],
                of.params.stride[2],
                numbers,
            ))?),
            (true, false, Some(split)) => {
                let matrices = points::matrices([outputs, channels, taps], split, numbers);
                let matrices = matrices.iter().map(|numbers| pack(numbers)).collect::<Result<_, _>>()?;
                Method::Points(Box::new(Points::new(split, matrices)))
            }
            (true, false, None) => {
                let mut turned = Vec::with_capacity(numbers.len());
                for out in numbers.chunks_exact(channels * taps) {
                    for tap in 0..taps {
                        turned.extend((0..channels).map(|channel| out[channel * taps + tap]));
                    }
                }
                Method::Windows(pack(&turned)?)
            }
        };
        Ok(CpuKernel { of: *of, channels, outputs, method })
    }

    /// Bytes of memory.
    pub(super) fn held_bytes(&self) -> usize {
        match &self.method {
            Method::Windows(matrix) | Method::Transposed(matrix) => matrix.bytes(),
            Method::Points(points) => points.bytes(),
            Method::Direct(direct) => direct.bytes(),
        }
    }

    /// Channels of the input.
    pub(super) fn channels(&self) -> usize {
        self.channels
    }

    /// Outputs of a place.
    pub(super) fn outputs(&self) -> usize {
        self.outputs
    }

    /// Extents of the output of a grid.
    pub(super) fn output(&self, params: &ConvParams) -> [usize; 3] {
        match self.of.transposed {
            false => params.output(),
            true => params.output_transposed(),
        }
    }

    /// Asserts that it was packed for a convolution of this kind.
    pub(super) fn check(&self, params: &ConvParams, transposed: bool) {
        let of = KernelUse { params: ConvParams { input: self.of.params.input, ..*params }, transposed };
        let lines = params.is_line() == self.of.params.is_line();
        assert!(lines && self.of == of, "a kernel that was packed for another convolution");
    }

    /// Scratch that it needs on so many threads, whatever the length of a line.
    pub(super) fn scratch(&self, threads: usize) -> ConvScratchSize {
        let [first, second, third] = self.line_scratch(threads);
        [first, second, third, self.channels.max(self.outputs)]
    }

    fn line_scratch(&self, threads: usize) -> [usize; 3] {
        let ConvParams { stride, dilation, .. } = self.of.params;
        match &self.method {
            Method::Windows(_) => {
                let places = self.chunk_places() * stride[2] + self.reach() + dilation[2];
                [places * self.channels, 0, 0]
            }
            Method::Points(points) => points.scratch(self.channels, self.outputs, dilation[2], threads),
            Method::Transposed(matrix) => {
                let windows = self.chunk_places();
                [(windows + matrix.cols() / self.channels) * self.channels, windows * matrix.rows(), 0]
            }
            Method::Direct(_) => [0; 3],
        }
    }

    /// Places from the first tap to the last.
    fn reach(&self) -> usize {
        self.of.params.dilation[2] * (self.of.params.taps() - 1)
    }

    /// Outputs of a chunk by windows, or windows of a chunk of a transposed convolution: whole dilations.
    fn chunk_places(&self) -> usize {
        let ConvParams { stride, dilation, .. } = self.of.params;
        let (products, numbers) = match &self.method {
            Method::Windows(matrix) => (matrix.rows() * matrix.cols(), stride[2] * self.channels),
            Method::Transposed(matrix) => (matrix.rows() * matrix.cols(), matrix.rows() + self.channels),
            Method::Points(_) | Method::Direct(_) => return 0,
        };
        let most = (CHUNK_PRODUCTS / products).min(CHUNK_NUMBERS / numbers);
        most.max(CHUNK_PLACES_MIN).next_multiple_of(dilation[2])
    }

    /// Computes the outputs of a grid.
    pub(super) fn run(&self, product: &mut Product<'_>, scratch: &mut LineScratch<'_>, grid: Grid<'_>) {
        let output: usize = self.output(&grid.params).iter().product();
        assert_eq!(
            grid.x.len(),
            grid.params.input.iter().product::<usize>() * self.channels,
            "the grid's places"
        );
        assert_eq!(grid.out.len(), output * self.outputs, "out holds the outputs of every place");
        assert!(grid.add.is_none_or(|add| add.len() == grid.out.len()), "addends in the shape of out");
        assert!(grid.bias.is_none_or(|bias| bias.len() == self.outputs), "one bias an output");
        match &self.method {
            Method::Windows(matrix) => self.windows(matrix, product, scratch, grid),
            Method::Points(points) => points.run(product, scratch, self.channels, self.outputs, grid),
            Method::Transposed(matrix) => self.transposed(matrix, product, scratch, grid),
            Method::Direct(direct) => {
                direct.run(product.turn, self.channels, self.outputs, self.of.transposed, grid);
            }
        }
    }

    fn windows(
        &self,
        matrix: &CpuMatrix,
        product: &mut Product<'_>,
        scratch: &mut LineScratch<'_>,
        Grid { params, x, before, bias, add, out }: Grid<'_>,
    ) {
        let (stride, dilation, cols) = (params.stride[2], params.dilation[2], self.channels);
        let (places, padding, outputs) = (x.len() / cols, params.padding[2][0], self.outputs);
        let most = self.chunk_places();
        for (at, piece) in out.chunks_mut(most * outputs).enumerate() {
            if at > 0 {
                product.turn.pass();
            }
            let (first, rows) = (at * most * stride, piece.len() / outputs);
            // The places of each dilation phase form a separate line.
            let length = ((rows - 1) * stride + self.reach() + 1).div_ceil(dilation);
            let lines = &mut scratch[0][..dilation * length * cols];
            each_rows(product.turn, lines, cols, &|row, piece| {
                for (index, row) in (row..).zip(piece.chunks_exact_mut(cols)) {
                    let place = first + index / length + index % length * dilation;
                    before.place(x, cols, place.checked_sub(padding).filter(|&from| from < places), row);
                }
            });
            for phase in 0..dilation.min(rows) {
                let line = &scratch[0][phase * length * cols..][..length * cols];
                let to = Rows { numbers: &mut piece[phase * outputs..], stride: dilation * outputs };
                multiply(
                    product,
                    std::slice::from_ref(matrix),
                    bias,
                    Rows { numbers: line, stride: stride * cols },
                    (rows - phase).div_ceil(dilation),
                    to,
                );
            }
            if let Some(add) = add {
                let add = &add[at * most * outputs..][..piece.len()];
                each_rows(product.turn, piece, outputs, &|row, piece| {
                    let add = &add[row * outputs..][..piece.len()];
                    piece.iter_mut().zip(add).for_each(|(sum, add)| *sum += add);
                });
            }
        }
    }

    fn transposed(
        &self,
        matrix: &CpuMatrix,
        product: &mut Product<'_>,
        scratch: &mut LineScratch<'_>,
        Grid { params, x, before, bias, add, out }: Grid<'_>,
    ) {
        let (cols, outputs, step) = (self.channels, self.outputs, matrix.rows());
        let (stride, padding, places) = (params.stride[2], params.padding[2][0], x.len() / cols);
        let edge = matrix.cols() / cols - 1;
        let windows = places + edge;
        let most = self.chunk_places();
        let [lines, sums, _] = scratch;
        let mut rest = out;
        let mut done = 0; // places of the output
        for first in (0..windows).step_by(most) {
            if rest.is_empty() {
                break;
            }
            if first > 0 {
                product.turn.pass();
            }
            let count = most.min(windows - first);
            let lines = &mut lines[..(count + edge) * cols];
            each_rows(product.turn, lines, cols, &|row, piece| {
                for (index, row) in (first + row..).zip(piece.chunks_exact_mut(cols)) {
                    before.place(x, cols, index.checked_sub(edge).filter(|&from| from < places), row);
                }
            });
            multiply(
                product,
                std::slice::from_ref(matrix),
                None,
                Rows { numbers: lines, stride: cols },
                count,
                Rows { numbers: &mut sums[..count * step], stride: step },
            );
            // The padding is cut off.
            let end = ((first + count) * stride).saturating_sub(padding).min(done + rest.len() / outputs);
            let (piece, behind) = std::mem::take(&mut rest).split_at_mut((end - done) * outputs);
            let sums = &sums[(done + padding - first * stride) * outputs..];
            each_rows(product.turn, piece, outputs, &|row, piece| {
                piece.copy_from_slice(&sums[row * outputs..][..piece.len()]);
                for (at, out) in (done + row..).zip(piece.chunks_exact_mut(outputs)) {
                    let addends = bias.into_iter().chain(add.map(|add| &add[at * outputs..][..outputs]));
                    addends
                        .for_each(|other| out.iter_mut().zip(other).for_each(|(out, other)| *out += other));
                }
            });
            (rest, done) = (behind, end);
        }
    }
}

/// Weights of a transposed kernel for windows of places: `(stride, outputs)` rows of `(places of a window, channels)`.
fn turned_over([channels, outputs, taps]: [usize; 3], stride: usize, numbers: &[f32]) -> Vec<f32> {
    let window = taps.div_ceil(stride);
    let mut turned = Vec::with_capacity(stride * outputs * window * channels);
    for phase in 0..stride {
        for output in 0..outputs {
            // The last place of a window goes with the first taps.
            for back in (0..window).rev() {
                let tap = phase + back * stride;
                let own = |channel: usize| numbers[(channel * outputs + output) * taps + tap];
                turned.extend((0..channels).map(|channel| if tap < taps { own(channel) } else { 0.0 }));
            }
        }
    }
    turned
}

/// `out[r] = matrix · x[r] + bias` of each matrix for so many rows of its own.
fn multiply(
    product: &mut Product<'_>,
    matrices: &[CpuMatrix],
    bias: Option<&[f32]>,
    Rows { numbers: x, stride }: Rows<&[f32]>,
    rows: usize,
    out: Rows<&mut [f32]>,
) {
    let mut firsts = [0; points::POINTS_MAX + 1];
    firsts.iter_mut().enumerate().for_each(|(at, first)| *first = (at * rows) as u32);
    let (firsts, all) = (&firsts[..=matrices.len()], rows * matrices.len());
    assert!(all == 0 || x.len() >= (all - 1) * stride + matrices[0].cols(), "x holds every window");
    let input = Input { x: x.as_ptr(), rows: all, step: Some(stride), places: None };
    // SAFETY: `x` holds the rows (asserted).
    unsafe { product.spread(Groups { matrices, firsts }, bias, input, out) };
}

/// Calls `task` with groups of whole rows of `data` and the number of the first of them, on the pool's threads.
fn each_rows(turn: &mut PoolTurn, data: &mut [f32], cols: usize, task: &(dyn Fn(usize, &mut [f32]) + Sync)) {
    each_rows_of(turn, data, cols, (PIECE_NUMBERS / cols).max(1), task);
}

/// The same for groups of so many rows of so many columns.
pub(super) fn each_rows_of(
    turn: &mut PoolTurn,
    data: &mut [f32],
    cols: usize,
    rows: usize,
    task: &(dyn Fn(usize, &mut [f32]) + Sync),
) {
    let (length, shared) = (data.len(), SharedPointer::new(data));
    turn.run(length.div_ceil(rows * cols), 1, &|_, range| {
        for piece in range {
            let first = piece * rows * cols;
            let count = (rows * cols).min(length - first);
            // SAFETY: the piece lies within `data`, and each piece is in one range of one thread.
            let own = unsafe { std::slice::from_raw_parts_mut(shared.get().add(first), count) };
            task(piece * rows, own);
        }
    });
}
