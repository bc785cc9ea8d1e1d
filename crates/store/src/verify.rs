//! Reading models' files again, to see whether they are still what they were; and blobs, before they are counted on.

use crate::digest::{Hasher, digest_file};
use crate::file_system;
use crate::record::{FileRecord, FileState, Held, ModelRecord};
use crate::{Store, StoreError};
use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// What a check of one model found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// The model.
    pub name: String,
    /// In the order of the record.
    pub files: Vec<FileCheck>,
}

/// What a check of one file found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileCheck {
    /// Where it is.
    pub path: PathBuf,
    /// How it is.
    pub health: Health,
}

/// How a file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Its bytes have the recorded digest.
    Sound,
    /// It has no recorded digest, and the recorded size and time.
    Unchecked,
    /// Not there, or not readable.
    Missing,
    /// A file that is not the store's own was changed since it was registered.
    Changed,
    /// Its bytes are not those of the record.
    Corrupt {
        /// SHA-256 of the record.
        expected: String,
        /// SHA-256 of the file.
        found: String,
    },
}

impl Checked {
    /// Whether nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.files.iter().all(|file| matches!(file.health, Health::Sound | Health::Unchecked))
    }
}

impl Store {
    /// Reads every file of a model and compares digests; also the blob of a file, where that is another file by now. `seen` is told of each piece of bytes read, and ends the
    /// check by saying false. Changes nothing: `pull --force` brings back what is corrupt.
    ///
    /// # Errors
    /// As [`Store::get`]; [`StoreError::File`] with `Interrupted` when `seen` ended it.
    pub fn verify(&self, name: &str, mut seen: impl FnMut(u64) -> bool) -> Result<Checked, StoreError> {
        let record = match self.resolve(name)? {
            crate::Found::Stored(record) => record,
            crate::Found::Missing(_) => self.get(name)?,
        };
        let ModelRecord { name, files, .. } = record;
        let mut checked = Vec::with_capacity(files.len());
        for file in files {
            let health = check(&file, &mut seen)?;
            let blob = file.sha256.as_deref().filter(|_| file.held == Held::Blob);
            let blob = blob.map(|sha256| FileRecord { path: self.layout.blob(sha256), ..file.clone() });
            checked.push(FileCheck { path: file.path.clone(), health });
            if let Some(blob) = blob.filter(|blob| blob.path.is_file() && !is_same(&blob.path, &file.path)) {
                let health = check(&blob, &mut seen)?;
                checked.push(FileCheck { path: blob.path, health });
            }
        }
        Ok(Checked { name, files: checked })
    }
}

impl Store {
    /// Whether there is a blob that is what it is called; a wrong one is deleted. A size says nothing: the bytes are
    /// read, unless a model has the very same file, and it has not been written to since it was digested. `seen` is
    /// told of each piece of bytes read, and ends the check by saying false.
    pub(crate) fn has_sound_blob(
        &self,
        sha256: &str,
        seen: impl FnMut(u64) -> bool,
    ) -> Result<bool, StoreError> {
        let path = self.layout.blob(sha256);
        match fs::metadata(&path) {
            Ok(meta) if meta.is_file() && self.is_known(sha256, &meta)? => return Ok(true),
            Ok(meta) if meta.is_file() => {}
            _ => return Ok(false),
        }
        let hasher = digest_file(&path, Hasher::new(None), seen).map_err(StoreError::file(&path))?;
        let found = hasher.finish(None).0;
        if found != sha256 {
            tracing::warn!(blob = %path.display(), found, "a blob is not what it is called, and is replaced");
            file_system::delete_file(&path).map_err(StoreError::file(&path))?;
        }
        Ok(found == sha256)
    }

    fn is_known(&self, sha256: &str, blob: &Metadata) -> Result<bool, StoreError> {
        let is_it = |file: &FileRecord| {
            let known = file.held == Held::Blob && file.sha256.as_deref() == Some(sha256);
            let same = || fs::metadata(&file.path).is_ok_and(|meta| id(&meta) == id(blob));
            known && same() && file.state() == FileState::Unchanged
        };
        Ok(self.list()?.models.iter().flat_map(|record| &record.files).any(is_it))
    }
}

/// What tells a file from all others: its disk, and its number there.
fn id(meta: &Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}

fn is_same(one: &Path, other: &Path) -> bool {
    matches!((fs::metadata(one), fs::metadata(other)), (Ok(one), Ok(other)) if id(&one) == id(&other))
}

fn check(file: &FileRecord, seen: &mut impl FnMut(u64) -> bool) -> Result<Health, StoreError> {
    let state = file.state();
    if state == FileState::Missing {
        return Ok(Health::Missing);
    }
    let Some(expected) = &file.sha256 else {
        return Ok(if state == FileState::Changed { Health::Changed } else { Health::Unchecked });
    };
    let found = match digest_file(&file.path, Hasher::new(None), seen) {
        Ok(hasher) => hasher.finish(None).0,
        Err(error) if error.kind() == ErrorKind::Interrupted => {
            return Err(StoreError::file(&file.path)(error));
        }
        Err(_) => return Ok(Health::Missing),
    };
    Ok(match (found == *expected, state, file.held) {
        (true, ..) => Health::Sound,
        (false, FileState::Changed, Held::Elsewhere | Held::Linked) => Health::Changed,
        (false, ..) => Health::Corrupt { expected: expected.clone(), found },
    })
}
