//! `POST /v1/responses/input_tokens`: number of tokens of a request's prompt.

use std::sync::Arc;

use axum::{Extension, Json, extract::State};
use hanzo_engine_proto::v1;
use serde_json::{Value, json};

use super::{
    conversation::Before,
    create::{ReferencedObjects, owner},
    request::ResponsesCountRequest,
};
use crate::{
    app::App,
    asker::Asker,
    body::{self, IncomingBody},
    declare::Declaration as _,
    error::ApiError,
    fields::Fields,
    names::SentFields,
    tokens,
};

/// Handler of the route.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    incoming: IncomingBody,
) -> Result<Json<Value>, ApiError> {
    let mut received = body::read(&app, incoming).await?;
    let mut found = ReferencedObjects::of(&app, &owner(&asker), &mut received).await?;
    let lenient = app.config.lenient;
    let read = SentFields::beside(move |fields, _| read(fields, lenient, &found.known()));
    let (((model, chat), sent), _room) = received.into(read).await?;
    let count = tokens::count(&app, &asker, model, chat, sent).await?;
    Ok(Json(json!({"object": "response.input_tokens", "input_tokens": count})))
}

fn read(mut fields: Fields, lenient: bool, before: &Before<'_>) -> Result<(String, v1::Chat), ApiError> {
    let ResponsesCountRequest { prompt, model } = ResponsesCountRequest::read(&mut fields)?;
    fields.finish()?;
    Ok((model.unwrap_or_default(), prompt.read(lenient, before)?.chat))
}
