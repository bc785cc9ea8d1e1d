//! Whisper (arxiv.org/abs/2212.04356): speech to text, from samples to segments. What may be asked is `request`, what is
//! answered `transcript`. Absent: files of sound, voice activity, clocks.

mod request;
mod transcript;

pub use request::TranscribeOptions;
pub use transcript::{Segment, SpokenToken, Transcript, Word};

/// Samples of a second: the sound is one channel of f32 between -1 and 1.
pub const SAMPLE_RATE: usize = 16_000;
