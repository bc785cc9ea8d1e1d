//! Conversion of Hugging Face folders to GGUF files, with the names and changes of llama.cpp's converter, for
//! [`crate::quantise`]. Nothing is read before it is written: tensors are views of the folder's, regrouped and stacked
//! on the way.
//!
//! The result, settings and tokenizer, is read back as a file of its architecture would be. A model that GGUF's keys
//! cannot fully describe is refused by name.

mod settings;
mod tensors;
#[cfg(test)]
mod tests;
mod vocabulary;

use std::path::Path;
use std::sync::Arc;

pub(crate) use tensors::stacked;

use crate::error::LoadError;
use crate::gguf::{Gguf, Metadata};
use crate::load::weights;
use crate::model_files::ModelFiles;
use crate::overrides::Overrides;
use crate::spec::{self, Architecture, architecture};

/// Model types of `config.json`, or of its text's settings, that can be converted.
const WRITTEN: &[&str] =
    &["llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3_text"];

/// Architecture of the GGUF file of a folder.
fn architecture_of(files: &ModelFiles, file: &str) -> Result<&'static Architecture, LoadError> {
    let model_type = files.spec.architecture.as_str();
    let written = Some(model_type).filter(|model_type| WRITTEN.contains(model_type));
    written.and_then(|model_type| architecture(spec::architecture_of(model_type))).ok_or_else(|| {
        LoadError::Unsupported {
            file: file.to_owned(),
            key: "model_type".into(),
            value: model_type.to_owned(),
            reason: format!("GGUF files are written of {}", WRITTEN.join(", ")),
        }
    })
}

/// Whether a directory is a model folder: a configuration, and weights in safetensors or PyTorch files.
pub fn is_folder(directory: &Path) -> bool {
    directory.join("config.json").exists() && weights::are_in(directory)
}

/// Converts a folder with `config.json`, a tokenizer and weights to a GGUF file. Its tensors are those of the folder
/// in their types, with vectors and routers in F32. Quantised matrices keep the type that this build reads them as,
/// which may be none of GGUF's.
///
/// # Errors
/// As opening the folder; `Unsupported` naming the model type, the setting or the part of the tokenizer that GGUF's
/// keys cannot express.
pub fn gguf_of(directory: &Path) -> Result<Gguf, LoadError> {
    let (files, _) = ModelFiles::from_directory(directory, &Overrides::default())?;
    let file = directory.display().to_string();
    let of = architecture_of(&files, &file)?;
    let mut entries = settings::keys(directory, &files, of.name)?;
    entries.extend(vocabulary::keys(directory, &files)?);
    let mut tensors = tensors::of_files(&files, of)?;
    tensors.extend(settings::rope_factors(&files.spec, &file));
    let gguf = Gguf { version: 3, metadata: Arc::new(Metadata::new(file, entries)), tensors };
    settings::check(&files.spec, &gguf)?;
    vocabulary::check(&files, &gguf)?;
    Ok(gguf)
}
