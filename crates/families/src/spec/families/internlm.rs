//! InternLM 2, 2.5 and 3: Llama with other names and biases.

use super::*;

pub(super) const INTERNLM2: Family = Family {
    title: "InternLM 2, 2.5",
    hugging_face: &[ModelType {
        name: "internlm2",
        class: "InternLM2ForCausalLM",
        names: &Names {
            token_embedding: "tok_embeddings",
            qkv: Some("attention.wqkv"),
            qkv_by_group: true,
            attention_output: "attention.wo",
            attention_norm: "attention_norm",
            gate: "feed_forward.w1",
            up: "feed_forward.w3",
            down: "feed_forward.w2",
            mlp_norm: "ffn_norm",
            head: "output",
            ..Names::HUGGING_FACE
        },
        biases: [Choice::By("bias", false); 2],
        ..ModelType::DENSE
    }],
    gguf: &[Architecture { name: "internlm2", ..Architecture::PERMUTED }],
    goldens: &[both("dense/internlm2")],
};

pub(super) const INTERNLM3: Family = Family {
    title: "InternLM 3",
    hugging_face: &[ModelType {
        name: "internlm3",
        class: "InternLM3ForCausalLM",
        written_as: "llama",
        biases: [Choice::By("qkv_bias", false), Choice::Always(false)],
        refused: &["bias"],
        ..ModelType::DENSE
    }],
    gguf: &[],
    goldens: &[alone("dense/internlm3")],
};
