//! Daemon's side of an engine in another process, driven by its worker. Orders are sent at once. A step handles the
//! messages that arrived, or waits briefly for one. Events of a paused job are kept until it resumes. At most one
//! step's events are returned at a time, as with an engine in this process.

use std::{
    any::Any,
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use hanzo_engine_ops::KernelError;
use hanzo_engine_runtime::{
    Adapter, EmbedJob, EngineStats, Event, EventKind, Job, JobId, LoadError, LoadedAdapter, StepError,
    StepReport,
};

use super::{
    cgroup::Group,
    watch::{Watch, WatchResult},
    wire::{Message, Refusal, RunOrder, StepResult, WorkerOrder},
};
use crate::{
    device::{Generator, Steps},
    limits::WORKER_WAIT,
};

/// Engine in another process.
pub(super) struct RemoteEngine {
    watch: Watch,
    /// Dropped after the process has ended.
    group: Option<Group>,
    generates: bool,
    jobs: BTreeMap<JobId, RunningJob>,
    unread: VecDeque<StepResult>, // reports that arrived during a wait for another message
    adapters: BTreeMap<u32, RemoteAdapter>,
    steps: u64,
    last: (StepReport, EngineStats, Option<Duration>),
}

/// Job that the engine runs.
struct RunningJob {
    /// Number of completions or inputs that have not ended.
    left: usize,
    paused: bool,
    /// Events that arrived while the job was paused, with the number of their step.
    held: VecDeque<(u64, Event)>,
}

/// Adapter in the engine, with the reservation that is released with it.
struct RemoteAdapter {
    handle: Arc<LoadedAdapter>,
    _kept: Box<dyn Any + Send>,
}

impl RunningJob {
    fn new(left: usize) -> RunningJob {
        RunningJob { left, paused: false, held: VecDeque::new() }
    }

    /// Returns an event; true if it was the last.
    fn give(&mut self, event: Event, events: &mut Vec<Event>) -> bool {
        let ends = matches!(event.kind, EventKind::Finished { .. } | EventKind::Computed(_));
        self.left -= usize::from(ends && self.left > 0);
        events.push(event);
        self.left == 0
    }
}

impl RemoteEngine {
    /// Creates the engine of a process.
    pub(super) fn new(watch: Watch, group: Option<Group>, generates: bool) -> RemoteEngine {
        RemoteEngine {
            watch,
            group,
            generates,
            jobs: BTreeMap::new(),
            unread: VecDeque::new(),
            adapters: BTreeMap::new(),
            steps: 0,
            last: Default::default(),
        }
    }

    /// Orders the process to build its engine, and waits until it has.
    ///
    /// # Errors
    /// Reason why it did not.
    pub(super) fn open(&mut self, open: WorkerOrder, progress: &mut dyn FnMut(f32)) -> Result<(), LoadError> {
        let untold = |reason| LoadError::Worker(format!("the worker's process cannot be told: {reason}"));
        self.watch.say(&open).map_err(untold)?;
        loop {
            match self.watch.wait().map_err(LoadError::Worker)? {
                Message::Progress(fraction) => progress(fraction),
                Message::Ready => return Ok(()),
                Message::Refused(refusal) => return Err(refusal.into()),
                Message::Stepped(result) => self.unread.push_back(result),
                Message::Ended(reason) => return Err(LoadError::Worker(reason)),
                Message::Adapter(_) | Message::Pulse { .. } => {}
            }
        }
    }

    /// Adds a job. If its order cannot be sent, the job fails.
    fn begin(&mut self, id: JobId, left: usize, order: &WorkerOrder) {
        let mut running = RunningJob::new(left);
        if let Err(reason) = self.watch.say(order) {
            let reason = format!("the request cannot be given to the model's process: {reason}");
            let kind = EventKind::ConstraintFailed { reason };
            running.held.push_back((0, Event { job: id, choice: 0, kind }));
        }
        self.jobs.insert(id, running);
    }

    /// Returns the kept events of resumed jobs, one step's for each. True if there were any.
    fn release(&mut self, events: &mut Vec<Event>) -> bool {
        let before = events.len();
        self.jobs.retain(|_, job| {
            let step = job.held.front().map(|(step, _)| *step).filter(|_| !job.paused);
            let mut over = false;
            while job.held.front().is_some_and(|(of, _)| Some(*of) == step) {
                if let Some((_, event)) = job.held.pop_front() {
                    over |= job.give(event, events);
                }
            }
            !over
        });
        events.len() > before
    }

    fn take(&mut self, result: StepResult, events: &mut Vec<Event>) {
        let StepResult { report, stats, took, events: made } = result;
        self.steps += 1;
        self.last = (report, stats, took);
        for event in made {
            // Events of cancelled jobs are dropped.
            let Some(job) = self.jobs.get_mut(&event.job) else { continue };
            if job.paused || !job.held.is_empty() {
                job.held.push_back((self.steps, event));
            } else {
                let id = event.job;
                if job.give(event, events) {
                    self.jobs.remove(&id);
                }
            }
        }
    }

    fn lost(reason: String) -> StepError {
        StepError::Lost { reason }
    }
}

impl Steps for RemoteEngine {
    fn generator(&mut self) -> Option<&mut dyn Generator> {
        if self.generates { Some(self) } else { None }
    }

    fn submit_inputs(&mut self, job: &EmbedJob) {
        self.begin(job.id, job.inputs.len(), &WorkerOrder::Embed(job.clone()));
    }

    fn cancel(&mut self, job: JobId) {
        if self.jobs.remove(&job).is_some() {
            let _ = self.watch.say(&WorkerOrder::Cancel(job));
        }
    }

    fn set_paused(&mut self, job: JobId, paused: bool) {
        let Some(running) = self.jobs.get_mut(&job).filter(|running| running.paused != paused) else {
            return;
        };
        running.paused = paused;
        let _ = self.watch.say(&WorkerOrder::Pause(job, paused));
    }

    fn step(&mut self, events: &mut Vec<Event>) -> Result<StepReport, StepError> {
        // These numbers belong to the previous step alone.
        (self.last.0.schedule_ns, self.last.2) = (0, None);
        if self.release(events) {
            return Ok(self.last.0);
        }
        if let Some(result) = self.unread.pop_front() {
            self.take(result, events);
            return Ok(self.last.0);
        }
        // A message, new work, or a client that reads or disconnects ends the wait.
        match self.watch.hear(Some(Instant::now() + WORKER_WAIT)) {
            WatchResult::Message(Message::Stepped(result)) => self.take(result, events),
            WatchResult::Message(Message::Ended(reason)) | WatchResult::Ended(reason) => {
                return Err(Self::lost(reason));
            }
            // Replies to requests that were given up.
            WatchResult::Message(_) | WatchResult::Nothing => {}
        }
        Ok(self.last.0)
    }

    /// The process measures its own steps.
    fn took(&mut self, _time: Duration) {}

    fn step_time(&self) -> Option<Duration> {
        self.last.2
    }

    fn has_work(&self) -> bool {
        !self.unread.is_empty() || self.jobs.values().any(|job| !job.paused) || self.watch.is_over()
    }

    fn rest(&mut self, until: Option<Instant>) {
        // The next step notices the end of the process.
        if let WatchResult::Message(Message::Stepped(result)) = self.watch.hear(until) {
            self.unread.push_back(result);
        }
    }

    fn stats(&self) -> EngineStats {
        self.last.1
    }

    fn process(&self) -> Option<u32> {
        self.watch.pid()
    }
}

impl Generator for RemoteEngine {
    fn submit(&mut self, job: Arc<Job>) {
        self.begin(job.id, job.choices as usize, &WorkerOrder::Run(Box::new(RunOrder::of(&job))));
    }

    fn load_adapter(
        &mut self,
        adapter: &Adapter,
        kept: Box<dyn Any + Send>,
    ) -> Result<Arc<LoadedAdapter>, LoadError> {
        self.free_adapters();
        let (path, digest) = (adapter.origin.clone(), adapter.digest);
        if let Some(group) = &mut self.group {
            group.raise(adapter.size_bytes.saturating_mul(2));
        }
        let order = WorkerOrder::Adapter { path, digest, bytes: adapter.size_bytes };
        self.watch.say(&order).map_err(LoadError::Worker)?;
        let slot = loop {
            match self.watch.wait().map_err(LoadError::Worker)? {
                Message::Adapter(Ok(slot)) => break slot,
                Message::Adapter(Err(refusal)) => return Err(refusal.into()),
                Message::Stepped(result) => self.unread.push_back(result),
                Message::Ended(reason) => return Err(LoadError::Worker(reason)),
                _ => {}
            }
        };
        let handle = Arc::new(LoadedAdapter::elsewhere(slot, digest));
        self.adapters.insert(slot, RemoteAdapter { handle: handle.clone(), _kept: kept });
        Ok(handle)
    }

    fn free_adapters(&mut self) {
        let free =
            |(slot, held): (&u32, &RemoteAdapter)| (Arc::strong_count(&held.handle) == 1).then_some(*slot);
        let slots: Vec<u32> = self.adapters.iter().filter_map(free).collect();
        for slot in slots {
            let _ = self.watch.say(&WorkerOrder::DropAdapter(slot));
            self.adapters.remove(&slot);
        }
    }
}

impl From<Refusal> for LoadError {
    fn from(refusal: Refusal) -> LoadError {
        if let Some((device, reason)) = refusal.refused_by {
            return LoadError::Kernel(KernelError::Device { device, reason });
        }
        match refusal.no_memory {
            Some((device, bytes)) => LoadError::Kernel(KernelError::OutOfMemory {
                device,
                bytes,
                what: "a model in its own process",
            }),
            None => LoadError::Worker(refusal.reason),
        }
    }
}
