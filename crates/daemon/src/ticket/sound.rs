//! One sound between its client and its worker: the worker takes samples as its engine can use them, and puts in what was
//! heard. Dropping the client's end is the cancellation; dropping the sender of the samples ends the sound.

use std::{
    sync::{Arc, OnceLock},
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use hanzo_engine_runtime::{
    Event, EventKind,
    whisper::{TranscribeJob, Transcript},
};
use tokio::sync::mpsc;

use super::{ClientState, JobEnd, Place, events};
use crate::{
    admission::{Admission, QueuePlace},
    limits::{EVENTS_MAX, WINDOW_EVENTS_MAX},
    metrics::ModelMetrics,
};

/// The worker's end.
pub(crate) struct SoundTicket {
    pub(crate) job: TranscribeJob,
    sound: Option<mpsc::Receiver<Vec<f32>>>, // none: it has ended
    worker: Waker,
    events: events::Sender<Heard>,
    ended: Arc<OnceLock<JobEnd>>,
    deadline: Option<Instant>,
    arrived: Instant,
    place: Place,
}

/// A part of a transcription, with what only the worker can measure.
pub(crate) struct Heard {
    pub(crate) transcript: Transcript,
    /// From arrival to now.
    pub(crate) elapsed: Duration,
}

/// The client's end.
pub(crate) struct SoundEvents {
    events: events::Receiver<Heard>,
    ended: Arc<OnceLock<JobEnd>>,
}

/// The two ends of a sound; `worker` is woken when samples come, and when the client reads or leaves.
pub(crate) fn sound_ticket(
    job: TranscribeJob,
    sound: mpsc::Receiver<Vec<f32>>,
    place: QueuePlace,
    (arrived, deadline): (Instant, Option<Instant>),
    worker: Waker,
) -> (SoundTicket, SoundEvents) {
    let (sender, events) = events::channel(EVENTS_MAX, worker.clone());
    let ended = Arc::new(OnceLock::new());
    let ticket = SoundTicket {
        job,
        sound: Some(sound),
        worker,
        events: sender,
        ended: ended.clone(),
        deadline,
        arrived,
        place: Place::Waiting(place),
    };
    (ticket, SoundEvents { events, ended })
}

impl SoundTicket {
    /// When it must have ended.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Whether its client left, is late or reads again.
    pub(crate) fn client_state(&self, now: Instant) -> ClientState {
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

    /// Samples that have come, or the sound's end, which is told once; nothing where there are none yet, and then the worker is
    /// woken when there are.
    pub(crate) fn listen(&mut self) -> Option<Option<Vec<f32>>> {
        let polled = self.sound.as_mut()?.poll_recv(&mut Context::from_waker(&self.worker));
        match polled {
            Poll::Ready(Some(samples)) => Some(Some(samples)),
            Poll::Ready(None) => {
                self.sound = None;
                Some(None)
            }
            Poll::Pending => None,
        }
    }

    /// Passes on what was heard. True when it was the last.
    pub(crate) fn pass(
        &mut self,
        event: Event,
        now: Instant,
        (metrics, admission): (&ModelMetrics, &Admission),
    ) -> bool {
        let EventKind::Heard(transcript) = event.kind else { return false };
        if let Place::Waiting(_) = self.place
            && let Place::Waiting(place) = std::mem::replace(&mut self.place, Place::Gone)
        {
            self.place = Place::Running { since: now, _place: place.begin() };
            metrics.queue_time.observe((now - self.arrived).as_secs_f64());
        }
        let over = matches!(*transcript, Transcript::Finished { .. });
        if over {
            if let Place::Running { since, .. } = &self.place {
                admission.served(now - *since);
            }
            self.finish(JobEnd::Done);
        }
        self.events.send(Heard { transcript: *transcript, elapsed: now - self.arrived });
        over
    }

    /// Whether the sound must pause, because its next window's events might not fit beside those of the one at hand.
    pub(crate) fn must_pause(&self) -> bool {
        self.events.must_pause(2 * WINDOW_EVENTS_MAX)
    }

    /// Ends it early; queued events are still read first.
    pub(crate) fn end(mut self, end: JobEnd) {
        self.finish(end);
    }

    /// Ends it because its worker failed.
    pub(crate) fn fail(self, error_id: &str) {
        let error_id = error_id.to_owned();
        let end = match self.place {
            Place::Waiting(_) => JobEnd::NotReached { error_id },
            Place::Running { .. } | Place::Gone => JobEnd::WorkerFailed { error_id },
        };
        self.end(end);
    }

    fn finish(&mut self, end: JobEnd) {
        self.place = Place::Gone;
        // Only the worker sets it, and once: a finished ticket is dropped.
        let _ = self.ended.set(end);
    }
}

impl SoundEvents {
    /// The next event, or how the sound ended.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Heard, JobEnd>> {
        let lost = || JobEnd::Stopped("the model's worker ended");
        let end = || self.ended.get().cloned().unwrap_or_else(lost);
        self.events.poll_next(context).map(|event| event.ok_or_else(end))
    }
}
