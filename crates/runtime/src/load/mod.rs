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

pub use crate::text_files::{GenerationDefaults, TextFiles, TokenizerSource};
pub(crate) use file::TextFile;
pub(crate) use heads::has_same_numbers;
pub use resolve::Tensors;
pub(crate) use resolve::{Found, packed_summary};

use crate::audio::AudioFiles;
use crate::error::LoadError;
use crate::mapped::ModelBytes;
use crate::overrides::{Mmproj, Overrides};
use crate::spec::TransformerSpec;
use crate::tensor::Tensor;
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
