//! Renders conversations by chat templates, one of each a line of JSON on stdin, for `testdata/compare_templates.py`:
//! `{"template", "bos", "eos", "messages", "tools", "kwargs", "add_generation_prompt"}` becomes `{"text"}` or `{"error"}`.
//! With `"model"`, the path of a model's file, the prompt is the one that the model would get with this template: what the template has no
//! word for is said in words that it has.

use std::io::{BufRead, Write, stdin, stdout};

use hanzo_engine_runtime::chat::{Chat, Message};
use hanzo_engine_runtime::template::ChatTemplate;
use hanzo_engine_runtime::{ModelFiles, TextModel};
use serde_json::{Value, json};

fn text(value: &Value, key: &str) -> Option<String> {
    value.get(key).and_then(Value::as_str).map(str::to_owned)
}

fn message(value: &Value) -> Message {
    Message {
        role: text(value, "role").unwrap_or_default(),
        content: text(value, "content").unwrap_or_default(),
        name: text(value, "name"),
        tool_calls: value.get("tool_calls").and_then(Value::as_array).cloned().unwrap_or_default(),
        tool_call_id: text(value, "tool_call_id"),
        reasoning_content: text(value, "reasoning_content"),
    }
}

fn render(case: &Value) -> Result<String, String> {
    let own = |key: &str| text(case, key).unwrap_or_default();
    let list = |key: &str| case.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    let chat = Chat {
        messages: list("messages").iter().map(message).collect(),
        tools: list("tools"),
        kwargs: case.get("kwargs").and_then(Value::as_object).cloned().unwrap_or_default(),
        add_generation_prompt: case.get("add_generation_prompt").is_some_and(|flag| flag == true),
        continue_final_message: false,
        pictures: 0,
        sounds: 0,
    };
    let made = match text(case, "model") {
        Some(path) => {
            let mut files = ModelFiles::open(path.as_ref()).map_err(|error| error.to_string())?;
            files.text.chat_template = Some(own("template"));
            TextModel::load(&files).map_err(|error| error.to_string())?.render(&chat, &|| false)
        }
        None => {
            let template = ChatTemplate::new(&own("template"), &own("bos"), &own("eos"), "template");
            template.map_err(|error| error.to_string())?.render(&chat, &|| false)
        }
    };
    made.map(|made| made.text).map_err(|error| error.to_string())
}

fn main() -> std::io::Result<()> {
    for line in stdin().lock().lines() {
        let case: Value = serde_json::from_str(&line?)?;
        let answer = match render(&case) {
            Ok(text) => json!({ "text": text }),
            Err(error) => json!({ "error": error }),
        };
        writeln!(stdout().lock(), "{answer}")?;
    }
    Ok(())
}
