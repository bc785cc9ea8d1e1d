//! LoRA adapters of a served model. A request that names an adapter holds a reference to it. An unloaded adapter
//! takes no new requests; its memory is free once the last request that holds it has ended.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use hanzo_engine_runtime::{LoadError, LoadedAdapter, OpenedModel, Overrides};
use tokio::sync::{Notify, futures::Notified};

use crate::{budget::Reservation, name_key::key, source::ModelSource, views::AdapterView};

/// An adapter to load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WantedAdapter {
    /// Name that requests use for it.
    pub(crate) name: String,
    /// Directory saved by PEFT, or a GGUF adapter file.
    pub(crate) path: String,
}

/// Adapters of one load of a model. Names are normalised with the same `key` as model names.
#[derive(Default)]
pub(crate) struct Adapters {
    held: Mutex<BTreeMap<String, HeldAdapter>>,
    /// Adapters that are loaded again when the worker restarts.
    pub(crate) wanted: Arc<WantedAdapters>,
    /// Lock of loads, one at a time. It holds the memory of the buffers that the first one allocates.
    pub(crate) loads: tokio::sync::Mutex<Option<Reservation>>,
}

/// Adapters that a model should have. They outlive a restart of its worker.
#[derive(Default)]
pub(crate) struct WantedAdapters {
    by_name: Mutex<BTreeMap<String, WantedAdapter>>,
    /// Notified when an adapter was loaded, or failed to come back.
    changed: Notify,
}

struct HeldAdapter {
    view: AdapterView,
    handle: Arc<LoadedAdapter>,
}

impl WantedAdapters {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, WantedAdapter>> {
        // Every update replaces whole entries, so a poisoned lock is safe to use.
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns all adapters, by name.
    pub(crate) fn all(&self) -> Vec<WantedAdapter> {
        self.lock().values().cloned().collect()
    }

    /// Collects the adapters that a model is loaded with.
    pub(crate) fn of(adapters: &[WantedAdapter]) -> WantedAdapters {
        let keyed = adapters.iter().map(|adapter| (key(&adapter.name), adapter.clone()));
        WantedAdapters { by_name: Mutex::new(keyed.collect()), changed: Notify::new() }
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Whether the model should have this adapter.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.lock().contains_key(&key(name))
    }

    /// Removes an adapter that did not come back.
    pub(crate) fn give_up(&self, name: &str) {
        self.lock().remove(&key(name));
        self.changed.notify_waiters();
    }

    /// Waits until an adapter was loaded, or failed to come back.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }
}

impl Adapters {
    /// Starts a new load of the model; `wanted` is carried over from the previous one.
    pub(crate) fn new(wanted: Arc<WantedAdapters>) -> Self {
        Self { wanted, ..Self::default() }
    }

    /// Lists all adapters in order of name.
    pub(crate) fn views(&self) -> Vec<AdapterView> {
        self.lock().values().map(|held| held.view.clone()).collect()
    }

    /// Lists all names in order.
    pub(crate) fn names(&self) -> Vec<String> {
        self.lock().values().map(|held| held.view.name.clone()).collect()
    }

    /// Finds an adapter by name.
    pub(crate) fn get(&self, name: &str) -> Option<(AdapterView, Arc<LoadedAdapter>)> {
        self.lock().get(&key(name)).map(|held| (held.view.clone(), held.handle.clone()))
    }

    /// Adds a loaded adapter.
    pub(crate) fn add(&self, wanted: WantedAdapter, view: AdapterView, handle: Arc<LoadedAdapter>) {
        self.lock().insert(key(&wanted.name), HeldAdapter { view, handle });
        self.wanted.lock().insert(key(&wanted.name), wanted);
        self.wanted.changed.notify_waiters();
    }

    /// Removes an adapter, also from those that come back. Nothing if it is not loaded.
    pub(crate) fn remove(&self, name: &str) -> Option<(AdapterView, Arc<LoadedAdapter>)> {
        self.wanted.lock().remove(&key(name));
        let held = self.lock().remove(&key(name))?;
        Some((held.view, held.handle))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, HeldAdapter>> {
        // Every update replaces whole entries, so a poisoned lock is safe to use.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Source of a loaded model, to reopen its files for adapters that need its weights.
#[derive(Clone, Debug)]
pub(crate) struct BaseModel {
    pub(crate) source: ModelSource,
    pub(crate) overrides: Overrides,
}

impl BaseModel {
    /// # Errors
    /// As [`ModelSource::open`].
    pub(crate) fn open(&self) -> Result<OpenedModel, LoadError> {
        self.source.open_with(&self.overrides)
    }
}
