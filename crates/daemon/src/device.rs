//! The one seam between the daemon and what computes: a [`Device`] says what a model would take and makes its
//! engine, and a worker drives the engine through [`Steps`]. Another backend is another `Device` ([`crate::places`] has those
//! of cards, and which there are); nothing above names one.

use std::{
    any::Any,
    sync::Arc,
    time::{Duration, Instant},
};

use hanzo_engine_kernels::{
    AnyBackend, Backend, KernelError,
    cpu::{CpuBackend, ThreadPool, Tier, limits::Probe},
};
use hanzo_engine_media::PixelRoom;
use hanzo_engine_runtime::{
    Adapter, EmbedJob, Embedder, EncoderConfig, EncoderEngine, Engine, EngineConfig, EngineStats, Event, Job,
    JobId, LoadError, LoadedAdapter, ModelFiles, Network, Opened, Overrides, Speculation, StepError,
    StepReport, TextModel, ToolFormat, VoiceFiles,
    encoder::{EncoderFiles, WeightType},
    engine::EngineMemory,
    kv::BlockStore,
    spec::TransformerSpec,
    whisper::{TranscribeJob, Vocabulary, WhisperConfig, WhisperEngine, WhisperFiles},
};

use hanzo_engine_voice::{Script, Speaker, VoiceEngine};
use serde::{Deserialize, Serialize};

use crate::{
    clock::{self, Bell},
    gpu_layers::Sharing,
    limits::PREFIX_DISK_SAVED_AT_ONCE,
    making::{build, decoder_engine, decoder_memory},
    places::DeviceName,
    prefix_disk::{Identity, PrefixDisk},
    source::Source,
};

/// An engine as its worker sees it; see [`Engine`] for what each does.
pub(crate) trait Steps: Send {
    /// What continues texts in it; an encoder has nothing that does.
    fn generator(&mut self) -> Option<&mut dyn Generator>;
    /// What writes down speech in it, if it does.
    fn transcriber(&mut self) -> Option<&mut dyn Transcriber> {
        None
    }
    /// What says texts in it, if it does.
    fn speaker(&mut self) -> Option<&mut VoiceEngine> {
        None
    }
    fn submit_inputs(&mut self, job: &EmbedJob);
    fn cancel(&mut self, job: JobId);
    fn set_paused(&mut self, job: JobId, paused: bool);
    fn step(&mut self, events: &mut Vec<Event>) -> Result<StepReport, StepError>;
    /// The last step took so long.
    fn took(&mut self, time: Duration);
    /// What the step took whose events were given last, where it ran elsewhere.
    fn step_time(&self) -> Option<Duration> {
        None
    }
    /// The process it runs in, where that is another.
    fn process(&self) -> Option<u32> {
        None
    }
    fn has_work(&self) -> bool;
    fn stats(&self) -> EngineStats;
    /// Rests, where no step can run, until something has come, this thread is woken, or then.
    fn rest(&mut self, until: Option<Instant>) {
        clock::rest(until);
    }
}

/// An engine that writes down speech.
pub(crate) trait Transcriber: Steps {
    fn submit_sound(&mut self, job: TranscribeJob);
    /// Samples that a sound can use now.
    fn wants(&self, job: JobId) -> usize;
    /// Adds samples to a sound; none end it.
    fn push(&mut self, job: JobId, samples: Option<&[f32]>);
}

/// An engine that continues texts.
pub(crate) trait Generator: Steps {
    fn submit(&mut self, job: &Job);
    fn load_adapter(
        &mut self,
        adapter: &Adapter,
        kept: Box<dyn Any + Send>,
    ) -> Result<Arc<LoadedAdapter>, LoadError>;
    fn free_adapters(&mut self);

    /// What its blocks are outside of its cache, if they can be kept elsewhere.
    fn block_form(&self) -> Option<(usize, String)> {
        None
    }

    fn keep_blocks(&mut self, _store: Box<dyn BlockStore>) {}

    /// Looks after blocks that are kept elsewhere while no step can run. Says whether there is more to do now.
    fn tend_blocks(&mut self) -> Result<bool, StepError> {
        Ok(false)
    }
}

impl Generator for Engine {
    fn submit(&mut self, job: &Job) {
        Engine::submit(self, job);
    }

    fn load_adapter(
        &mut self,
        adapter: &Adapter,
        kept: Box<dyn Any + Send>,
    ) -> Result<Arc<LoadedAdapter>, LoadError> {
        Engine::load_adapter(self, adapter, kept)
    }

    fn free_adapters(&mut self) {
        Engine::free_adapters(self);
    }

    fn block_form(&self) -> Option<(usize, String)> {
        Engine::block_form(self)
    }

    fn keep_blocks(&mut self, store: Box<dyn BlockStore>) {
        Engine::keep_blocks(self, store);
    }

    fn tend_blocks(&mut self) -> Result<bool, StepError> {
        self.take_fetched()?;
        Ok(Engine::has_work(self) || self.save_blocks(PREFIX_DISK_SAVED_AT_ONCE))
    }
}

impl Steps for Engine {
    fn generator(&mut self) -> Option<&mut dyn Generator> {
        Some(self)
    }

    fn submit_inputs(&mut self, job: &EmbedJob) {
        Engine::submit_inputs(self, job);
    }

    fn cancel(&mut self, job: JobId) {
        Engine::cancel(self, job);
    }

    fn set_paused(&mut self, job: JobId, paused: bool) {
        Engine::set_paused(self, job, paused);
    }

    fn step(&mut self, events: &mut Vec<Event>) -> Result<StepReport, StepError> {
        Engine::step_by(self, clock::nanoseconds, events)
    }

    fn took(&mut self, time: Duration) {
        Engine::took(self, time.as_secs_f32());
    }

    fn has_work(&self) -> bool {
        Engine::has_work(self)
    }

    fn stats(&self) -> EngineStats {
        Engine::stats(self)
    }
}

impl Steps for EncoderEngine {
    fn generator(&mut self) -> Option<&mut dyn Generator> {
        None
    }

    fn submit_inputs(&mut self, job: &EmbedJob) {
        EncoderEngine::submit_inputs(self, job);
    }

    fn cancel(&mut self, job: JobId) {
        EncoderEngine::cancel(self, job);
    }

    fn set_paused(&mut self, job: JobId, paused: bool) {
        EncoderEngine::set_paused(self, job, paused);
    }

    fn step(&mut self, events: &mut Vec<Event>) -> Result<StepReport, StepError> {
        EncoderEngine::step_by(self, clock::nanoseconds, events)
    }

    /// An encoder guesses nothing that may or may not be worth its time.
    fn took(&mut self, _time: Duration) {}

    fn has_work(&self) -> bool {
        EncoderEngine::has_work(self)
    }

    fn stats(&self) -> EngineStats {
        EncoderEngine::stats(self)
    }
}

impl Transcriber for WhisperEngine {
    fn submit_sound(&mut self, job: TranscribeJob) {
        WhisperEngine::submit(self, job);
    }

    fn wants(&self, job: JobId) -> usize {
        WhisperEngine::wants(self, job)
    }

    fn push(&mut self, job: JobId, samples: Option<&[f32]>) {
        WhisperEngine::push(self, job, samples);
    }
}

impl Steps for WhisperEngine {
    fn generator(&mut self) -> Option<&mut dyn Generator> {
        None
    }

    fn transcriber(&mut self) -> Option<&mut dyn Transcriber> {
        Some(self)
    }

    /// Nobody has any: its model embeds nothing, which every call is told before.
    fn submit_inputs(&mut self, _job: &EmbedJob) {}

    fn cancel(&mut self, job: JobId) {
        WhisperEngine::cancel(self, job);
    }

    fn set_paused(&mut self, job: JobId, paused: bool) {
        WhisperEngine::set_paused(self, job, paused);
    }

    fn step(&mut self, events: &mut Vec<Event>) -> Result<StepReport, StepError> {
        WhisperEngine::step(self, events)
    }

    fn took(&mut self, _time: Duration) {}

    fn has_work(&self) -> bool {
        WhisperEngine::has_work(self)
    }

    fn stats(&self) -> EngineStats {
        WhisperEngine::stats(self)
    }
}

impl Steps for VoiceEngine {
    fn generator(&mut self) -> Option<&mut dyn Generator> {
        None
    }

    fn speaker(&mut self) -> Option<&mut VoiceEngine> {
        Some(self)
    }

    /// It has no tasks, so nobody asks.
    fn submit_inputs(&mut self, _job: &EmbedJob) {}

    fn cancel(&mut self, job: JobId) {
        VoiceEngine::cancel(self, job);
    }

    fn set_paused(&mut self, job: JobId, paused: bool) {
        VoiceEngine::set_paused(self, job, paused);
    }

    fn step(&mut self, events: &mut Vec<Event>) -> Result<StepReport, StepError> {
        VoiceEngine::step(self, events)
    }

    fn took(&mut self, _time: Duration) {}

    fn has_work(&self) -> bool {
        VoiceEngine::has_work(self)
    }

    fn stats(&self) -> EngineStats {
        VoiceEngine::stats(self)
    }
}

/// What an engine needs to know of its model besides the network.
#[derive(Clone)]
pub(crate) struct Sides {
    /// Tokens, template, sampling.
    pub(crate) text: Arc<TextModel>,
    /// Prompts, pooling, scores.
    pub(crate) embedder: Arc<Embedder>,
    /// Of a model that writes down speech: what is asked of it, in tokens.
    pub(crate) listener: Option<Arc<Vocabulary>>,
    /// Of a model that speaks: its voices, and texts as it says them.
    pub(crate) script: Option<Arc<Script>>,
}

/// Where an engine comes from, for a device that makes it in another process.
#[derive(Clone)]
pub(crate) struct Origin {
    pub(crate) source: Source,
    /// What goes over its files.
    pub(crate) overrides: Overrides,
    /// The model that drafts for it.
    pub(crate) draft: Option<Source>,
    /// How calls are written, instead of what the chat template says.
    pub(crate) tool_format: Option<ToolFormat>,
    /// The operator's bounds of pictures.
    pub(crate) pictures: PixelRoom,
    /// Which of its layers are other devices', where this is a card that has only the others.
    pub(crate) sharing: Option<Sharing>,
    /// What it was planned to take.
    pub(crate) memory: EngineMemory,
    /// Where blocks of its cache are kept, and whose they are by its files.
    pub(crate) kept: Option<(Arc<PrefixDisk>, Identity)>,
    /// What wakes the thread that steps it.
    pub(crate) bell: Bell,
}

/// How large an engine is made, of the kind of network it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum EngineSize {
    Decoder(EngineConfig),
    Encoder(EncoderConfig),
    Whisper(WhisperSize),
    Voice {
        /// Phonemes of a piece.
        tokens_max: usize,
    },
}

/// How large a Whisper model's engine is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WhisperSize {
    pub(crate) config: WhisperConfig,
    /// Tokens of the decoder's context.
    pub(crate) tokens: usize,
}

impl EngineSize {
    /// Tokens of the longest prompt and completion, or of the longest input.
    pub(crate) fn context_tokens_max(&self) -> usize {
        match self {
            EngineSize::Decoder(config) => config.context_tokens_max,
            EngineSize::Encoder(config) => config.input_tokens_max,
            EngineSize::Whisper(size) => size.tokens,
            EngineSize::Voice { tokens_max } => *tokens_max,
        }
    }

    /// Where tokens are drafted from.
    pub(crate) fn speculation(&self) -> Speculation {
        match self {
            EngineSize::Decoder(config) => config.speculation,
            EngineSize::Encoder(_) | EngineSize::Whisper(_) | EngineSize::Voice { .. } => Speculation::Off,
        }
    }
}

/// What engines are made on.
pub(crate) trait Device: Send + Sync + 'static {
    /// For people: `cpu: avx512vnni, 8 threads`.
    fn describe(&self) -> String;

    /// As settings name it.
    fn name(&self) -> DeviceName {
        DeviceName::Cpu
    }

    /// Whether it computes networks of this kind.
    fn computes(&self, _network: &Network) -> bool {
        true
    }

    /// Whether it is a card: what does not fit on it may be another device's.
    fn is_card(&self) -> bool {
        false
    }

    /// What plans a decoder that it shares with other devices; none where it does not.
    fn sharing(&self, _sharing: &Sharing) -> Option<Arc<dyn Device>> {
        None
    }

    /// What of a decoder's engine is in each of the other devices' memory instead, to the byte.
    fn decoder_memory_beside(&self, _files: &ModelFiles, _config: &EngineConfig) -> Vec<EngineMemory> {
        Vec::new()
    }

    /// What of an adapter is, as [`Device::adapter_memory`].
    fn adapter_memory_beside(
        &self,
        _spec: &TransformerSpec,
        _adapter: &Adapter,
        _rows: usize,
    ) -> Vec<(u64, u64)> {
        Vec::new()
    }

    /// What a decoder's engine of this size would take, to the byte, and the model that drafts for it.
    fn decoder_memory(
        &self,
        files: &ModelFiles,
        draft: Option<&ModelFiles>,
        config: &EngineConfig,
    ) -> EngineMemory;

    /// What an adapter takes in a decoder's engine whose steps have so many rows, to the byte, and the buffers that the first
    /// one of the engine makes.
    fn adapter_memory(&self, spec: &TransformerSpec, adapter: &Adapter, step_tokens_max: usize)
    -> (u64, u64);

    /// What an encoder's engine of this size would take, to the byte.
    fn encoder_memory(&self, files: &EncoderFiles, config: &EncoderConfig) -> EngineMemory;

    /// What the engine of a model that writes down speech would take, of this size, to the byte.
    fn whisper_memory(&self, files: &WhisperFiles, config: &WhisperConfig) -> EngineMemory;

    /// What a model that speaks would take, about.
    ///
    /// # Errors
    /// That it cannot be run.
    fn voice_memory(&self, files: &VoiceFiles) -> Result<EngineMemory, LoadError>;

    /// Makes the engine of a size that was chosen for these files, the second those of a model that drafts. Takes as long as reading the weights does;
    /// `progress` is told 0 to 1. The thread that asks is the one that will step it.
    fn build(
        &self,
        origin: &Origin,
        files: (&Opened, Option<&ModelFiles>),
        sides: Sides,
        size: EngineSize,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Box<dyn Steps>, LoadError>;
}

/// The processor this process runs on: one pool of threads, which all models share.
#[derive(Clone)]
pub(crate) struct Cpu {
    pool: Arc<ThreadPool>,
    tier: Tier,
    encoder_weights: WeightType,
}

impl Cpu {
    /// With so many threads; unset: one for each core this process may use.
    ///
    /// # Errors
    /// When the environment asks for instructions that this processor does not have.
    pub(crate) fn new(threads: Option<usize>) -> Result<Self, KernelError> {
        let threads = threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
        let (pool, tier) = (Arc::new(ThreadPool::new(threads)), Tier::detect()?);
        Ok(Self { pool, tier, encoder_weights: WeightType::Stored })
    }

    /// Packs encoders' matrices so.
    pub(crate) fn with_encoder_weights(self, encoder_weights: WeightType) -> Self {
        Self { encoder_weights, ..self }
    }

    /// Makes a decoder's engine.
    ///
    /// # Errors
    /// As [`Device::build`].
    pub(crate) fn decoder_engine(
        &self,
        files: &ModelFiles,
        sides: Sides,
        config: EngineConfig,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Engine, LoadError> {
        decoder_engine(self.backend(), &|| self.backend(), files, sides, config, progress)
    }

    /// A backend on these threads.
    pub(crate) fn backend(&self) -> AnyBackend {
        AnyBackend::new(self.cpu_backend())
    }

    /// The same, for a tensor-parallel group, whose ranks are of one type.
    pub(crate) fn cpu_backend(&self) -> CpuBackend {
        CpuBackend::new(self.pool.clone(), self.tier)
    }

    /// Loops that measure what these threads can do at most; one reads so many bytes.
    ///
    /// # Errors
    /// When there is no such memory.
    pub(crate) fn probe(&self, bytes: usize) -> Result<Probe, KernelError> {
        Probe::new(self.pool.clone(), self.tier, bytes)
    }
}

impl Device for Cpu {
    fn describe(&self) -> String {
        self.backend().device()
    }

    fn decoder_memory(
        &self,
        files: &ModelFiles,
        draft: Option<&ModelFiles>,
        config: &EngineConfig,
    ) -> EngineMemory {
        decoder_memory((&self.backend(), &self.backend()), files, draft, config)
    }

    fn adapter_memory(
        &self,
        spec: &TransformerSpec,
        adapter: &Adapter,
        step_tokens_max: usize,
    ) -> (u64, u64) {
        Engine::adapter_memory(&self.backend(), spec, adapter, step_tokens_max)
    }

    fn encoder_memory(&self, files: &EncoderFiles, config: &EncoderConfig) -> EngineMemory {
        EncoderEngine::memory(&self.backend(), files, self.encoder_weights, config)
    }

    fn whisper_memory(&self, files: &WhisperFiles, config: &WhisperConfig) -> EngineMemory {
        WhisperEngine::memory(&self.backend(), files, self.encoder_weights, config)
    }

    fn voice_memory(&self, files: &VoiceFiles) -> Result<EngineMemory, LoadError> {
        hanzo_engine_voice::memory(files, &self.pool, self.tier)
    }

    fn build(
        &self,
        _origin: &Origin,
        files: (&Opened, Option<&ModelFiles>),
        sides: Sides,
        size: EngineSize,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Box<dyn Steps>, LoadError> {
        if let Network::Voice(voice) = &files.0.network {
            let speaker = Speaker::load(voice, self.pool.clone(), self.tier, progress)?;
            return Ok(Box::new(VoiceEngine::new(speaker)));
        }
        build(&|| self.backend(), self.encoder_weights, files, sides, size, progress)
    }
}
