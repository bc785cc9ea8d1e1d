//! Decoders of GGUF files with recurrent states in some layers, as written by llama.cpp's converter: Qwen3-Next and
//! Qwen3.5.

use hanzo_engine_kernels::{Activation, RopeKind, StateRule, StateShape};

use super::gguf::Keys;
use super::{
    AttentionSpec, ExpertsSpec, HeadSpec, LayerSpec, MlpSpec, Names, NormKind, NormOrder, NormSpec, Part,
    QkNorm, SharedExpert, StateSpec, TransformerSpec, Weight,
};
use crate::error::LoadError;
use crate::gguf::{Array, Gguf, Value};
use crate::limits::{CONTEXT_TOKENS_MAX, EXPERTS_MAX, HEAD_DIM_MAX, HEADS_MAX, LAYERS_MAX, WIDTH_MAX};

/// Architectures, and whether heads of keys repeat as a whole (value heads of the same key head are far apart).
const FAMILIES: &[(&str, bool)] = &[("qwen3next", false), ("qwen35", true), ("qwen35moe", true)];

/// Keys of these files in addition to those of every decoder.
const READ: &[&str] = &[
    "attention.recurrent_layers",
    "expert_count",
    "expert_feed_forward_length",
    "expert_shared_feed_forward_length",
    "expert_used_count",
    "full_attention_interval",
    "nextn_predict_layers",
    "ssm.conv_kernel",
    "ssm.group_count",
    "ssm.inner_size",
    "ssm.state_size",
    "ssm.time_step_rank",
];

/// Names of the architectures that this file reads.
pub(super) fn known() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|&(name, _)| name)
}

pub(super) fn knows(architecture: &str) -> bool {
    known().any(|name| name == architecture)
}

/// Whether a file may have this key, in addition to those of every decoder.
pub(super) fn reads(key: &str) -> bool {
    READ.contains(&key)
}

/// Reads a file of one of these architectures.
pub(super) fn from_gguf(gguf: &Gguf, keys: &Keys<'_>) -> Result<TransformerSpec, LoadError> {
    let tiled = FAMILIES.iter().any(|&(name, tiled)| name == keys.architecture && tiled);
    let names = Names::of_gguf(keys.architecture);
    let find = |weight: Weight| {
        let name = names.of("", weight);
        gguf.tensors.iter().find(|tensor| tensor.name == name)
    };
    let vocab = keys.vocab(gguf, names)?;
    let hidden = keys.required("embedding_length", WIDTH_MAX)?;
    let all = keys.required("block_count", LAYERS_MAX)?;
    let more = keys.whole("nextn_predict_layers", LAYERS_MAX)?.unwrap_or(0);
    if more >= all {
        return Err(keys.unsupported("nextn_predict_layers", more, "there would be no layer before them"));
    }
    let count = all - more;
    let context = keys.required("context_length", CONTEXT_TOKENS_MAX)?;
    let heads = keys.heads(hidden)?;
    let norm = NormSpec { kind: NormKind::Rms { from_one: false }, eps: keys.epsilon()? };
    let state = StateSpec { decay_as_log: false, ..StateSpec::delta(shape(keys, tiled)?, norm.eps) };
    let recurs = recurrent_layers(keys, count)?;
    let mlp = mlp(keys)?;
    let layer = |index: usize| LayerSpec {
        order: NormOrder::Pre,
        attention: match recurs[index] {
            true => AttentionSpec::of_state(state),
            false => {
                AttentionSpec { output_gate: true, qk_norm: QkNorm::Heads, ..AttentionSpec::causal(heads) }
            }
        },
        mlp: mlp.clone(),
        residual_scale: 1.0,
    };
    let layers = (0..count).map(layer).collect();
    TransformerSpec {
        ropes: vec![keys.rope(RopeKind::Neox, heads.head_dim, context, None)?],
        head: HeadSpec::plain(find(Part::Head.weight()).is_none()),
        ..TransformerSpec::bare(keys.architecture, [vocab, hidden], layers, norm, context)
    }
    .checked(keys.metadata.file())
}

fn shape(keys: &Keys<'_>, tiled: bool) -> Result<StateShape, LoadError> {
    let dim = keys.required("ssm.state_size", HEAD_DIM_MAX)?;
    let value_heads = keys.required("ssm.time_step_rank", HEADS_MAX)?;
    let inner = keys.required("ssm.inner_size", WIDTH_MAX)?;
    if inner != value_heads * dim {
        let reason = format!("{value_heads} heads of values as long as keys, {dim}, are known");
        return Err(keys.unsupported("ssm.inner_size", inner, &reason));
    }
    Ok(StateShape {
        rule: StateRule::Delta,
        key_heads: keys.required("ssm.group_count", HEADS_MAX)?,
        value_heads,
        key_dim: dim,
        value_dim: dim,
        taps: keys.required("ssm.conv_kernel", StateShape::TAPS_MAX)?,
        tiled,
    })
}

/// Layers with recurrent states.
fn recurrent_layers(keys: &Keys<'_>, layers: usize) -> Result<Vec<bool>, LoadError> {
    const LAYERS: &str = "attention.recurrent_layers";
    match keys.metadata.get(&keys.key(LAYERS)) {
        // The list may also have entries for layers after the last.
        Some(Value::Array(Array::Bool(of))) if of.len() >= layers => Ok(of[..layers].to_vec()),
        Some(_) => Err(keys.unsupported(LAYERS, "another list", "a truth value for each layer is known")),
        None => {
            let interval = keys.count("full_attention_interval", LAYERS_MAX)?.unwrap_or(4);
            Ok((1..=layers).map(|number| !number.is_multiple_of(interval)).collect())
        }
    }
}

fn mlp(keys: &Keys<'_>) -> Result<MlpSpec, LoadError> {
    let Some(count) = keys.whole("expert_count", EXPERTS_MAX)?.filter(|&count| count > 0) else {
        return Ok(MlpSpec::gated(keys.required("feed_forward_length", WIDTH_MAX)?, Activation::Silu));
    };
    let used = keys.required("expert_used_count", EXPERTS_MAX)?;
    let ffn = keys.required("expert_feed_forward_length", WIDTH_MAX)?;
    let shared = match keys.count("expert_shared_feed_forward_length", WIDTH_MAX)? {
        Some(shared) => shared,
        None => keys.required("feed_forward_length", WIDTH_MAX)?,
    };
    // llama.cpp always normalises the weights of these architectures.
    Ok(MlpSpec::Experts(ExpertsSpec {
        shared: Some(SharedExpert { ffn: shared, gate: true }),
        ..ExpertsSpec::softmax(count, used, ffn, true)
    }))
}
