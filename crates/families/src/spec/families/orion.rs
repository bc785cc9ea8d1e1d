//! Orion: Llama with layer norms.

use super::*;

pub(super) const ORION: Family = Family {
    title: "Orion",
    hugging_face: &[ModelType {
        name: "orion",
        class: "OrionForCausalLM",
        norm: NormKind::Layer { bias: true },
        eps: ("rms_norm_eps", 1e-5),
        ..ModelType::DENSE
    }],
    gguf: &[Architecture { name: "orion", ..Architecture::DENSE }],
    goldens: &[both("dense/orion")],
};
