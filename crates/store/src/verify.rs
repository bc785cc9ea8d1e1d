//! Verification of models' files and of blobs by reading them again.

use crate::digest::{Hasher, digest_file};
use crate::file_system;
use crate::record::{FileOwner, FileRecord, FileState, ModelRecord};
use crate::{Store, StoreError};
use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Result of checking one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelCheck {
    /// Name of the model.
    pub name: String,
    /// Results for its files, in the order of the record.
    pub files: Vec<FileCheck>,
}

/// Result of checking one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileCheck {
    /// Path of the file.
    pub path: PathBuf,
    /// State of the file.
    pub health: Health,
}

/// State of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Its bytes match the recorded digest.
    Sound,
    /// No digest is recorded. Size and time match the record.
    Unchecked,
    /// Not present, or not readable.
    Missing,
    /// A file outside the store was changed since it was registered.
    Changed,
    /// Its bytes do not match the record.
    Corrupt {
        /// SHA-256 in the record.
        expected: String,
        /// SHA-256 of the file.
        found: String,
    },
}

impl ModelCheck {
    /// Returns true if no file has a problem.
    pub fn is_sound(&self) -> bool {
        self.files.iter().all(|file| matches!(file.health, Health::Sound | Health::Unchecked))
    }
}

impl Store {
    /// Reads every file of a model and compares digests. If a file is no longer linked to its blob, checks the
    /// blob too. Calls `seen` with the size of each piece read. If `seen` returns false, the check stops.
    /// Changes nothing: `pull --force` restores corrupt files.
    ///
    /// # Errors
    /// As [`Store::get`]; [`StoreError::File`] with `Interrupted` if `seen` stopped it.
    pub fn verify(&self, name: &str, mut seen: impl FnMut(u64) -> bool) -> Result<ModelCheck, StoreError> {
        let record = match self.resolve(name)? {
            crate::ModelLookup::Stored(record) => record,
            crate::ModelLookup::Missing(_) => self.get(name)?,
        };
        let ModelRecord { name, files, .. } = record;
        let mut checked = Vec::with_capacity(files.len());
        for file in files {
            let health = check(&file, &mut seen)?;
            let blob = file.sha256.as_deref().filter(|_| file.held == FileOwner::Blob);
            let blob = blob.map(|sha256| FileRecord { path: self.layout.blob(sha256), ..file.clone() });
            checked.push(FileCheck { path: file.path.clone(), health });
            if let Some(blob) = blob.filter(|blob| blob.path.is_file() && !is_same(&blob.path, &file.path)) {
                let health = check(&blob, &mut seen)?;
                checked.push(FileCheck { path: blob.path, health });
            }
        }
        Ok(ModelCheck { name, files: checked })
    }
}

impl Store {
    /// Returns true if the blob exists and its bytes match its name. Deletes a wrong one. The size is no proof,
    /// so the bytes are read, unless a model has the very same file unchanged since it was hashed. Calls `seen`
    /// with the size of each piece read. If `seen` returns false, the check stops.
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
            let known = file.held == FileOwner::Blob && file.sha256.as_deref() == Some(sha256);
            let same = || fs::metadata(&file.path).is_ok_and(|meta| id(&meta) == id(blob));
            known && same() && file.state() == FileState::Unchanged
        };
        Ok(self.list()?.models.iter().flat_map(|record| &record.files).any(is_it))
    }
}

/// Identity of a file: its device and inode.
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
        (false, FileState::Changed, FileOwner::Elsewhere | FileOwner::Linked) => Health::Changed,
        (false, ..) => Health::Corrupt { expected: expected.clone(), found },
    })
}
