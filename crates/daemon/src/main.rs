//! `engined`: reads flags and configuration, starts logging, then binds, serves and drains. The rest is in the
//! library.

#![forbid(unsafe_code)]

use std::{
    io::Write as _,
    path::PathBuf,
    process::ExitCode,
    sync::{Arc, OnceLock},
};

use clap::{CommandFactory as _, Parser};
use figment::Figment;
use hanzo_engine_daemon::{
    Config, ConfigError, Daemon, DaemonError, DaemonHandle,
    config::{
        Devices, GpuLayers, Isolation, KeepAlive, MetricsCompat, ModelConfig, OnDemand, SplitMode,
        parse_bytes,
    },
    log::{self, LogLevel},
    preflight, signal,
};
use hanzo_engine_process::{
    documents,
    settings::SettingsChange,
    systemd::{self, Is},
};
use serde::Serialize;

/// Hosts models behind the gRPC service hanzo.engine.v1.
#[derive(Parser)]
#[command(name = "engined", version)]
struct Flags {
    /// Configuration file, TOML or YAML
    #[arg(long)]
    config: Option<PathBuf>,
    /// Print the effective settings (from file, environment and flags) as TOML with keys hidden; serve nothing
    #[arg(long)]
    print_config: bool,
    /// Check the settings and the files that they name; serve nothing
    #[arg(long)]
    check_config: bool,
    /// Write the manual page and completions below this directory; serve nothing
    #[arg(long, value_name = "DIR", hide = true)]
    write_documents: Option<PathBuf>,
    /// Address to listen on
    #[arg(long)]
    host: Option<String>,
    /// Port of gRPC; 0 for any free one [default: 36901]
    #[arg(long)]
    grpc_port: Option<u16>,
    /// Port of /metrics, /healthz and /readyz; 0 for any free one [default: 36902]
    #[arg(long)]
    admin_port: Option<u16>,
    /// Key that every call must have; better set as HANZO_ENGINE_API_KEY, which process lists do not show
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// File of keys with their permissions, as written by `hanzo-engine keys create`; reloaded when it changes
    #[arg(long, value_name = "FILE")]
    api_keys_file: Option<PathBuf>,
    /// TLS certificate chain for gRPC (PEM: the certificate, then its intermediates); reloaded when it changes
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate (PEM)
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// Certificate authorities for clients (PEM): a client, such as a gateway, must present a certificate of one of
    /// them
    #[arg(long, value_name = "FILE")]
    tls_client_ca: Option<PathBuf>,
    /// Listen on non-loopback addresses without a key; for private networks only
    #[arg(long)]
    insecure: bool,
    /// Require a key for the admin port's /metrics too
    #[arg(long)]
    private_metrics: bool,
    /// Export /metrics under another engine's names too: vllm
    #[arg(long, value_name = "ENGINE")]
    metrics_compat: Option<MetricsCompat>,
    /// Model to load at startup: a name in the store, hanzo-demo, or a path; repeatable
    #[arg(long)]
    model: Vec<String>,
    /// Directory of the model store [default: ~/.hanzo/models]
    #[arg(long)]
    model_dir: Option<PathBuf>,
    /// Compute threads [default: one for each core]
    #[arg(long)]
    threads: Option<usize>,
    /// Maximum context length, prompt and completion together, in tokens
    #[arg(long)]
    max_context: Option<u32>,
    /// Memory budget of all models together, such as 12GiB [default: 80 % of what is available]
    #[arg(long, value_parser = parse_bytes)]
    memory_budget: Option<u64>,
    /// Memory limit of this process, such as 2GiB: allocated when models are loaded, and nothing later
    #[arg(long, value_parser = parse_bytes, conflicts_with = "memory_budget")]
    fixed_memory: Option<u64>,
    /// Keep KV cache blocks in this directory, so that they are found after a restart
    #[arg(long)]
    prefix_cache_dir: Option<PathBuf>,
    /// Maximum size of that directory, such as 4GiB [default: 16GiB]
    #[arg(long, value_parser = parse_bytes)]
    prefix_cache_bytes: Option<u64>,
    /// Devices to load models on: auto (every NVIDIA GPU that works, then the CPU), names such as cuda:0,cpu, or
    /// GPU numbers (0,1) followed by the CPU [default: auto]
    #[arg(long, aliases = ["devices", "gpu-devices", "device-map"])]
    device: Option<Devices>,
    /// Layers of a model on GPUs, counted from the last; the others run on the CPU: auto (as many as fit), all or a
    /// number [default: auto]
    #[arg(long, alias = "n-gpu-layers")]
    gpu_layers: Option<GpuLayers>,
    /// How several GPUs share a model: by layer, or by row, all computing each layer together [default: layer]
    #[arg(long)]
    split_mode: Option<SplitMode>,
    /// Run each model in a thread of the daemon, or in its own process so that a crash stays isolated [default:
    /// process on Linux without --fixed-memory, else thread]
    #[arg(long)]
    isolation: Option<Isolation>,
    /// Continue completions that fill their context: the first tokens are kept, half of the others dropped
    #[arg(long)]
    context_shift: bool,
    /// Pixels that a picture is scaled down to if its request does not say [default: as the model says]
    #[arg(long, value_name = "PIXELS")]
    picture_pixels: Option<u64>,
    /// Maximum pixels of a picture, whatever its request says [default: the model's maximum]
    #[arg(long, value_name = "PIXELS")]
    picture_pixels_max: Option<u64>,
    /// Whether a request that names a stored model loads it: always or never [default: always]
    #[arg(long)]
    on_demand: Option<OnDemand>,
    /// Idle time after which such a model is unloaded: seconds or a time such as 5m, 0 for at once, -1 for never
    /// [default: 5m]
    #[arg(long, allow_hyphen_values = true)]
    keep_alive: Option<KeepAlive>,
    /// Seconds that running requests may take after SIGTERM, SIGQUIT or Ctrl-C [default: 30]
    #[arg(long)]
    drain: Option<u64>,
    /// Log level: error, warn, info, debug, trace, or a filter
    #[arg(long)]
    log_level: Option<String>,
    /// Address that request traces are sent to by OTLP, such as http://localhost:4317 [default:
    /// OTEL_EXPORTER_OTLP_ENDPOINT]
    #[arg(long, value_name = "URL")]
    traces_endpoint: Option<String>,
}

impl Flags {
    /// Configuration from file, environment and these flags. Models run in separate processes unless a setting says
    /// otherwise.
    fn config(&self) -> Result<Config, ConfigError> {
        let mut config = Config::load(self.config.as_deref(), self.layer())?;
        config.engine.isolate_by_default();
        Ok(config)
    }

    fn layer(&self) -> Figment {
        let models =
            self.model.iter().map(|source| ModelConfig { source: source.clone(), ..Default::default() });
        let models: Vec<ModelConfig> = models.collect();
        let layer = Figment::new();
        let layer = with(layer, "server.host", self.host.as_ref());
        let layer = with(layer, "server.api_key", self.api_key.as_ref());
        let layer = with(layer, "server.api_keys_file", self.api_keys_file.as_ref());
        let layer = with(layer, "server.tls_cert", self.tls_cert.as_ref());
        let layer = with(layer, "server.tls_key", self.tls_key.as_ref());
        let layer = with(layer, "server.tls_client_ca", self.tls_client_ca.as_ref());
        let layer = with(layer, "server.insecure", self.insecure.then_some(true));
        let layer = with(layer, "server.private_metrics", self.private_metrics.then_some(true));
        let layer = with(layer, "server.metrics_compat", self.metrics_compat);
        let layer = with(layer, "server.grpc_port", self.grpc_port);
        let layer = with(layer, "server.admin_port", self.admin_port);
        let layer = with(layer, "server.drain_s", self.drain);
        let layer = with(layer, "store.dir", self.model_dir.as_ref());
        let layer = with(layer, "engine.threads", self.threads);
        let layer = with(layer, "engine.context_tokens_max", self.max_context);
        let layer = with(layer, "engine.memory_budget_bytes", self.memory_budget);
        let layer = with(layer, "engine.fixed_memory_bytes", self.fixed_memory);
        let layer = with(layer, "engine.prefix_cache_dir", self.prefix_cache_dir.as_ref());
        let layer = with(layer, "engine.prefix_cache_bytes", self.prefix_cache_bytes);
        let layer = with(layer, "engine.devices", self.device.as_ref());
        let layer = with(layer, "engine.gpu_layers", self.gpu_layers);
        let layer = with(layer, "engine.split_mode", self.split_mode);
        let layer = with(layer, "engine.isolation", self.isolation);
        let layer = with(layer, "engine.context_shift", self.context_shift.then_some(true));
        let layer = with(layer, "engine.picture_pixels", self.picture_pixels);
        let layer = with(layer, "engine.picture_pixels_max", self.picture_pixels_max);
        let layer = with(layer, "engine.on_demand", self.on_demand);
        let layer = with(layer, "engine.keep_alive", self.keep_alive);
        let layer = with(layer, "log.level", self.log_level.as_ref());
        let layer = with(layer, "traces.endpoint", self.traces_endpoint.as_ref());
        with(layer, "models", (!models.is_empty()).then_some(models))
    }
}

/// Sets a key in the layer, if its flag was given.
fn with(layer: Figment, key: &str, value: Option<impl Serialize>) -> Figment {
    match value {
        Some(value) => layer.merge((key, value)),
        None => layer,
    }
}

fn main() -> ExitCode {
    if let Some(ended) = hanzo_engine_daemon::worker_process() {
        return ended;
    }
    match start(Flags::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("engined: {error}");
            ExitCode::FAILURE
        }
    }
}

fn start(flags: Flags) -> Result<(), Box<dyn std::error::Error>> {
    if let Some(dir) = &flags.write_documents {
        return Ok(documents::write(Flags::command(), dir)?);
    }
    let config = flags.config()?;
    if flags.print_config {
        std::io::stdout().write_all(config.print().as_bytes())?;
    }
    if flags.check_config {
        log::check(&config.log.level)?;
        config.check_files()?;
        eprintln!("engined: the settings can be used");
    }
    if flags.print_config || flags.check_config {
        return Ok(());
    }
    let level = log::init(&config.log)?;
    let runtime = preflight::runtime(config.engine.threads_wanted(config.models.len()))?;
    let ended = runtime.block_on(run(flags, config, level));
    // A model that is still being read does not delay the exit.
    runtime.shutdown_background();
    ended
}

async fn run(flags: Flags, config: Config, level: LogLevel) -> Result<(), Box<dyn std::error::Error>> {
    let bound = Arc::new(OnceLock::new());
    let served = bound.clone();
    signal::on_hangup(move || {
        // Before the daemon is bound, the settings have just been read.
        let Some(handle) = served.get() else { return };
        systemd::tell(Is::Reloading);
        SettingsChange::log(reload(&flags, handle, &level));
        systemd::tell(Is::Ready);
    })?;
    let shutdown = signal::shutdown()?;
    let daemon = Daemon::bind(config).await?;
    tracing::info!(grpc = %daemon.grpc_addr(), admin = %daemon.admin_addr(), "listening");
    let handle = bound.get_or_init(|| daemon.handle()).clone();
    systemd::tell(Is::Ready);
    systemd::watch(move || !handle.is_stuck());
    let stopping = async move {
        shutdown.await;
        systemd::tell(Is::Stopping);
    };
    Ok(daemon.serve(stopping).await?)
}

/// Reads the settings again and applies those that can change at run time.
fn reload(flags: &Flags, handle: &DaemonHandle, level: &LogLevel) -> Result<SettingsChange, DaemonError> {
    let config = flags.config()?;
    log::check(&config.log.level)?;
    let changed = handle.reload(&config)?;
    level.set(&config.log.level)?;
    Ok(changed)
}
