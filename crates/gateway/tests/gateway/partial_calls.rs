//! Tool calls that a limit cuts, in every dialect, whole and streamed: partial calls, whose pieces joined are the whole form.

use hanzo_engine_proto::v1::FinishReason;
use serde_json::{Value, json};

use crate::{
    Server,
    fake::{Step, delta, finished, logprob, part, started, with_logprobs},
    http::{Answer, post},
    script,
};

/// A text, and a call that is cut inside a value.
fn cut() -> Vec<Step> {
    vec![
        started(),
        delta(0, "I look."),
        part(0, "c1", "weather", "{\"days\": 2, \"city\":", false),
        part(0, "", "", " \"Ro", false),
        finished(0, FinishReason::Length, 64),
    ]
}

const ARGUMENTS: &str = "{\"days\": 2, \"city\": \"Ro";

async fn ask(path: &str, body: Value) -> Answer {
    let server = Server::start(script(|_| Ok(cut()))).await;
    let answer = post(server.address, path, &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer
}

/// The data of a stream's events, the names left out.
fn data(answer: &Answer) -> Vec<Value> {
    let data = answer.text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
}

fn joined<'a>(pieces: impl Iterator<Item = &'a Value>) -> String {
    pieces.filter_map(Value::as_str).collect()
}

#[tokio::test]
async fn chats_have_the_arguments_so_far_and_length() {
    let body = |stream: bool| {
        json!({"messages": [{"role": "user", "content": "hi"}], "stream": stream,
            "tools": [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]})
    };
    let whole = ask("/v1/chat/completions", body(false)).await.json();
    let choice = &whole["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["content"]),
        (&json!("length"), &json!("I look."))
    );
    let calls =
        json!([{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": ARGUMENTS}}]);
    assert_eq!(choice["message"]["tool_calls"], calls);
    let chunks = data(&ask("/v1/chat/completions", body(true)).await);
    let deltas = || chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]);
    assert_eq!(joined(deltas().map(|delta| &delta["content"])), "I look.");
    let arguments = deltas().map(|delta| &delta["tool_calls"][0]["function"]["arguments"]);
    assert_eq!(joined(arguments), ARGUMENTS);
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn messages_have_an_object_and_max_tokens() {
    let body = |stream: bool| {
        json!({"model": "m", "max_tokens": 64, "stream": stream, "messages": [{"role": "user", "content": "hi"}],
            "tools": [{"name": "weather", "input_schema": {"type": "object"}}]})
    };
    let whole = ask("/v1/messages", body(false)).await.json();
    assert_eq!(whole["stop_reason"], "max_tokens");
    let expected = json!([
        {"type": "text", "text": "I look.", "citations": null},
        {"type": "tool_use", "id": "c1", "name": "weather", "input": {"days": 2, "city": "Ro"}},
    ]);
    assert_eq!(whole["content"], expected);
    let events = data(&ask("/v1/messages", body(true)).await);
    assert_eq!(joined(events.iter().map(|event| &event["delta"]["text"])), "I look.");
    assert_eq!(joined(events.iter().map(|event| &event["delta"]["partial_json"])), ARGUMENTS);
    let end = events.iter().find(|event| event["type"] == "message_delta").unwrap();
    assert_eq!(end["delta"]["stop_reason"], "max_tokens");
}

#[tokio::test]
async fn responses_have_an_incomplete_item() {
    let body = |stream: bool| {
        json!({"model": "m", "input": "hi", "stream": stream, "store": false,
            "tools": [{"type": "function", "name": "weather", "parameters": {"type": "object"}}]})
    };
    let whole = ask("/v1/responses", body(false)).await.json();
    assert_eq!(
        (&whole["status"], &whole["output"][0]["status"]),
        (&json!("incomplete"), &json!("completed"))
    );
    let call = &whole["output"][1];
    assert_eq!((&call["type"], &call["status"]), (&json!("function_call"), &json!("incomplete")));
    assert_eq!((&call["name"], &call["arguments"]), (&json!("weather"), &json!(ARGUMENTS)));
    assert_eq!(whole["output"][0]["content"][0]["text"], "I look.");
    let events = data(&ask("/v1/responses", body(true)).await);
    let of = |kind: &str| events.iter().filter(move |event| event["type"] == kind).collect::<Vec<_>>();
    let deltas = of("response.function_call_arguments.delta");
    assert_eq!(joined(deltas.iter().map(|event| &event["delta"])), ARGUMENTS);
    assert_eq!(of("response.function_call_arguments.done")[0]["arguments"], ARGUMENTS);
    assert_eq!(of("response.incomplete")[0]["response"]["output"][1]["arguments"], ARGUMENTS);
}

#[tokio::test]
async fn ollamas_chats_have_an_object_and_length() {
    let body = |stream: bool| {
        json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": stream,
            "tools": [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]})
    };
    let call = json!([{"id": "c1", "function": {"index": 0, "name": "weather",
        "arguments": {"days": 2, "city": "Ro"}}}]);
    let whole = ask("/api/chat", body(false)).await.json();
    assert_eq!((&whole["message"]["tool_calls"], &whole["done_reason"]), (&call, &json!("length")));
    assert_eq!(whole["message"]["content"], "I look.");
    let streamed = ask("/api/chat", body(true)).await;
    let lines: Vec<Value> = streamed.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let calls: Vec<&Value> =
        lines.iter().map(|line| &line["message"]["tool_calls"]).filter(|it| it.is_array()).collect();
    assert_eq!(calls, [&call]);
    assert_eq!(joined(lines.iter().map(|line| &line["message"]["content"])), "I look.");
    assert_eq!(lines.last().unwrap()["done_reason"], "length");
}

#[tokio::test]
async fn log_probabilities_that_come_behind_the_text_are_the_texts() {
    let steps = || {
        vec![
            started(),
            with_logprobs(0, "I ", vec![logprob("I ", -0.5, vec![])]),
            delta(0, "look."),
            with_logprobs(0, "", vec![logprob("look.", -0.25, vec![])]),
            part(0, "c1", "weather", "{}", false),
            finished(0, FinishReason::ToolCalls, 64),
        ]
    };
    let server = Server::start(script(move |_| Ok(steps()))).await;
    let body = json!({"model": "m", "input": "hi", "store": false, "include": ["message.output_text.logprobs"],
        "tools": [{"type": "function", "name": "weather", "parameters": {"type": "object"}}]});
    let whole = post(server.address, "/v1/responses", &body).await.json();
    let text = &whole["output"][0]["content"][0];
    assert_eq!(joined(text["logprobs"].as_array().unwrap().iter().map(|one| &one["token"])), text["text"]);
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "logprobs": true});
    let whole = post(server.address, "/v1/chat/completions", &body).await.json();
    let choice = &whole["choices"][0];
    let tokens = choice["logprobs"]["content"].as_array().unwrap().iter().map(|one| &one["token"]);
    assert_eq!(joined(tokens), choice["message"]["content"]);
}

#[tokio::test]
async fn a_rate_of_no_tokens_is_null() {
    let steps = || {
        let mut end = finished(0, FinishReason::Stop, 1);
        if let Step::Send(hanzo_engine_proto::v1::infer_event::Event::Finished(finished)) = &mut end {
            let timings = finished.timings.as_mut().unwrap();
            (timings.decode_ms, timings.decode_tokens_per_s) = (0.0, 0.0);
        }
        vec![started(), delta(0, "Yes"), end]
    };
    let server = Server::start(script(move |_| Ok(steps()))).await;
    let chat = json!({"messages": [{"role": "user", "content": "hi"}], "stream": false});
    let whole = post(server.address, "/v1/chat/completions", &chat).await.json();
    assert_eq!(whole["timings"]["decode_tokens_per_s"], Value::Null);
    let whole = post(server.address, "/completion", &json!({"prompt": "hi"})).await.json();
    let timings = &whole["timings"];
    assert_eq!(
        (&timings["predicted_per_second"], &timings["predicted_per_token_ms"]),
        (&Value::Null, &Value::Null)
    );
    let ollama =
        json!({"model": "owner/ready", "messages": [{"role": "user", "content": "hi"}], "stream": false});
    let whole = post(server.address, "/api/chat", &ollama).await.json();
    assert_eq!((&whole["eval_count"], whole.get("eval_duration")), (&json!(1), None));
}
