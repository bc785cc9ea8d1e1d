//! `adapter`: LoRA adapters of models in the running daemon.

use super::EngineArgs;
use clap::{Args, Subcommand};

/// Arguments of `adapter`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  hanzo-engine adapter load qwen3-4b sql=./adapters/sql        a directory that PEFT has saved
  hanzo-engine adapter load qwen3-4b legal=./legal-lora.gguf   a GGUF file of an adapter
  hanzo-engine adapter list
  hanzo-engine adapter unload qwen3-4b:sql

Requests name an adapter as MODEL:NAME. One that is unloaded takes no new requests; those that run with it finish.")]
pub(crate) struct AdapterArgs {
    #[command(subcommand)]
    pub(crate) command: AdapterCommand,
}

/// Subcommands of `adapter`.
#[derive(Debug, Subcommand)]
pub(crate) enum AdapterCommand {
    /// Load an adapter for a loaded model
    Load {
        /// Name of the loaded model
        #[arg(value_name = "MODEL")]
        model: String,
        /// Name of the adapter in requests, and its PEFT directory or GGUF file
        #[arg(value_name = "NAME=PATH", value_parser = named_path)]
        adapter: (String, String),
        /// Print JSON: one object
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        engine: EngineArgs,
    },
    /// Unload an adapter
    Unload {
        /// Model and adapter
        #[arg(value_name = "MODEL:NAME", value_parser = model_and_name)]
        adapter: (String, String),
        /// Print JSON: one object
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        engine: EngineArgs,
    },
    /// List the loaded adapters
    #[command(alias = "ls")]
    List {
        /// List the adapters of this model only
        #[arg(value_name = "MODEL")]
        model: Option<String>,
        /// Print JSON: a list
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        engine: EngineArgs,
    },
}

/// Parses `NAME=PATH`.
pub(crate) fn named_path(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => Ok((name.to_owned(), path.to_owned())),
        _ => Err("expected NAME=PATH, such as sql=./adapters/sql".to_owned()),
    }
}

/// Parses `MODEL:NAME`. A model's name may contain colons itself.
fn model_and_name(text: &str) -> Result<(String, String), String> {
    match text.rsplit_once(':') {
        Some((model, name)) if !model.is_empty() && !name.is_empty() => {
            Ok((model.to_owned(), name.to_owned()))
        }
        _ => Err("expected MODEL:NAME, such as qwen3-4b:sql".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_may_have_what_parts_others() {
        let pair = |a: &str, b: &str| Ok((a.to_owned(), b.to_owned()));
        assert_eq!(named_path("sql=./a=b:c"), pair("sql", "./a=b:c"));
        assert_eq!(model_and_name("llama3.2:3b:sql"), pair("llama3.2:3b", "sql"));
        for bad in ["", "sql", "=x", "sql="] {
            assert!(named_path(bad).is_err(), "{bad}");
        }
        for bad in ["", "sql", ":x", "m:"] {
            assert!(model_and_name(bad).is_err(), "{bad}");
        }
    }
}
