//! Worker that owns one model's engine. [`Worker::turn`] is its loop body: orders, new work, clients, one step. It
//! never waits for a client. With nothing to run it asks to be parked until it is woken: no polling, and no timers
//! besides the requests' deadlines. The clock, and how its thread sleeps and wakes, are in `clock.rs`.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    mem,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
        mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel},
    },
    task::Waker,
    time::{Duration, Instant},
};

use hanzo_engine_runtime::{
    Adapter, EngineStats, Event, EventKind, JobId, LoadError, LoadedAdapter, StepError, StepReport,
};
use tokio::sync::oneshot;

use crate::{
    admission::Admission,
    budget::Reservation,
    device::Steps,
    error::error_id,
    limits::{ADAPTER_ORDERS_MAX, EMBED_JOBS_MAX, STUCK_AFTER},
    metrics::ModelMetrics,
    ticket::{ClientState, EmbedTicket, JobEnd, SoundTicket, SpeakTicket, Ticket, TicketClient},
    views::ProcessView,
};

/// Work for a worker, with its place in the queue.
pub(crate) enum WorkItem {
    /// Text generation.
    Run(Ticket),
    /// Batch of inputs to embed.
    Embed(EmbedTicket),
    /// Sound to transcribe.
    Transcribe(SoundTicket),
    /// Text to speak.
    Speak(SpeakTicket),
    /// Adapter to load.
    Adapter(AdapterOrder),
}

/// A prepared adapter that the worker adds to the engine between two steps.
pub(crate) struct AdapterOrder {
    pub(crate) adapter: Box<Adapter>,
    pub(crate) kept: Reservation,
    pub(crate) reply: oneshot::Sender<Result<Arc<LoadedAdapter>, LoadError>>,
}

/// Reason why work was not given to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotGiven {
    /// The worker has ended.
    Left,
    /// Its channel is full.
    Full,
}

/// Requested end of a worker. State rather than a message: it takes no room in a channel and cannot be lost.
#[derive(Default)]
struct Orders {
    drain: AtomicBool,
    stop: OnceLock<&'static str>,
}

/// Worker with its engine and jobs.
pub(crate) struct Worker {
    engine: Box<dyn Steps>,
    work: Receiver<WorkItem>,
    jobs: BTreeMap<JobId, WorkItem>, // in order, so that the same turns give the same steps
    events: Vec<Event>,              // of the step that has just run
    vitals: Arc<Vitals>,
    metrics: Arc<ModelMetrics>,
    phase: WorkerPhase,
}

/// Result of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TurnResult {
    /// A step ran, and there may be another.
    Ran,
    /// There is nothing to run until the worker is woken, or until this time.
    Park(Option<Instant>),
    /// All work has ended, and the worker accepts no more.
    Left,
}

impl WorkItem {
    /// Client of the work. Adapters have none: their sender notices when the order is dropped.
    fn client(&self) -> Option<&dyn TicketClient> {
        match self {
            WorkItem::Run(ticket) => Some(&ticket.line),
            WorkItem::Embed(ticket) => Some(ticket),
            WorkItem::Transcribe(ticket) => Some(&ticket.line),
            WorkItem::Speak(ticket) => Some(&ticket.line),
            WorkItem::Adapter(_) => None,
        }
    }

    fn client_mut(&mut self) -> Option<&mut dyn TicketClient> {
        match self {
            WorkItem::Run(ticket) => Some(&mut ticket.line),
            WorkItem::Embed(ticket) => Some(ticket),
            WorkItem::Transcribe(ticket) => Some(&mut ticket.line),
            WorkItem::Speak(ticket) => Some(&mut ticket.line),
            WorkItem::Adapter(_) => None,
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.client()?.deadline()
    }

    fn client_state(&self, now: Instant) -> ClientState {
        self.client().map_or(ClientState::Fine, |client| client.client_state(now))
    }

    /// Whether the client must read before the job may continue. An embedding has as many results as inputs, and
    /// there is room for them.
    fn must_pause(&self) -> bool {
        match self {
            WorkItem::Run(ticket) => ticket.must_pause(),
            WorkItem::Transcribe(ticket) => ticket.must_pause(),
            WorkItem::Speak(ticket) => ticket.must_pause(),
            WorkItem::Embed(_) | WorkItem::Adapter(_) => false,
        }
    }

    fn end(mut self, end: JobEnd) {
        if let Some(client) = self.client_mut() {
            client.end(end);
        }
    }

    fn fail(mut self, error_id: &str) {
        if let Some(client) = self.client_mut() {
            client.fail(error_id);
        }
    }
}

/// Phase of a worker's life.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WorkerPhase {
    /// The worker accepts work.
    Serving,
    /// The worker accepts nothing new, and ends when all work has ended.
    Draining,
    /// The worker ends now. Work from a client that still saw it serving ends at once.
    Stopped(&'static str),
}

/// State of a worker that others can read without asking it.
pub(crate) struct Vitals {
    start: Instant,
    // Time of the last turn with work, in milliseconds since `start`, plus 1; 0 while parked.
    progress_ms: AtomicU64,
    batch_size: AtomicUsize,
    stats: Mutex<EngineStats>,
    orders: Orders,
    process: OnceLock<u32>, // process of the engine, if it is another one
    /// Queue of the worker.
    pub(crate) admission: Arc<Admission>,
}

/// Handle of a worker; dropping the last one ends it.
pub(crate) struct WorkerHandle {
    work: Option<SyncSender<WorkItem>>,
    waker: Waker,
    vitals: Arc<Vitals>,
}

impl Worker {
    /// Runs turns on this thread until it has stopped.
    ///
    /// # Errors
    /// Errors of [`Worker::turn`].
    pub(crate) fn run(&mut self) -> Result<(), StepError> {
        loop {
            match self.turn(Instant::now)? {
                TurnResult::Ran => {}
                TurnResult::Park(until) => self.rest(until),
                TurnResult::Left => return Ok(()),
            }
        }
    }

    /// Runs one turn of the loop: takes orders and work, checks the clients, and runs one step. `now` is called
    /// before and after the step.
    ///
    /// # Errors
    /// Errors of the engine. It is unusable then, and [`Worker::fail`] must be called.
    pub(crate) fn turn(&mut self, mut now: impl FnMut() -> Instant) -> Result<TurnResult, StepError> {
        let began = now();
        self.vitals.beat(began);
        self.take_orders(began);
        self.take_work();
        self.look_after_jobs(began);
        self.listen();
        if let Some(engine) = self.engine.generator() {
            engine.free_adapters();
        }
        let leaves = self.phase != WorkerPhase::Serving && self.jobs.is_empty();
        if leaves || !self.engine.has_work() {
            // Save KV blocks to disk while there is time, and before they are lost.
            let more = self.engine.generator().map_or(Ok(false), |engine| engine.tend_blocks())?;
            return Ok(match () {
                () if more => TurnResult::Ran,
                () if leaves => TurnResult::Left,
                () => self.park(),
            });
        }
        let report = self.engine.step(&mut self.events)?;
        let ended = now();
        self.engine.took(ended.saturating_duration_since(began));
        let began = self.engine.step_time().and_then(|time| ended.checked_sub(time)).unwrap_or(began);
        self.metrics.scheduled(report.schedule_ns);
        // First, so that a client that has read its last event finds its blocks free.
        self.publish(report, ended);
        self.pass_on(report, began, ended);
        Ok(TurnResult::Ran)
    }

    /// Waits after [`TurnResult::Park`].
    pub(crate) fn rest(&mut self, until: Option<Instant>) {
        self.engine.rest(until);
    }

    fn take_orders(&mut self, now: Instant) {
        let orders = &self.vitals.orders;
        let (drain, stop) = (orders.drain.load(Relaxed), orders.stop.get().copied());
        if let Some(why) = stop.filter(|_| !matches!(self.phase, WorkerPhase::Stopped(_))) {
            self.stop(why, now);
        } else if drain {
            self.leave();
        }
    }

    fn take_work(&mut self) {
        loop {
            match self.work.try_recv() {
                Ok(work) => self.take(work),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.leave();
                    return;
                }
            }
        }
    }

    fn take(&mut self, mut work: WorkItem) {
        if let WorkerPhase::Stopped(why) = self.phase {
            return work.end(JobEnd::Stopped(why));
        }
        let id = match &mut work {
            WorkItem::Run(ticket) => {
                let Some(engine) = self.engine.generator() else {
                    return work.end(JobEnd::Stopped("the model's engine generates nothing"));
                };
                engine.submit(ticket.job.clone());
                ticket.job.id
            }
            WorkItem::Embed(ticket) => {
                self.engine.submit_inputs(&ticket.job);
                ticket.job.id
            }
            WorkItem::Transcribe(ticket) => {
                let Some(engine) = self.engine.transcriber() else {
                    return work.end(JobEnd::Stopped("the model's engine transcribes nothing"));
                };
                engine.submit_sound(ticket.job.clone());
                ticket.job.id
            }
            WorkItem::Speak(ticket) => {
                let (Some(engine), Some(job)) = (self.engine.speaker(), ticket.take_job()) else {
                    return work.end(JobEnd::Stopped("the model's engine says nothing"));
                };
                engine.submit(job);
                ticket.id
            }
            WorkItem::Adapter(_) => return self.take_adapter(work),
        };
        self.jobs.insert(id, work);
    }

    fn take_adapter(&mut self, work: WorkItem) {
        let (WorkItem::Adapter(AdapterOrder { adapter, kept, reply }), Some(engine)) =
            (work, self.engine.generator())
        else {
            return;
        };
        // If the caller is gone, the adapter is dropped and its memory freed.
        let _ = reply.send(engine.load_adapter(&adapter, Box::new(kept)));
    }

    fn leave(&mut self) {
        if self.phase == WorkerPhase::Serving {
            self.phase = WorkerPhase::Draining;
        }
    }

    fn look_after_jobs(&mut self, now: Instant) {
        let Self { engine, jobs, .. } = self;
        let mut gone = Vec::new();
        for (&id, ticket) in &*jobs {
            match ticket.client_state(now) {
                ClientState::Fine => {}
                ClientState::Resume => engine.set_paused(id, false),
                ClientState::Left => gone.push((id, None)),
                ClientState::Late => gone.push((id, Some(JobEnd::Deadline))),
            }
        }
        let changed = !gone.is_empty();
        for (id, end) in gone {
            engine.cancel(id);
            if let (Some(ticket), Some(end)) = (jobs.remove(&id), end) {
                ticket.end(end);
            }
        }
        if changed {
            self.publish(StepReport::default(), now);
        }
    }

    /// Gives the engine samples of each sound as it can use them; the senders of more are held back.
    fn listen(&mut self) {
        let Self { engine, jobs, .. } = self;
        let Some(engine) = engine.transcriber() else { return };
        for (&id, work) in jobs {
            if let WorkItem::Transcribe(ticket) = work {
                while engine.wants(id) > 0
                    && let Some(samples) = ticket.listen()
                {
                    engine.push(id, samples.as_deref());
                }
            }
        }
    }

    /// Forwards the events of a step that ran from `began` to `ended`.
    fn pass_on(&mut self, report: StepReport, began: Instant, ended: Instant) {
        let mut events = mem::take(&mut self.events);
        for event in events.drain(..) {
            let id = event.job;
            let now = if matches!(event.kind, EventKind::Started { .. }) { began } else { ended };
            match event.kind {
                EventKind::Failed => {
                    let error_id = error_id();
                    tracing::error!(
                        error_id,
                        job = id.0,
                        "the model computed something that is not a number"
                    );
                    self.end_failed(id, JobEnd::NotANumber { error_id }, report, ended);
                    continue;
                }
                EventKind::ConstraintFailed { ref reason } => {
                    let reason = reason.clone();
                    self.end_failed(id, JobEnd::Constraint { reason }, report, ended);
                    continue;
                }
                EventKind::Unsayable { ref reason } => {
                    let reason = reason.clone();
                    self.end_failed(id, JobEnd::Unsayable { reason }, report, ended);
                    continue;
                }
                _ => {}
            }
            let Entry::Occupied(mut entry) = self.jobs.entry(id) else { continue };
            let over = match entry.get_mut() {
                WorkItem::Run(ticket) => ticket.pass(event, now, &self.metrics, &self.vitals.admission),
                WorkItem::Embed(ticket) => ticket.take(event, now, &self.metrics),
                WorkItem::Transcribe(ticket) => {
                    ticket.pass(event, now, &self.metrics, &self.vitals.admission)
                }
                WorkItem::Speak(ticket) => ticket.pass(event, now, &self.metrics, &self.vitals.admission),
                WorkItem::Adapter(_) => false,
            };
            if over && let WorkItem::Embed(ticket) = entry.remove() {
                ticket.done();
            }
        }
        self.events = events;
        for (&id, ticket) in &self.jobs {
            if ticket.must_pause() {
                self.engine.set_paused(id, true);
            }
        }
    }

    /// Ends a request with an error because one completion failed. Other requests are not affected.
    fn end_failed(&mut self, id: JobId, end: JobEnd, report: StepReport, now: Instant) {
        self.engine.cancel(id);
        // Its blocks are free now, and there may be no step soon that would publish that.
        self.publish(report, now);
        let Some(ticket) = self.jobs.remove(&id) else { return };
        ticket.end(end);
    }

    /// Publishes the statistics.
    fn publish(&self, report: StepReport, now: Instant) {
        let current = self.engine.stats();
        let mut stats = self.vitals.lock();
        self.metrics.advance(&stats, &current, now);
        *stats = current;
        self.vitals.batch_size.store(report.sequences, Relaxed);
    }

    /// Parks until there are orders or work, a client reads or disconnects, or the next deadline passes.
    fn park(&self) -> TurnResult {
        self.vitals.batch_size.store(0, Relaxed);
        self.vitals.progress_ms.store(0, Relaxed);
        TurnResult::Park(self.jobs.values().filter_map(WorkItem::deadline).min())
    }

    fn stop(&mut self, why: &'static str, now: Instant) {
        for (id, ticket) in mem::take(&mut self.jobs) {
            self.engine.cancel(id);
            ticket.end(JobEnd::Stopped(why));
        }
        self.publish(StepReport::default(), now);
        self.phase = WorkerPhase::Stopped(why);
    }

    /// Ends every request after a panic or an error. Running ones get the engine's error; waiting ones are told to
    /// try again.
    pub(crate) fn fail(mut self, error_id: &str) {
        for ticket in mem::take(&mut self.jobs).into_values() {
            ticket.fail(error_id);
        }
        while let Ok(work) = self.work.try_recv() {
            work.fail(error_id);
        }
    }
}

impl Vitals {
    /// Creates the state of a worker that starts now, with this queue.
    pub(crate) fn new(admission: Arc<Admission>, now: Instant) -> Arc<Self> {
        Arc::new(Self {
            start: now,
            progress_ms: AtomicU64::new(0),
            batch_size: AtomicUsize::new(0),
            stats: Mutex::default(),
            orders: Orders::default(),
            process: OnceLock::new(),
            admission,
        })
    }

    /// Engine's gauges and counters after its last step.
    pub(crate) fn stats(&self) -> EngineStats {
        *self.lock()
    }

    /// Number of sequences in the last step; 0 when idle.
    pub(crate) fn batch_size(&self) -> usize {
        self.batch_size.load(Relaxed)
    }

    /// Process of the engine, if it is another one.
    pub(crate) fn process(&self) -> Option<ProcessView> {
        self.process.get().copied().map(ProcessView::of)
    }

    /// Whether it has work but its loop has made no turn for too long.
    pub(crate) fn is_stuck(&self, now: Instant) -> bool {
        self.silent_for(now).is_some_and(|silence| silence > STUCK_AFTER)
    }

    fn silent_for(&self, now: Instant) -> Option<Duration> {
        let progress = self.progress_ms.load(Relaxed).checked_sub(1)?;
        Some(Duration::from_millis(self.ms_at(now).saturating_sub(progress)))
    }

    fn beat(&self, now: Instant) {
        self.progress_ms.store(self.ms_at(now) + 1, Relaxed);
    }

    /// Starts the clock of a parked worker that was just given work.
    fn expect_progress(&self, now: Instant) {
        let _ = self.progress_ms.compare_exchange(0, self.ms_at(now) + 1, Relaxed, Relaxed);
    }

    /// Milliseconds from its start to `now`.
    fn ms_at(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.start).as_millis()).unwrap_or(u64::MAX)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, EngineStats> {
        // Plain numbers, replaced as a whole.
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Creates the channel to a future worker.
pub(crate) fn channel(admission: &Admission) -> (SyncSender<WorkItem>, Receiver<WorkItem>) {
    // Everything in the channel holds a place in the queue, and a bounded number share one place, so it is never
    // full.
    sync_channel(admission.capacity() * EMBED_JOBS_MAX + ADAPTER_ORDERS_MAX)
}

impl Worker {
    /// A worker for `engine`.
    pub(crate) fn new(
        engine: Box<dyn Steps>,
        work: Receiver<WorkItem>,
        vitals: Arc<Vitals>,
        metrics: Arc<ModelMetrics>,
        now: Instant,
    ) -> Self {
        if let Some(pid) = engine.process() {
            // Each worker has its own vitals, so this is set once.
            let _ = vitals.process.set(pid);
        }
        let (jobs, events) = (BTreeMap::new(), Vec::new());
        let worker = Self { engine, work, jobs, events, vitals, metrics, phase: WorkerPhase::Serving };
        worker.publish(StepReport::default(), now);
        worker
    }
}

impl WorkerHandle {
    /// Creates the handle of a worker that `waker` wakes.
    pub(crate) fn new(work: SyncSender<WorkItem>, waker: Waker, vitals: Arc<Vitals>) -> Self {
        Self { work: Some(work), waker, vitals }
    }

    /// Gives the worker something to do.
    ///
    /// # Errors
    /// [`NotGiven`]; the work has been dropped.
    pub(crate) fn give(&self, work: WorkItem, now: Instant) -> Result<(), NotGiven> {
        let Some(sender) = &self.work else { return Err(NotGiven::Left) };
        sender.try_send(work).map_err(|error| match error {
            TrySendError::Disconnected(_) => NotGiven::Left,
            TrySendError::Full(_) => NotGiven::Full,
        })?;
        self.wake(now);
        Ok(())
    }

    /// Makes the worker accept nothing more, and end when all work has ended.
    pub(crate) fn drain(&self, now: Instant) {
        self.vitals.orders.drain.store(true, Relaxed);
        self.wake(now);
    }

    /// Makes the worker end all work and stop. The first caller's reason is used.
    pub(crate) fn stop(&self, why: &'static str, now: Instant) {
        let _ = self.vitals.orders.stop.set(why);
        self.wake(now);
    }

    fn wake(&self, now: Instant) {
        self.vitals.expect_progress(now);
        // The woken worker sees everything that was set before.
        self.waker.wake_by_ref();
    }

    /// Waker of the worker.
    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// State of the worker.
    pub(crate) fn vitals(&self) -> &Vitals {
        &self.vitals
    }
}

impl Drop for WorkerHandle {
    fn drop(&mut self) {
        // Disconnected first, since the woken worker must see it.
        self.work = None;
        self.waker.wake_by_ref();
    }
}
