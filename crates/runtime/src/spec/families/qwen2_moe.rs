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
        qkv_bias: Choice::By("qkv_bias", true),
        output_bias: Choice::Always(false),
        ..ModelType::OWN
    }],
    gguf: &[Architecture {
        name: "qwen2moe",
        experts: Experts::Mixture(Mixture {
            own: |_, experts| {
                experts.shared = experts.shared.map(|shared| SharedExpert { gate: true, ..shared });
                Ok(())
            },
            ..Mixture::PLAIN
        }),
        ..Architecture::MIXTURE
    }],
    goldens: &["mixtures/qwen2-moe"],
    ..Family::NONE
};

fn from_settings(of: &ModelType, config: &Config) -> Result<TransformerSpec, LoadError> {
    let base = Base::read(of, config)?;
    if config.bool("use_sliding_window")? == Some(true) {
        return Err(config.unsupported("use_sliding_window", true, "windows of this family are not known"));
    }
    let heads = base.heads()?;
    let shared =
        SharedExpert { ffn: config.required("shared_expert_intermediate_size", WIDTH_MAX)?, gate: true };
    let normalized = config.bool("norm_topk_prob")?.unwrap_or(false);
    let experts = ExpertsSpec { shared: Some(shared), ..softmax(&base, EXPERTS, normalized)? };
    let sparse = sparse_layers(config, base.layers)?;
    let ffn = base.ffn(sparse.contains(&false))?;
    let attention = base.attention(heads)?;
    let (rope, _) = base.rope(heads.head_dim)?;
    base.spec(rope, |layer| {
        let mlp = match sparse[layer] {
            true => MlpSpec::Experts(experts),
            false => MlpSpec::gated(ffn, base.activation),
        };
        (attention.clone(), mlp)
    })
}
