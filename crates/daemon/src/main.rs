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
use figment::{Figment, providers::Serialized};
use hanzo_engine_daemon::{
    Config, ConfigError, Daemon, DaemonError, DaemonHandle,
    config::ModelConfig,
    log::{self, LogLevel},
    preflight, signal,
};
use hanzo_engine_process::{
    documents,
    settings::{EngineDaemon, FlagLayer, SettingsChange},
    systemd::{self, Is},
};

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
    /// Model to load at startup: a name in the store, hanzo-demo, or a path; repeatable
    #[arg(long)]
    model: Vec<String>,
    #[command(flatten)]
    settings: FlagLayer<Config, EngineDaemon>,
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
        let model = |source: &String| ModelConfig { source: source.clone(), ..Default::default() };
        let models: Vec<ModelConfig> = self.model.iter().map(model).collect();
        let layer = Figment::from(Serialized::defaults(&self.settings.values));
        if models.is_empty() { layer } else { layer.merge(("models", models)) }
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
