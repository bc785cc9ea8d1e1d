//! Boundary between the daemon and the hardware. A [`Device`] plans a model's memory and builds its engine; a
//! worker drives the engine through [`Steps`]. Each backend is a `Device`: [`crate::cpu`] has the CPU's, and
//! [`crate::devices`] has those of GPUs and selects them. No other module names a backend.

use std::{
    any::Any,
    sync::Arc,
    time::{Duration, Instant},
};

use hanzo_engine_media::PixelLimits;
use hanzo_engine_runtime::{
    Adapter, EmbedJob, Embedder, EncoderConfig, EncoderEngine, Engine, EngineConfig, EngineStats, Event, Job,
    JobId, LoadError, LoadedAdapter, ModelFiles, Network, OpenedModel, Overrides, Speculation, StepError,
    StepReport, TextModel, ToolFormat, VoiceFiles,
    encoder::EncoderFiles,
    engine::EngineMemory,
    kv::BlockStore,
    spec::TransformerSpec,
    whisper::{TranscribeJob, Vocabulary, WhisperConfig, WhisperEngine, WhisperFiles},
};

use hanzo_engine_voice::{Script, VoiceEngine};
use serde::{Deserialize, Serialize};

use crate::{
    clock::{self, Bell},
    device_name::DeviceName,
    gpu_layers::LayerDistribution,
    limits::PREFIX_DISK_SAVED_AT_ONCE,
    prefix_disk::{Identity, PrefixDisk},
    source::ModelSource,
};

/// Engine as its worker sees it; see [`Engine`] for the methods.
pub(crate) trait Steps: Send {
    /// Text generator of the engine, if it has one. Encoders have none.
    fn generator(&mut self) -> Option<&mut dyn Generator>;
    /// Transcriber of the engine, if it has one.
    fn transcriber(&mut self) -> Option<&mut dyn Transcriber> {
        None
    }
    /// Speech synthesiser of the engine, if it has one.
    fn speaker(&mut self) -> Option<&mut VoiceEngine> {
        None
    }
    fn submit_inputs(&mut self, job: &EmbedJob);
    fn cancel(&mut self, job: JobId);
    fn set_paused(&mut self, job: JobId, paused: bool);
    fn step(&mut self, events: &mut Vec<Event>) -> Result<StepReport, StepError>;
    /// Records the duration of the last step.
    fn took(&mut self, time: Duration);
    /// Duration of the step whose events were returned last, if it ran in another process.
    fn step_time(&self) -> Option<Duration> {
        None
    }
    /// Id of the process that the engine runs in, if it is another one.
    fn process(&self) -> Option<u32> {
        None
    }
    fn has_work(&self) -> bool;
    fn stats(&self) -> EngineStats;
    /// Waits while no step can run: until work arrives, this thread is woken, or the deadline passes.
    fn rest(&mut self, until: Option<Instant>) {
        clock::rest(until);
    }
}

/// Engine that transcribes speech.
pub(crate) trait Transcriber: Steps {
    fn submit_sound(&mut self, job: TranscribeJob);
    /// Number of samples of a sound that can be used now.
    fn wants(&self, job: JobId) -> usize;
    /// Adds samples to a sound; `None` ends it.
    fn push(&mut self, job: JobId, samples: Option<&[f32]>);
}

/// Engine that generates text.
pub(crate) trait Generator: Steps {
    fn submit(&mut self, job: Arc<Job>);
    fn load_adapter(
        &mut self,
        adapter: &Adapter,
        kept: Box<dyn Any + Send>,
    ) -> Result<Arc<LoadedAdapter>, LoadError>;
    fn free_adapters(&mut self);

    /// Size in bytes and format of its KV blocks outside the cache, if they can be kept elsewhere.
    fn block_form(&self) -> Option<(usize, String)> {
        None
    }

    fn keep_blocks(&mut self, _store: Box<dyn BlockStore>) {}

    /// Moves KV blocks to and from external storage while no step can run. Returns whether there is more to do now.
    fn tend_blocks(&mut self) -> Result<bool, StepError> {
        Ok(false)
    }
}

impl Generator for Engine {
    fn submit(&mut self, job: Arc<Job>) {
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

    /// Encoders do not speculate, so they need no step times.
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

    /// Unreachable: the model supports no embedding, and every such call is refused before.
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

    /// Unreachable: the model has no embedding tasks.
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

/// Parts of a model besides its network that an engine needs.
#[derive(Clone)]
pub(crate) struct Sides {
    /// Tokenizer, chat template and sampling defaults.
    pub(crate) text: Arc<TextModel>,
    /// Prompts, pooling and scores of embeddings.
    pub(crate) embedder: Arc<Embedder>,
    /// Token vocabulary of a transcription model.
    pub(crate) listener: Option<Arc<Vocabulary>>,
    /// Voices of a speech model, and its conversion of text to phonemes.
    pub(crate) script: Option<Arc<Script>>,
}

/// Source of an engine, for a device that builds it in another process.
#[derive(Clone)]
pub(crate) struct Origin {
    pub(crate) source: ModelSource,
    /// Overrides of its files' values.
    pub(crate) overrides: Overrides,
    /// Draft model for speculative decoding.
    pub(crate) draft: Option<ModelSource>,
    /// Format of tool calls, if not the chat template's.
    pub(crate) tool_format: Option<ToolFormat>,
    /// Limits of picture sizes from the settings.
    pub(crate) pictures: PixelLimits,
    /// Distribution of the layers, if this GPU shares the model with other devices.
    pub(crate) sharing: Option<LayerDistribution>,
    /// Planned memory.
    pub(crate) memory: EngineMemory,
    /// Disk storage for KV blocks, and the identity of the model's files that separates its blocks from others.
    pub(crate) kept: Option<(Arc<PrefixDisk>, Identity)>,
    /// Wake-up signal for the thread that steps the engine.
    pub(crate) bell: Bell,
}

/// Size of an engine, by the kind of its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum EngineSize {
    Decoder(EngineConfig),
    Encoder(EncoderConfig),
    Whisper(WhisperSize),
    Voice {
        /// Maximum number of phonemes in one segment of text.
        tokens_max: usize,
    },
}

/// Size of a Whisper model's engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WhisperSize {
    pub(crate) config: WhisperConfig,
    /// Context length of the decoder in tokens.
    pub(crate) tokens: usize,
}

impl EngineSize {
    /// Maximum context length in tokens: prompt and completion, or one input.
    pub(crate) fn context_tokens_max(&self) -> usize {
        match self {
            EngineSize::Decoder(config) => config.context_tokens_max,
            EngineSize::Encoder(config) => config.input_tokens_max,
            EngineSize::Whisper(size) => size.tokens,
            EngineSize::Voice { tokens_max } => *tokens_max,
        }
    }

    /// Source of draft tokens.
    pub(crate) fn speculation(&self) -> Speculation {
        match self {
            EngineSize::Decoder(config) => config.speculation,
            EngineSize::Encoder(_) | EngineSize::Whisper(_) | EngineSize::Voice { .. } => Speculation::Off,
        }
    }
}

/// Opened files that an engine is built from.
#[derive(Clone, Copy)]
pub(crate) struct EngineFiles<'a> {
    pub(crate) model: &'a OpenedModel,
    /// Files of the draft model, if there is one.
    pub(crate) draft: Option<&'a ModelFiles>,
}

/// Device that engines are built on.
pub(crate) trait Device: Send + Sync + 'static {
    /// Description for people: `cpu: avx512vnni, 8 threads`.
    fn describe(&self) -> String;

    /// Name in settings.
    fn name(&self) -> DeviceName {
        DeviceName::Cpu
    }

    /// Whether the device supports this kind of network.
    fn computes(&self, _network: &Network) -> bool {
        true
    }

    /// Whether the device is a GPU. Models that do not fit on a GPU may go to another device.
    fn is_card(&self) -> bool {
        false
    }

    /// Planner for a decoder that the device shares with others; `None` if it shares none.
    fn sharing(&self, _sharing: &LayerDistribution) -> Option<Arc<dyn Device>> {
        None
    }

    /// Memory of a decoder's engine on each of the other devices, in exact bytes.
    fn decoder_memory_beside(&self, _files: &ModelFiles, _config: &EngineConfig) -> Vec<EngineMemory> {
        Vec::new()
    }

    /// Memory of an adapter on each of the other devices, as in [`Device::adapter_memory`].
    fn adapter_memory_beside(
        &self,
        _spec: &TransformerSpec,
        _adapter: &Adapter,
        _rows: usize,
    ) -> Vec<(u64, u64)> {
        Vec::new()
    }

    /// Memory of a decoder's engine of this size, with its draft model, in exact bytes.
    fn decoder_memory(
        &self,
        files: &ModelFiles,
        draft: Option<&ModelFiles>,
        config: &EngineConfig,
    ) -> EngineMemory;

    /// Memory of an adapter in a decoder's engine with this many rows per step, in exact bytes. The second number
    /// is that of the buffers that the engine's first adapter allocates.
    fn adapter_memory(&self, spec: &TransformerSpec, adapter: &Adapter, step_tokens_max: usize)
    -> (u64, u64);

    /// Memory of an encoder's engine of this size, in exact bytes.
    fn encoder_memory(&self, files: &EncoderFiles, config: &EncoderConfig) -> EngineMemory;

    /// Memory of a transcription model's engine of this size, in exact bytes.
    fn whisper_memory(&self, files: &WhisperFiles, config: &WhisperConfig) -> EngineMemory;

    /// Estimated memory of a speech model.
    ///
    /// # Errors
    /// If the model cannot run on the device.
    fn voice_memory(&self, files: &VoiceFiles) -> Result<EngineMemory, LoadError>;

    /// Builds an engine of the chosen size from these files. Takes as long as reading the weights. `progress` receives
    /// 0 to 1. The calling thread is the one that will step the engine.
    fn build(
        &self,
        origin: &Origin,
        files: EngineFiles<'_>,
        sides: Sides,
        size: EngineSize,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Box<dyn Steps>, LoadError>;
}
