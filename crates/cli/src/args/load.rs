//! `load`: its arguments.

use super::{EngineArgs, OverrideArgs, adapter};
use clap::Args;

/// Arguments of `load`.
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
    /// Maximum context length, prompt and answer together, in tokens [default: the model's, as far as memory
    /// allows]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_context: Option<u32>,
    /// Memory for the KV cache, such as 2GiB [default: chosen from the memory budget]
    #[arg(long, value_name = "SIZE", value_parser = hanzo_engine_process::settings::parse_bytes)]
    pub(crate) kv_memory: Option<u64>,
    /// Layers on GPUs, counted from the last; the others run on the CPU: auto (as many as fit), all or a number
    /// [default: the daemon's setting]
    #[arg(long, alias = "n-gpu-layers", value_name = "N")]
    pub(crate) gpu_layers: Option<hanzo_engine_daemon::config::GpuLayers>,
    /// Devices of the daemon that the model may use, such as cuda:1, or GPU numbers (0,1) [default: any]
    #[arg(long, value_name = "NAMES")]
    pub(crate) gpu_devices: Option<hanzo_engine_daemon::config::Devices>,
    /// LoRA adapter to load with the model, a PEFT directory or a GGUF file; repeatable
    #[arg(long, value_name = "NAME=PATH", value_parser = adapter::named_path)]
    pub(crate) adapter: Vec<(String, String)>,
    /// Format of the model's tool calls, such as hermes [default: from its chat template]
    #[arg(long, value_name = "FORMAT", value_parser = hanzo_engine_daemon::config::parse_tool_format)]
    pub(crate) tool_format: Option<String>,
    /// Smaller draft model with the same vocabulary
    #[arg(long, value_name = "MODEL")]
    pub(crate) draft_model: Option<String>,
    /// Idle time after which the model is unloaded: seconds or a time such as 5m [default: until it is stopped]
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
