//! Transcription as a service asks for it: samples in as they come, what is known of them out. The samples wait in a
//! bounded channel, which the model takes from as it goes, so that a slow model holds the sender back; dropping what
//! comes out cancels the request.

#![allow(dead_code, reason = "services are built on it")]

use std::{sync::Arc, time::Instant};

use hanzo_engine_runtime::{
    ClientId,
    whisper::{TranscribeOptions, Transcript},
};
use tokio::sync::mpsc;

use crate::{error::Error, served::Served};

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
    events: mpsc::Receiver<Result<Transcript, Error>>,
}

impl Transcription {
    /// The next event; the last is [`Transcript::Finished`] or an error, after which there is none.
    pub(crate) async fn next(&mut self) -> Option<Result<Transcript, Error>> {
        self.events.recv().await
    }
}

impl Served {
    /// # Errors
    /// [`Error::CannotDo`], with what it can do.
    pub(crate) fn must_transcribe(&self) -> Result<(), Error> {
        Err(self.cannot("transcribe speech"))
    }

    /// Has it write down what is said in the samples of `sound`: 16 kHz, one channel, each chunk at most
    /// [`CHUNK_SAMPLES_MAX`] of them; dropping the sender ends the sound. The model's use must be held until the last event.
    ///
    /// # Errors
    /// [`Error::CannotDo`], [`Error::Field`] (`language`, `translate`, `prompt`, `temperatures`), [`Error::QueueFull`].
    pub(crate) async fn transcribe(
        self: &Arc<Self>,
        _asked: Asked,
        _sound: mpsc::Receiver<Vec<f32>>,
    ) -> Result<Transcription, Error> {
        self.must_transcribe()?;
        let (_, events) = mpsc::channel(1);
        Ok(Transcription { events })
    }
}
