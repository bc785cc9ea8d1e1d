//! Changes that families make to settings before they are read, and to specs afterwards.

use hanzo_engine_model_files::error::LoadError;
use serde_json::Value;

use crate::limits::WIDTH_MAX;
use crate::spec::{
    Alibi, Config, Distance, HeadSpec, LogitsSpec, NormOrder, PositionTable, QkNorm, RopeSpec,
    TransformerSpec,
};

/// Renames settings to the usual names, unless those are set.
pub(crate) fn rename(config: &mut Config, names: &[(&str, &str)]) {
    for &(theirs, usual) in names {
        if config.get(usual).is_none_or(Value::is_null)
            && let Some(value) = config.get(theirs).cloned()
        {
            config.set(usual, value);
        }
    }
}

/// Sets the MLP's width to four times the hidden size, if the settings give none.
pub(crate) fn set_ffn(config: &mut Config) -> Result<(), LoadError> {
    if config.count("intermediate_size", WIDTH_MAX)?.is_none() {
        config.set("intermediate_size", (4 * config.required("hidden_size", WIDTH_MAX)?).into());
    }
    Ok(())
}

/// A setting that is `None` if null, and the default if absent.
pub(crate) fn unless_null(config: &Config, key: &str, usual: Option<f32>) -> Result<Option<f32>, LoadError> {
    match config.settings.get(key) {
        Some(Value::Null) => Ok(None),
        _ => Ok(config.positive(key)?.or(usual)),
    }
}

/// Refuses settings that are true.
pub(crate) fn refuse_true(config: &Config, keys: &[&str]) -> Result<(), LoadError> {
    keys.iter().try_for_each(|&key| refuse_unless(config, key, false))
}

/// Refuses a setting that would make another model of a family, unless it has the family's fixed value.
pub(crate) fn refuse_unless(config: &Config, key: &str, known: bool) -> Result<(), LoadError> {
    match config.bool(key)? {
        Some(value) if value != known => {
            Err(config.unsupported(key, value, format!("of this family only {known} is known")))
        }
        _ => Ok(()),
    }
}

/// Refuses a setting unless it is absent or this name.
pub(crate) fn refuse_unless_named(config: &Config, key: &str, known: &str) -> Result<(), LoadError> {
    match config.string(key)? {
        Some(value) if value != known => Err(config.unsupported(key, value, format!("{known} is known"))),
        _ => Ok(()),
    }
}

/// Sets the factor on logits and their soft cap.
pub(crate) fn set_logits(spec: &mut TransformerSpec, scale: f32, softcap: Option<f32>) {
    spec.head = HeadSpec::Logits(LogitsSpec { scale, softcap, ..LogitsSpec::plain(spec.head.tied()) });
}

pub(crate) fn set_order(spec: &mut TransformerSpec, order: NormOrder) {
    spec.layers.iter_mut().for_each(|layer| layer.order = order);
}

/// Gives each head of queries and of keys a separate norm.
pub(crate) fn norm_heads_apart(spec: &mut TransformerSpec) {
    spec.layers.iter_mut().for_each(|layer| layer.attention.qk_norm = QkNorm::HeadsApart);
}

/// Disables rotation in layers without a window.
pub(crate) fn turn_windows_alone(spec: &mut TransformerSpec) {
    for layer in &mut spec.layers {
        layer.attention.rope = layer.attention.window().map(|_| 0);
    }
}

/// Gives layers with a window a rotation of their own.
pub(crate) fn turn_windows_apart(spec: &mut TransformerSpec, local: RopeSpec) {
    spec.ropes.push(local);
    for layer in &mut spec.layers {
        layer.attention.rope = Some(usize::from(layer.attention.window().is_some()));
    }
}

/// Replaces rotation by ALiBi.
pub(crate) fn set_alibi(spec: &mut TransformerSpec, alibi: Alibi) {
    spec.distance = Distance::Alibi(alibi);
    turn_nothing(spec);
}

/// Replaces rotation by a table with a row for each position, from row `offset` on.
pub(crate) fn learn_positions(spec: &mut TransformerSpec, offset: u32) {
    let rows = (spec.context_tokens_max + offset) as usize;
    spec.positions = Some(PositionTable { rows, offset });
    turn_nothing(spec);
}

fn turn_nothing(spec: &mut TransformerSpec) {
    spec.ropes.clear();
    spec.layers.iter_mut().for_each(|layer| layer.attention.rope = None);
}
