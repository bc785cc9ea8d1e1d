//! Connection of one text to speak between its client and its worker. It carries the samples of the text's
//! segments. Dropping the client's end cancels the request.

use std::{
    collections::VecDeque,
    task::Waker,
    time::{Duration, Instant},
};

use hanzo_engine_runtime::{Event, EventKind, JobId};
use hanzo_engine_voice::SpeechJob;

use super::{EventLine, Events, line};
use crate::{
    admission::{Admission, QueuePlace},
    limits::{SPEECH_PIECES_MAX, SPEECH_STEP_PIECES},
    metrics::ModelMetrics,
};

/// Worker's end of a text.
pub(crate) struct SpeakTicket {
    pub(crate) id: JobId,
    job: Option<SpeechJob>, // until the engine takes it
    phonemes: u32,
    phonemes_after: VecDeque<u32>, // after each segment that was not spoken yet
    pub(crate) line: EventLine<SpokenPiece>,
}

/// Segment of a text with its measurements.
pub(crate) struct SpokenPiece {
    pub(crate) samples: Vec<f32>,
    /// Phonemes spoken so far, with this segment.
    pub(crate) phonemes: u32,
    /// Time since the arrival.
    pub(crate) elapsed: Duration,
}

/// Client's end of a text.
pub(crate) type SpokenPieces = Events<SpokenPiece>;

/// Creates the two ends of a text. `worker` is woken when the client reads or disconnects.
pub(crate) fn speak_ticket(
    job: SpeechJob,
    place: QueuePlace,
    arrived: Instant,
    deadline: Option<Instant>,
    worker: Waker,
) -> (SpeakTicket, SpokenPieces) {
    let (line, pieces) = line(place, arrived, deadline, SPEECH_PIECES_MAX, worker);
    let (id, phonemes, phonemes_after) = (job.id, job.speech.phonemes, job.speech.phonemes_after().into());
    (SpeakTicket { id, job: Some(job), phonemes, phonemes_after, line }, pieces)
}

impl SpeakTicket {
    /// Job for the engine; returned once.
    pub(crate) fn take_job(&mut self) -> Option<SpeechJob> {
        self.job.take()
    }

    /// Forwards a segment. True if it was the last.
    pub(crate) fn pass(
        &mut self,
        event: Event,
        now: Instant,
        metrics: &ModelMetrics,
        admission: &Admission,
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

    /// Whether it must pause because its next segment might not fit.
    pub(crate) fn must_pause(&self) -> bool {
        self.line.must_pause(SPEECH_STEP_PIECES)
    }
}
