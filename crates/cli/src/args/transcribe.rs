//! Arguments of `transcribe`.

use super::engine::{EngineArgs, LogLevel, StoreArgs};
use clap::Args;
use std::path::PathBuf;

/// Arguments of `transcribe`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  hanzo-engine transcribe -m ./whisper-base talk.mp3
  hanzo-engine transcribe -m ./whisper-base --srt talk.m4a > talk.srt
  hanzo-engine transcribe -m ./whisper-base --vtt --output-dir subtitles *.ogg
  ffmpeg -i film.mkv -f wav - | hanzo-engine transcribe -m ./whisper-base --language de --translate -

Files. wav, mp3, flac, ogg and webm (Opus, Vorbis), m4a and aac (AAC-LC, ALAC) and aiff are read. What is said of the language, names and spelling helps: --language, --prompt.

Output. Text as it is, a line a segment; with --json one object a file, each on a line. Of several files text has the name of each above it; subtitles of several need --output-dir, where each goes into a file of its name. A file that fails is told, and the others are done.

A running daemon does the work where one answers; else this process loads the model itself.")]
pub(crate) struct TranscribeArgs {
    /// Name of a model, or path to its files
    #[arg(long, short, value_name = "MODEL")]
    pub(crate) model: String,
    /// Sound files, or - for stdin
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Write SubRip subtitles
    #[arg(long, group = "shape")]
    pub(crate) srt: bool,
    /// Write WebVTT subtitles
    #[arg(long, group = "shape")]
    pub(crate) vtt: bool,
    /// Write JSON, with segments and their times
    #[arg(long, group = "shape")]
    pub(crate) json: bool,
    /// Add the time of each word, in --json
    #[arg(long, requires = "json")]
    pub(crate) words: bool,
    /// Language of the sound: a code such as de, or its English name [default: detected]
    #[arg(long, value_name = "LANGUAGE")]
    pub(crate) language: Option<String>,
    /// Translate to English
    #[arg(long)]
    pub(crate) translate: bool,
    /// Text as preceding context: names, spelling
    #[arg(long, value_name = "TEXT")]
    pub(crate) prompt: Option<String>,
    /// Sampling temperature, 0 to 1 [default: 0, raised where the output repeats itself or is unlikely]
    #[arg(long, value_name = "T")]
    pub(crate) temperature: Option<f32>,
    /// Process long pauses too
    #[arg(long)]
    pub(crate) keep_pauses: bool,
    /// Write one file for each input into this directory
    #[arg(long, value_name = "DIR")]
    pub(crate) output_dir: Option<PathBuf>,
    /// Files processed concurrently
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) in_flight: u32,
    /// Print no progress
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
