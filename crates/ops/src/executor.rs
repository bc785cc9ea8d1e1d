//! [`Executor`]: the object-safe contract of what runs ops.

mod any_backend;
mod arena;
mod slots;
#[cfg(test)]
mod tests;

use std::any::Any;

use crate::{
    Batch, BlockCopy, Buffer, BufferId, BufferRole, DType, Draws, ExpertParts, Experts, ExpertsId, Facts,
    HeadOperands, Heads, KernelError, KernelUse, Kv, KvId, KvSpec, LowRank, LowRankShape, Matrix,
    MatrixShape, MatrixSource, Op, OutputDelta, SampleSpecs, SampledToken, Stage, StepLimits, Ticket, Vector,
};

pub use any_backend::AnyBackend;
pub(crate) use any_backend::{buffer, vector};
pub(crate) use arena::Arena;
pub(crate) use slots::{Cells, Slots};

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
    /// The executor as its own type, for [`AnyBackend::downcast_ref`].
    fn as_any(&self) -> &dyn Any;
    /// See [`DeviceMemory::facts`](crate::DeviceMemory::facts).
    fn facts(&self) -> &Facts;
    /// Says that all sizes, packed weights, buffers and ops from here on belong to this part of the network, until the
    /// next call. Devices that share a network ([`crate::Pipeline`]) use it to find the owner. An op may only use
    /// weights that were packed in its own part.
    fn enter(&self, _stage: Stage) {}
    /// Whether the devices of the current part can pack matrices of this type.
    fn supports(&self, dtype: DType) -> bool {
        self.facts().supports(dtype)
    }
    /// Bytes of device memory that something would take, to the byte.
    fn bytes(&self, of: &Allocation<'_>) -> usize;
    /// See [`DeviceMemory::pack`](crate::DeviceMemory::pack).
    fn pack(&self, parts: &[MatrixSource<'_>]) -> Result<Matrix, KernelError>;
    /// See [`DeviceMemory::pack_kernel`](crate::DeviceMemory::pack_kernel).
    fn pack_kernel(&self, source: &MatrixSource<'_>, of: &KernelUse) -> Result<Matrix, KernelError>;
    /// Packed matrices, one for each head.
    fn heads(&self, matrices: Vec<Matrix>) -> Heads;
    /// See [`DeviceMemory::experts`](crate::DeviceMemory::experts).
    fn experts(&self, shapes: &[ExpertParts<MatrixShape>]) -> Result<Experts, KernelError>;
    /// See [`DeviceMemory::pack_expert`](crate::DeviceMemory::pack_expert).
    fn pack_expert(
        &self,
        experts: ExpertsId,
        parts: &ExpertParts<MatrixSource<'_>>,
    ) -> Result<(), KernelError>;
    /// See [`DeviceMemory::low_rank`](crate::DeviceMemory::low_rank).
    fn low_rank(&self, delta: &OutputDelta<'_>) -> Result<LowRank, KernelError>;
    /// See [`DeviceMemory::vector`](crate::DeviceMemory::vector).
    fn vector(&self, values: &[f32]) -> Result<Vector, KernelError>;
    /// See [`DeviceMemory::buffer`](crate::DeviceMemory::buffer).
    fn buffer(&self, role: BufferRole, rows: usize, cols: usize) -> Result<Buffer, KernelError>;
    /// See [`DeviceMemory::kv`](crate::DeviceMemory::kv).
    fn kv(&self, spec: &KvSpec) -> Result<Kv, KernelError>;
    /// See [`DeviceMemory::kv_block_form`](crate::DeviceMemory::kv_block_form).
    fn kv_block_form(&self, kv: KvId) -> Option<(usize, String)>;
    /// See [`DeviceMemory::copy_kv_block`](crate::DeviceMemory::copy_kv_block).
    fn copy_kv_block(&mut self, kv: KvId, block: u32, copy: BlockCopy<'_>) -> Result<(), KernelError>;
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
    /// See [`Backend::on_host`](crate::Backend::on_host).
    fn on_host(&self, tasks: usize, task: &(dyn Fn(usize) + Sync));
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
    /// See [`Backend::submit`](crate::Backend::submit).
    fn submit(&mut self) -> Result<Ticket, KernelError>;
    /// See [`Backend::wait`](crate::Backend::wait).
    fn wait(&mut self, ticket: Ticket, drawn: &mut Vec<Option<SampledToken>>) -> Result<(), KernelError>;
    /// See [`Backend::end`](crate::Backend::end).
    fn end(&mut self) -> Result<(), KernelError>;
    /// See [`DeviceMemory::read_rows`](crate::DeviceMemory::read_rows).
    fn read_rows(&self, x: BufferId, row_first: usize, out: &mut [f32]) -> Result<(), KernelError>;
    /// See [`DeviceMemory::write_rows`](crate::DeviceMemory::write_rows).
    fn write_rows(&mut self, x: BufferId, row_first: usize, rows: &[f32]) -> Result<(), KernelError>;
}
