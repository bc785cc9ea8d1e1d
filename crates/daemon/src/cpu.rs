//! The CPU as a device that engines are built on.

use std::sync::Arc;

use hanzo_engine_kernels::cpu::{CpuBackend, ThreadPool, Tier, limits::Probe};
use hanzo_engine_ops::{AnyBackend, KernelError};
use hanzo_engine_runtime::{
    Adapter, EncoderConfig, EncoderEngine, Engine, EngineConfig, LoadError, ModelFiles, Network, VoiceFiles,
    encoder::{EncoderFiles, WeightType},
    engine::EngineMemory,
    spec::TransformerSpec,
    whisper::{WhisperConfig, WhisperEngine, WhisperFiles},
};
use hanzo_engine_voice::{Speaker, VoiceEngine};

use crate::{
    device::{Device, EngineFiles, EngineSize, Origin, Sides, Steps},
    engine_factory::{build, decoder_engine, decoder_memory},
};

/// CPU of this machine, with a thread pool that all models share.
#[derive(Clone)]
pub(crate) struct Cpu {
    pool: Arc<ThreadPool>,
    tier: Tier,
    encoder_weights: WeightType,
}

impl Cpu {
    /// Creates the device with this many threads; `None` for one per core that this process may use.
    ///
    /// # Errors
    /// If the environment asks for instructions that this CPU does not have.
    pub(crate) fn new(threads: Option<usize>) -> Result<Self, KernelError> {
        let threads = threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
        let (pool, tier) = (Arc::new(ThreadPool::new(threads)), Tier::detect()?);
        Ok(Self { pool, tier, encoder_weights: WeightType::Stored })
    }

    /// Sets the data type for encoders' matrices.
    pub(crate) fn with_encoder_weights(self, encoder_weights: WeightType) -> Self {
        Self { encoder_weights, ..self }
    }

    /// Builds a decoder's engine.
    ///
    /// # Errors
    /// Errors of [`Device::build`].
    pub(crate) fn decoder_engine(
        &self,
        files: &ModelFiles,
        sides: Sides,
        config: EngineConfig,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Engine, LoadError> {
        decoder_engine(self.backend(), &|| self.backend(), files, sides, config, progress)
    }

    /// Backend that runs on these threads.
    pub(crate) fn backend(&self) -> AnyBackend {
        AnyBackend::new(self.cpu_backend())
    }

    /// Same backend as a concrete type, for tensor-parallel groups, whose ranks share one type.
    pub(crate) fn cpu_backend(&self) -> CpuBackend {
        CpuBackend::new(self.pool.clone(), self.tier)
    }

    /// Benchmark loops that measure peak rates of these threads; one reads this many bytes.
    ///
    /// # Errors
    /// If the memory cannot be allocated.
    pub(crate) fn probe(&self, bytes: usize) -> Result<Probe, KernelError> {
        Probe::new(self.pool.clone(), self.tier, bytes)
    }
}

impl Device for Cpu {
    fn describe(&self) -> String {
        self.backend().facts().device.clone()
    }

    fn decoder_memory(
        &self,
        files: &ModelFiles,
        draft: Option<&ModelFiles>,
        config: &EngineConfig,
    ) -> EngineMemory {
        decoder_memory(&self.backend(), &self.backend(), files, draft, config)
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
        files: EngineFiles<'_>,
        sides: Sides,
        size: EngineSize,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Box<dyn Steps>, LoadError> {
        if let Network::Voice(voice) = &files.model.network {
            let speaker = Speaker::load(voice, self.pool.clone(), self.tier, progress)?;
            return Ok(Box::new(VoiceEngine::new(speaker)));
        }
        build(&|| self.backend(), self.encoder_weights, files, sides, size, progress)
    }
}
