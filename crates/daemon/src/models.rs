//! Life cycle of models: load, run, fail, restart, unload. Each model has one task that owns its life and alone
//! changes its state. [`crate::registry`] holds the state that others see.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use hanzo_engine_process::tasks;
use hanzo_engine_store::{ModelLookup, Store, StoreError, check_name, derive_name};
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use crate::{
    adapters::{WantedAdapter, WantedAdapters},
    blocking::blocking,
    config::{EngineSection, OnDemand},
    devices::DevicePlace,
    draft,
    error::{Error, Failure, FailureReason},
    keep_alive::KeepAlive,
    launch::Exit,
    limits::REQUEST_COMES_WITHIN,
    load_request::LoadRequest,
    load_waits::{LoadTimes, Waiters},
    metrics::{Metrics, ModelMetrics},
    name_key::key,
    prefix_disk::PrefixDisk,
    registry::{Capability, EntryState, InUse, LoadProgress, NewLife, OnConflict, Registry, RegistryEntry},
    restarts::Restarts,
    served::ServedModel,
    sizing::LoadOptions,
    source::{ArgumentMatch, ModelSource, ResolvedModel, find, resolve_with},
    unix_time::now_unix_ms,
    usage::{IdleLimit, LifeUsage},
    views::{ModelView, StateView},
};

/// Reason given to requests that end because the daemon stops. Part of a worker's final messages.
pub(crate) const SHUTTING_DOWN: &str = "the engine shut down";
const UNLOADED: &str = "the model was unloaded";

/// Loader of models.
pub(crate) struct Models {
    pub(crate) registry: Registry,
    /// Devices that models are loaded on, in order of preference; never empty.
    pub(crate) places: Vec<DevicePlace>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) store: Option<Store>,
    /// Reason why there is no store.
    pub(crate) store_missing: String,
    /// Settings of models that are loaded from now on.
    pub(crate) section: RwLock<EngineSection>,
    /// Disk storage for KV blocks.
    pub(crate) prefix_disk: Option<Arc<PrefixDisk>>,
    /// Configured models, to be loaded when requests name them.
    pub(crate) configured: Vec<LoadRequest>,
    /// Number of configured loads at startup that have not ended yet.
    pub(crate) starting: AtomicUsize,
    /// Lock of loads that wait for others to free memory: one at a time, in order of arrival.
    pub(crate) room: tokio::sync::Mutex<()>,
    /// Requests that wait for their models.
    pub(crate) waiters: Waiters,
    /// Durations of past loads, by name.
    pub(crate) load_times: LoadTimes,
}

/// Origin of a load's source, which decides how it is trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AskedBy {
    /// The operator: the source may be a path.
    Operator,
    /// A request: the source must be a known name, so that clients cannot probe the disk.
    Request,
}

/// Resolved and checked load.
pub(crate) struct Wish {
    pub(crate) name: String,
    pub(crate) resolved: ResolvedModel,
    pub(crate) draft: Option<ModelSource>,
    pub(crate) want: LoadOptions,
    /// Adapters that the model's own task loads with it.
    pub(crate) adapters: Vec<WantedAdapter>,
    pub(crate) kept: IdleLimit,
}

/// Life of a model, from its load to its end.
pub(crate) struct Life {
    pub(crate) name: String,
    pub(crate) number: u64,
    pub(crate) source: ModelSource,
    pub(crate) stored: bool,
    pub(crate) want: LoadOptions,
    pub(crate) draft: Option<ModelSource>,
    pub(crate) stop: CancellationToken,
    pub(crate) metrics: Arc<ModelMetrics>,
    pub(crate) adapters: Arc<WantedAdapters>,
    pub(crate) usage: Arc<LifeUsage>,
}

impl Models {
    /// Loads a model and waits until it is ready or has failed. Concurrent requests for a model share one load. If
    /// it is loaded already, returns at once with a duration of zero. The load continues if the caller disconnects.
    pub(crate) async fn load(self: &Arc<Self>, request: LoadRequest) -> Result<(ModelView, Duration), Error> {
        let began = Instant::now();
        let kept = match (request.as_request, request.keep_alive) {
            (false, alive) => IdleLimit { alive: alive.unwrap_or(KeepAlive::Pinned), by_operator: true },
            (true, alive) => {
                let alive = alive.unwrap_or(self.section().keep_alive).at_least(REQUEST_COMES_WITHIN);
                IdleLimit { alive, by_operator: false }
            }
        };
        let adapters = request.adapters.clone();
        let wish =
            self.wish(LoadRequest { adapters: Vec::new(), ..request }, kept, AskedBy::Operator).await?;
        let name = wish.name.clone();
        let joined = loop {
            let mut changes = self.registry.changes();
            match self.begin_in_place(&wish).await {
                Err(Error::Unloading { .. }) if self.registry.is_leaving(&name) => {
                    // The model is being evicted and can be loaded again afterwards.
                    if let Err(RecvError::Closed) = changes.recv().await {
                        return Err(Error::Stopped { what: SHUTTING_DOWN });
                    }
                }
                joined => break joined?,
            }
        };
        // Keeps the model loaded until the caller has seen it.
        let _using = self.registry.hold(&name);
        let mut view = self.settled(&name).await?;
        for adapter in adapters {
            self.load_adapter(&name, adapter).await?;
            view = self.registry.view(&name)?;
        }
        Ok((view, if joined == LoadOutcome::Loaded { Duration::ZERO } else { began.elapsed() }))
    }

    /// Resolves a load request. Nothing is loaded yet.
    ///
    /// # Errors
    /// Reason why it cannot be resolved.
    pub(crate) async fn wish(
        &self,
        request: LoadRequest,
        kept: IdleLimit,
        asked_by: AskedBy,
    ) -> Result<Wish, Error> {
        let LoadRequest { source, alias, want, adapters, .. } = request;
        let (store, overrides) = (self.store.clone(), want.overrides.clone());
        let resolve = move || match asked_by {
            AskedBy::Operator => resolve_with(&source, store.as_ref(), &overrides),
            AskedBy::Request => match find(&source, store.as_ref(), true)? {
                ArgumentMatch::Known(resolved) => Ok(resolved),
                ArgumentMatch::Path(_) => Err(Error::NoSource { asked: source, stored: Vec::new() }),
            },
        };
        let resolved = blocking(resolve).await?;
        let name = match alias {
            Some(alias) => {
                check_name(&alias).map_err(|error| Error::field("alias", error.to_string()))?;
                alias
            }
            // A model that is loaded under another name is not loaded twice.
            None if resolved.stored => {
                let loaded = self.registry.name_of(&resolved.source, &resolved.name);
                loaded.unwrap_or_else(|| resolved.name.clone())
            }
            None => resolved.name.clone(),
        };
        let draft = match want.draft_model.clone() {
            Some(asked) => {
                let (store, section) = (self.store.clone(), self.section());
                Some(blocking(move || draft::find(&asked, &section, store.as_ref())).await?)
            }
            None => None,
        };
        Ok(Wish { name, resolved, draft, want, adapters, kept })
    }

    /// Loads a configured model like [`Models::load`]. If it cannot be resolved or opened, it is still listed as
    /// failed, because an operator expects to find it among the models.
    ///
    /// # Errors
    /// Reason why it was not loaded.
    pub(crate) async fn load_configured(self: &Arc<Self>, request: LoadRequest) -> Result<(), Error> {
        let Err(error) = self.load(request.clone()).await else { return Ok(()) };
        self.list_failed(request, &error);
        Err(error)
    }

    /// Lists a model whose load never began as failed, unless its name is taken.
    fn list_failed(&self, request: LoadRequest, error: &Error) {
        let LoadRequest { source, alias, want, .. } = request;
        let given = alias.into_iter().chain([source.clone()]).find(|name| check_name(name).is_ok());
        let name = given.unwrap_or_else(|| derive_name(Path::new(&source)));
        let failure = match error {
            Error::Load(failure) => failure.clone(),
            error => Failure::new(FailureReason::Source(error.to_string())),
        };
        let source = ModelSource::Path(PathBuf::from(source));
        let metrics = || self.metrics.model(&name);
        let kind = failure.reason.kind();
        if let Ok(true) = self.registry.begin_failed(&name, source, want, metrics, failure) {
            self.metrics.load(&name, None);
            self.metrics.error(&name, kind);
        }
    }

    /// Begins a life, or joins the existing one.
    ///
    /// # Errors
    /// Reason why neither is possible.
    pub(crate) fn begin(self: &Arc<Self>, wish: &Wish) -> Result<LoadOutcome, Error> {
        let Wish { name, resolved: ResolvedModel { source, stored, .. }, draft, want, adapters, kept } = wish;
        let mut joined = LoadOutcome::Begun;
        let on_conflict = |entry: &RegistryEntry| {
            let taken =
                || Error::NameTaken { name: entry.name.clone(), source_loaded: entry.source.describe() };
            match &entry.state {
                EntryState::Failed { .. } => Ok(OnConflict::Replace),
                _ if entry.source != *source => Err(taken()),
                EntryState::Draining(_) => Err(Error::Unloading { name: entry.name.clone() }),
                _ if *want != LoadOptions::default() && *want != entry.want => {
                    Err(Error::LoadedOtherwise { name: entry.name.clone() })
                }
                EntryState::Loading(_) | EntryState::Ready(_) => {
                    if matches!(entry.state, EntryState::Ready(_)) {
                        joined = LoadOutcome::Loaded;
                    }
                    if kept.by_operator {
                        entry.usage.keep(kept.alive);
                    }
                    Ok(OnConflict::Join)
                }
            }
        };
        // Created only for a life that begins, so that refused names do not become labels.
        let metrics = || self.metrics.model(name);
        let begun = self.registry.begin(name, source.clone(), want.clone(), metrics, *kept, on_conflict)?;
        if let Some(NewLife { life: number, stop, metrics, progress, usage }) = begun {
            let life = Life {
                name: name.clone(),
                number,
                source: source.clone(),
                stored: *stored,
                want: want.clone(),
                draft: draft.clone(),
                stop,
                metrics,
                adapters: Arc::new(WantedAdapters::of(adapters)),
                usage,
            };
            tasks::spawn(self.clone().live(life, progress));
        }
        Ok(joined)
    }

    /// Waits until a model is no longer loading.
    async fn settled(&self, name: &str) -> Result<ModelView, Error> {
        loop {
            let (_, mut changes) = self.registry.watch();
            let view = self.registry.with(name, |entry| {
                let failure = match &entry.state {
                    EntryState::Failed { failure, .. } => Some(failure.clone()),
                    _ => None,
                };
                ((entry.view(), failure), false)
            })?;
            match view {
                (_, Some(failure)) => return Err(Error::Load(failure)),
                (view, None) if !matches!(view.state, StateView::Loading { .. }) => return Ok(view),
                _ => {}
            }
            if let Err(RecvError::Closed) = changes.recv().await {
                return Err(Error::Stopped { what: SHUTTING_DOWN });
            }
        }
    }

    /// Name under which the model is loaded that `asked` stands for. This is `asked` itself if a model is loaded
    /// under exactly that name. Otherwise it is the name of the stored model that the store resolves it to, aliases
    /// first. If neither exists, returns `asked`, which may still match part of a loaded model's name.
    pub(crate) async fn loaded_name(&self, asked: &str) -> String {
        let unknown = || asked.to_owned();
        if asked.is_empty() || self.registry.has(asked) {
            return unknown();
        }
        let wanted = asked.to_owned();
        // Only the store's index is consulted, not the disk.
        let found = self.with_store(move |store| Ok((store.resolve(&wanted)?, store.dir().to_owned()))).await;
        // An error of the store does not matter here: the name may be a loaded model's.
        let Ok((ModelLookup::Stored(record), dir)) = found else { return unknown() };
        let same_files = self.registry.name_of(&ModelSource::Path(record.path), &record.name);
        // A model that was pulled again since its load has another path in the store.
        let before = || {
            let view = self.registry.view(&record.name).ok()?;
            let of_store = matches!(&view.source, ModelSource::Path(path) if path.starts_with(&dir));
            (of_store && key(&view.name) == key(&record.name)).then_some(view.name)
        };
        same_files.or_else(before).unwrap_or_else(unknown)
    }

    /// Loaded model that a name stands for; see [`Models::loaded_name`] and [`Registry::serving`]. For a model that
    /// is not loaded, the error says whether it could be.
    pub(crate) async fn loaded(&self, asked: &str, wanted: Capability) -> Result<InUse, Error> {
        match self.registry.serving(&self.loaded_name(asked).await, wanted) {
            Err(Error::NotLoaded { asked, loaded, .. }) => {
                let (store, name) = (self.store.clone(), asked.clone());
                match blocking(move || find(&name, store.as_ref(), true)).await {
                    Ok(ArgumentMatch::Known(model)) => {
                        Err(Error::OnlyStored { asked, name: model.name, loaded })
                    }
                    // The store's own error does not matter for a model that is not loaded.
                    Ok(ArgumentMatch::Path(_)) | Err(_) => {
                        Err(Error::NotLoaded { asked, loaded, stored: self.stored_names().await })
                    }
                }
            }
            other => other,
        }
    }

    async fn stored_names(&self) -> Vec<String> {
        let Some(store) = self.store.clone() else { return Vec::new() };
        let list =
            move || Ok::<_, Error>(store.list()?.models.into_iter().map(|record| record.name).collect());
        // The names only improve a message.
        blocking(list).await.unwrap_or_default()
    }

    /// Runs blocking `work` on the store.
    ///
    /// # Errors
    /// [`Error::NoStore`], and errors of the store.
    pub(crate) async fn with_store<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Error> {
        let no_store = || Error::NoStore { reason: self.store_missing.clone() };
        let store = self.store.clone().ok_or_else(no_store)?;
        blocking(move || work(&store).map_err(Error::from)).await
    }

    /// Unloads a model and waits until its memory is free. Running requests finish first; with `force` they end
    /// now. Returns the model's last state.
    pub(crate) async fn unload(&self, asked: &str, force: bool) -> Result<ModelView, Error> {
        let asked = self.loaded_name(asked).await;
        let mut seen: Option<(u64, ModelView)> = None;
        let mut stopped = false;
        loop {
            let (_, mut changes) = self.registry.watch();
            let asked = seen.as_ref().map_or(asked.as_str(), |(_, view)| view.name.as_str());
            let look = self.registry.with(asked, |entry| {
                let ours = seen.as_ref().is_none_or(|(life, _)| *life == entry.life);
                let begun = ours && self.begin_unloading(entry, force, &mut stopped);
                ((entry.life, entry.view(), ours), begun)
            });
            match (look, seen) {
                (Err(error), None) => return Err(error),
                // The model is gone, or was loaded again since.
                (Err(_) | Ok((_, _, false)), Some((_, view))) => {
                    return Ok(ModelView { state: StateView::Unloaded, worker: None, ..view });
                }
                (Ok((life, view, _)), _) => {
                    if matches!(view.state, StateView::Failed { .. }) {
                        self.registry.forget(&view.name, life);
                    }
                    seen = Some((life, view));
                }
            }
            if let Err(RecvError::Closed) = changes.recv().await {
                return Err(Error::Stopped { what: SHUTTING_DOWN });
            }
        }
    }

    /// Begins to unload; true if the entry's state changed.
    fn begin_unloading(&self, entry: &mut RegistryEntry, force: bool, stopped: &mut bool) -> bool {
        let ready = match &entry.state {
            EntryState::Ready(served) => Some(served.clone()),
            EntryState::Draining(_) | EntryState::Loading(_) => None,
            EntryState::Failed { .. } => {
                entry.stop.cancel();
                None
            }
        };
        let changed = ready.is_some();
        if let Some(served) = ready {
            served.worker.drain(Instant::now());
            entry.state = EntryState::Draining(served);
        }
        if let EntryState::Draining(served) = &entry.state
            && force
            && !*stopped
        {
            *stopped = true;
            served.worker.stop(UNLOADED, Instant::now());
        }
        changed
    }

    /// Task of one life: loads, runs, and restarts a bounded number of times after failures.
    async fn live(self: Arc<Self>, life: Life, mut progress: Arc<LoadProgress>) {
        let mut restarts = Restarts::default();
        loop {
            let began = Instant::now();
            let brought_up = tokio::select! {
                brought_up = self.bring_up(&life, progress) => brought_up,
                () = life.stop.cancelled() => return self.registry.forget(&life.name, life.number),
            };
            let failure = match brought_up {
                Ok((served, running)) => {
                    self.publish(&life, served, began.elapsed());
                    match self.stay(&life, running).await {
                        Exit::Left => {
                            tracing::info!(model = life.name, "model unloaded");
                            return self.registry.forget(&life.name, life.number);
                        }
                        Exit::Failed(failure) => {
                            restarts.lived(began.elapsed());
                            failure
                        }
                    }
                }
                Err(failure) => {
                    self.metrics.load(&life.name, None);
                    failure
                }
            };
            self.metrics.error(&life.name, failure.reason.kind());
            tracing::error!(model = life.name, error_id = failure.id, reason = %failure.reason, "model failed");
            // A first load that fails would fail again; a worker that ran before may run again.
            let wait = if restarts.ran { restarts.next() } else { None };
            let retry_at = wait.map(|wait| Instant::now() + wait);
            let mut draining = false;
            self.registry.set(&life.name, life.number, |entry| {
                draining = matches!(entry.state, EntryState::Draining(_));
                entry.reserved_bytes = 0;
                entry.state = EntryState::Failed { failure, at: Instant::now(), retry_at, ran: restarts.ran };
            });
            if draining {
                return self.registry.forget(&life.name, life.number);
            }
            let Some(wait) = wait else { return };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = life.stop.cancelled() => return self.registry.forget(&life.name, life.number),
            }
            life.metrics.worker_restarts.inc();
            progress = Arc::default();
            let again = progress.clone();
            self.registry.set(&life.name, life.number, |entry| entry.state = EntryState::Loading(again));
        }
    }

    /// Makes a loaded model available to requests, and restores its adapters.
    fn publish(self: &Arc<Self>, life: &Life, served: Arc<ServedModel>, took: Duration) {
        self.metrics.load(&life.name, Some(took.as_secs_f64()));
        self.load_times.note(&life.name, took);
        let ready = served.clone();
        self.registry.set(&life.name, life.number, |entry| {
            entry.usage.ready(Instant::now());
            entry.state = EntryState::Ready(ready);
        });
        // The model is ready when this line is logged.
        tracing::info!(
            model = life.name,
            device = served.device,
            context_tokens_max = served.size.context_tokens_max(),
            memory_bytes = served.memory.total(),
            load_ms = took.as_millis() as u64,
            "model ready"
        );
        if life.stop.is_cancelled() {
            // The life was cancelled during the load, when there was no worker to stop yet.
            served.worker.stop(SHUTTING_DOWN, Instant::now());
        }
        self.note_used(life);
        if !life.adapters.is_empty() {
            let (models, name, wanted) = (self.clone(), life.name.clone(), life.adapters.clone());
            tasks::spawn(async move { models.restore_adapters(&name, &wanted).await });
        }
    }

    fn note_used(&self, life: &Life) {
        let Some(store) = self.store.clone().filter(|_| life.stored) else { return };
        let ModelSource::Path(path) = life.source.clone() else { return };
        tokio::task::spawn_blocking(move || {
            let record = store.find_path(&path).ok().flatten();
            if let Some(error) = record.and_then(|record| store.touch(&record.name, now_unix_ms()).err()) {
                tracing::warn!(%error, "the model's last use was not noted");
            }
        });
    }

    /// Whether requests can be answered: by a ready model, or by one that would be loaded for them. Waits for the
    /// models that the configuration loads at startup.
    pub(crate) fn is_ready(&self) -> bool {
        let loads = self.section().on_demand == OnDemand::Always;
        let on_demand = || loads && self.starting.load(Relaxed) == 0 && !self.registry.has_failed();
        self.registry.is_ready() || (on_demand() && !self.registry.is_stuck())
    }

    /// Current settings of new loads.
    pub(crate) fn section(&self) -> EngineSection {
        self.section.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends every life now. Running requests end with an error.
    pub(crate) fn close(&self) {
        self.registry.for_each(|entry| {
            entry.stop.cancel();
            if let EntryState::Ready(served) | EntryState::Draining(served) = &entry.state {
                served.worker.stop(SHUTTING_DOWN, Instant::now());
                entry.state = EntryState::Draining(served.clone());
            }
        });
    }

    /// Waits until every worker has ended.
    pub(crate) async fn closed(&self) {
        let (_, mut changes) = self.registry.watch();
        let busy = |view: &ModelView| !matches!(view.state, StateView::Failed { .. });
        while self.registry.views().iter().any(busy) {
            if let Err(RecvError::Closed) = changes.recv().await {
                return;
            }
        }
    }
}

/// Result of a load request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LoadOutcome {
    Begun,
    Loaded,
}

impl FailureReason {
    /// Label of the reason in `errors_total`.
    fn kind(&self) -> &'static str {
        match self {
            FailureReason::Load(_) | FailureReason::Store(_) | FailureReason::Source(_) => "load",
            FailureReason::Step(_) => "step",
            FailureReason::Panic(_) => "panic",
            FailureReason::Thread(_) | FailureReason::Lost => "thread",
        }
    }
}
