//! One sound between its client and its worker: the worker takes samples as its engine can use them, and puts in what was
//! heard. Dropping the client's end is the cancellation; dropping the sender of the samples ends the sound.

use std::{
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use hanzo_engine_runtime::{
    Event, EventKind,
    whisper::{TranscribeJob, Transcript},
};
use tokio::sync::mpsc;

use super::{Events, Line, line};
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
    pub(crate) line: Line<Heard>,
}

/// A part of a transcription, with what only the worker can measure.
pub(crate) struct Heard {
    pub(crate) transcript: Transcript,
    /// From arrival to now.
    pub(crate) elapsed: Duration,
}

/// The client's end.
pub(crate) type SoundEvents = Events<Heard>;

/// The two ends of a sound; `worker` is woken when samples come, and when the client reads or leaves.
pub(crate) fn sound_ticket(
    job: TranscribeJob,
    sound: mpsc::Receiver<Vec<f32>>,
    place: QueuePlace,
    times: (Instant, Option<Instant>),
    worker: Waker,
) -> (SoundTicket, SoundEvents) {
    let (line, events) = line(place, times, EVENTS_MAX, worker.clone());
    (SoundTicket { job, sound: Some(sound), worker, line }, events)
}

impl SoundTicket {
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
        self.line.begin(now, metrics);
        let over = matches!(*transcript, Transcript::Finished { .. });
        if over {
            self.line.done(now, admission);
        }
        self.line.send(Heard { transcript: *transcript, elapsed: self.line.elapsed(now) });
        over
    }

    /// Whether the sound must pause, because its next window's events might not fit beside those of the one at hand.
    pub(crate) fn must_pause(&self) -> bool {
        self.line.must_pause(2 * WINDOW_EVENTS_MAX)
    }
}
