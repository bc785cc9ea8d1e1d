//! What files call an encoder's tensors, as data: a table for each way of naming.

use super::weights::{LayerPart, Part, Weight};

/// Names without `.weight` and `.bias`. An empty one is of a part that the families who use the table never have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Names {
    /// Before everything but heads, in the files of classes that have one.
    pub(super) prefix: &'static str,
    pub(super) token_embedding: &'static str,
    pub(super) position_embedding: &'static str,
    pub(super) type_embedding: &'static str,
    pub(super) embedding_norm: &'static str,
    pub(super) distance_bias: &'static str,
    pub(super) distance_embedding: &'static str,
    pub(super) distance_norm: &'static str,
    pub(super) convolution: &'static str,
    pub(super) convolution_norm: &'static str,
    pub(super) final_norm: &'static str,
    /// Before the layer's number.
    pub(super) layer: &'static str,
    pub(super) query: &'static str,
    pub(super) key: &'static str,
    pub(super) value: &'static str,
    /// One tensor of queries, keys and values instead of the three.
    pub(super) qkv: Option<&'static str>,
    pub(super) query_norm: &'static str,
    pub(super) key_norm: &'static str,
    pub(super) distance_key: &'static str,
    pub(super) distance_query: &'static str,
    pub(super) attention_output: &'static str,
    pub(super) attention_norm: &'static str,
    pub(super) attention_post_norm: &'static str,
    pub(super) gate: &'static str,
    pub(super) up: &'static str,
    /// One tensor of gate and up instead of the two.
    pub(super) gate_up: Option<GateUp>,
    pub(super) down: &'static str,
    pub(super) router: &'static str,
    /// What holds the experts' matrices, and before their bias.
    pub(super) experts: Option<Experts>,
    pub(super) mlp_norm: &'static str,
    pub(super) mlp_post_norm: &'static str,
    pub(super) lm_dense: &'static str,
    pub(super) lm_norm: &'static str,
    pub(super) lm_decoder: &'static str,
    /// The decoder's bias, in full; some files have it under the decoder's name too.
    pub(super) lm_bias: &'static str,
}

/// Gate and up in one tensor.
#[derive(Clone, Copy, Debug)]
pub(super) struct GateUp {
    pub(super) name: &'static str,
    /// The rows of gate are the first half.
    pub(super) gate_first: bool,
}

/// All experts of a layer in one tensor for each of their two matrices. Unlike elsewhere these names are in full.
#[derive(Clone, Copy, Debug)]
pub(super) struct Experts {
    pub(super) up: &'static str,
    pub(super) down: &'static str,
    pub(super) bias: &'static str,
}

impl Names {
    /// A table with only what every one has.
    pub(super) const NONE: Names = Names {
        prefix: "",
        token_embedding: "embeddings.word_embeddings",
        position_embedding: "embeddings.position_embeddings",
        type_embedding: "embeddings.token_type_embeddings",
        embedding_norm: "embeddings.LayerNorm",
        distance_bias: "",
        distance_embedding: "",
        distance_norm: "",
        convolution: "",
        convolution_norm: "",
        final_norm: "",
        layer: "encoder.layer.",
        query: "attn.q",
        key: "attn.k",
        value: "attn.v",
        qkv: None,
        query_norm: "",
        key_norm: "",
        distance_key: "",
        distance_query: "",
        attention_output: "",
        attention_norm: "",
        attention_post_norm: "",
        gate: "mlp.gate",
        up: "mlp.up",
        gate_up: None,
        down: "",
        router: "",
        experts: None,
        mlp_norm: "",
        mlp_post_norm: "",
        lm_dense: "",
        lm_norm: "",
        lm_decoder: "",
        lm_bias: "",
    };

    /// A tensor's name in a file whose names begin with `prefix`, which is the table's or nothing.
    pub(super) fn of(&self, prefix: &str, weight: Weight) -> String {
        let suffix = if weight.bias { "bias" } else { "weight" };
        let stem = match weight.part {
            Part::TokenEmbedding => self.token_embedding,
            Part::PositionEmbedding => self.position_embedding,
            Part::TypeEmbedding => self.type_embedding,
            Part::EmbeddingNorm => self.embedding_norm,
            Part::DistanceBias => self.distance_bias,
            Part::DistanceEmbedding => self.distance_embedding,
            Part::DistanceNorm => self.distance_norm,
            Part::Convolution => self.convolution,
            Part::ConvolutionNorm => self.convolution_norm,
            Part::FinalNorm => self.final_norm,
            Part::Layer(layer, part) => return self.of_layer(prefix, layer, part, suffix),
            Part::LmDense => return format!("{}.{suffix}", self.lm_dense),
            Part::LmNorm => return format!("{}.{suffix}", self.lm_norm),
            Part::LmDecoder if weight.bias => return self.lm_bias.to_owned(),
            Part::LmDecoder => return format!("{}.{suffix}", self.lm_decoder),
        };
        format!("{prefix}{stem}.{suffix}")
    }

    /// The name of a tensor of a layer.
    pub(super) fn in_layer(&self, prefix: &str, layer: usize, name: &str) -> String {
        format!("{prefix}{}{layer}.{name}", self.layer)
    }

    fn of_layer(&self, prefix: &str, layer: usize, part: LayerPart, suffix: &str) -> String {
        let experts = |name: fn(Experts) -> &'static str| self.experts.map_or("", name);
        match part {
            // Those of one expert are cut from all of them.
            LayerPart::ExpertUp(expert) => {
                format!("{}[{expert}]", self.in_layer(prefix, layer, experts(|experts| experts.up)))
            }
            LayerPart::ExpertDown(expert) => {
                format!("{}[{expert}]", self.in_layer(prefix, layer, experts(|experts| experts.down)))
            }
            LayerPart::Experts => self.in_layer(prefix, layer, experts(|experts| experts.bias)),
            part => self.in_layer(prefix, layer, &format!("{}.{suffix}", self.layer_stem(part))),
        }
    }

    fn layer_stem(&self, part: LayerPart) -> &'static str {
        match part {
            LayerPart::Query => self.query,
            LayerPart::Key => self.key,
            LayerPart::Value => self.value,
            LayerPart::QueryNorm => self.query_norm,
            LayerPart::KeyNorm => self.key_norm,
            LayerPart::DistanceKey => self.distance_key,
            LayerPart::DistanceQuery => self.distance_query,
            LayerPart::AttentionOutput => self.attention_output,
            LayerPart::AttentionNorm => self.attention_norm,
            LayerPart::AttentionPostNorm => self.attention_post_norm,
            LayerPart::Gate => self.gate,
            LayerPart::Up => self.up,
            LayerPart::Down => self.down,
            LayerPart::Router => self.router,
            LayerPart::ExpertUp(_) | LayerPart::ExpertDown(_) | LayerPart::Experts => "",
            LayerPart::MlpNorm => self.mlp_norm,
            LayerPart::MlpPostNorm => self.mlp_post_norm,
        }
    }
}
