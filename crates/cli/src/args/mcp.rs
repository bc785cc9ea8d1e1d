//! `mcp`: its arguments.

use crate::args::{EngineArgs, KvTypeName, LogLevel, StoreArgs};
use clap::Args;

/// Arguments of `mcp`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  hanzo-engine mcp                                  for the running daemon, or else the built-in demo model
  hanzo-engine mcp --model ./qwen3-4b-Q8_0.gguf     with a model that this process loads, if no daemon answers

In the configuration of a client such as Claude Desktop:
  {\"mcpServers\": {\"hanzo\": {\"command\": \"hanzo-engine\", \"args\": [\"mcp\", \"--model\", \"qwen3-4b\"]}}}

It ends with its input. Messages go over stdin and stdout, logs to stderr. Over HTTP a running server has the same under /mcp.")]
pub(crate) struct McpArgs {
    /// Model to load at startup, by name, reference or path [default: the daemon's models, or else the built-in
    /// hanzo-demo]
    #[arg(long, short, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// Pull a model that is not on this machine
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// Type of the KV cache, if this process loads the model itself [default: f16]
    #[arg(long, value_name = "TYPE")]
    pub(crate) kv_type: Option<KvTypeName>,
    /// Log level, on stderr
    #[arg(long, value_name = "LEVEL", default_value = "warn")]
    pub(crate) log_level: LogLevel,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}
