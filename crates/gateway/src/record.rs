//! Facts about a request that are found while it is answered: its model, tokens, and the engine's timings. They
//! are logged in one line at its end, and sent as `Server-Timing` if they are known before the answer's body,
//! or as a trailer.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use axum::http::HeaderValue;
use hanzo_engine_proto::v1::{InferEvent, Timings, infer_event::Event};
use tonic::{Code, Status};

/// Record that all calls of a request share. Cloning is cheap.
#[derive(Debug, Clone, Default)]
pub(crate) struct Record(Arc<Mutex<RecordFacts>>);

/// Facts known so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct RecordFacts {
    pub(crate) model: Option<String>,
    pub(crate) prompt_tokens: u64,
    pub(crate) cached_tokens: u64,
    pub(crate) completion_tokens: u64,
    /// Maxima over all finished choices; None: no choice has finished.
    pub(crate) times: Option<Times>,
    /// Error that ended an answer after it had begun.
    pub(crate) error: Option<Code>,
    /// Upstream server that answered: its URL, model, and the reason.
    pub(crate) sent_to: Option<String>,
    /// Whether the request's body would be forwarded unchanged if it goes upstream.
    pub(crate) forwards_body: bool,
}

/// Milliseconds of an engine's phases.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Times {
    pub(crate) load: f64,
    pub(crate) queue: f64,
    pub(crate) prefill: f64,
    pub(crate) decode: f64,
}

impl Record {
    fn lock(&self) -> MutexGuard<'_, RecordFacts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Facts known so far.
    pub(crate) fn so_far(&self) -> RecordFacts {
        self.lock().clone()
    }

    /// Records the requested model.
    pub(crate) fn asked(&self, model: &str) {
        let mut facts = self.lock();
        if facts.model.is_none() && !model.is_empty() {
            facts.model = Some(model.to_owned());
        }
    }

    /// Records the model and prompt tokens of a call that is not streamed.
    pub(crate) fn answered(&self, model: &str, prompt_tokens: u32) {
        let mut facts = self.lock();
        if !model.is_empty() {
            facts.model = Some(model.to_owned());
        }
        facts.prompt_tokens += u64::from(prompt_tokens);
    }

    /// Records that an upstream server answers.
    pub(crate) fn sent_to(&self, told: &str) {
        self.lock().sent_to = Some(told.to_owned());
    }

    /// Records that the body would be forwarded unchanged.
    pub(crate) fn forwards_body(&self) {
        self.lock().forwards_body = true;
    }

    /// Adds read and written tokens.
    pub(crate) fn generated(&self, prompt_tokens: u32, completion_tokens: u32) {
        let mut facts = self.lock();
        facts.prompt_tokens += u64::from(prompt_tokens);
        facts.completion_tokens += u64::from(completion_tokens);
    }

    /// Starts to record a generation of `choices` choices.
    pub(crate) fn generation(&self, choices: u32) -> GenerationRecorder {
        GenerationRecorder { record: self.clone(), begun: false, choices, counted: BTreeMap::new() }
    }

    /// Records that an answer broke off after it had begun.
    pub(crate) fn failed(&self, status: &Status) {
        self.lock().error = Some(status.code());
    }
}

/// Recorder of one generation's events.
#[derive(Debug)]
pub(crate) struct GenerationRecorder {
    record: Record,
    begun: bool,
    choices: u32,
    counted: BTreeMap<u32, u32>, // tokens of each choice that has begun
}

impl GenerationRecorder {
    /// Records an event.
    pub(crate) fn see(&mut self, event: &InferEvent) {
        match &event.event {
            Some(Event::Started(started)) if !self.begun => {
                self.begun = true;
                let mut facts = self.record.lock();
                facts.model = Some(started.model.clone());
                facts.prompt_tokens += u64::from(started.prompt_tokens);
                facts.cached_tokens += u64::from(started.cached_tokens);
            }
            Some(Event::Delta(delta)) => {
                let tokens = u32::try_from(delta.token_ids.len()).unwrap_or(u32::MAX);
                self.count(delta.choice, |counted| counted.saturating_add(tokens));
            }
            Some(Event::Finished(finished)) => {
                let tokens = finished.usage.unwrap_or_default().completion_tokens;
                self.count(finished.choice, |counted| counted.max(tokens));
                if let Some(timings) = &finished.timings {
                    self.record.lock().took(timings);
                }
            }
            Some(Event::Started(_) | Event::PromptLogprobs(_) | Event::Loading(_)) | None => {}
        }
    }

    fn count(&mut self, choice: u32, count: impl FnOnce(u32) -> u32) {
        if choice >= self.choices {
            return;
        }
        let counted = self.counted.entry(choice).or_default();
        let now = count(*counted);
        self.record.lock().completion_tokens += u64::from(now - *counted);
        *counted = now;
    }
}

impl RecordFacts {
    fn took(&mut self, timings: &Timings) {
        let times = self.times.get_or_insert_default();
        // The engine's queue time begins with the request's arrival and includes the load.
        times.queue = times.queue.max((timings.queue_ms - timings.load_ms).max(0.0));
        times.load = times.load.max(timings.load_ms);
        times.prefill = times.prefill.max(timings.prefill_ms);
        times.decode = times.decode.max(timings.decode_ms);
    }

    /// Value of `Server-Timing` when every choice with timings has reported them; None: nothing is known.
    pub(crate) fn server_timing(&self) -> Option<HeaderValue> {
        let Times { load, queue, prefill, decode } = self.times?;
        // Omitted for a model that was loaded already.
        let load = if load > 0.0 { format!("load;dur={load:.1}, ") } else { String::new() };
        let text = format!("queue;dur={queue:.1}, {load}prefill;dur={prefill:.1}, decode;dur={decode:.1}");
        HeaderValue::from_str(&text).ok()
    }
}

#[cfg(test)]
mod tests {
    use hanzo_engine_proto::v1::{Delta, Finished, InferEvent, Started, Timings, Usage, infer_event::Event};

    use super::Record;

    fn see(record: &Record, choices: u32, events: Vec<Event>) {
        let mut generated = record.generation(choices);
        events.into_iter().for_each(|event| generated.see(&InferEvent { event: Some(event) }));
    }

    #[test]
    fn tokens_are_counted_once_and_of_what_was_cut_too() {
        let record = Record::default();
        record.asked("m");
        let started = || {
            Event::Started(Started {
                model: "owner/m".to_owned(),
                prompt_tokens: 7,
                cached_tokens: 3,
                ..Default::default()
            })
        };
        let delta = |choice| Event::Delta(Delta { choice, token_ids: vec![1, 2], ..Default::default() });
        let timings =
            |ms| Some(Timings { queue_ms: 1.0, prefill_ms: 2.5, decode_ms: ms, ..Default::default() });
        let finished = |choice, tokens, ms| {
            Event::Finished(Finished {
                choice,
                usage: Some(Usage { completion_tokens: tokens, ..Default::default() }),
                timings: timings(ms),
                ..Default::default()
            })
        };
        see(
            &record,
            2,
            vec![started(), started(), delta(0), finished(0, 3, 4.0), delta(1), finished(1, 2, 9.0)],
        );
        // Another prompt of the request, whose client leaves. Events of a choice that it does not have are
        // ignored.
        see(&record, 1, vec![started(), delta(0), delta(5)]);
        let facts = record.so_far();
        assert_eq!((facts.prompt_tokens, facts.cached_tokens, facts.completion_tokens), (14, 6, 7));
        assert_eq!(facts.model.as_deref(), Some("owner/m"));
        let timing = facts.server_timing().unwrap();
        assert_eq!(timing, "queue;dur=1.0, prefill;dur=2.5, decode;dur=9.0");
        assert_eq!(Record::default().so_far().server_timing(), None);
    }
}
