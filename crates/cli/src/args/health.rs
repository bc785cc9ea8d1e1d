//! `health`: its arguments.

use clap::Args;
use std::path::PathBuf;

/// Arguments of `health`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  hanzo-engine health                                      the server on this machine
  hanzo-engine health http://gateway:36900 --wait 30       in an image, which has nothing else that speaks HTTP

It asks /health and /v1/models, as a client would, and no proxy. The exit code is 1 where one of them is refused or nobody answers. A daemon without HTTP is asked by `ps`.")]
pub(crate) struct HealthArgs {
    /// Address of a gateway, or of `serve`
    #[arg(value_name = "URL", default_value = "http://127.0.0.1:36900")]
    pub(crate) url: String,
    /// Retry each second until the server is ready, for at most this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub(crate) wait: u64,
    /// Certificate authorities (PEM) for a server at https:// [default: the system's]
    #[arg(long, value_name = "FILE", conflicts_with = "pinned")]
    pub(crate) ca: Option<PathBuf>,
    /// Certificate (PEM) that a server at https:// must present, whatever names it contains
    #[arg(long, value_name = "FILE")]
    pub(crate) pinned: Option<PathBuf>,
    /// Key for the server; better set as HANZO_ENGINE_API_KEY, which process lists do not show
    #[arg(long, value_name = "KEY")]
    pub(crate) api_key: Option<String>,
}
