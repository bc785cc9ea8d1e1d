//! Common connection between a client and its worker for every kind of request: the events in flight, the place in
//! the model's queue, and the end. The number of events is bounded. The worker never waits for the client; it
//! pauses the job. Dropping the client's end cancels the request.

use std::{
    sync::{Arc, OnceLock},
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use super::{ClientState, JobEnd, TicketClient, events};
use crate::{
    admission::{Admission, QueuePlace, RunningPlace},
    metrics::ModelMetrics,
};

/// Worker's end.
pub(crate) struct EventLine<E> {
    events: events::Sender<E>,
    ended: Arc<OnceLock<JobEnd>>,
    arrived: Instant,
    deadline: Option<Instant>,
    state: QueueState,
}

/// Client's end.
pub(crate) struct Events<E> {
    events: events::Receiver<E>,
    ended: Arc<OnceLock<JobEnd>>,
}

enum QueueState {
    Waiting(QueuePlace),
    Running { since: Instant, _place: RunningPlace },
    Gone,
}

/// Creates the two ends with room for `events_max` events. `worker` is woken when the client reads or disconnects.
pub(super) fn line<E>(
    place: QueuePlace,
    arrived: Instant,
    deadline: Option<Instant>,
    events_max: usize,
    worker: Waker,
) -> (EventLine<E>, Events<E>) {
    let (sender, events) = events::channel(events_max, worker);
    let ended = Arc::new(OnceLock::new());
    let state = QueueState::Waiting(place);
    (EventLine { events: sender, ended: ended.clone(), arrived, deadline, state }, Events { events, ended })
}

impl<E> EventLine<E> {
    /// Time since the arrival.
    pub(super) fn elapsed(&self, now: Instant) -> Duration {
        now - self.arrived
    }

    /// Marks the request as running and frees its place in the queue. True if it was waiting until now.
    pub(super) fn begin(&mut self, now: Instant, metrics: &ModelMetrics) -> bool {
        self.state = match std::mem::replace(&mut self.state, QueueState::Gone) {
            QueueState::Waiting(place) => QueueState::Running { since: now, _place: place.begin() },
            state => {
                self.state = state;
                return false;
            }
        };
        metrics.queue_time.observe(self.elapsed(now).as_secs_f64());
        true
    }

    /// Sends an event; [`EventLine::must_pause`] guarantees that there is room.
    pub(super) fn send(&self, event: E) {
        self.events.send(event);
    }

    /// Whether the job must pause because this many events might not fit. Not called again until it resumes.
    pub(super) fn must_pause(&self, events: usize) -> bool {
        self.events.must_pause(events)
    }

    /// Marks the request as complete. Called before its last event is sent, so that a client that has read it finds
    /// its place free.
    pub(super) fn done(&mut self, now: Instant, admission: &Admission) {
        if let QueueState::Running { since, .. } = &self.state {
            admission.served(now - *since);
        }
        self.end(JobEnd::Done);
    }
}

impl<E> TicketClient for EventLine<E> {
    fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    fn client_state(&self, now: Instant) -> ClientState {
        if self.events.is_closed() {
            ClientState::Left
        } else if self.deadline.is_some_and(|deadline| deadline <= now) {
            ClientState::Late
        } else if self.events.resumes() {
            ClientState::Resume
        } else {
            ClientState::Fine
        }
    }

    fn waits(&self) -> bool {
        matches!(self.state, QueueState::Waiting(_))
    }

    fn end(&mut self, end: JobEnd) {
        self.state = QueueState::Gone;
        // Only the worker sets it, and once: an ended line is dropped.
        let _ = self.ended.set(end);
    }
}

impl<E> Events<E> {
    /// Next event, or the end of the request.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<E, JobEnd>> {
        let lost = || JobEnd::Stopped("the model's worker ended");
        let end = || self.ended.get().cloned().unwrap_or_else(lost);
        self.events.poll_next(context).map(|event| event.ok_or_else(end))
    }
}
