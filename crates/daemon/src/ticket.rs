//! Connection of one request between its client and its worker. The worker holds the [`Ticket`], the client's
//! stream the [`JobEvents`], with a bounded number of events between them. The worker never waits for the client;
//! it pauses the job. Dropping the [`JobEvents`] cancels the job.

mod embed;
mod events;
mod line;
mod sound;
mod speak;

use std::{
    sync::Arc,
    task::Waker,
    time::{Duration, Instant},
};

use hanzo_engine_runtime::{Event, EventKind, FinishReason, Job};

pub(crate) use embed::{EmbedTicket, Results, embed_ticket};
use line::{EventLine, Events, line};
pub(crate) use sound::{SoundEvents, SoundTicket, sound_ticket};
pub(crate) use speak::{SpeakTicket, SpokenPieces, speak_ticket};

use crate::{
    admission::{Admission, QueuePlace},
    limits::{EVENTS_PER_STEP_MAX, SCORED_PER_STEP_MAX},
    metrics::ModelMetrics,
};

/// Event with measurements that only the worker can make.
#[derive(Debug)]
pub(crate) struct JobEvent {
    /// Index of the completion.
    pub(crate) choice: u32,
    /// Kind of event.
    pub(crate) kind: EventKind,
    /// Timings of a completion that finished.
    pub(crate) timings: Option<Timings>,
}

impl JobEvent {
    /// Number of cached prompt tokens, if a completion begins with this event.
    pub(crate) fn begins(&self) -> Option<u32> {
        match self.kind {
            EventKind::Started { cached_tokens } => Some(cached_tokens),
            _ => None,
        }
    }

    /// Reason why a completion ends with this event; `None` if none does.
    pub(crate) fn finish_reason(&self) -> Option<FinishReason> {
        match self.kind {
            EventKind::Finished { reason, .. } => Some(reason),
            _ => None,
        }
    }

    /// Number of tokens in the completion that finishes with this event; 0 for any other event.
    pub(crate) fn completion_tokens(&self) -> u32 {
        match &self.kind {
            EventKind::Finished { usage, .. } => usage.completion_tokens,
            EventKind::Started { .. }
            | EventKind::Scored(_)
            | EventKind::Delta { .. }
            | EventKind::Computed(_)
            | EventKind::Failed
            | EventKind::Heard(_)
            | EventKind::Said(_)
            | EventKind::Unsayable { .. }
            | EventKind::ConstraintFailed { .. } => 0,
        }
    }
}

/// Durations of one completion's phases.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Timings {
    /// From the arrival to the first step that ran it.
    pub(crate) queue: Duration,
    /// From there to the first sampled token.
    pub(crate) prefill: Duration,
    /// From the first sampled token to the last one.
    pub(crate) decode: Duration,
}

impl Timings {
    /// Decode rate of a completion with this many tokens: those after the first, divided by the time from the first
    /// to the last. `None` if there are none, or no time passed.
    pub(crate) fn decode_tokens_per_s(&self, completion_tokens: u32) -> Option<f64> {
        let after_first = completion_tokens.checked_sub(1).filter(|&tokens| tokens > 0)?;
        let seconds = self.decode.as_secs_f64();
        (seconds > 0.0).then(|| f64::from(after_first) / seconds)
    }
}

/// Way in which a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JobEnd {
    /// Every choice finished.
    Done,
    /// Its deadline passed.
    Deadline,
    /// The model was unloaded, or the daemon stopped.
    Stopped(&'static str),
    /// The worker failed while it ran the job.
    WorkerFailed { error_id: String },
    /// The model computed NaN or infinite numbers for it.
    NotANumber { error_id: String },
    /// Its constraint became too complex to follow.
    Constraint { reason: String },
    /// A part of its text cannot be spoken.
    Unsayable { reason: String },
    /// The worker failed before the job's first step.
    NotReached { error_id: String },
}

/// Worker's end of a request.
pub(crate) struct Ticket {
    pub(crate) job: Arc<Job>,
    pub(crate) line: EventLine<JobEvent>,
    choices: Vec<Clock>,
    unfinished: u32,
}

/// Client's end of a request.
pub(crate) type JobEvents = Events<JobEvent>;

#[derive(Clone, Copy, Default)]
struct Clock {
    started: Option<Instant>,
    first: Option<Instant>,
    last: Option<Instant>,
}

/// State of a client, as its worker sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientState {
    /// Nothing to do.
    Fine,
    /// The client reads again, so the job can resume.
    Resume,
    /// The client has disconnected.
    Left,
    /// The deadline has passed.
    Late,
}

/// Operations of a worker on the client of any request.
pub(crate) trait TicketClient {
    /// Deadline of the request.
    fn deadline(&self) -> Option<Instant>;

    /// Whether the client has disconnected, is past its deadline or reads again.
    fn client_state(&self, now: Instant) -> ClientState;

    /// Whether no part of the request has run.
    fn waits(&self) -> bool;

    /// Ends the request early; events in the channel can still be read. No other method may be called afterwards.
    fn end(&mut self, end: JobEnd);

    /// Ends the request because its worker failed.
    fn fail(&mut self, error_id: &str) {
        let error_id = error_id.to_owned();
        self.end(match self.waits() {
            true => JobEnd::NotReached { error_id },
            false => JobEnd::WorkerFailed { error_id },
        });
    }
}

/// Creates the two ends of a job, with room for `events_max` events between them. `worker` is woken when the client
/// reads or disconnects.
pub(crate) fn ticket(
    job: Job,
    place: QueuePlace,
    arrived: Instant,
    deadline: Option<Instant>,
    events_max: usize,
    worker: Waker,
) -> (Ticket, JobEvents) {
    let (line, events) = line(place, arrived, deadline, events_max, worker);
    let choices = vec![Clock::default(); job.choices as usize];
    (Ticket { line, choices, unfinished: job.choices, job: Arc::new(job) }, events)
}

impl Ticket {
    /// Forwards an event with its timings. True if it was the last.
    pub(crate) fn pass(
        &mut self,
        event: Event,
        now: Instant,
        metrics: &ModelMetrics,
        admission: &Admission,
    ) -> bool {
        let timings = self.measure(&event, now, metrics);
        self.unfinished -= u32::from(matches!(event.kind, EventKind::Finished { .. }));
        let over = self.unfinished == 0;
        if over {
            self.line.done(now, admission);
        }
        self.line.send(JobEvent { choice: event.choice, kind: event.kind, timings });
        over
    }

    /// Whether the job must pause because its next step's events might not fit. Not called again until it resumes.
    pub(crate) fn must_pause(&self) -> bool {
        self.line.must_pause(self.unfinished as usize * EVENTS_PER_STEP_MAX + SCORED_PER_STEP_MAX)
    }

    fn measure(&mut self, event: &Event, now: Instant, metrics: &ModelMetrics) -> Option<Timings> {
        let clock = &mut self.choices[event.choice as usize];
        match &event.kind {
            EventKind::Started { .. } => {
                clock.started = Some(now);
                if self.line.begin(now, metrics) {
                    metrics.prompt_tokens.inc_by(self.job.prompt.len() as u64);
                    metrics.prompt_length.observe(self.job.prompt.len() as f64);
                }
                None
            }
            EventKind::Delta { .. } => {
                match clock.last.replace(now) {
                    Some(last) => metrics.inter_token.observe((now - last).as_secs_f64()),
                    None => {
                        clock.first = Some(now);
                        metrics.first_token.observe(self.line.elapsed(now).as_secs_f64());
                    }
                }
                None
            }
            EventKind::Finished { usage, .. } => {
                let started = clock.started.unwrap_or(now);
                let first = clock.first.unwrap_or(now);
                let timings = Timings {
                    queue: self.line.elapsed(started),
                    prefill: first - started,
                    decode: now - first,
                };
                metrics.prefill_time.observe(timings.prefill.as_secs_f64());
                metrics.decode_time.observe(timings.decode.as_secs_f64());
                metrics.generation_length.observe(f64::from(usage.completion_tokens));
                if let Some(rate) = timings.decode_tokens_per_s(usage.completion_tokens) {
                    metrics.per_output_token.observe(1.0 / rate);
                }
                Some(timings)
            }
            // The worker ends the whole job. Of these, completions only have text and log probabilities.
            EventKind::Scored(_)
            | EventKind::Failed
            | EventKind::Heard(_)
            | EventKind::Said(_)
            | EventKind::Unsayable { .. }
            | EventKind::ConstraintFailed { .. }
            | EventKind::Computed(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_decode_rate_is_of_the_tokens_after_the_first_over_the_time_after_the_first() {
        let of = |decode_ms, tokens| {
            let decode = Duration::from_millis(decode_ms);
            Timings { decode, ..Timings::default() }.decode_tokens_per_s(tokens)
        };
        assert_eq!((of(300, 4), of(2000, 101)), (Some(10.0), Some(50.0)));
        // A single token has no rate, nor have several tokens of a single step.
        assert_eq!((of(300, 0), of(300, 1), of(0, 4)), (None, None, None));
    }

    #[test]
    fn decoding_is_measured_from_the_first_sampled_token_though_its_text_waits() {
        let (admission, all) = (Admission::new(1), crate::metrics::Metrics::new(0));
        let (metrics, arrived) = (all.model("measured"), Instant::now());
        let job = Job { prompt: [1].into(), ..Job::default() };
        let (id, place) = (job.id, admission.enter().unwrap_or_else(|_| panic!("there is room")));
        let (mut ticket, _events) = ticket(job, place, arrived, None, 16, Waker::noop().clone());
        let delta = |text: &str| EventKind::Delta {
            text: text.to_owned(),
            reasoning: String::new(),
            calls: Vec::new(),
            tokens: Vec::new(),
            logprobs: Vec::new(),
        };
        let usage = hanzo_engine_runtime::Usage { completion_tokens: 4, ..Default::default() };
        let end = EventKind::Finished { reason: FinishReason::Stop, stop_string: None, usage };
        let mut timings = None;
        // The text of all four tokens comes with the last one.
        for (ms, kind) in
            [(10, EventKind::Started { cached_tokens: 0 }), (30, delta("")), (330, delta("abcd")), (330, end)]
        {
            let now = arrived + Duration::from_millis(ms);
            timings = ticket.measure(&Event { job: id, choice: 0, kind }, now, &metrics);
        }
        let timings = timings.expect("of the end");
        let spent = [timings.queue, timings.prefill, timings.decode].map(|time| time.as_millis());
        assert_eq!((spent, timings.decode_tokens_per_s(4)), ([10, 20, 300], Some(10.0)));
    }
}
