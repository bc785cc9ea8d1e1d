//! `list`, `show`, `rm`, `ps` and `stop`: queries to the running daemon, or else to the store. Other changes of
//! the store are in `pull.rs`, `storage.rs` and `archive.rs`.

use crate::args::{ListArgs, PsArgs, RmArgs, ShowArgs, StopArgs, StoreArgs};
use crate::connect::{self, InProcess};
use crate::error::CliError;
use crate::paths;
use crate::print::{print_json, print_line, print_table};
use crate::size::{now_ms, show_age, show_bytes, show_parameters, show_span};
use crate::table::Table;
use crate::term::{Paint, tell};
use crate::view::{Card, LoadedSummary, ModelSummary, RemovalSummary};
use hanzo_engine_daemon::config::LogConfig;
use hanzo_engine_daemon::store::{Store, StoreError, default_dir};
use hanzo_engine_daemon::{DEMO_MODEL, log};
use hanzo_engine_proto::v1;
use std::io::{Write, stdout};
use std::path::PathBuf;

/// Prints the known models.
pub(crate) async fn list(args: ListArgs) -> Result<(), CliError> {
    if args.aliases {
        return crate::storage::aliases(args).await;
    }
    let models: Vec<ModelSummary> = match connect::find(&args.engine).await? {
        Some(mut daemon) => {
            let listed = daemon.client.list(v1::ListRequest {}).await.map_err(CliError::Engine)?.into_inner();
            listed.models.into_iter().map(|model| ModelSummary::from_proto(model, daemon.here)).collect()
        }
        None => {
            let listing = open(&args.store)?.list()?;
            for corrupt in &listing.corrupt {
                tell(&format!("warning: {}\n", StoreError::from(corrupt.clone())));
            }
            listing.models.iter().map(ModelSummary::from_record).collect()
        }
    };
    if args.json {
        return print_json(&models);
    }
    if models.is_empty() {
        tell(
            "no models are known yet: `hanzo-engine pull zen-nano` fetches one, and hanzo-demo is built in\n",
        );
    }
    let now = now_ms();
    let mut table = Table::new(&["NAME", "FORMAT", "QUANT", ">SIZE", "MODIFIED", "PATH"]);
    for model in models {
        let path = if model.missing { format!("{} (missing)", model.path) } else { model.path };
        let modified = show_age(model.modified_at_unix_ms, now);
        table.row([
            model.name,
            model.format,
            model.quantization,
            show_bytes(model.size_bytes),
            modified,
            path,
        ]);
    }
    print_table(&table)
}

/// Prints all details of one model. The files contain more than the record, so without a running daemon, one in
/// this process reads them.
pub(crate) async fn show(args: ShowArgs) -> Result<(), CliError> {
    let request = v1::ShowRequest { model: paths::model_source(&args.model)?, known_only: false };
    let (shown, here) = match connect::find(&args.engine).await? {
        Some(mut daemon) => (daemon.client.show(request).await, daemon.here),
        None => {
            log::init(&LogConfig { level: "error".to_owned(), ..LogConfig::default() })?;
            // The built-in model has no record.
            let store_optional = args.model.eq_ignore_ascii_case(DEMO_MODEL);
            let mut daemon = InProcess::start(args.store.model_dir, store_optional, None).await?;
            let shown = daemon.client.show(request).await;
            daemon.close().await?;
            (shown, true)
        }
    };
    let card = Card::from_proto(shown.map_err(CliError::Engine)?.into_inner(), here);
    if args.json { print_json(&card) } else { print_card(&card).map_err(CliError::Output) }
}

/// Removes a model, or an alias.
pub(crate) async fn rm(args: RmArgs) -> Result<(), CliError> {
    let removed = match connect::find(&args.engine).await? {
        Some(mut daemon) => {
            let request = v1::RemoveRequest { model: args.model };
            let removed = daemon.client.remove(request).await.map_err(CliError::Engine)?.into_inner();
            RemovalSummary::from_proto(removed)
        }
        None => RemovalSummary::from_store(open(&args.store)?.remove(&args.model)?),
    };
    if args.json {
        return print_json(&removed);
    }
    let RemovalSummary { name, path, freed_bytes, alias_of } = removed;
    print_line(&match (alias_of, freed_bytes, path.as_str()) {
        (Some(target), ..) => format!("forgot {name}, an alias of {target}"),
        (None, 0, "") => format!("forgot {name}"),
        (None, 0, path) => format!("forgot {name}; its files stay at {path}"),
        (None, freed_bytes, _) => format!("removed {name}, freed {}", show_bytes(freed_bytes)),
    })
}

/// Prints the models in the daemon's memory.
pub(crate) async fn ps(args: PsArgs) -> Result<(), CliError> {
    let mut daemon = connect::need(&args.engine).await?;
    let stats =
        daemon.client.stats(v1::StatsRequest::default()).await.map_err(CliError::Engine)?.into_inner();
    let loaded: Vec<LoadedSummary> =
        stats.models.into_iter().filter_map(|model| model.status).map(LoadedSummary::from_proto).collect();
    if args.json {
        return print_json(&loaded);
    }
    // Show the columns of processes only if models run in their own.
    let processes = loaded.iter().any(|model| model.worker_pid != 0);
    let mut table = match processes {
        true => Table::new(&[
            "NAME",
            ">SIZE",
            ">WEIGHTS",
            ">KV",
            ">RESIDENT",
            ">PID",
            "DEVICE",
            ">CONTEXT",
            ">REQUESTS",
            "LEAVES",
            "STATE",
        ]),
        false => Table::new(&[
            "NAME",
            ">SIZE",
            ">WEIGHTS",
            ">KV",
            "DEVICE",
            ">CONTEXT",
            ">REQUESTS",
            "LEAVES",
            "STATE",
        ]),
    };
    let now = now_ms();
    for model in loaded {
        let requests = match model.requests_waiting {
            0 => model.requests_running.to_string(),
            waiting => format!("{} + {waiting} waiting", model.requests_running),
        };
        let state = match (model.state, &model.error) {
            ("loading", _) => format!("loading {:.0} %", model.load_progress * 100.0),
            (state, Some(error)) => format!("{state}: {error}"),
            (state, None) => state.to_owned(),
        };
        let (size, context) = (show_bytes(model.size_bytes), model.context_tokens_max.to_string());
        let (weights, kv) = (show_bytes(model.weights_bytes), show_bytes(model.kv_bytes));
        let leaves = show_leaving(model.keep_alive_ms, model.expires_at_unix_ms, now);
        let (name, device) = (model.name, model.device);
        if processes {
            let own = model.worker_pid != 0;
            let resident = if own { show_bytes(model.resident_bytes) } else { String::new() };
            let pid = if own { model.worker_pid.to_string() } else { String::new() };
            let row = [name, size, weights, kv, resident, pid, device, context, requests, leaves, state];
            table.row(row);
        } else {
            table.row([name, size, weights, kv, device, context, requests, leaves, state]);
        }
    }
    print_table(&table)
}

/// Formats when an idle model is unloaded: the idle time allowed, or the time left.
fn show_leaving(keep_alive_ms: i64, expires_at_unix_ms: i64, now_ms: i64) -> String {
    let span = |ms: i64| show_span(ms.max(0) as f64 / 1_000.0);
    match (keep_alive_ms, expires_at_unix_ms) {
        (..0, _) => "never".to_owned(),
        (0, _) => "when it is done".to_owned(),
        (kept, 0) => format!("{} after use", span(kept)),
        (_, at) => format!("in {}", span(at - now_ms)),
    }
}

/// Unloads a model.
pub(crate) async fn stop(args: StopArgs) -> Result<(), CliError> {
    let mut daemon = connect::need(&args.engine).await?;
    let request = v1::UnloadRequest { model: args.model, force: args.force };
    let unloaded = daemon.client.unload(request).await.map_err(CliError::Engine)?.into_inner();
    let loaded = LoadedSummary::from_proto(unloaded.model.unwrap_or_default());
    if args.json {
        return print_json(&loaded);
    }
    print_line(&format!("{} {}", loaded.state, loaded.name))
}

/// Directory of the store.
pub(crate) fn store_dir(args: &StoreArgs) -> Result<PathBuf, CliError> {
    let no_home =
        || CliError::Usage("there is no home directory: say where the models are with --model-dir".into());
    args.model_dir.clone().or_else(default_dir).ok_or_else(no_home)
}

/// Opens the store on this machine.
pub(crate) fn open(args: &StoreArgs) -> Result<Store, CliError> {
    let store = Store::open(&store_dir(args)?)?;
    if let Some(repaired) = store.mended() {
        tell(&format!("warning: {}\n", crate::term::harmless(&repaired.summary(store.dir()))));
    }
    Ok(store)
}

fn print_card(card: &Card) -> std::io::Result<()> {
    let out = &mut stdout().lock();
    let paint = Paint::of(&stdout());
    let model = &card.model;
    let now = now_ms();
    let context = if card.context_tokens_max == 0 {
        String::new()
    } else {
        format!("{} tokens", card.context_tokens_max)
    };
    let rows = [
        ("architecture", card.architecture.clone()),
        ("parameters", show_parameters(card.parameters)),
        ("context", context),
        ("quantization", model.quantization.clone()),
        ("format", model.format.clone()),
        ("size", show_bytes(model.size_bytes)),
        ("capabilities", card.capabilities.join(", ")),
        ("tool calls", card.tool_format.clone()),
        ("not read", card.inputs_not_read.join(", ")),
        ("license", card.license.clone()),
        ("source", model.source.clone()),
        ("reference", model.reference.clone()),
        ("revision", model.revision.clone()),
        ("path", model.path.clone()),
        ("modified", show_age(model.modified_at_unix_ms, now)),
        ("last used", show_age(model.used_at_unix_ms, now)),
        (
            "loaded",
            card.status
                .as_ref()
                .map_or(String::new(), |status| format!("{} on {}", status.state, status.device)),
        ),
    ];
    writeln!(out, "{}", paint.bold(&model.name))?;
    let overridden = card.status.as_ref().map_or(&[][..], |status| &status.overrides);
    let overridden = overridden.iter().map(|what| ("overridden", what.clone()));
    for (label, value) in rows.into_iter().chain(overridden).filter(|(_, value)| !value.is_empty()) {
        writeln!(out, "  {label:<13} {}", crate::term::harmless(&value).replace('\n', " "))?;
    }
    if !card.files.is_empty() {
        writeln!(out, "  files")?;
    }
    for file in &card.files {
        let state = if file.missing { " (missing)" } else { "" };
        let role = if file.role.is_empty() { "" } else { &format!(", {}", file.role) };
        let path = crate::term::harmless(&file.path);
        writeln!(out, "    {}{role} {path}{state}", show_bytes(file.size_bytes))?;
        if let Some(digest) = &file.sha256 {
            writeln!(out, "      {}", paint.dim(&format!("sha256 {digest}")))?;
        }
    }
    let params = card.params.as_ref().map_or_else(String::new, serde_json::Value::to_string);
    let texts = [
        ("parameters it came with", &params),
        ("system prompt", &card.system),
        ("chat template", &card.chat_template),
        ("template of its source, not used", &card.source_template),
    ];
    for (label, text) in texts.into_iter().filter(|(_, text)| !text.is_empty()) {
        writeln!(out, "  {label}")?;
        for line in crate::term::harmless(text).lines() {
            writeln!(out, "    {}", paint.dim(line))?;
        }
    }
    if !card.license_text.is_empty() {
        let lines = card.license_text.lines().count();
        writeln!(out, "  license text of {lines} lines: --json has it")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::show_leaving;

    #[test]
    fn when_a_model_leaves() {
        for ((kept, expires), shown) in [
            ((-1, 0), "never"),
            ((0, 0), "when it is done"),
            ((300_000, 0), "5 min 00 s after use"),
            ((300_000, 1_041_500), "in 42 s"),
            ((300_000, 900_000), "in 0 s"),
        ] {
            assert_eq!(show_leaving(kept, expires, 1_000_000), shown, "{kept} {expires}");
        }
    }
}
