//! HTTP response of an embedding request. It is held until every call has succeeded, as far as memory permits,
//! and then written as the client reads.

use std::{collections::VecDeque, io, sync::Arc};

use axum::{
    body::Body,
    http::header,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use hanzo_engine_proto::v1;
use tokio::sync::OwnedSemaphorePermit;

use crate::{
    app::App,
    error::ApiError,
    limits::JSON_FRAME_BYTES,
    vectors::json::{Cursor, VectorFormat, VectorWriter},
};

/// Responds with the results of `calls`. The status is that of the first failing call, unless the answer was
/// too large to be held: then it has begun, and breaks off.
pub(crate) async fn respond<S>(app: &App, mut calls: S, shape: VectorFormat) -> Result<Response, ApiError>
where
    S: Stream<Item = Result<v1::EmbedResponse, ApiError>> + Send + Unpin + 'static,
{
    let mut held = VecDeque::new();
    let mut complete = false;
    while !complete {
        match calls.next().await.transpose()? {
            None => complete = true,
            Some(answer) => {
                let room = u32::try_from(size(&answer)).ok();
                let room = room.and_then(|n| Arc::clone(&app.vectors).try_acquire_many_owned(n).ok());
                let full = room.is_none();
                held.push_back(HeldAnswer { cursor: Cursor::new(answer), _room: room });
                if full {
                    break;
                }
            }
        }
    }
    let mut live = VectorStream { writer: VectorWriter::new(shape), calls, held, next: BodyPart::Begin };
    let content_type = (header::CONTENT_TYPE, "application/json");
    if complete {
        // The first frame of most answers is the whole, and so has a length.
        let first = live.frame().await.transpose().map_err(|error| ApiError::internal(&error.to_string()))?;
        let first = first.unwrap_or_default();
        if let BodyPart::Over = live.next {
            return Ok(([content_type], first).into_response());
        }
        let rest = stream::once(async { Ok(first) }).chain(live.frames());
        return Ok(([content_type], Body::from_stream(rest)).into_response());
    }
    Ok(([content_type], Body::from_stream(live.frames())).into_response())
}

fn size(answer: &v1::EmbedResponse) -> usize {
    let bytes = |e: &v1::Embedding| e.packed.len() + e.sparse.len() * size_of::<v1::SparseWeight>();
    answer.embeddings.iter().map(bytes).sum()
}

/// Answer of one call, and the memory reserved for it until it is written.
struct HeldAnswer {
    cursor: Cursor,
    _room: Option<OwnedSemaphorePermit>,
}

enum BodyPart {
    Begin,
    Vectors,
    Over,
}

/// Answer being written.
struct VectorStream<S> {
    writer: VectorWriter,
    calls: S, // calls whose answers are not held
    held: VecDeque<HeldAnswer>,
    next: BodyPart,
}

impl<S> VectorStream<S>
where
    S: Stream<Item = Result<v1::EmbedResponse, ApiError>> + Send + Unpin + 'static,
{
    fn frames(self) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
        stream::unfold(self, |mut live| async { live.frame().await.map(|frame| (frame, live)) })
    }

    /// Next bytes to send; None at the end. An error breaks off the connection, because the JSON sent so far is
    /// incomplete.
    async fn frame(&mut self) -> Option<io::Result<Bytes>> {
        let mut frame = Vec::with_capacity(JSON_FRAME_BYTES + JSON_FRAME_BYTES / 4);
        match self.next {
            BodyPart::Over => return None,
            BodyPart::Begin => self.writer.begin(&mut frame),
            BodyPart::Vectors => {}
        }
        self.next = BodyPart::Vectors;
        loop {
            if let Some(first) = self.held.front_mut() {
                if !self.writer.write(&mut first.cursor, &mut frame, JSON_FRAME_BYTES) {
                    return Some(Ok(frame.into()));
                }
                self.held.pop_front();
                continue;
            }
            match self.calls.next().await {
                Some(Ok(answer)) => {
                    self.held.push_back(HeldAnswer { cursor: Cursor::new(answer), _room: None })
                }
                Some(Err(error)) => {
                    self.next = BodyPart::Over;
                    tracing::warn!(
                        status = error.status().as_u16(),
                        error = error.message(),
                        "embeddings broke off"
                    );
                    return Some(Err(io::Error::other(error.message().to_owned())));
                }
                None => {
                    self.next = BodyPart::Over;
                    self.writer.end(&mut frame);
                    return Some(Ok(frame.into()));
                }
            }
        }
    }
}
