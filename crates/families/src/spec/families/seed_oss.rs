//! Seed-OSS: Llama with biases of queries, keys and values.

use super::*;

pub(super) const SEED_OSS: Family = Family {
    title: "Seed-OSS",
    hugging_face: &[ModelType {
        name: "seed_oss",
        class: "SeedOssForCausalLM",
        biases: [Choice::By("attention_bias", true), Choice::By("attention_out_bias", false)],
        head_dim: Some(128),
        ..ModelType::DENSE
    }],
    gguf: &[Architecture { name: "seed_oss", names: &Names::GGUF_POST_ATTENTION, ..Architecture::DENSE }],
    goldens: &[both("dense/seed-oss")],
};
