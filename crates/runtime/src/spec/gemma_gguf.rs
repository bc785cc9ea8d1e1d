//! Gemma 3n and 4 from GGUF metadata, as written by llama.cpp's converter.

use hanzo_engine_kernels::{Activation, HeadShape, RopeKind};

use super::gemma::{Kinds, apart};
use super::gguf::Keys;
use super::{
    ExpertsSpec, GemmaPart, HeadSpec, LayerPart, LayerSpec, LogitsSpec, MlpSpec, Names, NormKind, NormOrder,
    NormSpec, Part, RopeScaling, RopeSpec, StreamsSpec, TransformerSpec, Weight,
};
use crate::error::LoadError;
use crate::gguf::{Array, Gguf, Value};
use crate::limits::{CONTEXT_TOKENS_MAX, EXPERTS_MAX, HEAD_DIM_MAX, HEADS_MAX, LAYERS_MAX, WIDTH_MAX};

/// Keys that are read here in addition to those of every decoder.
pub(super) const READ: &[&str] = &[
    "activation_sparsity_scale",
    "altup.active_idx",
    "altup.num_inputs",
    "attention.key_length_swa",
    "attention.shared_kv_layers",
    "attention.sliding_window_pattern",
    "attention.value_length_swa",
    "embedding_length_per_layer_input",
    "expert_count",
    "expert_feed_forward_length",
    "expert_used_count",
    "final_logit_softcapping",
    "rope.dimension_count_swa",
    "rope.freq_base_swa",
];

/// Names of the architectures that this file reads.
pub(super) fn known() -> impl Iterator<Item = &'static str> {
    ["gemma3n", "gemma4"].into_iter()
}

/// Reads a file of one of these architectures.
pub(super) fn from_gguf(gguf: &Gguf, keys: &Keys<'_>) -> Result<TransformerSpec, LoadError> {
    const SHARED: &str = "attention.shared_kv_layers";
    let names = Names::of_gguf(keys.architecture);
    let find = |name: &str| gguf.tensors.iter().find(|tensor| tensor.name == name);
    let has = |weight: Weight| find(&names.of("", weight)).is_some();
    let vocab = keys.vocab(gguf, names)?;
    let hidden = keys.required("embedding_length", WIDTH_MAX)?;
    let layers = keys.required("block_count", LAYERS_MAX)?;
    let context = keys.required("context_length", CONTEXT_TOKENS_MAX)?;
    let windows = windows(keys, layers)?;
    let sharing = keys.whole(SHARED, LAYERS_MAX)?.unwrap_or(0);
    if sharing >= layers {
        let reason = format!("{sharing} of {layers} layers");
        return Err(keys.metadata.corrupt(&keys.key(SHARED), reason));
    }
    let kinds = Kinds { heads: heads(keys, &windows)?, windows, sharing };
    let ffn = each(keys, "feed_forward_length", WIDTH_MAX, layers)?;
    let activation = Activation::GeluTanh;
    let experts = match keys.whole("expert_count", EXPERTS_MAX)?.unwrap_or(0) {
        0 => None,
        count => {
            let used = keys.required("expert_used_count", EXPERTS_MAX)?;
            let width = keys.required("expert_feed_forward_length", WIDTH_MAX)?;
            Some(ExpertsSpec::softmax(count, used, width, true))
        }
    };
    let layer_of = |layer: usize| {
        let values = has(Part::Layer(layer, LayerPart::Value).weight());
        let mut attention = kinds.attention(layer, true);
        attention.values_are_keys = !values && attention.shares.is_none();
        let mlp = match experts {
            Some(experts) => MlpSpec::Experts(apart(experts, activation, ffn[layer])),
            None => MlpSpec::gated(ffn[layer], activation),
        };
        LayerSpec { order: NormOrder::Sandwich, attention, mlp, residual_scale: 1.0 }
    };
    let all = (0..layers).map(layer_of).collect();
    let streams = match keys.architecture {
        "gemma3n" => Some(streams(gguf, keys, names, layers)?),
        _ => None,
    };
    // Optional in files of Gemma 3n.
    let usual = streams.as_ref().map(|_| 30.0);
    let inputs = keys.whole("embedding_length_per_layer_input", WIDTH_MAX)?.unwrap_or(0);
    let full = keys.rope(RopeKind::Neox, kinds.heads[0].head_dim, context, find(super::ROPE_FACTORS))?;
    let local = RopeSpec {
        base: keys.positive("rope.freq_base_swa")?.unwrap_or(if usual.is_some() { 1e4 } else { full.base }),
        dim: keys.count("rope.dimension_count_swa", HEAD_DIM_MAX)?.unwrap_or(kinds.heads[1].head_dim),
        scaling: RopeScaling::None,
        factors: None,
        magnitude: 1.0,
        kind: RopeKind::Neox,
        axes: None,
        long: None,
    };
    TransformerSpec {
        ropes: vec![full, local],
        embedding_scale: (hidden as f32).sqrt(),
        layer_inputs: (inputs > 0).then_some(inputs),
        streams,
        layers_scaled: has(Part::Layer(0, LayerPart::Gemma(GemmaPart::OutputScale)).weight()),
        head: HeadSpec::Logits(LogitsSpec {
            bias: false,
            unit_rows: false,
            tied: !has(Part::Head.weight()),
            scale: 1.0,
            softcap: keys.positive("final_logit_softcapping")?.or(usual),
        }),
        ..TransformerSpec::bare(
            keys.architecture,
            [vocab, hidden],
            all,
            NormSpec { kind: NormKind::Rms { from_one: false }, eps: keys.epsilon()? },
            context,
        )
    }
    .checked(keys.metadata.file())
}

/// Streams of Gemma 3n.
fn streams(gguf: &Gguf, keys: &Keys<'_>, names: &Names, layers: usize) -> Result<StreamsSpec, LoadError> {
    const SCALE: &str = "activation_sparsity_scale";
    let find = |part| {
        let name = names.of("", Part::Layer(0, LayerPart::Gemma(part)).weight());
        gguf.tensors.iter().find(|tensor| tensor.name == name)
    };
    let rank = find(GemmaPart::LaurelDown).map(|tensor| tensor.shape[0]);
    let Some(laurel_rank) = rank else {
        let what = format!(
            "tensor {}",
            names.of("", Part::Layer(0, LayerPart::Gemma(GemmaPart::LaurelDown)).weight())
        );
        return Err(LoadError::Missing { file: keys.metadata.file().to_owned(), what, hint: String::new() });
    };
    let key = keys.key(SCALE);
    let outliers = match keys.metadata.get(&key) {
        Some(Value::Array(Array::F32(list))) if list.len() == layers => {
            // A threshold of -∞: all numbers count.
            list.iter().map(|&many| Some(many).filter(|many| *many > f32::NEG_INFINITY)).collect()
        }
        Some(value) => return Err(keys.unsupported(SCALE, value, "a number for each layer is known")),
        None => return Err(keys.metadata.missing(&key)),
    };
    Ok(StreamsSpec {
        count: keys.required("altup.num_inputs", LAYERS_MAX)?,
        active: keys.whole("altup.active_idx", LAYERS_MAX)?.unwrap_or(0),
        scaled: find(GemmaPart::StreamScale).is_some(),
        laurel_rank,
        outliers,
    })
}

/// A count for each layer: a list of them, or one for all.
fn each(keys: &Keys<'_>, name: &str, max: usize, layers: usize) -> Result<Vec<usize>, LoadError> {
    let key = keys.key(name);
    let Some(Value::Array(_)) = keys.metadata.get(&key) else {
        return Ok(vec![keys.required(name, max)?; layers]);
    };
    let list = keys.metadata.integers(&key)?.unwrap_or_default();
    let counts =
        list.iter().map(|&count| usize::try_from(count).ok().filter(|count| (1..=max).contains(count)));
    match counts.collect::<Option<Vec<usize>>>() {
        Some(counts) if counts.len() == layers => Ok(counts),
        Some(counts) => {
            Err(keys.metadata.corrupt(&key, format!("{} numbers for {layers} layers", counts.len())))
        }
        None => Err(keys.metadata.corrupt(&key, format!("a number is not from 1 to {max}"))),
    }
}

fn windows(keys: &Keys<'_>, layers: usize) -> Result<Vec<Option<u32>>, LoadError> {
    const PATTERN: &str = "attention.sliding_window_pattern";
    let window = keys.required("attention.sliding_window", CONTEXT_TOKENS_MAX)? as u32;
    match keys.metadata.get(&keys.key(PATTERN)) {
        Some(Value::Array(Array::Bool(of))) if of.len() == layers => {
            Ok(of.iter().map(|&sees| sees.then_some(window)).collect())
        }
        Some(value) => Err(keys.unsupported(PATTERN, value, "a truth for each layer is known")),
        None => Err(keys.metadata.missing(&keys.key(PATTERN))),
    }
}

/// Heads of layers without a window, and of those with one.
fn heads(keys: &Keys<'_>, windows: &[Option<u32>]) -> Result<[HeadShape; 2], LoadError> {
    const KV_HEADS: &str = "attention.head_count_kv";
    let heads = keys.required("attention.head_count", HEADS_MAX)?;
    let kv_heads = each(keys, KV_HEADS, HEADS_MAX, windows.len())?;
    let length = |key: &str, value: &str, usual: Option<usize>| {
        let length = match (keys.count(key, HEAD_DIM_MAX)?, usual) {
            (Some(length), _) | (None, Some(length)) => length,
            (None, None) => return Err(keys.metadata.missing(&keys.key(key))),
        };
        match keys.count(value, HEAD_DIM_MAX)?.filter(|&found| found != length) {
            Some(found) => {
                Err(keys.unsupported(value, found, &format!("values must be as long as keys, {length}")))
            }
            None => Ok(length),
        }
    };
    let full = length("attention.key_length", "attention.value_length", None)?;
    let local = length("attention.key_length_swa", "attention.value_length_swa", Some(full))?;
    let of_kind = |windowed: bool, head_dim: usize| {
        let mut counts = kv_heads
            .iter()
            .zip(windows)
            .filter(|(_, window)| window.is_some() == windowed)
            .map(|(count, _)| *count);
        let kv_heads = counts.next().unwrap_or(1);
        match counts.all(|count| count == kv_heads) {
            true => Ok(HeadShape { heads, kv_heads, head_dim }),
            false => {
                Err(keys.unsupported(KV_HEADS, "a list", "layers that see as much must have the same number"))
            }
        }
    };
    Ok([of_kind(false, full)?, of_kind(true, local)?])
}
