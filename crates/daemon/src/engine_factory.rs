//! Memory plans of engines, and their construction. A [`Device`](crate::device::Device) chooses the backend.

use hanzo_engine_ops::AnyBackend;
use hanzo_engine_runtime::{
    EncoderEngine, Engine, EngineConfig, LoadError, ModelFiles, Network,
    audio::AudioTower,
    decoder::Decoder,
    encoder::{Encoder, WeightType},
    engine::{DraftModel, EngineMemory},
    vision::Tower,
    whisper::WhisperEngine,
};

use crate::device::{EngineFiles, EngineSize, Sides, Steps};

/// [`Device::decoder_memory`](crate::device::Device::decoder_memory) for any backend. `own` is the backend of
/// the model, and `backend` that of the draft model and of the vision and audio encoders.
pub(crate) fn decoder_memory(
    own: &AnyBackend,
    backend: &AnyBackend,
    files: &ModelFiles,
    draft: Option<&ModelFiles>,
    config: &EngineConfig,
) -> EngineMemory {
    let drafting = |draft| DraftModel::memory(backend, draft, &files.spec, config);
    let seeing = files.tower.as_ref();
    let seeing = seeing.map(|tower| Tower::memory(backend, tower, config.context_tokens_max));
    Engine::memory(own, files, config)
        + draft.map(drafting).unwrap_or_default()
        + seeing.unwrap_or_default()
        + files.ear.as_ref().map(|ear| AudioTower::memory(backend, ear)).unwrap_or_default()
}

/// Builds a decoder's engine on any backend, and its vision or audio encoder on separate ones.
///
/// # Errors
/// Errors of [`Device::build`](crate::device::Device::build).
pub(crate) fn decoder_engine(
    own: AnyBackend,
    backend: &dyn Fn() -> AnyBackend,
    files: &ModelFiles,
    sides: Sides,
    config: EngineConfig,
    progress: &mut dyn FnMut(f32),
) -> Result<Engine, LoadError> {
    // Before the weights are read, which takes long.
    config.kv_spec(&files.spec).check()?;
    if let Some(tower) = &files.tower {
        tower.check_steps(config.step_tokens_max, config.sequences_max)?;
    }
    let decoder = Decoder::load(&own, files, progress)?;
    let engine = Engine::new(own, decoder, sides.text, sides.embedder, config)?;
    // Such a model has a vision encoder or an audio encoder, not both.
    Ok(match (&files.tower, &files.ear) {
        (Some(tower), _) => {
            engine.with_tower(Box::new(Tower::load(backend(), tower, config.context_tokens_max)?))
        }
        (None, Some(ear)) => engine.with_tower(Box::new(AudioTower::load(backend(), ear)?)),
        (None, None) => engine,
    })
}

/// Adds the draft model to an engine, if there is one.
///
/// # Errors
/// Errors of [`Device::build`](crate::device::Device::build).
pub(crate) fn with_draft(
    engine: Engine,
    backend: &dyn Fn() -> AnyBackend,
    files: &ModelFiles,
    draft: Option<&ModelFiles>,
    config: EngineConfig,
) -> Result<Box<dyn Steps>, LoadError> {
    let Some(draft) = draft else { return Ok(Box::new(engine)) };
    config.kv_spec(&draft.spec).check()?;
    let backend = backend();
    let decoder = Decoder::load(&backend, draft, &mut |_| ())?;
    let model = DraftModel::new(backend, decoder, draft.info.parameters, &files.spec, &config)?;
    Ok(Box::new(engine.with_draft_model(model)))
}

/// [`Device::build`](crate::device::Device::build) for any backend; each network gets a new instance of it.
///
/// # Errors
/// Errors of [`Device::build`](crate::device::Device::build).
pub(crate) fn build(
    backend: &dyn Fn() -> AnyBackend,
    encoder_weights: WeightType,
    EngineFiles { model, draft }: EngineFiles<'_>,
    sides: Sides,
    size: EngineSize,
    progress: &mut dyn FnMut(f32),
) -> Result<Box<dyn Steps>, LoadError> {
    match (&model.network, size) {
        (Network::Decoder(files), EngineSize::Decoder(config)) => {
            let engine = decoder_engine(backend(), backend, files, sides, config, progress)?;
            with_draft(engine, backend, files, draft, config)
        }
        (Network::Encoder(files), EngineSize::Encoder(config)) => {
            let own = backend();
            let encoder = Encoder::load(&own, files, encoder_weights, progress)?;
            let engine = EncoderEngine::new(own, encoder, sides.embedder, config)?;
            let Some(tower) = &files.tower else { return Ok(Box::new(engine)) };
            let tower = Tower::load(backend(), tower, config.input_tokens_max)?;
            Ok(Box::new(engine.with_tower(Box::new(tower))))
        }
        (Network::Whisper(files), EngineSize::Whisper(size)) => {
            let listener = sides.listener.expect("sides are made of these same files");
            let (weights, config) = (encoder_weights, size.config);
            Ok(Box::new(WhisperEngine::load(backend(), files, listener, weights, config, progress)?))
        }
        (Network::Decoder(_) | Network::Encoder(_) | Network::Whisper(_) | Network::Voice(_), _) => {
            unreachable!(
                "a load is sized by a match on the network of these same files, and this is {size:?}"
            )
        }
    }
}
