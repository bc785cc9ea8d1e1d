//! `serve`: runs daemon and gateway in one process, until Ctrl-C, SIGTERM or SIGQUIT.

use crate::args::ServeArgs;
use crate::connect::{self, Client};
use crate::error::CliError;
use crate::example::example;
use crate::missing::{self, IfMissing};
use crate::paths;
use crate::size::show_bytes;
use crate::term::{Paint, tell};
use figment::providers::Serialized;
use hanzo_engine_daemon::config::ModelConfig;
use hanzo_engine_daemon::log::{self, LogLevel};
use hanzo_engine_daemon::{
    Config, ConfigError, DEMO_MODEL, Daemon, DaemonError, DaemonHandle, preflight, signal,
};
use hanzo_engine_gateway::{Gateway, GatewayError, Reload};
use hanzo_engine_process::settings::{self, DeclaredSettings as _, SettingsChange};
use hanzo_engine_process::systemd::{self, Is};
use hanzo_engine_process::tasks;
use hanzo_engine_proto::v1::{AdapterSource, LoadRequest, LoadResponse};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::io::{Write, stdout};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::task::JoinError;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

/// Under a fixed memory limit, the gateway's maximum bytes for each of: bodies, vectors, answers, stored
/// responses.
const FIXED_HELD_BYTES: usize = 16 << 20;

/// Addresses of a running `serve`.
#[derive(Clone, Copy)]
struct Addresses {
    http: SocketAddr,
    grpc: SocketAddr,
    admin: SocketAddr,
    mcp: Option<SocketAddr>,
    http_scheme: &'static str,
    grpc_scheme: &'static str,
}

/// Minimum time for the daemon to end, if the gateway has used up the drain time.
const LAST_MOMENTS: Duration = Duration::from_secs(2);

/// Runs the command.
pub(crate) async fn serve(args: ServeArgs) -> Result<(), CliError> {
    let config = daemon_config(&args)?;
    if args.print_config || args.check_config {
        return show(&args, &config);
    }
    let sources = config.models.iter().map(|model| model.source.as_str());
    let (dir, optional) = (config.store.dir.clone(), config.store.optional);
    missing::bring_all(sources, dir, optional, IfMissing::of(args.yes)).await?;
    let level = log::init(&config.log)?;
    let args = Arc::new(args);
    let (again, handles) = (args.clone(), Arc::new(OnceLock::new()));
    let served = handles.clone();
    let hung_up = signal::on_hangup(move || {
        // A hangup before the ports are bound has no effect, because the settings were just read.
        let Some((daemon, gateway)) = served.get() else { return };
        systemd::tell(Is::Reloading);
        SettingsChange::log(reload(&again, daemon, gateway, &level));
        systemd::tell(Is::Ready);
    });
    preflight::check_threads(config.engine.threads_wanted(config.models.len()))
        .map_err(|error| CliError::Start(error.to_string()))?;
    hung_up.map_err(|error| CliError::Start(error.to_string()))?;
    let (models, compat) = (config.models.clone(), config.server.metrics_compat);
    let http_config = gateway_config(&args, &config)?;
    let scheme = |tls: bool| if tls { "https" } else { "http" };
    let (http_scheme, grpc_scheme) = (scheme(http_config.tls().is_on()), scheme(config.server.tls().is_on()));
    let daemon = Daemon::bind(config).await.map_err(daemon_error)?;
    let (grpc, admin) = (reachable(daemon.grpc_addr()), reachable(daemon.admin_addr()));
    let (engine, infer, access) = (daemon.engine(), daemon.infer(), daemon.access());
    let bound = Gateway::bind_to(http_config, engine, infer, access).await;
    let gateway = bound.map_err(gateway_error)?;
    if compat.is_some() {
        // Inference gateways look for metrics at the port of the API, where vLLM has them.
        let counted = daemon.handle();
        gateway.tell_also(move || counted.metrics_of_vllm());
    }
    let (http, mcp) = (reachable(gateway.local_addr()), gateway.mcp_addr().map(reachable));
    let addresses = Addresses { http, grpc, admin, mcp, http_scheme, grpc_scheme };
    let asked_to_end = signal::shutdown().map_err(|error| CliError::Start(error.to_string()))?;
    let (wants_keys, client) = (daemon.access().wants_keys(), connect::local(daemon.engine()));
    print_addresses(addresses).map_err(CliError::Output)?;
    let (handle, _) = handles.get_or_init(|| (daemon.handle(), gateway.reload())).clone();
    systemd::tell(Is::Ready);
    let watched = handle.clone();
    systemd::watch(move || !watched.is_stuck());

    let (stop_gateway, stop_daemon) = (CancellationToken::new(), CancellationToken::new());
    let mut gateway = tasks::spawn(gateway.serve(stop_gateway.clone().cancelled_owned()));
    let mut daemon = tasks::spawn(daemon.serve(stop_daemon.clone().cancelled_owned()));
    tokio::select! {
        () = asked_to_end => tell("finishing what runs; once more ends it at once\n"),
        // Nothing runs yet: exit with the load's error.
        Err(failed) = load_then_stay(&models, client, addresses, wants_keys) => return Err(failed),
        // Gateway and daemon end by themselves only if they fail.
        ended = &mut gateway => return joined(ended)?.map_err(CliError::from),
        ended = &mut daemon => return joined(ended)?.map_err(CliError::from),
    }
    systemd::tell(Is::Stopping);
    let deadline = Instant::now() + handle.drain();
    // Stop both at once, so that neither is ready nor accepts new requests. The daemon finishes what the
    // gateway still streams.
    stop_gateway.cancel();
    stop_daemon.cancel();
    joined(gateway.await)??;
    // Requests of other gRPC clients end by the same deadline.
    match timeout_at(deadline.max(Instant::now() + LAST_MOMENTS), daemon).await {
        Ok(ended) => Ok(joined(ended)??),
        Err(_) => Ok(()),
    }
}

/// Reads the settings of both again and applies those that can change. Shared settings come from the daemon's.
fn reload(
    args: &ServeArgs,
    daemon: &DaemonHandle,
    gateway: &Reload,
    level: &LogLevel,
) -> Result<SettingsChange, CliError> {
    let wrong = |error: ConfigError| CliError::Usage(error.to_string());
    let config = daemon_config(args)?;
    log::check(&config.log.level).map_err(wrong)?;
    let of_gateway = gateway_config(args, &config)?;
    let mut changed = daemon.reload(&config).map_err(daemon_error)?;
    let more = gateway.reload(of_gateway).map_err(gateway_error)?;
    level.set(&config.log.level).map_err(wrong)?;
    let own = |key: &String| {
        !changed.taken.iter().chain(&changed.at_restart).any(|known| known.ends_with(key.as_str()))
    };
    let [taken, at_restart] =
        [more.taken, more.at_restart].map(|keys| keys.into_iter().filter(own).collect::<Vec<_>>());
    changed.taken.extend(taken);
    changed.at_restart.extend(at_restart);
    Ok(changed)
}

/// Prints and checks the settings, as requested. The gateway's are printed as comments, because they are set by
/// the environment.
fn show(args: &ServeArgs, config: &Config) -> Result<(), CliError> {
    let of_gateway = gateway_config(args, config)?;
    if args.print_config {
        let mut text = config.print();
        text.push_str("\n# The gateway's settings, set by HANZO_ENGINE_GATEWAY_{KEY}:\n");
        for line in of_gateway.print().lines() {
            text.push_str(&format!("# {line}\n"));
        }
        stdout().lock().write_all(text.as_bytes()).map_err(CliError::Output)?;
    }
    if args.check_config {
        let wrong = |error: ConfigError| CliError::Usage(error.to_string());
        log::check(&config.log.level).map_err(wrong)?;
        config.check_files().map_err(wrong)?;
        of_gateway.check_files().map_err(gateway_error)?;
        tell("the settings can be used\n");
    }
    Ok(())
}

/// Reads the configuration. Flags override file and environment.
fn read_config(args: &ServeArgs) -> Result<Config, ConfigError> {
    let mut flags = args.daemon.values.clone();
    if let Some(dir) = &args.store.model_dir {
        flags.insert("store".to_owned(), json!({"dir": dir}));
    }
    Config::load(args.config.as_deref(), Serialized::defaults(flags))
}

/// Configuration of the daemon, with the models to serve.
fn daemon_config(args: &ServeArgs) -> Result<Config, CliError> {
    let mut config = read_config(args)?;
    if !args.model.is_empty() {
        let model = |source: &String| {
            let source = paths::model_source(source)?;
            Ok(ModelConfig { source, ..ModelConfig::default() })
        };
        config.models = args.model.iter().map(model).collect::<Result<_, CliError>>()?;
    } else if config.models.is_empty() {
        config.models = vec![ModelConfig { source: DEMO_MODEL.to_owned(), ..ModelConfig::default() }];
    }
    let overrides = args.overrides.config()?;
    if !args.adapter.is_empty()
        || args.tool_format.is_some()
        || args.draft_model.is_some()
        || !overrides.is_empty()
    {
        let [model] = &mut config.models[..] else {
            let reason = "--adapter, --tool-format, --draft-model and what goes over a model's files are of the only model; with several, say them of each in the configuration";
            return Err(CliError::Usage(reason.to_owned()));
        };
        if args.tool_format.is_some() {
            model.tool_format.clone_from(&args.tool_format);
        }
        if !overrides.is_empty() {
            model.overrides = overrides;
        }
        if let Some(draft) = &args.draft_model {
            model.draft_model = Some(paths::model_source(draft)?);
        }
        for (name, path) in &args.adapter {
            model.adapters.insert(name.clone(), paths::absolute(path)?);
        }
    }
    Ok(config)
}

/// Configuration of the gateway. It shares settings with the daemon, unless its own environment overrides them.
fn gateway_config(args: &ServeArgs, daemon: &Config) -> Result<hanzo_engine_gateway::Config, CliError> {
    // Both ports accept the same keys.
    for own in ["HANZO_ENGINE_GATEWAY_API_KEY", "HANZO_ENGINE_GATEWAY_API_KEYS_FILE"] {
        if std::env::var_os(own).is_some_and(|value| !value.is_empty()) {
            let reason = format!(
                "{own}: under serve HTTP and gRPC share their keys; set HANZO_ENGINE_SERVER_… instead"
            );
            return Err(CliError::Usage(reason));
        }
    }
    let (values, mut flags) = (daemon.values(), args.gateway.values.clone());
    let host_is_given = settings::value("server.host", &json!(args.daemon.values)).is_some();
    for setting in hanzo_engine_gateway::Config::settings() {
        let Some(shared) = setting.shared else { continue };
        let own = format!("HANZO_ENGINE_GATEWAY_{}", setting.key.to_uppercase());
        let is_overridden = shared.is_overridden && std::env::var_os(own).is_some();
        let value = settings::value(shared.key, &values).cloned().unwrap_or_default();
        let is_unset = value.is_null() || value == json!(false) || value == json!([]);
        if !is_unset && (!is_overridden || (setting.key == "host" && host_is_given)) {
            flags.insert(setting.key.to_owned(), value);
        }
    }
    if let Some(key) = &daemon.server.api_key {
        // Among the values it is hidden.
        flags.insert("api_key".to_owned(), json!(key.text()));
    }
    let mut config = hanzo_engine_gateway::Config::load(None, flags)?;
    if daemon.engine.fixed_memory_bytes.is_some() {
        // A body of the largest size must fit.
        config.bodies_bytes_max = config.bodies_bytes_max.min(FIXED_HELD_BYTES.max(config.body_bytes_max));
        config.embeddings_bytes_max = config.embeddings_bytes_max.min(FIXED_HELD_BYTES);
        config.answers_bytes_max = config.answers_bytes_max.min(FIXED_HELD_BYTES);
        if config.responses_dir.is_none() {
            let kept = config.responses_bytes_max.unwrap_or(FIXED_HELD_BYTES).min(FIXED_HELD_BYTES);
            config.responses_bytes_max = Some(kept);
        }
    }
    Ok(config)
}

/// Loads the models one after the other, prints an example request, and waits until it is dropped.
async fn load_then_stay(
    models: &[ModelConfig],
    mut client: Client,
    addresses: Addresses,
    wants_keys: bool,
) -> Result<Infallible, CliError> {
    let mut to_try = None;
    for model in models.iter().filter(|model| model.at_start) {
        let loaded = load(&mut client, model).await?;
        print_loaded(&loaded).map_err(CliError::Output)?;
        to_try = to_try.or_else(|| example(&loaded.model.unwrap_or_default()));
    }
    if let Some((route, body)) = to_try {
        print_example(addresses, wants_keys, route, &body).map_err(CliError::Output)?;
    }
    std::future::pending().await
}

/// Requests the load of a model that the daemon is loading already. The request joins that load.
async fn load(client: &mut Client, model: &ModelConfig) -> Result<LoadResponse, CliError> {
    let request = LoadRequest {
        model: model.source.clone(),
        alias: model.alias.clone().unwrap_or_default(),
        context_tokens_max: model.context_tokens_max.unwrap_or(0),
        kv_bytes: model.kv_bytes.unwrap_or(0),
        draft_model: model.draft_model.clone().unwrap_or_default(),
        adapters: model
            .adapters
            .iter()
            .map(|(name, path)| AdapterSource { name: name.clone(), path: path.clone() })
            .collect(),
        tool_format: model.tool_format.clone().unwrap_or_default(),
        gpu_layers: model.gpu_layers.map(|layers| layers.to_string()).unwrap_or_default(),
        gpu_devices: model.gpu_devices.as_ref().map(ToString::to_string).unwrap_or_default(),
        overrides: model.overrides.message().map_err(CliError::Usage)?,
        keep_alive: model.keep_alive.map(|time| time.to_string()),
        as_request: false,
    };
    let failed = |status| CliError::Load { model: model.source.clone(), status };
    Ok(client.load(request).await.map_err(failed)?.into_inner())
}

fn print_addresses(addresses: Addresses) -> std::io::Result<()> {
    let paint = Paint::of(&stdout());
    let out = &mut stdout().lock();
    writeln!(out, "{}", paint.bold(concat!("Hanzo Engine ", env!("CARGO_PKG_VERSION"))))?;
    let mut line = |what: &str, scheme: &str, at: SocketAddr, has: &str| {
        writeln!(out, "  {what:<6} {scheme}://{at}  {}", paint.dim(has))
    };
    line("HTTP", addresses.http_scheme, addresses.http, "OpenAI's API under /v1; /health, /ready, /metrics")?;
    if let Some(mcp) = addresses.mcp {
        line("MCP", addresses.http_scheme, mcp, "/mcp, as HTTP has too")?;
    }
    line("gRPC", addresses.grpc_scheme, addresses.grpc, "hanzo.engine.v1")?;
    line("admin", "http", addresses.admin, "/healthz, /readyz, /metrics")
}

fn print_loaded(loaded: &LoadResponse) -> std::io::Result<()> {
    let paint = Paint::of(&stdout());
    let status = loaded.model.clone().unwrap_or_default();
    let bytes = status.weights_bytes.saturating_add(status.kv_bytes).saturating_add(status.scratch_bytes);
    writeln!(
        stdout().lock(),
        "  {:<6} {} on {}  {}",
        "model",
        status.name,
        status.device,
        paint.dim(&format!(
            "{}, context {} tokens, loaded in {:.1} s",
            show_bytes(bytes),
            status.context_tokens_max,
            loaded.load_ms as f64 / 1_000.0
        ))
    )?;
    if !loaded.clamped.is_empty() {
        writeln!(stdout().lock(), "         {}", loaded.clamped)?;
    }
    Ok(())
}

fn print_example(addresses: Addresses, wants_keys: bool, route: &str, body: &Value) -> std::io::Result<()> {
    let Addresses { http, http_scheme, .. } = addresses;
    let paint = Paint::of(&stdout());
    let out = &mut stdout().lock();
    writeln!(out, "{}", paint.bold("Try it:"))?;
    // No model name contains a quote, see `check_name` in the store.
    let key = if wants_keys { " -H \"authorization: Bearer $HANZO_ENGINE_API_KEY\"" } else { "" };
    writeln!(
        out,
        "  curl {http_scheme}://{http}/v1/{route}{key} -H 'content-type: application/json' -d '{body}'"
    )?;
    out.flush()
}

/// Address at which a client on this machine reaches a socket that listens on every address.
fn reachable(bound: SocketAddr) -> SocketAddr {
    let ip = match bound.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, bound.port())
}

/// Converts an error. A port that is taken is reported with the flag that changes it.
fn daemon_error(error: DaemonError) -> CliError {
    match error {
        DaemonError::Bind { address, what, key, source } => {
            let flag = if key == "server.grpc_port" { "--grpc-port" } else { "--admin-port" };
            CliError::Port { address, what, flag, source }
        }
        error => CliError::Daemon(error),
    }
}

fn gateway_error(error: GatewayError) -> CliError {
    match error {
        GatewayError::Bind { address, source } => {
            CliError::Port { address, what: "HTTP", flag: "--port", source }
        }
        error => CliError::Gateway(error),
    }
}

/// Treats a panicked task as an error.
fn joined<T>(ended: Result<T, JoinError>) -> Result<T, CliError> {
    ended.map_err(|panicked| CliError::Start(format!("a part of the server failed: {panicked}")))
}
