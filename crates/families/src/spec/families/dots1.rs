//! dots.1: DeepSeek V3's mixtures of experts with Qwen 3's attention.

use super::*;

pub(super) const DOTS1: Family = Family {
    title: "dots.1",
    hugging_face: &[ModelType {
        name: "dots1",
        class: "Dots1ForCausalLM",
        read: from_settings,
        qk_norm: QkNorm::Heads,
        settle: |config| {
            // Files give the name of the choice where others give that of the scores.
            if config.string("scoring_func")? == Some("noaux_tc") {
                config.set("scoring_func", "sigmoid".into());
            }
            Ok(())
        },
        ..ModelType::OWN
    }],
    gguf: &[Architecture { name: "dots1", ..Architecture::MIXTURE }],
    goldens: &[both("mixtures/dots1")],
};

fn from_settings(base: &Base<'_>, config: &Config) -> Result<TransformerSpec, LoadError> {
    let types = config.get("layer_types").and_then(Value::as_array);
    if types.is_some_and(|types| types.iter().any(|of| of != "full_attention")) {
        let reason = "windows of this family are not known";
        return Err(config.unsupported("layer_types", "sliding_attention", reason));
    }
    let normalized = config.bool("norm_topk_prob")?.unwrap_or(false);
    base.with_mlps(after_dense(
        base,
        config,
        0,
        ExpertsSpec { normalized, ..routed_by_sigmoid(base, config)? },
    )?)
}
