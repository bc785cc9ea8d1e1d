//! Convolutions along time. Adjacent rows are contiguous in memory, so a window of rows is used directly as a
//! row of a matrix product (`out[t] = Σ_j W_j · x[t·stride + j·dilation - padding]`). A transposed convolution
//! makes several rows from a window (`out[t·stride + j - padding] += W_j · x[t]`). A depthwise one treats each
//! channel by itself.

use hanzo_engine_kernels::KernelError;

use super::toom::{KernelSplit, Toom};
use super::{Bent, Compute, Matrix, Signal};

/// Geometry of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConvShape {
    pub(crate) stride: usize,
    pub(crate) dilation: usize,
    /// Rows of zero padding before the first row and after the last.
    pub(crate) padding: (usize, usize),
}

impl ConvShape {
    /// Geometry that keeps the length, for an odd kernel.
    pub(crate) fn same(kernel: usize, dilation: usize) -> ConvShape {
        let padding = (kernel * dilation - dilation) / 2;
        ConvShape { stride: 1, dilation, padding: (padding, padding) }
    }
}

/// Convolution.
pub(crate) struct Conv {
    method: ConvMethod,
    inputs: usize,
    kernel: usize,
    shape: ConvShape,
}

enum ConvMethod {
    Windows(Matrix), // (out, kernel, in)
    Toom(Box<Toom>),
}

impl Conv {
    /// Creates it from PyTorch's weight, `(out, in, kernel)`.
    pub(crate) fn new(
        compute: &Compute,
        name: &str,
        [outputs, inputs, kernel]: [usize; 3],
        weight: &[f32],
        bias: Option<&[f32]>,
        shape: ConvShape,
    ) -> Result<Conv, KernelError> {
        assert!(shape.stride == 1 || shape.dilation == 1, "{name} steps over rows or over taps");
        let sizes = [outputs, inputs, kernel];
        let method = match KernelSplit::of(sizes).filter(|_| shape.stride == 1) {
            Some(cut) => {
                ConvMethod::Toom(Box::new(Toom::new(compute, name, (sizes, cut), weight, bias, shape)?))
            }
            None => {
                let mut turned = Vec::with_capacity(weight.len());
                for out in weight.chunks_exact(inputs * kernel) {
                    for tap in 0..kernel {
                        turned.extend((0..inputs).map(|input| out[input * kernel + tap]));
                    }
                }
                ConvMethod::Windows(compute.pack(name, (outputs, kernel * inputs), &turned, bias)?)
            }
        };
        Ok(Conv { method, inputs, kernel, shape })
    }

    /// Applies it to `x`.
    pub(crate) fn run(&self, compute: &mut Compute, x: &Signal) -> Result<Signal, KernelError> {
        self.run_bent(compute, x, Bent::Not, None)
    }

    /// Applies it to `x` after the activation `bent`, and adds `added` to the result.
    pub(crate) fn run_bent(
        &self,
        compute: &mut Compute,
        x: &Signal,
        bent: Bent<'_>,
        added: Option<&Signal>,
    ) -> Result<Signal, KernelError> {
        assert_eq!(x.cols, self.inputs, "as many channels as the convolution reads");
        let matrix = match &self.method {
            ConvMethod::Windows(matrix) => matrix,
            ConvMethod::Toom(toom) => return Ok(toom.run(compute, x, bent, added)),
        };
        let ConvShape { stride, dilation, padding: (before, after) } = self.shape;
        let padded = x.rows + before + after;
        let reach = dilation * (self.kernel - 1) + 1;
        let rows = if padded < reach { 0 } else { (padded - reach) / stride + 1 };
        let mut out = compute.signal(rows, matrix.rows);
        // The rows of each dilation phase form a separate signal.
        let (cols, length) = (x.cols, padded.div_ceil(dilation));
        let mut lined = compute.numbers(dilation * length * cols);
        compute.rows(&mut lined, cols, &|first, piece| {
            for (index, row) in piece.chunks_exact_mut(cols).enumerate() {
                let (phase, at) = ((first + index) / length, (first + index) % length);
                match (phase + at * dilation).checked_sub(before).filter(|&from| from < x.rows) {
                    Some(from) => bent.row(x.row(from), row),
                    None => row.fill(0.0),
                }
            }
        });
        for phase in 0..dilation.min(rows) {
            let windows = (&lined[phase * length * cols..][..length * cols], stride * cols);
            let places = (&mut out.data[phase * matrix.rows..], dilation * matrix.rows);
            compute.windows(matrix, windows, (rows - phase).div_ceil(dilation), places);
        }
        compute.spent(lined);
        if let Some(added) = added {
            compute.add(&mut out, added, 1.0);
        }
        Ok(out)
    }
}

/// Transposed convolution, which lengthens a signal: each window of rows gives `stride` rows.
pub(crate) struct TransposedConv {
    matrix: Matrix, // (stride, out) of (rows of a window, in)
    window: usize,
    kernel: usize,
    stride: usize,
    padding: usize,
}

impl TransposedConv {
    /// Creates it from PyTorch's weight, `(in, out, kernel)`.
    pub(crate) fn new(
        compute: &Compute,
        name: &str,
        [inputs, outputs, kernel]: [usize; 3],
        weight: &[f32],
        bias: Option<&[f32]>,
        (stride, padding): (usize, usize),
    ) -> Result<TransposedConv, KernelError> {
        let window = kernel.div_ceil(stride);
        let mut turned = Vec::with_capacity(stride * outputs * window * inputs);
        for phase in 0..stride {
            for output in 0..outputs {
                // The last row of a window goes with the first taps.
                for back in (0..window).rev() {
                    let tap = phase + back * stride;
                    let own = |input: usize| weight[(input * outputs + output) * kernel + tap];
                    turned.extend((0..inputs).map(|input| if tap < kernel { own(input) } else { 0.0 }));
                }
            }
        }
        let bias: Option<Vec<f32>> = bias.map(|bias| bias.repeat(stride));
        let matrix = compute.pack(name, (stride * outputs, window * inputs), &turned, bias.as_deref())?;
        Ok(TransposedConv { matrix, window, kernel, stride, padding })
    }

    /// Applies it to `x` after the activation `bent`.
    pub(crate) fn run(
        &self,
        compute: &mut Compute,
        x: &Signal,
        bent: Bent<'_>,
    ) -> Result<Signal, KernelError> {
        let (cols, step, edge) = (x.cols, self.matrix.rows, self.window - 1);
        assert_eq!(self.matrix.cols, self.window * cols, "as many channels as the convolution reads");
        let outputs = step / self.stride;
        let rows = ((x.rows - 1) * self.stride + self.kernel).saturating_sub(2 * self.padding);
        let mut lined = compute.numbers((x.rows + 2 * edge) * cols);
        compute.rows(&mut lined, cols, &|first, piece| {
            for (index, row) in piece.chunks_exact_mut(cols).enumerate() {
                match (first + index).checked_sub(edge).filter(|&from| from < x.rows) {
                    Some(from) => bent.row(x.row(from), row),
                    None => row.fill(0.0),
                }
            }
        });
        let windows = x.rows + edge;
        let mut all = compute.numbers(windows * step);
        compute.windows(&self.matrix, (&lined, cols), windows, (&mut all, step));
        compute.spent(lined);
        // Remove the padding.
        all.copy_within(self.padding * outputs..(self.padding + rows) * outputs, 0);
        all.truncate(rows * outputs);
        Ok(Signal { rows, cols: outputs, data: all })
    }
}

/// Depthwise upsampling by 2: a transposed convolution with kernel 3, stride 2, padding 1 and output padding 1.
pub(crate) struct DepthwiseUp {
    weight: Vec<f32>, // (channels, 3)
    bias: Vec<f32>,
}

impl DepthwiseUp {
    pub(crate) fn new(weight: Vec<f32>, bias: Vec<f32>) -> DepthwiseUp {
        assert_eq!(weight.len(), 3 * bias.len(), "three taps a channel");
        DepthwiseUp { weight, bias }
    }

    pub(crate) fn run(&self, x: &Signal) -> Signal {
        let mut out = Signal::zeros(2 * x.rows, x.cols);
        for row in 0..out.rows {
            for channel in 0..x.cols {
                let taps = &self.weight[3 * channel..][..3];
                let at = |row: usize| if row < x.rows { x.row(row)[channel] } else { 0.0 };
                // Row r gets tap j of row (r + 1 - j) / 2, if that is an integer.
                let value = match row % 2 {
                    0 => taps[1] * at(row / 2),
                    _ => taps[2] * at(row / 2) + taps[0] * at(row / 2 + 1),
                };
                out.row_mut(row)[channel] = value + self.bias[channel];
            }
        }
        out
    }
}
