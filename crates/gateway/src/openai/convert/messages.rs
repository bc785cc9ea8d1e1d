//! A chat's messages: OpenAI's JSON to the contract's messages.

use hanzo_engine_proto::v1::{self, content_part::Part};
use serde_json::Value;

use crate::{
    error::{ApiError, quote},
    fields::{Field, Fields},
};

const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// The `messages` of a request: at least one.
pub(super) fn read(field: Field) -> Result<Vec<v1::Message>, ApiError> {
    let path = field.path().to_owned();
    let messages = field.list()?;
    if messages.is_empty() {
        return Err(ApiError::field(&path, "must not be empty"));
    }
    messages.into_iter().map(|field| message(field.object()?)).collect()
}

fn message(mut fields: Fields) -> Result<v1::Message, ApiError> {
    let role = fields.require("role")?.word(&ROLES)?;
    let assistant = role == "assistant";
    let tool_calls = match fields.take("tool_calls") {
        None => Vec::new(),
        Some(field) if !assistant => return Err(field.error("only allowed where role is assistant")),
        Some(field) => {
            field.list()?.into_iter().map(|call| tool_call(call.object()?)).collect::<Result<_, _>>()?
        }
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
            return Err(ApiError::unsupported(field.path(), "not supported by this build"));
        }
    }
    // What the official client's own answers carry when they are sent back: nothing.
    if let Some(field) = fields.take("annotations")
        && field.value().as_array().is_none_or(|list| !list.is_empty())
    {
        return Err(ApiError::unsupported(field.path(), "not supported by this build unless it is empty"));
    }
    let name = fields.take("name").map(Field::string).transpose()?.unwrap_or_default();
    fields.finish()?;
    Ok(v1::Message { role: role.to_owned(), content, name, tool_calls, tool_call_id, reasoning_content })
}

fn content(field: Field) -> Result<Vec<v1::ContentPart>, ApiError> {
    let text = |text| v1::ContentPart { part: Some(Part::Text(text)) };
    match field.value() {
        Value::String(_) => Ok(vec![text(field.string()?)]),
        Value::Array(list) if list.is_empty() => Err(field.error("must not be empty")),
        Value::Array(_) => {
            field.list()?.into_iter().map(|part| Ok(text(text_part(part.object()?)?))).collect()
        }
        _ => Err(field.error("expected a string or an array of content parts")),
    }
}

fn text_part(mut fields: Fields) -> Result<String, ApiError> {
    let field = fields.require("type")?;
    let path = field.path().to_owned();
    match field.string()?.as_str() {
        "text" => {}
        known @ ("image_url" | "input_audio" | "file" | "video_url" | "audio_url" | "refusal") => {
            return Err(ApiError::unsupported(
                &path,
                format!("{known} is not supported by this build, only text"),
            ));
        }
        other => return Err(ApiError::field(&path, format!("expected text, got {}", quote(other)))),
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
            let path = field.path().to_owned();
            let text = field.string()?;
            if !text.trim().is_empty() {
                serde_json::from_str::<Value>(&text)
                    .map_err(|e| ApiError::field(&path, format!("expected JSON in a string: {e}")))?;
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
