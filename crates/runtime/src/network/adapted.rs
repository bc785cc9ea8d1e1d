//! Adapters beside a network's packed matrices: what each adds to which, laid out for the backend, and the buffers that
//! takes. A network without adapters has none of it and computes as if there were none.

use std::collections::{BTreeMap, HashMap};

use hanzo_engine_ops as ops;
use hanzo_engine_ops::{
    AnyBackend, BufferId, BufferRole, KernelError, LowRankId, LowRankPair, LowRankShape, MatrixId,
    MatrixShape, MatrixSource, Op, OutputChange, OutputDelta, RowOp, Stage, VectorId,
};

use super::packing::{DOWN, OUTPUT, QUERY_GATE, STATE_OUTPUT, first, up};
use super::program::{Instruction, Program, Work};
use super::{Buffers, Layer, Mlp, Network, Norm};
use crate::adapter::{Adapter, EmbeddingDelta, OutputFactors, Pair, WeightDelta};
use crate::error::LoadError;
use crate::limits::ADAPTER_RANK_MAX;
use crate::spec::{LayerPart, MlpSpec, Part, TransformerSpec, Weight};
use crate::tensor::Tensor;

/// What adapters add to the matrices of a layer, each a list by the adapter's slot.
#[derive(Default)]
pub(crate) struct Deltas {
    pub(super) qkv: Vec<Option<ops::LowRank>>, // or to latents, or to what a state takes up
    pub(super) gate: Vec<Option<ops::LowRank>>, // to the gate of attention's output
    pub(super) output: Vec<Option<ops::LowRank>>,
    pub(super) up: Vec<Option<ops::LowRank>>, // to gate and up
    pub(super) down: Vec<Option<ops::LowRank>>,
}

/// Buffers of steps that have adapters.
pub(crate) struct AdapterBuffers {
    pub(super) low: ops::Buffer,       // (rows, ranks of one matrix's pairs together)
    pub(super) both: Vec<ops::Buffer>, // (rows, 2 * ffn), for each width inside MLPs, in the order of `inner_widths`
    /// (rows, ffn), likewise, where MLPs have no gate; the second half of `both` is ones then.
    pub(super) alone: Vec<Option<ops::Buffer>>,
}

/// What an adapter does to the embeddings of tokens.
pub(crate) struct AdaptedEmbedding {
    table: ops::Matrix, // (vocab, rank), or (vocab, hidden) in place of the model's
    rows: ops::Buffer,  // (rows, columns of the table)
    deltas: Vec<Option<ops::LowRank>>, // by slot: its own alone
    replaces: bool,
}

impl Deltas {
    fn lists(&mut self) -> [&mut Vec<Option<ops::LowRank>>; 5] {
        [&mut self.qkv, &mut self.gate, &mut self.output, &mut self.up, &mut self.down]
    }
}

/// Columns of the widest `low` that an adapter may need: several matrices are packed as one.
fn low_cols(spec: &TransformerSpec) -> usize {
    let groups = (0..spec.layers.len()).flat_map(|layer| groups(spec, layer));
    // The head counts as one matrix.
    groups.map(<[LayerPart]>::len).max().unwrap_or(0).max(1) * ADAPTER_RANK_MAX
}

/// Bytes of the buffers that the first adapter of a network makes.
pub(crate) fn buffer_bytes(backend: &AnyBackend, spec: &TransformerSpec, rows: usize) -> u64 {
    let both = super::inner_widths(spec).into_iter();
    let both = both.map(|cols| {
        let alone =
            if is_ungated(spec, cols) { backend.buffer_bytes(BufferRole::Residual, rows, cols) } else { 0 };
        (backend.buffer_bytes(BufferRole::Residual, rows, 2 * cols) + alone) as u64
    });
    backend.buffer_bytes(BufferRole::Operand, rows, low_cols(spec)) as u64 + both.sum::<u64>()
}

/// Bytes of an adapter's matrices, and of its buffers for steps of so many rows.
pub(crate) fn bytes(backend: &AnyBackend, spec: &TransformerSpec, adapter: &Adapter, rows: usize) -> u64 {
    let outputs = outputs(spec);
    let mut bytes = 0;
    for layer in 0..spec.layers.len() {
        backend.enter(Stage::Layer(layer));
        let of_group = |parts| PackedDelta::of(&outputs, adapter, layer, parts).bytes(backend);
        bytes += groups(spec, layer).into_iter().map(of_group).sum::<usize>();
    }
    backend.enter(Stage::Head);
    bytes += PackedDelta::of_part(adapter, Part::Head).bytes(backend);
    let norms = adapter.norms().map(|part| PackedDelta::of_part(adapter, part).bytes(backend));
    bytes += norms.sum::<usize>();
    if let Some(embedding) = adapter.embedding() {
        backend.enter(Stage::Inputs);
        let table = shape(&embedding.table);
        bytes +=
            backend.matrix_bytes(&[table]) + backend.buffer_bytes(BufferRole::Residual, rows, table.cols);
        bytes += match &embedding.widen {
            Some(pair) => backend.low_rank_bytes(&[pair_shape(pair)], &[]),
            None => backend.low_rank_bytes(&[], &[spec.hidden]),
        };
    }
    bytes as u64
}

/// The parts of the matrices of a layer that adapters may change, as [`Deltas`] lists them.
fn groups(spec: &TransformerSpec, layer: usize) -> [&'static [LayerPart]; 5] {
    let attention = &spec.layers[layer].attention;
    let gate = if attention.output_gate { QUERY_GATE } else { &[] };
    let output = if attention.projection.state().is_some() { STATE_OUTPUT } else { OUTPUT };
    let [up, down]: [&'static [LayerPart]; 2] = match &spec.layers[layer].mlp {
        MlpSpec::Dense(dense) => [up(dense.gated), DOWN],
        MlpSpec::Experts(_) | MlpSpec::None => [&[], &[]],
    };
    [first(attention), gate, output, up, down]
}

/// Whether MLPs of such a width have no gate and a non-linearity without numbers of its own.
fn is_ungated(spec: &TransformerSpec, width: usize) -> bool {
    let is = |mlp: &MlpSpec| matches!(mlp, MlpSpec::Dense(dense) if dense.ffn == width && !dense.gated);
    !spec.curved && spec.layers.iter().any(|layer| is(&layer.mlp))
}

/// Rows of each of a network's matrices.
fn outputs(spec: &TransformerSpec) -> BTreeMap<Part, usize> {
    let rows =
        |(weight, shape): (Weight, Vec<usize>)| Some((weight.part, *shape.first()?)).filter(|_| !weight.bias);
    spec.weights().into_iter().filter_map(rows).collect()
}

/// What an adapter does to a packed matrix: each part's, and where in the outputs that begins.
struct PackedDelta<'a>(Vec<(usize, &'a WeightDelta)>);

impl<'a> PackedDelta<'a> {
    fn of(outputs: &BTreeMap<Part, usize>, adapter: &'a Adapter, layer: usize, parts: &[LayerPart]) -> Self {
        let (mut first, mut deltas) = (0, Vec::new());
        for &part in parts {
            let part = Part::Layer(layer, part);
            deltas.extend(adapter.delta(part).map(|delta| (first, delta)));
            first += outputs.get(&part).copied().unwrap_or(0);
        }
        Self(deltas)
    }

    /// Of a part that is packed alone.
    fn of_part(adapter: &'a Adapter, part: Part) -> Self {
        Self(adapter.delta(part).map(|delta| (0, delta)).into_iter().collect())
    }

    fn pairs(&self) -> impl Iterator<Item = (usize, &'a Pair)> {
        self.0.iter().filter_map(|&(first, delta)| Some((first, delta.pair.as_ref()?)))
    }

    fn changes(&self) -> impl Iterator<Item = (usize, &'a OutputFactors)> {
        self.0.iter().filter_map(|&(first, delta)| Some((first, delta.change.as_ref()?)))
    }

    fn bytes(&self, backend: &AnyBackend) -> usize {
        let pairs: Vec<LowRankShape> = self.pairs().map(|(_, pair)| pair_shape(pair)).collect();
        let changes: Vec<usize> = self.changes().map(|(_, change)| change.factors.len()).collect();
        backend.low_rank_bytes(&pairs, &changes)
    }

    /// It on the backend; none where there is nothing.
    fn on(&self, backend: &AnyBackend) -> Result<Option<ops::LowRank>, KernelError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let pairs: Vec<LowRankPair<'_>> = self.pairs().map(|(first, pair)| source(first, pair)).collect();
        let change = |(first, OutputFactors { factors, addends }): (usize, &'a OutputFactors)| OutputChange {
            first,
            factors,
            addends,
            reads_input: false,
        };
        let changes: Vec<OutputChange<'_>> = self.changes().map(change).collect();
        backend.low_rank(&OutputDelta { changes: &changes, pairs: &pairs }).map(Some)
    }
}

/// Puts what an adapter has in its slot of a list.
fn put<T>(list: &mut Vec<Option<T>>, slot: usize, of: Option<T>) {
    // A list without anything stays empty, so that nothing is asked of the backend.
    if list.len() <= slot && of.is_some() {
        list.resize_with(slot + 1, || None);
    }
    if let Some(place) = list.get_mut(slot) {
        *place = of;
    }
}

impl Network {
    /// Puts an adapter in a slot, which is free.
    ///
    /// # Errors
    /// `Kernel` where the backend cannot compute its types or give the memory; nothing is kept then.
    pub(crate) fn adapt(
        &mut self,
        backend: &mut AnyBackend,
        slot: usize,
        adapter: &Adapter,
    ) -> Result<(), LoadError> {
        let mut made = Vec::with_capacity(self.layers.len());
        let rows = outputs(&self.spec);
        for layer in 0..self.layers.len() {
            backend.enter(Stage::Layer(layer));
            let of_group = |parts| PackedDelta::of(&rows, adapter, layer, parts).on(backend);
            let [first, gate, output, up, down] = groups(&self.spec, layer).map(of_group);
            let norms = self.layers[layer].norms().map(|norm| norm_delta(backend, adapter, norm));
            made.push(([first?, gate?, output?, up?, down?], norms.collect::<Result<Vec<_>, _>>()?));
        }
        backend.enter(Stage::Inputs);
        let first = self.embedding_norm.iter().map(|norm| norm_delta(backend, adapter, norm));
        let mut inputs = first.collect::<Result<Vec<_>, _>>()?;
        backend.enter(Stage::Layer(0));
        if let Some(norm) = &self.first_norm {
            inputs.push(norm_delta(backend, adapter, norm)?);
        }
        backend.enter(Stage::Inputs);
        let embedding = adapter.embedding();
        let embedding = embedding.map(|of| self.adapted_embedding(backend, slot, of)).transpose()?;
        backend.enter(Stage::Head);
        let head = PackedDelta::of_part(adapter, Part::Head).on(backend)?;
        adapter.release();
        self.make_adapter_buffers(backend)?;
        for (layer, (deltas, norms)) in self.layers.iter_mut().zip(made) {
            layer.deltas.lists().into_iter().zip(deltas).for_each(|(list, of)| put(list, slot, of));
            layer.norms_mut().zip(norms).for_each(|(norm, of)| put(&mut norm.deltas, slot, of));
        }
        self.input_norms_mut().zip(inputs).for_each(|(norm, of)| put(&mut norm.deltas, slot, of));
        put(&mut self.head_deltas, slot, head);
        put(&mut self.adapted_embeddings, slot, embedding);
        self.rebuild_programs();
        Ok(())
    }

    /// An adapter's embeddings of tokens.
    fn adapted_embedding(
        &self,
        backend: &AnyBackend,
        slot: usize,
        of: &EmbeddingDelta,
    ) -> Result<AdaptedEmbedding, KernelError> {
        let hidden = self.spec.hidden;
        let delta = match &of.widen {
            Some(pair) => backend.low_rank(&OutputDelta { changes: &[], pairs: &[source(0, pair)] })?,
            None => {
                let (factors, addends) = (vec![1.0; hidden], vec![0.0; hidden]);
                let (factors, addends) = (&factors[..], &addends[..]);
                let change = OutputChange { first: 0, factors, addends, reads_input: true };
                backend.low_rank(&OutputDelta { changes: &[change], pairs: &[] })?
            }
        };
        let mut deltas = Vec::new();
        put(&mut deltas, slot, Some(delta));
        let rows = self.buffers.as_ref().map_or(0, |buffers| buffers.rows);
        Ok(AdaptedEmbedding {
            table: backend.pack(&[matrix(&of.table)])?,
            rows: backend.buffer(BufferRole::Residual, rows, of.table.shape[1])?,
            deltas,
            replaces: of.widen.is_none(),
        })
    }

    /// The norms before the first layer.
    fn input_norms_mut(&mut self) -> impl Iterator<Item = &mut Norm> {
        self.embedding_norm.iter_mut().chain(&mut self.first_norm)
    }

    pub(super) fn make_adapter_buffers(&mut self, backend: &mut AnyBackend) -> Result<(), KernelError> {
        let Some(buffers) = self.buffers.as_mut().filter(|buffers| buffers.adapters.is_none()) else {
            return Ok(());
        };
        let rows = buffers.rows;
        let low = backend.buffer(BufferRole::Operand, rows, low_cols(&self.spec))?;
        let (mut both, mut alone) = (Vec::new(), Vec::new());
        for cols in super::inner_widths(&self.spec) {
            let mut pair = backend.buffer(BufferRole::Residual, rows, 2 * cols)?;
            let ungated = is_ungated(&self.spec, cols);
            if ungated {
                backend.write_rows(&mut pair, 0, &vec![1.0; rows * 2 * cols])?;
            }
            both.push(pair);
            alone.push(ungated.then(|| backend.buffer(BufferRole::Residual, rows, cols)).transpose()?);
        }
        buffers.adapters = Some(AdapterBuffers { low, both, alone });
        Ok(())
    }

    /// Empties a slot.
    pub(crate) fn unadapt(&mut self, slot: usize) {
        for layer in &mut self.layers {
            layer.deltas.lists().into_iter().for_each(|list| put(list, slot, None));
            layer.norms_mut().for_each(|norm| put(&mut norm.deltas, slot, None));
        }
        self.input_norms_mut().for_each(|norm| put(&mut norm.deltas, slot, None));
        put(&mut self.head_deltas, slot, None);
        put(&mut self.adapted_embeddings, slot, None);
        self.rebuild_programs();
    }
}

fn norm_delta(
    backend: &AnyBackend,
    adapter: &Adapter,
    norm: &Norm,
) -> Result<Option<ops::LowRank>, KernelError> {
    norm.part.map_or(Ok(None), |part| PackedDelta::of_part(adapter, part).on(backend))
}

impl Layer {
    /// The norms of hidden states that stand in it.
    fn norms(&self) -> impl Iterator<Item = &Norm> {
        let Self { attention_post_norm, middle_norm, mlp_post_norm, last_norm, .. } = self;
        [attention_post_norm, middle_norm, mlp_post_norm, last_norm].into_iter().flatten()
    }

    fn norms_mut(&mut self) -> impl Iterator<Item = &mut Norm> {
        let Self { attention_post_norm, middle_norm, mlp_post_norm, last_norm, .. } = self;
        [attention_post_norm, middle_norm, mlp_post_norm, last_norm].into_iter().flatten()
    }
}

const SCRATCH: &str = "buffers of adapters are made before the first adapter or observation";
const INNER: &str = "an MLP writes to one of the inner buffers";

/// Changes by adapters, by the operand whose output they change.
#[derive(Default)]
struct Changes {
    matrices: HashMap<MatrixId, Vec<Option<LowRankId>>>,
    norms: HashMap<VectorId, Vec<Option<LowRankId>>>,
}

fn ids(list: &[Option<ops::LowRank>]) -> Vec<Option<LowRankId>> {
    list.iter().map(|of| of.as_ref().map(ops::LowRank::id)).collect()
}

impl Changes {
    fn of(network: &Network) -> Self {
        let mut all = Self::default();
        for layer in &network.layers {
            let Deltas { qkv, gate, output, up, down } = &layer.deltas;
            all.change(&layer.qkv, qkv);
            all.change(&layer.output, output);
            if let Some(matrix) = &layer.gate {
                all.change(matrix, gate);
            }
            match &layer.mlp {
                Mlp::Curved { up: first, down: second, .. }
                | Mlp::Plain { up: first, down: second, .. }
                | Mlp::Gated { gate_up: first, down: second, .. } => {
                    all.change(first, up);
                    all.change(second, down);
                }
                Mlp::Experts { .. } | Mlp::None => {}
            }
        }
        let norms = network.layers.iter().flat_map(Layer::norms);
        for norm in norms.chain(&network.embedding_norm).chain(&network.first_norm) {
            if !norm.deltas.is_empty() {
                all.norms.insert(norm.weight.id(), ids(&norm.deltas));
            }
        }
        all
    }

    fn change(&mut self, matrix: &ops::Matrix, deltas: &[Option<ops::LowRank>]) {
        if !deltas.is_empty() {
            self.matrices.insert(matrix.id(), ids(deltas));
        }
    }

    /// Op that adds the changes of a matrix to its output, where it has some.
    fn of_matrix(&self, matrix: MatrixId, x: BufferId, low: BufferId, out: BufferId) -> Option<Op> {
        let deltas = self.matrices.get(&matrix)?.clone();
        Some(Op::AddLowRank { deltas, x, low: Some(low), out })
    }

    /// Op that changes the output of a norm, where adapters do so.
    fn of_norm(&self, norm: VectorId, x: BufferId, out: BufferId) -> Option<Op> {
        Some(Op::AddLowRank { deltas: self.norms.get(&norm)?.clone(), x, low: None, out })
    }
}

impl Network {
    /// Whether an adapter is in a slot.
    pub(super) fn has_adapters(&self) -> bool {
        let lists = |layer: &Layer| {
            let Deltas { qkv, gate, output, up, down } = &layer.deltas;
            [qkv, gate, output, up, down].into_iter().any(|list| !list.is_empty())
                || layer.norms().any(|norm| !norm.deltas.is_empty())
        };
        self.layers.iter().any(lists)
            || self.embedding_norm.iter().chain(&self.first_norm).any(|norm| !norm.deltas.is_empty())
            || !self.head_deltas.is_empty()
            || !self.adapted_embeddings.is_empty()
    }

    /// A program with the ops that adapters take: behind each product, norm and embedding that one of them changes.
    pub(super) fn with_adapters(&self, mut program: Program, b: &Buffers) -> Program {
        let changes = Changes::of(self);
        program.expand(|op| self.adapted_op(&changes, op, b).into_iter().map(Work::Run).collect());
        program.rewrite(biases_first);
        program
    }

    /// An op of a step that has adapters.
    fn adapted_op(&self, changes: &Changes, op: Op, b: &Buffers) -> Vec<Op> {
        let scratch = b.adapters.as_ref().expect(SCRATCH);
        let low = scratch.low.id();
        let more: Vec<Op> = match &op {
            Op::Embed { table, out, .. } if *table == self.embedding.id() => self.adapted_embeddings(*out),
            Op::MatMul { weight, x, out, .. } => {
                changes.of_matrix(*weight, *x, low, *out).into_iter().collect()
            }
            Op::RmsNorm { x, weight, out, .. } => changes.of_norm(*weight, *x, *out).into_iter().collect(),
            Op::LayerNorm { x, params, out } => {
                changes.of_norm(params.weight, *x, *out).into_iter().collect()
            }
            Op::MatMulActivated { weight, .. } if changes.matrices.contains_key(weight) => {
                return self.adapted_activation(changes, &op, b);
            }
            _ => Vec::new(),
        };
        [op].into_iter().chain(more).collect()
    }

    /// A product through a non-linearity, with the adapters' part before the non-linearity: the product is a gate, and the
    /// gate's partner is ones.
    fn adapted_activation(&self, changes: &Changes, op: &Op, b: &Buffers) -> Vec<Op> {
        let (Op::MatMulActivated { weight, bias, activation, x, out }, Some(scratch)) = (op, &b.adapters)
        else {
            return vec![op.clone()];
        };
        let width = b.inner.iter().position(|inner| inner.id() == *out);
        let alone = width.and_then(|width| Some((width, scratch.alone[width].as_ref()?.id())));
        let Some((width, alone)) = alone else { return vec![op.clone()] };
        let both = scratch.both[width].id();
        let product = Op::MatMul { weight: *weight, bias: *bias, x: *x, out: alone };
        let mut made = self.adapted_op(changes, product, b);
        made.push(Op::Row { op: RowOp::Put { x: alone, first: 0 }, out: both });
        made.push(Op::Gate { activation: *activation, both, hidden: *out });
        made
    }

    /// Ops that change embeddings of rows whose adapters do so.
    fn adapted_embeddings(&self, out: BufferId) -> Vec<Op> {
        let of = |of: &AdaptedEmbedding| {
            let (table, rows) = (of.table.id(), of.rows.id());
            // Rows that are not tokens keep their numbers, or get zeros.
            let (before, scale) = match of.replaces {
                true => (RowOp::Take { x: out, first: 0 }, self.spec.embedding_scale),
                false => (RowOp::Scale(0.0), 1.0),
            };
            [
                Op::Row { op: before, out: rows },
                Op::Embed { table, scale, out: rows },
                Op::AddLowRank { deltas: ids(&of.deltas), x: rows, low: None, out },
            ]
        };
        self.adapted_embeddings.iter().flatten().flat_map(of).collect()
    }
}

/// Puts the bias of a gated MLP, which is an op behind it, before the adapters' part of its output: they change what has the bias.
fn biases_first(mut list: Vec<Instruction>) -> Vec<Instruction> {
    let out_of = |instruction: &Instruction| match &instruction.work {
        Work::Run(Op::AddLowRank { out, .. }) => (Some(*out), None),
        Work::Run(Op::AddBias { out, .. }) => (None, Some(*out)),
        _ => (None, None),
    };
    for at in 1..list.len() {
        if let ((Some(change), _), (_, Some(bias))) = (out_of(&list[at - 1]), out_of(&list[at]))
            && change == bias
        {
            list.swap(at - 1, at);
        }
    }
    list
}

impl Buffers {
    /// Buffer of gate and up beside an inner one, once adapters or observations may stand between an MLP's products.
    pub(super) fn gate_and_up(&self, inner: BufferId) -> Option<BufferId> {
        let width = self.inner.iter().position(|of| of.id() == inner).expect(INNER);
        Some(self.adapters.as_ref()?.both[width].id())
    }
}

fn source(first: usize, pair: &Pair) -> LowRankPair<'_> {
    LowRankPair { a: pair.a.as_ref().map(matrix), b: matrix(&pair.b), scale: pair.scale, first }
}

fn pair_shape(pair: &Pair) -> LowRankShape {
    LowRankShape { a: pair.a.as_ref().map(shape), b: shape(&pair.b) }
}

fn matrix(tensor: &Tensor) -> MatrixSource<'_> {
    MatrixSource { name: &tensor.name, shape: shape(tensor), bytes: &tensor.bytes }
}

/// Of two dimensions, as opening has checked.
fn shape(tensor: &Tensor) -> MatrixShape {
    MatrixShape { rows: tensor.shape[0], cols: tensor.shape[1], dtype: tensor.dtype }
}
