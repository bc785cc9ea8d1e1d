//! Speed of one model on this machine, measured on the runtime itself, as llama-bench does: `ppN` is a prompt of N
//! random tokens, `tgN` is N tokens generated one after the other; each is run once to warm up and then `reps`
//! times.

use std::{path::PathBuf, sync::Arc, time::Instant};

use hanzo_engine_kernels::{BLOCK_TOKENS, KvType};
use hanzo_engine_runtime::{
    EngineConfig, Event, EventKind, Job, JobId, LoadError, RequestError, SamplingParams, StepError,
    StopConditions, TextModel,
};
use hanzo_engine_store::{Store, StoreError};
use serde::Serialize;

use crate::{
    config::EngineSection,
    device::{Cpu, Device, Steps},
    error::{Error, random_u64},
    source::resolve,
};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Args {
    /// A name in the store, [`crate::DEMO_MODEL`], or a path.
    pub model: String,
    /// The store's directory, for a name; unset: the default one. Not opened for a path.
    pub store_dir: Option<PathBuf>,
    /// Lengths of prompts, in tokens; each makes a row `ppN`.
    pub prompt_lens: Vec<usize>,
    /// Tokens to generate; each makes a row `tgN`.
    pub gen_lens: Vec<usize>,
    /// Measurements of each; at least 1.
    pub reps: usize,
    /// Threads that compute; unset: one for each core.
    pub threads: Option<usize>,
    /// How keys and values are stored.
    pub kv_type: KvType,
}

/// One test's result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// `pp512`, `tg64`.
    pub test: String,
    /// Mean over the measurements.
    pub tokens_per_s: f64,
    /// Sample standard deviation of the same; 0 for one measurement.
    pub stddev: f64,
}

/// Where a run is, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The model is being read, in percent.
    Loading(u32),
    /// A test runs: its name, and which of its measurements, from 0 for the warm-up.
    Running(String, usize),
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
    /// The model cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A length does not fit the model.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The engine failed.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The arguments make no test.
    #[error("{0}")]
    Args(&'static str),
}

/// Loads the model and measures. Blocks for as long as that takes.
///
/// # Errors
/// [`BenchError`].
pub fn run(args: &Args, mut progress: impl FnMut(Progress)) -> Result<Vec<Row>, BenchError> {
    let lens = || args.prompt_lens.iter().chain(&args.gen_lens);
    if args.reps == 0 || lens().any(|&len| len == 0) {
        return Err(BenchError::Args("repetitions and lengths must be at least 1"));
    }
    let Some(&longest) = lens().max() else { return Err(BenchError::Args("nothing to measure")) };
    let source = resolve(&args.model, store(args)?.as_ref()).map_err(model_error)?.source;
    let files = source.open()?;
    // Prompt and generated tokens of the longest test, with a block to spare.
    let context_tokens_max = longest + BLOCK_TOKENS;
    let context_has = files.info.context_tokens_max as usize;
    if context_tokens_max > context_has {
        let (prompt_tokens, completion_tokens) = (longest, BLOCK_TOKENS);
        let error =
            RequestError::ContextLength { prompt_tokens, completion_tokens, context_tokens_max: context_has };
        return Err(error.into());
    }
    let device = Cpu::new(args.threads).map_err(LoadError::from)?;
    let step_tokens_max = EngineSection::default().step_tokens_max;
    let config = EngineConfig {
        kv_blocks: context_tokens_max.div_ceil(BLOCK_TOKENS) + 1,
        kv_type: args.kv_type,
        step_tokens_max,
        prefill_tokens_beside_decodes: step_tokens_max,
        sequences_max: 1,
        context_tokens_max,
        prefix_cache: false,
    };
    let text = Arc::new(TextModel::load(&files)?);
    let mut told = |fraction: f32| progress(Progress::Loading((fraction * 100.0) as u32));
    let engine = device.build(&files, text.clone(), config, &mut told)?;
    let mut bench = Bench { engine, text, context_tokens_max, jobs: 0 };
    let prompts = args.prompt_lens.iter().map(|&len| (format!("pp{len}"), len, Kind::Prompt));
    let generations = args.gen_lens.iter().map(|&len| (format!("tg{len}"), len, Kind::Generation));
    let mut rows = Vec::new();
    for (test, len, kind) in prompts.chain(generations) {
        let mut rates = Vec::with_capacity(args.reps);
        for rep in 0..=args.reps {
            progress(Progress::Running(test.clone(), rep));
            let rate = bench.measure(len, kind)?;
            if rep > 0 {
                rates.push(rate);
            }
        }
        let (tokens_per_s, stddev) = mean_and_deviation(&rates);
        rows.push(Row { test, tokens_per_s, stddev });
    }
    Ok(rows)
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

#[derive(Clone, Copy)]
enum Kind {
    Prompt,
    Generation,
}

struct Bench {
    engine: Box<dyn Steps>,
    text: Arc<TextModel>,
    context_tokens_max: usize,
    jobs: u64,
}

impl Bench {
    /// Tokens per second of one run. A generation begins with a prompt of one token, so that N steps of one row
    /// make N tokens.
    fn measure(&mut self, len: usize, kind: Kind) -> Result<f64, BenchError> {
        let (prompt_len, max_tokens) = match kind {
            Kind::Prompt => (len, 1),
            Kind::Generation => (1, len),
        };
        self.jobs += 1;
        let vocab = self.text.vocab as u64;
        let prompt: Vec<u32> = (0..prompt_len).map(|_| (random_u64() % vocab) as u32).collect();
        let job = Job {
            id: JobId(self.jobs),
            prompt: prompt.into(),
            choices: 1,
            sampling: SamplingParams::default(),
            stop: StopConditions {
                max_tokens: u32::try_from(max_tokens).unwrap_or(u32::MAX),
                ignore_eos: true,
                ..StopConditions::default()
            },
            priority: 0,
            starts_in_reasoning: false,
            split_reasoning: false,
        };
        job.validate(&self.text, self.context_tokens_max)?;
        let mut events: Vec<Event> = Vec::new();
        let began = Instant::now();
        self.engine.submit(&job);
        while self.engine.has_work() {
            events.clear();
            self.engine.step(&mut events)?;
        }
        let seconds = began.elapsed().as_secs_f64();
        let ended = events.iter().any(|event| matches!(event.kind, EventKind::Finished { .. }));
        assert!(ended, "an engine without work has finished its only job");
        Ok(len as f64 / seconds)
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deviation_is_of_a_sample() {
        assert_eq!(mean_and_deviation(&[2.0, 4.0]), (3.0, 2.0_f64.sqrt()));
        assert_eq!(mean_and_deviation(&[5.0]), (5.0, 0.0));
    }

    fn args() -> Args {
        Args {
            model: crate::DEMO_MODEL.into(),
            store_dir: None,
            prompt_lens: vec![20],
            gen_lens: vec![3],
            reps: 2,
            threads: Some(1),
            kv_type: KvType::Q8_0,
        }
    }

    #[test]
    fn the_demo_model_has_a_speed() {
        let mut seen = Vec::new();
        let rows = run(&args(), |progress| seen.push(progress)).unwrap();
        let tests: Vec<&str> = rows.iter().map(|row| row.test.as_str()).collect();
        assert_eq!(tests, ["pp20", "tg3"]);
        assert!(rows.iter().all(|row| row.tokens_per_s > 0.0 && row.stddev.is_finite()), "{rows:?}");
        assert!(seen.contains(&Progress::Running("tg3".into(), 2)));
    }

    #[test]
    fn what_cannot_be_measured_says_why() {
        let too_long = Args { prompt_lens: vec![10_000_000], ..args() };
        assert!(matches!(run(&too_long, |_| {}), Err(BenchError::Request(_))));
        let nothing = Args { prompt_lens: vec![], gen_lens: vec![], ..args() };
        assert!(matches!(run(&nothing, |_| {}), Err(BenchError::Args(_))));
        assert!(matches!(run(&Args { reps: 0, ..args() }, |_| {}), Err(BenchError::Args(_))));
    }
}
