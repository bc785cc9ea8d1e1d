//! Repair of a store whose database was damaged or lost. Models are restored from the manifests beside their
//! files.

use crate::database::Change;
use crate::layout::{MANIFEST, is_stage};
use crate::limits::RECORD_BYTES_MAX;
use crate::record::{FileOwner, FileState, ModelRecord, absolute};
use crate::repaired::RepairReport;
use crate::{Store, StoreError};
use std::fs;
use std::io::{Error, ErrorKind, Read as _};
use std::path::{Path, PathBuf};

/// Reason why a folder yields no record.
enum Unfit {
    /// The folder has no complete model.
    NoModel(String),
    /// No room, or a failed read. A later attempt may succeed.
    NotNow(String),
}

impl Store {
    /// Opens the store in `dir` as [`Store::open`] does, then repairs it. Restores a record for every pulled
    /// model without one. Restores a file that is missing from either the blobs or the model's folder. Drops
    /// unreadable records. Leaves readable records as they are.
    ///
    /// # Errors
    /// [`StoreError::Locked`] and [`StoreError::Newer`] as [`Store::open`]; [`StoreError::File`],
    /// [`StoreError::Database`].
    pub fn repair(dir: &Path) -> Result<(Self, RepairReport), StoreError> {
        let store = Self::open(dir)?;
        let mut repaired = store.mended().cloned().unwrap_or_default();
        store.restore(&mut repaired)?;
        for record in store.list()?.corrupt {
            store.remove(&record.name)?;
            let why = format!("its record cannot be read ({}), and nothing else has it", record.why);
            repaired.dropped.push((record.name, why));
        }
        Ok((store, repaired))
    }

    /// Completes the report of the repairs made while opening. If the database is incomplete, first restores
    /// models from their manifests.
    pub(crate) fn restored(
        &self,
        mut repaired: RepairReport,
        incomplete: bool,
    ) -> Result<RepairReport, StoreError> {
        if incomplete {
            self.restore(&mut repaired)?;
            // A model restored from its manifest is not lost.
            let restored = &repaired.restored;
            repaired.dropped.retain(|(what, _)| !restored.iter().any(|name| name.eq_ignore_ascii_case(what)));
        }
        Ok(repaired)
    }

    fn restore(&self, repaired: &mut RepairReport) -> Result<(), StoreError> {
        let _writing = self.lock();
        self.restore_all(repaired)
    }

    /// Restores every model that has a manifest and no record. The caller holds the store's lock.
    pub(crate) fn restore_all(&self, repaired: &mut RepairReport) -> Result<(), StoreError> {
        let models = self.layout.models();
        let mut folders = Vec::new();
        for entry in fs::read_dir(&models).map_err(StoreError::file(&models))? {
            let entry = entry.map_err(StoreError::file(&models))?;
            if !is_stage(&entry.file_name().to_string_lossy()) {
                folders.push(entry.path());
            }
        }
        folders.sort();
        repaired.skipped.clear();
        let mut later = 0;
        for folder in folders {
            self.layout.step();
            match self.restore_one(&folder, &mut repaired.relinked) {
                Ok(Some(name)) => repaired.restored.push(name),
                Ok(None) => {}
                Err(Unfit::NoModel(why)) => repaired.skipped.push((folder, why)),
                Err(Unfit::NotNow(why)) => {
                    later += 1;
                    repaired.skipped.push((folder, why));
                }
            }
        }
        self.database.derive()?;
        if later > 0 {
            tracing::warn!(later, "models have no record yet: the next start, or gc, tries them again");
        }
        match (later > 0, self.layout.is_incomplete()) {
            (true, false) => self.layout.set_incomplete(),
            (false, true) => self.layout.set_complete(),
            _ => Ok(()),
        }
    }

    /// Restores one model. Returns its name if it had no record.
    fn restore_one(&self, folder: &Path, relinked: &mut usize) -> Result<Option<String>, Unfit> {
        fn not_now(error: impl ToString) -> Unfit {
            Unfit::NotNow(error.to_string())
        }
        let mut manifest = Vec::new();
        let unreadable = |error: Error| {
            let why = format!("{MANIFEST}: {error}");
            match error.kind() {
                ErrorKind::NotFound | ErrorKind::NotADirectory => Unfit::NoModel(why),
                _ => Unfit::NotNow(why),
            }
        };
        let opened = fs::File::open(folder.join(MANIFEST)).map_err(unreadable)?;
        let read = opened.take(RECORD_BYTES_MAX as u64 + 1).read_to_end(&mut manifest);
        read.map_err(unreadable)?;
        let record = read_manifest(&manifest, folder).map_err(Unfit::NoModel)?;
        for file in record.files.iter().filter(|file| file.held == FileOwner::Blob) {
            let blob = file.sha256.as_ref().map(|sha256| self.layout.blob(sha256));
            let Some(blob) = blob.filter(|blob| blob.is_file() && file.state() == FileState::Missing) else {
                continue;
            };
            // A link in a store that was moved points to the old place.
            crate::file_system::delete_file(&file.path).map_err(not_now)?;
            crate::file_system::link(&blob, &file.path).map_err(not_now)?;
            *relinked += 1;
        }
        if let Some(file) = record.files.iter().find(|file| file.state() == FileState::Missing) {
            return Err(Unfit::NoModel(format!("{} is not there", file.path.display())));
        }
        for file in record.files.iter().filter(|file| file.held == FileOwner::Blob) {
            let Some(sha256) = &file.sha256 else {
                return Err(Unfit::NoModel("a blob has no digest".to_owned()));
            };
            let blob = self.layout.blob(sha256);
            if !blob.exists() {
                crate::file_system::link(&file.path, &blob).map_err(not_now)?;
                *relinked += 1;
            }
        }
        let known = self.database.exact(&record.name).map_err(not_now)?;
        if known.is_some_and(|entry| self.database.decode(&entry).is_ok()) {
            return Ok(None);
        }
        self.check_room_for_one().map_err(not_now)?;
        let change = Change { put: Some(&record), ..Change::default() };
        self.database.apply(&change).map_err(not_now)?;
        Ok(Some(record.name))
    }
}

/// Reads the record in the manifest of a model in `folder`, or returns why it is invalid.
pub(crate) fn read_manifest(manifest: &[u8], folder: &Path) -> Result<ModelRecord, String> {
    let mut record: ModelRecord =
        serde_json::from_slice(manifest).map_err(|error| format!("{MANIFEST}: {error}"))?;
    let leaves = |path: &PathBuf| path.is_absolute() || path.iter().any(|part| part == "..");
    if record.files.iter().map(|file| &file.path).chain([&record.path]).any(leaves) {
        return Err(format!("{MANIFEST}: a path leads out of the folder"));
    }
    absolute(&mut record, folder);
    crate::check_name(&record.name).map_err(|error| error.to_string())?;
    Ok(record)
}
