//! Runs one test on an engine and times the steps that count.
//!
//! Separate prompts fill the KV cache up to the test's depth, once for all measurements. Each measurement finds
//! those blocks by their prefix and begins at its depth. All steps of a measurement are timed, and nothing else.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use hanzo_engine_runtime::{Event, EventKind, Job, JobId, StepReport, StopConditions, TextModel};

use super::{
    BenchError,
    case::{BenchPhase, Case},
};
use crate::{device::Generator, error::random_u64};

/// Engine that runs only tests.
pub(super) struct Stopwatch {
    engine: Box<dyn Generator>,
    text: Arc<TextModel>,
    context_tokens_max: usize,
    jobs: u64,
}

/// A test whose KV cache is filled.
pub(super) struct PreparedCase {
    case: Case,
    /// Tokens that each sequence begins with.
    before: Vec<Vec<u32>>, // (batch, depth)
}

/// Totals of several steps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Lap {
    time: Duration,
    steps: usize,
    tokens: usize,
}

impl Stopwatch {
    /// Takes an idle engine with the prefix cache enabled.
    pub(super) fn new(engine: Box<dyn Generator>, text: Arc<TextModel>, context_tokens_max: usize) -> Self {
        Self { engine, text, context_tokens_max, jobs: 0 }
    }

    /// Fills the cache to the test's depth; `progress` receives percent.
    pub(super) fn prepare(
        &mut self,
        case: Case,
        progress: &mut dyn FnMut(u32),
    ) -> Result<PreparedCase, BenchError> {
        let before: Vec<Vec<u32>> = (0..case.batch).map(|_| self.random_tokens(case.depth)).collect();
        if case.depth > 0 {
            for prompt in &before {
                self.submit(prompt.clone(), 1)?;
            }
            self.run(case.depth * case.batch, progress)?;
        }
        Ok(PreparedCase { case, before })
    }

    /// Runs the test once and returns tokens per second, over all sequences. `progress` receives percent of a
    /// prompt.
    pub(super) fn measure(
        &mut self,
        prepared: &PreparedCase,
        progress: &mut dyn FnMut(u32),
    ) -> Result<f64, BenchError> {
        let case = &prepared.case;
        let (prompt_len, max_tokens) = match case.kind {
            BenchPhase::Prompt => (case.len, 1),
            BenchPhase::Generation => (1, case.len),
        };
        for before in &prepared.before {
            let mut prompt = before.clone();
            prompt.extend(self.random_tokens(prompt_len));
            self.submit(prompt, max_tokens)?;
        }
        let lap = match case.kind {
            BenchPhase::Prompt => self.run(case.tokens(), progress)?,
            BenchPhase::Generation => self.run(case.tokens(), &mut |_| {})?,
        };
        assert_eq!(
            lap.tokens,
            case.tokens(),
            "the cache holds what it was filled with, and no step did more"
        );
        if case.kind == BenchPhase::Generation {
            assert_eq!(lap.steps, case.len, "all sequences decode in every step");
        }
        Ok(lap.tokens as f64 / lap.time.as_secs_f64())
    }

    fn random_tokens(&self, len: usize) -> Vec<u32> {
        let vocab = self.text.vocab as u64;
        (0..len).map(|_| (random_u64() % vocab) as u32).collect()
    }

    fn submit(&mut self, prompt: Vec<u32>, max_tokens: usize) -> Result<(), BenchError> {
        self.jobs += 1;
        let job = Job {
            id: JobId(self.jobs),
            prompt: prompt.into(),
            stop: StopConditions {
                max_tokens: u32::try_from(max_tokens).unwrap_or(u32::MAX),
                ignore_eos: true,
                ..StopConditions::default()
            },
            ..Job::default()
        };
        job.validate(&self.text, self.context_tokens_max)?;
        self.engine.submit(Arc::new(job));
        Ok(())
    }

    /// Steps until the engine has no work. `tokens` is the expected number of tokens, for `progress`.
    fn run(&mut self, tokens: usize, progress: &mut dyn FnMut(u32)) -> Result<Lap, BenchError> {
        let mut events: Vec<Event> = Vec::new();
        let mut lap = Lap::default();
        let mut told = 0;
        while self.engine.has_work() {
            events.clear();
            let began = Instant::now();
            let report: StepReport = self.engine.step(&mut events)?;
            lap.time += began.elapsed();
            // With asynchronous scheduling the last call only collects results.
            lap.steps += usize::from(report.sequences > 0);
            lap.tokens += report.prefill_tokens + report.decode_tokens;
            if events.iter().any(|event| matches!(event.kind, EventKind::Failed)) {
                return Err(BenchError::NotFinite);
            }
            let percent = (lap.tokens * 100 / tokens.max(1)) as u32;
            if percent > told {
                told = percent;
                progress(percent);
            }
        }
        Ok(lap)
    }
}
