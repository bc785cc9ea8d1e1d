//! Mistral, and Ministral 3, whose queries grow beyond the original context.

use super::*;

pub(super) const MISTRAL: Family = Family {
    title: "Mistral, Nemo",
    hugging_face: &[ModelType {
        name: "mistral",
        class: "MistralForCausalLM",
        qkv_bias: Choice::Always(false),
        output_bias: Choice::Always(false),
        windows: Windows::All,
        ..ModelType::LLAMA
    }],
    written_as: "llama",
    goldens: &["tiny/mistral"],
    ..Family::NONE
};

pub(super) const MINISTRAL3: Family = Family {
    title: "Ministral 3 (text)",
    hugging_face: &[ModelType {
        name: "ministral3",
        class: "Ministral3ForCausalLM",
        eps: ("rms_norm_eps", 1e-5),
        qkv_bias: Choice::Always(false),
        output_bias: Choice::Always(false),
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
    gguf: &[Architecture {
        name: "mistral3",
        permuted: true,
        rope: RopeKind::Interleaved,
        queries_grow: true,
        ..Architecture::DENSE
    }],
    goldens: &["multimodal/ministral3"],
    ..Family::NONE
};
