//! Convolutions along time with fewer multiplications (Toom-Cook polynomial products, transposed as by
//! Winograd; arxiv.org/abs/1509.09308). For each tile of output rows there are as many products as evaluation
//! points, each of a combination of input rows and a combination of taps. Long kernels are split into parts,
//! which reuse the input combinations of later tiles.

use std::sync::{Mutex, PoisonError};

use hanzo_engine_kernels::KernelError;

use super::{Bent, Compute, ConvShape, Matrix, Signal};

/// Finite evaluation points; infinity is added. With these, f32 sums keep 20 correct bits.
const POINTS: [f64; 6] = [0.0, 1.0, -1.0, 0.5, -2.0, 2.0];
/// Minimum channels, from which on the combinations cost less than the products.
const CHANNELS_MIN: usize = 48;
/// Numbers of combinations in memory at a time, so that they stay about within the second-level cache.
const CHUNK_NUMBERS: usize = 1 << 20;
/// Tiles in one piece of a parallel loop.
const RUN: usize = 16;

/// Split of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KernelSplit {
    /// Output rows of a tile.
    tile: usize,
    /// Taps of a part.
    part: usize,
    parts: usize,
}

impl KernelSplit {
    /// Returns the split of a kernel, or None if it is not worthwhile.
    pub(crate) fn of([outputs, inputs, kernel]: [usize; 3]) -> Option<KernelSplit> {
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
    fn points(self) -> usize {
        self.tile + self.part - 1
    }

    /// Number of taps that the matrices hold.
    pub(crate) fn taps(self) -> usize {
        self.points() * self.parts
    }
}

/// Convolution by evaluation points.
pub(super) struct Toom {
    cut: KernelSplit,
    matrices: Matrix, // (points) of (out, parts, in)
    bias: Vec<f32>,
    rows: Vec<Vec<f32>>, // (points, points): combinations of input rows
    outs: Vec<Vec<f32>>, // (tile, points): combinations of products
    shape: ConvShape,
    reach: usize, // rows from the first tap to the last
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

impl Toom {
    /// Creates it from PyTorch's weight, `(out, in, kernel)`, with stride 1.
    pub(super) fn new(
        compute: &Compute,
        name: &str,
        ([outputs, inputs, kernel], cut): ([usize; 3], KernelSplit),
        weight: &[f32],
        bias: Option<&[f32]>,
        shape: ConvShape,
    ) -> Result<Toom, KernelError> {
        debug_assert!(shape.stride == 1 && cut.part * cut.parts >= kernel);
        let [rows, taps, outs] = sums(cut);
        let matrix = |taps: &Vec<f64>| -> Vec<f32> {
            let mut numbers = Vec::with_capacity(outputs * cut.parts * inputs);
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
        let parts: Vec<Vec<f32>> = taps.iter().map(matrix).collect();
        let parts: Vec<&[f32]> = parts.iter().map(Vec::as_slice).collect();
        let f32s = |rows: Vec<Vec<f64>>| -> Vec<Vec<f32>> {
            rows.iter().map(|row| row.iter().map(|&x| x as f32).collect()).collect()
        };
        Ok(Toom {
            cut,
            matrices: compute.pack_alike(name, (outputs, cut.parts * inputs), &parts, None)?,
            bias: bias.map_or_else(|| vec![0.0; outputs], <[f32]>::to_vec),
            rows: f32s(rows),
            outs: f32s(outs),
            shape,
            reach: shape.dilation * (kernel - 1),
        })
    }

    pub(super) fn run(
        &self,
        compute: &mut Compute,
        x: &Signal,
        bent: Bent<'_>,
        added: Option<&Signal>,
    ) -> Signal {
        match self.cut.points() {
            6 => self.of_points::<6>(compute, x, bent, added),
            7 => self.of_points::<7>(compute, x, bent, added),
            points => unreachable!("cuts are of 6 or 7 points, not of {points}"),
        }
    }

    fn of_points<const N: usize>(
        &self,
        compute: &mut Compute,
        x: &Signal,
        bent: Bent<'_>,
        added: Option<&Signal>,
    ) -> Signal {
        let (outputs, dilation) = (self.bias.len(), self.shape.dilation);
        let rows = (x.rows + self.shape.padding.0 + self.shape.padding.1).saturating_sub(self.reach);
        let mut out = compute.signal(rows, outputs);
        // The rows of each dilation phase form a separate signal. Each phase has the same number of tiles in a
        // chunk.
        let tile_rows = dilation * self.cut.tile;
        let most = (CHUNK_NUMBERS / (N * (x.cols + outputs)) / dilation).max(RUN);
        let tiles_max = dilation * (most.min(rows.div_ceil(tile_rows)) + self.cut.parts - 1);
        // The last windows extend beyond the last tile.
        let mut sums = compute.numbers((N * tiles_max + self.cut.parts - 1) * x.cols);
        let mut products = compute.numbers(N * tiles_max * outputs);
        for (at, piece) in out.data.chunks_mut(most * tile_rows * outputs).enumerate() {
            let first = at * most * tile_rows;
            let of_phase = (piece.len() / outputs).div_ceil(tile_rows) + self.cut.parts - 1;
            let tiles = dilation * of_phase;
            self.add_rows::<N>(compute, (x, bent), (first, of_phase), &mut sums[..N * tiles * x.cols]);
            let sums = &sums[..(N * tiles + self.cut.parts - 1) * x.cols];
            let products = &mut products[..N * tiles * outputs];
            compute.alike(&self.matrices, (sums, x.cols), tiles, products);
            let added = added.map(|added| &added.data[first * outputs..][..piece.len()]);
            self.add_products::<N>(compute, products, of_phase, added, piece);
        }
        compute.spent(sums);
        compute.spent(products);
        out
    }

    /// Combines input rows into `(points, dilation, of_phase, in)`, for the output rows from `first` on.
    fn add_rows<const N: usize>(
        &self,
        compute: &Compute,
        (x, bent): (&Signal, Bent<'_>),
        (first, of_phase): (usize, usize),
        sums: &mut [f32],
    ) {
        let (cols, dilation, tile) = (x.cols, self.shape.dilation, self.cut.tile);
        let runs = of_phase.div_ceil(RUN);
        let mut pieces: Vec<Vec<&mut [f32]>> = (0..dilation * runs).map(|_| Vec::with_capacity(N)).collect();
        for plane in sums.chunks_exact_mut(dilation * of_phase * cols) {
            let parts =
                plane.chunks_exact_mut(of_phase * cols).flat_map(|phase| phase.chunks_mut(RUN * cols));
            pieces.iter_mut().zip(parts).for_each(|(piece, part)| piece.push(part));
        }
        let pieces: Vec<Mutex<Vec<&mut [f32]>>> = pieces.into_iter().map(Mutex::new).collect();
        compute.each(pieces.len(), &|index| {
            let mut planes = pieces[index].lock().unwrap_or_else(PoisonError::into_inner);
            let tiles = planes[0].len() / cols;
            let (phase, tile_first) = (index / runs, index % runs * RUN);
            let mut under = vec![0.0; ((tiles - 1) * tile + N) * cols];
            for (at, row) in under.chunks_exact_mut(cols).enumerate() {
                let padded = first + phase + (tile_first * tile + at) * dilation;
                if let Some(from) = padded.checked_sub(self.shape.padding.0).filter(|&from| from < x.rows) {
                    bent.row(x.row(from), row);
                }
            }
            for of in 0..tiles {
                let rows: [&[f32]; N] =
                    std::array::from_fn(|point| &under[(of * tile + point) * cols..][..cols]);
                for (plane, factors) in planes.iter_mut().zip(&self.rows) {
                    weigh::<N>(&rows, factors, None, None, &mut plane[of * cols..][..cols]);
                }
            }
        });
    }

    /// Combines the products `(points, dilation, of_phase, out)` into output rows.
    fn add_products<const N: usize>(
        &self,
        compute: &Compute,
        products: &[f32],
        of_phase: usize,
        added: Option<&[f32]>,
        out: &mut [f32],
    ) {
        let (outputs, dilation, tile) = (self.bias.len(), self.shape.dilation, self.cut.tile);
        let plane = dilation * of_phase * outputs;
        compute.rows(out, outputs, &|first, piece| {
            for (index, out) in piece.chunks_exact_mut(outputs).enumerate() {
                let row = first + index;
                let (phase, at) = (row % dilation, row / dilation);
                let place = (phase * of_phase + at / tile) * outputs;
                let rows: [&[f32]; N] =
                    std::array::from_fn(|point| &products[point * plane + place..][..outputs]);
                let added = added.map(|added| &added[row * outputs..][..outputs]);
                weigh::<N>(&rows, &self.outs[at % tile], Some(&self.bias[..]), added, out);
            }
        });
    }
}

/// Computes `out = Σ factors[i] · rows[i] + bias + added`.
fn weigh<const N: usize>(
    rows: &[&[f32]; N],
    factors: &[f32],
    bias: Option<&[f32]>,
    added: Option<&[f32]>,
    out: &mut [f32],
) {
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
    for other in bias.into_iter().chain(added) {
        out.iter_mut().zip(other).for_each(|(out, other)| *out += other);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hanzo_engine_kernels::HeadShape;
    use hanzo_engine_kernels::cpu::{ThreadPool, Tier};

    use super::*;
    use crate::kokoro::snr_db;
    use crate::nn::Conv;
    use crate::noise::Noise;

    #[test]
    fn fewer_products_are_the_same_sums() {
        let (inputs, outputs) = (CHANNELS_MIN, CHANNELS_MIN + 3);
        for tier in Tier::available() {
            let mut compute = Compute::new(Arc::new(ThreadPool::new(2)), tier);
            compute.reserve(1024, HeadShape { heads: 1, kv_heads: 1, head_dim: 64 }).unwrap();
            for (kernel, dilation, rows) in
                [(3, 1, 1), (3, 5, 23), (5, 2, 70), (7, 1, 100), (7, 3, 301), (11, 5, 64), (12, 1, 9)]
            {
                let mut noise = Noise::new(kernel as u64);
                let mut numbers = |count: usize| -> Vec<f32> { (0..count).map(|_| noise.normal()).collect() };
                let (weight, bias) = (numbers(outputs * inputs * kernel), numbers(outputs));
                let x = Signal::from_data(rows, inputs, numbers(rows * inputs));
                let added = Signal::from_data(rows, outputs, numbers(rows * outputs));
                let before = dilation * (kernel - 1) / 2;
                let padding = (before, dilation * (kernel - 1) - before);
                let shape = ConvShape { stride: 1, dilation, padding };
                let sizes = [outputs, inputs, kernel];
                assert!(KernelSplit::of(sizes).is_some(), "a kernel of {kernel} is cut");
                let conv = Conv::new(&compute, "w", sizes, &weight, Some(&bias), shape).unwrap();
                let bent = Bent::Leaky { affine: None, slope: 0.1 };
                let is = conv.run_bent(&mut compute, &x, bent, Some(&added)).unwrap();
                let mut right = added.clone();
                for row in 0..rows {
                    for (output, sum) in right.row_mut(row).iter_mut().enumerate() {
                        let mut own = f64::from(bias[output]);
                        for tap in 0..kernel {
                            let from = (row + tap * dilation).checked_sub(before).filter(|&from| from < rows);
                            let Some(from) = from else { continue };
                            for (input, &x) in x.row(from).iter().enumerate() {
                                let weight = weight[(output * inputs + input) * kernel + tap];
                                own += f64::from(x.max(0.1 * x)) * f64::from(weight);
                            }
                        }
                        *sum += own as f32;
                    }
                }
                let snr = snr_db(&right.data, &is.data);
                assert!(snr > 110.0, "{tier}, kernel {kernel}, dilation {dilation}: {snr:.1} dB");
            }
        }
    }
}
