//! Configuration: defaults, then a TOML or YAML file, then `HANZO_ENGINE_{SECTION}_{KEY}`, then flags. An unknown
//! key is an error that names the key and its layer. Nothing is opened or bound here.

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
mod overrides;
mod pictures;
mod server;
mod shown;

pub use crate::keep_alive::KeepAlive;
use crate::limits;

/// Configuration of `engined`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Listeners, keys and shutdown.
    pub server: ServerConfig,
    /// Model store.
    pub store: StoreConfig,
    /// Engine limits and memory.
    pub engine: EngineSection,
    /// Models to load at startup. The daemon is ready when one of them is.
    pub models: Vec<ModelConfig>,
    /// Logging.
    pub log: LogConfig,
    /// Export of request traces.
    pub traces: TracesConfig,
}

/// Settings of the model store on this machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StoreConfig {
    /// Directory of the store; unset: `~/.hanzo/models`.
    pub dir: Option<PathBuf>,
    /// Continue without a store if it cannot be opened, for example because another process has it open.
    pub optional: bool,
}

/// Limits of the engines and of the memory that they share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EngineSection {
    /// Compute threads, shared by all models; unset: one for each core this process may use.
    pub threads: Option<usize>,
    /// Maximum context length in tokens, prompt and completion together; unset: the model's own, as far as memory
    /// allows.
    pub context_tokens_max: Option<u32>,
    /// Memory budget of all models together, in bytes; unset: 80 % of what is available at the start.
    pub memory_budget_bytes: Option<u64>,
    /// Memory limit of the whole process in bytes, instead of a budget of models. Models allocate all they need
    /// when they are loaded, with every page of their KV caches, and nothing grows afterwards.
    pub fixed_memory_bytes: Option<u64>,
    /// Maximum number of queued requests of one model.
    pub queue_requests_max: usize,
    /// Maximum number of sequences of one model that run at once.
    pub sequences_max: usize,
    /// Maximum number of tokens in one step: decoding sequences and prefill chunks together.
    pub step_tokens_max: usize,
    /// Size of one model's KV cache in bytes; unset: chosen from the memory budget.
    pub kv_bytes: Option<u64>,
    /// Data type of the KV cache: `f16`; `q8_0`, which takes about half the memory and bandwidth; or `fp8` (E4M3
    /// without a scale, with a 3-bit mantissa), which takes half.
    #[serde(with = "names::kv_type")]
    pub kv_type: KvType,
    /// Share KV cache blocks between requests that begin with the same prompt.
    pub prefix_cache: bool,
    /// Directory that keeps KV cache blocks, so that prompts with the same prefix find them after a restart; unset:
    /// none.
    pub prefix_cache_dir: Option<PathBuf>,
    /// Maximum size of that directory in bytes. The least recently used blocks are deleted first.
    pub prefix_cache_bytes: u64,
    /// Continue completions that fill their context, unless a request says otherwise: the first tokens are kept and
    /// half of the others dropped.
    pub context_shift: bool,
    /// Number of pixels that a picture is scaled down to if its request does not say; unset: the model's own
    /// setting. Applies to models that keep a picture's size roughly (Qwen's, Pixtral and Mistral 3).
    pub picture_pixels: Option<u64>,
    /// Maximum number of pixels of such a picture, whatever its request says; unset: the model's maximum.
    pub picture_pixels_max: Option<u64>,
    /// Source of draft tokens for speculative decoding: `ngram`, which proposes the tokens that followed the last
    /// ones where they occurred before, or `off`. It changes the speed, never the output.
    #[serde(with = "names::speculation")]
    pub speculation: Speculation,
    /// Whether a request for a stored model loads it: `always` or `never`.
    pub on_demand: OnDemand,
    /// Idle time after which a model that was loaded on demand is unloaded: seconds or a time such as `5m`; 0 to
    /// unload at once, -1 to keep it.
    pub keep_alive: KeepAlive,
    /// Devices to load models on. `auto` is every NVIDIA GPU that works, then the CPU. Names such as `cuda:0,cpu`
    /// are tried in that order. Bare numbers such as `0,1` are GPUs, followed by the CPU. A model that fits on no
    /// single GPU is split across several if they have room. Each GPU's own memory is the budget of the models on
    /// it.
    pub devices: Devices,
    /// Number of layers of a generative model that run on GPUs, counted from the last one, with the head; the
    /// others run on the CPU. `auto` for as many as fit, `all`, or a number.
    pub gpu_layers: GpuLayers,
    /// How several GPUs share a generative model. `layer` gives each GPU some of the layers if none has room for
    /// all. `row` lets all GPUs compute each layer together (tensor parallelism) if they have room, and otherwise
    /// splits by layer.
    pub split_mode: SplitMode,
    /// `thread` or `process`: run each model in a thread of the daemon, or in its own process so that a crash stays
    /// isolated. Unset: `process` for `engined` on Linux without `fixed_memory_bytes`, else `thread`.
    pub isolation: Option<Isolation>,
    /// Milliseconds without a sign of life after which a model's process is killed and restarted.
    pub worker_silence_ms: u64,
    /// Bytes of data that a model's process may allocate beyond its plan; unset: no limit.
    pub worker_margin_bytes: Option<u64>,
    /// Data type of encoder weights: as `stored`, or `q8_0` for int8 products, which are faster and less exact.
    #[serde(with = "names::weights")]
    pub encoder_weights: WeightType,
}

/// Isolation of a model from the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// Thread of the daemon.
    Thread,
    /// Separate process.
    Process,
}

impl Isolation {
    /// Strongest isolation that [`crate::worker_process`] allows on this system: a process on Linux.
    pub const STRONGEST: Isolation =
        if cfg!(target_os = "linux") { Isolation::Process } else { Isolation::Thread };
}

impl EngineSection {
    /// Sets the strongest isolation if none was set. For long-running servers with many models, whose `main` calls
    /// [`crate::worker_process`] first.
    pub fn isolate_by_default(&mut self) {
        let strongest =
            if self.fixed_memory_bytes.is_some() { Isolation::Thread } else { Isolation::STRONGEST };
        self.isolation.get_or_insert(strongest);
    }
}

/// A model to load, at startup or on demand.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelConfig {
    /// Name in the store, `hanzo-demo`, or path of a GGUF file or a safetensors directory.
    pub source: String,
    /// Name that the model is served under, instead of its own.
    pub alias: Option<String>,
    /// Overrides `engine.context_tokens_max`.
    pub context_tokens_max: Option<u32>,
    /// Overrides `engine.kv_bytes`.
    pub kv_bytes: Option<u64>,
    /// Overrides `engine.gpu_layers`.
    pub gpu_layers: Option<GpuLayers>,
    /// Subset of `engine.devices` that the model may use.
    pub gpu_devices: Option<Devices>,
    /// Adapters to load with the model, by name: directories saved by PEFT, or GGUF adapter files.
    pub adapters: BTreeMap<String, String>,
    /// Format of its tool calls, such as `hermes`; unset: detected from its chat template.
    pub tool_format: Option<String>,
    /// Overrides `engine.picture_pixels`.
    pub picture_pixels: Option<u64>,
    /// Draft model for speculative decoding, a smaller model with the same vocabulary: a name in the store, or a
    /// path.
    pub draft_model: Option<String>,
    /// Overrides of the values in the model's files.
    pub overrides: OverrideConfig,
    /// Idle time after which the model is unloaded. Unset: it stays loaded, or, if `at_start` is false,
    /// `engine.keep_alive` applies.
    pub keep_alive: Option<KeepAlive>,
    /// Load the model at startup; if false, on the first request that names it.
    pub at_start: bool,
}

/// Whether requests load models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnDemand {
    /// A request that names a stored model loads it.
    #[default]
    Always,
    /// Requests never load models.
    Never,
}

pub use crate::device_name::{DeviceName, Devices};
pub use crate::gpu_layers::{GpuLayers, SplitMode};
pub use overrides::OverrideConfig;
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

/// Settings of logging.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// Level (`error`, `warn`, `info`, `debug`, `trace`) or a filter such as `info,hanzo_engine_daemon=debug`.
    pub level: String,
    /// Format of the log: `pretty` or `json`.
    pub format: LogFormat,
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Human-readable text.
    #[default]
    Pretty,
    /// A JSON object per line.
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

/// Error of a configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A layer cannot be read, or contains an unknown key or a value of the wrong type.
    #[error("{layer}: {reason}")]
    Layer {
        /// Name of the layer: the file, the environment or the flags.
        layer: String,
        /// The key, and what is wrong with it.
        reason: String,
    },
    /// A value is out of its range.
    #[error("{key}: {reason}")]
    Value {
        /// Section and key.
        key: &'static str,
        /// Valid values.
        reason: String,
    },
    /// The settings of traces are invalid.
    #[error(transparent)]
    Traces(#[from] TracesError),
    /// A file that the configuration names cannot be used.
    #[error("{key}: {reason}")]
    File {
        /// Section and key.
        key: String,
        /// The file, and what is wrong with it.
        reason: String,
    },
}

/// Sections that `HANZO_ENGINE_{SECTION}_{KEY}` can set: those with scalar keys. Other variables with the prefix
/// `HANZO_ENGINE_` belong to the other programs, which share the environment.
const ENV_SECTIONS: [&str; 5] = ["server", "store", "engine", "log", "traces"];
/// Keys in those sections that belong to other programs, or are read separately.
const ENV_ELSEWHERE: [&str; 2] = ["server.port", "server.api_key"];

impl Config {
    /// Merges the defaults, `file` (TOML, or YAML for the extensions `.yaml` and `.yml`), the environment and
    /// `flags`, each over the one before. `flags` holds only what was given; an empty [`Figment`] will do.
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
            // Extract each layer alone over the defaults first, so that an error can name its layer.
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

    /// Checks that every value is in its range.
    ///
    /// # Errors
    /// [`ConfigError::Value`] for the first value that is not.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.server.check().map_err(|(key, reason)| ConfigError::Value { key, reason })?;
        self.traces.check()?;
        self.check_counts()?;
        self.check_models()?;
        self.check_memory()?;
        let engine = &self.engine;
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

    /// Checks the engine's counts, and pictures' sizes.
    fn check_counts(&self) -> Result<(), ConfigError> {
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
        Ok(())
    }

    /// Checks the settings of each model.
    fn check_models(&self) -> Result<(), ConfigError> {
        if self.models.iter().any(|model| model.source.is_empty()) {
            return refuse("models", "each needs a source: a name in the store or a path");
        }
        if self.engine.on_demand == OnDemand::Never && self.models.iter().any(|model| !model.at_start) {
            let reason = "at_start is false, and with engine.on_demand never nothing else would load it";
            return refuse("models", reason);
        }
        if self.models.iter().any(|model| model.context_tokens_max == Some(0)) {
            let reason = "context_tokens_max must be at least 1; leave it out for the model's own";
            return refuse("models", reason);
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
            return refuse("models", reason);
        }
        Ok(())
    }

    /// Checks that settings of memory, the prefix cache, isolation and devices agree.
    fn check_memory(&self) -> Result<(), ConfigError> {
        let engine = &self.engine;
        if let Some(bytes) = self.engine.fixed_memory_bytes {
            if self.engine.memory_budget_bytes.is_some() {
                let reason = "the models' budget follows from it; leave engine.memory_budget_bytes out";
                return refuse("engine.fixed_memory_bytes", reason);
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
            return refuse("engine.prefix_cache_dir", reason);
        }
        if engine.isolation == Some(Isolation::Process) && Isolation::STRONGEST != Isolation::Process {
            return refuse("engine.isolation", "models have processes of their own on Linux; set thread");
        }
        if engine.isolation == Some(Isolation::Process) && engine.fixed_memory_bytes.is_some() {
            let reason =
                "memory that is fixed is that of one process; set thread, or leave fixed_memory_bytes out";
            return refuse("engine.isolation", reason);
        }
        if let (Some(_), Devices::These(names)) = (engine.fixed_memory_bytes, &engine.devices)
            && names.iter().any(|name| *name != DeviceName::Cpu)
        {
            let reason = "memory that is fixed is this process's, and a card's driver takes of it what it wants; leave \
                          fixed_memory_bytes out, or set cpu";
            return refuse("engine.devices", reason);
        }
        Ok(())
    }
}

/// Error for the value of a key.
fn refuse(key: &'static str, reason: impl Into<String>) -> Result<(), ConfigError> {
    Err(ConfigError::Value { key, reason: reason.into() })
}

impl EngineSection {
    /// Memory budget of all models together, if one is configured.
    pub(crate) fn models_bytes(&self) -> Option<u64> {
        let fixed = self.fixed_memory_bytes.map(|bytes| bytes.saturating_sub(limits::FIXED_MEMORY_BESIDE));
        fixed.or(self.memory_budget_bytes)
    }

    /// Number of threads wanted: compute threads, and one for each of `models`.
    pub fn threads_wanted(&self, models: usize) -> usize {
        let computing = || std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.unwrap_or_else(computing) + models
    }
}

/// Settings from the environment, or the key in it that is invalid.
fn environment() -> Result<Figment, String> {
    let known = |key: &str| {
        let section = key.split_once('.').map_or(key, |(section, _)| section);
        ENV_SECTIONS.contains(&section) && !ENV_ELSEWHERE.contains(&key)
    };
    let sections = Env::prefixed("HANZO_ENGINE_")
        .map(|key| key.as_str().to_ascii_lowercase().replacen('_', ".", 1).into())
        .filter(move |key| known(key.as_str()));
    // An empty variable counts as unset.
    let is_set = std::env::var_os("HANZO_MODELS_DIR").is_some_and(|dir| !dir.is_empty());
    let directory = Env::raw().only(if is_set { &["HANZO_MODELS_DIR"] } else { &[] });
    let directory = directory.map(|_| "store.dir".into());
    // The devices, under the name of the variable that other programs use.
    let is_set = std::env::var_os("HANZO_ENGINE_DEVICES").is_some_and(|devices| !devices.is_empty());
    let devices = Env::raw().only(if is_set { &["HANZO_ENGINE_DEVICES"] } else { &[] });
    let devices = devices.map(|_| "engine.devices".into());
    let layer = Figment::from(directory).merge(devices).merge(sections);
    // Taken verbatim: a key may look like a number, and no error may repeat it.
    Ok(match server::api_key_of_env()? {
        // Uses figment's default profile, as the layers that override it do.
        Some(key) => layer.merge(Serialized::default("server.api_key", key.text())),
        None => layer,
    })
}

/// Formats the key and the reason, without figment's own text about the source.
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

/// Defaults with one model, so that every key appears.
fn of_every_key() -> Value {
    let config = Config { models: vec![ModelConfig::default()], ..Config::default() };
    // Cannot fail: map keys are strings, and numbers are finite.
    serde_json::to_value(config).unwrap_or_default()
}

impl ModelConfig {
    /// Configured format of tool calls, if any. The configuration was checked, so the name is valid.
    pub(crate) fn format_of_calls(&self) -> Option<ToolFormat> {
        self.tool_format.as_deref().and_then(|name| ToolFormat::by_name(name).ok())
    }
}

/// Validates the name of a tool format, such as `hermes`, for [`ModelConfig::tool_format`].
///
/// # Errors
/// A message that lists the known formats.
pub fn parse_tool_format(name: &str) -> Result<String, String> {
    ToolFormat::by_name(name).map(|format| format.name().to_owned())
}

/// Parses a number of bytes: `1073741824`, `512M`, `12GiB`, `1.5 GB`. K, M, G and T are powers of 1,024, `KB`,
/// `MB`, `GB` and `TB` powers of 1,000.
///
/// # Errors
/// A message that says what is wrong.
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
