//! What lies between a client and its worker, whatever is asked: events on their way, the place in the model's queue, and how
//! it ended. A bounded number of events lie there; the worker never waits for the client, it pauses the job. Dropping the
//! client's end is the cancellation.

use std::{
    sync::{Arc, OnceLock},
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use super::{Client, ClientState, JobEnd, events};
use crate::{
    admission::{Admission, QueuePlace, RunningPlace},
    metrics::ModelMetrics,
};

/// The worker's end.
pub(crate) struct Line<E> {
    events: events::Sender<E>,
    ended: Arc<OnceLock<JobEnd>>,
    arrived: Instant,
    deadline: Option<Instant>,
    place: Place,
}

/// The client's end.
pub(crate) struct Events<E> {
    events: events::Receiver<E>,
    ended: Arc<OnceLock<JobEnd>>,
}

enum Place {
    Waiting(QueuePlace),
    Running { since: Instant, _place: RunningPlace },
    Gone,
}

/// The two ends, with room for so many events between them; `worker` is woken when the client reads or leaves.
pub(super) fn line<E>(
    place: QueuePlace,
    (arrived, deadline): (Instant, Option<Instant>),
    events_max: usize,
    worker: Waker,
) -> (Line<E>, Events<E>) {
    let (sender, events) = events::channel(events_max, worker);
    let ended = Arc::new(OnceLock::new());
    let place = Place::Waiting(place);
    (Line { events: sender, ended: ended.clone(), arrived, deadline, place }, Events { events, ended })
}

impl<E> Line<E> {
    /// From its arrival to now.
    pub(super) fn elapsed(&self, now: Instant) -> Duration {
        now - self.arrived
    }

    /// It runs, and its place in the queue is free. Whether it has waited until now.
    pub(super) fn begin(&mut self, now: Instant, metrics: &ModelMetrics) -> bool {
        self.place = match std::mem::replace(&mut self.place, Place::Gone) {
            Place::Waiting(place) => Place::Running { since: now, _place: place.begin() },
            place => {
                self.place = place;
                return false;
            }
        };
        metrics.queue_time.observe(self.elapsed(now).as_secs_f64());
        true
    }

    /// Sends an event; there is room, see [`Line::must_pause`].
    pub(super) fn send(&self, event: E) {
        self.events.send(event);
    }

    /// Whether the job must pause, because so many events might not fit. Not asked again until it resumed.
    pub(super) fn must_pause(&self, events: usize) -> bool {
        self.events.must_pause(events)
    }

    /// All of it is done. Before its last event: a client that has read that finds its place free.
    pub(super) fn done(&mut self, now: Instant, admission: &Admission) {
        if let Place::Running { since, .. } = &self.place {
            admission.served(now - *since);
        }
        self.end(JobEnd::Done);
    }
}

impl<E> Client for Line<E> {
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
        matches!(self.place, Place::Waiting(_))
    }

    fn end(&mut self, end: JobEnd) {
        self.place = Place::Gone;
        // Only the worker sets it, and once: a line that has ended is dropped.
        let _ = self.ended.set(end);
    }
}

impl<E> Events<E> {
    /// The next event, or how it ended.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<E, JobEnd>> {
        let lost = || JobEnd::Stopped("the model's worker ended");
        let end = || self.ended.get().cloned().unwrap_or_else(lost);
        self.events.poll_next(context).map(|event| event.ok_or_else(end))
    }
}
