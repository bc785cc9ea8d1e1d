//! Ops with their faults.

use std::borrow::Borrow;

use super::*;

impl Faulty {
    pub(super) fn embed(&mut self, table: &[Part], scale: f32, out: &mut ReferenceBuffer) {
        let MatrixShape { rows, cols, .. } = table[0].shape;
        let scale = if self.fault == Fault::EmbedScaleIgnored { 1.0 } else { scale };
        let skip = usize::from(self.fault == Fault::NextTokenEmbedded);
        let row = |token: u32| &table[0].floats[(token as usize + skip) % rows * cols..][..cols];
        let mut values = self.rows_of(out, cols);
        for (values, source) in values.chunks_exact_mut(cols).zip(&self.batch.sources) {
            if let RowSource::Token(token) = *source {
                values.iter_mut().zip(row(token)).for_each(|(value, w)| *value = scale * w);
            }
        }
        self.store(out, values);
    }

    pub(super) fn add_embedding(&mut self, table: &[Part], ids: RowIds, out: &mut ReferenceBuffer) {
        let rows = self.embedded(table, ids, out);
        self.store(out, rows);
    }

    pub(super) fn rms_norm(
        &mut self,
        x: &ReferenceBuffer,
        weight: &[f32],
        eps: f32,
        out: &mut ReferenceBuffer,
    ) {
        self.norm_rows(x, weight, eps, out);
    }

    pub(super) fn row_op(&mut self, op: &RowOp<&ReferenceBuffer, &Vec<f32>>, out: &mut ReferenceBuffer) {
        self.change_rows(op, out);
    }

    pub(super) fn add_rms_norm(
        &mut self,
        residual: &mut ReferenceBuffer,
        x: &ReferenceBuffer,
        weight: &[f32],
        eps: f32,
        out: &mut ReferenceBuffer,
    ) {
        let sum = self.summed(residual, x, weight.len());
        let normed = self.norm(&sum, weight, eps);
        if self.fault != Fault::ResidualKept {
            self.store(residual, sum);
        }
        self.store(out, normed);
    }

    pub(super) fn matmul(
        &mut self,
        weight: &[Part],
        bias: Option<&Vec<f32>>,
        x: &ReferenceBuffer,
        out: &mut ReferenceBuffer,
    ) {
        let x = self.rows_of(x, weight[0].shape.cols);
        let product = self.product(weight, bias.map(|bias| &bias[..]), &x);
        self.store(out, product);
    }

    pub(super) fn matmul_activated(
        &mut self,
        weight: &[Part],
        bias: Option<&Vec<f32>>,
        activation: Activation,
        x: &ReferenceBuffer,
        out: &mut ReferenceBuffer,
    ) {
        let x = self.rows_of(x, weight[0].shape.cols);
        let rows = self.activated(weight, bias, activation, &x);
        self.store(out, rows);
    }

    pub(super) fn add_bias(&mut self, bias: &[f32], out: &mut ReferenceBuffer) {
        let mut rows = self.rows_of(out, bias.len());
        if self.fault != Fault::BiasIgnored {
            rows.iter_mut().zip(bias.iter().cycle()).for_each(|(out, bias)| *out += bias);
        }
        self.store(out, rows);
    }

    pub(super) fn layer_norm(
        &mut self,
        x: &ReferenceBuffer,
        params: &LayerNormParams<&Vec<f32>>,
        out: &mut ReferenceBuffer,
    ) {
        let x = self.rows_of(x, params.weight.len());
        let normed = self.layer_normed(&x, params);
        self.store(out, normed);
    }

    pub(super) fn add_layer_norm(
        &mut self,
        residual: &mut ReferenceBuffer,
        x: &ReferenceBuffer,
        params: &LayerNormParams<&Vec<f32>>,
        out: &mut ReferenceBuffer,
    ) {
        let sum = self.summed(residual, x, params.weight.len());
        let normed = self.layer_normed(&sum, params);
        if self.fault != Fault::ResidualKept {
            self.store(residual, sum);
        }
        self.store(out, normed);
    }

    pub(super) fn layer_norm_columns(
        &mut self,
        x: &mut ReferenceBuffer,
        columns: NormColumns,
        params: &LayerNormParams<&Vec<f32>>,
    ) {
        let rows = self.columns_normed(x, columns, params);
        self.store(x, rows);
    }

    pub(super) fn rope_to_cache(
        &mut self,
        qkv: &mut ReferenceBuffer,
        params: &QkvParams<&Vec<f32>>,
        kv: &mut ReferenceKv,
        layer: usize,
    ) {
        self.turn_to_cache(qkv, params, kv, layer);
    }

    pub(super) fn attention(
        &mut self,
        qkv: &ReferenceBuffer,
        params: &AttentionParams<&Vec<f32>>,
        kv: &ReferenceKv,
        layer: usize,
        out: &mut ReferenceBuffer,
    ) {
        self.attend(qkv, params, kv, layer, out);
        self.restore(out);
    }

    pub(super) fn convolve(
        &mut self,
        x: &mut ReferenceBuffer,
        params: &ConvolutionParams<&Vec<f32>>,
        kv: &mut ReferenceKv,
        layer: usize,
    ) {
        self.convolved(x, params, (kv, layer));
    }

    pub(super) fn recur(
        &mut self,
        x: &ReferenceBuffer,
        params: &RecurrenceParams<&Vec<f32>>,
        kv: &mut ReferenceKv,
        layer: usize,
        out: &mut ReferenceBuffer,
    ) {
        self.recurred(x, params, (kv, layer), out);
    }

    pub(super) fn gate_output(
        &mut self,
        gate: &ReferenceBuffer,
        params: &OutputGateParams<&Vec<f32>>,
        out: &mut ReferenceBuffer,
    ) {
        self.gated_output(gate, params, out);
    }

    pub(super) fn gated(
        &mut self,
        gate_up: &[Part],
        activation: Activation,
        x: &ReferenceBuffer,
        hidden: &mut ReferenceBuffer,
    ) {
        let x = self.rows_of(x, gate_up[0].shape.cols);
        let gated = self.gated_rows(gate_up, activation, &x);
        self.store(hidden, gated);
    }

    pub(super) fn add_low_rank<L: Borrow<FaultyLowRank> + Sync>(
        &mut self,
        deltas: &[Option<L>],
        x: &ReferenceBuffer,
        low: Option<&mut ReferenceBuffer>,
        out: &mut ReferenceBuffer,
    ) {
        self.add_deltas(deltas, x, low, out);
    }

    pub(super) fn gate(
        &mut self,
        activation: Activation,
        both: &ReferenceBuffer,
        hidden: &mut ReferenceBuffer,
    ) {
        let both = self.rows_of(both, 2 * hidden.cols());
        let gated = self.gated_halves(activation, &both, hidden.cols());
        self.store(hidden, gated);
    }

    pub(super) fn moe(
        &mut self,
        weights: &MoeWeights<'_, Self>,
        params: &MoeParams,
        x: &ReferenceBuffer,
        _hidden: &mut ReferenceBuffer,
        out: &mut ReferenceBuffer,
    ) {
        let x = self.rows_of(x, weights.router[0].shape.cols);
        let sums = self.mixture(weights, params, &x);
        self.store(out, sums);
    }

    pub(super) fn add_shared(
        &mut self,
        gate: Option<&Vec<f32>>,
        x: &ReferenceBuffer,
        shared: &ReferenceBuffer,
        out: &mut ReferenceBuffer,
    ) {
        let gate = gate.filter(|_| self.fault != Fault::SharedGateIgnored);
        self.inner.add_shared(gate, x, shared, out);
        self.restore(out);
    }

    pub(super) fn heads_matmul(
        &mut self,
        weights: &[Vec<Part>],
        x: &ReferenceBuffer,
        out: &mut ReferenceBuffer,
    ) {
        let rows = self.by_head(weights, &self.rows_of(x, x.cols()), x.cols() / weights.len());
        self.store(out, rows);
    }

    pub(super) fn latent_to_cache(
        &mut self,
        latent: &mut ReferenceBuffer,
        queries: &mut ReferenceBuffer,
        params: &LatentParams<&Vec<f32>>,
        kv: &mut ReferenceKv,
        layer: usize,
    ) {
        self.latents(latent, queries, params, kv, layer);
    }

    pub(super) fn latent_attention(
        &mut self,
        queries: &ReferenceBuffer,
        heads: LatentHeads,
        scale: f32,
        kv: &ReferenceKv,
        layer: usize,
        out: &mut ReferenceBuffer,
    ) {
        self.attend_latents(queries, heads, scale, kv, layer, out);
        self.restore(out);
    }

    /// Runs an op over sequences, with or without a cache.
    pub(super) fn run_over_sequences(&mut self, op: DeviceOp<'_, Self>) {
        match op {
            Op::RopeToCache { qkv, params, kv, layer } => self.rope_to_cache(qkv, &params, kv, layer),
            Op::Attention { qkv, params, kv, layer, out } => self.attention(qkv, &params, kv, layer, out),
            Op::LatentToCache { latent, queries, params, kv, layer } => {
                self.latent_to_cache(latent, queries, &params, kv, layer);
            }
            Op::LatentAttention { queries, heads, scale, kv, layer, out } => {
                self.latent_attention(queries, heads, scale, kv, layer, out);
            }
            Op::Convolve { x, params, kv, layer } => self.convolve(x, &params, kv, layer),
            Op::Recur { x, params, kv, layer, out } => self.recur(x, &params, kv, layer, out),
            Op::Unfold { x, window, out } => self.unfold(x, window, out),
            Op::Rope { qkv, params } => self.rope(qkv, &params),
            Op::SelfAttention { qkv, params, out } => self.self_attention(qkv, &params, out),
            Op::AttendPart { qkv, rows, queries, params, out } => {
                self.attend_part(qkv, rows, queries, &params, out);
            }
            op => self.run_on_grids(op),
        }
    }
}
