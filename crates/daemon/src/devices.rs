//! Devices that models are loaded on: GPUs, if there are any, and the CPU. Each has a memory budget.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use hanzo_engine_kernels_cuda::{Card, CudaBackend, DeviceError, Driver, Paper, check};
use hanzo_engine_ops::{AnyBackend, KernelError, Pipeline, TensorParallel};
use hanzo_engine_runtime::{
    Adapter, EncoderConfig, EncoderEngine, Engine, EngineConfig, LoadError, ModelFiles, Network, VoiceFiles,
    encoder::{EncoderFiles, WeightType},
    engine::EngineMemory,
    spec::TransformerSpec,
    whisper::{WhisperConfig, WhisperEngine, WhisperFiles},
};

use crate::{
    budget::Budget,
    config::{EngineSection, Isolation},
    cpu::Cpu,
    device::{Device, EngineFiles, EngineSize, Generator, Origin, Sides, Steps},
    device_name::{DeviceName, Devices},
    engine_factory::{build, decoder_engine, decoder_memory, with_draft},
    gpu_layers::LayerDistribution,
    hidden_cards,
    limits::CARD_MEMORY_SHARE,
};

/// Device that models are loaded on, with its memory budget.
#[derive(Clone)]
pub(crate) struct DevicePlace {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) budget: Arc<Budget>,
}

/// GPU that works, with the bytes of it that models may take.
pub(crate) struct UsableGpu {
    pub(crate) card: OnCard,
    pub(crate) budget_bytes: u64,
}

/// Selected devices.
pub(crate) struct Chosen {
    /// GPUs, in order of preference.
    pub(crate) cards: Vec<UsableGpu>,
    /// Whether the CPU comes after them.
    pub(crate) cpu: bool,
    /// Reason why there are no GPUs, for the log, if some were searched for.
    pub(crate) no_cards: Option<String>,
}

/// Selects the devices that the settings name, testing each GPU, in order. A GPU that does not work is skipped with
/// a line in the log if others are named.
///
/// # Errors
/// Reason why no requested device can be used.
pub(crate) fn choose(section: &EngineSection, driver: &Driver) -> Result<Chosen, KernelError> {
    let none = |no_cards| Chosen { cards: Vec::new(), cpu: true, no_cards };
    let (wanted, cpu) = match &section.devices {
        Devices::Auto if section.fixed_memory_bytes.is_some() => return Ok(none(None)),
        Devices::Auto => match driver.cards() {
            Ok(cards) => (cards.iter().map(|card| card.ordinal).collect(), true),
            Err(error) => {
                let why = error.to_string();
                let hidden = hidden_cards::hidden(Path::new("/"), &why).map(|hidden| format!("; {hidden}"));
                return Ok(none(Some(why + &hidden.unwrap_or_default())));
            }
        },
        Devices::These(names) => {
            let ordinal = |name: &DeviceName| match name {
                DeviceName::Cuda(ordinal) => Some(*ordinal),
                DeviceName::Cpu => None,
            };
            (names.iter().filter_map(ordinal).collect::<Vec<_>>(), names.contains(&DeviceName::Cpu))
        }
    };
    let mut cards = Vec::new();
    let mut last = None;
    for ordinal in wanted {
        match OnCard::open(driver, ordinal, section) {
            Ok(card) => cards.push(card),
            Err(error) => {
                tracing::warn!("cuda:{ordinal} is not used: {error}");
                last = Some(error);
            }
        }
    }
    match last {
        Some(error) if cards.is_empty() && !cpu => Err(error),
        Some(_) if cards.is_empty() => Ok(none(Some("no card works".to_owned()))),
        _ => Ok(Chosen { cards, cpu, no_cards: None }),
    }
}

/// GPU whose models' engines share one context in this process. The context is opened with the first engine.
#[derive(Clone)]
pub(crate) struct OnCard {
    driver: Driver,
    ordinal: usize,
    name: String,
    encoder_weights: WeightType,
    card: Arc<Mutex<Option<Card>>>,
    /// Devices that may hold layers of models too large for this GPU.
    processor: Option<Cpu>,
    cards: Vec<OnCard>,
    /// Distribution of the model that is being planned or built.
    sharing: Option<LayerDistribution>,
}

/// Device that holds some layers of a model too large for one GPU.
#[derive(Clone, Copy)]
enum Beside<'a> {
    Processor(&'a Cpu),
    Card(&'a OnCard),
}

impl<'a> Beside<'a> {
    /// Returns the device if it is a GPU.
    fn card(&self) -> Option<&'a OnCard> {
        match *self {
            Beside::Processor(_) => None,
            Beside::Card(card) => Some(card),
        }
    }
}

/// Converts a GPU's error to the kernels' error type.
fn failed(ordinal: usize, error: &DeviceError) -> KernelError {
    KernelError::Device { device: format!("cuda:{ordinal}"), reason: error.to_string() }
}

impl OnCard {
    /// Opens and tests a GPU.
    ///
    /// # Errors
    /// Reason why it cannot be used.
    pub(crate) fn open(
        driver: &Driver,
        ordinal: usize,
        section: &EngineSection,
    ) -> Result<UsableGpu, KernelError> {
        let card = driver.open(ordinal).map_err(|error| failed(ordinal, &error))?;
        check(&card)?;
        let free = card.free_bytes().map_err(|error| failed(ordinal, &error))?;
        let (numerator, denominator) = CARD_MEMORY_SHARE;
        let budget_bytes = free / denominator * numerator;
        let name = card.info().to_string();
        tracing::info!(memory_budget_bytes = budget_bytes, kernels = %card.kernels(), "models run on {name}");
        // With process isolation the engines are in other processes, and a context here would waste memory.
        let keeps = section.isolation != Some(Isolation::Process);
        let card = Arc::new(Mutex::new(keeps.then_some(card)));
        let encoder_weights = section.encoder_weights;
        let (processor, cards, sharing) = (None, Vec::new(), None);
        let card = OnCard {
            driver: driver.clone(),
            ordinal,
            name,
            encoder_weights,
            card,
            processor,
            cards,
            sharing,
        };
        Ok(UsableGpu { card, budget_bytes })
    }

    /// GPU that another process has tested; it is opened when an engine is built.
    pub(crate) fn tried(ordinal: usize, encoder_weights: WeightType) -> OnCard {
        let name = DeviceName::Cuda(ordinal).to_string();
        let (driver, card) = (Driver::default(), Arc::default());
        let (processor, cards, sharing) = (None, Vec::new(), None);
        OnCard { driver, ordinal, name, encoder_weights, card, processor, cards, sharing }
    }

    /// Adds a CPU that may hold layers of models that do not fit, if there is one.
    pub(crate) fn beside(self, processor: Option<&Cpu>) -> OnCard {
        OnCard { processor: processor.cloned(), ..self }
    }

    /// Adds GPUs that may hold such layers.
    pub(crate) fn beside_cards(self, cards: Vec<OnCard>) -> OnCard {
        OnCard { cards, ..self }
    }

    /// Configures the GPU for a model whose first layers other devices hold. Unchanged if one of these devices is
    /// missing.
    pub(crate) fn shared(&self, sharing: &LayerDistribution) -> OnCard {
        OnCard { sharing: self.others(sharing).map(|_| sharing.clone()), ..self.clone() }
    }

    /// Other devices that share a model, in the order of [`LayerDistribution::others`]; `None` if one is missing.
    fn others(&self, sharing: &LayerDistribution) -> Option<Vec<Beside<'_>>> {
        let other = |(name, _): &(DeviceName, usize)| match *name {
            DeviceName::Cpu => self.processor.as_ref().map(Beside::Processor),
            DeviceName::Cuda(ordinal) => {
                self.cards.iter().find(|card| card.ordinal == ordinal).map(Beside::Card)
            }
        };
        sharing.others.iter().map(other).collect()
    }

    /// Backend without memory that counts the bytes of the model being planned on one of its devices: on this GPU,
    /// or on the device with index `of` in [`LayerDistribution::others`]. `None` if the model is not shared.
    fn on_paper(&self, of: Option<usize>) -> Option<AnyBackend> {
        let sharing = self.sharing.as_ref()?;
        let others = self.others(sharing)?;
        if let Some(whole) = &sharing.rows {
            let ranks = [self].into_iter().chain(others.iter().filter_map(Beside::card));
            let ranks = ranks.map(OnCard::paper_backend);
            let ranks = TensorParallel::new(ranks.collect(), whole.clone());
            return Some(AnyBackend::of_executor(ranks.counting(of.map_or(0, |at| at + 1))));
        }
        let on_paper = |other: &Beside<'_>| match other {
            Beside::Processor(other) => other.backend(),
            Beside::Card(other) => other.paper(),
        };
        let devices = others.iter().rev().map(on_paper).chain([self.paper()]);
        let pipeline = Pipeline::new(devices.collect(), sharing.cuts.clone());
        let counted = of.map_or(others.len(), |at| others.len() - 1 - at);
        Some(AnyBackend::of_executor(pipeline.counting(counted)))
    }

    /// Counts for each of the other devices, in the order of [`LayerDistribution::others`].
    fn counted_beside<T>(&self, count: impl Fn(&AnyBackend) -> T) -> Vec<T> {
        let beside = self.sharing.as_ref().map_or(0, |sharing| sharing.others.len());
        (0..beside).filter_map(|at| self.on_paper(Some(at)).map(|of| count(&of))).collect()
    }

    /// Backend of all devices that share a model; `None` if one is missing.
    fn sharers(&self, sharing: &LayerDistribution) -> Result<Option<AnyBackend>, KernelError> {
        let Some(others) = self.others(sharing) else { return Ok(None) };
        if let Some(whole) = &sharing.rows {
            let ranks = [self].into_iter().chain(others.iter().filter_map(Beside::card));
            let rank = |card: &OnCard| Ok(CudaBackend::new(card.card()?));
            let ranks = ranks.map(rank).collect::<Result<_, KernelError>>()?;
            return Ok(Some(AnyBackend::of_executor(TensorParallel::new(ranks, whole.clone()))));
        }
        let open = |other: &Beside<'_>| match other {
            Beside::Processor(other) => Ok(other.backend()),
            Beside::Card(other) => Ok(AnyBackend::new(CudaBackend::new(other.card()?))),
        };
        let devices =
            others.iter().rev().map(open).chain([Ok(AnyBackend::new(CudaBackend::new(self.card()?)))]);
        let devices = devices.collect::<Result<_, KernelError>>()?;
        Ok(Some(AnyBackend::of_executor(Pipeline::new(devices, sharing.cuts.clone()))))
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
    ) -> Result<Box<dyn Generator>, LoadError> {
        let card = self.card()?;
        let backend = || AnyBackend::new(CudaBackend::new(card.clone()));
        let sharers = match &self.sharing {
            Some(sharing) => self.sharers(sharing)?,
            None => None,
        };
        Ok(match sharers {
            Some(own) => {
                let engine = decoder_engine(own, &backend, files, sides, config, progress)?;
                if let Some(ranks) = engine.backend().executor_ref::<TensorParallel<CudaBackend<Card>>>() {
                    let how = match ranks.are_acquainted() {
                        true => "read each other's memory",
                        false => "have no way to each other's memory that they could take: rows are copied",
                    };
                    tracing::info!("cards that compute each layer of {} together {how}", files.info.name);
                }
                Box::new(engine)
            }
            None => Box::new(decoder_engine(backend(), &backend, files, sides, config, progress)?),
        })
    }

    fn card(&self) -> Result<Card, KernelError> {
        let mut card = self.card.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(card) = &*card {
            return Ok(card.clone());
        }
        let opened = self.driver.open(self.ordinal).map_err(|error| failed(self.ordinal, &error))?;
        Ok(card.insert(opened).clone())
    }

    /// Backend without memory that counts bytes as the GPU's backend does.
    fn paper(&self) -> AnyBackend {
        AnyBackend::new(self.paper_backend())
    }

    /// Same backend as a concrete type, for a tensor-parallel group.
    fn paper_backend(&self) -> CudaBackend<Paper> {
        CudaBackend::new(Paper::of(self.name.clone()))
    }
}

impl Device for OnCard {
    fn describe(&self) -> String {
        let Some((sharing, others)) =
            self.sharing.as_ref().and_then(|sharing| Some((sharing, self.others(sharing)?)))
        else {
            return self.name.clone();
        };
        let name = |other: &Beside<'_>| match other {
            Beside::Processor(other) => other.describe(),
            Beside::Card(other) => other.name.clone(),
        };
        match &others[..] {
            others if sharing.rows.is_some() => {
                let names = others.iter().map(|other| format!(" and {}", name(other)));
                format!("{}{}: {sharing}", self.name, names.collect::<String>())
            }
            [other] => format!("{}: {sharing}; the others on {}", self.name, name(other)),
            others => {
                let counts = sharing.others.iter().map(|(_, count)| count);
                let parts =
                    others.iter().zip(counts).map(|(other, count)| format!("{count} on {}", name(other)));
                format!("{}: {sharing}; {}", self.name, parts.collect::<Vec<_>>().join(", "))
            }
        }
    }

    fn name(&self) -> DeviceName {
        DeviceName::Cuda(self.ordinal)
    }

    fn is_card(&self) -> bool {
        true
    }

    fn sharing(&self, sharing: &LayerDistribution) -> Option<Arc<dyn Device>> {
        self.others(sharing)?;
        Some(Arc::new(self.shared(sharing)))
    }

    /// Transcription models attend to encoder states beside the KV cache, which the GPU kernels do not support.
    /// Speech models do not run through the kernels' interface.
    fn computes(&self, network: &Network) -> bool {
        !matches!(network, Network::Whisper(_) | Network::Voice(_))
    }

    fn decoder_memory(
        &self,
        files: &ModelFiles,
        draft: Option<&ModelFiles>,
        config: &EngineConfig,
    ) -> EngineMemory {
        let own = self.paper();
        match self.on_paper(None) {
            Some(sharers) => decoder_memory(&sharers, &own, files, draft, config),
            None => decoder_memory(&own, &own, files, draft, config),
        }
    }

    fn decoder_memory_beside(&self, files: &ModelFiles, config: &EngineConfig) -> Vec<EngineMemory> {
        self.counted_beside(|sharers| Engine::memory(sharers, files, config))
    }

    fn adapter_memory(
        &self,
        spec: &TransformerSpec,
        adapter: &Adapter,
        step_tokens_max: usize,
    ) -> (u64, u64) {
        match self.on_paper(None) {
            Some(sharers) => Engine::adapter_memory(&sharers, spec, adapter, step_tokens_max),
            None => Engine::adapter_memory(&self.paper(), spec, adapter, step_tokens_max),
        }
    }

    fn adapter_memory_beside(
        &self,
        spec: &TransformerSpec,
        adapter: &Adapter,
        rows: usize,
    ) -> Vec<(u64, u64)> {
        self.counted_beside(|sharers| Engine::adapter_memory(sharers, spec, adapter, rows))
    }

    fn encoder_memory(&self, files: &EncoderFiles, config: &EncoderConfig) -> EngineMemory {
        EncoderEngine::memory(&self.paper(), files, self.encoder_weights, config)
    }

    fn whisper_memory(&self, files: &WhisperFiles, config: &WhisperConfig) -> EngineMemory {
        WhisperEngine::memory(&self.paper(), files, self.encoder_weights, config)
    }

    fn voice_memory(&self, _files: &VoiceFiles) -> Result<EngineMemory, LoadError> {
        let reason = "it computes no networks for speech".to_owned();
        Err(LoadError::Kernel(KernelError::Device { device: self.name.clone(), reason }))
    }

    fn build(
        &self,
        origin: &Origin,
        files: EngineFiles<'_>,
        sides: Sides,
        size: EngineSize,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Box<dyn Steps>, LoadError> {
        let card = self.card()?;
        let backend = || AnyBackend::new(CudaBackend::new(card.clone()));
        if let (Some(sharing), Network::Decoder(own), EngineSize::Decoder(config)) =
            (&origin.sharing, &files.model.network, size)
            && let Some(sharers) = self.sharers(sharing)?
        {
            let engine = decoder_engine(sharers, &backend, own, sides, config, progress)?;
            // The draft model is entirely on this GPU.
            return with_draft(engine, &backend, own, files.draft, config);
        }
        build(&backend, self.encoder_weights, files, sides, size, progress)
    }
}

/// Whether a model that failed to load on a GPU may load on the next device: the GPU failed or does not support the
/// data type.
pub(crate) fn falls_back(error: &LoadError) -> bool {
    matches!(error, LoadError::Kernel(KernelError::Device { .. } | KernelError::UnsupportedType { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_card_lacks_falls_back_and_what_a_file_lacks_does_not() {
        let device = "cuda:0".to_owned();
        let dtype = hanzo_engine_ops::DType::F32;
        let unsupported =
            KernelError::UnsupportedType { tensor: "a".to_owned(), dtype, device: device.clone() };
        assert!(falls_back(&unsupported.into()));
        assert!(falls_back(&KernelError::Device { device, reason: "lost".to_owned() }.into()));
        let bad = KernelError::BadShape { tensor: "a".to_owned(), reason: "odd".to_owned() };
        assert!(!falls_back(&bad.into()));
    }
}
