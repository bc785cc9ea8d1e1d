//! The sled database: trees, encoding, and the one transaction for every change of models.
//!
//! | tree | key | value |
//! |---|---|---|
//! | `models` | folded name | [`ModelRecord`] |
//! | `paths` | path, NUL, folded name | nothing: finds the models at a path |
//! | `blobs` | SHA-256 | [`BlobRecord`]: size, and number of models that have it |
//! | `aliases` | folded alias | [`AliasRecord`] |
//! | `pulls` | reference | [`PullRecord`] |
//! | `meta` | `schema_version`, `derived_version`, `ledger_line` | a number |
//!
//! `paths` and `blobs` are derived from `models`: they change in the same transaction, and are rebuilt when in doubt.
//! Paths below the store's directory are kept relative to it. Every change is in the ledger before it is in the
//! database, see [`crate::ledger`].

use crate::StoreError;
use crate::layout::Layout;
use crate::ledger::{self, Ledger};
use crate::limits::RECORD_BYTES_MAX;
use crate::name::{self, Match, cut_name, fold};
use crate::opening::{self, OpenedDatabase, readable, said};
use crate::record::ModelRecord;
use crate::repaired::RepairReport;
use crate::schema::{self, BlobRecord, PullRecord, Schema};
use crate::trees::{DERIVED_KEY, LINE_KEY, Trees, in_words};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use sled::transaction::{
    ConflictableTransactionError, TransactionError, Transactional, TransactionalTree,
    UnabortableTransactionError,
};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The open database. The caller ensures that only one thread changes it at a time.
pub(crate) struct Database {
    layout: Layout,
    trees: Trees,
    ledger: Mutex<Ledger>,
    /// Schema version.
    version: u32,
    /// Number of model records. Cached because counting a tree reads all of it.
    count: AtomicUsize,
    /// Declared last so that it is dropped last: the database is closed before another process can open it.
    _lock: File,
}

/// Encoded record of a model.
pub(crate) struct RecordEntry {
    /// The raw key. In a corrupt database it may be invalid UTF-8.
    pub(crate) key: sled::IVec,
    /// The key as text: the model's folded name.
    pub(crate) name: String,
    pub(crate) encoded: sled::IVec,
}

/// A user's alias for a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AliasRecord {
    pub(crate) alias: String,
    pub(crate) target: String,
}

/// Atomic change of models.
#[derive(Default)]
pub(crate) struct Change<'a> {
    /// Entry to remove.
    pub(crate) remove: Option<&'a RecordEntry>,
    /// Record to insert. Replaces a record of the same name.
    pub(crate) put: Option<&'a ModelRecord>,
    /// Key of the pull that this change completes.
    pub(crate) ends_pull: Option<&'a str>,
}

impl Database {
    /// Opens the database, repairs it if `mend` allows and it is damaged, and migrates it. The returned flag is
    /// true if models with a manifest must still be restored from it.
    pub(crate) fn open(
        layout: &Layout,
        schema: &Schema,
        mend: bool,
    ) -> Result<(Self, RepairReport, bool), StoreError> {
        let OpenedDatabase { trees, ledger, lock, repaired, incomplete } =
            opening::open(layout, schema, mend)?;
        let (layout, ledger, version) = (layout.clone(), Mutex::new(ledger), schema.version);
        let database = Self { layout, trees, ledger, version, count: AtomicUsize::new(0), _lock: lock };
        database.derive_once(repaired.why.is_some())?;
        database.count.store(database.names()?.len(), Relaxed);
        Ok((database, repaired, incomplete))
    }

    /// Returns the number of model records, corrupt ones included.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// Returns every model entry, in order of name.
    pub(crate) fn entries(&self) -> Result<Vec<RecordEntry>, StoreError> {
        let entry = |(key, encoded): (sled::IVec, sled::IVec)| {
            let name = String::from_utf8_lossy(&key).into_owned();
            RecordEntry { name, key, encoded }
        };
        Ok(self.all(&self.trees.models)?.into_iter().map(entry).collect())
    }

    /// Returns the folded names of all records, in order.
    pub(crate) fn names(&self) -> Result<Vec<String>, StoreError> {
        let names =
            self.guarded("reading", || self.trees.models.iter().keys().collect::<sled::Result<Vec<_>>>())?;
        Ok(names.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect())
    }

    /// Returns the record with exactly this name, ignoring letter case.
    pub(crate) fn exact(&self, name: &str) -> Result<Option<RecordEntry>, StoreError> {
        let name = fold(name);
        let found = self.value(&self.trees.models, name.as_bytes())?;
        Ok(found.map(|encoded| RecordEntry { key: name.as_bytes().into(), name, encoded }))
    }

    /// Decodes an entry into a record.
    pub(crate) fn decode(&self, entry: &RecordEntry) -> Result<ModelRecord, StoreError> {
        schema::decode(&entry.name, &entry.encoded, self.layout.dir())
    }

    /// Finds the entry that `name` stands for, see [`name::find_name`].
    pub(crate) fn find(&self, name: &str) -> Result<RecordEntry, StoreError> {
        if let Some(entry) = self.exact(name)? {
            return Ok(entry);
        }
        let names = self.names()?;
        let not_found = || StoreError::NotFound { name: cut_name(name), known: names.clone() };
        match name::find_name(name, names.iter().map(String::as_str)) {
            Match::One(found) => match self.exact(found)? {
                Some(entry) => Ok(entry),
                // A key that is no text cannot be looked up by its name, so compare entries and take the raw
                // key.
                None => self.entries()?.into_iter().find(|entry| entry.name == found).ok_or_else(not_found),
            },
            Match::Ambiguous(candidates) => {
                let candidates = candidates.into_iter().map(str::to_owned).collect();
                Err(StoreError::Ambiguous { name: name.to_owned(), candidates })
            }
            Match::None => Err(not_found()),
        }
    }

    /// Returns the models whose file or folder is at `path`.
    pub(crate) fn at_path(&self, path: &Path) -> Result<Vec<ModelRecord>, StoreError> {
        let mut prefix = self.relative(path).as_os_str().as_bytes().to_vec();
        prefix.push(0);
        let mut found = Vec::new();
        let scan = || self.trees.paths.scan_prefix(&prefix).keys().collect::<sled::Result<Vec<_>>>();
        for key in self.guarded("reading", scan)? {
            let name = String::from_utf8_lossy(&key[prefix.len()..]).into_owned();
            if let Some(entry) = self.exact(&name)?
                && let Ok(record) = self.decode(&entry)
                && record.path == path
            {
                found.push(record);
            }
        }
        Ok(found)
    }

    /// Applies a change and returns when it is on disk. Returns the blobs that no model has any more.
    pub(crate) fn apply(&self, change: &Change<'_>) -> Result<Vec<String>, StoreError> {
        let doing = match (change.put, change.remove) {
            (Some(record), _) => format!("writing {}", record.name),
            (None, Some(entry)) => format!("removing {}", entry.name),
            (None, None) => "writing".to_owned(),
        };
        let encoded = change.put.map(|record| self.encode_bounded(record)).transpose()?;
        let put = change.put.map(|record| (fold(&record.name), record));
        let replaced = match &put {
            Some((key, _)) => self.exact(key)?,
            None => None,
        };
        let gone: Vec<&RecordEntry> = change.remove.into_iter().chain(&replaced).collect();
        let gone_records: Vec<ModelRecord> =
            gone.iter().filter_map(|entry| self.decode(entry).ok()).collect();
        let (blobs, orphans) = self.counted(&gone_records, change.put)?;

        let line = match (&encoded, change.remove) {
            (Some(encoded), _) => ledger::LedgerEntry::Model(encoded),
            (None, Some(entry)) => ledger::LedgerEntry::Gone(&entry.name),
            (None, None) => return Ok(orphans),
        };
        let Trees { models, paths, blobs: blob_tree, pulls, meta, .. } = &self.trees;
        let trees = (models, paths, blob_tree, pulls, meta);
        let counts = blobs.iter().map(|(sha256, blob)| sha256.len() + blob.as_ref().map_or(0, Vec::len));
        let bytes = encoded.as_ref().map_or(0, Vec::len) + counts.sum::<usize>();
        self.commit(&doing, &line, bytes, |number| {
            trees.transaction(|(models, paths, blob_tree, pulls, meta)| {
                for entry in &gone {
                    models.remove(&entry.key)?;
                }
                for record in &gone_records {
                    paths.remove(self.path_key(record))?;
                }
                if let (Some((key, record)), Some(encoded)) = (&put, &encoded) {
                    models.insert(key.as_bytes(), encoded.as_slice())?;
                    paths.insert(self.path_key(record), &[])?;
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
                meta.insert(LINE_KEY, number.to_string().as_bytes())?;
                Ok::<(), ConflictableTransactionError<()>>(())
            })
        })?;
        let (more, less) = (put.is_some() as usize, gone.len());
        self.count.store((self.count() + more).saturating_sub(less), Relaxed);
        Ok(orphans)
    }

    /// Returns the blobs that only this model has.
    pub(crate) fn only_of(&self, record: &ModelRecord) -> Result<Vec<String>, StoreError> {
        Ok(self.counted(std::slice::from_ref(record), None)?.1)
    }

    /// Appends a change to the ledger and applies it to the database: both or neither. `bytes` is its
    /// approximate size, for which the disk must have room.
    fn commit(
        &self,
        doing: &str,
        line: &ledger::LedgerEntry<'_>,
        bytes: usize,
        change: impl FnOnce(u64) -> Result<(), TransactionError<()>>,
    ) -> Result<(), StoreError> {
        self.make_room(bytes)?;
        let mut ledger = self.ledger();
        let before = ledger.mark();
        let path = self.layout.ledger();
        let number = ledger.append(line).map_err(|error| self.layout.failed(&path, error))?;
        let changed = catch_unwind(AssertUnwindSafe(|| {
            change(number).and_then(|()| self.trees.db.flush().map(drop).map_err(TransactionError::Storage))
        }));
        let why = match changed {
            Ok(Ok(())) => {
                if ledger.is_long() {
                    self.write_anew(&mut ledger);
                }
                return Ok(());
            }
            Ok(Err(TransactionError::Storage(error))) => in_words(&error),
            Ok(Err(TransactionError::Abort(()))) => "the change was given up".to_owned(),
            Err(panic) => said(&*panic),
        };
        ledger.back_to(before);
        Err(self.failed_because(doing, why))
    }

    fn make_room(&self, bytes: usize) -> Result<(), StoreError> {
        let dir = self.layout.dir();
        if self.layout.reserve.make_room(bytes) { Ok(()) } else { Err(StoreError::no_room(dir, bytes)) }
    }

    /// Compacts the ledger to the current contents. On failure the old ledger stays in use.
    fn write_anew(&self, ledger: &mut Ledger) {
        let contents = match self.trees.contents(self.layout.dir()) {
            Ok(contents) => contents,
            Err(error) => return tracing::warn!(%error, "the ledger is not shortened"),
        };
        match Ledger::write(&self.layout.ledger(), self.version, &readable(&contents), ledger.last()) {
            Ok(written) => {
                *ledger = written;
                if let Err(error) = self.trees.set_line(ledger.last(), self.layout.dir()) {
                    tracing::warn!(%error, "the database does not know of its shortened ledger");
                }
            }
            Err(error) => tracing::warn!(%error, "the ledger is not shortened"),
        }
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        // A poisoned lock is accepted: the next open repairs what the panicked holder left undone.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the new record of each affected blob, or None if no model has it any more, and the list of the
    /// latter.
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

    /// Returns the record of a blob, or None if no model has it.
    pub(crate) fn blob(&self, sha256: &str) -> Result<Option<BlobRecord>, StoreError> {
        let found = self.value(&self.trees.blobs, sha256.as_bytes())?;
        // Ignore an unreadable count: `derive` rebuilds it.
        Ok(found.and_then(|encoded| serde_json::from_slice(&encoded).ok()))
    }

    /// Rebuilds `paths` and `blobs` from the models, writing only what differs.
    pub(crate) fn derive(&self) -> Result<(), StoreError> {
        let mut counts: BTreeMap<String, BlobRecord> = BTreeMap::new();
        let (mut paths, mut blobs) = (BTreeMap::new(), BTreeMap::new());
        for entry in self.entries()? {
            let Ok(record) = self.decode(&entry) else { continue };
            for (sha256, size_bytes) in record.blobs() {
                counts.entry(sha256.to_owned()).or_insert(BlobRecord { size_bytes, refs: 0 }).refs += 1;
            }
            paths.insert(self.path_key(&record), Vec::new());
        }
        for (sha256, blob) in counts {
            blobs.insert(sha256.into_bytes(), encode(&blob)?);
        }
        self.bring_to(&self.trees.paths, paths)?;
        self.bring_to(&self.trees.blobs, blobs)
    }

    /// Makes a tree contain exactly `wanted`. Writes nothing if it already does.
    fn bring_to(&self, tree: &sled::Tree, wanted: BTreeMap<Vec<u8>, Vec<u8>>) -> Result<(), StoreError> {
        let (mut batch, mut changes, mut bytes, mut wanted) = (sled::Batch::default(), 0, 0, wanted);
        for (key, value) in self.all(tree)? {
            match wanted.remove(&key[..]) {
                Some(same) if same[..] == value[..] => {}
                Some(other) => {
                    bytes += key.len() + other.len();
                    batch.insert(key, other);
                    changes += 1;
                }
                None => {
                    batch.remove(key);
                    changes += 1;
                }
            }
        }
        changes += wanted.len();
        bytes += wanted.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
        wanted.into_iter().for_each(|(key, value)| batch.insert(key, value));
        if changes == 0 {
            return Ok(());
        }
        self.make_room(bytes)?;
        self.guarded("counting blobs", || tree.apply_batch(batch).and_then(|()| self.trees.db.flush()))?;
        Ok(())
    }

    /// Returns every alias, in order.
    pub(crate) fn aliases(&self) -> Result<Vec<AliasRecord>, StoreError> {
        self.values(&self.trees.aliases)
    }

    pub(crate) fn alias(&self, alias: &str) -> Result<Option<AliasRecord>, StoreError> {
        let found = self.value(&self.trees.aliases, fold(alias).as_bytes())?;
        Ok(found.and_then(|encoded| serde_json::from_slice(&encoded).ok()))
    }

    pub(crate) fn put_alias(&self, record: &AliasRecord) -> Result<(), StoreError> {
        let (key, encoded) = (fold(&record.alias), encode(record)?);
        let line = ledger::LedgerEntry::Alias(&encoded);
        self.change_alias(&format!("writing {key}"), &line, |aliases| {
            aliases.insert(key.as_bytes(), encoded.as_slice()).map(drop)
        })
    }

    pub(crate) fn remove_alias(&self, alias: &str) -> Result<(), StoreError> {
        let key = fold(alias);
        let line = ledger::LedgerEntry::Unalias(&key);
        self.change_alias(&format!("removing {alias}"), &line, |aliases| {
            aliases.remove(key.as_bytes()).map(drop)
        })
    }

    fn change_alias(
        &self,
        doing: &str,
        line: &ledger::LedgerEntry<'_>,
        change: impl Fn(&TransactionalTree) -> Result<(), UnabortableTransactionError>,
    ) -> Result<(), StoreError> {
        let trees = (&self.trees.aliases, &self.trees.meta);
        self.commit(doing, line, 0, |number| {
            trees.transaction(|(aliases, meta)| {
                change(aliases)?;
                meta.insert(LINE_KEY, number.to_string().as_bytes())?;
                Ok::<(), ConflictableTransactionError<()>>(())
            })
        })
    }

    /// Returns every unfinished pull.
    pub(crate) fn pulls(&self) -> Result<Vec<PullRecord>, StoreError> {
        self.values(&self.trees.pulls)
    }

    pub(crate) fn put_pull(&self, key: &str, record: &PullRecord) -> Result<(), StoreError> {
        self.insert(&self.trees.pulls, key, record)
    }

    /// Forgets one pull, or all of them.
    pub(crate) fn remove_pulls(&self, key: Option<&str>) -> Result<(), StoreError> {
        let pulls = &self.trees.pulls;
        if pulls.is_empty() {
            return Ok(());
        }
        self.guarded("forgetting a pull", || {
            match key {
                Some(key) => pulls.remove(key).map(drop)?,
                None => pulls.clear()?,
            }
            self.trees.db.flush()
        })?;
        Ok(())
    }

    fn insert(&self, tree: &sled::Tree, key: &str, value: &impl Serialize) -> Result<(), StoreError> {
        let encoded = encode(value)?;
        self.make_room(encoded.len())?;
        self.guarded(&format!("writing {key}"), || {
            tree.insert(key, encoded).and_then(|_| self.trees.db.flush())
        })?;
        Ok(())
    }

    fn values<T: DeserializeOwned>(&self, tree: &sled::Tree) -> Result<Vec<T>, StoreError> {
        let all = self.all(tree)?;
        Ok(all.iter().filter_map(|(_, value)| serde_json::from_slice(value).ok()).collect())
    }

    fn all(&self, tree: &sled::Tree) -> Result<Vec<(sled::IVec, sled::IVec)>, StoreError> {
        self.guarded("reading", || tree.iter().collect())
    }

    fn value(&self, tree: &sled::Tree, key: &[u8]) -> Result<Option<sled::IVec>, StoreError> {
        self.guarded("reading", || tree.get(key))
    }

    /// Runs a sled operation. sled panics on some kinds of damage, which becomes an error here.
    fn guarded<T>(&self, doing: &str, work: impl FnOnce() -> sled::Result<T>) -> Result<T, StoreError> {
        match catch_unwind(AssertUnwindSafe(work)) {
            Ok(answer) => answer.map_err(|error| self.failed_because(doing, in_words(&error))),
            Err(panic) => Err(self.failed_because(doing, said(&*panic))),
        }
    }

    /// Rebuilds the derived trees when this schema version first opens the database, and when `again` is true
    /// because an open has changed models. Then notes that it is done.
    fn derive_once(&self, again: bool) -> Result<(), StoreError> {
        let version = self.version.to_string();
        let noted = self.value(&self.trees.meta, DERIVED_KEY.as_bytes())?;
        if !again && noted.is_some_and(|noted| noted == version.as_bytes()) {
            return Ok(());
        }
        self.derive()?;
        let meta = &self.trees.meta;
        self.guarded("counting blobs", || {
            meta.insert(DERIVED_KEY, version.as_bytes()).and_then(|_| self.trees.db.flush())
        })?;
        Ok(())
    }

    fn failed_because(&self, doing: &str, why: String) -> StoreError {
        StoreError::Database { dir: self.layout.dir().to_owned(), doing: doing.to_owned(), why }
    }

    /// Returns a path as stored: relative if it is below the store's directory.
    fn relative<'a>(&self, path: &'a Path) -> &'a Path {
        schema::relative(path, self.layout.dir())
    }

    fn path_key(&self, record: &ModelRecord) -> Vec<u8> {
        let mut key = self.relative(&record.path).as_os_str().as_bytes().to_vec();
        key.push(0);
        key.extend_from_slice(fold(&record.name).as_bytes());
        key
    }

    fn encode_bounded(&self, record: &ModelRecord) -> Result<Vec<u8>, StoreError> {
        let encoded = schema::encode(record, self.layout.dir())?;
        if encoded.len() > RECORD_BYTES_MAX {
            let what = format!("the record of {:?} in bytes", record.name);
            return Err(StoreError::limit(what, encoded.len() as u64, RECORD_BYTES_MAX as u64));
        }
        Ok(encoded)
    }

    /// The tree of models itself. Writes to it bypass the ledger.
    #[cfg(test)]
    pub(crate) fn models(&self) -> &sled::Tree {
        &self.trees.models
    }
}

fn encode(value: &impl Serialize) -> Result<Vec<u8>, StoreError> {
    serde_json::to_vec(value)
        .map_err(|error| StoreError::Corrupt { name: "a record".to_owned(), why: error.to_string() })
}
