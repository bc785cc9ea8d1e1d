//! [`AnyBackend`]: any executor, with operands by handle.

use std::ops::{Deref, DerefMut};

use super::arena::Arena;
use super::{Allocation, Executor};
use crate::{
    Backend, Buffer, BufferId, BufferRole, ExpertParts, Experts, ExpertsId, KernelError, KvSpec,
    LowRankShape, Matrix, MatrixShape, MatrixSource, Op, StepLimits, Vector, VectorId,
};

/// A device of any kind. It dereferences to its [`Executor`], and has short forms of some of its methods.
pub struct AnyBackend {
    executor: Box<dyn Executor>,
}

impl AnyBackend {
    /// A device of one kind.
    pub fn new(backend: impl Backend) -> Self {
        Self { executor: Box::new(Arena::new(backend)) }
    }

    /// An executor, behind the contract of backends.
    pub fn of_executor(executor: impl Executor + 'static) -> Self {
        Self { executor: Box::new(executor) }
    }

    /// The executor itself, if it is of this type.
    pub fn executor_ref<E: Executor + 'static>(&self) -> Option<&E> {
        self.executor.as_any().downcast_ref()
    }

    fn arena<B: Backend>(&self) -> Option<&Arena<B>> {
        self.executor.as_any().downcast_ref()
    }

    /// The backend itself, if it is of this type.
    pub fn downcast_ref<B: Backend>(&self) -> Option<&B> {
        self.arena().map(Arena::backend)
    }

    /// Reads a packed matrix of a backend of this type.
    pub fn read_matrix<B: Backend, T>(&self, of: &Matrix, read: impl FnOnce(&B::Matrix) -> T) -> Option<T> {
        self.arena::<B>().map(|arena| arena.read_matrix(of.id(), read))
    }

    /// Reads a vector of a backend of this type.
    pub fn read_vector<B: Backend, T>(&self, of: &Vector, read: impl FnOnce(&B::Vector) -> T) -> Option<T> {
        self.arena::<B>().map(|arena| arena.read_vector(of.id(), read))
    }

    /// Reads packed experts of a backend of this type.
    pub fn read_layer_experts<B: Backend, T>(
        &self,
        of: &Experts,
        read: impl FnOnce(&B::Experts) -> T,
    ) -> Option<T> {
        self.arena::<B>().map(|arena| arena.read_layer_experts(of.id(), read))
    }

    /// Runs ops of the open step, in their order.
    pub fn run_all(&mut self, ops: &[Op]) {
        ops.iter().for_each(|op| self.run(op));
    }

    /// Reads rows of a buffer, as [`Executor::read_rows`] does.
    ///
    /// # Errors
    /// The device's.
    pub fn read_rows(
        &self,
        x: impl Into<BufferId>,
        row_first: usize,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        self.executor.read_rows(x.into(), row_first, out)
    }

    /// Writes rows of a buffer, as [`Executor::write_rows`] does.
    ///
    /// # Errors
    /// The device's.
    pub fn write_rows(
        &mut self,
        x: impl Into<BufferId>,
        row_first: usize,
        rows: &[f32],
    ) -> Result<(), KernelError> {
        self.executor.write_rows(x.into(), row_first, rows)
    }

    /// Packs the next expert, as [`Executor::pack_expert`] does.
    ///
    /// # Errors
    /// The device's.
    pub fn pack_expert(
        &self,
        experts: impl Into<ExpertsId>,
        parts: &ExpertParts<MatrixSource<'_>>,
    ) -> Result<(), KernelError> {
        self.executor.pack_expert(experts.into(), parts)
    }

    /// Bytes of device memory that a packed matrix would take.
    pub fn matrix_bytes(&self, parts: &[MatrixShape]) -> usize {
        self.bytes(&Allocation::Matrix(parts))
    }

    /// Bytes of device memory that the packed experts of a layer would take.
    pub fn experts_bytes(&self, experts: &[ExpertParts<MatrixShape>]) -> usize {
        self.bytes(&Allocation::Experts(experts))
    }

    /// Bytes of device memory that an adapter's change would take.
    pub fn low_rank_bytes(&self, pairs: &[LowRankShape], changes: &[usize]) -> usize {
        self.bytes(&Allocation::LowRank { pairs, changes })
    }

    /// Bytes of device memory that a vector would take.
    pub fn vector_bytes(&self, length: usize) -> usize {
        self.bytes(&Allocation::Vector(length))
    }

    /// Bytes of device memory that a buffer would take.
    pub fn buffer_bytes(&self, role: BufferRole, rows: usize, cols: usize) -> usize {
        self.bytes(&Allocation::Buffer { role, rows, cols })
    }

    /// Bytes of device memory that a KV cache would take.
    pub fn kv_bytes(&self, spec: &KvSpec) -> usize {
        self.bytes(&Allocation::Kv(spec))
    }

    /// Bytes of device memory that scratch would take.
    pub fn scratch_bytes(&self, limits: &StepLimits) -> usize {
        self.bytes(&Allocation::Scratch(limits))
    }
}

impl Deref for AnyBackend {
    type Target = dyn Executor;

    fn deref(&self) -> &Self::Target {
        &*self.executor
    }
}

impl DerefMut for AnyBackend {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut *self.executor
    }
}

pub(crate) fn vector(vector: &Vector) -> VectorId {
    vector.id()
}

pub(crate) fn buffer(buffer: &Buffer) -> BufferId {
    buffer.id()
}
