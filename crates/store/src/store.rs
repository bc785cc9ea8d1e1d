//! The store: an open database and what can be asked of it. Every call that changes something is on disk before
//! it answers.

use crate::StoreError;
use crate::digest::sha256;
use crate::limits::{
    CACHE_BYTES, DIGEST_EAGER_BYTES_MAX, FILES_MAX, LOCK_WAIT_MS, MODELS_MAX, RECORD_BYTES_MAX,
    TEXT_BYTES_MAX,
};
use crate::name::{self, Match, fold};
use crate::record::{FileRecord, FileState, ModelRecord, NewModel};
use crate::schema::{self, CURRENT, Schema};
use sled::transaction::{ConflictableTransactionError, TransactionError, Transactional};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const VERSION_KEY: &str = "schema_version";

/// An open store. Cloning it is cheap and shares the database; the last clone to be dropped closes it.
#[derive(Clone)]
pub struct Store {
    dir: PathBuf,
    db: sled::Db,
    pub(crate) models: sled::Tree,
    // A change reads, decides and writes: one at a time.
    writing: Arc<Mutex<()>>,
}

/// A record as it lies in the database.
struct Entry {
    /// The key itself: in a corrupt database it may be no text.
    key: sled::IVec,
    /// The key as text: the model's folded name.
    name: String,
    encoded: sled::IVec,
}

/// All records: those that decode, and the names of those that do not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// In order of name.
    pub models: Vec<ModelRecord>,
    /// In order of name.
    pub corrupt: Vec<CorruptRecord>,
}

/// A record that cannot be decoded; [`Store::remove`] takes its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorruptRecord {
    /// The name it is kept under, in lower case.
    pub name: String,
    /// What is wrong with it.
    pub why: String,
}

impl From<CorruptRecord> for StoreError {
    fn from(record: CorruptRecord) -> Self {
        Self::Corrupt { name: record.name, why: record.why }
    }
}

/// A model that was removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    /// Its name; in lower case when the record was corrupt.
    pub name: String,
    /// What was known of it; none when the record was corrupt.
    pub record: Option<ModelRecord>,
    /// Bytes deleted: 0 for a model registered in place.
    pub freed_bytes: u64,
}

/// Where models are kept when nobody says otherwise: `HANZO_MODELS_DIR`, else `~/.hanzo/models`. None where there
/// is no home directory.
pub fn default_dir() -> Option<PathBuf> {
    match std::env::var_os("HANZO_MODELS_DIR").filter(|dir| !dir.is_empty()) {
        Some(dir) => Some(PathBuf::from(dir)),
        None => std::env::home_dir()
            .filter(|home| !home.as_os_str().is_empty())
            .map(|home| home.join(".hanzo").join("models")),
    }
}

impl Store {
    /// Opens the store in `dir`, creating it if need be. A database of an older version is migrated first.
    ///
    /// # Errors
    /// [`StoreError::Locked`] when another process has it open (after a wait of 0.3 s), [`StoreError::Newer`] when
    /// a newer version wrote it, [`StoreError::Open`] for the rest.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        Self::open_as(dir, &CURRENT)
    }

    pub(crate) fn open_as(dir: &Path, schema: &Schema) -> Result<Self, StoreError> {
        let open_error = |why: String| StoreError::Open { dir: dir.to_owned(), why };
        std::fs::create_dir_all(dir).map_err(|error| open_error(error.to_string()))?;
        let dir = dir.canonicalize().map_err(|error| open_error(error.to_string()))?;
        let db = open_database(&dir)?;
        let meta = db.open_tree("meta").map_err(|error| open_error(error.to_string()))?;
        let models = db.open_tree("models").map_err(|error| open_error(error.to_string()))?;
        let store = Self { dir, db, models, writing: Arc::default() };
        store.bring_to(schema, &meta)?;
        Ok(store)
    }

    /// The store's directory, absolute.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Every record, in order of name. A corrupt record does not hide the others.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub fn list(&self) -> Result<Listing, StoreError> {
        let mut listing = Listing::default();
        for Entry { name, encoded, .. } in self.entries()? {
            match schema::decode(&name, &encoded) {
                Ok(record) => listing.models.push(record),
                Err(StoreError::Corrupt { name, why }) => listing.corrupt.push(CorruptRecord { name, why }),
                Err(error) => return Err(error),
            }
        }
        Ok(listing)
    }

    /// The model that `name` stands for, see [`crate::find_name`].
    ///
    /// # Errors
    /// [`StoreError::NotFound`], [`StoreError::Ambiguous`], [`StoreError::Corrupt`], [`StoreError::Database`].
    pub fn get(&self, name: &str) -> Result<ModelRecord, StoreError> {
        let entry = self.resolve(name)?;
        schema::decode(&entry.name, &entry.encoded)
    }

    /// The model registered for the file or directory at `path`.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub fn find_path(&self, path: &Path) -> Result<Option<ModelRecord>, StoreError> {
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        Ok(self.list()?.models.into_iter().find(|record| record.path == path))
    }

    /// Records a model where it lies. Small models are digested now, large ones when asked ([`Store::digest`]).
    /// Registering the same path again (with the same name or none) brings the record up to date and keeps its
    /// name and times. Without a name it is called as its file; a name that is taken gets the enclosing
    /// directory's name as owner, then a number.
    ///
    /// # Errors
    /// [`StoreError::File`] when a file is not there, [`StoreError::BadName`], [`StoreError::NameTaken`] when the
    /// given name belongs to another path, [`StoreError::Limit`], [`StoreError::Database`].
    pub fn register(
        &self,
        name: Option<&str>,
        model: NewModel,
        now_unix_ms: i64,
    ) -> Result<ModelRecord, StoreError> {
        name.map_or(Ok(()), name::check_name)?;
        let mut record = look_at(model)?;
        let _writing = self.lock();
        let Listing { models, corrupt } = self.list()?;
        let same_path = |known: &&ModelRecord| known.path == record.path;
        let same_name = |known: &&ModelRecord| name.is_none_or(|name| fold(name) == fold(&known.name));
        let before = models.iter().find(|known| same_path(known) && same_name(known));
        record.name = match (before, name) {
            (Some(before), _) => before.name.clone(),
            (None, Some(name)) => {
                if let Some(other) = models.iter().find(|known| fold(&known.name) == fold(name)) {
                    return Err(StoreError::NameTaken { name: name.to_owned(), path: other.path.clone() });
                }
                name.to_owned()
            }
            (None, None) => {
                let taken = |name: &str| {
                    let name = fold(name);
                    models.iter().any(|known| fold(&known.name) == name)
                        || corrupt.iter().any(|known| known.name == name)
                };
                free_name(&record.path, taken)
            }
        };
        (record.added_at_unix_ms, record.used_at_unix_ms) = match before {
            Some(before) => (before.added_at_unix_ms, before.used_at_unix_ms),
            None => (now_unix_ms, 0),
        };
        if before.is_none() && models.len() + corrupt.len() >= MODELS_MAX {
            return Err(limit("the number of models", models.len() + corrupt.len() + 1, MODELS_MAX));
        }
        if let Some(before) = before {
            keep_digests(&mut record, before);
        }
        if record.size_bytes <= DIGEST_EAGER_BYTES_MAX {
            digest_files(&mut record)?;
        }
        self.write(&record)?;
        Ok(record)
    }

    /// Forgets the model that `name` stands for. Files of a model registered in place are left alone. A corrupt
    /// record is removed by its name too.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], [`StoreError::Ambiguous`], [`StoreError::Database`].
    pub fn remove(&self, name: &str) -> Result<Removed, StoreError> {
        let _writing = self.lock();
        let entry = self.resolve(name)?;
        let doing = || format!("removing {}", entry.name);
        self.models.remove(&entry.key).map_err(|error| self.database(doing(), &error))?;
        self.flush()?;
        let record = schema::decode(&entry.name, &entry.encoded).ok();
        let name = record.as_ref().map_or(entry.name, |record| record.name.clone());
        Ok(Removed { name, record, freed_bytes: 0 })
    }

    /// Notes that the model was used.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn touch(&self, name: &str, now_unix_ms: i64) -> Result<ModelRecord, StoreError> {
        let _writing = self.lock();
        let mut record = self.get(name)?;
        record.used_at_unix_ms = now_unix_ms;
        self.write(&record)?;
        Ok(record)
    }

    /// Computes the digests that are absent or no longer hold, and keeps them. Reads such files whole: seconds for
    /// each few gigabytes; other calls are not held up meanwhile.
    ///
    /// # Errors
    /// As [`Store::get`]; [`StoreError::File`] when a file is gone.
    pub fn digest(&self, name: &str) -> Result<ModelRecord, StoreError> {
        let mut record = self.get(name)?;
        digest_files(&mut record)?;
        let _writing = self.lock();
        // It may have been used or removed while its files were read.
        let now = self.get(&record.name)?;
        record.used_at_unix_ms = now.used_at_unix_ms;
        self.write(&record)?;
        Ok(record)
    }

    fn bring_to(&self, schema: &Schema, meta: &sled::Tree) -> Result<(), StoreError> {
        let doing = "reading its schema version";
        let stated = meta.get(VERSION_KEY).map_err(|error| self.database(doing, &error))?;
        let found = match stated {
            None => {
                // Nothing was ever written here.
                meta.insert(VERSION_KEY, schema.version.to_string().as_bytes())
                    .map_err(|error| self.database("writing its schema version", &error))?;
                return self.flush();
            }
            Some(text) => String::from_utf8_lossy(&text).parse::<u32>().ok().filter(|version| *version > 0),
        };
        let Some(found) = found else {
            let why = "its schema version is unreadable".to_owned();
            return Err(StoreError::Open { dir: self.dir.clone(), why });
        };
        if found > schema.version {
            return Err(StoreError::Newer { dir: self.dir.clone(), found, known: schema.version });
        }
        if found < schema.version {
            self.migrate(schema, meta, found)?;
        }
        Ok(())
    }

    /// All records and the version in one transaction: after a crash the database is wholly of one version.
    fn migrate(&self, schema: &Schema, meta: &sled::Tree, found: u32) -> Result<(), StoreError> {
        let mut migrated = Vec::new();
        for entry in self.models.iter() {
            let (key, encoded) = entry.map_err(|error| self.database("migrating", &error))?;
            match schema.migrate(found, &encoded) {
                Ok(encoded) => migrated.push((key, encoded)),
                Err(why) => tracing::warn!(name = %String::from_utf8_lossy(&key), why, "record not migrated"),
            }
        }
        (meta, &self.models)
            .transaction(|(meta, models)| {
                for (key, encoded) in &migrated {
                    models.insert(key, encoded.as_slice())?;
                }
                meta.insert(VERSION_KEY, schema.version.to_string().as_bytes())?;
                Ok::<(), ConflictableTransactionError<()>>(())
            })
            .map_err(|error| match error {
                TransactionError::Storage(error) => self.database("migrating", &error),
                TransactionError::Abort(()) => {
                    self.database("migrating", &sled::Error::Unsupported("aborted".into()))
                }
            })?;
        tracing::info!(from = found, to = schema.version, records = migrated.len(), "model store migrated");
        self.flush()
    }

    /// The entry that `name` stands for.
    fn resolve(&self, name: &str) -> Result<Entry, StoreError> {
        let mut entries = self.entries()?;
        let found = match name::find_name(name, entries.iter().map(|entry| entry.name.as_str())) {
            Match::One(found) => entries.iter().position(|entry| entry.name == found),
            Match::Ambiguous(candidates) => {
                let candidates = candidates.into_iter().map(str::to_owned).collect();
                return Err(StoreError::Ambiguous { name: name.to_owned(), candidates });
            }
            Match::None => None,
        };
        found.map(|at| entries.swap_remove(at)).ok_or_else(|| StoreError::NotFound {
            name: name.to_owned(),
            known: entries.into_iter().map(|entry| entry.name).collect(),
        })
    }

    /// Everything there is, in order of name.
    fn entries(&self) -> Result<Vec<Entry>, StoreError> {
        let entry = |entry: sled::Result<(sled::IVec, sled::IVec)>| {
            let (key, encoded) = entry.map_err(|error| self.database("reading", &error))?;
            Ok(Entry { name: String::from_utf8_lossy(&key).into_owned(), key, encoded })
        };
        self.models.iter().map(entry).collect()
    }

    fn write(&self, record: &ModelRecord) -> Result<(), StoreError> {
        let encoded = schema::encode(record)?;
        if encoded.len() > RECORD_BYTES_MAX {
            return Err(limit(
                format!("the record of {:?} in bytes", record.name),
                encoded.len(),
                RECORD_BYTES_MAX,
            ));
        }
        self.models
            .insert(fold(&record.name), encoded)
            .map_err(|error| self.database(format!("writing {}", record.name), &error))?;
        self.flush()
    }

    fn flush(&self) -> Result<(), StoreError> {
        self.db.flush().map(drop).map_err(|error| self.database("writing to disk", &error))
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        // The lock guards no data: a holder that panicked leaves nothing half-done behind it.
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn database(&self, doing: impl Into<String>, error: &sled::Error) -> StoreError {
        StoreError::Database { dir: self.dir.clone(), doing: doing.into(), why: error.to_string() }
    }
}

/// Opens sled at `dir/db`, waiting a little for a process that is just leaving.
fn open_database(dir: &Path) -> Result<sled::Db, StoreError> {
    // No background flushing: every change is flushed by its caller, and an idle store costs nothing.
    let config = sled::Config::new().path(dir.join("db")).cache_capacity(CACHE_BYTES).flush_every_ms(None);
    let until = Instant::now() + Duration::from_millis(LOCK_WAIT_MS);
    loop {
        match config.open() {
            Ok(db) => return Ok(db),
            Err(error) if !is_locked(&error) => {
                return Err(StoreError::Open { dir: dir.to_owned(), why: error.to_string() });
            }
            Err(_) if Instant::now() >= until => return Err(StoreError::Locked { dir: dir.to_owned() }),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// sled has no variant for it: it wraps the failed file lock in an I/O error of its own wording.
fn is_locked(error: &sled::Error) -> bool {
    matches!(error, sled::Error::Io(error) if error.kind() == std::io::ErrorKind::WouldBlock
        || error.to_string().contains("could not acquire lock"))
}

/// The record of a new model, without name, times and digests.
fn look_at(model: NewModel) -> Result<ModelRecord, StoreError> {
    let absolute = |path: &Path| {
        path.canonicalize().map_err(|source| StoreError::File { path: path.to_owned(), source })
    };
    let path = absolute(&model.path)?;
    let paths = if model.files.is_empty() { vec![path.clone()] } else { model.files };
    if paths.len() > FILES_MAX {
        return Err(limit(format!("the number of files of {}", path.display()), paths.len(), FILES_MAX));
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
        path,
        files,
        in_place: true,
        added_at_unix_ms: 0,
        used_at_unix_ms: 0,
        license: model.license.map(cut),
    })
}

/// A name for the model at `path` that is not taken.
fn free_name(path: &Path, taken: impl Fn(&str) -> bool) -> String {
    let model = name::derive_name(path);
    let first = [Some(model.clone()), name::derive_owned_name(path, &model)];
    let numbered = (2_u64..).map(|number| format!("{model}-{number}"));
    // The store holds at most MODELS_MAX names, so the numbers end long before the type does.
    first.into_iter().flatten().chain(numbered).find(|name| !taken(name)).unwrap_or(model)
}

/// Digests of files that did not change still hold.
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
        // Looked at before it is read: a file changed meanwhile then shows as changed.
        let now = FileRecord::of(file.path.clone()).map_err(failed)?;
        let digest = sha256(&file.path).map_err(failed)?;
        *file = FileRecord { sha256: Some(digest), ..now };
    }
    record.size_bytes = record.files.iter().map(|file| file.size_bytes).sum();
    Ok(())
}

fn cut(mut text: String) -> String {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}

fn limit(what: impl Into<String>, value: usize, max: usize) -> StoreError {
    StoreError::Limit { what: what.into(), value: value as u64, max: max as u64 }
}
