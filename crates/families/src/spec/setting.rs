//! Settings of decoders, a row each: the key in `config.json`, the key in GGUF metadata, and the value of files without
//! it. A reader asks the file for a row, so it is written once for both formats. Errors name the key of the file that
//! was read. Rows of one family alone are in the family's file.

use hanzo_engine_model_files::error::LoadError;

use super::Config;
use super::metadata::Keys;
use crate::limits::{
    CONTEXT_TOKENS_MAX, EXPERT_GROUPS_MAX, EXPERTS_MAX, HEAD_DIM_MAX, HEADS_MAX, LAYERS_MAX, WIDTH_MAX,
};

/// A setting of a decoder.
#[derive(Clone, Copy)]
pub(crate) struct Setting<T> {
    /// Key in `config.json`; empty if it has none.
    pub(crate) hugging_face: &'static str,
    /// Key in GGUF metadata, after the architecture; empty if it has none.
    pub(crate) gguf: &'static str,
    /// Largest number.
    max: usize,
    /// Value of a `config.json` without it, and of GGUF metadata without it.
    defaults: [Option<T>; 2],
}

impl<T: Copy> Setting<T> {
    const fn new(hugging_face: &'static str, gguf: &'static str, max: usize) -> Setting<T> {
        Setting { hugging_face, gguf, max, defaults: [None; 2] }
    }

    /// The setting under another key in `config.json`.
    pub(crate) const fn named(self, hugging_face: &'static str) -> Setting<T> {
        Setting { hugging_face, ..self }
    }

    /// The setting under another key in GGUF metadata.
    pub(crate) const fn stored(self, gguf: &'static str) -> Setting<T> {
        Setting { gguf, ..self }
    }

    /// The setting with a default in both formats.
    pub(crate) const fn or(self, default: T) -> Setting<T> {
        Setting { defaults: [Some(default); 2], ..self }
    }

    /// The setting with the default of the family's class. GGUF files always have it.
    pub(crate) const fn or_of_class(self, default: T) -> Setting<T> {
        Setting { defaults: [Some(default), None], ..self }
    }
}

/// A whole number up to `max`.
pub(crate) const fn count(hugging_face: &'static str, gguf: &'static str, max: usize) -> Setting<usize> {
    Setting::new(hugging_face, gguf, max)
}

/// A number above 0.
pub(crate) const fn factor(hugging_face: &'static str, gguf: &'static str) -> Setting<f32> {
    Setting::new(hugging_face, gguf, 0)
}

/// A truth value.
pub(crate) const fn flag(hugging_face: &'static str, gguf: &'static str) -> Setting<bool> {
    Setting::new(hugging_face, gguf, 0)
}

pub(crate) const HIDDEN: Setting<usize> = count("hidden_size", "embedding_length", WIDTH_MAX);
pub(crate) const LAYERS: Setting<usize> = count("num_hidden_layers", "block_count", LAYERS_MAX);
pub(crate) const CONTEXT: Setting<usize> =
    count("max_position_embeddings", "context_length", CONTEXT_TOKENS_MAX);
pub(crate) const HEADS: Setting<usize> = count("num_attention_heads", "attention.head_count", HEADS_MAX);
pub(crate) const KV_HEADS: Setting<usize> =
    count("num_key_value_heads", "attention.head_count_kv", HEADS_MAX);
pub(crate) const HEAD_DIM: Setting<usize> = count("head_dim", "attention.key_length", HEAD_DIM_MAX);
pub(crate) const VALUE_DIM: Setting<usize> = count("", "attention.value_length", HEAD_DIM_MAX);
pub(crate) const FFN: Setting<usize> = count("intermediate_size", "feed_forward_length", WIDTH_MAX);
pub(crate) const PARALLEL: Setting<bool> = flag("use_parallel_residual", "use_parallel_residual");
/// Ranks of latent queries, and of latent keys and values.
pub(crate) const QUERY_RANK: Setting<usize> = count("q_lora_rank", "attention.q_lora_rank", WIDTH_MAX);
pub(crate) const LATENT_RANK: Setting<usize> = count("kv_lora_rank", "attention.kv_lora_rank", WIDTH_MAX);

/// Number of experts, of those used, and the width of each, as most families name them.
pub(crate) const EXPERTS: [Setting<usize>; 3] = [
    count("num_experts", "expert_count", EXPERTS_MAX),
    count("num_experts_per_tok", "expert_used_count", EXPERTS_MAX),
    count("moe_intermediate_size", "expert_feed_forward_length", WIDTH_MAX),
];
/// The same, as Mixtral names them.
pub(crate) const LOCAL_EXPERTS: [Setting<usize>; 3] =
    [count("num_local_experts", "expert_count", EXPERTS_MAX), EXPERTS[1], FFN];
/// The same, as DeepSeek names them.
pub(crate) const ROUTED_EXPERTS: [Setting<usize>; 3] =
    [count("n_routed_experts", "expert_count", EXPERTS_MAX), EXPERTS[1], EXPERTS[2]];
pub(crate) const SHARED_EXPERTS: Setting<usize> =
    count("num_shared_experts", "expert_shared_count", EXPERTS_MAX).or(0);
pub(crate) const EXPERTS_SCALE: Setting<f32> = factor("routed_scaling_factor", "expert_weights_scale");
/// Groups of experts, and those whose experts are used.
pub(crate) const GROUPS: [Setting<usize>; 2] = [
    count("n_group", "expert_group_count", EXPERT_GROUPS_MAX).or(1),
    count("topk_group", "expert_group_used_count", EXPERT_GROUPS_MAX).or(1),
];

/// A model file whose settings are read.
#[derive(Clone, Copy)]
pub(crate) enum SettingsFile<'a> {
    /// `config.json`.
    HuggingFace(&'a Config),
    Gguf(&'a Keys<'a>),
}

impl<'a> From<&'a Config> for SettingsFile<'a> {
    fn from(config: &'a Config) -> Self {
        SettingsFile::HuggingFace(config)
    }
}

impl<'a> From<&'a Keys<'a>> for SettingsFile<'a> {
    fn from(keys: &'a Keys<'a>) -> Self {
        SettingsFile::Gguf(keys)
    }
}

impl SettingsFile<'_> {
    /// A count of 1 or more.
    pub(crate) fn count(self, setting: &Setting<usize>) -> Result<Option<usize>, LoadError> {
        let max = setting.max;
        self.read(setting, |config, key| config.count(key, max), |keys, key| keys.count(key, max))
    }

    /// A count of 1 or more that the file must have, unless there is a default.
    pub(crate) fn required(self, setting: &Setting<usize>) -> Result<usize, LoadError> {
        self.count(setting)?.ok_or_else(|| self.missing(setting))
    }

    /// A count that may be 0, and is if it is absent and has no default.
    pub(crate) fn whole(self, setting: &Setting<usize>) -> Result<usize, LoadError> {
        let max = setting.max;
        let number =
            self.read(setting, |config, key| config.whole(key, max), |keys, key| keys.whole(key, max));
        Ok(number?.unwrap_or(0))
    }

    /// A factor above 0; 1 if it is absent.
    pub(crate) fn factor(self, setting: &Setting<f32>) -> Result<f32, LoadError> {
        Ok(self.read(setting, Config::positive, |keys, key| keys.positive(key))?.unwrap_or(1.0))
    }

    pub(crate) fn bool(self, setting: &Setting<bool>) -> Result<Option<bool>, LoadError> {
        self.read(setting, Config::bool, |keys, key| keys.metadata.bool(&keys.key(key)))
    }

    fn read<T: Copy>(
        self,
        setting: &Setting<T>,
        of_config: impl Fn(&Config, &str) -> Result<Option<T>, LoadError>,
        of_keys: impl Fn(&Keys<'_>, &str) -> Result<Option<T>, LoadError>,
    ) -> Result<Option<T>, LoadError> {
        let [of_class, usual] = setting.defaults;
        match self {
            SettingsFile::HuggingFace(config) => Ok(of_config(config, setting.hugging_face)?.or(of_class)),
            SettingsFile::Gguf(keys) => Ok(of_keys(keys, setting.gguf)?.or(usual)),
        }
    }

    pub(crate) fn missing<T>(self, setting: &Setting<T>) -> LoadError {
        match self {
            SettingsFile::HuggingFace(config) => config.missing(setting.hugging_face),
            SettingsFile::Gguf(keys) => keys.metadata.missing(&keys.key(setting.gguf)),
        }
    }

    /// Error for a setting whose value makes no sense.
    pub(crate) fn corrupt<T>(self, setting: &Setting<T>, reason: String) -> LoadError {
        match self {
            SettingsFile::HuggingFace(config) => config.corrupt(setting.hugging_face, reason),
            SettingsFile::Gguf(keys) => keys.metadata.corrupt(&keys.key(setting.gguf), reason),
        }
    }

    pub(crate) fn unsupported<T>(self, of: &Setting<T>, value: impl ToString, reason: &str) -> LoadError {
        match self {
            SettingsFile::HuggingFace(config) => config.unsupported(of.hugging_face, value, reason),
            SettingsFile::Gguf(keys) => keys.unsupported(of.gguf, value, reason),
        }
    }
}
