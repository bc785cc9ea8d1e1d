//! From a model's files to its worker: headers are read, the engine is sized, its memory reserved, and a new thread
//! makes it.

use std::sync::{Arc, atomic::AtomicU64};

use hanzo_engine_kernels::KernelError;
use hanzo_engine_runtime::{LoadError, Network, Opened, engine::EngineMemory};

use crate::{
    adapters::Adapters,
    blocking::blocking,
    clock::Bell,
    config::EngineSection,
    constraints::Constraints,
    device::{EngineSize, Origin, Sides, WhisperSize},
    draft::Draft,
    error::{Failure, FailureReason},
    frame_room::FrameRoom,
    launch::{Launch, Running},
    models::{Life, Models},
    places::{Place, falls_back},
    prefix_disk::{DiskBlocks, Identity, PrefixDisk},
    prompt_builder::PromptBuilder,
    registry::Progress,
    served::Served,
    sizing::{self, LoadOptions},
    source::Source,
    unix_time::now_unix_ms,
};

/// How large an engine is, and what that takes.
pub(crate) type Size = (EngineSize, EngineMemory);

/// A model's files, opened, before there is room for it.
pub(crate) struct Opening {
    name: String,
    want: LoadOptions,
    files: Opened,
    draft: Option<Draft>,
    kept: Option<(Arc<PrefixDisk>, Identity)>,
    /// Which of the places it goes to.
    pub(crate) place: usize,
}

impl Opening {
    /// For the first place, from this one on, that computes such a network and is large enough for it; the last is as good as
    /// any for what fits nowhere.
    fn of(models: &Models, life: OpenWish, place_first: usize) -> Result<Opening, Arc<Failure>> {
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
        let mut opening = Opening { name, want, files, draft, kept, place: place_first };
        for place in place_first..models.places.len() {
            opening.place = place;
            let Place { device, budget } = &models.places[place];
            let is_last = place + 1 == models.places.len();
            if !device.computes(&opening.files.network) {
                let device = device.describe();
                if is_last {
                    let reason = "it computes no networks for speech".to_owned();
                    return Err(Failure::new(LoadError::Kernel(KernelError::Device { device, reason })));
                }
                tracing::info!(
                    model = opening.name,
                    "not on {device}, which computes no networks for speech"
                );
                continue;
            }
            match opening.choose(models, budget.total_bytes()) {
                Err(error @ LoadError::DoesNotFit { .. }) if !is_last => {
                    tracing::info!(model = opening.name, "not on {}: {error}", device.describe());
                }
                _ => break,
            }
        }
        Ok(opening)
    }

    /// How large it would be with so many bytes free.
    ///
    /// # Errors
    /// [`LoadError::DoesNotFit`].
    pub(crate) fn choose(&self, models: &Models, free: u64) -> Result<Size, LoadError> {
        let (files, want) = (&self.files, self.want.clone());
        // The operator's word goes before the packager's, and a request's before both.
        let section = models.section();
        let context_tokens_max = section.context_tokens_max.or(files.context_tokens_default);
        let section = EngineSection { context_tokens_max, ..section };
        let (context, section) = (files.tokens_max(), &section);
        match &files.network {
            Network::Decoder(files) => {
                let room = files.spec.kv_room(section.step_tokens_max);
                let memory = |config: &_| {
                    let draft = self.draft.as_ref().map(Draft::files);
                    let memory = models.places[self.place].device.decoder_memory(files, draft, config);
                    DiskBlocks::planned(self.kept.is_some(), memory, config)
                };
                let (config, memory) =
                    sizing::choose((&self.name, context), section, want, free, &room, memory)?;
                Ok((EngineSize::Decoder(config), memory))
            }
            Network::Encoder(files) => {
                let memory = |config: &_| models.places[self.place].device.encoder_memory(files, config);
                let (config, memory) =
                    sizing::choose_encoder(&self.name, context, section, want, free, memory)?;
                Ok((EngineSize::Encoder(config), memory))
            }
            Network::Whisper(files) => {
                let memory = |config: &_| models.places[self.place].device.whisper_memory(files, config);
                let (config, memory) = sizing::choose_whisper(&self.name, section, &want, free, memory)?;
                let size = WhisperSize { config, tokens: context };
                Ok((EngineSize::Whisper(size), memory))
            }
            Network::Voice(files) => {
                let memory = models.places[self.place].device.voice_memory(files)?;
                sizing::fits(&self.name, &want, free, memory)?;
                Ok((EngineSize::Voice { tokens_max: context }, memory))
            }
        }
    }
}

/// What is opened.
struct OpenWish {
    name: String,
    source: Source,
    want: LoadOptions,
    draft: Option<Source>,
}

impl Models {
    /// Brings a model up in the first place that can take it; where a card does not, in the next one.
    pub(crate) async fn bring_up(
        self: &Arc<Self>,
        life: &Life,
        progress: Arc<Progress>,
    ) -> Result<(Arc<Served>, Running), Arc<Failure>> {
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

    /// Reads the headers, sizes and reserves, then lets a new thread make the engine. A failure is told with the place where
    /// the model was to go, once that is known.
    async fn bring_up_from(
        self: &Arc<Self>,
        place_first: usize,
        life: &Life,
        progress: Arc<Progress>,
    ) -> Result<(Arc<Served>, Running), (Option<usize>, Arc<Failure>)> {
        let wish = OpenWish {
            name: life.name.clone(),
            source: life.source.clone(),
            want: life.want.clone(),
            draft: life.draft.clone(),
        };
        let models = self.clone();
        let opened = blocking(move || Opening::of(&models, wish, place_first)).await;
        let opening = opened.map_err(|failure| (None, failure))?;
        let place = opening.place;
        let info = opening.files.info().clone();
        self.registry.set(&life.name, life.number, |entry| entry.info = Some(info));
        let made = self.make_room(life, opening, &progress).await;
        let (opening, reservation, (size, memory)) = made.map_err(|failure| (Some(place), failure))?;
        let Opening { files, draft, kept, .. } = opening;
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
            origin: Origin {
                source: life.source.clone(),
                overrides: life.want.overrides.clone(),
                draft: life.draft.clone(),
                tool_format: life.want.tool_format,
                memory,
                kept,
                bell: Bell::default(),
            },
        };
        let started = launch.start().await.map_err(|failure| (Some(place), failure))?;
        let (Sides { text, embedder, listener, script }, worker, running) = started;
        let served = Served {
            name: life.name.clone(),
            text,
            embedder,
            listener,
            script,
            generates,
            size,
            memory,
            device: self.places[place].device.describe(),
            place,
            worker,
            prompts: PromptBuilder::new(self.section().context_shift),
            constraints: Constraints::default(),
            metrics: life.metrics.clone(),
            loaded_at_unix_ms: now_unix_ms(),
            jobs: AtomicU64::new(1),
            spec,
            adapters: Adapters::new(life.adapters.clone()),
            frames: FrameRoom::new(),
        };
        Ok((Arc::new(served), running))
    }
}
