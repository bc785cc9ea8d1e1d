//! Description of a model and of the memory that it would take on this machine, without loading it.

use std::path::PathBuf;

use hanzo_engine_ops::KvType;
pub use hanzo_engine_runtime::inspect::{Facts, Shape, TemplateFacts, Token, TokenizerFacts};
use hanzo_engine_runtime::{
    LoadError, Network, OpenedModel,
    engine::EngineMemory,
    inspect::{self, Inspection},
    whisper::WhisperConfig,
};
use hanzo_engine_store::{Store, StoreError};
use serde::Serialize;

use crate::{
    DEMO_GGUF, DEMO_MODEL, budget,
    config::EngineSection,
    cpu::Cpu,
    device::Device,
    sizing::{self, LoadOptions},
    source::{ArgumentMatch, ModelSource, find},
};

/// Arguments of an inspection.
#[derive(Clone, Debug)]
pub struct InspectOptions {
    /// Name in the store, [`crate::DEMO_MODEL`], or a path.
    pub model: String,
    /// Directory of the store; `None` for the default one. Not opened if `model` is a path.
    pub store_dir: Option<PathBuf>,
    /// Context length in tokens to predict memory for; `None` for the longest.
    pub context_tokens: Option<u32>,
    /// Data type of keys and values in the cache.
    pub kv_type: KvType,
}

/// Result of an inspection.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InspectReport {
    /// Properties of the model's files.
    #[serde(flatten)]
    pub facts: Facts,
    /// Description of the device: `cpu: avx512vnni, 8 threads`.
    pub device: String,
    /// Whether the model can be loaded here.
    pub runs: bool,
    /// Reason why it cannot be loaded.
    pub why: Option<String>,
    /// Memory with a single context; `None` if the files cannot be opened.
    pub memory: Option<Memory>,
    /// Memory of a load with default options; `None` if it would not fit.
    pub load: Option<Memory>,
    /// Memory budget of all models on this machine now.
    pub budget_bytes: Option<u64>,
}

/// Predicted memory in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Context length in tokens, or length of the longest input.
    pub context_tokens: u64,
    /// Weights.
    pub weights_bytes: u64,
    /// Keys and values: of one context, or of all that a load keeps.
    pub kv_bytes: u64,
    /// Scratch memory for activations.
    pub scratch_bytes: u64,
    /// Sum of these.
    pub total_bytes: u64,
}

impl Memory {
    fn new(context_tokens: usize, memory: EngineMemory) -> Self {
        Self {
            context_tokens: context_tokens as u64,
            weights_bytes: memory.weights_bytes,
            kv_bytes: memory.kv_bytes,
            scratch_bytes: memory.scratch_bytes,
            total_bytes: memory.total(),
        }
    }
}

/// Reason why a model cannot be inspected.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// The model argument resolves to nothing.
    #[error("{0}")]
    Model(String),
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The CPU of this machine is not supported.
    #[error(transparent)]
    Device(#[from] LoadError),
}

/// Inspects a model. A file that cannot run is not an error: the report gives the reason.
///
/// # Errors
/// [`InspectError`].
pub fn run(args: &InspectOptions) -> Result<InspectReport, InspectError> {
    let device = Cpu::new(None).map_err(LoadError::from)?;
    let inspection = look(args)?;
    let budget_bytes = budget::default_bytes();
    let mut report = InspectReport {
        facts: inspection.facts,
        device: device.describe(),
        runs: false,
        why: None,
        memory: None,
        load: None,
        budget_bytes,
    };
    let predicted = inspection.opened.as_ref().map(|opened| {
        let free_bytes = budget_bytes.unwrap_or(u64::MAX / 2);
        (predict(args, opened, &device, u64::MAX / 2), predict(args, opened, &device, free_bytes))
    });
    if let Some((alone, here)) = predicted {
        report.memory = alone.ok().map(|(one, _)| one);
        match here {
            Ok((_, load)) => report.load = Some(load),
            Err(error) => report.facts.problems.push(error.to_string()),
        }
    }
    // The embedding part may refuse a model that the other parts accept.
    if let (Some(opened), Some(text), Some(load)) = (&inspection.opened, &inspection.text, &report.load)
        && let Err(error) = opened.embedder(&text.tokenizer, load.context_tokens as usize)
    {
        report.facts.problems.push(error.to_string());
    }
    report.why = report.facts.problems.first().cloned();
    report.runs = report.why.is_none();
    Ok(report)
}

fn look(args: &InspectOptions) -> Result<Inspection, InspectError> {
    Ok(match locate(&args.model, args.store_dir.as_ref())? {
        Some(path) => inspect::inspect(&path),
        None => inspect::inspect_static(DEMO_MODEL, DEMO_GGUF),
    })
}

/// Path of a model's files, from a path or a name in the store; `None` for the demo model, which is built into this
/// program.
pub(crate) fn locate(model: &str, store_dir: Option<&PathBuf>) -> Result<Option<PathBuf>, InspectError> {
    let by_path = PathBuf::from(model.strip_prefix("file://").unwrap_or(model));
    if by_path.exists() {
        return Ok(Some(by_path));
    }
    if model.eq_ignore_ascii_case(DEMO_MODEL) {
        return Ok(None);
    }
    let dir = store_dir.cloned().or_else(hanzo_engine_store::default_dir);
    let store = dir.map(|dir| Store::open(&dir)).transpose()?;
    let found = find(model, store.as_ref(), false);
    Ok(match found.map_err(|error| InspectError::Model(error.to_string()))? {
        ArgumentMatch::Path(path) => Some(path),
        ArgumentMatch::Known(known) => match known.source {
            ModelSource::Path(path) => Some(path),
            ModelSource::Demo => None,
        },
    })
}

/// Memory with a single context, and memory of a load with this many free bytes.
fn predict(
    args: &InspectOptions,
    opened: &OpenedModel,
    device: &Cpu,
    free_bytes: u64,
) -> Result<(Memory, Memory), LoadError> {
    let section = EngineSection {
        kv_type: args.kv_type,
        context_tokens_max: opened.context_tokens_default,
        ..EngineSection::default()
    };
    let want = LoadOptions { context_tokens_max: args.context_tokens, ..LoadOptions::default() };
    let (name, context) = (opened.info().name.as_str(), opened.tokens_max());
    match &opened.network {
        Network::Decoder(files) => {
            let room = files.spec.kv_room(section.step_tokens_max);
            let memory = |config: &_| device.decoder_memory(files, None, config);
            let alone = |config: &_| vec![memory(config)];
            let (config, load) = sizing::choose(name, context, &section, want, &[free_bytes], &room, alone)?;
            let mut one = config;
            one.kv_blocks = room.blocks_of(config.context_tokens_max);
            let tokens = config.context_tokens_max;
            Ok((Memory::new(tokens, memory(&one)), Memory::new(tokens, load[0])))
        }
        Network::Encoder(files) => {
            let memory = |config: &_| device.encoder_memory(files, config);
            let (config, load) = sizing::choose_encoder(name, context, &section, want, free_bytes, memory)?;
            let load = Memory::new(config.input_tokens_max, load);
            Ok((load, load))
        }
        Network::Whisper(files) => {
            let memory = |config: &_| device.whisper_memory(files, config);
            let (_, load) = sizing::choose_whisper(name, &section, &want, free_bytes, memory)?;
            Ok((Memory::new(context, memory(&WhisperConfig { windows: 1 })), Memory::new(context, load)))
        }
        Network::Voice(files) => {
            let memory = device.voice_memory(files)?;
            sizing::fits(name, &want, free_bytes, memory)?;
            let load = Memory::new(context, memory);
            Ok((load, load))
        }
    }
}
