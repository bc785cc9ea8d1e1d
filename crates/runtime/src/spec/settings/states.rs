//! Layers with Mamba 2's recurrent states from settings, and the layers that have states.

use hanzo_engine_kernels::{Activation, StateRule, StateShape};
use serde_json::Value;

use super::{Base, refuse_true};
use crate::error::LoadError;
use crate::limits::{HEAD_DIM_MAX, HEADS_MAX, WIDTH_MAX};
use crate::spec::{Config, StateSpec};

/// Refuses bounds on the step of a state.
pub(crate) fn refuse_steps(config: &Config) -> Result<(), LoadError> {
    // The upper end is infinite, which is no number in JSON.
    if let Some(limits) = config.get("time_step_limit").filter(|limits| !limits.is_null())
        && (limits.get(0).and_then(Value::as_f64) != Some(0.0) || limits.get(1).is_none_or(Value::is_number))
    {
        return Err(config.unsupported("time_step_limit", limits, "from 0 on without an end is known"));
    }
    Ok(())
}

/// State of Mamba 2's layers, from settings named separately from attention's.
pub(crate) fn mamba(base: &Base<'_>, eps: f32) -> Result<StateSpec, LoadError> {
    let config = base.config;
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

/// Layers with states, by the names of their types: one of the first names for those, one of the second for others.
pub(crate) fn layers_by_type(
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
            format!("{} are known", listed(&[recurrent, attending].concat())),
        )),
    };
    types.iter().map(recurs).collect::<Result<_, _>>().map(Some)
}

/// Layers with states: all except those in a list.
pub(crate) fn all_but(config: &Config, key: &str, layers: usize) -> Result<Option<Vec<bool>>, LoadError> {
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

fn listed(names: &[&str]) -> String {
    match names.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => String::new(),
    }
}
