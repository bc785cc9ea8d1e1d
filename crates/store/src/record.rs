//! Records of models: plain data, and the comparison with the files on disk.

use crate::limits::{RECORD_BYTES_MAX, SIDE_TEXT_BYTES_MAX, TEXT_BYTES_MAX};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Model to register, as the runtime read it from its files. The store reads sizes and times itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NewModel {
    /// GGUF file or safetensors directory as the user gave it. Without a given name, the name is derived from
    /// it.
    pub path: PathBuf,
    /// Every file that the model is read from, weights first. If empty, `path` must be a file and is the only
    /// one.
    pub files: Vec<PathBuf>,
    /// `gguf` or `safetensors`.
    pub format: String,
    /// Architecture such as `qwen3`.
    pub architecture: String,
    /// Quantisation such as `Q8_0`.
    pub quantization: String,
    /// Number of weights.
    pub parameters: u64,
    /// Context length in tokens that the model was made for.
    pub context_tokens_max: u32,
    /// Name of the license, if the files state one.
    pub license: Option<String>,
}

/// Description of a model by its files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// `gguf` or `safetensors`.
    pub format: String,
    /// Architecture such as `qwen3`.
    pub architecture: String,
    /// Quantisation such as `Q8_0`.
    pub quantization: String,
    /// Number of weights.
    pub parameters: u64,
    /// Context length in tokens that the model was made for.
    pub context_tokens_max: u32,
    /// Name of the license.
    pub license: Option<String>,
}

/// Record of a model on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelRecord {
    /// Name as displayed. Matching ignores case, see [`crate::find_name`].
    pub name: String,
    /// `gguf` or `safetensors`.
    pub format: String,
    /// Architecture such as `qwen3`.
    pub architecture: String,
    /// Quantisation such as `Q8_0`.
    pub quantization: String,
    /// Number of weights.
    pub parameters: u64,
    /// Total bytes of all files.
    pub size_bytes: u64,
    /// Context length in tokens that the model was made for.
    pub context_tokens_max: u32,
    /// Absolute path of the GGUF file or the safetensors directory.
    pub path: PathBuf,
    /// Every file, weights first.
    pub files: Vec<FileRecord>,
    /// Origin such as `file:///models/qwen3-4b.gguf`.
    pub source: String,
    /// True if registered in place: removing the model leaves its files.
    pub in_place: bool,
    /// Time of the first registration, Unix milliseconds.
    pub added_at_unix_ms: i64,
    /// Time of the last load, Unix milliseconds; 0: never loaded.
    pub used_at_unix_ms: i64,
    /// Name of the license, if the files or the source state one, cut to 1,024 bytes.
    pub license: Option<String>,
    /// Reference that pulls the same model again, such as `hf://Qwen/Qwen3-4B-GGUF:Q4_K_M`. Equal to `source`
    /// for a model registered in place.
    pub reference: String,
    /// Revision of the source: a commit, or a manifest's digest.
    pub revision: Option<String>,
}

/// File of a model, as it was at registration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    /// Absolute path.
    pub path: PathBuf,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Time of the last change, Unix milliseconds; 0 if the file system does not state it.
    pub modified_at_unix_ms: i64,
    /// SHA-256 in hexadecimal. None until computed, see [`crate::Store::digest`].
    pub sha256: Option<String>,
    /// Role of the file in the model.
    pub role: Role,
    /// Owner of the file.
    pub held: FileOwner,
}

/// Role of a file in its model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Weights, tokenizer or configuration, which the runtime opens.
    #[default]
    Model,
    /// A vision or audio projector beside the model.
    Projector,
    /// An adapter to apply to the model.
    Adapter,
    /// A chat template in another language than Jinja, kept for display.
    Template,
    /// A system prompt.
    System,
    /// Default sampling options, a JSON object.
    Params,
    /// Messages that begin every conversation, a JSON list.
    Messages,
    /// Text of the license.
    License,
}

/// Owner of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileOwner {
    /// A file outside the store, used in place. Never deleted.
    #[default]
    Elsewhere,
    /// A blob of the store, linked under the model's file name. Deleted with the last model that has it.
    Blob,
    /// A link to a file in another program's store. The link is deleted with the model, the file stays.
    Linked,
}

/// Texts that came with a model, besides those in its weights' files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SideTexts {
    /// Chat template that is not Jinja.
    pub template: Option<String>,
    /// System prompt.
    pub system: Option<String>,
    /// Default sampling options, a JSON object.
    pub params: Option<String>,
    /// Messages that begin every conversation, a JSON list.
    pub messages: Option<String>,
    /// Text of the license.
    pub license: Option<String>,
}

/// State of a file compared with its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileState {
    /// Size and time match the record.
    Unchanged,
    /// Present with another size or time: its digest is no longer valid.
    Changed,
    /// Not present, or not readable.
    Missing,
}

impl ModelRecord {
    /// Lists the missing files. Accesses the disk.
    pub fn missing(&self) -> Vec<&Path> {
        let gone = |file: &&FileRecord| file.state() == FileState::Missing;
        self.files.iter().filter(gone).map(|file| file.path.as_path()).collect()
    }

    /// Reads the texts that came with the model, each up to 1 MiB. Skips unreadable ones.
    pub fn side_texts(&self) -> SideTexts {
        let mut texts = SideTexts::default();
        for file in &self.files {
            let slot = match file.role {
                Role::Template => &mut texts.template,
                Role::System => &mut texts.system,
                Role::Params => &mut texts.params,
                Role::Messages => &mut texts.messages,
                Role::License => &mut texts.license,
                Role::Model | Role::Projector | Role::Adapter => continue,
            };
            let mut read = Vec::new();
            let opened = std::fs::File::open(&file.path);
            if opened.and_then(|file| file.take(SIDE_TEXT_BYTES_MAX).read_to_end(&mut read)).is_ok() {
                let text = String::from_utf8_lossy(&read).into_owned();
                *slot = Some(match slot.take() {
                    Some(before) => before + "\n\n" + &text,
                    None => text,
                });
            }
        }
        texts
    }

    /// SHA-256 and size of each of its blobs, without duplicates.
    pub(crate) fn blobs(&self) -> BTreeMap<&str, u64> {
        let blob = |file: &'_ FileRecord| file.held == FileOwner::Blob;
        let files = self.files.iter().filter(|file| blob(file));
        files.filter_map(|file| Some((file.sha256.as_deref()?, file.size_bytes))).collect()
    }

    /// Time of the newest change of any file, Unix milliseconds.
    pub fn modified_at_unix_ms(&self) -> i64 {
        self.files.iter().map(|file| file.modified_at_unix_ms).max().unwrap_or(0)
    }
}

/// Reads the texts that came with the pulled model at `path`. None if the model is not in a folder of the
/// store.
pub fn texts_beside(path: &Path) -> Option<SideTexts> {
    let folder = if path.is_dir() { path } else { path.parent()? };
    let mut manifest = Vec::new();
    let opened = std::fs::File::open(folder.join(crate::layout::MANIFEST)).ok()?;
    opened.take(RECORD_BYTES_MAX as u64 + 1).read_to_end(&mut manifest).ok()?;
    let mut record: ModelRecord = serde_json::from_slice(&manifest).ok()?;
    // The manifest states each file's role, because any repository may have a `params.json`.
    let below = |file: &FileRecord| {
        let name = file.path.to_str().filter(|name| crate::file_name::check_file_name(name).is_ok());
        name.is_some()
    };
    record.files.retain(below);
    absolute(&mut record, folder);
    Some(record.side_texts())
}

/// Makes the paths of a record absolute that are relative to `folder`.
pub(crate) fn absolute(record: &mut ModelRecord, folder: &Path) {
    let join = |path: &Path| if path.as_os_str().is_empty() { folder.to_owned() } else { folder.join(path) };
    record.path = join(&record.path);
    for file in &mut record.files {
        file.path = join(&file.path);
    }
}

pub(crate) fn cut(mut text: String) -> String {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}

impl FileRecord {
    /// Records the file at `path` (absolute), without a digest.
    ///
    /// # Errors
    /// The operating system's error if the file does not exist or is no regular file.
    pub(crate) fn of(path: PathBuf) -> Result<Self, std::io::Error> {
        let meta = std::fs::metadata(&path)?;
        if !meta.is_file() {
            return Err(std::io::Error::other("not a regular file"));
        }
        let modified_at_unix_ms = meta
            .modified()
            .ok()
            .and_then(|time| time.duration_since(UNIX_EPOCH).ok())
            .map_or(0, |since| since.as_millis().min(i64::MAX as u128) as i64);
        let (role, held) = Default::default();
        Ok(Self { path, size_bytes: meta.len(), modified_at_unix_ms, sha256: None, role, held })
    }

    /// Compares the record with the file as it is now. Accesses the disk.
    pub fn state(&self) -> FileState {
        match Self::of(self.path.clone()) {
            Err(_) => FileState::Missing,
            Ok(now)
                if now.size_bytes == self.size_bytes
                    && now.modified_at_unix_ms == self.modified_at_unix_ms =>
            {
                FileState::Unchanged
            }
            Ok(_) => FileState::Changed,
        }
    }
}
