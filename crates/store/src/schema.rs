//! Encoding of records, and migration of databases of older versions. A record is a JSON object. The key
//! is the name in its folded form, lower case (see `name::fold`). The database stores its schema version under one
//! key.

use crate::StoreError;
use crate::layout::{MANIFEST, MODELS};
use crate::record::ModelRecord;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Migrates one record to the next version. An `Err` leaves the record as it is. Reading it later fails with an
/// error that names the record; other records still work. The path is the store's current directory.
pub(crate) type Migration = fn(&mut Value, &Path) -> Result<(), String>;

/// Encoding version that a program writes, with the migrations from every older version.
pub(crate) struct Schema {
    /// Encoding version that this program writes.
    pub(crate) version: u32,
    /// Entry `i` leads from version `i + 1` to version `i + 2`.
    pub(crate) migrations: &'static [Migration],
}

/// Schema that this program reads and writes. If a change of [`ModelRecord`] makes old records undecodable, raise
/// the version and add a migration.
///
/// Version 1 had only models registered in place. Version 2 added blobs, references and aliases. In version 3
/// paths below the store's directory are relative to it, so that the store may be moved.
pub(crate) const CURRENT: Schema = Schema { version: 3, migrations: &[from_1_to_2, from_2_to_3] };

const _: () = assert!(CURRENT.migrations.len() as u32 + 1 == CURRENT.version);

/// Adds the fields of version 2. Version 1 had only models registered in place, whose files are elsewhere.
fn from_1_to_2(record: &mut Value, _: &Path) -> Result<(), String> {
    let record = record.as_object_mut().ok_or("not an object")?;
    // The reference of a model registered in place is its source.
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

/// Makes paths relative. If the store was moved, its paths still name the old directory. A folder with a manifest
/// identifies the store's part.
fn from_2_to_3(record: &mut Value, dir: &Path) -> Result<(), String> {
    let record = record.as_object_mut().ok_or("not an object")?;
    let files = record.get_mut("files").and_then(Value::as_array_mut).ok_or("no files")?;
    let mut of_store = false;
    for file in files {
        let own = file.get("held").is_some_and(|held| held != "elsewhere");
        of_store |= own;
        make_relative(file.get_mut("path").ok_or("a file has no path")?, own, dir)?;
    }
    make_relative(record.get_mut("path").ok_or("no path")?, of_store, dir)
}

fn make_relative(path: &mut Value, own: bool, dir: &Path) -> Result<(), String> {
    let text = path.as_str().ok_or("a path is no text")?;
    let was = Path::new(text);
    let below = relative(was, dir);
    // A model may contain folders called `models` too. The store's own `models` folder is the one below which the
    // model's folder has a manifest.
    let moved = || {
        let parts: Vec<_> = was.components().collect();
        let of_model = |models: &usize| {
            let folder = parts.get(models + 1).map(|part| dir.join(MODELS).join(part));
            parts[*models].as_os_str() == MODELS
                && folder.is_some_and(|folder| folder.join(MANIFEST).is_file())
        };
        let below = |models: usize| parts[models..].iter().collect::<PathBuf>();
        let found: Vec<PathBuf> = (0..parts.len()).filter(of_model).map(below).collect();
        // Prefers the last match that exists.
        found.iter().rfind(|below| dir.join(below).exists()).or(found.last()).cloned()
    };
    let kept = match own && below.is_absolute() {
        true => moved().unwrap_or_else(|| was.to_owned()),
        false => below.to_owned(),
    };
    *path = kept.to_str().ok_or("a path is no text")?.into();
    Ok(())
}

/// Makes a path below the store's directory relative; others stay as they are.
pub(crate) fn relative<'a>(path: &'a Path, dir: &Path) -> &'a Path {
    match path.strip_prefix(dir) {
        // The directory itself would become an empty path.
        Ok(below) if !below.as_os_str().is_empty() => below,
        _ => path,
    }
}

/// Record of a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BlobRecord {
    pub(crate) size_bytes: u64,
    /// Number of models that use this blob.
    pub(crate) refs: u32,
}

/// Record of an unfinished pull. After a crash it can be resumed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PullRecord {
    /// Model reference that is being pulled, such as `hf://…`.
    pub reference: String,
    /// Start time, Unix milliseconds.
    pub began_at_unix_ms: i64,
}

impl Schema {
    /// Migrates one record from `version` to this schema's version.
    pub(crate) fn migrate(&self, version: u32, encoded: &[u8], dir: &Path) -> Result<Vec<u8>, String> {
        let mut value: Value = serde_json::from_slice(encoded).map_err(|error| error.to_string())?;
        for migration in &self.migrations[version.saturating_sub(1) as usize..] {
            migration(&mut value, dir)?;
        }
        serde_json::to_vec(&value).map_err(|error| error.to_string())
    }
}

/// Encodes a record. Paths below `dir` become relative to it.
pub(crate) fn encode(record: &ModelRecord, dir: &Path) -> Result<Vec<u8>, StoreError> {
    let mut kept = record.clone();
    kept.path = relative(&record.path, dir).to_owned();
    for file in &mut kept.files {
        file.path = relative(&file.path, dir).to_owned();
    }
    serde_json::to_vec(&kept)
        .map_err(|error| StoreError::Corrupt { name: record.name.clone(), why: error.to_string() })
}

/// Decodes the record under `key`, of the store in `dir`.
pub(crate) fn decode(key: &str, encoded: &[u8], dir: &Path) -> Result<ModelRecord, StoreError> {
    let corrupt = |why: String| StoreError::Corrupt { name: key.to_owned(), why };
    let mut record: ModelRecord =
        serde_json::from_slice(encoded).map_err(|error| corrupt(error.to_string()))?;
    if crate::name::fold(&record.name) != key {
        return Err(corrupt("it names another model".to_owned()));
    }
    let leaves = |path: &Path| path.iter().any(|part| part == "..");
    if leaves(&record.path) || record.files.iter().any(|file| leaves(&file.path)) {
        return Err(corrupt("a path of it leads out of the store".to_owned()));
    }
    // If the store moves, an in-place model below it moves too; its source is recomputed here.
    let in_place = record.in_place && record.path.is_relative();
    if in_place && record.reference == record.source && record.source.starts_with("file://") {
        record.source = format!("file://{}", dir.join(&record.path).display());
        record.reference = record.source.clone();
    }
    record.path = dir.join(&record.path);
    for file in &mut record.files {
        file.path = dir.join(&file.path);
    }
    Ok(record)
}
