//! OpenAI's Responses API: `/v1/responses`, with tools, reasoning, stream events, and stored answers.

mod conversation;
pub(crate) mod count;
pub(crate) mod create;
mod custom;
mod object;
mod reply;
pub(crate) mod request;
pub(crate) mod saved;
mod server_call;
mod tools;
mod truncation;

use crate::{
    config::Config, error::ApiError, fields::Fields, json::Json, request_id::RequestId,
    response_store::stored,
};

/// Parses a body as the routes do, and checks that its items could be stored. For fuzzing.
pub(crate) fn read(fields: Fields, config: &Config, id: &RequestId) -> Result<(), ApiError> {
    request::named(fields.clone())?;
    let read = request::read(fields, config, id, &conversation::Before::default(), true)?;
    for item in &read.asked.items {
        let item = item.named("an-id");
        let id = Json::parse(&item).ok().and_then(|json| stored::member(json, "id"));
        assert!(id.is_some_and(|id| id.is_string()), "{item:?} has no id");
    }
    Ok(())
}
