//! Loop around an engine in a worker process: reads orders, runs one step, sends its events. The daemon decides
//! what to run and when to cancel it.

use std::{
    any::Any,
    collections::BTreeMap,
    io,
    os::{fd::AsFd as _, unix::net::UnixStream},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use hanzo_engine_constraints::{Grammar, Spec};
use hanzo_engine_media::PixelLimits;
use hanzo_engine_ops::KernelError;
use hanzo_engine_runtime::{
    Adapter, AdapterBase, BaseWeights, ClientId, EngineStats, Event, EventKind, Job, JobId, LoadError,
    LoadedAdapter, StepError, StepReport, TextModel, spec::TransformerSpec,
};
use rustix::event::PollFlags;

use super::{
    limit,
    turns::Turns,
    wire::{
        FrameReader, FrameWriter, Impatient, Message, OpenOrder, Refusal, RunOrder, StepResult, WorkerOrder,
        is_timeout,
    },
};
use crate::{
    adapters::BaseModel,
    clock::{Bell, Woken},
    constraints::Constraints,
    cpu::Cpu,
    device::{Device, Origin, Steps},
    device_name::DeviceName,
    devices::OnCard,
    draft::Draft,
    gpu_layers::LayerDistribution,
    launch::{Made, make, words},
    limits::{PREFIX_DISK_FLUSH, WORKER_ORDER_WAIT, WORKER_PULSE_EVERY},
    log,
    prefix_disk::{DiskPlace, PrefixDisk},
};

/// Compiled constraint of a waiting job, or an error.
type Compiled = (JobId, Result<Arc<Grammar>, String>);

/// Orders in the sequence of their arrival, read by the engine's own thread between steps. A separate reader thread
/// would deliver them later and take a core from the step.
struct Orders {
    stream: UnixStream,
    frames: FrameReader<Impatient>,
    at_end: fn(),
}

/// Outgoing stream, shared by all threads of a worker.
#[derive(Clone)]
struct Voice {
    out: Arc<Mutex<FrameWriter<UnixStream>>>,
    beat: Arc<Beat>,
}

/// Progress of the engine's thread.
struct Beat {
    start: Instant,
    /// Start of the current step in milliseconds since `start`, plus 1; 0 while no step runs.
    step_ms: AtomicU64,
    over: AtomicBool,
}

/// Engine of a worker, with its state.
struct Child {
    engine: Box<dyn Steps>,
    text: Arc<TextModel>,
    spec: Option<TransformerSpec>,
    files: BaseModel,
    constraints: Arc<Constraints>,
    orders: Orders,
    compiled: (Sender<Compiled>, Receiver<Compiled>),
    bell: Bell,
    voice: Voice,
    waiting: BTreeMap<JobId, WaitingJob>,
    adapters: BTreeMap<u32, Arc<LoadedAdapter>>,
    turns: Option<Turns>,
    told: EngineStats,
    disk: Option<Arc<PrefixDisk>>,
    data_bytes_max: Option<u64>,
}

/// Job whose constraint is being compiled.
struct WaitingJob {
    job: Job,
    paused: bool,
    left: Arc<AtomicBool>,
}

/// Runs a worker at this end of a stream until it is ordered to quit. If the daemon is gone, `at_end` is called,
/// whatever is running; if that returns, the worker quits.
///
/// # Errors
/// The daemon is gone, or sends invalid data.
pub(super) fn serve(stream: UnixStream, at_end: fn()) -> io::Result<()> {
    let beat = Beat { start: Instant::now(), step_ms: AtomicU64::new(0), over: AtomicBool::new(false) };
    let voice =
        Voice { out: Arc::new(Mutex::new(FrameWriter::new(stream.try_clone()?))), beat: Arc::new(beat) };
    let disk: Arc<Mutex<Option<Arc<PrefixDisk>>>> = Arc::default();
    let pulse = {
        let (voice, disk) = (voice.clone(), disk.clone());
        thread::Builder::new().name("pulse".to_owned()).spawn(move || pulse(&voice, &disk, at_end))?
    };
    let mut orders = Orders {
        stream: stream.try_clone()?,
        frames: FrameReader::new(Impatient(stream.try_clone()?)),
        at_end,
    };
    let bell = Bell::default();
    bell.hang_here();
    bell.with_file()?;
    let open = match orders.wait() {
        WorkerOrder::Open(open) => *open,
        WorkerOrder::Quit => return Ok(()),
        _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "the first order opens no model")),
    };
    let ran = catch_unwind(AssertUnwindSafe(|| run(open, orders, bell, &voice, &disk)));
    let why = match ran {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(panic) => Some(format!("the worker panicked: {}", words(&*panic))),
    };
    if let Some(why) = why {
        voice.say(&Message::Ended(why));
    }
    voice.beat.over.store(true, Relaxed);
    pulse.thread().unpark();
    let _ = pulse.join();
    let _ = stream.shutdown(std::net::Shutdown::Both);
    Ok(())
}

/// Sends heartbeats at intervals. This thread also notices the daemon's end, whatever the engine is doing.
fn pulse(voice: &Voice, disk: &Mutex<Option<Arc<PrefixDisk>>>, at_end: fn()) {
    while !voice.beat.over.load(Relaxed) {
        let disk = disk.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|disk| disk.counts());
        if !voice.say(&Message::Pulse { in_step: voice.beat.in_step(), disk }) {
            return at_end();
        }
        thread::park_timeout(WORKER_PULSE_EVERY);
    }
}

impl Orders {
    /// Returns the next order if one has arrived. Invalid data counts as the stream's end.
    fn next(&mut self) -> Option<WorkerOrder> {
        loop {
            match self.frames.next() {
                Ok(Some(order)) => return Some(order),
                Err(error) if is_timeout(&error) => {
                    // A long order arrives in parts, as fast as they are read.
                    if !self.frames.is_amid()
                        || self.rest(&Bell::default(), Some(WORKER_ORDER_WAIT)) != Woken::Ready
                    {
                        return None;
                    }
                }
                Ok(None) | Err(_) => {
                    (self.at_end)();
                    return Some(WorkerOrder::Quit);
                }
            }
        }
    }

    /// Waits for the next order.
    fn wait(&mut self) -> WorkerOrder {
        loop {
            if let Some(order) = self.next() {
                return order;
            }
            self.rest(&Bell::default(), None);
        }
    }

    /// Waits for an order, the wake-up signal or the timeout.
    fn rest(&self, bell: &Bell, time: Option<Duration>) -> Woken {
        // If waiting fails, treat the stream as readable: reading it reports the error.
        bell.rest_beside(self.stream.as_fd(), PollFlags::IN, time).unwrap_or(Woken::Ready)
    }
}

fn run(
    open: OpenOrder,
    orders: Orders,
    bell: Bell,
    voice: &Voice,
    disk_seen: &Mutex<Option<Arc<PrefixDisk>>>,
) -> Result<(), StepError> {
    // A logger that an embedding program has set up stays.
    let _ = log::init(&open.log);
    let (made, spec, disk) = match prepare(&open, &bell, voice) {
        Ok(made) => made,
        Err(error) => {
            voice.say(&Message::Refused(refusal(&error)));
            return Ok(());
        }
    };
    *disk_seen.lock().unwrap_or_else(PoisonError::into_inner) = disk.clone();
    let Made { sides, engine } = made;
    let mut child = Child {
        engine,
        text: sides.text,
        spec,
        files: BaseModel { source: open.source.clone(), overrides: open.overrides.clone() },
        constraints: Arc::default(),
        orders,
        compiled: channel(),
        bell,
        voice: voice.clone(),
        waiting: BTreeMap::new(),
        adapters: BTreeMap::new(),
        turns: open.turns.as_ref().and_then(Turns::open),
        told: EngineStats::default(),
        disk,
        data_bytes_max: open.margin_bytes.map(|margin| open.memory.total().saturating_add(margin)),
    };
    child.limit_data(0);
    voice.say(&Message::Ready);
    child.tell(StepReport::default(), None, Vec::new());
    child.work()
}

type Prepared = (Made, Option<TransformerSpec>, Option<Arc<PrefixDisk>>);

fn prepare(open: &OpenOrder, bell: &Bell, voice: &Voice) -> Result<Prepared, LoadError> {
    let files = open.source.open_with(&open.overrides)?;
    let draft = open.draft.as_ref().map(|source| Draft::open(source, &files)).transpose()?;
    let device: Box<dyn Device> = match open.device {
        DeviceName::Cpu => Box::new(Cpu::new(open.threads)?.with_encoder_weights(open.encoder_weights)),
        DeviceName::Cuda(ordinal) => {
            let tried = |ordinal| OnCard::tried(ordinal, open.encoder_weights);
            let others = open.others.iter().flatten().map(|&(name, _)| name);
            let cards = others.clone().filter_map(|name| match name {
                DeviceName::Cuda(other) => Some(tried(other)),
                DeviceName::Cpu => None,
            });
            let card = tried(ordinal).beside_cards(cards.collect());
            // Only a device that gets layers needs threads.
            let has_processor = others.clone().any(|name| name == DeviceName::Cpu);
            let processor = has_processor.then(|| Cpu::new(open.threads)).transpose()?;
            Box::new(card.beside(processor.as_ref()))
        }
    };
    let mut percent = 0;
    let mut progress = |fraction: f32| {
        let now = (fraction.clamp(0.0, 1.0) * 100.0) as u32;
        if now != percent {
            percent = now;
            voice.say(&Message::Progress(fraction));
        }
    };
    let origin = Origin {
        source: open.source.clone(),
        overrides: open.overrides.clone(),
        draft: open.draft.clone(),
        tool_format: open.tool_format,
        pictures: PixelLimits::default(),
        sharing: match (&open.others, files.decoder()) {
            (Some(others), Some(files)) if open.by_rows => {
                Some(LayerDistribution::by_rows(files, others.iter().map(|&(name, _)| name))?)
            }
            (Some(others), Some(files)) => Some(LayerDistribution::of(files, others)?),
            _ => None,
        },
        memory: open.memory,
        kept: open.kept.as_ref().and_then(DiskPlace::open),
        bell: bell.clone(),
    };
    let made = make(&*device, &origin, &files, draft.as_ref(), open.size, &mut progress)?;
    let disk = origin.kept.map(|(disk, _)| disk);
    Ok((made, files.decoder().map(|files| files.spec.clone()), disk))
}

fn refusal(error: &LoadError) -> Refusal {
    let no_memory = match error {
        LoadError::Kernel(KernelError::OutOfMemory { device, bytes, .. }) => Some((device.clone(), *bytes)),
        _ => None,
    };
    let refused_by = match error {
        LoadError::Kernel(KernelError::Device { device, reason }) => Some((device.clone(), reason.clone())),
        LoadError::Kernel(KernelError::UnsupportedType { device, .. }) => {
            Some((device.clone(), error.to_string()))
        }
        _ => None,
    };
    Refusal { reason: error.to_string(), no_memory, refused_by }
}

impl Child {
    /// Runs until it is ordered to quit.
    fn work(&mut self) -> Result<(), StepError> {
        let mut events = Vec::new();
        loop {
            while let Some(order) = self.orders.next() {
                match order {
                    WorkerOrder::Quit => return self.leave(),
                    order => self.obey(order),
                }
            }
            while let Ok((id, compiled)) = self.compiled.1.try_recv() {
                self.compiled(id, compiled);
            }
            if let Some(engine) = self.engine.generator() {
                engine.free_adapters();
            }
            if self.engine.has_work() {
                let turn = self.turns.as_ref().map(Turns::take);
                let began = Instant::now();
                self.voice.beat.begin(began);
                let report = self.engine.step(&mut events)?;
                self.voice.beat.end();
                let took = began.elapsed();
                drop(turn);
                self.engine.took(took);
                self.tell(report, Some(took), std::mem::take(&mut events));
                continue;
            }
            let more = self.engine.generator().map_or(Ok(false), |engine| engine.tend_blocks())?;
            if self.engine.stats() != self.told {
                self.tell(StepReport::default(), None, Vec::new());
            }
            if !more {
                // A compiled constraint or a block that was read triggers the signal.
                self.orders.rest(&self.bell, None);
            }
        }
    }

    /// Writes the KV blocks that are not on disk yet, then quits.
    fn leave(&mut self) -> Result<(), StepError> {
        while self.engine.generator().map_or(Ok(false), |engine| engine.tend_blocks())? {}
        if let Some(disk) = &self.disk {
            disk.flush(PREFIX_DISK_FLUSH);
        }
        Ok(())
    }

    fn obey(&mut self, order: WorkerOrder) {
        match order {
            WorkerOrder::Run(order) => self.take(*order),
            WorkerOrder::Embed(job) => self.engine.submit_inputs(&job),
            WorkerOrder::Cancel(id) => {
                if let Some(waiting) = self.waiting.remove(&id) {
                    waiting.left.store(true, Relaxed);
                }
                self.engine.cancel(id);
            }
            WorkerOrder::Pause(id, paused) => match self.waiting.get_mut(&id) {
                Some(waiting) => waiting.paused = paused,
                None => self.engine.set_paused(id, paused),
            },
            WorkerOrder::Adapter { path, digest, bytes } => {
                let loaded = self.load_adapter(&path, digest, bytes);
                self.voice.say(&Message::Adapter(loaded.map_err(|error| refusal(&error))));
            }
            WorkerOrder::DropAdapter(slot) => {
                self.adapters.remove(&slot);
            }
            // Neither occurs here: the engine is open, and the loop handles Quit.
            WorkerOrder::Open(_) | WorkerOrder::Quit => {}
        }
    }

    fn take(&mut self, order: RunOrder) {
        let RunOrder { mut job, adapter, constraint } = order;
        let id = job.id;
        job.adapter = adapter.and_then(|slot| self.adapters.get(&slot).cloned());
        let Some(spec) = constraint else { return self.submit(job) };
        if let Some(grammar) = self.constraints.ready(&spec) {
            job.constraint = Some(grammar);
            return self.submit(job);
        }
        let (client, left) = (job.client, Arc::new(AtomicBool::new(false)));
        self.waiting.insert(id, WaitingJob { job, paused: false, left: left.clone() });
        if let Err(error) = self.compile(id, client, spec, left) {
            self.compiled(id, Err(format!("there is no thread to compile it on: {error}")));
        }
    }

    fn submit(&mut self, job: Job) {
        if let Some(engine) = self.engine.generator() {
            engine.submit(Arc::new(job));
        }
    }

    /// Compiles a constraint on a separate thread.
    fn compile(
        &self,
        id: JobId,
        client: Option<ClientId>,
        spec: Spec,
        left: Arc<AtomicBool>,
    ) -> io::Result<()> {
        let (constraints, text) = (self.constraints.clone(), self.text.clone());
        let (sender, waker) = (self.compiled.0.clone(), self.bell.waker());
        let body = move || {
            let compiled = constraints.compiled(spec, &text, client, &|| left.load(Relaxed));
            // The engine's thread may have ended.
            let _ = sender.send((id, compiled.map_err(|error| error.to_string())));
            waker.wake();
        };
        thread::Builder::new().name("constraint of a job".to_owned()).spawn(body).map(drop)
    }

    fn compiled(&mut self, id: JobId, compiled: Result<Arc<Grammar>, String>) {
        // The job may have been cancelled.
        let Some(WaitingJob { mut job, paused, .. }) = self.waiting.remove(&id) else { return };
        match compiled {
            Ok(grammar) => {
                job.constraint = Some(grammar);
                self.submit(job);
                if paused {
                    self.engine.set_paused(id, true);
                }
            }
            Err(reason) => {
                let kind = EventKind::ConstraintFailed { reason };
                self.tell(StepReport::default(), None, vec![Event { job: id, choice: 0, kind }]);
            }
        }
    }

    fn load_adapter(
        &mut self,
        path: &std::path::Path,
        digest: [u8; 32],
        bytes: u64,
    ) -> Result<u32, LoadError> {
        let file = || path.display().to_string();
        let Some(spec) = &self.spec else {
            return Err(LoadError::Worker(format!("{}: an encoder takes no adapters", file())));
        };
        let again = || Ok(self.files.open()?.into_decoder().map(BaseWeights::from));
        let adapter = Adapter::open(path, &AdapterBase::reopened(spec, &again))?;
        if adapter.digest != digest {
            let reason =
                format!("{}: the adapter was changed while it was being loaded; load it again", file());
            return Err(LoadError::Worker(reason));
        }
        self.limit_data(bytes.saturating_mul(2));
        let no_engine = || LoadError::Worker("the model's engine generates nothing".to_owned());
        let engine = self.engine.generator().ok_or_else(no_engine)?;
        let handle = engine.load_adapter(&adapter, Box::new(()) as Box<dyn Any + Send>)?;
        let slot = handle.slot();
        self.adapters.insert(slot, handle);
        Ok(slot)
    }

    /// Raises the limit of data memory by this many bytes.
    fn limit_data(&mut self, more: u64) {
        if let Some(most) = &mut self.data_bytes_max {
            *most = most.saturating_add(more);
            limit::data(*most);
        }
    }

    fn tell(&mut self, report: StepReport, took: Option<Duration>, events: Vec<Event>) {
        self.told = self.engine.stats();
        self.voice.say(&Message::Stepped(StepResult { report, stats: self.told, took, events }));
    }
}

impl Voice {
    /// Sends a message. Returns false if the daemon is gone; this process will then end soon too.
    fn say(&self, message: &Message) -> bool {
        let written = self.out.lock().unwrap_or_else(PoisonError::into_inner).write(message);
        match written {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                tracing::error!(%error, "a worker's message could not be written");
                true
            }
            Err(_) => false,
        }
    }
}

impl Beat {
    fn begin(&self, now: Instant) {
        self.step_ms.store(self.ms(now) + 1, Relaxed);
    }

    fn end(&self) {
        self.step_ms.store(0, Relaxed);
    }

    fn ms(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.start).as_millis()).unwrap_or(u64::MAX - 1)
    }

    fn in_step(&self) -> Duration {
        let began = self.step_ms.load(Relaxed);
        let none = Duration::ZERO;
        began
            .checked_sub(1)
            .map_or(none, |began| Duration::from_millis(self.ms(Instant::now()).saturating_sub(began)))
    }
}
