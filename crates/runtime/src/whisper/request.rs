//! What may be asked of a transcription.

/// How a sound is to be written down.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TranscribeOptions {
    /// A code of ISO 639-1 or a language's English name; empty: found out from the first window.
    pub language: String,
    /// Into English.
    pub translate: bool,
    /// Text that goes before every window, as context; its end counts.
    pub prompt: String,
    /// Tried in order until a window's text is neither repetitive nor unlikely, each 0 to 1; none: 0, 0.2, 0.4, 0.6, 0.8, 1.
    pub temperatures: Vec<f32>,
    /// Say when each word is said.
    pub word_timestamps: bool,
    /// Each window sees the text before it.
    pub condition_on_previous_text: bool,
    /// Of temperatures above 0.
    pub seed: u64,
}
