//! `mcp`: serves a daemon's tools, of the running one or of one in this process, to the client that started
//! this command.

use crate::args::McpArgs;
use crate::connect;
use crate::error::CliError;
use crate::host::{Host, HostOptions, Stays};
use crate::missing::IfMissing;
use crate::term::interrupted;
use hanzo_engine_daemon::config::{LogConfig, LogFormat, OverrideConfig};
use hanzo_engine_daemon::{DEMO_MODEL, log, signal};
use hanzo_engine_gateway::serve_stdio;

/// Runs the command.
pub(crate) async fn mcp(args: McpArgs) -> Result<(), CliError> {
    let level = args.log_level.as_str().to_owned();
    let running = connect::find(&args.engine).await?.is_some();
    // The models that the daemon has loaded are enough.
    let model = match (&args.model, running) {
        (Some(model), _) => Some(model.as_str()),
        (None, true) => None,
        (None, false) => Some(DEMO_MODEL),
    };
    if running {
        log::init(&LogConfig { level, format: LogFormat::Pretty })?;
    }
    let host = match model {
        None => None,
        Some(model) => {
            let wanted = HostOptions {
                model,
                engine: &args.engine,
                store: &args.store,
                kv_type: args.kv_type,
                draft_model: None,
                gpu_layers: None,
                gpu_devices: None,
                overrides: OverrideConfig::default(),
                log_level: args.log_level,
                quiet: true,
                missing: IfMissing::of(args.yes),
                stays: Stays::UntilUnloaded,
            };
            Some(Host::open(wanted).await?)
        }
    };
    let in_process = host.as_ref().and_then(Host::address);
    let config = connect::gateway_config(&args.engine, in_process)?;
    let ended = signal::shutdown().map_err(|error| CliError::Start(error.to_string()))?;
    let ends = async {
        tokio::select! {
            () = ended => {}
            () = interrupted() => {}
        }
    };
    let done = serve_stdio(config, ends).await.map_err(CliError::from);
    match host {
        Some(host) => host.close(done).await,
        None => done,
    }
}
