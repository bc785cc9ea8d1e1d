//! [`Op`]: one step of a network as plain data.

use std::ops::Range;
use std::sync::Arc;

use super::operands::{BufferId, ExpertsId, HeadsId, KvId, LowRankId, MatrixId, VectorId};
use crate::{
    Activation, AttentionParams, ConvolutionParams, LatentHeads, LatentParams, LayerNormParams, MoeOperands,
    MoeParams, OutputGateParams, QkvParams, RecurrenceParams, RowIds, RowOp, SelfAttentionParams,
};

/// Buckets of a disentangled position bias.
pub type Buckets = Arc<[u32]>;

/// One op of a step, over operands that an [`Executor`](super::Executor) holds. Each variant is the method of
/// [`Backend`](crate::Backend) or [`EncoderOps`](crate::EncoderOps) of the same name, which documents shapes and formulas.
/// Ops work on the rows of the batch that the open step began with.
#[derive(Clone, Debug)]
pub enum Op {
    /// Embeddings of tokens.
    Embed {
        /// `(vocab, cols)`
        table: MatrixId,
        /// Factor on every number.
        scale: f32,
        /// `(rows, cols)`, written.
        out: BufferId,
    },
    /// Addition of learned embeddings of positions or types.
    AddEmbedding {
        /// `(ids, cols)`
        table: MatrixId,
        /// Choice of the row.
        ids: RowIds,
        /// `(rows, cols)`, changed.
        out: BufferId,
    },
    /// RMS norm.
    RmsNorm {
        /// `(rows, cols)`, read.
        x: BufferId,
        /// `(cols)`, or of each part of a row.
        weight: VectorId,
        /// Added to the mean of the squares.
        eps: f32,
        /// `(rows, cols)`, written.
        out: BufferId,
    },
    /// Residual addition, then RMS norm of the sum.
    AddRmsNorm {
        /// `(rows, cols)`, changed.
        residual: BufferId,
        /// `(rows, cols)`, read.
        x: BufferId,
        /// `(cols)`
        weight: VectorId,
        /// Added to the mean of the squares.
        eps: f32,
        /// `(rows, cols)`, written.
        out: BufferId,
    },
    /// Product with a matrix.
    MatMul {
        /// `(outputs, inputs)`
        weight: MatrixId,
        /// `(outputs)`
        bias: Option<VectorId>,
        /// `(rows, inputs)`, read.
        x: BufferId,
        /// `(rows, outputs)`, written.
        out: BufferId,
    },
    /// Product with a matrix, through a non-linearity.
    MatMulActivated {
        /// `(outputs, inputs)`
        weight: MatrixId,
        /// `(outputs)`
        bias: Option<VectorId>,
        /// The non-linearity.
        activation: Activation,
        /// `(rows, inputs)`, read.
        x: BufferId,
        /// `(rows, outputs)`, written.
        out: BufferId,
    },
    /// Addition of a bias.
    AddBias {
        /// `(cols)`
        bias: VectorId,
        /// `(rows, cols)`, changed.
        out: BufferId,
    },
    /// Change of rows, number by number.
    Row {
        /// The change, and what it reads.
        op: RowOp<BufferId, VectorId>,
        /// Changed, or written by [`RowOp::Take`].
        out: BufferId,
    },
    /// Layer norm.
    LayerNorm {
        /// `(rows, cols)`, read.
        x: BufferId,
        /// Scale and shift.
        params: LayerNormParams<VectorId>,
        /// `(rows, cols)`, written.
        out: BufferId,
    },
    /// Residual addition, then layer norm of the sum.
    AddLayerNorm {
        /// `(rows, cols)`, changed.
        residual: BufferId,
        /// `(rows, cols)`, read.
        x: BufferId,
        /// Scale and shift.
        params: LayerNormParams<VectorId>,
        /// `(rows, cols)`, written.
        out: BufferId,
    },
    /// Layer norm of some columns, in place.
    LayerNormColumns {
        /// `(rows, cols)`, changed.
        x: BufferId,
        /// First column, and columns of one norm.
        columns: (usize, usize),
        /// Scale and shift.
        params: LayerNormParams<VectorId>,
    },
    /// Norms and rotary embedding of queries and keys; keys and values go to the cache.
    RopeToCache {
        /// `(rows, q + k + v)`, changed.
        qkv: BufferId,
        /// Norms and rotation.
        params: QkvParams<VectorId>,
        /// Written at the batch's slots.
        kv: KvId,
        /// The cache's layer.
        layer: usize,
    },
    /// Causal attention over a layer of the cache.
    Attention {
        /// `(rows, q + k + v)`, read.
        qkv: BufferId,
        /// Heads, scale, window.
        params: AttentionParams<VectorId>,
        /// Read.
        kv: KvId,
        /// The cache's layer.
        layer: usize,
        /// `(rows, heads * head_dim)`, written.
        out: BufferId,
    },
    /// Product of each head with a matrix of its own.
    HeadsMatMul {
        /// One matrix a head.
        weights: HeadsId,
        /// `(rows, heads * inputs)`, read.
        x: BufferId,
        /// `(rows, heads * outputs)`, written.
        out: BufferId,
    },
    /// Norm and rotary embedding of latents and queries; latents go to the cache.
    LatentToCache {
        /// `(rows, rank + rope_dim)`, changed.
        latent: BufferId,
        /// `(rows, heads * (rank + rope_dim))`, changed.
        queries: BufferId,
        /// Norm and rotation.
        params: LatentParams<VectorId>,
        /// Written at the batch's slots.
        kv: KvId,
        /// The cache's layer.
        layer: usize,
    },
    /// Causal attention over latents.
    LatentAttention {
        /// `(rows, heads * (rank + rope_dim))`, read.
        queries: BufferId,
        /// The heads, and the factor on the dot products.
        heads_and_scale: (LatentHeads, f32),
        /// Read.
        kv: KvId,
        /// The cache's layer.
        layer: usize,
        /// `(rows, heads * rank)`, written.
        out: BufferId,
    },
    /// Short convolution along each sequence.
    Convolve {
        /// `(rows, channels and more)`, changed.
        x: BufferId,
        /// Taps and bias.
        params: ConvolutionParams<VectorId>,
        /// State of the convolution, changed.
        kv: KvId,
        /// The cache's layer.
        layer: usize,
    },
    /// Recurrence of a state along each sequence.
    Recur {
        /// `(rows, channels and more)`, read.
        x: BufferId,
        /// Decay, steps, skip.
        params: RecurrenceParams<VectorId>,
        /// State of the heads, changed.
        kv: KvId,
        /// The cache's layer.
        layer: usize,
        /// `(rows, value_heads * value_dim)`, written.
        out: BufferId,
    },
    /// Gate on a half's output.
    GateOutput {
        /// Read, from the column that `params` name.
        gate: BufferId,
        /// Kind of gate, and the norm beside it.
        params: OutputGateParams<VectorId>,
        /// Changed.
        out: BufferId,
    },
    /// Gated MLP.
    GatedMlp {
        /// `(2 * ffn, inputs)`
        gate_up: MatrixId,
        /// `(outputs, ffn)`
        down: MatrixId,
        /// The non-linearity.
        activation: Activation,
        /// `(rows, inputs)`, read.
        x: BufferId,
        /// `(rows, ffn)`, scratch.
        hidden: BufferId,
        /// `(rows, outputs)`, written.
        out: BufferId,
    },
    /// First half of a gated MLP.
    Gated {
        /// `(2 * ffn, inputs)`
        gate_up: MatrixId,
        /// The non-linearity.
        activation: Activation,
        /// `(rows, inputs)`, read.
        x: BufferId,
        /// `(rows, ffn)`, written.
        hidden: BufferId,
    },
    /// Changes of outputs by the adapters that the batch's rows have.
    AddLowRank {
        /// One slot an adapter.
        deltas: Vec<Option<LowRankId>>,
        /// `(rows, inputs)`, read.
        x: BufferId,
        /// `(rows, ranks)`, scratch; none where no pair has A.
        low: Option<BufferId>,
        /// `(rows, outputs)`, changed.
        out: BufferId,
    },
    /// Product of an activated gate and its partner, halves of one row.
    Gate {
        /// The non-linearity.
        activation: Activation,
        /// `(rows, 2 * ffn)`, read.
        both: BufferId,
        /// `(rows, ffn)`, written.
        hidden: BufferId,
    },
    /// Addition of a shared MLP's output, through a gate where there is one.
    AddShared {
        /// `(cols)`
        gate: Option<VectorId>,
        /// `(rows, cols)`, read by the gate alone.
        x: BufferId,
        /// `(rows, cols)`, read.
        shared: BufferId,
        /// `(rows, cols)`, changed.
        out: BufferId,
    },
    /// Mixture of experts.
    Moe {
        /// Router, experts, biases.
        weights: MoeOperands<MatrixId, VectorId, ExpertsId, BufferId>,
        /// Choice and weighting of experts.
        params: MoeParams,
        /// `(rows, inputs)`, read.
        x: BufferId,
        /// `(rows, experts_used * ffn)`, scratch.
        hidden: BufferId,
        /// `(rows, outputs)`, written.
        out: BufferId,
    },
    /// Sum over the devices of a tensor-parallel group.
    AllReduce {
        /// `(rows, cols)`, changed.
        x: BufferId,
    },
    /// Windows along the tokens, for a convolution by a product.
    Unfold {
        /// `(rows, cols)`, read.
        x: BufferId,
        /// Tokens of a window; odd.
        window: usize,
        /// `(rows, cols * window)`, written.
        out: BufferId,
    },
    /// Norms and rotary embedding in place, without a cache.
    Rope {
        /// `(rows, q + k + v)`, changed.
        qkv: BufferId,
        /// Norms and rotation.
        params: QkvParams<VectorId>,
    },
    /// Attention inside whole sequences.
    SelfAttention {
        /// `(rows, q + k + v)`, read.
        qkv: BufferId,
        /// Heads, scale, bias.
        params: SelfAttentionParams<VectorId, Buckets>,
        /// `(rows, heads * head_dim)`, written.
        out: BufferId,
    },
    /// Attention of some queries of one sequence to all of it.
    AttendPart {
        /// `(rows, q + k + v)` of the sequence, read.
        qkv: BufferId,
        /// Rows of the sequence, and the queries among them.
        rows_and_queries: (Range<usize>, Range<usize>),
        /// Heads and scale.
        params: SelfAttentionParams<VectorId, Buckets>,
        /// `(queries, heads * head_dim)`, written.
        out: BufferId,
    },
}

/// The head of a step, and what adapters do to its logits.
#[derive(Clone, Debug)]
pub struct HeadOperands {
    /// `(vocab, hidden)`
    pub matrix: MatrixId,
    /// A slot an adapter, and scratch of `(rows, ranks)`.
    pub adapted: Option<(Vec<Option<LowRankId>>, BufferId)>,
}

/// Kind of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpClass {
    /// Treats each row by itself, and holds no product.
    Row,
    /// Multiplies with packed weights.
    Product,
    /// Works on sequences and their KV cache.
    Cache,
    /// Works on whole sequences, without a cache.
    Encoder,
}

impl Op {
    /// Kind of the op.
    pub fn class(&self) -> OpClass {
        match self {
            Op::Embed { .. }
            | Op::AddEmbedding { .. }
            | Op::RmsNorm { .. }
            | Op::AddRmsNorm { .. }
            | Op::AddBias { .. }
            | Op::Row { .. }
            | Op::LayerNorm { .. }
            | Op::AddLayerNorm { .. }
            | Op::LayerNormColumns { .. }
            | Op::GateOutput { .. }
            | Op::Gate { .. }
            | Op::AddShared { .. }
            | Op::AllReduce { .. } => OpClass::Row,
            Op::MatMul { .. }
            | Op::MatMulActivated { .. }
            | Op::HeadsMatMul { .. }
            | Op::GatedMlp { .. }
            | Op::Gated { .. }
            | Op::AddLowRank { .. }
            | Op::Moe { .. } => OpClass::Product,
            Op::RopeToCache { .. }
            | Op::Attention { .. }
            | Op::LatentToCache { .. }
            | Op::LatentAttention { .. }
            | Op::Convolve { .. }
            | Op::Recur { .. } => OpClass::Cache,
            Op::Unfold { .. } | Op::Rope { .. } | Op::SelfAttention { .. } | Op::AttendPart { .. } => {
                OpClass::Encoder
            }
        }
    }
}
