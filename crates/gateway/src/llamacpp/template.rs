//! `POST /apply-template`, which renders a chat's prompt, and the count of its tokens. Both accept a chat
//! completion request.

use std::sync::Arc;

use axum::{Extension, Json, extract::State};
use hanzo_engine_proto::v1::{self, infer_request::Prompt, tokenize_request::Input};
use serde_json::{Value, json};

use crate::{
    app::App,
    asker::Asker,
    body::{self, IncomingBody},
    config::Config,
    error::ApiError,
    fields::Fields,
    names::SentFields,
    openai::plan,
};

/// Returns the prompt as text.
pub(crate) async fn apply(
    app: State<Arc<App>>,
    asker: Extension<Asker>,
    incoming: IncomingBody,
) -> Result<Json<Value>, ApiError> {
    let answer = tokenized(app, asker, incoming).await?;
    Ok(Json(json!({"prompt": answer.text})))
}

/// Returns the number of tokens of the prompt.
pub(crate) async fn count(
    app: State<Arc<App>>,
    asker: Extension<Asker>,
    incoming: IncomingBody,
) -> Result<Json<Value>, ApiError> {
    let answer = tokenized(app, asker, incoming).await?;
    Ok(Json(json!({"object": "response.input_tokens", "input_tokens": answer.ids.len()})))
}

async fn tokenized(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    incoming: IncomingBody,
) -> Result<v1::TokenizeResponse, ApiError> {
    let received = body::read(&app, incoming).await?;
    let id = asker.id.clone();
    let read = SentFields::beside(move |fields: Fields<'_>, config: &Config| plan::chat(fields, config, &id));
    let ((mut plan, sent), _room) = received.into(read).await?;
    app.media_hosts.fetch(&mut plan.requests, app.config.body_bytes_max).await?;
    // A chat is a single request.
    let request = plan.requests.pop().unwrap_or_default();
    let input = match request.prompt {
        Some(Prompt::Chat(chat)) => Some(Input::Chat(chat)),
        Some(Prompt::Text(_) | Prompt::Tokens(_)) | None => None,
    };
    let (model, client) = (request.model, asker.id.client());
    let request = v1::TokenizeRequest { model, input, client, ..v1::TokenizeRequest::default() };
    let answer = app.engine(&asker).tokenize(request).await;
    answer.map_err(|status| ApiError::from(status).renamed(|field| sent.name(field)))
}
