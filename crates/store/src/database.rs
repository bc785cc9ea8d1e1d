//! The sled database: trees, encoding, and the one transaction that every change of models goes through.
//!
//! | tree | key | value |
//! |---|---|---|
//! | `models` | folded name | [`ModelRecord`] |
//! | `paths` | path, NUL, folded name | nothing: finds the models at a path |
//! | `blobs` | SHA-256 | [`BlobRecord`]: size and number of models that have it |
//! | `aliases` | folded alias | [`AliasRecord`] |
//! | `pulls` | reference | [`PullRecord`] |
//! | `meta` | `schema_version`, `derived_version` | a number |
//!
//! `paths` and `blobs` follow from `models`: they change in the same transaction, and are made anew from it when
//! they are in doubt.

use crate::StoreError;
use crate::limits::{CACHE_BYTES, LOCK_WAIT_MS, RECORD_BYTES_MAX};
use crate::name::{self, Match, fold};
use crate::plan::cut_name;
use crate::record::ModelRecord;
use crate::schema::{self, BlobRecord, PullRecord, Schema};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use sled::transaction::{ConflictableTransactionError, TransactionError, Transactional};
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

const VERSION_KEY: &str = "schema_version";
/// The version that made `paths` and `blobs`.
const DERIVED_KEY: &str = "derived_version";

/// The open database. The caller sees to it that one thread changes it at a time.
pub(crate) struct Database {
    /// The store's directory, for errors.
    dir: PathBuf,
    db: sled::Db,
    pub(crate) models: sled::Tree,
    paths: sled::Tree,
    blobs: sled::Tree,
    aliases: sled::Tree,
    pulls: sled::Tree,
    /// Records of models: counting a tree reads it all.
    count: AtomicUsize,
}

/// A record as it lies in the database.
pub(crate) struct Entry {
    /// The key itself: in a corrupt database it may be no text.
    pub(crate) key: sled::IVec,
    /// The key as text: the model's folded name.
    pub(crate) name: String,
    pub(crate) encoded: sled::IVec,
}

/// A user's own name for a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AliasRecord {
    pub(crate) alias: String,
    pub(crate) target: String,
}

/// A change of models, which happens wholly or not at all.
#[derive(Default)]
pub(crate) struct Change<'a> {
    /// The record that goes, as it lies in the database.
    pub(crate) remove: Option<&'a Entry>,
    /// The record that comes, in place of one of its name if there is one.
    pub(crate) put: Option<&'a ModelRecord>,
    /// The pull that ends with it.
    pub(crate) ends_pull: Option<&'a str>,
}

impl Database {
    /// Opens the database at `path`, waiting a little for a process that is just leaving, and migrates it.
    pub(crate) fn open(dir: &Path, path: &Path, schema: &Schema) -> Result<Self, StoreError> {
        let db = open_sled(dir, path)?;
        let tree = |name: &str| {
            let opened = db.open_tree(name);
            opened.map_err(|error| StoreError::Open { dir: dir.to_owned(), why: error.to_string() })
        };
        let meta = tree("meta")?;
        let (models, paths, blobs) = (tree("models")?, tree("paths")?, tree("blobs")?);
        let (aliases, pulls) = (tree("aliases")?, tree("pulls")?);
        let dir = dir.to_owned();
        let database = Self { dir, db, models, paths, blobs, aliases, pulls, count: AtomicUsize::new(0) };
        database.bring_to(schema, &meta)?;
        database.derive_once(schema, &meta)?;
        database.count.store(database.models.len(), Relaxed);
        Ok(database)
    }

    /// Records of models, corrupt ones too.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// Everything there is, in order of name.
    pub(crate) fn entries(&self) -> Result<Vec<Entry>, StoreError> {
        let entry = |entry: sled::Result<(sled::IVec, sled::IVec)>| {
            let (key, encoded) = entry.map_err(|error| self.failed("reading", &error))?;
            Ok(Entry { name: String::from_utf8_lossy(&key).into_owned(), key, encoded })
        };
        self.models.iter().map(entry).collect()
    }

    /// The folded names of all records, in order.
    pub(crate) fn names(&self) -> Result<Vec<String>, StoreError> {
        let name = |key: sled::Result<sled::IVec>| {
            let key = key.map_err(|error| self.failed("reading", &error))?;
            Ok(String::from_utf8_lossy(&key).into_owned())
        };
        self.models.iter().keys().map(name).collect()
    }

    /// The record under exactly this name, letter case ignored.
    pub(crate) fn exact(&self, name: &str) -> Result<Option<Entry>, StoreError> {
        let name = fold(name);
        let found = self.models.get(&name).map_err(|error| self.failed("reading", &error))?;
        Ok(found.map(|encoded| Entry { key: name.as_bytes().into(), name, encoded }))
    }

    /// The entry that `name` stands for, see [`name::find_name`].
    pub(crate) fn find(&self, name: &str) -> Result<Entry, StoreError> {
        if let Some(entry) = self.exact(name)? {
            return Ok(entry);
        }
        let names = self.names()?;
        let not_found = || StoreError::NotFound { name: cut_name(name), known: names.clone() };
        match name::find_name(name, names.iter().map(String::as_str)) {
            Match::One(found) => match self.exact(found)? {
                Some(entry) => Ok(entry),
                // A key that is no text has a name that leads nowhere; its entry has the key itself.
                None => self.entries()?.into_iter().find(|entry| entry.name == found).ok_or_else(not_found),
            },
            Match::Ambiguous(candidates) => {
                let candidates = candidates.into_iter().map(str::to_owned).collect();
                Err(StoreError::Ambiguous { name: name.to_owned(), candidates })
            }
            Match::None => Err(not_found()),
        }
    }

    /// Models whose file or folder is at `path`.
    pub(crate) fn at_path(&self, path: &Path) -> Result<Vec<ModelRecord>, StoreError> {
        let mut prefix = path.as_os_str().as_bytes().to_vec();
        prefix.push(0);
        let mut found = Vec::new();
        for key in self.paths.scan_prefix(&prefix).keys() {
            let key = key.map_err(|error| self.failed("reading", &error))?;
            let name = String::from_utf8_lossy(&key[prefix.len()..]).into_owned();
            if let Some(entry) = self.exact(&name)?
                && let Ok(record) = schema::decode(&entry.name, &entry.encoded)
                && record.path == path
            {
                found.push(record);
            }
        }
        Ok(found)
    }

    /// Makes a change, and answers when it is on disk. Gives the blobs that no model has any more.
    pub(crate) fn apply(&self, change: &Change<'_>) -> Result<Vec<String>, StoreError> {
        let doing = match (change.put, change.remove) {
            (Some(record), _) => format!("writing {}", record.name),
            (None, Some(entry)) => format!("removing {}", entry.name),
            (None, None) => "writing".to_owned(),
        };
        let encoded = change.put.map(encode_bounded).transpose()?;
        let put = change.put.map(|record| (fold(&record.name), record));
        let replaced = match &put {
            Some((key, _)) => self.exact(key)?,
            None => None,
        };
        let gone: Vec<&Entry> = change.remove.into_iter().chain(&replaced).collect();
        let known = |entry: &&Entry| schema::decode(&entry.name, &entry.encoded).ok();
        let gone_records: Vec<ModelRecord> = gone.iter().filter_map(known).collect();
        let (blobs, orphans) = self.counted(&gone_records, change.put)?;

        let trees = (&self.models, &self.paths, &self.blobs, &self.pulls);
        let done = trees.transaction(|(models, paths, blob_tree, pulls)| {
            for entry in &gone {
                models.remove(&entry.key)?;
            }
            for record in &gone_records {
                paths.remove(path_key(record))?;
            }
            if let (Some((key, record)), Some(encoded)) = (&put, &encoded) {
                models.insert(key.as_bytes(), encoded.as_slice())?;
                paths.insert(path_key(record), &[])?;
            }
            for (sha256, blob) in &blobs {
                match blob {
                    Some(encoded) => blob_tree.insert(sha256.as_bytes(), encoded.as_slice())?,
                    None => blob_tree.remove(sha256.as_bytes())?,
                };
            }
            if let Some(pull) = change.ends_pull {
                pulls.remove(pull.as_bytes())?;
            }
            Ok::<(), ConflictableTransactionError<()>>(())
        });
        done.map_err(|error| self.aborted(&doing, error))?;
        self.flush()?;
        let (more, less) = (put.is_some() as usize, gone.len());
        self.count.store((self.count() + more).saturating_sub(less), Relaxed);
        Ok(orphans)
    }

    /// How often each blob is had after a change: its encoded record, or none when nobody has it; and the latter.
    #[allow(clippy::type_complexity)]
    fn counted(
        &self,
        gone: &[ModelRecord],
        put: Option<&ModelRecord>,
    ) -> Result<(Vec<(String, Option<Vec<u8>>)>, Vec<String>), StoreError> {
        let mut deltas: BTreeMap<&str, (i64, u64)> = BTreeMap::new();
        for (records, by) in [(gone, -1), (put.map(std::slice::from_ref).unwrap_or_default(), 1)] {
            for (sha256, size) in records.iter().flat_map(ModelRecord::blobs) {
                let delta = deltas.entry(sha256).or_insert((0, size));
                *delta = (delta.0 + by, size);
            }
        }
        let (mut changed, mut orphans) = (Vec::new(), Vec::new());
        for (sha256, (by, size_bytes)) in deltas {
            let refs = i64::from(self.blob(sha256)?.map_or(0, |blob| blob.refs)) + by;
            let refs = u32::try_from(refs.max(0)).unwrap_or(u32::MAX);
            if refs == 0 {
                orphans.push(sha256.to_owned());
                changed.push((sha256.to_owned(), None));
            } else {
                changed.push((sha256.to_owned(), Some(encode(&BlobRecord { size_bytes, refs })?)));
            }
        }
        Ok((changed, orphans))
    }

    /// What is known of a blob; none when no model has it.
    pub(crate) fn blob(&self, sha256: &str) -> Result<Option<BlobRecord>, StoreError> {
        let found = self.blobs.get(sha256).map_err(|error| self.failed("reading", &error))?;
        // An unreadable count is no count: `derive` makes it anew.
        Ok(found.and_then(|encoded| serde_json::from_slice(&encoded).ok()))
    }

    /// Makes `paths` and `blobs` anew from the models.
    pub(crate) fn derive(&self) -> Result<(), StoreError> {
        let doing = "counting blobs";
        let mut blobs: BTreeMap<String, BlobRecord> = BTreeMap::new();
        let mut paths = Vec::new();
        for entry in self.entries()? {
            let Ok(record) = schema::decode(&entry.name, &entry.encoded) else { continue };
            for (sha256, size_bytes) in record.blobs() {
                blobs.entry(sha256.to_owned()).or_insert(BlobRecord { size_bytes, refs: 0 }).refs += 1;
            }
            paths.push(path_key(&record));
        }
        let mut path_batch = self.cleared(&self.paths)?;
        paths.into_iter().for_each(|key| path_batch.insert(key, &[]));
        let mut blob_batch = self.cleared(&self.blobs)?;
        for (sha256, blob) in &blobs {
            blob_batch.insert(sha256.as_bytes(), encode(blob)?);
        }
        self.paths.apply_batch(path_batch).map_err(|error| self.failed(doing, &error))?;
        self.blobs.apply_batch(blob_batch).map_err(|error| self.failed(doing, &error))?;
        self.flush()
    }

    /// A batch that removes all a tree has.
    fn cleared(&self, tree: &sled::Tree) -> Result<sled::Batch, StoreError> {
        let mut batch = sled::Batch::default();
        for key in tree.iter().keys() {
            batch.remove(key.map_err(|error| self.failed("counting blobs", &error))?);
        }
        Ok(batch)
    }

    /// Every alias, in order.
    pub(crate) fn aliases(&self) -> Result<Vec<AliasRecord>, StoreError> {
        self.values(&self.aliases)
    }

    pub(crate) fn alias(&self, alias: &str) -> Result<Option<AliasRecord>, StoreError> {
        let found = self.aliases.get(fold(alias)).map_err(|error| self.failed("reading", &error))?;
        Ok(found.and_then(|encoded| serde_json::from_slice(&encoded).ok()))
    }

    pub(crate) fn put_alias(&self, record: &AliasRecord) -> Result<(), StoreError> {
        self.insert(&self.aliases, &fold(&record.alias), record)
    }

    /// Whether there was one.
    pub(crate) fn remove_alias(&self, alias: &str) -> Result<bool, StoreError> {
        let doing = || format!("removing {alias}");
        let removed = self.aliases.remove(fold(alias)).map_err(|error| self.failed(doing(), &error))?;
        self.flush()?;
        Ok(removed.is_some())
    }

    /// Every pull that has not ended.
    pub(crate) fn pulls(&self) -> Result<Vec<PullRecord>, StoreError> {
        self.values(&self.pulls)
    }

    pub(crate) fn put_pull(&self, key: &str, record: &PullRecord) -> Result<(), StoreError> {
        self.insert(&self.pulls, key, record)
    }

    /// Forgets a pull, or all of them.
    pub(crate) fn remove_pulls(&self, key: Option<&str>) -> Result<(), StoreError> {
        let removed = match key {
            Some(key) => self.pulls.remove(key).map(drop),
            None => self.pulls.clear(),
        };
        removed.map_err(|error| self.failed("forgetting a pull", &error))?;
        self.flush()
    }

    fn insert(&self, tree: &sled::Tree, key: &str, value: &impl Serialize) -> Result<(), StoreError> {
        let doing = || format!("writing {key}");
        tree.insert(key, encode(value)?).map_err(|error| self.failed(doing(), &error))?;
        self.flush()
    }

    fn values<T: DeserializeOwned>(&self, tree: &sled::Tree) -> Result<Vec<T>, StoreError> {
        let mut values = Vec::new();
        for value in tree.iter().values() {
            let value = value.map_err(|error| self.failed("reading", &error))?;
            values.extend(serde_json::from_slice(&value).ok());
        }
        Ok(values)
    }

    /// What follows from the models is made when this version first opens the database, and noted after.
    fn derive_once(&self, schema: &Schema, meta: &sled::Tree) -> Result<(), StoreError> {
        let version = schema.version.to_string();
        let failed = |error| self.failed("counting blobs", &error);
        if meta.get(DERIVED_KEY).map_err(failed)?.is_some_and(|noted| noted == version.as_bytes()) {
            return Ok(());
        }
        self.derive()?;
        meta.insert(DERIVED_KEY, version.as_bytes()).map_err(failed)?;
        self.flush()
    }

    fn bring_to(&self, schema: &Schema, meta: &sled::Tree) -> Result<(), StoreError> {
        let doing = "reading its schema version";
        let stated = meta.get(VERSION_KEY).map_err(|error| self.failed(doing, &error))?;
        let found = match stated {
            None => {
                // Nothing was ever written here.
                meta.insert(VERSION_KEY, schema.version.to_string().as_bytes())
                    .map_err(|error| self.failed("writing its schema version", &error))?;
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

    /// All records and the version in one transaction: after a crash the database is wholly of one version. What
    /// follows from the models is made after it, or by the next open.
    fn migrate(&self, schema: &Schema, meta: &sled::Tree, found: u32) -> Result<(), StoreError> {
        let mut migrated = Vec::new();
        for entry in self.models.iter() {
            let (key, encoded) = entry.map_err(|error| self.failed("migrating", &error))?;
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
            .map_err(|error| self.aborted("migrating", error))?;
        tracing::info!(from = found, to = schema.version, records = migrated.len(), "model store migrated");
        self.flush()
    }

    fn flush(&self) -> Result<(), StoreError> {
        self.db.flush().map(drop).map_err(|error| self.failed("writing to disk", &error))
    }

    fn aborted(&self, doing: &str, error: TransactionError<()>) -> StoreError {
        match error {
            TransactionError::Storage(error) => self.failed(doing, &error),
            TransactionError::Abort(()) => self.failed(doing, &sled::Error::Unsupported("aborted".into())),
        }
    }

    fn failed(&self, doing: impl Into<String>, error: &sled::Error) -> StoreError {
        StoreError::Database { dir: self.dir.clone(), doing: doing.into(), why: error.to_string() }
    }
}

fn path_key(record: &ModelRecord) -> Vec<u8> {
    let mut key = record.path.as_os_str().as_bytes().to_vec();
    key.push(0);
    key.extend_from_slice(fold(&record.name).as_bytes());
    key
}

fn encode(value: &impl Serialize) -> Result<Vec<u8>, StoreError> {
    serde_json::to_vec(value)
        .map_err(|error| StoreError::Corrupt { name: "a record".to_owned(), why: error.to_string() })
}

fn encode_bounded(record: &ModelRecord) -> Result<Vec<u8>, StoreError> {
    let encoded = schema::encode(record)?;
    if encoded.len() > RECORD_BYTES_MAX {
        return Err(StoreError::limit(
            format!("the record of {:?} in bytes", record.name),
            encoded.len() as u64,
            RECORD_BYTES_MAX as u64,
        ));
    }
    Ok(encoded)
}

/// Opens sled, waiting a little for a process that is just leaving.
fn open_sled(dir: &Path, path: &Path) -> Result<sled::Db, StoreError> {
    // No background flushing: every change is flushed by its caller, and an idle store costs nothing.
    let config = sled::Config::new().path(path).cache_capacity(CACHE_BYTES).flush_every_ms(None);
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
