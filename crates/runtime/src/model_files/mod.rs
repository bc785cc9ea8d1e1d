//! Files of an opened decoder: its description, its spec, its text files, its weights, and its towers for pictures or
//! sound. Opening reads headers and checks every shape against the spec; weights are read when a
//! [`crate::decoder::Decoder`] packs them.

mod gguf;
mod huggingface;
#[cfg(test)]
pub(crate) mod tests;

use std::fs;
use std::path::{Path, PathBuf};

use crate::adapter::{AdapterBase, BaseWeights};
use crate::audio::AudioFiles;
use crate::error::LoadError;
use crate::load::{ModelInfo, Tensors, TextFiles};
use crate::mapped::ModelBytes;
use crate::overrides::{Mmproj, Overrides};
use crate::spec::TransformerSpec;
use crate::tensor::Tensor;
use crate::vision::{TowerFiles, embedded, mmproj};

/// An opened decoder.
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
            return Ok(Self::from_directory(path, &Overrides::default())?.0);
        }
        let (stem, gguf, files) = Self::open_gguf(path)?;
        Self::from_gguf(&stem, gguf, files, &Mmproj::None)
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

    /// Architecture of the text model, if a vision tower belongs to it.
    pub(crate) fn seeing(&self) -> Option<&str> {
        self.tower.as_ref().map(|_| self.spec.architecture.as_str())
    }

    /// The model as the base of adapters.
    pub fn adapter_base(&self) -> AdapterBase<'_> {
        AdapterBase::of(&self.spec, &self.tensors, self.is_gguf())
    }

    fn is_gguf(&self) -> bool {
        self.info.format == "gguf"
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
        Self::from_gguf(name, crate::gguf::Gguf::parse(name, &gguf)?, Vec::new(), &Mmproj::None)
    }
}

impl From<ModelFiles> for BaseWeights {
    fn from(files: ModelFiles) -> BaseWeights {
        BaseWeights { is_gguf: files.is_gguf(), spec: files.spec, tensors: files.tensors }
    }
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
