//! Process isolation: a device whose engines run in separate processes. The daemon plans a load as if it ran the
//! model itself. It then starts this program again, with one end of a socket pair as its standard input; `watch.rs`
//! holds the other end. `remote.rs` drives the engine behind it like any other. `child.rs` is the loop in the
//! worker process and `wire.rs` has their messages. Queues, clients, prompts and metrics stay in the daemon. A
//! process that crashes loses only its own requests, and `models.rs` restarts its model.

mod cgroup;
mod child;
mod limit;
mod remote;
mod turns;
mod watch;
mod wire;

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd as _, AsRawFd as _, OwnedFd},
        unix::{net::UnixStream, process::CommandExt as _},
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

use hanzo_engine_ops::KernelError;
use hanzo_engine_runtime::{
    Adapter, EngineConfig, LoadError, ModelFiles, Network, VoiceFiles,
    encoder::{EncoderFiles, WeightType},
    engine::EngineMemory,
    spec::TransformerSpec,
    whisper::{WhisperConfig, WhisperFiles},
};

use crate::{
    config::{EngineSection, LogConfig},
    cpu::Cpu,
    device::{Device, EngineFiles, EngineSize, Origin, Sides, Steps},
    device_name::DeviceName,
    devices::OnCard,
    gpu_layers::LayerDistribution,
    limits::{HEAPS_MAX, HEAPS_MIN},
};
use cgroup::DelegatedCgroup;
use remote::RemoteEngine;
use watch::Watch;
use wire::{OpenOrder, WorkerOrder};

/// Command-line argument that makes this program a worker.
const WORKER: &str = "__worker";
/// Path of the running program, even if the file at its old path was replaced.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// Function that starts the other end of a stream; returns the process, unless the end is a thread.
type Start = dyn Fn(UnixStream) -> io::Result<Option<Child>> + Send + Sync;

/// Device that runs each engine in a separate process.
pub(crate) struct IsolatedDevice {
    /// Device that plans memory in this process.
    here: Box<dyn Device>,
    name: DeviceName,
    threads: Option<usize>,
    encoder_weights: WeightType,
    log: LogConfig,
    silence_max: Duration,
    margin_bytes: Option<u64>,
    turns: Option<TurnFiles>,
    groups: Option<DelegatedCgroup>,
    start: Box<Start>,
}

/// Lock files by which workers take turns. They have no names: other processes open them through this process's
/// `/proc` entry.
struct TurnFiles([File; 2]);

impl TurnFiles {
    fn new() -> Option<TurnFiles> {
        let file =
            |name: &str| rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).map(File::from);
        match (file("hanzo-engine line"), file("hanzo-engine work")) {
            (Ok(line), Ok(work)) => Some(TurnFiles([line, work])),
            (Err(error), _) | (_, Err(error)) => {
                tracing::warn!(%error, "workers do not take turns at the cores");
                None
            }
        }
    }

    fn paths(&self) -> [PathBuf; 2] {
        let path = |file: &File| format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        [&self.0[0], &self.0[1]].map(|file| PathBuf::from(path(file)))
    }
}

impl IsolatedDevice {
    /// Creates the device from the settings.
    ///
    /// # Errors
    /// Errors of [`Cpu::new`].
    pub(crate) fn new(section: &EngineSection, log: &LogConfig) -> Result<Self, KernelError> {
        let start = Box::new(|stream| start_process(stream).map(Some));
        Ok(Self { groups: DelegatedCgroup::find(), ..Self::starting(section, log, start)? })
    }

    /// Creates the device for a GPU.
    pub(crate) fn on_card(section: &EngineSection, log: &LogConfig, card: OnCard) -> Self {
        let start = Box::new(|stream| start_process(stream).map(Some));
        let name = card.name();
        let of_card = Self::of(section, log, Box::new(card), name, start);
        Self { groups: DelegatedCgroup::find(), ..of_card }
    }

    fn starting(section: &EngineSection, log: &LogConfig, start: Box<Start>) -> Result<Self, KernelError> {
        let here = Cpu::new(section.threads)?.with_encoder_weights(section.encoder_weights);
        Ok(Self::of(section, log, Box::new(here), DeviceName::Cpu, start))
    }

    fn of(
        section: &EngineSection,
        log: &LogConfig,
        here: Box<dyn Device>,
        name: DeviceName,
        start: Box<Start>,
    ) -> Self {
        Self {
            here,
            name,
            threads: section.threads,
            encoder_weights: section.encoder_weights,
            log: log.clone(),
            silence_max: Duration::from_millis(section.worker_silence_ms),
            margin_bytes: section.worker_margin_bytes,
            turns: TurnFiles::new(),
            groups: None,
            start,
        }
    }

    /// Starts a worker. Its disk cache counters are added to this process's.
    fn launch(&self, generates: bool, origin: &Origin) -> io::Result<RemoteEngine> {
        let (ours, theirs) = UnixStream::pair()?;
        let process = (self.start)(theirs)?;
        let bytes_max = self.margin_bytes.map(|margin| origin.memory.total().saturating_add(margin));
        // Before the order to open the model, so that all its memory is charged to the cgroup.
        let group = match (&self.groups, &process) {
            (Some(groups), Some(process)) => groups.group(process.id(), bytes_max),
            _ => None,
        };
        let disk = origin.kept.as_ref().map(|(disk, _)| disk.clone());
        let watch = Watch::new(ours, process, origin.bell.clone(), self.silence_max, disk)?;
        Ok(RemoteEngine::new(watch, group, generates))
    }
}

impl Device for IsolatedDevice {
    fn describe(&self) -> String {
        self.here.describe()
    }

    fn name(&self) -> DeviceName {
        self.name
    }

    fn computes(&self, network: &Network) -> bool {
        self.here.computes(network)
    }

    fn is_card(&self) -> bool {
        self.here.is_card()
    }

    fn sharing(&self, sharing: &LayerDistribution) -> Option<Arc<dyn Device>> {
        self.here.sharing(sharing)
    }

    fn decoder_memory(
        &self,
        files: &ModelFiles,
        draft: Option<&ModelFiles>,
        config: &EngineConfig,
    ) -> EngineMemory {
        self.here.decoder_memory(files, draft, config)
    }

    fn adapter_memory(
        &self,
        spec: &TransformerSpec,
        adapter: &Adapter,
        step_tokens_max: usize,
    ) -> (u64, u64) {
        self.here.adapter_memory(spec, adapter, step_tokens_max)
    }

    fn encoder_memory(
        &self,
        files: &EncoderFiles,
        config: &hanzo_engine_runtime::EncoderConfig,
    ) -> EngineMemory {
        self.here.encoder_memory(files, config)
    }

    fn whisper_memory(&self, files: &WhisperFiles, config: &WhisperConfig) -> EngineMemory {
        self.here.whisper_memory(files, config)
    }

    fn voice_memory(&self, files: &VoiceFiles) -> Result<EngineMemory, LoadError> {
        self.here.voice_memory(files)
    }

    fn build(
        &self,
        origin: &Origin,
        files: EngineFiles<'_>,
        sides: Sides,
        size: EngineSize,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Box<dyn Steps>, LoadError> {
        if matches!(size, EngineSize::Whisper(_) | EngineSize::Voice { .. }) {
            // Sound is not sent over a worker's socket.
            tracing::info!("a model of speech runs in this process, whatever engine.isolation says");
            return self.here.build(origin, files, sides, size, progress);
        }
        let generates = matches!(size, EngineSize::Decoder(_));
        let mut engine = self
            .launch(generates, origin)
            .map_err(|error| LoadError::Worker(format!("no process for the model: {error}")))?;
        // Pictures are prepared in this process, so the worker needs no limits for them.
        let Origin { source, overrides, draft, tool_format, pictures: _, sharing, memory, kept, bell: _ } =
            origin.clone();
        let open = OpenOrder {
            source,
            overrides,
            draft,
            tool_format,
            by_rows: sharing.as_ref().is_some_and(|sharing| sharing.rows.is_some()),
            others: sharing.map(|sharing| sharing.others),
            size,
            memory,
            device: self.name,
            threads: self.threads,
            encoder_weights: self.encoder_weights,
            kept: kept.map(|(disk, model)| disk.place(model)),
            turns: self.turns.as_ref().map(TurnFiles::paths),
            log: self.log.clone(),
            margin_bytes: self.margin_bytes,
        };
        engine.open(WorkerOrder::Open(Box::new(open)), progress)?;
        Ok(Box::new(engine))
    }
}

/// Starts this program as a worker, in its own process group, so that a terminal's signals reach only the daemon.
fn start_process(stream: UnixStream) -> io::Result<Child> {
    let program =
        if Path::new(THIS_PROGRAM).exists() { PathBuf::from(THIS_PROGRAM) } else { std::env::current_exe()? };
    Command::new(program)
        .arg0("hanzo-engine-worker")
        .arg(WORKER)
        .stdin(OwnedFd::from(stream))
        .stdout(Stdio::null())
        .process_group(0)
        .spawn()
}

/// Runs this process as a worker, if it was started as one.
pub(crate) fn run_worker() -> Option<ExitCode> {
    if std::env::args_os().nth(1).is_none_or(|argument| argument != WORKER) {
        return None;
    }
    let ran = io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from).and_then(|stream| {
        limit::belong_to_peer(&stream)?;
        limit::leave_no_image();
        let cores = thread::available_parallelism().map_or(1, usize::from);
        hanzo_engine_process::heap::share(cores.clamp(HEAPS_MIN, HEAPS_MAX));
        child::serve(stream, || std::process::exit(0))
    });
    Some(match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("a model's process cannot begin: {error}; it is started by the daemon alone");
            ExitCode::FAILURE
        }
    })
}

#[cfg(test)]
mod tests;
