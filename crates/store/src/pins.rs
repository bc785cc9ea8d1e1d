//! Pins of running pulls: blobs that must stay until their model's record exists. No collection runs meanwhile.

use crate::{PullRecord, Store, StoreError};
use std::collections::HashMap;
use std::sync::PoisonError;

/// Pinned blobs with the number of pins of each, and the number of running pulls.
#[derive(Default)]
pub(crate) struct Pins {
    blobs: HashMap<String, usize>,
    pulls: usize,
}

impl Pins {
    /// Returns true if a pull relies on the blob.
    pub(crate) fn holds(&self, sha256: &str) -> bool {
        self.blobs.contains_key(sha256)
    }

    /// Number of running pulls.
    pub(crate) fn pulls(&self) -> usize {
        self.pulls
    }
}

/// Pin of one pull. While it lives, its blobs stay and nothing is collected.
pub(crate) struct Pin {
    store: Store,
    blobs: Vec<String>,
}

impl Store {
    /// Creates the pin of a new pull.
    pub(crate) fn pin(&self) -> Pin {
        self.pins.lock().unwrap_or_else(PoisonError::into_inner).pulls += 1;
        Pin { store: self.clone(), blobs: Vec::new() }
    }

    /// Records that a pull began. The record is removed with the change that publishes its model.
    pub(crate) fn begin_pull(&self, record: &PullRecord) -> Result<(), StoreError> {
        self.database.put_pull(&record.reference, record)
    }

    /// Number of running pulls, copies and imports.
    pub fn pulls_running(&self) -> usize {
        self.pins.lock().unwrap_or_else(PoisonError::into_inner).pulls
    }
}

impl Pin {
    /// Pins a blob for this pull.
    pub(crate) fn hold(&mut self, sha256: &str) {
        let mut pins = self.store.pins.lock().unwrap_or_else(PoisonError::into_inner);
        *pins.blobs.entry(sha256.to_owned()).or_default() += 1;
        self.blobs.push(sha256.to_owned());
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut pins = self.store.pins.lock().unwrap_or_else(PoisonError::into_inner);
        pins.pulls = pins.pulls.saturating_sub(1);
        for sha256 in &self.blobs {
            if let Some(count) = pins.blobs.get_mut(sha256) {
                *count -= 1;
                if *count == 0 {
                    pins.blobs.remove(sha256);
                }
            }
        }
    }
}
