//! Connection of one sound between its client and its worker. The worker takes samples as its engine can use them,
//! and sends back the transcript. Dropping the client's end cancels the request; dropping the sender of the samples
//! ends the sound.

use std::{
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use hanzo_engine_runtime::{Event, EventKind, transcript::Transcript, whisper::TranscribeJob};
use tokio::sync::mpsc;

use super::{EventLine, Events, line};
use crate::{
    admission::{Admission, QueuePlace},
    limits::{EVENTS_MAX, WINDOW_EVENTS_MAX},
    metrics::ModelMetrics,
};

/// Worker's end of a sound.
pub(crate) struct SoundTicket {
    pub(crate) job: TranscribeJob,
    sound: Option<mpsc::Receiver<Vec<f32>>>, // `None` once the sound has ended
    worker: Waker,
    pub(crate) line: EventLine<TranscriptPart>,
}

/// Part of a transcription with its time.
pub(crate) struct TranscriptPart {
    pub(crate) transcript: Transcript,
    /// Time since the arrival.
    pub(crate) elapsed: Duration,
}

/// Client's end of a sound.
pub(crate) type SoundEvents = Events<TranscriptPart>;

/// Creates the two ends of a sound. `worker` is woken when samples arrive, and when the client reads or
/// disconnects.
pub(crate) fn sound_ticket(
    job: TranscribeJob,
    sound: mpsc::Receiver<Vec<f32>>,
    place: QueuePlace,
    arrived: Instant,
    deadline: Option<Instant>,
    worker: Waker,
) -> (SoundTicket, SoundEvents) {
    let (line, events) = line(place, arrived, deadline, EVENTS_MAX, worker.clone());
    (SoundTicket { job, sound: Some(sound), worker, line }, events)
}

impl SoundTicket {
    /// Samples that have arrived, or `Some(None)` once at the sound's end. `None` if there are none yet; the worker
    /// is then woken when there are.
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

    /// Forwards a part of the transcript. True if it was the last.
    pub(crate) fn pass(
        &mut self,
        event: Event,
        now: Instant,
        metrics: &ModelMetrics,
        admission: &Admission,
    ) -> bool {
        let EventKind::Heard(transcript) = event.kind else { return false };
        self.line.begin(now, metrics);
        let over = matches!(*transcript, Transcript::Finished { .. });
        if over {
            self.line.done(now, admission);
        }
        self.line.send(TranscriptPart { transcript: *transcript, elapsed: self.line.elapsed(now) });
        over
    }

    /// Whether the sound must pause because its next window's events might not fit beside those of the current one.
    pub(crate) fn must_pause(&self) -> bool {
        self.line.must_pause(2 * WINDOW_EVENTS_MAX)
    }
}
