//! Windows of layers from settings.

use serde_json::Value;

use super::{Checks, ModelType, Windows};
use crate::error::LoadError;
use crate::limits::{CONTEXT_TOKENS_MAX, LAYERS_MAX};
use crate::spec::Config;

const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

/// Window of each layer.
pub(super) fn windows(of: &ModelType, config: &Config, layers: usize) -> Result<Vec<Option<u32>>, LoadError> {
    let if_used = matches!(of.windows, Windows::AllIfUsed | Windows::SomeIfUsed);
    let used =
        of.windows != Windows::Never && (!if_used || config.bool("use_sliding_window")?.unwrap_or(false));
    let window = if used { config.count("sliding_window", CONTEXT_TOKENS_MAX)? } else { None };
    let window = window.map(|window| window as u32);
    let layer_types = config.get("layer_types").filter(|types| !types.is_null());
    match (of.windows, layer_types) {
        (Windows::AllButEach(_) | Windows::SomeIfUsed, Some(types)) => {
            windows_by_type(config, types, window, layers)
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

/// Window of each layer by the names of their types.
pub(crate) fn windows_by_type(
    config: &Config,
    types: &Value,
    window: Option<u32>,
    layers: usize,
) -> Result<Vec<Option<u32>>, LoadError> {
    let types = types.as_array().map_or(&[][..], Vec::as_slice);
    if types.len() != layers {
        return Err(config.corrupt("layer_types", format!("{} types for {layers} layers", types.len())));
    }
    types
        .iter()
        .map(|layer_type| match layer_type.as_str() {
            Some(FULL) => Ok(None),
            Some(SLIDING) => Ok(window),
            _ => {
                Err(config.unsupported("layer_types", layer_type, format!("{FULL} and {SLIDING} are known")))
            }
        })
        .collect()
}
