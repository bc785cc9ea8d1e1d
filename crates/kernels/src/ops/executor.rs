//! [`Executor`]: the object-safe contract of what runs ops.

use std::any::Any;

use super::op::{HeadOperands, Op};
use super::operands::{Buffer, BufferId, Experts, ExpertsId, Heads, Kv, KvId, LowRank, Matrix, Vector};
use crate::{
    Batch, BufferRole, DType, Draws, ExpertParts, KernelError, KernelUse, KvSpec, LowRankShape, MatrixShape,
    MatrixSource, OutputDelta, Rounding, SampleSpecs, SampledToken, Stage, StepLimits, Ticket,
};

/// Something that takes memory of a device.
#[derive(Clone, Copy, Debug)]
pub enum Allocation<'a> {
    /// A packed matrix of these parts.
    Matrix(&'a [MatrixShape]),
    /// A packed kernel of a convolution.
    Kernel(&'a MatrixShape, &'a KernelUse),
    /// Experts of one layer.
    Experts(&'a [ExpertParts<MatrixShape>]),
    /// Change by one adapter to the outputs of one matrix.
    LowRank {
        /// Pairs of low-rank matrices.
        pairs: &'a [LowRankShape],
        /// Outputs of each change of outputs.
        changes: &'a [usize],
    },
    /// A vector of so many numbers.
    Vector(usize),
    /// A buffer of activations.
    Buffer {
        /// Precision.
        role: BufferRole,
        /// Rows.
        rows: usize,
        /// Columns.
        cols: usize,
    },
    /// A paged KV cache.
    Kv(&'a KvSpec),
    /// Scratch for steps within these limits.
    Scratch(&'a StepLimits),
}

/// A device that holds operands and runs ops on them. Everything above the devices is compiled against this one type.
/// [`Backend`](crate::Backend) documents each method; here operands are named by number.
pub trait Executor: Send {
    /// The executor as its own type, for [`AnyBackend::downcast_ref`](super::AnyBackend::downcast_ref).
    fn as_any(&self) -> &dyn Any;
    /// See [`Backend::knows_memories`](crate::Backend::knows_memories).
    fn knows_memories(&self) -> bool;
    /// See [`Backend::device`](crate::Backend::device).
    fn device(&self) -> String;
    /// See [`Backend::rounding`](crate::Backend::rounding).
    fn rounding(&self) -> Rounding;
    /// See [`Backend::enter`](crate::Backend::enter).
    fn enter(&self, stage: Stage);
    /// See [`Backend::supports`](crate::Backend::supports).
    fn supports(&self, dtype: DType) -> bool;
    /// Bytes of device memory that something would take, to the byte.
    fn bytes(&self, of: &Allocation<'_>) -> usize;
    /// See [`Backend::pack`](crate::Backend::pack).
    fn pack(&self, parts: &[MatrixSource<'_>]) -> Result<Matrix, KernelError>;
    /// See [`Backend::pack_kernel`](crate::Backend::pack_kernel).
    fn pack_kernel(&self, source: &MatrixSource<'_>, of: &KernelUse) -> Result<Matrix, KernelError>;
    /// See [`Backend::heads`](crate::Backend::heads).
    fn heads(&self, matrices: Vec<Matrix>) -> Heads;
    /// See [`Backend::experts`](crate::Backend::experts).
    fn experts(&self, shapes: &[ExpertParts<MatrixShape>]) -> Result<Experts, KernelError>;
    /// See [`Backend::pack_expert`](crate::Backend::pack_expert).
    fn pack_expert(
        &self,
        experts: ExpertsId,
        parts: &ExpertParts<MatrixSource<'_>>,
    ) -> Result<(), KernelError>;
    /// See [`Backend::low_rank`](crate::Backend::low_rank).
    fn low_rank(&self, delta: &OutputDelta<'_>) -> Result<LowRank, KernelError>;
    /// See [`Backend::vector`](crate::Backend::vector).
    fn vector(&self, values: &[f32]) -> Result<Vector, KernelError>;
    /// See [`Backend::buffer`](crate::Backend::buffer).
    fn buffer(&self, role: BufferRole, rows: usize, cols: usize) -> Result<Buffer, KernelError>;
    /// See [`Backend::kv`](crate::Backend::kv).
    fn kv(&self, spec: &KvSpec) -> Result<Kv, KernelError>;
    /// See [`Backend::kv_block_form`](crate::Backend::kv_block_form).
    fn kv_block_form(&self, kv: KvId) -> Option<(usize, String)>;
    /// See [`Backend::read_kv_block`](crate::Backend::read_kv_block).
    fn read_kv_block(&self, kv: KvId, block: u32, out: &mut [u8]) -> Result<(), KernelError>;
    /// See [`Backend::write_kv_block`](crate::Backend::write_kv_block).
    fn write_kv_block(&mut self, kv: KvId, block: u32, bytes: &[u8]) -> Result<(), KernelError>;
    /// See [`Backend::reserve`](crate::Backend::reserve).
    fn reserve(&mut self, limits: &StepLimits) -> Result<(), KernelError>;
    /// See [`Backend::begin`](crate::Backend::begin).
    fn begin(&mut self, batch: &Batch) -> Result<(), KernelError>;
    /// Runs one op of the open step.
    fn run(&mut self, op: &Op);
    /// See [`Backend::read_experts`](crate::Backend::read_experts).
    fn read_experts(
        &self,
        hidden: BufferId,
        chosen: &mut [u32],
        inner: &mut [f32],
    ) -> Result<(), KernelError>;
    /// See [`Backend::logits`](crate::Backend::logits).
    fn logits(&mut self, head: &HeadOperands, x: BufferId, out: &mut [f32]) -> Result<(), KernelError>;
    /// See [`Backend::sample_room`](crate::Backend::sample_room).
    fn sample_room(&self, rows: usize, vocab: usize) -> usize;
    /// See [`Backend::on_host`](crate::Backend::on_host).
    fn on_host(&mut self, tasks: usize, task: &(dyn Fn(usize) + Sync));
    /// See [`Backend::between_steps`](crate::Backend::between_steps).
    fn between_steps(&self, tasks: usize, task: &(dyn Fn(usize) + Sync));
    /// See [`Backend::sample`](crate::Backend::sample).
    fn sample(
        &mut self,
        head: &HeadOperands,
        x: BufferId,
        specs: &SampleSpecs,
        room: &mut [f32],
    ) -> Result<(), KernelError>;
    /// See [`Backend::draws`](crate::Backend::draws).
    fn draws(&mut self) -> &mut Draws;
    /// See [`Backend::lookahead`](crate::Backend::lookahead).
    fn lookahead(&self) -> usize;
    /// See [`Backend::submit`](crate::Backend::submit).
    fn submit(&mut self) -> Result<Ticket, KernelError>;
    /// See [`Backend::wait`](crate::Backend::wait).
    fn wait(&mut self, ticket: Ticket, drawn: &mut Vec<Option<SampledToken>>) -> Result<(), KernelError>;
    /// See [`Backend::end`](crate::Backend::end).
    fn end(&mut self) -> Result<(), KernelError>;
    /// See [`Backend::attends_in_parts`](crate::Backend::attends_in_parts).
    fn attends_in_parts(&self) -> bool;
    /// See [`Backend::read_rows`](crate::Backend::read_rows).
    fn read_rows(&self, x: BufferId, row_first: usize, out: &mut [f32]) -> Result<(), KernelError>;
    /// See [`Backend::write_rows`](crate::Backend::write_rows).
    fn write_rows(&mut self, x: BufferId, row_first: usize, rows: &[f32]) -> Result<(), KernelError>;
}
