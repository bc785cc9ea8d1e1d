//! Anthropic's messages to the letter: whole and streamed, and what is refused.

use hanzo_engine_proto::v1::{self, FinishReason, infer_event::Event};
use serde_json::{Value, json};
use tonic::Status;

use crate::{
    Server,
    fake::{Step, delta, finished, hello, part, reasoning, started},
    http::{Answer, post},
    script,
};

const PATH: &str = "/v1/messages";

fn body(more: Value) -> Value {
    let mut body = json!({"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// An answer with every kind of block.
fn called() -> Vec<Step> {
    vec![
        started(),
        reasoning(0, "Hm"),
        reasoning(0, "m."),
        delta(0, "I look."),
        part(0, "c1", "weather", "{\"city\":", false),
        part(0, "", "", "\"Rome\"}", false),
        delta(0, "\n"),
        part(1, "c2", "time", "{}", false),
        finished(0, FinishReason::ToolCalls, 9),
    ]
}

/// The events of a stream: each name is its data's type.
fn events(answer: &Answer) -> Vec<Value> {
    let event = |frame: &str| {
        let (name, data) = frame.split_once("\ndata: ").unwrap_or_else(|| panic!("not an event: {frame}"));
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str(), "{frame}");
        data
    };
    answer.text.split_terminator("\n\n").map(event).collect()
}

#[tokio::test]
async fn a_whole_message_has_its_blocks() {
    let server = Server::start(script(|_| Ok(called()))).await;
    let answer = post(server.address, PATH, &body(json!({}))).await;
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    assert_eq!(answer.header("request-id"), answer.header("x-request-id"));
    let mut message = answer.json();
    let id = message.as_object_mut().unwrap().remove("id").unwrap();
    assert!(id.as_str().unwrap().starts_with("msg_"), "{id}");
    let expected = json!({
        "type": "message", "role": "assistant", "model": "owner/ready",
        "content": [
            {"type": "thinking", "thinking": "Hmm.", "signature": ""},
            {"type": "text", "text": "I look.\n", "citations": null},
            {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Rome"}},
            {"type": "tool_use", "id": "c2", "name": "time", "input": {}},
        ],
        "stop_reason": "tool_use", "stop_sequence": null,
        "usage": {"input_tokens": 4, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 3, "output_tokens": 9, "output_tokens_details": {"thinking_tokens": 1}},
    });
    assert_eq!(message, expected);
}

#[tokio::test]
async fn a_stream_has_the_same_blocks_one_after_the_other() {
    let server = Server::start(script(|_| Ok(called()))).await;
    let answer = post(server.address, PATH, &body(json!({"stream": true}))).await;
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("text/event-stream")));
    let mut events = events(&answer);
    let mut start = events.remove(0);
    assert!(start["message"].as_object_mut().unwrap().remove("id").is_some());
    let usage = |output: u32, thinking: u32| json!({"input_tokens": 4, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 3, "output_tokens": output, "output_tokens_details": {"thinking_tokens": thinking}});
    let message = json!({"type": "message", "role": "assistant", "model": "owner/ready", "content": [],
        "stop_reason": null, "stop_sequence": null, "usage": usage(0, 0)});
    assert_eq!(start, json!({"type": "message_start", "message": message}));
    let begin = |index: u32, block: Value| json!({"type": "content_block_start", "index": index, "content_block": block});
    let more =
        |index: u32, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
    let end = |index: u32| json!({"type": "content_block_stop", "index": index});
    let expected = [
        begin(0, json!({"type": "thinking", "thinking": "", "signature": ""})),
        more(0, json!({"type": "thinking_delta", "thinking": "Hm"})),
        more(0, json!({"type": "thinking_delta", "thinking": "m."})),
        end(0),
        begin(1, json!({"type": "text", "text": ""})),
        more(1, json!({"type": "text_delta", "text": "I look."})),
        end(1),
        begin(2, json!({"type": "tool_use", "id": "c1", "name": "weather", "input": {}})),
        more(2, json!({"type": "input_json_delta", "partial_json": "{\"city\":"})),
        more(2, json!({"type": "input_json_delta", "partial_json": "\"Rome\"}"})),
        end(2),
        // White space between blocks is none of its own.
        begin(3, json!({"type": "tool_use", "id": "c2", "name": "time", "input": {}})),
        more(3, json!({"type": "input_json_delta", "partial_json": "{}"})),
        end(3),
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": null}, "usage": usage(9, 1)}),
        json!({"type": "message_stop"}),
    ];
    assert_eq!(events, expected);
}

#[tokio::test]
async fn a_call_that_is_none_ends_and_its_text_follows() {
    let steps = || {
        vec![
            started(),
            part(0, "c1", "weather", "{\"ci", false),
            part(0, "", "", "", true),
            delta(0, "<call>{\"ci"),
            finished(0, FinishReason::Length, 9),
        ]
    };
    let server = Server::start(script(move |_| Ok(steps()))).await;
    let answer = post(server.address, PATH, &body(json!({"stream": true}))).await;
    let kinds: Vec<String> =
        events(&answer).iter().map(|event| event["type"].as_str().unwrap().to_owned()).collect();
    let block = ["content_block_start", "content_block_delta", "content_block_stop"];
    let expected = [&["message_start"], &block[..], &block[..], &["message_delta", "message_stop"]].concat();
    assert_eq!(kinds, expected);
    let whole = post(server.address, PATH, &body(json!({}))).await.json();
    assert_eq!(whole["content"], json!([{"type": "text", "text": "<call>{\"ci", "citations": null}]));
    // Nine tokens of the 64 that may be.
    assert_eq!(whole["stop_reason"], "model_context_window_exceeded");
    let cut = post(server.address, PATH, &body(json!({"max_tokens": 9}))).await.json();
    assert_eq!(cut["stop_reason"], "max_tokens");
}

#[tokio::test]
async fn thinking_may_be_left_out_and_a_stop_string_is_told() {
    let server = Server::start(script(|_| {
        let finished = v1::Finished {
            reason: FinishReason::Stop.into(),
            stop_string: "END".to_owned(),
            ..Default::default()
        };
        Ok(vec![started(), reasoning(0, "Hm"), delta(0, "ok"), Step::Send(Event::Finished(finished))])
    }))
    .await;
    let more = json!({"thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"}, "stop_sequences": ["END"]});
    let whole = post(server.address, PATH, &body(more.clone())).await.json();
    assert_eq!(whole["content"][0], json!({"type": "thinking", "thinking": "", "signature": ""}));
    assert_eq!((&whole["stop_reason"], &whole["stop_sequence"]), (&json!("stop_sequence"), &json!("END")));
    let mut streamed = body(more);
    streamed["stream"] = Value::Bool(true);
    let answer = post(server.address, PATH, &streamed).await;
    assert!(!answer.text.contains("Hm"), "{}", answer.text);
    assert_eq!(server.fake.seen()[0].reasoning.unwrap().tokens_max, Some(1024));
}

#[tokio::test]
async fn an_empty_answer_has_a_block() {
    let server = Server::start(script(|_| Ok(vec![started(), finished(0, FinishReason::Stop, 0)]))).await;
    let whole = post(server.address, PATH, &body(json!({}))).await.json();
    assert_eq!(whole["content"], json!([{"type": "text", "text": "", "citations": null}]));
    let answer = post(server.address, PATH, &body(json!({"stream": true}))).await;
    assert_eq!(events(&answer).len(), 5, "{}", answer.text);
}

#[tokio::test]
async fn errors_are_in_anthropics_shape() {
    let server = Server::start(script(|request| match request.model.as_str() {
        "busy" => Err(Status::resource_exhausted("too many")),
        "gone" => Err(Status::not_found("no such model")),
        "deep" => Err(Status::invalid_argument("chat.messages[1].role: must not be that")),
        "breaks" => Ok(vec![started(), delta(0, "a"), Step::Fail(Status::unavailable("gone away"))]),
        _ => hello(request),
    }))
    .await;
    for (change, status, kind, message) in [
        (json!({"max_tokens": null}), 400, "invalid_request_error", "max_tokens: required"),
        (
            json!({"tools": [{"name": "f", "input_schema": {"type": "object"}}], "tool_choice": {"type": "auto", "name": "f"}}),
            400,
            "invalid_request_error",
            "tool_choice.name: only allowed with type tool",
        ),
        (json!({"model": "busy"}), 429, "rate_limit_error", "too many"),
        (json!({"model": "gone"}), 404, "not_found_error", "no such model"),
        // The engine's messages are not the client's.
        (json!({"model": "deep"}), 400, "invalid_request_error", "messages: must not be that"),
    ] {
        let answer = post(server.address, PATH, &body(change.clone())).await;
        let expected = json!({"type": "error", "error": {"type": kind, "message": message}});
        assert_eq!((answer.status, answer.json()), (status, expected), "{change}");
        assert!(answer.header("request-id").is_some());
    }
    let answer = post(server.address, PATH, &body(json!({"model": "breaks", "stream": true}))).await;
    let last = events(&answer).pop().unwrap();
    assert_eq!((answer.status, &last["error"]["type"]), (200, &json!("overloaded_error")), "{last}");
}
