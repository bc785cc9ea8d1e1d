//! Which weights a decoder is made of, their shapes, and what each format calls them.

use super::DecoderSpec;

/// One weight of a decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Weight {
    /// (vocab, hidden)
    TokenEmbedding,
    /// (hidden)
    OutputNorm,
    /// (vocab, hidden); not there when tied to the embedding.
    Output,
    /// One of a layer's.
    Layer(usize, LayerWeight),
}

/// One weight of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LayerWeight {
    /// (hidden)
    AttentionNorm,
    /// (heads * head_dim, hidden)
    Query,
    /// (heads * head_dim)
    QueryBias,
    /// (head_dim)
    QueryNorm,
    /// (kv_heads * head_dim, hidden)
    Key,
    /// (kv_heads * head_dim)
    KeyBias,
    /// (head_dim)
    KeyNorm,
    /// (kv_heads * head_dim, hidden)
    Value,
    /// (kv_heads * head_dim)
    ValueBias,
    /// (hidden, heads * head_dim)
    AttentionOutput,
    /// (hidden)
    AttentionOutputBias,
    /// (hidden)
    MlpNorm,
    /// (ffn, hidden)
    Gate,
    /// (ffn, hidden)
    Up,
    /// (hidden, ffn)
    Down,
    /// (experts, hidden)
    Router,
    /// (moe.ffn, hidden); of one expert.
    ExpertGate(usize),
    /// (moe.ffn, hidden); of one expert.
    ExpertUp(usize),
    /// (hidden, moe.ffn); of one expert.
    ExpertDown(usize),
}

/// Whose names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// GGUF's.
    Gguf,
    /// Those of the transformers library's Llama, Mistral, Qwen2, Qwen3 and Qwen3Moe classes.
    HuggingFace,
    /// Those of the transformers library's Mixtral class.
    Mixtral,
}

impl Naming {
    /// Of the transformers library's class for a model type.
    pub fn of_model_type(model_type: &str) -> Naming {
        if model_type == "mixtral" { Naming::Mixtral } else { Naming::HuggingFace }
    }
}

impl Weight {
    /// What files call it.
    pub fn name(self, naming: Naming) -> String {
        match (self, naming) {
            (Weight::TokenEmbedding, Naming::Gguf) => "token_embd.weight".into(),
            (Weight::OutputNorm, Naming::Gguf) => "output_norm.weight".into(),
            (Weight::Output, Naming::Gguf) => "output.weight".into(),
            (Weight::Layer(layer, weight), Naming::Gguf) => format!("blk.{layer}.{}", weight.name(naming)),
            (Weight::TokenEmbedding, _) => "model.embed_tokens.weight".into(),
            (Weight::OutputNorm, _) => "model.norm.weight".into(),
            (Weight::Output, _) => "lm_head.weight".into(),
            (Weight::Layer(layer, weight), _) => format!("model.layers.{layer}.{}", weight.name(naming)),
        }
    }

    /// The tensor that holds this weight of each of a layer's experts, one after the other. GGUF files have such
    /// tensors; very old ones have one for each expert, under [`Weight::name`].
    pub fn stack_name(self, naming: Naming) -> Option<String> {
        let (Weight::Layer(layer, weight), Naming::Gguf) = (self, naming) else { return None };
        let part = match weight {
            LayerWeight::ExpertGate(_) => "gate",
            LayerWeight::ExpertUp(_) => "up",
            LayerWeight::ExpertDown(_) => "down",
            _ => return None,
        };
        Some(format!("blk.{layer}.ffn_{part}_exps.weight"))
    }
}

impl LayerWeight {
    /// Within a layer.
    fn name(self, naming: Naming) -> String {
        let (gguf, hugging_face) = match self {
            LayerWeight::AttentionNorm => ("attn_norm.weight", "input_layernorm.weight"),
            LayerWeight::Query => ("attn_q.weight", "self_attn.q_proj.weight"),
            LayerWeight::QueryBias => ("attn_q.bias", "self_attn.q_proj.bias"),
            LayerWeight::QueryNorm => ("attn_q_norm.weight", "self_attn.q_norm.weight"),
            LayerWeight::Key => ("attn_k.weight", "self_attn.k_proj.weight"),
            LayerWeight::KeyBias => ("attn_k.bias", "self_attn.k_proj.bias"),
            LayerWeight::KeyNorm => ("attn_k_norm.weight", "self_attn.k_norm.weight"),
            LayerWeight::Value => ("attn_v.weight", "self_attn.v_proj.weight"),
            LayerWeight::ValueBias => ("attn_v.bias", "self_attn.v_proj.bias"),
            LayerWeight::AttentionOutput => ("attn_output.weight", "self_attn.o_proj.weight"),
            LayerWeight::AttentionOutputBias => ("attn_output.bias", "self_attn.o_proj.bias"),
            LayerWeight::MlpNorm => ("ffn_norm.weight", "post_attention_layernorm.weight"),
            LayerWeight::Gate => ("ffn_gate.weight", "mlp.gate_proj.weight"),
            LayerWeight::Up => ("ffn_up.weight", "mlp.up_proj.weight"),
            LayerWeight::Down => ("ffn_down.weight", "mlp.down_proj.weight"),
            LayerWeight::Router if naming == Naming::Mixtral => {
                return "block_sparse_moe.gate.weight".to_owned();
            }
            LayerWeight::Router => ("ffn_gate_inp.weight", "mlp.gate.weight"),
            LayerWeight::ExpertGate(expert) => return expert_name(naming, expert, "gate", "w1"),
            LayerWeight::ExpertUp(expert) => return expert_name(naming, expert, "up", "w3"),
            LayerWeight::ExpertDown(expert) => return expert_name(naming, expert, "down", "w2"),
        };
        (if naming == Naming::Gguf { gguf } else { hugging_face }).to_owned()
    }
}

/// One of an expert's matrices, which most call by its part and Mixtral by a number.
fn expert_name(naming: Naming, expert: usize, part: &str, number: &str) -> String {
    match naming {
        Naming::Gguf => format!("ffn_{part}.{expert}.weight"),
        Naming::HuggingFace => format!("mlp.experts.{expert}.{part}_proj.weight"),
        Naming::Mixtral => format!("block_sparse_moe.experts.{expert}.{number}.weight"),
    }
}

impl DecoderSpec {
    /// Every weight and its shape, outermost dimension first, in the order a step meets them.
    pub fn weights(&self) -> impl Iterator<Item = (Weight, Vec<usize>)> {
        let layers = (0..self.layers).flat_map(|layer| {
            let of_layer = self.layer_weights(layer).into_iter();
            of_layer.map(move |(weight, shape)| (Weight::Layer(layer, weight), shape))
        });
        let head = (!self.tied_embeddings).then(|| (Weight::Output, vec![self.vocab, self.hidden]));
        std::iter::once((Weight::TokenEmbedding, vec![self.vocab, self.hidden]))
            .chain(layers)
            .chain([(Weight::OutputNorm, vec![self.hidden])])
            .chain(head)
    }

    fn layer_weights(&self, layer: usize) -> Vec<(LayerWeight, Vec<usize>)> {
        let (q, head) = (self.heads.q_width(), self.heads.head_dim);
        let kv = self.heads.kv_heads * head;
        let mut weights = vec![
            (LayerWeight::AttentionNorm, vec![self.hidden]),
            (LayerWeight::Query, vec![q, self.hidden]),
            (LayerWeight::Key, vec![kv, self.hidden]),
            (LayerWeight::Value, vec![kv, self.hidden]),
        ];
        if self.qkv_bias {
            weights.push((LayerWeight::QueryBias, vec![q]));
            weights.push((LayerWeight::KeyBias, vec![kv]));
            weights.push((LayerWeight::ValueBias, vec![kv]));
        }
        if self.qk_norm {
            weights.push((LayerWeight::QueryNorm, vec![head]));
            weights.push((LayerWeight::KeyNorm, vec![head]));
        }
        weights.push((LayerWeight::AttentionOutput, vec![self.hidden, q]));
        if self.o_bias {
            weights.push((LayerWeight::AttentionOutputBias, vec![self.hidden]));
        }
        weights.push((LayerWeight::MlpNorm, vec![self.hidden]));
        let Some(moe) = self.moe_of(layer) else {
            weights.push((LayerWeight::Gate, vec![self.ffn, self.hidden]));
            weights.push((LayerWeight::Up, vec![self.ffn, self.hidden]));
            weights.push((LayerWeight::Down, vec![self.hidden, self.ffn]));
            return weights;
        };
        weights.push((LayerWeight::Router, vec![moe.experts, self.hidden]));
        for expert in 0..moe.experts {
            weights.push((LayerWeight::ExpertGate(expert), vec![moe.ffn, self.hidden]));
            weights.push((LayerWeight::ExpertUp(expert), vec![moe.ffn, self.hidden]));
            weights.push((LayerWeight::ExpertDown(expert), vec![self.hidden, moe.ffn]));
        }
        weights
    }
}
