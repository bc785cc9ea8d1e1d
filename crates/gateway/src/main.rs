//! Program `engine-gateway`: the gateway as its own process, in front of an engine elsewhere.

use std::{
    future::Future,
    io::{self, IsTerminal as _, Write as _},
    path::PathBuf,
    process::ExitCode,
    sync::RwLock,
    thread,
    time::SystemTime,
};

use clap::{CommandFactory as _, Parser};
use hanzo_engine_gateway::{Config, Gateway, GatewayError, LogFormat, Reload};
use hanzo_engine_process::{
    documents,
    settings::{EngineGateway, FlagLayer, SettingsChange},
    systemd::{self, Is},
    tasks,
};
use tracing_subscriber::{
    EnvFilter, Layer as _, Registry, filter::ParseError, layer::SubscriberExt as _, reload,
    util::SubscriberInitExt as _,
};

/// Minimum blocking threads in addition to those of the async runtime.
const THREADS_BESIDE_MIN: usize = 4;

/// OpenAI HTTP API in front of a Hanzo Engine daemon.
///
/// Every setting can also be given in a file (--config) or in the environment (HANZO_ENGINE_GATEWAY_PORT, …).
/// Flags override the environment, which overrides the file.
#[derive(Parser)]
#[command(name = "engine-gateway", version)]
struct Args {
    /// TOML or YAML file of settings.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the effective settings of file, environment and flags as TOML, with keys hidden, and exit.
    #[arg(long)]
    print_config: bool,
    /// Check the settings and the files that they name, and exit.
    #[arg(long)]
    check_config: bool,
    /// Write the manual page and shell completions below this directory, and exit.
    #[arg(long, value_name = "DIR", hide = true)]
    write_documents: Option<PathBuf>,
    #[command(flatten)]
    settings: FlagLayer<Config, EngineGateway>,
}

/// Reason why the program ended.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("log level: {0}")]
    Log(#[from] ParseError),
    #[error(transparent)]
    Gateway(#[from] GatewayError),
    #[error("this machine's clock says that it is before 1970: set it; the dates of answers need it")]
    Clock,
    #[error(
        "the system gives this process {given} of the {needed} threads it needs: {source}; raise the limit (ulimit -u, \
         TasksMax= of a unit, the pids limit of a container)"
    )]
    Threads { given: usize, needed: usize, source: io::Error },
    #[error("cannot start the asynchronous runtime: {0}")]
    Runtime(#[source] io::Error),
    #[error("cannot listen for signals: {0}")]
    Signals(#[source] io::Error),
    #[error("cannot print the settings: {0}")]
    Print(#[source] io::Error),
    #[error("cannot write manual page and completions: {0}")]
    Documents(#[source] io::Error),
}

fn main() -> ExitCode {
    match start(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("engine-gateway: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Starts the program. Missing resources are reported here, because libraries panic when they find them missing
/// later.
fn start(args: Args) -> Result<(), Failure> {
    if let Some(dir) = &args.write_documents {
        return documents::write(Args::command(), dir).map_err(Failure::Documents);
    }
    if args.print_config || args.check_config {
        return show(&args);
    }
    if SystemTime::now() < SystemTime::UNIX_EPOCH {
        return Err(Failure::Clock);
    }
    let workers = thread::available_parallelism().map_or(1, usize::from);
    check_threads(workers + THREADS_BESIDE_MIN)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build();
    to_its_end(runtime.map_err(Failure::Runtime)?, run(args))
}

/// Prints and checks the settings, as requested.
fn show(args: &Args) -> Result<(), Failure> {
    let config = Config::load(args.config.as_deref(), &args.settings.values)?;
    if args.print_config {
        io::stdout().write_all(config.print().as_bytes()).map_err(Failure::Print)?;
    }
    if args.check_config {
        filter(&config.log_level)?;
        config.check_files()?;
        eprintln!("engine-gateway: the settings can be used");
    }
    Ok(())
}

/// Runs `work` to its end. A body that is still being parsed does not delay the exit.
fn to_its_end<T>(runtime: tokio::runtime::Runtime, work: impl Future<Output = T>) -> T {
    let ended = runtime.block_on(work);
    runtime.shutdown_background();
    ended
}

/// Checks that `needed` threads can exist at the same time.
fn check_threads(needed: usize) -> Result<(), Failure> {
    let gate = RwLock::new(());
    thread::scope(|scope| {
        let closed = gate.write();
        for given in 0..needed {
            if let Err(source) = thread::Builder::new().spawn_scoped(scope, || drop(gate.read())) {
                return Err(Failure::Threads { given, needed, source });
            }
        }
        drop(closed);
        Ok(())
    })
}

async fn run(args: Args) -> Result<(), Failure> {
    let config = Config::load(args.config.as_deref(), &args.settings.values)?;
    let (filter, level) = reload::Layer::new(filter(&config.log_level)?);
    let lines =
        tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(io::stderr().is_terminal());
    let lines = match config.log_format {
        LogFormat::Pretty => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry().with(filter).with(lines).init();
    let engine = if config.upstreams.is_empty() { config.engine.clone() } else { config.upstreams.join(",") };
    let (shutdown, mut hangups) =
        (shutdown().map_err(Failure::Signals)?, hangups().map_err(Failure::Signals)?);
    let gateway = Gateway::bind(config).await?;
    let settings = gateway.reload();
    tasks::spawn(async move {
        while hangups.recv().await.is_some() {
            systemd::tell(Is::Reloading);
            SettingsChange::log(read_again(&args, &settings, &level));
            systemd::tell(Is::Ready);
        }
    });
    let mcp = gateway.mcp_addr().map(tracing::field::display);
    tracing::info!(http = %gateway.local_addr(), mcp, engine, "engine-gateway listens");
    systemd::tell(Is::Ready);
    systemd::watch(|| true);
    let stopping = async move {
        shutdown.await;
        systemd::tell(Is::Stopping);
    };
    gateway.serve(stopping).await?;
    tracing::info!("engine-gateway has stopped");
    Ok(())
}

/// Log filter of a level. The MCP library, which logs every message, is silent unless it is named.
fn filter(level: &str) -> Result<EnvFilter, ParseError> {
    let quiet = if level.contains("rmcp") { "" } else { ",rmcp=error" };
    EnvFilter::try_new(format!("{level}{quiet}"))
}

/// Reloads the settings and applies those that can change.
fn read_again(args: &Args, settings: &Reload, level: &Level) -> Result<SettingsChange, Failure> {
    let config = Config::load(args.config.as_deref(), &args.settings.values)?;
    let filter = filter(&config.log_level)?;
    let changed = settings.reload(config)?;
    // The log subscriber lives as long as the program, so this cannot fail.
    let _ = level.reload(filter);
    Ok(changed)
}

type Level = reload::Handle<EnvFilter, Registry>;

/// Channel with an item for each SIGHUP; closed on systems without that signal.
fn hangups() -> io::Result<tokio::sync::mpsc::Receiver<()>> {
    let (sender, hangups) = tokio::sync::mpsc::channel(1);
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let mut hangup = signal(SignalKind::hangup())?;
        tasks::spawn(async move { while hangup.recv().await.is_some() && sender.send(()).await.is_ok() {} });
    }
    #[cfg(not(unix))]
    drop(sender);
    Ok(hangups)
}

/// Resolves at the first SIGTERM, SIGQUIT or Ctrl-C. A second one exits at once with status 130.
#[cfg(unix)]
fn shutdown() -> io::Result<impl Future<Output = ()> + Send + 'static> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut quit = signal(SignalKind::quit())?;
    let mut next = async move || {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = quit.recv() => {}
        }
    };
    Ok(async move {
        next().await;
        tasks::spawn(async move {
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

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread, time::Duration};

    #[test]
    fn work_that_blocks_does_not_hold_up_the_end() {
        let (release, released) = mpsc::channel::<()>();
        let (end, ended) = mpsc::channel();
        thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().expect("a runtime");
            super::to_its_end(runtime, async {
                let (begin, begun) = tokio::sync::oneshot::channel();
                tokio::task::spawn_blocking(move || {
                    begin.send(()).expect("it is awaited");
                    released.recv()
                });
                begun.await.expect("it begins");
            });
            end.send(()).expect("it is awaited");
        });
        ended.recv_timeout(Duration::from_secs(20)).expect("it waits for what blocks");
        drop(release);
    }
}
