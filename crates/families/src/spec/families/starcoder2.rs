//! StarCoder2: layer norms, biases everywhere, and an MLP without a gate.

use super::*;

pub(super) const STARCODER2: Family = Family {
    title: "StarCoder2",
    hugging_face: &[ModelType {
        name: "starcoder2",
        class: "Starcoder2ForCausalLM",
        names: &Names { up: "mlp.c_fc", down: "mlp.c_proj", ..Names::HUGGING_FACE },
        norm: NormKind::Layer { bias: true },
        eps: ("norm_epsilon", 1e-5),
        biases: [Choice::By("use_bias", true); 2],
        mlp_bias: Choice::By("use_bias", true),
        gated: false,
        activation: ("hidden_act", "gelu_pytorch_tanh"),
        windows: Windows::All,
        tied: true,
        ..ModelType::DENSE
    }],
    gguf: &[Architecture { name: "starcoder2", full_each: 1, ..Architecture::DENSE }],
    goldens: &[both("dense/starcoder2")],
};
