//! Settings of layers: windows, types, lists of layers, and Mamba 2's states.

use hanzo_engine_model_files::error::LoadError;
use serde_json::Value;

use super::{Checks, ModelType, Windows, refuse_true};
use crate::limits::{CONTEXT_TOKENS_MAX, LAYERS_MAX};
use crate::spec::Config;

const FULL: &str = "full_attention";

/// Window of each layer.
pub(super) fn windows(of: &ModelType, config: &Config, layers: usize) -> Result<Vec<Option<u32>>, LoadError> {
    let if_used = matches!(of.windows, Windows::AllIfUsed | Windows::SomeIfUsed);
    let used =
        of.windows != Windows::Never && (!if_used || config.bool("use_sliding_window")?.unwrap_or(false));
    let window = if used { config.count("sliding_window", CONTEXT_TOKENS_MAX)? } else { None };
    let window = window.map(|window| window as u32);
    let layer_types = config.get("layer_types").filter(|types| !types.is_null());
    match (of.windows, layer_types) {
        (Windows::AllButEach(_) | Windows::SomeIfUsed, Some(_)) => {
            Ok(windows_by_type(config, window, layers)?.unwrap_or_default())
        }
        (Windows::SomeIfUsed, None) => {
            let first = config.whole("max_window_layers", LAYERS_MAX)?.unwrap_or(28);
            Ok((0..layers).map(|layer| window.filter(|_| layer >= first)).collect())
        }
        (Windows::AllButEach(usual), None) => {
            let pattern = match config.get("sliding_window_pattern") {
                // One letter a layer, the last of which has no window: LLLG.
                Some(Value::String(letters)) => letters.len().max(1),
                _ => config.count("sliding_window_pattern", LAYERS_MAX)?.unwrap_or(usual),
            };
            Ok((1..=layers).map(|layer| window.filter(|_| !layer.is_multiple_of(pattern))).collect())
        }
        (_, Some(types)) if of.checks == Checks::Llama && (window.is_some() || !all_full(types)) => {
            Err(config.unsupported("layer_types", types, "this family has one type of layer"))
        }
        _ => Ok(vec![window; layers]),
    }
}

fn all_full(types: &Value) -> bool {
    types.as_array().is_some_and(|types| types.iter().all(|layer_type| layer_type == FULL))
}

/// Window of each layer by the names in `layer_types`.
pub(crate) fn windows_by_type(
    config: &Config,
    window: Option<u32>,
    layers: usize,
) -> Result<Option<Vec<Option<u32>>>, LoadError> {
    let full = layers_by_type(config, "layer_types", layers, &[FULL], &["sliding_attention"])?;
    Ok(full.map(|full| full.into_iter().map(|is_full| window.filter(|_| !is_full)).collect()))
}

/// Layers by the names of their types: whether it is one of the first names, not of the second.
pub(crate) fn layers_by_type(
    config: &Config,
    key: &str,
    layers: usize,
    these: &[&str],
    others: &[&str],
) -> Result<Option<Vec<bool>>, LoadError> {
    let Some(types) = config.typed(key, "a list", Value::as_array)? else { return Ok(None) };
    if types.len() != layers {
        return Err(config.corrupt(key, format!("{} types for {layers} layers", types.len())));
    }
    let is_these = |of: &Value| match of.as_str() {
        Some(of) if these.contains(&of) => Ok(true),
        Some(of) if others.contains(&of) => Ok(false),
        _ => Err(config.unsupported(key, of, format!("{} are known", listed(&[these, others].concat())))),
    };
    types.iter().map(is_these).collect::<Result<_, _>>().map(Some)
}

fn listed(names: &[&str]) -> String {
    match names.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => String::new(),
    }
}

/// Layers in a list of their numbers.
pub(crate) fn layers_in(config: &Config, key: &str, layers: usize) -> Result<Option<Vec<bool>>, LoadError> {
    let Some(list) = config.typed(key, "a list of layers", Value::as_array)? else { return Ok(None) };
    let mut is_in = vec![false; layers];
    for value in list {
        let layer = value.as_u64().and_then(|layer| usize::try_from(layer).ok());
        let Some(is_in) = layer.and_then(|layer| is_in.get_mut(layer)) else {
            return Err(config.corrupt(key, format!("{value} is not one of {layers} layers")));
        };
        *is_in = true;
    }
    Ok(Some(is_in))
}

/// Sparse layers: every `decoder_sparse_step`th, except those that `mlp_only_layers` names.
pub(crate) fn sparse_layers(config: &Config, layers: usize) -> Result<Vec<bool>, LoadError> {
    let step = config.count("decoder_sparse_step", LAYERS_MAX)?.unwrap_or(1);
    let dense = layers_in(config, "mlp_only_layers", layers)?.unwrap_or_else(|| vec![false; layers]);
    Ok((1..=layers).zip(dense).map(|(number, dense)| number.is_multiple_of(step) && !dense).collect())
}

/// Layers that rotate queries and keys: as a list says, 1 for those that do, or all but each nth.
pub(crate) fn rotated_layers(config: &Config, layers: usize) -> Result<Vec<bool>, LoadError> {
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

/// Settles the settings of Mamba 2's layers among others.
pub(crate) fn settle_mamba(config: &mut Config) -> Result<(), LoadError> {
    refuse_true(config, &["attention_bias", "mamba_proj_bias"])?;
    if let Some(other) = config.string("hidden_act")?.filter(|named| !["silu", "swish"].contains(named)) {
        return Err(config.unsupported("hidden_act", other, "convolutions through silu are known"));
    }
    refuse_steps(config)?;
    if config.get("mamba_d_head").is_some_and(|value| value == "auto") {
        config.set("mamba_d_head", Value::Null);
    }
    Ok(())
}
