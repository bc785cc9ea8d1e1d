//! Nemotron and Minitron: layer norms stored less one, and MLPs through squared ReLU.

use super::*;

pub(super) const NEMOTRON: Family = Family {
    title: "Nemotron, Minitron",
    hugging_face: &[ModelType {
        name: "nemotron",
        class: "NemotronForCausalLM",
        norm: NormKind::LayerFromOne,
        eps: ("norm_eps", 1e-5),
        mlp_bias: Choice::By("mlp_bias", false),
        gated: false,
        activation: ("hidden_act", "relu2"),
        turned: 0.5,
        refused: &[],
        ..ModelType::DENSE
    }],
    gguf: &[Architecture { name: "nemotron", ..Architecture::DENSE }],
    goldens: &[both("dense/nemotron")],
};
