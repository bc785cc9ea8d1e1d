//! The numerical contract of the engine and its CPU implementation.
//!
//! Start with [`backend`]: the ops that a step consists of, on packed rows without padding. [`mod@reference`] is the
//! naive version of each op, written to be obviously right. [`conformance`] compares any backend with it: a backend
//! is right if and only if it passes. [`cpu`] is the fast backend for x86-64 and aarch64.
//!
//! This crate holds no models, no text, no history of sequences, no random numbers, no async code and no files.

pub mod backend;
pub mod batch;
pub mod conformance;
pub mod cpu;
pub mod dtype;
pub mod error;
pub mod heap;
pub mod ops;
pub mod pipeline;
pub mod quant;
pub mod reference;
pub mod sampling;
pub mod tensor_parallel;

pub use backend::{
    Activation, AdaptedLogits, AttentionParams, Backend, BlockCopy, BufferRole, ConvParams,
    ConvolutionParams, DeviceMemory, ExpertGroups, ExpertParts, ExpertScoring, Facts, GateKind, HeadShape,
    KernelUse, KvGroups, KvLayout, KvPlace, KvSpec, KvType, LatentHeads, LatentParams, LayerNormParams,
    LogitsHead, LowRankPair, LowRankShape, MatrixShape, MatrixSource, MoeOperands, MoeParams, MoeWeights,
    NO_EXPERT, NormColumns, Operands, OutputChange, OutputDelta, OutputGateParams, OutputNorm, Peers,
    PointActivation, PositionBias, QUERIES_PART, QkvParams, QueryScale, RecurrenceParams, RelativeParams,
    Rope, RopeAxes, RopeKind, Rounding, RowIds, RowOp, SelfAttentionParams, Stage, StateRule, StateShape,
    StepLimits,
};
pub use batch::{BLOCK_TOKENS, Batch, MemorySpan, RowSource, SequenceSpan};
pub use dtype::DType;
pub use error::KernelError;
pub use ops::AnyBackend;
pub use pipeline::{Pipeline, PipelineCut};
pub use sampling::{
    Adjustment, Change, Draws, SampleSpec, SampleSpecs, SampledToken, Shape, Ticket, TokenLogprob,
};
pub use tensor_parallel::TensorParallel;
