//! Convolutions along lines with fewer multiplications (Toom-Cook polynomial products, transposed as by
//! Winograd; arxiv.org/abs/1509.09308). For each tile of output rows there are as many products as evaluation
//! points, each of a combination of input rows and a combination of taps. Long kernels are split into parts,
//! which reuse the input combinations of later tiles.

use super::{CHUNK_NUMBERS, Grid, LineScratch, each_rows, multiply};
use crate::cpu::aligned::SharedPointer;
use crate::cpu::matmul::Product;
use crate::cpu::matrix::CpuMatrix;
use crate::cpu::pool::PoolTurn;
use crate::cpu::rows::Rows;

/// Finite evaluation points; infinity is added. With these, f32 sums keep 20 correct bits.
const POINTS: [f64; 6] = [0.0, 1.0, -1.0, 0.5, -2.0, 2.0];
/// Largest number of points.
pub(super) const POINTS_MAX: usize = POINTS.len() + 1;
/// Minimum channels, from which on the combinations cost less than the products.
const CHANNELS_MIN: usize = 48;
/// Tiles in one piece of a parallel loop.
const RUN: usize = 16;

/// Split of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KernelSplit {
    /// Output rows of a tile.
    tile: usize,
    /// Taps of a part.
    part: usize,
    parts: usize,
}

impl KernelSplit {
    /// Returns the split of a kernel, or None if it is not worthwhile.
    pub(super) fn of([outputs, inputs, kernel]: [usize; 3]) -> Option<KernelSplit> {
        if outputs.min(inputs) < CHANNELS_MIN {
            return None;
        }
        match kernel {
            3 => Some(KernelSplit { tile: 4, part: 3, parts: 1 }),
            5 => Some(KernelSplit { tile: 3, part: 5, parts: 1 }),
            // Parts are as long as tiles, so that a part uses the combinations of a later tile.
            7..=12 => Some(KernelSplit { tile: 4, part: 4, parts: kernel.div_ceil(4) }),
            _ => None,
        }
    }

    /// Number of evaluation points.
    pub(super) fn points(self) -> usize {
        self.tile + self.part - 1
    }

    pub(super) fn parts(self) -> usize {
        self.parts
    }
}

/// Convolution by evaluation points.
#[derive(Debug)]
pub(super) struct Points {
    cut: KernelSplit,
    matrices: Vec<CpuMatrix>, // (points) of (out, parts, in)
    rows: Vec<Vec<f32>>,      // (points, points): combinations of input rows
    outs: Vec<Vec<f32>>,      // (tile, points): combinations of products
}

/// Place of a chunk: its first output row, and the tiles of each dilation phase in it.
#[derive(Clone, Copy)]
struct TileChunk {
    first: usize,
    of_phase: usize,
    dilation: usize,
}

/// Coefficients of the combinations of rows, taps and products: `(points, points)`, `(points, part)`, `(tile,
/// points)`.
fn sums(cut: KernelSplit) -> [Vec<Vec<f64>>; 3] {
    let (finite, tile, part) = (cut.points() - 1, cut.tile, cut.part);
    let points = &POINTS[..finite];
    // Coefficients of the product of (x - point) over the points, without one of them.
    let product = |but: Option<usize>| -> Vec<f64> {
        let mut coefficients = vec![1.0];
        for (_, point) in points.iter().enumerate().filter(|(at, _)| Some(*at) != but) {
            coefficients.insert(0, 0.0);
            for at in 0..coefficients.len() - 1 {
                coefficients[at] -= point * coefficients[at + 1];
            }
        }
        coefficients.resize(finite + 1, 0.0);
        coefficients
    };
    let (mut rows, mut taps) = (Vec::new(), Vec::new());
    let mut outs = vec![vec![0.0; finite + 1]; tile];
    for (at, &point) in points.iter().enumerate() {
        let others = points.iter().enumerate().filter(|(other, _)| *other != at);
        let scale: f64 = others.map(|(_, other)| point - other).product();
        rows.push(product(Some(at)));
        taps.push((0..part).map(|tap| point.powi(tap as i32) / scale).collect::<Vec<_>>());
        outs.iter_mut().enumerate().for_each(|(row, out)| out[at] = point.powi(row as i32));
    }
    rows.push(product(None));
    taps.push((0..part).map(|tap| f64::from(u8::from(tap + 1 == part))).collect());
    outs[tile - 1][finite] = 1.0;
    [rows, taps, outs]
}

/// Weights of each point's matrix, `(out, parts, in)`, from a kernel `(out, in, kernel)`.
pub(super) fn matrices([_, inputs, kernel]: [usize; 3], cut: KernelSplit, weight: &[f32]) -> Vec<Vec<f32>> {
    let [_, taps, _] = sums(cut);
    let matrix = |taps: &Vec<f64>| -> Vec<f32> {
        let mut numbers = Vec::with_capacity(weight.len() / kernel * cut.parts);
        for out in weight.chunks_exact(inputs * kernel) {
            for part in 0..cut.parts {
                let first = part * cut.part;
                numbers.extend(out.chunks_exact(kernel).map(|own| {
                    let own = own[first..kernel.min(first + cut.part)].iter();
                    own.zip(taps).map(|(&own, tap)| f64::from(own) * tap).sum::<f64>() as f32
                }));
            }
        }
        numbers
    };
    taps.iter().map(matrix).collect()
}

impl Points {
    /// A convolution with the packed [`matrices`].
    pub(super) fn new(cut: KernelSplit, matrices: Vec<CpuMatrix>) -> Points {
        let [rows, _, outs] = sums(cut);
        let f32s = |rows: Vec<Vec<f64>>| -> Vec<Vec<f32>> {
            rows.iter().map(|row| row.iter().map(|&x| x as f32).collect()).collect()
        };
        Points { cut, matrices, rows: f32s(rows), outs: f32s(outs) }
    }

    pub(super) fn bytes(&self) -> usize {
        self.matrices.iter().map(CpuMatrix::bytes).sum()
    }

    /// Most tiles of a phase in a chunk.
    fn chunk_tiles(&self, channels: usize, outputs: usize, dilation: usize) -> usize {
        (CHUNK_NUMBERS / (self.cut.points() * (channels + outputs)) / dilation).max(RUN)
    }

    /// Rows under a run of tiles.
    fn rows_under(&self, tiles: usize) -> usize {
        (tiles - 1) * self.cut.tile + self.cut.points()
    }

    /// Numbers of the combinations, of the products, and of the rows under the runs of all threads.
    pub(super) fn scratch(
        &self,
        channels: usize,
        outputs: usize,
        dilation: usize,
        threads: usize,
    ) -> [usize; 3] {
        let tiles = dilation * (self.chunk_tiles(channels, outputs, dilation) + self.cut.parts - 1);
        let points = self.cut.points();
        [
            (points * tiles + self.cut.parts - 1) * channels,
            points * tiles * outputs,
            threads * self.rows_under(RUN) * channels,
        ]
    }

    pub(super) fn run(
        &self,
        product: &mut Product<'_>,
        scratch: &mut LineScratch<'_>,
        channels: usize,
        outputs: usize,
        grid: Grid<'_>,
    ) {
        match self.cut.points() {
            6 => self.of_points::<6>(product, scratch, channels, outputs, grid),
            7 => self.of_points::<7>(product, scratch, channels, outputs, grid),
            points => unreachable!("cuts are of 6 or 7 points, not of {points}"),
        }
    }

    fn of_points<const N: usize>(
        &self,
        product: &mut Product<'_>,
        scratch: &mut LineScratch<'_>,
        channels: usize,
        outputs: usize,
        mut grid: Grid<'_>,
    ) {
        let dilation = grid.params.dilation[2];
        let out = std::mem::take(&mut grid.out);
        // The rows of each dilation phase form a separate line. Each phase has the same number of tiles in a
        // chunk.
        let tile_rows = dilation * self.cut.tile;
        let most = self.chunk_tiles(channels, outputs, dilation);
        let [sums, products, under] = scratch;
        for (at, piece) in out.chunks_mut(most * tile_rows * outputs).enumerate() {
            if at > 0 {
                product.turn.pass();
            }
            let first = at * most * tile_rows;
            let of_phase = (piece.len() / outputs).div_ceil(tile_rows) + self.cut.parts - 1;
            let (chunk, tiles) = (TileChunk { first, of_phase, dilation }, dilation * of_phase);
            self.add_rows::<N>(product.turn, &grid, chunk, &mut sums[..N * tiles * channels], under);
            // The last windows extend beyond the last tile.
            let sums = &sums[..(N * tiles + self.cut.parts - 1) * channels];
            let products = &mut products[..N * tiles * outputs];
            let combined = Rows { numbers: sums, stride: channels };
            let made = Rows { numbers: &mut *products, stride: outputs };
            multiply(product, &self.matrices, None, combined, tiles, made);
            let add = grid.add.map(|add| &add[first * outputs..][..piece.len()]);
            self.add_products::<N>(product.turn, products, chunk, [grid.bias, add], piece, outputs);
        }
    }

    /// Combines input rows into `(points, dilation, of_phase, in)`, for the output rows of a chunk.
    fn add_rows<const N: usize>(
        &self,
        turn: &mut PoolTurn,
        grid: &Grid<'_>,
        TileChunk { first, of_phase, dilation }: TileChunk,
        sums: &mut [f32],
        under: &mut [f32],
    ) {
        let (tile, runs) = (self.cut.tile, of_phase.div_ceil(RUN));
        let cols = sums.len() / (N * dilation * of_phase);
        let (places, padding) = (grid.x.len() / cols, grid.params.padding[2][0]);
        let own = self.rows_under(RUN) * cols;
        assert!(under.len() >= turn.threads() * own, "scratch of every thread");
        let (sums, under) = (SharedPointer::new(sums), SharedPointer::new(under));
        turn.run(dilation * runs, 1, &|thread, range| {
            // SAFETY: the scratch has as many rows for each thread, asserted above, and each thread uses its own.
            let under = unsafe { std::slice::from_raw_parts_mut(under.get().add(thread * own), own) };
            for index in range {
                let (phase, tile_first) = (index / runs, index % runs * RUN);
                let tiles = RUN.min(of_phase - tile_first);
                let rows = under.chunks_exact_mut(cols).take(self.rows_under(tiles));
                for (at, row) in rows.enumerate() {
                    let padded = first + phase + (tile_first * tile + at) * dilation;
                    let from = padded.checked_sub(padding).filter(|&from| from < places);
                    grid.before.place(grid.x, cols, from, row);
                }
                for of in 0..tiles {
                    let rows: [&[f32]; N] =
                        std::array::from_fn(|point| &under[(of * tile + point) * cols..][..cols]);
                    for (point, factors) in self.rows.iter().enumerate() {
                        let at = (point * dilation + phase) * of_phase + tile_first + of;
                        // SAFETY: `sums` has a row for each point, phase and tile, and each phase's run of tiles is in one
                        // range of one thread.
                        let out = unsafe { std::slice::from_raw_parts_mut(sums.get().add(at * cols), cols) };
                        weigh::<N>(&rows, factors, [None; 2], out);
                    }
                }
            }
        });
    }

    /// Combines the products `(points, dilation, of_phase, out)` into output rows.
    fn add_products<const N: usize>(
        &self,
        turn: &mut PoolTurn,
        products: &[f32],
        TileChunk { of_phase, dilation, .. }: TileChunk,
        [bias, add]: [Option<&[f32]>; 2],
        out: &mut [f32],
        outputs: usize,
    ) {
        let (tile, plane) = (self.cut.tile, dilation * of_phase * outputs);
        each_rows(turn, out, outputs, &|first, piece| {
            for (row, out) in (first..).zip(piece.chunks_exact_mut(outputs)) {
                let (phase, at) = (row % dilation, row / dilation);
                let place = (phase * of_phase + at / tile) * outputs;
                let rows: [&[f32]; N] =
                    std::array::from_fn(|point| &products[point * plane + place..][..outputs]);
                let add = add.map(|add| &add[row * outputs..][..outputs]);
                weigh::<N>(&rows, &self.outs[at % tile], [bias, add], out);
            }
        });
    }
}

/// Computes `out = Σ factors[i] · rows[i] + bias + added`.
fn weigh<const N: usize>(rows: &[&[f32]; N], factors: &[f32], addends: [Option<&[f32]>; 2], out: &mut [f32]) {
    let length = out.len();
    let rows: [&[f32]; N] = std::array::from_fn(|at| &rows[at][..length]);
    let factors: [f32; N] = std::array::from_fn(|at| factors[at]);
    for (at, out) in out.iter_mut().enumerate() {
        let mut sum = 0.0;
        for point in 0..N {
            sum += factors[point] * rows[point][at];
        }
        *out = sum;
    }
    for other in addends.into_iter().flatten() {
        out.iter_mut().zip(other).for_each(|(out, other)| *out += other);
    }
}
