//! Streamed answer: its events, its keep-alive comments, and its end.
//!
//! A successful stream ends with `data: [DONE]`. A failed one ends with `data: {"error":…}`.

use std::{convert::Infallible, time::Duration};

use axum::{
    body::Body,
    http::header,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use futures_util::stream;

use crate::{
    error::ApiError,
    limits::{FIRST_COMMENT, PEER_LOOK},
    openai::{
        frames::Frames,
        generation::{Event, Generation},
        plan::StreamOptions,
        shape::{AnswerShape, Head},
    },
    peer::Peer,
};

struct AnswerStream<S> {
    generation: Generation,
    shape: S,
    head: Option<Head>, // None until the model's name is known
    streaming: StreamOptions,
    keep_alive: Duration,
    silent: bool, // nothing was sent yet
    peer: Option<Peer>,
}

/// Streamed response. It owns the generation: when the client leaves, hyper drops the body and so cancels the
/// engine's streams.
pub(crate) fn response<S: AnswerShape>(
    generation: Generation,
    shape: S,
    streaming: StreamOptions,
    keep_alive: Duration,
    peer: Option<Peer>,
) -> Response {
    let live = AnswerStream { generation, shape, head: None, streaming, keep_alive, silent: true, peer };
    let frames = stream::unfold(Some(live), |live| async {
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
        let mut frames = Frames { obfuscate: self.streaming.obfuscate, ..Frames::default() };
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
