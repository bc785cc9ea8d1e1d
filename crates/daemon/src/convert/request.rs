//! Conversion from the wire's types to the engine's. Refuses invalid fields by name; the runtime checks ranges.

use std::{collections::HashSet, str::FromStr, time::Duration};

use hanzo_engine_proto::v1;
use hanzo_engine_runtime::{
    ToolFormat,
    chat::{Chat, Message},
};
use prost::Message as _;
use serde_json::{Map, Value, json};
use tonic::metadata::MetadataMap;

use super::media;
use crate::{
    adapters::WantedAdapter,
    error::{Error, quote, random_u64},
    keep_alive::KeepAlive,
    limits::{
        CALL_JSON_VALUES, CHAT_JSON_VALUES_MAX, CHAT_MESSAGES_MAX, CHAT_TOOLS_MAX, REQUEST_ID_BYTES_MAX,
    },
    load_request::LoadRequest,
    prompt::{RequestedMedia, TokenizeInput},
    prompt_builder::is_large,
    sizing::LoadOptions,
    unix_time::now_unix_ms,
};

/// Reason why `parse_special` is allowed with a text prompt only.
pub(super) const ONLY_OF_TEXT: &str =
    "must be unset but with text: no text of a chat becomes a control token, and tokens are tokens";

/// Converts a load request. Zero and empty values are unset.
pub(crate) fn load(wire: v1::LoadRequest) -> Result<LoadRequest, Error> {
    let v1::LoadRequest {
        model,
        alias,
        context_tokens_max,
        kv_bytes,
        draft_model,
        adapters,
        tool_format,
        gpu_layers,
        gpu_devices,
        overrides,
        keep_alive,
        as_request,
    } = wire;
    let tool_format = (!tool_format.is_empty()).then(|| ToolFormat::by_name(&tool_format));
    let tool_format = tool_format.transpose().map_err(|reason| Error::field("tool_format", reason))?;
    fn read<T: FromStr<Err = String>>(field: &'static str, text: &str) -> Result<Option<T>, Error> {
        let read = (!text.is_empty()).then(|| text.parse().map_err(|reason| Error::field(field, reason)));
        read.transpose()
    }
    Ok(LoadRequest {
        source: model,
        alias: (!alias.is_empty()).then_some(alias),
        want: LoadOptions {
            context_tokens_max: (context_tokens_max > 0).then_some(context_tokens_max),
            kv_bytes: (kv_bytes > 0).then_some(kv_bytes),
            tool_format,
            picture_pixels: None,
            draft_model: (!draft_model.is_empty()).then_some(draft_model),
            gpu_layers: read("gpu_layers", &gpu_layers)?,
            gpu_devices: read("gpu_devices", &gpu_devices)?,
            overrides: super::overrides::overrides(overrides.unwrap_or_default())?,
        },
        adapters: adapters.into_iter().map(adapter).collect(),
        keep_alive: self::keep_alive(keep_alive.as_deref())?,
        as_request,
        at_start: false,
    })
}

/// Parses the idle time before a model is unloaded.
pub(crate) fn keep_alive(text: Option<&str>) -> Result<Option<KeepAlive>, Error> {
    let read = |text: &str| text.parse().map_err(|reason: String| Error::field("keep_alive", reason));
    text.map(read).transpose()
}

/// Converts an adapter to load.
pub(crate) fn adapter(wire: v1::AdapterSource) -> WantedAdapter {
    WantedAdapter { name: wire.name, path: wire.path }
}

/// Whether an input to tokenize takes much memory.
pub(crate) fn tokenize_is_large(input: &Option<v1::tokenize_request::Input>) -> bool {
    use v1::tokenize_request::Input;
    match input {
        Some(Input::Chat(chat)) => chat_is_large(chat, 0),
        Some(Input::Text(text)) => is_large(text.len()),
        None => false,
    }
}

/// Converts the input to tokenize.
pub(crate) fn tokenize(
    input: Option<v1::tokenize_request::Input>,
    add_special: Option<bool>,
    parse_special: Option<bool>,
) -> Result<TokenizeInput, Error> {
    use v1::tokenize_request::Input;
    match input {
        Some(Input::Text(text)) => {
            let (add_special, parse_special) = (add_special.unwrap_or(true), parse_special.unwrap_or(true));
            Ok(TokenizeInput::Text { text, add_special, parse_special })
        }
        Some(Input::Chat(_)) if parse_special.is_some() => Err(Error::field("parse_special", ONLY_OF_TEXT)),
        Some(Input::Chat(_)) if add_special.is_some() => {
            let reason = "must be unset with chat: the model's template says which special tokens there are";
            Err(Error::field("add_special_tokens", reason))
        }
        Some(Input::Chat(wire)) => {
            let mut media = RequestedMedia::default();
            let chat = chat(wire, &mut media)?;
            Ok(TokenizeInput::Chat(chat, media))
        }
        None => Err(Error::field("input", "must be set: one of text, chat")),
    }
}

/// Converts a conversation; its pictures and sounds are added to `media`.
pub(super) fn chat(wire: v1::Chat, media: &mut RequestedMedia) -> Result<Chat, Error> {
    if wire.messages.is_empty() {
        return Err(Error::field("chat.messages", "must have at least one"));
    }
    if wire.messages.len() > CHAT_MESSAGES_MAX {
        let reason = format!("must have at most {CHAT_MESSAGES_MAX}, not {}", wire.messages.len());
        return Err(Error::field("chat.messages", reason));
    }
    if wire.tools_json.len() > CHAT_TOOLS_MAX {
        let count = wire.tools_json.len();
        return Err(Error::field(
            "chat.tools_json",
            format!("must have at most {CHAT_TOOLS_MAX}, not {count}"),
        ));
    }
    bounded(&wire)?;
    answer_calls(&wire.messages)?;
    if wire.messages.iter().any(media::are_in) {
        media::check_texts(&wire.messages)?;
    }
    let messages = wire.messages.into_iter().enumerate();
    let tools = wire.tools_json.iter().enumerate();
    let mut kwargs = match wire.template_kwargs_json.as_str() {
        "" => Map::new(),
        json => object("chat.template_kwargs_json", json)?,
    };
    // The runtime has no clock; chat templates that print today's date use this value.
    kwargs.entry("now").or_insert_with(|| (now_unix_ms() / 1000).into());
    Ok(Chat {
        messages: messages.map(|(at, wire)| message(at, wire, media)).collect::<Result<_, _>>()?,
        pictures: media.pictures.len(),
        sounds: media.sounds.len(),
        tools: tools
            .map(|(at, json)| object(&format!("chat.tools_json[{at}]"), json).map(Value::Object))
            .collect::<Result<_, _>>()?,
        kwargs,
        add_generation_prompt: wire.add_generation_prompt.unwrap_or(!wire.continue_final_message),
        continue_final_message: wire.continue_final_message,
    })
}

/// Refuses a tool message whose call id no earlier message has. A tool message without an id is accepted.
fn answer_calls(messages: &[v1::Message]) -> Result<(), Error> {
    let mut made = HashSet::new();
    for (at, message) in messages.iter().enumerate() {
        made.extend(message.tool_calls.iter().map(|call| call.id.as_str()));
        let id = message.tool_call_id.as_str();
        if message.role == "tool" && !id.is_empty() && !made.contains(id) {
            let reason = format!("no message before it has a call with the id {}", quote(id));
            return Err(Error::field(format!("chat.messages[{at}].tool_call_id"), reason));
        }
    }
    Ok(())
}

/// Numbers of JSON values in a chat, by field.
fn value_counts(wire: &v1::Chat) -> [(&'static str, usize); 3] {
    let call = |call: &v1::ToolCall| CALL_JSON_VALUES + json_values(&call.arguments_json);
    let calls = |message: &v1::Message| message.tool_calls.iter().map(call).sum::<usize>();
    [
        ("chat.template_kwargs_json", json_values(&wire.template_kwargs_json)),
        ("chat.tools_json", wire.tools_json.iter().map(|json| json_values(json)).sum()),
        ("chat.messages", wire.messages.iter().map(calls).sum()),
    ]
}

/// Whether the prompt of a chat takes much memory, with `beside` bytes of other texts.
pub(super) fn chat_is_large(wire: &v1::Chat, beside: usize) -> bool {
    let values: usize = value_counts(wire).iter().map(|(_, count)| count).sum();
    let bytes = wire.encoded_len() + values * size_of::<Value>();
    wire.messages.iter().any(media::are_in) || is_large(bytes + beside)
}

/// Refuses a chat whose JSON would take far more memory parsed than as text.
fn bounded(wire: &v1::Chat) -> Result<(), Error> {
    let counts = value_counts(wire);
    let total: usize = counts.iter().map(|(_, count)| count).sum();
    match counts.iter().max_by_key(|(_, count)| *count) {
        Some((field, count)) if total > CHAT_JSON_VALUES_MAX => {
            let reason = format!("holds {count} JSON values; a chat has at most {CHAT_JSON_VALUES_MAX}");
            Err(Error::field(*field, reason))
        }
        _ => Ok(()),
    }
}

/// Upper bound of the number of values in a JSON text.
fn json_values(json: &str) -> usize {
    let (mut values, mut in_string, mut escaped) = (1, false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            b',' | b'[' | b'{' if !in_string => values += 1,
            _ => {}
        }
    }
    values
}

fn message(at: usize, wire: v1::Message, media: &mut RequestedMedia) -> Result<Message, Error> {
    if !matches!(wire.role.as_str(), "system" | "developer" | "user" | "assistant" | "tool") {
        let reason = format!("must be system, developer, user, assistant or tool, not {}", quote(&wire.role));
        return Err(Error::field(format!("chat.messages[{at}].role"), reason));
    }
    let mut content = String::new();
    for (part_at, part) in wire.content.into_iter().enumerate() {
        let field = || format!("chat.messages[{at}].content[{part_at}]");
        match part.part {
            // Most messages have a single text, which is moved instead of copied.
            Some(v1::content_part::Part::Text(text)) if content.is_empty() => content = text,
            Some(v1::content_part::Part::Text(text)) => content.push_str(&text),
            Some(v1::content_part::Part::Media(wire)) => {
                media::take(field(), *wire, &mut content, media)?;
            }
            None => return Err(Error::field(field(), "must be text or media")),
        }
    }
    let calls = wire.tool_calls.into_iter().enumerate();
    Ok(Message {
        role: wire.role,
        content,
        name: some(wire.name),
        tool_calls: calls.map(|(call_at, call)| tool_call(at, call_at, call)).collect::<Result<_, _>>()?,
        tool_call_id: some(wire.tool_call_id),
        reasoning_content: some(wire.reasoning_content),
    })
}

/// Builds the form that chat templates expect: arguments as an object if they parse as one, otherwise as text.
fn tool_call(at: usize, call_at: usize, wire: v1::ToolCall) -> Result<Value, Error> {
    if wire.name.is_empty() {
        return Err(Error::field(
            format!("chat.messages[{at}].tool_calls[{call_at}].name"),
            "must not be empty",
        ));
    }
    let arguments = match serde_json::from_str(&wire.arguments_json) {
        Ok(Value::Object(arguments)) => Value::Object(arguments),
        _ => Value::String(wire.arguments_json),
    };
    Ok(json!({"id": wire.id, "type": "function", "function": {"name": wire.name, "arguments": arguments}}))
}

fn object(field: &str, json: &str) -> Result<Map<String, Value>, Error> {
    match serde_json::from_str(json) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(Error::field(field, "must be a JSON object")),
        Err(error) => Err(Error::field(field, format!("must be a JSON object: {error}"))),
    }
}

fn some(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

/// Request id for logs: the given one, without characters that could break a log line, or else a random one.
pub(crate) fn request_id(given: &str) -> String {
    let kept = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
    let id: String = given.chars().filter(kept).take(REQUEST_ID_BYTES_MAX).collect();
    if id.is_empty() { format!("req-{:016x}", random_u64()) } else { id }
}

/// Timeout of the call from `grpc-timeout`: one to eight digits and a unit.
pub(crate) fn timeout(metadata: &MetadataMap) -> Result<Option<Duration>, Error> {
    let Some(value) = metadata.get("grpc-timeout") else { return Ok(None) };
    let bad = || Error::field("grpc-timeout", "must be 1 to 8 digits and one of H, M, S, m, u, n");
    let text = value.to_str().map_err(|_| bad())?;
    let (digits, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(bad)?;
    if digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(bad());
    }
    let count: u64 = digits.parse().map_err(|_| bad())?;
    let time = match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return Err(bad()),
    };
    Ok(Some(time))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        convert::job,
        limits::{INFILL_FILES_MAX, PROMPT_LARGE_BYTES},
    };

    fn refused(wire: v1::InferRequest) -> String {
        job::check(wire).unwrap_err().to_string()
    }

    fn text(text: &str) -> v1::InferRequest {
        let prompt = Some(v1::infer_request::Prompt::Text(text.to_owned()));
        v1::InferRequest { prompt, ..Default::default() }
    }

    fn chat_of(messages: Vec<v1::Message>) -> v1::InferRequest {
        let chat = v1::Chat { messages, ..Default::default() };
        v1::InferRequest { prompt: Some(v1::infer_request::Prompt::Chat(chat)), ..Default::default() }
    }

    fn user(part: v1::content_part::Part) -> v1::Message {
        let content = vec![v1::ContentPart { part: Some(part) }];
        v1::Message { role: "user".into(), content, ..Default::default() }
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_by_name() {
        assert!(refused(v1::InferRequest::default()).starts_with("prompt: "));
        let suffix = || v1::InferRequest { suffix: "x".into(), ..text("a") };
        assert!(refused(v1::InferRequest { echo: true, ..suffix() }).starts_with("suffix: "));
        let special = v1::InferRequest { parse_special: Some(true), ..suffix() };
        assert!(refused(special).starts_with("parse_special: "));
        assert!(refused(v1::InferRequest { suffix: "x".into(), ..chat_of(vec![]) }).starts_with("suffix: "));
        let files = vec![v1::SourceFile::default(); INFILL_FILES_MAX + 1];
        let infill = Some(v1::Infill { files, ..Default::default() });
        assert!(refused(v1::InferRequest { infill, ..text("a") }).starts_with("infill.files: "));
        let reasoning = Some(v1::Reasoning { tokens_max: Some(1) });
        assert!(refused(v1::InferRequest { reasoning, ..text("a") }).starts_with("reasoning: "));
        assert!(refused(v1::InferRequest { choices: 129, ..text("a") }).starts_with("choices: "));
        assert!(refused(v1::InferRequest { top_logprobs: 1, ..text("a") }).starts_with("top_logprobs: "));
        let wire = v1::InferRequest { top_logprobs: 300, logprobs: true, ..text("a") };
        assert!(refused(wire).starts_with("top_logprobs: "));
        let stop = Some(v1::StopConditions { max_tokens: Some(0), ..Default::default() });
        assert!(refused(v1::InferRequest { stop, ..text("a") }).starts_with("stop.max_tokens: "));
        assert!(refused(chat_of(vec![])).starts_with("chat.messages: "));
        let role = v1::Message { role: "wizard".into(), ..Default::default() };
        assert!(refused(chat_of(vec![role])).starts_with("chat.messages[0].role: "));
        for json in ["", "[1]", "{", &"[".repeat(10_000)] {
            let mut wire = chat_of(vec![user(v1::content_part::Part::Text("hi".into()))]);
            let Some(v1::infer_request::Prompt::Chat(chat)) = &mut wire.prompt else { panic!() };
            chat.tools_json = vec![json.to_owned()];
            let message = refused(wire);
            assert!(message.starts_with("chat.tools_json[0]: ") && message.len() < 300, "{message}");
        }
    }

    #[test]
    fn the_values_of_a_chat_are_bounded() {
        assert_eq!(json_values(r#"{"a,[":[1,2,{"b":"\\\",{"}],"c":null}"#), 7);
        let list = format!("{{\"a\":[{}0]}}", "0,".repeat(CHAT_JSON_VALUES_MAX));
        let text = || user(v1::content_part::Part::Text("hi".into()));
        for field in ["template_kwargs_json", "tools", "messages"] {
            let mut wire = chat_of(vec![text()]);
            let Some(v1::infer_request::Prompt::Chat(chat)) = &mut wire.prompt else { panic!() };
            match field {
                "template_kwargs_json" => chat.template_kwargs_json = list.clone(),
                "tools" => chat.tools_json = vec![list.clone()],
                _ => {
                    let call =
                        v1::ToolCall { name: "f".into(), arguments_json: list.clone(), ..Default::default() };
                    chat.messages[0].tool_calls = vec![call];
                }
            }
            let message = refused(wire);
            assert!(message.contains(field) && message.contains("JSON values"), "{message}");
        }
    }

    #[test]
    fn megabytes_are_large_wherever_they_stand() {
        let (text, large) = ("x".repeat(PROMPT_LARGE_BYTES), |chat: &v1::Chat| chat_is_large(chat, 0));
        let said = |text: &str| user(v1::content_part::Part::Text(text.into()));
        let of = |message| v1::Chat { messages: vec![message], ..Default::default() };
        assert!(!large(&of(said("hi"))));
        assert!(large(&of(said(&text))));
        assert!(large(&of(v1::Message { reasoning_content: text.clone(), ..said("hi") })));
        let call = v1::ToolCall { arguments_json: text.clone(), ..Default::default() };
        assert!(large(&of(v1::Message { tool_calls: vec![call], ..said("hi") })));
        assert!(large(&v1::Chat { tools_json: vec![text.clone()], ..of(said("hi")) }));
        assert!(large(&v1::Chat { template_kwargs_json: text.clone(), ..of(said("hi")) }));
        // Short values count with the memory that each of them takes.
        let list = format!("[{}0]", "0,".repeat(PROMPT_LARGE_BYTES / size_of::<Value>()));
        assert!(large(&v1::Chat { tools_json: vec![list], ..of(said("hi")) }));
        assert!(large(&of(user(v1::content_part::Part::Media(Box::default())))));
        // Many short messages count like long ones.
        let many = v1::Chat { messages: vec![said(&"x".repeat(500)); 3_000], ..Default::default() };
        assert!(large(&many));
        let ids = vec![0; PROMPT_LARGE_BYTES / 4];
        let tokens = Some(v1::infer_request::Prompt::Tokens(v1::TokenIds { ids }));
        assert!(job::is_large(&v1::InferRequest { prompt: tokens, ..Default::default() }));
    }

    #[test]
    fn arguments_of_tool_calls_are_objects_where_they_can_be() {
        let call = |arguments: &str| {
            let wire = v1::ToolCall { id: "1".into(), name: "f".into(), arguments_json: arguments.into() };
            tool_call(0, 0, wire).unwrap()["function"]["arguments"].clone()
        };
        assert_eq!(call(r#"{"b":{"c":[1]},"a":2}"#).to_string(), r#"{"b":{"c":[1]},"a":2}"#);
        assert_eq!(call("not json"), json!("not json"));
    }

    #[test]
    fn request_ids_cannot_break_a_log_line() {
        assert_eq!(request_id("a b\n\"c\"-1"), "abc-1");
        assert_eq!(request_id(&"x".repeat(1000)).len(), REQUEST_ID_BYTES_MAX);
        assert!(request_id("\n").starts_with("req-"));
        assert_ne!(request_id(""), request_id(""));
    }

    #[test]
    fn timeouts_are_read_as_grpc_writes_them() {
        let check = |text: &str| {
            let mut map = MetadataMap::new();
            map.insert("grpc-timeout", text.parse().unwrap());
            timeout(&map).ok().flatten()
        };
        assert_eq!(check("250m"), Some(Duration::from_millis(250)));
        assert_eq!(check("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        assert_eq!(check("0n"), Some(Duration::ZERO));
        for bad in ["", "m", "5", "123456789S", "-1S", "1.5S", "1s"] {
            assert_eq!(check(bad), None, "{bad}");
        }
        assert_eq!(timeout(&MetadataMap::new()).unwrap(), None);
    }
}
