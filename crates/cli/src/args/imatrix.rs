//! `imatrix`: its arguments.

use super::StoreArgs;
use clap::{Args, ValueEnum};
use hanzo_engine_daemon::imatrix::Form;
use std::path::PathBuf;

/// Arguments of `imatrix`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  hanzo-engine imatrix ./qwen3-4b-BF16.gguf -f ./calibration.txt -o ./qwen3-4b.imatrix.gguf
  hanzo-engine quantize ./qwen3-4b-BF16.gguf ./qwen3-4b-Q4_K_M.gguf --to Q4_K_M --imatrix ./qwen3-4b.imatrix.gguf

The model reads the text in chunks, and for each matrix the squares of its inputs are summed, column by column. Of experts each has sums of its own, of the rows that went to it: one that none went to has all columns count alike, and is counted. What makes keys and values of latents is left out where a file has both in one matrix, and what Llama 4 multiplies its experts' inputs with. The file is llama-imatrix's: llama-quantize reads it too, and so does --imatrix beside --isq.

--json prints {\"file\", \"chunks\", \"chunk_tokens\", \"tensors\", \"unmet\"}.")]
pub(crate) struct ImatrixArgs {
    /// Path to a GGUF file, or the name of a GGUF model
    #[arg(value_name = "MODEL")]
    pub(crate) model: String,
    /// Calibration text, similar to the model's intended use; some hundred thousand tokens
    #[arg(short = 'f', long = "file", value_name = "TEXT")]
    pub(crate) text: PathBuf,
    /// File to write
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Format of the file; dat is the older format of llama-imatrix
    #[arg(long, value_name = "FORMAT", value_enum, default_value = "gguf")]
    pub(crate) output_format: OutputFormat,
    /// Tokens of a chunk; text after the last whole chunk is not used
    #[arg(short, long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(16..=65536))]
    pub(crate) chunk_tokens: u32,
    /// Maximum number of chunks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) chunks: Option<u32>,
    /// Compute threads [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Overwrite an existing file
    #[arg(long)]
    pub(crate) force: bool,
    /// Print JSON: one object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Format of an importance matrix.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum OutputFormat {
    /// GGUF
    Gguf,
    /// Older format of llama-imatrix
    Dat,
}

impl OutputFormat {
    pub(crate) fn form(self) -> Form {
        match self {
            OutputFormat::Gguf => Form::Gguf,
            OutputFormat::Dat => Form::Dat,
        }
    }
}
