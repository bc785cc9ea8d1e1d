//! Text side of a model's files: the sources of tokenizer and chat template, and the makers' defaults.

use std::sync::Arc;

use hanzo_engine_model_files::gguf::Metadata;
use serde_json::Value;

use crate::chat::ChatOpening;

/// Source of the tokenizer.
#[derive(Clone, Debug)]
pub enum TokenizerSource {
    /// The `tokenizer.ggml.*` keys.
    Gguf(Arc<Metadata>),
    /// `tokenizer.json` and `tokenizer_config.json`.
    HuggingFace {
        /// Content of the file.
        tokenizer_json: Vec<u8>,
        /// Settings next to it.
        tokenizer_config: Option<Value>,
    },
}

impl TokenizerSource {
    /// An empty placeholder.
    pub fn none() -> Self {
        TokenizerSource::HuggingFace { tokenizer_json: Vec::new(), tokenizer_config: None }
    }
}

/// Everything about text: the sources of tokenizer, chat template and sampling defaults.
#[derive(Clone, Debug)]
pub struct TextFiles {
    /// The file or directory, for errors.
    pub file: String,
    /// Source of the tokenizer.
    pub tokenizer: TokenizerSource,
    /// The default chat template, in Jinja.
    pub chat_template: Option<String>,
    /// Begin-of-text token.
    pub bos: Option<u32>,
    /// Tokens that end a text or a turn, ascending.
    pub eos: Vec<u32>,
    /// Sampling settings recommended by the model's makers.
    pub generation: GenerationDefaults,
    /// Text that its makers put before every conversation.
    pub opening: ChatOpening,
}

/// Settings of sampling and stopping that come with a model; absent ones are `None` or empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationDefaults {
    /// False means greedy, whatever the other settings say.
    pub do_sample: Option<bool>,
    /// Temperature, which divides logits.
    pub temperature: Option<f32>,
    /// Number of most likely tokens to keep.
    pub top_k: Option<u32>,
    /// Top-p: total probability of the most likely tokens to keep.
    pub top_p: Option<f32>,
    /// Min-p: smallest probability of tokens to keep, relative to the most likely one.
    pub min_p: Option<f32>,
    /// Divisor of the logits of tokens that occurred before.
    pub repetition_penalty: Option<f32>,
    /// Penalty subtracted for each time a token was generated.
    pub frequency_penalty: Option<f32>,
    /// Penalty subtracted once from tokens that were generated.
    pub presence_penalty: Option<f32>,
    /// Number of last tokens that penalties look at; -1: all.
    pub repeat_last_n: Option<i32>,
    /// Typical-p: total probability of the tokens to keep whose surprise is nearest to the entropy.
    pub typical_p: Option<f32>,
    /// XTC: probability of leaving out the top choices.
    pub xtc_probability: Option<f32>,
    /// XTC: probability from which a token is a top choice.
    pub xtc_threshold: Option<f32>,
    /// Version of mirostat; 0: none.
    pub mirostat: Option<u32>,
    /// Target surprise of mirostat, in bits.
    pub mirostat_tau: Option<f32>,
    /// Learning rate of mirostat.
    pub mirostat_eta: Option<f32>,
    /// Seed of every request.
    pub seed: Option<u64>,
    /// Largest number of tokens to generate.
    pub max_new_tokens: Option<u32>,
    /// Smallest number of tokens to generate.
    pub min_new_tokens: Option<u32>,
    /// Biases added to tokens' logits; a request's own bias for the same token replaces it.
    pub logit_bias: Vec<(u32, f32)>,
    /// Stop texts; one that equals a control token stands for that token.
    pub stop: Vec<String>,
}
