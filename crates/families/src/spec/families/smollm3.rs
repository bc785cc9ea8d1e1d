//! SmolLM3: Llama without rotation in each fourth layer.

use super::*;

pub(super) const SMOLLM3: Family = Family {
    title: "SmolLM3",
    hugging_face: &[ModelType {
        name: "smollm3",
        class: "SmolLM3ForCausalLM",
        rope_base: 2e6,
        tied: true,
        own: |config, spec| {
            let rotated = rotated_layers(config, spec.layers.len())?;
            for (layer, rotated) in spec.layers.iter_mut().zip(rotated) {
                layer.attention.rope = rotated.then_some(0);
            }
            Ok(())
        },
        refused: &["mlp_bias", "use_sliding_window"],
        ..ModelType::DENSE
    }],
    gguf: &[Architecture { name: "smollm3", turns: Turns::AllButEach(4), ..Architecture::PERMUTED }],
    goldens: &[both("dense/smollm3")],
};
