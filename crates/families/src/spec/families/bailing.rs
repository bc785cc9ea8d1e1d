//! Ling and Ring: mixtures of experts after dense layers; the second generation norms queries and keys.

use super::*;

/// The makers' own classes.
const NAMES: Names = Names {
    token_embedding: "word_embeddings",
    qkv: Some("attention.query_key_value"),
    query_norm: "attention.query_layernorm",
    key_norm: "attention.key_layernorm",
    attention_output: "attention.dense",
    router_bias: "mlp.gate.expert_bias",
    ..Names::HUGGING_FACE
};

const TYPE: ModelType = ModelType {
    name: "bailing_moe",
    class: "BailingMoeForCausalLM",
    names: &NAMES,
    read: first,
    biases: [Choice::By("use_qkv_bias", false), Choice::By("use_bias", false)],
    ..ModelType::OWN
};

pub(super) const BAILING_MOE: Family = Family {
    title: "Ling lite, plus",
    hugging_face: &[TYPE],
    gguf: &[Architecture { name: "bailingmoe", permuted: true, ..Architecture::MIXTURE }],
    goldens: &[both("mixtures/bailing-moe")],
};

pub(super) const BAILING_MOE_V2: Family = Family {
    title: "Ling and Ring 2.0",
    hugging_face: &[ModelType {
        name: "bailing_moe_v2",
        class: "BailingMoeV2ForCausalLM",
        predicts_more: true,
        read: second,
        qk_norm: QkNorm::Heads,
        turned: 0.5,
        ..TYPE
    }],
    gguf: &[Architecture {
        name: "bailingmoe2",
        names: &Names::GGUF_FUSED,
        predicts_more: true,
        own_experts: |keys, experts| {
            // The width of one of them, as llama.cpp reads it.
            let one = keys.whole("expert_shared_feed_forward_length", WIDTH_MAX)?;
            let many = keys.whole("expert_shared_count", EXPERTS_MAX)?.unwrap_or(1);
            if let Some(ffn) = one.map(|one| one * many) {
                experts.shared = (ffn > 0).then_some(SharedExpert { ffn, gate: false });
            }
            Ok(())
        },
        ..Architecture::MIXTURE
    }],
    goldens: &[both("mixtures/bailing-moe-v2")],
};

fn first(base: &Base<'_>, config: &Config) -> Result<TransformerSpec, LoadError> {
    for key in ["use_qk_norm", "norm_head", "use_sliding_window"] {
        refuse_unless(config, key, false)?;
    }
    let normalized = config.bool("norm_topk_prob")?.unwrap_or(true);
    let mut experts = softmax(base, &EXPERTS, normalized)?;
    experts.shared = shared_of(base.file, &SHARED_EXPERTS, experts.ffn)?;
    base.with_mlps(after_dense(base, config, 0, experts)?)
}

fn second(base: &Base<'_>, config: &Config) -> Result<TransformerSpec, LoadError> {
    for (key, known) in [
        ("use_qk_norm", true),
        ("moe_router_enable_expert_bias", true),
        ("norm_topk_prob", true),
        ("norm_head", false),
        ("use_sliding_window", false),
    ] {
        refuse_unless(config, key, known)?;
    }
    refuse_unless_named(config, "score_function", "sigmoid")?;
    let heads = base.heads()?;
    let attention = base.attention(heads)?;
    let mut experts = ExpertsSpec {
        scoring: ExpertScoring::Sigmoid,
        correction_bias: true,
        groups: groups(base.file, 2)?,
        scale: config.positive("routed_scaling_factor")?.unwrap_or(1.0),
        ..softmax(base, &EXPERTS, true)?
    };
    let one = or(config, "moe_shared_expert_intermediate_size", WIDTH_MAX, experts.ffn)?;
    experts.shared = shared_of(base.file, &SHARED_EXPERTS, one)?;
    let mlp = after_dense(base, config, 0, experts)?;
    let dim = match config.count("rotary_dim", heads.head_dim)? {
        Some(dim) => dim,
        None => base.turned(heads.head_dim)?,
    };
    let rope = base.rope(dim)?;
    base.spec(rope, |layer| (attention.clone(), mlp(layer)))
}
