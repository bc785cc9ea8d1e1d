//! What networks of speech are made of. Signals are `(rows, channels)`, a row a moment in time, so that a convolution is a
//! matrix product of rows laid side by side, which runs on the kernels' packed matrices.

mod compute;
mod conv;
mod lstm;
mod norm;
mod signal;
mod stft;
mod wave;

pub(crate) use compute::{Compute, Matrix, matrix_bytes, scratch_bytes};
pub(crate) use conv::{Conv, ConvShape, DepthwiseUp, TransposedConv};
pub(crate) use lstm::{Direction as LstmDirection, Lstm};
pub(crate) use norm::{Affine, channel_stats, layer_norm};
pub(crate) use signal::Signal;
pub(crate) use stft::Stft;
pub(crate) use wave::{leaky_relu, snake};
