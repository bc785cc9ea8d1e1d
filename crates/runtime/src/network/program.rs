//! A network's program: its ops as lists, built once the buffers exist and run at every step.
//!
//! `layers` builds the lists. Passes rewrite them: `adapted` inserts what adapters add, `observed` the readings that an
//! importance matrix is made of. The ops of attention stand apart, because decoders, encoders and towers attend differently.

use hanzo_engine_kernels::ops::{self, BufferId, Op};
use hanzo_engine_kernels::{AnyBackend, LayerNormParams, RowOp, Stage};

use super::Norm;
use super::observed::{Observation, Observed};
use crate::spec::NormSpec;

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
    observed: &mut Option<Observed>,
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

/// A list under construction. Each method appends one op.
#[derive(Default)]
pub(super) struct ProgramBuilder {
    made: Vec<Instruction>,
    /// Condition of the instructions that are appended.
    pub(super) condition: Condition,
}

impl ProgramBuilder {
    /// The list so far. The builder starts a new one.
    pub(super) fn finish(&mut self) -> Vec<Instruction> {
        std::mem::take(&mut self.made)
    }

    pub(super) fn op(&mut self, op: Op) {
        self.made.push(Instruction { condition: self.condition, work: Work::Run(op) });
    }

    pub(super) fn embed(&mut self, table: &ops::Matrix, scale: f32, out: BufferId) {
        self.op(Op::Embed { table: table.id(), scale, out });
    }

    pub(super) fn matmul(
        &mut self,
        weight: &ops::Matrix,
        bias: Option<&ops::Vector>,
        x: BufferId,
        out: BufferId,
    ) {
        self.op(Op::MatMul { weight: weight.id(), bias: bias.map(ops::Vector::id), x, out });
    }

    pub(super) fn row(&mut self, op: RowOp<BufferId, ops::VectorId>, out: BufferId) {
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
    pub(super) fn add(&mut self, x: BufferId, out: BufferId) {
        self.op(Op::AddShared { gate: None, x, shared: x, out });
    }

    pub(super) fn rms_norm(&mut self, x: BufferId, weight: &ops::Vector, eps: f32, out: BufferId) {
        self.op(Op::RmsNorm { x, weight: weight.id(), eps, out });
    }

    /// A norm of the network's kind.
    pub(super) fn norm(&mut self, norm: &Norm, spec: NormSpec, x: BufferId, out: BufferId) {
        self.op(norm.op(spec, x, out));
    }

    /// `residual += x`, then the norm of the sum.
    pub(super) fn add_norm(
        &mut self,
        norm: &Norm,
        spec: NormSpec,
        residual: BufferId,
        x: BufferId,
        out: BufferId,
    ) {
        self.op(norm.add_op(spec, residual, x, out));
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

    /// `residual += x`, then the norm of the sum.
    pub(crate) fn add_op(
        &self,
        NormSpec { kind, eps }: NormSpec,
        residual: BufferId,
        x: BufferId,
        out: BufferId,
    ) -> Op {
        match kind.is_layer() {
            true => Op::AddLayerNorm { residual, x, params: self.layer_params(eps), out },
            false => Op::AddRmsNorm { residual, x, weight: self.weight.id(), eps, out },
        }
    }
}
