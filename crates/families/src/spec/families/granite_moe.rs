//! Granite 3's mixtures of experts, with a shared expert or without.

use super::granite::multiply;
use super::*;

/// The transformers library's GraniteMoe and GraniteMoeShared classes.
pub(super) const NAMES: Names = Names {
    router: "block_sparse_moe.router.layer",
    experts: ExpertNames {
        gate: "block_sparse_moe.input_linear.weight[{}, gate]",
        up: "block_sparse_moe.input_linear.weight[{}, up]",
        down: "block_sparse_moe.output_linear.weight[{}]",
        pack: Some(ExpertPack::new(
            "block_sparse_moe.input_linear.weight",
            "block_sparse_moe.output_linear.weight",
        )),
        ..ExpertNames::NONE
    },
    shared_gate: "shared_mlp.input_linear[gate]",
    shared_up: "shared_mlp.input_linear[up]",
    shared_gate_up: Some("shared_mlp.input_linear"),
    shared_down: "shared_mlp.output_linear",
    ..Names::HUGGING_FACE
};

const TYPE: ModelType = ModelType {
    name: "granitemoe",
    class: "GraniteMoeForCausalLM",
    names: &NAMES,
    read: from_settings,
    ..ModelType::OWN
};

pub(super) const GRANITE_MOE: Family = Family {
    title: "Granite 3 MoE",
    hugging_face: &[
        TYPE,
        ModelType {
            name: "granitemoeshared",
            class: "GraniteMoeSharedForCausalLM",
            own: |config, spec| {
                let ffn = or(config, "shared_intermediate_size", WIDTH_MAX, 0)?;
                for layer in &mut spec.layers {
                    if let MlpSpec::Experts(experts) = &mut layer.mlp {
                        experts.shared = (ffn > 0).then_some(SharedExpert { ffn, gate: false });
                    }
                }
                Ok(())
            },
            ..TYPE
        },
    ],
    gguf: &[Architecture {
        name: "granitemoe",
        permuted: true,
        expert_ffn: "feed_forward_length",
        normalized: Some(true),
        reads: &[EXPERT_KEYS, LATENT_KEYS, FACTOR_KEYS],
        ..Architecture::MIXTURE
    }],
    goldens: &[both("mixtures/granite-moe-shared"), alone("mixtures/granite-moe")],
};

fn from_settings(base: &Base<'_>, config: &Config) -> Result<TransformerSpec, LoadError> {
    let experts = softmax(base, &LOCAL_EXPERTS, true)?;
    let mut spec = base.with_mlps(|_| MlpSpec::Experts(experts))?;
    multiply(config, &mut spec)?;
    (base.of.own)(config, &mut spec)?;
    Ok(spec)
}
