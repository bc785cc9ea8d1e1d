//! Adapts past tool calls to templates that insist on a certain form: one call per message, IDs with the calls'
//! names, or calls written by the template at all.

use std::collections::HashMap;

use serde_json::json;

use crate::{
    chat::{Chat, Message},
    template::ChatTemplate,
};

/// Name of a call that no conversation has.
const PROBE: &str = "hanzo_probe_of_calls";
/// ID of that call; nine letters, because some templates insist on that.
const PROBE_ID: &str = "hanzoprob";

/// Whether a template drops the call of a message, if the message has no text, and if it has some. Templates of
/// DeepSeek R1's distilled models write calls only if there is no text. An ID counts as its call.
pub(crate) fn are_lost(template: &ChatTemplate, offers: bool) -> [bool; 2] {
    ["", "Let me see."].map(|content| {
        let message = |role: &str, content: &str| Message {
            role: role.to_owned(),
            content: content.to_owned(),
            ..Message::default()
        };
        let call = json!({"id": PROBE_ID, "type": "function", "function": {"name": PROBE, "arguments": {}}});
        let tool = json!({"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {
            "type": "object", "properties": {}}}});
        let asked = Message { tool_calls: vec![call], ..message("assistant", content) };
        let chat = Chat {
            messages: vec![message("user", "Look."), asked],
            tools: if offers { vec![tool] } else { Vec::new() },
            add_generation_prompt: true,
            ..Chat::default()
        };
        // A refusal of the conversation says nothing about calls.
        template.render(&chat, &|| false).is_ok_and(|rendered| ![PROBE, PROBE_ID].iter().any(|said| rendered.text.contains(said)))
    })
}

/// Gives calls IDs that contain their names, as Kimi's models write them: its templates only write the IDs.
pub(crate) fn with_named_ids(mut messages: Vec<Message>) -> Vec<Message> {
    let mut ids: HashMap<String, String> = HashMap::new();
    let mut calls = 0;
    for message in &mut messages {
        for call in &mut message.tool_calls {
            let name = call["function"]["name"].as_str().unwrap_or_default();
            let named = format!("functions.{name}:{calls}");
            calls += 1;
            let id = call["id"].as_str().unwrap_or_default();
            if id.strip_prefix("functions.").is_some_and(|rest| rest.starts_with(name)) {
                continue;
            }
            ids.insert(id.to_owned(), named.clone());
            call["id"] = named.into();
        }
        if let Some(named) = message.tool_call_id.as_ref().and_then(|id| ids.get(id)) {
            message.tool_call_id = Some(named.clone());
        }
    }
    messages
}

/// Expressions for the first call of a message.
const FIRST: [&str; 5] =
    ["tool_calls[0]", "tool_calls'][0]", "tool_calls\"][0]", "tool_calls|first", "tool_calls | first"];

/// Whether a template's source uses the first call of a message, and never iterates over calls.
pub(crate) fn writes_one(source: &str) -> bool {
    let goes_through = |(at, _): (usize, &str)| {
        let before = source[..at].rfind(char::is_whitespace).map_or("", |space| &source[..space]);
        before.trim_end().ends_with(" in")
    };
    FIRST.iter().any(|first| source.contains(first)) && !source.match_indices("tool_calls").any(goes_through)
}

/// Splits messages so that each has a single call, for templates that write only the first call (GPT-OSS, GigaChat)
/// or refuse two (Llama 3.1). The result of each call follows it.
pub(crate) fn one_by_one(messages: Vec<Message>) -> Vec<Message> {
    let mut found = Vec::with_capacity(messages.len());
    let mut rest = messages.into_iter().peekable();
    while let Some(mut message) = rest.next() {
        if message.tool_calls.len() < 2 {
            found.push(message);
            continue;
        }
        let calls = std::mem::take(&mut message.tool_calls);
        let mut answers: Vec<Message> = Vec::new();
        while let Some(answer) = rest.next_if(|next| next.role == "tool") {
            answers.push(answer);
        }
        let mut first = Some(message);
        for call in calls {
            let id = call["id"].as_str().map(str::to_owned);
            let role = "assistant".to_owned();
            let message = first.take().unwrap_or(Message { role, ..Message::default() });
            found.push(Message { tool_calls: vec![call], ..message });
            let is_own = |answer: &mut Message| id.is_some() && answer.tool_call_id == id;
            found.extend(answers.extract_if(.., is_own));
        }
        found.append(&mut answers);
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn templates_that_lose_calls_are_found() {
        let written = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}{% endfor %}";
        let beside_nothing = "{% for m in messages %}{% if m.content is none %}{{ m.tool_calls[0].function.name }}{% else %}{{ m.content }}\
                              {% endif %}{% endfor %}";
        let beside_no_text = "{% for m in messages %}{% if m.content %}{{ m.content }}{% else %}{{ m.tool_calls[0].function.name }}\
                              {% endif %}{% endfor %}";
        for (source, lost) in [
            (written, [false, false]),
            (beside_nothing, [true, true]),
            (beside_no_text, [false, true]),
            ("{{ raise_exception('no') }}", [false, false]),
        ] {
            let template = ChatTemplate::new(source, "", "", "x").unwrap();
            assert_eq!(are_lost(&template, true), lost, "{source}");
        }
    }

    #[test]
    fn ids_have_the_names_of_their_calls() {
        let call = |id: &str| json!({"id": id, "function": {"name": "look"}});
        let asked =
            Message { tool_calls: vec![call("call_1"), call("functions.look:1")], ..Message::default() };
        let answer = Message { tool_call_id: Some("call_1".into()), ..Message::default() };
        let messages = with_named_ids(vec![asked, answer]);
        assert_eq!(messages[0].tool_calls[0]["id"], "functions.look:0");
        assert_eq!(messages[0].tool_calls[1]["id"], "functions.look:1");
        assert_eq!(messages[1].tool_call_id.as_deref(), Some("functions.look:0"));
    }

    #[test]
    fn sources_tell_whether_they_go_through_calls() {
        for (source, one) in [
            ("{% set call = message.tool_calls[0].function %}", true),
            ("{% set call = message['tool_calls'][0] %}", true),
            (
                "{% if 'tool_calls' in message and message.tool_calls|length == 1 %}{{ message.tool_calls | first }}{% endif %}",
                true,
            ),
            (
                "{% if m.tool_calls[0] %}{% for call in m.tool_calls %}{{ call }}{% endfor %}{% endif %}",
                false,
            ),
            ("{% for call in message['tool_calls'] %}{{ call }}{% endfor %}", false),
            ("{% for call in calls %}{{ call }}{% endfor %}", false),
        ] {
            assert_eq!(writes_one(source), one, "{source}");
        }
    }

    #[test]
    fn answers_stand_behind_their_calls() {
        let call = |id: &str| json!({"id": id, "function": {"name": id}});
        let message = |role: &str, content: &str| Message {
            role: role.into(),
            content: content.into(),
            ..Message::default()
        };
        let answer = |id: &str| Message { tool_call_id: Some(id.into()), ..message("tool", id) };
        let asked = Message { tool_calls: vec![call("a"), call("b")], ..message("assistant", "Both.") };
        let messages = vec![message("user", "?"), asked, answer("b"), answer("a"), message("tool", "c")];
        let split = one_by_one(messages);
        let read = split.iter().map(|message| {
            let ids = message.tool_calls.iter().map(|call| call["id"].as_str().unwrap()).collect::<String>();
            format!("{}:{}{ids}", message.role, message.content)
        });
        let expected = ["user:?", "assistant:Both.a", "tool:a", "assistant:b", "tool:b", "tool:c"];
        assert_eq!(read.collect::<Vec<_>>(), expected);
    }
}
