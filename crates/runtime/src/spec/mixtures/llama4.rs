//! Texts of Llama 4. Most layers attend within chunks and have a rotary embedding; the others see the whole context,
//! have none, and their queries grow with position. Each token uses one expert and the shared expert.

use hanzo_engine_kernels::{ExpertScoring, QueryScale, RopeKind};
use serde_json::Value;

use super::{Base, rope};
use crate::error::LoadError;
use crate::limits::{CONTEXT_TOKENS_MAX, EXPERTS_MAX, LAYERS_MAX, WIDTH_MAX};
use crate::spec::{AttentionSpec, Config, ExpertsSpec, Mask, MlpSpec, QkNorm, SharedExpert, TransformerSpec};

pub(super) fn llama4(config: &Config) -> Result<TransformerSpec, LoadError> {
    let base = Base::read(config)?;
    let heads = base.heads(config)?;
    let turned = turned(config, base.layers)?;
    let chunked = chunked(config, &turned)?;
    let sparse = sparse(config, base.layers)?;
    let ffn = config.required("intermediate_size", WIDTH_MAX)?;
    let dense =
        if sparse.contains(&false) { config.required("intermediate_size_mlp", WIDTH_MAX)? } else { 0 };
    let experts = ExpertsSpec {
        activation: base.activation,
        scoring: ExpertScoring::Sigmoid,
        scales_input: true,
        shared: Some(SharedExpert { ffn, gate: false }),
        ..ExpertsSpec::softmax(
            config.required("num_local_experts", EXPERTS_MAX)?,
            config.required("num_experts_per_tok", EXPERTS_MAX)?,
            ffn,
            false,
        )
    };
    let query_scale = match config.bool("attn_temperature_tuning")?.unwrap_or(true) {
        true => Some(QueryScale {
            factor: config.f32("attn_scale")?.unwrap_or(0.1),
            every: config.count("floor_scale", CONTEXT_TOKENS_MAX)?.unwrap_or(8192) as u32,
            offset: 1,
        }),
        false => None,
    };
    let chunk = match config.settings.get("attention_chunk_size") {
        Some(Value::Null) => None,
        _ => Some(config.count("attention_chunk_size", CONTEXT_TOKENS_MAX)?.unwrap_or(8192) as u32),
    };
    let normed = config.bool("use_qk_norm")?.unwrap_or(true);
    let biased = config.bool("attention_bias")?.unwrap_or(false);
    let (rope, _) = rope(config, (RopeKind::Interleaved, heads.head_dim), (5e5, base.context))?;
    base.spec(config, "llama4_text", (rope, 1e-5), |layer| {
        let attention = AttentionSpec {
            mask: Mask::Causal { window: chunk.filter(|_| chunked[layer]) },
            chunked: chunk.is_some() && chunked[layer],
            qkv_bias: biased,
            output_bias: biased,
            qk_norm: if normed && turned[layer] { QkNorm::Unit } else { QkNorm::None },
            query_scale: query_scale.filter(|_| !turned[layer]),
            rope: turned[layer].then_some(0),
            ..AttentionSpec::causal(heads)
        };
        let mlp = match sparse[layer] {
            true => MlpSpec::Experts(experts),
            false => MlpSpec::gated(dense, base.activation),
        };
        (attention, mlp)
    })
}

/// Layers that rotate queries and keys: as a list says, 1 for those that do, or all but each nth.
fn turned(config: &Config, layers: usize) -> Result<Vec<bool>, LoadError> {
    const LIST: &str = "no_rope_layers";
    match config.typed(LIST, "a list", Value::as_array)?.filter(|list| !list.is_empty()) {
        Some(list) if list.len() == layers => {
            Ok(list.iter().map(|turns| turns.as_u64() == Some(1)).collect())
        }
        Some(list) => Err(config.corrupt(LIST, format!("{} numbers for {layers} layers", list.len()))),
        None => {
            let each = config.count("no_rope_layer_interval", LAYERS_MAX)?.unwrap_or(4);
            Ok((1..=layers).map(|layer| !layer.is_multiple_of(each)).collect())
        }
    }
}

/// Layers with chunked attention: as a list says, or those with rotation.
fn chunked(config: &Config, turned: &[bool]) -> Result<Vec<bool>, LoadError> {
    const LIST: &str = "layer_types";
    let Some(types) = config.typed(LIST, "a list", Value::as_array)? else { return Ok(turned.to_vec()) };
    if types.len() != turned.len() {
        return Err(config.corrupt(LIST, format!("{} types for {} layers", types.len(), turned.len())));
    }
    let sees_chunk = types.iter().map(|layer_type| match layer_type.as_str() {
        Some("chunked_attention") => Ok(true),
        Some("full_attention") => Ok(false),
        _ => {
            let reason = "chunked_attention and full_attention are known";
            Err(config.unsupported(LIST, layer_type, reason))
        }
    });
    sees_chunk.collect()
}

/// Layers that are mixtures: as a list says, or each nth.
fn sparse(config: &Config, layers: usize) -> Result<Vec<bool>, LoadError> {
    const LIST: &str = "moe_layers";
    let Some(list) = config.typed(LIST, "a list of layers", Value::as_array)? else {
        let each = config.count("interleave_moe_layer_step", LAYERS_MAX)?.unwrap_or(1);
        return Ok((1..=layers).map(|layer| layer.is_multiple_of(each)).collect());
    };
    let mut sparse = vec![false; layers];
    for value in list {
        let layer = value.as_u64().and_then(|layer| usize::try_from(layer).ok());
        let Some(is_sparse) = layer.and_then(|layer| sparse.get_mut(layer)) else {
            return Err(config.corrupt(LIST, format!("{value} is not one of {layers} layers")));
        };
        *is_sparse = true;
    }
    Ok(sparse)
}
