//! Pulls: each runs in a task of its own, whoever asked for it comes or goes; who asks for the same meanwhile joins.

use crate::acquire::{Acquire, Means};
use crate::download::Downloader;
use crate::http::Http;
use crate::limits::{PROGRESS_EVERY, PULLS_MAX};
use crate::plan::{Proposal, PullOptions};
use crate::progress::{Progress, PullProgress};
use crate::publish::Inspect;
use crate::record::ModelRecord;
use crate::reference::Reference;
use crate::settings::Settings;
use crate::source::choose::Globs;
use crate::{PullError, Store, StoreError, alias};
use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Pulls models into a store. Cloning it is cheap and shares the pulls.
#[derive(Clone)]
pub struct Puller {
    means: Arc<Means>,
    jobs: Arc<Mutex<HashMap<String, Job>>>,
    /// Pulls that were begun.
    begun: Arc<AtomicU64>,
    /// What those that have ended came to; changed with the list of jobs held.
    ended: Arc<Mutex<PullTotals>>,
}

/// What has become of a puller's pulls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PullTotals {
    /// Under way.
    pub running: u64,
    /// Bytes that came over the network; it never falls.
    pub bytes_fetched: u64,
    /// Bytes that those under way still lack, as far as that is known.
    pub bytes_missing: u64,
    /// Pulls whose model is there.
    pub done: u64,
    /// Pulls that failed.
    pub failed: u64,
    /// Pulls that were cancelled.
    pub cancelled: u64,
}

struct Job {
    /// Tells it from a later one of the same.
    number: u64,
    reference: String,
    states: watch::Receiver<PullState>,
    cancel: CancellationToken,
    audience: Arc<Mutex<Audience>>,
}

/// Who watches a pull.
#[derive(Default)]
struct Audience {
    watching: usize,
    /// Somebody began or joined it who wants it to go on without anybody.
    outlives: bool,
}

/// How a pull is.
#[derive(Clone, Debug)]
pub enum PullState {
    /// Under way.
    Running(Progress),
    /// The model is there: its record, and how the pull went.
    Done(Arc<ModelRecord>, Progress),
    /// It failed, or was cancelled. Nothing of it is visible.
    Failed(Arc<PullError>),
}

/// A pull that somebody watches. Dropping it leaves the pull running, unless it is the last one of a pull that only
/// [`Puller::pull_while_watched`] began and joined.
pub struct Pull {
    states: watch::Receiver<PullState>,
    cancel: CancellationToken,
    audience: Arc<Mutex<Audience>>,
    joined: bool,
    seen_first: bool,
}

impl Puller {
    /// Pulls go into `store`. `inspect` reads what a model's files say of it.
    ///
    /// # Errors
    /// [`PullError::Internal`] when no HTTP client can be made.
    pub fn new(store: Store, settings: Settings, inspect: Option<Inspect>) -> Result<Self, PullError> {
        let http = Arc::new(Http::new(&settings)?);
        let room = settings.write_bytes_max.map(|bytes| Arc::new(AtomicU64::new(bytes)));
        let downloader = Downloader { http: http.clone(), layout: store.layout.clone(), room };
        let means = Means { store, settings, http, downloader, inspect, parts: Mutex::default() };
        let (jobs, begun, ended) = Default::default();
        Ok(Self { means: Arc::new(means), jobs, begun, ended })
    }

    /// The store it pulls into.
    pub fn store(&self) -> &Store {
        &self.means.store
    }

    /// Begins a pull, or joins one of the same that is running. `text` is a reference, an alias, or the name of a
    /// stored model, which is then pulled again from where it came. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`StoreError::BadReference`], [`PullError::Refused`] for a bad glob, [`PullError::TooMany`].
    pub fn pull(&self, text: &str, options: &PullOptions) -> Result<Pull, PullError> {
        self.begin(text, options, true)
    }

    /// As [`Puller::pull`], of a pull that ends when nobody watches it any more.
    ///
    /// # Errors
    /// As there.
    pub fn pull_while_watched(&self, text: &str, options: &PullOptions) -> Result<Pull, PullError> {
        self.begin(text, options, false)
    }

    fn begin(&self, text: &str, options: &PullOptions, outlives: bool) -> Result<Pull, PullError> {
        let reference = self.reference(text, options)?;
        let (include, exclude) = globs(options)?;
        let shown = reference.to_string();
        let key = format!("{shown}\0{options:?}").to_lowercase();
        let mut jobs = self.jobs();
        // One that was cancelled is on its way out: who asks now begins anew.
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
        let job = Job { number, reference: shown, states, cancel: cancel.clone(), audience };
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

    /// What a pull would do. Asks the source, and fetches nothing.
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

    /// Ends the pulls of what `text` refers to, in the quantisation and revision of `options` and no other; where
    /// there is none, those of a model that will be called `text`. What they fetched stays for the next. Gives how many
    /// there were.
    ///
    /// # Errors
    /// As [`Puller::pull`].
    pub fn cancel(&self, text: &str, options: &PullOptions) -> Result<usize, PullError> {
        let reference = self.reference(text, options);
        let jobs = self.jobs();
        let cancel = |is_meant: &dyn Fn(&&Job) -> bool| {
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

    /// Every pull that is running: its reference and how far it is.
    pub fn running(&self) -> Vec<(String, Progress)> {
        let running = |job: &Job| match &*job.states.borrow() {
            PullState::Running(progress) => Some((job.reference.clone(), progress.clone())),
            _ => None,
        };
        self.jobs().values().filter_map(running).collect()
    }

    /// What has become of all of them by now.
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

    /// Ends every pull: a daemon that stops does.
    pub fn close(&self) {
        self.jobs().values().for_each(|job| job.cancel.cancel());
    }

    /// What is to be pulled when a user writes `text`.
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

    fn jobs(&self) -> MutexGuard<'_, HashMap<String, Job>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a pull's model will be called that. Until its source has answered, its files and its name are unknown.
fn is_called(job: &Job, name: &str) -> bool {
    let states = job.states.borrow();
    matches!(&*states, PullState::Running(progress)
        if !progress.files.is_empty() && progress.model.eq_ignore_ascii_case(name))
}

fn globs(options: &PullOptions) -> Result<(Globs, Globs), PullError> {
    Ok((Globs::new("include", &options.include)?, Globs::new("exclude", &options.exclude)?))
}

/// Takes the pull off the list when it ends, however that is.
struct Leave {
    jobs: Arc<Mutex<HashMap<String, Job>>>,
    key: String,
    number: u64,
    /// What it fetched, and how it ended, where it did.
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
    // Off the list before it is said: who pulls again on that word begins anew.
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
    /// One more watches; none where the last has just left and the pull ends.
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

    /// Whether the pull was running before.
    pub fn joined(&self) -> bool {
        self.joined
    }

    /// How it is now, and at each later call how it is after something changed; at most every 0.1 s. After `Done`
    /// or `Failed` there is nothing more to wait for.
    pub async fn next(&mut self) -> PullState {
        if std::mem::replace(&mut self.seen_first, true) && self.states.changed().await.is_err() {
            // The task is gone. Its last word stands, unless it died without one.
            return match self.states.borrow().clone() {
                PullState::Running(_) => {
                    PullState::Failed(Arc::new(PullError::Internal("the pull's task died".to_owned())))
                }
                last => last,
            };
        }
        self.states.borrow_and_update().clone()
    }

    /// Waits until it ends.
    ///
    /// # Errors
    /// Why it failed.
    pub async fn done(mut self) -> Result<ModelRecord, Arc<PullError>> {
        loop {
            match self.next().await {
                PullState::Running(_) => {}
                PullState::Done(record, _) => return Ok((*record).clone()),
                PullState::Failed(error) => return Err(error),
            }
        }
    }

    /// Ends it, for everybody who watches it.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }
}

impl Drop for Pull {
    fn drop(&mut self) {
        let mut audience = self.audience.lock().unwrap_or_else(PoisonError::into_inner);
        audience.watching -= 1;
        if audience.watching == 0 && !audience.outlives {
            // One that has ended is past cancelling.
            self.cancel.cancel();
        }
    }
}
