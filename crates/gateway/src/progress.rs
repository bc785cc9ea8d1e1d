//! Streamed progress: one frame after another, until the work is done or the client has left.

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

/// Media type of NDJSON, which has an object on each line.
pub(crate) const NDJSON: &str = "application/x-ndjson";

/// Steps within the time limit `until`. The first error is the last item.
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

/// Format of the frames.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Form {
    content_type: &'static str,
    /// Bytes to send after a long silence.
    keep_alive: &'static [u8],
    /// Writes an object as a frame.
    pub(crate) frame: fn(&Value) -> Vec<u8>,
}

/// NDJSON format.
pub(crate) const LINES: Form = Form { content_type: NDJSON, keep_alive: b" ", frame: line };
/// Server-sent events.
pub(crate) const EVENTS: Form =
    Form { content_type: "text/event-stream", keep_alive: b": keep-alive\n\n", frame: event };

/// Streams frames as they arrive. An error before the first frame gets its own status. Later errors become a
/// frame, written by `failed`.
///
/// # Errors
/// Errors of the first frame.
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
        // Writing after a silence reveals whether the client is gone.
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

/// Next frame. None: it is time for a keep-alive, because of a long silence or because the client has closed
/// its writing side.
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

/// Writes an object as a line.
pub(crate) fn line(value: &Value) -> Vec<u8> {
    format!("{value}\n").into_bytes()
}

/// Writes an object as a server-sent event.
fn event(value: &Value) -> Vec<u8> {
    format!("data: {value}\n\n").into_bytes()
}
