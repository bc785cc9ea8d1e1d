//! Connection of one batch of inputs between its client and its worker. The worker collects results, and the client
//! receives all of them at once. Dropping the client's end cancels the batch.

use std::{sync::Arc, time::Instant};

use hanzo_engine_runtime::{EmbedJob, EmbedResult, Event, EventKind};
use tokio::sync::oneshot;

use super::{ClientState, JobEnd, TicketClient};
use crate::{admission::KeptPlace, metrics::ModelMetrics};

/// Response to a client: results in the order of the inputs.
pub(crate) type Results = Result<Vec<EmbedResult>, JobEnd>;

/// Worker's end of a batch.
pub(crate) struct EmbedTicket {
    /// Job to run.
    pub(crate) job: EmbedJob,
    results: Vec<Option<EmbedResult>>, // by input
    missing: usize,
    answer: Option<oneshot::Sender<Results>>, // until the response was sent
    deadline: Option<Instant>,
    arrived: Instant,
    started: bool,
    place: Arc<KeptPlace>, // until the worker drops the ticket
}

/// Creates the two ends of a job whose request holds `place`.
pub(crate) fn embed_ticket(
    job: EmbedJob,
    place: Arc<KeptPlace>,
    arrived: Instant,
    deadline: Option<Instant>,
) -> (EmbedTicket, oneshot::Receiver<Results>) {
    let (answer, answered) = oneshot::channel();
    let missing = job.inputs.len();
    let results = vec![None; missing];
    let answer = Some(answer);
    (EmbedTicket { job, results, missing, answer, deadline, arrived, started: false, place }, answered)
}

impl EmbedTicket {
    /// Handles an event. True if it was the last.
    pub(crate) fn take(&mut self, event: Event, now: Instant, metrics: &ModelMetrics) -> bool {
        match event.kind {
            EventKind::Started { .. } if !self.started => {
                self.started = true;
                self.place.begin(now);
                metrics.queue_time.observe((now - self.arrived).as_secs_f64());
                metrics.embed_batch_size.observe(self.job.inputs.len() as f64);
                for input in &self.job.inputs {
                    metrics.prompt_tokens.inc_by(input.tokens.len() as u64);
                    metrics.prompt_length.observe(input.tokens.len() as f64);
                }
            }
            EventKind::Computed(computed) => {
                if let Some(place) = self.results.get_mut(event.choice as usize) {
                    self.missing -= usize::from(place.is_none());
                    *place = Some(computed);
                }
            }
            // An embedding job has no other events; the worker ends a job that failed.
            _ => {}
        }
        self.missing == 0
    }

    /// Sends the results, which are complete.
    pub(crate) fn done(mut self) {
        let results = std::mem::take(&mut self.results);
        self.give(Ok(results.into_iter().flatten().collect()));
    }

    fn give(&mut self, results: Results) {
        // The client may have disconnected.
        let _ = self.answer.take().map(|answer| answer.send(results));
    }
}

impl TicketClient for EmbedTicket {
    fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    fn client_state(&self, now: Instant) -> ClientState {
        if self.answer.as_ref().is_none_or(oneshot::Sender::is_closed) {
            ClientState::Left
        } else if self.deadline.is_some_and(|deadline| deadline <= now) {
            ClientState::Late
        } else {
            ClientState::Fine
        }
    }

    fn waits(&self) -> bool {
        !self.started
    }

    fn end(&mut self, end: JobEnd) {
        self.give(Err(end));
    }
}
