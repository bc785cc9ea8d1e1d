//! Conversion of OpenAI's chat messages to the engine's messages.
//!
//! Most messages are history: an agent stores the messages that it received, each library with its own fields,
//! and sends them back. So unknown fields of messages are ignored, and equivalent forms are accepted:
//! `reasoning` means `reasoning_content`, a `function` is a tool, a `function_call` a tool call. No content is
//! dropped: a part that the model cannot be shown is refused by name.

use std::{
    borrow::Cow,
    collections::{HashMap, VecDeque},
};

use hanzo_engine_proto::v1::{self, content_part::Part};

use crate::{
    declare::{Natural as _, Raw, Words, fields},
    error::{ApiError, quote},
    fields::Field,
    limits::{CHAT_MESSAGES_MAX, CHAT_PARTS_MAX},
    media_bounds::refuse_others,
    pictures::{self, PictureFields},
    sounds,
};

fields! {
    /// Message. Other fields, which libraries put beside these, are ignored, because it is history.
    pub(crate) open struct ChatMessage<'a> {
        /// Role of who says it.
        role: &'static str = Words(["system", "developer", "user", "assistant", "tool", "function"]),
        /// Text, or parts.
        content?: Field<'a> = Raw("string | ContentPart[] | null"),
        /// Name of who says it.
        name?: String,
        /// Id of the call that a tool answers.
        tool_call_id?: Field<'a> = Raw("string"),
        /// Calls of the assistant.
        tool_calls?: Field<'a> = Raw("ChatToolCall[]"),
        /// Call of the assistant in the older format.
        function_call?: Field<'a> = Raw("ChatFunctionCall"),
        /// Reasoning of the assistant.
        reasoning_content?: Field<'a> = Raw("string"),
        /// Second name of reasoning_content.
        reasoning?: Field<'a> = Raw("any"),
        /// Second name of reasoning_content.
        thinking?: Field<'a> = Raw("any"),
        /// Refusal of the assistant.
        refusal?: Field<'a> = Raw("string"),
    }
}

fields! {
    /// Part of a message's content.
    pub(crate) open struct ContentPart<'a> {
        ..picture: PictureFields<'a>,
        /// Kind of part.
        r#type: Field<'a> = Raw(PARTS),
        /// Text.
        text?: Field<'a> = Raw("string"),
        /// Image as transformers' templates name it: a data URI, a URL whose host the server allows, or base64.
        image?: Field<'a> = Raw("string"),
        /// Second name of image.
        url?: Field<'a> = Raw("string"),
        /// Frames of a video, each as the URL of an image. They become consecutive images.
        video?: Field<'a> = Raw("string[1..]"),
        /// Sound.
        input_audio?: Field<'a> = Raw("InputAudio"),
        /// Data URI of a sound, or an object with it as url.
        audio_url?: Field<'a> = Raw("object | string"),
        /// Refusal of the assistant.
        refusal?: Field<'a> = Raw("string"),
        /// Reasoning of the assistant.
        thinking?: Field<'a> = Raw("any"),
        /// Second name of thinking.
        reasoning?: Field<'a> = Raw("any"),
        /// Second name of thinking.
        reasoning_content?: Field<'a> = Raw("any"),
    }
}

const PARTS: &str =
    "\"text\" | \"refusal\" | \"image_url\" | \"image\" | \"video\" | \"input_audio\" | \"audio_url\"";

/// Kinds of parts that are images or sounds.
const MEDIA: [&str; 6] = ["image_url", "input_image", "image", "video", "input_audio", "audio_url"];

fields! {
    /// Call of a tool in an earlier message.
    pub(crate) open struct ChatToolCall<'a> {
        /// Id of the call in the conversation.
        id: String,
        /// Kind of tool.
        r#type?: &'static str = Words(["function", "custom"]),
        /// Call of a function.
        function?: Field<'a> = Raw("ChatFunctionCall"),
        /// Call of a custom tool: its name, and its input as a text.
        custom?: Field<'a> = Raw("object"),
    }
}

fields! {
    /// Call of a function.
    pub(crate) open struct ChatFunctionCall<'a> {
        /// Name of the function.
        name: Field<'a> = Raw("string 1.."),
        /// Arguments as JSON.
        arguments?: Field<'a> = Raw("string"),
        /// Input of a custom tool.
        input?: Field<'a> = Raw("string"),
    }
}

/// Reads the `messages` of a request: at least one.
pub(crate) fn read(field: Field) -> Result<Vec<v1::Message>, ApiError> {
    let (mut calls, list) = (OldCalls::default(), field.list_up_to(CHAT_MESSAGES_MAX, "messages")?);
    let mut messages = Vec::with_capacity(list.size_hint().0);
    for one in list {
        messages.push(message(one, &mut calls)?);
    }
    match messages.is_empty() {
        true => Err(field.error("must not be empty")),
        false => Ok(messages),
    }
}

/// Function calls in the older format without ids. They get ids in order, and so do their results.
#[derive(Default)]
struct OldCalls {
    made: usize,
    open: HashMap<String, VecDeque<String>>, // ids of calls without a result, by name
}

impl OldCalls {
    fn call(&mut self, name: &str) -> String {
        self.made += 1;
        // Nine letters and digits, because some templates accept no other.
        let id = format!("call{:05}", self.made);
        self.open.entry(name.to_owned()).or_default().push_back(id.clone());
        id
    }

    fn result(&mut self, name: &str) -> String {
        self.open.get_mut(name).and_then(VecDeque::pop_front).unwrap_or_default()
    }
}

fn message(one: Field, old: &mut OldCalls) -> Result<v1::Message, ApiError> {
    let given = ChatMessage::of(one)?;
    let role = given.role;
    let assistant = role == "assistant";
    let name = given.name.unwrap_or_default();
    let missing = |name: &str| ApiError::field(&format!("{}.{name}", one.path()), "required");
    let tool_call_id = match given.tool_call_id {
        Some(field) if role == "tool" => field.string()?,
        Some(field) if role != "function" && field.value().as_str().as_deref() != Some("") => {
            return Err(field.error("only allowed where role is tool"));
        }
        Some(_) | None if role == "function" => old.result(&name),
        None if role == "tool" => return Err(missing("tool_call_id")),
        Some(_) | None => String::new(),
    };
    let tool_calls = tool_calls(given.tool_calls, given.function_call, assistant, old)?;
    let mut said = MessageContent::default();
    match given.content {
        Some(field) => said.content(field, assistant)?,
        None if assistant || matches!(role, "tool" | "function") => {}
        None => return Err(missing("content")),
    }
    if assistant {
        if said.text.is_empty()
            && let Some(refusal) = text_of(given.refusal)
        {
            said.text.push(part(refusal));
        }
        if let Some(field) = given.reasoning_content {
            said.reasoning = field.string()?;
        } else if said.reasoning.is_empty() {
            let other = text_of(given.reasoning).or_else(|| text_of(given.thinking));
            said.reasoning = other.unwrap_or_default();
        }
    }
    Ok(v1::Message {
        role: if role == "function" { "tool" } else { role }.to_owned(),
        content: said.text,
        name,
        tool_calls,
        tool_call_id,
        reasoning_content: said.reasoning,
    })
}

/// Non-empty text of a field that some libraries send.
fn text_of(field: Option<Field>) -> Option<String> {
    field?.value().as_str().filter(|text| !text.is_empty()).map(Cow::into_owned)
}

fn part(text: String) -> v1::ContentPart {
    v1::ContentPart { part: Some(Part::Text(text)) }
}

/// Content of a message.
#[derive(Default)]
struct MessageContent {
    text: Vec<v1::ContentPart>,
    reasoning: String,
}

impl MessageContent {
    fn content(&mut self, field: Field, assistant: bool) -> Result<(), ApiError> {
        match field.value() {
            // Capacity for one part; a growing list would start with four.
            value if value.is_string() => self.text = vec![part(field.string()?)],
            value if value.is_array() => {
                for part in field.list_up_to(CHAT_PARTS_MAX, "parts")? {
                    self.part(part, assistant)?;
                }
            }
            _ => return Err(field.error("expected a string or an array of content parts")),
        }
        Ok(())
    }

    fn part(&mut self, one: Field, assistant: bool) -> Result<(), ApiError> {
        let given = ContentPart::of(one)?;
        let required = |field, name| pictures::given(field, one, name);
        let bounds = given.picture.bounds;
        let field = given.r#type;
        let kind = field.text()?;
        if !assistant && MEDIA.contains(&&*kind) {
            refuse_others(&mut one.object()?)?;
        }
        match &*kind {
            "text" | "input_text" | "output_text" => {
                self.text.push(part(required(given.text, "text")?.string()?));
            }
            "image_url" | "input_image" if !assistant => self.text.push(given.picture.picture(one)?),
            "image" if !assistant => {
                let image = required(given.url.or(given.image), "image")?;
                self.text.push(pictures::transformers(image, bounds)?);
            }
            "video" if !assistant => {
                self.text.append(&mut pictures::frames(required(given.video, "video")?, bounds)?);
            }
            "input_audio" if !assistant => {
                self.text.push(sounds::openai(required(given.input_audio, "input_audio")?)?);
            }
            "audio_url" if !assistant => {
                self.text.push(sounds::by_url(required(given.audio_url, "audio_url")?)?);
            }
            "refusal" if assistant => {
                self.text.push(part(required(given.refusal, "refusal")?.string()?));
            }
            // Names of Anthropic and OpenAI. Redacted reasoning is not shown to the model.
            "thinking" | "reasoning" | "reasoning_content" | "redacted_thinking" if assistant => {
                let places = [given.thinking, given.reasoning, given.reasoning_content, given.text];
                let text = places.into_iter().find_map(text_of);
                self.reasoning.push_str(&text.unwrap_or_default());
            }
            known @ ("image_url" | "image" | "input_audio" | "file" | "video" | "video_url" | "audio_url"
            | "input_image" | "input_file" | "refusal" | "thinking" | "reasoning") => {
                let problem = format!(
                    "{known} is not supported here by this build, only text and, of others than the assistant, image_url, \
                     image, video, input_audio and audio_url"
                );
                return Err(ApiError::unsupported(&field.path(), problem));
            }
            other => return Err(field.error(format!("expected text, got {}", quote(other)))),
        }
        Ok(())
    }
}

fn tool_calls(
    given: Option<Field>,
    old_call: Option<Field>,
    assistant: bool,
    old: &mut OldCalls,
) -> Result<Vec<v1::ToolCall>, ApiError> {
    let mut calls = Vec::new();
    if let Some(field) = given {
        let list = field.list_up_to(CHAT_PARTS_MAX, "calls")?;
        if !assistant && list.size_hint().0 > 0 {
            return Err(field.error("only allowed where role is assistant"));
        }
        for call in list {
            calls.push(tool_call(call)?);
        }
    }
    match old_call {
        Some(field) if assistant && calls.is_empty() => {
            let (name, arguments_json) = called(field, false)?;
            calls.push(v1::ToolCall { id: old.call(&name), name, arguments_json });
        }
        // The same call again, or a call in a role that has none.
        Some(_) | None => {}
    }
    Ok(calls)
}

fn tool_call(call: Field) -> Result<v1::ToolCall, ApiError> {
    let ChatToolCall { id, r#type, function, custom } = ChatToolCall::of(call)?;
    let (name, arguments_json) = match r#type {
        Some("custom") => called(pictures::given(custom, call, "custom")?, true)?,
        _ => called(pictures::given(function, call, "function")?, false)?,
    };
    Ok(v1::ToolCall { id, name, arguments_json })
}

/// Name of a call, and the arguments of a function or the input of a `custom` tool. Arguments written by a model need
/// not be valid JSON and stay as they are.
fn called(field: Field, custom: bool) -> Result<(String, String), ApiError> {
    let call = ChatFunctionCall::of(field)?;
    let name = call.name.string()?;
    if name.is_empty() {
        return Err(call.name.error("must not be empty"));
    }
    let arguments = if custom { call.input.or(call.arguments) } else { call.arguments.or(call.input) };
    let arguments = match arguments {
        None => String::new(),
        // Some libraries send parsed arguments.
        Some(field) if field.value().is_object() => field.value().to_text(),
        Some(field) => field.string()?,
    };
    // A call without arguments gets an empty object, which templates expect.
    Ok((name, if arguments.trim().is_empty() { "{}".to_owned() } else { arguments }))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::fields::searches;

    /// Reads a message with this content. Returns whether it was accepted, and the number of path searches.
    fn read(message: Value) -> (bool, usize) {
        let body = json!({"messages": [message]});
        searches(&body, |mut fields| super::read(fields.take("messages").unwrap()).is_ok())
    }

    #[test]
    fn what_is_no_error_searches_for_no_path() {
        let odd = [json!({"thinking": 0, "reasoning": [], "text": {}}), json!({"text": 0}), json!({})];
        let part = |(i, kind): (usize, &str)| {
            let mut part = odd[i % odd.len()].clone();
            part["type"] = Value::from(kind);
            part
        };
        let kinds = ["thinking", "reasoning", "reasoning_content", "redacted_thinking"].into_iter().cycle();
        let content: Vec<Value> = kinds.take(1000).enumerate().map(part).collect();
        assert_eq!(read(json!({"role": "assistant", "content": content})), (true, 0));
        let fields =
            json!({"role": "assistant", "content": "", "refusal": 0, "reasoning": 1, "thinking": []});
        assert_eq!(read(fields), (true, 0));
        assert_eq!(read(json!({"role": "user", "content": "", "tool_call_id": ""})), (true, 0));
        // An error makes one path search.
        assert_eq!(read(json!({"role": "user", "content": "", "tool_call_id": 1})), (false, 1));
    }
}
