//! Record of the overridden settings that were read. A file's settings mark them, so that an override that nothing
//! reads can be refused.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::error::LoadError;

/// Record of which overridden settings were read.
#[derive(Clone, Debug, Default)]
pub struct OverrideRecord {
    file: String,
    keys: Arc<BTreeMap<String, (String, AtomicBool)>>,
}

impl OverrideRecord {
    /// Creates a record for a file, from each key and the whole override.
    pub fn new(file: &str, keys: impl Iterator<Item = (String, String)>) -> Self {
        // An object's settings are read together.
        let unread = |(key, over)| (key, (over, AtomicBool::new(false)));
        Self { file: file.to_owned(), keys: Arc::new(keys.map(unread).collect()) }
    }

    /// Marks a key as read; in a `config.json`, all keys that start with it.
    pub fn read(&self, key: &str) {
        for (watched, (_, read)) in self.keys.iter() {
            if watched == key || watched.split_once('.').is_some_and(|(first, _)| first == key) {
                read.store(true, Relaxed);
            }
        }
    }

    /// Checks that all settings were read.
    ///
    /// # Errors
    /// Naming the first unread one.
    pub fn check(&self) -> Result<(), LoadError> {
        match self.keys.values().find(|(_, read)| !read.load(Relaxed)) {
            None => Ok(()),
            Some((over, _)) => Err(LoadError::Unsupported {
                file: self.file.clone(),
                key: "override_kv".into(),
                value: over.clone(),
                reason: "nothing reads this key of this model; check its spelling with `inspect`".into(),
            }),
        }
    }
}
