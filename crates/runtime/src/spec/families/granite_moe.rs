//! Granite 3's mixtures of experts, with a shared expert or without.

use super::granite::{GRANITE_KEYS, multiply};
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
        rope: RopeKind::Interleaved,
        experts: Experts::Mixture(Mixture {
            ffn: "feed_forward_length",
            normalized: Some(true),
            ..Mixture::PLAIN
        }),
        reads: &[MIXTURE_KEYS, GRANITE_KEYS],
        ..Architecture::MIXTURE
    }],
    goldens: &["mixtures/granite-moe-shared"],
    goldens_without_gguf: &["mixtures/granite-moe"],
    ..Family::NONE
};

fn from_settings(of: &ModelType, config: &Config) -> Result<TransformerSpec, LoadError> {
    let base = Base::read(of, config)?;
    let heads = base.heads()?;
    let experts = softmax(&base, LOCAL_EXPERTS, true)?;
    let attention = base.attention(heads)?;
    let (rope, _) = base.rope(heads.head_dim)?;
    let mut spec = base.spec(rope, |_| (attention.clone(), MlpSpec::Experts(experts)))?;
    multiply(config, &mut spec)?;
    (of.own)(config, &mut spec)?;
    Ok(spec)
}
