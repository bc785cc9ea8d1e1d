//! Mixtures of experts of GGUF files with family-specific features, as written by llama.cpp's converter.

use hanzo_engine_kernels::{Activation, ExpertGroups, ExpertScoring, HeadShape, QueryScale, RopeKind};

use super::gguf::Keys;
use super::mixtures::families::PHI_NOISE;
use super::{
    AttentionSpec, ExpertsSpec, HeadSpec, LatentShape, LayerPart, LayerSpec, LogitsSpec, Mask, MlpSpec,
    Names, NormKind, NormOrder, NormSpec, Part, Projection, QkNorm, RopeSpec, SharedExpert, TransformerSpec,
    Weight,
};
use crate::error::LoadError;
use crate::gguf::{Array, Gguf, Value};
use crate::limits::{
    CONTEXT_TOKENS_MAX, EXPERT_GROUPS_MAX, EXPERTS_MAX, HEAD_DIM_MAX, HEADS_MAX, LAYERS_MAX, WIDTH_MAX,
};

/// Architecture: its differences from the plainest.
#[derive(Clone, Copy)]
struct Family {
    name: &'static str,
    rope: RopeKind,
    /// Whether all heads of queries, and of keys, are normed together, if they are normed.
    normed_whole: bool,
    /// Key with the width of one expert.
    ffn: &'static str,
    /// Conversion of scores into weights, if the file does not say.
    scoring: ExpertScoring,
    /// Whether weights are normalised: always, or if a key says so.
    normalized: Option<bool>,
    activation: Activation,
    /// Additional keys that it reads.
    reads: &'static [&'static str],
}

const PLAIN: Family = Family {
    name: "",
    rope: RopeKind::Neox,
    normed_whole: false,
    ffn: "expert_feed_forward_length",
    scoring: ExpertScoring::Softmax,
    normalized: None,
    activation: Activation::Silu,
    reads: &[],
};

const GRANITE_READS: &[&str] = &["attention.scale", "embedding_scale", "logit_scale", "residual_scale"];

/// Properties without a key in the format, which llama.cpp derives from the architecture's name. If neighbours are
/// rotated, its converter has arranged the rows of queries and keys so, except for ERNIE, which is trained so.
const FAMILIES: &[Family] = &[
    Family { name: "deepseek2", ..PLAIN },
    Family { name: "gpt-oss", normalized: Some(true), activation: Activation::ClampedSwish, ..PLAIN },
    Family { name: "qwen2moe", ..PLAIN },
    Family { name: "glm4moe", scoring: ExpertScoring::Sigmoid, ..PLAIN },
    Family { name: "dots1", ..PLAIN },
    Family {
        name: "olmoe",
        normed_whole: true,
        ffn: "feed_forward_length",
        normalized: Some(false),
        ..PLAIN
    },
    Family {
        name: "granitemoe",
        rope: RopeKind::Interleaved,
        ffn: "feed_forward_length",
        normalized: Some(true),
        reads: GRANITE_READS,
        ..PLAIN
    },
    Family {
        name: "ernie4_5-moe",
        rope: RopeKind::Interleaved,
        normalized: Some(true),
        reads: &["interleave_moe_layer_step"],
        ..PLAIN
    },
    Family {
        name: "minimax-m2",
        normed_whole: true,
        scoring: ExpertScoring::Sigmoid,
        normalized: Some(true),
        ..PLAIN
    },
    Family { name: "deepseek", rope: RopeKind::Interleaved, normalized: Some(false), ..PLAIN },
    Family { name: "bailingmoe", rope: RopeKind::Interleaved, ..PLAIN },
    Family { name: "bailingmoe2", ..PLAIN },
    Family { name: "hunyuan-moe", normalized: Some(true), ..PLAIN },
    Family {
        name: "llama4",
        rope: RopeKind::Interleaved,
        scoring: ExpertScoring::Sigmoid,
        normalized: Some(false),
        reads: &["interleave_moe_layer_step"],
        ..PLAIN
    },
    Family {
        name: "phimoe",
        ffn: "feed_forward_length",
        // No key gives the reach.
        scoring: ExpertScoring::Near { reach: 2.0 * PHI_NOISE },
        normalized: Some(false),
        reads: &["attention.layer_norm_epsilon"],
        ..PLAIN
    },
    Family { name: "afmoe", scoring: ExpertScoring::Sigmoid, ..PLAIN },
    Family {
        name: "cohere2moe",
        rope: RopeKind::Interleaved,
        scoring: ExpertScoring::Sigmoid,
        reads: &["attention.layer_norm_epsilon", "attention.sliding_window_pattern", "logit_scale"],
        ..PLAIN
    },
    Family {
        name: "exaone-moe",
        scoring: ExpertScoring::Sigmoid,
        reads: &["attention.sliding_window_pattern"],
        ..PLAIN
    },
];

/// Names of the architectures that this file reads.
pub(super) fn known() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|family| family.name)
}

/// Whether an architecture's file may have this key, in addition to those of every decoder.
pub(super) fn reads(architecture: &str, key: &str) -> bool {
    let own = FAMILIES.iter().find(|family| family.name == architecture);
    READ.contains(&key) || own.is_some_and(|family| family.reads.contains(&key))
}

/// Keys of all these architectures in addition to those of every decoder.
const READ: &[&str] = &[
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
    let family = FAMILIES.iter().find(|family| family.name == keys.architecture).unwrap_or(&PLAIN);
    let names = Names::of_gguf(keys.architecture);
    let has = |weight: Weight| gguf.tensors.iter().any(|tensor| tensor.name == names.of("", weight));
    let vocab = keys.vocab(gguf, names)?;
    let hidden = keys.required("embedding_length", WIDTH_MAX)?;
    let all = keys.required("block_count", LAYERS_MAX)?;
    let more = keys.whole("nextn_predict_layers", LAYERS_MAX)?.unwrap_or(0);
    if more >= all {
        return Err(keys.unsupported("nextn_predict_layers", more, "there would be no layer before them"));
    }
    let count = all - more;
    let context = keys.required("context_length", CONTEXT_TOKENS_MAX)?;
    let dense = keys.whole("leading_dense_block_count", LAYERS_MAX)?.unwrap_or(0);
    let llama4 = keys.architecture == "llama4";
    let step = keys.count("interleave_moe_layer_step", LAYERS_MAX)?.unwrap_or(1);
    if step != 1 && !llama4 {
        return Err(keys.unsupported("interleave_moe_layer_step", step, "only 1 is known"));
    }
    let sparse = |layer: usize| layer >= dense && (layer + 1).is_multiple_of(step);
    let ffn = match (0..count).all(sparse) {
        true => 0,
        false => keys.required("feed_forward_length", WIDTH_MAX)?,
    };
    let (mut attention, rope) = match keys.architecture {
        "deepseek2" => latent(keys, context, has(Part::Layer(0, LayerPart::LatentKeyUp).weight()))?,
        _ => heads(family, gguf, keys, (hidden, context))?,
    };
    if let Some(scale) = keys.positive("attention.scale")? {
        attention.scale = scale;
    }
    let experts = experts(family, keys, count, &has)?;
    let windows = windows(keys, count)?;
    // If some layers have a window, EXAONE rotates queries and keys only in those, and Llama 4 in all but each fourth.
    let chunks = llama4 && windows.iter().any(Option::is_some);
    let (afmoe, cohere) = (keys.architecture == "afmoe", keys.architecture == "cohere2moe");
    let turns = |layer: usize| match keys.architecture {
        "exaone-moe" => windows[layer].is_some(),
        "cohere2moe" => windows[layer].is_some() || !sparse(layer),
        "afmoe" => windows[layer].is_some() || windows.iter().all(Option::is_none),
        _ => !chunks || !(layer + 1).is_multiple_of(4),
    };
    // The larger Llama 4, of 128 experts, norms neither queries nor keys; no key says so.
    let unit = llama4 && experts.count != 128;
    let grows = QueryScale { factor: 0.1, every: LLAMA4_CHUNK, offset: 1 };
    let residual_scale = keys.positive("residual_scale")?.unwrap_or(1.0);
    let layer = |index: usize| LayerSpec {
        order: match () {
            () if afmoe => NormOrder::Sandwich,
            () if cohere => NormOrder::Parallel,
            () => NormOrder::Pre,
        },
        attention: AttentionSpec {
            output_gate: afmoe,
            mask: Mask::Causal { window: windows[index] },
            rope: attention.rope.filter(|_| turns(index)),
            chunked: chunks && windows[index].is_some(),
            qk_norm: if unit && turns(index) { QkNorm::Unit } else { attention.qk_norm },
            query_scale: (chunks && !turns(index)).then_some(grows),
            ..attention.clone()
        },
        mlp: match sparse(index) {
            false => MlpSpec::gated(ffn, Activation::Silu),
            true => MlpSpec::Experts(experts),
        },
        residual_scale,
    };
    let norm = match keys.architecture {
        // Files have its epsilon under the name of another norm's.
        "phimoe" => {
            let eps = keys.positive("attention.layer_norm_epsilon")?;
            NormSpec { kind: NormKind::Layer { bias: true }, eps: eps.map_or_else(|| keys.epsilon(), Ok)? }
        }
        "cohere2moe" if keys.positive("attention.layer_norm_rms_epsilon")?.is_none() => {
            const NAME: &str = "attention.layer_norm_epsilon";
            let eps = keys.positive(NAME)?.ok_or_else(|| keys.metadata.missing(&keys.key(NAME)))?;
            NormSpec { kind: NormKind::Layer { bias: false }, eps }
        }
        _ => NormSpec { kind: NormKind::Rms { from_one: false }, eps: keys.epsilon()? },
    };
    // llama.cpp assumes it.
    let root = if afmoe { (hidden as f32).sqrt() } else { 1.0 };
    let scale = keys.positive("logit_scale")?.unwrap_or(1.0);
    let logits = LogitsSpec {
        scale: if cohere { scale } else { 1.0 / scale },
        bias: has(Part::Head.bias()),
        ..LogitsSpec::plain(!has(Part::Head.weight()))
    };
    TransformerSpec {
        ropes: vec![rope],
        embedding_scale: keys.positive("embedding_scale")?.unwrap_or(root),
        head: HeadSpec::Logits(logits),
        ..TransformerSpec::bare(
            keys.architecture,
            [vocab, hidden],
            (0..count).map(layer).collect(),
            norm,
            context,
        )
    }
    .checked(keys.metadata.file())
}

/// Tokens of the chunks of Llama 4's attention, and of the steps in which its queries grow; llama.cpp assumes this
/// value.
const LLAMA4_CHUNK: u32 = 8192;

/// Window of each layer.
fn windows(keys: &Keys<'_>, layers: usize) -> Result<Vec<Option<u32>>, LoadError> {
    const PATTERN: &str = "attention.sliding_window_pattern";
    let window = || -> Result<u32, LoadError> {
        Ok(keys.required("attention.sliding_window", CONTEXT_TOKENS_MAX)? as u32)
    };
    match (keys.architecture, keys.metadata.get(&keys.key(PATTERN))) {
        ("gpt-oss", _) => {
            let window = window()?;
            Ok((0..layers).map(|layer| layer.is_multiple_of(2).then_some(window)).collect())
        }
        // No window: every layer sees everything and rotates. No key: the chunks of training.
        ("llama4", _) => {
            let window = match keys.whole("attention.sliding_window", CONTEXT_TOKENS_MAX)? {
                Some(0) => None,
                _ => Some(LLAMA4_CHUNK),
            };
            Ok((1..=layers).map(|layer| window.filter(|_| !layer.is_multiple_of(4))).collect())
        }
        ("afmoe", _) => {
            let window = keys.whole("attention.sliding_window", CONTEXT_TOKENS_MAX)?.filter(|&of| of > 0);
            let window = window.map(|window| window as u32);
            Ok((1..=layers).map(|layer| window.filter(|_| !layer.is_multiple_of(4))).collect())
        }
        // In published files the window is the context.
        ("phimoe", _) => {
            let context = keys.required("context_length", CONTEXT_TOKENS_MAX)?;
            let window = keys.whole("attention.sliding_window", CONTEXT_TOKENS_MAX)?;
            Ok(vec![
                window.filter(|window| (1..context).contains(window)).map(|window| window as u32);
                layers
            ])
        }
        // The list may also have entries for layers after the last.
        ("exaone-moe" | "cohere2moe", Some(Value::Array(Array::Bool(of)))) if of.len() >= layers => {
            let window = window()?;
            Ok(of[..layers].iter().map(|&sees| sees.then_some(window)).collect())
        }
        ("exaone-moe" | "cohere2moe", Some(_)) => {
            Err(keys.unsupported(PATTERN, "another list", "a truth value for each layer is known"))
        }
        ("exaone-moe" | "cohere2moe", None) => {
            let window = window()?;
            Ok((1..=layers).map(|layer| (!layer.is_multiple_of(4)).then_some(window)).collect())
        }
        _ => match keys.whole("attention.sliding_window", CONTEXT_TOKENS_MAX)? {
            None | Some(0) => Ok(vec![None; layers]),
            Some(window) => {
                Err(keys.unsupported("attention.sliding_window", window, "this architecture has none"))
            }
        },
    }
}

fn experts(
    family: &Family,
    keys: &Keys<'_>,
    layers: usize,
    has: &impl Fn(Weight) -> bool,
) -> Result<ExpertsSpec, LoadError> {
    let ffn = keys.required(family.ffn, WIDTH_MAX)?;
    let many = keys.whole("expert_shared_count", EXPERTS_MAX)?;
    let shared = match keys.whole("expert_shared_feed_forward_length", WIDTH_MAX)? {
        // The width of one of them, as llama.cpp reads it.
        Some(one) if family.name == "bailingmoe2" => one * many.unwrap_or(1),
        Some(shared) => shared,
        None if family.name == "llama4" => ffn,
        None => many.unwrap_or(0) * ffn,
    };
    let (oai, qwen) = (family.name == "gpt-oss", family.name == "qwen2moe");
    let scoring = match keys.whole("expert_gating_func", 4)? {
        None | Some(0) => family.scoring,
        // Softmax over the chosen scores, which is the same if weights are normalised.
        Some(1) => ExpertScoring::Softmax,
        Some(3) if oai => ExpertScoring::Softmax,
        Some(2) => ExpertScoring::Sigmoid,
        Some(other) => return Err(keys.unsupported("expert_gating_func", other, "1 and 2 are known")),
    };
    let groups = keys.whole("expert_group_count", EXPERT_GROUPS_MAX)?.filter(|&groups| groups > 1);
    let used = keys.whole("expert_group_used_count", EXPERT_GROUPS_MAX)?.unwrap_or(1);
    let best = if scoring == ExpertScoring::Sigmoid { 2 } else { 1 };
    let shared = (shared > 0).then_some(SharedExpert { ffn: shared, gate: qwen });
    let said = keys.metadata.bool(&keys.key("expert_weights_norm"))?;
    let normalized = match (said, family.normalized) {
        (Some(said), Some(known)) if said != known => {
            let reason = format!("of this architecture only {known} is known");
            return Err(keys.unsupported("expert_weights_norm", said, &reason));
        }
        (said, known) => said.or(known).unwrap_or(false),
    };
    Ok(ExpertsSpec {
        activation: family.activation,
        scoring,
        scale: keys.positive("expert_weights_scale")?.unwrap_or(1.0),
        correction_bias: !oai && has(Part::Layer(layers - 1, LayerPart::Router).bias()),
        router_bias: oai,
        expert_bias: oai,
        scales_input: family.name == "llama4",
        groups: groups.map(|count| ExpertGroups { count, used, best }),
        shared,
        // As in llama.cpp; its converter writes no other.
        averaged: family.name == "cohere2moe" && shared.is_some(),
        ..ExpertsSpec::softmax(
            keys.required("expert_count", EXPERTS_MAX)?,
            keys.required("expert_used_count", EXPERTS_MAX)?,
            ffn,
            normalized,
        )
    })
}

fn heads(
    family: &Family,
    gguf: &Gguf,
    keys: &Keys<'_>,
    (hidden, context): (usize, usize),
) -> Result<(AttentionSpec, RopeSpec), LoadError> {
    let shape = keys.heads(hidden)?;
    let names = Names::of_gguf(keys.architecture);
    let has = |name: &str| gguf.tensors.iter().any(|tensor| tensor.name == name);
    let has_part = |weight: fn(Part) -> Weight, part| has(&names.of("", weight(Part::Layer(0, part))));
    let mut rope = keys.rope_of(gguf, family.rope, shape.head_dim, context)?;
    if keys.architecture == "gpt-oss"
        && let super::RopeScaling::Yarn { truncate, .. } = &mut rope.scaling
    {
        // As in training; the format has no key for it.
        *truncate = false;
    }
    let fused_bias = names.qkv.is_some_and(|stem| has(&names.in_layer("", 0, &format!("{stem}.bias"))));
    let attention = AttentionSpec {
        qkv_bias: fused_bias || has_part(Part::bias, LayerPart::Query),
        output_bias: has_part(Part::bias, LayerPart::AttentionOutput),
        qk_norm: match has_part(Part::weight, LayerPart::QueryNorm) {
            true if family.normed_whole => QkNorm::Whole,
            true => QkNorm::Heads,
            false => QkNorm::None,
        },
        norm_after_rope: keys.architecture == "hunyuan-moe",
        sinks: keys.architecture == "gpt-oss",
        ..AttentionSpec::causal(shape)
    };
    Ok((attention, rope))
}

fn latent(keys: &Keys<'_>, context: usize, split_up: bool) -> Result<(AttentionSpec, RopeSpec), LoadError> {
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
        // The magnitude of queries and keys is in the scores' factor, not in cosine and sine.
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
