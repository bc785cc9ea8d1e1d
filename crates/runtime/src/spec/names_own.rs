//! Names of tensors in dense families whose classes do not follow Llama's naming.

use super::names::{GateUp, Names};
use super::{NormOrder, TransformerSpec};

impl Names {
    /// Names for a model type's class that does not follow Llama's naming, or Llama's.
    pub(super) fn of_own(model_type: &str) -> &'static Names {
        match model_type {
            "gpt_neox" => &Names::GPT_NEOX,
            "falcon" => &Names::FALCON,
            "internlm2" => &Names::INTERNLM2,
            "chatglm" => &Names::CHATGLM,
            "qwen" => &Names::QWEN,
            "baichuan" => &Names::BAICHUAN,
            "exaone" => &Names::EXAONE,
            "gpt2" => &Names::GPT2,
            "gpt_bigcode" => &Names::GPT_BIGCODE,
            "gptj" => &Names::GPT_J,
            "phi" => &Names::PHI,
            "opt" => &Names::OPT,
            "apertus" => &Names::APERTUS,
            "afmoe" => &Names::AFMOE,
            "stablelm" => &Names::STABLELM,
            "mamba2" => &Names::MAMBA2,
            "falcon_h1" => &Names::BAMBA,
            "bloom" => &Names::BLOOM,
            "mpt" => &Names::MPT,
            _ => &Names::HUGGING_FACE,
        }
    }

    /// Names for a spec, if a family's files differ in names by its features.
    pub(crate) fn of_spec(&'static self, spec: &TransformerSpec) -> &'static Names {
        let apart = spec.layers.iter().any(|layer| layer.order == NormOrder::ParallelApart);
        match spec.architecture.as_str() {
            "falcon" if apart && self.layer == Names::GGUF.layer => &Names::GGUF_FALCON_APART,
            "falcon" if apart => &Names::FALCON_APART,
            _ => self,
        }
    }

    /// The transformers library's GPT2 class.
    pub(crate) const GPT2: Names = Names {
        prefix: "transformer.",
        token_embedding: "wte",
        position_embedding: "wpe",
        final_norm: "ln_f",
        layer: "h.",
        qkv: Some("attn.c_attn"),
        inputs_first: true,
        attention_output: "attn.c_proj",
        attention_norm: "ln_1",
        up: "mlp.c_fc",
        down: "mlp.c_proj",
        mlp_norm: "ln_2",
        ..Names::HUGGING_FACE
    };

    /// The transformers library's GPTBigCode class.
    pub(crate) const GPT_BIGCODE: Names = Names { inputs_first: false, qkv_by_group: true, ..Names::GPT2 };

    /// The transformers library's GPTJ class.
    pub(crate) const GPT_J: Names = Names {
        prefix: "transformer.",
        token_embedding: "wte",
        final_norm: "ln_f",
        layer: "h.",
        query: "attn.q_proj",
        key: "attn.k_proj",
        value: "attn.v_proj",
        attention_output: "attn.out_proj",
        attention_norm: "ln_1",
        up: "mlp.fc_in",
        down: "mlp.fc_out",
        ..Names::HUGGING_FACE
    };

    /// The transformers library's Phi class.
    pub(crate) const PHI: Names = Names {
        final_norm: "final_layernorm",
        attention_output: "self_attn.dense",
        up: "mlp.fc1",
        down: "mlp.fc2",
        ..Names::HUGGING_FACE
    };

    /// The transformers library's StableLm class.
    pub(crate) const STABLELM: Names = Names {
        query_norm: "self_attn.q_layernorm",
        key_norm: "self_attn.k_layernorm",
        ..Names::HUGGING_FACE
    };

    /// The transformers library's Apertus class, and GGUF files of it for the parameters in their metadata.
    pub(crate) const APERTUS: Names = Names {
        attention_norm: "attention_layernorm",
        mlp_norm: "feedforward_layernorm",
        curve: "mlp.act_fn.",
        ..Names::HUGGING_FACE
    };
    pub(crate) const GGUF_APERTUS: Names = Names { curve: "xielu.", ..Names::GGUF };

    /// The transformers library's OPT class.
    pub(crate) const OPT: Names = Names {
        prefix: "model.decoder.",
        position_embedding: "embed_positions",
        final_norm: "final_layer_norm",
        attention_output: "self_attn.out_proj",
        attention_norm: "self_attn_layer_norm",
        up: "fc1",
        down: "fc2",
        mlp_norm: "final_layer_norm",
        ..Names::HUGGING_FACE
    };

    /// The transformers library's Bloom class.
    pub(crate) const BLOOM: Names = Names { embedding_norm: "word_embeddings_layernorm", ..Names::FALCON };

    /// The transformers library's Mpt class.
    pub(crate) const MPT: Names = Names {
        prefix: "transformer.",
        token_embedding: "wte",
        final_norm: "norm_f",
        layer: "blocks.",
        qkv: Some("attn.Wqkv"),
        attention_output: "attn.out_proj",
        attention_norm: "norm_1",
        up: "ffn.up_proj",
        down: "ffn.down_proj",
        mlp_norm: "norm_2",
        ..Names::HUGGING_FACE
    };
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

    /// Same as `FALCON`, with a norm for each sublayer.
    pub(crate) const FALCON_APART: Names =
        Names { attention_norm: "ln_attn", mlp_norm: "ln_mlp", ..Names::FALCON };
    pub(crate) const GGUF_FALCON_APART: Names =
        Names { attention_norm: "attn_norm_2", mlp_norm: "attn_norm", ..Names::GGUF_FUSED };

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

    /// Qwen 1's own class, in which `w2` is the gate.
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
