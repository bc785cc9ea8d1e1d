//! Routes of stored responses: `GET` and `DELETE /v1/responses/{id}`, `POST /v1/responses/{id}/cancel`, `GET
//! /v1/responses/{id}/input_items`.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Path, RawQuery, State, rejection::PathRejection},
    response::Response,
};
use serde_json::{Value, json};

use super::create::owner;
use crate::{
    answers::{self, AnswerRoom},
    app::App,
    asker::Asker,
    error::{ApiError, quote},
    json::Json as Text,
    limits::{ITEMS_LISTED, ITEMS_LISTED_MAX},
    query,
    response_store::stored::{StoredResponse, member, quoted},
};

type Id = Result<Path<String>, PathRejection>;

/// Handler of `GET /v1/responses/{id}`.
pub(crate) async fn show(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    id: Id,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    for (name, value) in query::pairs(query.as_deref()) {
        match name.as_str() {
            "include" | "include[]" | "include_obfuscation" => {}
            "stream" if value == "false" => {}
            "stream" | "starting_after" => {
                let problem = "not supported by this build: only a response that is made in the background could be followed again";
                return Err(ApiError::unsupported(&name, problem));
            }
            _ => unknown(&app, &name)?,
        }
    }
    let (_, stored, room) = load(&app, &asker, id).await?;
    Ok(answers::whole(stored.response.clone(), room))
}

/// Handler of `DELETE /v1/responses/{id}`.
pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    id: Id,
) -> Result<Json<Value>, ApiError> {
    let id = path(id)?;
    if !app.responses.remove(&owner(&asker), &id).await {
        return Err(ApiError::response_not_found(&id));
    }
    Ok(Json(json!({"id": id, "object": "response", "deleted": true})))
}

/// `POST /v1/responses/{id}/cancel`. It always fails, because every stored response is complete.
pub(crate) async fn cancel(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    id: Id,
) -> Result<Response, ApiError> {
    load(&app, &asker, id).await?;
    Err(ApiError::not_in_background())
}

/// `GET /v1/responses/{id}/input_items`, the last first by default.
pub(crate) async fn input_items(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    id: Id,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let (mut after, mut limit, mut ascending) = (None, ITEMS_LISTED, false);
    for (name, value) in query::pairs(query.as_deref()) {
        match name.as_str() {
            "include" | "include[]" => {}
            "after" => after = Some(value).filter(|id| !id.is_empty()),
            "limit" => {
                let asked = value.parse().ok().filter(|limit| (1..=ITEMS_LISTED_MAX).contains(limit));
                let problem =
                    || format!("expected an integer from 1 to {ITEMS_LISTED_MAX}, got {}", quote(&value));
                limit = asked.ok_or_else(|| ApiError::field("limit", problem()))?;
            }
            "order" => {
                ascending = match value.as_str() {
                    "asc" => true,
                    "desc" => false,
                    _ => {
                        let problem = format!("expected one of asc, desc, got {}", quote(&value));
                        return Err(ApiError::field("order", problem));
                    }
                };
            }
            _ => unknown(&app, &name)?,
        }
    }
    let (response, stored, room) = load(&app, &asker, id).await?;
    let input = Text::parse(&stored.input).map_err(|_| ApiError::internal("a kept response is no JSON"))?;
    let named = |item: Text<'_>| member(item, "id").and_then(Text::as_str).unwrap_or_default().into_owned();
    let mut items: Vec<(String, Text<'_>)> =
        input.elements().into_iter().flatten().map(|item| (named(item), item)).collect();
    if !ascending {
        items.reverse();
    }
    let from = match after {
        None => 0,
        Some(after) => {
            let at = items.iter().position(|(id, _)| *id == after);
            let problem = || format!("response {} has no input item {}", quote(&response), quote(&after));
            at.ok_or_else(|| ApiError::field("after", problem()))? + 1
        }
    };
    let shown = &items[from..items.len().min(from + limit)];
    let data: Vec<String> = shown.iter().map(|(_, item)| item.to_text()).collect();
    let end =
        |item: Option<&(String, Text<'_>)>| item.map_or_else(|| "null".to_owned(), |(id, _)| quoted(id));
    let list = format!(
        "{{\"object\":\"list\",\"data\":[{}],\"first_id\":{},\"last_id\":{},\"has_more\":{}}}",
        data.join(","),
        end(shown.first()),
        end(shown.last()),
        items.len() > from + limit
    );
    Ok(answers::whole(list, room))
}

/// Loads the response of that id. Memory is reserved for it as for an answer.
async fn load(
    app: &App,
    asker: &Asker,
    id: Id,
) -> Result<(String, Arc<StoredResponse>, AnswerRoom), ApiError> {
    let id = path(id)?;
    let mut room = app.answers.room();
    room.grow(app.responses.bytes(&id).await)?;
    match app.responses.load(&owner(asker), &id).await {
        Some(stored) => Ok((id, stored, room)),
        None => Err(ApiError::response_not_found(&id)),
    }
}

fn path(id: Id) -> Result<String, ApiError> {
    id.map(|Path(id)| id).map_err(|rejection| ApiError::field("response_id", rejection.body_text()))
}

fn unknown(app: &App, name: &str) -> Result<(), ApiError> {
    match app.config.lenient {
        true => Ok(()),
        false => Err(ApiError::field(name, "unknown parameter")),
    }
}
