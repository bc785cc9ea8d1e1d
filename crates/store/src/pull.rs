//! Pulls. Each runs in its own task, even if its watchers leave. A second request for the same model joins the
//! running pull.

use crate::acquire::{Acquire, Means};
use crate::download::Downloader;
use crate::http::Http;
use crate::limits::{PROGRESS_EVERY, PULLS_MAX};
use crate::plan::{Proposal, PullOptions};
use crate::progress::{Progress, PullProgress};
use crate::publish::Inspect;
use crate::record::ModelRecord;
use crate::reference::Reference;
use crate::settings::StoreSettings;
use crate::source::choose::Globs;
use crate::{PullError, Store, StoreError, alias};
use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Pulls models into a store. A clone is cheap and shares the pulls.
#[derive(Clone)]
pub struct Puller {
    means: Arc<Means>,
    jobs: Arc<Mutex<HashMap<String, PullJob>>>,
    /// Number of pulls begun.
    begun: Arc<AtomicU64>,
    /// Totals of finished pulls. Changed only while the list of jobs is locked.
    ended: Arc<Mutex<PullTotals>>,
}

/// Totals of a puller's pulls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PullTotals {
    /// Number of running pulls.
    pub running: u64,
    /// Bytes received over the network. Never decreases.
    pub bytes_fetched: u64,
    /// Bytes that running pulls still need, as far as known.
    pub bytes_missing: u64,
    /// Number of pulls that succeeded.
    pub done: u64,
    /// Number of pulls that failed.
    pub failed: u64,
    /// Number of pulls that were cancelled.
    pub cancelled: u64,
}

struct PullJob {
    /// Distinguishes it from a later pull of the same model.
    number: u64,
    reference: String,
    states: watch::Receiver<PullState>,
    cancel: CancellationToken,
    audience: Arc<Mutex<Audience>>,
}

/// Watchers of a pull.
#[derive(Default)]
struct Audience {
    watching: usize,
    /// True if any caller wants the pull to go on without watchers.
    outlives: bool,
}

/// State of a pull.
#[derive(Clone, Debug)]
pub enum PullState {
    /// The pull is running.
    Running(Progress),
    /// The pull succeeded: the model's record, and the final progress.
    Done(Arc<ModelRecord>, Progress),
    /// The pull failed or was cancelled. Nothing of it is visible.
    Failed(Arc<PullError>),
}

/// Handle that watches a pull. Dropping it leaves the pull running, unless it is the last handle and all
/// handles came from [`Puller::pull_while_watched`].
pub struct Pull {
    states: watch::Receiver<PullState>,
    cancel: CancellationToken,
    audience: Arc<Mutex<Audience>>,
    joined: bool,
    seen_first: bool,
}

impl Puller {
    /// Creates a puller into `store`. `inspect` reads a model's description from its files.
    ///
    /// # Errors
    /// [`PullError::Internal`] if no HTTP client can be made.
    pub fn new(store: Store, settings: StoreSettings, inspect: Option<Inspect>) -> Result<Self, PullError> {
        let http = Arc::new(Http::new(&settings)?);
        let room = settings.write_bytes_max.map(|bytes| Arc::new(AtomicU64::new(bytes)));
        let downloader = Downloader { http: http.clone(), layout: store.layout.clone(), room };
        let means = Means { store, settings, http, downloader, inspect, parts: Mutex::default() };
        let (jobs, begun, ended) = Default::default();
        Ok(Self { means: Arc::new(means), jobs, begun, ended })
    }

    /// Returns the store it pulls into.
    pub fn store(&self) -> &Store {
        &self.means.store
    }

    /// Starts a pull, or joins a running one of the same model. `text` is a reference, an alias, or the name of
    /// a stored model, which is then pulled again from its source. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`StoreError::BadReference`], [`PullError::Refused`] for a bad glob, [`PullError::TooMany`].
    pub fn pull(&self, text: &str, options: &PullOptions) -> Result<Pull, PullError> {
        self.begin(text, options, true)
    }

    /// Does what [`Puller::pull`] does, but the pull ends when its last watcher leaves.
    ///
    /// # Errors
    /// As [`Puller::pull`].
    pub fn pull_while_watched(&self, text: &str, options: &PullOptions) -> Result<Pull, PullError> {
        self.begin(text, options, false)
    }

    fn begin(&self, text: &str, options: &PullOptions, outlives: bool) -> Result<Pull, PullError> {
        let reference = self.reference(text, options)?;
        let (include, exclude) = globs(options)?;
        let shown = reference.to_string();
        let key = format!("{shown}\0{options:?}").to_lowercase();
        let mut jobs = self.jobs();
        // A cancelled pull is about to end, so a new request starts a new one.
        if let Some(job) = jobs.get(&key).filter(|job| !job.cancel.is_cancelled()) {
            let (states, cancel) = (job.states.clone(), job.cancel.clone());
            if let Some(pull) = Pull::watching(states, cancel, job.audience.clone(), outlives, true) {
                return Ok(pull);
            }
        }
        if jobs.len() >= PULLS_MAX && !jobs.contains_key(&key) {
            return Err(PullError::TooMany { max: PULLS_MAX });
        }
        let progress = Arc::new(PullProgress::default());
        progress.begin(text, Vec::new());
        let (sender, states) = watch::channel(PullState::Running(progress.snapshot()));
        let cancel = CancellationToken::new();
        let (audience, number) = (Arc::<Mutex<Audience>>::default(), self.begun.fetch_add(1, Relaxed));
        let pull = Pull::watching(states.clone(), cancel.clone(), audience.clone(), outlives, false)
            .ok_or_else(|| PullError::Internal("a pull ended before it began".to_owned()))?;
        let job = PullJob { number, reference: shown, states, cancel: cancel.clone(), audience };
        jobs.insert(key.clone(), job);
        drop(jobs);
        let work = Acquire {
            means: self.means.clone(),
            reference,
            include,
            exclude,
            options: options.clone(),
            progress: progress.clone(),
            cancel: cancel.clone(),
        };
        let leave = Leave {
            jobs: self.jobs.clone(),
            key,
            number,
            came_to: PullTotals::default(),
            ended: self.ended.clone(),
        };
        tokio::spawn(run(work, progress, sender, cancel, leave));
        Ok(pull)
    }

    /// Previews a pull: asks the source and fetches no files.
    ///
    /// # Errors
    /// As [`Puller::pull`], and those of the source.
    pub async fn propose(&self, text: &str, options: &PullOptions) -> Result<Proposal, PullError> {
        let (include, exclude) = globs(options)?;
        let work = Acquire {
            means: self.means.clone(),
            reference: self.reference(text, options)?,
            include,
            exclude,
            options: options.clone(),
            progress: Arc::default(),
            cancel: CancellationToken::new(),
        };
        work.propose().await
    }

    /// Cancels the pulls that `text` refers to, in exactly the quantisation and revision of `options`. If there
    /// is none, cancels the pulls of a model that will be called `text`. Fetched bytes stay for the next
    /// attempt. Returns the number of cancelled pulls.
    ///
    /// # Errors
    /// As [`Puller::pull`].
    pub fn cancel(&self, text: &str, options: &PullOptions) -> Result<usize, PullError> {
        let reference = self.reference(text, options);
        let jobs = self.jobs();
        let cancel = |is_meant: &dyn Fn(&&PullJob) -> bool| {
            jobs.values().filter(is_meant).map(|job| job.cancel.cancel()).count()
        };
        let same = reference.as_ref().map(Reference::to_string);
        let by_reference = same.map_or(0, |same| cancel(&|job| job.reference.eq_ignore_ascii_case(&same)));
        let by_name = || match options.quantization.is_none() && options.revision.is_none() {
            true => cancel(&|job| is_called(job, text)),
            false => 0,
        };
        match if by_reference > 0 { by_reference } else { by_name() } {
            0 => reference.map(|_| 0),
            cancelled => Ok(cancelled),
        }
    }

    /// Lists every running pull: its reference and progress.
    pub fn running(&self) -> Vec<(String, Progress)> {
        let running = |job: &PullJob| match &*job.states.borrow() {
            PullState::Running(progress) => Some((job.reference.clone(), progress.clone())),
            _ => None,
        };
        self.jobs().values().filter_map(running).collect()
    }

    /// Returns the totals of all pulls so far.
    pub fn totals(&self) -> PullTotals {
        let jobs = self.jobs();
        let mut totals = *self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        for job in jobs.values() {
            if let PullState::Running(progress) = &*job.states.borrow() {
                totals.running += 1;
                totals.bytes_fetched += progress.bytes_fetched;
                totals.bytes_missing += progress.bytes_total.saturating_sub(progress.bytes_done);
            }
        }
        totals
    }

    /// Cancels every pull. Called when a daemon stops.
    pub fn close(&self) {
        self.jobs().values().for_each(|job| job.cancel.cancel());
    }

    /// Resolves the user's `text` to the reference to pull.
    fn reference(&self, text: &str, options: &PullOptions) -> Result<Reference, PullError> {
        let text = self.means.store.target(text)?;
        let mut reference = match alias::lookup(&text)? {
            Some(reference) => reference,
            None => Reference::parse(&text)?,
        };
        if let Reference::Name(name) = &reference {
            let unknown = || {
                let why = "no alias and no stored model is called that; write owner/model for Hugging Face, \
                           ollama://model:tag, https://…/model.gguf or ./path";
                StoreError::reference(name, why)
            };
            reference = match self.means.store.get(name) {
                Ok(record) => Reference::parse(&record.reference)?,
                Err(StoreError::NotFound { .. }) => return Err(unknown().into()),
                Err(error) => return Err(error.into()),
            };
        }
        if let Some(quantization) = &options.quantization {
            reference = reference.with_quantization(quantization)?;
        }
        if let Some(revision) = &options.revision {
            reference = reference.with_revision(revision)?;
        }
        Ok(reference)
    }

    fn jobs(&self) -> MutexGuard<'_, HashMap<String, PullJob>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns true if the pull's model will have this name. Its name is unknown until the source has answered.
fn is_called(job: &PullJob, name: &str) -> bool {
    let states = job.states.borrow();
    matches!(&*states, PullState::Running(progress)
        if !progress.files.is_empty() && progress.model.eq_ignore_ascii_case(name))
}

fn globs(options: &PullOptions) -> Result<(Globs, Globs), PullError> {
    Ok((Globs::new("include", &options.include)?, Globs::new("exclude", &options.exclude)?))
}

/// Guard that removes the pull from the list when it ends for any reason.
struct Leave {
    jobs: Arc<Mutex<HashMap<String, PullJob>>>,
    key: String,
    number: u64,
    /// Bytes fetched by this pull, and its outcome once it has ended.
    came_to: PullTotals,
    ended: Arc<Mutex<PullTotals>>,
}

impl Drop for Leave {
    fn drop(&mut self) {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.bytes_fetched += self.came_to.bytes_fetched;
        ended.done += self.came_to.done;
        ended.failed += self.came_to.failed;
        ended.cancelled += self.came_to.cancelled;
        if jobs.get(&self.key).is_some_and(|job| job.number == self.number) {
            jobs.remove(&self.key);
        }
    }
}

async fn run(
    work: Acquire,
    progress: Arc<PullProgress>,
    states: watch::Sender<PullState>,
    cancel: CancellationToken,
    mut leave: Leave,
) {
    let (reference, began) = (work.reference.to_string(), Instant::now());
    let result = {
        let mut work = pin!(work.run());
        let mut ticks = tokio::time::interval(PROGRESS_EVERY);
        loop {
            tokio::select! {
                biased;
                () = cancel.cancelled() => break Err(PullError::Cancelled),
                result = &mut work => break result,
                _ = ticks.tick() => {
                    states.send_replace(PullState::Running(progress.snapshot()));
                }
            }
        }
    };
    leave.came_to.bytes_fetched = progress.snapshot().bytes_fetched;
    match &result {
        Ok(_) => leave.came_to.done = 1,
        Err(PullError::Cancelled) => leave.came_to.cancelled = 1,
        Err(_) => leave.came_to.failed = 1,
    }
    // Leave the list before the result is sent, so that a caller who pulls again on it starts a new pull.
    drop(leave);
    states.send_replace(match result {
        Ok(record) => {
            tracing::info!(reference, model = record.name, bytes = record.size_bytes, "pulled");
            let last = progress.finished(&record, began.elapsed());
            PullState::Done(Arc::new(record), last)
        }
        Err(error) => {
            tracing::warn!(reference, %error, "pull failed");
            PullState::Failed(Arc::new(error))
        }
    });
}

impl Pull {
    /// Adds a watcher. None if the last one has just left and the pull is ending.
    fn watching(
        states: watch::Receiver<PullState>,
        cancel: CancellationToken,
        audience: Arc<Mutex<Audience>>,
        outlives: bool,
        joined: bool,
    ) -> Option<Self> {
        {
            let mut audience = audience.lock().unwrap_or_else(PoisonError::into_inner);
            if cancel.is_cancelled() {
                return None;
            }
            audience.watching += 1;
            audience.outlives |= outlives;
        }
        Some(Self { states, cancel, audience, joined, seen_first: false })
    }

    /// Returns true if the pull was running already.
    pub fn joined(&self) -> bool {
        self.joined
    }

    /// Returns the state: the first call at once, later calls after a change, at most every 0.1 s. After `Done`
    /// or `Failed` no change follows.
    pub async fn next(&mut self) -> PullState {
        if std::mem::replace(&mut self.seen_first, true) && self.states.changed().await.is_err() {
            // The task has ended. Its last state is final, unless it died while running.
            return match self.states.borrow().clone() {
                PullState::Running(_) => {
                    PullState::Failed(Arc::new(PullError::Internal("the pull's task died".to_owned())))
                }
                last => last,
            };
        }
        self.states.borrow_and_update().clone()
    }

    /// Waits until the pull ends.
    ///
    /// # Errors
    /// The reason for its failure.
    pub async fn done(mut self) -> Result<ModelRecord, Arc<PullError>> {
        loop {
            match self.next().await {
                PullState::Running(_) => {}
                PullState::Done(record, _) => return Ok((*record).clone()),
                PullState::Failed(error) => return Err(error),
            }
        }
    }

    /// Cancels the pull for all of its watchers.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }
}

impl Drop for Pull {
    fn drop(&mut self) {
        let mut audience = self.audience.lock().unwrap_or_else(PoisonError::into_inner);
        audience.watching -= 1;
        if audience.watching == 0 && !audience.outlives {
            // Has no effect on a pull that has ended.
            self.cancel.cancel();
        }
    }
}
