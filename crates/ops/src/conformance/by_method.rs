//! Ops of [`AnyBackend`] by method, each run at once: for checks, tests and measurements. Networks build lists of ops.

use std::borrow::Borrow;
use std::ops::Range;

use crate::executor::{buffer, vector};
use crate::{
    Activation, AnyBackend, AttentionParams, Buckets, Buffer, ConvolutionParams, Experts, Handle, Heads, Kv,
    LatentHeads, LatentParams, LayerNormParams, LowRank, Matrix, MoeOperands, MoeParams, NormColumns, Op,
    OutputGateParams, PositionBias, QkvParams, RecurrenceParams, RowIds, RowOp, SelfAttentionParams, Vector,
    VectorId,
};

impl AnyBackend {
    /// Runs [`Op::Embed`].
    pub fn embed(&mut self, table: &Matrix, scale: f32, out: &mut Buffer) {
        self.run(&Op::Embed { table: table.id(), scale, out: out.id() });
    }

    /// Runs [`Op::AddEmbedding`].
    pub fn add_embedding(&mut self, table: &Matrix, ids: RowIds, out: &mut Buffer) {
        self.run(&Op::AddEmbedding { table: table.id(), ids, out: out.id() });
    }

    /// Runs [`Op::RmsNorm`].
    pub fn rms_norm(&mut self, x: &Buffer, weight: &Vector, eps: f32, out: &mut Buffer) {
        self.run(&Op::RmsNorm { x: x.id(), weight: weight.id(), eps, out: out.id() });
    }

    /// Runs [`Op::AddRmsNorm`].
    pub fn add_rms_norm(
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

    /// Runs [`Op::MatMul`].
    pub fn matmul(&mut self, weight: &Matrix, bias: Option<&Vector>, x: &Buffer, out: &mut Buffer) {
        let bias = bias.map(vector);
        self.run(&Op::MatMul { weight: weight.id(), bias, x: x.id(), out: out.id() });
    }

    /// Runs [`Op::MatMulActivated`].
    pub fn matmul_activated(
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

    /// Runs [`Op::AddBias`].
    pub fn add_bias(&mut self, bias: &Vector, out: &mut Buffer) {
        self.run(&Op::AddBias { bias: bias.id(), out: out.id() });
    }

    /// Runs [`Op::Row`].
    pub fn row_op(&mut self, op: &RowOp<&Buffer, &Vector>, out: &mut Buffer) {
        self.run(&Op::Row { op: op.with(buffer, vector), out: out.id() });
    }

    /// Runs [`Op::LayerNorm`].
    pub fn layer_norm(&mut self, x: &Buffer, params: &LayerNormParams<&Vector>, out: &mut Buffer) {
        self.run(&Op::LayerNorm { x: x.id(), params: params.with(vector), out: out.id() });
    }

    /// Runs [`Op::AddLayerNorm`].
    pub fn add_layer_norm(
        &mut self,
        residual: &mut Buffer,
        x: &Buffer,
        params: &LayerNormParams<&Vector>,
        out: &mut Buffer,
    ) {
        let (residual, params) = (residual.id(), params.with(vector));
        self.run(&Op::AddLayerNorm { residual, x: x.id(), params, out: out.id() });
    }

    /// Runs [`Op::LayerNormColumns`].
    pub fn layer_norm_columns(
        &mut self,
        x: &mut Buffer,
        columns: NormColumns,
        params: &LayerNormParams<&Vector>,
    ) {
        self.run(&Op::LayerNormColumns { x: x.id(), columns, params: params.with(vector) });
    }

    /// Runs [`Op::RopeToCache`].
    pub fn rope_to_cache(
        &mut self,
        qkv: &mut Buffer,
        params: &QkvParams<&Vector>,
        kv: &mut Kv,
        layer: usize,
    ) {
        let params = params.with(vector);
        self.run(&Op::RopeToCache { qkv: qkv.id(), params, kv: kv.id(), layer });
    }

    /// Runs [`Op::Attention`].
    pub fn attention(
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

    /// Runs [`Op::HeadsMatMul`].
    pub fn heads_matmul(&mut self, weights: &Heads, x: &Buffer, out: &mut Buffer) {
        self.run(&Op::HeadsMatMul { weights: weights.id(), x: x.id(), out: out.id() });
    }

    /// Runs [`Op::LatentToCache`].
    pub fn latent_to_cache(
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

    /// Runs [`Op::LatentAttention`].
    pub fn latent_attention(
        &mut self,
        queries: &Buffer,
        heads: LatentHeads,
        scale: f32,
        kv: &Kv,
        layer: usize,
        out: &mut Buffer,
    ) {
        let (queries, kv, out) = (queries.id(), kv.id(), out.id());
        self.run(&Op::LatentAttention { queries, heads, scale, kv, layer, out });
    }

    /// Runs [`Op::Convolve`].
    pub fn convolve(
        &mut self,
        x: &mut Buffer,
        params: &ConvolutionParams<&Vector>,
        kv: &mut Kv,
        layer: usize,
    ) {
        self.run(&Op::Convolve { x: x.id(), params: params.with(vector), kv: kv.id(), layer });
    }

    /// Runs [`Op::Recur`].
    pub fn recur(
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

    /// Runs [`Op::GateOutput`].
    pub fn gate_output(&mut self, gate: &Buffer, params: &OutputGateParams<&Vector>, out: &mut Buffer) {
        self.run(&Op::GateOutput { gate: gate.id(), params: params.with(vector), out: out.id() });
    }

    /// Runs [`Op::GatedMlp`].
    pub fn gated_mlp(
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

    /// Runs [`Op::AddLowRank`].
    pub fn add_low_rank<L: Borrow<LowRank> + Sync>(
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

    /// Runs [`Op::Gate`].
    pub fn gate(&mut self, activation: Activation, both: &Buffer, hidden: &mut Buffer) {
        self.run(&Op::Gate { activation, both: both.id(), hidden: hidden.id() });
    }

    /// Runs [`Op::AddShared`].
    pub fn add_shared(&mut self, gate: Option<&Vector>, x: &Buffer, shared: &Buffer, out: &mut Buffer) {
        let (gate, shared) = (gate.map(vector), shared.id());
        self.run(&Op::AddShared { gate, x: x.id(), shared, out: out.id() });
    }

    /// Runs [`Op::Moe`].
    pub fn moe(
        &mut self,
        weights: &MoeOperands<&Matrix, &Vector, &Experts, &Buffer>,
        params: &MoeParams,
        x: &Buffer,
        hidden: &mut Buffer,
        out: &mut Buffer,
    ) {
        let routed = weights.routed.map(buffer);
        let weights = weights.with(Handle::id, vector, Handle::id, routed);
        self.run(&Op::Moe { weights, params: *params, x: x.id(), hidden: hidden.id(), out: out.id() });
    }

    /// Runs [`Op::AllReduce`].
    pub fn all_reduce(&mut self, x: &mut Buffer) {
        self.run(&Op::AllReduce { x: x.id() });
    }

    /// Runs [`Op::Unfold`].
    pub fn unfold(&mut self, x: &Buffer, window: usize, out: &mut Buffer) {
        self.run(&Op::Unfold { x: x.id(), window, out: out.id() });
    }

    /// Runs [`Op::Rope`].
    pub fn rope(&mut self, qkv: &mut Buffer, params: &QkvParams<&Vector>) {
        self.run(&Op::Rope { qkv: qkv.id(), params: params.with(vector) });
    }

    /// Runs [`Op::SelfAttention`].
    pub fn self_attention(
        &mut self,
        qkv: &Buffer,
        params: &SelfAttentionParams<&Vector, &[u32]>,
        out: &mut Buffer,
    ) {
        self.run(&Op::SelfAttention { qkv: qkv.id(), params: numbered(params), out: out.id() });
    }

    /// Runs [`Op::AttendPart`].
    pub fn attend_part(
        &mut self,
        qkv: &Buffer,
        rows: Range<usize>,
        queries: Range<usize>,
        params: &SelfAttentionParams<&Vector, &[u32]>,
        out: &mut Buffer,
    ) {
        let params = numbered(params);
        self.run(&Op::AttendPart { qkv: qkv.id(), rows, queries, params, out: out.id() });
    }
}

/// Parameters with vectors by number.
fn numbered(params: &SelfAttentionParams<&Vector, &[u32]>) -> SelfAttentionParams<VectorId, Buckets> {
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
