//! Layers with recurrent states from metadata.

use hanzo_engine_model_files::error::LoadError;
use hanzo_engine_ops::{Activation, ExpertScoring, HeadShape};

use super::Keys;
use crate::limits::{EXPERTS_MAX, HEAD_DIM_MAX, HEADS_MAX, LAYERS_MAX, WIDTH_MAX};
use crate::spec::{ExpertsSpec, LayerPart, MlpSpec, Part, SharedExpert};

/// Heads of the layers with attention, and the layers with states instead: those with no key-value heads.
pub(crate) fn hybrid_heads(keys: &Keys<'_>, hidden: usize) -> Result<(HeadShape, Vec<bool>), LoadError> {
    let [_, count] = keys.layers()?;
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

/// The MLP of each layer.
pub(crate) fn mlps(keys: &Keys<'_>) -> Result<Box<dyn Fn(usize) -> MlpSpec>, LoadError> {
    let ffn = keys.required("feed_forward_length", WIDTH_MAX)?;
    let dense = keys.whole("leading_dense_block_count", LAYERS_MAX)?.unwrap_or(0);
    let experts = match keys.whole("expert_count", EXPERTS_MAX)?.filter(|&count| count > 0) {
        None => None,
        Some(count) => {
            let own = keys.count("expert_feed_forward_length", WIDTH_MAX)?.unwrap_or(ffn);
            let shared = keys.whole("expert_shared_feed_forward_length", WIDTH_MAX)?.unwrap_or(0);
            let scoring = keys.scoring()?.unwrap_or(ExpertScoring::Softmax);
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
