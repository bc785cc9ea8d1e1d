//! Conversion of a request's messages and content blocks to the engine's messages.
//!
//! A user message may contain tool results, which are separate messages for the engine; the order of blocks is
//! kept. No content is dropped: a block that the model cannot be shown is refused by name. Fields about how
//! Anthropic's service stores or verifies a block (`cache_control`, `signature`, `caller`) are ignored.

use hanzo_engine_proto::v1::{self, content_part::Part};

use crate::{
    declare::{Natural as _, Raw, Words, fields},
    error::{ApiError, quote},
    fields::{Field, Fields},
    limits::{CHAT_MESSAGES_MAX, CHAT_PARTS_MAX},
    pictures,
};

/// Conversation of a request.
#[derive(Debug, Default)]
pub(super) struct Conversation {
    pub(super) messages: Vec<v1::Message>,
    /// The last message is the beginning of the assistant's answer, which the model continues.
    pub(super) is_begun: bool,
}

fields! {
    /// Message, or a part of the assistant's answer at the end.
    pub(crate) open struct AnthropicMessage<'a> {
        /// Role of who says it.
        role: &'static str = Words(["user", "assistant", "system"]),
        /// Text, or blocks.
        content: Field<'a> = Raw("string | object[]"),
    }
}

/// Reads `system` and `messages`, which is `field`.
pub(super) fn conversation(system: Option<Field>, field: Field) -> Result<Conversation, ApiError> {
    let mut messages = Vec::new();
    if let Some(field) = system {
        let texts = texts(field)?;
        if !texts.is_empty() {
            messages.push(v1::Message {
                role: "system".to_owned(),
                content: texts,
                ..v1::Message::default()
            });
        }
    }
    let list = field.list_up_to(CHAT_MESSAGES_MAX, "messages")?;
    messages.reserve(list.size_hint().0);
    let mut last = None;
    for message in list {
        let AnthropicMessage { role, content } = AnthropicMessage::of(message)?;
        match role {
            "assistant" => messages.push(assistant(content)?),
            "system" => {
                let content = texts(content)?;
                messages.push(v1::Message { role: role.to_owned(), content, ..v1::Message::default() });
            }
            _ => user(content, &mut messages)?,
        }
        if messages.len() > CHAT_MESSAGES_MAX {
            return Err(
                field.error(format!("has more than {CHAT_MESSAGES_MAX} messages and answers of tools"))
            );
        }
        last = Some(role);
    }
    match last {
        None => Err(field.error("must not be empty")),
        Some(role) => {
            let waits = messages.last().is_some_and(|message| message.tool_calls.is_empty());
            Ok(Conversation { messages, is_begun: role == "assistant" && waits })
        }
    }
}

fn text(text: String) -> v1::ContentPart {
    v1::ContentPart { part: Some(Part::Text(text)) }
}

/// Reads a string or a list of text blocks.
fn texts(field: Field) -> Result<Vec<v1::ContentPart>, ApiError> {
    let mut parts = Vec::new();
    each(field, |fields, kind| {
        match &*kind.text()? {
            "text" => parts.push(text(fields.require("text")?.string()?)),
            other => return Err(refused(kind, other, "text")),
        }
        Ok(())
    })?
    .map_or(Ok(()), |whole| {
        parts.push(text(whole));
        Ok::<(), ApiError>(())
    })?;
    Ok(parts)
}

/// Calls `one` with each block and its type if the content is a list. Otherwise returns the content as a
/// string.
fn each<'a>(
    field: Field<'a>,
    mut one: impl FnMut(&mut Fields<'a>, Field<'a>) -> Result<(), ApiError>,
) -> Result<Option<String>, ApiError> {
    let Some(list) = field.as_list() else {
        return match field.value().as_str() {
            Some(text) => Ok(Some(text.into_owned())),
            None => Err(field.error("expected a string or an array of content blocks")),
        };
    };
    for block in list.up_to(CHAT_PARTS_MAX, "blocks", field)? {
        let mut fields = block.object()?;
        let kind = fields.require("type")?;
        one(&mut fields, kind)?;
    }
    Ok(None)
}

/// Error for a block type that is not allowed here.
fn refused(kind: Field, name: &str, expected: &str) -> ApiError {
    const KNOWN: [&str; 13] = [
        "image",
        "document",
        "search_result",
        "thinking",
        "redacted_thinking",
        "tool_use",
        "tool_result",
        "server_tool_use",
        "web_search_tool_result",
        "mcp_tool_use",
        "mcp_tool_result",
        "container_upload",
        "tool_reference",
    ];
    if KNOWN.contains(&name) {
        let problem = format!("{name} is not supported here by this build, only {expected}");
        return ApiError::unsupported(&kind.path(), problem);
    }
    kind.error(format!("expected {expected}, got {}", quote(name)))
}

/// Reads a user message. Tool results in it become separate messages.
fn user(content: Field, messages: &mut Vec<v1::Message>) -> Result<(), ApiError> {
    let before = messages.len();
    let mut said = Vec::new();
    let flush = |said: &mut Vec<v1::ContentPart>, messages: &mut Vec<v1::Message>| {
        if !said.is_empty() {
            let content = std::mem::take(said);
            messages.push(v1::Message { role: "user".to_owned(), content, ..v1::Message::default() });
        }
    };
    let whole = each(content, |fields, kind| {
        match &*kind.text()? {
            "tool_result" => {
                flush(&mut said, messages);
                messages.push(tool_result(fields)?);
            }
            "image" => said.push(pictures::anthropic(fields)?),
            word => said.push(text(shown(fields, kind, word, "text, image, document or tool_result")?)),
        }
        Ok(())
    })?;
    said.extend(whole.map(text));
    flush(&mut said, messages);
    if messages.len() == before {
        return Err(content.error("must not be empty"));
    }
    Ok(())
}

/// Text of a block that can be shown as text.
fn shown(fields: &mut Fields, kind: Field, word: &str, expected: &str) -> Result<String, ApiError> {
    match word {
        "text" => fields.require("text")?.string(),
        "document" => document(fields),
        "search_result" => {
            let mut found = String::new();
            for name in ["title", "source"] {
                if let Some(field) = fields.take(name) {
                    found.push_str(&field.text()?);
                    found.push('\n');
                }
            }
            for part in texts(fields.require("content")?)? {
                if let Some(Part::Text(text)) = part.part {
                    found.push_str(&text);
                }
            }
            Ok(found)
        }
        other => Err(refused(kind, other, expected)),
    }
}

/// Text of a document: its title, its context and its content.
fn document(fields: &mut Fields) -> Result<String, ApiError> {
    if let Some(field) = fields.take("citations")
        && field.object()?.flag("enabled")?
    {
        return Err(ApiError::unsupported(&field.path(), "not supported by this build"));
    }
    let mut document = String::new();
    for name in ["title", "context"] {
        if let Some(field) = fields.take(name) {
            document.push_str(&field.text()?);
            document.push('\n');
        }
    }
    let mut source = fields.require("source")?.object()?;
    let kind = source.require("type")?;
    match &*kind.text()? {
        "text" => document.push_str(&source.require("data")?.text()?),
        "content" => {
            for part in texts(source.require("content")?)? {
                if let Some(Part::Text(text)) = part.part {
                    document.push_str(&text);
                }
            }
        }
        other => {
            let problem = format!("{} is not supported by this build, only text and content", quote(other));
            return Err(ApiError::unsupported(&kind.path(), problem));
        }
    }
    Ok(document)
}

fn tool_result(fields: &mut Fields) -> Result<v1::Message, ApiError> {
    let tool_call_id = fields.require("tool_use_id")?.string()?;
    let mut content = Vec::new();
    // Chat templates have no field for a failed tool, so the text says it.
    if fields.flag("is_error")? {
        content.push(text("Error: ".to_owned()));
    }
    if let Some(field) = fields.take("content") {
        let whole = each(field, |fields, kind| {
            let word = kind.text()?;
            content.push(match &*word {
                "image" => pictures::anthropic(fields)?,
                word => text(shown(fields, kind, word, "text, image, document or search_result")?),
            });
            Ok(())
        })?;
        content.extend(whole.map(text));
    }
    Ok(v1::Message { role: "tool".to_owned(), content, tool_call_id, ..v1::Message::default() })
}

fn assistant(content: Field) -> Result<v1::Message, ApiError> {
    let mut message = v1::Message { role: "assistant".to_owned(), ..v1::Message::default() };
    let whole = each(content, |fields, kind| {
        match &*kind.text()? {
            "text" => message.content.push(text(fields.require("text")?.string()?)),
            "thinking" => message.reasoning_content.push_str(&fields.require("thinking")?.text()?),
            // Redacted reasoning is not shown to the model.
            "redacted_thinking" => {}
            "tool_use" => {
                let id = fields.require("id")?.string()?;
                let name = fields.require("name")?;
                if name.text()?.is_empty() {
                    return Err(name.error("must not be empty"));
                }
                let input = fields.require("input")?;
                if !input.value().is_object() {
                    return Err(input.error("expected an object"));
                }
                let arguments_json = input.value().to_text();
                message.tool_calls.push(v1::ToolCall { id, name: name.string()?, arguments_json });
            }
            other => return Err(refused(kind, other, "text, thinking or tool_use")),
        }
        Ok(())
    })?;
    message.content.extend(whole.map(text));
    Ok(message)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fields::fields_of;

    /// Each message as `role: text` with its reasoning, calls and answered call; and whether the answer is
    /// begun.
    fn check(body: Value) -> Result<(Vec<String>, bool), String> {
        let mut fields = fields_of(&body, false);
        let system = fields.take("system");
        let read = fields.require("messages").and_then(|field| conversation(system, field));
        let Conversation { messages, is_begun } = read.map_err(|error| error.message().to_owned())?;
        let line = |message: v1::Message| {
            let text = |part: v1::ContentPart| match part.part {
                Some(Part::Text(text)) => text,
                other => panic!("{other:?}"),
            };
            let parts: Vec<String> = message.content.into_iter().map(text).collect();
            let calls = message
                .tool_calls
                .iter()
                .map(|call| format!(" {}={}{}", call.id, call.name, call.arguments_json));
            let calls: String = calls.collect();
            let (of, thought) = (message.tool_call_id, message.reasoning_content);
            let of = if of.is_empty() { of } else { format!("[{of}]") };
            let thought = if thought.is_empty() { thought } else { format!("({thought})") };
            format!("{}{of}: {thought}{}{calls}", message.role, parts.join("|"))
        };
        Ok((messages.into_iter().map(line).collect(), is_begun))
    }

    #[test]
    fn blocks_become_messages_in_their_order() {
        let body = json!({
            "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {"role": "user", "content": "what is the weather?"},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "look", "signature": "x"},
                    {"type": "redacted_thinking", "data": "..."},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rome"}},
                    {"type": "tool_use", "id": "t2", "name": "time", "input": {}},
                ]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "sun"}]},
                    {"type": "tool_result", "tool_use_id": "t2", "is_error": true, "content": "no clock"},
                    {"type": "text", "text": "and"},
                    {"type": "document", "title": "note", "source": {"type": "text", "media_type": "text/plain", "data": "rain later"}},
                ]},
            ],
        });
        let expected = [
            "system: be brief",
            "user: what is the weather?",
            r#"assistant: (look)I look. t1=weather{"city":"Rome"} t2=time{}"#,
            "tool[t1]: sun",
            "tool[t2]: Error: |no clock",
            "user: and|note\nrain later",
        ];
        assert_eq!(check(body), Ok((expected.map(str::to_owned).to_vec(), false)));
    }

    #[test]
    fn an_answer_that_is_begun_is_gone_on_with() {
        let begun =
            json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]});
        assert!(check(begun).unwrap().1);
        let called = json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [
            {"type": "tool_use", "id": "t", "name": "f", "input": {}},
        ]}]});
        assert!(!check(called).unwrap().1);
    }

    #[test]
    fn what_cannot_be_shown_is_refused_by_its_place() {
        let user = |block: Value| json!({"messages": [{"role": "user", "content": [block]}]});
        for (body, start) in [
            (
                user(json!({"type": "image", "source": {"type": "file", "file_id": "f"}})),
                "messages[0].content[0].source.type: only base64 and url are supported",
            ),
            (
                user(json!({"type": "image", "source": {"type": "base64", "data": "A*"}})),
                "messages[0].content[0].source.data: is not base64",
            ),
            (
                user(json!({"type": "tool_use"})),
                "messages[0].content[0].type: tool_use is not supported here",
            ),
            (
                user(json!({"type": "poem"})),
                "messages[0].content[0].type: expected text, image, document or tool_result, got",
            ),
            (user(json!({"text": "x"})), "messages[0].content[0].type: required"),
            (json!({"messages": []}), "messages: must not be empty"),
            (json!({}), "messages: required"),
            (
                json!({"messages": [{"role": "tool", "content": ""}]}),
                "messages[0].role: expected one of user, assistant",
            ),
            (
                json!({"messages": [{"role": "user", "content": 1}]}),
                "messages[0].content: expected a string or an array",
            ),
            (
                json!({"messages": [{"role": "user", "content": []}]}),
                "messages[0].content: must not be empty",
            ),
            (
                user(json!({"type": "document", "source": {"type": "base64"}})),
                "messages[0].content[0].source.type: \"base64\"",
            ),
            (
                json!({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "", "name": "f", "input": 1}]}]}),
                "messages[0].content[0].input: expected an object",
            ),
        ] {
            let error = check(body.clone()).unwrap_err();
            assert!(error.starts_with(start), "{body}: {error}");
        }
    }
}
