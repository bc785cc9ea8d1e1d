//! MCP resources: the list of models, details of each model (its card), and the state of the engine.

use rmcp::{
    ErrorData,
    model::{
        ListResourcesResult, PaginatedRequestParams, ReadResourceResult, Resource, ResourceContents,
        ResourceTemplate,
    },
};
use serde_json::{Value, json};

use crate::{
    app::App,
    asker::Asker,
    error::{ApiError, quote},
    limits::{MCP_PAGE_ITEMS, MODEL_NAME_BYTES_MAX},
    openai::models,
    status::{card, engine_health, model_health},
};

const MODELS: &str = "hanzo://models";
const STATS: &str = "hanzo://stats";
const JSON: &str = "application/json";

/// Lists one page of resources: two fixed ones, then the models.
pub(super) async fn list(
    app: &App,
    asker: &Asker,
    request: Option<PaginatedRequestParams>,
) -> Result<ListResourcesResult, ErrorData> {
    let cursor = request.and_then(|request| request.cursor);
    let models = models::models(app, asker).await.map_err(|status| error(&status.into()))?;
    let mut all = vec![
        Resource::new(MODELS, "models")
            .with_title("Models")
            .with_mime_type(JSON)
            .with_description("The models in memory, then those that are stored."),
        Resource::new(STATS, "stats")
            .with_title("Statistics")
            .with_mime_type(JSON)
            .with_description("What the engine and its models do now: memory, queues, KV cache."),
    ];
    all.extend(models.into_iter().map(|model| {
        let description = format!("Card of a model that is {}.", model.state);
        Resource::new(format!("{MODELS}/{}", encoded(&model.id)), model.id)
            .with_mime_type(JSON)
            .with_description(description)
    }));
    // The cursor is the last URI of the previous page, not a position, because the list may change between pages.
    let begin = match cursor {
        None => 0,
        Some(cursor) => match all.iter().position(|resource| resource.uri == cursor) {
            Some(at) => at + 1,
            None => return Err(ErrorData::invalid_params("cursor: it is none of this server's", None)),
        },
    };
    let rest = all.len().saturating_sub(begin + MCP_PAGE_ITEMS);
    let page: Vec<Resource> = all.into_iter().skip(begin).take(MCP_PAGE_ITEMS).collect();
    let next = page.last().filter(|_| rest > 0).map(|last| last.uri.clone());
    let mut result = ListResourcesResult::with_all_items(page);
    result.next_cursor = next;
    Ok(result)
}

/// URI template for the card of a model, given the model's name.
pub(super) fn templates() -> Vec<ResourceTemplate> {
    let card = ResourceTemplate::new(format!("{MODELS}/{{+name}}"), "model");
    vec![
        card.with_title("Model")
            .with_mime_type(JSON)
            .with_description("Card of a model: what it can do, its size, its context, its license."),
    ]
}

/// Reads a resource.
pub(super) async fn read(app: &App, asker: &Asker, uri: String) -> Result<ReadResourceResult, ErrorData> {
    let unknown = || {
        let message = format!("no such resource: {}", quote(&uri));
        ErrorData::resource_not_found(
            message,
            Some(json!({"uri": uri.chars().take(256).collect::<String>()})),
        )
    };
    let read = match uri.strip_prefix(MODELS) {
        Some("" | "/") => models::models(app, asker).await.map(|models| json!({ "models": models })),
        Some(name) => {
            let name = name.strip_prefix('/').and_then(decoded).ok_or_else(unknown)?;
            let shown = app.engine(asker).show(name.clone()).await;
            shown.map(|shown| card(name, shown))
        }
        None if uri.trim_end_matches('/') == STATS => app.engine(asker).stats().await.map(|stats| {
            json!({
                "engine": engine_health(&stats),
                "models": stats.models.iter().map(model_health).collect::<Vec<Value>>(),
            })
        }),
        None => return Err(unknown()),
    };
    let value = read.map_err(|status| match status.code() {
        tonic::Code::NotFound => unknown(),
        _ => error(&status.into()),
    })?;
    let contents = ResourceContents::text(value.to_string(), uri.clone()).with_mime_type(JSON);
    Ok(ReadResourceResult::new(vec![contents]))
}

/// Refuses any cursor, for lists that have one page.
pub(super) fn first_page(request: Option<PaginatedRequestParams>) -> Result<(), ErrorData> {
    match request.and_then(|request| request.cursor) {
        None => Ok(()),
        Some(_) => Err(ErrorData::invalid_params("cursor: it is none of this server's", None)),
    }
}

fn error(error: &ApiError) -> ErrorData {
    let data = Some(error.json()["error"].take());
    ErrorData::internal_error(error.message().to_owned(), data)
}

/// Percent-encodes a name for a URI, except ASCII letters, digits and `-._~/:@`.
fn encoded(name: &str) -> String {
    let mut uri = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b if b.is_ascii_alphanumeric() || b"-._~/:@".contains(&b) => uri.push(char::from(b)),
            b => uri.push_str(&format!("%{b:02X}")),
        }
    }
    uri
}

/// Decodes a name; `None` if malformed, empty or too long.
fn decoded(uri: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(uri.len());
    let mut rest = uri.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                u8::try_from(digit(rest.next())? * 16 + digit(rest.next())?).ok()?
            }
            byte => byte,
        });
    }
    let name = String::from_utf8(bytes).ok()?;
    (!name.is_empty() && name.len() <= MODEL_NAME_BYTES_MAX).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::{decoded, encoded};

    #[test]
    fn names_survive_being_a_uri() {
        for name in ["hanzo-demo", "qwen/qwen3-4b:Q8_0", "a b%c?d#é"] {
            assert_eq!(decoded(&encoded(name)).as_deref(), Some(name));
        }
        assert_eq!(encoded("a/b c"), "a/b%20c");
        for wrong in ["", "%", "%2", "%zz", "%ff"] {
            assert_eq!(decoded(wrong), None, "{wrong}");
        }
    }
}
