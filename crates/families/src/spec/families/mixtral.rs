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
        written_as: "llama",
        names: &NAMES,
        eps: ("rms_norm_eps", 1e-5),
        biases: Choice::NEVER,
        rope_base: 1e6,
        windows: Windows::All,
        experts: MixtureLayers::All,
        ..ModelType::LLAMA
    }],
    gguf: &[],
    goldens: &[both("tiny/mixtral")],
};
