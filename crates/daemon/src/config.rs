//! What an operator can set: defaults, then a TOML or YAML file, then `HANZO_ENGINE_{SECTION}_{KEY}`, then flags.
//! A key that nobody knows is an error that names it and where it stands. Nothing is opened or bound here.

mod server;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use figment::{
    Figment, Provider,
    providers::{Env, Format, Serialized, Toml, Yaml},
};
pub use hanzo_engine_kernels::KvType;
use hanzo_engine_process::settings;
use hanzo_engine_runtime::ToolFormat;
pub use hanzo_engine_runtime::{Speculation, encoder::WeightType};
pub use hanzo_engine_telemetry::{Protocol, TracesConfig, TracesError};
use serde::{Deserialize, Serialize};
use serde_json::Value;

mod names;
mod pictures;
mod shown;

pub use crate::keep_alive::KeepAlive;
use crate::limits;

/// Everything `engined` can be told.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where it listens.
    pub server: ServerConfig,
    /// Where it keeps the record of models.
    pub store: StoreConfig,
    /// How models run.
    pub engine: EngineSection,
    /// What is loaded at the start; the daemon is ready when one of them is.
    pub models: Vec<ModelConfig>,
    /// What is logged.
    pub log: LogConfig,
    /// Where traces of requests go.
    pub traces: TracesConfig,
}

/// The record of models on this machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StoreConfig {
    /// Its directory; unset: `~/.hanzo/models`.
    pub dir: Option<PathBuf>,
    /// Go on without a store when it cannot be opened, such as when another process has it.
    pub optional: bool,
}

/// Bounds of the engines and the memory they share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EngineSection {
    /// Threads that compute, shared by all models; unset: one for each core this process may use.
    pub threads: Option<usize>,
    /// Longest prompt and completion served, in tokens; unset: the model's own, as far as memory allows.
    pub context_tokens_max: Option<u32>,
    /// Bytes that all models together may take; unset: 80 % of what is available at the start.
    pub memory_budget_bytes: Option<u64>,
    /// Bytes that the whole process stays within, instead of a budget of models: what models need is taken when they are
    /// loaded, KV caches to the last page, and nothing grows afterwards.
    pub fixed_memory_bytes: Option<u64>,
    /// Requests of one model that may wait to be run.
    pub queue_requests_max: usize,
    /// Sequences of one model that run at once.
    pub sequences_max: usize,
    /// Tokens of one step: decoding sequences and prompt chunks together.
    pub step_tokens_max: usize,
    /// Bytes of one model's KV cache; unset: chosen from the memory budget.
    pub kv_bytes: Option<u64>,
    /// How keys and values are stored: `f16`, or for about half the bytes to keep and to read `q8_0`, or `fp8` (E4M3 without a scale), whose numbers have three bits behind the first.
    #[serde(with = "names::kv_type")]
    pub kv_type: KvType,
    /// Share the KV cache between requests that begin alike.
    pub prefix_cache: bool,
    /// Keeps blocks of KV caches in this directory, where a prompt that begins alike finds them after a restart; unset: nowhere.
    pub prefix_cache_dir: Option<PathBuf>,
    /// Bytes that they may take there; what was used least recently goes first.
    pub prefix_cache_bytes: u64,
    /// Completions that fill their context go on, unless a request says otherwise: the first tokens are kept and half of the
    /// others dropped.
    pub context_shift: bool,
    /// Pixels that a picture is scaled to at most where its request says nothing; unset: as the model's own settings say. It concerns
    /// models whose pictures keep about their own size: Qwen's, Pixtral and Mistral 3.
    pub picture_pixels: Option<u64>,
    /// Pixels that such a picture has at most, whatever its request says; unset: as many as the model takes.
    pub picture_pixels_max: Option<u64>,
    /// Where tokens are drafted from that are computed before they are drawn: `ngram`, from what followed the last tokens where
    /// they stood before, or `off`. It changes how fast tokens come, and never which.
    #[serde(with = "names::speculation")]
    pub speculation: Speculation,
    /// Whether a request that names a stored model loads it: `always`, or `never`.
    pub on_demand: OnDemand,
    /// How long a model that was loaded for a request stays after its last: seconds or a time such as `5m`, 0 for at once, -1
    /// for good.
    pub keep_alive: KeepAlive,
    /// What models are loaded on: `auto`, every NVIDIA card that works and then the processor; or names in the order in which
    /// they are tried, such as `cuda:0,cpu`; numbers alone, such as `0,1`, are cards with the processor behind them. A model
    /// that fits on no card is on several, where those have room for it. A card's own memory is the budget of what is on it.
    pub devices: Devices,
    /// Layers of a model that generates that are on a card, the last ones and the head; the others are the processor's: `auto`, as
    /// many as fit; `all`; or a number.
    pub gpu_layers: GpuLayers,
    /// How several cards share a model that generates: by `layer`, each having some, where no card has room for all; or by `row`, all
    /// of them computing each layer together, where they have room for it so, and else by layer.
    pub split_mode: SplitMode,
    /// What runs a model: a `thread` of the daemon, or a `process` of its own, whose end is nobody else's; unset: of
    /// `engined` on Linux a process, where no memory is fixed, else a thread.
    pub isolation: Option<Isolation>,
    /// Milliseconds that a model's process may say nothing, before it is ended and started again.
    pub worker_silence_ms: u64,
    /// Bytes of data that a model's process may take beyond its plan; unset: as many as the system gives.
    pub worker_margin_bytes: Option<u64>,
    /// How encoders' matrices are packed: as `stored`, or `q8_0` for products of bytes, faster and less exact.
    #[serde(with = "names::weights")]
    pub encoder_weights: WeightType,
}

/// What runs a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// A thread of the daemon.
    Thread,
    /// A process of its own.
    Process,
}

impl Isolation {
    /// What [`crate::worker_process`] allows here: a process on Linux.
    pub const STRONGEST: Isolation =
        if cfg!(target_os = "linux") { Isolation::Process } else { Isolation::Thread };
}

impl EngineSection {
    /// Isolates models from each other as well as can be done, where nothing was said of that: for a program that runs many
    /// for years, whose `main` asks [`crate::worker_process`] first.
    pub fn isolate_by_default(&mut self) {
        let strongest =
            if self.fixed_memory_bytes.is_some() { Isolation::Thread } else { Isolation::STRONGEST };
        self.isolation.get_or_insert(strongest);
    }
}

/// A model to load, at the start or when it is asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelConfig {
    /// A name in the store, `hanzo-demo`, or a path to a GGUF file or a safetensors directory.
    pub source: String,
    /// The name it is served under, instead of its own.
    pub alias: Option<String>,
    /// Over `engine.context_tokens_max`.
    pub context_tokens_max: Option<u32>,
    /// Over `engine.kv_bytes`.
    pub kv_bytes: Option<u64>,
    /// Over `engine.gpu_layers`.
    pub gpu_layers: Option<GpuLayers>,
    /// Of `engine.devices` those that it may be on.
    pub gpu_devices: Option<Devices>,
    /// Adapters to load with it, by name: directories that PEFT has saved, or GGUF files of adapters.
    pub adapters: BTreeMap<String, String>,
    /// How it writes tool calls, such as `hermes`; unset: as its chat template says.
    pub tool_format: Option<String>,
    /// Over `engine.picture_pixels`.
    pub picture_pixels: Option<u64>,
    /// A smaller model of the same vocabulary that drafts for it: a name in the store, or a path.
    pub draft_model: Option<String>,
    /// What goes over its files.
    pub overrides: OverrideConfig,
    /// How long it stays when nobody uses it, over `engine.keep_alive`; unset: until it is unloaded, or, with `at_start` false,
    /// as that says.
    pub keep_alive: Option<KeepAlive>,
    /// Loaded at the start; with false by the first request that names it.
    pub at_start: bool,
}

/// Whether requests load models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnDemand {
    /// One that names a stored model does.
    #[default]
    Always,
    /// None does.
    Never,
}

pub use crate::convert::override_config::OverrideConfig;
pub use crate::gpu_layers::{GpuLayers, SplitMode};
pub use crate::places::{DeviceName, Devices};
pub use server::{MetricsCompat, ServerConfig, parse_host};

impl std::str::FromStr for OnDemand {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "always" => Ok(OnDemand::Always),
            "never" => Ok(OnDemand::Never),
            _ => Err(format!("{text:?} is neither always nor never")),
        }
    }
}

/// What is logged, and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// A level (`error`, `warn`, `info`, `debug`, `trace`) or a filter such as `info,hanzo_engine_daemon=debug`.
    pub level: String,
    /// For people or for machines.
    pub format: LogFormat,
}

/// The shape of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Pretty,
    /// One JSON object a line.
    Json,
}

impl Default for EngineSection {
    fn default() -> Self {
        Self {
            threads: None,
            context_tokens_max: None,
            memory_budget_bytes: None,
            fixed_memory_bytes: None,
            queue_requests_max: 256,
            sequences_max: 64,
            step_tokens_max: 512,
            kv_bytes: None,
            kv_type: KvType::F16,
            encoder_weights: WeightType::Stored,
            prefix_cache: true,
            prefix_cache_dir: None,
            prefix_cache_bytes: limits::PREFIX_DISK_BYTES_DEFAULT,
            context_shift: false,
            picture_pixels: None,
            picture_pixels_max: None,
            on_demand: OnDemand::Always,
            keep_alive: KeepAlive::default(),
            speculation: Speculation::default(),
            devices: Devices::Auto,
            gpu_layers: GpuLayers::Auto,
            split_mode: SplitMode::Layer,
            isolation: None,
            worker_silence_ms: 2_000,
            worker_margin_bytes: None,
        }
    }
}

impl Default for ModelConfig {
    fn default() -> Self {
        Self {
            source: String::new(),
            alias: None,
            context_tokens_max: None,
            kv_bytes: None,
            gpu_layers: None,
            gpu_devices: None,
            adapters: BTreeMap::new(),
            tool_format: None,
            picture_pixels: None,
            draft_model: None,
            overrides: OverrideConfig::default(),
            keep_alive: None,
            at_start: true,
        }
    }
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { level: "info".to_owned(), format: LogFormat::Pretty }
    }
}

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A layer cannot be read, or says something that is unknown or of the wrong type.
    #[error("{layer}: {reason}")]
    Layer {
        /// The file, the environment or the flags.
        layer: String,
        /// The key and what is wrong with it.
        reason: String,
    },
    /// A value is out of its range.
    #[error("{key}: {reason}")]
    Value {
        /// Section and key.
        key: &'static str,
        /// What it must be.
        reason: String,
    },
    /// Traces cannot be sent as it is said.
    #[error(transparent)]
    Traces(#[from] TracesError),
    /// A file that is named cannot be used.
    #[error("{key}: {reason}")]
    File {
        /// Section and key.
        key: String,
        /// The file, and what is wrong with it.
        reason: String,
    },
}

/// Sections that `HANZO_ENGINE_{SECTION}_{KEY}` can reach: those with scalar keys. Other words after
/// `HANZO_ENGINE_` belong to the other programs, which share the environment.
const ENV_SECTIONS: [&str; 5] = ["server", "store", "engine", "log", "traces"];
/// Keys in those sections that belong to the other programs, or are read as they are.
const ENV_ELSEWHERE: [&str; 2] = ["server.port", "server.api_key"];

impl Config {
    /// Merges the defaults, `file` (TOML, or YAML where its name ends in `.yaml` or `.yml`), the environment, and
    /// `flags` (only what was given; a [`Figment`] of nothing will do), each over the one before.
    ///
    /// # Errors
    /// [`ConfigError`] naming the layer and key that is unknown, of the wrong type or out of range.
    pub fn load(file: Option<&Path>, flags: impl Provider) -> Result<Config, ConfigError> {
        let mut layers = Vec::new();
        if let Some(path) = file {
            let yaml = path.extension().is_some_and(|end| end == "yaml" || end == "yml");
            let read = if yaml {
                Figment::from(Yaml::file_exact(path))
            } else {
                Figment::from(Toml::file_exact(path))
            };
            layers.push((path.display().to_string(), read));
        }
        let wrong = |reason| ConfigError::Layer { layer: "environment".to_owned(), reason };
        layers.push(("environment".to_owned(), environment().map_err(wrong)?));
        layers.push(("flags".to_owned(), Figment::from(flags)));
        let mut merged = Figment::from(Serialized::defaults(Config::default()));
        for (name, layer) in layers {
            // Each alone over the defaults first, so that an error can say whose it is.
            let alone = Figment::from(Serialized::defaults(Config::default())).merge(&layer);
            alone
                .extract::<Config>()
                .map_err(|error| ConfigError::Layer { layer: name, reason: reason(&error) })?;
            merged = merged.merge(layer);
        }
        let config: Config = merged.extract().map_err(|error| ConfigError::Layer {
            layer: "configuration".to_owned(),
            reason: reason(&error),
        })?;
        config.check()?;
        Ok(config)
    }

    /// Whether every value is in its range.
    ///
    /// # Errors
    /// [`ConfigError::Value`] naming the first that is not.
    pub fn check(&self) -> Result<(), ConfigError> {
        let refuse = |key, reason: String| Err(ConfigError::Value { key, reason });
        self.server.check().map_err(|(key, reason)| ConfigError::Value { key, reason })?;
        self.traces.check()?;
        let engine = &self.engine;
        let within = [
            ("engine.queue_requests_max", engine.queue_requests_max, limits::QUEUE_REQUESTS_LIMIT),
            ("engine.sequences_max", engine.sequences_max, limits::SEQUENCES_LIMIT),
            ("engine.step_tokens_max", engine.step_tokens_max, limits::STEP_TOKENS_LIMIT),
            ("engine.threads", engine.threads.unwrap_or(1), 4_096),
            ("engine.context_tokens_max", engine.context_tokens_max.unwrap_or(1) as usize, u32::MAX as usize),
        ];
        for (key, value, max) in within {
            if !(1..=max).contains(&value) {
                return refuse(key, format!("must be 1 to {max}, not {value}"));
            }
        }
        engine.check_pictures(&self.models)?;
        if engine.sequences_max > engine.step_tokens_max {
            let reason = format!(
                "must not be above engine.step_tokens_max ({}): each running sequence takes one token of a step",
                engine.step_tokens_max
            );
            return refuse("engine.sequences_max", reason);
        }
        if self.models.iter().any(|model| model.source.is_empty()) {
            return refuse("models", "each needs a source: a name in the store or a path".to_owned());
        }
        if self.engine.on_demand == OnDemand::Never && self.models.iter().any(|model| !model.at_start) {
            let reason =
                "at_start is false, and with engine.on_demand never nothing else would load it".to_owned();
            return refuse("models", reason);
        }
        if self.models.iter().any(|model| model.context_tokens_max == Some(0)) {
            return refuse(
                "models",
                "context_tokens_max must be at least 1; leave it out for the model's own".to_owned(),
            );
        }
        let formats = self.models.iter().filter_map(|model| model.tool_format.as_deref());
        if let Some(reason) = formats.map(ToolFormat::by_name).find_map(Result::err) {
            return refuse("models", format!("tool_format: {reason}"));
        }
        for model in &self.models {
            model.overrides.check().map_err(|reason| ConfigError::Value { key: "models", reason })?;
        }
        let drafts = |model: &ModelConfig| model.draft_model.is_some();
        if self.engine.speculation == Speculation::Off && self.models.iter().any(drafts) {
            let reason = "draft_model: nothing is drafted where engine.speculation is off; set it to ngram";
            return refuse("models", reason.to_owned());
        }
        if let Some(bytes) = self.engine.fixed_memory_bytes {
            if self.engine.memory_budget_bytes.is_some() {
                let reason = "the models' budget follows from it; leave engine.memory_budget_bytes out";
                return refuse("engine.fixed_memory_bytes", reason.to_owned());
            }
            if bytes <= limits::FIXED_MEMORY_BESIDE {
                let beside = limits::FIXED_MEMORY_BESIDE;
                let reason =
                    format!("must be above the {beside} that are put by for all but models, not {bytes}");
                return refuse("engine.fixed_memory_bytes", reason);
            }
        }
        if self.engine.prefix_cache_dir.is_some() && !self.engine.prefix_cache {
            let reason = "nothing is found there where engine.prefix_cache is false; leave one of them out";
            return refuse("engine.prefix_cache_dir", reason.to_owned());
        }
        if engine.isolation == Some(Isolation::Process) && Isolation::STRONGEST != Isolation::Process {
            return refuse(
                "engine.isolation",
                "models have processes of their own on Linux; set thread".to_owned(),
            );
        }
        if engine.isolation == Some(Isolation::Process) && engine.fixed_memory_bytes.is_some() {
            let reason =
                "memory that is fixed is that of one process; set thread, or leave fixed_memory_bytes out";
            return refuse("engine.isolation", reason.to_owned());
        }
        if let (Some(_), Devices::These(names)) = (engine.fixed_memory_bytes, &engine.devices)
            && names.iter().any(|name| *name != DeviceName::Cpu)
        {
            let reason = "memory that is fixed is this process's, and a card's driver takes of it what it wants; leave \
                          fixed_memory_bytes out, or set cpu";
            return refuse("engine.devices", reason.to_owned());
        }
        let (least, most) = (limits::WORKER_SILENCE_MS_MIN, limits::WORKER_SILENCE_MS_MAX);
        if !(least..=most).contains(&engine.worker_silence_ms) {
            let reason = format!("must be {least} to {most}, not {}", engine.worker_silence_ms);
            return refuse("engine.worker_silence_ms", reason);
        }
        if self.models.len() > limits::MODELS_MAX {
            return refuse("models", format!("at most {} at once", limits::MODELS_MAX));
        }
        Ok(())
    }
}

impl EngineSection {
    /// What all models together may take, as far as it is said.
    pub(crate) fn models_bytes(&self) -> Option<u64> {
        let fixed = self.fixed_memory_bytes.map(|bytes| bytes.saturating_sub(limits::FIXED_MEMORY_BESIDE));
        fixed.or(self.memory_budget_bytes)
    }

    /// Threads that compute, and one for each of `models`.
    pub fn threads_wanted(&self, models: usize) -> usize {
        let computing = || std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.unwrap_or_else(computing) + models
    }
}

/// What the environment says, or which key in it is none.
fn environment() -> Result<Figment, String> {
    let known = |key: &str| {
        let section = key.split_once('.').map_or(key, |(section, _)| section);
        ENV_SECTIONS.contains(&section) && !ENV_ELSEWHERE.contains(&key)
    };
    let sections = Env::prefixed("HANZO_ENGINE_")
        .map(|key| key.as_str().to_ascii_lowercase().replacen('_', ".", 1).into())
        .filter(move |key| known(key.as_str()));
    // Set to nothing, it is as if it were not.
    let is_set = std::env::var_os("HANZO_MODELS_DIR").is_some_and(|dir| !dir.is_empty());
    let directory = Env::raw().only(if is_set { &["HANZO_MODELS_DIR"] } else { &[] });
    let directory = directory.map(|_| "store.dir".into());
    // The same for what models are loaded on, by the name that other programs have for it.
    let is_set = std::env::var_os("HANZO_ENGINE_DEVICES").is_some_and(|devices| !devices.is_empty());
    let devices = Env::raw().only(if is_set { &["HANZO_ENGINE_DEVICES"] } else { &[] });
    let devices = devices.map(|_| "engine.devices".into());
    let layer = Figment::from(directory).merge(devices).merge(sections);
    // As it is: a key may look like a number, and no error may repeat it.
    Ok(match server::api_key_of_env()? {
        // Of the same profile as what goes over it.
        Some(key) => layer.merge(Serialized::default("server.api_key", key.text())),
        None => layer,
    })
}

/// Key and reason, without figment's own words for where it came from.
pub(crate) fn reason(error: &figment::Error) -> String {
    let path = error.path.join(".");
    match &error.kind {
        figment::error::Kind::UnknownField(field, known) => {
            settings::unknown_key(&path, field, known, &settings::keys(&of_every_key()))
        }
        kind if path.is_empty() => kind.to_string(),
        kind => format!("{path}: {kind}"),
    }
}

/// The defaults, with a model among them: every key that there is.
fn of_every_key() -> Value {
    let config = Config { models: vec![ModelConfig::default()], ..Config::default() };
    // Keys are texts, and numbers are finite.
    serde_json::to_value(config).unwrap_or_default()
}

impl ModelConfig {
    /// How it writes tool calls, where that is said: the configuration was checked, and names a format that there is.
    pub(crate) fn format_of_calls(&self) -> Option<ToolFormat> {
        self.tool_format.as_deref().and_then(|name| ToolFormat::by_name(name).ok())
    }
}

/// A tool format's name, such as `hermes`, as [`ModelConfig::tool_format`] takes it.
///
/// # Errors
/// In words, with the formats that there are.
pub fn parse_tool_format(name: &str) -> Result<String, String> {
    ToolFormat::by_name(name).map(|format| format.name().to_owned())
}

/// A number of bytes as people write it: `1073741824`, `512M`, `12GiB`, `1.5 GB`. K, M, G and T are powers of 1,024,
/// `KB`, `MB`, `GB` and `TB` powers of 1,000.
///
/// # Errors
/// What is wrong with it, in words.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 = number.parse().map_err(|_| format!("{text:?} is no number of bytes, such as 8GiB"))?;
    let unit = unit.trim().to_ascii_lowercase();
    let (power, base) = match unit.as_str() {
        "" | "b" => (0, 1_024_f64),
        "k" | "kib" => (1, 1_024.0),
        "m" | "mib" => (2, 1_024.0),
        "g" | "gib" => (3, 1_024.0),
        "t" | "tib" => (4, 1_024.0),
        "kb" => (1, 1_000.0),
        "mb" => (2, 1_000.0),
        "gb" => (3, 1_000.0),
        "tb" => (4, 1_000.0),
        _ => return Err(format!("{unit:?} is no unit of bytes; use K, M, G, T, KB, MB, GB or TB")),
    };
    let bytes = number * base.powi(power);
    if bytes >= 1.0 && bytes < u64::MAX as f64 {
        Ok(bytes as u64)
    } else {
        Err(format!("{text:?} is out of range"))
    }
}

#[cfg(test)]
#[expect(clippy::result_large_err, reason = "the closures' error type is figment's")]
mod tests;
