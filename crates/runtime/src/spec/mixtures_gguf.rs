//! Decoders of GGUF files whose MLPs are mixtures of experts of their families' own kinds, as llama.cpp's converter writes
//! them: deepseek2, gpt-oss, qwen2moe and glm4moe.

use hanzo_engine_kernels::{Activation, ExpertGroups, ExpertScoring, HeadShape, RopeKind};

use super::gguf::Keys;
use super::{
    AttentionSpec, ExpertsSpec, HeadSpec, LatentShape, LayerPart, LayerSpec, Mask, MlpSpec, Names, NormKind,
    NormOrder, NormSpec, Part, Projection, QkNorm, RopeSpec, SharedExpert, TransformerSpec, Weight,
};
use crate::error::LoadError;
use crate::gguf::Gguf;
use crate::limits::{
    CONTEXT_TOKENS_MAX, EXPERT_GROUPS_MAX, EXPERTS_MAX, HEAD_DIM_MAX, HEADS_MAX, LAYERS_MAX, VOCAB_MAX,
    WIDTH_MAX,
};

/// Architectures that are read here.
pub(super) const ARCHITECTURES: &[&str] = &["deepseek2", "gpt-oss", "qwen2moe", "glm4moe"];

/// Keys of theirs beside those that any decoder has.
pub(super) const READ: &[&str] = &[
    "attention.key_length_mla",
    "attention.kv_lora_rank",
    "attention.q_lora_rank",
    "attention.value_length_mla",
    "expert_count",
    "expert_feed_forward_length",
    "expert_gating_func",
    "expert_group_count",
    "expert_group_used_count",
    "expert_shared_count",
    "expert_shared_feed_forward_length",
    "expert_used_count",
    "expert_weights_norm",
    "expert_weights_scale",
    "leading_dense_block_count",
    "nextn_predict_layers",
    "rope.scaling.yarn_log_multiplier",
];

/// Reads a file of one of these architectures.
pub(super) fn from_gguf(gguf: &Gguf, keys: &Keys<'_>) -> Result<TransformerSpec, LoadError> {
    let names = Names::of_gguf(keys.architecture);
    let has = |weight: Weight| gguf.tensors.iter().any(|tensor| tensor.name == names.of("", weight));
    let embedding = names.of("", Part::TokenEmbedding.weight());
    let vocab = gguf.tensors.iter().find(|tensor| tensor.name == embedding).map(|tensor| tensor.shape[0]);
    let Some(vocab) = vocab.filter(|&vocab| vocab <= VOCAB_MAX) else {
        return Err(LoadError::Missing {
            file: keys.metadata.file().to_owned(),
            what: format!("tensor {embedding}"),
            hint: format!("; it has a row for each of at most {VOCAB_MAX} tokens"),
        });
    };
    let hidden = keys.required("embedding_length", WIDTH_MAX)?;
    let all = keys.required("block_count", LAYERS_MAX)?;
    let more = keys.whole("nextn_predict_layers", LAYERS_MAX)?.unwrap_or(0);
    if more >= all {
        return Err(keys.unsupported("nextn_predict_layers", more, "there would be no layer before them"));
    }
    let context = keys.required("context_length", CONTEXT_TOKENS_MAX)?;
    let dense = keys.whole("leading_dense_block_count", LAYERS_MAX)?.unwrap_or(0);
    let ffn = if dense > 0 { keys.required("feed_forward_length", WIDTH_MAX)? } else { 0 };
    let (attention, rope) = match keys.architecture {
        "deepseek2" => latent(keys, context, has(Part::Layer(0, LayerPart::LatentKeyUp).weight()))?,
        _ => heads(keys, (hidden, context), &has)?,
    };
    let experts = experts(keys, all - more, &has)?;
    let window = match keys.architecture {
        "gpt-oss" => Some(keys.required("attention.sliding_window", CONTEXT_TOKENS_MAX)? as u32),
        _ => None,
    };
    let layer = |index: usize| LayerSpec {
        order: NormOrder::Pre,
        attention: AttentionSpec {
            mask: Mask::Causal { window: window.filter(|_| index.is_multiple_of(2)) },
            ..attention.clone()
        },
        mlp: match index < dense {
            true => MlpSpec::gated(ffn, Activation::Silu),
            false => MlpSpec::Experts(experts),
        },
        residual_scale: 1.0,
    };
    let layers = (0..all - more).map(layer).collect();
    let norm = NormSpec { kind: NormKind::Rms { from_one: false }, eps: keys.epsilon()? };
    TransformerSpec {
        ropes: vec![rope],
        head: HeadSpec::plain(!has(Part::Head.weight())),
        ..TransformerSpec::bare(keys.architecture, [vocab, hidden], layers, norm, context)
    }
    .checked(keys.metadata.file())
}

fn experts(keys: &Keys<'_>, layers: usize, has: &impl Fn(Weight) -> bool) -> Result<ExpertsSpec, LoadError> {
    let ffn = keys.required("expert_feed_forward_length", WIDTH_MAX)?;
    let shared = match keys.whole("expert_shared_feed_forward_length", WIDTH_MAX)? {
        Some(shared) => shared,
        None => keys.whole("expert_shared_count", EXPERTS_MAX)?.unwrap_or(0) * ffn,
    };
    let (oai, qwen) = (keys.architecture == "gpt-oss", keys.architecture == "qwen2moe");
    let scoring = match keys.whole("expert_gating_func", 4)? {
        None | Some(0) if keys.architecture == "glm4moe" => ExpertScoring::Sigmoid,
        // Of the scores that are chosen, which is the same where weights add up to 1.
        None | Some(0 | 1) => ExpertScoring::Softmax,
        Some(3) if oai => ExpertScoring::Softmax,
        Some(2) => ExpertScoring::Sigmoid,
        Some(other) => return Err(keys.unsupported("expert_gating_func", other, "1 and 2 are known")),
    };
    let groups = keys.whole("expert_group_count", EXPERT_GROUPS_MAX)?.filter(|&groups| groups > 1);
    let used = keys.whole("expert_group_used_count", EXPERT_GROUPS_MAX)?.unwrap_or(1);
    let best = if scoring == ExpertScoring::Sigmoid { 2 } else { 1 };
    let shared = (shared > 0).then_some(SharedExpert { ffn: shared, gate: qwen });
    let normalized = keys.metadata.bool(&keys.key("expert_weights_norm"))?.unwrap_or(oai);
    Ok(ExpertsSpec {
        activation: if oai { Activation::ClampedSwish } else { Activation::Silu },
        scoring,
        scale: keys.positive("expert_weights_scale")?.unwrap_or(1.0),
        correction_bias: !oai && has(Part::Layer(layers - 1, LayerPart::Router).bias()),
        router_bias: oai,
        expert_bias: oai,
        groups: groups.map(|count| ExpertGroups { count, used, best }),
        shared,
        ..ExpertsSpec::softmax(
            keys.required("expert_count", EXPERTS_MAX)?,
            keys.required("expert_used_count", EXPERTS_MAX)?,
            ffn,
            normalized,
        )
    })
}

fn heads(
    keys: &Keys<'_>,
    (hidden, context): (usize, usize),
    has: &impl Fn(Weight) -> bool,
) -> Result<(AttentionSpec, RopeSpec), LoadError> {
    let shape = keys.heads(hidden)?;
    let has = |weight: fn(Part) -> Weight, part| has(weight(Part::Layer(0, part)));
    let mut rope = keys.rope(RopeKind::Neox, shape.head_dim, context, None)?;
    if keys.architecture == "gpt-oss"
        && let super::RopeScaling::Yarn { truncate, .. } = &mut rope.scaling
    {
        // As the model was trained, which the format has no key for.
        *truncate = false;
    }
    let attention = AttentionSpec {
        qkv_bias: has(Part::bias, LayerPart::Query),
        output_bias: has(Part::bias, LayerPart::AttentionOutput),
        qk_norm: if has(Part::weight, LayerPart::QueryNorm) { QkNorm::Heads } else { QkNorm::None },
        sinks: keys.architecture == "gpt-oss",
        ..AttentionSpec::causal(shape)
    };
    Ok((attention, rope))
}

fn latent(keys: &Keys<'_>, context: usize, split_up: bool) -> Result<(AttentionSpec, RopeSpec), LoadError> {
    let rope_dim = keys.required("rope.dimension_count", HEAD_DIM_MAX)?;
    // Files from before the cache was of latents say the lengths of whole heads under the plain names.
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
        heads: keys.required("attention.head_count", HEADS_MAX)?,
        query_rank: keys.count("attention.q_lora_rank", WIDTH_MAX)?,
        rank: keys.required("attention.kv_lora_rank", WIDTH_MAX)?,
        nope_dim: query_dim - rope_dim,
        rope_dim,
        value_dim: length("attention.value_length_mla", "attention.value_length")?,
        split_up,
    };
    let mut rope = keys.rope(RopeKind::Interleaved, rope_dim, context, None)?;
    let mut scale = 1.0 / (query_dim as f32).sqrt();
    if let (Some(multiplier), super::RopeScaling::Yarn { factor, .. }) =
        (keys.positive("rope.scaling.yarn_log_multiplier")?, &rope.scaling)
    {
        // What lengthens queries and keys is in the scores' factor, and not in cosine and sine.
        let magnitude = 1.0 + multiplier * factor.max(1.0).ln();
        scale *= magnitude * magnitude;
        rope.magnitude = 1.0;
    }
    let attention = AttentionSpec {
        projection: Projection::Latent(shape),
        scale,
        ..AttentionSpec::causal(HeadShape { heads: shape.heads, kv_heads: 1, head_dim: query_dim })
    };
    Ok((attention, rope))
}
