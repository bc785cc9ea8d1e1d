//! Whisper (arxiv.org/abs/2212.04356): speech to text, from samples to segments. `request` holds the options,
//! [`crate::transcript`] the results. Absent: sound files, voice activity detection, clocks.

mod ctranslate2;
mod engine;
mod files;
mod ggml;
mod hearing;
mod language;
mod listening;
mod network;
mod packing;
mod program;
mod request;
mod rules;
mod spec;
#[cfg(test)]
mod tests;
mod vocabulary;
mod window;
mod words;

use std::path::{Path, PathBuf};

use crate::error::LoadError;
use crate::tensor::StoredTensor;

pub use crate::mel::SAMPLE_RATE;
pub use engine::{TranscribeJob, WhisperConfig, WhisperEngine};
pub use files::WhisperFiles;
pub use request::TranscribeOptions;
pub use spec::{Stack, WhisperSpec};
pub use vocabulary::{DecodingOptions, Vocabulary};

/// Weights in a directory that CTranslate2's converter made from a Whisper model; `None` for others.
pub(crate) fn converted(directory: &Path) -> Option<PathBuf> {
    Some(directory.join(ctranslate2::FILE)).filter(|file| ctranslate2::is_whisper(file))
}

/// whisper.cpp file at this path: the file itself, or the only one of a directory without another library's
/// settings.
pub(crate) fn ggml_file(path: &Path) -> Option<PathBuf> {
    if path.is_dir() {
        return if path.join("config.json").exists() { None } else { ggml::in_directory(path) };
    }
    Some(path.to_owned()).filter(|path| ggml::is_ggml(path))
}

/// Tensors of a whisper.cpp file.
pub(crate) fn census(file: &Path) -> Result<Vec<StoredTensor>, LoadError> {
    let read = ggml::open(file)?;
    let stored = read.tensors.values().map(|tensor| StoredTensor {
        dtype: tensor.dtype.to_string(),
        elements: tensor.elements() as u64,
        bytes: tensor.bytes.len() as u64,
    });
    Ok(stored.collect())
}
