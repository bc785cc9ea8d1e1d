//! Reading models' files again, to see whether they are still what they were.

use crate::digest::{Hasher, digest_file};
use crate::record::{FileRecord, FileState, Held, ModelRecord};
use crate::{Store, StoreError};
use std::io::ErrorKind;
use std::path::PathBuf;

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
    /// Reads every file of a model and compares digests. `seen` is told of each piece of bytes read, and ends the
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
            checked.push(FileCheck { path: file.path, health });
        }
        Ok(Checked { name, files: checked })
    }
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
