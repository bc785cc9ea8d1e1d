//! Llama 2 to 3.3 and models of the same form, and the text of Llama 3.2 Vision in Ollama's files.

use super::*;

/// Key with the cross-attention layers of Llama 3.2 Vision.
const CROSSING: &str = "attention.cross_attention_layers";

/// Keys of Mixtral in files of this architecture.
const EXPERT_KEYS: &[&str] = &["expert_count", "expert_used_count"];

pub(super) const LLAMA: Family = Family {
    title: "Llama 2 to 3.3, Yi, Falcon 3",
    hugging_face: &[ModelType { name: "llama", class: "LlamaForCausalLM", ..ModelType::LLAMA }],
    // The converter stores rows of queries and keys permuted, so that rope rotates neighbours (Mistral and Yi too:
    // their architecture is llama).
    gguf: &[
        Architecture {
            name: "llama",
            permuted: true,
            full_each: 1,
            experts: Experts::IfCounted,
            reads: &[EXPERT_KEYS],
            ..Architecture::LLAMA
        },
        Architecture {
            name: "mllama",
            permuted: true,
            qkv_bias: Some(false),
            reads: &[&[CROSSING]],
            own: |keys, spec| {
                let crossing = keys.metadata.integers(&keys.key(CROSSING))?.unwrap_or_default();
                let crossing = crossing.into_iter().filter_map(|layer| usize::try_from(layer).ok());
                spec.cross(&crossing.collect::<Vec<_>>());
                Ok(())
            },
            ..Architecture::LLAMA
        },
    ],
    goldens: &[both("tiny/llama3"), both("tiny/llama-linear")],
};
