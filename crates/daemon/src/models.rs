//! The lives of models: load, run, fail, come back, unload. Each model has one task that owns its life and is the
//! only one to move it from state to state; [`crate::registry`] holds what others see.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use hanzo_engine_store::{Found as Stored, Store, StoreError, check_name, derive_name};
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use crate::{
    adapters::{Wanted, WantedAdapter},
    blocking::blocking,
    config::{EngineSection, OnDemand},
    draft,
    error::{Error, Failure, FailureReason},
    keep_alive::KeepAlive,
    launch::Exit,
    limits::REQUEST_COMES_WITHIN,
    metrics::{Metrics, ModelMetrics},
    on_demand::{LoadTimes, Waiters},
    places::Place,
    prefix_disk::PrefixDisk,
    registry::{Begun, Capability, Entry, InUse, OnConflict, Progress, Registry, State, key},
    restarts::Restarts,
    sizing::LoadOptions,
    source::{Found, Resolved, Source, find, resolve_with},
    unix_time::now_unix_ms,
    usage::{Kept, Usage},
    views::{ModelView, StateView},
};

/// Why requests end when the daemon stops; one of a worker's last words.
pub(crate) const SHUTTING_DOWN: &str = "the engine shut down";
const UNLOADED: &str = "the model was unloaded";

/// Loads and unloads.
pub(crate) struct Models {
    pub(crate) registry: Registry,
    /// What models are loaded on, the first that can take one before the others; never none.
    pub(crate) places: Vec<Place>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) store: Option<Store>,
    /// Why there is no store.
    pub(crate) store_missing: String,
    /// How models are run that are loaded from now on.
    pub(crate) section: RwLock<EngineSection>,
    /// Where blocks of KV caches are kept.
    pub(crate) prefix_disk: Option<Arc<PrefixDisk>>,
    /// How models of the configuration are loaded when requests name them.
    pub(crate) configured: Vec<LoadRequest>,
    /// Loads of the configuration that have not ended yet.
    pub(crate) starting: AtomicUsize,
    /// Who waits until others have made room: one load after the other, as they came.
    pub(crate) room: tokio::sync::Mutex<()>,
    /// Requests that wait for their models.
    pub(crate) waiters: Waiters,
    /// What loads took, by name.
    pub(crate) load_times: LoadTimes,
}

/// What to load.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoadRequest {
    /// Name in the store, `hanzo-demo`, or path.
    pub(crate) source: String,
    /// Serve it under this name.
    pub(crate) alias: Option<String>,
    /// How large.
    pub(crate) want: LoadOptions,
    /// Loaded with it.
    pub(crate) adapters: Vec<WantedAdapter>,
    /// How long it stays; unset: until it is unloaded.
    pub(crate) keep_alive: Option<KeepAlive>,
    /// For a request that is about to come, which may say otherwise.
    pub(crate) as_request: bool,
    /// Of the configuration: loaded at the start.
    pub(crate) at_start: bool,
}

/// Whose word a load's source is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AskedBy {
    /// It may be a path.
    Operator,
    /// It is a name that this machine knows: who asks is not to look around on its disk.
    Request,
}

/// What a model stands for, found and checked.
pub(crate) struct Wish {
    pub(crate) name: String,
    pub(crate) resolved: Resolved,
    pub(crate) draft: Option<Source>,
    pub(crate) want: LoadOptions,
    /// Loaded with it, by its life itself.
    pub(crate) adapters: Vec<WantedAdapter>,
    pub(crate) kept: Kept,
}

/// One life of a model.
pub(crate) struct Life {
    pub(crate) name: String,
    pub(crate) number: u64,
    pub(crate) source: Source,
    pub(crate) stored: bool,
    pub(crate) want: LoadOptions,
    pub(crate) draft: Option<Source>,
    pub(crate) stop: CancellationToken,
    pub(crate) metrics: Arc<ModelMetrics>,
    pub(crate) adapters: Arc<Wanted>,
    pub(crate) usage: Arc<Usage>,
}

impl Models {
    /// Loads a model and waits until it answers, or has failed. Whoever asks for a model that is loading waits for
    /// the same load; one that is loaded is answered at once, with no time taken. The load goes on when the caller
    /// leaves.
    pub(crate) async fn load(self: &Arc<Self>, request: LoadRequest) -> Result<(ModelView, Duration), Error> {
        let began = Instant::now();
        let kept = match (request.as_request, request.keep_alive) {
            (false, alive) => Kept { alive: alive.unwrap_or(KeepAlive::Pinned), by_operator: true },
            (true, alive) => {
                let alive = alive.unwrap_or(self.section().keep_alive).at_least(REQUEST_COMES_WITHIN);
                Kept { alive, by_operator: false }
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
                    // It has been let go, and comes back.
                    if let Err(RecvError::Closed) = changes.recv().await {
                        return Err(Error::Stopped { what: SHUTTING_DOWN });
                    }
                }
                joined => break joined?,
            }
        };
        // Who asked sees it before it may leave.
        let _using = self.registry.hold(&name);
        let mut view = self.settled(&name).await?;
        for adapter in adapters {
            self.load_adapter(&name, adapter).await?;
            view = self.registry.view(&name)?;
        }
        Ok((view, if joined == Joined::Loaded { Duration::ZERO } else { began.elapsed() }))
    }

    /// What a load asks for. Nothing is loaded yet.
    ///
    /// # Errors
    /// Why it stands for nothing.
    pub(crate) async fn wish(
        &self,
        request: LoadRequest,
        kept: Kept,
        asked_by: AskedBy,
    ) -> Result<Wish, Error> {
        let LoadRequest { source, alias, want, adapters, .. } = request;
        let (store, overrides) = (self.store.clone(), want.overrides.clone());
        let resolve = move || match asked_by {
            AskedBy::Operator => resolve_with(&source, store.as_ref(), &overrides),
            AskedBy::Request => match find(&source, store.as_ref(), true)? {
                Found::Known(resolved) => Ok(resolved),
                Found::Path(_) => Err(Error::NoSource { asked: source, stored: Vec::new() }),
            },
        };
        let resolved = blocking(resolve).await?;
        let name = match alias {
            Some(alias) => {
                check_name(&alias).map_err(|error| Error::field("alias", error.to_string()))?;
                alias
            }
            // What is there under another name need not be there twice.
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

    /// Loads a model of the configuration, as [`Models::load`] does. One that stands for nothing, or whose files cannot be
    /// opened, is listed as failed all the same: an operator looks for what was asked for among the models.
    ///
    /// # Errors
    /// Why it was not loaded.
    pub(crate) async fn load_configured(self: &Arc<Self>, request: LoadRequest) -> Result<(), Error> {
        let Err(error) = self.load(request.clone()).await else { return Ok(()) };
        self.list_failed(request, &error);
        Err(error)
    }

    /// Lists a model that never began to load as failed, unless its name is there already.
    fn list_failed(&self, request: LoadRequest, error: &Error) {
        let LoadRequest { source, alias, want, .. } = request;
        let given = alias.into_iter().chain([source.clone()]).find(|name| check_name(name).is_ok());
        let name = given.unwrap_or_else(|| derive_name(Path::new(&source)));
        let failure = match error {
            Error::Load(failure) => failure.clone(),
            error => Failure::new(FailureReason::Source(error.to_string())),
        };
        let source = Source::Path(PathBuf::from(source));
        let metrics = || self.metrics.model(&name);
        let kind = failure.reason.kind();
        if let Ok(true) = self.registry.begin_failed(&name, source, want, metrics, failure) {
            self.metrics.load(&name, None);
            self.metrics.error(&name, kind);
        }
    }

    /// Begins a life, or joins the one that is there.
    ///
    /// # Errors
    /// Why neither can be.
    pub(crate) fn begin(self: &Arc<Self>, wish: &Wish) -> Result<Joined, Error> {
        let Wish { name, resolved: Resolved { source, stored, .. }, draft, want, adapters, kept } = wish;
        let mut joined = Joined::Begun;
        let on_conflict = |entry: &Entry| {
            let taken =
                || Error::NameTaken { name: entry.name.clone(), source_loaded: entry.source.describe() };
            match &entry.state {
                State::Failed { .. } => Ok(OnConflict::Replace),
                _ if entry.source != *source => Err(taken()),
                State::Draining(_) => Err(Error::Unloading { name: entry.name.clone() }),
                _ if *want != LoadOptions::default() && *want != entry.want => {
                    Err(Error::LoadedOtherwise { name: entry.name.clone() })
                }
                State::Loading(_) | State::Ready(_) => {
                    if matches!(entry.state, State::Ready(_)) {
                        joined = Joined::Loaded;
                    }
                    if kept.by_operator {
                        entry.usage.keep(kept.alive);
                    }
                    Ok(OnConflict::Join)
                }
            }
        };
        // Made only for a life that begins: names of loads that are refused are no labels.
        let metrics = || self.metrics.model(name);
        let begun = self.registry.begin(name, source.clone(), want.clone(), metrics, *kept, on_conflict)?;
        if let Some(Begun { life: number, stop, metrics, progress, usage }) = begun {
            let life = Life {
                name: name.clone(),
                number,
                source: source.clone(),
                stored: *stored,
                want: want.clone(),
                draft: draft.clone(),
                stop,
                metrics,
                adapters: Arc::new(Wanted::of(adapters)),
                usage,
            };
            tokio::spawn(self.clone().live(life, progress));
        }
        Ok(joined)
    }

    /// Waits until a model is no longer loading.
    async fn settled(&self, name: &str) -> Result<ModelView, Error> {
        loop {
            let (_, mut changes) = self.registry.watch();
            let view = self.registry.with(name, |entry| {
                let failure = match &entry.state {
                    State::Failed { failure, .. } => Some(failure.clone()),
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

    /// The name under which the model that `asked` stands for is loaded: itself, if a model is loaded under exactly
    /// that; otherwise that of the stored model which the store knows by it, an alias first. `asked`, where neither
    /// is: it may still be a part of a loaded model's name.
    pub(crate) async fn loaded_name(&self, asked: &str) -> String {
        let unknown = || asked.to_owned();
        if asked.is_empty() || self.registry.has(asked) {
            return unknown();
        }
        let wanted = asked.to_owned();
        // The disk is not asked: only what has a record is found.
        let found = self.with_store(move |store| Ok((store.resolve(&wanted)?, store.dir().to_owned()))).await;
        // Why it is no name in the store does not matter to a name that is loaded.
        let Ok((Stored::Stored(record), dir)) = found else { return unknown() };
        let same_files = self.registry.name_of(&Source::Path(record.path), &record.name);
        // Pulled again since, it lies elsewhere in the store.
        let before = || {
            let view = self.registry.view(&record.name).ok()?;
            let of_store = matches!(&view.source, Source::Path(path) if path.starts_with(&dir));
            (of_store && key(&view.name) == key(&record.name)).then_some(view.name)
        };
        same_files.or_else(before).unwrap_or_else(unknown)
    }

    /// The model that answers to a name; see [`Models::loaded_name`] and [`Registry::serving`]. Of one that is not loaded
    /// it is said whether it could be.
    pub(crate) async fn loaded(&self, asked: &str, wanted: Capability) -> Result<InUse, Error> {
        match self.registry.serving(&self.loaded_name(asked).await, wanted) {
            Err(Error::NotLoaded { asked, loaded, .. }) => {
                let (store, name) = (self.store.clone(), asked.clone());
                match blocking(move || find(&name, store.as_ref(), true)).await {
                    Ok(Found::Known(model)) => Err(Error::OnlyStored { asked, name: model.name, loaded }),
                    // Why else it is not there does not matter to a name that is not loaded.
                    Ok(Found::Path(_)) | Err(_) => {
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
        // Names only make a message better.
        blocking(list).await.unwrap_or_default()
    }

    /// Runs `work` on the store, where it may block.
    ///
    /// # Errors
    /// [`Error::NoStore`], and the store's own.
    pub(crate) async fn with_store<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Error> {
        let no_store = || Error::NoStore { reason: self.store_missing.clone() };
        let store = self.store.clone().ok_or_else(no_store)?;
        blocking(move || work(&store).map_err(Error::from)).await
    }

    /// Unloads a model and waits until its memory is free. Running requests finish first, or end now with `force`.
    /// The model's last state is answered.
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
                // Gone, or gone and loaded anew.
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

    /// Whether the entry's state was changed.
    fn begin_unloading(&self, entry: &mut Entry, force: bool, stopped: &mut bool) -> bool {
        let ready = match &entry.state {
            State::Ready(served) => Some(served.clone()),
            State::Draining(_) | State::Loading(_) => None,
            State::Failed { .. } => {
                entry.stop.cancel();
                None
            }
        };
        let changed = ready.is_some();
        if let Some(served) = ready {
            served.worker.drain(Instant::now());
            entry.state = State::Draining(served);
        }
        if let State::Draining(served) = &entry.state
            && force
            && !*stopped
        {
            *stopped = true;
            served.worker.stop(UNLOADED, Instant::now());
        }
        changed
    }

    /// One life: load, run, and after a failure come back a bounded number of times.
    async fn live(self: Arc<Self>, life: Life, mut progress: Arc<Progress>) {
        let mut restarts = Restarts::default();
        loop {
            let began = Instant::now();
            let brought_up = tokio::select! {
                brought_up = self.bring_up(&life, progress) => brought_up,
                () = life.stop.cancelled() => return self.registry.forget(&life.name, life.number),
            };
            let failure = match brought_up {
                Ok((served, running)) => {
                    self.metrics.load(&life.name, Some(began.elapsed().as_secs_f64()));
                    self.load_times.note(&life.name, began.elapsed());
                    let ready = served.clone();
                    self.registry.set(&life.name, life.number, |entry| {
                        entry.usage.ready(Instant::now());
                        entry.state = State::Ready(ready);
                    });
                    // Whoever reads this finds it ready.
                    tracing::info!(
                        model = life.name,
                        device = served.device,
                        context_tokens_max = served.size.context_tokens_max(),
                        memory_bytes = served.memory.total(),
                        load_ms = began.elapsed().as_millis() as u64,
                        "model ready"
                    );
                    if life.stop.is_cancelled() {
                        // Ended while it was loading: whoever did so saw no worker to tell.
                        served.worker.stop(SHUTTING_DOWN, Instant::now());
                    }
                    drop(served);
                    self.note_used(&life);
                    if !life.adapters.is_empty() {
                        let (models, name, wanted) = (self.clone(), life.name.clone(), life.adapters.clone());
                        tokio::spawn(async move { models.restore_adapters(&name, &wanted).await });
                    }
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
            // A first load that fails fails again; a worker that ran before may run again.
            let wait = if restarts.ran { restarts.next() } else { None };
            let retry_at = wait.map(|wait| Instant::now() + wait);
            let mut draining = false;
            self.registry.set(&life.name, life.number, |entry| {
                draining = matches!(entry.state, State::Draining(_));
                entry.reserved_bytes = 0;
                entry.state = State::Failed { failure, at: Instant::now(), retry_at, ran: restarts.ran };
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
            self.registry.set(&life.name, life.number, |entry| entry.state = State::Loading(again));
        }
    }

    fn note_used(&self, life: &Life) {
        let Some(store) = self.store.clone().filter(|_| life.stored) else { return };
        let Source::Path(path) = life.source.clone() else { return };
        tokio::task::spawn_blocking(move || {
            let record = store.find_path(&path).ok().flatten();
            if let Some(error) = record.and_then(|record| store.touch(&record.name, now_unix_ms()).err()) {
                tracing::warn!(%error, "the model's last use was not noted");
            }
        });
    }

    /// Whether requests are answered: by a model that does, or by one that is loaded for them. What the configuration has loaded
    /// at the start is waited for.
    pub(crate) fn is_ready(&self) -> bool {
        let loads = self.section().on_demand == OnDemand::Always;
        let on_demand = || loads && self.starting.load(Relaxed) == 0 && !self.registry.has_failed();
        self.registry.is_ready() || (on_demand() && !self.registry.is_stuck())
    }

    /// How models are run that are loaded now.
    pub(crate) fn section(&self) -> EngineSection {
        self.section.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends every life now. Requests that still run end with an error.
    pub(crate) fn close(&self) {
        self.registry.for_each(|entry| {
            entry.stop.cancel();
            if let State::Ready(served) | State::Draining(served) = &entry.state {
                served.worker.stop(SHUTTING_DOWN, Instant::now());
                entry.state = State::Draining(served.clone());
            }
        });
    }

    /// Waits until every worker has left.
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

/// What came of asking for a load.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Joined {
    Begun,
    Loaded,
}

impl FailureReason {
    /// How `errors_total` calls it.
    fn kind(&self) -> &'static str {
        match self {
            FailureReason::Load(_) | FailureReason::Store(_) | FailureReason::Source(_) => "load",
            FailureReason::Step(_) => "step",
            FailureReason::Panic(_) => "panic",
            FailureReason::Thread(_) | FailureReason::Lost => "thread",
        }
    }
}
