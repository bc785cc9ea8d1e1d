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
        qkv_bias: Choice::By("bias", false),
        output_bias: Choice::By("bias", false),
        ..ModelType::DENSE
    }],
    gguf: &[Architecture {
        name: "internlm2",
        permuted: true,
        rope: RopeKind::Interleaved,
        ..Architecture::DENSE
    }],
    goldens: &["dense/internlm2"],
    ..Family::NONE
};

pub(super) const INTERNLM3: Family = Family {
    title: "InternLM 3",
    hugging_face: &[ModelType {
        name: "internlm3",
        class: "InternLM3ForCausalLM",
        qkv_bias: Choice::By("qkv_bias", false),
        output_bias: Choice::Always(false),
        refused: &["bias"],
        ..ModelType::DENSE
    }],
    written_as: "llama",
    goldens_without_gguf: &["dense/internlm3"],
    ..Family::NONE
};
