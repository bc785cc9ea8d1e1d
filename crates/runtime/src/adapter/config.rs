//! Settings in `adapter_config.json` (huggingface.co/docs/peft, `LoraConfig`). Those that would make an adapter
//! compute something unsupported are refused by name.

use serde_json::Value;

use crate::error::LoadError;
use crate::limits::{ADAPTER_PATTERNS_MAX, ADAPTER_RANK_MAX};
use crate::spec::{Config, Part, Weight};
use crate::tensor::Tensor;

use super::delta::FileDelta;
use super::refused;

/// Settings that do not change the computation.
const OF_NO_ACCOUNT: &[&str] = &[
    "arrow_config",
    "auto_mapping",
    "base_model_name_or_path",
    "bias",
    "corda_config",
    "eva_config",
    "ensure_weight_tying",
    "exclude_modules",
    // Implied by the class of each module; PEFT resets it if it does not apply.
    "fan_in_fan_out",
    "inference_mode",
    "init_lora_weights",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_alpha",
    "lora_bias",
    "lora_dropout",
    "megatron_config",
    "megatron_core",
    // Saved modules are tensors under the names of the model's.
    "modules_to_save",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "r",
    "rank_pattern",
    "alpha_pattern",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
    "use_dora",
    "use_rslora",
];

/// Prefixes of initialisations that also change the model's weights.
const CHANGES_MODEL: &[&str] = &["pissa", "olora", "corda", "loftq", "lora_ga"];

/// Settings of an adapter.
pub(super) struct Settings {
    rank: usize,
    alpha: f32,
    by_root: bool,                 // scaled by the square root of the rank
    magnitudes: bool,              // DoRA: each pair has one
    ties: bool,                    // whether a tied head follows the change of embeddings
    rank_of: Vec<(String, usize)>, // of modules by pattern
    alpha_of: Vec<(String, f32)>,  // of modules by pattern
    targets: Option<Vec<String>>,  // none: given by a pattern, or all
    layers: Option<Vec<usize>>,    // none: all
}

impl Settings {
    /// Reads and checks the settings.
    ///
    /// # Errors
    /// A setting that cannot be honoured, by its name.
    pub(super) fn read(config: Config) -> Result<Self, LoadError> {
        match config.string("peft_type")? {
            None => return Err(config.missing("peft_type")),
            Some("LORA") => {}
            Some(other) => return Err(config.unsupported("peft_type", other, "LORA can be computed")),
        }
        match config.get("bias") {
            None => {}
            Some(Value::String(bias)) if matches!(bias.as_str(), "none" | "all" | "lora_only") => {}
            Some(other) => {
                return Err(config.unsupported("bias", other, "none, all and lora_only are known"));
            }
        }
        if let Some(Value::String(way)) = config.get("init_lora_weights")
            && CHANGES_MODEL.iter().any(|beginning| way.to_lowercase().starts_with(beginning))
        {
            let reason = "it changes the model's own weights; convert it to a plain adapter when it is saved";
            return Err(config.unsupported("init_lora_weights", way, reason));
        }
        for (key, value) in &config.settings {
            let says_nothing = match value {
                Value::Null | Value::Bool(false) => true,
                Value::Array(list) => list.is_empty(),
                Value::Object(entries) => entries.is_empty(),
                Value::Number(_) | Value::String(_) | Value::Bool(true) => false,
            };
            if !says_nothing && !OF_NO_ACCOUNT.contains(&key.as_str()) {
                return Err(config.unsupported(key, value, "adapters cannot be computed with it"));
            }
        }
        let by_root = config.bool("use_rslora")?.unwrap_or(false);
        let magnitudes = config.bool("use_dora")?.unwrap_or(false);
        if magnitudes && config.bool("lora_bias")?.unwrap_or(false) {
            return Err(config.unsupported("lora_bias", "true", "PEFT knows no biases of B with use_dora"));
        }
        let rank = config.required("r", ADAPTER_RANK_MAX)?;
        let alpha = config.f32("lora_alpha")?.ok_or_else(|| config.missing("lora_alpha"))?;
        let (rank_of, alpha_of) = (patterns(&config, "rank_pattern")?, patterns(&config, "alpha_pattern")?);
        let rank_of = rank_of.into_iter().map(|(name, value)| match value.as_u64() {
            Some(rank) if (1..=ADAPTER_RANK_MAX as u64).contains(&rank) => Ok((name, rank as usize)),
            _ => Err(config.corrupt("rank_pattern", format!("{name}: a rank is 1 to {ADAPTER_RANK_MAX}"))),
        });
        let alpha_of = alpha_of.into_iter().map(|(name, value)| match value.as_f64() {
            Some(alpha) if (alpha as f32).is_finite() => Ok((name, alpha as f32)),
            _ => Err(config.corrupt("alpha_pattern", format!("{name}: an alpha is a number"))),
        });
        Ok(Self {
            rank,
            alpha,
            by_root,
            magnitudes,
            ties: config.bool("ensure_weight_tying")?.unwrap_or(false),
            rank_of: rank_of.collect::<Result<_, _>>()?,
            alpha_of: alpha_of.collect::<Result<_, _>>()?,
            targets: targets(&config)?,
            layers: layers(&config)?,
        })
    }

    /// Checks that an adapter of tied embeddings, or of a tied head, is not meant for both.
    pub(super) fn check_ties(&self, tied: bool, found: Option<&FileDelta>) -> Result<(), LoadError> {
        let tensor = found.and_then(FileDelta::some);
        match tensor.filter(|_| tied && self.ties) {
            None => Ok(()),
            Some(tensor) => Err(refused(
                tensor,
                "ensure_weight_tying of adapter_config.json ties it to the other of embedding and head; save the adapter \
                 without it, or merge it into its model",
            )),
        }
    }

    /// Checks that a module with a pair has a magnitude or none, as the settings say.
    pub(super) fn check_kind(&self, file: &str, found: &FileDelta) -> Result<(), LoadError> {
        match (&found.b, &found.magnitude) {
            (Some(b), None) if self.magnitudes => Err(LoadError::Missing {
                file: file.to_owned(),
                what: format!("lora_magnitude_vector beside tensor {}", b.name),
                hint: "; adapter_config.json says use_dora".into(),
            }),
            (_, Some(tensor)) if !self.magnitudes => {
                Err(refused(tensor, "adapter_config.json does not say use_dora"))
            }
            _ => Ok(()),
        }
    }

    /// Factor on a module's pair; the rank, B's columns, must be the one configured for the module.
    pub(super) fn scale(&self, module: &str, b: &Tensor, a: &Tensor) -> Result<f32, LoadError> {
        let rank = of_module(&self.rank_of, module).unwrap_or(self.rank);
        let alpha = of_module(&self.alpha_of, module).unwrap_or(self.alpha);
        if b.shape.get(1) != Some(&rank) {
            let inputs = a.shape.get(1).map_or_else(|| "inputs".to_owned(), usize::to_string);
            return Err(a.corrupt(format!(
                "expected [{rank}, {inputs}] by adapter_config.json (r or rank_pattern), file has {:?}",
                a.shape
            )));
        }
        let rank = rank as f32;
        Ok(alpha / if self.by_root { rank.sqrt() } else { rank })
    }

    /// Checks that the configuration gives this module an adapter: other tensors are of another adapter.
    pub(super) fn check_target(
        &self,
        tensor: &Tensor,
        module: &str,
        weight: Weight,
    ) -> Result<(), LoadError> {
        let targeted =
            self.targets.as_ref().is_none_or(|targets| targets.iter().any(|target| is_of(target, module)));
        if !targeted {
            return Err(refused(tensor, "its module is not among target_modules of adapter_config.json"));
        }
        match (&self.layers, weight.part) {
            (Some(layers), Part::Layer(layer, _)) if !layers.contains(&layer) => {
                Err(refused(tensor, "its layer is not among layers_to_transform of adapter_config.json"))
            }
            _ => Ok(()),
        }
    }
}

/// Whether a name is a module's, or its suffix.
fn is_of(name: &str, module: &str) -> bool {
    module.strip_suffix(name).is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

/// Value of the first pattern that matches a module. A pattern that begins with `^` is the whole name.
fn of_module<T: Copy>(patterns: &[(String, T)], module: &str) -> Option<T> {
    let whole = |pattern: &str| pattern.strip_prefix('^').map(str::to_owned);
    let fits = |pattern: &str| match whole(pattern) {
        Some(name) => name == module || format!("model.{module}") == name,
        None => is_of(pattern, module),
    };
    patterns.iter().find(|(pattern, _)| fits(pattern)).map(|&(_, value)| value)
}

/// Names of modules, each with a value. The library takes them as regular expressions; those that are more than a name
/// are refused.
fn patterns(config: &Config, key: &str) -> Result<Vec<(String, Value)>, LoadError> {
    let Some(Config { settings, .. }) = config.object(key)? else { return Ok(Vec::new()) };
    if settings.len() > ADAPTER_PATTERNS_MAX {
        return Err(config.corrupt(key, format!("it has more than {ADAPTER_PATTERNS_MAX} entries")));
    }
    let plain =
        |name: &str| name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'));
    for name in settings.keys() {
        if !plain(name.strip_prefix('^').unwrap_or(name)) {
            return Err(config.unsupported(key, name, "names of modules can be read, and no expressions"));
        }
    }
    Ok(settings.into_iter().collect())
}

/// Suffixes of the names of adapted modules; none if a pattern gives them, because the tensors do as well.
fn targets(config: &Config) -> Result<Option<Vec<String>>, LoadError> {
    const KEY: &str = "target_modules";
    match config.get(KEY) {
        None | Some(Value::String(_)) => Ok(None),
        Some(Value::Array(list)) if list.len() <= ADAPTER_PATTERNS_MAX => {
            let names = list.iter().map(|name| name.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>();
            names.map(Some).ok_or_else(|| config.corrupt(KEY, "expected names of modules"))
        }
        Some(_) => Err(config.corrupt(KEY, "expected a list of names of modules, or an expression")),
    }
}

fn layers(config: &Config) -> Result<Option<Vec<usize>>, LoadError> {
    const KEY: &str = "layers_to_transform";
    let whole = |value: &Value| value.as_u64().and_then(|layer| usize::try_from(layer).ok());
    let read = match config.get(KEY) {
        None => return Ok(None),
        Some(Value::Array(list)) if list.is_empty() => return Ok(None),
        Some(Value::Array(list)) if list.len() <= ADAPTER_PATTERNS_MAX => list.iter().map(whole).collect(),
        Some(value) => whole(value).map(|layer| vec![layer]),
    };
    read.map(Some).ok_or_else(|| config.corrupt(KEY, "expected the number of a layer, or a list of some"))
}
