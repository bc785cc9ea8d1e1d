//! Interface of transcription for services: samples go in as they arrive, the transcript comes out. The samples
//! wait in a bounded channel that the model reads at its own pace, so that a slow model holds the sender back.
//! Dropping the output cancels the request.

use std::{
    future::poll_fn,
    sync::Arc,
    time::{Duration, Instant},
};

use hanzo_engine_runtime::{
    ClientId,
    transcript::Transcript,
    whisper::{TranscribeJob, TranscribeOptions, Vocabulary},
};
use tokio::sync::mpsc;

use crate::{
    convert::reply,
    error::Error,
    prompt_builder::Build,
    served::{ServedModel, TRANSCRIBE},
    ticket::{SoundEvents, sound_ticket},
    worker::{NotGiven, WorkItem},
};

/// Recommended capacity of the sample channel, in chunks.
pub(crate) const SOUND_CHUNKS: usize = 4;
/// Maximum number of samples in a chunk: 30 seconds.
pub(crate) const CHUNK_SAMPLES_MAX: usize = 480_000;

/// Options of a transcription and its client.
pub(crate) struct TranscribeRequest {
    pub(crate) options: TranscribeOptions,
    /// Priority; lower values run earlier.
    pub(crate) priority: i32,
    pub(crate) client: Option<ClientId>,
    pub(crate) arrived: Instant,
    pub(crate) deadline: Option<Instant>,
}

/// Transcript in progress. Dropping it cancels the request.
pub(crate) struct Transcription {
    events: SoundEvents,
    over: bool,
    /// Time from the arrival to the first event, once that has occurred.
    pub(crate) queue: Option<Duration>,
}

impl Transcription {
    /// Next event. The last one is [`Transcript::Finished`] or an error; `None` after it.
    pub(crate) async fn next(&mut self) -> Option<Result<Transcript, Error>> {
        if self.over {
            return None;
        }
        match poll_fn(|context| self.events.poll_next(context)).await {
            Ok(heard) => {
                self.queue.get_or_insert(heard.elapsed);
                self.over = matches!(heard.transcript, Transcript::Finished { .. });
                Some(Ok(heard.transcript))
            }
            Err(end) => {
                self.over = true;
                reply::job_end(end).map(Err)
            }
        }
    }
}

impl ServedModel {
    /// # Errors
    /// [`Error::CannotDo`], with what it can do.
    pub(crate) fn must_transcribe(&self) -> Result<&Arc<Vocabulary>, Error> {
        self.listener.as_ref().ok_or_else(|| self.cannot(TRANSCRIBE))
    }

    /// Starts transcribing the samples of `sound`: 16 kHz mono, at most [`CHUNK_SAMPLES_MAX`] in each chunk.
    /// Dropping the sender ends the sound. The model's use must be held until the last event.
    ///
    /// # Errors
    /// [`Error::CannotDo`], [`Error::Request`] (`language`, `translate`, `prompt`, `temperatures`), [`Error::QueueFull`].
    pub(crate) async fn transcribe(
        self: &Arc<Self>,
        request: TranscribeRequest,
        sound: mpsc::Receiver<Vec<f32>>,
    ) -> Result<Transcription, Error> {
        let TranscribeRequest { options, priority, client, arrived, deadline } = request;
        let vocabulary = self.must_transcribe()?.clone();
        let place = self.enter()?;
        // The prompt is text that must be tokenized.
        let build = Build { what: "tokenizing the prompt", client, by: deadline, is_large: false };
        let ask =
            move |interrupted: &dyn Fn() -> bool| vocabulary.ask(&options, interrupted).map_err(Error::from);
        let asked = self.prompts.run(build, ask).await?;
        let job = TranscribeJob { id: self.next_job(), asked, priority, client };
        let waker = self.worker.waker().clone();
        let (ticket, events) = sound_ticket(job, sound, place, arrived, deadline, waker);
        self.worker.give(WorkItem::Transcribe(ticket), Instant::now()).map_err(|why| match why {
            NotGiven::Full => self.queue_full(),
            NotGiven::Left => Error::Stopped { what: "the model's worker ended" },
        })?;
        Ok(Transcription { events, over: false, queue: None })
    }
}
