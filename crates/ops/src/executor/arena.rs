//! [`Arena`]: an executor made of a backend and the operands that it holds.

use std::any::Any;
use std::cell::Cell;
use std::sync::Arc;

use super::slots::{Cells, Slots};
use super::{Allocation, Executor};
use crate::op::WRITTEN_MAX;
use crate::{
    Access, AdaptedLogits, Backend, Batch, BlockCopy, Buckets, Buffer, BufferId, BufferRole, DeviceMemory,
    Draws, ExpertParts, Experts, ExpertsId, Facts, HeadOperands, Heads, HeadsId, KernelError, KernelUse, Kv,
    KvId, KvSpec, LogitsHead, LowRank, LowRankId, Matrix, MatrixId, MatrixShape, MatrixSource, Op,
    OperandMap, OutputDelta, SampleSpecs, SampledToken, StepLimits, Ticket, Vector, VectorId,
};

/// A backend and its operands.
pub(crate) struct Arena<B: Backend> {
    pub(crate) backend: B,
    matrices: Arc<Slots<B::Matrix>>,
    vectors: Arc<Slots<B::Vector>>,
    experts: Arc<Slots<B::Experts>>,
    heads: Arc<Slots<Vec<B::Matrix>>>,
    low_ranks: Arc<Slots<B::LowRank>>,
    pub(crate) buffers: Arc<Slots<B::Buffer>>,
    kvs: Arc<Slots<B::Kv>>,
}

impl<B: Backend> Arena<B> {
    pub(crate) fn new(backend: B) -> Self {
        Self {
            backend,
            matrices: Slots::new(),
            vectors: Slots::new(),
            experts: Slots::new(),
            heads: Slots::new(),
            low_ranks: Slots::new(),
            buffers: Slots::new(),
            kvs: Slots::new(),
        }
    }

    pub(crate) fn backend(&self) -> &B {
        &self.backend
    }

    pub(crate) fn backend_mut(&mut self) -> &mut B {
        &mut self.backend
    }

    pub(crate) fn read_matrix<T>(&self, id: MatrixId, read: impl FnOnce(&B::Matrix) -> T) -> T {
        read(self.matrices.lock().get(id))
    }

    pub(crate) fn read_vector<T>(&self, id: VectorId, read: impl FnOnce(&B::Vector) -> T) -> T {
        read(self.vectors.lock().get(id))
    }

    pub(crate) fn read_layer_experts<T>(&self, id: ExpertsId, read: impl FnOnce(&B::Experts) -> T) -> T {
        read(self.experts.lock().get(id))
    }

    /// Calls `run` with a head's operands themselves, and the rows that it reads.
    fn with_head(
        &mut self,
        head: &HeadOperands,
        x: BufferId,
        run: impl FnOnce(&mut B, LogitsHead<'_, B>, &B::Buffer) -> Result<(), KernelError>,
    ) -> Result<(), KernelError> {
        let (matrices, low_ranks) = (self.matrices.lock(), self.low_ranks.lock());
        let mut buffers = self.buffers.lock();
        let (backend, matrix) = (&mut self.backend, matrices.get(head.matrix));
        let Some((deltas, low)) = &head.adapted else {
            return run(backend, LogitsHead::of(matrix), buffers.get(x));
        };
        let deltas = low_ranks_of(&low_ranks, deltas);
        let mut result = Ok(());
        buffers.change(*low, |buffers, low| {
            let adapted = Some(AdaptedLogits { deltas: &deltas, low });
            result = run(backend, LogitsHead { matrix, adapted }, buffers.get(x));
        });
        result
    }
}

/// The adapters' additions themselves: a list of as many as adapters are loaded.
fn low_ranks_of<'a, L>(cells: &'a Cells<L>, ids: &[Option<LowRankId>]) -> Vec<Option<&'a L>> {
    ids.iter().map(|id| id.map(|id| cells.get(id))).collect()
}

/// An arena's operands, lent to one op.
struct Loan<'a, B: Backend> {
    matrices: &'a Cells<B::Matrix>,
    vectors: &'a Cells<B::Vector>,
    experts: &'a Cells<B::Experts>,
    heads: &'a Cells<Vec<B::Matrix>>,
    low_ranks: &'a Cells<B::LowRank>,
    read: &'a Cells<B::Buffer>,
    written: [WrittenBuffer<'a, B>; WRITTEN_MAX],
    kvs: Cell<Option<&'a mut Cells<B::Kv>>>,
}

/// A buffer that an op writes, until it is handed out.
type WrittenBuffer<'a, B> = Cell<Option<(BufferId, &'a mut <B as DeviceMemory>::Buffer)>>;

impl<'a, B: Backend> OperandMap<'a> for Loan<'a, B> {
    type Matrix = &'a B::Matrix;
    type Vector = &'a B::Vector;
    type Experts = &'a B::Experts;
    type Heads = &'a Vec<B::Matrix>;
    type LowRank = &'a B::LowRank;
    type Read = &'a B::Buffer;
    type Write = &'a mut B::Buffer;
    type Kv = &'a mut B::Kv;
    type Buckets = &'a [u32];

    fn matrix(&self, id: MatrixId) -> &'a B::Matrix {
        self.matrices.get(id)
    }

    fn vector(&self, id: VectorId) -> &'a B::Vector {
        self.vectors.get(id)
    }

    fn experts(&self, id: ExpertsId) -> &'a B::Experts {
        self.experts.get(id)
    }

    fn heads(&self, id: HeadsId) -> &'a Vec<B::Matrix> {
        self.heads.get(id)
    }

    fn low_rank(&self, id: LowRankId) -> &'a B::LowRank {
        self.low_ranks.get(id)
    }

    fn read(&self, id: BufferId, _: Access) -> &'a B::Buffer {
        self.read.get(id)
    }

    fn write(&self, id: BufferId, _: Access) -> &'a mut B::Buffer {
        for cell in &self.written {
            match cell.take() {
                Some((of, buffer)) if of == id => return buffer,
                other => cell.set(other),
            }
        }
        unreachable!("an op writes the buffers that `Op::buffers` lists, each once")
    }

    fn kv(&self, id: KvId, layer: usize) -> (&'a mut B::Kv, usize) {
        (self.kvs.take().expect("an op works on one cache").get_mut(id), layer)
    }

    fn buckets(&self, buckets: &'a Buckets) -> &'a [u32] {
        buckets
    }
}

impl<B: Backend> Executor for Arena<B> {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn facts(&self) -> &Facts {
        self.backend.facts()
    }

    fn bytes(&self, of: &Allocation<'_>) -> usize {
        self.backend.bytes(of)
    }

    fn pack(&self, parts: &[MatrixSource<'_>]) -> Result<Matrix, KernelError> {
        Ok(self.matrices.insert(self.backend.pack(parts)?))
    }

    fn pack_kernel(&self, source: &MatrixSource<'_>, of: &KernelUse) -> Result<Matrix, KernelError> {
        Ok(self.matrices.insert(self.backend.pack_kernel(source, of)?))
    }

    fn heads(&self, matrices: Vec<Matrix>) -> Heads {
        let mut cells = self.matrices.lock();
        let operands = matrices.iter().map(|matrix| cells.take(matrix.id())).collect();
        drop(cells);
        self.heads.insert(operands)
    }

    fn experts(&self, shapes: &[ExpertParts<MatrixShape>]) -> Result<Experts, KernelError> {
        Ok(self.experts.insert(self.backend.experts(shapes)?))
    }

    fn pack_expert(
        &self,
        experts: ExpertsId,
        parts: &ExpertParts<MatrixSource<'_>>,
    ) -> Result<(), KernelError> {
        // Without the lock: several layers may be packed at once.
        let mut operand = self.experts.lock().take(experts);
        let packed = self.backend.pack_expert(&mut operand, parts);
        self.experts.lock().put(experts, operand);
        packed
    }

    fn low_rank(&self, delta: &OutputDelta<'_>) -> Result<LowRank, KernelError> {
        Ok(self.low_ranks.insert(self.backend.low_rank(delta)?))
    }

    fn vector(&self, values: &[f32]) -> Result<Vector, KernelError> {
        Ok(self.vectors.insert(self.backend.vector(values)?))
    }

    fn buffer(&self, role: BufferRole, rows: usize, cols: usize) -> Result<Buffer, KernelError> {
        Ok(self.buffers.insert(self.backend.buffer(role, rows, cols)?))
    }

    fn kv(&self, spec: &KvSpec) -> Result<Kv, KernelError> {
        Ok(self.kvs.insert(self.backend.kv(spec)?))
    }

    fn kv_block_form(&self, kv: KvId) -> Option<(usize, String)> {
        self.backend.kv_block_form(self.kvs.lock().get(kv))
    }

    fn copy_kv_block(&mut self, kv: KvId, block: u32, copy: BlockCopy<'_>) -> Result<(), KernelError> {
        self.backend.copy_kv_block(self.kvs.lock().get_mut(kv), block, copy)
    }

    fn reserve(&mut self, limits: &StepLimits) -> Result<(), KernelError> {
        self.backend.reserve(limits)
    }

    fn begin(&mut self, batch: &Batch) -> Result<(), KernelError> {
        self.backend.begin(batch)
    }

    fn run(&mut self, op: &Op) {
        let mut buffers = self.buffers.lock();
        let mut written = op.written().map(|id| id.map(|id| (id, buffers.take(id))));
        let mut kvs = op.kv_layer().map(|_| self.kvs.lock());
        let loan = Loan::<B> {
            matrices: &self.matrices.lock(),
            vectors: &self.vectors.lock(),
            experts: &self.experts.lock(),
            heads: &self.heads.lock(),
            low_ranks: &self.low_ranks.lock(),
            read: &buffers,
            written: written
                .each_mut()
                .map(|slot| Cell::new(slot.as_mut().map(|(id, buffer)| (*id, buffer)))),
            kvs: Cell::new(kvs.as_deref_mut()),
        };
        self.backend.run(op.map(&loan));
        for (id, buffer) in written.into_iter().flatten() {
            buffers.put(id, buffer);
        }
    }

    fn read_experts(
        &self,
        hidden: BufferId,
        chosen: &mut [u32],
        inner: &mut [f32],
    ) -> Result<(), KernelError> {
        self.backend.read_experts(self.buffers.lock().get(hidden), chosen, inner)
    }

    fn logits(&mut self, head: &HeadOperands, x: BufferId, out: &mut [f32]) -> Result<(), KernelError> {
        self.with_head(head, x, |backend, head, x| backend.logits(head, x, out))
    }

    fn on_host(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        self.backend.on_host(tasks, task);
    }

    fn sample(
        &mut self,
        head: &HeadOperands,
        x: BufferId,
        specs: &SampleSpecs,
        room: &mut [f32],
    ) -> Result<(), KernelError> {
        self.with_head(head, x, |backend, head, x| backend.sample(head, x, specs, room))
    }

    fn draws(&mut self) -> &mut Draws {
        self.backend.draws()
    }

    fn submit(&mut self) -> Result<Ticket, KernelError> {
        self.backend.submit()
    }

    fn wait(&mut self, ticket: Ticket, drawn: &mut Vec<Option<SampledToken>>) -> Result<(), KernelError> {
        self.backend.wait(ticket, drawn)
    }

    fn end(&mut self) -> Result<(), KernelError> {
        self.backend.end()
    }

    fn read_rows(&self, x: BufferId, row_first: usize, out: &mut [f32]) -> Result<(), KernelError> {
        self.backend.read_rows(self.buffers.lock().get(x), row_first, out)
    }

    fn write_rows(&mut self, x: BufferId, row_first: usize, rows: &[f32]) -> Result<(), KernelError> {
        self.backend.write_rows(self.buffers.lock().get_mut(x), row_first, rows)
    }
}
