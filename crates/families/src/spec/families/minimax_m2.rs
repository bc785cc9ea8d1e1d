//! MiniMax-M2: sigmoid experts in all layers, queries and keys normed over all heads.

use super::mixtral;
use super::*;

pub(super) const MINIMAX_M2: Family = Family {
    title: "MiniMax-M2",
    hugging_face: &[ModelType {
        name: "minimax_m2",
        class: "MiniMaxM2ForCausalLM",
        names: &Names { router_bias: "block_sparse_moe.e_score_correction_bias", ..mixtral::NAMES },
        read: from_settings,
        biases: Choice::NEVER,
        qk_norm: QkNorm::Whole,
        rope_base: 5e6,
        ..ModelType::OWN
    }],
    gguf: &[Architecture {
        name: "minimax-m2",
        qk_norm_if_stored: Some(QkNorm::Whole),
        scoring: ExpertScoring::Sigmoid,
        normalized: Some(true),
        ..Architecture::MIXTURE
    }],
    goldens: &[both("mixtures/minimax-m2")],
};

fn from_settings(base: &Base<'_>, config: &Config) -> Result<TransformerSpec, LoadError> {
    const SHARED: &str = "shared_intermediate_size";
    refuse_unless(config, "use_qk_norm", true)?;
    refuse_unless(config, "use_routing_bias", true)?;
    refuse_unless_named(config, "qk_norm_type", "per_layer")?;
    refuse_unless_named(config, "scoring_func", "sigmoid")?;
    if let Some(size) = config.whole(SHARED, WIDTH_MAX)?.filter(|&size| size > 0) {
        return Err(config.unsupported(SHARED, size, "the family's own class has none"));
    }
    let heads = base.heads()?;
    let experts = ExpertsSpec {
        scoring: ExpertScoring::Sigmoid,
        correction_bias: true,
        ..softmax(base, &LOCAL_EXPERTS, true)?
    };
    let dim = match config.count("rotary_dim", heads.head_dim)? {
        Some(dim) => dim,
        None => base.turned(heads.head_dim)?,
    };
    let attention = base.attention(heads)?;
    let rope = base.rope(dim)?;
    base.spec(rope, |_| (attention.clone(), MlpSpec::Experts(experts)))
}
