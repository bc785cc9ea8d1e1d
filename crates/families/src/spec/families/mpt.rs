//! MPT with ALiBi: scores decrease with distance, and norms have no biases.

use super::*;

pub(super) const MPT: Family = Family {
    title: "MPT (with ALiBi)",
    hugging_face: &[ModelType {
        name: "mpt",
        class: "MptForCausalLM",
        names: &Names {
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
        },
        norm: NormKind::Layer { bias: false },
        eps: ("layer_norm_epsilon", 1e-5),
        biases: Choice::NEVER,
        gated: false,
        // Its class has a fixed value.
        activation: ("", "gelu"),
        tied: true,
        renames: &[
            ("d_model", "hidden_size"),
            ("n_layers", "num_hidden_layers"),
            ("n_heads", "num_attention_heads"),
            ("max_seq_len", "max_position_embeddings"),
        ],
        settle: mpt,
        own: set_attention,
        refused: &["logit_scale"],
        ..ModelType::DENSE
    }],
    gguf: &[Architecture {
        name: "mpt",
        names: &Names::GGUF_FUSED,
        positions: Positions::AlibiByKey,
        ..Architecture::DENSE
    }],
    goldens: &[both("dense/mpt")],
};

fn mpt(config: &mut Config) -> Result<(), LoadError> {
    // The makers' class and the library's differ in upper and lower case.
    config.set("architectures", Value::Null);
    refuse_unless(config, "no_bias", true)?;
    if config.get("expansion_ratio").is_some_and(|ratio| ratio.as_f64() != Some(4.0)) {
        let value = config.get("expansion_ratio").map(ToString::to_string).unwrap_or_default();
        return Err(config.unsupported("expansion_ratio", value, "4 is known"));
    }
    set_ffn(config)
}

fn set_attention(config: &Config, spec: &mut TransformerSpec) -> Result<(), LoadError> {
    let Some(attention) = config.object("attn_config")? else {
        set_alibi(spec, Alibi::PLAIN);
        return Ok(());
    };
    for key in ["clip_qkv", "prefix_lm", "qk_ln", "qk_gn", "kv_n_heads", "sliding_window_size"] {
        let nothing = |value: &Value| {
            value.is_null() || value == false || value.as_i64().is_some_and(|number| number <= 0)
        };
        if let Some(value) = attention.get(key).filter(|value| !nothing(value)) {
            return Err(attention.unsupported(key, value, "this build cannot run models that have it"));
        }
    }
    refuse_unless_named(&attention, "attn_type", "multihead_attention")?;
    refuse_unless(&attention, "alibi", true)?;
    if let Some(scale) = attention.positive("softmax_scale")? {
        spec.layers.iter_mut().for_each(|layer| layer.attention.scale = scale);
    }
    // The makers' class reads it, the library's does not; no published model has another value.
    if let Some(exponent) = attention.count("alibi_bias_max", HEADS_MAX)?.filter(|&exponent| exponent != 8) {
        return Err(attention.unsupported("alibi_bias_max", exponent, "8 is known"));
    }
    set_alibi(spec, Alibi::PLAIN);
    Ok(())
}
