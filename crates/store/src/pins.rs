//! What pulls that run count on: blobs that must stay until their model's record is there, and that nothing is
//! collected meanwhile.

use crate::{PullRecord, Store, StoreError};
use std::collections::HashMap;
use std::sync::PoisonError;

/// Blobs that running pulls have or will have, and how many of those there are.
#[derive(Default)]
pub(crate) struct Pins {
    blobs: HashMap<String, usize>,
    pulls: usize,
}

impl Pins {
    /// Whether a pull counts on the blob.
    pub(crate) fn holds(&self, sha256: &str) -> bool {
        self.blobs.contains_key(sha256)
    }

    /// Pulls that run.
    pub(crate) fn pulls(&self) -> usize {
        self.pulls
    }
}

/// While it lives, its blobs stay and nothing is collected.
pub(crate) struct Pin {
    store: Store,
    blobs: Vec<String>,
}

impl Store {
    /// Begins a pull.
    pub(crate) fn pin(&self) -> Pin {
        self.pins.lock().unwrap_or_else(PoisonError::into_inner).pulls += 1;
        Pin { store: self.clone(), blobs: Vec::new() }
    }

    /// Notes that a pull began, until it ends with its model's record.
    pub(crate) fn begin_pull(&self, record: &PullRecord) -> Result<(), StoreError> {
        self.database.put_pull(&record.reference, record)
    }

    /// Pulls, copies and imports that are running.
    pub fn pulls_running(&self) -> usize {
        self.pins.lock().unwrap_or_else(PoisonError::into_inner).pulls
    }
}

impl Pin {
    /// The pull counts on this blob from now on.
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
