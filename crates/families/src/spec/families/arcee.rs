//! Arcee's AFM: Llama with MLPs through squared ReLU.

use super::*;

pub(super) const ARCEE: Family = Family {
    title: "Arcee (AFM)",
    hugging_face: &[ModelType {
        name: "arcee",
        class: "ArceeForCausalLM",
        eps: ("rms_norm_eps", 1e-5),
        mlp_bias: Choice::By("mlp_bias", false),
        gated: false,
        activation: ("hidden_act", "relu2"),
        refused: &[],
        ..ModelType::DENSE
    }],
    gguf: &[Architecture { name: "arcee", ..Architecture::PERMUTED }],
    goldens: &[both("dense/arcee")],
};
