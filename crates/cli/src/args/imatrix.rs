//! `imatrix`: which model runs over what.

use super::StoreArgs;
use clap::Args;
use std::path::PathBuf;

/// `imatrix`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  hanzo-engine imatrix ./qwen3-4b-BF16.gguf -f ./calibration.txt -o ./qwen3-4b.imatrix.gguf
  hanzo-engine quantize ./qwen3-4b-BF16.gguf ./qwen3-4b-Q4_K_M.gguf --to Q4_K_M --imatrix ./qwen3-4b.imatrix.gguf

The model reads the text in chunks, and for each matrix the squares of its inputs are summed, column by column. The file is llama-imatrix's: llama-quantize reads it too. Models with experts or latent attention are refused.

--json prints {\"file\", \"chunks\", \"chunk_tokens\", \"tensors\"}.")]
pub(crate) struct ImatrixArgs {
    /// Path to a GGUF file, or the name of a model that is one
    #[arg(value_name = "MODEL")]
    pub(crate) model: String,
    /// The text: as what the model will be used for, some hundred thousand tokens of it
    #[arg(short = 'f', long = "file", value_name = "TEXT")]
    pub(crate) text: PathBuf,
    /// The file to make
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Tokens of a chunk; what is left of the text after the last whole one is not read
    #[arg(short, long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(16..=65536))]
    pub(crate) chunk_tokens: u32,
    /// Read no more than so many chunks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) chunks: Option<u32>,
    /// Threads to compute with [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Write over a file that is there
    #[arg(long)]
    pub(crate) force: bool,
    /// Print JSON: one object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}
