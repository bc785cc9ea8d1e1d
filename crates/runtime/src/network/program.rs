//! A network's program: its ops as lists, built once the buffers exist and run at every step.
//!
//! `layers` builds the lists. Passes rewrite them: `adapted` inserts what adapters add, `observed` the readings that an
//! importance matrix is made of, and `fused` makes one op of neighbours. `liveness` checks the result. The ops of attention
//! stand apart, because decoders, encoders and towers attend differently. Networks outside this module, such as Whisper's,
//! make plain lists with [`ProgramBuilder`] and [`Attend`].

use std::ops::Range;

use hanzo_engine_ops as ops;
use hanzo_engine_ops::{
    Activation, AnyBackend, AttentionParams, Buckets, BufferId, HeadShape, KvId, LayerNormParams, Op,
    PositionBias, QkvParams, RowIds, RowOp, SelfAttentionParams, Stage, VectorId,
};

use super::Norm;
use super::fused::fuse;
use super::observed::{ImportanceSums, Observation};
use crate::spec::NormSpec;

/// Layer of a KV cache.
#[derive(Clone, Copy)]
pub(crate) struct CacheLayer {
    pub(crate) kv: KvId,
    pub(crate) layer: usize,
}

/// Condition of an instruction. Conditions change from step to step, and never within one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Condition {
    /// The instruction always runs.
    #[default]
    Always,
    /// A row of the step has embeddings for the first layers (DeepStack).
    WithDeepRows,
    /// No row of the step has such embeddings.
    WithoutDeepRows,
    /// A row of the step sees none of the features that its sequence attends to.
    WithUnseeingRows,
}

/// Conditions of one step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Conditions {
    pub(super) deep_rows: bool,
    pub(super) unseeing_rows: bool,
}

impl Conditions {
    fn meet(self, condition: Condition) -> bool {
        match condition {
            Condition::Always => true,
            Condition::WithDeepRows => self.deep_rows,
            Condition::WithoutDeepRows => !self.deep_rows,
            Condition::WithUnseeingRows => self.unseeing_rows,
        }
    }
}

/// Work of an instruction.
#[derive(Clone, Debug)]
pub(super) enum Work {
    /// Runs an op.
    Run(Op),
    /// Adds activations to the sums of an importance matrix.
    Observe(Observation),
}

/// Line of a program.
#[derive(Clone, Debug)]
pub(super) struct Instruction {
    pub(super) condition: Condition,
    pub(super) work: Work,
}

/// The three buffers as wide as hidden states, by their role at one place of a program. They take each other's role where a
/// norm's output becomes the sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sum {
    /// Sum that a layer's halves add to.
    pub(crate) residual: BufferId,
    /// Norm of the sum, read by the next half.
    pub(crate) normed: BufferId,
    /// Output of a half.
    pub(crate) branch: BufferId,
}

/// Ops of one layer, before and after its attention.
#[derive(Clone, Debug)]
pub(super) struct LayerProgram {
    /// Ops from hidden states to queries, keys and values.
    pub(super) rows: Vec<Instruction>,
    /// Ops from attention's output to the layer's.
    pub(super) behind: Vec<Instruction>,
    /// The norm that the next layer reads, alone, for a sum that was changed between two layers.
    pub(super) norm: Vec<Instruction>,
    /// Roles of the buffers after the layer.
    pub(super) sum: Sum,
}

/// A network as lists of ops.
#[derive(Clone, Debug)]
pub(super) struct Program {
    /// Ops from tokens to the sum of their embeddings.
    pub(super) embed: Vec<Instruction>,
    /// The norm that the first layer reads.
    pub(super) begin: Vec<Instruction>,
    /// All layers.
    pub(super) layers: Vec<LayerProgram>,
    /// Ops from the last layer's output to hidden states.
    pub(super) end: Vec<Instruction>,
    /// Buffer that embeddings are given in, for rows that are not tokens.
    pub(super) given: BufferId,
    /// Roles of the buffers before the first layer.
    pub(super) sum: Sum,
    /// Buffer of the hidden states that the head reads.
    pub(super) hidden: BufferId,
}

/// Programs of a network, and the state of the step under way that chooses among their ops.
#[derive(Default)]
pub(super) struct Programs {
    /// Program of steps without adapters, once there are buffers.
    pub(super) plain: Option<Program>,
    /// Program of steps with adapters, if one is loaded.
    pub(super) adapted: Option<Program>,
    /// Whether a sequence of the step has an adapter.
    pub(super) adapting: bool,
    /// Conditions of the step.
    pub(super) conditions: Conditions,
}

impl Programs {
    /// Program of the step under way.
    ///
    /// # Panics
    /// Without buffers.
    pub(super) fn current(&self) -> &Program {
        let adapted = self.adapted.as_ref().filter(|_| self.adapting);
        adapted.or(self.plain.as_ref()).expect("`prepare` is called before the first step, as its docs ask")
    }
}

impl Program {
    /// Puts other work in the place of each op, under the same condition.
    pub(super) fn expand(&mut self, mut pass: impl FnMut(Op) -> Vec<Work>) {
        self.rewrite(|list| {
            let expanded = list.into_iter().flat_map(|Instruction { condition, work }| {
                let works = match work {
                    Work::Run(op) => pass(op),
                    observed @ Work::Observe(_) => vec![observed],
                };
                works.into_iter().map(move |work| Instruction { condition, work })
            });
            expanded.collect()
        });
    }

    /// Rewrites every list.
    pub(super) fn rewrite(&mut self, mut pass: impl FnMut(Vec<Instruction>) -> Vec<Instruction>) {
        let Self { embed, begin, layers, end, .. } = self;
        let of_layers =
            layers.iter_mut().flat_map(|layer| [&mut layer.rows, &mut layer.behind, &mut layer.norm]);
        for list in [embed, begin, end].into_iter().chain(of_layers) {
            *list = pass(std::mem::take(list));
        }
    }

    /// Roles of the buffers after the last layer.
    pub(super) fn last_sum(&self) -> Sum {
        self.layers.last().map_or(self.sum, |layer| layer.sum)
    }
}

/// Runs a list within a stage.
pub(super) fn run(
    list: &[Instruction],
    backend: &mut AnyBackend,
    stage: Stage,
    conditions: Conditions,
    observed: &mut Option<ImportanceSums>,
) {
    backend.enter(stage);
    for instruction in list.iter().filter(|of| conditions.meet(of.condition)) {
        match (&instruction.work, observed.as_mut()) {
            (Work::Run(op), _) => backend.run(op),
            (Work::Observe(observation), Some(observed)) => observed.add(backend, observation),
            (Work::Observe(_), None) => {}
        }
    }
}

/// Attention inside whole sequences, or of some of their rows, without biases.
#[derive(Clone, Debug)]
pub(crate) struct Attend {
    /// Queries, keys and values of a sequence, `(rows, qkv_width)`.
    pub(crate) qkv: BufferId,
    /// Heads.
    pub(crate) heads: HeadShape,
    /// Factor on the dot products.
    pub(crate) scale: f32,
    /// Attention's output, `(rows that attend, q_width)`.
    pub(crate) out: BufferId,
}

impl Attend {
    fn params(&self) -> SelfAttentionParams<VectorId, Buckets> {
        let (heads, scale) = (self.heads, self.scale);
        SelfAttentionParams { heads, scale, reach: None, padding: 0, bias: PositionBias::None }
    }

    /// Attention of all rows.
    pub(crate) fn whole(&self) -> Op {
        Op::SelfAttention { qkv: self.qkv, params: self.params(), out: self.out }
    }

    /// Attention of a sequence's rows `queries`, over its rows `keys`.
    pub(crate) fn part(&self, keys: Range<usize>, queries: Range<usize>) -> Op {
        Op::AttendPart { qkv: self.qkv, rows: keys, queries, params: self.params(), out: self.out }
    }
}

/// Way of rows into one layer of a memory that other rows attend to.
pub(crate) struct ToMemory<'a> {
    /// Projection to keys and values, `(2 * kv_heads * head_dim, cols)`.
    pub(crate) weight: &'a ops::Matrix,
    /// `(2 * kv_heads * head_dim)`
    pub(crate) bias: Option<&'a ops::Vector>,
    /// Heads, and the norms of keys.
    pub(crate) params: QkvParams<VectorId>,
    /// Buffer of keys and values, `(rows, 2 * kv_heads * head_dim)`.
    pub(crate) pairs: BufferId,
    /// Buffer of the same with room for queries before them, `(rows, qkv_width)`.
    pub(crate) own: BufferId,
}

/// A list under construction. Each method appends one op, or the few that belong together.
#[derive(Default)]
pub(crate) struct ProgramBuilder {
    made: Vec<Instruction>,
    /// Condition of the instructions that are appended.
    pub(super) condition: Condition,
}

impl ProgramBuilder {
    /// The list so far. The builder starts a new one.
    pub(super) fn finish(&mut self) -> Vec<Instruction> {
        std::mem::take(&mut self.made)
    }

    /// The list so far as ops that run at every step, with neighbours fused. The builder starts a new one.
    ///
    /// # Panics
    /// On an instruction with a condition.
    pub(crate) fn finish_ops(&mut self) -> Vec<Op> {
        let ops = fuse(self.finish()).into_iter().map(|line| match line {
            Instruction { condition: Condition::Always, work: Work::Run(op) } => op,
            line => panic!("{line:?} does not run at every step"),
        });
        ops.collect()
    }

    pub(crate) fn op(&mut self, op: Op) {
        self.made.push(Instruction { condition: self.condition, work: Work::Run(op) });
    }

    pub(crate) fn embed(&mut self, table: &ops::Matrix, scale: f32, out: BufferId) {
        self.op(Op::Embed { table: table.id(), scale, out });
    }

    pub(crate) fn matmul(
        &mut self,
        weight: &ops::Matrix,
        bias: Option<&ops::Vector>,
        x: BufferId,
        out: BufferId,
    ) {
        self.op(Op::MatMul { weight: weight.id(), bias: bias.map(ops::Vector::id), x, out });
    }

    /// A product through a non-linearity.
    pub(crate) fn activated(
        &mut self,
        weight: &ops::Matrix,
        bias: Option<&ops::Vector>,
        activation: Activation,
        x: BufferId,
        out: BufferId,
    ) {
        let bias = bias.map(ops::Vector::id);
        self.op(Op::MatMulActivated { weight: weight.id(), bias, activation, x, out });
    }

    /// A gated MLP of two matrices, gate and up in one, then down.
    pub(crate) fn gated_mlp(
        &mut self,
        [gate_up, down]: [&ops::Matrix; 2],
        activation: Activation,
        x: BufferId,
        hidden: BufferId,
        out: BufferId,
    ) {
        let (gate_up, down) = (gate_up.id(), down.id());
        self.op(Op::GatedMlp { gate_up, down, activation, x, hidden, out });
    }

    /// Adds learned embeddings of positions, counted from 0.
    pub(crate) fn add_positions(&mut self, table: &ops::Matrix, out: BufferId) {
        let ids = RowIds::Positions { offset: 0 };
        self.op(Op::AddEmbedding { table: table.id(), ids, out });
    }

    /// Causal attention over one layer of a cache, to which the keys and values of the rows are added first.
    pub(crate) fn attend(
        &mut self,
        shape: HeadShape,
        scale: f32,
        CacheLayer { kv, layer }: CacheLayer,
        qkv: BufferId,
        out: BufferId,
    ) {
        self.op(Op::RopeToCache { qkv, params: QkvParams::plain(shape), kv, layer });
        self.op(Op::Attention { qkv, params: AttentionParams::of(shape, scale), kv, layer, out });
    }

    /// Cross-attention of queries over one layer of a memory ([`ProgramBuilder::remember`]).
    pub(crate) fn attend_memory(
        &mut self,
        shape: HeadShape,
        scale: f32,
        CacheLayer { kv, layer }: CacheLayer,
        queries: BufferId,
        out: BufferId,
    ) {
        let own = AttentionParams::of(shape, scale);
        let params = AttentionParams { queries_alone: true, memory: true, ..own };
        self.op(Op::Attention { qkv: queries, params, kv, layer, out });
    }

    /// Puts keys and values of the rows `x` into one layer of a memory.
    pub(crate) fn remember(&mut self, x: BufferId, to: ToMemory<'_>, CacheLayer { kv, layer }: CacheLayer) {
        let ToMemory { weight, bias, params, pairs, own } = to;
        self.matmul(weight, bias, x, pairs);
        self.row(RowOp::Put { x: pairs, first: params.shape.q_width() }, own);
        self.op(Op::RopeToCache { qkv: own, params, kv, layer });
    }

    pub(crate) fn row(&mut self, op: RowOp<BufferId, ops::VectorId>, out: BufferId) {
        self.op(Op::Row { op, out });
    }

    pub(super) fn all_reduce(&mut self, x: BufferId) {
        self.op(Op::AllReduce { x });
    }

    pub(super) fn add_bias(&mut self, bias: Option<&ops::Vector>, out: BufferId) {
        if let Some(bias) = bias {
            self.op(Op::AddBias { bias: bias.id(), out });
        }
    }

    /// `out += x`.
    pub(crate) fn add(&mut self, x: BufferId, out: BufferId) {
        self.op(Op::AddShared { gate: None, x, shared: x, out });
    }

    pub(super) fn rms_norm(&mut self, x: BufferId, weight: &ops::Vector, eps: f32, out: BufferId) {
        self.op(Op::RmsNorm { x, weight: weight.id(), eps, out });
    }

    /// A norm of the network's kind.
    pub(crate) fn norm(&mut self, norm: &Norm, spec: NormSpec, x: BufferId, out: BufferId) {
        self.op(norm.op(spec, x, out));
    }
}

impl Norm {
    /// Parameters of a layer norm.
    pub(super) fn layer_params(&self, eps: f32) -> LayerNormParams<ops::VectorId> {
        let bias = self.bias.as_ref().map(ops::Vector::id);
        LayerNormParams { weight: self.weight.id(), bias, eps }
    }

    /// The norm of rows of `x`.
    pub(crate) fn op(&self, NormSpec { kind, eps }: NormSpec, x: BufferId, out: BufferId) -> Op {
        match kind.is_layer() {
            true => Op::LayerNorm { x, params: self.layer_params(eps), out },
            false => Op::RmsNorm { x, weight: self.weight.id(), eps, out },
        }
    }
}
