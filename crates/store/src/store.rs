//! The store: an open database and its operations. Every change is on disk before its call returns.

use crate::StoreError;
use crate::database::{Change, Database};
use crate::digest::sha256;
use crate::layout::Layout;
use crate::limits::{DIGEST_EAGER_BYTES_MAX, FILES_MAX, MODELS_MAX};
use crate::name::{self, fold};
use crate::pins::Pins;
use crate::record::{FileRecord, FileState, ModelRecord, NewModel, cut};
use crate::repaired::RepairReport;
use crate::schema::{CURRENT, Schema};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Open store. A clone is cheap and shares the database. Dropping the last clone closes it.
#[derive(Clone)]
pub struct Store {
    pub(crate) layout: Layout,
    pub(crate) database: Arc<Database>,
    // Serialises changes, each of which reads, decides and writes.
    writing: Arc<Mutex<()>>,
    /// Blobs that running pulls rely on.
    pub(crate) pins: Arc<Mutex<Pins>>,
    /// Report of the repairs made when it was opened.
    repaired: Arc<RepairReport>,
}

/// All records: those that decode, and the names of those that do not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelList {
    /// Readable records, in order of name.
    pub models: Vec<ModelRecord>,
    /// Unreadable records, in order of name.
    pub corrupt: Vec<CorruptRecord>,
}

/// Totals of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Number of models.
    pub models: u64,
    /// Total bytes of their files. A shared file counts once for each model.
    pub bytes: u64,
    /// Free bytes on the store's disk.
    pub free_bytes: u64,
}

/// Record that cannot be decoded. [`Store::remove`] accepts its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorruptRecord {
    /// Key of the record, in lower case.
    pub name: String,
    /// Description of the damage.
    pub why: String,
}

impl From<CorruptRecord> for StoreError {
    fn from(record: CorruptRecord) -> Self {
        Self::Corrupt { name: record.name, why: record.why }
    }
}

/// Result of a removal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovalResult {
    /// Name of the model, in lower case if its record was corrupt.
    pub name: String,
    /// Target of the alias, if a user's alias was removed. The model itself stays.
    pub alias_of: Option<String>,
    /// Record of the model. None for an alias, and if the record was corrupt.
    pub record: Option<ModelRecord>,
    /// Bytes deleted: 0 for a model registered in place.
    pub freed_bytes: u64,
}

/// Default directory of models: `HANZO_MODELS_DIR`, else `~/.hanzo/models`. None if there is no home directory.
pub fn default_dir() -> Option<PathBuf> {
    match std::env::var_os("HANZO_MODELS_DIR").filter(|dir| !dir.is_empty()) {
        Some(dir) => Some(PathBuf::from(dir)),
        None => std::env::home_dir()
            .filter(|home| !home.as_os_str().is_empty())
            .map(|home| home.join(".hanzo").join("models")),
    }
}

impl Store {
    /// Opens the store in `dir`, and creates it if necessary. Migrates a database of an older version first. A
    /// damaged database is set aside and rebuilt, which [`Store::mended`] then reports.
    ///
    /// # Errors
    /// [`StoreError::DiskFull`] if not even the database has room. [`StoreError::Locked`] if another process
    /// has it open (after a wait of 0.3 s). [`StoreError::Newer`] if a newer version wrote it.
    /// [`StoreError::Open`] for other failures.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        Self::open_as(dir, &CURRENT, true)
    }

    /// Opens the store as [`Store::open`] does, but repairs nothing.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], and as [`Store::open`].
    pub fn open_as_it_is(dir: &Path) -> Result<Self, StoreError> {
        Self::open_as(dir, &CURRENT, false)
    }

    /// Returns the report of the repairs made when the store was opened, if there were any.
    pub fn mended(&self) -> Option<&RepairReport> {
        Some(&*self.repaired).filter(|repaired| repaired.why.is_some())
    }

    pub(crate) fn open_as(dir: &Path, schema: &Schema, mend: bool) -> Result<Self, StoreError> {
        let open_error =
            |error: std::io::Error| StoreError::Open { dir: dir.to_owned(), why: error.to_string() };
        std::fs::create_dir_all(dir).map_err(open_error)?;
        let dir = dir.canonicalize().map_err(open_error)?;
        Self::open_at(Layout::new(dir), schema, mend)
    }

    /// Does what [`Store::open_as`] does, in a directory that exists.
    pub(crate) fn open_at(layout: Layout, schema: &Schema, mend: bool) -> Result<Self, StoreError> {
        let open_error =
            |error: std::io::Error| StoreError::Open { dir: layout.dir().to_owned(), why: error.to_string() };
        let (database, repaired, incomplete) = Database::open(&layout, schema, mend)?;
        for folder in [layout.blobs(), layout.partial(), layout.models()] {
            std::fs::create_dir_all(folder).map_err(open_error)?;
        }
        let (database, writing, pins) = (Arc::new(database), Arc::default(), Arc::default());
        let mut store = Self { layout, database, writing, pins, repaired: Arc::default() };
        store.repaired = Arc::new(store.restored(repaired, incomplete)?);
        Ok(store)
    }

    /// Returns the store's absolute directory.
    pub fn dir(&self) -> &Path {
        self.layout.dir()
    }

    /// Lists every record, in order of name. A corrupt record does not hide the others.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub fn list(&self) -> Result<ModelList, StoreError> {
        let mut listing = ModelList::default();
        for entry in self.database.entries()? {
            match self.database.decode(&entry) {
                Ok(record) => listing.models.push(record),
                Err(StoreError::Corrupt { name, why }) => listing.corrupt.push(CorruptRecord { name, why }),
                Err(error) => return Err(error),
            }
        }
        Ok(listing)
    }

    /// Computes the totals of the store.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub fn sizes(&self) -> Result<Sizes, StoreError> {
        let models = self.list()?.models;
        let bytes = models.iter().map(|model| model.size_bytes).sum();
        let free_bytes = crate::file_system::free_bytes(self.dir()).unwrap_or(0);
        Ok(Sizes { models: models.len() as u64, bytes, free_bytes })
    }

    /// Finds the model that `name` stands for, see [`crate::find_name`]. The user's aliases come first.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], [`StoreError::Ambiguous`], [`StoreError::Corrupt`], [`StoreError::Database`].
    pub fn get(&self, name: &str) -> Result<ModelRecord, StoreError> {
        let entry = self.database.find(&self.follow(name)?)?;
        self.database.decode(&entry)
    }

    /// Finds the model registered for the file or directory at `path`.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub fn find_path(&self, path: &Path) -> Result<Option<ModelRecord>, StoreError> {
        let mut found = self.database.at_path(path)?;
        if found.is_empty()
            && let Ok(canonical) = path.canonicalize()
            && canonical != path
        {
            found = self.database.at_path(&canonical)?;
        }
        Ok(found.into_iter().next())
    }

    /// Registers a model in place. Hashes small models now and large ones on request ([`Store::digest`]).
    /// Registering the same path again, with the same name or none, updates the record and keeps its name and
    /// times. Without a given name, the name is derived from the file. If that is taken, the enclosing
    /// directory's name becomes its owner, then a number is added.
    ///
    /// # Errors
    /// [`StoreError::File`] if a file does not exist. [`StoreError::BadName`]. [`StoreError::NameTaken`] if the
    /// given name belongs to another path. [`StoreError::Limit`], [`StoreError::Database`].
    pub fn register(
        &self,
        name: Option<&str>,
        model: NewModel,
        now_unix_ms: i64,
    ) -> Result<ModelRecord, StoreError> {
        name.map_or(Ok(()), name::check_name)?;
        if let Some(name) = name.filter(|name| name::is_reserved(name)) {
            let why = "it is that of the model that is built into this program";
            return Err(StoreError::BadName { name: name.to_owned(), why });
        }
        let mut record = look_at(model)?;
        let _writing = self.lock();
        let same_name = |known: &ModelRecord| name.is_none_or(|name| fold(name) == fold(&known.name));
        let before = self.database.at_path(&record.path)?.into_iter().find(same_name);
        record.name = match (&before, name) {
            (Some(before), _) => before.name.clone(),
            (None, Some(name)) => {
                if let Some(entry) = self.database.exact(name)? {
                    let path = self.database.decode(&entry).map(|other| other.path);
                    return Err(StoreError::NameTaken {
                        name: name.to_owned(),
                        path: path.unwrap_or_default(),
                    });
                }
                name.to_owned()
            }
            (None, None) => {
                let model = name::derive_name(&record.path);
                let owned = name::derive_owned_name(&record.path, &model);
                self.free_name(&model, owned)?
            }
        };
        (record.added_at_unix_ms, record.used_at_unix_ms) = match &before {
            Some(before) => (before.added_at_unix_ms, before.used_at_unix_ms),
            None => (now_unix_ms, 0),
        };
        match &before {
            Some(before) => keep_digests(&mut record, before),
            None => self.check_room_for_one()?,
        }
        if record.size_bytes <= DIGEST_EAGER_BYTES_MAX {
            digest_files(&mut record)?;
        }
        self.database.apply(&Change { put: Some(&record), ..Change::default() })?;
        Ok(record)
    }

    /// Removes the model that `name` stands for. Deletes those of its files that belong to the store and to no
    /// other model. If `name` is a user's alias, removes only the alias. A corrupt record can be removed by its
    /// name too.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], [`StoreError::Ambiguous`], [`StoreError::Database`].
    pub fn remove(&self, name: &str) -> Result<RemovalResult, StoreError> {
        let _writing = self.lock();
        if let Some(alias) = self.database.alias(name)? {
            self.database.remove_alias(name)?;
            let (name, alias_of) = (alias.alias, Some(alias.target));
            return Ok(RemovalResult { name, alias_of, record: None, freed_bytes: 0 });
        }
        let entry = match self.database.find(name) {
            Err(error @ StoreError::NotFound { .. }) => match self.find_reference(name)? {
                Some(record) => self.database.exact(&record.name)?.ok_or(error)?,
                None => return Err(error),
            },
            other => other?,
        };
        let record = self.database.decode(&entry).ok();
        let change = Change { remove: Some(&entry), ..Change::default() };
        let freed_bytes = match (self.database.apply(&change), &record) {
            (Ok(orphans), Some(record)) => self.release(record, &orphans),
            (Ok(_), None) => 0,
            // The disk is too full for the change, so delete the model's files first. A crash in between leaves
            // a record without files, which can still be removed.
            (Err(StoreError::DiskFull { .. }), Some(record)) => {
                let orphans = self.database.only_of(record)?;
                let freed_bytes = self.release(record, &orphans);
                self.database.apply(&change)?;
                freed_bytes
            }
            (Err(error), _) => return Err(error),
        };
        self.layout.reserve.keep();
        let name = record.as_ref().map_or(entry.name, |record| record.name.clone());
        Ok(RemovalResult { name, alias_of: None, record, freed_bytes })
    }

    /// Records that the model was used.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn touch(&self, name: &str, now_unix_ms: i64) -> Result<ModelRecord, StoreError> {
        let _writing = self.lock();
        let mut record = self.get(name)?;
        record.used_at_unix_ms = now_unix_ms;
        self.database.apply(&Change { put: Some(&record), ..Change::default() })?;
        Ok(record)
    }

    /// Computes and stores the digests that are missing or no longer valid. Reads those files completely, which
    /// takes seconds for every few gigabytes. Other calls are not blocked meanwhile.
    ///
    /// # Errors
    /// As [`Store::get`]; [`StoreError::File`] if a file is missing.
    pub fn digest(&self, name: &str) -> Result<ModelRecord, StoreError> {
        let mut record = self.get(name)?;
        digest_files(&mut record)?;
        let _writing = self.lock();
        // The model may have been used or removed while its files were read.
        let now = self.get(&record.name)?;
        record.used_at_unix_ms = now.used_at_unix_ms;
        self.database.apply(&Change { put: Some(&record), ..Change::default() })?;
        Ok(record)
    }

    /// Fails if the store has the maximum number of models.
    pub(crate) fn check_room_for_one(&self) -> Result<(), StoreError> {
        let count = self.database.count();
        if count >= MODELS_MAX {
            return Err(StoreError::limit("the number of models", count as u64 + 1, MODELS_MAX as u64));
        }
        Ok(())
    }

    /// Returns `first`, or `second`, or `first` with the lowest free number.
    pub(crate) fn free_name(&self, first: &str, second: Option<String>) -> Result<String, StoreError> {
        let numbered = (2_u64..).map(|number| format!("{first}-{number}"));
        for name in std::iter::once(first.to_owned()).chain(second).chain(numbered) {
            // Ends early: the store holds at most MODELS_MAX names.
            let is_free = !name::is_reserved(&name) && self.database.alias(&name)?.is_none();
            if is_free && self.database.exact(&name)?.is_none() {
                return Ok(name);
            }
        }
        Ok(first.to_owned())
    }

    /// Deletes the files that belonged to a removed model alone, and returns the bytes freed. A file that
    /// cannot be deleted now is an orphan for a later collection.
    pub(crate) fn release(&self, record: &ModelRecord, orphans: &[String]) -> u64 {
        let mut freed_bytes = 0;
        if let Some(folder) = self.folder_of(record)
            && let Err(error) = std::fs::remove_dir_all(&folder)
        {
            tracing::warn!(folder = %folder.display(), %error, "a removed model's folder stays");
        }
        let sizes = record.blobs();
        // Hold the lock while blobs are deleted, so that no pull starts to rely on one meanwhile.
        let pins = self.pins.lock().unwrap_or_else(PoisonError::into_inner);
        for sha256 in orphans.iter().filter(|sha256| !pins.holds(sha256)) {
            match std::fs::remove_file(self.layout.blob(sha256)) {
                Ok(()) => freed_bytes += sizes.get(sha256.as_str()).copied().unwrap_or(0),
                Err(error) => tracing::warn!(sha256, %error, "a removed model's blob stays"),
            }
        }
        freed_bytes
    }

    /// Returns the folder under `models/` with a record's files, if the store made it.
    pub(crate) fn folder_of(&self, record: &ModelRecord) -> Option<PathBuf> {
        let models = self.layout.models();
        let below = record.path.strip_prefix(&models).ok()?;
        below.components().next().map(|folder| models.join(folder))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        // The lock guards no data, so a holder that panicked left nothing inconsistent.
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Builds the record of a new model, without name, times and digests.
fn look_at(model: NewModel) -> Result<ModelRecord, StoreError> {
    let absolute = |path: &Path| {
        path.canonicalize().map_err(|source| StoreError::File { path: path.to_owned(), source })
    };
    let path = absolute(&model.path)?;
    let paths = if model.files.is_empty() { vec![path.clone()] } else { model.files };
    if paths.len() > FILES_MAX {
        let what = format!("the number of files of {}", path.display());
        return Err(StoreError::limit(what, paths.len() as u64, FILES_MAX as u64));
    }
    let mut files = Vec::with_capacity(paths.len());
    for file in paths {
        let record = FileRecord::of(absolute(&file)?);
        files.push(record.map_err(|source| StoreError::File { path: file, source })?);
    }
    Ok(ModelRecord {
        name: String::new(),
        format: cut(model.format),
        architecture: cut(model.architecture),
        quantization: cut(model.quantization),
        parameters: model.parameters,
        size_bytes: files.iter().map(|file| file.size_bytes).sum(),
        context_tokens_max: model.context_tokens_max,
        source: format!("file://{}", path.display()),
        reference: format!("file://{}", path.display()),
        revision: None,
        path,
        files,
        in_place: true,
        added_at_unix_ms: 0,
        used_at_unix_ms: 0,
        license: model.license.map(cut),
    })
}

/// Keeps the digests of files that have not changed.
fn keep_digests(record: &mut ModelRecord, before: &ModelRecord) {
    for file in &mut record.files {
        let same = |known: &&FileRecord| {
            (&known.path, known.size_bytes, known.modified_at_unix_ms)
                == (&file.path, file.size_bytes, file.modified_at_unix_ms)
        };
        file.sha256 = before.files.iter().find(same).and_then(|known| known.sha256.clone());
    }
}

fn digest_files(record: &mut ModelRecord) -> Result<(), StoreError> {
    for file in &mut record.files {
        if file.sha256.is_some() && file.state() == FileState::Unchanged {
            continue;
        }
        let failed = |source| StoreError::File { path: file.path.clone(), source };
        // Stat before reading: a file that changes meanwhile then shows as changed.
        let now = FileRecord::of(file.path.clone()).map_err(failed)?;
        let digest = sha256(&file.path).map_err(failed)?;
        *file = FileRecord { sha256: Some(digest), role: file.role, held: file.held, ..now };
    }
    record.size_bytes = record.files.iter().map(|file| file.size_bytes).sum();
    Ok(())
}
