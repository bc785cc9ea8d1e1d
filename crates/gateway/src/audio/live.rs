//! Transcription as events: `transcript.text.delta` for each piece of text, and `transcript.text.done` with the
//! whole text. A failed one ends with `data: {"error":…}`.

use std::{collections::VecDeque, convert::Infallible, time::Duration};

use axum::{
    body::Body,
    http::header,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use futures_util::stream;
use hanzo_engine_proto::v1::{TranscribeFinished, TranscriptSegment, transcribe_event::Event};
use serde_json::{Value, json};

use super::{reply::logprob, work::RunningTranscription};
use crate::{error::ApiError, openai::frames::Frames, peer::Peer};

struct TranscriptStream {
    transcription: RunningTranscription,
    /// Events received before the response began.
    early: VecDeque<Event>,
    /// Log probabilities of the segments so far, if requested.
    logprobs: Vec<Value>,
    /// Text sent as deltas that no segment has repeated yet.
    ahead: String,
    /// No delta has been sent. The first one loses its leading space, so that all deltas together equal the
    /// final text.
    first: bool,
    keep_alive: Duration,
    peer: Option<Peer>,
}

/// Streamed response. Dropping it ends the engine's work.
pub(crate) fn response(
    mut transcription: RunningTranscription,
    keep_alive: Duration,
    peer: Option<Peer>,
) -> Response {
    let early = std::mem::take(&mut transcription.events).into();
    let live = TranscriptStream {
        transcription,
        early,
        logprobs: Vec::new(),
        ahead: String::new(),
        first: true,
        keep_alive,
        peer,
    };
    let frames = stream::unfold(Some(live), |live| async {
        let (bytes, live) = live?.frame().await;
        Some((Ok::<_, Infallible>(bytes), live))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache"),
        // nginx would buffer the events otherwise.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::from_stream(frames)).into_response()
}

impl TranscriptStream {
    /// Next bytes to send, and the stream unless it has ended.
    async fn frame(mut self) -> (Bytes, Option<TranscriptStream>) {
        let mut frames = Frames::default();
        loop {
            let event = match self.early.pop_front() {
                Some(event) => Some(Ok(event)),
                None => match self.next().await {
                    None => return (Bytes::from_static(b": keep-alive\n\n"), Some(self)),
                    Some(event) => event,
                },
            };
            match event {
                Some(Ok(Event::Started(_))) => continue,
                Some(Ok(Event::Delta(delta))) => {
                    self.ahead.push_str(&delta.text);
                    self.delta(&delta.text, &mut frames);
                }
                Some(Ok(Event::Segment(segment))) => self.segment(&segment, &mut frames),
                Some(Ok(Event::Finished(finished))) => {
                    frames.data(&self.done(&finished));
                    return (frames.bytes().into(), None);
                }
                Some(Err(error)) => return (failed(&error, frames), None),
                None => {
                    let error = ApiError::internal("the engine's stream ended before the transcription had");
                    return (failed(&error, frames), None);
                }
            }
            if !frames.is_empty() {
                return (frames.bytes().into(), Some(self));
            }
        }
    }

    fn delta(&mut self, text: &str, frames: &mut Frames) {
        let text = if self.first { text.trim_start() } else { text };
        self.first &= text.is_empty();
        if !text.is_empty() {
            frames.data(&json!({"type": "transcript.text.delta", "delta": text}));
        }
    }

    fn segment(&mut self, segment: &TranscriptSegment, frames: &mut Frames) {
        if self.transcription.logprobs {
            self.logprobs.extend(segment.tokens.iter().filter_map(logprob));
        }
        // Deltas come before the segment that repeats their text; the rest of the segment is sent now.
        match segment.text.strip_prefix(self.ahead.as_str()) {
            Some(rest) => self.delta(rest, frames),
            None if self.ahead.starts_with(&segment.text) => {
                self.ahead.drain(..segment.text.len());
                return;
            }
            None => {}
        }
        self.ahead.clear();
    }

    fn done(&mut self, finished: &TranscribeFinished) -> Value {
        let (input, output) = (finished.prompt_tokens, finished.completion_tokens);
        let mut done = json!({
            "type": "transcript.text.done",
            "text": finished.text,
            "usage": {
                "type": "tokens",
                "input_tokens": input,
                "input_token_details": {"text_tokens": input, "audio_tokens": 0},
                "output_tokens": output,
                "total_tokens": input + output,
            },
        });
        if self.transcription.logprobs {
            done["logprobs"] = std::mem::take(&mut self.logprobs).into();
        }
        done
    }

    /// Next event; None: time for a keep-alive comment.
    async fn next(&mut self) -> Option<Option<Result<Event, ApiError>>> {
        let shuts_down = async {
            match &self.peer {
                // Sending a comment reveals whether the client is gone.
                Some(peer) => peer.shut_down().await,
                None => std::future::pending().await,
            }
        };
        let is_shut = self.peer.as_ref().is_some_and(Peer::is_shut_down);
        let silence = if is_shut { crate::limits::PEER_LOOK } else { self.keep_alive };
        tokio::select! {
            biased;
            event = self.transcription.next() => Some(event),
            () = tokio::time::sleep(silence) => None,
            () = shuts_down, if !is_shut => None,
        }
    }
}

fn failed(error: &ApiError, mut frames: Frames) -> Bytes {
    tracing::warn!(status = error.status().as_u16(), "transcription failed");
    frames.data(&error.json());
    frames.bytes().into()
}
