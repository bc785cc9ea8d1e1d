//! GLM-4 in its three forms: heads half of which are rotated, and gate and up in one matrix.

use super::*;

/// The transformers library's Glm class.
const NAMES: Names =
    Names { gate_up: Some(GateUp { name: "mlp.gate_up_proj", gate_first: true }), ..Names::HUGGING_FACE };

const TYPE: ModelType = ModelType {
    name: "glm",
    class: "GlmForCausalLM",
    names: &NAMES,
    eps: ("rms_norm_eps", 1.5625e-7),
    biases: [Choice::By("attention_bias", true), Choice::Always(false)],
    head_dim: Some(128),
    rope_kind: RopeKind::Interleaved,
    turned: 0.5,
    ..ModelType::DENSE
};

pub(super) const GLM: Family =
    Family { title: "GLM-4 9B", hugging_face: &[TYPE], gguf: &[], goldens: &[alone("dense/glm")] };

pub(super) const GLM4: Family = Family {
    title: "GLM-4 0414",
    hugging_face: &[ModelType {
        name: "glm4",
        class: "Glm4ForCausalLM",
        names: &Names {
            attention_post_norm: "post_self_attn_layernorm",
            mlp_post_norm: "post_mlp_layernorm",
            ..NAMES
        },
        order: NormOrder::Sandwich,
        ..TYPE
    }],
    gguf: &[Architecture { name: "glm4", names: &Names::GGUF_GATE_UP, ..Architecture::DENSE }],
    goldens: &[both("dense/glm4")],
};

pub(super) const CHATGLM: Family = Family {
    title: "ChatGLM 2, 3, GLM-4-9b-chat",
    hugging_face: &[ModelType {
        name: "chatglm",
        class: "ChatGLMModel",
        names: &Names {
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
        },
        renames: &[
            ("num_layers", "num_hidden_layers"),
            ("ffn_hidden_size", "intermediate_size"),
            ("seq_length", "max_position_embeddings"),
            ("layernorm_epsilon", "rms_norm_eps"),
            ("kv_channels", "head_dim"),
            ("add_qkv_bias", "attention_bias"),
        ],
        settle: chatglm,
        refused: &["add_bias_linear", "apply_residual_connection_post_layernorm", "pre_seq_len"],
        ..TYPE
    }],
    gguf: &[Architecture {
        name: "chatglm",
        names: &Names { qkv: Some("attn_qkv"), ..Names::GGUF_GATE_UP },
        ..Architecture::DENSE
    }],
    goldens: &[both("dense/chatglm")],
};

fn chatglm(config: &mut Config) -> Result<(), LoadError> {
    // Files name either the network's class or the conversation class around it.
    config.set("architectures", Value::Null);
    if let Some(padded) = config.get("padded_vocab_size").cloned() {
        config.set("vocab_size", padded);
    }
    if config.bool("multi_query_attention")?.unwrap_or(false) {
        rename(config, &[("multi_query_group_num", "num_key_value_heads")]);
    }
    refuse_unless(config, "rmsnorm", true)?;
    refuse_unless(config, "post_layer_norm", true)?;
    let ratio = config.positive("rope_ratio")?.unwrap_or(1.0);
    config.set("rope_theta", (1e4 * f64::from(ratio)).into());
    if config.bool("tie_word_embeddings")?.is_some() {
        // Its class always has a separate head matrix, whatever the setting says.
        config.set("tie_word_embeddings", false.into());
    }
    Ok(())
}
