//! A model on disk, opened: what it is, how it is run, its text files, and its weights by the names of
//! [`crate::spec::Weight`]. Opening reads headers and checks every shape against the spec; weights are read when a
//! [`crate::decoder::Decoder`] packs them.

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
use crate::chat::Opening;
use crate::error::LoadError;
use crate::gguf::Metadata;
use crate::mapped::ModelBytes;
use crate::overrides::{Mmproj, Overrides};
use crate::spec::TransformerSpec;
use crate::tensor::Tensor;
use crate::tokenizer;
use crate::vision::{TowerFiles, embedded, mmproj};

/// What a model is, for people.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelInfo {
    /// The name its files give it, or that of the file or directory.
    pub name: String,
    /// `gguf`, `safetensors` or `pytorch`.
    pub format: &'static str,
    /// The family: `qwen3`, `llama`.
    pub architecture: String,
    /// How most weights are stored, as users name it: `Q4_K_M`, `BF16`; of a format that is kept in a type which rounds its numbers,
    /// that and by how much.
    pub quantization: String,
    /// Numbers in all weights.
    pub parameters: u64,
    /// Of all its weight files.
    pub size_bytes: u64,
    /// Tokens of the longest context it was made for.
    pub context_tokens_max: u32,
    /// Its licence, where the files say.
    pub license: Option<String>,
    /// What it was made to read besides text and this build does not: `images`, `audio`.
    pub not_read: &'static [&'static str],
    /// Its weight files; none for a model built into the program.
    pub files: Vec<PathBuf>,
}

impl ModelInfo {
    /// The reason for which it does not read `images` or `audio` that it was made to read, in brackets behind a space; nothing where it
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

/// Where the tokenizer comes from.
#[derive(Clone, Debug)]
pub enum TokenizerSource {
    /// The `tokenizer.ggml.*` keys.
    Gguf(Arc<Metadata>),
    /// `tokenizer.json` and `tokenizer_config.json`.
    HuggingFace {
        /// The file, as it is.
        tokenizer_json: Vec<u8>,
        /// The settings beside it.
        tokenizer_config: Option<Value>,
    },
}

impl TokenizerSource {
    /// One that is to be put in place.
    pub(crate) fn none() -> Self {
        TokenizerSource::HuggingFace { tokenizer_json: Vec::new(), tokenizer_config: None }
    }

    /// What kind of tokenizer it says it is, and the name of what splits its texts.
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

/// Everything about text: what a tokenizer, a chat template and a sampler's defaults are made from.
#[derive(Clone, Debug)]
pub struct TextFiles {
    /// The file or directory, for errors.
    pub file: String,
    /// The tokenizer's source.
    pub tokenizer: TokenizerSource,
    /// The default chat template, in Jinja.
    pub chat_template: Option<String>,
    /// The token that begins a text.
    pub bos: Option<u32>,
    /// Tokens that end a text or a turn, ascending.
    pub eos: Vec<u32>,
    /// How the model's makers would sample it.
    pub generation: GenerationDefaults,
    /// What its makers put before every conversation.
    pub opening: Opening,
}

/// Settings of sampling and stopping that a model comes with; what it does not say is `None` or empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationDefaults {
    /// False means greedy, whatever the other settings say.
    pub do_sample: Option<bool>,
    /// Divides logits.
    pub temperature: Option<f32>,
    /// Only so many best tokens.
    pub top_k: Option<u32>,
    /// Only the best tokens that together have this probability.
    pub top_p: Option<f32>,
    /// Only tokens this probable, relative to the best.
    pub min_p: Option<f32>,
    /// Divides the logits of tokens that were there.
    pub repetition_penalty: Option<f32>,
    /// Subtracted for each time a token was generated.
    pub frequency_penalty: Option<f32>,
    /// Subtracted once from tokens that were generated.
    pub presence_penalty: Option<f32>,
    /// Penalties look back on so many last tokens; -1: on all.
    pub repeat_last_n: Option<i32>,
    /// Only tokens whose surprise is nearest to the entropy, that together have this probability.
    pub typical_p: Option<f32>,
    /// How often the top choices are left out.
    pub xtc_probability: Option<f32>,
    /// Which tokens are top choices.
    pub xtc_threshold: Option<f32>,
    /// The version of mirostat; 0: none.
    pub mirostat: Option<u32>,
    /// The surprise it aims at, in bits.
    pub mirostat_tau: Option<f32>,
    /// How fast it does.
    pub mirostat_eta: Option<f32>,
    /// What every request draws with.
    pub seed: Option<u64>,
    /// Tokens to generate at most.
    pub max_new_tokens: Option<u32>,
    /// Tokens to generate at least.
    pub min_new_tokens: Option<u32>,
    /// Added to tokens' logits; a request's own of the same token stands instead.
    pub logit_bias: Vec<(u32, f32)>,
    /// Texts that end a completion; one that is a control token's is that token.
    pub stop: Vec<String>,
}

/// An opened model.
#[derive(Debug)]
pub struct ModelFiles {
    /// What it is.
    pub info: ModelInfo,
    /// How it is run.
    pub spec: TransformerSpec,
    /// Its text files.
    pub text: TextFiles,
    /// Its weights.
    pub tensors: Tensors,
    /// What sees for it, if something does.
    pub tower: Option<TowerFiles>,
    /// What hears for it, if something does.
    pub ear: Option<AudioFiles>,
    /// The rows of yes and no, of a GGUF file made to rerank: (2, hidden).
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

    /// A GGUF file's header, after its name, and the files it is in.
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

    /// Opens a GGUF file built into the program.
    ///
    /// # Errors
    /// As [`ModelFiles::open`].
    pub fn from_static(name: &str, gguf: &'static [u8]) -> Result<Self, LoadError> {
        Self::from_bytes(name, ModelBytes::from_static(gguf))
    }

    /// Opens a GGUF file's bytes.
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

/// Refuses token ids that no row of the head belongs to.
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
