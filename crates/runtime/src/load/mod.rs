//! Parts of a model on disk: its description, its text files, and its weights by [`crate::spec::Weight`]. Opening reads
//! headers and checks every shape against the spec; weights are read when a network packs them.

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
mod packed;
pub(crate) mod quantised;
mod resolve;
mod sentencepiece;
mod stacked;
mod states;
#[cfg(test)]
mod tests;
mod turned;
mod weighed;
pub(crate) mod weights;
mod word_pieces;

use std::fs;
use std::path::PathBuf;

pub use crate::text_files::{GenerationDefaults, TextFiles, TokenizerSource};
pub(crate) use file::TextFile;
pub(crate) use heads::has_same_numbers;
pub(crate) use packed::{PackedType, packed_summary};
pub(crate) use resolve::Found;
pub use resolve::Tensors;

use crate::error::LoadError;

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

/// Size of files in bytes, all together.
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
