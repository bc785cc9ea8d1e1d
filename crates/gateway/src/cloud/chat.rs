//! Conversion of an engine request to a chat completion request for an upstream server. Fields that only some
//! servers support use vLLM's names; the others refuse them. Fields that no server supports are refused here by
//! name.

use hanzo_engine_proto::v1::{self, ToolChoice, constraint::Of, content_part::Part, infer_request::Prompt};
use serde_json::{Map, Value, json};
use tonic::Status;

/// Body of the request; `model` is the upstream server's name of the model.
///
/// # Errors
/// The field that cannot be forwarded.
pub(super) fn body(request: &v1::InferRequest, model: &str) -> Result<String, Status> {
    let Some(Prompt::Chat(chat)) = &request.prompt else {
        return refuse("prompt", "is no chat, and of this route only chats are carried there");
    };
    let mut body = Map::new();
    let mut set = |name: &str, value: Value| {
        body.insert(name.to_owned(), value);
    };
    set("model", model.into());
    set("messages", chat.messages.iter().map(message).collect::<Result<_, _>>()?);
    set("stream", true.into());
    set("stream_options", json!({"include_usage": true}));
    if request.choices > 1 {
        set("n", request.choices.into());
    }
    if !chat.tools_json.is_empty() {
        let tools: Result<Vec<Value>, _> =
            chat.tools_json.iter().map(|tool| serde_json::from_str(tool)).collect();
        set("tools", tools.map_err(|_| Status::internal("a tool is no JSON"))?.into());
    }
    if chat.continue_final_message {
        set("continue_final_message", true.into());
        set("add_generation_prompt", false.into());
    }
    let kwargs = match chat.template_kwargs_json.as_str() {
        "" => Map::new(),
        text => serde_json::from_str(text).map_err(|_| Status::internal("template variables are no JSON"))?,
    };
    match kwargs.get("reasoning_effort") {
        // An effort implies that the model is to reason.
        Some(effort)
            if kwargs.keys().all(|name| ["reasoning_effort", "enable_thinking"].contains(&name.as_str())) =>
        {
            set("reasoning_effort", effort.clone());
        }
        _ if !kwargs.is_empty() => set("chat_template_kwargs", kwargs.into()),
        _ => {}
    }
    for (name, value) in tool_use(request.tool_use.as_ref()).into_iter().chain(sampling(request)?) {
        set(name, value);
    }
    if let Some(format) =
        request.constraint.as_ref().and_then(|constraint| constraint.of.as_ref()).map(format)
    {
        set("response_format", format?);
    }
    refused(request)?;
    Ok(Value::Object(body).to_string())
}

fn refuse<T>(field: &str, problem: &str) -> Result<T, Status> {
    let message = format!("{field}: {problem}: another server answers for this model, by chat completions");
    Err(Status::invalid_argument(message))
}

/// Refuses fields that no upstream server supports.
fn refused(request: &v1::InferRequest) -> Result<(), Status> {
    let stop = request.stop.clone().unwrap_or_default();
    let all = [
        ("logprobs", request.logprobs),
        ("prompt_logprobs", request.prompt_logprobs.is_some()),
        ("echo", request.echo),
        ("suffix", !request.suffix.is_empty() || request.infill.is_some()),
        ("adapter", !request.adapter.is_empty()),
        ("reasoning", request.reasoning.is_some_and(|reasoning| reasoning.tokens_max.is_some())),
        ("truncate_prompt_tokens", request.truncate_prompt_tokens.is_some()),
        ("context_shift", request.context_shift == Some(true)),
        ("max_tokens", stop.max_tokens == Some(0)),
    ];
    match all.into_iter().find(|(_, asked)| *asked) {
        Some((field, _)) => refuse(field, "cannot be carried there"),
        None => Ok(()),
    }
}

fn message(of: &v1::Message) -> Result<Value, Status> {
    let mut message = Map::new();
    message.insert("role".to_owned(), of.role.as_str().into());
    let parts = of.content.iter().filter_map(|part| part.part.as_ref());
    let content: Vec<Value> = parts
        .map(|part| match part {
            Part::Text(text) => Ok(json!({"type": "text", "text": text})),
            Part::Media(media) => self::media(media),
        })
        .collect::<Result<_, _>>()?;
    let texts: Option<String> = content.iter().map(|part| part["text"].as_str()).collect();
    let content = match texts {
        Some(text) if text.is_empty() && !of.tool_calls.is_empty() => Value::Null,
        // Several texts are joined into one, as for a local model.
        Some(text) => text.into(),
        None => content.into(),
    };
    message.insert("content".to_owned(), content);
    // Reasoning of earlier answers is never sent.
    for (name, value) in [("name", &of.name), ("tool_call_id", &of.tool_call_id)] {
        if !value.is_empty() {
            message.insert(name.to_owned(), value.as_str().into());
        }
    }
    if !of.tool_calls.is_empty() {
        let calls = of.tool_calls.iter().map(|call| {
            json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_json}})
        });
        message.insert("tool_calls".to_owned(), calls.collect());
    }
    Ok(message.into())
}

/// Image as a `data:` URL.
fn media(of: &v1::Media) -> Result<Value, Status> {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    if of.mime_type.starts_with("audio/") {
        return refuse("messages", "sounds cannot be carried there");
    }
    if of.min_pixels.is_some() || of.max_pixels.is_some() {
        return refuse("messages", "min_pixels and max_pixels of a picture cannot be carried there");
    }
    let kind = match &of.data[..] {
        [0xff, 0xd8, ..] => "image/jpeg",
        [b'G', b'I', b'F', ..] => "image/gif",
        [b'R', b'I', b'F', b'F', ..] => "image/webp",
        _ => "image/png",
    };
    let mut picture = json!({"url": format!("data:{kind};base64,{}", STANDARD.encode(&of.data))});
    if !of.detail.is_empty() {
        picture["detail"] = of.detail.as_str().into();
    }
    Ok(json!({"type": "image_url", "image_url": picture}))
}

fn tool_use(of: Option<&v1::ToolUse>) -> Vec<(&'static str, Value)> {
    let Some(of) = of else { return Vec::new() };
    let choice = match of.choice() {
        ToolChoice::Unspecified | ToolChoice::Auto => None,
        ToolChoice::None => Some(json!("none")),
        ToolChoice::Required => Some(json!("required")),
        ToolChoice::Named => Some(json!({"type": "function", "function": {"name": of.named}})),
    };
    let choice = choice.map(|choice| ("tool_choice", choice));
    choice.into_iter().chain(of.parallel.map(|parallel| ("parallel_tool_calls", parallel.into()))).collect()
}

/// Shortest decimal of a float, rather than its exact double.
fn number(of: f32) -> Value {
    of.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

fn sampling(request: &v1::InferRequest) -> Result<Vec<(&'static str, Value)>, Status> {
    let (of, stop) = (request.sampling.clone().unwrap_or_default(), request.stop.clone().unwrap_or_default());
    let mut set: Vec<(&'static str, Value)> = Vec::new();
    for (name, value) in [
        ("temperature", of.temperature),
        ("top_p", of.top_p),
        ("min_p", of.min_p),
        ("repetition_penalty", of.repetition_penalty),
        ("frequency_penalty", of.frequency_penalty),
        ("presence_penalty", of.presence_penalty),
    ] {
        set.extend(value.map(|value| (name, number(value))));
    }
    set.extend(of.top_k.map(|count| ("top_k", count.into())));
    set.extend(of.seed.map(|seed| ("seed", seed.into())));
    let bound = (request.completion_tokens_max > 0).then_some(request.completion_tokens_max);
    set.extend(stop.max_tokens.or(bound).map(|count| ("max_completion_tokens", count.into())));
    if !stop.strings.is_empty() {
        set.push(("stop", stop.strings.into()));
    }
    if stop.min_tokens > 0 {
        set.push(("min_tokens", stop.min_tokens.into()));
    }
    if !stop.token_ids.is_empty() {
        set.push(("stop_token_ids", stop.token_ids.into()));
    }
    if stop.include_stop_string {
        set.push(("include_stop_str_in_output", true.into()));
    }
    if stop.ignore_eos {
        set.push(("ignore_eos", true.into()));
    }
    // Values without effect are simply left out.
    let other = [
        ("logit_bias", !of.logit_bias.is_empty()),
        ("typical_p", of.typical_p.is_some_and(|p| p < 1.0)),
        ("top_n_sigma", of.top_n_sigma.is_some_and(|sigma| sigma > 0.0)),
        ("xtc_probability", of.xtc_probability.is_some_and(|p| p > 0.0)),
        ("dynatemp_range", of.dynatemp_range.is_some_and(|range| range > 0.0)),
        ("mirostat", of.mirostat.is_some_and(|version| version > 0)),
        ("dry_multiplier", of.dry_multiplier.is_some_and(|times| times > 0.0)),
        ("repeat_last_n", of.repeat_last_n.is_some_and(|tokens| tokens >= 0)),
    ];
    match other.into_iter().find(|(_, asked)| *asked) {
        Some((field, _)) => refuse(field, "cannot be carried there"),
        None => Ok(set),
    }
}

fn format(of: &Of) -> Result<Value, Status> {
    match of {
        Of::JsonObject(_) => Ok(json!({"type": "json_object"})),
        Of::JsonSchema(text) => {
            let schema: Value = serde_json::from_str(text)
                .map_err(|_| Status::invalid_argument("constraint: a schema is JSON"))?;
            Ok(
                json!({"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": true}}),
            )
        }
        Of::Regex(_) | Of::Choices(_) | Of::Lark(_) | Of::Gbnf(_) => {
            refuse("constraint", "only JSON and its schemas can be carried there")
        }
    }
}

#[cfg(test)]
mod tests {
    use hanzo_engine_proto::v1::StopConditions;

    use super::*;

    fn chat(content: Vec<v1::ContentPart>) -> v1::InferRequest {
        let message = v1::Message { role: "user".to_owned(), content, ..v1::Message::default() };
        let chat = v1::Chat { messages: vec![message], ..v1::Chat::default() };
        v1::InferRequest { prompt: Some(Prompt::Chat(chat)), ..v1::InferRequest::default() }
    }

    fn text(text: &str) -> v1::ContentPart {
        v1::ContentPart { part: Some(Part::Text(text.to_owned())) }
    }

    #[test]
    fn a_chat_is_carried_in_openais_words() {
        let mut request = chat(vec![text("a"), text("b")]);
        request.sampling = Some(v1::Sampling {
            temperature: Some(0.7),
            top_k: Some(9),
            mirostat: Some(0),
            ..Default::default()
        });
        request.stop =
            Some(StopConditions { max_tokens: Some(5), strings: vec!["x".to_owned()], ..Default::default() });
        request.tool_use = Some(v1::ToolUse {
            choice: ToolChoice::Named.into(),
            named: "f".to_owned(),
            parallel: Some(false),
            ..Default::default()
        });
        request.constraint =
            Some(v1::Constraint { of: Some(Of::JsonSchema("{\"type\":\"object\"}".to_owned())) });
        let Some(Prompt::Chat(of)) = &mut request.prompt else { panic!() };
        of.tools_json = vec!["{\"type\":\"function\",\"function\":{\"name\":\"f\"}}".to_owned()];
        of.template_kwargs_json = "{\"enable_thinking\":true,\"reasoning_effort\":\"low\"}".to_owned();
        let call = v1::ToolCall { id: "1".to_owned(), name: "f".to_owned(), arguments_json: "{}".to_owned() };
        let (role, tool_calls) = ("assistant".to_owned(), vec![call]);
        of.messages.push(v1::Message {
            role,
            tool_calls,
            reasoning_content: "hm".to_owned(),
            ..Default::default()
        });
        let (role, tool_call_id) = ("tool".to_owned(), "1".to_owned());
        of.messages.push(v1::Message { role, tool_call_id, content: vec![text("ok")], ..Default::default() });
        let body: Value = serde_json::from_str(&body(&request, "m").unwrap()).unwrap();
        let expected = json!({
            "model": "m",
            "messages": [
                {"role": "user", "content": "ab"},
                {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
                {"role": "tool", "tool_call_id": "1", "content": "ok"},
            ],
            "stream": true,
            "stream_options": {"include_usage": true},
            "tools": [{"type": "function", "function": {"name": "f"}}],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
            "parallel_tool_calls": false,
            "temperature": 0.7,
            "top_k": 9,
            "max_completion_tokens": 5,
            "stop": ["x"],
            "reasoning_effort": "low",
            "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": true}},
        });
        assert_eq!(body, expected);
    }

    #[test]
    fn a_picture_goes_in_its_address() {
        let media =
            v1::Media { data: vec![0xff, 0xd8, 0].into(), detail: "low".to_owned(), ..Default::default() };
        let request = chat(vec![text("what?"), v1::ContentPart { part: Some(Part::Media(Box::new(media))) }]);
        let body: Value = serde_json::from_str(&body(&request, "m").unwrap()).unwrap();
        assert_eq!(
            body["messages"][0]["content"],
            json!([{"type": "text", "text": "what?"},
                   {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,/9gA", "detail": "low"}}])
        );
    }

    #[test]
    fn what_cannot_be_carried_is_named() {
        type Change = fn(&mut v1::InferRequest);
        let changes: [(&str, Change); 8] = [
            ("logprobs", |request| request.logprobs = true),
            ("prompt", |request| request.prompt = Some(Prompt::Text("x".to_owned()))),
            ("reasoning", |request| request.reasoning = Some(v1::Reasoning { tokens_max: Some(9) })),
            ("context_shift", |request| request.context_shift = Some(true)),
            ("constraint", |request| {
                request.constraint = Some(v1::Constraint { of: Some(Of::Regex("x".to_owned())) })
            }),
            ("mirostat", |request| {
                request.sampling = Some(v1::Sampling { mirostat: Some(2), ..Default::default() })
            }),
            ("logit_bias", |request| {
                request.sampling = Some(v1::Sampling { logit_bias: [(1, 1.0)].into(), ..Default::default() });
            }),
            ("messages", |request| {
                let media = v1::Media { mime_type: "audio/wav".to_owned(), ..Default::default() };
                let Some(Prompt::Chat(chat)) = &mut request.prompt else { panic!() };
                chat.messages[0].content.push(v1::ContentPart { part: Some(Part::Media(Box::new(media))) });
            }),
        ];
        for (field, change) in changes {
            let mut request = chat(vec![text("a")]);
            assert!(body(&request, "m").is_ok());
            change(&mut request);
            let error = body(&request, "m").unwrap_err();
            assert!(error.message().starts_with(&format!("{field}: ")), "{error}");
        }
    }
}
