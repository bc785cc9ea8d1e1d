//! Meta's Code World Model: Llama with windows in three of four layers.

use super::*;

pub(super) const CWM: Family = Family {
    title: "CWM",
    hugging_face: &[ModelType {
        name: "cwm",
        class: "CwmForCausalLM",
        eps: ("rms_norm_eps", 1e-5),
        biases: [Choice::Always(false); 2],
        head_dim: Some(128),
        rope_base: 1e6,
        windows: Windows::AllButEach(4),
        // The class's own pattern begins with a full layer, and published files name it.
        settle: |config| match config.get("layer_types") {
            Some(_) => Ok(()),
            None => Err(config.missing("layer_types")),
        },
        ..ModelType::DENSE
    }],
    gguf: &[],
    goldens: &[alone("dense/cwm")],
};
