//! Qwen 2 and 2.5, and the text of Qwen2-VL and Qwen2.5-VL.

use super::*;

pub(super) const QWEN2: Family = Family {
    title: "Qwen 2, 2.5",
    hugging_face: &[ModelType {
        name: "qwen2",
        class: "Qwen2ForCausalLM",
        biases: [Choice::Always(true), Choice::Always(false)],
        windows: Windows::SomeIfUsed,
        ..ModelType::LLAMA
    }],
    gguf: &[
        Architecture { name: "qwen2", qkv_bias: Some(true), ..Architecture::LLAMA },
        Architecture { name: "qwen2vl", ..Architecture::DENSE },
    ],
    goldens: &[both("tiny/qwen2-yarn")],
};
