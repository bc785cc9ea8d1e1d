//! Steps from a model's files to its worker: read the headers, size the engine, reserve its memory, and build it on
//! a new thread.

mod placement;

use std::{
    fmt,
    sync::{Arc, atomic::AtomicU64},
};

use hanzo_engine_ops::KernelError;
use hanzo_engine_runtime::{LoadError, Network, OpenedModel, engine::EngineMemory};

use placement::{SharedPlan, shared_on};

use crate::{
    adapters::{Adapters, BaseModel},
    blocking::blocking,
    clock::Bell,
    config::{Devices, EngineSection, GpuLayers, SplitMode},
    constraints::Constraints,
    device::{Device, EngineSize, Origin, Sides, WhisperSize},
    device_name::DeviceName,
    devices::falls_back,
    draft::Draft,
    error::{Failure, FailureReason},
    frame_room::FrameRoom,
    gpu_layers::LayerDistribution,
    launch::{Launch, WorkerThread},
    models::{Life, Models},
    prefix_disk::{DiskBlocks, Identity, PrefixDisk},
    prompt_builder::PromptBuilder,
    registry::LoadProgress,
    served::ServedModel,
    sizing::{self, LoadOptions},
    source::ModelSource,
    unix_time::now_unix_ms,
};

/// Size of an engine and the memory that it needs.
#[derive(Clone)]
pub(crate) struct Size {
    pub(crate) engine: EngineSize,
    /// Memory in the model's own place.
    pub(crate) memory: EngineMemory,
    /// Memory in the places of the other devices that hold some of its layers.
    pub(crate) beside: Vec<EngineMemory>,
}

impl Size {
    fn alone(engine: EngineSize, memory: EngineMemory) -> Size {
        Size { engine, memory, beside: Vec::new() }
    }
}

/// Opened files of a model whose memory is not reserved yet.
pub(crate) struct OpenedFiles {
    pub(crate) name: String,
    want: LoadOptions,
    pub(crate) files: OpenedModel,
    draft: Option<Draft>,
    kept: Option<(Arc<PrefixDisk>, Identity)>,
    /// Index of the place that the model goes to.
    pub(crate) place: usize,
    /// Devices that share the model with that place, if any.
    pub(crate) shared: Option<SharedPlan>,
}

impl OpenedFiles {
    /// Opens the files and chooses among the places from `place_first` on; see [`OpenedFiles::settle`].
    fn of(models: &Models, life: OpenWish, place_first: usize) -> Result<OpenedFiles, Arc<Failure>> {
        let OpenWish { name, source, want, draft } = life;
        let files = source.open_with(&want.overrides).map_err(Failure::new)?;
        if want.overrides.isq.is_some() || !want.overrides.topology.is_empty() {
            let what = files.quantised();
            let what = what.as_deref().unwrap_or("no matrix would be smaller: all stay as stored");
            tracing::info!(model = name, "{what}");
        }
        let not_read = files.info().not_read;
        if !not_read.is_empty() {
            tracing::info!(model = name, "text alone: {} are not read", not_read.join(" and "));
        }
        if files.decoder().is_some_and(|files| files.spec.keeps_states()) {
            tracing::info!(model = name, "layers keep a state: no prefix is shared, nothing is drafted");
        }
        let kept = models.prefix_disk.clone().and_then(|disk| disk.for_load(&source, &want.overrides));
        let draft = draft.map(|source| Draft::open(&source, &files)).transpose().map_err(Failure::new)?;
        let mut opening = OpenedFiles { name, want, files, draft, kept, place: place_first, shared: None };
        opening.settle(models, place_first).map_err(Failure::new)?;
        Ok(opening)
    }

    /// Chooses the place. If the settings say so, the model is split by rows over all GPUs. Otherwise it goes to the
    /// first place from `place_first` on that supports the network and is large enough. If no GPU is, it is split
    /// over several GPUs together, or GPUs get as many layers as fit and the CPU the rest. If it fits nowhere, the
    /// last place is taken.
    fn settle(&mut self, models: &Models, place_first: usize) -> Result<(), LoadError> {
        let asked = self.gpu_layers(models)?;
        let is_card = |place: usize| models.places[place].device.is_card();
        let devices = self.want.gpu_devices.clone().unwrap_or_default();
        let is_named = |place: usize| devices.names(models.places[place].device.name());
        self.check_present(models, &devices)?;
        let may = |place: &usize| {
            is_named(*place)
                && match asked {
                    GpuLayers::Auto => true,
                    GpuLayers::Count(0) => !is_card(*place),
                    GpuLayers::Count(_) => is_card(*place),
                }
        };
        let candidates: Vec<usize> = (place_first..models.places.len()).filter(may).collect();
        let cards: Vec<usize> = candidates.iter().copied().filter(|&place| is_card(place)).collect();
        let by_rows = models.section().split_mode == SplitMode::Row && self.on_all_of(asked);
        if by_rows && self.share_rows(models, &cards) {
            return Ok(());
        }
        let mut too_small = Vec::new();
        for (at, &place) in candidates.iter().enumerate() {
            if asked == GpuLayers::Auto
                && !is_card(place)
                && (self.share_cards(models, &too_small) || self.share(models, &too_small, place, None))
            {
                return Ok(());
            }
            self.place = place;
            let device = &models.places[place].device;
            let is_last = at + 1 == candidates.len();
            if !device.computes(&self.files.network) {
                let device = device.describe();
                if is_last {
                    let reason = "it computes no networks for speech".to_owned();
                    return Err(LoadError::Kernel(KernelError::Device { device, reason }));
                }
                tracing::info!(model = self.name, "not on {device}, which computes no networks for speech");
                continue;
            }
            let layers = self.files.decoder().map_or(0, |files| files.spec.layers.len());
            if let GpuLayers::Count(count) = asked
                && (1..layers).contains(&(count as usize))
            {
                let count = count as usize;
                let processor = (0..models.places.len()).find(|&place| !is_card(place) && is_named(place));
                self.share_with_processor(models, asked, place, processor, count)?;
                let cards: Vec<usize> = too_small.iter().copied().chain([place]).collect();
                if let Err(LoadError::DoesNotFit { .. }) = self.choose(models, &self.room(models))
                    && let Some(cpu) = processor.filter(|_| is_last)
                    && self.share(models, &cards, cpu, Some(count))
                {
                    return Ok(());
                }
            }
            match self.choose(models, &self.room(models)) {
                Err(error @ LoadError::DoesNotFit { .. }) if !is_last => {
                    tracing::info!(model = self.name, "not on {}: {error}", device.describe());
                    too_small.push(place);
                }
                // No later place could hold it, but several GPUs together might.
                Err(LoadError::DoesNotFit { .. }) if is_card(place) && self.shared.is_none() => {
                    too_small.push(place);
                    self.share_cards(models, &too_small);
                    return Ok(());
                }
                _ => return Ok(()),
            }
        }
        if candidates.is_empty() { Err(self.without_candidates(asked)) } else { Ok(()) }
    }

    /// Checks that every named device is present. The CPU may be absent: bare numbers imply it.
    fn check_present(&self, models: &Models, devices: &Devices) -> Result<(), LoadError> {
        let Devices::These(names) = devices else { return Ok(()) };
        let is_there = |name: &DeviceName| models.places.iter().any(|place| place.device.name() == *name);
        match names.iter().find(|name| **name != DeviceName::Cpu && !is_there(name)) {
            Some(name) => {
                let reason = format!("{name} is not among engine.devices, or does not work");
                Err(self.refused("gpu_devices", devices, &reason))
            }
            None => Ok(()),
        }
    }

    /// Divides the model between the GPU at a place, which gets `count` layers, and the processor.
    fn share_with_processor(
        &mut self,
        models: &Models,
        asked: GpuLayers,
        place: usize,
        processor: Option<usize>,
        count: usize,
    ) -> Result<(), LoadError> {
        let Some(files) = self.files.decoder() else { return Ok(()) };
        let beside = files.spec.layers.len() - count;
        LayerDistribution::of(files, &[(DeviceName::Cpu, beside)])?; // reports layers that cannot be split there
        let shared = processor.and_then(|cpu| shared_on(models, files, &[place, cpu], &[beside]));
        self.shared = Some(shared.ok_or_else(|| {
            let reason = "engine.devices names no processor that could have the other layers";
            self.refused("gpu_layers", &asked, reason)
        })?);
        Ok(())
    }

    /// Error if no device was a candidate, for the setting `asked`.
    fn without_candidates(&self, asked: GpuLayers) -> LoadError {
        let reason = match asked {
            GpuLayers::Count(0) => "engine.devices names no processor",
            _ => "no card is there that works; `hanzo-engine doctor` says why",
        };
        self.refused("gpu_layers", &asked, reason)
    }

    /// Checks whether `asked` covers all layers of the model, or as many as fit.
    fn on_all_of(&self, asked: GpuLayers) -> bool {
        let layers = self.files.decoder().map_or(0, |files| files.spec.layers.len());
        match asked {
            GpuLayers::Auto => true,
            GpuLayers::Count(count) => layers > 0 && count as usize >= layers,
        }
    }

    /// Number of layers requested for GPUs. For models that do not generate: whether to use a GPU at all.
    fn gpu_layers(&self, models: &Models) -> Result<GpuLayers, LoadError> {
        let of_engine = models.section().gpu_layers;
        let asked = self.want.gpu_layers.unwrap_or(of_engine);
        match asked {
            GpuLayers::Count(1..) if self.files.decoder().is_none() => match self.want.gpu_layers {
                Some(GpuLayers::Count(count)) if count != u32::MAX => {
                    let reason = "only layers of models that generate are shared; leave it out";
                    Err(self.refused("gpu_layers", &asked, reason))
                }
                _ => Ok(GpuLayers::Auto),
            },
            _ => Ok(asked),
        }
    }

    fn refused(&self, key: &str, asked: &dyn fmt::Display, reason: &str) -> LoadError {
        LoadError::Unsupported {
            file: self.name.clone(),
            key: key.to_owned(),
            value: asked.to_string(),
            reason: reason.to_owned(),
        }
    }

    /// Indices of the places that it uses: its own and those of devices that share it.
    pub(crate) fn places(&self) -> Vec<usize> {
        let beside = self.shared.iter().flat_map(|shared| shared.beside.iter().copied());
        [self.place].into_iter().chain(beside).collect()
    }

    /// Total budget of each of those places, in bytes.
    fn room(&self, models: &Models) -> Vec<u64> {
        self.places().into_iter().map(|place| models.places[place].budget.total_bytes()).collect()
    }

    /// Device that plans the memory.
    pub(crate) fn planner(&self, models: &Models) -> Arc<dyn Device> {
        let shared = self.shared.as_ref().map(|shared| shared.planner.clone());
        shared.unwrap_or_else(|| models.places[self.place].device.clone())
    }

    /// Plans the engine's size for this many free bytes in its place and in those of the other devices.
    ///
    /// # Errors
    /// [`LoadError::DoesNotFit`].
    pub(crate) fn choose(&self, models: &Models, free: &[u64]) -> Result<Size, LoadError> {
        self.choose_on(models, &*self.planner(models), free)
    }

    /// Plans the engine's size with another device's plan.
    ///
    /// # Errors
    /// As [`OpenedFiles::choose`].
    pub(crate) fn choose_on(
        &self,
        models: &Models,
        device: &dyn Device,
        room: &[u64],
    ) -> Result<Size, LoadError> {
        let free = room[0];
        let (files, want) = (&self.files, self.want.clone());
        // The operator's setting overrides the package's, and a request overrides both.
        let section = models.section();
        let context_tokens_max = section.context_tokens_max.or(files.context_tokens_default);
        let section = EngineSection { context_tokens_max, ..section };
        let (context, section) = (files.tokens_max(), &section);
        match &files.network {
            Network::Decoder(files) => {
                let blocks = files.spec.kv_room(section.step_tokens_max);
                let memory = |config: &_| {
                    let draft = self.draft.as_ref().map(Draft::files);
                    let mut all = vec![device.decoder_memory(files, draft, config)];
                    all.extend(device.decoder_memory_beside(files, config));
                    if self.kept.is_some() {
                        let kv_bytes = all.iter().map(|memory| memory.kv_bytes).sum();
                        let buffers = DiskBlocks::planned(kv_bytes, config);
                        all[0].scratch_bytes = all[0].scratch_bytes.saturating_add(buffers);
                    }
                    all
                };
                let (config, mut all) =
                    sizing::choose(&self.name, context, section, want, room, &blocks, memory)?;
                let memory = all.remove(0);
                Ok(Size { engine: EngineSize::Decoder(config), memory, beside: all })
            }
            Network::Encoder(files) => {
                let memory = |config: &_| device.encoder_memory(files, config);
                let (config, memory) =
                    sizing::choose_encoder(&self.name, context, section, want, free, memory)?;
                Ok(Size::alone(EngineSize::Encoder(config), memory))
            }
            Network::Whisper(files) => {
                let memory = |config: &_| device.whisper_memory(files, config);
                let (config, memory) = sizing::choose_whisper(&self.name, section, &want, free, memory)?;
                let size = WhisperSize { config, tokens: context };
                Ok(Size::alone(EngineSize::Whisper(size), memory))
            }
            Network::Voice(files) => {
                let memory = device.voice_memory(files)?;
                sizing::fits(&self.name, &want, free, memory)?;
                Ok(Size::alone(EngineSize::Voice { tokens_max: context }, memory))
            }
        }
    }
}

/// Description of a model to open.
struct OpenWish {
    name: String,
    source: ModelSource,
    want: LoadOptions,
    draft: Option<ModelSource>,
}

impl Models {
    /// Loads a model into the first place that can take it. If loading on a GPU fails, tries the next place.
    pub(crate) async fn bring_up(
        self: &Arc<Self>,
        life: &Life,
        progress: Arc<LoadProgress>,
    ) -> Result<(Arc<ServedModel>, WorkerThread), Arc<Failure>> {
        let mut place_first = 0;
        loop {
            let (place, failure) = match self.bring_up_from(place_first, life, progress.clone()).await {
                Ok(up) => return Ok(up),
                Err((Some(place), failure)) if place + 1 < self.places.len() => (place, failure),
                Err((_, failure)) => return Err(failure),
            };
            match &failure.reason {
                FailureReason::Load(error) if falls_back(error) => {
                    let device = self.places[place].device.describe();
                    tracing::warn!(model = life.name, "not on {device}, so on the next device: {error}");
                    self.registry.set(&life.name, life.number, |entry| entry.reserved_bytes = 0);
                    place_first = place + 1;
                }
                _ => return Err(failure),
            }
        }
    }

    /// Parts that a worker's process opens the model again from.
    fn origin(
        &self,
        life: &Life,
        shared: Option<&SharedPlan>,
        memory: EngineMemory,
        kept: Option<(Arc<PrefixDisk>, Identity)>,
    ) -> Origin {
        Origin {
            source: life.source.clone(),
            overrides: life.want.overrides.clone(),
            draft: life.draft.clone(),
            tool_format: life.want.tool_format,
            pictures: self.section().picture_limits(life.want.picture_pixels),
            sharing: shared.map(|shared| shared.sharing.clone()),
            memory,
            kept,
            bell: Bell::default(),
        }
    }

    /// Reads the headers, plans and reserves memory, then builds the engine on a new thread. A failure carries the
    /// chosen place, once that is known.
    async fn bring_up_from(
        self: &Arc<Self>,
        place_first: usize,
        life: &Life,
        progress: Arc<LoadProgress>,
    ) -> Result<(Arc<ServedModel>, WorkerThread), (Option<usize>, Arc<Failure>)> {
        let wish = OpenWish {
            name: life.name.clone(),
            source: life.source.clone(),
            want: life.want.clone(),
            draft: life.draft.clone(),
        };
        let models = self.clone();
        let opened = blocking(move || OpenedFiles::of(&models, wish, place_first)).await;
        let opening = opened.map_err(|failure| (None, failure))?;
        let place = opening.place;
        let info = opening.files.info().clone();
        self.registry.set(&life.name, life.number, |entry| entry.info = Some(info));
        let made = self.make_room(life, opening, &progress).await;
        let (opening, reservation, Size { engine: size, memory, beside }) =
            made.map_err(|failure| (Some(place), failure))?;
        let (memory, planner) = (beside.into_iter().fold(memory, |a, b| a + b), opening.planner(self));
        let OpenedFiles { files, draft, kept, shared, .. } = opening;
        let generates = files.generates();
        let spec = files.decoder().map(|files| Arc::new(files.spec.clone()));
        let (models, name, number) = (self.clone(), life.name.clone(), life.number);
        let told = move |fraction: f32| {
            if progress.set(fraction) {
                models.registry.set(&name, number, |_| {});
            }
        };
        let launch = Launch {
            device: self.places[place].device.clone(),
            files,
            draft,
            size,
            reservation,
            queue_requests_max: self.section().queue_requests_max,
            metrics: life.metrics.clone(),
            progress: Box::new(told),
            origin: self.origin(life, shared.as_ref(), memory, kept),
        };
        let started = launch.start().await.map_err(|failure| (Some(place), failure))?;
        let (Sides { text, embedder, listener, script }, worker, running) = started;
        let served = ServedModel {
            name: life.name.clone(),
            text,
            embedder,
            listener,
            script,
            generates,
            size,
            memory,
            device: planner.describe(),
            planner,
            place,
            beside: shared.map(|shared| shared.beside).unwrap_or_default(),
            worker,
            prompts: PromptBuilder::new(self.section().context_shift),
            constraints: Constraints::default(),
            metrics: life.metrics.clone(),
            loaded_at_unix_ms: now_unix_ms(),
            jobs: AtomicU64::new(1),
            spec,
            files: BaseModel { source: life.source.clone(), overrides: life.want.overrides.clone() },
            adapters: Adapters::new(life.adapters.clone()),
            frames: FrameRoom::new(),
        };
        Ok((Arc::new(served), running))
    }
}
