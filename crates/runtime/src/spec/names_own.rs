//! What tensors are called by dense families whose classes do not follow Llama's naming.

use super::names::{GateUp, Names};

impl Names {
    /// The transformers library's GPTNeoX class, as its models are published.
    pub(crate) const GPT_NEOX: Names = Names {
        prefix: "gpt_neox.",
        token_embedding: "embed_in",
        final_norm: "final_layer_norm",
        qkv: Some("attention.query_key_value"),
        qkv_by_group: true,
        attention_output: "attention.dense",
        up: "mlp.dense_h_to_4h",
        down: "mlp.dense_4h_to_h",
        head: "embed_out",
        ..Names::HUGGING_FACE
    };

    /// The transformers library's Falcon class.
    pub(crate) const FALCON: Names = Names {
        prefix: "transformer.",
        token_embedding: "word_embeddings",
        final_norm: "ln_f",
        layer: "h.",
        qkv: Some("self_attention.query_key_value"),
        qkv_by_group: true,
        attention_output: "self_attention.dense",
        up: "mlp.dense_h_to_4h",
        down: "mlp.dense_4h_to_h",
        ..Names::HUGGING_FACE
    };

    /// InternLM 2's own class.
    pub(crate) const INTERNLM2: Names = Names {
        token_embedding: "tok_embeddings",
        qkv: Some("attention.wqkv"),
        qkv_by_group: true,
        attention_output: "attention.wo",
        attention_norm: "attention_norm",
        gate: "feed_forward.w1",
        up: "feed_forward.w3",
        down: "feed_forward.w2",
        mlp_norm: "ffn_norm",
        head: "output",
        ..Names::HUGGING_FACE
    };

    /// ChatGLM's own class.
    pub(crate) const CHATGLM: Names = Names {
        prefix: "transformer.",
        token_embedding: "embedding.word_embeddings",
        final_norm: "encoder.final_layernorm",
        layer: "encoder.layers.",
        qkv: Some("self_attention.query_key_value"),
        attention_output: "self_attention.dense",
        gate_up: Some(GateUp { name: "mlp.dense_h_to_4h", gate_first: true }),
        down: "mlp.dense_4h_to_h",
        head: "transformer.output_layer",
        ..Names::HUGGING_FACE
    };

    /// Qwen 1's own class. What it calls `w2` is the gate.
    pub(crate) const QWEN: Names = Names {
        prefix: "transformer.",
        token_embedding: "wte",
        final_norm: "ln_f",
        layer: "h.",
        qkv: Some("attn.c_attn"),
        attention_output: "attn.c_proj",
        attention_norm: "ln_1",
        gate: "mlp.w2",
        up: "mlp.w1",
        down: "mlp.c_proj",
        mlp_norm: "ln_2",
        ..Names::HUGGING_FACE
    };

    /// Baichuan's own class.
    pub(crate) const BAICHUAN: Names = Names { qkv: Some("self_attn.W_pack"), ..Names::HUGGING_FACE };

    /// EXAONE 3's own class.
    pub(crate) const EXAONE: Names = Names {
        prefix: "transformer.",
        token_embedding: "wte",
        final_norm: "ln_f",
        layer: "h.",
        query: "attn.attention.q_proj",
        key: "attn.attention.k_proj",
        value: "attn.attention.v_proj",
        attention_output: "attn.attention.out_proj",
        attention_norm: "ln_1",
        gate: "mlp.c_fc_0",
        up: "mlp.c_fc_1",
        down: "mlp.c_proj",
        mlp_norm: "ln_2",
        ..Names::HUGGING_FACE
    };
}
