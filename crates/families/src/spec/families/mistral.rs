//! Mistral, and Ministral 3, whose queries grow beyond the original context.

use super::*;

pub(super) const MISTRAL: Family = Family {
    title: "Mistral, Nemo",
    hugging_face: &[ModelType {
        name: "mistral",
        class: "MistralForCausalLM",
        written_as: "llama",
        biases: Choice::NEVER,
        windows: Windows::All,
        ..ModelType::LLAMA
    }],
    gguf: &[],
    goldens: &[both("tiny/mistral")],
};

pub(super) const MINISTRAL3: Family = Family {
    title: "Ministral 3 (text)",
    hugging_face: &[ModelType {
        name: "ministral3",
        class: "Ministral3ForCausalLM",
        eps: ("rms_norm_eps", 1e-5),
        biases: Choice::NEVER,
        head_dim: Some(128),
        windows: Windows::All,
        own: |config, spec| {
            let settings =
                config.object("rope_parameters")?.ok_or_else(|| config.missing("rope_parameters"))?;
            let scale = query_scale(&settings)?;
            spec.layers.iter_mut().for_each(|layer| layer.attention.query_scale = scale);
            Ok(())
        },
        refused: &["attention_bias", "mlp_bias"],
        ..ModelType::DENSE
    }],
    gguf: &[Architecture { name: "mistral3", queries_grow: true, ..Architecture::PERMUTED }],
    goldens: &[both("multimodal/ministral3")],
};
