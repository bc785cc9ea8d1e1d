//! Phi-1, 1.5 and 2: parallel sublayers with one norm, and a head with a bias.

use super::*;

pub(super) const PHI: Family = Family {
    title: "Phi-1, 1.5, 2",
    hugging_face: &[ModelType {
        name: "phi",
        class: "PhiForCausalLM",
        names: &Names {
            final_norm: "final_layernorm",
            attention_output: "self_attn.dense",
            up: "mlp.fc1",
            down: "mlp.fc2",
            ..Names::HUGGING_FACE
        },
        order: NormOrder::Parallel,
        norm: NormKind::Layer { bias: true },
        eps: ("layer_norm_eps", 1e-5),
        biases: Choice::ALWAYS,
        mlp_bias: Choice::Always(true),
        gated: false,
        activation: ("hidden_act", "gelu_new"),
        turned: 0.5,
        head_bias: true,
        refused: &["qk_layernorm"],
        ..ModelType::DENSE
    }],
    gguf: &[Architecture {
        name: "phi2",
        names: &Names { qkv_or_apart: true, ..Names::GGUF_FUSED },
        ..Architecture::DENSE
    }],
    goldens: &[both("dense/phi"), both("dense/phi-fused")],
};
