//! Building blocks of speech networks. Signals are `(rows, channels)`, one row for each time step. Adjacent
//! rows are contiguous in memory, so they serve directly as a row of a convolution's matrix product on the
//! kernels' packed matrices.

mod compute;
mod conv;
mod lstm;
mod norm;
mod signal;
mod stft;
mod toom;
mod wave;

pub(crate) use compute::{Compute, Matrix, matrix_bytes, scratch_bytes};
pub(crate) use conv::{Conv, ConvShape, DepthwiseUp, TransposedConv};
pub(crate) use lstm::{Direction as LstmDirection, Lstm};
pub(crate) use norm::{ChannelAffine, channel_stats, layer_norm};
pub(crate) use signal::Signal;
pub(crate) use stft::Stft;
pub(crate) use toom::KernelSplit;
pub(crate) use wave::{Bent, leaky_relu, sigmoid, tanh};
