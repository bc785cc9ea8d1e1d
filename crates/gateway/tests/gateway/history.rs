//! What agents send back: the messages that they got, with fields of their libraries' own, and past calls of tools.

use hanzo_engine_proto::v1::{self, content_part::Part, infer_request::Prompt};
use serde_json::{Value, json};

use crate::{Server, fake::hello, http::post, script};

/// The messages that the engine gets for a history that is accepted.
async fn heard(messages: Value) -> Vec<v1::Message> {
    let server = Server::start(script(hello)).await;
    let answer = post(server.address, "/v1/chat/completions", &json!({"messages": messages})).await;
    assert_eq!(answer.status, 200, "{messages}: {}", answer.text);
    let Some(Prompt::Chat(chat)) = server.fake.seen().remove(0).prompt else { panic!("not a chat") };
    chat.messages
}

async fn heard_one(message: Value) -> v1::Message {
    heard(json!([message])).await.remove(0)
}

fn text(message: &v1::Message) -> String {
    let text = |part: &v1::ContentPart| match &part.part {
        Some(Part::Text(text)) => text.clone(),
        other => panic!("{other:?}"),
    };
    message.content.iter().map(text).collect()
}

#[tokio::test]
async fn fields_of_libraries_are_ignored() {
    let own = json!({
        "provider_specific_fields": {"refusal": null}, "refusal": null, "annotations": [{"type": "url_citation"}],
        "audio": {"id": "a"}, "function_call": null, "id": "msg-1", "reasoning_details": [{"type": "reasoning.text"}],
        "thinking_blocks": [{"type": "thinking", "thinking": "x"}], "images": [], "parsed": {"a": 1},
        "cache_control": {"type": "ephemeral"}, "tool_calls": [], "tool_call_id": "", "no_such_thing": 1,
        "usage_metadata": {}, "additional_kwargs": {}, "response_metadata": {}, "prefix": false,
    });
    for role in ["system", "user", "assistant"] {
        let mut message = json!({"role": role, "content": "said"});
        message.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        let heard = heard_one(message).await;
        let expected =
            v1::Message { role: role.to_owned(), content: heard.content.clone(), ..Default::default() };
        assert_eq!((&heard, text(&heard).as_str()), (&expected, "said"));
    }
    // Of parts, calls and results too.
    let part =
        json!({"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}, "annotations": []});
    assert_eq!(text(&heard_one(json!({"role": "user", "content": [part]})).await), "x");
    let call = json!({"id": "c", "type": "function", "index": 0, "provider_specific_fields": {}, "extra_content": {},
        "function": {"name": "f", "arguments": "{}", "parsed_arguments": {}, "strict": true}});
    let heard = heard_one(json!({"role": "assistant", "content": null, "tool_calls": [call]})).await;
    assert_eq!(
        heard.tool_calls,
        [v1::ToolCall { id: "c".into(), name: "f".into(), arguments_json: "{}".into() }]
    );
}

#[tokio::test]
async fn messages_that_say_nothing() {
    for message in [
        json!({"role": "assistant"}),
        json!({"role": "assistant", "content": null}),
        json!({"role": "assistant", "content": ""}),
        json!({"role": "assistant", "content": []}),
        json!({"role": "tool", "tool_call_id": "c", "content": null}),
        json!({"role": "tool", "tool_call_id": "c", "content": []}),
        json!({"role": "tool", "tool_call_id": "c"}),
        json!({"role": "function", "name": "f", "content": null}),
        json!({"role": "user", "content": []}),
        json!({"role": "user", "content": ""}),
    ] {
        assert_eq!(text(&heard_one(message.clone()).await), "", "{message}");
    }
}

#[tokio::test]
async fn arguments_need_not_be_json() {
    for (arguments, expected) in [
        (json!("{\"a\": 1}"), "{\"a\": 1}"),
        (json!("{\"a\": "), "{\"a\": "),
        (json!("not json"), "not json"),
        (json!("[1]"), "[1]"),
        (json!(""), "{}"),
        (json!(null), "{}"),
        (json!({"b": 1, "a": [2]}), r#"{"b":1,"a":[2]}"#),
    ] {
        let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}});
        let heard = heard_one(json!({"role": "assistant", "tool_calls": [call]})).await;
        assert_eq!(heard.tool_calls[0].arguments_json, expected, "{arguments}");
    }
    // The kind of a call decides which of both fields counts.
    for (kind, more, expected) in [
        ("custom", json!({}), "SELECT 1"),
        ("custom", json!({"arguments": ""}), "SELECT 1"),
        ("function", json!({"arguments": "{}"}), "{}"),
    ] {
        let mut called = json!({"name": "f", "input": "SELECT 1"});
        called.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let call = json!({"id": "c", "type": kind, kind: called});
        let heard = heard_one(json!({"role": "assistant", "tool_calls": [call]})).await;
        let found = &heard.tool_calls[0];
        assert_eq!((found.name.as_str(), found.arguments_json.as_str()), ("f", expected), "{call}");
    }
    // Bounds of media beside a text are history's additions.
    let part = json!({"type": "text", "text": "hi", "sampling_rate": 16000, "max_pixels": 4});
    assert_eq!(heard_one(json!({"role": "user", "content": [part]})).await.content.len(), 1);
}

#[tokio::test]
async fn functions_are_tools() {
    let call = |name: &str| json!({"role": "assistant", "content": null, "function_call": {"name": name, "arguments": "{"}});
    let result = |name: &str, content: &str| json!({"role": "function", "name": name, "content": content});
    let messages = json!([
        {"role": "user", "content": "go"},
        call("f"), result("f", "1"), call("f"), call("g"), result("g", "2"), result("f", "3"), result("h", "4"),
    ]);
    let heard = heard(messages).await;
    let id = |i: usize| heard[i].tool_calls[0].id.as_str();
    assert_eq!(
        (heard[1].tool_calls[0].name.as_str(), heard[1].tool_calls[0].arguments_json.as_str()),
        ("f", "{")
    );
    assert!(id(1).len() == 9 && id(1) != id(3) && id(3) != id(4));
    let answered: Vec<_> =
        [2, 5, 6, 7].map(|i| (heard[i].role.as_str(), heard[i].tool_call_id.as_str())).into();
    assert_eq!(answered, [("tool", id(1)), ("tool", id(4)), ("tool", id(3)), ("tool", "")]);
    assert_eq!((text(&heard[5]).as_str(), heard[5].name.as_str()), ("2", "g"));
    // Where the call is there in both forms, it is one.
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let both =
        json!({"role": "assistant", "tool_calls": [call], "function_call": {"name": "f", "arguments": "{}"}});
    assert_eq!(heard_one(both).await.tool_calls.len(), 1);
}

#[tokio::test]
async fn parts_of_every_kind() {
    for (role, parts, said, reasoned) in [
        ("tool", json!([{"type": "text", "text": "4"}, {"type": "text", "text": "2"}]), "42", ""),
        ("user", json!([{"type": "input_text", "text": "x"}]), "x", ""),
        ("assistant", json!([{"type": "output_text", "text": "x", "annotations": []}]), "x", ""),
        ("assistant", json!([{"type": "refusal", "refusal": "No."}]), "No.", ""),
        (
            "assistant",
            json!([{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "x"}]),
            "x",
            "hm",
        ),
        ("assistant", json!([{"type": "reasoning", "text": "hm"}, {"type": "text", "text": "x"}]), "x", "hm"),
        (
            "assistant",
            json!([{"type": "redacted_thinking", "data": "b64"}, {"type": "text", "text": "x"}]),
            "x",
            "",
        ),
    ] {
        let heard = heard_one(
            json!({"role": role, "tool_call_id": if role == "tool" { "c" } else { "" }, "content": parts}),
        )
        .await;
        assert_eq!((text(&heard).as_str(), heard.reasoning_content.as_str()), (said, reasoned), "{parts}");
    }
}

#[tokio::test]
async fn reasoning_and_refusals_in_everyones_fields() {
    for (message, said, reasoned) in [
        (json!({"content": "x", "reasoning_content": "r"}), "x", "r"),
        (json!({"content": "x", "reasoning": "r"}), "x", "r"),
        (json!({"content": "x", "thinking": "r"}), "x", "r"),
        (json!({"content": "x", "reasoning_content": "r", "reasoning": "other"}), "x", "r"),
        (json!({"content": "x", "reasoning_content": null, "reasoning": {"effort": "low"}}), "x", ""),
        (json!({"content": null, "refusal": "No."}), "No.", ""),
        (json!({"content": "x", "refusal": "No."}), "x", ""),
    ] {
        let mut body = message.clone();
        body["role"] = json!("assistant");
        let heard = heard_one(body).await;
        assert_eq!((text(&heard).as_str(), heard.reasoning_content.as_str()), (said, reasoned), "{message}");
    }
    // Nobody else reasons.
    let heard = heard_one(json!({"role": "user", "content": "x", "reasoning_content": "r"})).await;
    assert_eq!(heard.reasoning_content, "");
}

#[tokio::test]
async fn what_a_message_says_is_never_lost() {
    let server = Server::start(script(hello)).await;
    for (message, param) in [
        (
            json!({"role": "assistant", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}),
            "messages[0].content[0].type",
        ),
        (
            json!({"role": "tool", "tool_call_id": "c", "content": [{"type": "input_image"}]}),
            "messages[0].content[0].image_url",
        ),
        (
            json!({"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}),
            "messages[0].content[0].type",
        ),
        (json!({"role": "assistant", "content": {"text": "x"}}), "messages[0].content"),
    ] {
        let answer = post(server.address, "/v1/chat/completions", &json!({"messages": [message]})).await;
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!(param)), "{message}");
    }
    // In the request itself an unknown field is one that would not be honoured.
    let body = json!({"messages": [{"role": "user", "content": "x", "mood": 1}], "mood": 1});
    assert_eq!(post(server.address, "/v1/chat/completions", &body).await.json()["error"]["param"], "mood");
}
