//! What a transcription answers: plain data, in order.

use serde::{Deserialize, Serialize};

/// Something that is known of a sound.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Transcript {
    /// First.
    Started {
        /// A code of ISO 639-1 (or one of Whisper's own), given or found out.
        language: String,
        /// 1 where it was given.
        probability: f32,
    },
    /// Text as it is known, which the segment after it repeats.
    Delta(String),
    /// Final; in order.
    Segment(Segment),
    /// Last.
    Finished {
        /// Samples that were heard.
        samples: u64,
        /// Tokens before the text, of all windows together.
        prompt_tokens: u32,
        /// Tokens that were drawn, of all windows together.
        completion_tokens: u32,
    },
}

/// Something said in one go.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Segment {
    /// From 0.
    pub index: u32,
    /// Seconds of the samples that were given.
    pub start_s: f64,
    /// Likewise.
    pub end_s: f64,
    /// With the space that it begins with.
    pub text: String,
    /// Timestamps included.
    pub tokens: Vec<SpokenToken>,
    /// At which its window was drawn.
    pub temperature: f32,
    /// Of its window's tokens.
    pub average_logprob: f32,
    /// Of its window's text: its bytes over those that deflate makes of them.
    pub compression_ratio: f32,
    /// That its window has no speech.
    pub no_speech_probability: f32,
    /// Where they were asked for.
    pub words: Vec<Word>,
    /// Hundredths of a second at which its window began.
    pub seek: u32,
}

/// A token of a segment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SpokenToken {
    /// Of the model's vocabulary.
    pub id: u32,
    /// A character may span tokens; none of a timestamp.
    pub bytes: Vec<u8>,
    /// After suppression, at temperature 1.
    pub logprob: f32,
}

/// A word and when it is said.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Word {
    /// With the space and punctuation that belong to it.
    pub word: String,
    /// Seconds, as of segments.
    pub start_s: f64,
    /// Likewise.
    pub end_s: f64,
    /// Of its tokens, their mean.
    pub probability: f32,
}
