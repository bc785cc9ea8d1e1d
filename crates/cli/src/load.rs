//! `load`: loads a model into the running daemon.

use crate::args::LoadArgs;
use crate::connect;
use crate::error::CliError;
use crate::paths;
use crate::print::{print_json, print_line};
use crate::size::show_bytes;
use crate::term::{harmless, tell};
use crate::view::LoadedSummary;
use hanzo_engine_proto::v1::{AdapterSource, LoadRequest};
use std::io::{IsTerminal, stderr};

/// Loads a model and prints its memory use.
pub(crate) async fn load(args: LoadArgs) -> Result<(), CliError> {
    let overrides = args.overrides.config()?.message().map_err(CliError::Usage)?;
    let adapters = args
        .adapter
        .into_iter()
        .map(|(name, path)| Ok(AdapterSource { name, path: paths::absolute(&path)? }))
        .collect::<Result<_, CliError>>()?;
    let request = LoadRequest {
        model: paths::model_source(&args.model)?,
        alias: args.name.unwrap_or_default(),
        context_tokens_max: args.max_context.unwrap_or(0),
        kv_bytes: args.kv_memory.unwrap_or(0),
        draft_model: args.draft_model.as_deref().map(paths::model_source).transpose()?.unwrap_or_default(),
        adapters,
        tool_format: args.tool_format.unwrap_or_default(),
        gpu_layers: args.gpu_layers.map(|layers| layers.to_string()).unwrap_or_default(),
        gpu_devices: args.gpu_devices.map(|devices| devices.to_string()).unwrap_or_default(),
        overrides,
        keep_alive: args.keep_alive.map(|time| time.to_string()),
        as_request: false,
    };
    let mut daemon = connect::need(&args.engine).await?;
    let waiting = stderr().is_terminal();
    if waiting {
        tell(&format!("loading {}…", harmless(&args.model)));
    }
    let loaded = daemon.client.load(request).await;
    if waiting {
        tell("\r\x1b[K");
    }
    let loaded = loaded.map_err(|status| CliError::Load { model: args.model, status })?.into_inner();
    if !loaded.clamped.is_empty() {
        tell(&format!("warning: {}\n", harmless(&loaded.clamped)));
    }
    let model = LoadedSummary::from_proto(loaded.model.unwrap_or_default());
    if args.json {
        return print_json(&model);
    }
    let took = match loaded.load_ms {
        0 => "it was loaded already".to_owned(),
        load_ms => format!("in {:.1} s", load_ms as f64 / 1e3),
    };
    let (size, context) = (show_bytes(model.size_bytes), model.context_tokens_max);
    print_line(&format!("loaded {}: {size}, a context of {context} tokens, {took}", model.name))?;
    model.overrides.iter().try_for_each(|said| print_line(&format!("  {said}")))
}
