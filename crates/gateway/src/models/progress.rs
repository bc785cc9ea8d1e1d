//! Answers that tell how far something is: one frame after the other, until it is done or the client has left.

use std::{convert::Infallible, time::Duration};

use axum::{
    body::Body,
    http::header,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, TryStreamExt as _, stream};

use serde_json::Value;

use crate::{app::App, error::ApiError, limits::PEER_LOOK, peer::Peer, until::Until};

/// NDJSON: a line for each object.
pub(crate) const NDJSON: &str = "application/x-ndjson";

/// The steps that `until` lets come; the first that is an error is the last.
pub(crate) fn bounded<T, E>(
    steps: impl Stream<Item = Result<T, E>> + Send + 'static,
    until: Until,
) -> impl Stream<Item = Result<T, ApiError>> + Send + 'static
where
    T: Send + 'static,
    E: Into<ApiError> + Send + 'static,
{
    let steps = Box::pin(steps);
    stream::try_unfold((steps, until), |(mut steps, until)| async move {
        let step = until.run(async { steps.next().await.transpose() }).await?;
        Ok(step.map(|step| (step, (steps, until))))
    })
}

/// How frames are written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Form {
    content_type: &'static str,
    /// What is sent where there has long been nothing to send.
    keep_alive: &'static [u8],
    /// An object as a frame.
    pub(crate) frame: fn(&Value) -> Vec<u8>,
}

/// A line for each object.
pub(crate) const LINES: Form = Form { content_type: NDJSON, keep_alive: b" ", frame: line };
/// An event for each object.
pub(crate) const EVENTS: Form =
    Form { content_type: "text/event-stream", keep_alive: b": keep-alive\n\n", frame: event };

/// Answers with frames as they come. What fails before the first of them has a status of its own; later it is a frame that
/// `failed` makes.
///
/// # Errors
/// Of the first frame.
pub(crate) async fn respond(
    app: &App,
    peer: Option<Peer>,
    form: Form,
    frames: impl Stream<Item = Result<Vec<u8>, ApiError>> + Send + 'static,
    failed: fn(&ApiError) -> Value,
) -> Result<Response, ApiError> {
    let mut frames = Box::pin(frames);
    let first = frames.try_next().await?;
    let rest = frames.map(move |frame| frame.unwrap_or_else(|error| (form.frame)(&failed(&error))));
    let silence = Duration::from_secs(app.config.sse_keep_alive_s);
    let rest = stream::unfold((Box::pin(rest), peer), move |(mut frames, peer)| async move {
        let frame = next(&mut frames, peer.as_ref(), silence).await;
        // What is sent into silence shows whether the client is still there.
        let frame = frame.unwrap_or_else(|| Some(form.keep_alive.to_vec()))?;
        Some((frame, (frames, peer)))
    });
    let all = stream::iter(first).chain(rest).map(|frame| Ok::<_, Infallible>(Bytes::from(frame)));
    let headers = [
        (header::CONTENT_TYPE, form.content_type),
        (header::CACHE_CONTROL, "no-cache"),
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    Ok((headers, Body::from_stream(all)).into_response())
}

/// The next frame; None where there was none for long, or the client has said its last word.
async fn next(
    frames: &mut (impl Stream<Item = Vec<u8>> + Unpin),
    peer: Option<&Peer>,
    silence: Duration,
) -> Option<Option<Vec<u8>>> {
    let shut_down = peer.is_some_and(Peer::is_shut_down);
    let silence = if shut_down { PEER_LOOK } else { silence };
    let shuts_down = async {
        match peer {
            Some(peer) if !shut_down => peer.shut_down().await,
            _ => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        frame = frames.next() => Some(frame),
        () = tokio::time::sleep(silence) => None,
        () = shuts_down => None,
    }
}

/// An object as a line.
pub(crate) fn line(value: &Value) -> Vec<u8> {
    format!("{value}\n").into_bytes()
}

/// An object as an event.
fn event(value: &Value) -> Vec<u8> {
    format!("data: {value}\n\n").into_bytes()
}
