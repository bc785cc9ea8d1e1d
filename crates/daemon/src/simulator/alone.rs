//! Reference results: the output of a request that runs alone, which it must have in any company.

use std::{collections::BTreeMap, sync::Arc};

use hanzo_engine_ops::KvType;
use hanzo_engine_runtime::{
    EmbedInput, EmbedJob, EmbedResult, Engine, EngineConfig, Event, EventKind, Job, JobId, Output,
    Speculation, Usage,
};

use super::{
    device::{Faults, Script, Time},
    model::{self, Keeps},
};

/// Engines with room for everything, one for each model, running one request at a time. They keep blocks that have
/// left an attention window.
pub(super) struct Alone {
    engines: BTreeMap<usize, Engine>,
    model: usize,
    jobs: u64,
}

/// Expected events of a choice, without the fields that depend on the cache.
pub(super) struct ExpectedEvents {
    pub(super) kinds: Vec<EventKind>,
    /// Whether it ends with a non-finite number.
    pub(super) breaks: bool,
}

impl Alone {
    pub(super) fn new() -> Self {
        Self { engines: BTreeMap::new(), model: 0, jobs: 0 }
    }

    /// Selects the model, an index into [`model::MODELS`].
    pub(super) fn of_model(&mut self, model: usize) {
        self.model = model;
    }

    fn engine(&mut self) -> &mut Engine {
        self.engines.entry(self.model).or_insert_with(|| Self::new_engine(model::MODELS[self.model]))
    }

    fn new_engine(windows: [Option<u32>; 2]) -> Engine {
        let config = EngineConfig {
            kv_blocks: 128,
            kv_type: KvType::F16,
            kv_resident: false,
            step_tokens_max: 512,
            prefill_tokens_beside_decodes: 512,
            sequences_max: 8,
            context_tokens_max: 512,
            prefix_cache: false,
            speculation: Speculation::Off,
        };
        let script = Script::plain(Time::new());
        model::engine(windows, Keeps::Everything, config, script, Faults::default())
    }

    /// Expected events of each choice. The job's context ends after `context_tokens_max`.
    pub(super) fn choices(&mut self, job: &Job) -> Vec<ExpectedEvents> {
        let id = self.next_job();
        self.engine().submit(Arc::new(Job { id, ..job.clone() }));
        let mut events = self.run();
        (0..job.choices).map(|choice| expected(events.remove(&choice).unwrap_or_default())).collect()
    }

    /// Expected results of each input; `None` if any is not finite.
    pub(super) fn inputs(&mut self, inputs: &[EmbedInput], output: Output) -> Option<Vec<EmbedResult>> {
        let id = self.next_job();
        self.engine().submit_inputs(&EmbedJob {
            id,
            inputs: inputs.to_vec(),
            output,
            priority: 0,
            client: None,
        });
        let computed = self.run().into_values().flatten().filter_map(|kind| match kind {
            EventKind::Started { .. } => None,
            EventKind::Computed(computed) => Some(Some(computed)),
            _ => Some(None),
        });
        computed.collect()
    }

    fn next_job(&mut self) -> JobId {
        self.jobs += 1;
        JobId(self.jobs)
    }

    fn run(&mut self) -> BTreeMap<u32, Vec<EventKind>> {
        let mut events: Vec<Event> = Vec::new();
        let engine = self.engine();
        while engine.has_work() {
            engine.step(&mut events).unwrap();
        }
        let mut by_choice = BTreeMap::<u32, Vec<EventKind>>::new();
        for Event { choice, kind, .. } in events {
            by_choice.entry(choice).or_default().push(kind);
        }
        by_choice
    }
}

fn expected(mut kinds: Vec<EventKind>) -> ExpectedEvents {
    let breaks = kinds.last() == Some(&EventKind::Failed);
    kinds.retain(|kind| *kind != EventKind::Failed);
    ExpectedEvents { kinds: in_pieces(kinds.into_iter().map(without_cache)), breaks }
}

/// Merges consecutive deltas and scores, since the number of tokens per step depends on the other requests.
pub(super) fn in_pieces(kinds: impl IntoIterator<Item = EventKind>) -> Vec<EventKind> {
    let mut pieces: Vec<EventKind> = Vec::new();
    for kind in kinds {
        match (pieces.last_mut(), kind) {
            (Some(last @ EventKind::Delta { .. }), next @ EventKind::Delta { .. }) => last.append(next),
            (Some(EventKind::Scored(last)), EventKind::Scored(next)) => last.extend(next),
            (_, kind) => pieces.push(kind),
        }
    }
    pieces
}

/// Removes counts of cached and drafted tokens, which depend on earlier requests.
pub(super) fn without_cache(kind: EventKind) -> EventKind {
    match kind {
        EventKind::Started { .. } => EventKind::Started { cached_tokens: 0 },
        EventKind::Finished { reason, stop_string, usage } => {
            let usage = Usage { cached_tokens: 0, draft_tokens: 0, accepted_draft_tokens: 0, ..usage };
            EventKind::Finished { reason, stop_string, usage }
        }
        other => other,
    }
}
