//! Convolutions along time: of rows laid side by side (`out[t] = Σ_j W_j · x[t·stride + j·dilation - padding]`), turned round
//! (`out[t·stride + j - padding] += W_j · x[t]`), and a channel by itself.

use hanzo_engine_kernels::KernelError;

use super::{Compute, Matrix, Signal};

/// How a convolution moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConvShape {
    pub(crate) stride: usize,
    pub(crate) dilation: usize,
    /// Rows of zeros before the first row and after the last one.
    pub(crate) padding: (usize, usize),
}

impl ConvShape {
    /// That leaves the length as it is, for an odd kernel.
    pub(crate) fn same(kernel: usize, dilation: usize) -> ConvShape {
        let padding = (kernel * dilation - dilation) / 2;
        ConvShape { stride: 1, dilation, padding: (padding, padding) }
    }
}

/// A convolution.
pub(crate) struct Conv {
    matrix: Matrix, // (out, kernel, in)
    inputs: usize,
    kernel: usize,
    shape: ConvShape,
}

impl Conv {
    /// Of PyTorch's weight, `(out, in, kernel)`.
    pub(crate) fn new(
        compute: &Compute,
        name: &str,
        [outputs, inputs, kernel]: [usize; 3],
        weight: &[f32],
        bias: Option<&[f32]>,
        shape: ConvShape,
    ) -> Result<Conv, KernelError> {
        let mut turned = Vec::with_capacity(weight.len());
        for out in weight.chunks_exact(inputs * kernel) {
            for tap in 0..kernel {
                turned.extend((0..inputs).map(|input| out[input * kernel + tap]));
            }
        }
        let matrix = compute.pack(name, (outputs, kernel * inputs), &turned, bias)?;
        Ok(Conv { matrix, inputs, kernel, shape })
    }

    pub(crate) fn run(&self, compute: &mut Compute, x: &Signal) -> Result<Signal, KernelError> {
        assert_eq!(x.cols, self.inputs, "as many channels as the convolution reads");
        let ConvShape { stride, dilation, padding: (before, after) } = self.shape;
        let padded = x.rows + before + after;
        let reach = dilation * (self.kernel - 1) + 1;
        let rows = if padded < reach { 0 } else { (padded - reach) / stride + 1 };
        compute.product(&self.matrix, rows, &|row, out| {
            let first = row * stride;
            for (tap, out) in out.chunks_exact_mut(self.inputs).enumerate() {
                let from = (first + tap * dilation).checked_sub(before);
                if let Some(from) = from.filter(|&from| from < x.rows) {
                    out.copy_from_slice(x.row(from));
                }
            }
        })
    }
}

/// A convolution turned round, which makes a signal longer.
pub(crate) struct TransposedConv {
    matrix: Matrix, // (kernel, out) of in
    bias: Vec<f32>,
    kernel: usize,
    stride: usize,
    padding: usize,
}

impl TransposedConv {
    /// Of PyTorch's weight, `(in, out, kernel)`.
    pub(crate) fn new(
        compute: &Compute,
        name: &str,
        [inputs, outputs, kernel]: [usize; 3],
        weight: &[f32],
        bias: Option<&[f32]>,
        (stride, padding): (usize, usize),
    ) -> Result<TransposedConv, KernelError> {
        let mut turned = Vec::with_capacity(weight.len());
        for tap in 0..kernel {
            for output in 0..outputs {
                turned.extend((0..inputs).map(|input| weight[(input * outputs + output) * kernel + tap]));
            }
        }
        let matrix = compute.pack(name, (kernel * outputs, inputs), &turned, None)?;
        let bias = bias.map_or_else(|| vec![0.0; outputs], <[f32]>::to_vec);
        Ok(TransposedConv { matrix, bias, kernel, stride, padding })
    }

    pub(crate) fn run(&self, compute: &mut Compute, x: &Signal) -> Result<Signal, KernelError> {
        let taps = compute.linear(&self.matrix, x)?;
        let outputs = self.bias.len();
        let rows = ((x.rows - 1) * self.stride + self.kernel).saturating_sub(2 * self.padding);
        let mut out = Signal::zeros(rows, outputs);
        // Each row is the sum of the taps that meet in it, in their order.
        compute.rows(&mut out.data, outputs, &|first, piece| {
            for (index, row) in piece.chunks_exact_mut(outputs).enumerate() {
                row.copy_from_slice(&self.bias);
                let at = first + index + self.padding;
                for tap in (at % self.stride..self.kernel.min(at + 1)).step_by(self.stride) {
                    let from = (at - tap) / self.stride;
                    if from < x.rows {
                        let part = &taps.row(from)[tap * outputs..][..outputs];
                        row.iter_mut().zip(part).for_each(|(sum, &part)| *sum += part);
                    }
                }
            }
        });
        Ok(out)
    }
}

/// Twice as long, each channel by itself: a transposed convolution of kernel 3, stride 2, padding 1 and one row more.
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
                // Row r gets tap j of row (r + 1 - j) / 2 where that is whole.
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
