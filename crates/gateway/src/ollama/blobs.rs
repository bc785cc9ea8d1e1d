//! `HEAD` and `POST /api/blobs/{digest}`: files uploaded into the store, to make a model of them. The admin
//! scope is needed.

use std::{sync::Arc, time::Duration};

use axum::{
    Extension,
    body::Body,
    extract::{Path, State},
    http::StatusCode,
};
use bytes::Bytes;
use futures_util::stream;
use http_body_util::BodyExt as _;
use tokio::sync::mpsc;

use super::error::OllamaError;
use crate::{
    app::App,
    asker::Asker,
    body::IncomingBody,
    error::ApiError,
    limits::{BLOB_MESSAGE_BYTES, BLOB_PIECES_MAX},
    models::load::admin,
};

/// `HEAD /api/blobs/{digest}`: 200 if the blob is stored, else 404.
pub(crate) async fn look(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    Path(digest): Path<String>,
) -> Result<StatusCode, OllamaError> {
    let found = app.engine(&asker).has_blob(checked(&digest)?).await?;
    Ok(if found { StatusCode::OK } else { StatusCode::NOT_FOUND })
}

/// `POST /api/blobs/{digest}`: 201 if the blob is stored now, 200 if it was stored before. The body is the
/// file. It is streamed whatever its size, and may be slow as long as it does not stall.
pub(crate) async fn put(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    Path(digest): Path<String>,
    incoming: IncomingBody,
) -> Result<StatusCode, OllamaError> {
    admin(&app, &asker, "to make models")?;
    let sha256 = checked(&digest)?;
    let mut engine = app.engine(&asker);
    if engine.has_blob(sha256.clone()).await? {
        return Ok(StatusCode::OK);
    }
    let (_, _, body) = incoming.into_parts();
    let (to, pieces) = mpsc::channel(BLOB_PIECES_MAX);
    let pieces = stream::unfold(pieces, |mut pieces| async { Some((pieces.recv().await?, pieces)) });
    let silence = Duration::from_secs(app.config.body_timeout_s);
    let put = engine.put_blob(sha256, pieces);
    // If the upload fails, the call is dropped, and the engine keeps nothing of it.
    tokio::pin!(put);
    tokio::select! {
        biased;
        answer = &mut put => answer?,
        sent = send(body, to, silence) => {
            sent?;
            put.await?;
        }
    }
    Ok(StatusCode::CREATED)
}

/// Forwards a body piece by piece, as fast as it is consumed.
async fn send(mut body: Body, to: mpsc::Sender<Bytes>, silence: Duration) -> Result<(), ApiError> {
    loop {
        let frame = tokio::time::timeout(silence, body.frame()).await;
        let frame = frame.map_err(|_| {
            ApiError::body_timeout(format!("on: nothing came of it for {} seconds", silence.as_secs()))
        })?;
        let Some(frame) = frame else { return Ok(()) };
        let frame = frame.map_err(|e| ApiError::body(format!("the request body broke off: {e}")))?;
        let Ok(mut data) = frame.into_data() else { continue };
        while !data.is_empty() {
            let piece = data.split_to(data.len().min(BLOB_MESSAGE_BYTES));
            if to.send(piece).await.is_err() {
                // The engine has stopped reading and will report why.
                return std::future::pending().await;
            }
        }
    }
}

/// Hexadecimal digits of `sha256:…`, or of `sha256-…` as command lines write it.
pub(super) fn sha256(digest: &str) -> Option<&str> {
    let hex = digest.strip_prefix("sha256:").or_else(|| digest.strip_prefix("sha256-"))?;
    let is_hex = hex.len() == 64 && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    is_hex.then_some(hex)
}

fn checked(digest: &str) -> Result<String, ApiError> {
    sha256(digest)
        .map(str::to_owned)
        .ok_or_else(|| ApiError::field("digest", "expected sha256: and 64 hexadecimal digits in lower case"))
}
