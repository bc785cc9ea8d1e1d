//! Options of a transcription.

/// Options of a transcription.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TranscribeOptions {
    /// ISO 639-1 code or English name of the language; empty: detected from the first window.
    pub language: String,
    /// Translate into English.
    pub translate: bool,
    /// Context before every window; if it is too long, its end counts.
    pub prompt: String,
    /// Temperatures, each 0 to 1, tried in order until a window's text is neither repetitive nor unlikely; empty:
    /// 0, 0.2, 0.4, 0.6, 0.8, 1.
    pub temperatures: Vec<f32>,
    /// Compute word timestamps.
    pub word_timestamps: bool,
    /// Give each window the text before it as context.
    pub condition_on_previous_text: bool,
    /// Seed for temperatures above 0.
    pub seed: u64,
}
