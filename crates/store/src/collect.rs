//! Disk usage by model, and garbage collection.

use crate::layout::is_stage;
use crate::limits::ORPHAN_AGE;
use crate::record::{FileOwner, ModelRecord};
use crate::repaired::RepairReport;
use crate::{PullRecord, Store, StoreError, file_system};
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Result of a garbage collection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GarbageCollection {
    /// Paths of the files and folders that were deleted, or would be deleted in a dry run.
    pub paths: Vec<PathBuf>,
    /// Bytes that they took.
    pub freed_bytes: u64,
    /// Number of orphans kept because they are younger than an hour.
    pub young: usize,
}

/// Disk usage of the store, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// Usage by model, in order of name.
    pub models: Vec<ModelUsage>,
    /// Bytes of all blobs.
    pub blobs_bytes: u64,
    /// Bytes of the blobs that no model has.
    pub orphan_bytes: u64,
    /// Bytes of unfinished downloads, including those of pulls that broke off.
    pub partial_bytes: u64,
    /// Bytes of the database, its ledger and the reserve for a full disk.
    pub database_bytes: u64,
    /// Bytes of models' files outside the store.
    pub elsewhere_bytes: u64,
    /// Free bytes on the disk for this user.
    pub free_bytes: u64,
}

/// Disk usage of one model, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelUsage {
    /// Name of the model.
    pub name: String,
    /// Total size of its files.
    pub size_bytes: u64,
    /// Bytes of blobs that only this model has. Removing the model frees them.
    pub own_bytes: u64,
    /// Bytes of blobs shared with other models.
    pub shared_bytes: u64,
    /// Bytes of its files outside the store.
    pub elsewhere_bytes: u64,
}

impl Store {
    /// Deletes unused files older than an hour: blobs without a model, folders of removed models, and leftovers
    /// of pulls that broke off. With `dry_run`, only reports them. Recounts the references of blobs.
    ///
    /// # Errors
    /// [`StoreError::Busy`] while models are pulled, [`StoreError::File`], [`StoreError::Database`].
    pub fn gc(&self, dry_run: bool) -> Result<GarbageCollection, StoreError> {
        self.gc_older_than(ORPHAN_AGE, dry_run)
    }

    /// Does what [`Store::gc`] does, with another minimum age.
    ///
    /// # Errors
    /// As [`Store::gc`].
    pub fn gc_older_than(&self, age: Duration, dry_run: bool) -> Result<GarbageCollection, StoreError> {
        let _writing = self.lock();
        // Held to the end: a pull that begins during the collection would rely on blobs that are being deleted.
        let pins = self.pins.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if pins.pulls() > 0 {
            return Err(StoreError::Busy { pulls: pins.pulls() });
        }
        if !dry_run && self.layout.is_incomplete() {
            // Restore what there is room for. The collection below makes room for the rest.
            match self.restore_all(&mut RepairReport::default()) {
                Err(StoreError::DiskFull { .. }) => {}
                restored => restored?,
            }
        }
        let listing = self.list()?;
        let mut collected = GarbageCollection::default();
        // The files of unreadable records, and of models not yet restored, are unknown. In that case delete
        // only unfinished files.
        let all_is_known = listing.corrupt.is_empty() && !self.layout.is_incomplete();
        if all_is_known {
            let blobs: HashSet<PathBuf> = listing
                .models
                .iter()
                .flat_map(|record| record.blobs().into_keys().map(|sha256| self.layout.blob(sha256)))
                .collect();
            let folders: HashSet<PathBuf> =
                listing.models.iter().filter_map(|record| self.folder_of(record)).collect();
            sweep(&self.layout.blobs(), age, dry_run, &mut collected, |path| blobs.contains(path))?;
            sweep(&self.layout.models(), age, dry_run, &mut collected, |path| folders.contains(path))?;
        } else {
            let finished =
                |path: &Path| !path.file_name().is_some_and(|name| is_stage(&name.to_string_lossy()));
            sweep(&self.layout.models(), age, dry_run, &mut collected, finished)?;
        }
        sweep(&self.layout.partial(), age, dry_run, &mut collected, |_| false)?;
        if !dry_run {
            if is_empty(&self.layout.partial()) {
                self.database.remove_pulls(None)?;
            }
            match if all_is_known { self.database.derive() } else { Ok(()) } {
                // The deletions stand. The next collection recounts the references.
                Err(StoreError::DiskFull { .. }) => {}
                derived => derived?,
            }
            self.layout.reserve.keep();
        }
        Ok(collected)
    }

    /// Computes the disk usage of everything in the store.
    ///
    /// # Errors
    /// [`StoreError::Database`], [`StoreError::File`].
    pub fn disk_usage(&self) -> Result<DiskUsage, StoreError> {
        let mut usage = DiskUsage::default();
        let listing = self.list()?;
        for record in &listing.models {
            let model = self.usage_of(record)?;
            usage.elsewhere_bytes += model.elsewhere_bytes;
            usage.models.push(model);
        }
        let dir = self.layout.blobs();
        for entry in fs::read_dir(&dir).map_err(StoreError::file(&dir))?.flatten() {
            let bytes = entry.metadata().map_or(0, |meta| meta.len());
            usage.blobs_bytes += bytes;
            let name = entry.file_name();
            let sha256 = name.to_str().and_then(|name| name.strip_prefix("sha256-"));
            let known = sha256.map(|sha256| self.database.blob(sha256)).transpose()?.flatten();
            usage.orphan_bytes += if known.is_some() { 0 } else { bytes };
        }
        usage.partial_bytes = allocated_bytes(&self.layout.partial());
        let record = [self.layout.database(), self.layout.ledger(), self.layout.reserve.path().to_owned()];
        usage.database_bytes = record.iter().map(|path| allocated_bytes(path)).sum();
        usage.free_bytes = file_system::free_bytes(self.dir()).map_err(StoreError::file(self.dir()))?;
        Ok(usage)
    }

    fn usage_of(&self, record: &ModelRecord) -> Result<ModelUsage, StoreError> {
        let mut usage =
            ModelUsage { name: record.name.clone(), size_bytes: record.size_bytes, ..ModelUsage::default() };
        for (sha256, bytes) in record.blobs() {
            match self.database.blob(sha256)? {
                Some(blob) if blob.refs > 1 => usage.shared_bytes += bytes,
                _ => usage.own_bytes += bytes,
            }
        }
        let elsewhere = record.files.iter().filter(|file| file.held != FileOwner::Blob);
        usage.elsewhere_bytes = elsewhere.map(|file| file.size_bytes).sum();
        Ok(usage)
    }

    /// Lists unfinished pulls: those that run, and those that a crash or an error broke off. The latter resume
    /// when the same reference is pulled again.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub fn pulls(&self) -> Result<Vec<PullRecord>, StoreError> {
        self.database.pulls()
    }
}

fn sweep(
    dir: &Path,
    age: Duration,
    dry_run: bool,
    collected: &mut GarbageCollection,
    needed: impl Fn(&Path) -> bool,
) -> Result<(), StoreError> {
    for entry in fs::read_dir(dir).map_err(StoreError::file(dir))?.flatten() {
        let path = entry.path();
        if needed(&path) {
            continue;
        }
        let Ok(meta) = entry.metadata() else { continue };
        // A time in the future, from before the clock was set back, gives no age. Such a file is left until its
        // age is known.
        let old = meta.modified().ok().and_then(|time| SystemTime::now().duration_since(time).ok());
        if old.is_none_or(|old| old < age) {
            collected.young += 1;
            continue;
        }
        collected.freed_bytes += if meta.is_dir() { 0 } else { allocated_bytes(&path) };
        if !dry_run {
            let deleted =
                if meta.is_dir() { fs::remove_dir_all(&path) } else { file_system::delete_file(&path) };
            deleted.map_err(StoreError::file(&path))?;
        }
        collected.paths.push(path);
    }
    Ok(())
}

fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none())
}

/// Bytes allocated on the disk for a file or folder. Sparse part files take less than their length.
fn allocated_bytes(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let Ok(meta) = path.symlink_metadata() else { return 0 };
    if !meta.is_dir() {
        return meta.blocks() * 512;
    }
    fs::read_dir(path)
        .map_or(0, |entries| entries.flatten().map(|entry| allocated_bytes(&entry.path())).sum())
}
