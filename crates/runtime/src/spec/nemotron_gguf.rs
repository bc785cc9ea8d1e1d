//! Nemotron-H in GGUF files, as written by llama.cpp's converter: its lists number attention, states and MLPs as
//! separate layers.

use hanzo_engine_kernels::{Activation, ExpertGroups, ExpertScoring};

use super::gguf::Keys;
use super::hybrids_gguf::{heads, mamba};
use super::mixtures::nemotron::{Half, dense, joined};
use super::{
    AttentionSpec, ExpertsSpec, HeadSpec, LayerSpec, MlpSpec, NormKind, NormOrder, NormSpec, SharedExpert,
    StateSpec, TransformerSpec,
};
use crate::error::LoadError;
use crate::limits::{CONTEXT_TOKENS_MAX, EXPERT_GROUPS_MAX, EXPERTS_MAX, LAYERS_MAX, WIDTH_MAX};

const FFN: &str = "feed_forward_length";

/// Reads a file of `nemotron_h` or `nemotron_h_moe` with so many rows of embeddings. `has` tells whether a tensor
/// exists.
pub(super) fn from_gguf(
    keys: &Keys<'_>,
    [vocab, hidden]: [usize; 2],
    has: &impl Fn(&str) -> bool,
) -> Result<TransformerSpec, LoadError> {
    let moe = keys.architecture == "nemotron_h_moe";
    let all = keys.required("block_count", LAYERS_MAX)?;
    let more = keys.whole("nextn_predict_layers", LAYERS_MAX)?.unwrap_or(0);
    if more >= all {
        return Err(keys.unsupported("nextn_predict_layers", more, "there would be no layer before them"));
    }
    let (heads, without_heads) = heads(keys, hidden, all)?;
    let widths = keys.metadata.integers(&keys.key(FFN))?;
    let Some(widths) = widths.filter(|widths| widths.len() == all) else {
        return Err(keys.unsupported(FFN, "another list", "a number for each layer is known"));
    };
    let half = |(&width, &without): (&i64, &bool)| match (width, without) {
        (0, true) => Half::State,
        (0, false) => Half::Attention,
        _ if moe => Half::Experts,
        _ => Half::Dense,
    };
    let halves: Vec<Half> = widths.iter().zip(&without_heads).map(half).take(all - more).collect();
    let layers = joined(&halves).map_err(|number| {
        keys.unsupported(FFN, number, "an MLP follows what attends or keeps a state, and no other MLP")
    })?;
    let norm = NormSpec { kind: NormKind::Rms { from_one: false }, eps: keys.epsilon()? };
    let first = halves.iter().position(|&half| half == Half::State).unwrap_or(0);
    let biased = has(&format!("blk.{first}.ssm_conv1d.bias"));
    let state = StateSpec { decay_as_log: false, ..StateSpec::ssd(mamba(keys)?, biased, norm.eps) };
    let experts = if moe { Some(experts(keys)?) } else { None };
    let ffn = widths.iter().copied().find(|&width| width != 0).unwrap_or(0);
    let ffn = usize::try_from(ffn).ok().filter(|&ffn| ffn <= WIDTH_MAX);
    let alike = widths.iter().all(|&width| width == 0 || usize::try_from(width).ok() == ffn);
    let Some(ffn) = ffn.filter(|_| alike) else {
        return Err(keys.unsupported(FFN, format!("{widths:?}"), "all MLPs must have the same"));
    };
    let layers = layers.iter().map(|&(first, mlp)| LayerSpec {
        order: NormOrder::Pre,
        attention: match first {
            Half::State => AttentionSpec::of_state(state),
            _ => AttentionSpec { rope: None, ..AttentionSpec::causal(heads) },
        },
        mlp: match (mlp, experts) {
            (None, _) => MlpSpec::None,
            (Some(_), Some(experts)) => MlpSpec::Experts(experts),
            (Some(_), None) => dense(ffn),
        },
        residual_scale: 1.0,
    });
    let context = keys.required("context_length", CONTEXT_TOKENS_MAX)?;
    TransformerSpec {
        head: HeadSpec::plain(!has("output.weight")),
        ..TransformerSpec::bare(keys.architecture, [vocab, hidden], layers.collect(), norm, context)
    }
    .checked(keys.metadata.file())
}

fn experts(keys: &Keys<'_>) -> Result<ExpertsSpec, LoadError> {
    let groups = keys.whole("expert_group_count", EXPERT_GROUPS_MAX)?.filter(|&groups| groups > 1);
    let used = keys.whole("expert_group_used_count", EXPERT_GROUPS_MAX)?.unwrap_or(1);
    if let Some(other) = keys.whole("expert_gating_func", 4)?.filter(|&func| func != 0 && func != 2) {
        return Err(keys.unsupported("expert_gating_func", other, "2 is known"));
    }
    Ok(ExpertsSpec {
        activation: Activation::ReluSquared,
        gated: false,
        scoring: ExpertScoring::Sigmoid,
        scale: keys.positive("expert_weights_scale")?.unwrap_or(1.0),
        correction_bias: true,
        groups: groups.map(|count| ExpertGroups { count, used, best: 2 }),
        shared: Some(SharedExpert {
            ffn: keys.required("expert_shared_feed_forward_length", WIDTH_MAX)?,
            gate: false,
        }),
        ..ExpertsSpec::softmax(
            keys.required("expert_count", EXPERTS_MAX)?,
            keys.required("expert_used_count", EXPERTS_MAX)?,
            keys.required("expert_feed_forward_length", WIDTH_MAX)?,
            keys.metadata.bool(&keys.key("expert_weights_norm"))?.unwrap_or(false),
        )
    })
}
