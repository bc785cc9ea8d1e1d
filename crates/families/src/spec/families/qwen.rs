//! Qwen 1, whose settings give twice the width of its MLP.

use super::*;

pub(super) const QWEN: Family = Family {
    title: "Qwen 1",
    hugging_face: &[ModelType {
        name: "qwen",
        class: "QWenLMHeadModel",
        // `w2` is the gate.
        names: &Names {
            qkv: Some("attn.c_attn"),
            attention_output: "attn.c_proj",
            gate: "mlp.w2",
            up: "mlp.w1",
            down: "mlp.c_proj",
            mlp_norm: "ln_2",
            ..Names::TRANSFORMER
        },
        eps: ("layer_norm_epsilon", 1e-6),
        biases: [Choice::Always(true), Choice::Always(false)],
        renames: &[
            ("kv_channels", "head_dim"),
            ("rotary_emb_base", "rope_theta"),
            ("rotary_pct", "partial_rotary_factor"),
        ],
        settle: qwen,
        ..ModelType::DENSE
    }],
    gguf: &[Architecture { name: "qwen", names: &Names::GGUF_FUSED, halved: true, ..Architecture::DENSE }],
    goldens: &[both("dense/qwen")],
};

fn qwen(config: &mut Config) -> Result<(), LoadError> {
    // Within the length of training, neither the base nor queries depend on the length.
    let trained = config.count("seq_length", CONTEXT_TOKENS_MAX)?;
    if let Some(trained) = trained {
        config.set("max_position_embeddings", trained.into());
    }
    refuse_unless(config, "no_bias", true)?;
    let both = config.required("intermediate_size", WIDTH_MAX)?;
    config.set("intermediate_size", (both / 2).into());
    Ok(())
}
