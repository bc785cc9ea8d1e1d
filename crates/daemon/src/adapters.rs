//! LoRA adapters of a served model: which are loaded, and how one is opened, charged to the memory budget and
//! handed to the worker. A request that names an adapter holds a reference to it. An unloaded adapter takes no new
//! requests; its memory is free once the last request that holds it has ended.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use hanzo_engine_runtime::{Adapter, AdapterBase, LoadError, LoadedAdapter, OpenedModel, Overrides};
use hanzo_engine_store::ModelLookup;
use tokio::sync::{Notify, broadcast::error::RecvError, oneshot};

use crate::{
    blocking::blocking,
    budget::Reservation,
    config::OnDemand,
    error::{Error, Failure, FailureReason},
    limits::ADAPTER_NAME_BYTES_MAX,
    models::{LoadRequest, Models, SHUTTING_DOWN},
    on_demand::Demand,
    registry::{Capability, InUse, key},
    served::ServedModel,
    source::ModelSource,
    unix_time::now_unix_ms,
    views::AdapterView,
    worker::{AdapterOrder, NotGiven, WorkItem},
};

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
    loads: tokio::sync::Mutex<Option<Reservation>>, // one load at a time; buffers of the first one
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

    fn has(&self, name: &str) -> bool {
        self.lock().contains_key(&key(name))
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

    fn names(&self) -> Vec<String> {
        self.lock().values().map(|held| held.view.name.clone()).collect()
    }

    fn get(&self, name: &str) -> Option<(AdapterView, Arc<LoadedAdapter>)> {
        self.lock().get(&key(name)).map(|held| (held.view.clone(), held.handle.clone()))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, HeldAdapter>> {
        // Every update replaces whole entries, so a poisoned lock is safe to use.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Model chosen for a request, with the adapter to apply.
pub(crate) struct Chosen {
    pub(crate) served: InUse,
    pub(crate) adapter: Option<ChosenAdapter>,
}

/// Adapter to apply to a request.
pub(crate) struct ChosenAdapter {
    pub(crate) name: String,
    pub(crate) handle: Arc<LoadedAdapter>,
}

impl Chosen {
    /// Name of the responding model: `model`, or `model:adapter`.
    pub(crate) fn name(&self) -> String {
        match &self.adapter {
            Some(adapter) => format!("{}:{}", self.served.name, adapter.name),
            None => self.served.name.clone(),
        }
    }
}

impl ServedModel {
    /// Looks up a loaded adapter by name.
    ///
    /// # Errors
    /// [`Error::NoAdapter`]; [`Error::Loading`] for an adapter that is still being restored after a restart.
    fn adapter(&self, name: &str) -> Result<ChosenAdapter, Error> {
        match self.adapters.get(name) {
            Some((view, handle)) => Ok(ChosenAdapter { name: view.name, handle }),
            None if self.adapters.wanted.has(name) => Err(Error::Loading {
                name: format!("{}:{name}", self.name),
                percent: 0,
                waits: false,
                retry_after_ms: None,
            }),
            None => Err(Error::NoAdapter {
                model: self.name.clone(),
                asked: name.to_owned(),
                loaded: self.adapters.names(),
            }),
        }
    }
}

impl Models {
    /// Resolves the model and the adapter that a request names. A non-empty `adapter` is looked up in the model.
    /// Otherwise the order is: a loaded model named exactly `asked`; `model:adapter`, if that model has or will
    /// have the adapter; a stored model named `asked`; an adapter name that only one model has.
    pub(crate) async fn chosen(
        self: &Arc<Self>,
        asked: &str,
        adapter: &str,
        wanted: Capability,
        demand: Demand<'_>,
    ) -> Result<Chosen, Error> {
        if !adapter.is_empty() {
            return self.with_adapter(asked, adapter, wanted, demand).await;
        }
        let name = self.loaded_name(asked).await;
        if !self.registry.has(&name) {
            if let Some((base, adapter)) =
                asked.rsplit_once(':').filter(|(base, name)| !base.is_empty() && !name.is_empty())
            {
                let base = self.loaded_name(base).await;
                // `base` may match only part of a loaded model's name. Check first whether `asked` is a known
                // model.
                let there = self.registry.has(&base);
                if self.has_adapter(&base, adapter) || (there && !self.knows(asked).await) {
                    return self.with_adapter(&base, adapter, wanted, demand).await;
                }
            } else if let Some(chosen) = self.only_adapter(asked) {
                return Ok(chosen);
            } else if let Some(base) = self.only_coming_with(asked)
                && !self.knows(asked).await
            {
                return self.with_adapter(&base, asked, wanted, demand).await;
            }
        }
        Ok(Chosen { served: self.serving(asked, wanted, demand).await?, adapter: None })
    }

    /// Resolves a model with one of its adapters. With on-demand loading, waits for an adapter that is loaded
    /// together with its model.
    async fn with_adapter(
        self: &Arc<Self>,
        base: &str,
        adapter: &str,
        wanted: Capability,
        demand: Demand<'_>,
    ) -> Result<Chosen, Error> {
        let coming = async {
            loop {
                let served = self.serving(base, wanted, demand).await?;
                let wanted = served.adapters.wanted.clone();
                let mut change = std::pin::pin!(wanted.changed.notified());
                change.as_mut().enable();
                let mut changes = self.registry.changes();
                match served.adapter(adapter) {
                    Ok(adapter) => return Ok(Chosen { served, adapter: Some(adapter) }),
                    Err(Error::Loading { .. }) if self.section().on_demand != OnDemand::Never => {}
                    Err(error) => return Err(error),
                }
                // The worker may end meanwhile; the adapter is then loaded with the next worker.
                tokio::select! {
                    () = change => {}
                    change = changes.recv() => {
                        if let Err(RecvError::Closed) = change {
                            return Err(Error::Stopped { what: SHUTTING_DOWN });
                        }
                    }
                }
            }
        };
        match demand.by {
            Some(by) => tokio::time::timeout_at(by.into(), coming).await.unwrap_or_else(|_| {
                let name = format!("{base}:{adapter}");
                Err(Error::Loading { name, percent: 0, waits: false, retry_after_ms: None })
            }),
            None => coming.await,
        }
    }

    /// Checks whether a model has an adapter or is configured to load it.
    fn has_adapter(&self, base: &str, adapter: &str) -> bool {
        match self.registry.all_serving().into_iter().find(|served| key(&served.name) == key(base)) {
            Some(served) => served.adapters.get(adapter).is_some() || served.adapters.wanted.has(adapter),
            None => self.configured(base).is_some_and(|request| comes_with(request, adapter)),
        }
    }

    /// Name of the only configured model, not loaded yet, that comes with this adapter. Nothing if several do.
    fn only_coming_with(&self, adapter: &str) -> Option<String> {
        if self.section().on_demand == OnDemand::Never {
            return None;
        }
        let mut found = self.configured.iter().filter(|request| comes_with(request, adapter));
        let request = found.next().filter(|_| found.next().is_none())?;
        Some(request.alias.clone().unwrap_or_else(|| request.source.clone()))
    }

    /// Checks whether a name is a model's, in the configuration or in the store's index. No model file is opened.
    async fn knows(&self, asked: &str) -> bool {
        if self.configured(asked).is_some() {
            return true;
        }
        let asked = asked.to_owned();
        let found = self.with_store(move |store| store.resolve(&asked)).await;
        matches!(found, Ok(ModelLookup::Stored(_)))
    }

    /// Finds an adapter by name if exactly one model has it.
    fn only_adapter(&self, name: &str) -> Option<Chosen> {
        let mut found =
            self.registry.all_serving().into_iter().filter(|served| served.adapters.get(name).is_some());
        let served = found.next().filter(|_| found.next().is_none())?;
        let served = self.registry.serving(&served.name, Capability::Any).ok()?;
        let adapter = served.adapter(name).ok()?;
        Some(Chosen { served, adapter: Some(adapter) })
    }

    /// Loads an adapter into a model and waits until requests may name it. If the same files are already loaded
    /// under that name, answers with that adapter.
    ///
    /// # Errors
    /// An invalid name or file, or memory that the budget does not have. Nothing is kept then.
    pub(crate) async fn load_adapter(
        &self,
        asked: &str,
        wanted: WantedAdapter,
    ) -> Result<(String, AdapterView), Error> {
        check_name(&wanted.name)?;
        let served = self.loaded(asked, Capability::Generate).await?;
        let rows = served.must_generate()?.step_tokens_max;
        let Some(spec) = served.spec.clone() else { return Err(served.cannot("take adapters")) };
        let mut buffers = served.adapters.loads.lock().await;
        let path = wanted.path.clone();
        let (of, files) = (spec.clone(), served.files.clone());
        let (path, adapter) = blocking(move || {
            let again = || Ok(files.open()?.into_decoder());
            open(&path, &AdapterBase::reopened(&of, &again))
        })
        .await?;
        if let Some((view, handle)) = served.adapters.get(&wanted.name) {
            if handle.digest == adapter.digest {
                return Ok((served.name.clone(), view));
            }
            let loaded_from = view.path.display().to_string();
            return Err(Error::AdapterTaken { name: view.name, model: served.name.clone(), loaded_from });
        }
        let own = [served.planner.adapter_memory(&spec, &adapter, rows)].into_iter();
        let others = served.planner.adapter_memory_beside(&spec, &adapter, rows);
        let (bytes, buffer_bytes): (Vec<u64>, Vec<u64>) = own.chain(others).unzip();
        if buffers.is_none() {
            *buffers = Some(self.reserve(&served, &wanted.name, &buffer_bytes)?);
        }
        let kept = self.reserve(&served, &wanted.name, &bytes)?;
        let view = AdapterView {
            name: wanted.name.clone(),
            path,
            format: adapter.format,
            rank: adapter.rank,
            bytes: bytes.iter().sum(),
            loaded_at_unix_ms: now_unix_ms(),
        };
        let (reply, replied) = oneshot::channel();
        let order = AdapterOrder { adapter: Box::new(adapter), kept, reply };
        served.worker.give(WorkItem::Adapter(order), Instant::now()).map_err(|error| match error {
            NotGiven::Full => served.queue_full(),
            NotGiven::Left => Error::Stopped { what: "the model's worker ended" },
        })?;
        let loaded = replied.await.map_err(|_| Error::Stopped { what: SHUTTING_DOWN })?;
        let handle = loaded.map_err(|error| Error::Adapter(Failure::new(error)))?;
        served.adapters.lock().insert(key(&wanted.name), HeldAdapter { view: view.clone(), handle });
        served.adapters.wanted.lock().insert(key(&wanted.name), wanted);
        served.adapters.wanted.changed.notify_waiters();
        tracing::info!(
            model = served.name,
            adapter = view.name,
            rank = view.rank,
            memory_bytes = view.bytes,
            "adapter loaded"
        );
        Ok((served.name.clone(), view))
    }

    /// Reserves memory in the model's place (the first element of `bytes`) and in each place beside it (the
    /// others).
    fn reserve(&self, served: &ServedModel, adapter: &str, bytes: &[u64]) -> Result<Reservation, Error> {
        let in_place = |place, bytes| self.reserve_in(place, &served.name, adapter, bytes);
        let (own, others) = bytes.split_first().expect("a model has a place");
        let own = in_place(served.place, *own)?;
        let others = served.beside.iter().zip(others);
        others.map(|(&place, &bytes)| in_place(place, bytes)).try_fold(own, |own, other| Ok(own.with(other?)))
    }

    fn reserve_in(&self, place: usize, model: &str, adapter: &str, bytes: u64) -> Result<Reservation, Error> {
        let reserved = self.places[place].budget.reserve(|free_bytes| match bytes <= free_bytes {
            true => Ok((bytes, ())),
            false => Err(LoadError::DoesNotFit {
                model: format!("adapter {model}:{adapter}"),
                needed_bytes: bytes,
                weights_bytes: bytes,
                kv_bytes: 0,
                scratch_bytes: 0,
                free_bytes,
                hint: "; unload another adapter or a model, or load the model with less kv_bytes".to_owned(),
            }),
        });
        Ok(reserved.map_err(|error| Error::Adapter(Failure::new(error)))?.0)
    }

    /// Removes an adapter from a model. New requests for it are refused; those that run with it finish.
    ///
    /// # Errors
    /// [`Error::NoAdapter`], or [`Error::Loading`] while it is being restored.
    pub(crate) async fn unload_adapter(
        &self,
        asked: &str,
        name: &str,
    ) -> Result<(String, AdapterView), Error> {
        let served = self.loaded(asked, Capability::Any).await?;
        served.adapters.wanted.lock().remove(&key(name));
        let held = served.adapters.lock().remove(&key(name));
        let Some(HeldAdapter { view, handle }) = held else {
            return Err(served.adapter(name).err().unwrap_or(Error::Stopped { what: SHUTTING_DOWN }));
        };
        drop(handle);
        // Wake an idle worker so that it frees the adapter too.
        served.worker.waker().wake_by_ref();
        tracing::info!(model = served.name, adapter = view.name, "adapter unloaded");
        Ok((served.name.clone(), view))
    }

    /// Reloads the adapters that a failed worker had.
    pub(crate) async fn restore_adapters(&self, model: &str, wanted: &WantedAdapters) {
        for adapter in wanted.all() {
            let name = adapter.name.clone();
            if let Err(error) = self.load_adapter(model, adapter).await {
                wanted.lock().remove(&key(&name));
                wanted.changed.notify_waiters();
                tracing::error!(model, adapter = name, %error, "an adapter did not come back with its model");
            }
        }
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

fn comes_with(request: &LoadRequest, adapter: &str) -> bool {
    request.adapters.iter().any(|wanted| key(&wanted.name) == key(adapter))
}

fn check_name(name: &str) -> Result<(), Error> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'/');
    if name.is_empty() || name.len() > ADAPTER_NAME_BYTES_MAX || !name.bytes().all(plain) {
        let reason =
            format!("must be 1 to {ADAPTER_NAME_BYTES_MAX} of letters, digits, and - _ . / without others");
        return Err(Error::field("name", reason));
    }
    Ok(())
}

fn open(path: &str, base: &AdapterBase<'_>) -> Result<(PathBuf, Adapter), Error> {
    if path.is_empty() {
        let reason =
            "must be a directory that PEFT has saved, or a GGUF file of an adapter, on the daemon's machine";
        return Err(Error::field("path", reason));
    }
    let path = Path::new(path.strip_prefix("file://").unwrap_or(path));
    let failed = |error: LoadError| Error::Adapter(Failure::new(FailureReason::Load(error)));
    let path =
        path.canonicalize().map_err(|source| failed(LoadError::Io { path: path.to_owned(), source }))?;
    let adapter = Adapter::open(&path, base).map_err(failed)?;
    Ok((path, adapter))
}
