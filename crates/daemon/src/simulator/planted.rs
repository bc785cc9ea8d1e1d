//! Planted bugs, to check that the simulator finds them.

use std::{any::Any, collections::BTreeMap, sync::Arc, time::Duration};

use hanzo_engine_runtime::{
    Adapter, EmbedJob, Engine, EngineStats, Event, EventKind, Job, JobId, LoadError, LoadedAdapter,
    StepError, StepReport,
};

use super::watched::AuditableEngine;
use crate::device::{Generator, Steps};

/// Kind of bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bug {
    /// A wake-up before the worker has parked is lost.
    LostWakeUp,
    /// Every third cancellation only pauses the job, so that its blocks leak.
    LeakedBlock,
    /// The last request to arrive runs first.
    StarvedRequest,
    /// A finished choice sends another event while the others continue.
    EventAfterTheEnd,
    /// The device keeps the block table of a sequence that seems to continue.
    StaleBlockTable,
    /// An asynchronous device gives a row the token that was sampled for its neighbour.
    WrongDraw,
}

/// Engine with those bugs that concern an engine.
pub(super) struct FaultyEngine {
    inner: Engine,
    bug: Bug,
    came: i32,
    cancels: u64,
    unfinished: BTreeMap<JobId, u32>,
    more: Vec<Event>,
}

impl FaultyEngine {
    pub(super) fn new(inner: Engine, bug: Bug) -> Self {
        Self { inner, bug, came: 0, cancels: 0, unfinished: BTreeMap::new(), more: Vec::new() }
    }
}

impl AuditableEngine for FaultyEngine {
    fn check(&self) {
        Engine::check(&self.inner);
    }

    fn awaits_masks(&self) -> bool {
        self.inner.awaits_masks()
    }
}

impl Generator for FaultyEngine {
    fn submit(&mut self, job: Arc<Job>) {
        let mut job = Arc::unwrap_or_clone(job);
        self.came += 1;
        if self.bug == Bug::StarvedRequest {
            job.priority = -self.came;
        }
        self.unfinished.insert(job.id, job.choices);
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

impl Steps for FaultyEngine {
    fn generator(&mut self) -> Option<&mut dyn Generator> {
        Some(self)
    }

    fn submit_inputs(&mut self, job: &EmbedJob) {
        let mut job = job.clone();
        self.came += 1;
        if self.bug == Bug::StarvedRequest {
            job.priority = -self.came;
        }
        self.inner.submit_inputs(&job);
    }

    fn cancel(&mut self, job: JobId) {
        self.cancels += 1;
        self.more.retain(|event| event.job != job);
        if self.bug == Bug::LeakedBlock && self.cancels.is_multiple_of(3) {
            self.inner.set_paused(job, true);
        } else {
            self.inner.cancel(job);
        }
    }

    fn set_paused(&mut self, job: JobId, paused: bool) {
        self.inner.set_paused(job, paused);
    }

    fn step(&mut self, events: &mut Vec<Event>) -> Result<StepReport, StepError> {
        let report = self.inner.step(events)?;
        events.append(&mut self.more);
        for event in events.iter().filter(|event| matches!(event.kind, EventKind::Finished { .. })) {
            let left = self.unfinished.entry(event.job).or_default();
            *left = left.saturating_sub(1);
            if self.bug == Bug::EventAfterTheEnd && *left > 0 {
                let (text, reasoning, tokens, logprobs) =
                    ("more".to_owned(), String::new(), vec![7], Vec::new());
                let kind = EventKind::Delta { text, reasoning, calls: Vec::new(), tokens, logprobs };
                self.more.push(Event { kind, ..event.clone() });
            }
        }
        let unfinished = &self.unfinished;
        self.more.retain(|event| unfinished.get(&event.job).is_some_and(|&left| left > 0));
        Ok(report)
    }

    fn took(&mut self, time: Duration) {
        self.inner.took(time.as_secs_f32());
    }

    fn has_work(&self) -> bool {
        self.inner.has_work()
    }

    fn stats(&self) -> EngineStats {
        self.inner.stats()
    }
}
