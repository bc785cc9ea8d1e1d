//! What the store remembers of a model: plain data, and how it compares with the files as they lie now.

use serde::{Deserialize, Serialize};
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
    /// The license's name, when the files state one; cut to 1,024 bytes.
    pub license: Option<String>,
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

    /// The newest change of any file, Unix milliseconds.
    pub fn modified_at_unix_ms(&self) -> i64 {
        self.files.iter().map(|file| file.modified_at_unix_ms).max().unwrap_or(0)
    }
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
        Ok(Self { path, size_bytes: meta.len(), modified_at_unix_ms, sha256: None })
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
