//! [`AnyBackend`]: any executor, with operands by handle.

use super::arena::Arena;
use super::executor::{Allocation, Executor};
use super::op::{HeadOperands, Op};
use super::operands::{Buffer, BufferId, Experts, Handle, Heads, Kv, LowRank, Matrix, Vector, VectorId};
use crate::{
    Backend, Batch, BufferRole, DType, Draws, ExpertParts, KernelError, KernelUse, KvSpec, LogitsHead,
    LowRankShape, MatrixShape, MatrixSource, OperandTypes, OutputDelta, Rounding, SampleSpecs, SampledToken,
    Stage, StepLimits, Ticket,
};

/// A device of any kind. Each call becomes an [`Op`] or a request of its [`Executor`].
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

    pub(crate) fn executor(&self) -> &dyn Executor {
        &*self.executor
    }

    pub(crate) fn executor_mut(&mut self) -> &mut dyn Executor {
        &mut *self.executor
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

    /// Runs one op of the open step. The op's operands are this backend's.
    pub fn run(&mut self, op: &Op) {
        self.executor.run(op);
    }

    /// Runs ops of the open step, in their order.
    pub fn run_all(&mut self, ops: &[Op]) {
        ops.iter().for_each(|op| self.run(op));
    }

    /// Reads rows of a buffer, as [`Backend::read_rows`] does.
    ///
    /// # Errors
    /// The device's.
    pub fn read_buffer(&self, x: BufferId, row_first: usize, out: &mut [f32]) -> Result<(), KernelError> {
        self.executor.read_rows(x, row_first, out)
    }

    /// Writes the logits of the batch's rows that ask for them, as [`Backend::logits`] does.
    ///
    /// # Errors
    /// The device's.
    pub fn compute_logits(
        &mut self,
        head: &HeadOperands,
        x: BufferId,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        self.executor.logits(head, x, out)
    }

    /// Reads the experts that the last mixture chose and the activations inside them, as [`Backend::read_experts`] does.
    ///
    /// # Errors
    /// The device's.
    pub fn read_chosen_experts(
        &self,
        hidden: BufferId,
        chosen: &mut [u32],
        inner: &mut [f32],
    ) -> Result<(), KernelError> {
        self.executor.read_experts(hidden, chosen, inner)
    }
}

pub(crate) fn vector(vector: &Vector) -> VectorId {
    vector.id()
}

pub(crate) fn buffer(buffer: &Buffer) -> BufferId {
    buffer.id()
}

impl OperandTypes for AnyBackend {
    type Matrix = Matrix;
    type Vector = Vector;
    type Experts = Experts;
    type Heads = Heads;
    type LowRank = LowRank;
    type Buffer = Buffer;
    type Kv = Kv;
}

impl AnyBackend {
    /// See [`Backend::knows_memories`].
    pub fn knows_memories(&self) -> bool {
        self.executor.knows_memories()
    }

    /// See [`Backend::device`].
    pub fn device(&self) -> String {
        self.executor.device()
    }

    /// See [`Backend::rounding`].
    pub fn rounding(&self) -> Rounding {
        self.executor.rounding()
    }

    /// See [`Backend::enter`].
    pub fn enter(&self, stage: Stage) {
        self.executor.enter(stage);
    }

    /// See [`Backend::supports`].
    pub fn supports(&self, dtype: DType) -> bool {
        self.executor.supports(dtype)
    }

    /// Bytes of device memory that a packed matrix would take.
    pub fn matrix_bytes(&self, parts: &[MatrixShape]) -> usize {
        self.executor.bytes(&Allocation::Matrix(parts))
    }

    /// See [`Backend::pack`].
    pub fn pack(&self, parts: &[MatrixSource<'_>]) -> Result<Matrix, KernelError> {
        self.executor.pack(parts)
    }

    /// Bytes of device memory that a packed kernel would take.
    pub fn kernel_bytes(&self, shape: &MatrixShape, of: &KernelUse) -> usize {
        self.executor.bytes(&Allocation::Kernel(shape, of))
    }

    /// See [`Backend::pack_kernel`].
    pub fn pack_kernel(&self, source: &MatrixSource<'_>, of: &KernelUse) -> Result<Matrix, KernelError> {
        self.executor.pack_kernel(source, of)
    }

    /// See [`Backend::heads`].
    pub fn heads(&self, matrices: Vec<Matrix>) -> Heads {
        self.executor.heads(matrices)
    }

    /// Bytes of device memory that the packed experts of a layer would take.
    pub fn experts_bytes(&self, experts: &[ExpertParts<MatrixShape>]) -> usize {
        self.executor.bytes(&Allocation::Experts(experts))
    }

    /// See [`Backend::experts`].
    pub fn experts(&self, shapes: &[ExpertParts<MatrixShape>]) -> Result<Experts, KernelError> {
        self.executor.experts(shapes)
    }

    /// See [`Backend::pack_expert`].
    pub fn pack_expert(
        &self,
        experts: &mut Experts,
        parts: &ExpertParts<MatrixSource<'_>>,
    ) -> Result<(), KernelError> {
        self.executor.pack_expert(experts.id(), parts)
    }

    /// Bytes of device memory that an adapter's change would take.
    pub fn low_rank_bytes(&self, pairs: &[LowRankShape], changes: &[usize]) -> usize {
        self.executor.bytes(&Allocation::LowRank { pairs, changes })
    }

    /// See [`Backend::low_rank`].
    pub fn low_rank(&self, delta: &OutputDelta<'_>) -> Result<LowRank, KernelError> {
        self.executor.low_rank(delta)
    }

    /// Bytes of device memory that a vector would take.
    pub fn vector_bytes(&self, length: usize) -> usize {
        self.executor.bytes(&Allocation::Vector(length))
    }

    /// See [`Backend::vector`].
    pub fn vector(&self, values: &[f32]) -> Result<Vector, KernelError> {
        self.executor.vector(values)
    }

    /// Bytes of device memory that a buffer would take.
    pub fn buffer_bytes(&self, role: BufferRole, rows: usize, cols: usize) -> usize {
        self.executor.bytes(&Allocation::Buffer { role, rows, cols })
    }

    /// See [`Backend::buffer`].
    pub fn buffer(&self, role: BufferRole, rows: usize, cols: usize) -> Result<Buffer, KernelError> {
        self.executor.buffer(role, rows, cols)
    }

    /// Bytes of device memory that a KV cache would take.
    pub fn kv_bytes(&self, spec: &KvSpec) -> usize {
        self.executor.bytes(&Allocation::Kv(spec))
    }

    /// See [`Backend::kv`].
    pub fn kv(&self, spec: &KvSpec) -> Result<Kv, KernelError> {
        self.executor.kv(spec)
    }

    /// See [`Backend::kv_block_form`].
    pub fn kv_block_form(&self, kv: &Kv) -> Option<(usize, String)> {
        self.executor.kv_block_form(kv.id())
    }

    /// See [`Backend::read_kv_block`].
    pub fn read_kv_block(&self, kv: &Kv, block: u32, out: &mut [u8]) -> Result<(), KernelError> {
        self.executor.read_kv_block(kv.id(), block, out)
    }

    /// See [`Backend::write_kv_block`].
    pub fn write_kv_block(&mut self, kv: &mut Kv, block: u32, bytes: &[u8]) -> Result<(), KernelError> {
        self.executor.write_kv_block(kv.id(), block, bytes)
    }

    /// Bytes of device memory that scratch would take.
    pub fn scratch_bytes(&self, limits: &StepLimits) -> usize {
        self.executor.bytes(&Allocation::Scratch(limits))
    }

    /// See [`Backend::reserve`].
    pub fn reserve(&mut self, limits: &StepLimits) -> Result<(), KernelError> {
        self.executor.reserve(limits)
    }

    /// See [`Backend::begin`].
    pub fn begin(&mut self, batch: &Batch) -> Result<(), KernelError> {
        self.executor.begin(batch)
    }

    /// See [`Backend::read_experts`].
    pub fn read_experts(
        &self,
        hidden: &Buffer,
        chosen: &mut [u32],
        inner: &mut [f32],
    ) -> Result<(), KernelError> {
        self.executor.read_experts(hidden.id(), chosen, inner)
    }

    /// See [`Backend::logits`].
    pub fn logits(
        &mut self,
        head: LogitsHead<'_, Self>,
        x: &Buffer,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        self.executor.logits(&numbered_head(head), x.id(), out)
    }

    /// See [`Backend::sample_room`].
    pub fn sample_room(&self, rows: usize, vocab: usize) -> usize {
        self.executor.sample_room(rows, vocab)
    }

    /// See [`Backend::on_host`].
    pub fn on_host(&mut self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        self.executor.on_host(tasks, task);
    }

    /// See [`Backend::between_steps`].
    pub fn between_steps(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        self.executor.between_steps(tasks, task);
    }

    /// See [`Backend::sample`].
    pub fn sample(
        &mut self,
        head: LogitsHead<'_, Self>,
        x: &Buffer,
        specs: &SampleSpecs,
        room: &mut [f32],
    ) -> Result<(), KernelError> {
        self.executor.sample(&numbered_head(head), x.id(), specs, room)
    }

    /// See [`Backend::draws`].
    pub fn draws(&mut self) -> &mut Draws {
        self.executor.draws()
    }

    /// See [`Backend::lookahead`].
    pub fn lookahead(&self) -> usize {
        self.executor.lookahead()
    }

    /// See [`Backend::submit`].
    pub fn submit(&mut self) -> Result<Ticket, KernelError> {
        self.executor.submit()
    }

    /// See [`Backend::wait`].
    pub fn wait(&mut self, ticket: Ticket, drawn: &mut Vec<Option<SampledToken>>) -> Result<(), KernelError> {
        self.executor.wait(ticket, drawn)
    }

    /// See [`Backend::end`].
    pub fn end(&mut self) -> Result<(), KernelError> {
        self.executor.end()
    }

    /// See [`Backend::read_rows`].
    pub fn read_rows(&self, x: &Buffer, row_first: usize, out: &mut [f32]) -> Result<(), KernelError> {
        self.executor.read_rows(x.id(), row_first, out)
    }

    /// See [`Backend::write_rows`].
    pub fn write_rows(&mut self, x: &mut Buffer, row_first: usize, rows: &[f32]) -> Result<(), KernelError> {
        self.executor.write_rows(x.id(), row_first, rows)
    }
}

impl AnyBackend {
    /// See [`Backend::attends_in_parts`].
    pub fn attends_in_parts(&self) -> bool {
        self.executor.attends_in_parts()
    }
}

/// A head with its operands by number.
fn numbered_head(head: LogitsHead<'_, AnyBackend>) -> HeadOperands {
    let number = |of: &Option<&LowRank>| of.map(Handle::id);
    let adapted = head.adapted.map(|of| (of.deltas.iter().map(number).collect(), of.low.id()));
    HeadOperands { matrix: head.matrix.id(), adapted }
}
