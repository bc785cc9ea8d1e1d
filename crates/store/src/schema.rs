//! How records are encoded, and how a database that an older version wrote becomes one of this version. A record
//! is a JSON object under its folded name; the database states its schema version under one key.

use crate::StoreError;
use crate::record::ModelRecord;
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
pub(crate) const CURRENT: Schema = Schema { version: 1, migrations: &[] };

const _: () = assert!(CURRENT.migrations.len() as u32 + 1 == CURRENT.version);

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
