//! A layer of a transformer as data: attention, an MLP or a mixture of experts, and the places of their norms.

use super::StateSpec;
use super::weights::LayerPart;
use hanzo_engine_ops::{
    Activation, ExpertGroups, ExpertScoring, HeadShape, KvLayout, LatentHeads, MoeParams, QueryScale,
};

/// A layer: attention, then an MLP, each added to the residual stream.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// Places of the norms.
    pub order: NormOrder,
    /// Attention, the first sublayer.
    pub attention: AttentionSpec,
    /// MLP, the second sublayer.
    pub mlp: MlpSpec,
    /// Factor on what each sublayer adds (Granite), usually 1.
    pub residual_scale: f32,
}

/// Norms of a network, all of one kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormSpec {
    /// Kind of norm.
    pub kind: NormKind,
    /// Number added to the variance or to the mean of the squares.
    pub eps: f32,
}

/// Kind of norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// A layer norm.
    Layer {
        /// Whether there is an addend for each column.
        bias: bool,
    },
    /// Layer norm with an addend for each column, whose factors are stored less 1 (Nemotron).
    LayerFromOne,
    /// Layer norm without factors and addends (OLMo).
    LayerUnit,
    /// RMS norm.
    Rms {
        /// Whether each factor is stored less 1 (Gemma).
        from_one: bool,
    },
}

impl NormKind {
    /// Whether it subtracts the mean.
    pub fn is_layer(self) -> bool {
        !matches!(self, NormKind::Rms { .. })
    }

    /// Whether files store each factor less 1.
    pub fn stored_less_one(self) -> bool {
        matches!(self, NormKind::LayerFromOne | NormKind::Rms { from_one: true })
    }
}

/// Places of a layer's norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormOrder {
    /// After each sublayer, on the residual sum (BERT).
    Post,
    /// As `Post`, but attention's output is added to its input and normed once more before that (Jina's models for
    /// code).
    PostTwice,
    /// Before each sublayer, and once after the last layer (Llama).
    Pre,
    /// As `Pre`, without a norm before attention, whose input is already normed (ModernBERT's first layer).
    PreMlp,
    /// As `Pre`, but attention reads the input of the layer before it, which has no MLP: both run in parallel
    /// (Falcon-H1).
    Beside,
    /// Before each sublayer and on its output, and once after the last layer (Gemma 3).
    Sandwich,
    /// Only on each sublayer's output, and once after the last layer (OLMo 2).
    Branch,
    /// Parallel sublayers that read the same norm, and a norm after the last layer (Phi-2, Command R).
    Parallel,
    /// Parallel sublayers with separate norms, and a norm after the last layer (GPT-NeoX).
    ParallelApart,
}

impl NormOrder {
    /// Whether sublayers read the residual sum itself, which is normed after them.
    pub fn on_sum(self) -> bool {
        matches!(self, NormOrder::Post | NormOrder::PostTwice)
    }

    /// Whether attention reads the residual sum itself.
    pub fn attention_reads_sum(self) -> bool {
        self.on_sum() || matches!(self, NormOrder::PreMlp | NormOrder::Branch)
    }

    /// Whether both sublayers read the same residual sum.
    pub fn is_parallel(self) -> bool {
        matches!(self, NormOrder::Parallel | NormOrder::ParallelApart)
    }

    /// Whether there is a norm before attention, or after it in post-norm networks.
    pub(crate) fn has_attention_norm(self) -> bool {
        !matches!(self, NormOrder::PreMlp | NormOrder::Beside | NormOrder::Branch)
    }

    /// Whether there is a norm before the MLP, or after it in post-norm networks.
    pub(crate) fn has_mlp_norm(self) -> bool {
        !matches!(self, NormOrder::Branch | NormOrder::Parallel)
    }

    /// Norm of the layer's first reading of the residual sum.
    pub fn first_norm(self) -> Option<LayerPart> {
        match self {
            _ if self.attention_reads_sum() => None,
            // The normed input stays where it is.
            NormOrder::Beside => None,
            NormOrder::ParallelApart => Some(LayerPart::MlpNorm),
            _ => Some(LayerPart::AttentionNorm),
        }
    }

    /// Whether attention's output has a separate norm.
    pub fn attention_post_norm(self) -> bool {
        matches!(self, NormOrder::PostTwice | NormOrder::Sandwich | NormOrder::Branch)
    }

    /// Whether the MLP's output has a separate norm.
    pub fn mlp_post_norm(self) -> bool {
        matches!(self, NormOrder::Sandwich | NormOrder::Branch)
    }
}

/// A layer's attention.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Projection of queries, keys and values.
    pub projection: Projection,
    /// Tokens that a token sees.
    pub mask: Mask,
    /// Whether a token sees only its own chunk of a causal window: tokens from the last position that is a multiple of
    /// the window's length (Llama 4).
    pub chunked: bool,
    /// Whether query, key and value projections have biases.
    pub qkv_bias: bool,
    /// Whether the output projection has a bias.
    pub output_bias: bool,
    /// Whether attention's output is multiplied by the sigmoid of one more projection of its input (Qwen3-Next).
    pub output_gate: bool,
    /// Norms of queries and keys before rope, or after it.
    pub qk_norm: QkNorm,
    /// Whether they are normed after rope (Hunyuan).
    pub norm_after_rope: bool,
    /// Factor on queries that grows with their position (Llama 4).
    pub query_scale: Option<QueryScale>,
    /// Index in [`super::TransformerSpec::ropes`] of the rotary embedding of queries and keys, if any.
    pub rope: Option<usize>,
    /// Factor on the dot products, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Soft cap: `cap * tanh(score / cap)` (Gemma 2).
    pub softcap: Option<f32>,
    /// Attention sinks: one logit for each head takes part in the softmax and has no value (GPT-OSS).
    pub sinks: bool,
    /// Whether values are normed, each head by itself, without weights (Gemma 4).
    pub values_normed: bool,
    /// Whether values equal keys before norm and rotation (Gemma 4).
    pub values_are_keys: bool,
    /// Earlier layer whose keys and values it attends to instead of its own (Gemma 3n).
    pub shares: Option<usize>,
    /// Whether this is cross-attention, over a separate cache of which each row sees its part (Llama 3.2 Vision).
    pub memory: bool,
    /// Whether each sublayer's output is multiplied by the hyperbolic tangent of a number (Llama 3.2 Vision).
    pub gated_halves: bool,
    /// Epsilon of the norms of latents and of query latents, if it differs from that of the other norms.
    pub latent_eps: Option<f32>,
}

/// Projection of hidden states to queries, keys and values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Projection {
    /// A matrix for each; `head_dim` need not be `hidden / heads`.
    Heads(HeadShape),
    /// Multi-head latent attention (arxiv.org/abs/2405.04434): keys and values of all heads from one narrow vector,
    /// which is what the cache keeps.
    Latent(LatentShape),
    /// No attention: each token updates a recurrent state of its sequence (gated delta nets, Mamba 2, short
    /// convolutions).
    State(StateSpec),
}

/// Sizes of multi-head latent attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentShape {
    /// Heads.
    pub heads: usize,
    /// Elements of the narrow vector that queries are computed from. None: queries are computed from the hidden state.
    pub query_rank: Option<usize>,
    /// Elements of the narrow vector that keys and values are computed from.
    pub rank: usize,
    /// Elements of a query or key that are not rotated.
    pub nope_dim: usize,
    /// Elements that are rotated; in keys they are the same for all heads.
    pub rope_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// Whether files have separate matrices for keys and values, the first transposed (newer GGUF files).
    pub split_up: bool,
}

impl LatentShape {
    /// Heads in cache form.
    pub fn heads_in_cache(&self) -> LatentHeads {
        LatentHeads { heads: self.heads, rank: self.rank, rope_dim: self.rope_dim }
    }

    /// Elements of a query in the model's own form.
    pub fn query_dim(&self) -> usize {
        self.nope_dim + self.rope_dim
    }
}

impl Projection {
    /// Elements of all queries of a token.
    pub fn q_width(&self) -> usize {
        self.head_shape().q_width()
    }

    /// Elements of a token's queries, keys and values.
    pub fn qkv_width(&self) -> usize {
        self.head_shape().qkv_width()
    }

    /// Elements of attention's output, before the output projection.
    pub fn attended_width(&self) -> usize {
        match self {
            Projection::Heads(shape) => shape.q_width(),
            Projection::Latent(shape) => shape.heads * shape.value_dim,
            Projection::State(state) => state.shape.value_width(),
        }
    }

    /// Outputs of a layer's first product: queries, keys and values, or the latent, or a state's inputs.
    pub fn first_width(&self) -> usize {
        match self {
            Projection::Heads(shape) => shape.qkv_width(),
            Projection::Latent(shape) => shape.rank + shape.rope_dim,
            Projection::State(state) => state.shape.width(),
        }
    }

    /// Heads in cache form.
    pub fn cache_shape(&self) -> HeadShape {
        match *self {
            Projection::Heads(shape) => shape,
            Projection::Latent(LatentShape { heads, rank, rope_dim, .. }) => {
                HeadShape { heads, kv_heads: 1, head_dim: rank + rope_dim }
            }
            Projection::State(_) => NO_HEADS,
        }
    }

    /// Widest input or output of any of its products, except those of single heads.
    pub fn width(&self) -> usize {
        match self {
            Projection::Heads(shape) => shape.qkv_width(),
            Projection::Latent(shape) => {
                let queries = shape.heads * shape.query_dim();
                queries
                    .max(shape.rank + shape.rope_dim)
                    .max(shape.query_rank.unwrap_or(0))
                    .max(self.attended_width())
            }
            Projection::State(state) => state.shape.width(),
        }
    }

    /// Elements that all heads together read and write in the wider product of single heads.
    pub(crate) fn heads_matmul_width(&self) -> usize {
        match self {
            Projection::Heads(_) | Projection::State(_) => 0,
            Projection::Latent(shape) => shape.heads * (shape.rank + shape.nope_dim.max(shape.value_dim)),
        }
    }

    /// Heads as attention sees them; for a latent, after expansion.
    pub fn head_shape(&self) -> HeadShape {
        match *self {
            Projection::Heads(shape) => shape,
            Projection::Latent(LatentShape { heads, nope_dim, rope_dim, .. }) => {
                HeadShape { heads, kv_heads: heads, head_dim: nope_dim + rope_dim }
            }
            Projection::State(_) => NO_HEADS,
        }
    }

    /// Recurrent state, if it has one.
    pub fn state(&self) -> Option<&StateSpec> {
        match self {
            Projection::State(state) => Some(state),
            Projection::Heads(_) | Projection::Latent(_) => None,
        }
    }
}

/// Heads of a layer without attention.
const NO_HEADS: HeadShape = HeadShape { heads: 1, kv_heads: 1, head_dim: 0 };

impl AttentionSpec {
    /// A recurrent state in place of attention.
    pub fn of_state(state: StateSpec) -> Self {
        Self { projection: Projection::State(state), rope: None, scale: 1.0, ..Self::causal(NO_HEADS) }
    }

    /// Causal attention of these heads, scaled by `1 / sqrt(head_dim)`, with the first rope and no other features.
    pub fn causal(shape: HeadShape) -> Self {
        Self {
            projection: Projection::Heads(shape),
            mask: Mask::Causal { window: None },
            chunked: false,
            qkv_bias: false,
            output_bias: false,
            output_gate: false,
            qk_norm: QkNorm::None,
            norm_after_rope: false,
            query_scale: None,
            rope: Some(0),
            scale: 1.0 / (shape.head_dim as f32).sqrt(),
            softcap: None,
            sinks: false,
            values_normed: false,
            values_are_keys: false,
            shares: None,
            memory: false,
            gated_halves: false,
            latent_eps: None,
        }
    }

    /// Whether rows hold queries alone, because keys and values are another layer's or those of cross-attention.
    pub fn queries_alone(&self) -> bool {
        self.shares.is_some() || self.memory
    }

    /// Columns of the first product: queries alone if keys and values are computed elsewhere.
    pub fn first_width(&self) -> usize {
        if self.queries_alone() { self.projection.q_width() } else { self.projection.first_width() }
    }

    /// Data that a cache keeps of each token.
    pub fn kv_layout(&self) -> KvLayout {
        match self.projection {
            Projection::Heads(HeadShape { kv_heads, head_dim, .. }) => {
                KvLayout::Heads { kv_heads, head_dim, window: self.window() }
            }
            Projection::Latent(LatentShape { rank, rope_dim, .. }) => KvLayout::Latent { rank, rope_dim },
            Projection::State(state) => KvLayout::State(state.shape),
        }
    }

    /// Keys that a row of causal attention sees at most, itself included. None: all.
    pub fn window(&self) -> Option<u32> {
        match self.mask {
            Mask::Causal { window } => window,
            Mask::Whole { .. } => None,
        }
    }
}

/// Tokens of its sequence that a token sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    /// Itself and earlier tokens, in decoders.
    Causal {
        /// Number of last tokens that are visible, itself included. None: all.
        window: Option<u32>,
    },
    /// Tokens on both sides, in encoders.
    Whole {
        /// Number of visible tokens on each side. None: all.
        reach: Option<u32>,
    },
}

/// Norms of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// No norms.
    None,
    /// RMS norm of each head (Qwen 3, Gemma 3).
    Heads,
    /// As `Heads`, without weights (Llama 4).
    Unit,
    /// Layer norm of each head, with separate factors (Command R+).
    HeadsApart,
    /// A norm of all heads together, of the same kind as the others (Jina's models for code, OLMo 2).
    Whole,
}

/// Second sublayer of a layer.
#[derive(Clone, Debug, PartialEq)]
pub enum MlpSpec {
    /// A single MLP.
    Dense(DenseSpec),
    /// A router and several MLPs, of which each token uses a few.
    Experts(ExpertsSpec),
    /// None: the layer ends after its first sublayer (Nemotron-H, Mamba 2).
    None,
}

/// `down · activation(up · x)`, or `down · (activation(gate · x) * (up · x))`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenseSpec {
    /// Inner width.
    pub ffn: usize,
    /// Non-linearity.
    pub activation: Activation,
    /// Whether there is a gate.
    pub gated: bool,
    /// Whether gate and up have biases.
    pub up_bias: bool,
    /// Whether down has a bias.
    pub down_bias: bool,
}

/// Mixture of experts (arxiv.org/abs/2101.03961): MLPs, of which each token uses those that the router scores highest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertsSpec {
    /// Experts of the layer.
    pub count: usize,
    /// Experts that a token uses; 1 to `count`.
    pub used: usize,
    /// Inner width of one expert.
    pub ffn: usize,
    /// Non-linearity.
    pub activation: Activation,
    /// Whether each expert has a gate.
    pub gated: bool,
    /// Conversion of the router's scores into weights.
    pub scoring: ExpertScoring,
    /// Whether the weights of the used experts are divided by their sum.
    pub normalized: bool,
    /// Factor on the weights afterwards.
    pub scale: f32,
    /// Whether a number for each expert is added to its score for the choice alone (DeepSeek-V3).
    pub correction_bias: bool,
    /// Group-limited routing, if experts are chosen from the best groups only.
    pub groups: Option<ExpertGroups>,
    /// Whether an expert's weight multiplies its input rather than its output (Llama 4).
    pub scales_input: bool,
    /// Whether a number for each expert is added to its score (GPT-OSS).
    pub router_bias: bool,
    /// Whether every matrix of every expert has a bias (GPT-OSS).
    pub expert_bias: bool,
    /// Shared expert: an additional MLP that every token uses.
    pub shared: Option<SharedExpert>,
    /// Whether the sum of experts and shared expert is halved (Cohere 2 MoE).
    pub averaged: bool,
    /// Whether the experts' sum has a bias.
    pub bias: bool,
    /// Whether files store each expert's second matrix as (ffn, hidden).
    pub down_transposed: bool,
    /// Whether router, experts and the MLP beside them each norm the residual sum separately. Their outputs are then
    /// also normed separately, before the sublayer's norm (Gemma 4).
    pub apart: bool,
}

/// Shared expert: the MLP beside routed experts, of the same kind. Several of them are one wider MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedExpert {
    /// Inner width.
    pub ffn: usize,
    /// Whether its output is multiplied by a number between 0 and 1 computed from the row (Qwen2-MoE).
    pub gate: bool,
}

impl MlpSpec {
    /// A gated MLP without biases.
    pub fn gated(ffn: usize, activation: Activation) -> Self {
        MlpSpec::Dense(DenseSpec { ffn, activation, gated: true, up_bias: false, down_bias: false })
    }

    /// Whether there is no second sublayer.
    pub fn is_none(&self) -> bool {
        matches!(self, MlpSpec::None)
    }

    /// The single MLP, if it is one.
    pub fn dense(&self) -> Option<&DenseSpec> {
        match self {
            MlpSpec::Dense(dense) => Some(dense),
            MlpSpec::Experts(_) | MlpSpec::None => None,
        }
    }

    /// The shared expert, if there is one, as a separate MLP.
    pub fn shared(&self) -> Option<DenseSpec> {
        let experts = self.experts()?;
        let &ExpertsSpec { activation, gated, shared, .. } = experts;
        Some(DenseSpec { ffn: shared?.ffn, activation, gated, up_bias: false, down_bias: false })
    }

    /// Whether it is a mixture with separate norms.
    pub fn is_apart(&self) -> bool {
        self.experts().is_some_and(|experts| experts.apart)
    }

    /// The mixture of experts, if it is one.
    pub fn experts(&self) -> Option<&ExpertsSpec> {
        match self {
            MlpSpec::Dense(_) | MlpSpec::None => None,
            MlpSpec::Experts(experts) => Some(experts),
        }
    }

    /// Elements of a row between its products.
    pub fn inner_width(&self) -> usize {
        match self {
            MlpSpec::Dense(dense) => dense.ffn,
            MlpSpec::Experts(experts) => experts.ffn_used(),
            MlpSpec::None => 0,
        }
    }

    /// Rows of its widest product.
    pub fn width(&self) -> usize {
        match self {
            MlpSpec::Dense(dense) => stacked(dense.gated, dense.ffn),
            MlpSpec::Experts(experts) => {
                let shared = experts.shared.map_or(0, |shared| stacked(experts.gated, shared.ffn));
                experts.products_width().max(experts.count).max(shared)
            }
            MlpSpec::None => 0,
        }
    }
}

/// Rows of up, or of gate and up.
fn stacked(gated: bool, ffn: usize) -> usize {
    if gated { 2 * ffn } else { ffn }
}

impl ExpertsSpec {
    /// Rows of an expert's first product.
    pub(crate) fn products_width(&self) -> usize {
        stacked(self.gated, self.ffn)
    }

    /// Gated experts with SiLU and softmax weights, as in most families.
    pub fn softmax(count: usize, used: usize, ffn: usize, normalized: bool) -> Self {
        Self {
            count,
            used,
            ffn,
            activation: Activation::Silu,
            gated: true,
            scoring: ExpertScoring::Softmax,
            normalized,
            scale: 1.0,
            correction_bias: false,
            groups: None,
            scales_input: false,
            router_bias: false,
            expert_bias: false,
            shared: None,
            averaged: false,
            bias: false,
            down_transposed: false,
            apart: false,
        }
    }

    /// Parameters of the layer's computation.
    pub fn params(&self) -> MoeParams {
        let &ExpertsSpec {
            used, scoring, normalized, scale, activation, gated, groups, scales_input, ..
        } = self;
        MoeParams { experts_used: used, scoring, normalized, scale, activation, gated, groups, scales_input }
    }

    /// Inner widths of all experts of a token together.
    pub fn ffn_used(&self) -> usize {
        self.used * self.ffn
    }
}
