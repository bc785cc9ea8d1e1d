//! Arguments of `say`.

use super::engine::{EngineArgs, LogLevel, StoreArgs};
use clap::{Args, ValueEnum};
use hanzo_engine_proto::v1::SoundFormat;
use std::path::PathBuf;

/// Sound format, with its file extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SayFormat {
    Wav,
    Mp3,
    Opus,
    Flac,
    /// Raw 16-bit samples
    Pcm,
}

impl SayFormat {
    /// Format in the gRPC contract.
    pub(crate) fn wire(self) -> SoundFormat {
        match self {
            SayFormat::Wav => SoundFormat::Wav,
            SayFormat::Mp3 => SoundFormat::Mp3,
            SayFormat::Opus => SoundFormat::Opus,
            SayFormat::Flac => SoundFormat::Flac,
            SayFormat::Pcm => SoundFormat::Pcm,
        }
    }

    /// Format by file extension.
    pub(crate) fn of_extension(extension: &str) -> Option<Self> {
        match extension.to_ascii_lowercase().as_str() {
            "wav" => Some(SayFormat::Wav),
            "mp3" => Some(SayFormat::Mp3),
            "opus" | "ogg" => Some(SayFormat::Opus),
            "flac" => Some(SayFormat::Flac),
            "pcm" | "raw" => Some(SayFormat::Pcm),
            _ => None,
        }
    }
}

/// Arguments of `say`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  hanzo-engine say -m ./kokoro \"Hello, world!\" -o hello.mp3
  hanzo-engine say -m ./kokoro --voice bm_george --speed 1.2 --input chapter.txt -o chapter.opus
  hanzo-engine say -m ./kokoro --voice af_heart:0.7+af_bella:0.3 \"A blend.\" -o - | aplay
  hanzo-engine say -m ./kokoro --voices
  hanzo-engine say -m ./en_US-lessac-medium.onnx --speed 0.9 \"A voice of Piper's.\" -o piper.flac

Sound is written as it is made, sentence by sentence. The file's name says its format unless --format does; to stdout goes wav. Words that no dictionary has are said as espeak-ng says them where it is installed, else by their letters, and told.

A running daemon does the work where one answers; else this process loads the model itself.")]
pub(crate) struct SayArgs {
    /// Name of a model, or path to its files
    #[arg(long, short, value_name = "MODEL")]
    pub(crate) model: String,
    /// Text to speak
    #[arg(value_name = "TEXT", required_unless_present_any = ["input", "voices"], conflicts_with = "input")]
    pub(crate) text: Option<String>,
    /// Speak the text in this file, or - for stdin
    #[arg(long, value_name = "FILE")]
    pub(crate) input: Option<PathBuf>,
    /// Write the sound to this file, or - for stdout
    #[arg(long, short, value_name = "FILE", required_unless_present = "voices")]
    pub(crate) output: Option<PathBuf>,
    /// Voice of the model, OpenAI's name for one, or a blend [default: the model's first]
    #[arg(long, value_name = "VOICE")]
    pub(crate) voice: Option<String>,
    /// Speed factor, 0.25 to 4
    #[arg(long, value_name = "X")]
    pub(crate) speed: Option<f32>,
    /// Format of the file [default: from its name]
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<SayFormat>,
    /// Language of the text, such as en-us [default: the voice's]
    #[arg(long, value_name = "LANGUAGE")]
    pub(crate) language: Option<String>,
    /// Treat the text as phonemes, in the model's own symbols
    #[arg(long)]
    pub(crate) phonemes: bool,
    /// Seed of the model's random numbers; the same seed gives the same sound
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// List the model's voices
    #[arg(long, conflicts_with_all = ["text", "input", "output"])]
    pub(crate) voices: bool,
    /// Print no timings
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
