//! `health`: what can be typed.

use clap::Args;
use std::path::PathBuf;

/// `health`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  hanzo-engine health                                      the server on this machine
  hanzo-engine health http://gateway:36900 --wait 30       in an image, which has nothing else that speaks HTTP

It asks /health and /v1/models, as a client would, and no proxy. The exit code is 1 where one of them is refused or nobody answers. A daemon without HTTP is asked by `ps`.")]
pub(crate) struct HealthArgs {
    /// Address of a gateway, or of `serve`
    #[arg(value_name = "URL", default_value = "http://127.0.0.1:36900")]
    pub(crate) url: String,
    /// Ask again, each second, until it serves, but no longer than so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub(crate) wait: u64,
    /// Authorities (PEM) that a server at https:// is trusted by [default: the system's]
    #[arg(long, value_name = "FILE", conflicts_with = "pinned")]
    pub(crate) ca: Option<PathBuf>,
    /// The certificate (PEM) that a server at https:// must show, whatever names are in it
    #[arg(long, value_name = "FILE")]
    pub(crate) pinned: Option<PathBuf>,
    /// Key that the server wants; better set as HANZO_ENGINE_API_KEY, which no list of processes shows
    #[arg(long, value_name = "KEY")]
    pub(crate) api_key: Option<String>,
}
