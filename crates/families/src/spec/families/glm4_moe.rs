//! GLM-4.5 to 4.7: mixtures of experts after dense layers; GLM-4.7-Flash has DeepSeek V3's form.

use super::deepseek::V3;
use super::*;

pub(super) const GLM4_MOE: Family = Family {
    title: "GLM-4.5, 4.6",
    hugging_face: &[ModelType {
        name: "glm4_moe",
        class: "Glm4MoeForCausalLM",
        predicts_more: true,
        read: from_settings,
        eps: ("rms_norm_eps", 1e-5),
        biases: [Choice::By("attention_bias", false), Choice::Always(false)],
        turned: 0.5,
        ..ModelType::OWN
    }],
    gguf: &[Architecture {
        name: "glm4moe",
        predicts_more: true,
        names: &Names::GGUF_POST_ATTENTION,
        scoring: ExpertScoring::Sigmoid,
        ..Architecture::MIXTURE
    }],
    goldens: &[both("mixtures/glm4-moe")],
};

pub(super) const GLM4_MOE_LITE: Family = Family {
    title: "GLM-4.7-Flash",
    hugging_face: &[ModelType { name: "glm4_moe_lite", class: "Glm4MoeLiteForCausalLM", ..V3 }],
    gguf: &[],
    goldens: &[both("mixtures/glm4-moe-lite")],
};

fn from_settings(base: &Base<'_>, config: &Config) -> Result<TransformerSpec, LoadError> {
    let heads = base.heads()?;
    let normed = config.bool("use_qk_norm")?.unwrap_or(false);
    let qk_norm = if normed { QkNorm::Heads } else { QkNorm::None };
    let attention = AttentionSpec { qk_norm, ..base.attention(heads)? };
    let rope = base.rope(base.turned(heads.head_dim)?)?;
    let mlp = after_dense(base, config, 1, routed_by_sigmoid(base, config)?)?;
    base.spec(rope, |layer| (attention.clone(), mlp(layer)))
}
