//! Mixtral: all layers are mixtures of experts.

use super::*;

/// The transformers library's Mixtral class.
pub(super) const NAMES: Names = Names {
    router: "block_sparse_moe.gate",
    experts: ExpertNames {
        gate: "block_sparse_moe.experts.{}.w1.weight",
        up: "block_sparse_moe.experts.{}.w3.weight",
        down: "block_sparse_moe.experts.{}.w2.weight",
        ..ExpertNames::NONE
    },
    ..Names::HUGGING_FACE
};

pub(super) const MIXTRAL: Family = Family {
    title: "Mixtral",
    hugging_face: &[ModelType {
        name: "mixtral",
        class: "MixtralForCausalLM",
        names: &NAMES,
        eps: ("rms_norm_eps", 1e-5),
        qkv_bias: Choice::Always(false),
        output_bias: Choice::Always(false),
        rope_base: 1e6,
        windows: Windows::All,
        experts: MixtureLayers::All,
        ..ModelType::LLAMA
    }],
    written_as: "llama",
    goldens: &["tiny/mixtral"],
    ..Family::NONE
};
