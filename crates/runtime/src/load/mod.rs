//! Opening of a model on disk: its description, its spec, its text files, and its weights by [`crate::spec::Weight`].
//! Opening reads headers and checks every shape against the spec; weights are read when a [`crate::decoder::Decoder`]
//! packs them.

pub(crate) mod adapted;
mod added;
mod byte_pairs;
mod cut;
mod experts;
mod file;
pub(crate) mod generation;
pub(crate) mod gguf;
mod grouped;
mod halves;
mod heads;
pub(crate) mod huggingface;
pub(crate) mod quantised;
mod resolve;
mod sentencepiece;
mod stacked;
mod states;
#[cfg(test)]
pub(crate) mod tests;
mod turned;
mod weighed;
pub(crate) mod weights;
mod word_pieces;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

pub(crate) use file::TextFile;
pub(crate) use heads::has_same_numbers;
pub use resolve::Tensors;
pub(crate) use resolve::{Found, packed_summary};

use crate::audio::AudioFiles;
use crate::chat::ChatOpening;
use crate::error::LoadError;
use crate::gguf::Metadata;
use crate::mapped::ModelBytes;
use crate::overrides::{Mmproj, Overrides};
use crate::spec::TransformerSpec;
use crate::tensor::Tensor;
use crate::tokenizer;
use crate::vision::{TowerFiles, embedded, mmproj};

/// Description of a model for people.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelInfo {
    /// Name in its files, or that of the file or directory.
    pub name: String,
    /// `gguf`, `safetensors` or `pytorch`.
    pub format: &'static str,
    /// Family: `qwen3`, `llama`.
    pub architecture: String,
    /// Storage format of most weights by its usual name: `Q4_K_M`, `BF16`. For a format that is converted to a type
    /// that rounds its numbers, it names that type and the rounding.
    pub quantization: String,
    /// Numbers in all weights.
    pub parameters: u64,
    /// Size of all weight files in bytes.
    pub size_bytes: u64,
    /// Longest context that it was made for, in tokens.
    pub context_tokens_max: u32,
    /// Licence, if the files contain it.
    pub license: Option<String>,
    /// Inputs besides text that it was made for and that are not supported: `images`, `audio`.
    pub not_read: &'static [&'static str],
    /// Weight files; none for a model built into the program.
    pub files: Vec<PathBuf>,
}

impl ModelInfo {
    /// Reason why it does not support `images` or `audio` that it was made for, in brackets after a space. Empty if it
    /// was not made for them.
    pub fn why_not_read(&self, input: &str) -> String {
        let architecture = &self.architecture;
        match self.not_read.contains(&input) {
            false => String::new(),
            true if mmproj::knows(architecture) || embedded::runs(architecture) => {
                " (its tower, in llama.cpp's files a projector called mmproj, is not loaded with it)".into()
            }
            true => format!(" (this build does not run the tower of {architecture} that reads {input})"),
        }
    }
}

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
    pub(crate) fn none() -> Self {
        TokenizerSource::HuggingFace { tokenizer_json: Vec::new(), tokenizer_config: None }
    }

    /// Kind of tokenizer, and name of its pre-tokenizer.
    pub fn kind(&self) -> (Option<String>, Option<String>) {
        match self {
            TokenizerSource::Gguf(metadata) => {
                let text = |key| metadata.string(key).ok().flatten().map(str::to_owned);
                (text("tokenizer.ggml.model"), text("tokenizer.ggml.pre"))
            }
            TokenizerSource::HuggingFace { tokenizer_json, .. } => {
                (tokenizer::hf::kind(tokenizer_json), None)
            }
        }
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

/// An opened model.
#[derive(Debug)]
pub struct ModelFiles {
    /// Description for people.
    pub info: ModelInfo,
    /// Spec of the network.
    pub spec: TransformerSpec,
    /// Its text files.
    pub text: TextFiles,
    /// Its weights.
    pub tensors: Tensors,
    /// Vision tower, if there is one.
    pub tower: Option<TowerFiles>,
    /// Audio encoder, if there is one.
    pub ear: Option<AudioFiles>,
    /// Classifier rows for yes and no, in a GGUF file made for reranking: (2, hidden).
    pub(crate) score: Option<Tensor>,
}

impl ModelFiles {
    /// Opens a GGUF file (of a split model, any of its files), or a directory with `config.json`,
    /// `tokenizer.json` and safetensors or PyTorch weights.
    ///
    /// # Errors
    /// [`LoadError`] naming the file and the key, tensor or file in it.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        let found = fs::metadata(path).map_err(|source| LoadError::Io { path: path.to_owned(), source })?;
        if found.is_dir() {
            return Ok(huggingface::open(path, &Overrides::default())?.0);
        }
        let (stem, gguf, files) = Self::open_gguf(path)?;
        gguf::assemble(&stem, gguf, files, &Mmproj::None)
    }

    /// Header of a GGUF file, preceded by its name and followed by its files.
    pub(crate) fn open_gguf(path: &Path) -> Result<(String, crate::gguf::Gguf, Vec<PathBuf>), LoadError> {
        if path.extension().is_some_and(|extension| extension == "safetensors" || extension == "bin") {
            return Err(LoadError::Unsupported {
                file: path.display().to_string(),
                key: "model".into(),
                value: "a file of weights alone".into(),
                reason: "give the directory it is in, which holds config.json and tokenizer.json too".into(),
            });
        }
        let (gguf, files) = crate::gguf::open(path)?;
        let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        Ok((stem, gguf, files))
    }

    /// Opens a GGUF file that is built into the program.
    ///
    /// # Errors
    /// As [`ModelFiles::open`].
    pub fn from_static(name: &str, gguf: &'static [u8]) -> Result<Self, LoadError> {
        Self::from_bytes(name, ModelBytes::from_static(gguf))
    }

    /// Opens a GGUF file from its bytes.
    ///
    /// # Errors
    /// As [`ModelFiles::open`].
    pub fn from_bytes(name: &str, gguf: ModelBytes) -> Result<Self, LoadError> {
        gguf::assemble(name, crate::gguf::Gguf::parse(name, &gguf)?, Vec::new(), &Mmproj::None)
    }
}

pub(crate) fn size_bytes(files: &[PathBuf]) -> Result<u64, LoadError> {
    let mut total = 0;
    for path in files {
        let found = fs::metadata(path).map_err(|source| LoadError::Io { path: path.clone(), source })?;
        total += found.len();
    }
    Ok(total)
}

/// Refuses token ids without a row in the head.
pub(crate) fn check_tokens(file: &str, vocab: usize, text: &TextFiles) -> Result<(), LoadError> {
    let biased = text.generation.logit_bias.iter().map(|(token, _)| token);
    let ends = text.bos.iter().chain(&text.eos).map(|token| ("begin and end tokens", token));
    let mut all = ends.chain(biased.map(|token| ("tokens whose logits are changed", token)));
    match all.find(|&(_, &token)| token as usize >= vocab) {
        None => Ok(()),
        Some((what, token)) => Err(LoadError::Corrupt {
            file: file.to_owned(),
            what: what.into(),
            reason: format!("token {token} is not among the {vocab} of the vocabulary"),
        }),
    }
}
