//! [`AnyBackend`]: any executor, as a backend.

use std::borrow::Borrow;
use std::ops::Range;

use super::arena::Arena;
use super::executor::{Allocation, Executor};
use super::op::{HeadOperands, Op};
use super::operands::{Buffer, BufferId, Experts, Handle, Heads, Kv, LowRank, Matrix, Vector, VectorId};
use crate::{
    Activation, AttentionParams, Backend, Batch, BufferRole, ConvolutionParams, DType, Draws, EncoderOps,
    ExpertParts, KernelError, KvSpec, LatentHeads, LatentParams, LayerNormParams, LogitsHead, LowRankShape,
    MatrixShape, MatrixSource, MoeParams, MoeWeights, OutputDelta, OutputGateParams, PositionBias, QkvParams,
    RecurrenceParams, Rounding, RowIds, RowOp, SampleSpecs, Sampled, SelfAttentionParams, Stage, StepLimits,
    Ticket,
};

/// A device of any kind. Each call becomes an [`Op`] or a request of its [`Executor`].
pub struct AnyBackend {
    executor: Box<dyn Executor>,
}

impl AnyBackend {
    /// A backend that runs decoders and encoders.
    pub fn new(backend: impl EncoderOps) -> Self {
        Self { executor: Box::new(Arena::new(backend)) }
    }

    /// A backend that runs decoders alone. An op of encoders panics.
    pub fn of_decoders(backend: impl Backend) -> Self {
        Self { executor: Box::new(Arena::of_decoders(backend)) }
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

fn vector(vector: &Vector) -> VectorId {
    vector.id()
}

fn buffer(buffer: &Buffer) -> BufferId {
    buffer.id()
}

impl Backend for AnyBackend {
    type Matrix = Matrix;
    type Vector = Vector;
    type Experts = Experts;
    type Heads = Heads;
    type LowRank = LowRank;
    type Buffer = Buffer;
    type Kv = Kv;

    fn knows_memories(&self) -> bool {
        self.executor.knows_memories()
    }

    fn device(&self) -> String {
        self.executor.device()
    }

    fn rounding(&self) -> Rounding {
        self.executor.rounding()
    }

    fn enter(&self, stage: Stage) {
        self.executor.enter(stage);
    }

    fn supports(&self, dtype: DType) -> bool {
        self.executor.supports(dtype)
    }

    fn matrix_bytes(&self, parts: &[MatrixShape]) -> usize {
        self.executor.bytes(&Allocation::Matrix(parts))
    }

    fn pack(&self, parts: &[MatrixSource<'_>]) -> Result<Matrix, KernelError> {
        self.executor.pack(parts)
    }

    fn heads(&self, matrices: Vec<Matrix>) -> Heads {
        self.executor.heads(matrices)
    }

    fn experts_bytes(&self, experts: &[ExpertParts<MatrixShape>]) -> usize {
        self.executor.bytes(&Allocation::Experts(experts))
    }

    fn experts(&self, shapes: &[ExpertParts<MatrixShape>]) -> Result<Experts, KernelError> {
        self.executor.experts(shapes)
    }

    fn pack_expert(
        &self,
        experts: &mut Experts,
        parts: &ExpertParts<MatrixSource<'_>>,
    ) -> Result<(), KernelError> {
        self.executor.pack_expert(experts.id(), parts)
    }

    fn low_rank_bytes(&self, pairs: &[LowRankShape], changes: &[usize]) -> usize {
        self.executor.bytes(&Allocation::LowRank { pairs, changes })
    }

    fn low_rank(&self, delta: &OutputDelta<'_>) -> Result<LowRank, KernelError> {
        self.executor.low_rank(delta)
    }

    fn vector_bytes(&self, length: usize) -> usize {
        self.executor.bytes(&Allocation::Vector(length))
    }

    fn vector(&self, values: &[f32]) -> Result<Vector, KernelError> {
        self.executor.vector(values)
    }

    fn buffer_bytes(&self, role: BufferRole, rows: usize, cols: usize) -> usize {
        self.executor.bytes(&Allocation::Buffer { role, rows, cols })
    }

    fn buffer(&self, role: BufferRole, rows: usize, cols: usize) -> Result<Buffer, KernelError> {
        self.executor.buffer(role, rows, cols)
    }

    fn kv_bytes(&self, spec: &KvSpec) -> usize {
        self.executor.bytes(&Allocation::Kv(spec))
    }

    fn kv(&self, spec: &KvSpec) -> Result<Kv, KernelError> {
        self.executor.kv(spec)
    }

    fn kv_block_form(&self, kv: &Kv) -> Option<(usize, String)> {
        self.executor.kv_block_form(kv.id())
    }

    fn read_kv_block(&self, kv: &Kv, block: u32, out: &mut [u8]) -> Result<(), KernelError> {
        self.executor.read_kv_block(kv.id(), block, out)
    }

    fn write_kv_block(&mut self, kv: &mut Kv, block: u32, bytes: &[u8]) -> Result<(), KernelError> {
        self.executor.write_kv_block(kv.id(), block, bytes)
    }

    fn scratch_bytes(&self, limits: &StepLimits) -> usize {
        self.executor.bytes(&Allocation::Scratch(limits))
    }

    fn reserve(&mut self, limits: &StepLimits) -> Result<(), KernelError> {
        self.executor.reserve(limits)
    }

    fn begin(&mut self, batch: &Batch) -> Result<(), KernelError> {
        self.executor.begin(batch)
    }

    fn embed(&mut self, table: &Matrix, scale: f32, out: &mut Buffer) {
        self.run(&Op::Embed { table: table.id(), scale, out: out.id() });
    }

    fn add_embedding(&mut self, table: &Matrix, ids: RowIds, out: &mut Buffer) {
        self.run(&Op::AddEmbedding { table: table.id(), ids, out: out.id() });
    }

    fn rms_norm(&mut self, x: &Buffer, weight: &Vector, eps: f32, out: &mut Buffer) {
        self.run(&Op::RmsNorm { x: x.id(), weight: weight.id(), eps, out: out.id() });
    }

    fn add_rms_norm(
        &mut self,
        residual: &mut Buffer,
        x: &Buffer,
        weight: &Vector,
        eps: f32,
        out: &mut Buffer,
    ) {
        let (residual, weight) = (residual.id(), weight.id());
        self.run(&Op::AddRmsNorm { residual, x: x.id(), weight, eps, out: out.id() });
    }

    fn matmul(&mut self, weight: &Matrix, bias: Option<&Vector>, x: &Buffer, out: &mut Buffer) {
        let bias = bias.map(vector);
        self.run(&Op::MatMul { weight: weight.id(), bias, x: x.id(), out: out.id() });
    }

    fn matmul_activated(
        &mut self,
        weight: &Matrix,
        bias: Option<&Vector>,
        activation: Activation,
        x: &Buffer,
        out: &mut Buffer,
    ) {
        let (weight, bias) = (weight.id(), bias.map(vector));
        self.run(&Op::MatMulActivated { weight, bias, activation, x: x.id(), out: out.id() });
    }

    fn add_bias(&mut self, bias: &Vector, out: &mut Buffer) {
        self.run(&Op::AddBias { bias: bias.id(), out: out.id() });
    }

    fn row_op(&mut self, op: &RowOp<&Buffer, &Vector>, out: &mut Buffer) {
        self.run(&Op::Row { op: op.with(buffer, vector), out: out.id() });
    }

    fn layer_norm(&mut self, x: &Buffer, params: &LayerNormParams<&Vector>, out: &mut Buffer) {
        self.run(&Op::LayerNorm { x: x.id(), params: params.with(vector), out: out.id() });
    }

    fn add_layer_norm(
        &mut self,
        residual: &mut Buffer,
        x: &Buffer,
        params: &LayerNormParams<&Vector>,
        out: &mut Buffer,
    ) {
        let (residual, params) = (residual.id(), params.with(vector));
        self.run(&Op::AddLayerNorm { residual, x: x.id(), params, out: out.id() });
    }

    fn layer_norm_columns(
        &mut self,
        x: &mut Buffer,
        columns: (usize, usize),
        params: &LayerNormParams<&Vector>,
    ) {
        self.run(&Op::LayerNormColumns { x: x.id(), columns, params: params.with(vector) });
    }

    fn rope_to_cache(&mut self, qkv: &mut Buffer, params: &QkvParams<&Vector>, kv: &mut Kv, layer: usize) {
        let params = params.with(vector);
        self.run(&Op::RopeToCache { qkv: qkv.id(), params, kv: kv.id(), layer });
    }

    fn attention(
        &mut self,
        qkv: &Buffer,
        params: &AttentionParams<&Vector>,
        kv: &Kv,
        layer: usize,
        out: &mut Buffer,
    ) {
        let params = params.with(vector);
        self.run(&Op::Attention { qkv: qkv.id(), params, kv: kv.id(), layer, out: out.id() });
    }

    fn heads_matmul(&mut self, weights: &Heads, x: &Buffer, out: &mut Buffer) {
        self.run(&Op::HeadsMatMul { weights: weights.id(), x: x.id(), out: out.id() });
    }

    fn latent_to_cache(
        &mut self,
        latent: &mut Buffer,
        queries: &mut Buffer,
        params: &LatentParams<&Vector>,
        kv: &mut Kv,
        layer: usize,
    ) {
        let (latent, queries, params) = (latent.id(), queries.id(), params.with(vector));
        self.run(&Op::LatentToCache { latent, queries, params, kv: kv.id(), layer });
    }

    fn latent_attention(
        &mut self,
        queries: &Buffer,
        heads_and_scale: (LatentHeads, f32),
        kv: &Kv,
        layer: usize,
        out: &mut Buffer,
    ) {
        let (queries, kv, out) = (queries.id(), kv.id(), out.id());
        self.run(&Op::LatentAttention { queries, heads_and_scale, kv, layer, out });
    }

    fn convolve(&mut self, x: &mut Buffer, params: &ConvolutionParams<&Vector>, kv: &mut Kv, layer: usize) {
        self.run(&Op::Convolve { x: x.id(), params: params.with(vector), kv: kv.id(), layer });
    }

    fn recur(
        &mut self,
        x: &Buffer,
        params: &RecurrenceParams<&Vector>,
        kv: &mut Kv,
        layer: usize,
        out: &mut Buffer,
    ) {
        let params = params.with(vector);
        self.run(&Op::Recur { x: x.id(), params, kv: kv.id(), layer, out: out.id() });
    }

    fn gate_output(&mut self, gate: &Buffer, params: &OutputGateParams<&Vector>, out: &mut Buffer) {
        self.run(&Op::GateOutput { gate: gate.id(), params: params.with(vector), out: out.id() });
    }

    fn gated_mlp(
        &mut self,
        gate_up: &Matrix,
        down: &Matrix,
        activation: Activation,
        x: &Buffer,
        hidden: &mut Buffer,
        out: &mut Buffer,
    ) {
        let (gate_up, down, hidden) = (gate_up.id(), down.id(), hidden.id());
        self.run(&Op::GatedMlp { gate_up, down, activation, x: x.id(), hidden, out: out.id() });
    }

    fn gated(&mut self, gate_up: &Matrix, activation: Activation, x: &Buffer, hidden: &mut Buffer) {
        let (gate_up, hidden) = (gate_up.id(), hidden.id());
        self.run(&Op::Gated { gate_up, activation, x: x.id(), hidden });
    }

    fn add_low_rank<L: Borrow<LowRank> + Sync>(
        &mut self,
        deltas: &[Option<L>],
        x: &Buffer,
        low: Option<&mut Buffer>,
        out: &mut Buffer,
    ) {
        let deltas = deltas.iter().map(|delta| delta.as_ref().map(|delta| delta.borrow().id())).collect();
        let low = low.map(|low| low.id());
        self.run(&Op::AddLowRank { deltas, x: x.id(), low, out: out.id() });
    }

    fn gate(&mut self, activation: Activation, both: &Buffer, hidden: &mut Buffer) {
        self.run(&Op::Gate { activation, both: both.id(), hidden: hidden.id() });
    }

    fn add_shared(&mut self, gate: Option<&Vector>, x: &Buffer, shared: &Buffer, out: &mut Buffer) {
        let (gate, shared) = (gate.map(vector), shared.id());
        self.run(&Op::AddShared { gate, x: x.id(), shared, out: out.id() });
    }

    fn moe(
        &mut self,
        weights: &MoeWeights<'_, Self>,
        params: &MoeParams,
        x: &Buffer,
        hidden: &mut Buffer,
        out: &mut Buffer,
    ) {
        let routed = weights.routed.map(buffer);
        let weights = weights.with(Handle::id, vector, Handle::id, routed);
        self.run(&Op::Moe { weights, params: *params, x: x.id(), hidden: hidden.id(), out: out.id() });
    }

    fn read_experts(
        &self,
        hidden: &Buffer,
        chosen: &mut [u32],
        inner: &mut [f32],
    ) -> Result<(), KernelError> {
        self.executor.read_experts(hidden.id(), chosen, inner)
    }

    fn all_reduce(&mut self, x: &mut Buffer) {
        self.run(&Op::AllReduce { x: x.id() });
    }

    fn logits(&mut self, head: LogitsHead<'_, Self>, x: &Buffer, out: &mut [f32]) -> Result<(), KernelError> {
        self.executor.logits(&numbered_head(head), x.id(), out)
    }

    fn sample_room(&self, rows: usize, vocab: usize) -> usize {
        self.executor.sample_room(rows, vocab)
    }

    fn on_host(&mut self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        self.executor.on_host(tasks, task);
    }

    fn between_steps(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        self.executor.between_steps(tasks, task);
    }

    fn sample(
        &mut self,
        head: LogitsHead<'_, Self>,
        x: &Buffer,
        specs: &SampleSpecs,
        room: &mut [f32],
    ) -> Result<(), KernelError> {
        self.executor.sample(&numbered_head(head), x.id(), specs, room)
    }

    fn draws(&mut self) -> &mut Draws {
        self.executor.draws()
    }

    fn lookahead(&self) -> usize {
        self.executor.lookahead()
    }

    fn submit(&mut self) -> Result<Ticket, KernelError> {
        self.executor.submit()
    }

    fn wait(&mut self, ticket: Ticket, drawn: &mut Vec<Option<Sampled>>) -> Result<(), KernelError> {
        self.executor.wait(ticket, drawn)
    }

    fn end(&mut self) -> Result<(), KernelError> {
        self.executor.end()
    }

    fn read_rows(&self, x: &Buffer, row_first: usize, out: &mut [f32]) -> Result<(), KernelError> {
        self.executor.read_rows(x.id(), row_first, out)
    }

    fn write_rows(&mut self, x: &mut Buffer, row_first: usize, rows: &[f32]) -> Result<(), KernelError> {
        self.executor.write_rows(x.id(), row_first, rows)
    }
}

impl EncoderOps for AnyBackend {
    fn unfold(&mut self, x: &Buffer, window: usize, out: &mut Buffer) {
        self.run(&Op::Unfold { x: x.id(), window, out: out.id() });
    }

    fn rope(&mut self, qkv: &mut Buffer, params: &QkvParams<&Vector>) {
        self.run(&Op::Rope { qkv: qkv.id(), params: params.with(vector) });
    }

    fn self_attention(
        &mut self,
        qkv: &Buffer,
        params: &SelfAttentionParams<&Vector, &[u32]>,
        out: &mut Buffer,
    ) {
        self.run(&Op::SelfAttention { qkv: qkv.id(), params: numbered(params), out: out.id() });
    }

    fn attends_in_parts(&self) -> bool {
        self.executor.attends_in_parts()
    }

    fn attend_part(
        &mut self,
        qkv: &Buffer,
        rows_and_queries: (Range<usize>, Range<usize>),
        params: &SelfAttentionParams<&Vector, &[u32]>,
        out: &mut Buffer,
    ) {
        let params = numbered(params);
        self.run(&Op::AttendPart { qkv: qkv.id(), rows_and_queries, params, out: out.id() });
    }
}

/// A head with its operands by number.
fn numbered_head(head: LogitsHead<'_, AnyBackend>) -> HeadOperands {
    let number = |of: &Option<&LowRank>| of.map(Handle::id);
    let adapted = head.adapted.map(|of| (of.deltas.iter().map(number).collect(), of.low.id()));
    HeadOperands { matrix: head.matrix.id(), adapted }
}

/// Parameters with vectors by number.
fn numbered(
    params: &SelfAttentionParams<&Vector, &[u32]>,
) -> SelfAttentionParams<VectorId, super::op::Buckets> {
    let bias = match params.bias {
        PositionBias::None => PositionBias::None,
        PositionBias::Alibi { slopes } => PositionBias::Alibi { slopes: slopes.id() },
        PositionBias::ByDistance { table, reach } => PositionBias::ByDistance { table: table.id(), reach },
        PositionBias::Disentangled { keys, queries, buckets, bucket_of, reach } => {
            PositionBias::Disentangled {
                keys: keys.map(vector),
                queries: queries.map(vector),
                buckets,
                bucket_of: bucket_of.into(),
                reach,
            }
        }
    };
    let SelfAttentionParams { heads, scale, reach, padding, .. } = *params;
    SelfAttentionParams { heads, scale, reach, padding, bias }
}
