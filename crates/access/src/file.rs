//! Key file: JSON that `hanzo-engine keys` writes, with each key's digest, permissions and limits. Servers read
//! it again when it changes. It is replaced atomically, so a reader never sees half of it.

use std::{
    collections::HashSet,
    fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{
    key::{Key, KeyDigest},
    regular,
};

/// Maximum size of the file.
const BYTES_MAX: u64 = 8 << 20;
/// Maximum number of keys. Each presented key is compared with all of them.
const KEYS_MAX: usize = 4096;
const NAME_CHARS_MAX: usize = 64;
const PATTERNS_MAX: usize = 256;
const PATTERN_BYTES_MAX: usize = 512;

/// Record of a key in the file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Unique name of the key. Logs show it instead of the key.
    pub name: String,
    /// SHA-256 of the key, in hexadecimal digits.
    pub sha256: String,
    /// Creation time in seconds since 1970; 0: unknown.
    #[serde(default)]
    pub created_unix_s: u64,
    /// Permission to load, unload, pull and remove models.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub admin: bool,
    /// Patterns of the models that the key may use, such as `zen-*`; empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
    /// Maximum requests a minute; none: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u32>,
    /// Maximum tokens a minute, of prompts and answers together; none: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_minute: Option<u32>,
    /// Maximum requests that run at once; none: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// Priority of the key's requests; a lower number runs earlier. A request may ask for a later priority
    /// only. None: the request's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
}

/// Contents of a key file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeysFile {
    /// Keys in the order of their creation.
    pub keys: Vec<Record>,
}

/// Error of a key file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be read or written.
    #[error("file of keys {}: {source}; `hanzo-engine keys create` makes one", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The content is invalid.
    #[error("file of keys {}: {reason}", path.display())]
    Content {
        /// Path of the file.
        path: PathBuf,
        /// Fault and its place.
        reason: String,
    },
    /// A key of that name exists already.
    #[error("a key named {0:?} is there already: revoke it first, or choose another name")]
    Exists(String),
    /// No key has that name.
    #[error("there is no key named {0:?}; `hanzo-engine keys list` shows those there are")]
    Unknown(String),
    /// The operating system gives no random bytes.
    #[error("the system gives no random bytes to make a key of: {0}")]
    Random(getrandom::Error),
}

impl KeysFile {
    /// Reads a key file.
    ///
    /// # Errors
    /// [`FileError`], with the place.
    pub fn read(path: &Path) -> Result<KeysFile, FileError> {
        let failed = |source| FileError::Io { path: path.to_owned(), source };
        let wrong = |reason: String| FileError::Content { path: path.to_owned(), reason };
        let file = regular::open(path).map_err(failed)?;
        let file = file.ok_or_else(|| wrong("is not a file".to_owned()))?;
        let mut text = String::new();
        let read = file.take(BYTES_MAX + 1).read_to_string(&mut text).map_err(failed)?;
        if read as u64 > BYTES_MAX {
            return Err(wrong(format!("is over {BYTES_MAX} bytes long")));
        }
        let keys: KeysFile = serde_json::from_str(&text).map_err(|error| {
            // The parser's message may repeat the file's content, so it is not used.
            let what = match error.classify() {
                serde_json::error::Category::Data => {
                    "has a field that is unknown, missing or of another type"
                }
                _ => "is not valid JSON",
            };
            wrong(format!("{what}, at line {} column {}", error.line(), error.column()))
        })?;
        keys.check().map_err(wrong)?;
        Ok(keys)
    }

    fn check(&self) -> Result<(), String> {
        if self.keys.len() > KEYS_MAX {
            return Err(format!("has {} keys, at most {KEYS_MAX}", self.keys.len()));
        }
        let (mut names, mut digests) = (HashSet::new(), HashSet::new());
        for (i, record) in self.keys.iter().enumerate() {
            let at = |reason: &str| format!("keys[{i}]: {reason}");
            record.check().map_err(|reason| at(&reason))?;
            if !names.insert(&record.name) {
                return Err(at("name: another key has it"));
            }
            if !digests.insert(record.sha256.to_ascii_lowercase()) {
                return Err(at("sha256: another key has it"));
            }
        }
        Ok(())
    }

    /// Creates a key from `record` and adds it to the file, which is created if missing. `sha256` and the date
    /// are filled in. The key is returned here and stored nowhere.
    ///
    /// # Errors
    /// [`FileError`]; the file stays as it was.
    pub fn create(path: &Path, record: Record) -> Result<Key, FileError> {
        let key = Key::random().map_err(FileError::Random)?;
        let digest = KeyDigest::of(key.text()).map(|digest| digest.hex()).unwrap_or_default();
        KeysFile::change(path, true, |file| {
            if file.keys.iter().any(|other| other.name == record.name) {
                return Err(FileError::Exists(record.name.clone()));
            }
            file.keys.push(Record { sha256: digest, created_unix_s: now_unix_s(), ..record });
            file.check().map_err(|reason| FileError::Content { path: path.to_owned(), reason })
        })?;
        Ok(key)
    }

    /// Removes the key of that name from the file.
    ///
    /// # Errors
    /// [`FileError`]; the file stays as it was.
    pub fn revoke(path: &Path, name: &str) -> Result<Record, FileError> {
        let mut revoked = None;
        KeysFile::change(path, false, |file| {
            let at = file.keys.iter().position(|record| record.name == name);
            revoked = at.map(|at| file.keys.remove(at));
            Ok(())
        })?;
        revoked.ok_or_else(|| FileError::Unknown(name.to_owned()))
    }

    /// Changes the file under a lock, so that concurrent changes happen one after another.
    fn change(
        path: &Path,
        may_be_new: bool,
        change: impl FnOnce(&mut KeysFile) -> Result<(), FileError>,
    ) -> Result<(), FileError> {
        let failed = |source| FileError::Io { path: path.to_owned(), source };
        // The target of a symbolic link is replaced, not the link.
        let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut lock_name = path.file_name().unwrap_or_default().to_owned();
        lock_name.push(".lock");
        let lock = dir.join(lock_name);
        let lock =
            fs::OpenOptions::new().create(true).truncate(false).write(true).open(lock).map_err(failed)?;
        lock.lock().map_err(failed)?;
        let mut file = match KeysFile::read(path) {
            Err(FileError::Io { source, .. }) if may_be_new && source.kind() == io::ErrorKind::NotFound => {
                KeysFile::default()
            }
            read => read?,
        };
        let before = file.clone();
        change(&mut file)?;
        if file == before {
            return Ok(());
        }
        let mut text = serde_json::to_string_pretty(&file).map_err(|error| failed(error.into()))?;
        text.push('\n');
        // The new file keeps its owner and permissions, so servers can still read it.
        hanzo_engine_files::replace(path, text.as_bytes()).map_err(failed)
    }
}

impl Record {
    /// Checks each value of the record.
    ///
    /// # Errors
    /// The field, and what is wrong with it.
    pub fn check(&self) -> Result<(), String> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
        let count = self.name.chars().count();
        if !(1..=NAME_CHARS_MAX).contains(&count) || !self.name.chars().all(plain) {
            return Err(format!("name: must be 1 to {NAME_CHARS_MAX} of letters, digits and - _ . @"));
        }
        if KeyDigest::from_hex(&self.sha256).is_none() {
            return Err("sha256: must be 64 hexadecimal digits".to_owned());
        }
        if self.models.len() > PATTERNS_MAX {
            return Err(format!("models: has {}, at most {PATTERNS_MAX}", self.models.len()));
        }
        if self.models.iter().any(|pattern| pattern.is_empty() || pattern.len() > PATTERN_BYTES_MAX) {
            return Err(format!("models: each must be 1 to {PATTERN_BYTES_MAX} bytes long"));
        }
        let limits = [
            ("requests_per_minute", self.requests_per_minute),
            ("tokens_per_minute", self.tokens_per_minute),
            ("concurrency", self.concurrency),
        ];
        match limits.iter().find(|(_, limit)| *limit == Some(0)) {
            Some((field, _)) => Err(format!("{field}: must be at least 1; leave it out for no limit")),
            None => Ok(()),
        }
    }
}

fn now_unix_s() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs()
}
