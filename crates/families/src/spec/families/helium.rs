//! Helium: Llama in which neighbours rotate together.

use super::*;

pub(super) const HELIUM: Family = Family {
    title: "Helium",
    hugging_face: &[ModelType {
        name: "helium",
        class: "HeliumForCausalLM",
        eps: ("rms_norm_eps", 1e-8),
        biases: [Choice::By("attention_bias", false), Choice::Always(false)],
        head_dim: Some(128),
        rope_kind: RopeKind::Interleaved,
        ..ModelType::DENSE
    }],
    gguf: &[],
    goldens: &[alone("dense/helium")],
};
