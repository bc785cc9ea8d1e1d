//! `POST /v1/messages/count_tokens`: number of tokens of a request's prompt.

use std::sync::Arc;

use axum::{Extension, Json, extract::State};
use hanzo_engine_proto::v1;
use serde_json::{Value, json};

use super::{error::AnthropicError, request::CountRequest};
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
) -> Result<Json<Value>, AnthropicError> {
    let received = body::read(&app, incoming).await?;
    let (((model, chat), sent), _room) = received.into(SentFields::beside(|fields, _| read(fields))).await?;
    let count = tokens::count(&app, &asker, model, chat, sent).await?;
    Ok(Json(json!({"input_tokens": count})))
}

fn read(mut fields: Fields) -> Result<(String, v1::Chat), ApiError> {
    let CountRequest { prompt, model } = CountRequest::read(&mut fields)?;
    fields.finish()?;
    Ok((model.unwrap_or_default(), prompt.read()?.chat))
}
