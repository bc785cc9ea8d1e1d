//! Hybrid decoders, most of whose layers have recurrent states and few have attention: Granite 4 and Bamba with Mamba
//! 2's states, and LFM2 with short convolutions.

use hanzo_engine_kernels::{Activation, ExpertScoring, HeadShape, RopeKind, StateRule, StateShape};
use serde_json::Value;

use super::{Base, Read, rope, turned};
use crate::error::LoadError;
use crate::limits::{EXPERTS_MAX, HEAD_DIM_MAX, HEADS_MAX, LAYERS_MAX, WIDTH_MAX};
use crate::spec::{
    AttentionSpec, Config, ExpertsSpec, HeadSpec, LogitsSpec, MlpSpec, NormSpec, QkNorm, SharedExpert,
    StateSpec, TransformerSpec,
};

pub(super) const FAMILIES: &[(&str, &str, Read)] = &[
    ("granitemoehybrid", "GraniteMoeHybridForCausalLM", granite),
    ("bamba", "BambaForCausalLM", bamba),
    ("nemotron_h", "NemotronHForCausalLM", super::nemotron::nemotron),
    ("lfm2", "Lfm2ForCausalLM", lfm2),
    ("lfm2_moe", "Lfm2MoeForCausalLM", lfm2_moe),
];

/// Refuses settings that are true.
pub(super) fn refuse_true(config: &Config, keys: &[&str]) -> Result<(), LoadError> {
    for &key in keys {
        if config.bool(key)? == Some(true) {
            return Err(config.unsupported(key, true, "of this family only false is known"));
        }
    }
    Ok(())
}

/// Refuses bounds on the step of a state.
pub(super) fn refuse_steps(config: &Config) -> Result<(), LoadError> {
    // The upper end is infinite, which is no number in JSON.
    if let Some(limits) = config.get("time_step_limit").filter(|limits| !limits.is_null())
        && (limits.get(0).and_then(Value::as_f64) != Some(0.0) || limits.get(1).is_none_or(Value::is_number))
    {
        return Err(config.unsupported("time_step_limit", limits, "from 0 on without an end is known"));
    }
    Ok(())
}

/// State of Mamba 2's layers, from settings named separately from attention's.
pub(super) fn mamba(config: &Config, base: &Base, eps: f32) -> Result<StateSpec, LoadError> {
    refuse_true(config, &["attention_bias", "mamba_proj_bias"])?;
    if base.activation != Activation::Silu {
        let name = config.string("hidden_act")?.unwrap_or_default();
        return Err(config.unsupported("hidden_act", name, "convolutions through silu are known"));
    }
    refuse_steps(config)?;
    let value_heads = config.required("mamba_n_heads", HEADS_MAX)?;
    let inner = match config.count("mamba_d_ssm", WIDTH_MAX)? {
        Some(inner) => inner,
        None => config.count("mamba_expand", WIDTH_MAX)?.unwrap_or(2).saturating_mul(base.hidden),
    };
    let value_dim = match config.get("mamba_d_head") {
        None => inner / value_heads,
        Some(Value::String(auto)) if auto == "auto" => inner / value_heads,
        Some(_) => config.required("mamba_d_head", HEAD_DIM_MAX)?,
    };
    if value_heads * value_dim != inner {
        let reason = format!("{value_heads} heads of {value_dim} for a width of {inner}");
        return Err(config.corrupt("mamba_n_heads", reason));
    }
    let shape = StateShape {
        rule: StateRule::Ssd,
        key_heads: config.count("mamba_n_groups", HEADS_MAX)?.unwrap_or(1),
        value_heads,
        key_dim: config.required("mamba_d_state", HEAD_DIM_MAX)?,
        value_dim,
        taps: config.required("mamba_d_conv", StateShape::TAPS_MAX)?,
        tiled: false,
    };
    Ok(StateSpec::ssd(shape, config.bool("mamba_conv_bias")?.unwrap_or(true), eps))
}

const TYPES: &str = "layer_types";

/// Layers with states, by the names of their types: one of the first names for those, one of the second for others.
fn layers_by_type(
    config: &Config,
    key: &str,
    layers: usize,
    (recurrent, attending): (&[&str], &[&str]),
) -> Result<Option<Vec<bool>>, LoadError> {
    let Some(types) = config.typed(key, "a list", Value::as_array)? else { return Ok(None) };
    if types.len() != layers {
        return Err(config.corrupt(key, format!("{} types for {layers} layers", types.len())));
    }
    let recurs = |of: &Value| match of.as_str() {
        Some(of) if recurrent.contains(&of) => Ok(true),
        Some(of) if attending.contains(&of) => Ok(false),
        _ => Err(config.unsupported(
            key,
            of,
            format!("{} are known", [recurrent, attending].concat().join(", ")),
        )),
    };
    types.iter().map(recurs).collect::<Result<_, _>>().map(Some)
}

/// Layers with states: all except those in a list.
fn all_but(config: &Config, key: &str, layers: usize) -> Result<Option<Vec<bool>>, LoadError> {
    let Some(list) = config.typed(key, "a list of layers", Value::as_array)? else { return Ok(None) };
    let mut recurs = vec![true; layers];
    for value in list {
        let layer = value.as_u64().and_then(|layer| usize::try_from(layer).ok());
        let Some(recurs) = layer.and_then(|layer| recurs.get_mut(layer)) else {
            return Err(config.corrupt(key, format!("{value} is not one of {layers} layers")));
        };
        *recurs = false;
    }
    Ok(Some(recurs))
}

fn granite(config: &Config) -> Result<TransformerSpec, LoadError> {
    let base = Base::read(config)?;
    let turns = match config.string("position_embedding_type")? {
        Some("rope") => true,
        None | Some("nope") => false,
        Some(other) => {
            return Err(config.unsupported("position_embedding_type", other, "rope and nope are known"));
        }
    };
    let heads = base.heads(config)?;
    let known: (&[&str], &[&str]) = (&["mamba", "linear_attention"], &["attention", "full_attention"]);
    let recurs = match layers_by_type(config, TYPES, base.layers, known)? {
        Some(recurs) => recurs,
        None => layers_by_type(config, "layers_block_type", base.layers, known)?
            .unwrap_or_else(|| vec![true; base.layers]),
    };
    let ffn = config.required("shared_intermediate_size", WIDTH_MAX)?;
    let mlp = match config.whole("num_local_experts", EXPERTS_MAX)?.unwrap_or(0) {
        0 => MlpSpec::gated(ffn, base.activation),
        count => MlpSpec::Experts(ExpertsSpec {
            shared: Some(SharedExpert { ffn, gate: false }),
            ..ExpertsSpec::softmax(
                count,
                config.required("num_experts_per_tok", EXPERTS_MAX)?,
                config.required("intermediate_size", WIDTH_MAX)?,
                true,
            )
        }),
    };
    let multiplier = |key| Ok::<_, LoadError>(config.positive(key)?.unwrap_or(1.0));
    let (scale, residual) = (multiplier("attention_multiplier")?, multiplier("residual_multiplier")?);
    let (rope, _) = rope(config, (RopeKind::Neox, heads.head_dim), (1e4, base.context))?;
    let eps = config.positive("rms_norm_eps")?.unwrap_or(1e-6);
    let state = mamba(config, &base, eps)?;
    let spec = base.spec(config, "granitemoehybrid", (rope, eps), |layer| {
        let attention = match recurs[layer] {
            true => AttentionSpec::of_state(state),
            false => AttentionSpec { rope: turns.then_some(0), scale, ..AttentionSpec::causal(heads) },
        };
        (attention, mlp.clone())
    })?;
    let scale = 1.0 / multiplier("logits_scaling")?;
    let head = LogitsSpec { scale, ..LogitsSpec::plain(spec.head.tied()) };
    Ok(TransformerSpec {
        embedding_scale: multiplier("embedding_multiplier")?,
        head: HeadSpec::Logits(head),
        ..spec.with_layers(|_, layer| layer.residual_scale = residual)
    })
}

fn bamba(config: &Config) -> Result<TransformerSpec, LoadError> {
    let base = Base::read(config)?;
    let heads = base.heads(config)?;
    let recurs =
        all_but(config, "attn_layer_indices", base.layers)?.unwrap_or_else(|| vec![true; base.layers]);
    let mlp = MlpSpec::gated(config.required("intermediate_size", WIDTH_MAX)?, base.activation);
    let dim = turned(config, heads.head_dim, 0.5)?;
    let (rope, _) = rope(config, (RopeKind::Neox, dim), (1e4, base.context))?;
    let eps = config.positive("rms_norm_eps")?.unwrap_or(1e-5);
    let state = mamba(config, &base, eps)?;
    base.spec(config, "bamba", (rope, eps), |layer| {
        let attention = match recurs[layer] {
            true => AttentionSpec::of_state(state),
            false => AttentionSpec::causal(heads),
        };
        (attention, mlp.clone())
    })
}

/// Layers of LFM2 with convolutions.
fn convolving(config: &Config, layers: usize) -> Result<Vec<bool>, LoadError> {
    let by_type = layers_by_type(config, TYPES, layers, (&["conv"], &["full_attention"]))?;
    match by_type {
        Some(by_type) => Ok(by_type),
        None => Ok(all_but(config, "full_attn_idxs", layers)?.unwrap_or_else(|| vec![false; layers])),
    }
}

/// An LFM2 with these MLPs.
fn convolutions(
    config: &Config,
    base: &Base,
    family: &str,
    mlp: impl Fn(usize) -> MlpSpec,
) -> Result<TransformerSpec, LoadError> {
    refuse_true(config, &["conv_bias"])?;
    let heads: HeadShape = base.heads(config)?;
    let taps = config.count("conv_L_cache", StateShape::TAPS_MAX)?.unwrap_or(3);
    let state = StateSpec::convolution(base.hidden, taps);
    let convolves = convolving(config, base.layers)?;
    let (rope, _) = rope(config, (RopeKind::Neox, heads.head_dim), (1e6, base.context))?;
    let eps = config.positive("norm_eps")?.unwrap_or(1e-5);
    let spec = base.spec(config, family, (rope, eps), |layer| {
        let attention = match convolves[layer] {
            true => AttentionSpec::of_state(state),
            false => AttentionSpec { qk_norm: QkNorm::Heads, ..AttentionSpec::causal(heads) },
        };
        (attention, mlp(layer))
    })?;
    let tied = match config.bool("tie_embedding")? {
        Some(tied) => tied,
        None => config.bool("tie_word_embeddings")?.unwrap_or(true),
    };
    let norm = NormSpec { eps, ..spec.norm };
    Ok(TransformerSpec { norm, head: HeadSpec::plain(tied), ..spec })
}

fn lfm2(config: &Config) -> Result<TransformerSpec, LoadError> {
    let base = Base::read(config)?;
    let mut ffn = match config.count("block_ff_dim", WIDTH_MAX)? {
        Some(ffn) => ffn,
        None => config.required("intermediate_size", WIDTH_MAX)?,
    };
    if config.bool("block_auto_adjust_ff_dim")?.unwrap_or(true) {
        ffn = 2 * ffn / 3;
        let multiplier = match config.get("block_ffn_dim_multiplier") {
            Some(Value::Null) => None,
            _ => Some(config.positive("block_ffn_dim_multiplier")?.unwrap_or(1.0)),
        };
        if let Some(multiplier) = multiplier {
            let multiple = config.count("block_multiple_of", WIDTH_MAX)?.unwrap_or(256);
            ffn = ((f64::from(multiplier) * ffn as f64) as usize).next_multiple_of(multiple);
        }
    }
    if !(1..=WIDTH_MAX).contains(&ffn) {
        return Err(config.corrupt("intermediate_size", format!("an MLP of {ffn} elements")));
    }
    convolutions(config, &base, "lfm2", |_| MlpSpec::gated(ffn, base.activation))
}

fn lfm2_moe(config: &Config) -> Result<TransformerSpec, LoadError> {
    let base = Base::read(config)?;
    let dense = config.whole("num_dense_layers", LAYERS_MAX)?.unwrap_or(2);
    let ffn = if dense > 0 { config.required("intermediate_size", WIDTH_MAX)? } else { 0 };
    let experts = ExpertsSpec {
        scoring: ExpertScoring::Sigmoid,
        scale: config.positive("routed_scaling_factor")?.unwrap_or(1.0),
        correction_bias: config.bool("use_expert_bias")?.unwrap_or(true),
        ..ExpertsSpec::softmax(
            config.required("num_experts", EXPERTS_MAX)?,
            config.required("num_experts_per_tok", EXPERTS_MAX)?,
            config.required("moe_intermediate_size", WIDTH_MAX)?,
            config.bool("norm_topk_prob")?.unwrap_or(true),
        )
    };
    convolutions(config, &base, "lfm2_moe", |layer| match layer < dense {
        true => MlpSpec::gated(ffn, base.activation),
        false => MlpSpec::Experts(experts),
    })
}
