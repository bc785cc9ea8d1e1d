//! What a request comes to where nothing else is there: what it must come to in any company.

use std::collections::BTreeMap;

use hanzo_engine_kernels::KvType;
use hanzo_engine_runtime::{
    Computed, EmbedInput, EmbedJob, Engine, EngineConfig, Event, EventKind, Job, JobId, Output, Speculation,
    Usage,
};

use super::{
    device::{Faults, Script, Time},
    model::{self, Keeps},
};

/// Engines with room for everything, one of each model, for one request at a time. They keep what has left windows.
pub(super) struct Alone {
    engines: BTreeMap<usize, Engine>,
    model: usize,
    jobs: u64,
}

/// What comes of a choice: its events, without what depends on the cache.
pub(super) struct Expected {
    pub(super) kinds: Vec<EventKind>,
    /// It ends because something is no number.
    pub(super) breaks: bool,
}

impl Alone {
    pub(super) fn new() -> Self {
        Self { engines: BTreeMap::new(), model: 0, jobs: 0 }
    }

    /// From here on it is about this of [`model::MODELS`].
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
        model::engine((windows, Keeps::Everything), config, script, Faults::default())
    }

    /// By choice. The job's context ends after `context_tokens_max`.
    pub(super) fn choices(&mut self, job: &Job) -> Vec<Expected> {
        let id = self.next_job();
        self.engine().submit(&Job { id, ..job.clone() });
        let mut events = self.run();
        (0..job.choices).map(|choice| expected(events.remove(&choice).unwrap_or_default())).collect()
    }

    /// By input; nothing: no number.
    pub(super) fn inputs(&mut self, inputs: &[EmbedInput], output: Output) -> Option<Vec<Computed>> {
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

fn expected(mut kinds: Vec<EventKind>) -> Expected {
    let breaks = kinds.last() == Some(&EventKind::Failed);
    kinds.retain(|kind| *kind != EventKind::Failed);
    Expected { kinds: in_pieces(kinds.into_iter().map(without_cache)), breaks }
}

/// What is said token by token, and what is scored: how many tokens come in one step depends on who else runs.
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

/// What is found in the cache, and drafted, depends on who came before.
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
