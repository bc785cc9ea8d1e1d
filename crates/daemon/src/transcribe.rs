//! Transcription as a service asks for it: samples in as they come, what is known of them out. The samples wait in a
//! bounded channel, which the model takes from as it goes, so that a slow model holds the sender back; dropping what
//! comes out cancels the request.

use std::{
    future::poll_fn,
    sync::Arc,
    time::{Duration, Instant},
};

use hanzo_engine_runtime::{
    ClientId,
    whisper::{TranscribeJob, TranscribeOptions, Transcript, Vocabulary},
};
use tokio::sync::mpsc;

use crate::{
    convert::reply,
    error::Error,
    prompt_builder::Build,
    served::{Served, TRANSCRIBE},
    ticket::{SoundEvents, sound_ticket},
    worker::{NotGiven, Work},
};

/// Chunks of samples that wait for the model: of so many the channel should be.
pub(crate) const SOUND_CHUNKS: usize = 4;
/// Samples of a chunk at most: 30 seconds.
pub(crate) const CHUNK_SAMPLES_MAX: usize = 480_000;

/// What is asked, and by whom.
pub(crate) struct Asked {
    pub(crate) options: TranscribeOptions,
    /// Lower runs earlier.
    pub(crate) priority: i32,
    pub(crate) client: Option<ClientId>,
    pub(crate) arrived: Instant,
    pub(crate) deadline: Option<Instant>,
}

/// What comes of it. Dropping it is the cancellation.
pub(crate) struct Transcription {
    events: SoundEvents,
    over: bool,
    /// From arrival to the first event; known from then on.
    pub(crate) queue: Option<Duration>,
}

impl Transcription {
    /// The next event; the last is [`Transcript::Finished`] or an error, after which there is none.
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

impl Served {
    /// # Errors
    /// [`Error::CannotDo`], with what it can do.
    pub(crate) fn must_transcribe(&self) -> Result<&Arc<Vocabulary>, Error> {
        self.listener.as_ref().ok_or_else(|| self.cannot(TRANSCRIBE))
    }

    /// Has it write down what is said in the samples of `sound`: 16 kHz, one channel, each chunk at most
    /// [`CHUNK_SAMPLES_MAX`] of them; dropping the sender ends the sound. The model's use must be held until the last event.
    ///
    /// # Errors
    /// [`Error::CannotDo`], [`Error::Request`] (`language`, `translate`, `prompt`, `temperatures`), [`Error::QueueFull`].
    pub(crate) async fn transcribe(
        self: &Arc<Self>,
        asked: Asked,
        sound: mpsc::Receiver<Vec<f32>>,
    ) -> Result<Transcription, Error> {
        let Asked { options, priority, client, arrived, deadline } = asked;
        let vocabulary = self.must_transcribe()?.clone();
        let place = self.enter()?;
        // A prompt is text to be tokenized.
        let build = Build { what: "tokenizing the prompt", client, by: deadline, is_large: false };
        let ask =
            move |interrupted: &dyn Fn() -> bool| vocabulary.ask(&options, interrupted).map_err(Error::from);
        let asked = self.prompts.run(build, ask).await?;
        let job = TranscribeJob { id: self.next_job(), asked, priority, client };
        let waker = self.worker.waker().clone();
        let (ticket, events) = sound_ticket(job, sound, place, (arrived, deadline), waker);
        self.worker.give(Work::Transcribe(ticket), Instant::now()).map_err(|why| match why {
            NotGiven::Full => self.queue_full(),
            NotGiven::Left => Error::Stopped { what: "the model's worker ended" },
        })?;
        Ok(Transcription { events, over: false, queue: None })
    }
}
