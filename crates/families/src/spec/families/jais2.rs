//! Jais 2: Llama with layer norms, biases, and MLPs through squared ReLU.

use super::*;

pub(super) const JAIS2: Family = Family {
    title: "Jais 2",
    hugging_face: &[ModelType {
        name: "jais2",
        class: "Jais2ForCausalLM",
        norm: NormKind::Layer { bias: true },
        eps: ("layer_norm_eps", 1e-5),
        biases: [Choice::By("attention_bias", true); 2],
        mlp_bias: Choice::By("mlp_bias", true),
        gated: false,
        activation: ("hidden_act", "relu2"),
        refused: &[],
        ..ModelType::DENSE
    }],
    gguf: &[],
    goldens: &[alone("dense/jais2")],
};
