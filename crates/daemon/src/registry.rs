//! The models of this daemon by the name they are served under, each in one state, and the stream of their
//! changes. Only [`crate::models`] changes states; everyone else looks.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use hanzo_engine_runtime::{
    Embedder, EngineConfig, JobId, ModelInfo, Task, TextModel, engine::EngineMemory, spec::TransformerSpec,
};
use hanzo_engine_store::{Match, find_name};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use crate::{
    adapters::Adapters,
    admission::{Full, QueuePlace},
    constraints::Constraints,
    device::EngineSize,
    error::{Error, Failure},
    limits::{CHANGES_MAX, MODELS_MAX},
    metrics::ModelMetrics,
    prompt_builder::PromptBuilder,
    sizing::LoadOptions,
    source::Source,
    views::{Counts, ModelView, StateView, WorkerView},
    worker::WorkerHandle,
};

/// A model that answers.
pub(crate) struct Served {
    pub(crate) name: String,
    pub(crate) text: Arc<TextModel>,
    pub(crate) embedder: Arc<Embedder>,
    /// It continues texts.
    pub(crate) generates: bool,
    pub(crate) size: EngineSize,
    pub(crate) memory: EngineMemory,
    pub(crate) device: String,
    pub(crate) worker: WorkerHandle,
    pub(crate) prompts: PromptBuilder,
    pub(crate) constraints: Constraints,
    pub(crate) metrics: Arc<ModelMetrics>,
    pub(crate) loaded_at_unix_ms: i64,
    pub(crate) jobs: AtomicU64,
    /// Of a decoder: what adapters must fit.
    pub(crate) spec: Option<Arc<TransformerSpec>>,
    pub(crate) adapters: Adapters,
}

impl Served {
    /// Takes a place in the queue.
    ///
    /// # Errors
    /// [`Error::QueueFull`].
    pub(crate) fn enter(&self) -> Result<QueuePlace, Error> {
        self.worker.vitals().admission.enter().map_err(|full| self.refused(full))
    }

    /// That too many wait.
    pub(crate) fn queue_full(&self) -> Error {
        self.refused(self.worker.vitals().admission.full())
    }

    fn refused(&self, Full { capacity, retry_after_ms }: Full) -> Error {
        Error::QueueFull { model: self.name.clone(), capacity, retry_after_ms }
    }

    /// # Errors
    /// [`Error::CannotDo`], with what it can do.
    pub(crate) fn must_generate(&self) -> Result<&EngineConfig, Error> {
        match &self.size {
            EngineSize::Decoder(config) if self.generates => Ok(config),
            _ => Err(self.cannot("generate text")),
        }
    }

    /// # Errors
    /// [`Error::CannotDo`], with what it can do.
    pub(crate) fn must_do(&self, task: Task) -> Result<(), Error> {
        if self.embedder.tasks.contains(&task) { Ok(()) } else { Err(self.cannot(task_words(task))) }
    }

    /// That it cannot do something.
    pub(crate) fn cannot(&self, wanted: &'static str) -> Error {
        let generates = self.generates.then_some("generate text");
        let can = generates.into_iter().chain(self.embedder.tasks.iter().copied().map(task_words)).collect();
        Error::CannotDo { model: self.name.clone(), wanted, can }
    }

    /// A name for the next job.
    pub(crate) fn next_job(&self) -> JobId {
        JobId(self.jobs.fetch_add(1, Relaxed))
    }
}

fn task_words(task: Task) -> &'static str {
    match task {
        Task::Embed => "embed texts",
        Task::EmbedSparse => "make sparse embeddings",
        Task::Rerank => "rerank documents",
        Task::Classify => "classify texts",
    }
}

/// What a model is doing.
pub(crate) enum State {
    /// Its files are being read.
    Loading(Arc<Progress>),
    /// It answers.
    Ready(Arc<Served>),
    /// It takes nothing new.
    Draining(Arc<Served>),
    /// Its load failed, or its worker did; `retry_at` when it will be tried again.
    Failed { failure: Arc<Failure>, retry_at: Option<Instant> },
}

/// How far a load is, in percent.
#[derive(Debug, Default)]
pub(crate) struct Progress(AtomicU32);

impl Progress {
    /// Notes a fraction; the percentage when it entered another tenth.
    pub(crate) fn set(&self, fraction: f32) -> bool {
        let percent = (fraction.clamp(0.0, 1.0) * 100.0) as u32;
        self.0.swap(percent, Relaxed) / 10 != percent / 10
    }

    pub(crate) fn percent(&self) -> u32 {
        self.0.load(Relaxed)
    }
}

/// One model.
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) source: Source,
    /// What this life was asked to be.
    pub(crate) want: LoadOptions,
    pub(crate) info: Option<ModelInfo>,
    pub(crate) metrics: Arc<ModelMetrics>,
    pub(crate) state: State,
    /// Which life of the name this is: what happened in an earlier one does not concern it.
    pub(crate) life: u64,
    /// Ends the life: no more restarts.
    pub(crate) stop: CancellationToken,
}

/// All models.
pub(crate) struct Registry {
    entries: Mutex<BTreeMap<String, Entry>>, // key: the name in lower case
    changes: broadcast::Sender<ModelView>,
    lives: AtomicU64,
}

/// How a name is keyed.
pub(crate) fn key(name: &str) -> String {
    name.to_lowercase()
}

impl Registry {
    /// No models.
    pub(crate) fn new() -> Self {
        let (changes, _) = broadcast::channel(CHANGES_MAX);
        Self { entries: Mutex::default(), changes, lives: AtomicU64::new(1) }
    }

    /// The model that answers to `asked`; an empty name will do where one model is loaded, or one that can do what is
    /// wanted.
    ///
    /// # Errors
    /// Why it does not answer.
    pub(crate) fn serving(&self, asked: &str, wanted: Capability) -> Result<Arc<Served>, Error> {
        let entries = self.lock();
        let entry = match asked {
            "" if entries.len() > 1 => return only_able(&entries, wanted),
            _ => find(&entries, asked)?,
        };
        entry.serving()
    }

    /// Every model that answers, in order of name.
    pub(crate) fn all_serving(&self) -> Vec<Arc<Served>> {
        self.lock().values().filter_map(|entry| entry.serving().ok()).collect()
    }

    /// Every model now, in order of name.
    pub(crate) fn views(&self) -> Vec<ModelView> {
        self.lock().values().map(Entry::view).collect()
    }

    /// One model now; an empty name will do where one model is loaded.
    ///
    /// # Errors
    /// [`Error::NotLoaded`], [`Error::Ambiguous`], [`Error::Unnamed`].
    pub(crate) fn view(&self, asked: &str) -> Result<ModelView, Error> {
        Ok(find(&self.lock(), asked)?.view())
    }

    /// Every model now, and every change after that.
    pub(crate) fn watch(&self) -> (Vec<ModelView>, broadcast::Receiver<ModelView>) {
        let entries = self.lock();
        // Changes are sent under the same lock: none is missed, none comes twice.
        (entries.values().map(Entry::view).collect(), self.changes.subscribe())
    }

    /// Whether a model is loaded under exactly this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.lock().contains_key(&key(name))
    }

    /// The name under which a model of these files is loaded, or being loaded: `name` itself if it may be.
    pub(crate) fn name_of(&self, source: &Source, name: &str) -> Option<String> {
        let entries = self.lock();
        let of_these = || entries.values().filter(|entry| entry.source == *source);
        let own = entries.get(&key(name)).filter(|entry| entry.source == *source);
        let lives = |entry: &&Entry| !matches!(entry.state, State::Failed { .. });
        let best = own.or_else(|| of_these().find(lives)).or_else(|| of_these().next());
        best.map(|entry| entry.name.clone())
    }

    /// Looks at, or changes, one model; a change of its state is told to the watchers. `None`: there is no such
    /// model.
    pub(crate) fn with<T>(
        &self,
        asked: &str,
        change: impl FnOnce(&mut Entry) -> (T, bool),
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

    /// Sets the state of one life of a model; nothing happens when that life is over.
    pub(crate) fn set(&self, name: &str, life: u64, change: impl FnOnce(&mut Entry)) {
        let mut entries = self.lock();
        if let Some(entry) = entries.get_mut(&key(name)).filter(|entry| entry.life == life) {
            change(entry);
            self.tell(entry.view());
        }
    }

    /// Forgets one life of a model: it is unloaded.
    pub(crate) fn forget(&self, name: &str, life: u64) {
        let mut entries = self.lock();
        let key = key(name);
        if entries.get(&key).is_some_and(|entry| entry.life == life)
            && let Some(entry) = entries.remove(&key)
        {
            self.tell(ModelView { state: StateView::Unloaded, worker: None, ..entry.view() });
        }
    }

    /// Makes a new model in the state of loading, unless one of the name is there already: then it is left to
    /// `on_conflict`, which may have it replaced.
    ///
    /// # Errors
    /// [`Error::TooManyModels`], and those of `on_conflict`.
    pub(crate) fn begin(
        &self,
        name: &str,
        source: Source,
        want: LoadOptions,
        metrics: impl FnOnce() -> Arc<ModelMetrics>,
        on_conflict: impl FnOnce(&Entry) -> Result<OnConflict, Error>,
    ) -> Result<Option<Begun>, Error> {
        self.enter(name, source, want, metrics, State::Loading, on_conflict)
    }

    /// Lists a model that never began to load as failed, unless one of the name is there already. It never counts as
    /// loading: a good model of the same name that comes meanwhile takes its place.
    ///
    /// # Errors
    /// [`Error::TooManyModels`].
    pub(crate) fn begin_failed(
        &self,
        name: &str,
        source: Source,
        want: LoadOptions,
        metrics: impl FnOnce() -> Arc<ModelMetrics>,
        failure: Arc<Failure>,
    ) -> Result<bool, Error> {
        let failed = |_| State::Failed { failure, retry_at: None };
        Ok(self.enter(name, source, want, metrics, failed, |_| Ok(OnConflict::Join))?.is_some())
    }

    fn enter(
        &self,
        name: &str,
        source: Source,
        want: LoadOptions,
        metrics: impl FnOnce() -> Arc<ModelMetrics>,
        state: impl FnOnce(Arc<Progress>) -> State,
        on_conflict: impl FnOnce(&Entry) -> Result<OnConflict, Error>,
    ) -> Result<Option<Begun>, Error> {
        let mut entries = self.lock();
        let key = key(name);
        if let Some(entry) = entries.get(&key) {
            match on_conflict(entry)? {
                OnConflict::Join => return Ok(None),
                OnConflict::Replace => entry.stop.cancel(),
            }
        } else if entries.len() >= MODELS_MAX {
            // A failed one that nobody tries again gives way.
            let given_up =
                entries.iter().find(|(_, entry)| matches!(entry.state, State::Failed { retry_at: None, .. }));
            let Some(oldest) = given_up.map(|(key, _)| key.clone()) else {
                return Err(Error::TooManyModels { models_max: MODELS_MAX });
            };
            if let Some(entry) = entries.remove(&oldest) {
                self.tell(ModelView { state: StateView::Unloaded, worker: None, ..entry.view() });
            }
        }
        let metrics = metrics();
        let progress = Arc::new(Progress::default());
        let stop = CancellationToken::new();
        let life = self.lives.fetch_add(1, Relaxed);
        let state = state(progress.clone());
        let entry = Entry { name: name.to_owned(), source, want, info: None, metrics, state, life, stop };
        self.tell(entry.view());
        let begun = Begun { life, stop: entry.stop.clone(), metrics: entry.metrics.clone(), progress };
        entries.insert(key, entry);
        Ok(Some(begun))
    }

    /// All entries, to end them.
    pub(crate) fn for_each(&self, mut act: impl FnMut(&mut Entry)) {
        self.lock().values_mut().for_each(&mut act);
    }

    /// Whether a model answers, and its worker is not stuck.
    pub(crate) fn is_ready(&self) -> bool {
        let now = Instant::now();
        let answers = |entry: &Entry| match &entry.state {
            State::Ready(served) => !served.worker.vitals().is_stuck(now),
            _ => false,
        };
        self.lock().values().any(answers)
    }

    fn tell(&self, view: ModelView) {
        // Nobody may be watching.
        let _ = self.changes.send(view);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        // Entries are replaced whole; a panic in between leaves none half-made.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A life that has begun.
pub(crate) struct Begun {
    pub(crate) life: u64,
    pub(crate) stop: CancellationToken,
    pub(crate) metrics: Arc<ModelMetrics>,
    pub(crate) progress: Arc<Progress>,
}

/// What to do where a name is taken.
pub(crate) enum OnConflict {
    /// Leave what is there.
    Join,
    /// End it and begin anew.
    Replace,
}

/// What a request that names no model asks of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Capability {
    /// An answer to messages.
    Chat,
    /// A text gone on with.
    Generate,
    /// Vectors, scores or labels.
    Task(Task),
    /// What any model does: tokens.
    Any,
}

impl Capability {
    fn of(self, served: &Served) -> bool {
        match self {
            Capability::Chat => served.generates && served.text.template.is_some(),
            Capability::Generate => served.generates,
            Capability::Task(task) => served.embedder.tasks.contains(&task),
            Capability::Any => true,
        }
    }

    fn words(self) -> String {
        match self {
            Capability::Chat => "can chat".to_owned(),
            Capability::Generate => "can generate text".to_owned(),
            Capability::Task(task) => format!("can {}", task_words(task)),
            Capability::Any => "are loaded".to_owned(),
        }
    }
}

/// The only one of several models that can do it. Every decoder can embed: one that was made for it goes first.
fn only_able(entries: &BTreeMap<String, Entry>, wanted: Capability) -> Result<Arc<Served>, Error> {
    let ready = entries.values().filter_map(|entry| match &entry.state {
        State::Ready(served) => Some(served),
        State::Loading(_) | State::Draining(_) | State::Failed { .. } => None,
    });
    let mut able: Vec<&Arc<Served>> = ready.filter(|served| wanted.of(served)).collect();
    let made_for_it: Vec<&Arc<Served>> = able.iter().copied().filter(|served| !served.generates).collect();
    if made_for_it.len() == 1 && matches!(wanted, Capability::Task(_)) {
        able = made_for_it;
    }
    match able[..] {
        [served] => Ok(served.clone()),
        [] if let Some(not_yet) = entries.values().find_map(|entry| entry.not_yet(wanted)) => Err(not_yet),
        _ => Err(Error::Unnamed {
            wanted: wanted.words(),
            able: able.iter().map(|served| served.name.clone()).collect(),
            loaded: entries.values().map(|entry| entry.name.clone()).collect(),
        }),
    }
}

fn find<'a>(entries: &'a BTreeMap<String, Entry>, asked: &str) -> Result<&'a Entry, Error> {
    let names = || entries.values().map(|entry| entry.name.clone()).collect::<Vec<_>>();
    if asked.is_empty() {
        let mut all = entries.values();
        return match (all.next(), all.next()) {
            (Some(entry), None) => Ok(entry),
            _ => Err(Error::Unnamed { wanted: Capability::Any.words(), able: names(), loaded: names() }),
        };
    }
    match find_name(asked, entries.values().map(|entry| entry.name.as_str())) {
        Match::One(name) => entries.get(&key(name)).ok_or_else(|| not_loaded(asked, &names())),
        Match::Ambiguous(candidates) => {
            let candidates = candidates.into_iter().map(str::to_owned).collect();
            Err(Error::Ambiguous { asked: asked.to_owned(), candidates })
        }
        Match::None => Err(not_loaded(asked, &names())),
    }
}

fn not_loaded(asked: &str, loaded: &[String]) -> Error {
    Error::NotLoaded { asked: asked.to_owned(), loaded: loaded.to_vec(), stored: Vec::new() }
}

impl Entry {
    /// The model, if it answers.
    ///
    /// # Errors
    /// Why it does not.
    fn serving(&self) -> Result<Arc<Served>, Error> {
        let name = || self.name.clone();
        match &self.state {
            State::Ready(served) => Ok(served.clone()),
            State::Loading(progress) => Err(Error::Loading { name: name(), percent: progress.percent() }),
            State::Draining(_) => Err(Error::Unloading { name: name() }),
            State::Failed { failure, retry_at } => {
                let wait = retry_at.map(|at| at.saturating_duration_since(Instant::now()).as_millis());
                let retry_after_ms = wait.map(|ms| u64::try_from(ms).unwrap_or(u64::MAX));
                Err(Error::Failed { name: name(), failure: failure.clone(), retry_after_ms })
            }
        }
    }

    /// That it does not answer now, where it may be the one that can do what is wanted. What it can is known once it is
    /// loaded; one that has failed for good is not waited for.
    fn not_yet(&self, wanted: Capability) -> Option<Error> {
        let may = match &self.state {
            State::Loading(_) | State::Failed { retry_at: Some(_), .. } => true,
            State::Draining(served) => wanted.of(served),
            State::Ready(_) | State::Failed { retry_at: None, .. } => false,
        };
        if may { self.serving().err() } else { None }
    }

    /// It, as it is now.
    pub(crate) fn view(&self) -> ModelView {
        let (state, served) = match &self.state {
            State::Loading(progress) => (StateView::Loading { percent: progress.percent() }, None),
            State::Ready(served) => (StateView::Ready, Some(served)),
            State::Draining(served) => (StateView::Draining, Some(served)),
            State::Failed { failure, .. } => {
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
        }
    }
}

impl Served {
    fn view(&self) -> WorkerView {
        let (vitals, now) = (self.worker.vitals(), Instant::now());
        WorkerView {
            device: self.device.clone(),
            has_template: self.text.template.is_some(),
            fills_in: self.text.infill.is_some(),
            tool_format: self.text.tool_format.map(|format| (format, self.text.offers_tools())),
            generates: self.generates,
            embedder: self.embedder.clone(),
            context_tokens_max: self.size.context_tokens_max(),
            kv_type: match &self.size {
                EngineSize::Decoder(config) => Some(config.kv_type),
                EngineSize::Encoder(_) => None,
            },
            memory: self.memory,
            vocabulary_bytes: self.text.vocabulary_bytes(),
            constraints_bytes: self.constraints.bytes(),
            adapters: self.adapters.views(),
            loaded_at_unix_ms: self.loaded_at_unix_ms,
            requests_running: vitals.admission.running(),
            requests_waiting: vitals.admission.waiting(),
            queue_capacity: vitals.admission.capacity(),
            batch_size: vitals.batch_size(),
            stats: vitals.stats(),
            tokens_per_s: self.metrics.rate.per_second(now),
            stuck: vitals.is_stuck(now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{error::FailureReason, metrics::Metrics};

    #[test]
    fn what_may_be_able_soon_is_waited_for_and_what_has_failed_for_good_is_not() {
        let (registry, metrics) = (Registry::new(), Metrics::new(0));
        let begin = |name: &str| {
            let on_conflict = |_: &Entry| Ok(OnConflict::Join);
            let begun = registry.begin(
                name,
                Source::Demo,
                LoadOptions::default(),
                || metrics.model(name),
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
                registry.set(name, life, |entry| entry.state = State::Failed { failure, retry_at });
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
            registry.begin_failed("a", Source::Demo, LoadOptions::default(), metrics, failure).unwrap()
        };
        assert!(list());
        assert!(!list(), "the name is taken");
        let seen: Vec<_> = std::iter::from_fn(|| changes.try_recv().ok()).collect();
        assert!(matches!(&seen[..], [view] if matches!(view.state, StateView::Failed { .. })), "{seen:?}");
    }
}
