//! The contract's ops on the device of the stage, with what they read brought there.

use std::borrow::Borrow;

use super::Split;
use super::params::{read_by, reading};
use super::placed::{Placed, Side, SplitBuffer, SplitKv, kv_of};
use crate::{
    Activation, AttentionParams, Backend, Batch, BufferRole, ConvolutionParams, DType, Draws, ExpertParts,
    KernelError, KvSpec, LatentHeads, LatentParams, LayerNormParams, LowRankPair, LowRankShape, MatrixShape,
    MatrixSource, MoeParams, MoeWeights, Operands, OutputGateParams, QkvParams, RecurrenceParams, Rounding,
    RowIds, RowOp, SampleSpecs, Sampled, Stage, StepLimits, Ticket,
};

impl<A: Backend, B: Backend> Backend for Split<A, B> {
    type Matrix = Placed<A::Matrix, B::Matrix>;
    type Vector = Placed<A::Vector, B::Vector>;
    type Experts = Placed<A::Experts, B::Experts>;
    type Heads = Placed<A::Heads, B::Heads>;
    type LowRank = Placed<A::LowRank, B::LowRank>;
    type Buffer = SplitBuffer<A, B>;
    type Kv = SplitKv<A, B>;

    fn knows_memories(&self) -> bool {
        // A memory would be on one of the two.
        false
    }

    fn device(&self) -> String {
        match self.has_first() {
            true => format!("{} and {}", self.second.device(), self.first.device()),
            false => self.second.device(),
        }
    }

    fn rounding(&self) -> Rounding {
        let (one, other) = (self.first.rounding(), self.second.rounding());
        Rounding {
            operands: if one.operands == Operands::Bf16 { one.operands } else { other.operands },
            bytes_before_quantised: one.bytes_before_quantised || other.bytes_before_quantised,
        }
    }

    fn enter(&self, stage: Stage) {
        self.stage.set(stage);
        // Either may be a pair of its own, which counts layers from its own first on.
        let [first, second] = self.sides();
        if first {
            self.first.enter(stage);
        }
        if second {
            self.second.enter(match stage {
                Stage::Layer(layer) => Stage::Layer(layer.saturating_sub(self.cut.layers)),
                other => other,
            });
        }
    }

    fn supports(&self, dtype: DType) -> bool {
        let [first, second] = self.sides();
        (!first || self.first.supports(dtype)) && (!second || self.second.supports(dtype))
    }

    fn matrix_bytes(&self, parts: &[MatrixShape]) -> usize {
        self.count(self.sides(), |first| first.matrix_bytes(parts), |second| second.matrix_bytes(parts))
    }

    fn pack(&self, parts: &[MatrixSource<'_>]) -> Result<Self::Matrix, KernelError> {
        self.place(|first| first.pack(parts), |second| second.pack(parts))
    }

    fn heads(&self, matrices: Vec<Self::Matrix>) -> Self::Heads {
        Placed::joined(matrices, |of| self.first.heads(of), |of| self.second.heads(of))
    }

    fn experts_bytes(&self, experts: &[ExpertParts<MatrixShape>]) -> usize {
        self.count(self.sides(), |first| first.experts_bytes(experts), |second| second.experts_bytes(experts))
    }

    fn experts(&self, shapes: &[ExpertParts<MatrixShape>]) -> Result<Self::Experts, KernelError> {
        self.place(|first| first.experts(shapes), |second| second.experts(shapes))
    }

    fn pack_expert(
        &self,
        experts: &mut Self::Experts,
        parts: &ExpertParts<MatrixSource<'_>>,
    ) -> Result<(), KernelError> {
        let (first, second) = match experts {
            Placed::First(of) => (Some(of), None),
            Placed::Second(of) => (None, Some(of)),
            Placed::Both(one, other) => (Some(one), Some(other)),
        };
        first.map_or(Ok(()), |of| self.first.pack_expert(of, parts))?;
        second.map_or(Ok(()), |of| self.second.pack_expert(of, parts))
    }

    fn low_rank_bytes(&self, pairs: &[LowRankShape]) -> usize {
        self.count(self.sides(), |first| first.low_rank_bytes(pairs), |second| second.low_rank_bytes(pairs))
    }

    fn low_rank(&self, pairs: &[LowRankPair<'_>]) -> Result<Self::LowRank, KernelError> {
        self.place(|first| first.low_rank(pairs), |second| second.low_rank(pairs))
    }

    fn vector_bytes(&self, length: usize) -> usize {
        self.count(self.sides(), |first| first.vector_bytes(length), |second| second.vector_bytes(length))
    }

    fn vector(&self, values: &[f32]) -> Result<Self::Vector, KernelError> {
        self.place(|first| first.vector(values), |second| second.vector(values))
    }

    fn buffer_bytes(&self, role: BufferRole, rows: usize, cols: usize) -> usize {
        self.count(
            [self.has_first(), true],
            |first| first.buffer_bytes(role, rows, cols),
            |second| second.buffer_bytes(role, rows, cols),
        )
    }

    fn buffer(&self, role: BufferRole, rows: usize, cols: usize) -> Result<Self::Buffer, KernelError> {
        let first = self.has_first().then(|| self.first.buffer(role, rows, cols)).transpose()?;
        Ok(SplitBuffer::new(first, self.second.buffer(role, rows, cols)?, cols))
    }

    fn kv_bytes(&self, spec: &KvSpec) -> usize {
        let layers = spec.layers.len();
        let caches = self.cut.caches.min(layers);
        let (first, second) = (kv_of(spec, 0..caches), kv_of(spec, caches..layers));
        self.count(
            [first.is_some(), second.is_some()],
            |of| first.as_ref().map_or(0, |spec| of.kv_bytes(spec)),
            |of| second.as_ref().map_or(0, |spec| of.kv_bytes(spec)),
        )
    }

    fn kv(&self, spec: &KvSpec) -> Result<Self::Kv, KernelError> {
        let layers = spec.layers.len();
        let caches = self.cut.caches.min(layers);
        let first = kv_of(spec, 0..caches).map(|spec| self.first.kv(&spec)).transpose()?;
        let second = kv_of(spec, caches..layers).map(|spec| self.second.kv(&spec)).transpose()?;
        Ok(SplitKv { first, second, caches })
    }

    fn scratch_bytes(&self, limits: &StepLimits) -> usize {
        let sides = [self.has_first(), true];
        self.count(sides, |first| first.scratch_bytes(limits), |second| second.scratch_bytes(limits))
    }

    fn reserve(&mut self, limits: &StepLimits) -> Result<(), KernelError> {
        if self.has_first() {
            self.first.reserve(limits)?;
        }
        self.second.reserve(limits)
    }

    fn begin(&mut self, batch: &Batch) -> Result<(), KernelError> {
        if self.has_first() {
            self.first.begin(batch)?;
        }
        self.second.begin(batch).inspect_err(|_| {
            // What is told is why there is no step.
            let _ = self.first.end();
        })?;
        self.rows = batch.rows();
        Ok(())
    }

    fn embed(&mut self, table: &Self::Matrix, scale: f32, out: &mut Self::Buffer) {
        // Rows that the host has written are on both.
        run!(self, embed(m table, v scale, w out));
    }

    fn add_embedding(&mut self, table: &Self::Matrix, ids: RowIds, out: &mut Self::Buffer) {
        run!(self, add_embedding(m table, v ids, c out));
    }

    fn rms_norm(&mut self, x: &Self::Buffer, weight: &Self::Vector, eps: f32, out: &mut Self::Buffer) {
        run!(self, rms_norm(r x, m weight, v eps, w out));
    }

    fn add_rms_norm(
        &mut self,
        residual: &mut Self::Buffer,
        x: &Self::Buffer,
        weight: &Self::Vector,
        eps: f32,
        out: &mut Self::Buffer,
    ) {
        run!(self, add_rms_norm(c residual, r x, m weight, v eps, w out));
    }

    fn matmul(
        &mut self,
        weight: &Self::Matrix,
        bias: Option<&Self::Vector>,
        x: &Self::Buffer,
        out: &mut Self::Buffer,
    ) {
        run!(self, matmul(m weight, o bias, r x, w out));
    }

    fn matmul_activated(
        &mut self,
        weight: &Self::Matrix,
        bias: Option<&Self::Vector>,
        activation: Activation,
        x: &Self::Buffer,
        out: &mut Self::Buffer,
    ) {
        run!(self, matmul_activated(m weight, o bias, v activation, r x, w out));
    }

    fn add_bias(&mut self, bias: &Self::Vector, out: &mut Self::Buffer) {
        run!(self, add_bias(m bias, c out));
    }

    fn row_op(&mut self, op: &RowOp<'_, Self::Buffer, Self::Vector>, out: &mut Self::Buffer) {
        let (side, read) = (self.side(), read_by(op));
        read.iter().flatten().for_each(|buffer| self.bring(buffer, side));
        if !matches!(op, RowOp::Take { .. }) {
            self.bring(out, side);
        }
        match side {
            Side::First => {
                let read = read.map(|buffer| buffer.map(SplitBuffer::first));
                let read = [0, 1, 2].map(|index| read[index].as_deref());
                self.first.row_op(&reading(op, read, Placed::first), out.first_mut());
            }
            Side::Second => {
                let read = read.map(|buffer| buffer.map(SplitBuffer::second));
                let read = [0, 1, 2].map(|index| read[index].as_deref());
                self.second.row_op(&reading(op, read, Placed::second), out.second_mut());
            }
        }
        out.only_on(side);
    }

    fn layer_norm(
        &mut self,
        x: &Self::Buffer,
        params: &LayerNormParams<'_, Self::Vector>,
        out: &mut Self::Buffer,
    ) {
        run!(self, layer_norm(r x, p params, w out));
    }

    fn add_layer_norm(
        &mut self,
        residual: &mut Self::Buffer,
        x: &Self::Buffer,
        params: &LayerNormParams<'_, Self::Vector>,
        out: &mut Self::Buffer,
    ) {
        run!(self, add_layer_norm(c residual, r x, p params, w out));
    }

    fn layer_norm_columns(
        &mut self,
        x: &mut Self::Buffer,
        columns: (usize, usize),
        params: &LayerNormParams<'_, Self::Vector>,
    ) {
        run!(self, layer_norm_columns(c x, v columns, p params));
    }

    fn rope_to_cache(
        &mut self,
        qkv: &mut Self::Buffer,
        params: &QkvParams<'_, Self::Vector>,
        kv: &mut Self::Kv,
        layer: usize,
    ) {
        let (side, layer) = kv.place(layer);
        run!(self on side, rope_to_cache(c qkv, p params, k kv, v layer));
    }

    fn attention(
        &mut self,
        qkv: &Self::Buffer,
        params: &AttentionParams<'_, Self::Vector>,
        kv: &Self::Kv,
        layer: usize,
        out: &mut Self::Buffer,
    ) {
        let (side, layer) = kv.place(layer);
        run!(self on side, attention(r qkv, p params, s kv, v layer, w out));
    }

    fn heads_matmul(&mut self, weights: &Self::Heads, x: &Self::Buffer, out: &mut Self::Buffer) {
        run!(self, heads_matmul(m weights, r x, w out));
    }

    fn latent_to_cache(
        &mut self,
        latent: &mut Self::Buffer,
        queries: &mut Self::Buffer,
        params: &LatentParams<'_, Self::Vector>,
        kv: &mut Self::Kv,
        layer: usize,
    ) {
        let (side, layer) = kv.place(layer);
        run!(self on side, latent_to_cache(c latent, c queries, p params, k kv, v layer));
    }

    fn latent_attention(
        &mut self,
        queries: &Self::Buffer,
        heads_and_scale: (LatentHeads, f32),
        kv: &Self::Kv,
        layer: usize,
        out: &mut Self::Buffer,
    ) {
        let (side, layer) = kv.place(layer);
        run!(self on side, latent_attention(r queries, v heads_and_scale, s kv, v layer, w out));
    }

    fn convolve(
        &mut self,
        x: &mut Self::Buffer,
        params: &ConvolutionParams<'_, Self::Vector>,
        kv: &mut Self::Kv,
        layer: usize,
    ) {
        let (side, layer) = kv.place(layer);
        run!(self on side, convolve(c x, p params, k kv, v layer));
    }

    fn recur(
        &mut self,
        x: &Self::Buffer,
        params: &RecurrenceParams<'_, Self::Vector>,
        kv: &mut Self::Kv,
        layer: usize,
        out: &mut Self::Buffer,
    ) {
        let (side, layer) = kv.place(layer);
        run!(self on side, recur(r x, p params, k kv, v layer, w out));
    }

    fn gate_output(
        &mut self,
        gate: &Self::Buffer,
        params: &OutputGateParams<'_, Self::Vector>,
        out: &mut Self::Buffer,
    ) {
        run!(self, gate_output(r gate, p params, c out));
    }

    fn gated_mlp(
        &mut self,
        gate_up: &Self::Matrix,
        down: &Self::Matrix,
        activation: Activation,
        x: &Self::Buffer,
        hidden: &mut Self::Buffer,
        out: &mut Self::Buffer,
    ) {
        run!(self, gated_mlp(m gate_up, m down, v activation, r x, w hidden, w out));
    }

    fn add_low_rank<L: Borrow<Self::LowRank> + Sync>(
        &mut self,
        deltas: &[Option<L>],
        x: &Self::Buffer,
        low: &mut Self::Buffer,
        out: &mut Self::Buffer,
    ) {
        let deltas = || deltas.iter().map(|delta| delta.as_ref().map(Borrow::borrow));
        let side = self.side();
        self.bring(x, side);
        self.bring(out, side);
        // Lists of as many as adapters are loaded.
        match side {
            Side::First => {
                let deltas: Vec<_> =
                    deltas().map(|delta: Option<&Self::LowRank>| delta.map(Placed::first)).collect();
                self.first.add_low_rank(&deltas, &x.first(), low.first_mut(), out.first_mut());
            }
            Side::Second => {
                let deltas: Vec<_> =
                    deltas().map(|delta: Option<&Self::LowRank>| delta.map(Placed::second)).collect();
                self.second.add_low_rank(&deltas, &x.second(), low.second_mut(), out.second_mut());
            }
        }
        low.only_on(side);
        out.only_on(side);
    }

    fn gate(&mut self, activation: Activation, both: &Self::Buffer, hidden: &mut Self::Buffer) {
        run!(self, gate(v activation, r both, w hidden));
    }

    fn add_shared(
        &mut self,
        gate: Option<&Self::Vector>,
        x: &Self::Buffer,
        shared: &Self::Buffer,
        out: &mut Self::Buffer,
    ) {
        let side = self.side();
        // Only a gate reads `x`.
        if gate.is_some() {
            self.bring(x, side);
        }
        run!(self on side, add_shared(o gate, u x, r shared, c out));
    }

    fn moe(
        &mut self,
        weights: &MoeWeights<'_, Self>,
        params: &MoeParams,
        x: &Self::Buffer,
        hidden: &mut Self::Buffer,
        out: &mut Self::Buffer,
    ) {
        let side = self.side();
        weights.routed.iter().for_each(|routed| self.bring(routed, side));
        macro_rules! weights_on {
            ($of:ident, $routed:expr) => {
                MoeWeights {
                    router: weights.router.$of(),
                    router_bias: weights.router_bias.map(Placed::$of),
                    correction: weights.correction.map(Placed::$of),
                    experts: weights.experts.$of(),
                    up_bias: weights.up_bias.map(Placed::$of),
                    down_bias: weights.down_bias.map(Placed::$of),
                    expert_scale: weights.expert_scale.map(Placed::$of),
                    routed: $routed,
                }
            };
        }
        self.bring(x, side);
        match side {
            Side::First => {
                let routed = weights.routed.map(SplitBuffer::first);
                let weights = weights_on!(first, routed.as_deref());
                self.first.moe(&weights, params, &x.first(), hidden.first_mut(), out.first_mut());
            }
            Side::Second => {
                let routed = weights.routed.map(SplitBuffer::second);
                let weights = weights_on!(second, routed.as_deref());
                self.second.moe(&weights, params, &x.second(), hidden.second_mut(), out.second_mut());
            }
        }
        hidden.only_on(side);
        out.only_on(side);
    }

    fn read_experts(
        &self,
        hidden: &Self::Buffer,
        chosen: &mut [u32],
        inner: &mut [f32],
    ) -> Result<(), KernelError> {
        match hidden.is_on(Side::Second) {
            true => self.second.read_experts(&hidden.second(), chosen, inner),
            false => self.first.read_experts(&hidden.first(), chosen, inner),
        }
    }

    fn all_reduce(&mut self, x: &mut Self::Buffer) {
        if self.restless.is_none() {
            run!(self, all_reduce(c x));
        }
    }

    fn logits(&mut self, head: &Self::Matrix, x: &Self::Buffer, out: &mut [f32]) -> Result<(), KernelError> {
        self.bring(x, Side::Second);
        self.passed()?;
        self.second.logits(head.second(), &x.second(), out)
    }

    fn sample_room(&self, rows: usize, vocab: usize) -> usize {
        self.second.sample_room(rows, vocab)
    }

    fn on_host(&mut self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        match self.has_first() {
            true => self.first.on_host(tasks, task),
            false => self.second.on_host(tasks, task),
        }
    }

    fn between_steps(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        self.first.between_steps(tasks, task);
    }

    fn sample(
        &mut self,
        head: &Self::Matrix,
        x: &Self::Buffer,
        specs: &SampleSpecs,
        room: &mut [f32],
    ) -> Result<(), KernelError> {
        self.bring(x, Side::Second);
        self.passed()?;
        self.second.sample(head.second(), &x.second(), specs, room)?;
        if self.has_first() {
            self.first.draws().know(self.second.draws());
        }
        Ok(())
    }

    fn draws(&mut self) -> &mut Draws {
        self.second.draws()
    }

    fn submit(&mut self) -> Result<Ticket, KernelError> {
        let passed = self.passed();
        let ended = if self.has_first() { self.first.end() } else { Ok(()) };
        match passed.and(ended) {
            Ok(()) => self.second.submit(),
            Err(error) => self.second.end().and(Err(error)),
        }
    }

    fn wait(&mut self, ticket: Ticket, drawn: &mut Vec<Option<Sampled>>) -> Result<(), KernelError> {
        self.second.wait(ticket, drawn)
    }

    fn end(&mut self) -> Result<(), KernelError> {
        let passed = self.passed();
        let second = self.second.end();
        let first = if self.has_first() { self.first.end() } else { Ok(()) };
        passed.and(second).and(first)
    }

    fn read_rows(&self, x: &Self::Buffer, row_first: usize, out: &mut [f32]) -> Result<(), KernelError> {
        match x.is_on(Side::Second) {
            true => self.second.read_rows(&x.second(), row_first, out),
            false => self.first.read_rows(&x.first(), row_first, out),
        }
    }

    fn write_rows(
        &mut self,
        x: &mut Self::Buffer,
        row_first: usize,
        rows: &[f32],
    ) -> Result<(), KernelError> {
        let (first, second) = x.both_mut();
        first.map_or(Ok(()), |of| self.first.write_rows(of, row_first, rows))?;
        self.second.write_rows(second, row_first, rows)
    }
}
