//! `POST /tokenize` and `POST /detokenize`, in the shape that vLLM's clients know.

use std::sync::Arc;

use axum::{Json, extract::State};
use serde_json::{Value, json};

use crate::{
    app::App,
    body::{self, Incoming},
    convert,
    error::ApiError,
};

/// Text or messages to token ids.
pub(crate) async fn tokenize(
    State(app): State<Arc<App>>,
    incoming: Incoming,
) -> Result<Json<convert::Tokenized>, ApiError> {
    let received = body::read(&app, incoming).await?;
    let (request, _room) = received.into(|fields, _| convert::tokenize_request(fields)).await?;
    let answer = app.engine.clone().tokenize(request).await;
    let answer = answer.map_err(|status| ApiError::from(status).renamed(convert::tokens_field))?;
    Ok(Json(convert::tokenize_answer(answer)))
}

/// Token ids to text.
pub(crate) async fn detokenize(
    State(app): State<Arc<App>>,
    incoming: Incoming,
) -> Result<Json<Value>, ApiError> {
    let received = body::read(&app, incoming).await?;
    let (request, _room) = received.into(|fields, _| convert::detokenize_request(fields)).await?;
    let answer = app.engine.clone().detokenize(request).await;
    let answer = answer.map_err(|status| ApiError::from(status).renamed(convert::tokens_field))?;
    Ok(Json(json!({"prompt": answer.text})))
}
