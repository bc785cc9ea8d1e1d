//! How records are encoded, and how a database that an older version wrote becomes one of this version. A record
//! is a JSON object under its folded name; the database states its schema version under one key.

use crate::StoreError;
use crate::record::ModelRecord;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Turns one record of a version into one of the next. An `Err` leaves the record as it is: it then reads as
/// corrupt, by name, and the rest of the database is served.
pub(crate) type Migration = fn(&mut Value) -> Result<(), String>;

/// A version of the encoding, with the way to it from every version before.
pub(crate) struct Schema {
    /// The version that is written.
    pub(crate) version: u32,
    /// Entry `i` leads from version `i + 1` to version `i + 2`.
    pub(crate) migrations: &'static [Migration],
}

/// What this program reads and writes. A change of [`ModelRecord`] that old records do not decode under raises the
/// version and adds a migration.
///
/// Version 1 knew models that were registered where they lie. Version 2 adds blobs, references and aliases.
pub(crate) const CURRENT: Schema = Schema { version: 2, migrations: &[from_1_to_2] };

const _: () = assert!(CURRENT.migrations.len() as u32 + 1 == CURRENT.version);

/// A model of version 1 lies where it was registered, and so do its files.
fn from_1_to_2(record: &mut Value) -> Result<(), String> {
    let record = record.as_object_mut().ok_or("not an object")?;
    let source = record.get("source").cloned().ok_or("no source")?;
    record.insert("reference".into(), source);
    record.insert("revision".into(), Value::Null);
    let files = record.get_mut("files").and_then(Value::as_array_mut).ok_or("no files")?;
    for file in files {
        let file = file.as_object_mut().ok_or("a file is not an object")?;
        file.insert("role".into(), "model".into());
        file.insert("held".into(), "elsewhere".into());
    }
    Ok(())
}

/// What is known of a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BlobRecord {
    pub(crate) size_bytes: u64,
    /// Models that have it.
    pub(crate) refs: u32,
}

/// A pull that began and has not ended; after a crash, what can be resumed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PullRecord {
    /// What was asked for.
    pub reference: String,
    /// When it began, Unix milliseconds.
    pub began_at_unix_ms: i64,
}

impl Schema {
    /// One record of `version`, brought to this schema's version.
    pub(crate) fn migrate(&self, version: u32, encoded: &[u8]) -> Result<Vec<u8>, String> {
        let mut value: Value = serde_json::from_slice(encoded).map_err(|error| error.to_string())?;
        for migration in &self.migrations[version.saturating_sub(1) as usize..] {
            migration(&mut value)?;
        }
        serde_json::to_vec(&value).map_err(|error| error.to_string())
    }
}

/// A record in bytes.
pub(crate) fn encode(record: &ModelRecord) -> Result<Vec<u8>, StoreError> {
    serde_json::to_vec(record)
        .map_err(|error| StoreError::Corrupt { name: record.name.clone(), why: error.to_string() })
}

/// The record under `key`.
pub(crate) fn decode(key: &str, encoded: &[u8]) -> Result<ModelRecord, StoreError> {
    let corrupt = |why: String| StoreError::Corrupt { name: key.to_owned(), why };
    let record: ModelRecord = serde_json::from_slice(encoded).map_err(|error| corrupt(error.to_string()))?;
    if crate::name::fold(&record.name) != key {
        return Err(corrupt("it names another model".to_owned()));
    }
    Ok(record)
}
