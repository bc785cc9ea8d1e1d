//! One text that is said, between its client and its worker: samples lie between them, piece by piece, as many pieces as there is
//! room for; the worker never waits, it leaves a text alone whose client does not listen. Dropping the client's end is the
//! cancellation.

use std::{task::Waker, time::Instant};

use hanzo_engine_runtime::{Event, EventKind, JobId};
use hanzo_engine_voice::{SpeakError, Speech, SpeechJob};
use tokio::sync::mpsc;

use super::{ClientState, JobEnd, Place};
use crate::{
    admission::{Admission, QueuePlace},
    limits::SPEECH_PIECES_MAX,
    metrics::ModelMetrics,
};

/// What a client is told of a text that is said.
pub(crate) enum Spoken {
    /// Samples of a piece.
    Sound(Vec<f32>),
    /// A piece cannot be said, and nothing after it.
    Refused(String),
    /// Nothing comes after this.
    End(JobEnd),
}

/// The worker's end.
pub(crate) struct SpeakTicket {
    /// What is to be done; the engine takes it.
    pub(crate) job: Option<SpeechJob>,
    pub(crate) id: JobId,
    phonemes: u32,
    sound: mpsc::Sender<Spoken>,
    deadline: Option<Instant>,
    arrived: Instant,
    place: Place,
}

/// The client's end.
pub(crate) struct Listening {
    sound: mpsc::Receiver<Spoken>,
    worker: Waker,
}

/// How a text is said.
pub(crate) struct Manner {
    pub(crate) speed: f32,
    pub(crate) seed: u64,
    pub(crate) priority: i32,
}

/// The two ends of a text that is said; `worker` is woken when the client listens or leaves.
pub(crate) fn speak_ticket(
    (id, speech, manner): (JobId, Speech, Manner),
    place: QueuePlace,
    arrived: Instant,
    deadline: Option<Instant>,
    worker: Waker,
) -> (SpeakTicket, Listening) {
    // One place more: that of the end.
    let (sender, sound) = mpsc::channel(SPEECH_PIECES_MAX + 1);
    let out = sender.clone();
    let tell = move |said: Result<Vec<f32>, SpeakError>| {
        // The client may have left; there is room, because the text was left alone otherwise.
        let _ = out.try_send(said.map_or_else(|error| Spoken::Refused(error.to_string()), Spoken::Sound));
    };
    let phonemes = speech.phonemes;
    let Manner { speed, seed, priority } = manner;
    let job = SpeechJob { id, speech, speed, seed, priority, sound: Box::new(tell) };
    let place = Place::Waiting(place);
    let ticket = SpeakTicket { job: Some(job), id, phonemes, sound: sender, deadline, arrived, place };
    (ticket, Listening { sound, worker })
}

impl SpeakTicket {
    /// When it must have ended.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Whether its client left, is late or listens again.
    pub(crate) fn client_state(&self, now: Instant) -> ClientState {
        if self.sound.is_closed() {
            ClientState::Left
        } else if self.deadline.is_some_and(|deadline| deadline <= now) {
            ClientState::Late
        } else if self.must_pause() {
            ClientState::Fine
        } else {
            ClientState::Resume
        }
    }

    /// Whether its client must listen before it may go on.
    pub(crate) fn must_pause(&self) -> bool {
        self.sound.capacity() < 2
    }

    /// Takes what happened. True when it was the last.
    pub(crate) fn take(
        &mut self,
        event: &Event,
        now: Instant,
        metrics: &ModelMetrics,
        admission: &Admission,
    ) -> bool {
        match event.kind {
            EventKind::Started { .. } => {
                metrics.queue_time.observe((now - self.arrived).as_secs_f64());
                metrics.prompt_tokens.inc_by(u64::from(self.phonemes));
                metrics.prompt_length.observe(f64::from(self.phonemes));
                if let Place::Waiting(place) = std::mem::replace(&mut self.place, Place::Gone) {
                    self.place = Place::Running { since: now, _place: place.begin() };
                }
                false
            }
            EventKind::Finished { .. } => {
                if let Place::Running { since, .. } = &self.place {
                    admission.served(now - *since);
                }
                true
            }
            // A text that is said has no others.
            _ => false,
        }
    }

    /// Ends it.
    pub(crate) fn end(self, end: JobEnd) {
        // There is always room for the end.
        let _ = self.sound.try_send(Spoken::End(end));
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
}

impl Listening {
    /// What is said next. `None`: the worker has gone.
    pub(crate) async fn next(&mut self) -> Option<Spoken> {
        let said = self.sound.recv().await;
        self.worker.wake_by_ref();
        said
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.sound.close();
        self.worker.wake_by_ref();
    }
}
