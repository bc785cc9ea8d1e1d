//! Wrapper that checks an engine while its worker drives it: the accounting after every step, that no step is
//! empty, that no event names a finished request, and that no request starves.
//!
//! A step without rows may still collect the results of the previous one, if the device is asynchronous.
//!
//! The bound on waiting follows from the rules of scheduling (`fair.rs` and `scheduler/turns.rs` of the runtime). A
//! request is ahead of all later ones in the queue, unless they are more urgent, and free room goes to the first in
//! the queue. A later request can begin sooner only by replacing a sequence that has used up its turn, which is at
//! least `SHARED_TURN_TOKENS` tokens. Each turn is used once. The number of turns that began before the request
//! arrived is that of the running sequences. Therefore, while a request waits,
//!
//! 1. at most `sequences_max + tokens sampled since / SHARED_TURN_TOKENS` later ones begin before it;
//! 2. every step computes at least one token of the requests that were there when it arrived or have overtaken it.
//!    It waits for at most as many steps as these have tokens, plus one for each sequence (which an asynchronous
//!    device computes in vain), plus one context length for each preemption.

use std::{
    any::Any,
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use hanzo_engine_runtime::{
    Adapter, EmbedJob, Engine, EngineStats, Event, EventKind, Job, JobId, LoadError, LoadedAdapter,
    StepError, StepReport, limits::SHARED_TURN_TOKENS,
};

use super::{device::Faults, story::Story};
use crate::device::{Generator, Steps};

/// Engine whose accounting can be checked.
pub(super) trait AuditableEngine: Generator {
    /// Panics if the accounting is inconsistent.
    fn check(&self);
    /// Whether a step has nothing to do but to wait for masks.
    fn awaits_masks(&self) -> bool;
}

impl AuditableEngine for Engine {
    fn check(&self) {
        Engine::check(self);
    }

    fn awaits_masks(&self) -> bool {
        Engine::awaits_masks(self)
    }
}

/// Engine with the checks of this module.
pub(super) struct WatchedEngine {
    inner: Box<dyn AuditableEngine>,
    sequences_max: u64,
    context_tokens_max: u64,
    jobs: BTreeMap<JobId, Watch>, // ids ascend as jobs come
    faults: Faults,
    story: Story,
    paused: Arc<AtomicU64>,
    runs_ahead: bool,
    /// Whether the device has a step whose results were not collected yet.
    under_way: bool,
}

/// State of an unfinished job.
struct Watch {
    priority: i32,
    tokens: u64, // of all its sequences, at most
    unfinished: usize,
    begun: bool,
    before: EngineStats, // when it came
    overtakers: u64,
    ahead: u64, // tokens of what was there, or has overtaken it
}

impl WatchedEngine {
    pub(super) fn new(
        inner: Box<dyn AuditableEngine>,
        sequences_max: usize,
        context_tokens_max: usize,
        runs_ahead: bool,
        faults: Faults,
        story: Story,
        paused: Arc<AtomicU64>,
    ) -> Self {
        let (sequences_max, context_tokens_max) = (sequences_max as u64, context_tokens_max as u64);
        Self {
            inner,
            sequences_max,
            context_tokens_max,
            jobs: BTreeMap::new(),
            faults,
            story,
            paused,
            runs_ahead,
            under_way: false,
        }
    }

    fn come(&mut self, id: JobId, priority: i32, unfinished: usize, tokens: u64) {
        let ahead = self.jobs.values().map(|other| other.tokens).sum();
        let before = self.inner.stats();
        let watch = Watch { priority, tokens, unfinished, begun: false, before, overtakers: 0, ahead };
        self.jobs.insert(id, watch);
    }

    /// Records that a job's first sequence enters a step. `now` has the engine's counters before that step.
    fn begin(&mut self, id: JobId, now: &EngineStats) {
        let Some(job) = self.jobs.get_mut(&id).filter(|job| !job.begun) else { return };
        job.begun = true;
        let (priority, tokens) = (job.priority, job.tokens);
        let waited = now.steps - job.before.steps;
        let put_back = now.preemptions - job.before.preemptions;
        let steps_max = job.ahead + put_back * self.context_tokens_max;
        if waited > steps_max {
            self.faults
                .add(format!("job {} has waited for {waited} steps, and at most {steps_max} are fair", id.0));
        }
        for (other, waiting) in self.jobs.range_mut(..id).filter(|(_, waiting)| !waiting.begun) {
            waiting.ahead += tokens;
            if priority < waiting.priority {
                continue;
            }
            waiting.overtakers += 1;
            let drawn = now.generated_tokens - waiting.before.generated_tokens;
            let overtakers_max = self.sequences_max + drawn / SHARED_TURN_TOKENS as u64;
            if waiting.overtakers > overtakers_max {
                let by = waiting.overtakers;
                self.faults.add(format!(
                    "job {} starves: job {} is the {by}th that has overtaken it, and at most {overtakers_max} may",
                    other.0, id.0
                ));
            }
        }
    }

    fn see(&mut self, event: &Event, before: &EngineStats) {
        let Some(job) = self.jobs.get_mut(&event.job) else {
            return self.faults.add(format!("job {} is over, and yet: {event:?}", event.job.0));
        };
        match event.kind {
            EventKind::Started { .. } => self.begin(event.job, before),
            EventKind::Finished { .. } | EventKind::Computed(_) => {
                job.unfinished -= 1;
                if job.unfinished == 0 {
                    self.jobs.remove(&event.job);
                }
            }
            EventKind::Scored(_)
            | EventKind::Delta { .. }
            | EventKind::Failed
            | EventKind::Heard(_)
            | EventKind::Said(_)
            | EventKind::Unsayable { .. }
            | EventKind::ConstraintFailed { .. } => {}
        }
    }

    fn check_blocks(&self, stats: &EngineStats) {
        let EngineStats { blocks_total, blocks_used, blocks_cached, .. } = *stats;
        if blocks_used + blocks_cached > blocks_total {
            self.faults
                .add(format!("{blocks_used} blocks used and {blocks_cached} cached of {blocks_total}"));
        }
        if self.jobs.is_empty() && blocks_used > 0 {
            self.faults.add(format!("{blocks_used} blocks are used, and there is no job"));
        }
    }
}

impl Generator for WatchedEngine {
    fn submit(&mut self, job: Arc<Job>) {
        let tokens = (job.prompt.len() + job.stop.max_tokens as usize + 1) as u64 * u64::from(job.choices);
        self.come(job.id, job.priority, job.choices as usize, tokens);
        self.story.tell(|| format!("  job {} in line: {} tokens at most", job.id.0, tokens));
        self.inner.submit(job);
    }

    fn load_adapter(
        &mut self,
        adapter: &Adapter,
        kept: Box<dyn Any + Send>,
    ) -> Result<Arc<LoadedAdapter>, LoadError> {
        self.inner.load_adapter(adapter, kept)
    }

    fn free_adapters(&mut self) {
        self.inner.free_adapters();
    }
}

impl Steps for WatchedEngine {
    fn generator(&mut self) -> Option<&mut dyn Generator> {
        Some(self)
    }

    fn submit_inputs(&mut self, job: &EmbedJob) {
        let tokens = job.inputs.iter().map(|input| input.tokens.len() as u64 + 1).sum();
        self.come(job.id, job.priority, job.inputs.len(), tokens);
        self.story
            .tell(|| format!("  job {} in line: {} inputs of {tokens} tokens", job.id.0, job.inputs.len()));
        self.inner.submit_inputs(job);
    }

    fn cancel(&mut self, job: JobId) {
        self.story.tell(|| format!("  job {} cancelled", job.0));
        self.jobs.remove(&job);
        self.inner.cancel(job);
        self.inner.check();
        self.check_blocks(&self.inner.stats());
    }

    fn set_paused(&mut self, job: JobId, paused: bool) {
        self.story.tell(|| format!("  job {} {}", job.0, if paused { "paused" } else { "goes on" }));
        self.paused.fetch_add(paused.into(), Relaxed);
        self.inner.set_paused(job, paused);
    }

    fn step(&mut self, events: &mut Vec<Event>) -> Result<StepReport, StepError> {
        let (before, first) = (self.inner.stats(), events.len());
        let had_work = self.inner.has_work() && !self.inner.awaits_masks();
        let report = self.inner.step(events)?;
        self.inner.check();
        if had_work && report.sequences == 0 && !self.under_way {
            self.faults.add("a step ran nothing, and there is work".to_owned());
        }
        self.under_way = self.runs_ahead && report.sequences > 0;
        let stats = self.inner.stats();
        self.story.tell(|| {
            format!(
                "  step {}: {} sequences, {} tokens of prompts, {} decodes; {} run, {} wait; blocks {} used, {} cached",
                stats.steps,
                report.sequences,
                report.prefill_tokens,
                report.decode_tokens,
                stats.running,
                stats.waiting,
                stats.blocks_used,
                stats.blocks_cached
            )
        });
        for event in &events[first..] {
            self.see(event, &before);
        }
        self.check_blocks(&stats);
        Ok(report)
    }

    fn took(&mut self, time: Duration) {
        self.inner.took(time);
    }

    fn has_work(&self) -> bool {
        self.inner.has_work()
    }

    fn stats(&self) -> EngineStats {
        self.inner.stats()
    }
}
