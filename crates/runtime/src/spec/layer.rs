//! One layer of a transformer as data: attention, an MLP or a mixture of experts, and where norms stand around them.

use super::StateSpec;
use super::weights::LayerPart;
use hanzo_engine_kernels::{
    Activation, ExpertGroups, ExpertScoring, HeadShape, KvLayout, LatentHeads, MoeParams, QueryScale,
};

/// A layer: attention, then an MLP, each added to the residual stream.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// Where its norms stand.
    pub order: NormOrder,
    /// Its first half.
    pub attention: AttentionSpec,
    /// Its second half.
    pub mlp: MlpSpec,
    /// Factor on what each half adds (Granite), usually 1.
    pub residual_scale: f32,
}

/// The norms of a network, all of one kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormSpec {
    /// How they norm.
    pub kind: NormKind,
    /// Added to the variance or the mean of the squares.
    pub eps: f32,
}

/// How a norm norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// A layer norm.
    Layer {
        /// With an addend a column.
        bias: bool,
    },
    /// A layer norm with an addend a column, whose factors files store less 1 (Nemotron).
    LayerFromOne,
    /// A layer norm without factors and addends (OLMo).
    LayerUnit,
    /// A root mean square norm.
    Rms {
        /// Files store each factor less 1 (Gemma).
        from_one: bool,
    },
}

impl NormKind {
    /// It takes the mean away.
    pub(crate) fn is_layer(self) -> bool {
        !matches!(self, NormKind::Rms { .. })
    }

    /// Files store each factor less 1.
    pub(crate) fn stored_less_one(self) -> bool {
        matches!(self, NormKind::LayerFromOne | NormKind::Rms { from_one: true })
    }
}

/// Where a layer's norms stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormOrder {
    /// After each half, on the sum (BERT).
    Post,
    /// As `Post`; but what attention gives is added to its input and normed once more before that (Jina's models for
    /// code).
    PostTwice,
    /// Before each half, and one after the last layer (Llama).
    Pre,
    /// As `Pre`, with none before attention, whose input is normed already (ModernBERT's first layer).
    PreMlp,
    /// As `Pre`, and attention reads what the layer before read, which adds what it gives and has no MLP: both stand side by
    /// side (Falcon-H1).
    Beside,
    /// Before each half and on what it adds, and one after the last layer (Gemma 3).
    Sandwich,
    /// On what each half adds alone, and one after the last layer (OLMo 2).
    Branch,
    /// Both halves read the same norm of the sum, and one after the last layer (Phi-2, Command R).
    Parallel,
    /// Both halves read the sum, each a norm of its own, and one after the last layer (GPT-NeoX).
    ParallelApart,
}

impl NormOrder {
    /// What a half reads is the sum itself, which is normed after it.
    pub(crate) fn on_sum(self) -> bool {
        matches!(self, NormOrder::Post | NormOrder::PostTwice)
    }

    /// Attention reads the sum itself.
    pub(crate) fn attention_reads_sum(self) -> bool {
        self.on_sum() || matches!(self, NormOrder::PreMlp | NormOrder::Branch)
    }

    /// Both halves read the same sum.
    pub(crate) fn is_parallel(self) -> bool {
        matches!(self, NormOrder::Parallel | NormOrder::ParallelApart)
    }

    /// There is a norm before attention, or after it where norms stand on the sum.
    pub(crate) fn has_attention_norm(self) -> bool {
        !matches!(self, NormOrder::PreMlp | NormOrder::Beside | NormOrder::Branch)
    }

    /// There is a norm before the MLP, or after it where norms stand on the sum.
    pub(crate) fn has_mlp_norm(self) -> bool {
        !matches!(self, NormOrder::Branch | NormOrder::Parallel)
    }

    /// The norm of what a layer reads first of the sum.
    pub(crate) fn first_norm(self) -> Option<LayerPart> {
        match self {
            _ if self.attention_reads_sum() => None,
            // What is normed stays where it is.
            NormOrder::Beside => None,
            NormOrder::ParallelApart => Some(LayerPart::MlpNorm),
            _ => Some(LayerPart::AttentionNorm),
        }
    }

    /// What attention gives has a norm of its own.
    pub(crate) fn attention_post_norm(self) -> bool {
        matches!(self, NormOrder::PostTwice | NormOrder::Sandwich | NormOrder::Branch)
    }

    /// What the MLP gives has a norm of its own.
    pub(crate) fn mlp_post_norm(self) -> bool {
        matches!(self, NormOrder::Sandwich | NormOrder::Branch)
    }
}

/// A layer's attention.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionSpec {
    /// How queries, keys and values are made.
    pub projection: Projection,
    /// What a token sees.
    pub mask: Mask,
    /// Of a causal window a token sees only its own chunk: tokens from the last position on that is a multiple of the
    /// window's length (Llama 4).
    pub chunked: bool,
    /// Query, key and value projections have biases.
    pub qkv_bias: bool,
    /// The output projection has a bias.
    pub output_bias: bool,
    /// What attention gives is multiplied by the sigmoid of one more projection of its input, as wide (Qwen3-Next).
    pub output_gate: bool,
    /// How queries and keys are normed before rope, or after it.
    pub qk_norm: QkNorm,
    /// They are normed after rope (Hunyuan).
    pub norm_after_rope: bool,
    /// Factor on queries that grows with their position (Llama 4).
    pub query_scale: Option<QueryScale>,
    /// Which of [`super::TransformerSpec::ropes`] turns queries and keys, if any.
    pub rope: Option<usize>,
    /// Factor on the dot products, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// `cap * tanh(score / cap)` (Gemma 2).
    pub softcap: Option<f32>,
    /// One logit a head takes part in the softmax and has no value (GPT-OSS).
    pub sinks: bool,
    /// Values are normed, each head by itself, without weights (Gemma 4).
    pub values_normed: bool,
    /// Values are what keys are before they are normed and turned (Gemma 4).
    pub values_are_keys: bool,
    /// The layer before this one whose keys and values it attends to, having none of its own (Gemma 3n).
    pub shares: Option<usize>,
    /// Keys and values are of what a sequence remembers, of which each row sees its part: it has none of its own (Llama 3.2 Vision).
    pub memory: bool,
    /// What each half of the layer gives is multiplied by the hyperbolic tangent of a number (Llama 3.2 Vision).
    pub gated_halves: bool,
    /// Added to the mean of the squares of latents and of what their queries are made of, where it is not what the other norms add.
    pub latent_eps: Option<f32>,
}

/// How queries, keys and values are made of hidden states.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Projection {
    /// A matrix for each; `head_dim` need not be `hidden / heads`.
    Heads(HeadShape),
    /// Keys and values of all heads from one narrow vector, which is what the cache keeps (multi-head latent attention,
    /// arxiv.org/abs/2405.04434).
    Latent(LatentShape),
    /// Nothing that attends: a state of each sequence takes up every token (gated delta nets, Mamba 2, short convolutions).
    State(StateSpec),
}

/// Sizes of multi-head latent attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentShape {
    /// Heads.
    pub heads: usize,
    /// Elements of the narrow vector that queries are made of; none: they are made of the hidden state.
    pub query_rank: Option<usize>,
    /// Elements of the narrow vector that keys and values are made of.
    pub rank: usize,
    /// Elements of a query or key that positions do not turn.
    pub nope_dim: usize,
    /// Elements that they turn; of keys they are the same in all heads.
    pub rope_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// Files have what makes keys and what makes values apart, the first turned over (newer GGUF files).
    pub split_up: bool,
}

impl LatentShape {
    /// Its heads as they meet the cache.
    pub fn heads_in_cache(&self) -> LatentHeads {
        LatentHeads { heads: self.heads, rank: self.rank, rope_dim: self.rope_dim }
    }

    /// Elements of a query of the model's own.
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

    /// Elements of what attention gives, before the output projection.
    pub fn attended_width(&self) -> usize {
        match self {
            Projection::Heads(shape) => shape.q_width(),
            Projection::Latent(shape) => shape.heads * shape.value_dim,
            Projection::State(state) => state.shape.value_width(),
        }
    }

    /// What the first product of a layer gives: queries, keys and values, or the latent, or what a state takes up.
    pub(crate) fn first_width(&self) -> usize {
        match self {
            Projection::Heads(shape) => shape.qkv_width(),
            Projection::Latent(shape) => shape.rank + shape.rope_dim,
            Projection::State(state) => state.shape.width(),
        }
    }

    /// Its heads as the cache sees them.
    pub fn cache_shape(&self) -> HeadShape {
        match *self {
            Projection::Heads(shape) => shape,
            Projection::Latent(LatentShape { heads, rank, rope_dim, .. }) => {
                HeadShape { heads, kv_heads: 1, head_dim: rank + rope_dim }
            }
            Projection::State(_) => NO_HEADS,
        }
    }

    /// The widest input or output of any of its products, but for those of single heads.
    pub(crate) fn width(&self) -> usize {
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

    /// What all heads together read and give in the wider of their own products.
    pub(crate) fn heads_matmul_width(&self) -> usize {
        match self {
            Projection::Heads(_) | Projection::State(_) => 0,
            Projection::Latent(shape) => shape.heads * (shape.rank + shape.nope_dim.max(shape.value_dim)),
        }
    }

    /// Its heads as attention sees them; of a latent once it is spread out.
    pub fn head_shape(&self) -> HeadShape {
        match *self {
            Projection::Heads(shape) => shape,
            Projection::Latent(LatentShape { heads, nope_dim, rope_dim, .. }) => {
                HeadShape { heads, kv_heads: heads, head_dim: nope_dim + rope_dim }
            }
            Projection::State(_) => NO_HEADS,
        }
    }

    /// The state, where it is one.
    pub(crate) fn state(&self) -> Option<&StateSpec> {
        match self {
            Projection::State(state) => Some(state),
            Projection::Heads(_) | Projection::Latent(_) => None,
        }
    }
}

/// The heads of a layer that has none.
const NO_HEADS: HeadShape = HeadShape { heads: 1, kv_heads: 1, head_dim: 0 };

impl AttentionSpec {
    /// A state in place of attention.
    pub fn of_state(state: StateSpec) -> Self {
        Self { projection: Projection::State(state), rope: None, scale: 1.0, ..Self::causal(NO_HEADS) }
    }

    /// Causal attention of these heads, scaled by `1 / sqrt(head_dim)`, turned by the first rope, with nothing else.
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

    /// Rows are of queries alone, because keys and values are another layer's, or remembered.
    pub(crate) fn queries_alone(&self) -> bool {
        self.shares.is_some() || self.memory
    }

    /// Columns of what the first product gives: queries alone where keys and values are made elsewhere.
    pub(crate) fn first_width(&self) -> usize {
        if self.queries_alone() { self.projection.q_width() } else { self.projection.first_width() }
    }

    /// What a cache keeps of each token.
    pub fn kv_layout(&self) -> KvLayout {
        match self.projection {
            Projection::Heads(HeadShape { kv_heads, head_dim, .. }) => {
                KvLayout::Heads { kv_heads, head_dim, window: self.window() }
            }
            Projection::Latent(LatentShape { rank, rope_dim, .. }) => KvLayout::Latent { rank, rope_dim },
            Projection::State(state) => KvLayout::State(state.shape),
        }
    }

    /// Keys that a row of causal attention sees at most, itself included; none: all.
    pub fn window(&self) -> Option<u32> {
        match self.mask {
            Mask::Causal { window } => window,
            Mask::Whole { .. } => None,
        }
    }
}

/// What a token sees of its sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    /// Itself and what is before it: a decoder's.
    Causal {
        /// The last so many tokens alone, itself included; none: all.
        window: Option<u32>,
    },
    /// Both sides: an encoder's.
    Whole {
        /// So many tokens on each side alone; none: all.
        reach: Option<u32>,
    },
}

/// The norms of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// There are none.
    None,
    /// A root mean square norm of each head (Qwen 3, Gemma 3).
    Heads,
    /// As `Heads`, without weights (Llama 4).
    Unit,
    /// A layer norm of each head, with factors of its own (Command R+).
    HeadsApart,
    /// A norm of all heads together, of the kind of the others (Jina's models for code, OLMo 2).
    Whole,
}

/// A layer's second half.
#[derive(Clone, Debug, PartialEq)]
pub enum MlpSpec {
    /// One MLP.
    Dense(DenseSpec),
    /// A router and several MLPs, of which each token goes to a few.
    Experts(ExpertsSpec),
    /// Nothing: the layer ends with its first half (Nemotron-H, Mamba 2).
    None,
}

/// `down · activation(up · x)`, or `down · (activation(gate · x) * (up · x))`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenseSpec {
    /// Elements inside.
    pub ffn: usize,
    /// The non-linearity.
    pub activation: Activation,
    /// There is a gate.
    pub gated: bool,
    /// Gate and up have biases.
    pub up_bias: bool,
    /// Down has a bias.
    pub down_bias: bool,
}

/// A mixture of experts (arxiv.org/abs/2101.03961): MLPs, of which each token goes to those that the router
/// scores highest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertsSpec {
    /// Experts of the layer.
    pub count: usize,
    /// Experts that a token goes to; 1 to `count`.
    pub used: usize,
    /// Elements inside one expert.
    pub ffn: usize,
    /// The non-linearity.
    pub activation: Activation,
    /// Each expert has a gate.
    pub gated: bool,
    /// How the router's scores become weights.
    pub scoring: ExpertScoring,
    /// The weights of the experts used are divided by their sum.
    pub normalized: bool,
    /// Factor on the weights afterwards.
    pub scale: f32,
    /// A number for each expert is added to its score for the choice alone (DeepSeek-V3).
    pub correction_bias: bool,
    /// Experts are chosen from the best groups of them alone.
    pub groups: Option<ExpertGroups>,
    /// What an expert counts for is multiplied with what it reads rather than with what it gives (Llama 4).
    pub scales_input: bool,
    /// A number for each expert is added to its score (GPT-OSS).
    pub router_bias: bool,
    /// Every matrix of every expert has a bias (GPT-OSS).
    pub expert_bias: bool,
    /// An MLP that every token goes to besides.
    pub shared: Option<SharedExpert>,
    /// What experts and that MLP give is halved (Cohere 2 MoE).
    pub averaged: bool,
    /// The experts' sum has a bias.
    pub bias: bool,
    /// Files store each expert's second matrix as (ffn, hidden).
    pub down_transposed: bool,
    /// Router, experts and the MLP beside them each norm the sum for themselves, and what both add is normed apart, before the
    /// norm of the half (Gemma 4).
    pub apart: bool,
}

/// The MLP beside routed experts, of their kind: where families have several they are one wider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedExpert {
    /// Elements inside.
    pub ffn: usize,
    /// What it gives is multiplied by a number between 0 and 1 made of the row (Qwen2-MoE).
    pub gate: bool,
}

impl MlpSpec {
    /// A gated MLP without biases.
    pub fn gated(ffn: usize, activation: Activation) -> Self {
        MlpSpec::Dense(DenseSpec { ffn, activation, gated: true, up_bias: false, down_bias: false })
    }

    /// There is no second half.
    pub(crate) fn is_none(&self) -> bool {
        matches!(self, MlpSpec::None)
    }

    /// The one MLP, where it is one.
    pub fn dense(&self) -> Option<&DenseSpec> {
        match self {
            MlpSpec::Dense(dense) => Some(dense),
            MlpSpec::Experts(_) | MlpSpec::None => None,
        }
    }

    /// The MLP beside experts, where there is one, as one of its own.
    pub(crate) fn shared(&self) -> Option<DenseSpec> {
        let experts = self.experts()?;
        let &ExpertsSpec { activation, gated, shared, .. } = experts;
        Some(DenseSpec { ffn: shared?.ffn, activation, gated, up_bias: false, down_bias: false })
    }

    /// It is a mixture with norms of its own.
    pub(crate) fn is_apart(&self) -> bool {
        self.experts().is_some_and(|experts| experts.apart)
    }

    /// The mixture of experts, where it is one.
    pub fn experts(&self) -> Option<&ExpertsSpec> {
        match self {
            MlpSpec::Dense(_) | MlpSpec::None => None,
            MlpSpec::Experts(experts) => Some(experts),
        }
    }

    /// Elements of a row between its products.
    pub(crate) fn inner_width(&self) -> usize {
        match self {
            MlpSpec::Dense(dense) => dense.ffn,
            MlpSpec::Experts(experts) => experts.ffn_used(),
            MlpSpec::None => 0,
        }
    }

    /// Rows of its widest product.
    pub(crate) fn width(&self) -> usize {
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

/// Rows of a gate and what it is a gate of.
fn stacked(gated: bool, ffn: usize) -> usize {
    if gated { 2 * ffn } else { ffn }
}

impl ExpertsSpec {
    /// Rows of an expert's first product.
    pub(crate) fn products_width(&self) -> usize {
        stacked(self.gated, self.ffn)
    }

    /// Gated experts with SiLU, weighed by their softmax: what most families have.
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

    /// What a layer computes with.
    pub fn params(&self) -> MoeParams {
        let &ExpertsSpec {
            used, scoring, normalized, scale, activation, gated, groups, scales_input, ..
        } = self;
        MoeParams { experts_used: used, scoring, normalized, scale, activation, gated, groups, scales_input }
    }

    /// Elements inside all experts that one token goes to.
    pub fn ffn_used(&self) -> usize {
        self.used * self.ffn
    }
}
