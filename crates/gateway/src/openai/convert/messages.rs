//! A chat's messages: OpenAI's JSON to the contract's messages.

use crate::{
    error::{ApiError, quote},
    fields::{Field, Fields},
    json::Json,
    limits::{CHAT_MESSAGES_MAX, CHAT_PARTS_MAX},
};
use hanzo_engine_proto::v1::{self, content_part::Part};

const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// The `messages` of a request: at least one.
pub(super) fn read(field: Field) -> Result<Vec<v1::Message>, ApiError> {
    let mut list = field.list()?;
    // As many as a chat may have, which the daemon checks: no more are built.
    let messages: Vec<_> = list
        .by_ref()
        .take(CHAT_MESSAGES_MAX)
        .map(|field| message(field.object()?))
        .collect::<Result<_, _>>()?;
    match (messages.is_empty(), list.next()) {
        (true, _) => Err(field.error("must not be empty")),
        (_, Some(_)) => Err(field.error(format!("has more than {CHAT_MESSAGES_MAX} messages"))),
        (_, None) => Ok(messages),
    }
}

fn message(mut fields: Fields) -> Result<v1::Message, ApiError> {
    let role = fields.require("role")?.word(&ROLES)?;
    let assistant = role == "assistant";
    let tool_calls = match fields.take("tool_calls") {
        None => Vec::new(),
        Some(field) if !assistant => return Err(field.error("only allowed where role is assistant")),
        Some(field) => field.list()?.map(|call| tool_call(call.object()?)).collect::<Result<_, _>>()?,
    };
    let tool_call_id = match fields.take("tool_call_id") {
        Some(field) if role != "tool" => return Err(field.error("only allowed where role is tool")),
        Some(field) => field.string()?,
        None if role == "tool" => return Err(ApiError::field(&fields.path_of("tool_call_id"), "required")),
        None => String::new(),
    };
    let reasoning_content = match fields.take("reasoning_content") {
        None => String::new(),
        Some(field) if !assistant => return Err(field.error("only allowed where role is assistant")),
        Some(field) => field.string()?,
    };
    let content = match fields.take("content") {
        Some(field) => content(field)?,
        // An assistant that called tools may have said nothing.
        None if !tool_calls.is_empty() => Vec::new(),
        None => return Err(ApiError::field(&fields.path_of("content"), "required")),
    };
    for name in ["refusal", "audio", "function_call"] {
        if let Some(field) = fields.take(name) {
            return Err(ApiError::unsupported(&field.path(), "not supported by this build"));
        }
    }
    // What the official client's own answers carry when they are sent back: nothing.
    if let Some(field) = fields.take("annotations")
        && field.value().elements().is_none_or(|mut list| list.next().is_some())
    {
        return Err(ApiError::unsupported(&field.path(), "not supported by this build unless it is empty"));
    }
    let name = fields.take("name").map(Field::string).transpose()?.unwrap_or_default();
    fields.finish()?;
    Ok(v1::Message { role: role.to_owned(), content, name, tool_calls, tool_call_id, reasoning_content })
}

fn content(field: Field) -> Result<Vec<v1::ContentPart>, ApiError> {
    let text = |text| v1::ContentPart { part: Some(Part::Text(text)) };
    if field.value().is_string() {
        return Ok(vec![text(field.string()?)]);
    }
    let Ok(mut list) = field.list() else {
        return Err(field.error("expected a string or an array of content parts"));
    };
    let parts = list.by_ref().take(CHAT_PARTS_MAX).map(|part| text_part(part.object()?).map(text));
    let parts: Vec<_> = parts.collect::<Result<_, ApiError>>()?;
    match (parts.is_empty(), list.next()) {
        (true, _) => Err(field.error("must not be empty")),
        (_, Some(_)) => Err(field.error(format!("has more than {CHAT_PARTS_MAX} parts"))),
        (_, None) => Ok(parts),
    }
}

fn text_part(mut fields: Fields) -> Result<String, ApiError> {
    let field = fields.require("type")?;
    match &*field.text()? {
        "text" => {}
        known @ ("image_url" | "input_audio" | "file" | "video_url" | "audio_url" | "refusal") => {
            return Err(ApiError::unsupported(
                &field.path(),
                format!("{known} is not supported by this build, only text"),
            ));
        }
        other => return Err(field.error(format!("expected text, got {}", quote(other)))),
    }
    let text = fields.require("text")?.string()?;
    fields.finish()?;
    Ok(text)
}

fn tool_call(mut fields: Fields) -> Result<v1::ToolCall, ApiError> {
    let id = fields.require("id")?.string()?;
    fields.take("type").map(|field| field.word(&["function"])).transpose()?;
    // Streamed calls are numbered; a client may send the number back.
    fields.take("index").map(|field| field.integer(0..=u32::MAX)).transpose()?;
    let mut function = fields.require("function")?.object()?;
    let name = function.require("name")?.string()?;
    let arguments = match function.take("arguments") {
        None => String::new(),
        Some(field) => {
            let text = field.string()?;
            if !text.trim().is_empty() {
                Json::parse(&text).map_err(|fault| {
                    field.error(format!("expected JSON in a string: {} at byte {}", fault.problem, fault.at))
                })?;
            }
            text
        }
    };
    function.finish()?;
    fields.finish()?;
    // A function without parameters is called with nothing, which templates expect as an object.
    let arguments_json = if arguments.trim().is_empty() { "{}".to_owned() } else { arguments };
    Ok(v1::ToolCall { id, name, arguments_json })
}
