//! Hybrid decoders of GGUF files, as written by llama.cpp's converter, most of whose layers have recurrent states and
//! few have attention: Granite 4, LFM2, and Nemotron-H (`nemotron_gguf`); Mamba 2, whose layers all have states; and
//! Falcon-H1, whose layers have both in parallel.

use hanzo_engine_kernels::{Activation, ExpertScoring, HeadShape, RopeKind, StateRule, StateShape};

use super::gguf::Keys;
use super::mixtures::falcon_h1::with_states;
use super::mixtures::mamba::of_states;
use super::{
    AttentionSpec, ExpertsSpec, HeadSpec, LayerPart, LayerSpec, LogitsSpec, MlpSpec, Names, NormKind,
    NormOrder, NormSpec, Part, QkNorm, SharedExpert, StateSpec, TransformerSpec, Weight, nemotron_gguf,
};
use crate::error::LoadError;
use crate::gguf::Gguf;
use crate::limits::{CONTEXT_TOKENS_MAX, EXPERTS_MAX, HEAD_DIM_MAX, HEADS_MAX, LAYERS_MAX, WIDTH_MAX};

const FAMILIES: &[&str] =
    &["granitehybrid", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe", "mamba2", "falcon-h1"];

const KV_HEADS: &str = "attention.head_count_kv";

/// Keys of these files in addition to those of every decoder.
const READ: &[&str] = &[
    "attention.layer_norm_epsilon",
    "attention.scale",
    "embedding_scale",
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
    "logit_scale",
    "nextn_predict_layers",
    "residual_scale",
    "shortconv.l_cache",
    "ssm.conv_kernel",
    "ssm.group_count",
    "ssm.inner_size",
    "ssm.state_size",
    "ssm.time_step_rank",
];

/// Names of the architectures that this file reads.
pub(super) fn known() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().copied()
}

/// Whether a file may have this key, in addition to those of every decoder.
pub(super) fn reads(key: &str) -> bool {
    READ.contains(&key)
}

/// Reads a file of one of these architectures.
pub(super) fn from_gguf(gguf: &Gguf, keys: &Keys<'_>) -> Result<TransformerSpec, LoadError> {
    let names = Names::of_gguf(keys.architecture);
    let has = |weight: Weight| {
        let name = names.of("", weight);
        gguf.tensors.iter().find(|tensor| tensor.name == name)
    };
    let vocab = keys.vocab(gguf, names)?;
    let hidden = keys.required("embedding_length", WIDTH_MAX)?;
    if keys.architecture.starts_with("nemotron_h") {
        let has = |name: &str| gguf.tensors.iter().any(|tensor| tensor.name == name);
        return nemotron_gguf::from_gguf(keys, [vocab, hidden], &has);
    }
    let count = keys.required("block_count", LAYERS_MAX)?;
    let context = keys.required("context_length", CONTEXT_TOKENS_MAX)?;
    if keys.architecture == "mamba2" {
        let (biased, tied) = (
            has(Part::Layer(0, LayerPart::StateConvolution).bias()).is_some(),
            has(Part::Head.weight()).is_none(),
        );
        let eps = keys.epsilon()?;
        let state = StateSpec { decay_as_log: false, ..StateSpec::ssd(mamba(keys)?, biased, eps) };
        return of_states("mamba2", [vocab, hidden], (count, state), (eps, tied), context)
            .checked(keys.metadata.file());
    }
    if keys.architecture == "falcon-h1" {
        return falcon_h1(keys, [vocab, hidden], &|weight| has(weight).is_some());
    }
    let (heads, recurs) = heads(keys, hidden, count)?;
    let norm = NormSpec { kind: NormKind::Rms { from_one: false }, eps: keys.epsilon()? };
    let granite = keys.architecture == "granitehybrid";
    let state = match granite {
        true => {
            let first = recurs.iter().position(|&recurs| recurs).unwrap_or(0);
            let biased = has(Part::Layer(first, LayerPart::StateConvolution).bias()).is_some();
            StateSpec { decay_as_log: false, ..StateSpec::ssd(mamba(keys)?, biased, norm.eps) }
        }
        false => StateSpec::convolution(hidden, keys.required("shortconv.l_cache", StateShape::TAPS_MAX)?),
    };
    let factors = gguf.tensors.iter().find(|tensor| tensor.name == super::ROPE_FACTORS);
    // The flag of tuned scaling tells whether heads are rotated.
    let finetuned = keys.metadata.bool(&keys.key("rope.scaling.finetuned"))?;
    let turns = !granite || finetuned.unwrap_or(true);
    // Granite's converter has arranged the rows of queries and keys so that neighbours are rotated.
    let kind = if granite { RopeKind::Interleaved } else { RopeKind::Neox };
    let rope = keys.rope(kind, heads.head_dim, context, factors)?;
    if granite && turns && rope.dim != heads.head_dim {
        let reason = "the converter has put the rows of queries and keys as if whole heads were turned";
        return Err(keys.unsupported("rope.dimension_count", rope.dim, reason));
    }
    let scale = keys.positive("attention.scale")?;
    let mlp = mlp(keys, |layer| has(Part::Layer(layer, LayerPart::Router).bias()).is_some())?;
    let residual_scale = keys.positive("residual_scale")?.unwrap_or(1.0);
    let layer = |index: usize| {
        let plain = AttentionSpec::causal(heads);
        LayerSpec {
            order: NormOrder::Pre,
            attention: match recurs[index] {
                true => AttentionSpec::of_state(state),
                false => AttentionSpec {
                    qk_norm: if granite { QkNorm::None } else { QkNorm::Heads },
                    rope: turns.then_some(0),
                    scale: scale.unwrap_or(plain.scale),
                    ..plain
                },
            },
            mlp: mlp(index),
            residual_scale,
        }
    };
    let layers = (0..count).map(layer).collect();
    let logits = LogitsSpec {
        scale: 1.0 / keys.positive("logit_scale")?.unwrap_or(1.0),
        ..LogitsSpec::plain(has(Part::Head.weight()).is_none())
    };
    TransformerSpec {
        ropes: vec![rope],
        embedding_scale: keys.positive("embedding_scale")?.unwrap_or(1.0),
        head: HeadSpec::Logits(logits),
        ..TransformerSpec::bare(keys.architecture, [vocab, hidden], layers, norm, context)
    }
    .checked(keys.metadata.file())
}

/// States in parallel with attention in every layer. The model's factors are already in its weights.
fn falcon_h1(
    keys: &Keys<'_>,
    sizes: [usize; 2],
    has: &impl Fn(Weight) -> bool,
) -> Result<TransformerSpec, LoadError> {
    let of_first = |part| Part::Layer(0, part);
    let context = keys.required("context_length", CONTEXT_TOKENS_MAX)?;
    let norm = NormSpec { kind: NormKind::Rms { from_one: false }, eps: keys.epsilon()? };
    let biased = has(of_first(LayerPart::StateConvolution).bias());
    let mut state = StateSpec { decay_as_log: false, ..StateSpec::ssd(mamba(keys)?, biased, norm.eps) };
    if !has(of_first(LayerPart::StateNorm).weight()) {
        state.norm_part = 0;
    }
    let heads = keys.heads(sizes[1])?;
    let layer = LayerSpec {
        order: NormOrder::Pre,
        attention: AttentionSpec::causal(heads),
        mlp: MlpSpec::gated(keys.required("feed_forward_length", WIDTH_MAX)?, Activation::Silu),
        residual_scale: 1.0,
    };
    let layers = with_states(vec![layer; keys.required("block_count", LAYERS_MAX)?], state);
    TransformerSpec {
        ropes: vec![keys.rope(RopeKind::Neox, heads.head_dim, context, None)?],
        head: HeadSpec::plain(!has(Part::Head.weight())),
        ..TransformerSpec::bare(keys.architecture, sizes, layers, norm, context)
    }
    .checked(keys.metadata.file())
}

/// Heads of the layers with attention, and the layers with states instead: those with no key-value heads.
pub(super) fn heads(
    keys: &Keys<'_>,
    hidden: usize,
    count: usize,
) -> Result<(HeadShape, Vec<bool>), LoadError> {
    let of_layers = keys.metadata.integers(&keys.key(KV_HEADS))?;
    let Some(of_layers) = of_layers.filter(|of_layers| of_layers.len() == count) else {
        return Err(keys.unsupported(KV_HEADS, "another list", "a number for each layer is known"));
    };
    let attending = || of_layers.iter().copied().filter(|&of| of != 0);
    let first = attending().next().and_then(|first| usize::try_from(first).ok());
    if attending().any(|of| usize::try_from(of).ok() != first) || first.is_some_and(|first| first > HEADS_MAX)
    {
        let value = format!("{of_layers:?}");
        return Err(keys.unsupported(KV_HEADS, value, "layers that attend must all have the same"));
    }
    let heads = keys.required("attention.head_count", HEADS_MAX)?;
    let head_dim = match keys.count("attention.key_length", HEAD_DIM_MAX)? {
        Some(head_dim) => head_dim,
        None => hidden / heads,
    };
    let shape = HeadShape { heads, kv_heads: first.unwrap_or(heads), head_dim };
    Ok((shape, of_layers.iter().map(|&of| of == 0).collect()))
}

pub(super) fn mamba(keys: &Keys<'_>) -> Result<StateShape, LoadError> {
    let value_heads = keys.required("ssm.time_step_rank", HEADS_MAX)?;
    let inner = keys.required("ssm.inner_size", WIDTH_MAX)?;
    if !inner.is_multiple_of(value_heads) {
        let reason = format!("it is not whole heads, of which there are {value_heads}");
        return Err(keys.unsupported("ssm.inner_size", inner, &reason));
    }
    Ok(StateShape {
        rule: StateRule::Ssd,
        key_heads: keys.required("ssm.group_count", HEADS_MAX)?,
        value_heads,
        key_dim: keys.required("ssm.state_size", HEAD_DIM_MAX)?,
        value_dim: inner / value_heads,
        taps: keys.required("ssm.conv_kernel", StateShape::TAPS_MAX)?,
        tiled: false,
    })
}

/// The MLP of each layer.
fn mlp(
    keys: &Keys<'_>,
    corrected: impl Fn(usize) -> bool,
) -> Result<Box<dyn Fn(usize) -> MlpSpec>, LoadError> {
    let ffn = keys.required("feed_forward_length", WIDTH_MAX)?;
    let dense = keys.whole("leading_dense_block_count", LAYERS_MAX)?.unwrap_or(0);
    let experts = match keys.whole("expert_count", EXPERTS_MAX)?.filter(|&count| count > 0) {
        None => None,
        Some(count) => {
            let own = keys.count("expert_feed_forward_length", WIDTH_MAX)?.unwrap_or(ffn);
            let shared = keys.whole("expert_shared_feed_forward_length", WIDTH_MAX)?.unwrap_or(0);
            let scoring = match keys.whole("expert_gating_func", 4)? {
                None | Some(0 | 1) => ExpertScoring::Softmax,
                Some(2) => ExpertScoring::Sigmoid,
                Some(other) => {
                    return Err(keys.unsupported("expert_gating_func", other, "1 and 2 are known"));
                }
            };
            let used = keys.required("expert_used_count", EXPERTS_MAX)?;
            Some(ExpertsSpec {
                scoring,
                correction_bias: corrected(dense),
                shared: (shared > 0).then_some(SharedExpert { ffn: shared, gate: false }),
                ..ExpertsSpec::softmax(count, used, own, true)
            })
        }
    };
    Ok(Box::new(move |layer: usize| match experts {
        Some(experts) if layer >= dense => MlpSpec::Experts(experts),
        _ => MlpSpec::gated(ffn, Activation::Silu),
    }))
}
