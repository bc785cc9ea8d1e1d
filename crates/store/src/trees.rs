//! sled's trees, for reading and writing while the store is opened. Later changes go through
//! [`crate::database`].

use crate::StoreError;
use crate::error::is_full;
use crate::ledger::Contents;
use crate::schema::Schema;
use sled::transaction::{ConflictableTransactionError, TransactionError, Transactional};
use std::collections::BTreeMap;
use std::path::Path;

const VERSION_KEY: &str = "schema_version";
/// Key of the number of the last ledger line that the database has.
pub(crate) const LINE_KEY: &str = "ledger_line";
/// Key of the version that derived `paths` and `blobs`. Absent while they may lag behind `models`.
pub(crate) const DERIVED_KEY: &str = "derived_version";

/// The sled database and its trees.
pub(crate) struct Trees {
    pub(crate) db: sled::Db,
    pub(crate) models: sled::Tree,
    pub(crate) paths: sled::Tree,
    pub(crate) blobs: sled::Tree,
    pub(crate) aliases: sled::Tree,
    pub(crate) pulls: sled::Tree,
    pub(crate) meta: sled::Tree,
}

impl Trees {
    pub(crate) fn of(db: sled::Db) -> sled::Result<Self> {
        let tree = |name: &str| db.open_tree(name);
        let (models, paths, blobs) = (tree("models")?, tree("paths")?, tree("blobs")?);
        let (aliases, pulls, meta) = (tree("aliases")?, tree("pulls")?, tree("meta")?);
        Ok(Self { models, paths, blobs, aliases, pulls, meta, db })
    }

    /// Returns the stored schema version. None if nothing was ever written.
    pub(crate) fn version(&self) -> sled::Result<Option<String>> {
        Ok(self.meta.get(VERSION_KEY)?.map(|text| String::from_utf8_lossy(&text).into_owned()))
    }

    /// Returns the number of the last ledger line that the database has; 0 if none.
    pub(crate) fn line(&self) -> sled::Result<u64> {
        let text = self.meta.get(LINE_KEY)?;
        Ok(text.and_then(|text| String::from_utf8_lossy(&text).parse().ok()).unwrap_or(0))
    }

    /// Reads models and aliases. Reads the other trees too, to check that they are readable.
    pub(crate) fn read_all(&self) -> sled::Result<Contents> {
        let map = |tree: &sled::Tree| -> sled::Result<BTreeMap<String, Vec<u8>>> {
            let entry = |entry: sled::Result<(sled::IVec, sled::IVec)>| {
                let (key, value) = entry?;
                Ok((String::from_utf8_lossy(&key).into_owned(), value.to_vec()))
            };
            tree.iter().map(entry).collect()
        };
        for tree in [&self.paths, &self.blobs, &self.pulls, &self.meta] {
            map(tree)?;
        }
        Ok(Contents { models: map(&self.models)?, aliases: map(&self.aliases)? })
    }

    /// Does what [`Trees::read_all`] does, with the store's own errors.
    pub(crate) fn contents(&self, dir: &Path) -> Result<Contents, StoreError> {
        self.read_all().map_err(|error| failed(dir, "reading", &error))
    }

    /// Sets the records under a key to those in `contents`. The derived trees must be rebuilt afterwards.
    pub(crate) fn put(&self, key: &str, contents: &Contents, dir: &Path) -> Result<(), StoreError> {
        // First remove the derived version. sled keeps the order of writes, so after a crash the derived trees
        // are not trusted.
        self.meta.remove(DERIVED_KEY).map_err(|error| failed(dir, "writing", &error))?;
        for (tree, map) in [(&self.models, &contents.models), (&self.aliases, &contents.aliases)] {
            let done = match map.get(key) {
                Some(encoded) => tree.insert(key, encoded.as_slice()).map(drop),
                None => tree.remove(key).map(drop),
            };
            done.map_err(|error| failed(dir, "writing", &error))?;
        }
        Ok(())
    }

    /// Stores the number of the last ledger line.
    pub(crate) fn set_line(&self, line: u64, dir: &Path) -> Result<(), StoreError> {
        self.note(LINE_KEY, &line.to_string(), dir)
    }

    /// Stores the schema version.
    pub(crate) fn set_version(&self, version: u32, dir: &Path) -> Result<(), StoreError> {
        self.note(VERSION_KEY, &version.to_string(), dir)
    }

    fn note(&self, key: &str, value: &str, dir: &Path) -> Result<(), StoreError> {
        let note = || {
            if self.meta.get(key)?.is_none_or(|noted| noted != value.as_bytes()) {
                self.meta.insert(key, value.as_bytes())?;
                self.db.flush()?;
            }
            Ok(())
        };
        note().map_err(|error: sled::Error| failed(dir, "writing", &error))
    }

    /// Migrates the database from version `found` to the schema's version. All records and the version change
    /// in one transaction, so after a crash the database has one version throughout. The derived trees are
    /// rebuilt after it, or by the next open.
    pub(crate) fn migrate(&self, schema: &Schema, found: u32, dir: &Path) -> Result<(), StoreError> {
        let mut migrated = Vec::new();
        for entry in self.models.iter() {
            let (key, encoded) = entry.map_err(|error| failed(dir, "migrating", &error))?;
            match schema.migrate(found, &encoded, dir) {
                Ok(encoded) => migrated.push((key, encoded)),
                Err(why) => {
                    tracing::warn!(name = %String::from_utf8_lossy(&key), why, "record not migrated");
                }
            }
        }
        let done = (&self.meta, &self.models).transaction(|(meta, models)| {
            for (key, encoded) in &migrated {
                models.insert(key, encoded.as_slice())?;
            }
            meta.insert(VERSION_KEY, schema.version.to_string().as_bytes())?;
            Ok::<(), ConflictableTransactionError<()>>(())
        });
        done.map_err(|error| match error {
            TransactionError::Storage(error) => failed(dir, "migrating", &error),
            TransactionError::Abort(()) => {
                failed(dir, "migrating", &sled::Error::Unsupported("aborted".into()))
            }
        })?;
        tracing::info!(from = found, to = schema.version, records = migrated.len(), "model store migrated");
        self.db.flush().map(drop).map_err(|error| failed(dir, "writing to disk", &error))
    }
}

fn failed(dir: &Path, doing: &str, error: &sled::Error) -> StoreError {
    if matches!(error, sled::Error::Io(error) if is_full(error)) {
        return StoreError::full(dir);
    }
    StoreError::Database { dir: dir.to_owned(), doing: doing.to_owned(), why: in_words(error) }
}

/// Formats sled's error without details that only its authors can use.
pub(crate) fn in_words(error: &sled::Error) -> String {
    match error {
        sled::Error::Corruption { .. } => "its files are not as they were written".to_owned(),
        other => other.to_string().lines().next().unwrap_or_default().to_owned(),
    }
}
