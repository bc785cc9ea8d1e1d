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
    gguf: &[Architecture { name: "ernie4_5", ..Architecture::DENSE }],
    goldens: &[both("dense/ernie4_5")],
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
        biases: Choice::NEVER,
        rope_kind: RopeKind::Interleaved,
        rope_base: 5e5,
        tied: true,
        ..ModelType::OWN
    }],
    gguf: &[Architecture {
        name: "ernie4_5-moe",
        normalized: Some(true),
        reads: &[EXPERT_KEYS, LATENT_KEYS, &["interleave_moe_layer_step"]],
        ..Architecture::MIXTURE
    }],
    goldens: &[both("mixtures/ernie4_5-moe")],
};

fn mixture(base: &Base<'_>, config: &Config) -> Result<TransformerSpec, LoadError> {
    refuse_unless(config, "use_bias", false)?;
    const SHARED: Setting<usize> = SHARED_EXPERTS.named("moe_num_shared_experts");
    let rows = [EXPERTS[0].named("moe_num_experts"), EXPERTS[1].named("moe_k"), EXPERTS[2]];
    let mut experts = softmax(base, &rows, true)?;
    experts.correction_bias = true;
    experts.shared = match config.get(SHARED.hugging_face) {
        Some(_) => shared_of(base.file, &SHARED, experts.ffn)?,
        None => Some(SharedExpert { ffn: 2 * experts.ffn, gate: false }),
    };
    let first = or(config, "moe_layer_start_index", LAYERS_MAX, 1)?;
    let each = config.count("moe_layer_interval", LAYERS_MAX)?.unwrap_or(1);
    let last = match config.get("moe_layer_end_index") {
        Some(end) if end.as_i64() != Some(-1) => config.whole("moe_layer_end_index", LAYERS_MAX)?,
        _ => None,
    };
    let is_dense = |layer: usize| {
        layer < first || last.is_some_and(|last| layer > last) || !(layer + 1).is_multiple_of(each)
    };
    let is_dense: Vec<bool> = (0..base.layers).map(is_dense).collect();
    let mlp = MlpSpec::gated(base.ffn(is_dense.contains(&true))?, base.activation);
    base.with_mlps(among(is_dense, mlp, experts))
}
