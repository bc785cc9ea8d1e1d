//! Apertus: normed queries and keys, and MLPs through xIELU, which has parameters for each layer.

use super::*;

pub(super) const APERTUS: Family = Family {
    title: "Apertus",
    hugging_face: &[ModelType {
        name: "apertus",
        class: "ApertusForCausalLM",
        names: &Names {
            attention_norm: "attention_layernorm",
            mlp_norm: "feedforward_layernorm",
            curve: "mlp.act_fn.",
            ..Names::HUGGING_FACE
        },
        eps: ("rms_norm_eps", 1e-5),
        gated: false,
        activation: ("hidden_act", XIELU),
        qk_norm: QkNorm::Heads,
        rope_base: 12e6,
        own: |config, spec| {
            spec.curved = true;
            // No family of this name has another activation.
            refuse_unless_named(config, "hidden_act", XIELU)
        },
        refused: &["mlp_bias", "post_norm"],
        ..ModelType::DENSE
    }],
    gguf: &[Architecture {
        name: "apertus",
        // Names of the parameters in metadata.
        names: &Names { curve: "xielu.", ..Names::GGUF },
        own: |_, spec| {
            spec.curved = true;
            Ok(())
        },
        ..Architecture::DENSE
    }],
    goldens: &[both("dense/apertus")],
};
