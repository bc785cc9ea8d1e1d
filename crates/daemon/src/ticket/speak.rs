//! One text that is said, between its client and its worker: the samples of its pieces lie there. Dropping the client's end is
//! the cancellation.

use std::{
    collections::VecDeque,
    task::Waker,
    time::{Duration, Instant},
};

use hanzo_engine_runtime::{Event, EventKind, JobId};
use hanzo_engine_voice::SpeechJob;

use super::{Events, Line, line};
use crate::{
    admission::{Admission, QueuePlace},
    limits::{SPEECH_PIECES_MAX, SPEECH_STEP_PIECES},
    metrics::ModelMetrics,
};

/// The worker's end.
pub(crate) struct SpeakTicket {
    pub(crate) id: JobId,
    job: Option<SpeechJob>, // until the engine has it
    phonemes: u32,
    phonemes_after: VecDeque<u32>, // each piece that is yet to be said
    pub(crate) line: Line<SpokenPiece>,
}

/// A piece of a text, with what only the worker can measure.
pub(crate) struct SpokenPiece {
    pub(crate) samples: Vec<f32>,
    /// Phonemes of the text that have been said with it.
    pub(crate) phonemes: u32,
    /// From arrival to now.
    pub(crate) elapsed: Duration,
}

/// The client's end.
pub(crate) type SpokenPieces = Events<SpokenPiece>;

/// The two ends of a text that is said; `worker` is woken when the client reads or leaves.
pub(crate) fn speak_ticket(
    job: SpeechJob,
    place: QueuePlace,
    times: (Instant, Option<Instant>),
    worker: Waker,
) -> (SpeakTicket, SpokenPieces) {
    let (line, pieces) = line(place, times, SPEECH_PIECES_MAX, worker);
    let (id, phonemes, phonemes_after) = (job.id, job.speech.phonemes, job.speech.phonemes_after().into());
    (SpeakTicket { id, job: Some(job), phonemes, phonemes_after, line }, pieces)
}

impl SpeakTicket {
    /// What is to be said, for the engine; once.
    pub(crate) fn take_job(&mut self) -> Option<SpeechJob> {
        self.job.take()
    }

    /// Passes on what was said. True when it was the last.
    pub(crate) fn pass(
        &mut self,
        event: Event,
        now: Instant,
        (metrics, admission): (&ModelMetrics, &Admission),
    ) -> bool {
        match event.kind {
            EventKind::Started { .. } if self.line.begin(now, metrics) => {
                metrics.prompt_tokens.inc_by(u64::from(self.phonemes));
                metrics.prompt_length.observe(f64::from(self.phonemes));
            }
            EventKind::Said(samples) => {
                let phonemes = self.phonemes_after.pop_front().unwrap_or(self.phonemes);
                self.line.send(SpokenPiece { samples, phonemes, elapsed: self.line.elapsed(now) });
            }
            EventKind::Finished { .. } => {
                self.line.done(now, admission);
                return true;
            }
            _ => {}
        }
        false
    }

    /// Whether it must pause, because its next piece might not fit.
    pub(crate) fn must_pause(&self) -> bool {
        self.line.must_pause(SPEECH_STEP_PIECES)
    }
}
