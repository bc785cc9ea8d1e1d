//! OpenAI's Responses API to the letter: whole and streamed, and what is refused.

use hanzo_engine_proto::v1::{self, FinishReason, infer_event::Event};
use serde_json::{Value, json};
use tonic::Status;

use crate::{
    Server,
    fake::{Step, delta, finished, hello, logprob, part, reasoning, started, with_logprobs},
    http::{Answer, post},
    script,
};

const PATH: &str = "/v1/responses";

pub(crate) fn body(more: Value) -> Value {
    let mut body = json!({"model": "m", "input": "hi"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// An answer with every kind of item.
fn called() -> Vec<Step> {
    vec![
        started(),
        reasoning(0, "Hm"),
        reasoning(0, "m."),
        delta(0, "\n"),
        delta(0, "I look."),
        part(0, "c1", "weather", "{\"city\":", false),
        part(0, "", "", "\"Rome\"}", false),
        delta(0, "\n"),
        part(1, "c2", "patch", "{\"input\":\"a\\n", false),
        part(1, "", "", "b\"}", false),
        finished(0, FinishReason::ToolCalls, 9),
    ]
}

fn tools() -> Value {
    json!([
        {"type": "function", "name": "weather", "description": "d", "parameters": {"type": "object"}, "strict": true},
        {"type": "custom", "name": "patch", "description": "p"},
    ])
}

/// The events of a stream: each name is its data's type, and they are numbered.
pub(crate) fn events(answer: &Answer) -> Vec<Value> {
    let event = |(number, frame): (usize, &str)| {
        let (name, data) = frame.split_once("\ndata: ").unwrap_or_else(|| panic!("not an event: {frame}"));
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str(), "{frame}");
        assert_eq!(data["sequence_number"], number, "{frame}");
        data
    };
    answer.text.split_terminator("\n\n").enumerate().map(event).collect()
}

fn without(mut value: Value, names: &[&str]) -> Value {
    names.iter().for_each(|name| {
        value.as_object_mut().unwrap().remove(*name);
    });
    value
}

/// The id of an item of a response.
fn id(kind: &str, response: &Value, place: usize) -> String {
    format!("{kind}_{}{place:04x}", response["id"].as_str().unwrap().strip_prefix("resp_").unwrap())
}

#[tokio::test]
async fn a_whole_response_has_its_items_and_repeats_its_request() {
    let server = Server::start(script(|_| Ok(called()))).await;
    let asked = json!({
        "instructions": "be brief", "tools": tools(), "metadata": {"k": "v"}, "temperature": 0.5, "max_output_tokens": 64,
        "include": ["reasoning.encrypted_content"], "user": "u", "prompt_cache_key": "p", "text": {"verbosity": "medium"},
    });
    let answer = post(server.address, PATH, &body(asked.clone())).await;
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    let response = answer.json();
    let id = |kind, place| id(kind, &response, place);
    let expected = json!({
        "object": "response", "status": "completed", "background": false, "error": null, "incomplete_details": null,
        "model": "owner/ready", "service_tier": "default", "store": true,
        "output": [
            {"id": id("rs", 1), "type": "reasoning", "status": "completed", "summary": [],
             "content": [{"type": "reasoning_text", "text": "Hmm."}], "encrypted_content": "hanzo1.SG1tLg=="},
            {"id": id("msg", 2), "type": "message", "status": "completed", "role": "assistant",
             "content": [{"type": "output_text", "text": "\nI look.", "annotations": [], "logprobs": []}]},
            {"id": id("fc", 3), "type": "function_call", "status": "completed", "call_id": "c1", "name": "weather",
             "arguments": "{\"city\":\"Rome\"}"},
            {"id": id("ctc", 4), "type": "custom_tool_call", "status": "completed", "call_id": "c2", "name": "patch", "input": "a\nb"},
        ],
        "instructions": "be brief", "max_output_tokens": 64, "max_tool_calls": null, "metadata": {"k": "v"},
        "parallel_tool_calls": true, "previous_response_id": null, "prompt_cache_key": "p", "prompt_cache_retention": null,
        "reasoning": {"effort": null, "summary": null}, "safety_identifier": null, "temperature": 0.5,
        "text": {"verbosity": "medium"}, "tool_choice": "auto", "tools": tools(), "top_logprobs": 0, "top_p": null,
        "truncation": "disabled", "user": "u",
        "usage": {"input_tokens": 7, "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0}, "output_tokens": 9,
                  "output_tokens_details": {"reasoning_tokens": 1}, "total_tokens": 16},
    });
    assert!(response["created_at"].is_u64() && response["completed_at"].is_u64(), "{response}");
    assert_eq!(without(response.clone(), &["id", "created_at", "completed_at", "timings"]), expected);
    // And what the engine was asked.
    let seen = server.fake.seen().remove(0);
    let stop = seen.stop.unwrap();
    assert_eq!((stop.max_tokens, seen.sampling.unwrap().temperature), (Some(64), Some(0.5)));
    let Some(v1::infer_request::Prompt::Chat(chat)) = seen.prompt else { panic!("{:?}", seen.prompt) };
    let roles: Vec<&str> = chat.messages.iter().map(|message| message.role.as_str()).collect();
    assert_eq!(roles, ["system", "user"]);
    let tools: Vec<Value> = chat.tools_json.iter().map(|tool| serde_json::from_str(tool).unwrap()).collect();
    let input = json!({"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"], "additionalProperties": false});
    assert_eq!(
        tools,
        [
            json!({"type": "function", "function": {"name": "weather", "description": "d", "parameters": {"type": "object"}, "strict": true}}),
            json!({"type": "function", "function": {"name": "patch", "description": "p", "parameters": input}}),
        ]
    );
}

#[tokio::test]
async fn a_stream_has_every_event_in_its_order() {
    let server = Server::start(script(|_| Ok(called()))).await;
    let answer = post(server.address, PATH, &body(json!({"stream": true, "tools": tools()}))).await;
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("text/event-stream")));
    let events: Vec<Value> =
        events(&answer).into_iter().map(|event| without(event, &["sequence_number"])).collect();
    let first = events[0]["response"].clone();
    assert_eq!(
        (&first["status"], &first["output"], &first["usage"]),
        (&json!("in_progress"), &json!([]), &Value::Null)
    );
    let last = events.last().unwrap()["response"].clone();
    let id = |kind, place| id(kind, &first, place);
    let (rs, msg, fc, ctc) = (id("rs", 1), id("msg", 2), id("fc", 3), id("ctc", 4));
    let output = last["output"].as_array().unwrap();
    let begun = |item: &Value, empty: &[(&str, Value)]| {
        let mut item = item.clone();
        item["status"] = json!("in_progress");
        empty.iter().for_each(|(name, value)| item[*name] = value.clone());
        item
    };
    let added = |index: usize, item: Value| json!({"type": "response.output_item.added", "output_index": index, "item": item});
    let done = |index: usize| json!({"type": "response.output_item.done", "output_index": index, "item": output[index]});
    let of = |name: &str, item: &str, index: usize, more: Value| {
        let mut event = json!({"type": format!("response.{name}"), "item_id": item, "output_index": index});
        event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        event
    };
    let text = |text: &str| json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []});
    let thought = |text: &str| json!({"type": "reasoning_text", "text": text});
    let expected = [
        json!({"type": "response.created", "response": first}),
        json!({"type": "response.in_progress", "response": first}),
        added(0, begun(&output[0], &[("content", json!([]))])),
        of("content_part.added", &rs, 0, json!({"content_index": 0, "part": thought("")})),
        of("reasoning_text.delta", &rs, 0, json!({"content_index": 0, "delta": "Hm"})),
        of("reasoning_text.delta", &rs, 0, json!({"content_index": 0, "delta": "m."})),
        of("reasoning_text.done", &rs, 0, json!({"content_index": 0, "text": "Hmm."})),
        of("content_part.done", &rs, 0, json!({"content_index": 0, "part": thought("Hmm.")})),
        done(0),
        added(1, begun(&output[1], &[("content", json!([]))])),
        of("content_part.added", &msg, 1, json!({"content_index": 0, "part": text("")})),
        of("output_text.delta", &msg, 1, json!({"content_index": 0, "delta": "\nI look.", "logprobs": []})),
        of("output_text.done", &msg, 1, json!({"content_index": 0, "text": "\nI look.", "logprobs": []})),
        of("content_part.done", &msg, 1, json!({"content_index": 0, "part": text("\nI look.")})),
        done(1),
        added(2, begun(&output[2], &[("arguments", json!(""))])),
        of("function_call_arguments.delta", &fc, 2, json!({"delta": "{\"city\":"})),
        of("function_call_arguments.delta", &fc, 2, json!({"delta": "\"Rome\"}"})),
        of(
            "function_call_arguments.done",
            &fc,
            2,
            json!({"name": "weather", "arguments": "{\"city\":\"Rome\"}"}),
        ),
        done(2),
        // White space between items is none of its own.
        added(3, begun(&output[3], &[("input", json!(""))])),
        of("custom_tool_call_input.delta", &ctc, 3, json!({"delta": "a\nb"})),
        of("custom_tool_call_input.done", &ctc, 3, json!({"input": "a\nb"})),
        done(3),
        json!({"type": "response.completed", "response": last}),
    ];
    for (event, expected) in events.iter().zip(&expected) {
        assert_eq!(event, expected);
    }
    assert_eq!(events.len(), expected.len());
    // And the whole response is the same.
    let whole = post(server.address, PATH, &body(json!({"tools": tools()}))).await.json();
    let ids = |value: &Value| {
        value.to_string().replace(value["id"].as_str().unwrap().trim_start_matches("resp_"), "")
    };
    let plain = |value: &Value| {
        let text = ids(value);
        without(serde_json::from_str(&text).unwrap(), &["created_at", "completed_at"])
    };
    assert_eq!(plain(&last), plain(&whole));
}

#[tokio::test]
async fn reasoning_is_its_own_summary_where_one_is_asked_for() {
    let server = Server::start(script(|_| {
        Ok(vec![started(), reasoning(0, "Hm"), delta(0, "ok"), finished(0, FinishReason::Stop, 2)])
    }))
    .await;
    let more = json!({"stream": true, "reasoning": {"summary": "auto", "effort": "low"}});
    let events = events(&post(server.address, PATH, &body(more)).await);
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(
        kinds[2..9],
        [
            "response.output_item.added",
            "response.reasoning_summary_part.added",
            "response.reasoning_summary_text.delta",
            "response.reasoning_summary_text.done",
            "response.reasoning_summary_part.done",
            "response.output_item.done",
            "response.output_item.added",
        ]
    );
    assert_eq!((&events[4]["summary_index"], &events[4]["delta"]), (&json!(0), &json!("Hm")));
    let item = &events.last().unwrap()["response"]["output"][0];
    assert_eq!(
        (&item["summary"], &item["content"]),
        (&json!([{"type": "summary_text", "text": "Hm"}]), &json!([]))
    );
    let Some(v1::infer_request::Prompt::Chat(chat)) = server.fake.seen().remove(0).prompt else { panic!() };
    assert_eq!(chat.template_kwargs_json, r#"{"enable_thinking":true,"reasoning_effort":"low"}"#);
}

#[tokio::test]
async fn a_response_that_is_cut_is_incomplete_and_one_that_says_nothing_has_an_item() {
    let server = Server::start(script(|request| {
        let (steps, reason) = match request.model.as_str() {
            "cut" => (vec![started(), delta(0, "a")], FinishReason::Length),
            "thinks" => (vec![started(), reasoning(0, "a")], FinishReason::Length),
            "thought" => (vec![started(), reasoning(0, "a")], FinishReason::Stop),
            // A call that is none, with what was written of it.
            "broken" => (
                vec![
                    started(),
                    part(0, "c", "f", "{", false),
                    part(0, "", "", "", true),
                    delta(0, "<call>{"),
                ],
                FinishReason::Length,
            ),
            _ => (vec![started(), delta(0, " \n")], FinishReason::Stop),
        };
        Ok([steps, vec![finished(0, reason, 3)]].concat())
    }))
    .await;
    for (model, status, items) in [
        ("cut", "incomplete", json!([["message", "incomplete", "a"]])),
        ("thinks", "incomplete", json!([["reasoning", "incomplete", "a"]])),
        ("thought", "completed", json!([["reasoning", "completed", "a"], ["message", "completed", ""]])),
        ("broken", "incomplete", json!([["message", "incomplete", "<call>{"]])),
        ("nothing", "completed", json!([["message", "completed", " \n"]])),
    ] {
        let whole = post(server.address, PATH, &body(json!({"model": model}))).await.json();
        let answer = post(server.address, PATH, &body(json!({"model": model, "stream": true}))).await;
        let last = events(&answer).pop().unwrap();
        assert_eq!(last["type"], format!("response.{status}"), "{model}");
        for response in [&whole, &last["response"]] {
            assert_eq!(response["status"], status, "{model}");
            let reason =
                if status == "incomplete" { json!({"reason": "max_output_tokens"}) } else { Value::Null };
            assert_eq!(response["incomplete_details"], reason, "{model}");
            let shown = |item: &Value| json!([item["type"], item["status"], item["content"][0]["text"]]);
            let shown: Vec<Value> = response["output"].as_array().unwrap().iter().map(shown).collect();
            assert_eq!(json!(shown), items, "{model}");
        }
        // Whatever was begun and is no call never is said to be whole.
        let calls = events(&answer)
            .iter()
            .filter(|event| {
                event["type"] == "response.output_item.done" && event["item"]["type"] == "function_call"
            })
            .count();
        assert_eq!(calls, 0, "{model}");
    }
}

#[tokio::test]
async fn log_probabilities_are_of_the_text_alone() {
    let server = Server::start(script(|request| {
        assert!(request.logprobs && request.top_logprobs == 1);
        let one = |token: &str| vec![logprob(token, -0.5, vec![logprob("z", -1.5, vec![])])];
        let mut thought = v1::Delta { reasoning: "Hm".to_owned(), ..Default::default() };
        thought.logprobs = one("Hm");
        Ok(vec![
            started(),
            Step::Send(Event::Delta(thought)),
            with_logprobs(0, "", one("</think>")),
            // Held back until it is known to be text.
            with_logprobs(0, "\n", one("\n")),
            with_logprobs(0, "a", one("a")),
            with_logprobs(0, "", one("b")),
            with_logprobs(0, "bc", one("c")),
            finished(0, FinishReason::Stop, 4),
        ])
    }))
    .await;
    let more = json!({"include": ["message.output_text.logprobs"], "top_logprobs": 1, "stream": true});
    let events = events(&post(server.address, PATH, &body(more)).await);
    let last = &events.last().unwrap()["response"]["output"][1]["content"][0];
    let tokens: Vec<&Value> = last["logprobs"].as_array().unwrap().iter().map(|one| &one["token"]).collect();
    assert_eq!(tokens, ["\n", "a", "b", "c"]);
    let top = json!([{"token": "z", "logprob": -1.5, "bytes": [122]}]);
    assert_eq!(
        last["logprobs"][1],
        json!({"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": top})
    );
    let pieces: Vec<usize> = events
        .iter()
        .filter(|event| event["type"] == "response.output_text.delta")
        .map(|event| event["logprobs"].as_array().unwrap().len())
        .collect();
    assert_eq!(pieces, [2, 1, 1]);
}

#[tokio::test]
async fn pieces_are_filled_up_where_that_is_asked_for_and_nothing_else_is() {
    let server = Server::start(script(hello)).await;
    for (options, filled) in
        [(json!({"include_obfuscation": true}), true), (json!({"include_obfuscation": false}), false)]
    {
        let answer =
            post(server.address, PATH, &body(json!({"stream": true, "stream_options": options}))).await;
        for event in events(&answer) {
            let piece = event["type"].as_str().unwrap().ends_with(".delta");
            assert_eq!(event.get("obfuscation").is_some(), piece && filled, "{event}");
        }
    }
}

#[tokio::test]
async fn failures_are_told_in_the_stream_and_by_their_status() {
    let server = Server::start(script(|request| match request.model.as_str() {
        "busy" => Err(Status::resource_exhausted("too many")),
        "deep" => Err(Status::invalid_argument("chat.messages[1].role: must not be that")),
        "breaks" => Ok(vec![started(), delta(0, "a"), Step::Fail(Status::unavailable("gone away"))]),
        "early" => Ok(vec![Step::Fail(Status::unavailable("gone away"))]),
        _ => hello(request),
    }))
    .await;
    let busy = post(server.address, PATH, &body(json!({"model": "busy"}))).await;
    assert_eq!((busy.status, busy.header("retry-after")), (429, Some("1")));
    let deep = post(server.address, PATH, &body(json!({"model": "deep"}))).await;
    assert_eq!((deep.status, &deep.json()["error"]["param"]), (400, &json!("input")), "{}", deep.text);
    let breaks = post(server.address, PATH, &body(json!({"model": "breaks", "stream": true}))).await;
    let last = events(&breaks).pop().unwrap();
    assert_eq!((breaks.status, &last["type"]), (200, &json!("response.failed")));
    let response = &last["response"];
    assert_eq!((&response["status"], &response["error"]["code"]), (&json!("failed"), &json!("server_error")));
    assert_eq!(response["error"]["message"], "gone away");
    assert_eq!(response["store"], false);
    let early = post(server.address, PATH, &body(json!({"model": "early", "stream": true}))).await;
    let events = events(&early);
    let expected = json!({"type": "error", "sequence_number": 0, "code": "unavailable", "message": "gone away", "param": null});
    assert_eq!(events, [expected]);
}

#[tokio::test]
async fn what_cannot_be_honoured_is_refused_by_name() {
    let server = Server::start(script(hello)).await;
    let tool = |tool: Value| json!({"tools": [tool]});
    for (change, param) in [
        (json!({"input": null}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": 3}), "input"),
        (json!({"background": true}), "background"),
        (json!({"conversation": "conv_1"}), "conversation"),
        (json!({"prompt": {"id": "pmpt_1"}}), "prompt"),
        (json!({"context_management": [{"type": "compaction"}]}), "context_management"),
        (json!({"n": 2}), "n"),
        (json!({"include": ["everything"]}), "include[0]"),
        (json!({"reasoning": {"summary": "concise"}}), "reasoning.summary"),
        (json!({"reasoning": {"effort": "odd"}}), "reasoning.effort"),
        (json!({"reasoning": {"context": "all_turns"}}), "reasoning.context"),
        (json!({"text": {"verbosity": "low"}}), "text.verbosity"),
        (json!({"text": {"format": {"type": "json_schema", "schema": {}}}}), "text.format.name"),
        (json!({"text": {"format": {"type": "xml"}}}), "text.format.type"),
        (json!({"text": {"format": {"type": "json_object"}}, "guided_regex": "a"}), "text.format"),
        (json!({"max_output_tokens": 0}), "max_output_tokens"),
        (json!({"max_tokens": 9}), "max_tokens"),
        (json!({"max_tool_calls": 0}), "max_tool_calls"),
        (json!({"top_logprobs": 21}), "top_logprobs"),
        (json!({"truncation": "some"}), "truncation"),
        (json!({"metadata": {"k": 1}}), "metadata.k"),
        (json!({"metadata": {"k": "v".repeat(513)}}), "metadata.k"),
        (json!({"metadata": (0..17).map(|i| (i.to_string(), json!(""))).collect::<Value>()}), "metadata"),
        (json!({"stream_options": {"include_obfuscation": true}}), "stream_options"),
        (json!({"tempratur": 1}), "tempratur"),
        (tool(json!({"type": "web_search"})), "tools[0].type"),
        (tool(json!({"type": "mcp", "server_label": "x"})), "tools[0].type"),
        (
            tool(json!({"type": "namespace", "name": "x", "tools": [{"type": "namespace"}]})),
            "tools[0].tools[0].type",
        ),
        (tool(json!({"type": "namespace", "name": "", "tools": []})), "tools[0].name"),
        (tool(json!({"type": "local_shell"})), "tools[0].type"),
        (tool(json!({"type": "function", "function": {"name": "f"}})), "tools[0].name"),
        (tool(json!({"type": "function", "name": "f", "parameters": 3})), "tools[0].parameters"),
        (
            tool(
                json!({"type": "custom", "name": "f", "format": {"type": "grammar", "syntax": "lark", "definition": "start: /a/"}}),
            ),
            "tools[0].format.syntax",
        ),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"tools": tools(), "tool_choice": {"type": "function", "name": "patch"}}), "tool_choice.name"),
        (json!({"tools": tools(), "tool_choice": {"type": "file_search"}}), "tool_choice.type"),
        (
            json!({"tools": tools(), "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "x"}]}}),
            "tool_choice.tools[0].name",
        ),
    ] {
        let answer = post(server.address, PATH, &body(change.clone())).await;
        let error = &answer.json()["error"];
        assert_eq!((answer.status, error["param"].as_str()), (400, Some(param)), "{change}: {error}");
    }
    assert!(server.fake.seen().is_empty());
}

#[tokio::test]
async fn choices_of_tools_and_forms_of_text_reach_the_engine() {
    use v1::{ToolChoice, constraint::Of};
    let server = Server::start(script(hello)).await;
    let asked = |more: Value| {
        let before = server.fake.seen().len();
        let (address, fake) = (server.address, server.fake.clone());
        async move {
            let answer = post(address, PATH, &body(more)).await;
            assert_eq!(answer.status, 200, "{}", answer.text);
            assert_eq!(fake.seen().len(), before + 1);
            let id = answer.header("x-request-id").unwrap().to_owned();
            fake.seen().into_iter().find(|request| request.request_id == id).unwrap()
        }
    };
    for (choice, expected, named, shown) in [
        (json!("none"), ToolChoice::None, "", 2),
        (json!("auto"), ToolChoice::Auto, "", 2),
        (json!("required"), ToolChoice::Required, "", 2),
        (json!({"type": "function", "name": "weather"}), ToolChoice::Named, "weather", 2),
        (json!({"type": "custom", "name": "patch"}), ToolChoice::Named, "patch", 2),
        (
            json!({"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "patch"}]}),
            ToolChoice::Required,
            "",
            1,
        ),
    ] {
        let more = json!({"tools": tools(), "tool_choice": choice, "parallel_tool_calls": false, "max_tool_calls": 3});
        let request = asked(more).await;
        let used = request.tool_use.unwrap();
        assert_eq!(
            (used.choice(), used.named.as_str(), used.parallel),
            (expected, named, Some(false)),
            "{choice}"
        );
        let Some(v1::infer_request::Prompt::Chat(chat)) = request.prompt else { panic!() };
        assert_eq!(chat.tools_json.len(), shown, "{choice}");
    }
    let regex = json!({"type": "custom", "name": "f", "format": {"type": "grammar", "syntax": "regex", "definition": "a|b"}});
    let request = asked(json!({"tools": [regex]})).await;
    let Some(v1::infer_request::Prompt::Chat(chat)) = request.prompt else { panic!() };
    assert!(chat.tools_json[0].contains(r#""pattern":"^(?:a|b)$""#), "{}", chat.tools_json[0]);
    let schema = json!({"type": "object"});
    for (format, of) in [
        (json!({"type": "text"}), None),
        (json!({"type": "json_object"}), Some(Of::JsonObject(true))),
        (
            json!({"type": "json_schema", "name": "x", "strict": true, "schema": schema}),
            Some(Of::JsonSchema(schema.to_string())),
        ),
    ] {
        let request = asked(json!({"text": {"format": format}})).await;
        assert_eq!(request.constraint.and_then(|constraint| constraint.of), of, "{format}");
    }
    let request = asked(json!({"top_k": 3, "seed": 7, "stop": ["x"], "repetition_penalty": 1.5})).await;
    let sampling = request.sampling.unwrap();
    assert_eq!((sampling.top_k, sampling.seed, sampling.repetition_penalty), (Some(3), Some(7), Some(1.5)));
    assert_eq!(request.stop.unwrap().strings, ["x"]);
}

#[tokio::test]
async fn what_does_not_fit_loses_its_oldest_turns_where_that_is_allowed() {
    let server = Server::start(script(|request| {
        let Some(v1::infer_request::Prompt::Chat(chat)) = &request.prompt else { panic!() };
        if chat.messages.len() > 4 {
            let mut status = Status::invalid_argument("prompt: 99 tokens, the context is 16");
            status.metadata_mut().insert("error-code", "context_length_exceeded".parse().unwrap());
            return Err(status);
        }
        hello(request)
    }))
    .await;
    let turn = |n: usize| json!({"role": if n.is_multiple_of(2) { "user" } else { "assistant" }, "content": n.to_string()});
    let input: Vec<Value> = (0..9).map(turn).collect();
    let more = |truncation: &str| json!({"instructions": "s", "input": input, "truncation": truncation});
    let refused = post(server.address, PATH, &body(more("disabled"))).await;
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (400, &json!("context_length_exceeded")));
    let cut = post(server.address, PATH, &body(more("auto"))).await;
    assert_eq!(cut.status, 200, "{}", cut.text);
    let kept = server.fake.seen().into_iter().find_map(|request| match request.prompt {
        Some(v1::infer_request::Prompt::Chat(chat)) if chat.messages.len() <= 4 => Some(chat.messages),
        _ => None,
    });
    let texts: Vec<String> = kept.unwrap().iter().map(crate::responses_input::shown).collect();
    assert_eq!(texts, ["system: s", "user: 6", "assistant: 7", "user: 8"]);
    // Its items are those that were sent.
    let id = cut.json()["id"].as_str().unwrap().to_owned();
    let items =
        crate::http::get(server.address, &format!("/v1/responses/{id}/input_items?limit=100")).await.json();
    assert_eq!(items["data"].as_array().unwrap().len(), 9);
}

#[tokio::test]
async fn tools_of_a_namespace_are_called_by_both_names() {
    let steps = || {
        vec![
            started(),
            part(0, "c1", "crew__stop", "{}", false),
            part(1, "c2", "crew__patch", "{\"input\":\"a\"}", false),
            finished(0, FinishReason::ToolCalls, 9),
        ]
    };
    let server = Server::start(script(move |_| Ok(steps()))).await;
    let inner = json!([{"type": "function", "name": "stop", "description": "Stops."}, {"type": "custom", "name": "patch"}]);
    let tools = json!([{"type": "namespace", "name": "crew", "description": "Of the crew.", "tools": inner}]);
    let more = json!({"tools": tools, "tool_choice": {"type": "function", "name": "crew__stop"}});
    let whole = post(server.address, PATH, &body(more.clone())).await.json();
    let output: Vec<Value> = whole["output"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| without(item.clone(), &["id", "status"]))
        .collect();
    let expected = [
        json!({"type": "function_call", "call_id": "c1", "name": "stop", "namespace": "crew", "arguments": "{}"}),
        json!({"type": "custom_tool_call", "call_id": "c2", "name": "patch", "namespace": "crew", "input": "a"}),
    ];
    assert_eq!(output, expected, "{whole}");
    let mut streamed = body(more);
    streamed["stream"] = json!(true);
    let last = events(&post(server.address, PATH, &streamed).await).pop().unwrap();
    assert_eq!(last["response"]["output"].as_array().unwrap().len(), 2);
    let request = server.fake.seen().remove(0);
    assert_eq!(request.tool_use.unwrap().named, "crew__stop");
    let Some(v1::infer_request::Prompt::Chat(chat)) = request.prompt else { panic!() };
    let shown: Value = serde_json::from_str(&chat.tools_json[0]).unwrap();
    assert_eq!(shown["function"]["description"], "Of the crew.\n\nStops.");
    // As history they are what the model has called.
    let next = json!({"previous_response_id": whole["id"], "input": [{"type": "function_call_output", "call_id": "c1", "output": "o"}]});
    post(server.address, PATH, &body(next)).await;
    let is_next = |request: &v1::InferRequest| matches!(&request.prompt, Some(v1::infer_request::Prompt::Chat(chat)) if chat.messages.len() == 3);
    let Some(v1::infer_request::Prompt::Chat(chat)) =
        server.fake.seen().into_iter().find(is_next).unwrap().prompt
    else {
        panic!()
    };
    let messages: Vec<String> = chat.messages.iter().map(crate::responses_input::shown).collect();
    assert_eq!(
        messages,
        ["user: hi", r#"assistant:  c1=crew__stop({}) c2=crew__patch({"input":"a"})"#, "tool[c1]: o"]
    );
}
