//! MCP tool `hanzo_infer`: converts its arguments to a chat completion, and the answer to a tool result.

use hanzo_engine_process::tasks;
use std::sync::Arc;

use rmcp::model::{CallToolResult, ContentBlock, JsonObject};
use serde_json::{Value, json};

use crate::{
    app::App,
    asker::Asker,
    body,
    error::ApiError,
    fields::Fields,
    mcp::{progress::ProgressChannel, tools},
    openai::{
        events::finish_reason,
        generation::{Event, Generation},
        plan::{self, RequestPlan},
        shape::CollectedChoice,
    },
};

/// Runs the tool.
pub(super) async fn infer(
    app: &Arc<App>,
    asker: &Asker,
    arguments: JsonObject,
    mut progress: ProgressChannel,
) -> Result<CallToolResult, ApiError> {
    let (of_app, id) = (Arc::clone(app), asker.id.clone());
    // Arguments may be megabytes, so they are parsed on a blocking thread.
    let plan = move || -> Result<RequestPlan, ApiError> {
        let text = Value::Object(chat(arguments)?).to_string();
        plan::chat(Fields::of_body(body::parse(&text)?, of_app.config.lenient)?, &of_app.config, &id)
    };
    let plan = tasks::blocking(plan).await;
    let mut plan = plan.unwrap_or_else(|e| Err(ApiError::internal(&format!("reading arguments: {e}"))))?;
    plan.requests.iter_mut().for_each(|request| request.load_progress = progress.is_wanted());
    let total = plan.requests.first().and_then(|request| request.stop.as_ref()?.max_tokens).map(f64::from);
    let mut generation = Generation::start(app, asker, plan).await?;
    let (mut choice, mut room) = (CollectedChoice::default(), app.answers.room());
    while let Some(event) = generation.next().await {
        match event? {
            Event::Loading(load) => progress.loads(&load.model, load.percent, load.waits).await,
            Event::Started { .. } | Event::Scored { .. } | Event::Server(_) => {}
            Event::Delta { delta, .. } => {
                room.grow(delta.text.len() + delta.reasoning.len())?;
                let reached = f64::from(generation.used.completion_tokens());
                progress.tell(reached, total, &delta.text, false).await;
                choice.text.push_str(&delta.text);
                choice.reasoning.push_str(&delta.reasoning);
            }
            Event::Finished { reason, .. } => choice.reason = reason,
        }
    }
    progress.tell(f64::from(generation.used.completion_tokens()), total, "", true).await;
    Ok(answer(generation, choice))
}

fn answer(generation: Generation, choice: CollectedChoice) -> CallToolResult {
    let used = &generation.used;
    let (prompt, completion) = (used.prompt_tokens(), used.completion_tokens());
    let mut structured = json!({
        "model": generation.model,
        "text": choice.text,
        "finish_reason": finish_reason(choice.reason),
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt.saturating_add(completion),
            "cached_tokens": used.cached_tokens(),
            "reasoning_tokens": used.reasoning_tokens,
        },
    });
    if !choice.reasoning.is_empty() {
        structured["reasoning"] = choice.reasoning.into();
    }
    let mut result = CallToolResult::success(vec![ContentBlock::text(choice.text)]);
    result.structured_content = Some(structured);
    result
}

/// Body of the chat completion.
fn chat(arguments: JsonObject) -> Result<JsonObject, ApiError> {
    let mut body = tools::known(arguments, &tools::INFER_FIELDS)?;
    let mut messages = Vec::new();
    if let Some(system) = body.remove("system") {
        messages.push(json!({"role": "system", "content": text("system", system)?}));
    }
    match (body.remove("prompt"), body.remove("messages")) {
        (Some(_), Some(_)) => {
            return Err(ApiError::field("prompt", "cannot stand beside messages; send one of them"));
        }
        (Some(prompt), None) => messages.push(json!({"role": "user", "content": text("prompt", prompt)?})),
        (None, Some(Value::Array(given))) => messages.extend(given),
        (None, Some(_)) => return Err(ApiError::field("messages", "expected an array")),
        (None, None) => return Err(ApiError::field("prompt", "required, or else messages")),
    }
    body.insert("messages".to_owned(), Value::Array(messages));
    if let Some(schema) = body.remove("response_schema") {
        if !schema.is_object() {
            return Err(ApiError::field("response_schema", "expected an object, which is a JSON schema"));
        }
        let format = json!({"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": true}});
        body.insert("response_format".to_owned(), format);
    }
    Ok(body)
}

fn text(name: &str, value: Value) -> Result<String, ApiError> {
    match value {
        Value::String(text) => Ok(text),
        _ => Err(ApiError::field(name, "expected a string")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::chat;

    fn check(arguments: Value) -> Result<Value, String> {
        let Value::Object(arguments) = arguments else { panic!("an object") };
        chat(arguments).map(Value::Object).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn a_prompt_and_messages_make_the_same_chat() {
        let user = json!({"role": "user", "content": "hi"});
        let expected = json!({"temperature": 0, "messages": [{"role": "system", "content": "be"}, user]});
        let of_prompt = json!({"prompt": "hi", "system": "be", "temperature": 0});
        assert_eq!(check(of_prompt).unwrap(), expected);
        let of_messages = json!({"messages": [user], "system": "be", "temperature": 0});
        assert_eq!(check(of_messages).unwrap(), expected);
        let with_schema = check(json!({"prompt": "hi", "response_schema": {"type": "object"}})).unwrap();
        assert_eq!(with_schema["response_format"]["json_schema"]["schema"], json!({"type": "object"}));
    }

    #[test]
    fn what_makes_no_chat_is_refused_by_name() {
        for (arguments, says) in [
            (json!({}), "prompt: required"),
            (json!({"prompt": "a", "messages": []}), "prompt: cannot"),
            (json!({"prompt": 5}), "prompt: expected"),
            (json!({"prompt": "a", "system": []}), "system: expected"),
            (json!({"messages": "a"}), "messages: expected"),
            (json!({"prompt": "a", "response_schema": "x"}), "response_schema: expected"),
            (json!({"prompt": "a", "n": 2}), "n: unknown"),
            (json!({"prompt": "a", "stream": true}), "stream: unknown"),
        ] {
            let said = check(arguments.clone()).unwrap_err();
            assert!(said.starts_with(says), "{arguments}: {said}");
        }
    }
}
