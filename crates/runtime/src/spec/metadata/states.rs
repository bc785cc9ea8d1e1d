//! Layers with recurrent states from metadata.

use hanzo_engine_kernels::{Activation, ExpertScoring, HeadShape, StateRule, StateShape};

use super::{Architecture, Keys};
use crate::error::LoadError;
use crate::limits::{CONTEXT_TOKENS_MAX, EXPERTS_MAX, HEAD_DIM_MAX, HEADS_MAX, LAYERS_MAX, WIDTH_MAX};
use crate::spec::{
    AttentionSpec, ExpertsSpec, HeadSpec, LayerPart, LayerSpec, LogitsSpec, MlpSpec, NormOrder, NormSpec,
    Part, ROPE_FACTORS, SharedExpert, StateSpec, TransformerSpec,
};

/// Reads a hybrid of layers with attention and layers with states. `state` gets the hidden size, the norms and the
/// first layer with a state. Returns the heads of attention too.
pub(crate) fn read_hybrid(
    of: &Architecture,
    keys: &Keys<'_>,
    state: impl Fn(usize, NormSpec, usize) -> Result<StateSpec, LoadError>,
) -> Result<(TransformerSpec, HeadShape), LoadError> {
    let vocab = keys.vocab()?;
    let hidden = keys.required("embedding_length", WIDTH_MAX)?;
    let count = keys.required("block_count", LAYERS_MAX)?;
    let context = keys.required("context_length", CONTEXT_TOKENS_MAX)?;
    let (heads, recurs) = hybrid_heads(keys, hidden, count)?;
    let norm = NormSpec { kind: keys.norm_kind(), eps: keys.epsilon()? };
    let state = state(hidden, norm, recurs.iter().position(|&recurs| recurs).unwrap_or(0))?;
    let rope = keys.rope(of.rope_kind(keys), heads.head_dim, context, keys.find(ROPE_FACTORS))?;
    let scale = keys.positive("attention.scale")?;
    let mlp = mlp(keys)?;
    let residual_scale = keys.positive("residual_scale")?.unwrap_or(1.0);
    let plain = AttentionSpec { qk_norm: keys.form.qk_norm, ..AttentionSpec::causal(heads) };
    let attention = AttentionSpec { scale: scale.unwrap_or(plain.scale), ..plain };
    let layer = |index: usize| LayerSpec {
        order: NormOrder::Pre,
        attention: match recurs[index] {
            true => AttentionSpec::of_state(state),
            false => attention.clone(),
        },
        mlp: mlp(index),
        residual_scale,
    };
    let layers = (0..count).map(layer).collect();
    let logits = LogitsSpec {
        scale: 1.0 / keys.positive("logit_scale")?.unwrap_or(1.0),
        ..LogitsSpec::plain(!keys.has(Part::Head.weight()))
    };
    let spec = TransformerSpec {
        ropes: vec![rope],
        embedding_scale: keys.positive("embedding_scale")?.unwrap_or(1.0),
        head: HeadSpec::Logits(logits),
        ..TransformerSpec::bare(of.name, [vocab, hidden], layers, norm, context)
    };
    Ok((spec, heads))
}

/// Heads of the layers with attention, and the layers with states instead: those with no key-value heads.
pub(crate) fn hybrid_heads(
    keys: &Keys<'_>,
    hidden: usize,
    count: usize,
) -> Result<(HeadShape, Vec<bool>), LoadError> {
    const KV_HEADS: &str = "attention.head_count_kv";
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

/// State of Mamba 2's layers, with biases of its convolution if `first` has them.
pub(crate) fn mamba(keys: &Keys<'_>, eps: f32, first: usize) -> Result<StateSpec, LoadError> {
    let value_heads = keys.required("ssm.time_step_rank", HEADS_MAX)?;
    let inner = keys.required("ssm.inner_size", WIDTH_MAX)?;
    if !inner.is_multiple_of(value_heads) {
        let reason = format!("it is not whole heads, of which there are {value_heads}");
        return Err(keys.unsupported("ssm.inner_size", inner, &reason));
    }
    let shape = StateShape {
        rule: StateRule::Ssd,
        key_heads: keys.required("ssm.group_count", HEADS_MAX)?,
        value_heads,
        key_dim: keys.required("ssm.state_size", HEAD_DIM_MAX)?,
        value_dim: inner / value_heads,
        taps: keys.required("ssm.conv_kernel", StateShape::TAPS_MAX)?,
        tiled: false,
    };
    let biased = keys.has(Part::Layer(first, LayerPart::StateConvolution).bias());
    Ok(StateSpec { decay_as_log: false, ..StateSpec::ssd(shape, biased, eps) })
}

/// The MLP of each layer.
fn mlp(keys: &Keys<'_>) -> Result<Box<dyn Fn(usize) -> MlpSpec>, LoadError> {
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
                correction_bias: keys.has(Part::Layer(dense, LayerPart::Router).bias()),
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
