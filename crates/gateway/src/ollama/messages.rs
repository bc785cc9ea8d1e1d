//! Chat messages in Ollama's format: a text, images next to it, tool calls without ids, and tool results with
//! the tool's name. A result is matched to its call by id, else by the tool's name, else in order.

use std::collections::{HashMap, VecDeque};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hanzo_engine_proto::v1::{self, content_part::Part};

use crate::{
    declare::{Natural as _, Raw, Read, fields},
    error::{ApiError, quote},
    fields::{Field, Fields},
    limits::{CHAT_MESSAGES_MAX, CHAT_PARTS_MAX},
};

const ROLES: [&str; 4] = ["system", "user", "assistant", "tool"];

fields! {
    /// Message. Other fields are ignored, because client libraries send back messages with their own additions.
    pub(crate) open struct OllamaMessage<'a> {
        /// Role of who says it: system, user, assistant or tool.
        role: Field<'a> = Raw("\"system\" | \"user\" | \"assistant\" | \"tool\""),
        /// Text of the message.
        content?: String,
        /// Images in base64.
        images?: Vec<v1::ContentPart> = Read("string[]", images),
        /// Reasoning of the assistant.
        thinking?: String,
        /// Calls of the assistant.
        tool_calls?: Field<'a> = Raw("object[]"),
        /// Name of the tool whose result this is.
        tool_name?: String,
        /// Second name of tool_name.
        name?: String,
        /// Id of the call whose result this is.
        tool_call_id?: String,
    }
}

/// Reads `messages`. An empty list only loads the model.
pub(super) fn read(field: Field) -> Result<Vec<v1::Message>, ApiError> {
    let (mut calls, list) = (Calls::default(), field.list_up_to(CHAT_MESSAGES_MAX, "messages")?);
    let mut messages = Vec::with_capacity(list.size_hint().0);
    for one in list {
        messages.push(message(OllamaMessage::of(one)?, &mut calls)?);
    }
    Ok(messages)
}

/// Calls that wait for their results. Each search ends in constant time, because a conversation may have many calls
/// and results.
#[derive(Default)]
struct Calls {
    made: usize,
    open: Vec<Option<String>>, // ids in order; None: the result was there
    first: usize,              // before it, all results were there
    by_name: HashMap<String, VecDeque<usize>>, // places in `open`
    by_id: HashMap<String, Vec<usize>>, // places in `open`
}

impl Calls {
    /// Id for a call without one: nine letters and digits, because some templates accept no other.
    fn id(&mut self) -> String {
        self.made += 1;
        format!("call{:05}", self.made)
    }

    fn opened(&mut self, call: &v1::ToolCall) {
        let at = self.open.len();
        self.open.push(Some(call.id.clone()));
        self.by_name.entry(call.name.clone()).or_default().push_back(at);
        self.by_id.entry(call.id.clone()).or_default().push(at);
    }

    /// Ends the calls with the id of a result.
    fn answered_by_id(&mut self, id: &str) {
        for at in self.by_id.remove(id).unwrap_or_default() {
            self.open[at] = None;
        }
    }

    /// Id of the call that a result belongs to: the first call of the tool, or the first of all if no tool is named.
    fn answered(&mut self, name: &str) -> String {
        while let Some(at) = self.by_name.get_mut(name).and_then(VecDeque::pop_front) {
            if let Some(id) = self.open[at].take() {
                return id;
            }
        }
        while name.is_empty() && self.first < self.open.len() {
            self.first += 1;
            if let Some(id) = self.open[self.first - 1].take() {
                return id;
            }
        }
        String::new()
    }
}

fn message(given: OllamaMessage, calls: &mut Calls) -> Result<v1::Message, ApiError> {
    let word = given.role.text()?.to_ascii_lowercase();
    let role = ROLES.into_iter().find(|role| *role == word).ok_or_else(|| {
        given.role.error(format!("expected one of {}, got {}", ROLES.join(", "), quote(&word)))
    })?;
    // In Ollama's format, images come first.
    let mut content = given.images.unwrap_or_default();
    content.push(part(given.content.unwrap_or_default()));
    let reasoning_content = given.thinking.unwrap_or_default();
    let mut tool_calls = Vec::new();
    if let Some(field) = given.tool_calls {
        for call in field.list_up_to(CHAT_PARTS_MAX, "calls")? {
            let call = tool_call(call.object()?, calls)?;
            calls.opened(&call);
            tool_calls.push(call);
        }
        if role != "assistant" && !tool_calls.is_empty() {
            return Err(field.error("only allowed where role is assistant"));
        }
    }
    let name = given.tool_name.or(given.name).unwrap_or_default();
    let tool_call_id = match (role, given.tool_call_id.filter(|id| !id.is_empty())) {
        ("tool", Some(id)) => {
            calls.answered_by_id(&id);
            id
        }
        ("tool", None) => calls.answered(&name),
        _ => String::new(),
    };
    Ok(v1::Message { role: role.to_owned(), content, name, tool_calls, tool_call_id, reasoning_content })
}

/// Text as a content part.
pub(super) fn part(text: String) -> v1::ContentPart {
    v1::ContentPart { part: Some(Part::Text(text)) }
}

/// Reads `images`: images in base64. The engine checks whether the model supports them.
pub(super) fn images(field: Field) -> Result<Vec<v1::ContentPart>, ApiError> {
    let mut parts = Vec::new();
    for image in field.list_up_to(CHAT_PARTS_MAX, "images")? {
        let text = image.text()?;
        let data = text.split_once(";base64,").map_or(&*text, |(_, data)| data);
        let data = STANDARD.decode(data.trim()).map_err(|_| image.error("expected base64"))?;
        let mime_type = kind(&data).to_owned();
        let media = v1::Media { mime_type, data: data.into(), ..v1::Media::default() };
        parts.push(v1::ContentPart { part: Some(Part::Media(Box::new(media))) });
    }
    Ok(parts)
}

/// Media type of an image by its first bytes.
fn kind(data: &[u8]) -> &'static str {
    match data {
        [0x89, b'P', b'N', b'G', ..] => "image/png",
        [0xff, 0xd8, 0xff, ..] => "image/jpeg",
        [b'G', b'I', b'F', b'8', ..] => "image/gif",
        [b'B', b'M', ..] => "image/bmp",
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => "image/webp",
        _ => "application/octet-stream",
    }
}

fn tool_call(mut fields: Fields, calls: &mut Calls) -> Result<v1::ToolCall, ApiError> {
    let id = fields.take("id").map(Field::string).transpose()?.filter(|id| !id.is_empty());
    let mut function = fields.require("function")?.object()?;
    let name = function.require("name")?;
    if name.text()?.is_empty() {
        return Err(name.error("must not be empty"));
    }
    let arguments_json = match function.take("arguments") {
        None => "{}".to_owned(),
        Some(field) if field.value().is_object() => field.value().to_text(),
        // Arguments as text, as OpenAI's clients send them.
        Some(field) => field.string()?,
    };
    Ok(v1::ToolCall { id: id.unwrap_or_else(|| calls.id()), name: name.string()?, arguments_json })
}

/// Client's name for an image that the engine names as a content part. The text part follows the images.
pub(super) fn picture(param: &str) -> Option<String> {
    let Some((message, part)) = param.split_once(".content[") else { return Some(param.to_owned()) };
    let part: usize = part.trim_end_matches(']').parse().ok()?;
    Some(match message.starts_with("prompt") {
        // A prompt is a single message.
        true => format!("images[{part}]"),
        false => format!("{message}.images[{part}]"),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fields::fields_of;

    fn check(messages: Value) -> Result<Vec<String>, String> {
        let messages = fields_of(&json!({"messages": messages}), false).take("messages");
        let read = messages.map_or_else(|| Ok(Vec::new()), read);
        let line = |message: v1::Message| {
            let text = |part: v1::ContentPart| match part.part {
                Some(Part::Text(text)) => text,
                Some(Part::Media(media)) => format!("<{} {}>", media.mime_type, media.data.len()),
                None => String::new(),
            };
            let said: String = message.content.into_iter().map(text).collect();
            let calls =
                message.tool_calls.iter().map(|c| format!(" {}={}{}", c.id, c.name, c.arguments_json));
            let calls: String = calls.collect();
            format!(
                "{}[{}]: ({}){said}{calls}",
                message.role, message.tool_call_id, message.reasoning_content
            )
        };
        let read = read.map_err(|error| error.message().to_owned())?;
        Ok(read.into_iter().map(line).collect())
    }

    #[test]
    fn answers_find_their_calls() {
        let call = |name: &str| json!({"function": {"name": name, "arguments": {"a": 1}, "index": 0}});
        let lines = check(json!([
            {"role": "System", "content": "s"},
            {"role": "user", "content": "q", "images": ["data:image/png;base64,iVBORw=="]},
            {"role": "assistant", "content": "", "thinking": "t", "tool_calls": [call("f"), call("g"), {"id": "own", "function": {"name": "h"}}]},
            {"role": "tool", "content": "2", "tool_name": "g"},
            {"role": "tool", "content": "3", "tool_call_id": "own"},
            {"role": "tool", "content": "1"},
        ]));
        let expected = [
            "system[]: ()s",
            "user[]: ()<image/png 4>q",
            r#"assistant[]: (t) call00001=f{"a":1} call00002=g{"a":1} own=h{}"#,
            "tool[call00002]: ()2",
            "tool[own]: ()3",
            "tool[call00001]: ()1",
        ];
        assert_eq!(lines, Ok(expected.map(str::to_owned).to_vec()));
        assert_eq!(check(Value::Null), Ok(Vec::new()));
        // Results of unknown calls, a second result, and results in another order.
        let result = |name: &str, id: &str| json!({"role": "tool", "content": "", "tool_name": name, "tool_call_id": id});
        let lines = check(json!([
            {"role": "assistant", "tool_calls": [call("f"), call("f"), {"id": "own", "function": {"name": "f"}}, call("g")]},
            result("f", ""), result("", "own"), result("h", ""), result("", "own"), result("f", ""), result("f", ""), result("", ""), result("", ""),
        ]));
        let ids: Vec<String> =
            lines.unwrap()[1..].iter().map(|line| line[5..].replace("]: ()", "")).collect();
        assert_eq!(ids, ["call00001", "own", "", "own", "call00002", "", "call00003", ""]);
    }

    #[test]
    fn what_is_wrong_is_said_of_its_place() {
        for (messages, start) in [
            (json!([{"content": "x"}]), "messages[0].role: required"),
            (json!([{"role": "poet", "content": "x"}]), "messages[0].role: expected one of system"),
            (json!([{"role": "user", "content": 1}]), "messages[0].content: expected a string"),
            (json!([{"role": "user", "images": ["?"]}]), "messages[0].images[0]: expected base64"),
            (
                json!([{"role": "user", "tool_calls": [{"function": {"name": "f"}}]}]),
                "messages[0].tool_calls: only allowed",
            ),
            (
                json!([{"role": "assistant", "tool_calls": [{}]}]),
                "messages[0].tool_calls[0].function: required",
            ),
        ] {
            let error = check(messages.clone()).unwrap_err();
            assert!(error.starts_with(start), "{messages}: {error}");
        }
        assert_eq!(picture("messages[2].content[0]").as_deref(), Some("messages[2].images[0]"));
        assert_eq!(picture("prompt[0].content[1]").as_deref(), Some("images[1]"));
        assert_eq!(picture("temperature").as_deref(), Some("temperature"));
    }
}
