//! `POST /tokenize` and `POST /detokenize`, in the shapes that vLLM's and llama.cpp's clients know.

use std::sync::Arc;

use axum::{Json, extract::State};
use serde_json::{Value, json};

use crate::{
    app::App,
    body::{self, Incoming},
    convert,
    error::ApiError,
    names::Sent,
};

/// Text or messages to token ids.
pub(crate) async fn tokenize(
    State(app): State<Arc<App>>,
    incoming: Incoming,
) -> Result<Json<convert::Tokenized>, ApiError> {
    let received = body::read(&app, incoming).await?;
    let read = Sent::beside(|fields, _| convert::tokenize_request(fields));
    let (((request, shown), sent), _room) = received.into(read).await?;
    let answer = app.engine.clone().tokenize(request).await;
    let answer = answer.map_err(|status| ApiError::from(status).renamed(|field| sent.name(field)))?;
    Ok(Json(shown.answer(answer)))
}

/// Token ids to text.
pub(crate) async fn detokenize(
    State(app): State<Arc<App>>,
    incoming: Incoming,
) -> Result<Json<Value>, ApiError> {
    let received = body::read(&app, incoming).await?;
    let read = Sent::beside(|fields, _| convert::detokenize_request(fields));
    let ((request, sent), _room) = received.into(read).await?;
    let answer = app.engine.clone().detokenize(request).await;
    let answer = answer.map_err(|status| ApiError::from(status).renamed(|field| sent.name(field)))?;
    Ok(Json(json!({"prompt": answer.text})))
}
