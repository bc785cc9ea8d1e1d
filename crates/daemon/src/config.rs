//! Configuration: defaults, then a TOML or YAML file, then `HANZO_ENGINE_{SECTION}_{KEY}`, then flags. An unknown
//! key is an error that names the key and its layer. Nothing is opened or bound here.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    str::FromStr,
};

use clap::{builder::PossibleValuesParser, value_parser};
use figment::{Figment, Provider, providers::Serialized};
pub use hanzo_engine_ops::KvType;
pub use hanzo_engine_process::settings::LogFormat;
use hanzo_engine_process::{
    flag_types, settings,
    settings::{
        DeclaredSettings, EngineDaemon, SAME, Serve, SettingSpec, bytes, out_of_bounds, parser, reason,
    },
};
use hanzo_engine_runtime::ToolFormat;
pub use hanzo_engine_runtime::{Speculation, encoder::WeightType};
pub use hanzo_engine_telemetry::{Protocol, TracesConfig, TracesError};
use serde::{Deserialize, Serialize};
use serde_json::json;

mod environment;
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

settings! {
    /// Settings of the model store on this machine.
    pub struct StoreConfig("store.") {
        /// Directory of the store; unset: `~/.hanzo/models`.
        dir: Option<PathBuf> = None => variables(&["HANZO_MODELS_DIR"]).named("model-dir")
            .engined("", "Directory of the model store [default: ~/.hanzo/models]");
        /// Continue without a store if it cannot be opened, for example because another process has it open.
        optional: bool = false;
    }
}

settings! {
    /// Limits of the engines and of the memory that they share.
    pub struct EngineSection("engine.") {
        /// Compute threads, shared by all models; unset: one for each core this process may use.
        threads: Option<usize> = None => within(1..=4_096)
            .engined("", "Compute threads [default: one for each core]")
            .flag::<Serve>("N", SAME, |arg| arg.value_parser(parser(value_parser!(u16).range(1..=1024))))
            .example(8);
        /// Maximum context length in tokens, prompt and completion together; unset: the model's own, as far as memory
        /// allows.
        context_tokens_max: Option<u32> = None => reloaded().within(1..=u32::MAX as u64).named("max-context")
            .engined("", "Maximum context length, prompt and completion together, in tokens")
            .flag::<Serve>("TOKENS", "Maximum context length, prompt and answer together, in tokens [default: the \
                                      model's, as far as memory allows]",
                           |arg| arg.value_parser(parser(value_parser!(u32).range(1..)))).example(32768);
        /// Memory budget of all models together, in bytes; unset: 80 % of what is available at the start.
        memory_budget_bytes: Option<u64> = None => named("memory-budget")
            .flag::<EngineDaemon>("", "Memory budget of all models together, such as 12GiB [default: 80 % of what is \
                                       available]", bytes)
            .flag::<Serve>("SIZE", "Memory budget of all models together, such as 8GiB [default: 80 % of what is \
                                    available]", bytes).example(17179869184_u64);
        /// Memory limit of the whole process in bytes, instead of a budget of models. Models allocate all they need
        /// when they are loaded, with every page of their KV caches, and nothing grows afterwards.
        fixed_memory_bytes: Option<u64> = None => named("fixed-memory")
            .flag::<EngineDaemon>("", "Memory limit of this process, such as 2GiB: allocated when models are loaded, \
                                       and nothing later", bytes)
            .flag::<Serve>("SIZE", SAME, bytes).with(|arg| arg.conflicts_with("memory_budget"))
            .example(2147483648_u64);
        /// Maximum number of queued requests of one model.
        queue_requests_max: usize = 256 => reloaded().within(1..=limits::QUEUE_REQUESTS_LIMIT);
        /// Maximum number of sequences of one model that run at once.
        sequences_max: usize = 64 => reloaded().within(1..=limits::SEQUENCES_LIMIT);
        /// Maximum number of tokens in one step: decoding sequences and prefill chunks together.
        step_tokens_max: usize = 512 => reloaded().within(1..=limits::STEP_TOKENS_LIMIT);
        /// Size of one model's KV cache in bytes; unset: chosen from the memory budget.
        kv_bytes: Option<u64> = None => reloaded().example(4294967296_u64);
        /// Data type of the KV cache: `f16`; `q8_0`, which takes about half the memory and bandwidth; or `fp8` (E4M3
        /// without a scale, with a 3-bit mantissa), which takes half.
        #[serde(with = "names::kv_type")]
        kv_type: KvType = KvType::F16 => reloaded()
            .flag::<Serve>("TYPE", "Type of the KV cache: q8_0 takes about half the memory of f16 [default: f16]",
                           |arg| arg.value_parser(parser(PossibleValuesParser::new(KvType::ALL.iter().map(kv_name)))));
        /// Share KV cache blocks between requests that begin with the same prompt.
        prefix_cache: bool = true => reloaded();
        /// Directory that keeps KV cache blocks, so that prompts with the same prefix find them after a restart; unset:
        /// none.
        prefix_cache_dir: Option<PathBuf> = None
            => engined("", "Keep KV cache blocks in this directory, so that they are found after a restart")
            .serve("DIR", SAME).example("/var/lib/hanzo-engine/kv");
        /// Maximum size of that directory in bytes. The least recently used blocks are deleted first.
        prefix_cache_bytes: u64 = limits::PREFIX_DISK_BYTES_DEFAULT
            => flag::<EngineDaemon>("", "Maximum size of that directory, such as 4GiB [default: 16GiB]", bytes)
            .flag::<Serve>("SIZE", SAME, bytes);
        /// Continue completions that fill their context, unless a request says otherwise: the first tokens are kept and
        /// half of the others dropped.
        context_shift: bool = false => reloaded()
            .engined("", "Continue completions that fill their context: the first tokens are kept, half of the \
                          others dropped")
            .serve("", "Continue answers that fill their context: the first tokens are kept, half of the others \
                        dropped");
        /// Number of pixels that a picture is scaled down to if its request does not say; unset: the model's own
        /// setting. Applies to models that keep a picture's size roughly (Qwen's, Pixtral and Mistral 3).
        picture_pixels: Option<u64> = None => reloaded().within(limits::PICTURE_PIXELS)
            .engined("PIXELS", "Pixels that a picture is scaled down to if its request does not say [default: as the \
                                model says]").example(1_003_520);
        /// Maximum number of pixels of such a picture, whatever its request says; unset: the model's maximum.
        picture_pixels_max: Option<u64> = None => reloaded().within(limits::PICTURE_PIXELS)
            .engined("PIXELS", "Maximum pixels of a picture, whatever its request says [default: the model's maximum]")
            .example(3_211_264);
        /// Source of draft tokens for speculative decoding: `ngram`, which proposes the tokens that followed the last
        /// ones where they occurred before, or `off`. It changes the speed, never the output.
        #[serde(with = "names::speculation")]
        speculation: Speculation = Speculation::default() => reloaded()
            .flag::<Serve>("SOURCE", "Source of draft tokens for speculative decoding: ngram (from earlier text) or \
                                      off [default: ngram]",
                           |arg| arg.value_parser(parser(speculation_name)));
        /// Whether a request for a stored model loads it: `always` or `never`.
        on_demand: OnDemand = OnDemand::Always => reloaded()
            .engined("", "Whether a request that names a stored model loads it: always or never [default: always]")
            .serve("WHEN", SAME);
        /// Idle time after which a model that was loaded on demand is unloaded: seconds or a time such as `5m`; 0 to
        /// unload at once, -1 to keep it.
        keep_alive: KeepAlive = KeepAlive::default() => reloaded()
            .engined("", "Idle time after which such a model is unloaded: seconds or a time such as 5m, 0 for at \
                          once, -1 for never [default: 5m]")
            .serve("TIME", SAME).with(|arg| arg.allow_hyphen_values(true));
        /// Devices to load models on. `auto` is every NVIDIA GPU that works, then the CPU. Names such as `cuda:0,cpu`
        /// are tried in that order. Bare numbers such as `0,1` are GPUs, followed by the CPU. A model that fits on no
        /// single GPU is split across several if they have room. Each GPU's own memory is the budget of the models on
        /// it.
        devices: Devices = Devices::Auto => variables(&["HANZO_ENGINE_DEVICES"]).named("device")
            .engined("", "Devices to load models on: auto (every NVIDIA GPU that works, then the CPU), names such as \
                          cuda:0,cpu, or GPU numbers (0,1) followed by the CPU [default: auto]")
            .serve("NAMES", SAME).with(|arg| arg.aliases(["devices", "gpu-devices", "device-map"]));
        /// Number of layers of a generative model that run on GPUs, counted from the last one, with the head; the
        /// others run on the CPU. `auto` for as many as fit, `all`, or a number.
        gpu_layers: GpuLayers = GpuLayers::Auto => reloaded()
            .engined("", "Layers of a model on GPUs, counted from the last; the others run on the CPU: auto (as many \
                          as fit), all or a number [default: auto]")
            .serve("N", SAME).with(|arg| arg.alias("n-gpu-layers"));
        /// How several GPUs share a generative model. `layer` gives each GPU some of the layers if none has room for
        /// all. `row` lets all GPUs compute each layer together (tensor parallelism) if they have room, and otherwise
        /// splits by layer.
        split_mode: SplitMode = SplitMode::Layer => reloaded()
            .engined("", "How several GPUs share a model: by layer, or by row, all computing each layer together \
                          [default: layer]").serve("HOW", SAME);
        /// `thread` or `process`: run each model in a thread of the daemon, or in its own process so that a crash stays
        /// isolated. Unset: `process` for `engined` on Linux without `fixed_memory_bytes`, else `thread`.
        isolation: Option<Isolation> = None
            => engined("", "Run each model in a thread of the daemon, or in its own process so that a crash stays \
                            isolated [default: process on Linux without --fixed-memory, else thread]")
            .serve("WHAT", "`thread` or `process`: run each model in this program, or in its own process so that a \
                            crash stays isolated [default: thread]").example("process");
        /// Milliseconds without a sign of life after which a model's process is killed and restarted.
        worker_silence_ms: u64 = 2_000 => within(limits::WORKER_SILENCE_MS_MIN..=limits::WORKER_SILENCE_MS_MAX);
        /// Bytes of data that a model's process may allocate beyond its plan; unset: no limit.
        worker_margin_bytes: Option<u64> = None => example(1073741824);
        /// Data type of encoder weights: as `stored`, or `q8_0` for int8 products, which are faster and less exact.
        #[serde(with = "names::weights")]
        encoder_weights: WeightType = WeightType::Stored;
    }
}

flag_types!(
    Devices: Devices::from_str,
    GpuLayers: GpuLayers::from_str,
    Isolation: value_parser!(Isolation),
    KeepAlive: KeepAlive::from_str,
    MetricsCompat: MetricsCompat::from_str,
    OnDemand: OnDemand::from_str,
    SplitMode: value_parser!(SplitMode),
);

/// Name of a type of KV cache.
fn kv_name(kv_type: &KvType) -> &'static str {
    kv_type.name()
}

/// Name of a source of draft tokens, if there is one of that name.
fn speculation_name(text: &str) -> Result<&'static str, String> {
    text.parse().map(Speculation::name)
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

settings! {
    /// A model to load, at startup or on demand.
    pub struct ModelConfig("models.") {
        /// Name in the store, `hanzo-demo`, or path of a GGUF file or a safetensors directory.
        source: String = String::new();
        /// Name that the model is served under, instead of its own.
        alias: Option<String> = None => example("assistant");
        /// Overrides `engine.context_tokens_max`.
        context_tokens_max: Option<u32> = None => example(32768);
        /// Overrides `engine.kv_bytes`.
        kv_bytes: Option<u64> = None => example(4294967296_u64);
        /// Overrides `engine.gpu_layers`.
        gpu_layers: Option<GpuLayers> = None => example(20);
        /// Subset of `engine.devices` that the model may use.
        gpu_devices: Option<Devices> = None => example("cuda:0,cuda:1,cpu");
        /// Adapters to load with the model, by name: directories saved by PEFT, or GGUF adapter files.
        adapters: BTreeMap<String, String> = BTreeMap::new()
            => example(json!({"polite": "/var/lib/hanzo-engine/adapters/polite"}));
        /// Format of its tool calls, such as `hermes`; unset: detected from its chat template.
        tool_format: Option<String> = None => example("hermes");
        /// Overrides `engine.picture_pixels`.
        picture_pixels: Option<u64> = None => example(1_003_520);
        /// Draft model for speculative decoding, a smaller model with the same vocabulary: a name in the store, or a
        /// path.
        draft_model: Option<String> = None => example("zen-nano");
        /// Overrides of the values in the model's files.
        overrides: OverrideConfig = OverrideConfig::default();
        /// Idle time after which the model is unloaded. Unset: it stays loaded, or, if `at_start` is false,
        /// `engine.keep_alive` applies.
        keep_alive: Option<KeepAlive> = None => example("1h");
        /// Load the model at startup; if false, on the first request that names it.
        at_start: bool = true;
    }
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
pub use server::{MetricsCompat, ServerConfig};

impl FromStr for OnDemand {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "always" => Ok(OnDemand::Always),
            "never" => Ok(OnDemand::Never),
            _ => Err(format!("{text:?} is neither always nor never")),
        }
    }
}

settings! {
    /// Settings of logging.
    pub struct LogConfig("log.") {
        /// Level (`error`, `warn`, `info`, `debug`, `trace`) or a filter such as `info,hanzo_engine_daemon=debug`.
        level: String = "info".to_owned() => reloaded().named("log-level")
            .engined("", "Log level: error, warn, info, debug, trace, or a filter")
            .flag::<Serve>("LEVEL", "Log level, on stderr [default: info]",
                           |arg| arg.value_parser(parser(value_parser!(LevelName))));
        /// Format of the log: `pretty` or `json`.
        format: LogFormat = LogFormat::Pretty;
    }
}

/// Name of a log level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LevelName {
    /// Failures only
    Error,
    /// Warnings too
    Warn,
    /// Events too: loads, unloads, one line for each request
    Info,
    /// Reasons too
    Debug,
    /// Every step too
    Trace,
}

impl LevelName {
    /// Name of the level in a tracing filter.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
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

impl DeclaredSettings for Config {
    fn settings() -> Vec<SettingSpec> {
        let of_model = |setting: SettingSpec| match setting.key {
            "models.overrides" => OverrideConfig::settings(),
            _ => vec![setting],
        };
        let models = ModelConfig::settings().into_iter().flat_map(of_model).collect();
        let (server, store, engine) =
            (ServerConfig::settings(), StoreConfig::settings(), EngineSection::settings());
        [server, store, engine, models, LogConfig::settings(), TracesConfig::settings()].concat()
    }

    fn reloaded(&self, read: &Self) -> Self {
        Config {
            server: self.server.reloaded(&read.server),
            store: self.store.reloaded(&read.store),
            engine: self.engine.reloaded(&read.engine),
            models: self.models.clone(),
            log: self.log.reloaded(&read.log),
            traces: self.traces.reloaded(&read.traces),
        }
    }
}

impl Config {
    /// Merges the defaults, `file` (TOML, or YAML for the extensions `.yaml` and `.yml`), the environment and
    /// `flags`, each over the one before. `flags` holds only what was given; an empty [`Figment`] will do.
    ///
    /// # Errors
    /// [`ConfigError`] naming the layer and key that is unknown, of the wrong type or out of range.
    pub fn load(file: Option<&Path>, flags: impl Provider) -> Result<Config, ConfigError> {
        let mut layers = Vec::new();
        if let Some(path) = file {
            layers.push((path.display().to_string(), settings::file(path)));
        }
        let wrong = |reason| ConfigError::Layer { layer: "environment".to_owned(), reason };
        layers.push(("environment".to_owned(), environment::layer().map_err(wrong)?));
        layers.push(("flags".to_owned(), Figment::from(flags)));
        let mut merged = Figment::from(Serialized::defaults(Config::default()));
        for (name, layer) in layers {
            // Extract each layer alone over the defaults first, so that an error can name its layer.
            let alone = Figment::from(Serialized::defaults(Config::default())).merge(&layer);
            alone
                .extract::<Config>()
                .map_err(|error| ConfigError::Layer { layer: name, reason: reason::<Config>(&error) })?;
            merged = merged.merge(layer);
        }
        let config: Config = merged.extract().map_err(|error| ConfigError::Layer {
            layer: "configuration".to_owned(),
            reason: reason::<Config>(&error),
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
        if let Some((key, bounds, value)) = out_of_bounds(&Self::settings(), &self.values()) {
            let (least, most) = (bounds.range.start(), bounds.range.end());
            let range = if *least == 0 { format!("at most {most}") } else { format!("{least} to {most}") };
            return refuse(key, format!("must be {range}, not {value}"));
        }
        self.check_counts()?;
        self.check_models()?;
        self.check_memory()?;
        if self.models.len() > limits::MODELS_MAX {
            return refuse("models", format!("at most {} at once", limits::MODELS_MAX));
        }
        Ok(())
    }

    /// Checks that the engine's counts agree.
    fn check_counts(&self) -> Result<(), ConfigError> {
        let engine = &self.engine;
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
        let mut pictures = self.models.iter().filter_map(|model| model.picture_pixels);
        if let Some(pixels) = pictures.find(|pixels| !limits::PICTURE_PIXELS.contains(pixels)) {
            let (least, most) = (limits::PICTURE_PIXELS.start(), limits::PICTURE_PIXELS.end());
            return refuse("models", format!("picture_pixels must be {least} to {most}, not {pixels}"));
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

#[cfg(test)]
#[expect(clippy::result_large_err, reason = "the closures' error type is figment's")]
mod tests;
