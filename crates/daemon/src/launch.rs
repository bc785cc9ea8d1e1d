//! Start of a worker's thread. The thread builds the engine, reports that it is ready, and runs. Its end, by a
//! panic too, is caught here and reported after its resources were released.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc::Receiver},
    thread,
    time::Instant,
};

use hanzo_engine_runtime::{
    LoadError, Network, OpenedModel, StepError, engine::check_vocabulary, whisper::Vocabulary,
};
use hanzo_engine_voice::{EspeakNg, Script};
use tokio::sync::oneshot;

use crate::{
    admission::Admission,
    budget::Reservation,
    clock::Bell,
    device::{Device, EngineFiles, EngineSize, Generator, Origin, Sides, Steps},
    draft::Draft,
    error::{Failure, FailureReason},
    metrics::ModelMetrics,
    prefix_disk::{Identity, PrefixDisk},
    worker::{Vitals, WorkItem, Worker, WorkerHandle, channel},
};

/// Parts that a worker is built from.
pub(crate) struct Launch {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) files: OpenedModel,
    /// Draft model for speculative decoding.
    pub(crate) draft: Option<Draft>,
    pub(crate) size: EngineSize,
    pub(crate) reservation: Reservation,
    pub(crate) queue_requests_max: usize,
    pub(crate) metrics: Arc<ModelMetrics>,
    pub(crate) progress: Box<dyn FnMut(f32) + Send>,
    /// Source of its files, with the overrides.
    pub(crate) origin: Origin,
}

/// Running worker thread, to wait for.
pub(crate) struct WorkerThread(oneshot::Receiver<Exit>);

/// Way in which a worker ended.
pub(crate) enum Exit {
    /// The worker was ordered to quit.
    Left,
    /// The worker failed; its requests were notified.
    Failed(Arc<Failure>),
}

type Ready = oneshot::Sender<Result<Sides, Arc<Failure>>>;

impl Launch {
    /// Starts the thread and waits until it is ready to run requests.
    ///
    /// # Errors
    /// Reason why it is not ready; all resources have been released.
    pub(crate) async fn start(self) -> Result<(Sides, WorkerHandle, WorkerThread), Arc<Failure>> {
        let admission = Admission::new(self.queue_requests_max);
        let (work, received) = channel(&admission);
        let vitals = Vitals::new(admission, Instant::now());
        let (ready, is_ready) = oneshot::channel();
        let (exit, exited) = oneshot::channel();
        let seen = vitals.clone();
        let waker = self.origin.bell.waker();
        let body = move || {
            self.origin.bell.hang_here();
            let end = self.run(received, seen, ready);
            // The caller may be gone.
            let _ = exit.send(end);
        };
        thread::Builder::new()
            .name("model worker".to_owned())
            .spawn(body)
            .map_err(|error| Failure::new(FailureReason::Thread(error)))?;
        let handle = WorkerHandle::new(work, waker, vitals);
        let sides = is_ready.await.unwrap_or_else(|_| Err(Failure::new(FailureReason::Lost)))?;
        Ok((sides, handle, WorkerThread(exited)))
    }

    fn run(self, work: Receiver<WorkItem>, vitals: Arc<Vitals>, ready: Ready) -> Exit {
        let Launch { device, files, draft, size, reservation, metrics, mut progress, origin, .. } = self;
        let made = catch_unwind(AssertUnwindSafe(|| {
            make(&*device, &origin, &files, draft.as_ref(), size, &mut progress)
        }));
        drop((files, draft));
        let failure = match made {
            Ok(Ok(Made { sides, engine })) => {
                // The caller is gone, so the model is not wanted any more.
                if ready.send(Ok(sides)).is_err() {
                    return Exit::Left;
                }
                return run_engine(engine, work, vitals, metrics, reservation);
            }
            Ok(Err(error)) => Failure::new(error),
            Err(panic) => Failure::new(FailureReason::Panic(words(&*panic))),
        };
        // Released before the failure is reported, since the next load may need it.
        drop(reservation);
        let _ = ready.send(Err(failure.clone()));
        Exit::Failed(failure)
    }
}

/// Engine, with the other parts of its model.
pub(crate) struct Made {
    pub(crate) sides: Sides,
    pub(crate) engine: Box<dyn Steps>,
}

/// Builds an engine from opened files.
///
/// # Errors
/// Reason why it cannot be built.
pub(crate) fn make(
    device: &dyn Device,
    origin: &Origin,
    files: &OpenedModel,
    draft: Option<&Draft>,
    size: EngineSize,
    progress: &mut dyn FnMut(f32),
) -> Result<Made, LoadError> {
    let mut text = files.text_model()?;
    text.tool_format = origin.tool_format.or(text.tool_format);
    text.sight.iter_mut().for_each(|sight| sight.bound(origin.pictures));
    let draft = draft.map(Draft::files);
    draft.map_or(Ok(()), |draft| check_vocabulary(draft, &text.tokenizer))?;
    let text = Arc::new(text);
    let embedder = Arc::new(files.embedder(&text.tokenizer, size.context_tokens_max())?);
    files.check_overrides()?;
    let listener = files.whisper().map(|files| Vocabulary::new(files, text.tokenizer.clone()));
    let listener = listener.transpose()?.map(Arc::new);
    let script = match &files.network {
        Network::Voice(files) => Some(Arc::new(Script::new(files, EspeakNg::installed())?)),
        Network::Decoder(_) | Network::Encoder(_) | Network::Whisper(_) => None,
    };
    let sides = Sides { text, embedder, listener, script };
    let mut engine =
        device.build(origin, EngineFiles { model: files, draft }, sides.clone(), size, progress)?;
    if let (Some((disk, identity)), Some(engine)) = (&origin.kept, engine.generator()) {
        keep_blocks(engine, disk, *identity, files, size, &origin.bell);
    }
    Ok(Made { sides, engine })
}

/// Stores an engine's KV blocks on disk, shared with engines that would compute the same blocks.
fn keep_blocks(
    engine: &mut dyn Generator,
    disk: &PrefixDisk,
    identity: Identity,
    files: &OpenedModel,
    size: EngineSize,
    bell: &Bell,
) {
    let (Some((bytes, form)), Some(files)) = (engine.block_form(), files.decoder()) else { return };
    let kv_type = match size {
        EngineSize::Decoder(config) => config.kv_type.name(),
        EngineSize::Encoder(_) | EngineSize::Whisper(_) | EngineSize::Voice { .. } => return,
    };
    let identity = identity.run_as(&format!("{form} {bytes} {kv_type} {:?}", files.spec));
    engine.keep_blocks(Box::new(disk.blocks(identity, bytes, bell.waker())));
}

fn run_engine(
    engine: Box<dyn Steps>,
    work: Receiver<WorkItem>,
    vitals: Arc<Vitals>,
    metrics: Arc<ModelMetrics>,
    reservation: Reservation,
) -> Exit {
    let mut worker = Worker::new(engine, work, vitals, metrics, Instant::now());
    let ended = catch_unwind(AssertUnwindSafe(|| worker.run()));
    let exit = bury(worker, ended);
    drop(reservation);
    exit
}

/// Releases what a worker held after it ended, and notifies its requests.
pub(crate) fn bury(worker: Worker, ended: thread::Result<Result<(), StepError>>) -> Exit {
    let failure = match ended {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(Failure::new(error)),
        Err(panic) => Some(Failure::new(FailureReason::Panic(words(&*panic)))),
    };
    // An engine that panicked may panic again when it is dropped.
    let id = failure.as_ref().map(|failure| failure.id.clone());
    let _ = catch_unwind(AssertUnwindSafe(move || match id {
        Some(id) => worker.fail(&id),
        None => drop(worker),
    }));
    failure.map_or(Exit::Left, Exit::Failed)
}

impl WorkerThread {
    /// Waits for the worker's end.
    pub(crate) async fn exit(self) -> Exit {
        self.0.await.unwrap_or_else(|_| Exit::Failed(Failure::new(FailureReason::Lost)))
    }
}

/// Message of a panic.
pub(crate) fn words(panic: &(dyn Any + Send)) -> String {
    let said =
        panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    said.unwrap_or("no message").to_owned()
}
