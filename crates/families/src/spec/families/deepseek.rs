//! DeepSeek: the first mixture of experts, with Llama's attention; V2 and V3 with latent attention, and Kimi-K2.

use super::*;

pub(super) const DEEPSEEK: Family = Family {
    title: "DeepSeek MoE 16B",
    hugging_face: &[ModelType {
        name: "deepseek",
        class: "DeepseekForCausalLM",
        read: first,
        ..ModelType::OWN
    }],
    gguf: &[Architecture {
        name: "deepseek",
        permuted: true,
        normalized: Some(false),
        ..Architecture::MIXTURE
    }],
    goldens: &[both("mixtures/deepseek")],
};

pub(super) const DEEPSEEK_V2: Family = Family {
    title: "DeepSeek V2, V2-Lite",
    hugging_face: &[ModelType {
        name: "deepseek_v2",
        class: "DeepseekV2ForCausalLM",
        read: second,
        rope_kind: RopeKind::Interleaved,
        ..ModelType::OWN
    }],
    gguf: &[Architecture {
        name: "deepseek2",
        predicts_more: true,
        attention: latent_of_metadata,
        ..Architecture::MIXTURE
    }],
    goldens: &[both("mixtures/deepseek-v2-lite"), alone("mixtures/deepseek-v2")],
};

pub(super) const V3: ModelType = ModelType {
    name: "deepseek_v3",
    class: "DeepseekV3ForCausalLM",
    written_as: "deepseek2",
    predicts_more: true,
    read: third,
    rope_kind: RopeKind::Interleaved,
    ..ModelType::OWN
};

pub(super) const DEEPSEEK_V3: Family = Family {
    title: "DeepSeek V3, V3.1, R1; Kimi-K2",
    hugging_face: &[V3, ModelType { name: "kimi_k2", ..V3 }],
    gguf: &[],
    goldens: &[both("mixtures/deepseek-v3")],
};

fn first(base: &Base<'_>, config: &Config) -> Result<TransformerSpec, LoadError> {
    refuse_unless_named(config, "scoring_func", "softmax")?;
    if let Some(scale) = config.positive("routed_scaling_factor")?.filter(|&scale| scale != 1.0) {
        return Err(config.unsupported("routed_scaling_factor", scale, "this family has no such factor"));
    }
    let normalized = config.bool("norm_topk_prob")?.unwrap_or(false);
    base.with_mlps(after_dense(base, config, 0, ExpertsSpec { normalized, ..routed(base, config)? })?)
}

fn second(base: &Base<'_>, config: &Config) -> Result<TransformerSpec, LoadError> {
    let mut experts = routed(base, config)?;
    refuse_unless_named(config, "scoring_func", "softmax")?;
    // The family's own class does not read it.
    refuse_true(config, &["norm_topk_prob"])?;
    match config.string("topk_method")?.unwrap_or("greedy") {
        "greedy" => {}
        "group_limited_greedy" => {
            let groups = config.required("n_group", EXPERT_GROUPS_MAX)?;
            let used = config.required("topk_group", EXPERT_GROUPS_MAX)?;
            experts.groups = Some(ExpertGroups { count: groups, used, best: 1 });
        }
        other => {
            let known = "greedy and group_limited_greedy are known";
            return Err(config.unsupported("topk_method", other, known));
        }
    }
    latent(base, config, experts, 0)
}

fn third(base: &Base<'_>, config: &Config) -> Result<TransformerSpec, LoadError> {
    latent(base, config, routed_by_sigmoid(base, config)?, 3)
}

/// A network of latent attention, with so many dense layers before the mixtures.
fn latent(
    base: &Base<'_>,
    config: &Config,
    experts: ExpertsSpec,
    dense: usize,
) -> Result<TransformerSpec, LoadError> {
    refuse_true(config, &["attention_bias"])?;
    let shape = LatentShape {
        heads: base.file.required(&HEADS)?,
        query_rank: base.file.count(&QUERY_RANK)?,
        rank: base.file.required(&LATENT_RANK)?,
        nope_dim: config.required("qk_nope_head_dim", HEAD_DIM_MAX)?,
        rope_dim: config.required("qk_rope_head_dim", HEAD_DIM_MAX)?,
        value_dim: config.required("v_head_dim", HEAD_DIM_MAX)?,
        split_up: false,
    };
    let (mut rope, settings) = (base.rope(shape.rope_dim)?, settings_of(config, "")?);
    // Interleaved pairs, unless the setting says halves; DeepSeek's own files have no setting.
    if config.bool("rope_interleave")? == Some(false) {
        rope.kind = RopeKind::Neox;
    }
    let mut scale = 1.0 / (shape.query_dim() as f32).sqrt();
    if let (Some(all_dim), Some(factor)) = (settings.f32("mscale_all_dim")?, settings.positive("factor")?) {
        let magnitude = if all_dim == 0.0 { 1.0 } else { yarn_magnitude(factor, all_dim) };
        scale *= magnitude * magnitude;
    }
    let attention = latent_attention(shape, scale);
    let mlp = after_dense(base, config, dense, experts)?;
    base.spec(rope, |layer| (attention.clone(), mlp(layer)))
}

fn latent_attention(shape: LatentShape, scale: f32) -> AttentionSpec {
    AttentionSpec {
        projection: Projection::Latent(shape),
        scale,
        ..AttentionSpec::causal(HeadShape { heads: shape.heads, kv_heads: 1, head_dim: shape.query_dim() })
    }
}

fn latent_of_metadata(base: &Base<'_>, keys: &Keys<'_>) -> Result<(AttentionSpec, RopeSpec), LoadError> {
    let rope_dim = keys.required("rope.dimension_count", HEAD_DIM_MAX)?;
    // Files from before latent caches give the lengths of whole heads under the plain names.
    let length = |of_mla: &str, plain: &str| match keys.count(of_mla, HEAD_DIM_MAX)? {
        Some(length) => Ok(length),
        None => keys.required(plain, HEAD_DIM_MAX),
    };
    let query_dim = length("attention.key_length_mla", "attention.key_length")?;
    if query_dim <= rope_dim {
        let reason = format!("{rope_dim} of it are turned, and none is left");
        return Err(keys.unsupported("attention.key_length_mla", query_dim, &reason));
    }
    let shape = LatentShape {
        heads: base.file.required(&HEADS)?,
        query_rank: base.file.count(&QUERY_RANK)?,
        rank: base.file.required(&LATENT_RANK)?,
        nope_dim: query_dim - rope_dim,
        rope_dim,
        value_dim: length("attention.value_length_mla", "attention.value_length")?,
        split_up: keys.has(Part::Layer(0, LayerPart::LatentKeyUp).weight()),
    };
    let mut rope = base.rope(rope_dim)?;
    let mut scale = 1.0 / (query_dim as f32).sqrt();
    if let (Some(multiplier), RopeScaling::Yarn { factor, .. }) =
        (keys.positive("rope.scaling.yarn_log_multiplier")?, &rope.scaling)
    {
        // The magnitude of queries and keys is in the scores' factor, not in cosine and sine.
        let magnitude = 1.0 + multiplier * factor.max(1.0).ln();
        scale *= magnitude * magnitude;
        rope.magnitude = 1.0;
    }
    Ok((latent_attention(shape, scale), rope))
}
