//! Building blocks of speech networks, which are programs of ops on a device ([`Program`]). A [`Signal`] is `(places,
//! channels)`, one place for each time step.

mod program;
mod stft;
mod weights;

pub(crate) use program::{
    ConvExtras, Device, PROGRAM_ROWS_MAX, Program, Signal, kernel_bytes, matrix_bytes, program_scratch_bytes,
};
pub(crate) use stft::Stft;
pub(crate) use weights::{
    ChannelAffine, DenseWeights, KernelWeights, LineConvolution, LstmDirection, LstmWeights, NearWeights,
    NormWeights, same,
};
