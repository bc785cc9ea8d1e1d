//! Builds a network's program: embeddings, each layer around its attention, and the end.
//!
//! Each method appends the ops of one part of a layer, in the order in which they run. Families differ in which parts a layer
//! has; a part that a layer lacks appends nothing.

use std::mem::swap;

use hanzo_engine_ops as ops;
use hanzo_engine_ops::{Activation, BufferId, GateKind, MoeOperands, Op, OutputGateParams, RowIds, RowOp};

use super::program::{Condition, LayerProgram, Program, ProgramBuilder, Sum};
use super::streams::StreamBuffers;
use super::{Apart, Buffers, Layer, LayerInput, Mlp, Network, Norm, SharedMlp};
use crate::spec::{LayerSpec, NormOrder, NormSpec};

/// Builder of one layer.
pub(super) struct LayerBuilder<'a> {
    pub(super) network: &'a Network,
    pub(super) b: &'a Buffers,
    pub(super) index: usize,
    pub(super) layer: &'a Layer,
    pub(super) spec: &'a LayerSpec,
    pub(super) norm: NormSpec,
    pub(super) sum: Sum,
    pub(super) p: ProgramBuilder,
}

impl Network {
    /// Program of a network on its buffers, without adapters.
    pub(super) fn build_program(&self, b: &Buffers) -> Program {
        let (residual, normed, branch) = (b.residual.id(), b.normed.id(), b.branch.id());
        let mut p = ProgramBuilder::default();
        // A norm of the embeddings reads one buffer and writes the sum to the other.
        let given = if self.embedding_norm.is_some() { normed } else { residual };
        self.build_embeddings(&mut p, b, given, residual);
        let embed = p.finish();
        if let Some(norm) = &self.first_norm {
            p.norm(norm, self.spec.norm, residual, normed);
        }
        let begin = p.finish();
        let first = Sum { residual, normed, branch };
        let mut sum = first;
        let layers: Vec<LayerProgram> = (0..self.layers.len())
            .map(|index| {
                let made = self.build_layer(b, index, sum);
                sum = made.sum;
                made
            })
            .collect();
        if let (Some(streams), Some(buffers)) = (&self.streams, &b.streams) {
            streams.join(&mut p, self.spec.hidden, sum, buffers);
            if let Some(norm) = self.layers.last().and_then(|layer| layer.last_norm.as_ref()) {
                p.norm(norm, self.spec.norm, sum.residual, sum.normed);
            }
        }
        let end = p.finish();
        let hidden = if self.spec.layers[0].order.on_sum() { sum.residual } else { sum.normed };
        Program { embed, begin, layers, end, given, sum: first, hidden }
    }

    /// Embeddings of tokens, positions and types, their norm, and what layers read of tokens beside them.
    fn build_embeddings(&self, p: &mut ProgramBuilder, b: &Buffers, given: BufferId, sum: BufferId) {
        p.embed(&self.embedding, self.spec.embedding_scale, given);
        if let (Some(table), Some(positions)) = (&self.positions, self.spec.positions) {
            let ids = RowIds::Positions { offset: positions.offset };
            p.op(Op::AddEmbedding { table: table.id(), ids, out: given });
        }
        if let Some(table) = &self.types {
            p.op(Op::AddEmbedding { table: table.id(), ids: RowIds::Types, out: given });
        }
        if let Some(norm) = &self.embedding_norm {
            p.norm(norm, self.spec.norm, given, sum);
        }
        if let (Some(inputs), Some(buffers)) = (&self.inputs, &b.inputs) {
            inputs.build(p, sum, buffers);
        }
        if let (Some(streams), Some(buffers)) = (&self.streams, &b.streams) {
            streams.part(p, sum, self.spec.hidden, buffers);
        }
    }

    fn build_layer(&self, b: &Buffers, index: usize, sum: Sum) -> LayerProgram {
        let mut builder = LayerBuilder {
            network: self,
            b,
            index,
            layer: &self.layers[index],
            spec: &self.spec.layers[index],
            norm: self.spec.norm,
            sum,
            p: ProgramBuilder::default(),
        };
        let x = builder.first_half();
        let rows = builder.p.finish();
        builder.attention_output(x);
        builder.second_half();
        builder.end();
        let behind = builder.p.finish();
        if let Some(norm) = &builder.layer.last_norm {
            builder.p.norm(norm, builder.norm, builder.sum.residual, builder.sum.normed);
        }
        LayerProgram { rows, behind, norm: builder.p.finish(), sum: builder.sum }
    }
}

impl LayerBuilder<'_> {
    /// Appends the ops from hidden states to queries, keys and values. Returns the buffer that the projections read.
    fn first_half(&mut self) -> BufferId {
        self.predict_streams();
        // Halves that read the same sum may be computed in either order; attention's input is kept for it.
        if self.spec.order.is_parallel() {
            self.mlp_half(self.sum.normed);
            if let Some(norm) = &self.layer.middle_norm {
                self.p.norm(norm, self.norm, self.sum.residual, self.sum.normed);
            }
            self.add_branch(None);
        }
        let x = if self.spec.order.attention_reads_sum() { self.sum.residual } else { self.sum.normed };
        let own = self.b.own(self.layer).id();
        self.p.matmul(&self.layer.qkv, self.layer.qkv_bias.as_ref(), x, own);
        self.latent_queries(x);
        x
    }

    /// Queries of latent attention, taken to the latents that the cache holds.
    fn latent_queries(&mut self, x: BufferId) {
        let (Some(latent), Some(b)) = (&self.layer.latent, &self.b.latent) else { return };
        let (queries, eps) = (b.queries.id(), self.spec.attention.latent_eps.unwrap_or(self.norm.eps));
        match &latent.query_down {
            Some((down, norm)) => {
                self.p.matmul(down, None, x, b.low.id());
                self.p.rms_norm(b.low.id(), &norm.weight, eps, b.normed.id());
                self.p.matmul(&latent.query, None, b.normed.id(), queries);
            }
            None => self.p.matmul(&latent.query, None, x, queries),
        }
        self.heads_matmul(&latent.key_up, queries, b.absorbed.id());
    }

    fn heads_matmul(&mut self, weights: &ops::Heads, x: BufferId, out: BufferId) {
        self.p.op(Op::HeadsMatMul { weights: weights.id(), x, out });
    }

    /// Appends the ops from attention's output to what its half adds. `x` is the input of the half.
    fn attention_output(&mut self, x: BufferId) {
        let attended = self.b.attended(self.layer).id();
        if let (Some(latent), Some(b)) = (&self.layer.latent, &self.b.latent) {
            self.heads_matmul(&latent.value_up, b.mixed.id(), attended);
        }
        if let (Some(gate), Some(gates)) = (&self.layer.gate, &self.b.gates) {
            self.p.matmul(gate, None, x, gates.id());
            let params = OutputGateParams { column: 0, kind: GateKind::Sigmoid, norm: None };
            self.p.op(Op::GateOutput { gate: gates.id(), params, out: attended });
        }
        self.p.matmul(&self.layer.output, self.layer.output_bias.as_ref(), attended, self.sum.branch);
        self.p.all_reduce(self.sum.branch);
        if let Some([factor, _]) = self.layer.half_factors {
            self.p.row(RowOp::Scale(factor), self.sum.branch);
        }
        if let Some(post) = &self.layer.attention_post_norm {
            let Sum { residual, normed, branch } = self.sum;
            if self.spec.order == NormOrder::PostTwice {
                self.p.add(residual, branch);
            }
            self.p.norm(post, self.norm, branch, normed);
            swap(&mut self.sum.branch, &mut self.sum.normed);
        }
    }

    /// The MLP or the experts, where they follow attention.
    fn second_half(&mut self) {
        if self.spec.order.is_parallel() || self.spec.mlp.is_none() {
            return;
        }
        let on_sum = self.spec.order.on_sum();
        match (&self.layer.streams, &self.b.streams) {
            (Some(of), Some(buffers)) => {
                self.add_branch(None);
                of.add_laurel(&mut self.p, self.sum.residual, buffers);
                if let Some(norm) = &self.layer.middle_norm {
                    self.p.norm(norm, self.norm, self.sum.residual, self.sum.normed);
                }
            }
            _ => self.add_branch(self.layer.middle_norm.as_ref()),
        }
        // Where norms stand after halves, a half reads the normed sum, which becomes the sum.
        if on_sum {
            swap(&mut self.sum.residual, &mut self.sum.normed);
        }
        let reads_sum = on_sum || self.layer.middle_norm.is_none();
        if let Some((apart, beside)) = self.layer.apart() {
            self.experts_apart(apart, beside);
        } else if let (Some(outliers), Some(buffers)) = (self.layer.outliers(), &self.b.streams) {
            self.sparse_mlp(outliers, buffers);
        } else {
            self.mlp_half(if reads_sum { self.sum.residual } else { self.sum.normed });
        }
        if let Some([_, factor]) = self.layer.half_factors {
            self.leave_out_unseeing_rows();
            self.p.row(RowOp::Scale(factor), self.sum.branch);
        }
        if let Some(post) = &self.layer.mlp_post_norm {
            self.norm_branch(post);
        }
    }

    /// Norms a half's output.
    fn norm_branch(&mut self, norm: &Norm) {
        self.p.norm(norm, self.norm, self.sum.branch, self.sum.normed);
        swap(&mut self.sum.branch, &mut self.sum.normed);
    }

    /// Adds a half's output to the sum, and norms the sum where something reads that.
    pub(super) fn add_branch(&mut self, norm: Option<&Norm>) {
        let Sum { residual, normed, branch } = self.sum;
        self.p.add(branch, residual);
        if let Some(norm) = norm {
            self.p.norm(norm, self.norm, residual, normed);
        }
    }

    /// Appends the ops from both halves to what the next layer reads.
    fn end(&mut self) {
        if self.correct_streams() {
            return;
        }
        let inputs = (&self.layer.input, &self.b.inputs, self.network.spec.layer_inputs);
        if let (Some(input), Some(buffers), Some(width)) = inputs {
            self.add_branch(None);
            self.layer_input(input, buffers, width, self.sum.residual);
        }
        self.last_sum();
        if self.spec.order.on_sum() {
            swap(&mut self.sum.residual, &mut self.sum.normed);
        }
    }

    /// Appends the product of the layer's vector with rows of `x`, and its norm.
    pub(super) fn layer_input(
        &mut self,
        input: &LayerInput,
        buffers: &super::inputs::InputBuffers,
        width: usize,
        x: BufferId,
    ) {
        let (activation, first) = (Activation::GeluTanh, self.index * width);
        input.build(&mut self.p, activation, first, x, buffers, self.sum.branch);
        self.norm_branch(&input.norm);
    }

    /// The last addition of a layer, and the norm that the next one reads.
    fn last_sum(&mut self) {
        let (layer, index) = (self.layer, self.index);
        let deep = self.b.deep.as_ref().filter(|_| index < self.network.spec.deep_layers);
        let Some(deep) = deep else { return self.scaled_sum(layer.factor) };
        let Sum { residual, normed, .. } = self.sum;
        let first = index * self.network.spec.hidden;
        self.p.condition = Condition::WithDeepRows;
        self.add_branch(None);
        self.p.row(RowOp::Add { x: deep.rows.id(), first, factor: 1.0 }, residual);
        if let Some(last) = &layer.last_norm {
            self.p.norm(last, self.norm, residual, normed);
        }
        self.p.condition = Condition::WithoutDeepRows;
        self.scaled_sum(layer.factor);
        self.p.condition = Condition::Always;
    }

    fn scaled_sum(&mut self, factor: f32) {
        self.add_branch(None);
        if factor != 1.0 {
            self.p.row(RowOp::Scale(factor), self.sum.residual);
        }
        if let Some(norm) = &self.layer.last_norm {
            self.p.norm(norm, self.norm, self.sum.residual, self.sum.normed);
        }
    }

    /// Zeroes a half's output in rows that see none of the features that their sequence attends to.
    fn leave_out_unseeing_rows(&mut self) {
        let memory = self.b.memory.as_ref().filter(|_| self.spec.attention.memory);
        let (Some(memory), branch) = (memory, self.sum.branch) else { return };
        self.p.condition = Condition::WithUnseeingRows;
        self.p.row(RowOp::Multiply { by: memory.seeing.id(), first: 0 }, branch);
        self.p.condition = Condition::Always;
    }

    /// The MLP of rows of `x`, and the shared expert beside routed ones.
    fn mlp_half(&mut self, x: BufferId) {
        let (layer, out) = (self.layer, self.sum.branch);
        let inner = self.b.inner[layer.inner].id();
        self.mlp(&layer.mlp, x, None, inner, out);
        if let (Mlp::Experts { shared: Some(beside), .. }, Some(shared)) = (&layer.mlp, &self.b.shared) {
            let shared = shared.id();
            self.mlp(&beside.mlp, x, None, self.b.inner[beside.inner].id(), shared);
            let gate = beside.gate.as_ref().map(ops::Vector::id);
            self.p.op(Op::AddShared { gate, x, shared, out });
            if beside.averaged {
                self.p.row(RowOp::Scale(0.5), out);
            }
        }
        self.p.all_reduce(out);
    }

    /// A mixture whose parts have norms of their own (Gemma 4). The shared expert reads the normed sum; the router and the
    /// experts read the sum through two more norms.
    fn experts_apart(&mut self, apart: &Apart, beside: &SharedMlp) {
        let (Some(shared), Some(routed)) = (&self.b.shared, &self.b.routed) else { return };
        let (shared, routed) = (shared.id(), routed.id());
        let (Sum { residual, normed, branch }, norm) = (self.sum, self.norm);
        self.mlp(&beside.mlp, normed, None, self.b.inner[beside.inner].id(), shared);
        self.p.all_reduce(shared);
        self.p.norm(&apart.shared_post_norm, norm, shared, branch);
        self.p.norm(&apart.norm, norm, residual, normed);
        self.p.rms_norm(residual, &apart.router_norm, norm.eps, routed);
        let inner = self.b.inner[self.layer.inner].id();
        self.mlp(&self.layer.mlp, normed, Some(routed), inner, shared);
        self.p.all_reduce(shared);
        self.p.norm(&apart.post_norm, norm, shared, routed);
        self.p.add(routed, branch);
    }

    /// An MLP of whose gate only the largest numbers count (Gemma 3n).
    fn sparse_mlp(&mut self, deviations: f32, buffers: &StreamBuffers) {
        let Mlp::Gated { activation, gate_up, down, .. } = &self.layer.mlp else { return };
        let (x, out) = (self.sum.normed, self.sum.branch);
        let (inner, both) = (self.b.inner[self.layer.inner].id(), buffers.both[self.layer.inner].id());
        self.p.matmul(gate_up, None, x, both);
        self.p.row(RowOp::KeepOutliers { deviations }, both);
        self.p.op(Op::Gate { activation: *activation, both, hidden: inner });
        self.p.matmul(down, None, inner, out);
        self.p.all_reduce(out);
    }

    /// Appends an MLP or a mixture, without a shared expert. `routed` is the input of a router with its own norm.
    fn mlp(&mut self, mlp: &Mlp, x: BufferId, routed: Option<BufferId>, inner: BufferId, out: BufferId) {
        match mlp {
            Mlp::None => {}
            Mlp::Curved { curve: [positive, negative, linear], up, down } => {
                let xielu = RowOp::Xielu { positive: *positive, negative: *negative, linear: *linear };
                self.p.matmul(up, None, x, inner);
                self.p.row(xielu, inner);
                self.p.matmul(down, None, inner, out);
            }
            Mlp::Plain { activation, up, up_bias, down, down_bias } => {
                let (weight, bias) = (up.id(), up_bias.as_ref().map(ops::Vector::id));
                self.p.op(Op::MatMulActivated { weight, bias, activation: *activation, x, out: inner });
                self.p.matmul(down, down_bias.as_ref(), inner, out);
            }
            Mlp::Gated { activation, gate_up, up_bias: Some(up_bias), down, bias } => {
                let both = self.b.both.as_ref().expect("there is one where a layer has such biases").id();
                self.p.matmul(gate_up, Some(up_bias), x, both);
                self.p.op(Op::Gate { activation: *activation, both, hidden: inner });
                self.p.matmul(down, bias.as_ref(), inner, out);
            }
            Mlp::Gated { activation, gate_up, up_bias: None, down, bias } => {
                match self.b.gate_and_up(inner) {
                    // Apart, so that passes reach each product. Where none does, they become one op again.
                    Some(both) => {
                        self.p.matmul(gate_up, None, x, both);
                        self.p.op(Op::Gate { activation: *activation, both, hidden: inner });
                        self.p.matmul(down, None, inner, out);
                    }
                    None => self.p.gated_mlp([gate_up, down], *activation, x, inner, out),
                }
                self.p.add_bias(bias.as_ref(), out);
            }
            Mlp::Experts { .. } => self.experts(mlp, x, routed, inner, out),
        }
    }

    fn experts(&mut self, of: &Mlp, x: BufferId, routed: Option<BufferId>, hidden: BufferId, out: BufferId) {
        let Mlp::Experts { params, router, router_bias, correction, up_bias, down_bias, .. } = of else {
            return;
        };
        let Mlp::Experts { experts, bias, apart, .. } = of else { return };
        let vector = |of: &Option<ops::Vector>| of.as_ref().map(ops::Vector::id);
        let weights = MoeOperands {
            router: router.id(),
            router_bias: vector(router_bias),
            correction: vector(correction),
            experts: experts.id(),
            up_bias: vector(up_bias),
            down_bias: vector(down_bias),
            expert_scale: apart.as_ref().map(|apart| apart.expert_scale.id()),
            routed,
        };
        self.p.op(Op::Moe { weights, params: *params, x, hidden, out });
        self.p.add_bias(bias.as_ref(), out);
    }
}

impl Layer {
    /// Norms and shared expert of a mixture whose parts have norms of their own.
    fn apart(&self) -> Option<(&Apart, &SharedMlp)> {
        match &self.mlp {
            Mlp::Experts { apart: Some(apart), shared: Some(beside), .. } => Some((apart, beside)),
            _ => None,
        }
    }
}
