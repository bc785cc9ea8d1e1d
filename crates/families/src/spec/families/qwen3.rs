//! Qwen 3, and the text of Qwen3-VL.

use super::*;

pub(super) const QWEN3: Family = Family {
    title: "Qwen 3",
    hugging_face: &[ModelType {
        name: "qwen3",
        class: "Qwen3ForCausalLM",
        qk_norm: QkNorm::Heads,
        head_dim: Some(128),
        windows: Windows::SomeIfUsed,
        ..ModelType::LLAMA
    }],
    gguf: &[
        Architecture { name: "qwen3", ..Architecture::LLAMA },
        Architecture { name: "qwen3vl", ..Architecture::DENSE },
    ],
    goldens: &[both("tiny/qwen3"), alone("tiny/qwen3-windows")],
};
