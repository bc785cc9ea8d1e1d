//! What the store remembers of a model: plain data, and how it compares with the files as they lie now.

use crate::limits::{RECORD_BYTES_MAX, SIDE_TEXT_BYTES_MAX, TEXT_BYTES_MAX};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// A model to be registered: what the runtime read from its files. The store looks at sizes and times itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NewModel {
    /// The GGUF file or the safetensors directory as the user gave it; also where the name comes from when none is
    /// given.
    pub path: PathBuf,
    /// Every file the model is read from, weights first. Empty: `path` itself, which must then be a file.
    pub files: Vec<PathBuf>,
    /// `gguf` or `safetensors`.
    pub format: String,
    /// Such as `qwen3`.
    pub architecture: String,
    /// Such as `Q8_0`.
    pub quantization: String,
    /// Number of weights.
    pub parameters: u64,
    /// Tokens the model was made for.
    pub context_tokens_max: u32,
    /// The license's name, when the files state one.
    pub license: Option<String>,
}

/// What a model's files say of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// `gguf` or `safetensors`.
    pub format: String,
    /// Such as `qwen3`.
    pub architecture: String,
    /// Such as `Q8_0`.
    pub quantization: String,
    /// Number of weights.
    pub parameters: u64,
    /// Tokens the model was made for.
    pub context_tokens_max: u32,
    /// The license's name.
    pub license: Option<String>,
}

/// A model on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelRecord {
    /// Its name as it is shown; matched without regard to case, see [`crate::find_name`].
    pub name: String,
    /// `gguf` or `safetensors`.
    pub format: String,
    /// Such as `qwen3`.
    pub architecture: String,
    /// Such as `Q8_0`.
    pub quantization: String,
    /// Number of weights.
    pub parameters: u64,
    /// Bytes of all files together.
    pub size_bytes: u64,
    /// Tokens the model was made for.
    pub context_tokens_max: u32,
    /// Absolute path of the GGUF file or the safetensors directory.
    pub path: PathBuf,
    /// Every file, weights first.
    pub files: Vec<FileRecord>,
    /// Where it came from, such as `file:///models/qwen3-4b.gguf`.
    pub source: String,
    /// Registered where it lies: removing the model leaves its files.
    pub in_place: bool,
    /// When it was first registered, Unix milliseconds.
    pub added_at_unix_ms: i64,
    /// When it was last loaded, Unix milliseconds; 0: never.
    pub used_at_unix_ms: i64,
    /// The license's name, when the files or the source state one; cut to 1,024 bytes.
    pub license: Option<String>,
    /// What to pull to get the same model again, such as `hf://Qwen/Qwen3-4B-GGUF:Q4_K_M`; as `source` for one
    /// registered where it lies.
    pub reference: String,
    /// Which state of its source it is: a commit, or a manifest's digest.
    pub revision: Option<String>,
}

/// One file of a model, as it was when it was registered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    /// Absolute path.
    pub path: PathBuf,
    /// Bytes.
    pub size_bytes: u64,
    /// Last change, Unix milliseconds; 0 where the file system does not say.
    pub modified_at_unix_ms: i64,
    /// Digest in hexadecimal; absent until it was computed, see [`crate::Store::digest`].
    pub sha256: Option<String>,
    /// What it is to the model.
    pub role: Role,
    /// Whose file it is.
    pub held: Held,
}

/// What a file is to its model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Weights, tokenizer, configuration: what the runtime opens.
    #[default]
    Model,
    /// A vision or audio projector beside the model.
    Projector,
    /// An adapter to be applied to the model.
    Adapter,
    /// A chat template in another language than Jinja: kept for show.
    Template,
    /// A system prompt.
    System,
    /// Default sampling options, a JSON object.
    Params,
    /// Messages that begin every conversation, a JSON list.
    Messages,
    /// The license's text.
    License,
}

/// Whose a file is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Held {
    /// Somebody else's, used where it lies: never deleted.
    #[default]
    Elsewhere,
    /// A blob of the store under the name of the model's file; it goes with the last model that has it.
    Blob,
    /// A link to a file of another program's store; the link goes with the model, the file stays.
    Linked,
}

/// The texts that came with a model, beside what is in its weights' own files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SideTexts {
    /// A chat template that is not Jinja.
    pub template: Option<String>,
    /// A system prompt.
    pub system: Option<String>,
    /// Default sampling options, a JSON object.
    pub params: Option<String>,
    /// Messages that begin every conversation, a JSON list.
    pub messages: Option<String>,
    /// The license's text.
    pub license: Option<String>,
}

/// How a file compares with its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileState {
    /// Size and time are those of the record.
    Unchanged,
    /// There, with another size or time: its digest no longer holds.
    Changed,
    /// Not there, or not readable.
    Missing,
}

impl ModelRecord {
    /// The files that are gone. Looks at the disk.
    pub fn missing(&self) -> Vec<&Path> {
        let gone = |file: &&FileRecord| file.state() == FileState::Missing;
        self.files.iter().filter(gone).map(|file| file.path.as_path()).collect()
    }

    /// Reads the texts that came with the model, each to 1 MiB; what cannot be read is left out.
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

    /// SHA-256 of each blob it has, with its size; each once.
    pub(crate) fn blobs(&self) -> BTreeMap<&str, u64> {
        let blob = |file: &'_ FileRecord| file.held == Held::Blob;
        let files = self.files.iter().filter(|file| blob(file));
        files.filter_map(|file| Some((file.sha256.as_deref()?, file.size_bytes))).collect()
    }

    /// The newest change of any file, Unix milliseconds.
    pub fn modified_at_unix_ms(&self) -> i64 {
        self.files.iter().map(|file| file.modified_at_unix_ms).max().unwrap_or(0)
    }
}

/// The texts that came with the pulled model at `path`; none for a model that is not in a folder of the store.
pub fn texts_beside(path: &Path) -> Option<SideTexts> {
    let folder = if path.is_dir() { path } else { path.parent()? };
    let mut manifest = Vec::new();
    let opened = std::fs::File::open(folder.join(crate::layout::MANIFEST)).ok()?;
    opened.take(RECORD_BYTES_MAX as u64 + 1).read_to_end(&mut manifest).ok()?;
    let mut record: ModelRecord = serde_json::from_slice(&manifest).ok()?;
    // What a file is stands in the manifest: any repository may have a `params.json`.
    let below = |file: &FileRecord| {
        let name = file.path.to_str().filter(|name| crate::file_name::check_file_name(name).is_ok());
        name.is_some()
    };
    record.files.retain(below);
    absolute(&mut record, folder);
    Some(record.side_texts())
}

/// Puts a record whose paths are relative to its folder where the folder is.
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
    /// Looks at the file at `path` (absolute) and records it without a digest.
    ///
    /// # Errors
    /// What the operating system said, when it is not there or is no regular file.
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

    /// Compares the record with the file as it is now. Looks at the disk.
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
