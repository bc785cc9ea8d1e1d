//! Server-sent events: the frames of a stream, its keep-alive comments, and its end.
//!
//! A stream that succeeds ends with `data: [DONE]`. One that fails ends with `data: {"error":…}` and nothing
//! after it.

use std::{convert::Infallible, time::Duration};

use axum::{
    body::Body,
    http::header,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use futures_util::stream;
use serde::Serialize;

use crate::openai::generation::{Generation, Head, Shape};

/// Events as they go over the wire.
#[derive(Debug, Default)]
pub(crate) struct Frames(Vec<u8>);

impl Frames {
    /// Adds one event with a JSON object as its data.
    pub(crate) fn data(&mut self, value: &impl Serialize) {
        self.0.extend_from_slice(b"data: ");
        serde_json::to_writer(&mut self.0, value)
            .expect("writing to memory cannot fail because chunks are plain structs with string keys");
        self.0.extend_from_slice(b"\n\n");
    }

    fn done(&mut self) {
        self.0.extend_from_slice(b"data: [DONE]\n\n");
    }
}

struct Live<S> {
    generation: Generation,
    shape: S,
    head: Head,
    include_usage: bool,
    keep_alive: Duration,
}

/// The streamed answer. It holds the generation: when the client leaves, hyper drops the body, and with it
/// the engine's streams.
pub(crate) fn response<S: Shape>(
    generation: Generation,
    shape: S,
    head: Head,
    include_usage: bool,
    keep_alive: Duration,
) -> Response {
    let live = Live { generation, shape, head, include_usage, keep_alive };
    let frames = stream::unfold(Some(live), |live| async {
        let (bytes, live) = live?.frame().await;
        Some((Ok::<_, Infallible>(bytes), live))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache"),
        // nginx would hold the events back otherwise.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::from_stream(frames)).into_response()
}

impl<S: Shape> Live<S> {
    /// The next bytes to send, and the stream if it goes on.
    async fn frame(mut self) -> (Bytes, Option<Live<S>>) {
        let mut frames = Frames::default();
        while frames.0.is_empty() {
            match tokio::time::timeout(self.keep_alive, self.generation.next()).await {
                Err(_) => return (Bytes::from_static(b": keep-alive\n\n"), Some(self)),
                Ok(Some(Ok(event))) => self.shape.event(&self.head, event, &mut frames),
                Ok(Some(Err(error))) => {
                    tracing::warn!(id = self.head.id, status = error.status().as_u16(), "stream failed");
                    frames.data(&error.json());
                    return (frames.0.into(), None);
                }
                Ok(None) => {
                    if self.include_usage {
                        self.shape.usage(&self.head, &self.generation.tally, &mut frames);
                    }
                    frames.done();
                    return (frames.0.into(), None);
                }
            }
        }
        (frames.0.into(), Some(self))
    }
}
