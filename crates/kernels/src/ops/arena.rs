//! [`Arena`]: an executor made of a backend and the operands that it holds.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use super::executor::{Allocation, Executor};
use super::op::{Buckets, HeadOperands, Op, OpClass};
use super::operands::{
    Buffer, BufferId, Experts, ExpertsId, Heads, Kv, KvId, LowRank, LowRankId, Matrix, MatrixId, Vector,
    VectorId,
};
use super::slots::{Cells, Slots};
use crate::{
    AdaptedLogits, Backend, Batch, BufferRole, DType, Draws, EncoderOps, ExpertParts, KernelError, KvSpec,
    LogitsHead, MatrixShape, MatrixSource, OutputDelta, PositionBias, QkvParams, Rounding, SampleSpecs,
    Sampled, SelfAttentionParams, Stage, StepLimits, Ticket,
};

/// Encoder ops of a backend that has them.
struct EncoderTable<B: Backend> {
    unfold: fn(&mut B, &B::Buffer, usize, &mut B::Buffer),
    rope: fn(&mut B, &mut B::Buffer, &QkvParams<&B::Vector>),
    self_attention: WholeAttention<B>,
    attends_in_parts: fn(&B) -> bool,
    attend_part: PartAttention<B>,
}

type WholeAttention<B> = fn(
    &mut B,
    &<B as Backend>::Buffer,
    &SelfAttentionParams<&<B as Backend>::Vector, &[u32]>,
    &mut <B as Backend>::Buffer,
);

type PartAttention<B> = fn(
    &mut B,
    &<B as Backend>::Buffer,
    (Range<usize>, Range<usize>),
    &SelfAttentionParams<&<B as Backend>::Vector, &[u32]>,
    &mut <B as Backend>::Buffer,
);

impl<B: EncoderOps> EncoderTable<B> {
    fn of_backend() -> Self {
        Self {
            unfold: B::unfold,
            rope: B::rope,
            self_attention: B::self_attention,
            attends_in_parts: B::attends_in_parts,
            attend_part: B::attend_part,
        }
    }
}

/// A backend and its operands.
pub(crate) struct Arena<B: Backend> {
    pub(crate) backend: B,
    encoder: Option<EncoderTable<B>>,
    matrices: Arc<Slots<B::Matrix>>,
    vectors: Arc<Slots<B::Vector>>,
    experts: Arc<Slots<B::Experts>>,
    heads: Arc<Slots<B::Heads>>,
    low_ranks: Arc<Slots<B::LowRank>>,
    pub(crate) buffers: Arc<Slots<B::Buffer>>,
    kvs: Arc<Slots<B::Kv>>,
}

impl<B: Backend> Arena<B> {
    /// An arena whose backend runs decoders alone.
    pub(crate) fn of_decoders(backend: B) -> Self {
        Self {
            backend,
            encoder: None,
            matrices: Slots::new(),
            vectors: Slots::new(),
            experts: Slots::new(),
            heads: Slots::new(),
            low_ranks: Slots::new(),
            buffers: Slots::new(),
            kvs: Slots::new(),
        }
    }

    /// An arena whose backend runs encoders too.
    pub(crate) fn new(backend: B) -> Self
    where
        B: EncoderOps,
    {
        Self { encoder: Some(EncoderTable::of_backend()), ..Self::of_decoders(backend) }
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

    fn encoder(&self) -> &EncoderTable<B> {
        self.encoder.as_ref().unwrap_or_else(|| panic!("{} runs no encoders", self.backend.device()))
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

    /// Runs an op that treats each row by itself, and holds no product.
    fn run_row_op(&mut self, op: &Op) {
        let (matrices, vectors) = (self.matrices.lock(), self.vectors.lock());
        let mut buffers = self.buffers.lock();
        let backend = &mut self.backend;
        let matrix = |id: MatrixId| matrices.get(id);
        let vector = |id: VectorId| vectors.get(id);
        match op {
            Op::Embed { table, scale, out } => backend.embed(matrix(*table), *scale, buffers.get_mut(*out)),
            Op::AddEmbedding { table, ids, out } => {
                backend.add_embedding(matrix(*table), *ids, buffers.get_mut(*out));
            }
            Op::RmsNorm { x, weight, eps, out } => buffers.change(*out, |buffers, out| {
                backend.rms_norm(buffers.get(*x), vector(*weight), *eps, out);
            }),
            Op::AddRmsNorm { residual, x, weight, eps, out } => {
                buffers.change(*residual, |buffers, residual| {
                    buffers.change(*out, |buffers, out| {
                        backend.add_rms_norm(residual, buffers.get(*x), vector(*weight), *eps, out);
                    });
                })
            }
            Op::AddBias { bias, out } => backend.add_bias(vector(*bias), buffers.get_mut(*out)),
            Op::Row { op, out } => buffers.change(*out, |buffers, out| {
                backend.row_op(&op.with(|id: BufferId| buffers.get(id), vector), out);
            }),
            Op::LayerNorm { x, params, out } => buffers.change(*out, |buffers, out| {
                backend.layer_norm(buffers.get(*x), &params.with(vector), out);
            }),
            Op::AddLayerNorm { residual, x, params, out } => {
                buffers.change(*residual, |buffers, residual| {
                    buffers.change(*out, |buffers, out| {
                        backend.add_layer_norm(residual, buffers.get(*x), &params.with(vector), out);
                    });
                })
            }
            Op::LayerNormColumns { x, columns, params } => {
                backend.layer_norm_columns(buffers.get_mut(*x), *columns, &params.with(vector));
            }
            Op::GateOutput { gate, params, out } => buffers.change(*out, |buffers, out| {
                backend.gate_output(buffers.get(*gate), &params.with(vector), out);
            }),
            Op::Gate { activation, both, hidden } => buffers.change(*hidden, |buffers, hidden| {
                backend.gate(*activation, buffers.get(*both), hidden);
            }),
            Op::AddShared { gate, x, shared, out } => buffers.change(*out, |buffers, out| {
                backend.add_shared(gate.map(vector), buffers.get(*x), buffers.get(*shared), out);
            }),
            Op::AllReduce { x } => backend.all_reduce(buffers.get_mut(*x)),
            _ => unreachable!("not an op on rows: {op:?}"),
        }
    }

    /// Runs an op that multiplies with packed weights.
    fn run_product(&mut self, op: &Op) {
        let (matrices, vectors) = (self.matrices.lock(), self.vectors.lock());
        let mut buffers = self.buffers.lock();
        let backend = &mut self.backend;
        let matrix = |id: MatrixId| matrices.get(id);
        let vector = |id: VectorId| vectors.get(id);
        match op {
            Op::MatMul { weight, bias, x, out } => buffers.change(*out, |buffers, out| {
                backend.matmul(matrix(*weight), bias.map(vector), buffers.get(*x), out);
            }),
            Op::MatMulActivated { weight, bias, activation, x, out } => {
                buffers.change(*out, |buffers, out| {
                    let x = buffers.get(*x);
                    backend.matmul_activated(matrix(*weight), bias.map(vector), *activation, x, out);
                });
            }
            Op::HeadsMatMul { weights, x, out } => buffers.change(*out, |buffers, out| {
                backend.heads_matmul(self.heads.lock().get(*weights), buffers.get(*x), out);
            }),
            Op::GatedMlp { gate_up, down, activation, x, hidden, out } => {
                buffers.change(*hidden, |buffers, hidden| {
                    buffers.change(*out, |buffers, out| {
                        let (gate_up, down) = (matrix(*gate_up), matrix(*down));
                        backend.gated_mlp(gate_up, down, *activation, buffers.get(*x), hidden, out);
                    });
                });
            }
            Op::Gated { gate_up, activation, x, hidden } => buffers.change(*hidden, |buffers, hidden| {
                backend.gated(matrix(*gate_up), *activation, buffers.get(*x), hidden);
            }),
            Op::AddLowRank { deltas, x, low, out } => buffers.change(*out, |buffers, out| {
                let low_ranks = self.low_ranks.lock();
                let deltas = low_ranks_of(&low_ranks, deltas);
                match low {
                    Some(low) => buffers.change(*low, |buffers, low| {
                        backend.add_low_rank(&deltas, buffers.get(*x), Some(low), out);
                    }),
                    None => backend.add_low_rank(&deltas, buffers.get(*x), None, out),
                }
            }),
            Op::Moe { weights, params, x, hidden, out } => buffers.change(*hidden, |buffers, hidden| {
                let experts = self.experts.lock();
                buffers.change(*out, |buffers, out| {
                    let routed = weights.routed.map(|id| buffers.get(id));
                    let weights = weights.with(matrix, vector, |id| experts.get(id), routed);
                    backend.moe(&weights, params, buffers.get(*x), hidden, out);
                });
            }),
            _ => unreachable!("not a product: {op:?}"),
        }
    }

    /// Runs an op over sequences and their cache.
    fn run_cache_op(&mut self, op: &Op) {
        let mut kvs = self.kvs.lock();
        let vectors = self.vectors.lock();
        let mut buffers = self.buffers.lock();
        let backend = &mut self.backend;
        let vector = |id: VectorId| vectors.get(id);
        match op {
            Op::RopeToCache { qkv, params, kv, layer } => {
                let params = params.with(vector);
                backend.rope_to_cache(buffers.get_mut(*qkv), &params, kvs.get_mut(*kv), *layer);
            }
            Op::Attention { qkv, params, kv, layer, out } => buffers.change(*out, |buffers, out| {
                backend.attention(buffers.get(*qkv), &params.with(vector), kvs.get(*kv), *layer, out);
            }),
            Op::LatentToCache { latent, queries, params, kv, layer } => {
                buffers.change(*latent, |buffers, latent| {
                    let queries = buffers.get_mut(*queries);
                    let params = params.with(vector);
                    backend.latent_to_cache(latent, queries, &params, kvs.get_mut(*kv), *layer);
                });
            }
            Op::LatentAttention { queries, heads_and_scale, kv, layer, out } => {
                buffers.change(*out, |buffers, out| {
                    let queries = buffers.get(*queries);
                    backend.latent_attention(queries, *heads_and_scale, kvs.get(*kv), *layer, out);
                });
            }
            Op::Convolve { x, params, kv, layer } => {
                let params = params.with(vector);
                backend.convolve(buffers.get_mut(*x), &params, kvs.get_mut(*kv), *layer);
            }
            Op::Recur { x, params, kv, layer, out } => buffers.change(*out, |buffers, out| {
                backend.recur(buffers.get(*x), &params.with(vector), kvs.get_mut(*kv), *layer, out);
            }),
            _ => unreachable!("not an op on a cache: {op:?}"),
        }
    }

    /// Runs an op of encoders.
    fn run_encoder(&mut self, op: &Op) {
        let mut buffers = self.buffers.lock();
        let vectors = self.vectors.lock();
        let &EncoderTable { unfold, rope, self_attention, attend_part, .. } = self.encoder();
        let backend = &mut self.backend;
        match op {
            Op::Unfold { x, window, out } => {
                buffers.change(*out, |buffers, out| unfold(backend, buffers.get(*x), *window, out));
            }
            Op::Rope { qkv, params } => {
                rope(backend, buffers.get_mut(*qkv), &params.with(|vector| vectors.get(vector)));
            }
            Op::SelfAttention { qkv, params, out } => {
                let params = with_vectors(params, &vectors);
                buffers.change(*out, |buffers, out| self_attention(backend, buffers.get(*qkv), &params, out));
            }
            Op::AttendPart { qkv, rows_and_queries, params, out } => {
                let params = with_vectors(params, &vectors);
                let ranges = rows_and_queries.clone();
                buffers.change(*out, |buffers, out| {
                    attend_part(backend, buffers.get(*qkv), ranges, &params, out);
                });
            }
            _ => unreachable!("not an op of encoders: {op:?}"),
        }
    }
}

/// The adapters' additions themselves: a list of as many as adapters are loaded.
fn low_ranks_of<'a, L>(cells: &'a Cells<L>, ids: &[Option<LowRankId>]) -> Vec<Option<&'a L>> {
    ids.iter().map(|id| id.map(|id| cells.get(id))).collect()
}

/// Parameters with the vectors themselves.
fn with_vectors<'a, V>(
    params: &'a SelfAttentionParams<VectorId, Buckets>,
    vectors: &'a Cells<V>,
) -> SelfAttentionParams<&'a V, &'a [u32]> {
    let get = |id| vectors.get(id);
    let bias = match &params.bias {
        PositionBias::None => PositionBias::None,
        PositionBias::Alibi { slopes } => PositionBias::Alibi { slopes: get(*slopes) },
        PositionBias::ByDistance { table, reach } => {
            PositionBias::ByDistance { table: get(*table), reach: *reach }
        }
        PositionBias::Disentangled { keys, queries, buckets, bucket_of, reach } => {
            PositionBias::Disentangled {
                keys: keys.map(get),
                queries: queries.map(get),
                buckets: *buckets,
                bucket_of: &bucket_of[..],
                reach: *reach,
            }
        }
    };
    let SelfAttentionParams { heads, scale, reach, padding, .. } = *params;
    SelfAttentionParams { heads, scale, reach, padding, bias }
}

impl<B: Backend> Executor for Arena<B> {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn knows_memories(&self) -> bool {
        self.backend.knows_memories()
    }

    fn device(&self) -> String {
        self.backend.device()
    }

    fn rounding(&self) -> Rounding {
        self.backend.rounding()
    }

    fn enter(&self, stage: Stage) {
        self.backend.enter(stage);
    }

    fn supports(&self, dtype: DType) -> bool {
        self.backend.supports(dtype)
    }

    fn bytes(&self, of: &Allocation<'_>) -> usize {
        match *of {
            Allocation::Matrix(parts) => self.backend.matrix_bytes(parts),
            Allocation::Experts(experts) => self.backend.experts_bytes(experts),
            Allocation::LowRank { pairs, changes } => self.backend.low_rank_bytes(pairs, changes),
            Allocation::Vector(length) => self.backend.vector_bytes(length),
            Allocation::Buffer { role, rows, cols } => self.backend.buffer_bytes(role, rows, cols),
            Allocation::Kv(spec) => self.backend.kv_bytes(spec),
            Allocation::Scratch(limits) => self.backend.scratch_bytes(limits),
        }
    }

    fn pack(&self, parts: &[MatrixSource<'_>]) -> Result<Matrix, KernelError> {
        Ok(self.matrices.insert(self.backend.pack(parts)?))
    }

    fn heads(&self, matrices: Vec<Matrix>) -> Heads {
        let mut cells = self.matrices.lock();
        let operands = matrices.iter().map(|matrix| cells.take(matrix.id())).collect();
        drop(cells);
        self.heads.insert(self.backend.heads(operands))
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

    fn read_kv_block(&self, kv: KvId, block: u32, out: &mut [u8]) -> Result<(), KernelError> {
        self.backend.read_kv_block(self.kvs.lock().get(kv), block, out)
    }

    fn write_kv_block(&mut self, kv: KvId, block: u32, bytes: &[u8]) -> Result<(), KernelError> {
        self.backend.write_kv_block(self.kvs.lock().get_mut(kv), block, bytes)
    }

    fn reserve(&mut self, limits: &StepLimits) -> Result<(), KernelError> {
        self.backend.reserve(limits)
    }

    fn begin(&mut self, batch: &Batch) -> Result<(), KernelError> {
        self.backend.begin(batch)
    }

    fn run(&mut self, op: &Op) {
        match op.class() {
            OpClass::Row => self.run_row_op(op),
            OpClass::Product => self.run_product(op),
            OpClass::Cache => self.run_cache_op(op),
            OpClass::Encoder => self.run_encoder(op),
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

    fn sample_room(&self, rows: usize, vocab: usize) -> usize {
        self.backend.sample_room(rows, vocab)
    }

    fn on_host(&mut self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        self.backend.on_host(tasks, task);
    }

    fn between_steps(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        self.backend.between_steps(tasks, task);
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

    fn lookahead(&self) -> usize {
        self.backend.lookahead()
    }

    fn submit(&mut self) -> Result<Ticket, KernelError> {
        self.backend.submit()
    }

    fn wait(&mut self, ticket: Ticket, drawn: &mut Vec<Option<Sampled>>) -> Result<(), KernelError> {
        self.backend.wait(ticket, drawn)
    }

    fn end(&mut self) -> Result<(), KernelError> {
        self.backend.end()
    }

    fn attends_in_parts(&self) -> bool {
        self.encoder.as_ref().is_some_and(|encoder| (encoder.attends_in_parts)(&self.backend))
    }

    fn read_rows(&self, x: BufferId, row_first: usize, out: &mut [f32]) -> Result<(), KernelError> {
        self.backend.read_rows(self.buffers.lock().get(x), row_first, out)
    }

    fn write_rows(&mut self, x: BufferId, row_first: usize, rows: &[f32]) -> Result<(), KernelError> {
        self.backend.write_rows(self.buffers.lock().get_mut(x), row_first, rows)
    }
}
