//! Qwen 3's mixtures of experts, and the text of Qwen3-VL's.

use super::*;

const KEYS: &[&str] = &["expert_count", "expert_feed_forward_length", "expert_used_count"];

const ARCHITECTURE: Architecture =
    Architecture { name: "qwen3moe", experts: Experts::Always, reads: &[KEYS], ..Architecture::LLAMA };

/// The transformers library's Qwen3VLMoe class.
pub(crate) const VISION_NAMES: Names = Names {
    experts: ExpertNames {
        pack: Some(ExpertPack {
            inputs_first: true,
            ..ExpertPack::new("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
        }),
        ..Names::HUGGING_FACE.experts
    },
    ..Names::HUGGING_FACE
};

pub(super) const QWEN3_MOE: Family = Family {
    title: "Qwen 3 MoE",
    hugging_face: &[ModelType {
        name: "qwen3_moe",
        class: "Qwen3MoeForCausalLM",
        qk_norm: QkNorm::Heads,
        windows: Windows::AllIfUsed,
        experts: MixtureLayers::Some,
        ..ModelType::LLAMA
    }],
    gguf: &[ARCHITECTURE, Architecture { name: "qwen3vlmoe", ..ARCHITECTURE }],
    goldens: &[both("tiny/qwen3-moe"), alone("tiny/qwen3-moe-mixed")],
};
