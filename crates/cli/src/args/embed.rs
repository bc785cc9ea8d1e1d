//! Arguments of `embed` and `rerank`.

use super::engine::{EngineArgs, LogLevel, StoreArgs};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Format of a file of texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum InputFormat {
    /// Text on each line
    Txt,
    /// JSON object on each line, with the text in a field
    Jsonl,
}

/// Arguments of `embed`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  hanzo-engine embed -m ./qwen3-embedding \"a text\" \"another\"           JSON lines on stdout
  hanzo-engine embed -m ./qwen3-embedding -i docs.txt -o docs.npy
  hanzo-engine embed -m ./qwen3-embedding -i docs.jsonl --field body -o docs.parquet --with-text
  hanzo-engine embed -m ./clip \"a cat on a sofa\" --image cat.jpg --image dog.png
  cat queries.txt | hanzo-engine embed -m ./qwen3-embedding --prompt-name query -i - -o - > queries.jsonl

Input. In .txt each line is a text; an empty line is kept as a row without a vector, so that row n is line n. In .jsonl each line is an object with the text in --field; blank lines are no rows. A picture's row is an object with its file as `image`.

Output. .jsonl repeats the input's object, or one with `text`, and adds `embedding` (null for an empty line). .npy is one array of float32, rows by dimensions; a row without a vector is NaN. .parquet has the columns `id` (if the input has that field: integers, else strings), `text` (--with-text) and `embedding`, a list of floats or null. `-` is JSON lines on stdout.

Going on. Until it is complete, all that is done is in OUTPUT.partial, which takes about as much of the disk as the vectors. Whatever ends this command, the same command goes on where it stopped; at most the requests on their way are computed again. Another model, other options or a changed input are refused with what differs; --restart begins anew. The output appears only when it is complete.

Errors. An input that has no text, is no JSON or is too long (--no-truncate) ends the command with its file and line. With --skip-errors it is told and counted, and its row has no vector: `error` in place of `embedding`, NaN, or null.

A running daemon does the work where one answers; else this process loads the model itself.")]
pub(crate) struct EmbedArgs {
    /// Name of a model, or path to a GGUF file or a safetensors directory
    #[arg(long, short, value_name = "MODEL")]
    pub(crate) model: String,
    /// Texts to embed
    #[arg(value_name = "TEXT", conflicts_with = "input")]
    pub(crate) texts: Vec<String>,
    /// Picture to embed (JPEG, PNG, WebP or GIF), with a model that has texts and pictures in one space; its
    /// row follows those of the texts; repeatable
    #[arg(long, value_name = "FILE", conflicts_with_all = ["input", "input_format", "field"])]
    pub(crate) image: Vec<PathBuf>,
    /// File of texts, .txt or .jsonl, or - for stdin
    #[arg(long, short, value_name = "FILE")]
    pub(crate) input: Option<String>,
    /// File of vectors, .jsonl, .npy or .parquet, or - for JSON lines on stdout [default: -]
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Format of the input [default: from its name; txt on stdin]
    #[arg(long, value_name = "FORMAT")]
    pub(crate) input_format: Option<InputFormat>,
    /// Field of JSON lines that has the text [default: text]
    #[arg(long, value_name = "NAME")]
    pub(crate) field: Option<String>,
    /// Put the texts into .parquet too
    #[arg(long)]
    pub(crate) with_text: bool,
    /// Length of the vectors: their first N numbers, taken before normalisation [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) dimensions: Option<u32>,
    /// Scale vectors to length 1 [default: as the model's files say]
    #[arg(long, conflicts_with = "no_normalize")]
    pub(crate) normalize: bool,
    /// Do not normalise vectors
    #[arg(long)]
    pub(crate) no_normalize: bool,
    /// Cut texts that are too long for the model at their end [default]
    #[arg(long, conflicts_with = "no_truncate")]
    pub(crate) truncate: bool,
    /// Report texts that are too long for the model as errors
    #[arg(long)]
    pub(crate) no_truncate: bool,
    /// Name of a prompt of the model, such as query, to put before each text
    #[arg(long, value_name = "NAME", conflicts_with = "instruction")]
    pub(crate) prompt_name: Option<String>,
    /// Task description to put before each text, in the format of the model's family
    #[arg(long, value_name = "TEXT")]
    pub(crate) instruction: Option<String>,
    /// Texts of one request
    #[arg(long, value_name = "N", default_value = "256", value_parser = clap::value_parser!(u32).range(1..=8192))]
    pub(crate) batch: u32,
    /// Concurrent requests
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) in_flight: u32,
    /// Go on when a single input fails
    #[arg(long)]
    pub(crate) skip_errors: bool,
    /// Ignore an earlier partial result, and replace the output when the new one is complete
    #[arg(long, requires = "output")]
    pub(crate) restart: bool,
    /// Print no progress and no summary
    #[arg(long)]
    pub(crate) quiet: bool,
    /// Log level, on stderr, if this process loads the model itself
    #[arg(long, value_name = "LEVEL", default_value = "error")]
    pub(crate) log_level: LogLevel,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

impl EmbedArgs {
    /// Returns None for the setting in the model's files.
    pub(crate) fn normalizes(&self) -> Option<bool> {
        match (self.normalize, self.no_normalize) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        }
    }

    /// True unless `--no-truncate` is given. `--truncate` states the default.
    pub(crate) fn truncates(&self) -> bool {
        self.truncate || !self.no_truncate
    }
}

/// Arguments of `rerank`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  hanzo-engine rerank -m ./qwen3-reranker -q \"capital of France\" \"Paris is …\" \"Berlin is …\"
  hanzo-engine rerank -m ./qwen3-reranker -q \"capital of France\" -i passages.txt --top-n 5
  hanzo-engine rerank -m ./qwen3-reranker -q \"capital of France\" -i passages.jsonl --field body --json

--input is a document a line (.txt, empty lines left out) or an object a line (.jsonl). --json prints an array of {\"index\", \"score\", \"id\" if the input has it, \"document\"}, best first; the first document's index is 0.

A running daemon does the work where one answers; else this process loads the model itself.")]
pub(crate) struct RerankArgs {
    /// Name of a model, or path to a GGUF file or a safetensors directory
    #[arg(long, short, value_name = "MODEL")]
    pub(crate) model: String,
    /// Query that the documents should answer
    #[arg(long, short, value_name = "TEXT")]
    pub(crate) query: String,
    /// Documents to order
    #[arg(value_name = "DOCUMENT", conflicts_with = "input")]
    pub(crate) documents: Vec<String>,
    /// File of documents, .txt or .jsonl, or - for stdin
    #[arg(long, short, value_name = "FILE")]
    pub(crate) input: Option<String>,
    /// Format of the input [default: from its name; txt on stdin]
    #[arg(long, value_name = "FORMAT")]
    pub(crate) input_format: Option<InputFormat>,
    /// Field of JSON lines that has the document [default: text]
    #[arg(long, value_name = "NAME")]
    pub(crate) field: Option<String>,
    /// Print only the best N
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) top_n: Option<u32>,
    /// Print the model's raw scores instead of probabilities
    #[arg(long)]
    pub(crate) raw_scores: bool,
    /// Task description for the query [default: the model's own]
    #[arg(long, value_name = "TEXT")]
    pub(crate) instruction: Option<String>,
    /// Report a document that is too long for the model as an error, instead of cutting it at its end
    #[arg(long)]
    pub(crate) no_truncate: bool,
    /// Print JSON: an array
    #[arg(long)]
    pub(crate) json: bool,
    /// Log level, on stderr, if this process loads the model itself
    #[arg(long, value_name = "LEVEL", default_value = "error")]
    pub(crate) log_level: LogLevel,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}
