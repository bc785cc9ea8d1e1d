//! Conversion of a request's input items to the engine's messages.
//!
//! Consecutive reasoning, texts and calls become one assistant message, as the model wrote them. The output of
//! a call is a separate message. Items are mostly history, with each library's own fields, so unknown fields
//! are ignored. No content is dropped: an item that the model cannot be shown is refused by name. Reasoning
//! that another service encrypted is ignored.

use std::collections::HashMap;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use hanzo_engine_proto::v1::{self, content_part::Part};

use super::{custom, tools::name_shown};
use crate::{
    declare::Declaration as _,
    error::{ApiError, quote},
    fields::{Field, Fields},
    json::Json,
    limits::{CHAT_MESSAGES_MAX, CHAT_PARTS_MAX},
    media_bounds::refuse_others,
    pictures::PictureFields,
    response_store::stored::{StoredResponse, member, quoted},
    sounds,
};

/// Prefix of reasoning in `encrypted_content` that this gateway wrote. It is not secret: readers have the plain
/// text as well.
const SEALED: &str = "hanzo1.";

/// Encodes reasoning for `encrypted_content`.
pub(super) fn sealed(reasoning: &str) -> String {
    format!("{SEALED}{}", BASE64_STANDARD.encode(reasoning))
}

fn unsealed(text: &str) -> Option<String> {
    let bytes = BASE64_STANDARD.decode(text.strip_prefix(SEALED)?).ok()?;
    String::from_utf8(bytes).ok()
}

/// Context before the input: the previous response, and referenced items.
#[derive(Debug, Default)]
pub(super) struct Before<'a> {
    pub(super) previous: Option<&'a StoredResponse>,
    pub(super) items: HashMap<String, String>, // by id, as JSON
}

/// Conversation being read.
#[derive(Debug, Default)]
pub(super) struct Conversation {
    pub(super) messages: Vec<v1::Message>,
    /// Items of the input itself.
    pub(super) items: Vec<Item>,
    open: bool, // the last message is the assistant's and may be continued
}

/// Item as it is stored.
#[derive(Debug, PartialEq)]
pub(super) struct Item {
    /// JSON of the item, without an id if it came without one.
    pub(super) json: String,
    /// Prefix of the id to give it, if it came without one.
    pub(super) unnamed: Option<&'static str>,
}

/// Reads the input, which follows `instructions` and the context.
pub(super) fn read(
    instructions: Option<String>,
    input: Option<Field>,
    before: &Before<'_>,
) -> Result<Conversation, ApiError> {
    let mut conversation = Conversation::default();
    conversation
        .messages
        .extend(instructions.filter(|text| !text.is_empty()).map(|text| message("system", text)));
    if let Some(stored) = before.previous {
        for list in [stored.input.as_str(), &stored.output()] {
            let list = Json::parse(list).map_err(|_| ApiError::internal("a kept response is no JSON"))?;
            for item in list.elements().into_iter().flatten() {
                conversation.item(Fields::of_body(item, true)?)?;
            }
        }
    }
    if let Some(field) = input {
        conversation.input(field, before)?;
    }
    if conversation.messages.len() > CHAT_MESSAGES_MAX {
        let problem = format!("makes more than {CHAT_MESSAGES_MAX} messages");
        return Err(input.map_or_else(|| ApiError::field("input", &problem), |field| field.error(&problem)));
    }
    conversation.join_system();
    Ok(conversation)
}

fn message(role: &str, text: String) -> v1::Message {
    v1::Message { role: role.to_owned(), content: vec![part(text)], ..v1::Message::default() }
}

fn part(text: String) -> v1::ContentPart {
    v1::ContentPart { part: Some(Part::Text(text)) }
}

impl Conversation {
    fn input(&mut self, field: Field, before: &Before<'_>) -> Result<(), ApiError> {
        if field.value().is_string() {
            let content = format!("[{{\"type\":\"input_text\",\"text\":{}}}]", field.value().to_text());
            self.items.push(Item::user(&content));
            self.open = false;
            self.messages.push(message("user", field.string()?));
            return Ok(());
        }
        let Some(list) = field.as_list() else {
            return Err(field.error("expected a string or an array of items"));
        };
        for item in list.up_to(CHAT_MESSAGES_MAX, "items", field)? {
            let mut fields = item.object()?;
            let named =
                (fields.gives("id") && is_reference(item.value())).then(|| fields.take("id")).flatten();
            let Some(named) = named else {
                self.items.push(Item::of(item.value()));
                self.item(fields)?;
                continue;
            };
            let id = named.text()?;
            let Some(json) = before.items.get(&*id) else {
                return Err(ApiError::item_not_found(&named.path(), &id));
            };
            self.items.push(Item { json: json.clone(), unnamed: None });
            let json = Json::parse(json).map_err(|_| ApiError::internal("a kept item is no JSON"))?;
            self.item(Fields::of_body(json, true)?)?;
        }
        match self.messages.is_empty() {
            true => Err(field.error("must not be empty")),
            false => Ok(()),
        }
    }

    fn item(&mut self, mut fields: Fields) -> Result<(), ApiError> {
        let kind = fields.take("type");
        let name = kind.map(Field::text).transpose()?;
        match name.as_deref().unwrap_or("message") {
            "message" => self.message(fields),
            "reasoning" => self.reasoning(fields),
            "function_call" => {
                let (id, name) = called(&mut fields)?;
                let arguments = fields.take("arguments").map(arguments).transpose()?.unwrap_or_default();
                // A call without arguments gets an empty object, which templates expect.
                let arguments_json = if arguments.trim().is_empty() { "{}".to_owned() } else { arguments };
                self.call(v1::ToolCall { id, name, arguments_json });
                Ok(())
            }
            "custom_tool_call" => {
                let (id, name) = called(&mut fields)?;
                let arguments_json = custom::arguments(&fields.require("input")?.text()?);
                self.call(v1::ToolCall { id, name, arguments_json });
                Ok(())
            }
            // Tools that the client runs itself: the action becomes the arguments.
            word @ ("local_shell_call" | "shell_call" | "apply_patch_call") => {
                let id = fields.require("call_id")?.string()?;
                let (name, what) = match word {
                    "local_shell_call" => ("local_shell", "action"),
                    "shell_call" => ("shell", "action"),
                    _ => ("apply_patch", "operation"),
                };
                let what = fields.require(what)?;
                let arguments_json = what.object()?.object().to_text();
                self.call(v1::ToolCall { id, name: name.to_owned(), arguments_json });
                Ok(())
            }
            "function_call_output"
            | "custom_tool_call_output"
            | "shell_call_output"
            | "apply_patch_call_output" => {
                let id = fields.require("call_id")?.string()?;
                self.output(id, fields)
            }
            // The id of the output is the id of the call.
            "local_shell_call_output" => {
                let id = fields.take("call_id").map_or_else(|| fields.require("id"), Ok)?.string()?;
                self.output(id, fields)
            }
            "mcp_call" => self.mcp_call(fields),
            // The request's own tools say what a server offers.
            "mcp_list_tools" => Ok(()),
            other => {
                let path = kind.map_or_else(|| fields.path_of("type"), |kind| kind.path());
                Err(refused_item(&path, other))
            }
        }
    }

    /// Assistant message being written, or a new one.
    fn assistant(&mut self, new: bool) -> &mut v1::Message {
        if new || !self.open || self.messages.is_empty() {
            self.messages.push(v1::Message { role: "assistant".to_owned(), ..v1::Message::default() });
            self.open = true;
        }
        let last = self.messages.len() - 1;
        &mut self.messages[last]
    }

    /// Whether the assistant message being written has text and no open calls.
    fn has_said(&self) -> bool {
        let last = self.messages.last().filter(|_| self.open);
        last.is_some_and(|last| !last.content.is_empty() && last.tool_calls.is_empty())
    }

    fn call(&mut self, call: v1::ToolCall) {
        self.assistant(false).tool_calls.push(call);
    }

    fn message(&mut self, mut fields: Fields) -> Result<(), ApiError> {
        let role = fields.require("role")?.word(&["user", "assistant", "system", "developer"])?;
        let content = texts(fields.require("content")?, role == "assistant")?;
        if role == "assistant" {
            let new = self.has_said();
            self.assistant(new).content.extend(content);
            return Ok(());
        }
        self.open = false;
        self.messages.push(v1::Message { role: role.to_owned(), content, ..v1::Message::default() });
        Ok(())
    }

    /// Reads reasoning: the full text if the item has it, else the encoded text, else the summary.
    fn reasoning(&mut self, mut fields: Fields) -> Result<(), ApiError> {
        let mut text = fields.take("content").map(thoughts).transpose()?.unwrap_or_default();
        let put_away = fields.take("encrypted_content").and_then(|field| unsealed(&field.value().as_str()?));
        let summary = fields.take("summary").map(thoughts).transpose()?;
        if text.is_empty() {
            text = put_away.or(summary).unwrap_or_default();
        }
        if text.is_empty() {
            return Ok(());
        }
        let new = self.has_said();
        let before = &mut self.assistant(new).reasoning_content;
        if !before.is_empty() {
            before.push_str("\n\n");
        }
        before.push_str(&text);
        Ok(())
    }

    fn output(&mut self, tool_call_id: String, mut fields: Fields) -> Result<(), ApiError> {
        let content = match fields.take("output") {
            Some(field) => outputs(field)?,
            None => match fields.take("status") {
                Some(status) => vec![part(status.string()?)],
                None => return Err(ApiError::field(&fields.path_of("output"), "required")),
            },
        };
        self.open = false;
        let role = "tool".to_owned();
        self.messages.push(v1::Message { role, content, tool_call_id, ..v1::Message::default() });
        Ok(())
    }

    /// Reads a call that this or another service has made, with its output.
    fn mcp_call(&mut self, mut fields: Fields) -> Result<(), ApiError> {
        let id = fields.require("id")?.string()?;
        let name = fields.require("name")?.string()?;
        let server = fields.take("server_label").map(Field::string).transpose()?;
        let name = name_shown(server.as_deref(), &name);
        let arguments_json = fields.require("arguments")?.string()?;
        self.call(v1::ToolCall { id: id.clone(), name, arguments_json });
        let text = match (fields.take("output"), fields.take("error")) {
            (Some(output), _) => output.string()?,
            (None, Some(error)) => format!("Error: {}", error.value().to_text()),
            (None, None) => String::new(),
        };
        self.open = false;
        let (role, content) = ("tool".to_owned(), vec![part(text)]);
        self.messages.push(v1::Message { role, content, tool_call_id: id, ..v1::Message::default() });
        Ok(())
    }

    /// Joins the system messages at the beginning, because few templates support several.
    fn join_system(&mut self) {
        let is_system = |message: &v1::Message| matches!(&*message.role, "system" | "developer");
        let count = self.messages.iter().take_while(|message| is_system(message)).count();
        if count < 2 {
            return;
        }
        let mut content: Vec<v1::ContentPart> = Vec::new();
        for message in self.messages.drain(..count) {
            if !content.is_empty() {
                content.push(part("\n\n".to_owned()));
            }
            content.extend(message.content);
        }
        self.messages.insert(0, v1::Message { role: "system".to_owned(), content, ..v1::Message::default() });
    }
}

/// Error for an item of a type that is not supported, or not known.
fn refused_item(path: &str, other: &str) -> ApiError {
    const KNOWN: [&str; 17] = [
        "item_reference",
        "file_search_call",
        "web_search_call",
        "computer_call",
        "computer_call_output",
        "image_generation_call",
        "code_interpreter_call",
        "mcp_approval_request",
        "mcp_approval_response",
        "compaction",
        "compaction_trigger",
        "tool_search_call",
        "tool_search_output",
        "additional_tools",
        "program",
        "program_output",
        "configuration_update",
    ];
    if KNOWN.contains(&other) {
        let problem = format!("items of type {other} are not supported here by this build");
        return ApiError::unsupported(path, problem);
    }
    ApiError::field(path, format!("expected the type of an item, got {}", quote(other)))
}

/// Whether an item only references another one.
pub(super) fn is_reference(item: Json<'_>) -> bool {
    match member(item, "type").filter(|kind| !kind.is_null()) {
        Some(kind) => kind.as_str().is_some_and(|kind| kind == "item_reference"),
        None => member(item, "content").is_none() && member(item, "role").is_none(),
    }
}

fn called(fields: &mut Fields) -> Result<(String, String), ApiError> {
    let id = fields.require("call_id")?.string()?;
    let name = fields.require("name")?;
    if name.text()?.is_empty() {
        return Err(name.error("must not be empty"));
    }
    let namespace = fields.take("namespace").map(Field::string).transpose()?;
    Ok((id, name_shown(namespace.as_deref(), &name.string()?)))
}

/// Joins the texts of a list of parts.
fn thoughts(field: Field) -> Result<String, ApiError> {
    let mut all = String::new();
    for (i, part) in field.list_up_to(CHAT_PARTS_MAX, "parts")?.enumerate() {
        all.push_str(if i > 0 { "\n\n" } else { "" });
        all.push_str(&part.object()?.require("text")?.text()?);
    }
    Ok(all)
}

/// Reads arguments. Those written by a model need not be valid JSON and stay as they are; some libraries send
/// them parsed.
fn arguments(field: Field) -> Result<String, ApiError> {
    if field.value().is_object() { Ok(field.value().to_text()) } else { field.string() }
}

/// Reads a string, or parts: texts, and for roles other than the assistant also images and audio.
fn texts(field: Field, assistant: bool) -> Result<Vec<v1::ContentPart>, ApiError> {
    let Some(list) = field.as_list() else {
        return match field.value().is_string() {
            true => Ok(vec![part(field.string()?)]),
            false => Err(field.error("expected a string or an array of content parts")),
        };
    };
    let mut parts = Vec::new();
    for one in list.up_to(CHAT_PARTS_MAX, "parts", field)? {
        let mut fields = one.object()?;
        let kind = fields.require("type")?;
        let text = match &*kind.text()? {
            "input_text" | "output_text" | "text" | "summary_text" => fields.require("text")?.string()?,
            "refusal" if assistant => fields.require("refusal")?.string()?,
            "input_image" if !assistant => {
                if let Some(file) = fields.take("file_id") {
                    let problem = "no files are kept here; send the picture itself as image_url, a data URI";
                    return Err(ApiError::unsupported(&file.path(), problem));
                }
                refuse_others(&mut fields)?;
                parts.push(PictureFields::read(&mut fields)?.picture(one)?);
                continue;
            }
            "input_audio" if !assistant => {
                refuse_others(&mut fields)?;
                parts.push(sounds::openai(fields.require("input_audio")?)?);
                continue;
            }
            known @ ("input_image" | "input_file" | "input_audio" | "refusal" | "computer_screenshot") => {
                let problem = format!(
                    "{known} is not supported here by this build, only text and, of others than the assistant, input_image \
                     and input_audio"
                );
                return Err(ApiError::unsupported(&kind.path(), problem));
            }
            other => {
                let expected = if assistant { "output_text" } else { "input_text" };
                return Err(kind.error(format!("expected {expected}, got {}", quote(other))));
            }
        };
        parts.push(part(text));
    }
    Ok(parts)
}

/// Reads the output of a tool: a text, parts, or the output of a shell.
fn outputs(field: Field) -> Result<Vec<v1::ContentPart>, ApiError> {
    let shell = |item: Json<'_>| member(item, "stdout").is_some() || member(item, "stderr").is_some();
    match field.as_list().and_then(|mut list| list.next()) {
        Some(first) if shell(first.value()) => Ok(vec![part(field.value().to_text())]),
        _ => texts(field, false),
    }
}

impl Item {
    /// User message with that content.
    fn user(content: &str) -> Item {
        let json = format!(
            "{{\"type\":\"message\",\"status\":\"completed\",\"role\":\"user\",\"content\":{content}}}"
        );
        Item { json, unnamed: Some("msg") }
    }

    /// Item as received. Messages in the short format get the long one.
    fn of(item: Json<'_>) -> Item {
        let text = |name: &str| member(item, name).and_then(Json::as_str);
        let kind = text("type").unwrap_or_else(|| "message".into());
        let id = member(item, "id").filter(|id| id.is_string()).map(Json::to_text);
        let is_message = kind == "message";
        let assistant = text("role").is_some_and(|role| role == "assistant");
        let mut json = String::from("{");
        let mut put = |name: &str, value: &str| {
            json.push_str(if json.len() > 1 { "," } else { "" });
            json.push_str(&format!("{}:{value}", quoted(name)));
        };
        id.iter().for_each(|id| put("id", id));
        if is_message {
            put("type", "\"message\"");
            if member(item, "status").is_none_or(Json::is_null) {
                put("status", "\"completed\"");
            }
        }
        for (name, value) in item.members().into_iter().flatten() {
            match &*name {
                "id" => {}
                "type" if is_message => {}
                "status" if value.is_null() => {}
                "content" if is_message && value.is_string() => {
                    let (word, rest) =
                        if assistant { ("output_text", ",\"annotations\":[]") } else { ("input_text", "") };
                    put("content", &format!("[{{\"type\":\"{word}\",\"text\":{}{rest}}}]", value.to_text()));
                }
                name => put(name, &value.to_text()),
            }
        }
        json.push('}');
        let prefix = match &*kind {
            "message" => "msg",
            "reasoning" => "rs",
            "function_call" => "fc",
            "custom_tool_call" => "ctc",
            "function_call_output" => "fco",
            "custom_tool_call_output" => "ctco",
            _ => "item",
        };
        Item { json, unnamed: id.is_none().then_some(prefix) }
    }

    /// JSON of the item; `id` is added if it has none.
    pub(super) fn named(&self, id: &str) -> String {
        match self.unnamed {
            None => self.json.clone(),
            Some(_) => {
                let rest = self.json.strip_prefix('{').unwrap_or_default();
                format!("{{\"id\":{}{}{rest}", quoted(id), if rest == "}" { "" } else { "," })
            }
        }
    }
}
