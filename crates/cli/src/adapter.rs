//! `adapter`: loads, unloads and lists LoRA adapters in the running daemon.

use crate::args::{AdapterArgs, AdapterCommand};
use crate::connect;
use crate::error::CliError;
use crate::paths;
use crate::print::{print_json, print_line, print_table};
use crate::size::show_bytes;
use crate::table::Table;
use hanzo_engine_proto::v1;
use serde::Serialize;

/// Adapter as `--json` prints it.
#[derive(Debug, Serialize)]
struct AdapterSummary {
    model: String,
    name: String,
    format: String,
    rank: u32,
    /// Memory in bytes.
    bytes: u64,
    path: String,
}

impl AdapterSummary {
    fn from_proto(adapter: v1::Adapter) -> Self {
        let v1::Adapter { name, model, path, format, rank, bytes, .. } = adapter;
        Self { model, name, format, rank, bytes, path }
    }
}

/// Runs the command.
pub(crate) async fn adapter(args: AdapterArgs) -> Result<(), CliError> {
    match args.command {
        AdapterCommand::Load { model, adapter: (name, path), json, engine } => {
            let path = paths::absolute(&path)?;
            let mut daemon = connect::need(&engine).await?;
            let adapter = Some(v1::AdapterSource { name, path });
            let request = v1::LoadAdapterRequest { model, adapter };
            let loaded = daemon.client.load_adapter(request).await.map_err(CliError::Engine)?.into_inner();
            let shown = AdapterSummary::from_proto(loaded.adapter.unwrap_or_default());
            if json {
                return print_json(&shown);
            }
            let (bytes, rank) = (show_bytes(shown.bytes), shown.rank);
            print_line(&format!("loaded {}:{}, rank {rank}, {bytes}", shown.model, shown.name))
        }
        AdapterCommand::Unload { adapter: (model, name), json, engine } => {
            let mut daemon = connect::need(&engine).await?;
            let request = v1::UnloadAdapterRequest { model, name };
            let gone = daemon.client.unload_adapter(request).await.map_err(CliError::Engine)?.into_inner();
            let shown = AdapterSummary::from_proto(gone.adapter.unwrap_or_default());
            if json {
                return print_json(&shown);
            }
            print_line(&format!("unloaded {}:{}", shown.model, shown.name))
        }
        AdapterCommand::List { model, json, engine } => {
            let mut daemon = connect::need(&engine).await?;
            let request = v1::ListAdaptersRequest { model: model.unwrap_or_default() };
            let listed = daemon.client.list_adapters(request).await.map_err(CliError::Engine)?.into_inner();
            let adapters: Vec<AdapterSummary> =
                listed.adapters.into_iter().map(AdapterSummary::from_proto).collect();
            if json {
                return print_json(&adapters);
            }
            // `>` aligns a column right.
            let mut table = Table::new(&["NAME", "FORMAT", ">RANK", ">SIZE", "PATH"]);
            for AdapterSummary { model, name, format, rank, bytes, path } in adapters {
                table.row([format!("{model}:{name}"), format, rank.to_string(), show_bytes(bytes), path]);
            }
            print_table(&table)
        }
    }
}
