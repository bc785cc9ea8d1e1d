//! Qwen 2's mixtures of experts, with a shared expert that has a gate.

use super::*;

/// Classes with a shared expert that has a gate.
pub(super) const NAMES: Names = Names {
    shared_gate: "mlp.shared_expert.gate_proj",
    shared_up: "mlp.shared_expert.up_proj",
    shared_down: "mlp.shared_expert.down_proj",
    shared_router: "mlp.shared_expert_gate",
    ..Names::HUGGING_FACE
};

pub(super) const QWEN2_MOE: Family = Family {
    title: "Qwen 2 MoE",
    hugging_face: &[ModelType {
        name: "qwen2_moe",
        class: "Qwen2MoeForCausalLM",
        names: &NAMES,
        read: from_settings,
        biases: [Choice::By("qkv_bias", true), Choice::Always(false)],
        ..ModelType::OWN
    }],
    gguf: &[Architecture {
        name: "qwen2moe",
        own_experts: |_, experts| {
            experts.shared = experts.shared.map(|shared| SharedExpert { gate: true, ..shared });
            Ok(())
        },
        ..Architecture::MIXTURE
    }],
    goldens: &[both("mixtures/qwen2-moe")],
};

fn from_settings(base: &Base<'_>, config: &Config) -> Result<TransformerSpec, LoadError> {
    refuse_true(config, &["use_sliding_window"])?;
    let shared =
        SharedExpert { ffn: config.required("shared_expert_intermediate_size", WIDTH_MAX)?, gate: true };
    let normalized = config.bool("norm_topk_prob")?.unwrap_or(false);
    let experts = ExpertsSpec { shared: Some(shared), ..softmax(base, &EXPERTS, normalized)? };
    let is_dense: Vec<bool> = sparse_layers(config, base.layers)?.into_iter().map(|sparse| !sparse).collect();
    let mlp = MlpSpec::gated(base.ffn(is_dense.contains(&true))?, base.activation);
    base.with_mlps(among(is_dense, mlp, experts))
}
