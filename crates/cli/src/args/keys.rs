//! `keys`: its arguments.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Arguments of `keys`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  hanzo-engine keys create alice --requests-per-minute 60
  hanzo-engine keys create build --model 'zen-*' --tokens-per-minute 100000 --concurrency 4
  hanzo-engine keys create ops --admin                      may also load, unload, pull and remove
  hanzo-engine serve --host 0.0.0.0 --api-keys-file ~/.hanzo/keys.json
  hanzo-engine keys revoke alice                            a server that runs takes it within a second or two

The key is printed once; the file has its SHA-256. Clients send it as `Authorization: Bearer KEY` or `x-api-key: KEY`, over HTTP and gRPC alike, and this program as HANZO_ENGINE_API_KEY.")]
pub(crate) struct KeysArgs {
    #[command(subcommand)]
    pub(crate) command: KeysCommand,
}

/// Location of the key file.
#[derive(Debug, Args)]
pub(crate) struct KeysFileArgs {
    /// File of keys [default: ~/.hanzo/keys.json]
    #[arg(long, value_name = "FILE", env = "HANZO_ENGINE_SERVER_API_KEYS_FILE")]
    pub(crate) file: Option<PathBuf>,
}

/// Subcommands of `keys`.
#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// Create a key, and print it
    Create(CreateArgs),
    /// List the keys and their permissions
    #[command(alias = "ls")]
    List {
        /// Print JSON: a list
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        file: KeysFileArgs,
    },
    /// Revoke a key
    #[command(alias = "rm")]
    Revoke {
        /// Name of the key
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        file: KeysFileArgs,
    },
}

/// Arguments of `keys create`.
#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// Owner of the key, as lists and logs show it
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Let it load, unload, pull and remove models too
    #[arg(long)]
    pub(crate) admin: bool,
    /// Model that it may use, or a pattern such as zen-*; repeatable [default: all]
    #[arg(long, value_name = "PATTERN")]
    pub(crate) model: Vec<String>,
    /// Maximum requests a minute [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) requests_per_minute: Option<u32>,
    /// Maximum tokens of prompts and answers a minute [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) tokens_per_minute: Option<u32>,
    /// Maximum concurrent requests [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) concurrency: Option<u32>,
    /// Priority of its requests; a lower number runs earlier, and requests can only lower the priority
    /// [default: as requested]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) priority: Option<i32>,
    /// Print JSON: an object with the name and the key
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) file: KeysFileArgs,
}
