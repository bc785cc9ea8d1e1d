//! `POST /v1/messages/count_tokens`: number of tokens of a request's prompt.

use std::sync::Arc;

use axum::{Extension, Json, extract::State};
use hanzo_engine_proto::v1;
use serde_json::{Value, json};

use super::{error::AnthropicError, request};
use crate::{
    app::App,
    asker::Asker,
    body::{self, IncomingBody},
    error::ApiError,
    fields::Fields,
    names::SentFields,
    request::model,
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
    let model = model(&mut fields)?;
    let prompted = request::prompt(&mut fields)?;
    request::ignored(&mut fields)?;
    fields.finish()?;
    Ok((model, prompted.chat))
}
