//! A store whose database is lost or broken: the models that were pulled are found again by the manifests beside
//! their files. Models that were registered in place were known to the database alone.

use crate::database::Change;
use crate::layout::{MANIFEST, is_stage};
use crate::limits::RECORD_BYTES_MAX;
use crate::publish::absolute;
use crate::record::{FileState, Held, ModelRecord};
use crate::{Store, StoreError};
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// What a repair did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Where a database that could not be opened was moved.
    pub database_moved_to: Option<PathBuf>,
    /// Names of models that have a record again.
    pub restored: Vec<String>,
    /// Folders that are no whole model, and why.
    pub skipped: Vec<(PathBuf, String)>,
    /// Blobs whose own entry was gone and that a model's folder still had.
    pub relinked: usize,
}

impl Store {
    /// Opens the store in `dir`, moving a database aside that cannot be opened, and gives every pulled model that
    /// has no record its record again. Records that are there are left as they are.
    ///
    /// # Errors
    /// [`StoreError::Locked`] and [`StoreError::Newer`] as [`Store::open`]; [`StoreError::File`],
    /// [`StoreError::Database`].
    pub fn repair(dir: &Path) -> Result<(Self, Repaired), StoreError> {
        let mut repaired = Repaired::default();
        let store = match Self::open(dir) {
            Err(StoreError::Open { .. } | StoreError::Database { .. }) => {
                let db = dir.join("db");
                let aside = (1_u32..).map(|n| dir.join(format!("db.broken-{n}"))).find(|path| !path.exists());
                let aside = aside.unwrap_or_else(|| dir.join("db.broken"));
                fs::rename(&db, &aside).map_err(StoreError::file(&db))?;
                repaired.database_moved_to = Some(aside);
                Self::open(dir)?
            }
            other => other?,
        };
        store.restore(&mut repaired)?;
        Ok((store, repaired))
    }

    fn restore(&self, repaired: &mut Repaired) -> Result<(), StoreError> {
        let models = self.layout.models();
        let _writing = self.lock();
        let mut folders: Vec<PathBuf> = fs::read_dir(&models)
            .map_err(StoreError::file(&models))?
            .flatten()
            .filter(|entry| !is_stage(&entry.file_name().to_string_lossy()))
            .map(|entry| entry.path())
            .collect();
        folders.sort();
        for folder in folders {
            match self.restore_one(&folder, &mut repaired.relinked) {
                Ok(Some(name)) => repaired.restored.push(name),
                Ok(None) => {}
                Err(why) => repaired.skipped.push((folder, why)),
            }
        }
        self.database.derive()
    }

    /// The model's name, when it had no record.
    fn restore_one(&self, folder: &Path, relinked: &mut usize) -> Result<Option<String>, String> {
        let mut manifest = Vec::new();
        let opened = fs::File::open(folder.join(MANIFEST)).map_err(|error| format!("{MANIFEST}: {error}"))?;
        let read = opened.take(RECORD_BYTES_MAX as u64 + 1).read_to_end(&mut manifest);
        read.map_err(|error| format!("{MANIFEST}: {error}"))?;
        let mut record: ModelRecord =
            serde_json::from_slice(&manifest).map_err(|error| format!("{MANIFEST}: {error}"))?;
        let leaves = |path: &PathBuf| path.is_absolute() || path.iter().any(|part| part == "..");
        if record.files.iter().map(|file| &file.path).chain([&record.path]).any(leaves) {
            return Err(format!("{MANIFEST}: a path leads out of the folder"));
        }
        absolute(&mut record, folder);
        crate::check_name(&record.name).map_err(|error| error.to_string())?;
        if let Some(file) = record.files.iter().find(|file| file.state() == FileState::Missing) {
            return Err(format!("{} is not there", file.path.display()));
        }
        for file in record.files.iter().filter(|file| file.held == Held::Blob) {
            let Some(sha256) = &file.sha256 else { return Err("a blob has no digest".to_owned()) };
            let blob = self.layout.blob(sha256);
            if !blob.exists() {
                crate::layout::link(&file.path, &blob).map_err(|error| error.to_string())?;
                *relinked += 1;
            }
        }
        let known = self.database.exact(&record.name).map_err(|error| error.to_string())?;
        if known.is_some_and(|entry| crate::schema::decode(&entry.name, &entry.encoded).is_ok()) {
            return Ok(None);
        }
        self.check_room_for_one().map_err(|error| error.to_string())?;
        let change = Change { put: Some(&record), ..Change::default() };
        self.database.apply(&change).map_err(|error| error.to_string())?;
        Ok(Some(record.name))
    }
}
