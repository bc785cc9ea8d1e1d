//! A transcription while its file still comes: the form is handed on and events are taken, each as fast as the other side is.

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

/// An engine's events of a transcription.
pub(crate) type Events = Pin<Box<dyn Stream<Item = Result<TranscribeEvent, Status>> + Send>>;

/// A transcription that has begun; its file has come.
pub(crate) struct Begun {
    /// What was said so far: all of it, of one that is not streamed.
    pub(crate) events: Vec<Event>,
    /// What is yet to be said.
    pub(crate) rest: Option<Events>,
    pub(crate) until: Until,
    pub(crate) logprobs: bool,
    task: Task,
}

impl Begun {
    /// What comes next, within the request's time; none once all was said.
    pub(crate) async fn next(&mut self) -> Option<Result<Event, ApiError>> {
        let events = self.rest.as_mut()?;
        let next = self.until.run(async { events.next().await.transpose() }).await;
        match next {
            Ok(Some(event)) => match event.event {
                Some(event) => Some(Ok(event)),
                // One of a kind that this version does not know.
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

/// Begins a transcription, hands its file on, and takes what is said meanwhile; where it is not streamed, to its end.
pub(crate) async fn begin(
    app: &App,
    asker: &Asker,
    config: TranscribeConfig,
    form: &mut Form,
    until: Until,
    stream: bool,
    task: Task,
) -> Result<Begun, ApiError> {
    let logprobs = config.logprobs;
    let (to, file) = mpsc::channel(SOUND_PIECES_MAX);
    let mut engine = app.engine(asker);
    let calling = engine.transcribe(config, file, until.deadline);
    let mut begun = Begun { events: Vec::new(), rest: None, until: until.clone(), logprobs, task };
    let mut sending = Box::pin(form.send(to));
    let mut calling = Box::pin(calling);
    let mut sent = false;
    loop {
        if sent && stream && begun.rest.is_some() && !begun.events.is_empty() {
            return Ok(begun);
        }
        let answered = begun.rest.is_some();
        tokio::select! {
            biased;
            done = &mut sending, if !sent => {
                done?;
                sent = true;
            }
            events = until.run(async { (&mut calling).await }), if !answered => {
                let events: Events = Box::pin(events.map_err(|error| named(error, task))?);
                begun.rest = Some(events);
            }
            event = begun.next(), if answered => match event {
                Some(event) => begun.events.push(event?),
                None => break,
            },
        }
    }
    match begun.events.last() {
        Some(Event::Finished(_)) => Ok(begun),
        _ => Err(ApiError::internal("the engine's stream ended before the transcription had")),
    }
}

/// With the client's names for what the engine calls otherwise.
fn named(error: ApiError, task: Task) -> ApiError {
    error.renamed(|field| match field {
        "data" => Some("file".to_owned()),
        "temperatures" => Some("temperature".to_owned()),
        "translate" if task == Task::Translate => Some("model".to_owned()),
        "config" => None,
        other => Some(other.to_owned()),
    })
}

/// All of what was said.
pub(crate) struct Whole<'a> {
    pub(crate) started: Option<&'a TranscribeStarted>,
    pub(crate) segments: Vec<&'a TranscriptSegment>,
    pub(crate) finished: Option<&'a TranscribeFinished>,
}

/// What events say together.
pub(crate) fn whole(events: &[Event]) -> Whole<'_> {
    let mut whole = Whole { started: None, segments: Vec::new(), finished: None };
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
