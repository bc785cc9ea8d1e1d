//! Qwen 1, whose settings give twice the width of its MLP.

use super::*;

pub(super) const QWEN: Family = Family {
    title: "Qwen 1",
    hugging_face: &[ModelType {
        name: "qwen",
        class: "QWenLMHeadModel",
        // `w2` is the gate.
        names: &Names {
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
        },
        eps: ("layer_norm_epsilon", 1e-6),
        qkv_bias: Choice::Always(true),
        output_bias: Choice::Always(false),
        settle: qwen,
        ..ModelType::DENSE
    }],
    gguf: &[Architecture { name: "qwen", names: &Names::GGUF_FUSED, halved: true, ..Architecture::DENSE }],
    goldens: &["dense/qwen"],
    ..Family::NONE
};

fn qwen(config: &mut Config) -> Result<(), LoadError> {
    // Within the length of training, neither the base nor queries depend on the length.
    let trained = config.count("seq_length", CONTEXT_TOKENS_MAX)?;
    if let Some(trained) = trained {
        config.set("max_position_embeddings", trained.into());
    }
    if config.bool("no_bias")? == Some(false) {
        return Err(config.unsupported("no_bias", false, "this build cannot run models that have biases"));
    }
    let both = config.required("intermediate_size", WIDTH_MAX)?;
    config.set("intermediate_size", (both / 2).into());
    rename(
        config,
        &[
            ("kv_channels", "head_dim"),
            ("rotary_emb_base", "rope_theta"),
            ("rotary_pct", "partial_rotary_factor"),
        ],
    );
    Ok(())
}
