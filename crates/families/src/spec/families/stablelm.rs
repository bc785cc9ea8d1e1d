//! StableLM: layer norms, and settings for parallel sublayers and normed heads.

use super::*;

pub(super) const STABLELM: Family = Family {
    title: "StableLM",
    hugging_face: &[ModelType {
        name: "stablelm",
        class: "StableLmForCausalLM",
        names: &Names {
            query_norm: "self_attn.q_layernorm",
            key_norm: "self_attn.k_layernorm",
            ..Names::HUGGING_FACE
        },
        norm: NormKind::Layer { bias: true },
        eps: ("layer_norm_eps", 1e-5),
        biases: [Choice::By("use_qkv_bias", false), Choice::Always(false)],
        turned: 0.25,
        parallel: [None, Some(NormOrder::Parallel)],
        own: |config, spec| {
            if config.bool("qk_layernorm")?.unwrap_or(false) {
                norm_heads_apart(spec);
            }
            Ok(())
        },
        ..ModelType::DENSE
    }],
    gguf: &[Architecture {
        name: "stablelm",
        qk_norm_if_stored: Some(QkNorm::HeadsApart),
        ..Architecture::DENSE
    }],
    goldens: &[both("dense/stablelm"), both("dense/stablelm-parallel"), both("dense/stablelm-heads")],
};
