//! ERNIE 4.5: dense models, and mixtures of experts.

use super::*;

pub(super) const ERNIE4_5: Family = Family {
    title: "ERNIE 4.5 (dense)",
    hugging_face: &[ModelType {
        name: "ernie4_5",
        class: "Ernie4_5ForCausalLM",
        eps: ("rms_norm_eps", 1e-5),
        head_dim: Some(128),
        rope_kind: RopeKind::Interleaved,
        rope_base: 5e5,
        tied: true,
        refused: &["use_bias"],
        ..ModelType::DENSE
    }],
    // It is trained with neighbours that rotate together.
    gguf: &[Architecture { name: "ernie4_5", rope: RopeKind::Interleaved, ..Architecture::DENSE }],
    goldens: &["dense/ernie4_5"],
    ..Family::NONE
};

pub(super) const ERNIE4_5_MOE: Family = Family {
    title: "ERNIE 4.5 MoE",
    hugging_face: &[ModelType {
        name: "ernie4_5_moe",
        class: "Ernie4_5_MoeForCausalLM",
        predicts_more: true,
        names: &Names { router_bias: "mlp.moe_statics.e_score_correction_bias", ..Names::HUGGING_FACE },
        read: mixture,
        eps: ("rms_norm_eps", 1e-5),
        qkv_bias: Choice::Always(false),
        output_bias: Choice::Always(false),
        rope_kind: RopeKind::Interleaved,
        rope_base: 5e5,
        tied: true,
        ..ModelType::OWN
    }],
    gguf: &[Architecture {
        name: "ernie4_5-moe",
        rope: RopeKind::Interleaved,
        experts: Experts::Mixture(Mixture { normalized: Some(true), ..Mixture::PLAIN }),
        reads: &[MIXTURE_KEYS, &["interleave_moe_layer_step"]],
        ..Architecture::MIXTURE
    }],
    goldens: &["mixtures/ernie4_5-moe"],
    ..Family::NONE
};

fn mixture(of: &ModelType, config: &Config) -> Result<TransformerSpec, LoadError> {
    let base = Base::read(of, config)?;
    refuse_unless(config, "use_bias", false)?;
    let heads = base.heads()?;
    let mut experts = softmax(&base, ["moe_num_experts", "moe_k", "moe_intermediate_size"], true)?;
    experts.correction_bias = true;
    experts.shared = match config.get("moe_num_shared_experts") {
        Some(_) => shared_of(config, "moe_num_shared_experts", experts.ffn)?,
        None => Some(SharedExpert { ffn: 2 * experts.ffn, gate: false }),
    };
    let first = or(config, "moe_layer_start_index", LAYERS_MAX, 1)?;
    let each = config.count("moe_layer_interval", LAYERS_MAX)?.unwrap_or(1);
    let last = match config.get("moe_layer_end_index") {
        Some(end) if end.as_i64() != Some(-1) => config.whole("moe_layer_end_index", LAYERS_MAX)?,
        _ => None,
    };
    let sparse = |layer: usize| {
        layer >= first && last.is_none_or(|last| layer <= last) && (layer + 1).is_multiple_of(each)
    };
    let ffn = base.ffn(!(0..base.layers).all(sparse))?;
    let attention = base.attention(heads)?;
    let (rope, _) = base.rope(heads.head_dim)?;
    base.spec(rope, |layer| {
        let mlp = match sparse(layer) {
            true => MlpSpec::Experts(experts),
            false => MlpSpec::gated(ffn, base.activation),
        };
        (attention.clone(), mlp)
    })
}
