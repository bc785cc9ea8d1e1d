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
}

/// Whose names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// GGUF's.
    Gguf,
    /// Those of the transformers library's Llama, Mistral, Qwen2 and Qwen3 classes.
    HuggingFace,
}

impl Weight {
    /// What files call it.
    pub fn name(self, naming: Naming) -> String {
        match (self, naming) {
            (Weight::TokenEmbedding, Naming::Gguf) => "token_embd.weight".into(),
            (Weight::OutputNorm, Naming::Gguf) => "output_norm.weight".into(),
            (Weight::Output, Naming::Gguf) => "output.weight".into(),
            (Weight::Layer(layer, weight), Naming::Gguf) => format!("blk.{layer}.{}", weight.names().0),
            (Weight::TokenEmbedding, Naming::HuggingFace) => "model.embed_tokens.weight".into(),
            (Weight::OutputNorm, Naming::HuggingFace) => "model.norm.weight".into(),
            (Weight::Output, Naming::HuggingFace) => "lm_head.weight".into(),
            (Weight::Layer(layer, weight), Naming::HuggingFace) => {
                format!("model.layers.{layer}.{}", weight.names().1)
            }
        }
    }
}

impl LayerWeight {
    /// Within a layer, in GGUF files and in those of the transformers library.
    fn names(self) -> (&'static str, &'static str) {
        match self {
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
        }
    }
}

impl DecoderSpec {
    /// Every weight and its shape, outermost dimension first, in the order a step meets them.
    pub fn weights(&self) -> Vec<(Weight, Vec<usize>)> {
        let mut weights = vec![(Weight::TokenEmbedding, vec![self.vocab, self.hidden])];
        for layer in 0..self.layers {
            let of_layer = self.layer_weights().into_iter();
            weights.extend(of_layer.map(|(weight, shape)| (Weight::Layer(layer, weight), shape)));
        }
        weights.push((Weight::OutputNorm, vec![self.hidden]));
        if !self.tied_embeddings {
            weights.push((Weight::Output, vec![self.vocab, self.hidden]));
        }
        weights
    }

    fn layer_weights(&self) -> Vec<(LayerWeight, Vec<usize>)> {
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
        weights.push((LayerWeight::Gate, vec![self.ffn, self.hidden]));
        weights.push((LayerWeight::Up, vec![self.ffn, self.hidden]));
        weights.push((LayerWeight::Down, vec![self.hidden, self.ffn]));
        weights
    }
}
