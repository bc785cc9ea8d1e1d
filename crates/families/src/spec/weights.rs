//! Weights of a transformer and their shapes. Their names in files are in `names`.

use super::{
    DisentangledAttention, Distance, ExpertsSpec, GemmaPart, HeadSpec, LayerSpec, MlpSpec, NormKind,
    Projection, QkNorm, StateSpec, TransformerSpec,
};
use hanzo_engine_ops::StateRule;

/// A tensor: the weight of a part, or its bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Weight {
    /// Part of the transformer.
    pub part: Part,
    /// Whether it is the bias.
    pub bias: bool,
}

/// A part of a transformer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// (vocab, hidden)
    TokenEmbedding,
    /// (positions, hidden)
    PositionEmbedding,
    /// (type_vocab, hidden)
    TypeEmbedding,
    /// (hidden)
    EmbeddingNorm,
    /// (buckets, heads)
    DistanceBias,
    /// (2 * span, hidden)
    DistanceEmbedding,
    /// (hidden)
    DistanceNorm,
    /// (hidden, hidden * window): for each output and input the tokens of the window.
    Convolution,
    /// (hidden)
    ConvolutionNorm,
    /// A Gemma part outside of layers.
    Gemma(GemmaPart),
    /// A part of a layer.
    Layer(usize, LayerPart),
    /// (hidden)
    FinalNorm,
    /// (hidden, hidden): dense layer of a masked language model's head.
    LmDense,
    /// (hidden)
    LmNorm,
    /// (vocab, hidden), bias (vocab): the head, if it is not the token embedding.
    Head,
}

/// A part of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LayerPart {
    /// (heads * head_dim, hidden), or (heads * head_dim, query_rank) for queries from a latent.
    Query,
    /// (query_rank, hidden): makes the query latent.
    QueryDown,
    /// (query_rank)
    QueryDownNorm,
    /// (kv_heads * head_dim, hidden)
    Key,
    /// (kv_heads * head_dim, hidden)
    Value,
    /// (rank + rope_dim, hidden): makes the latent that the cache keeps.
    LatentDown,
    /// (rank)
    LatentNorm,
    /// (heads * (nope_dim + value_dim), rank): makes keys and values from a latent.
    LatentUp,
    /// (heads * rank, nope_dim): each head's part of `LatentUp` for keys, transposed, if files have it separately.
    LatentKeyUp,
    /// (heads * value_dim, rank): the part of `LatentUp` for values, if files have it separately.
    LatentValueUp,
    /// (heads * head_dim, hidden): gate of attention's output, through a sigmoid.
    QueryGate,
    /// (channels, hidden): inputs of a state's convolution. For short convolutions (3 * channels, hidden): factors
    /// before it, factors after it, and inputs.
    StateInput,
    /// (value_heads * value_dim, hidden): gate of a state's output.
    StateGate,
    /// (value_heads, hidden): beta of a gated delta net, the degree to which it takes up a token.
    StateBeta,
    /// (value_heads, hidden): step of a state; its bias, (value_heads), is added.
    StateStep,
    /// (channels * taps): the convolution's factors of each channel, oldest token first; bias (channels).
    StateConvolution,
    /// (value_heads): decay rate of the heads, or its logarithm.
    StateDecay,
    /// (value_heads): factor with which each head adds its value to the output.
    StateSkip,
    /// (value_dim), or (value_heads * value_dim): norm of a state's output.
    StateNorm,
    /// (hidden, value_heads * value_dim)
    StateOutput,
    /// (head_dim), or (heads * head_dim) if heads are normed together or with separate factors.
    QueryNorm,
    /// (head_dim), or (kv_heads * head_dim).
    KeyNorm,
    /// (heads)
    Sinks,
    /// (heads * head_dim, hidden): makes keys of distances.
    DistanceKey,
    /// (heads * head_dim, hidden): makes queries of distances.
    DistanceQuery,
    /// (hidden, heads * head_dim)
    AttentionOutput,
    /// (hidden): norm of the attention sublayer, before or after it as [`super::NormOrder`] says.
    AttentionNorm,
    /// (hidden): norm of attention's output, or of its first sum if there are two.
    AttentionPostNorm,
    /// (ffn, hidden)
    Gate,
    /// (ffn, hidden)
    Up,
    /// (hidden, ffn)
    Down,
    /// (1), before its hyperbolic tangent: factor on the output of the layer's first or second sublayer.
    HalfFactor(usize),
    /// (1), before its softplus: factor on the square in an MLP's xIELU.
    CurvePositive,
    /// (1), before its softplus: factor on the exponential, in addition to the next.
    CurveNegative,
    /// (): factor on the linear term.
    CurveLinear,
    /// (experts, hidden); its bias, (experts), is added to scores, or corrects the choice alone, as [`ExpertsSpec`]
    /// says.
    Router,
    /// (ffn, hidden): an expert's gate.
    ExpertGate(usize),
    /// (ffn, hidden): an expert's first matrix.
    ExpertUp(usize),
    /// (hidden, ffn): an expert's second matrix, or (ffn, hidden) as [`ExpertsSpec`] says.
    ExpertDown(usize),
    /// Bias only, (hidden): of the experts' sum.
    Experts,
    /// (shared.ffn, hidden)
    SharedGate,
    /// (shared.ffn, hidden)
    SharedUp,
    /// (hidden, shared.ffn)
    SharedDown,
    /// (1, hidden): gate of the shared expert.
    SharedRouter,
    /// (hidden): norm of the MLP sublayer.
    MlpNorm,
    /// (hidden): norm of the MLP's output.
    MlpPostNorm,
    /// A Gemma part of a layer.
    Gemma(GemmaPart),
}

impl Part {
    /// Whether it is a norm of hidden states.
    pub fn is_norm(self) -> bool {
        use LayerPart::{AttentionNorm, AttentionPostNorm, MlpNorm, MlpPostNorm};
        let of_layer =
            matches!(self, Part::Layer(_, AttentionNorm | AttentionPostNorm | MlpNorm | MlpPostNorm));
        of_layer
            || matches!(self, Part::EmbeddingNorm | Part::ConvolutionNorm | Part::FinalNorm | Part::LmNorm)
    }

    /// The weight of the part.
    pub fn weight(self) -> Weight {
        Weight { part: self, bias: false }
    }

    /// The bias of the part.
    pub fn bias(self) -> Weight {
        Weight { part: self, bias: true }
    }
}

/// List of weights and their shapes.
pub(super) struct List(Vec<(Weight, Vec<usize>)>);

impl List {
    pub(super) fn matrix(&mut self, part: Part, rows: usize, cols: usize, bias: bool) {
        self.0.push((part.weight(), vec![rows, cols]));
        if bias {
            self.0.push((part.bias(), vec![rows]));
        }
    }

    pub(super) fn vector(&mut self, part: Part, width: usize, bias: bool) {
        self.0.push((part.weight(), vec![width]));
        if bias {
            self.0.push((part.bias(), vec![width]));
        }
    }
}

impl TransformerSpec {
    /// Whether files store a part's matrix with its inputs outermost.
    pub fn is_transposed(&self, part: Part) -> bool {
        let Part::Layer(layer, LayerPart::ExpertDown(_)) = part else { return false };
        self.layers[layer].mlp.experts().is_some_and(|experts| experts.down_transposed)
    }

    /// Every weight and its shape, outermost dimension first, in the order in which a step uses them.
    pub fn weights(&self) -> Vec<(Weight, Vec<usize>)> {
        let mut weights = self.weights_and_factors();
        if self.norm.kind == NormKind::LayerUnit {
            weights.retain(|(weight, _)| !weight.part.is_norm());
        }
        weights
    }

    /// As [`TransformerSpec::weights`], including the factors of norms that files do not have.
    pub fn weights_and_factors(&self) -> Vec<(Weight, Vec<usize>)> {
        let (hidden, norm_bias) = (self.hidden, self.norm_bias());
        let mut list = List(Vec::new());
        list.matrix(Part::TokenEmbedding, self.vocab, hidden, false);
        self.input_weights(&mut list);
        if let Some(table) = self.positions {
            list.matrix(Part::PositionEmbedding, table.rows, hidden, false);
        }
        if self.type_vocab > 0 {
            list.matrix(Part::TypeEmbedding, self.type_vocab, hidden, false);
        }
        if self.embedding_norm {
            list.vector(Part::EmbeddingNorm, hidden, norm_bias);
        }
        match self.distance {
            Distance::None | Distance::Alibi(_) | Distance::Behind => {}
            Distance::Learned { buckets, .. } => {
                list.matrix(Part::DistanceBias, buckets, self.heads().heads, false);
            }
            Distance::Disentangled(DisentangledAttention { buckets, normed, .. }) => {
                list.matrix(Part::DistanceEmbedding, buckets.rows(), hidden, false);
                if normed {
                    list.vector(Part::DistanceNorm, hidden, norm_bias);
                }
            }
        }
        if let Some(convolution) = self.convolution {
            list.matrix(Part::Convolution, hidden, hidden * convolution.window, true);
            list.vector(Part::ConvolutionNorm, hidden, norm_bias);
        }
        for (index, layer) in self.layers.iter().enumerate() {
            self.attention_weights(index, layer, &mut list);
            self.mlp_weights(index, layer, &mut list);
            self.gemma_weights(index, layer, &mut list);
        }
        if self.layers.last().is_some_and(|layer| !layer.order.on_sum()) {
            list.vector(Part::FinalNorm, hidden, norm_bias);
        }
        if let HeadSpec::MaskedLm(head) = self.head {
            list.matrix(Part::LmDense, hidden, hidden, head.dense_bias);
            list.vector(Part::LmNorm, hidden, norm_bias);
        }
        if self.head.has_matrix() {
            list.matrix(Part::Head, self.vocab, hidden, false);
        }
        if self.head.logit_bias() || self.head.masked_lm().is_some_and(|head| head.decoder_bias) {
            list.0.push((Part::Head.bias(), vec![self.vocab]));
        }
        list.0
    }

    fn attention_weights(&self, index: usize, layer: &LayerSpec, list: &mut List) {
        let (hidden, norm_bias, attention) = (self.hidden, self.norm_bias(), &layer.attention);
        let part = |part| Part::Layer(index, part);
        if layer.order.has_attention_norm() {
            list.vector(part(LayerPart::AttentionNorm), hidden, norm_bias);
        }
        let shape = attention.projection.head_shape();
        let (q, kv, bias) = (shape.q_width(), shape.kv_heads * shape.head_dim, attention.qkv_bias);
        match attention.projection {
            Projection::Heads(_) => {
                list.matrix(part(LayerPart::Query), q, hidden, bias);
                if attention.shares.is_none() {
                    list.matrix(part(LayerPart::Key), kv, hidden, bias);
                }
                if attention.shares.is_none() && !attention.values_are_keys {
                    list.matrix(part(LayerPart::Value), kv, hidden, bias);
                }
                if attention.output_gate {
                    list.matrix(part(LayerPart::QueryGate), q, hidden, bias);
                }
            }
            Projection::State(state) => state_weights(index, &state, hidden, list),
            Projection::Latent(latent) => {
                if let Some(rank) = latent.query_rank {
                    list.matrix(part(LayerPart::QueryDown), rank, hidden, bias);
                    list.vector(part(LayerPart::QueryDownNorm), rank, false);
                }
                list.matrix(part(LayerPart::Query), q, latent.query_rank.unwrap_or(hidden), false);
                list.matrix(part(LayerPart::LatentDown), latent.rank + latent.rope_dim, hidden, bias);
                list.vector(part(LayerPart::LatentNorm), latent.rank, false);
                let up = latent.heads * (latent.nope_dim + latent.value_dim);
                if latent.split_up {
                    list.matrix(
                        part(LayerPart::LatentKeyUp),
                        latent.heads * latent.rank,
                        latent.nope_dim,
                        false,
                    );
                    list.matrix(
                        part(LayerPart::LatentValueUp),
                        latent.heads * latent.value_dim,
                        latent.rank,
                        false,
                    );
                } else {
                    list.matrix(part(LayerPart::LatentUp), up, latent.rank, false);
                }
            }
        }
        for half in (0..2).filter(|_| attention.gated_halves) {
            list.vector(part(LayerPart::HalfFactor(half)), 1, false);
        }
        match attention.qk_norm {
            QkNorm::None | QkNorm::Unit => {}
            QkNorm::Heads => {
                list.vector(part(LayerPart::QueryNorm), shape.head_dim, false);
                if attention.shares.is_none() {
                    list.vector(part(LayerPart::KeyNorm), shape.head_dim, false);
                }
            }
            QkNorm::HeadsApart => {
                list.vector(part(LayerPart::QueryNorm), q, false);
                list.vector(part(LayerPart::KeyNorm), kv, false);
            }
            QkNorm::Whole => {
                list.vector(part(LayerPart::QueryNorm), q, norm_bias);
                list.vector(part(LayerPart::KeyNorm), kv, norm_bias);
            }
        }
        if attention.sinks {
            list.vector(part(LayerPart::Sinks), shape.heads, false);
        }
        if let Distance::Disentangled(DisentangledAttention { keys, queries, shared: false, .. }) =
            self.distance
        {
            if keys {
                list.matrix(part(LayerPart::DistanceKey), q, hidden, true);
            }
            if queries {
                list.matrix(part(LayerPart::DistanceQuery), q, hidden, true);
            }
        }
        let attended = attention.projection.attended_width();
        let output = match attention.projection {
            Projection::State(_) => LayerPart::StateOutput,
            Projection::Heads(_) | Projection::Latent(_) => LayerPart::AttentionOutput,
        };
        list.matrix(part(output), hidden, attended, attention.output_bias);
        if layer.order.attention_post_norm() {
            list.vector(part(LayerPart::AttentionPostNorm), hidden, norm_bias);
        }
    }

    fn mlp_weights(&self, index: usize, layer: &LayerSpec, list: &mut List) {
        let (hidden, norm_bias) = (self.hidden, self.norm_bias());
        let part = |part| Part::Layer(index, part);
        if layer.order.has_mlp_norm() && !layer.mlp.is_none() {
            list.vector(part(LayerPart::MlpNorm), hidden, norm_bias);
        }
        match &layer.mlp {
            MlpSpec::Dense(dense) => {
                if dense.gated {
                    list.matrix(part(LayerPart::Gate), dense.ffn, hidden, dense.up_bias);
                }
                list.matrix(part(LayerPart::Up), dense.ffn, hidden, dense.up_bias);
                list.matrix(part(LayerPart::Down), hidden, dense.ffn, dense.down_bias);
                if self.curved {
                    list.vector(part(LayerPart::CurvePositive), 1, false);
                    list.vector(part(LayerPart::CurveNegative), 1, false);
                    list.0.push((part(LayerPart::CurveLinear).weight(), Vec::new()));
                }
            }
            MlpSpec::Experts(experts) => experts_weights(index, experts, hidden, list),
            MlpSpec::None => {}
        }
        if layer.order.mlp_post_norm() {
            list.vector(part(LayerPart::MlpPostNorm), hidden, norm_bias);
        }
    }
}

fn state_weights(index: usize, state: &StateSpec, hidden: usize, list: &mut List) {
    let part = |part| Part::Layer(index, part);
    let shape = &state.shape;
    let convolution = |list: &mut List| {
        list.vector(part(LayerPart::StateConvolution), shape.channels() * shape.taps, false);
        if state.convolution_bias {
            list.0.push((part(LayerPart::StateConvolution).bias(), vec![shape.channels()]));
        }
    };
    if !state.recurs() {
        list.matrix(part(LayerPart::StateInput), shape.width(), hidden, false);
        return convolution(list);
    }
    list.matrix(part(LayerPart::StateInput), shape.channels(), hidden, false);
    list.matrix(part(LayerPart::StateGate), shape.value_width(), hidden, false);
    if shape.rule == StateRule::Delta {
        list.matrix(part(LayerPart::StateBeta), shape.value_heads, hidden, false);
    }
    list.matrix(part(LayerPart::StateStep), shape.value_heads, hidden, true);
    convolution(list);
    list.vector(part(LayerPart::StateDecay), shape.value_heads, false);
    if state.has_skip() {
        list.vector(part(LayerPart::StateSkip), shape.value_heads, false);
    }
    if state.norm_part > 0 {
        list.vector(part(LayerPart::StateNorm), state.norm_width(), false);
    }
}

fn experts_weights(index: usize, experts: &ExpertsSpec, hidden: usize, list: &mut List) {
    let part = |part| Part::Layer(index, part);
    let router_bias = experts.correction_bias || experts.router_bias;
    list.matrix(part(LayerPart::Router), experts.count, hidden, router_bias);
    for expert in 0..experts.count {
        for (expert_part, [rows, cols]) in experts.matrices(hidden) {
            list.0.push((part(expert_part(expert)).weight(), vec![rows, cols]));
            if experts.expert_bias {
                let outputs = if matches!(expert_part(expert), LayerPart::ExpertDown(_)) {
                    hidden
                } else {
                    experts.ffn
                };
                list.0.push((part(expert_part(expert)).bias(), vec![outputs]));
            }
        }
    }
    if experts.bias {
        list.0.push((part(LayerPart::Experts).bias(), vec![hidden]));
    }
    if let Some(shared) = experts.shared {
        if experts.gated {
            list.matrix(part(LayerPart::SharedGate), shared.ffn, hidden, false);
        }
        list.matrix(part(LayerPart::SharedUp), shared.ffn, hidden, false);
        list.matrix(part(LayerPart::SharedDown), hidden, shared.ffn, false);
        if shared.gate {
            list.matrix(part(LayerPart::SharedRouter), 1, hidden, false);
        }
    }
}

impl ExpertsSpec {
    /// Matrices of each expert, and their shapes in files.
    pub fn matrices(&self, hidden: usize) -> impl Iterator<Item = (fn(usize) -> LayerPart, [usize; 2])> {
        let down = if self.down_transposed { [self.ffn, hidden] } else { [hidden, self.ffn] };
        let gate =
            self.gated.then_some((LayerPart::ExpertGate as fn(usize) -> LayerPart, [self.ffn, hidden]));
        let rest = [
            (LayerPart::ExpertUp as fn(usize) -> LayerPart, [self.ffn, hidden]),
            (LayerPart::ExpertDown, down),
        ];
        gate.into_iter().chain(rest)
    }
}
