//! Registry of this daemon's models by served name, with the state of each and a stream of changes. Only
//! [`crate::models`] changes states; other modules read them.

mod find;
mod holders;
mod progress;

use std::{
    collections::BTreeMap,
    ops::Deref,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use hanzo_engine_runtime::ModelInfo;
use tokio::sync::{Notify, broadcast};
use tokio_util::sync::CancellationToken;

pub(crate) use find::Capability;
use find::{find, not_loaded, only_able};
pub(crate) use holders::Holder;
pub(crate) use progress::LoadProgress;

use crate::{
    error::{Error, Failure},
    keep_alive::KeepAlive,
    limits::{CHANGES_MAX, MODELS_MAX},
    metrics::ModelMetrics,
    name_key::key,
    served::ServedModel,
    sizing::LoadOptions,
    source::ModelSource,
    usage::{IdleLimit, LifeUsage, Use},
    views::{Counts, ModelView, StateView},
};

/// State of a model.
pub(crate) enum EntryState {
    /// Its files are being read.
    Loading(Arc<LoadProgress>),
    /// The model answers requests.
    Ready(Arc<ServedModel>),
    /// The model is being unloaded and accepts no new requests.
    Draining(Arc<ServedModel>),
    /// Its load failed, or its worker did; `ran` tells which. `retry_at` is the time of the next attempt, if there
    /// is one.
    Failed { failure: Arc<Failure>, at: Instant, retry_at: Option<Instant>, ran: bool },
}

/// Entry of one model.
pub(crate) struct RegistryEntry {
    pub(crate) name: String,
    pub(crate) source: ModelSource,
    /// Options that this life was loaded with.
    pub(crate) want: LoadOptions,
    pub(crate) info: Option<ModelInfo>,
    pub(crate) metrics: Arc<ModelMetrics>,
    pub(crate) state: EntryState,
    /// Number of this life of the name. Events of earlier lives do not concern it.
    pub(crate) life: u64,
    /// Ends the life: the worker is not restarted any more.
    pub(crate) stop: CancellationToken,
    /// Current uses of the model.
    pub(crate) usage: Arc<LifeUsage>,
    /// Bytes reserved in the memory budget of its place.
    pub(crate) reserved_bytes: u64,
    /// Index of the place that it is loaded on.
    pub(crate) place: usize,
    /// Places of other devices that hold some of its layers, with the bytes reserved there.
    pub(crate) beside: Vec<(usize, u64)>,
}

/// Registry of all models.
pub(crate) struct Registry {
    entries: Mutex<BTreeMap<String, RegistryEntry>>, // key: the name in lower case
    changes: broadcast::Sender<ModelView>,
    lives: AtomicU64,
    /// Notified when a model is no longer in use.
    pub(crate) idle: Arc<Notify>,
}

/// Ready model, with a request's use of it.
pub(crate) struct InUse {
    served: Arc<ServedModel>,
    pub(crate) using: Use,
}

impl Deref for InUse {
    type Target = Arc<ServedModel>;

    fn deref(&self) -> &Arc<ServedModel> {
        &self.served
    }
}

impl Registry {
    /// Creates an empty registry.
    pub(crate) fn new() -> Self {
        let (changes, _) = broadcast::channel(CHANGES_MAX);
        Self { entries: Mutex::default(), changes, lives: AtomicU64::new(1), idle: Arc::default() }
    }

    /// Model that answers to `asked`. An empty name is valid if one model is loaded, or one that has the wanted
    /// capability.
    ///
    /// # Errors
    /// Reason why it does not answer.
    pub(crate) fn serving(&self, asked: &str, wanted: Capability) -> Result<InUse, Error> {
        let entries = self.lock();
        let entry = match asked {
            "" if entries.len() > 1 => return only_able(&entries, wanted),
            _ => find(&entries, asked)?,
        };
        entry.in_use()
    }

    /// Every ready model, in order of name.
    pub(crate) fn all_serving(&self) -> Vec<Arc<ServedModel>> {
        self.lock().values().filter_map(|entry| entry.serving().ok()).collect()
    }

    /// State of every model, in order of name.
    pub(crate) fn views(&self) -> Vec<ModelView> {
        self.lock().values().map(RegistryEntry::view).collect()
    }

    /// State of one model. An empty name is valid if one model is loaded.
    ///
    /// # Errors
    /// [`Error::NotLoaded`], [`Error::Ambiguous`], [`Error::Unnamed`].
    pub(crate) fn view(&self, asked: &str) -> Result<ModelView, Error> {
        Ok(find(&self.lock(), asked)?.view())
    }

    /// State of every model, and all changes after that.
    pub(crate) fn watch(&self) -> (Vec<ModelView>, broadcast::Receiver<ModelView>) {
        let entries = self.lock();
        // Changes are sent under the same lock, so none is missed and none is repeated.
        (entries.values().map(RegistryEntry::view).collect(), self.changes.subscribe())
    }

    /// All changes from now on.
    pub(crate) fn changes(&self) -> broadcast::Receiver<ModelView> {
        self.changes.subscribe()
    }

    /// Whether a model with exactly this name is registered.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.lock().contains_key(&key(name))
    }

    /// Whether a model with exactly this name is being unloaded because its idle time is over or to make room.
    pub(crate) fn is_leaving(&self, name: &str) -> bool {
        self.lock().get(&key(name)).is_some_and(|entry| entry.usage.is_leaving())
    }

    /// Name under which a model with these files is loaded or being loaded: `name` itself if possible.
    pub(crate) fn name_of(&self, source: &ModelSource, name: &str) -> Option<String> {
        let entries = self.lock();
        let of_these = || entries.values().filter(|entry| entry.source == *source);
        let own = entries.get(&key(name)).filter(|entry| entry.source == *source);
        let lives = |entry: &&RegistryEntry| !matches!(entry.state, EntryState::Failed { .. });
        let best = own.or_else(|| of_these().find(lives)).or_else(|| of_these().next());
        best.map(|entry| entry.name.clone())
    }

    /// Reads or changes one model. If `change` returns true, watchers are notified. Fails if there is no such
    /// model.
    pub(crate) fn with<T>(
        &self,
        asked: &str,
        change: impl FnOnce(&mut RegistryEntry) -> (T, bool),
    ) -> Result<T, Error> {
        let mut entries = self.lock();
        let key = key(&find(&entries, asked)?.name);
        let entry = entries.get_mut(&key).ok_or_else(|| not_loaded(&key, &[]))?;
        let (value, changed) = change(entry);
        if changed {
            self.tell(entry.view());
        }
        Ok(value)
    }

    /// Sets how long the operator wants a model to stay.
    pub(crate) fn keep(&self, name: &str, alive: KeepAlive) {
        if let Some(entry) = self.lock().get(&key(name)) {
            entry.usage.keep(alive);
            self.tell(entry.view());
        }
    }

    /// Changes the state of one life of a model. Does nothing if that life is over.
    pub(crate) fn set(&self, name: &str, life: u64, change: impl FnOnce(&mut RegistryEntry)) {
        let mut entries = self.lock();
        if let Some(entry) = entries.get_mut(&key(name)).filter(|entry| entry.life == life) {
            change(entry);
            self.tell(entry.view());
        }
    }

    /// Removes one life of a model, which is unloaded.
    pub(crate) fn forget(&self, name: &str, life: u64) {
        let mut entries = self.lock();
        let key = key(name);
        if entries.get(&key).is_some_and(|entry| entry.life == life)
            && let Some(entry) = entries.remove(&key)
        {
            self.tell(ModelView { state: StateView::Unloaded, worker: None, ..entry.view() });
        }
    }

    /// Registers a new model in the state of loading. If the name is taken, `on_conflict` decides whether to
    /// replace the model.
    ///
    /// # Errors
    /// [`Error::TooManyModels`], and errors of `on_conflict`.
    pub(crate) fn begin(
        &self,
        name: &str,
        source: ModelSource,
        want: LoadOptions,
        metrics: impl FnOnce() -> Arc<ModelMetrics>,
        kept: IdleLimit,
        on_conflict: impl FnOnce(&RegistryEntry) -> Result<OnConflict, Error>,
    ) -> Result<Option<NewLife>, Error> {
        self.enter(name, source, want, metrics, kept, EntryState::Loading, on_conflict)
    }

    /// Lists a model whose load never began as failed, unless the name is taken. It never counts as loading, so
    /// that another load of the same name can take its place.
    ///
    /// # Errors
    /// [`Error::TooManyModels`].
    pub(crate) fn begin_failed(
        &self,
        name: &str,
        source: ModelSource,
        want: LoadOptions,
        metrics: impl FnOnce() -> Arc<ModelMetrics>,
        failure: Arc<Failure>,
    ) -> Result<bool, Error> {
        let failed = |_| EntryState::Failed { failure, at: Instant::now(), retry_at: None, ran: false };
        let kept = IdleLimit { alive: KeepAlive::Pinned, by_operator: true };
        Ok(self.enter(name, source, want, metrics, kept, failed, |_| Ok(OnConflict::Join))?.is_some())
    }

    #[expect(clippy::too_many_arguments, reason = "an entry is made of them, under one lock")]
    fn enter(
        &self,
        name: &str,
        source: ModelSource,
        want: LoadOptions,
        metrics: impl FnOnce() -> Arc<ModelMetrics>,
        kept: IdleLimit,
        state: impl FnOnce(Arc<LoadProgress>) -> EntryState,
        on_conflict: impl FnOnce(&RegistryEntry) -> Result<OnConflict, Error>,
    ) -> Result<Option<NewLife>, Error> {
        let mut entries = self.lock();
        let key = key(name);
        if let Some(entry) = entries.get(&key) {
            match on_conflict(entry)? {
                OnConflict::Join => return Ok(None),
                OnConflict::Replace => entry.stop.cancel(),
            }
        } else if entries.len() >= MODELS_MAX {
            // A failed model that will not be retried gives way.
            let given_up = entries
                .iter()
                .find(|(_, entry)| matches!(entry.state, EntryState::Failed { retry_at: None, .. }));
            let Some(oldest) = given_up.map(|(key, _)| key.clone()) else {
                return Err(Error::TooManyModels { models_max: MODELS_MAX });
            };
            if let Some(entry) = entries.remove(&oldest) {
                self.tell(ModelView { state: StateView::Unloaded, worker: None, ..entry.view() });
            }
        }
        let metrics = metrics();
        let progress = Arc::new(LoadProgress::default());
        let stop = CancellationToken::new();
        let life = self.lives.fetch_add(1, Relaxed);
        let state = state(progress.clone());
        let usage = LifeUsage::new(kept, Instant::now(), self.idle.clone());
        let entry = RegistryEntry {
            name: name.to_owned(),
            source,
            want,
            info: None,
            metrics,
            state,
            life,
            stop,
            usage: usage.clone(),
            reserved_bytes: 0,
            place: 0,
            beside: Vec::new(),
        };
        self.tell(entry.view());
        let begun =
            NewLife { life, stop: entry.stop.clone(), metrics: entry.metrics.clone(), progress, usage };
        entries.insert(key, entry);
        Ok(Some(begun))
    }

    /// Starts unloading a ready model, if `may` still allows it. The model accepts nothing new, and its life ends
    /// after its last request. Returns whether it does so.
    pub(crate) fn retire(&self, name: &str, life: u64, may: impl FnOnce(&LifeUsage) -> bool) -> bool {
        let mut entries = self.lock();
        let entry = entries.get_mut(&key(name)).filter(|entry| entry.life == life);
        let Some(entry) = entry.filter(|entry| may(&entry.usage)) else { return false };
        let EntryState::Ready(served) = &entry.state else { return false };
        entry.state = EntryState::Draining(served.clone());
        entry.usage.leave();
        self.tell(entry.view());
        true
    }

    /// Stops the worker of a life that is being unloaded and has no requests left.
    pub(crate) fn drain(&self, name: &str, life: u64) {
        let entries = self.lock();
        if let Some(entry) = entries.get(&key(name)).filter(|entry| entry.life == life)
            && let EntryState::Draining(served) = &entry.state
        {
            served.worker.drain(Instant::now());
        }
    }

    /// Marks a model that is loading or ready as in use.
    pub(crate) fn hold(&self, name: &str) -> Option<Use> {
        let entries = self.lock();
        let entry = entries.get(&key(name))?;
        matches!(entry.state, EntryState::Loading(_) | EntryState::Ready(_)).then(|| entry.usage.begin())
    }

    /// State of a model with exactly this name, as its load progresses. If it is loading or ready, it is marked as
    /// in use.
    pub(crate) fn look(&self, name: &str) -> Look {
        let entries = self.lock();
        let Some(entry) = entries.get(&key(name)) else { return Look::Absent };
        match &entry.state {
            EntryState::Ready(served) => {
                Look::Ready(InUse { served: served.clone(), using: entry.usage.begin() })
            }
            EntryState::Loading(progress) => Look::Loading(entry.usage.begin(), progress.clone()),
            EntryState::Draining(_) => Look::Draining,
            EntryState::Failed { failure, at, retry_at: None, ran } => {
                Look::Failed { failure: failure.clone(), at: *at, ran: *ran }
            }
            EntryState::Failed { .. } => match entry.serving() {
                Ok(_) => Look::Absent,
                Err(error) => Look::Restarts(error),
            },
        }
    }

    /// Visits all entries, to end them.
    pub(crate) fn for_each(&self, mut act: impl FnMut(&mut RegistryEntry)) {
        self.lock().values_mut().for_each(&mut act);
    }

    /// Whether a model that an operator asked for has failed.
    pub(crate) fn has_failed(&self) -> bool {
        let failed = |entry: &RegistryEntry| {
            matches!(entry.state, EntryState::Failed { .. }) && entry.usage.kept().by_operator
        };
        self.lock().values().any(failed)
    }

    /// Whether any model is ready and its worker is not stuck.
    pub(crate) fn is_ready(&self) -> bool {
        let now = Instant::now();
        let answers = |entry: &RegistryEntry| match &entry.state {
            EntryState::Ready(served) => !served.worker.vitals().is_stuck(now),
            _ => false,
        };
        self.lock().values().any(answers)
    }

    /// Whether any model's worker is stuck.
    pub(crate) fn is_stuck(&self) -> bool {
        let now = Instant::now();
        let stuck = |entry: &RegistryEntry| match &entry.state {
            EntryState::Ready(served) | EntryState::Draining(served) => served.worker.vitals().is_stuck(now),
            EntryState::Loading(_) | EntryState::Failed { .. } => false,
        };
        self.lock().values().any(stuck)
    }

    fn tell(&self, view: ModelView) {
        // There may be no watchers.
        let _ = self.changes.send(view);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, RegistryEntry>> {
        // Entries are replaced as a whole, so a panic leaves none half-updated.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Result of [`Registry::look`].
pub(crate) enum Look {
    Ready(InUse),
    /// While the use is held, the model is not unloaded when it becomes ready.
    Loading(Use, Arc<LoadProgress>),
    Draining,
    /// Failed at this time without further attempts; `ran` says whether its worker ran before.
    Failed {
        failure: Arc<Failure>,
        at: Instant,
        ran: bool,
    },
    /// Being restarted automatically after a failure.
    Restarts(Error),
    Absent,
}

/// Life that has begun.
pub(crate) struct NewLife {
    pub(crate) life: u64,
    pub(crate) stop: CancellationToken,
    pub(crate) metrics: Arc<ModelMetrics>,
    pub(crate) progress: Arc<LoadProgress>,
    pub(crate) usage: Arc<LifeUsage>,
}

/// Action if a name is taken.
pub(crate) enum OnConflict {
    /// Keep the existing model.
    Join,
    /// Replace it with a new life.
    Replace,
}

impl RegistryEntry {
    /// Model and a use of it, if it is ready.
    ///
    /// # Errors
    /// Reason why it is not ready.
    fn in_use(&self) -> Result<InUse, Error> {
        Ok(InUse { served: self.serving()?, using: self.usage.begin() })
    }

    /// Model, if it is ready.
    ///
    /// # Errors
    /// Reason why it is not ready.
    fn serving(&self) -> Result<Arc<ServedModel>, Error> {
        let name = || self.name.clone();
        match &self.state {
            EntryState::Ready(served) => Ok(served.clone()),
            EntryState::Loading(progress) => Err(Error::Loading {
                name: name(),
                percent: progress.percent(),
                waits: progress.waits(),
                retry_after_ms: None,
            }),
            EntryState::Draining(_) => Err(Error::Unloading { name: name() }),
            EntryState::Failed { failure, retry_at, .. } => {
                let wait = retry_at.map(|at| at.saturating_duration_since(Instant::now()).as_millis());
                let retry_after_ms = wait.map(|ms| u64::try_from(ms).unwrap_or(u64::MAX));
                Err(Error::Failed { name: name(), failure: failure.clone(), retry_after_ms })
            }
        }
    }

    /// Error for a model that is not ready but may have the wanted capability. Capabilities are known only once a
    /// model is loaded. Models that failed without further attempts are not waited for.
    fn not_yet(&self, wanted: Capability) -> Option<Error> {
        let may = match &self.state {
            EntryState::Loading(_) | EntryState::Failed { retry_at: Some(_), .. } => true,
            EntryState::Draining(served) => wanted.of(served),
            EntryState::Ready(_) | EntryState::Failed { retry_at: None, .. } => false,
        };
        if may { self.serving().err() } else { None }
    }

    /// Current state of the model.
    pub(crate) fn view(&self) -> ModelView {
        let (state, served) = match &self.state {
            EntryState::Loading(progress) if progress.waits() => (StateView::Queued, None),
            EntryState::Loading(progress) => (StateView::Loading { percent: progress.percent() }, None),
            EntryState::Ready(served) => (StateView::Ready, Some(served)),
            EntryState::Draining(served) => (StateView::Draining, Some(served)),
            EntryState::Failed { failure, .. } => {
                let error = format!("{} ({})", failure.reason, failure.id);
                (StateView::Failed { error }, None)
            }
        };
        let counts = Counts {
            finished: self.metrics.finished_stop.get() + self.metrics.finished_length.get(),
            cancelled: self.metrics.cancelled.get(),
            failed: self.metrics.failed.get(),
            prompt_tokens: self.metrics.prompt_tokens.get(),
            generated_tokens: self.metrics.generated_tokens.get(),
            prefix_hit_tokens: self.metrics.prefix_hit_tokens.get(),
            preemptions: self.metrics.preemptions.get(),
        };
        let worker = served.map(|served| served.view());
        ModelView {
            name: self.name.clone(),
            state,
            source: self.source.clone(),
            info: self.info.clone(),
            draft_model: self.want.draft_model.clone(),
            overrides: self.want.overrides.names(),
            worker,
            counts,
            keep_alive: self.usage.kept().alive,
            expires_at: self.usage.expires_at().filter(|_| matches!(self.state, EntryState::Ready(_))),
        }
    }
}

#[cfg(test)]
mod tests {
    use hanzo_engine_runtime::Task;

    use super::*;
    use crate::{error::FailureReason, metrics::Metrics};

    #[test]
    fn what_may_be_able_soon_is_waited_for_and_what_has_failed_for_good_is_not() {
        let (registry, metrics) = (Registry::new(), Metrics::new(0));
        let begin = |name: &str| {
            let on_conflict = |_: &RegistryEntry| Ok(OnConflict::Join);
            let begun = registry.begin(
                name,
                ModelSource::Demo,
                LoadOptions::default(),
                || metrics.model(name),
                IdleLimit { alive: KeepAlive::Pinned, by_operator: true },
                on_conflict,
            );
            begun.unwrap().unwrap().life
        };
        let asked = || registry.serving("", Capability::Task(Task::Embed)).map(drop).unwrap_err();
        let lives = [("a", begin("a")), ("b", begin("b"))];
        assert!(matches!(asked(), Error::Loading { .. }), "{:?}", asked());
        let fail = |retry_at: Option<Instant>| {
            for (name, life) in lives {
                let failure = Failure::new(FailureReason::Lost);
                registry.set(name, life, |entry| {
                    entry.state = EntryState::Failed { failure, at: Instant::now(), retry_at, ran: true }
                });
            }
        };
        fail(Some(Instant::now()));
        assert!(matches!(asked(), Error::Failed { retry_after_ms: Some(_), .. }), "{:?}", asked());
        fail(None);
        assert!(matches!(asked(), Error::Unnamed { .. }), "{:?}", asked());
    }

    #[test]
    fn what_never_began_to_load_is_never_seen_to_load() {
        let (registry, metrics) = (Registry::new(), Metrics::new(0));
        let (_, mut changes) = registry.watch();
        let list = || {
            let failure = Failure::new(FailureReason::Lost);
            let metrics = || metrics.model("a");
            registry.begin_failed("a", ModelSource::Demo, LoadOptions::default(), metrics, failure).unwrap()
        };
        assert!(list());
        assert!(!list(), "the name is taken");
        let seen: Vec<_> = std::iter::from_fn(|| changes.try_recv().ok()).collect();
        assert!(matches!(&seen[..], [view] if matches!(view.state, StateView::Failed { .. })), "{seen:?}");
    }
}
