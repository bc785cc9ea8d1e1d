//! `POST /v1/messages`. `anthropic::request` parses the request, `anthropic::reply` writes the answer.

use std::sync::Arc;

use axum::{
    Extension,
    extract::State,
    http::{HeaderName, HeaderValue},
    response::{IntoResponse as _, Response},
};

use super::{error::AnthropicError, reply::Reply, request};
use crate::{
    answers,
    app::App,
    asker::Asker,
    body::{self, IncomingBody},
    config::Config,
    error::ApiError,
    fields::Fields,
    openai::{
        answer::{collect, stream},
        generation::Generation,
        shape::{AnswerShape as _, Head},
    },
};

/// Header in which Anthropic's SDKs expect the request id.
const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// Handler of the route.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    incoming: IncomingBody,
) -> Response {
    let header: HeaderValue = asker.id.header();
    let answered = answer(&app, &asker, incoming).await;
    let mut response = answered.unwrap_or_else(|error| AnthropicError::from(error).into_response());
    response.headers_mut().insert(REQUEST_ID, header);
    response
}

async fn answer(app: &Arc<App>, asker: &Asker, incoming: IncomingBody) -> Result<Response, ApiError> {
    let peer = incoming.peer();
    let id = asker.id.clone();
    let read = move |fields: Fields<'_>, config: &Config| request::read(fields, config, &id);
    let (asked, room) = body::read(app, incoming).await?.into(read).await?;
    let mut reply = Reply::new(asked.max_tokens, asked.thinking_omitted);
    let (streamed, streaming) = (asked.plan.stream, asked.plan.streaming);
    let mut generation = Generation::start(app, asker, asked.plan).await?;
    // The engine has the request, so the body's memory is free.
    drop(room);
    if streamed {
        return Ok(stream(app, generation, reply, streaming, peer));
    }
    let (mut choices, room) = collect(app, &mut generation, &mut reply).await?;
    let head = Head::new(Reply::ID_PREFIX, std::mem::take(&mut generation.model));
    let whole = choices.pop().unwrap_or_default();
    let envelope = serde_json::to_string(&reply.message(&head, &generation.used, &whole));
    let envelope = envelope.map_err(|e| ApiError::internal(&e.to_string()))?;
    let blocks = reply.blocks(whole);
    Ok(answers::respond("content", &envelope, blocks, |_, block| block, room))
}
