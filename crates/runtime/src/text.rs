//! The text side of a model: tokenizer, template, end tokens, defaults.

use crate::{
    chat::Chat,
    error::{LoadError, RequestError},
    load::{GenerationDefaults, ModelFiles, ModelInfo},
    template::ChatTemplate,
    tokenizer::Tokenizer,
};

/// Everything of a model that is not numbers.
pub struct TextModel {
    /// Text to tokens and back.
    pub tokenizer: Tokenizer,
    /// The chat template, if the model has one.
    pub template: Option<ChatTemplate>,
    /// End-of-sequence tokens.
    pub eos: Vec<u32>,
    /// The model's own sampling defaults.
    pub generation: GenerationDefaults,
    /// How the model marks its reasoning.
    pub reasoning: Option<ReasoningMarkers>,
    /// What the model is.
    pub info: ModelInfo,
    /// Rows of the head.
    pub vocab: usize,
    /// Tokens of its context.
    pub context_tokens_max: u32,
}

/// The strings around a reasoning section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasoningMarkers {
    /// Opens it.
    pub open: String,
    /// Closes it.
    pub close: String,
}

/// A prompt ready to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// The rendered text.
    pub text: String,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// The template left the reasoning section open.
    pub starts_in_reasoning: bool,
}

impl TextModel {
    /// From a model's files.
    pub fn load(_files: &ModelFiles) -> Result<TextModel, LoadError> {
        todo!()
    }

    /// The prompt's text.
    pub fn render(&self, _chat: &Chat) -> Result<String, RequestError> {
        todo!()
    }

    /// The prompt's text and tokens.
    pub fn prompt_from_chat(&self, _chat: &Chat) -> Result<Prompt, RequestError> {
        todo!()
    }
}
