//! Tokens to text, stop strings and reasoning.

use crate::{job::StopConditions, text::TextModel};

/// The output of one completion, token by token.
pub struct OutputText {
    _private: (),
}

/// What became certain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chunk {
    /// Text of the answer.
    pub text: String,
    /// Text of the reasoning section.
    pub reasoning: String,
    /// The stop string that matched.
    pub stop: Option<String>,
}

impl OutputText {
    /// An empty one.
    pub fn new(_text: &TextModel, _stop: &StopConditions, _starts_in_reasoning: bool, _split_reasoning: bool) -> Self {
        todo!()
    }

    /// Adds a token.
    pub fn push(&mut self, _text: &TextModel, _id: u32) -> Chunk {
        todo!()
    }

    /// Flushes everything held back.
    pub fn finish(&mut self, _text: &TextModel) -> Chunk {
        todo!()
    }

    /// Whether the last token was inside the reasoning section.
    pub fn in_reasoning(&self) -> bool {
        todo!()
    }
}
