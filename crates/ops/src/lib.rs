//! The numerical contract of the engine: ops as data, what a device must do to run them, and everything about them that
//! is the same for all devices.
//!
//! Start with [`Op`], each step of a network as data, and [`backend`], the contract of a device. [`Executor`] is the
//! object-safe form of a device that holds its operands, and [`AnyBackend`] is any of them. [`parallel`] has pipeline and
//! tensor parallelism as passes over ops. [`quant`] defines the block formats of weights, and [`sampling`] the draw of a
//! token.
//!
//! [`mod@reference`] is the naive version of each op, written to be obviously right. [`conformance`] compares any backend
//! with it: a backend is right if and only if it passes.
//!
//! This crate holds no models, no text, no history of sequences, no random numbers, no async code, no files and no fast
//! kernels. Functions that kernels call for each number or block are `#[inline]`, because programs are built without
//! link-time optimisation.

#![deny(unsafe_code)]

pub mod backend;
pub mod batch;
pub mod conformance;
pub mod dtype;
pub mod error;
mod executor;
mod op;
pub mod parallel;
pub mod quant;
pub mod reference;
pub mod sampling;

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
pub use executor::{Allocation, AnyBackend, Executor};
pub use op::{
    Access, Buckets, Buffer, BufferId, DeviceOp, Experts, ExpertsId, Handle, HeadOperands, Heads, HeadsId,
    Kv, KvId, LowRank, LowRankId, MappedOp, Matrix, MatrixId, Op, OperandId, OperandMap, Vector, VectorId,
    kind,
};
pub use parallel::{Pipeline, PipelineCut, TensorParallel};
pub use sampling::{
    Adjustment, Change, Draws, SampleSpec, SampleSpecs, SampledToken, Shape, Ticket, TokenLogprob,
};
