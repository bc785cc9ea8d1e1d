//! The input of responses: items of every kind as agents send them back, and what the model is shown of them.

use hanzo_engine_proto::v1::{self, content_part::Part, infer_request::Prompt};
use serde_json::{Value, json};

use crate::{Server, fake::hello, http::post, responses::body, script};

const PATH: &str = "/v1/responses";

/// A message as `role[the call it answers]: (reasoning)text id=name(arguments)`.
pub(crate) fn shown(message: &v1::Message) -> String {
    let text = |part: &v1::ContentPart| match &part.part {
        Some(Part::Text(text)) => text.clone(),
        Some(Part::Media(media)) => {
            let v1::Media { data, detail, min_pixels, max_pixels, .. } = &**media;
            let bounds = [min_pixels, max_pixels].map(|pixels| pixels.unwrap_or(0));
            format!("<{} {detail} {bounds:?}>", String::from_utf8_lossy(data))
        }
        None => panic!("an empty part"),
    };
    let text = message.content.iter().map(text).collect::<Vec<_>>().join("|");
    let calls = message.tool_calls.iter();
    let calls: String =
        calls.map(|call| format!(" {}={}({})", call.id, call.name, call.arguments_json)).collect();
    let (of, thought) = (&message.tool_call_id, &message.reasoning_content);
    let of = if of.is_empty() { String::new() } else { format!("[{of}]") };
    let thought = if thought.is_empty() { String::new() } else { format!("({thought})") };
    format!("{}{of}: {thought}{text}{calls}", message.role)
}

/// What the model is shown of a request, or the field that it is refused for.
async fn check(more: Value) -> Result<Vec<String>, String> {
    let server = Server::start(script(hello)).await;
    let answer = post(server.address, PATH, &body(more)).await;
    if answer.status != 200 {
        return Err(answer.json()["error"]["param"].as_str().unwrap_or_default().to_owned());
    }
    match server.fake.seen().remove(0).prompt {
        Some(Prompt::Chat(chat)) => Ok(chat.messages.iter().map(shown).collect()),
        other => panic!("{other:?}"),
    }
}

/// Three letters.
const PICTURE: &str = "data:image/png;base64,YWJj";

#[tokio::test]
async fn pictures_are_parts_of_messages_and_of_what_tools_give() {
    let input = json!([
        {"role": "user", "content": [
            {"type": "input_text", "text": "what?"},
            {"type": "input_image", "detail": "low", "image_url": PICTURE},
            {"type": "input_image", "image_url": PICTURE, "min_pixels": 784, "max_pixels": 100_352, "file_id": null}]},
        {"type": "function_call", "call_id": "1", "name": "shot", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_image", "image_url": PICTURE}]},
    ]);
    let expected = [
        "system: be brief",
        "user: what?|<abc low [0, 0]>|<abc auto [784, 100352]>",
        "assistant:  1=shot({})",
        "tool[1]: <abc auto [0, 0]>",
    ];
    assert_eq!(check(json!({"input": input, "instructions": "be brief"})).await, is(&expected));
}

fn is(messages: &[&str]) -> Result<Vec<String>, String> {
    Ok(messages.iter().map(|message| (*message).to_owned()).collect())
}

#[tokio::test]
async fn items_become_messages_as_the_model_wrote_them() {
    let input = json!([
        {"role": "user", "content": "weather?"},
        {"id": "rs_1", "type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "look"}], "encrypted_content": null, "status": null},
        {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [
            {"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}]},
        {"id": "fc_1", "type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{\"city\":\"Rome\"}", "status": "completed", "caller": null},
        {"type": "function_call", "call_id": "c2", "name": "time", "arguments": ""},
        {"type": "function_call_output", "call_id": "c1", "output": "sun"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "no"}, {"type": "input_text", "text": "on"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "and"}, {"type": "input_text", "text": "?"}]},
    ]);
    let expected = [
        "system: be brief",
        "user: weather?",
        r#"assistant: (look)I look. c1=weather({"city":"Rome"}) c2=time({})"#,
        "tool[c1]: sun",
        "tool[c2]: no|on",
        "assistant: No.",
        "user: and|?",
    ];
    assert_eq!(check(json!({"instructions": "be brief", "input": input})).await, is(&expected));
}

#[tokio::test]
async fn answers_of_the_assistant_stay_apart_and_calls_stay_with_their_answer() {
    let said = |text: &str| json!({"role": "assistant", "content": text});
    let call = |id: &str| json!({"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"});
    let output = |id: &str| json!({"type": "function_call_output", "call_id": id, "output": "o"});
    let thought =
        |text: &str| json!({"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]});
    let input = json!([
        said("a"),
        said("b"),
        thought("t"),
        said("c"),
        call("1"),
        said("d"),
        thought("u"),
        call("2"),
        output("1"),
        output("2"),
        call("3"),
        output("3")
    ]);
    let expected = [
        "assistant: a",
        "assistant: b",
        "assistant: (t\n\nu)c|d 1=f({}) 2=f({})",
        "tool[1]: o",
        "tool[2]: o",
        "assistant:  3=f({})",
        "tool[3]: o",
    ];
    assert_eq!(check(json!({ "input": input })).await, is(&expected));
}

#[tokio::test]
async fn what_stands_before_a_conversation_is_one_message() {
    let input = json!([{"role": "developer", "content": "d"}, {"role": "system", "content": "s"}, {"role": "user", "content": "u"}, {"role": "developer", "content": "later"}]);
    let expected = ["system: i|\n\n|d|\n\n|s", "user: u", "developer: later"];
    assert_eq!(check(json!({"instructions": "i", "input": input})).await, is(&expected));
    let alone = json!([{"role": "developer", "content": "d"}, {"role": "user", "content": "u"}]);
    assert_eq!(check(json!({"instructions": null, "input": alone})).await, is(&["developer: d", "user: u"]));
}

#[tokio::test]
async fn a_coding_agents_history_is_taken() {
    // As Codex sends it: nothing is kept, reasoning comes back as it was put away, and tools are its own.
    let input = json!([
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "permissions"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<environment_context>"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "shorter"}], "content": null, "encrypted_content": "hanzo1.SG1tLg=="},
        {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin\n+a", "status": "completed"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "Done"},
        {"type": "local_shell_call", "id": "l1", "call_id": "c2", "status": "completed", "action": {"type": "exec", "command": ["ls"], "env": {}}},
        {"type": "local_shell_call_output", "id": "c2", "output": "a b"},
        {"type": "shell_call", "call_id": "c3", "action": {"commands": ["ls"]}},
        {"type": "shell_call_output", "call_id": "c3", "output": [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]},
        {"type": "apply_patch_call", "call_id": "c4", "status": "completed", "operation": {"type": "delete_file", "path": "a"}},
        {"type": "apply_patch_call_output", "call_id": "c4", "status": "completed"},
        {"type": "reasoning", "summary": [], "encrypted_content": "gAAAAABanothers"},
        {"type": "mcp_call", "id": "m1", "server_label": "x", "name": "look", "arguments": "{}", "output": "seen"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go on"}]},
    ]);
    let more = json!({
        "instructions": "You are a coding agent.", "input": input, "store": false, "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "a-b", "parallel_tool_calls": false, "reasoning": {"effort": "medium", "summary": "auto"}, "tool_choice": "auto",
        "tools": [{"type": "function", "name": "shell", "description": "", "strict": false, "parameters": {"type": "object"}},
                  {"type": "custom", "name": "apply_patch", "description": "", "format": {"type": "text"}}],
    });
    let expected = [
        "system: You are a coding agent.|\n\n|permissions",
        "user: <environment_context>",
        r#"assistant: (Hmm.) c1=apply_patch({"input":"*** Begin\n+a"})"#,
        "tool[c1]: Done",
        r#"assistant:  c2=local_shell({"type":"exec","command":["ls"],"env":{}})"#,
        "tool[c2]: a b",
        r#"assistant:  c3=shell({"commands":["ls"]})"#,
        r#"tool[c3]: [{"stdout":"a","stderr":"","outcome":{"type":"exit","exit_code":0}}]"#,
        r#"assistant:  c4=apply_patch({"type":"delete_file","path":"a"})"#,
        "tool[c4]: completed",
        "assistant:  m1=x__look({})",
        "tool[m1]: seen",
        "user: go on",
    ];
    assert_eq!(check(more).await, is(&expected));
}

#[tokio::test]
async fn reasoning_of_earlier_turns_may_be_left_out() {
    let input = json!([
        {"role": "user", "content": "a"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "old"}]},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "new"}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "o"},
    ]);
    let end = ["user: c", "assistant: (new) 1=f({})", "tool[1]: o"];
    for (reasoning, answer) in [
        (json!({}), "assistant: (old)b"),
        (json!({"context": "auto"}), "assistant: (old)b"),
        (json!({"context": "current_turn"}), "assistant: b"),
    ] {
        let expected = [&["user: a", answer], &end[..]].concat();
        assert_eq!(check(json!({"input": input, "reasoning": reasoning})).await, is(&expected));
    }
}

#[tokio::test]
async fn items_that_cannot_be_shown_are_refused_by_their_place() {
    let part = |part: Value| json!({"input": [{"role": "user", "content": [part]}]});
    for (more, param) in [
        (part(json!({"type": "input_image", "image_url": "data:"})), "input[0].content[0].image_url"),
        (
            part(json!({"type": "input_image", "image_url": "http://a/b.png"})),
            "input[0].content[0].image_url",
        ),
        (part(json!({"type": "input_image", "file_id": "f"})), "input[0].content[0].file_id"),
        (part(json!({"type": "input_image"})), "input[0].content[0].image_url"),
        (
            part(json!({"type": "input_image", "image_url": PICTURE, "detail": "closely"})),
            "input[0].content[0].detail",
        ),
        (
            part(json!({"type": "input_image", "image_url": PICTURE, "max_pixels": 0})),
            "input[0].content[0].max_pixels",
        ),
        (
            json!({"input": [{"role": "assistant", "content": [{"type": "input_image", "image_url": PICTURE}]}]}),
            "input[0].content[0].type",
        ),
        (part(json!({"type": "input_file", "file_id": "f"})), "input[0].content[0].type"),
        (part(json!({"type": "refusal", "refusal": "x"})), "input[0].content[0].type"),
        (part(json!({"type": "poem"})), "input[0].content[0].type"),
        (part(json!({"type": "input_text"})), "input[0].content[0].text"),
        (json!({"input": [{"role": "tool", "content": "x"}]}), "input[0].role"),
        (json!({"input": [{"role": "user"}]}), "input[0].content"),
        (json!({"input": ["x"]}), "input[0]"),
        (json!({"input": [{"type": "web_search_call", "id": "w"}]}), "input[0].type"),
        (json!({"input": [{"type": "compaction", "encrypted_content": "x"}]}), "input[0].type"),
        (json!({"input": [{"type": "odd"}]}), "input[0].type"),
        (json!({"input": [{"type": "function_call", "call_id": "c", "name": ""}]}), "input[0].name"),
        (json!({"input": [{"type": "function_call", "name": "f"}]}), "input[0].call_id"),
        (json!({"input": [{"type": "function_call_output", "call_id": "c"}]}), "input[0].output"),
        (
            json!({"input": [{"type": "function_call_output", "call_id": "c", "output": 3}]}),
            "input[0].output",
        ),
    ] {
        assert_eq!(check(more.clone()).await, Err(param.to_owned()), "{more}");
    }
}

#[tokio::test]
async fn tools_of_the_servers_are_left_out_where_the_gateway_is_lenient() {
    let server = Server::with(script(hello), |config| config.lenient = true).await;
    let grammar = json!({"type": "grammar", "syntax": "lark", "definition": "start: \"a\""});
    let tools = json!([{"type": "web_search"}, {"type": "local_shell"}, {"type": "custom", "name": "f", "description": "d", "format": grammar}]);
    let answer = post(server.address, PATH, &body(json!({ "tools": tools }))).await;
    assert_eq!((answer.status, &answer.json()["tools"]), (200, &tools), "{}", answer.text);
    let Some(Prompt::Chat(chat)) = server.fake.seen().remove(0).prompt else { panic!() };
    assert_eq!(chat.tools_json.len(), 1);
    assert!(chat.tools_json[0].contains("start: \\\"a\\\""), "{}", chat.tools_json[0]);
}
