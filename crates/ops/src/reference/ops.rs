//! Ops on rows and over caches, each written to be obviously right.

use std::borrow::Borrow;

use super::grid::ConvOperands;
use super::*;

impl ReferenceBackend {
    /// Runs one op of the open step.
    pub(super) fn run_op(&mut self, op: DeviceOp<'_, Self>) {
        match op {
            Op::Embed { table, scale, out } => self.embed(table, scale, out),
            Op::AddEmbedding { table, ids, out } => self.add_embedding(table, ids, out),
            Op::RmsNorm { x, weight, eps, out } => self.rms_norm(x, weight, eps, out),
            Op::AddRmsNorm { residual, x, weight, eps, out } => {
                self.add_rms_norm(residual, x, weight, eps, out);
            }
            Op::MatMul { weight, bias, x, out } => self.matmul(weight, bias, x, out),
            Op::MatMulActivated { weight, bias, activation, x, out } => {
                self.matmul_activated(weight, bias, activation, x, out);
            }
            Op::AddBias { bias, out } => self.add_bias(bias, out),
            Op::Row { op, out } => self.row_op(&op, out),
            Op::LayerNorm { x, params, out } => self.layer_norm(x, &params, out),
            Op::AddLayerNorm { residual, x, params, out } => self.add_layer_norm(residual, x, &params, out),
            Op::LayerNormColumns { x, columns, params } => self.layer_norm_columns(x, columns, &params),
            Op::HeadsMatMul { weights, x, out } => self.heads_matmul(weights, x, out),
            Op::GateOutput { gate, params, out } => self.gate_output(gate, &params, out),
            Op::GatedMlp { gate_up, down, activation, x, hidden, out } => {
                self.gated(gate_up, activation, x, hidden);
                self.matmul(down, None, hidden, out);
            }
            Op::Gated { gate_up, activation, x, hidden } => self.gated(gate_up, activation, x, hidden),
            Op::AddLowRank { deltas, x, low, out } => self.add_low_rank(&deltas, x, low, out),
            Op::Gate { activation, both, hidden } => self.gate(activation, both, hidden),
            Op::AddShared { gate, x, shared, out } => self.add_shared(gate, x, shared, out),
            Op::Moe { weights, params, x, hidden, out } => self.moe(&weights, &params, x, hidden, out),
            Op::Activate { activation, out } => self.activate(&activation, out),
            Op::CodebookLookup { tables, entries, codes, out } => {
                self.codebook_lookup(tables, entries, codes, out);
            }
            Op::AllReduce { .. } => {}
            op => self.run_over_sequences(op),
        }
    }

    pub(crate) fn embed(&mut self, table: &ReferenceMatrix, scale: f32, out: &mut ReferenceBuffer) {
        let batch = self.step();
        out.check(batch.rows(), table.cols, "out");
        for (row, token) in self.tokens.iter().enumerate() {
            let Some(token) = *token else { continue };
            for (out, weight) in out.row_mut(row).iter_mut().zip(table.row(token as usize)) {
                *out = scale * weight;
            }
        }
    }

    pub(crate) fn add_embedding(&mut self, table: &ReferenceMatrix, ids: RowIds, out: &mut ReferenceBuffer) {
        embeddings::add(self.step(), table, ids, out);
    }

    pub(crate) fn rms_norm(
        &mut self,
        x: &ReferenceBuffer,
        weight: &[f32],
        eps: f32,
        out: &mut ReferenceBuffer,
    ) {
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

    pub(crate) fn add_rms_norm(
        &mut self,
        residual: &mut ReferenceBuffer,
        x: &ReferenceBuffer,
        weight: &[f32],
        eps: f32,
        out: &mut ReferenceBuffer,
    ) {
        self.add(residual, x, weight.len());
        self.rms_norm(residual, weight, eps, out);
    }

    pub(crate) fn matmul(
        &mut self,
        weight: &ReferenceMatrix,
        bias: Option<&Vec<f32>>,
        x: &ReferenceBuffer,
        out: &mut ReferenceBuffer,
    ) {
        self.product(weight, bias, x, out, |sum| sum);
    }

    pub(crate) fn matmul_activated(
        &mut self,
        weight: &ReferenceMatrix,
        bias: Option<&Vec<f32>>,
        activation: Activation,
        x: &ReferenceBuffer,
        out: &mut ReferenceBuffer,
    ) {
        self.product(weight, bias, x, out, |sum| formulas::activate(activation, sum));
    }

    pub(crate) fn add_bias(&mut self, bias: &Vec<f32>, out: &mut ReferenceBuffer) {
        let rows = self.step().rows();
        out.check(rows, bias.len(), "out");
        for row in 0..rows {
            out.row_mut(row).iter_mut().zip(bias).for_each(|(out, bias)| *out += bias);
        }
    }

    pub(crate) fn row_op(&mut self, op: &RowOp<&ReferenceBuffer, &Vec<f32>>, out: &mut ReferenceBuffer) {
        rows::row_op(self.step().rows(), op, out);
    }

    pub(crate) fn layer_norm(
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

    pub(crate) fn add_layer_norm(
        &mut self,
        residual: &mut ReferenceBuffer,
        x: &ReferenceBuffer,
        params: &LayerNormParams<&Vec<f32>>,
        out: &mut ReferenceBuffer,
    ) {
        self.add(residual, x, params.weight.len());
        self.layer_norm(residual, params, out);
    }

    pub(crate) fn layer_norm_columns(
        &mut self,
        x: &mut ReferenceBuffer,
        columns: NormColumns,
        params: &LayerNormParams<&Vec<f32>>,
    ) {
        let rows = self.step().rows();
        columns::layer_norm_columns(rows, x, columns, params);
    }

    pub(crate) fn rope_to_cache(
        &mut self,
        qkv: &mut ReferenceBuffer,
        params: &QkvParams<&Vec<f32>>,
        kv: &mut ReferenceKv,
        layer: usize,
    ) {
        heads::to_cache(self.step(), qkv, params, kv, layer);
    }

    pub(crate) fn attention(
        &mut self,
        qkv: &ReferenceBuffer,
        params: &AttentionParams<&Vec<f32>>,
        kv: &ReferenceKv,
        layer: usize,
        out: &mut ReferenceBuffer,
    ) {
        heads::attention(self.step(), qkv, params, kv, layer, out);
    }

    pub(crate) fn heads_matmul(
        &mut self,
        weights: &[ReferenceMatrix],
        x: &ReferenceBuffer,
        out: &mut ReferenceBuffer,
    ) {
        let width = latent::heads_matmul(self.step().rows(), weights, x, out);
        assert!(width <= self.limits().heads_matmul_width, "heads wider than the step's limits");
    }

    pub(crate) fn latent_to_cache(
        &mut self,
        latent: &mut ReferenceBuffer,
        queries: &mut ReferenceBuffer,
        params: &LatentParams<&Vec<f32>>,
        kv: &mut ReferenceKv,
        layer: usize,
    ) {
        latent::to_cache(self.step(), latent, queries, params, kv, layer);
    }

    pub(crate) fn latent_attention(
        &mut self,
        queries: &ReferenceBuffer,
        heads: LatentHeads,
        scale: f32,
        kv: &ReferenceKv,
        layer: usize,
        out: &mut ReferenceBuffer,
    ) {
        latent::attention(self.step(), queries, heads, scale, kv, layer, out);
    }

    pub(crate) fn convolve(
        &mut self,
        x: &mut ReferenceBuffer,
        params: &ConvolutionParams<&Vec<f32>>,
        kv: &mut ReferenceKv,
        layer: usize,
    ) {
        states::convolve(self.step(), x, params, kv, layer);
    }

    pub(crate) fn recur(
        &mut self,
        x: &ReferenceBuffer,
        params: &RecurrenceParams<&Vec<f32>>,
        kv: &mut ReferenceKv,
        layer: usize,
        out: &mut ReferenceBuffer,
    ) {
        states::recur(self.step(), x, params, kv, layer, out);
    }

    pub(crate) fn gate_output(
        &mut self,
        gate: &ReferenceBuffer,
        params: &OutputGateParams<&Vec<f32>>,
        out: &mut ReferenceBuffer,
    ) {
        states::gate_output(self.step().rows(), gate, params, out);
    }

    pub(crate) fn gated(
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
                hidden.row_mut(row)[i] =
                    (formulas::activate(activation, gate) * formulas::factor(activation, up)) as f32;
            }
        }
    }

    pub(crate) fn add_low_rank<L: Borrow<ReferenceLowRank> + Sync>(
        &mut self,
        deltas: &[Option<L>],
        x: &ReferenceBuffer,
        low: Option<&mut ReferenceBuffer>,
        out: &mut ReferenceBuffer,
    ) {
        low_rank::add(self.step(), deltas, x, low, out);
    }

    pub(crate) fn gate(
        &mut self,
        activation: Activation,
        both: &ReferenceBuffer,
        hidden: &mut ReferenceBuffer,
    ) {
        low_rank::gate(self.step().rows(), activation, both, hidden);
    }

    pub(crate) fn add_shared(
        &mut self,
        gate: Option<&Vec<f32>>,
        x: &ReferenceBuffer,
        shared: &ReferenceBuffer,
        out: &mut ReferenceBuffer,
    ) {
        experts::add_shared(self.step().rows(), gate, x, shared, out);
    }

    pub(crate) fn moe(
        &mut self,
        weights: &MoeWeights<'_, Self>,
        params: &MoeParams,
        x: &ReferenceBuffer,
        hidden: &mut ReferenceBuffer,
        out: &mut ReferenceBuffer,
    ) {
        experts::check_limits(self.limits(), weights, params);
        self.chosen = experts::moe(self.step().rows(), weights, params, x, hidden, out);
    }

    fn group_norm(
        &mut self,
        x: &ReferenceBuffer,
        groups: usize,
        params: &LayerNormParams<&Vec<f32>>,
        out: &mut ReferenceBuffer,
    ) {
        let (batch, cols) = (self.step(), params.weight.len());
        x.check(batch.rows(), cols, "x");
        out.check(batch.rows(), cols, "out");
        assert!(cols.is_multiple_of(groups), "{groups} groups of {cols} columns");
        for span in &batch.sequences {
            let rows = span.row_first as usize..(span.row_first + span.rows) as usize;
            for first in (0..cols).step_by(cols / groups) {
                let columns = first..first + cols / groups;
                let of_group = rows.clone().flat_map(|row| &x.row(row)[columns.clone()]);
                let numbers: Vec<f64> = of_group.map(|&number| f64::from(number)).collect();
                let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
                let squares = numbers.iter().map(|number| (number - mean).powi(2)).sum::<f64>();
                let factor = (squares / numbers.len() as f64 + f64::from(params.eps)).sqrt().recip();
                for (row, col) in rows.clone().flat_map(|row| columns.clone().map(move |col| (row, col))) {
                    let normed = ((f64::from(x.row(row)[col]) - mean) * factor) as f32;
                    out.row_mut(row)[col] =
                        normed * params.weight[col] + params.bias.map_or(0.0, |bias| bias[col]);
                }
            }
        }
    }

    fn modulate(&mut self, by: &ReferenceBuffer, scale: usize, shift: usize, out: &mut ReferenceBuffer) {
        let batch = self.step();
        by.check(batch.rows(), by.cols, "by");
        out.check(batch.rows(), out.cols, "out");
        for (sequence, span) in batch.sequences.iter().enumerate() {
            let by = by.row(sequence);
            for row in span.row_first as usize..(span.row_first + span.rows) as usize {
                for (col, out) in out.row_mut(row).iter_mut().enumerate() {
                    let factor = 1.0 + f64::from(by[scale + col]);
                    *out = (f64::from(*out) * factor + f64::from(by[shift + col])) as f32;
                }
            }
        }
    }

    /// Runs an op over sequences, with or without a cache.
    fn run_over_sequences(&mut self, op: DeviceOp<'_, Self>) {
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
            Op::InstanceAffine { x, places, params, out } => self.instance_affine(x, places, &params, out),
            Op::Mirror { x, channels, places, before, out } => self.mirror(x, channels, places, before, out),
            Op::Lstm { gates, recurrent, out } => self.lstm(gates, recurrent, out),
            Op::RelativeAttention { qkv, params, out } => self.relative_attention(qkv, &params, out),
            Op::AttendPart { qkv, rows, queries, params, out } => {
                self.attend_part(qkv, rows, queries, &params, out);
            }
            Op::GroupNorm { x, groups, params, out } => self.group_norm(x, groups, &params, out),
            Op::Conv { x, affine, before, weight, bias, params, add, out } => {
                self.conv(ConvOperands { x, affine, before, weight, bias, params, add, out });
            }
            Op::ConvTranspose { x, affine, before, weight, bias, params, out } => {
                self.conv_transpose(ConvOperands { x, affine, before, weight, bias, params, add: None, out });
            }
            Op::Modulate { by, scale, shift, out } => self.modulate(by, scale, shift, out),
            _ => unreachable!("`run_op` has the other ops"),
        }
    }
}
