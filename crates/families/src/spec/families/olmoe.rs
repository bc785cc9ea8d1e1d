//! OLMoE, and FlexOlmo, which norms the outputs of sublayers. Queries and keys are normed over all heads.

use super::olmo2;
use super::*;

const TYPE: ModelType = ModelType {
    name: "olmoe",
    class: "OlmoeForCausalLM",
    read: from_settings,
    eps: ("rms_norm_eps", 1e-5),
    qk_norm: QkNorm::Whole,
    ..ModelType::OWN
};

pub(super) const OLMOE: Family = Family {
    title: "OLMoE",
    hugging_face: &[TYPE],
    gguf: &[Architecture {
        name: "olmoe",
        qk_norm_if_stored: Some(QkNorm::Whole),
        expert_ffn: "feed_forward_length",
        normalized: Some(false),
        ..Architecture::MIXTURE
    }],
    goldens: &[both("mixtures/olmoe")],
};

pub(super) const FLEX_OLMO: Family = Family {
    title: "FlexOlmo",
    hugging_face: &[ModelType {
        name: "flex_olmo",
        class: "FlexOlmoForCausalLM",
        names: &olmo2::NAMES,
        order: NormOrder::Branch,
        eps: ("rms_norm_eps", 1e-6),
        rope_base: 5e5,
        ..TYPE
    }],
    gguf: &[],
    goldens: &[alone("mixtures/flex-olmo")],
};

fn from_settings(base: &Base<'_>, config: &Config) -> Result<TransformerSpec, LoadError> {
    if let Some(clip) = config.get("clip_qkv") {
        return Err(config.unsupported("clip_qkv", clip, "this build clips no queries, keys and values"));
    }
    let normalized = config.bool("norm_topk_prob")?.unwrap_or(false);
    let experts = softmax(base, &[EXPERTS[0], EXPERTS[1], FFN], normalized)?;
    base.with_mlps(|_| MlpSpec::Experts(experts))
}
