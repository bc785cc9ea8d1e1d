//! CPU device whose engines a test controls: full speed, pauses between steps, or a failure.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use hanzo_engine_ops::KernelError;
use hanzo_engine_runtime::{
    Adapter, EmbedJob, EncoderConfig, EngineConfig, EngineStats, Event, JobId, LoadError, ModelFiles,
    StepError, StepReport, VoiceFiles,
    encoder::EncoderFiles,
    engine::EngineMemory,
    spec::TransformerSpec,
    whisper::{WhisperConfig, WhisperFiles},
};

use crate::cpu::Cpu;
use crate::device::{Device, EngineFiles, EngineSize, Generator, Origin, Sides, Steps, Transcriber};

/// Behaviour of the engines' next steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Conduct {
    /// Run at full speed.
    Run,
    /// Run with this delay after each step.
    Slow(Duration),
    /// Make the next step of the engine with this build number panic; then run normally.
    PanicIn(usize),
    /// Make the next step of the engine with this build number fail; then run normally.
    FailIn(usize),
}

pub(super) struct DemoDevice {
    cpu: Cpu,
    conduct: Arc<Mutex<Conduct>>,
    builds: AtomicUsize,
}

struct DemoEngine {
    inner: Box<dyn Steps>,
    conduct: Arc<Mutex<Conduct>>,
    number: usize,
}

impl DemoDevice {
    pub(super) fn new() -> Arc<Self> {
        let cpu = Cpu::new(Some(2)).unwrap();
        Arc::new(Self { cpu, conduct: Arc::new(Mutex::new(Conduct::Run)), builds: AtomicUsize::new(0) })
    }

    pub(super) fn conduct(&self, conduct: Conduct) {
        *self.conduct.lock().unwrap() = conduct;
    }

    /// Number of engines built so far; the first has number 1.
    pub(super) fn builds(&self) -> usize {
        self.builds.load(Relaxed)
    }
}

impl Device for DemoDevice {
    fn describe(&self) -> String {
        self.cpu.describe()
    }

    fn decoder_memory(
        &self,
        files: &ModelFiles,
        draft: Option<&ModelFiles>,
        config: &EngineConfig,
    ) -> EngineMemory {
        self.cpu.decoder_memory(files, draft, config)
    }

    fn adapter_memory(
        &self,
        spec: &TransformerSpec,
        adapter: &Adapter,
        step_tokens_max: usize,
    ) -> (u64, u64) {
        self.cpu.adapter_memory(spec, adapter, step_tokens_max)
    }

    fn encoder_memory(&self, files: &EncoderFiles, config: &EncoderConfig) -> EngineMemory {
        self.cpu.encoder_memory(files, config)
    }

    fn whisper_memory(&self, files: &WhisperFiles, config: &WhisperConfig) -> EngineMemory {
        self.cpu.whisper_memory(files, config)
    }

    fn voice_memory(&self, files: &VoiceFiles) -> Result<EngineMemory, LoadError> {
        self.cpu.voice_memory(files)
    }

    fn build(
        &self,
        origin: &Origin,
        files: EngineFiles<'_>,
        sides: Sides,
        size: EngineSize,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Box<dyn Steps>, LoadError> {
        let number = self.builds.fetch_add(1, Relaxed) + 1;
        let inner = self.cpu.build(origin, files, sides, size, progress)?;
        Ok(Box::new(DemoEngine { inner, conduct: self.conduct.clone(), number }))
    }
}

impl Steps for DemoEngine {
    fn generator(&mut self) -> Option<&mut dyn Generator> {
        self.inner.generator()
    }

    fn transcriber(&mut self) -> Option<&mut dyn Transcriber> {
        self.inner.transcriber()
    }

    fn submit_inputs(&mut self, job: &EmbedJob) {
        self.inner.submit_inputs(job);
    }

    fn speaker(&mut self) -> Option<&mut hanzo_engine_voice::VoiceEngine> {
        self.inner.speaker()
    }

    fn cancel(&mut self, job: JobId) {
        self.inner.cancel(job);
    }

    fn set_paused(&mut self, job: JobId, paused: bool) {
        self.inner.set_paused(job, paused);
    }

    fn step(&mut self, events: &mut Vec<Event>) -> Result<StepReport, StepError> {
        let conduct = {
            let mut conduct = self.conduct.lock().unwrap();
            let now = *conduct;
            if matches!(now, Conduct::PanicIn(number) | Conduct::FailIn(number) if number == self.number) {
                *conduct = Conduct::Run;
            }
            now
        };
        match conduct {
            Conduct::Slow(pause) => std::thread::sleep(pause),
            Conduct::PanicIn(number) if number == self.number => panic!("a test broke this engine"),
            Conduct::FailIn(number) if number == self.number => {
                let reason = "a test broke this device".to_owned();
                return Err(StepError::Kernel(KernelError::Device { device: "test".to_owned(), reason }));
            }
            _ => {}
        }
        self.inner.step(events)
    }

    /// Ignores step times, so that speculation does not depend on the machine's load.
    fn took(&mut self, _time: Duration) {}

    fn has_work(&self) -> bool {
        self.inner.has_work()
    }

    fn stats(&self) -> EngineStats {
        self.inner.stats()
    }
}
