//! The naive reference backend: one thread, plain loops, sums in f64 ([`formulas`]), weights as f32, keys and values
//! rounded to the cache's type. Every other backend is compared with this one.
//!
//! It is also strict: it asserts what the contract requires of the caller (limits kept, steps opened and closed, slots
//! as in the block table). So a runtime tested on it can be trusted with a faster device.

mod columns;
mod embeddings;
mod encoder;
mod experts;
pub mod formulas;
mod heads;
mod latent;
mod low_rank;
mod rows;
mod sampling;
mod states;
mod storage;
#[cfg(test)]
mod tests;

use std::borrow::Borrow;

use crate::quant::{can_dequantize, dequantize_row};
use crate::{
    Activation, AdaptedLogits, AttentionParams, BLOCK_TOKENS, Backend, Batch, BufferRole, ConvolutionParams,
    DType, Draws, ExpertParts, KernelError, KvGroups, KvSpec, KvType, LatentHeads, LatentParams,
    LayerNormParams, LogitsHead, LowRankShape, MatrixShape, MatrixSource, MoeParams, MoeWeights, Operands,
    OutputDelta, OutputGateParams, QkvParams, RecurrenceParams, Rounding, RowIds, RowOp, SampleSpecs,
    StepLimits,
};

pub(crate) use encoder::seen;
pub use low_rank::ReferenceLowRank;
pub(crate) use rows::{XIELU_MOST, width_of};
pub(crate) use sampling::draw;
use states::ReferenceStates;
pub(crate) use storage::visible;
use storage::{check_source, elements_per_slot, filled};

const DEVICE: &str = "reference: 1 thread";

/// Naive reference backend; see the module.
#[derive(Debug, Default)]
pub struct ReferenceBackend {
    limits: Option<StepLimits>,
    batch: Batch,
    tokens: Vec<Option<u32>>, // (rows); none if the host writes the row
    draws: Draws,
    open: bool,
    chosen: Vec<u32>, // (rows, experts_used) of the last mixture
}

/// A matrix of dequantised weights.
#[derive(Clone, Debug)]
pub struct ReferenceMatrix {
    rows: usize,
    cols: usize,
    weights: Vec<f32>, // (rows, cols)
}

/// The experts of a layer.
#[derive(Clone, Debug)]
pub struct ReferenceExperts {
    gate_up: Vec<ReferenceMatrix>, // (experts)
    down: Vec<ReferenceMatrix>,    // (experts)
}

/// Activations.
#[derive(Clone, Debug)]
pub struct ReferenceBuffer {
    role: BufferRole,
    rows: usize,
    cols: usize,
    values: Vec<f32>, // (rows, cols)
}

/// The KV cache. Slots never written hold NaN, which spreads to everything that reads them.
#[derive(Clone, Debug)]
pub struct ReferenceKv {
    kv_type: KvType,
    slots: usize,
    groups: KvGroups,
    heads: Vec<(usize, usize)>, // of each layer: key-value heads, elements of a head; for latents 1 and their elements
    latent: Vec<bool>,          // whether a layer keeps latents, stored as keys
    planes: Vec<(usize, usize)>, // offset of a plane's numbers, and their count for each slot
    keys: Vec<f32>, // (plane, slot), then a layer's (kv_head, head_dim), rounded to the cache's type
    values: Vec<f32>, // the same for values
    states: Vec<Option<ReferenceStates>>, // by layer
}

impl ReferenceBackend {
    /// A backend without limits and without an open step.
    pub fn new() -> Self {
        Self::default()
    }

    /// Batch of the open step.
    fn step(&self) -> &Batch {
        assert!(self.open, "an op outside a step; call begin first");
        &self.batch
    }

    fn limits(&self) -> &StepLimits {
        self.limits.as_ref().expect("limits are known, because begin asserts them before any step")
    }

    /// `residual[r] += x[r]`.
    fn add(&self, residual: &mut ReferenceBuffer, x: &ReferenceBuffer, cols: usize) {
        let rows = self.step().rows();
        assert_eq!(
            residual.role,
            BufferRole::Residual,
            "a sum in a buffer of operands loses its small addends"
        );
        residual.check(rows, cols, "residual");
        x.check(rows, cols, "x");
        for row in 0..rows {
            for (residual, x) in residual.row_mut(row).iter_mut().zip(x.row(row)) {
                *residual += x;
            }
        }
    }

    /// `out[r] = finish(weight · x[r] + bias)`.
    fn product(
        &self,
        weight: &ReferenceMatrix,
        bias: Option<&Vec<f32>>,
        x: &ReferenceBuffer,
        out: &mut ReferenceBuffer,
        finish: impl Fn(f64) -> f64,
    ) {
        let rows = self.step().rows();
        let width = self.limits().width;
        assert!(weight.rows <= width && weight.cols <= width, "a matrix wider than the step's limits");
        assert!(
            bias.is_none_or(|bias| bias.len() == weight.rows),
            "a bias of another length than the output"
        );
        x.check(rows, weight.cols, "x");
        out.check(rows, weight.rows, "out");
        for output in 0..weight.rows {
            let bias = bias.map_or(0.0, |bias| f64::from(bias[output]));
            for row in 0..rows {
                let sum = formulas::dot(weight.row(output), x.row(row)) + bias;
                out.row_mut(row)[output] = finish(sum) as f32;
            }
        }
    }
}

impl Backend for ReferenceBackend {
    type Matrix = ReferenceMatrix;
    type Vector = Vec<f32>;
    type Experts = ReferenceExperts;
    type Heads = Vec<ReferenceMatrix>;
    type LowRank = ReferenceLowRank;
    type Buffer = ReferenceBuffer;
    type Kv = ReferenceKv;

    fn device(&self) -> String {
        DEVICE.to_owned()
    }

    fn rounding(&self) -> Rounding {
        Rounding { operands: Operands::F32, bytes_before_quantised: false }
    }

    fn supports(&self, dtype: DType) -> bool {
        can_dequantize(dtype)
    }

    fn matrix_bytes(&self, parts: &[MatrixShape]) -> usize {
        parts.iter().map(|part| part.rows * part.cols * size_of::<f32>()).sum()
    }

    fn pack(&self, parts: &[MatrixSource<'_>]) -> Result<ReferenceMatrix, KernelError> {
        let cols = parts.first().map_or(0, |part| part.shape.cols);
        for part in parts {
            check_source(part, cols)?;
        }
        let rows = parts.iter().map(|part| part.shape.rows).sum();
        let mut weights = filled(rows * cols, 0.0, "weights")?;
        let mut rest = &mut weights[..];
        for part in parts {
            let (out, after) = rest.split_at_mut(part.shape.rows * cols);
            dequantize_row(part.shape.dtype, part.bytes, out);
            rest = after;
        }
        Ok(ReferenceMatrix { rows, cols, weights })
    }

    fn heads(&self, matrices: Vec<ReferenceMatrix>) -> Vec<ReferenceMatrix> {
        matrices
    }

    fn experts_bytes(&self, experts: &[ExpertParts<MatrixShape>]) -> usize {
        let of_one = |expert: &ExpertParts<MatrixShape>| {
            self.matrix_bytes(&expert.gate_up) + self.matrix_bytes(&expert.down)
        };
        experts.iter().map(of_one).sum()
    }

    fn experts(&self, shapes: &[ExpertParts<MatrixShape>]) -> Result<ReferenceExperts, KernelError> {
        let room = || Vec::with_capacity(shapes.len());
        Ok(ReferenceExperts { gate_up: room(), down: room() })
    }

    fn pack_expert(
        &self,
        experts: &mut ReferenceExperts,
        parts: &ExpertParts<MatrixSource<'_>>,
    ) -> Result<(), KernelError> {
        let (gate_up, down) = (self.pack(&parts.gate_up)?, self.pack(&parts.down)?);
        experts.gate_up.push(gate_up);
        experts.down.push(down);
        Ok(())
    }

    fn low_rank_bytes(&self, pairs: &[LowRankShape], changes: &[usize]) -> usize {
        ReferenceLowRank::bytes(pairs, changes)
    }

    fn low_rank(&self, delta: &OutputDelta<'_>) -> Result<ReferenceLowRank, KernelError> {
        ReferenceLowRank::new(delta)
    }

    fn vector_bytes(&self, length: usize) -> usize {
        length * size_of::<f32>()
    }

    fn vector(&self, values: &[f32]) -> Result<Vec<f32>, KernelError> {
        Ok(values.to_vec())
    }

    fn buffer_bytes(&self, _role: BufferRole, rows: usize, cols: usize) -> usize {
        rows * cols * size_of::<f32>()
    }

    fn buffer(&self, role: BufferRole, rows: usize, cols: usize) -> Result<ReferenceBuffer, KernelError> {
        Ok(ReferenceBuffer { role, rows, cols, values: filled(rows * cols, 0.0, "activations")? })
    }

    fn kv_bytes(&self, spec: &KvSpec) -> usize {
        2 * spec.blocks * BLOCK_TOKENS * elements_per_slot(spec).sum::<usize>() * size_of::<f32>()
            + ReferenceStates::bytes(spec)
    }

    fn kv(&self, spec: &KvSpec) -> Result<ReferenceKv, KernelError> {
        ReferenceKv::new(spec)
    }

    fn scratch_bytes(&self, _limits: &StepLimits) -> usize {
        0
    }

    fn reserve(&mut self, limits: &StepLimits) -> Result<(), KernelError> {
        assert!(self.limits.is_none(), "reserve is called once");
        self.limits = Some(*limits);
        Ok(())
    }

    fn begin(&mut self, batch: &Batch) -> Result<(), KernelError> {
        assert!(!self.open, "begin inside a step; call end first");
        assert!(self.limits.is_some(), "begin before reserve");
        batch.check(self.limits(), &mut Vec::new());
        self.batch = batch.clone();
        self.tokens = batch.tokens(&self.draws).collect();
        self.draws.begin();
        self.open = true;
        Ok(())
    }

    fn embed(&mut self, table: &ReferenceMatrix, scale: f32, out: &mut ReferenceBuffer) {
        let batch = self.step();
        out.check(batch.rows(), table.cols, "out");
        for (row, token) in self.tokens.iter().enumerate() {
            let Some(token) = *token else { continue };
            for (out, weight) in out.row_mut(row).iter_mut().zip(table.row(token as usize)) {
                *out = scale * weight;
            }
        }
    }

    fn add_embedding(&mut self, table: &ReferenceMatrix, ids: RowIds, out: &mut ReferenceBuffer) {
        embeddings::add(self.step(), table, ids, out);
    }

    fn rms_norm(&mut self, x: &ReferenceBuffer, weight: &Vec<f32>, eps: f32, out: &mut ReferenceBuffer) {
        let rows = self.step().rows();
        assert!(x.cols.is_multiple_of(weight.len()), "parts of a row as long as the weights");
        out.check(rows, x.cols, "out");
        for row in 0..rows {
            let parts = x.row(row).chunks_exact(weight.len());
            for (x, out) in parts.zip(out.row_mut(row).chunks_exact_mut(weight.len())) {
                formulas::rms_norm(x, weight, eps, out);
            }
        }
    }

    fn add_rms_norm(
        &mut self,
        residual: &mut ReferenceBuffer,
        x: &ReferenceBuffer,
        weight: &Vec<f32>,
        eps: f32,
        out: &mut ReferenceBuffer,
    ) {
        self.add(residual, x, weight.len());
        self.rms_norm(residual, weight, eps, out);
    }

    fn matmul(
        &mut self,
        weight: &ReferenceMatrix,
        bias: Option<&Vec<f32>>,
        x: &ReferenceBuffer,
        out: &mut ReferenceBuffer,
    ) {
        self.product(weight, bias, x, out, |sum| sum);
    }

    fn matmul_activated(
        &mut self,
        weight: &ReferenceMatrix,
        bias: Option<&Vec<f32>>,
        activation: Activation,
        x: &ReferenceBuffer,
        out: &mut ReferenceBuffer,
    ) {
        self.product(weight, bias, x, out, |sum| formulas::activate(activation, sum));
    }

    fn add_bias(&mut self, bias: &Vec<f32>, out: &mut ReferenceBuffer) {
        let rows = self.step().rows();
        out.check(rows, bias.len(), "out");
        for row in 0..rows {
            out.row_mut(row).iter_mut().zip(bias).for_each(|(out, bias)| *out += bias);
        }
    }

    fn row_op(&mut self, op: &RowOp<&ReferenceBuffer, &Vec<f32>>, out: &mut ReferenceBuffer) {
        rows::row_op(self.step().rows(), op, out);
    }

    fn layer_norm(
        &mut self,
        x: &ReferenceBuffer,
        params: &LayerNormParams<&Vec<f32>>,
        out: &mut ReferenceBuffer,
    ) {
        let (rows, cols) = (self.step().rows(), params.weight.len());
        assert!(params.bias.is_none_or(|bias| bias.len() == cols), "one weight and one bias a column");
        x.check(rows, cols, "x");
        out.check(rows, cols, "out");
        for row in 0..rows {
            let bias = params.bias.map(|bias| &bias[..]);
            formulas::layer_norm(x.row(row), params.weight, bias, params.eps, out.row_mut(row));
        }
    }

    fn add_layer_norm(
        &mut self,
        residual: &mut ReferenceBuffer,
        x: &ReferenceBuffer,
        params: &LayerNormParams<&Vec<f32>>,
        out: &mut ReferenceBuffer,
    ) {
        self.add(residual, x, params.weight.len());
        self.layer_norm(residual, params, out);
    }

    fn layer_norm_columns(
        &mut self,
        x: &mut ReferenceBuffer,
        (first, width): (usize, usize),
        params: &LayerNormParams<&Vec<f32>>,
    ) {
        let rows = self.step().rows();
        columns::layer_norm_columns(rows, x, (first, width), params);
    }

    fn rope_to_cache(
        &mut self,
        qkv: &mut ReferenceBuffer,
        params: &QkvParams<&Vec<f32>>,
        kv: &mut ReferenceKv,
        layer: usize,
    ) {
        heads::to_cache(self.step(), qkv, params, (kv, layer));
    }

    fn attention(
        &mut self,
        qkv: &ReferenceBuffer,
        params: &AttentionParams<&Vec<f32>>,
        kv: &ReferenceKv,
        layer: usize,
        out: &mut ReferenceBuffer,
    ) {
        heads::attention(self.step(), qkv, params, (kv, layer), out);
    }

    fn heads_matmul(
        &mut self,
        weights: &Vec<ReferenceMatrix>,
        x: &ReferenceBuffer,
        out: &mut ReferenceBuffer,
    ) {
        let width = latent::heads_matmul(self.step().rows(), weights, x, out);
        assert!(width <= self.limits().heads_matmul_width, "heads wider than the step's limits");
    }

    fn latent_to_cache(
        &mut self,
        latent: &mut ReferenceBuffer,
        queries: &mut ReferenceBuffer,
        params: &LatentParams<&Vec<f32>>,
        kv: &mut ReferenceKv,
        layer: usize,
    ) {
        latent::to_cache(self.step(), latent, queries, params, (kv, layer));
    }

    fn latent_attention(
        &mut self,
        queries: &ReferenceBuffer,
        heads: (LatentHeads, f32),
        kv: &ReferenceKv,
        layer: usize,
        out: &mut ReferenceBuffer,
    ) {
        latent::attention(self.step(), queries, heads, (kv, layer), out);
    }

    fn convolve(
        &mut self,
        x: &mut ReferenceBuffer,
        params: &ConvolutionParams<&Vec<f32>>,
        kv: &mut ReferenceKv,
        layer: usize,
    ) {
        states::convolve(self.step(), x, params, (kv, layer));
    }

    fn recur(
        &mut self,
        x: &ReferenceBuffer,
        params: &RecurrenceParams<&Vec<f32>>,
        kv: &mut ReferenceKv,
        layer: usize,
        out: &mut ReferenceBuffer,
    ) {
        states::recur(self.step(), x, params, (kv, layer), out);
    }

    fn gate_output(
        &mut self,
        gate: &ReferenceBuffer,
        params: &OutputGateParams<&Vec<f32>>,
        out: &mut ReferenceBuffer,
    ) {
        states::gate_output(self.step().rows(), gate, params, out);
    }

    fn gated(
        &mut self,
        gate_up: &ReferenceMatrix,
        activation: Activation,
        x: &ReferenceBuffer,
        hidden: &mut ReferenceBuffer,
    ) {
        let rows = self.step().rows();
        let width = gate_up.rows / 2;
        assert!(gate_up.rows.is_multiple_of(2), "gate and up have equally many rows");
        assert!(
            gate_up.rows.max(gate_up.cols) <= self.limits().width,
            "a matrix wider than the step's limits"
        );
        x.check(rows, gate_up.cols, "x");
        hidden.check(rows, width, "hidden");
        for row in 0..rows {
            for i in 0..width {
                // Rounded as by `matmul`.
                let product = |i| f64::from(formulas::dot(gate_up.row(i), x.row(row)) as f32);
                let (gate, up) = (product(i), product(width + i));
                hidden.row_mut(row)[i] = (formulas::activate(activation, gate) * up) as f32;
            }
        }
    }

    fn add_low_rank<L: Borrow<ReferenceLowRank> + Sync>(
        &mut self,
        deltas: &[Option<L>],
        x: &ReferenceBuffer,
        low: Option<&mut ReferenceBuffer>,
        out: &mut ReferenceBuffer,
    ) {
        low_rank::add(self.step(), deltas, x, low, out);
    }

    fn gate(&mut self, activation: Activation, both: &ReferenceBuffer, hidden: &mut ReferenceBuffer) {
        low_rank::gate(self.step().rows(), activation, both, hidden);
    }

    fn add_shared(
        &mut self,
        gate: Option<&Vec<f32>>,
        x: &ReferenceBuffer,
        shared: &ReferenceBuffer,
        out: &mut ReferenceBuffer,
    ) {
        experts::add_shared(self.step().rows(), gate, x, shared, out);
    }

    fn moe(
        &mut self,
        weights: &MoeWeights<'_, Self>,
        params: &MoeParams,
        x: &ReferenceBuffer,
        hidden: &mut ReferenceBuffer,
        out: &mut ReferenceBuffer,
    ) {
        experts::check_limits(self.limits(), weights, params);
        self.chosen = experts::moe(self.step().rows(), weights, params, x, (hidden, out));
    }

    fn read_experts(
        &self,
        hidden: &ReferenceBuffer,
        chosen: &mut [u32],
        inner: &mut [f32],
    ) -> Result<(), KernelError> {
        chosen.copy_from_slice(&self.chosen);
        self.read_rows(hidden, 0, inner)
    }

    fn logits(
        &mut self,
        LogitsHead { matrix: head, adapted }: LogitsHead<'_, Self>,
        x: &ReferenceBuffer,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        let batch = self.step();
        x.check(batch.rows(), head.cols, "x");
        assert_eq!(out.len(), batch.logit_rows.len() * head.rows, "out holds one row of logits a logit row");
        for (out, &row) in out.chunks_exact_mut(head.rows).zip(&batch.logit_rows) {
            for (token, out) in out.iter_mut().enumerate() {
                *out = formulas::dot(head.row(token), x.row(row as usize)) as f32;
            }
        }
        if let Some(AdaptedLogits { deltas, .. }) = adapted {
            low_rank::add_to_logits(batch, deltas, x, out);
        }
        Ok(())
    }

    fn sample(
        &mut self,
        head: LogitsHead<'_, Self>,
        x: &ReferenceBuffer,
        specs: &SampleSpecs,
        room: &mut [f32],
    ) -> Result<(), KernelError> {
        let vocab = head.matrix.rows;
        self.logits(head, x, room)?;
        assert_eq!(specs.rows.len(), self.batch.logit_rows.len(), "a spec for each logit row");
        let rows = room.chunks_exact(vocab).zip(&specs.rows).enumerate();
        let drawn = rows.map(|(row, (logits, spec))| draw(logits, spec, specs.edits_of(row)));
        self.draws.put(drawn);
        Ok(())
    }

    fn draws(&mut self) -> &mut Draws {
        &mut self.draws
    }

    fn end(&mut self) -> Result<(), KernelError> {
        self.open = false;
        Ok(())
    }

    fn read_rows(&self, x: &ReferenceBuffer, row_first: usize, out: &mut [f32]) -> Result<(), KernelError> {
        out.copy_from_slice(&x.values[row_first * x.cols..][..out.len()]);
        Ok(())
    }

    fn write_rows(
        &mut self,
        x: &mut ReferenceBuffer,
        row_first: usize,
        rows: &[f32],
    ) -> Result<(), KernelError> {
        x.values[row_first * x.cols..][..rows.len()].copy_from_slice(rows);
        Ok(())
    }
}
