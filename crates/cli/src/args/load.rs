//! `load`: a model into the running daemon.

use super::{EngineArgs, OverrideArgs, adapter};
use clap::Args;

/// `load`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  hanzo-engine load qwen3-4b
  hanzo-engine load ./qwen3-4b-BF16.gguf --isq 4 --name qwen3-4b-small
  hanzo-engine load qwen3-4b --max-context 8192 --adapter sql=./adapters/sql

It answers once the model can serve. A model that is loaded already stays as it is; another size or other overrides are refused: stop it first.")]
pub(crate) struct LoadArgs {
    /// Name of a model, reference, or path to a GGUF file or a safetensors directory
    #[arg(value_name = "MODEL")]
    pub(crate) model: String,
    /// Serve it under this name
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Longest prompt and answer together, in tokens [default: the model's own, as far as memory allows]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_context: Option<u32>,
    /// Memory for keys and values, such as 2GiB [default: chosen from the memory budget]
    #[arg(long, value_name = "SIZE", value_parser = hanzo_engine_daemon::config::parse_bytes)]
    pub(crate) kv_memory: Option<u64>,
    /// Layers on a card, from the last on; the others are the processor's: auto (as many as fit), all or a number [default: as the daemon does]
    #[arg(long, alias = "n-gpu-layers", value_name = "N")]
    pub(crate) gpu_layers: Option<hanzo_engine_daemon::config::GpuLayers>,
    /// Of the daemon's devices those that it may be on, such as cuda:1, or the numbers of cards (0,1) [default: any]
    #[arg(long, value_name = "NAMES")]
    pub(crate) gpu_devices: Option<hanzo_engine_daemon::config::Devices>,
    /// Low-rank adapter to load with it, a PEFT directory or a GGUF file; may be given several times
    #[arg(long, value_name = "NAME=PATH", value_parser = adapter::named_path)]
    pub(crate) adapter: Vec<(String, String)>,
    /// How it writes tool calls, such as hermes [default: as its chat template says]
    #[arg(long, value_name = "FORMAT", value_parser = hanzo_engine_daemon::config::parse_tool_format)]
    pub(crate) tool_format: Option<String>,
    /// Smaller model of the same vocabulary that drafts for it
    #[arg(long, value_name = "MODEL")]
    pub(crate) draft_model: Option<String>,
    /// How long it stays when nobody uses it: seconds or a time such as 5m [default: until it is stopped]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) keep_alive: Option<hanzo_engine_daemon::config::KeepAlive>,
    /// Print JSON: one object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) overrides: OverrideArgs,
}
