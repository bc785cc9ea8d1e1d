//! Results of a transcription: plain data, in order.

use serde::{Deserialize, Serialize};

/// Event of a transcription.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Transcript {
    /// First event.
    Started {
        /// ISO 639-1 code (or one of Whisper's own), given or detected.
        language: String,
        /// Probability of the language; 1 if it was given.
        probability: f32,
    },
    /// New text as soon as it is known; the next segment repeats it.
    Delta(String),
    /// Final segment; in order.
    Segment(Segment),
    /// Last event.
    Finished {
        /// Samples received.
        samples: u64,
        /// Tokens before the text, over all windows.
        prompt_tokens: u32,
        /// Generated tokens, over all windows.
        completion_tokens: u32,
    },
}

/// Segment: a passage spoken without a break.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Segment {
    /// Index, from 0.
    pub index: u32,
    /// Start in seconds, by the given samples.
    pub start_s: f64,
    /// End in seconds, by the given samples.
    pub end_s: f64,
    /// Text, with its leading space.
    pub text: String,
    /// Tokens, timestamps included.
    pub tokens: Vec<SpokenToken>,
    /// Temperature at which its window was decoded.
    pub temperature: f32,
    /// Average log probability of its window's tokens.
    pub average_logprob: f32,
    /// Compression ratio of its window's text: its bytes divided by its deflated bytes.
    pub compression_ratio: f32,
    /// Probability that its window has no speech.
    pub no_speech_probability: f32,
    /// Words, if requested.
    pub words: Vec<Word>,
    /// Start of its window in hundredths of a second.
    pub seek: u32,
}

/// Token of a segment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SpokenToken {
    /// ID in the model's vocabulary.
    pub id: u32,
    /// Bytes; a character may span tokens. Empty for a timestamp.
    pub bytes: Vec<u8>,
    /// Log probability after suppression, at temperature 1.
    pub logprob: f32,
}

/// Word with its times.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Word {
    /// Word with the space and punctuation that belong to it.
    pub word: String,
    /// Start in seconds, as for segments.
    pub start_s: f64,
    /// End in seconds.
    pub end_s: f64,
    /// Mean probability of its tokens.
    pub probability: f32,
}
