//! Which weights an encoder is made of, and their shapes.

use super::spec::{Disentangled, Distance, EncoderSpec, MlpSpec, NormOrder, QkNorm};

/// One tensor of an encoder: the weight of a part, or its bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Weight {
    /// The part.
    pub part: Part,
    /// Its bias.
    pub bias: bool,
}

/// One part of an encoder.
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
    /// One of a layer's.
    Layer(usize, LayerPart),
    /// (hidden)
    FinalNorm,
    /// (hidden, hidden)
    LmDense,
    /// (hidden)
    LmNorm,
    /// (vocab, hidden); bias (vocab).
    LmDecoder,
}

/// One part of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LayerPart {
    /// (heads * head_dim, hidden)
    Query,
    /// (kv_heads * head_dim, hidden)
    Key,
    /// (kv_heads * head_dim, hidden)
    Value,
    /// (head_dim), or (heads * head_dim) where heads are normed together.
    QueryNorm,
    /// (head_dim), or (kv_heads * head_dim).
    KeyNorm,
    /// (heads * head_dim, hidden): makes keys of distances.
    DistanceKey,
    /// (heads * head_dim, hidden): makes queries of distances.
    DistanceQuery,
    /// (hidden, heads * head_dim)
    AttentionOutput,
    /// (hidden): of attention's half, before or after it as [`NormOrder`] says.
    AttentionNorm,
    /// (hidden): of what attention adds, or of its first sum where there are two.
    AttentionPostNorm,
    /// (ffn, hidden)
    Gate,
    /// (ffn, hidden)
    Up,
    /// (hidden, ffn)
    Down,
    /// (experts, hidden)
    Router,
    /// (ffn, hidden): an expert's first matrix.
    ExpertUp(usize),
    /// (hidden, ffn): an expert's second matrix, or (ffn, hidden) as [`super::ExpertsSpec`] says.
    ExpertDown(usize),
    /// Only a bias, (hidden): of the experts' sum.
    Experts,
    /// (hidden): of the MLP's half.
    MlpNorm,
    /// (hidden): of what the MLP adds.
    MlpPostNorm,
}

impl Part {
    /// Its weight.
    pub fn weight(self) -> Weight {
        Weight { part: self, bias: false }
    }

    /// Its bias.
    pub fn bias(self) -> Weight {
        Weight { part: self, bias: true }
    }
}

/// Weights and their shapes as they are listed.
struct List(Vec<(Weight, Vec<usize>)>);

impl List {
    fn matrix(&mut self, part: Part, rows: usize, cols: usize, bias: bool) {
        self.0.push((part.weight(), vec![rows, cols]));
        if bias {
            self.0.push((part.bias(), vec![rows]));
        }
    }

    fn vector(&mut self, part: Part, length: usize, bias: bool) {
        self.0.push((part.weight(), vec![length]));
        if bias {
            self.0.push((part.bias(), vec![length]));
        }
    }
}

impl EncoderSpec {
    /// Every weight and its shape, outermost dimension first, in the order a step meets them.
    pub fn weights(&self) -> Vec<(Weight, Vec<usize>)> {
        let hidden = self.hidden;
        let mut list = List(Vec::new());
        list.matrix(Part::TokenEmbedding, self.vocab, hidden, false);
        if let Some(table) = self.positions {
            list.matrix(Part::PositionEmbedding, table.rows, hidden, false);
        }
        if self.type_vocab > 0 {
            list.matrix(Part::TypeEmbedding, self.type_vocab, hidden, false);
        }
        if self.embedding_norm {
            list.vector(Part::EmbeddingNorm, hidden, self.norm_bias());
        }
        match self.distance {
            Distance::None | Distance::Alibi => {}
            Distance::Learned { buckets, .. } => {
                list.matrix(Part::DistanceBias, buckets, self.heads.heads, false);
            }
            Distance::Disentangled(Disentangled { buckets, normed, .. }) => {
                list.matrix(Part::DistanceEmbedding, buckets.rows(), hidden, false);
                if normed {
                    list.vector(Part::DistanceNorm, hidden, self.norm_bias());
                }
            }
        }
        if let Some(convolution) = self.convolution {
            list.matrix(Part::Convolution, hidden, hidden * convolution.window, true);
            list.vector(Part::ConvolutionNorm, hidden, self.norm_bias());
        }
        for layer in 0..self.layers.len() {
            self.layer_weights(layer, &mut list);
        }
        if !self.order.on_sum() {
            list.vector(Part::FinalNorm, hidden, self.norm_bias());
        }
        if let Some(head) = self.masked_lm {
            list.matrix(Part::LmDense, hidden, hidden, head.dense_bias);
            list.vector(Part::LmNorm, hidden, self.norm_bias());
            if !head.tied {
                list.matrix(Part::LmDecoder, self.vocab, hidden, false);
            }
            if head.decoder_bias {
                list.0.push((Part::LmDecoder.bias(), vec![self.vocab]));
            }
        }
        list.0
    }

    fn layer_weights(&self, layer: usize, list: &mut List) {
        let (hidden, q, head) = (self.hidden, self.heads.q_width(), self.heads.head_dim);
        let kv = self.heads.kv_heads * head;
        let norm_bias = self.norm_bias();
        let part = |part| Part::Layer(layer, part);
        list.matrix(part(LayerPart::Query), q, hidden, self.qkv_bias);
        list.matrix(part(LayerPart::Key), kv, hidden, self.qkv_bias);
        list.matrix(part(LayerPart::Value), kv, hidden, self.qkv_bias);
        match self.qk_norm {
            QkNorm::None => {}
            QkNorm::Heads => {
                list.vector(part(LayerPart::QueryNorm), head, false);
                list.vector(part(LayerPart::KeyNorm), head, false);
            }
            QkNorm::Whole => {
                list.vector(part(LayerPart::QueryNorm), q, norm_bias);
                list.vector(part(LayerPart::KeyNorm), kv, norm_bias);
            }
        }
        if let Distance::Disentangled(Disentangled { keys, queries, shared: false, .. }) = self.distance {
            if keys {
                list.matrix(part(LayerPart::DistanceKey), q, hidden, true);
            }
            if queries {
                list.matrix(part(LayerPart::DistanceQuery), q, hidden, true);
            }
        }
        list.matrix(part(LayerPart::AttentionOutput), hidden, q, self.output_bias);
        if layer > 0 || self.order != (NormOrder::Pre { first: false }) {
            list.vector(part(LayerPart::AttentionNorm), hidden, norm_bias);
        }
        match (self.experts.filter(|_| self.layers[layer].experts), self.mlp) {
            (Some(experts), _) => {
                list.matrix(part(LayerPart::Router), experts.count, hidden, false);
                let [rows, cols] =
                    if experts.down_transposed { [self.ffn, hidden] } else { [hidden, self.ffn] };
                for expert in 0..experts.count {
                    list.matrix(part(LayerPart::ExpertUp(expert)), self.ffn, hidden, false);
                    list.matrix(part(LayerPart::ExpertDown(expert)), rows, cols, false);
                }
                if experts.bias {
                    list.0.push((part(LayerPart::Experts).bias(), vec![hidden]));
                }
            }
            (None, MlpSpec::Plain { bias, .. }) => {
                list.matrix(part(LayerPart::Up), self.ffn, hidden, bias);
                list.matrix(part(LayerPart::Down), hidden, self.ffn, bias);
            }
            (None, MlpSpec::Gated { down_bias, .. }) => {
                list.matrix(part(LayerPart::Gate), self.ffn, hidden, false);
                list.matrix(part(LayerPart::Up), self.ffn, hidden, false);
                list.matrix(part(LayerPart::Down), hidden, self.ffn, down_bias);
            }
        }
        list.vector(part(LayerPart::MlpNorm), hidden, norm_bias);
        if self.order.attention_post_norm() {
            list.vector(part(LayerPart::AttentionPostNorm), hidden, norm_bias);
        }
        if self.order == NormOrder::Sandwich {
            list.vector(part(LayerPart::MlpPostNorm), hidden, norm_bias);
        }
    }
}
