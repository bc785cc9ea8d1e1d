//! `engine-gateway`: the gateway as a program of its own, in front of an engine that runs elsewhere.

use std::{future::Future, io, path::PathBuf, process::ExitCode};

use clap::Parser;
use hanzo_engine_gateway::{Config, Gateway, GatewayError};
use serde::Serialize;
use tracing_subscriber::EnvFilter;

/// The OpenAI HTTP API in front of a Hanzo Engine daemon.
///
/// Every setting can also stand in a file (--config) or in the environment (HANZO_ENGINE_GATEWAY_PORT, …);
/// flags win over the environment, and that over the file.
#[derive(Debug, Parser)]
#[command(name = "engine-gateway", version)]
struct Args {
    /// TOML or YAML file of settings.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// What is logged: error, warn, info, debug or trace, or a filter such as hanzo_engine_gateway=debug.
    #[arg(long, value_name = "LEVEL", env = "HANZO_ENGINE_LOG_LEVEL", default_value = "info")]
    log_level: String,
    #[command(flatten)]
    flags: Flags,
}

/// The settings that have a flag. Those not given are left to the file and the environment.
#[derive(Debug, clap::Args, Serialize)]
struct Flags {
    /// Address to listen on [default: 127.0.0.1].
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    /// Port to listen on; 0 picks a free one [default: 36900].
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    /// The engine's gRPC address [default: http://127.0.0.1:36901].
    #[arg(long, value_name = "URI")]
    #[serde(skip_serializing_if = "Option::is_none")]
    engine: Option<String>,
    /// Ignore unknown request fields instead of answering 400.
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    lenient: bool,
    /// Seconds that requests may go on after SIGTERM [default: 30].
    #[arg(long, value_name = "SECONDS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    drain_s: Option<u64>,
    /// Seconds after which a request to the engine ends with 504 [default: no limit].
    #[arg(long, value_name = "SECONDS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    request_timeout_s: Option<u64>,
}

/// Why the program ended.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("log level: {0}")]
    Log(#[from] tracing_subscriber::filter::ParseError),
    #[error(transparent)]
    Gateway(#[from] GatewayError),
    #[error("cannot listen for signals: {0}")]
    Signals(#[source] io::Error),
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("engine-gateway: {failure}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> Result<(), Failure> {
    let filter = EnvFilter::try_new(&args.log_level)?;
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).init();
    let config = Config::load(args.config.as_deref(), &args.flags)?;
    let engine = config.engine.clone();
    let shutdown = shutdown().map_err(Failure::Signals)?;
    let gateway = Gateway::bind(config).await?;
    tracing::info!(http = %gateway.local_addr(), engine, "engine-gateway listens");
    gateway.serve(shutdown).await?;
    tracing::info!("engine-gateway has stopped");
    Ok(())
}

/// Resolves at the first SIGTERM or Ctrl-C; a second one exits at once, with status 130.
#[cfg(unix)]
fn shutdown() -> io::Result<impl Future<Output = ()> + Send + 'static> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut next = async move || {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    Ok(async move {
        next().await;
        tokio::spawn(async move {
            next().await;
            std::process::exit(130);
        });
    })
}

/// Resolves at the first Ctrl-C.
#[cfg(not(unix))]
fn shutdown() -> io::Result<impl Future<Output = ()> + Send + 'static> {
    Ok(async {
        if let Err(error) = tokio::signal::ctrl_c().await {
            tracing::error!(%error, "cannot listen for Ctrl-C");
            std::future::pending::<()>().await;
        }
    })
}
