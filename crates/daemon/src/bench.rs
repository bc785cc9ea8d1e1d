//! Speed of one model on this machine, measured on the runtime itself, as llama-bench does: `ppN` is a prompt of N
//! random tokens, `tgN` is N tokens generated one after the other; `@dN` says that N tokens were in the KV cache
//! before, `bN` that N sequences generate together. Each is run once to warm up and then `reps` times. Filling the
//! cache is not timed.

mod cards;
mod case;
mod limits;
mod stopwatch;
#[cfg(test)]
mod tests;

use std::{path::PathBuf, sync::Arc};

use hanzo_engine_kernels::{BLOCK_TOKENS, KvType};
use hanzo_engine_kernels_cuda::Driver;
use hanzo_engine_runtime::{
    EngineConfig, LoadError, ModelFiles, ModelInfo, RequestError, Speculation, StepError,
    engine::EngineMemory,
};
use hanzo_engine_store::{Store, StoreError};
use serde::Serialize;

use crate::{
    budget,
    config::{DeviceName, EngineSection, SplitMode},
    device::{Cpu, Device, Generator, Sides},
    error::Error,
    places::OnCard,
    source::resolve,
};
use case::{Case, Kind};
use limits::Costs;
pub use limits::{Limits, Shares};
use stopwatch::Stopwatch;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Args {
    /// A name in the store, [`crate::DEMO_MODEL`], or a path.
    pub model: String,
    /// The store's directory, for a name; unset: the default one. Not opened for a path.
    pub store_dir: Option<PathBuf>,
    /// Lengths of prompts, in tokens; each makes a row `ppN` at each depth.
    pub prompt_lens: Vec<usize>,
    /// Tokens to generate; each makes a row `tgN` at each depth and batch.
    pub gen_lens: Vec<usize>,
    /// Tokens in the KV cache before, in whole blocks of 16; 0 for none.
    pub depths: Vec<usize>,
    /// Sequences that generate together, at least 1.
    pub batches: Vec<usize>,
    /// Measurements of each; at least 1.
    pub reps: usize,
    /// Threads that compute; unset: one for each core.
    pub threads: Option<usize>,
    /// What computes: the processor, or cards that share the model.
    pub devices: Vec<DeviceName>,
    /// Layers on those cards, the others being the processor's; unset: all.
    pub gpu_layers: Option<usize>,
    /// How they share it: layers by what is free on each, or parts of each layer.
    pub split_mode: SplitMode,
    /// How keys and values are stored.
    pub kv_type: KvType,
    /// Measure this machine too, and each row as a share of it.
    pub limits: bool,
}

/// All that was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// What computed: `cpu: avx512vnni, 8 threads`.
    pub device: String,
    /// What the machine can do at most, if it was asked for.
    pub limits: Option<Limits>,
    /// One row a test.
    pub rows: Vec<Row>,
}

/// One test's result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// `pp512`, `tg64@d4096`, `tg64 b16`.
    pub test: String,
    /// `prompt` or `generation`.
    pub kind: &'static str,
    /// Tokens of the prompt that was timed; 0 for a generation.
    pub n_prompt: usize,
    /// Tokens that each sequence generated; 0 for a prompt.
    pub n_gen: usize,
    /// Tokens of each sequence that were in the KV cache before.
    pub depth: usize,
    /// Sequences that ran together.
    pub batch: usize,
    /// Mean over the measurements, of all sequences together.
    pub tokens_per_s: f64,
    /// Sample standard deviation of the same; 0 for one measurement.
    pub stddev: f64,
    /// The measurements, in their order.
    pub samples: Vec<f64>, // (reps) tokens per second
    /// Of the limits, if they were asked for.
    pub shares: Option<Shares>,
}

/// Where a run is, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The model is being read, in percent.
    Loading(u32),
    /// The machine is being measured.
    Limits,
    /// The KV cache is being filled for a test.
    Filling {
        /// Its name.
        test: String,
        /// How far.
        percent: u32,
    },
    /// A test runs.
    Running {
        /// Its name.
        test: String,
        /// Which of its measurements, from 0 for the warm-up.
        run: usize,
        /// How far into a prompt; stays 0 where tokens are generated.
        percent: u32,
    },
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The model argument stands for nothing that can be used.
    #[error("{0}")]
    Model(String),
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The model cannot be loaded, or not with room for the tests.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A length does not fit the model.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The engine failed.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The arguments make no test, or one that cannot be measured.
    #[error("{0}")]
    Args(String),
    /// The model computes something that is no number, so its speed says nothing.
    #[error("the model's logits are not numbers")]
    NotFinite,
}

/// Loads the model and measures. Blocks for as long as that takes.
///
/// # Errors
/// [`BenchError`].
pub fn run(args: &Args, mut progress: impl FnMut(Progress)) -> Result<Report, BenchError> {
    let step_tokens_max = EngineSection::default().step_tokens_max;
    let cases = Case::all(args, step_tokens_max)?;
    let source = resolve(&args.model, store(args)?.as_ref()).map_err(model_error)?.source;
    let opened = source.open()?;
    let files = opened.decoder().filter(|_| opened.generates()).ok_or_else(|| LoadError::Unsupported {
        file: opened.info().name.clone(),
        key: "architecture".into(),
        value: opened.info().architecture.clone(),
        reason: "a benchmark generates tokens, and this model does not".into(),
    })?;
    let cpu = Cpu::new(args.threads).map_err(LoadError::from)?;
    let card = match &cards::named(&args.devices)?[..] {
        [] if args.gpu_layers.is_some_and(|layers| layers > 0) => {
            return Err(BenchError::Args(
                "--gpu-layers are layers on a card; name it, such as --device cuda:0".to_owned(),
            ));
        }
        [] | [_] if args.split_mode == SplitMode::Row => {
            return Err(BenchError::Args(
                "--split-mode row is for two cards and more; name them, such as --device cuda:0,cuda:1"
                    .to_owned(),
            ));
        }
        [] => None,
        _ if args.limits => {
            return Err(BenchError::Args("--limits measures processors; leave it out".to_owned()));
        }
        ordinals => {
            let open = |&ordinal| OnCard::open(&Driver::default(), ordinal, &EngineSection::default());
            let found = ordinals.iter().map(open).collect::<Result<Vec<_>, _>>().map_err(LoadError::from)?;
            Some(cards::sharing(found, &cpu, files, args.gpu_layers, args.split_mode)?)
        }
    };
    let config = config(&cases, step_tokens_max, args.kv_type, files)?;
    match &card {
        Some((card, free_bytes)) => {
            let own = [card.decoder_memory(files, None, &config)].into_iter();
            let all = own.chain(card.decoder_memory_beside(files, &config));
            for (memory, free_bytes) in all.zip(free_bytes) {
                check_fits(&memory, &files.info, *free_bytes)?;
            }
        }
        None => {
            let memory = cpu.decoder_memory(files, None, &config);
            check_fits(&memory, &files.info, budget::default_bytes())?;
        }
    }
    let text = Arc::new(opened.text_model()?);
    let embedder = Arc::new(opened.embedder(&text.tokenizer, config.context_tokens_max)?);
    let sides = Sides { text: text.clone(), embedder, listener: None, script: None };
    let mut told = |fraction: f32| progress(Progress::Loading((fraction * 100.0) as u32));
    let engine: Box<dyn Generator> = match &card {
        Some((card, _)) => card.decoder_engine(files, sides, config, &mut told)?,
        None => Box::new(cpu.decoder_engine(files, sides, config, &mut told)?),
    };
    let costs = Costs::new(&cpu.backend(), files, args.kv_type);
    drop(opened);
    let mut stopwatch = Stopwatch::new(engine, text, config.context_tokens_max);
    let mut limits = measured_limits(args, &cpu, &mut progress)?;
    let mut rows = cases
        .iter()
        .map(|case| row(*case, args.reps, &mut stopwatch, &mut progress))
        .collect::<Result<Vec<_>, _>>()?;
    // Again after the tests: a machine that was busy for a second then was not slow for all of them.
    if let (Some(before), Some(after)) = (limits, measured_limits(args, &cpu, &mut progress)?) {
        let best = before.max(after);
        for (case, row) in cases.iter().zip(&mut rows) {
            row.shares = Some(costs.shares(case, row.tokens_per_s, &best));
        }
        limits = Some(best);
    }
    let device = card.map_or_else(|| cpu.describe(), |(card, _)| card.describe());
    Ok(Report { device, limits, rows })
}

/// An engine with room for the largest of the tests.
fn config(
    cases: &[Case],
    step_tokens_max: usize,
    kv_type: KvType,
    files: &ModelFiles,
) -> Result<EngineConfig, BenchError> {
    let ModelFiles { info, spec, .. } = files;
    let most = |of: fn(&Case) -> usize| cases.iter().map(of).max().unwrap_or(1);
    let context_tokens_max = most(Case::context_tokens);
    let model_context = info.context_tokens_max as usize;
    if let Some(case) = cases.iter().find(|case| case.context_tokens() > model_context) {
        let (prompt_tokens, completion_tokens) = match case.kind {
            Kind::Prompt => (case.depth + case.len, 1),
            Kind::Generation => (case.depth + 1, case.len),
        };
        let context_tokens_max = model_context;
        return Err(
            RequestError::ContextLength { prompt_tokens, completion_tokens, context_tokens_max }.into()
        );
    }
    Ok(EngineConfig {
        // As many in each layer group as if it kept everything: what is not held keeps prefixes.
        kv_blocks: most(Case::blocks).max(context_tokens_max.div_ceil(BLOCK_TOKENS))
            * spec.kv_groups().count(),
        kv_type,
        kv_resident: false,
        step_tokens_max,
        prefill_tokens_beside_decodes: step_tokens_max,
        sequences_max: most(|case| case.batch),
        context_tokens_max,
        // What is in the cache before a test is found again by its prefix.
        prefix_cache: true,
        speculation: Speculation::Off,
    })
}

/// Refuses what would not fit the memory that is free, where the system says how much that is.
fn check_fits(memory: &EngineMemory, info: &ModelInfo, free_bytes: Option<u64>) -> Result<(), LoadError> {
    let Some(free_bytes) = free_bytes.filter(|&free| memory.total() > free) else {
        return Ok(());
    };
    Err(LoadError::DoesNotFit {
        model: info.name.clone(),
        needed_bytes: memory.total(),
        weights_bytes: memory.weights_bytes,
        kv_bytes: memory.kv_bytes,
        scratch_bytes: memory.scratch_bytes,
        free_bytes,
        hint: "; shorter tests, less depth or a smaller batch need less".to_owned(),
    })
}

fn measured_limits(
    args: &Args,
    device: &Cpu,
    progress: &mut impl FnMut(Progress),
) -> Result<Option<Limits>, LoadError> {
    if !args.limits {
        return Ok(None);
    }
    progress(Progress::Limits);
    Limits::measure(device).map(Some)
}

fn row(
    case: Case,
    reps: usize,
    stopwatch: &mut Stopwatch,
    progress: &mut impl FnMut(Progress),
) -> Result<Row, BenchError> {
    let test = case.name();
    let prepared = stopwatch
        .prepare(case, &mut |percent| progress(Progress::Filling { test: test.clone(), percent }))?;
    let mut samples = Vec::with_capacity(reps);
    for run in 0..=reps {
        let mut told = |percent| progress(Progress::Running { test: test.clone(), run, percent });
        told(0);
        let rate = stopwatch.measure(&prepared, &mut told)?;
        if run > 0 {
            samples.push(rate);
        }
    }
    let (tokens_per_s, stddev) = mean_and_deviation(&samples);
    let (kind, n_prompt, n_gen) = match case.kind {
        Kind::Prompt => ("prompt", case.len, 0),
        Kind::Generation => ("generation", 0, case.len),
    };
    let Case { depth, batch, .. } = case;
    Ok(Row { test, kind, n_prompt, n_gen, depth, batch, tokens_per_s, stddev, samples, shares: None })
}

/// The store, where the model is no path and no part of this program.
fn store(args: &Args) -> Result<Option<Store>, BenchError> {
    let needs_none =
        args.model.eq_ignore_ascii_case(crate::DEMO_MODEL) || std::path::Path::new(&args.model).exists();
    match args.store_dir.clone().or_else(hanzo_engine_store::default_dir).filter(|_| !needs_none) {
        Some(dir) => Ok(Some(Store::open(&dir)?)),
        None => Ok(None),
    }
}

fn model_error(error: Error) -> BenchError {
    BenchError::Model(error.to_string())
}

fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    if values.len() < 2 {
        return (mean, 0.0);
    }
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / (count - 1.0)).sqrt())
}
