//! Transcription whose file is still arriving: file pieces and events flow at the same time, each at the pace
//! of its receiver.

use std::pin::Pin;

use futures_util::{Stream, StreamExt as _};
use hanzo_engine_proto::v1::{
    TranscribeConfig, TranscribeEvent, TranscribeFinished, TranscribeStarted, TranscriptSegment,
    transcribe_event::Event,
};
use tokio::sync::mpsc;
use tonic::Status;

use super::{form::Form, request::Task};
use crate::{app::App, asker::Asker, error::ApiError, limits::SOUND_PIECES_MAX, until::Until};

/// Event stream of a transcription.
pub(crate) type Events = Pin<Box<dyn Stream<Item = Result<TranscribeEvent, Status>> + Send>>;

/// Started transcription whose file has arrived.
pub(crate) struct RunningTranscription {
    /// Events so far: all of them if the answer is not streamed.
    pub(crate) events: Vec<Event>,
    /// Events to come.
    pub(crate) rest: Option<Events>,
    pub(crate) until: Until,
    pub(crate) logprobs: bool,
    task: Task,
}

impl RunningTranscription {
    /// Next event, within the request's time limit; None: the end.
    pub(crate) async fn next(&mut self) -> Option<Result<Event, ApiError>> {
        let events = self.rest.as_mut()?;
        let next = self.until.run(async { events.next().await.transpose() }).await;
        match next {
            Ok(Some(event)) => match event.event {
                Some(event) => Some(Ok(event)),
                // A kind unknown to this version.
                None => Box::pin(self.next()).await,
            },
            Ok(None) => None,
            Err(error) => {
                self.rest = None;
                Some(Err(self.named(error)))
            }
        }
    }

    fn named(&self, error: ApiError) -> ApiError {
        named(error, self.task)
    }
}

/// Starts a transcription, sends its file, and collects events meanwhile; all of them if the answer is not
/// streamed.
pub(crate) async fn begin(
    app: &App,
    asker: &Asker,
    config: TranscribeConfig,
    form: &mut Form,
    until: Until,
    stream: bool,
    task: Task,
) -> Result<RunningTranscription, ApiError> {
    let logprobs = config.logprobs;
    let (to, file) = mpsc::channel(SOUND_PIECES_MAX);
    let mut engine = app.engine(asker);
    let calling = engine.transcribe(config, file, until.deadline);
    let mut transcription =
        RunningTranscription { events: Vec::new(), rest: None, until: until.clone(), logprobs, task };
    let mut sending = Box::pin(form.send(to));
    let mut calling = Box::pin(calling);
    let mut sent = false;
    loop {
        if sent && stream && transcription.rest.is_some() && !transcription.events.is_empty() {
            return Ok(transcription);
        }
        let answered = transcription.rest.is_some();
        tokio::select! {
            biased;
            done = &mut sending, if !sent => {
                done?;
                sent = true;
            }
            events = until.run(async { (&mut calling).await }), if !answered => {
                let events: Events = Box::pin(events.map_err(|error| named(error, task))?);
                transcription.rest = Some(events);
            }
            event = transcription.next(), if answered => match event {
                Some(event) => transcription.events.push(event?),
                None => break,
            },
        }
    }
    match transcription.events.last() {
        Some(Event::Finished(_)) => Ok(transcription),
        _ => Err(ApiError::internal("the engine's stream ended before the transcription had")),
    }
}

/// Renames the engine's fields in an error to the client's names.
fn named(error: ApiError, task: Task) -> ApiError {
    error.renamed(|field| match field {
        "data" => Some("file".to_owned()),
        "temperatures" => Some("temperature".to_owned()),
        "translate" if task == Task::Translate => Some("model".to_owned()),
        "config" => None,
        other => Some(other.to_owned()),
    })
}

/// Events of a whole transcription, by kind.
pub(crate) struct TranscriptEvents<'a> {
    pub(crate) started: Option<&'a TranscribeStarted>,
    pub(crate) segments: Vec<&'a TranscriptSegment>,
    pub(crate) finished: Option<&'a TranscribeFinished>,
}

/// Sorts events by kind.
pub(crate) fn whole(events: &[Event]) -> TranscriptEvents<'_> {
    let mut whole = TranscriptEvents { started: None, segments: Vec::new(), finished: None };
    for event in events {
        match event {
            Event::Started(started) => whole.started = Some(started),
            Event::Segment(segment) => whole.segments.push(segment),
            Event::Finished(finished) => whole.finished = Some(finished),
            Event::Delta(_) => {}
        }
    }
    whole
}
