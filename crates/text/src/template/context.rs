//! Variables of a conversation, as transformers passes them to a template. Text from the request is marked as such;
//! only the engine's own text is not.

use super::{
    meter::Fault,
    text::Text,
    value::{Function, Value},
};
use crate::{
    chat::{Chat, Message, PICTURE, SOUND},
    error::RequestError,
};

/// Variable with the time, in seconds since 1970.
pub(super) const NOW: &str = "now";
/// Variables that a request must not set.
const OWN: [&str; 5] =
    ["messages", "tools", "add_generation_prompt", "continue_final_message", "strftime_now"];
/// Roles that the engine knows; any other counts as text of the request.
const ROLES: [&str; 7] = ["system", "developer", "user", "assistant", "tool", "function", "observation"];
const FUNCTIONS: [(&str, Function); 6] = [
    ("range", Function::Range),
    ("dict", Function::Dict),
    ("namespace", Function::Namespace),
    ("joiner", Function::Joiner),
    ("cycler", Function::Cycler),
    ("raise_exception", Function::RaiseException),
];

/// Form of a message's content in the template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A string.
    Text,
    /// A list with one part of type `text`, which templates of multimodal models iterate over. If a chat has
    /// pictures or sounds, texts and those alternate.
    Parts,
}

/// Initial state of a run.
pub(super) struct Context<'c> {
    /// Variables by name; later ones take precedence.
    pub(super) variables: Vec<(&'c str, Value)>,
    /// Time in seconds since 1970, if the request states it.
    pub(super) now: Option<i64>,
}

/// Variables of a conversation.
pub(super) fn context<'c>(
    chat: &'c Chat,
    [bos, eos]: [&str; 2],
    content: Content,
    tools_in_message: bool,
) -> Result<Context<'c>, RequestError> {
    let kwargs = &chat.kwargs;
    if let Some(name) = OWN.into_iter().find(|name| kwargs.contains_key(*name)) {
        let reason = format!("{name} is not a variable of the request; it has a field of its own");
        return Err(RequestError::invalid("template_kwargs_json", reason));
    }
    let now = match kwargs.get(NOW) {
        None => None,
        Some(now) => Some(now.as_i64().ok_or_else(|| {
            let reason = format!("{NOW} must be whole seconds since 1970");
            RequestError::invalid("template_kwargs_json", reason)
        })?),
    };
    let mut variables: Vec<(&str, Value)> =
        FUNCTIONS.into_iter().map(|(name, function)| (name, Value::function(function))).collect();
    for (name, token) in [("bos_token", bos), ("eos_token", eos)] {
        if !token.is_empty() {
            variables.push((name, Value::template(token)));
        }
    }
    variables.push(("documents", Value::None));
    for (name, value) in kwargs.iter().filter(|(name, _)| *name != NOW) {
        let value = Value::from_json(value).map_err(|_| too_deep("template_kwargs_json"))?;
        variables.push((name, value));
    }
    let tools: Result<Vec<Value>, Box<Fault>> = chat.tools.iter().map(Value::from_json).collect();
    let tools = tools.and_then(Value::list).map_err(|_| too_deep("tools"))?;
    let offered = (tools_in_message && !chat.tools.is_empty()).then_some(&tools);
    let media = [chat.pictures > 0, chat.sounds > 0];
    let messages = chat.messages.iter().enumerate().map(|(at, of)| {
        let offered = offered.filter(|_| at == 0 && of.role == "system");
        message(of, content, media, offered)
    });
    let messages: Result<Vec<Value>, Box<Fault>> = messages.collect();
    let messages = messages.and_then(Value::list).map_err(|_| too_deep("messages"))?;
    variables.push(("messages", messages));
    variables.push(("tools", if chat.tools.is_empty() { Value::None } else { tools }));
    variables.push(("add_generation_prompt", Value::Bool(chat.add_generation_prompt)));
    if now.is_some() {
        variables.push(("strftime_now", Value::function(Function::StrftimeNow)));
    }
    Ok(Context { variables, now })
}

fn too_deep(field: &'static str) -> RequestError {
    RequestError::invalid(field, "values inside values are too deep for a chat template")
}

/// Message, possibly with the tools that it offers; absent fields are left out.
fn message(
    message: &Message,
    content: Content,
    [sees, hears]: [bool; 2],
    offered: Option<&Value>,
) -> Result<Value, Box<Fault>> {
    let request = |text: &str| Value::Text(Text::request(text));
    let role = message.role.as_str();
    let text = |text: &str| part(vec![("type", Value::template("text")), ("text", request(text))]);
    let content = match content {
        Content::Text => request(&message.content),
        Content::Parts if sees || hears => {
            let is_media = |letter| (sees && letter == PICTURE) || (hears && letter == SOUND);
            let mut parts = Vec::new();
            for piece in message.content.split_inclusive(is_media) {
                let said = piece.trim_end_matches(is_media);
                if !said.is_empty() {
                    parts.push(text(said)?);
                }
                match piece.chars().next_back().filter(|&last| is_media(last)) {
                    Some(SOUND) => {
                        // Some templates check the key, others the type.
                        let sound = ["type", "audio"].into_iter().zip(["audio", ""]);
                        parts.push(part(sound.map(|(key, value)| (key, Value::template(value))).collect())?);
                    }
                    Some(_) => parts.push(part(vec![("type", Value::template("image"))])?),
                    None => {}
                }
            }
            if parts.is_empty() {
                parts.push(text("")?);
            }
            Value::list(parts)?
        }
        Content::Parts => Value::list(vec![text(&message.content)?])?,
    };
    let mut entries =
        vec![("role", Value::Text(Text::of(role, !ROLES.contains(&role)))), ("content", content)];
    if let Some(tools) = offered {
        entries.push(("tools", tools.clone()));
    }
    if let Some(name) = &message.name {
        entries.push(("name", request(name)));
    }
    if !message.tool_calls.is_empty() {
        let calls: Result<Vec<Value>, Box<Fault>> = message.tool_calls.iter().map(Value::from_json).collect();
        entries.push(("tool_calls", Value::list(calls?)?));
    }
    if let Some(id) = &message.tool_call_id {
        entries.push(("tool_call_id", request(id)));
    }
    if let Some(reasoning) = &message.reasoning_content {
        entries.push(("reasoning_content", request(reasoning)));
    }
    Value::dict(entries.into_iter().map(|(name, value)| (Value::template(name), value)).collect())
}

/// Part of a message's content.
fn part(fields: Vec<(&str, Value)>) -> Result<Value, Box<Fault>> {
    Value::dict(fields.into_iter().map(|(name, value)| (Value::template(name), value)).collect())
}
