//! Hunyuan: dense models, and mixtures of experts. Queries and keys are normed after rotation.

use super::*;

/// The transformers library's HunYuanDenseV1 and HunYuanMoEV1 classes.
const NAMES: Names = Names {
    router: "mlp.gate.wg",
    query_norm: "self_attn.query_layernorm",
    key_norm: "self_attn.key_layernorm",
    shared_gate: "mlp.shared_mlp.gate_proj",
    shared_up: "mlp.shared_mlp.up_proj",
    shared_down: "mlp.shared_mlp.down_proj",
    ..Names::HUGGING_FACE
};

pub(super) const HUNYUAN_DENSE: Family = Family {
    title: "Hunyuan (dense)",
    hugging_face: &[ModelType {
        name: "hunyuan_v1_dense",
        class: "HunYuanDenseV1ForCausalLM",
        names: &NAMES,
        eps: ("rms_norm_eps", 1e-5),
        qk_norm: QkNorm::Heads,
        settle: settle_rope,
        norm_after_rope: true,
        ..ModelType::DENSE
    }],
    gguf: &[Architecture { name: "hunyuan-dense", ..Architecture::DENSE }],
    goldens: &[both("dense/hunyuan-dense")],
};

pub(super) const HUNYUAN_MOE: Family = Family {
    title: "Hunyuan A13B",
    hugging_face: &[ModelType {
        name: "hunyuan_v1_moe",
        class: "HunYuanMoEV1ForCausalLM",
        names: &NAMES,
        read: mixture,
        eps: ("rms_norm_eps", 1e-5),
        qk_norm: QkNorm::Heads,
        norm_after_rope: true,
        settle: settle_rope,
        ..ModelType::OWN
    }],
    gguf: &[Architecture { name: "hunyuan-moe", normalized: Some(true), ..Architecture::MIXTURE }],
    goldens: &[both("mixtures/hunyuan-moe")],
};

/// Files say "dynamic" for a base that does not depend on the length.
fn settle_rope(config: &mut Config) -> Result<(), LoadError> {
    let settings = settings_of(config, "full_attention")?;
    let (Some("dynamic"), Some(alpha)) = (rope_type(&settings)?, settings.positive("alpha")?) else {
        return Ok(());
    };
    let heads = config.required("num_attention_heads", HEADS_MAX)?;
    let of_hidden = config.required("hidden_size", WIDTH_MAX)? / heads;
    let dim = config.count("head_dim", HEAD_DIM_MAX)?.unwrap_or(of_hidden) as f64;
    let base = settings.positive("rope_theta")?.or(config.positive("rope_theta")?).unwrap_or(1e4);
    config.set("rope_theta", (f64::from(base) * f64::from(alpha).powf(dim / (dim - 2.0))).into());
    config.set("rope_scaling", Value::Null);
    config.set("rope_parameters", Value::Null);
    Ok(())
}

fn mixture(base: &Base<'_>, config: &Config) -> Result<TransformerSpec, LoadError> {
    refuse_unless(config, "use_qk_norm", true)?;
    refuse_unless(config, "use_cla", false)?;
    // Some settings are lists with a number for each layer.
    let of_layers = |key: &str, max: usize| -> Result<Option<usize>, LoadError> {
        let Some(Value::Array(list)) = config.get(key) else { return config.whole(key, max) };
        match list.first().and_then(Value::as_u64).and_then(|first| usize::try_from(first).ok()) {
            Some(first) if first <= max && list.iter().all(|value| value.as_u64() == Some(first as u64)) => {
                Ok(Some(first))
            }
            _ => Err(config.unsupported(key, "another list", "all layers must have the same")),
        }
    };
    let ffn = config.required("intermediate_size", WIDTH_MAX)?;
    for (key, known) in [("moe_intermediate_size", ffn), ("num_shared_expert", 1)] {
        if let Some(value) = of_layers(key, WIDTH_MAX)?.filter(|&value| value != known) {
            return Err(config.unsupported(key, value, format!("the family's class knows {known} alone")));
        }
    }
    let used = of_layers("moe_topk", EXPERTS_MAX)?.or(of_layers("num_experts_per_tok", EXPERTS_MAX)?);
    let used = used.filter(|&used| used > 0).ok_or_else(|| config.missing("moe_topk"))?;
    let experts = ExpertsSpec {
        activation: base.activation,
        shared: Some(SharedExpert { ffn, gate: false }),
        ..ExpertsSpec::softmax(config.required("num_experts", EXPERTS_MAX)?, used, ffn, true)
    };
    base.with_mlps(|_| MlpSpec::Experts(experts))
}
