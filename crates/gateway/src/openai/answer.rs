//! Runs a plan, and answers with a stream of events or one JSON object. Both are made from the same generation.

use std::{convert::Infallible, time::Duration};

use axum::{
    body::Body,
    http::header,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use futures_util::stream::unfold;
use hanzo_engine_proto::v1;

use crate::{
    answers::{self, AnswerRoom},
    app::App,
    asker::Asker,
    bodies::Room,
    error::ApiError,
    limits::{FIRST_COMMENT, LOGPROB_BYTES, PEER_LOOK},
    openai::{
        frames::Frames,
        generation::{Event, Generation},
        plan::{RequestPlan, StreamOptions},
        shape::{AnswerShape, CollectedChoice, Head},
    },
    peer::Peer,
};

/// Runs a plan and answers in its format. A stream begins when the engine has accepted the request, which may
/// still be queued. So a refusal has its own HTTP status, and a later error is an event of the stream.
pub(crate) async fn answer<S: AnswerShape>(
    app: &App,
    asker: &Asker,
    plan: RequestPlan,
    room: Room,
    peer: Option<Peer>,
    mut shape: S,
) -> Result<Response, ApiError> {
    let (streamed, streaming) = (plan.stream, plan.streaming);
    let mut generation = Generation::start(app, asker, plan).await?;
    // The engine has the request, so the body's memory is free.
    drop(room);
    if streamed {
        return Ok(stream(app, generation, shape, streaming, peer));
    }
    let (choices, room) = collect(app, &mut generation, &mut shape).await?;
    let head = Head::new(S::ID_PREFIX, std::mem::take(&mut generation.model));
    let envelope = serde_json::to_string(&shape.envelope(&head, &generation.used));
    let envelope = envelope.map_err(|e| ApiError::internal(&e.to_string()))?;
    Ok(answers::respond("choices", &envelope, choices, move |index, whole| shape.choice(index, whole), room))
}

/// Collects all choices of a generation, and the memory reserved for them.
pub(crate) async fn collect<S: AnswerShape>(
    app: &App,
    generation: &mut Generation,
    shape: &mut S,
) -> Result<(Vec<CollectedChoice>, AnswerRoom), ApiError> {
    let mut choices: Vec<CollectedChoice> = Vec::new();
    choices.resize_with(generation.finished.len(), CollectedChoice::default);
    let mut room = app.answers.room();
    while let Some(event) = generation.next().await {
        match event? {
            Event::Loading(_) | Event::Started { .. } => {}
            Event::Server(call) => {
                let held = call.outcome.as_ref().map_or(0, |outcome| outcome.text.len());
                room.grow(call.arguments.len() + held)?;
                shape.server_call(*call);
            }
            Event::Scored { index, scored } => {
                room.grow(logprobs_size(&scored.tokens))?;
                shape.scored(index, scored);
            }
            Event::Delta { index, delta } => {
                room.grow(size(&delta))?;
                let choice = &mut choices[index as usize];
                choice.text.push_str(&delta.text);
                choice.reasoning.push_str(&delta.reasoning);
                choice.logprobs.extend(delta.logprobs);
                choice.add_calls(delta.tool_calls);
            }
            Event::Finished { index, reason, stop_string, .. } => {
                let choice = &mut choices[index as usize];
                (choice.reason, choice.stop_string) = (reason, stop_string);
            }
        }
    }
    Ok((choices, room))
}

/// Estimated bytes of a part of a collected answer.
fn size(delta: &v1::Delta) -> usize {
    let call = |call: &v1::ToolCallDelta| call.id.len() + call.name.len() + call.arguments_json.len();
    let calls: usize = delta.tool_calls.iter().map(call).sum();
    delta.text.len() + delta.reasoning.len() + calls + logprobs_size(&delta.logprobs)
}

fn logprobs_size(tokens: &[v1::TokenLogprob]) -> usize {
    tokens.iter().map(|token| (1 + token.top.len()) * LOGPROB_BYTES).sum()
}

/// Streamed answer: its events, its keep-alive comments, and its end.
struct AnswerStream<S> {
    generation: Generation,
    shape: S,
    head: Option<Head>, // None until the model's name is known
    streaming: StreamOptions,
    keep_alive: Duration,
    silent: bool, // nothing was sent yet
    peer: Option<Peer>,
}

/// Streams the events of a generation, and owns it: when the client leaves, hyper drops the body and so cancels the
/// engine's streams. A successful stream ends with `data: [DONE]`, a failed one with `data: {"error":…}`.
pub(crate) fn stream<S: AnswerShape>(
    app: &App,
    generation: Generation,
    shape: S,
    streaming: StreamOptions,
    peer: Option<Peer>,
) -> Response {
    let keep_alive = Duration::from_secs(app.config.sse_keep_alive_s);
    let live = AnswerStream { generation, shape, head: None, streaming, keep_alive, silent: true, peer };
    let frames = unfold(Some(live), |live| async {
        let (bytes, live) = live?.frame().await;
        Some((Ok::<_, Infallible>(bytes), live))
    });
    let headers = [
        (header::CONTENT_TYPE, S::CONTENT_TYPE),
        (header::CACHE_CONTROL, "no-cache"),
        // nginx would buffer the events otherwise.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::from_stream(frames)).into_response()
}

impl<S: AnswerShape> AnswerStream<S> {
    /// Next bytes to send, and the stream unless it has ended.
    async fn frame(mut self) -> (Bytes, Option<AnswerStream<S>>) {
        let mut frames = Frames { obfuscate: self.streaming.include_obfuscation, ..Frames::default() };
        while frames.bytes.is_empty() {
            let Some(event) = self.event().await else {
                self.silent = false;
                return (Bytes::from_static(S::KEEP_ALIVE), Some(self));
            };
            match event {
                Some(Ok(event)) => {
                    let model = &self.generation.model;
                    let head = self.head.get_or_insert_with(|| Head::new(S::ID_PREFIX, model.clone()));
                    self.shape.event(head, &self.generation.used, event, &mut frames);
                    if let Some(error) = self.shape.fault() {
                        self.fail(&error, &mut frames);
                        return (frames.bytes.into(), None);
                    }
                }
                Some(Err(error)) => {
                    self.fail(&error, &mut frames);
                    return (frames.bytes.into(), None);
                }
                None => {
                    if let Some(head) = &self.head {
                        self.shape.settle(head, &self.generation.used).await;
                    }
                    if let Some(head) = self.head.as_ref().filter(|_| self.streaming.include_usage) {
                        self.shape.usage(head, &self.generation.used, &mut frames);
                    }
                    self.shape.done(&mut frames);
                    return (frames.bytes.into(), None);
                }
            }
        }
        self.silent = false;
        (frames.bytes.into(), Some(self))
    }

    fn fail(&mut self, error: &ApiError, frames: &mut Frames) {
        let id = self.head.as_ref().map_or("none", |head| &head.id);
        tracing::warn!(id, status = error.status().as_u16(), "stream failed");
        self.shape.failed(error, frames);
    }

    /// Next event of the generation; None: time for a keep-alive comment.
    async fn event(&mut self) -> Option<Option<Result<Event, ApiError>>> {
        let shut_down = self.peer.as_ref().is_some_and(Peer::is_shut_down);
        let silence = match () {
            // Sending a comment reveals whether the client is gone.
            () if shut_down => PEER_LOOK,
            () if self.silent => FIRST_COMMENT.min(self.keep_alive),
            () => self.keep_alive,
        };
        let shuts_down = async {
            match &self.peer {
                Some(peer) if !shut_down => peer.shut_down().await,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            event = self.generation.next() => Some(event),
            () = tokio::time::sleep(silence) => None,
            () = shuts_down => None,
        }
    }
}
