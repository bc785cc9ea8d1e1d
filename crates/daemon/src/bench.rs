//! Benchmark of one model on this machine, run on the runtime itself, as llama-bench does. `ppN` is a prompt of N
//! random tokens; `tgN` is N tokens generated one after the other. `@dN` means that N tokens were in the KV cache
//! before, `bN` that N sequences generate together. Each test runs once to warm up and then `reps` times. Filling
//! the cache is not timed.

mod cards;
mod case;
mod limits;
mod stopwatch;
#[cfg(test)]
mod tests;

use std::{path::PathBuf, sync::Arc};

use hanzo_engine_kernels_cuda::Driver;
use hanzo_engine_ops::{BLOCK_TOKENS, KvType};
use hanzo_engine_runtime::{
    EngineConfig, LoadError, ModelFiles, ModelInfo, RequestError, Speculation, StepError,
    engine::EngineMemory,
};
use hanzo_engine_store::{Store, StoreError};
use serde::Serialize;

use crate::{
    budget,
    config::{DeviceName, EngineSection, SplitMode},
    cpu::Cpu,
    device::{Device, Generator, Sides},
    devices::OnCard,
    error::Error,
    source::resolve,
};
use case::{BenchPhase, Case};
use limits::Costs;
pub use limits::{Limits, Shares};
use stopwatch::Stopwatch;

/// Arguments of a benchmark.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// Name in the store, [`crate::DEMO_MODEL`], or a path.
    pub model: String,
    /// Directory of the store; `None` for the default one. Not opened if `model` is a path.
    pub store_dir: Option<PathBuf>,
    /// Prompt lengths in tokens; each makes a row `ppN` at each depth.
    pub prompt_lens: Vec<usize>,
    /// Numbers of tokens to generate; each makes a row `tgN` at each depth and batch.
    pub gen_lens: Vec<usize>,
    /// Numbers of tokens already in the KV cache, multiples of the block size of 16; 0 for none.
    pub depths: Vec<usize>,
    /// Numbers of sequences that generate together, at least 1.
    pub batches: Vec<usize>,
    /// Measurements of each test, at least 1.
    pub reps: usize,
    /// Compute threads; `None` for one per core.
    pub threads: Option<usize>,
    /// Devices: the CPU, or the GPUs that share the model.
    pub devices: Vec<DeviceName>,
    /// Layers on those GPUs, with the others on the CPU; `None` for all.
    pub gpu_layers: Option<usize>,
    /// Split over several GPUs: whole layers according to free memory, or parts of each layer.
    pub split_mode: SplitMode,
    /// Data type of keys and values in the cache.
    pub kv_type: KvType,
    /// Measure the machine's limits too, and report each row as a share of them.
    pub limits: bool,
}

/// Results of a benchmark.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BenchReport {
    /// Description of the device: `cpu: avx512vnni, 8 threads`.
    pub device: String,
    /// Measured limits of the machine, if requested.
    pub limits: Option<Limits>,
    /// Results, one row per test.
    pub rows: Vec<Row>,
}

/// Result of one test.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Name of the test: `pp512`, `tg64@d4096`, `tg64 b16`.
    pub test: String,
    /// Kind of test: `prompt` or `generation`.
    pub kind: &'static str,
    /// Length of the timed prompt in tokens; 0 for a generation.
    pub n_prompt: usize,
    /// Tokens that each sequence generated; 0 for a prompt.
    pub n_gen: usize,
    /// Tokens of each sequence that were already in the KV cache.
    pub depth: usize,
    /// Number of sequences that ran together.
    pub batch: usize,
    /// Mean throughput over the measurements, of all sequences together.
    pub tokens_per_s: f64,
    /// Sample standard deviation of the throughput; 0 for one measurement.
    pub stddev: f64,
    /// Throughput of each measurement, in order.
    pub samples: Vec<f64>, // (reps) tokens per second
    /// Shares of the machine's limits, if requested.
    pub shares: Option<Shares>,
}

/// Progress of a benchmark, for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BenchProgress {
    /// The model is being read, in percent.
    Loading(u32),
    /// The machine is being measured.
    Limits,
    /// The KV cache is being filled for a test.
    Filling {
        /// Name of the test.
        test: String,
        /// Progress in percent.
        percent: u32,
    },
    /// A test runs.
    Running {
        /// Name of the test.
        test: String,
        /// Index of the measurement, where 0 is the warm-up.
        run: usize,
        /// Progress through a prompt in percent; stays 0 in generations.
        percent: u32,
    },
}

/// Reason why a benchmark failed.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The model argument resolves to no usable model.
    #[error("{0}")]
    Model(String),
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The model cannot be loaded, or the tests do not fit in memory beside it.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A length does not fit the model.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The engine failed.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The arguments make no test, or a test that cannot be measured.
    #[error("{0}")]
    Args(String),
    /// The model computes NaN or infinite logits, so its speed says nothing.
    #[error("the model's logits are not numbers")]
    NotFinite,
}

/// Loads the model and runs the tests. Blocks until done.
///
/// # Errors
/// [`BenchError`].
pub fn run(args: &BenchOptions, mut progress: impl FnMut(BenchProgress)) -> Result<BenchReport, BenchError> {
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
    let card = opened_cards(args, &cpu, files)?;
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
    let mut told = |fraction: f32| progress(BenchProgress::Loading((fraction * 100.0) as u32));
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
    // Measure the limits again after the tests, in case the machine was busy for a moment the first time.
    if let (Some(before), Some(after)) = (limits, measured_limits(args, &cpu, &mut progress)?) {
        let best = before.max(after);
        for (case, row) in cases.iter().zip(&mut rows) {
            row.shares = Some(costs.shares(case, row.tokens_per_s, &best));
        }
        limits = Some(best);
    }
    let device = card.map_or_else(|| cpu.describe(), |(card, _)| card.describe());
    Ok(BenchReport { device, limits, rows })
}

/// GPUs as one device, and the free bytes of each part, if they are known.
type SharedCards = (OnCard, Vec<Option<u64>>);

/// Opens the named GPUs as one device, with the free bytes of each part. None: the benchmark runs on the CPU.
fn opened_cards(
    args: &BenchOptions,
    cpu: &Cpu,
    files: &ModelFiles,
) -> Result<Option<SharedCards>, BenchError> {
    let refused = |reason: &str| Err(BenchError::Args(reason.to_owned()));
    match &cards::named(&args.devices)?[..] {
        [] if args.gpu_layers.is_some_and(|layers| layers > 0) => {
            refused("--gpu-layers are layers on a card; name it, such as --device cuda:0")
        }
        [] | [_] if args.split_mode == SplitMode::Row => {
            refused("--split-mode row is for two cards and more; name them, such as --device cuda:0,cuda:1")
        }
        [] => Ok(None),
        _ if args.limits => refused("--limits measures processors; leave it out"),
        ordinals => {
            let open = |&ordinal| OnCard::open(&Driver::default(), ordinal, &EngineSection::default());
            let found = ordinals.iter().map(open).collect::<Result<Vec<_>, _>>().map_err(LoadError::from)?;
            Ok(Some(cards::sharing(found, cpu, files, args.gpu_layers, args.split_mode)?))
        }
    }
}

/// Engine configuration with room for the largest test.
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
            BenchPhase::Prompt => (case.depth + case.len, 1),
            BenchPhase::Generation => (case.depth + 1, case.len),
        };
        let context_tokens_max = model_context;
        return Err(
            RequestError::ContextLength { prompt_tokens, completion_tokens, context_tokens_max }.into()
        );
    }
    Ok(EngineConfig {
        // Give each layer group all the blocks, as if it kept every token: unused blocks keep prefixes.
        kv_blocks: most(Case::blocks).max(context_tokens_max.div_ceil(BLOCK_TOKENS))
            * spec.kv_groups().count(),
        kv_type,
        kv_resident: false,
        step_tokens_max,
        prefill_tokens_beside_decodes: step_tokens_max,
        sequences_max: most(|case| case.batch),
        context_tokens_max,
        // A measurement finds the tokens put into the cache before it by their prefix.
        prefix_cache: true,
        speculation: Speculation::Off,
    })
}

/// Refuses tests that do not fit in free memory, if the system reports that.
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
    args: &BenchOptions,
    device: &Cpu,
    progress: &mut impl FnMut(BenchProgress),
) -> Result<Option<Limits>, LoadError> {
    if !args.limits {
        return Ok(None);
    }
    progress(BenchProgress::Limits);
    Limits::measure(device).map(Some)
}

fn row(
    case: Case,
    reps: usize,
    stopwatch: &mut Stopwatch,
    progress: &mut impl FnMut(BenchProgress),
) -> Result<Row, BenchError> {
    let test = case.name();
    let prepared = stopwatch
        .prepare(case, &mut |percent| progress(BenchProgress::Filling { test: test.clone(), percent }))?;
    let mut samples = Vec::with_capacity(reps);
    for run in 0..=reps {
        let mut told = |percent| progress(BenchProgress::Running { test: test.clone(), run, percent });
        told(0);
        let rate = stopwatch.measure(&prepared, &mut told)?;
        if run > 0 {
            samples.push(rate);
        }
    }
    let (tokens_per_s, stddev) = mean_and_deviation(&samples);
    let (kind, n_prompt, n_gen) = match case.kind {
        BenchPhase::Prompt => ("prompt", case.len, 0),
        BenchPhase::Generation => ("generation", 0, case.len),
    };
    let Case { depth, batch, .. } = case;
    Ok(Row { test, kind, n_prompt, n_gen, depth, batch, tokens_per_s, stddev, samples, shares: None })
}

/// Opens the store, unless the model is a path or the built-in demo model.
fn store(args: &BenchOptions) -> Result<Option<Store>, BenchError> {
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
