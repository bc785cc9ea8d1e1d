//! Weights of networks on a device.

use hanzo_engine_ops::{
    ConvParams, DType, HeadShape, KernelError, KernelUse, LayerNormParams, Matrix as PackedMatrix,
    MatrixShape, MatrixSource, RelativeParams, Vector, VectorId,
};

use super::Device;

/// Scale and shift for each channel.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChannelAffine {
    pub(crate) scale: Vec<f32>,
    pub(crate) shift: Vec<f32>,
}

/// Matrix with its bias.
pub(crate) struct DenseWeights {
    pub(super) weight: PackedMatrix,
    pub(super) bias: Option<Vector>,
    pub(crate) outputs: usize,
    pub(super) inputs: usize,
}

/// Kernel of a convolution along time with its bias.
pub(crate) struct KernelWeights {
    pub(super) weight: PackedMatrix,
    pub(super) bias: Option<Vector>,
    pub(super) of: KernelUse,
    pub(super) outputs: usize,
    pub(super) channels: usize,
}

/// Scale and shift of a layer norm.
pub(crate) struct NormWeights {
    scale: Vector,
    shift: Vector,
    eps: f32,
}

/// Keys and values of near places.
pub(crate) struct NearWeights {
    pub(super) params: RelativeParams<Vector>,
}

/// Weights of one direction of an LSTM with PyTorch's shapes: `(4 * hidden, inputs)`, `(4 * hidden, hidden)` and the sum
/// of both biases. Gates are in the order input, forget, cell, output.
pub(crate) struct LstmDirection {
    pub(crate) input: Vec<f32>,
    pub(crate) hidden: Vec<f32>,
    pub(crate) bias: Vec<f32>,
}

/// Bidirectional LSTM of one layer.
pub(crate) struct LstmWeights {
    pub(super) input: DenseWeights, // (2 * 4 * hidden, inputs)
    pub(super) recurrent: Vector,   // (2, hidden, 4 * hidden)
    pub(super) hidden: usize,
}

/// Convolution along a line.
pub(crate) struct LineConvolution {
    pub(crate) taps: usize,
    pub(crate) stride: usize,
    pub(crate) dilation: usize,
    /// Zeros before and after the line.
    pub(crate) padding: [usize; 2],
    pub(crate) transposed: bool,
}

impl LineConvolution {
    /// Convolution with steps of 1 between rows and between taps.
    pub(crate) fn plain(taps: usize, padding: [usize; 2]) -> LineConvolution {
        LineConvolution { taps, stride: 1, dilation: 1, padding, transposed: false }
    }

    /// Its sizes for a kernel.
    pub(crate) fn kernel_use(self) -> KernelUse {
        let params = ConvParams {
            stride: [1, 1, self.stride],
            dilation: [1, 1, self.dilation],
            padding: [[0; 2], [0; 2], self.padding],
            ..ConvParams::along(self.taps)
        };
        KernelUse { params, transposed: self.transposed }
    }
}

/// Sizes that keep the length, for an odd kernel.
pub(crate) fn same(taps: usize, dilation: usize) -> KernelUse {
    let padding = (taps * dilation - dilation) / 2;
    LineConvolution { dilation, ..LineConvolution::plain(taps, [padding; 2]) }.kernel_use()
}

pub(super) fn f32_shape(rows: usize, cols: usize) -> MatrixShape {
    MatrixShape { rows, cols, dtype: DType::F32 }
}

fn bytes_of(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

impl NormWeights {
    pub(super) fn params(&self) -> LayerNormParams<VectorId> {
        LayerNormParams { weight: self.scale.id(), bias: Some(self.shift.id()), eps: self.eps }
    }
}

impl Device {
    /// Packs a matrix of shape `[outputs, inputs]`, row by row.
    pub(crate) fn dense(
        &self,
        name: &str,
        [outputs, inputs]: [usize; 2],
        numbers: &[f32],
        bias: Option<&[f32]>,
    ) -> Result<DenseWeights, KernelError> {
        assert_eq!(numbers.len(), outputs * inputs, "{name} has as many numbers as its shape says");
        let (shape, bytes) = (f32_shape(outputs, inputs), bytes_of(numbers));
        let weight = self.backend.pack(&[MatrixSource { name, shape, bytes: &bytes }])?;
        Ok(DenseWeights { weight, bias: self.vector_if(bias)?, outputs, inputs })
    }

    /// Packs a kernel from PyTorch's weight: `(out, in / groups, taps)`, or `(in, out / groups, taps)` of a transposed
    /// convolution.
    pub(crate) fn kernel(
        &self,
        name: &str,
        [outer, inner, taps]: [usize; 3],
        numbers: &[f32],
        bias: Option<&[f32]>,
        of: KernelUse,
    ) -> Result<KernelWeights, KernelError> {
        let (shape, bytes) = (f32_shape(outer, inner * taps), bytes_of(numbers));
        let weight = self.backend.pack_kernel(&MatrixSource { name, shape, bytes: &bytes }, &of)?;
        let inner = inner * of.params.groups;
        let (outputs, channels) = if of.transposed { (inner, outer) } else { (outer, inner) };
        Ok(KernelWeights { weight, bias: self.vector_if(bias)?, of, outputs, channels })
    }

    pub(crate) fn norm(&self, affine: &ChannelAffine, eps: f32) -> Result<NormWeights, KernelError> {
        let (scale, shift) = (self.backend.vector(&affine.scale)?, self.backend.vector(&affine.shift)?);
        Ok(NormWeights { scale, shift, eps })
    }

    /// Keys and values of near places, each `(2 * reach + 1, head_dim)`, for so many heads.
    pub(crate) fn near(
        &self,
        heads: usize,
        head_dim: usize,
        reach: usize,
        [keys, values]: [&[f32]; 2],
    ) -> Result<NearWeights, KernelError> {
        let heads = HeadShape { heads, kv_heads: heads, head_dim };
        let scale = 1.0 / (head_dim as f32).sqrt();
        let (keys, values) = (self.backend.vector(keys)?, self.backend.vector(values)?);
        Ok(NearWeights { params: RelativeParams { heads, scale, reach, keys, values } })
    }

    /// Packs an LSTM.
    pub(crate) fn lstm(
        &self,
        name: &str,
        inputs: usize,
        directions: [LstmDirection; 2],
    ) -> Result<LstmWeights, KernelError> {
        let hidden = directions[0].bias.len() / 4;
        let turned = |weight: &[f32]| -> Vec<f32> {
            (0..hidden)
                .flat_map(|from| (0..4 * hidden).map(move |gate| weight[gate * hidden + from]))
                .collect()
        };
        let recurrent = [turned(&directions[0].hidden), turned(&directions[1].hidden)].concat();
        let [forward, backward] = directions;
        let weight = [forward.input, backward.input].concat();
        let bias = [forward.bias, backward.bias].concat();
        let input = self.dense(name, [8 * hidden, inputs], &weight, Some(&bias))?;
        Ok(LstmWeights { input, recurrent: self.backend.vector(&recurrent)?, hidden })
    }

    pub(crate) fn vector(&self, numbers: &[f32]) -> Result<Vector, KernelError> {
        self.backend.vector(numbers)
    }

    fn vector_if(&self, numbers: Option<&[f32]>) -> Result<Option<Vector>, KernelError> {
        numbers.map(|numbers| self.backend.vector(numbers)).transpose()
    }
}
