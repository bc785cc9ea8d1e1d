//! Every answer to the letter: chats and completions, whole and streamed.

use hanzo_engine_proto::v1::{self, FinishReason, infer_event::Event};
use serde_json::{Value, json};

use crate::{
    Server,
    fake::{Step, delta, finished, hello, logprob, reasoning, started, started_with, with_logprobs},
    http::post,
    script,
};

/// Checks and removes what differs from run to run.
fn masked(mut answer: Value, prefix: &str) -> Value {
    let map = answer.as_object_mut().unwrap();
    let id = map.remove("id").unwrap();
    let id = id.as_str().unwrap().strip_prefix(prefix).unwrap().to_owned();
    assert_eq!(id.len(), 32, "{id}");
    assert!(map.remove("created").unwrap().as_u64().unwrap() > 1_700_000_000);
    assert!(map.remove("system_fingerprint").unwrap().as_str().unwrap().starts_with("fp_"));
    assert_eq!(map.remove("model").unwrap(), "owner/ready");
    answer
}

fn messages() -> Value {
    json!([{"role": "user", "content": "hi"}])
}

fn usage(completion_tokens: u32, reasoning_tokens: u32) -> Value {
    json!({
        "prompt_tokens": 7, "completion_tokens": completion_tokens, "total_tokens": 7 + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": reasoning_tokens,
            "accepted_prediction_tokens": 3 * reasoning_tokens, "rejected_prediction_tokens": 2 * reasoning_tokens},
    })
}

fn timings(decode_ms: f64) -> Value {
    json!({"queue_ms": 1.0, "prefill_ms": 2.0, "decode_ms": decode_ms,
        "prefill_tokens_per_s": 4.0, "decode_tokens_per_s": 5.0})
}

#[tokio::test]
async fn chat_whole() {
    let server = Server::start(script(|_| {
        Ok(vec![
            started(),
            reasoning(0, "Hm"),
            reasoning(0, "m."),
            delta(0, "Hé"),
            delta(0, "llo"),
            finished(0, FinishReason::Length, 5),
        ])
    }))
    .await;
    let answer =
        post(server.address, "/v1/chat/completions", &json!({"model": "m", "messages": messages()})).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let expected = json!({
        "object": "chat.completion",
        "choices": [{
            "index": 0,
            "message": {"role": "assistant", "content": "Héllo", "refusal": null, "reasoning_content": "Hmm."},
            "logprobs": null,
            "finish_reason": "length",
        }],
        "usage": usage(5, 1),
        "timings": timings(3.0),
    });
    assert_eq!(masked(answer.json(), "chatcmpl-"), expected);
}

#[tokio::test]
async fn chat_stream() {
    let server = Server::start(script(|_| {
        Ok(vec![
            started(),
            reasoning(0, "Hmm."),
            delta(0, ""),
            delta(0, "Hel"),
            delta(0, "lo"),
            finished(0, FinishReason::Stop, 5),
        ])
    }))
    .await;
    for include_usage in [false, true] {
        let mut body = json!({"messages": messages(), "stream": true});
        if include_usage {
            body["stream_options"] = json!({"include_usage": true});
        }
        let answer = post(server.address, "/v1/chat/completions", &body).await;
        assert_eq!((answer.status, answer.header("content-type")), (200, Some("text/event-stream")));
        let mut events = answer.events();
        assert_eq!(events.pop().unwrap(), "[DONE]");
        let ids: Vec<_> = events.iter().map(|event| event["id"].clone()).collect();
        assert!(ids.windows(2).all(|pair| pair[0] == pair[1]));
        let chunk = |delta: Value, finish_reason: Value| {
            let choice =
                json!({"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish_reason});
            let mut chunk = json!({"object": "chat.completion.chunk", "choices": [choice]});
            if include_usage {
                chunk["usage"] = Value::Null;
            }
            chunk
        };
        let mut expected = vec![
            chunk(json!({"role": "assistant", "content": ""}), Value::Null),
            chunk(json!({"reasoning_content": "Hmm."}), Value::Null),
            chunk(json!({"content": "Hel"}), Value::Null),
            chunk(json!({"content": "lo"}), Value::Null),
            chunk(json!({}), json!("stop")),
        ];
        expected[4]["timings"] = timings(3.0);
        if include_usage {
            expected.push(json!({"object": "chat.completion.chunk", "choices": [], "usage": usage(5, 1)}));
        }
        let events: Vec<_> = events.into_iter().map(|event| masked(event, "chatcmpl-")).collect();
        assert_eq!(events, expected);
    }
}

#[tokio::test]
async fn chat_choices_keep_apart() {
    let server = Server::start(script(|_| {
        Ok(vec![
            started(),
            started(),
            delta(1, "b"),
            delta(0, "a"),
            delta(1, "B"),
            delta(0, "A"),
            finished(1, FinishReason::Length, 2),
            finished(0, FinishReason::Stop, 3),
        ])
    }))
    .await;
    let body = json!({"messages": messages(), "n": 2});
    let answer = masked(post(server.address, "/v1/chat/completions", &body).await.json(), "chatcmpl-");
    let texts: Vec<_> = (0..2).map(|i| &answer["choices"][i]["message"]["content"]).collect();
    assert_eq!(texts, ["aA", "bB"]);
    assert_eq!(answer["choices"][1]["finish_reason"], "length");
    // The prompt counts once, the completions add up, and the timings are the slowest choice's.
    assert_eq!(answer["usage"], usage(5, 2));
    assert_eq!(answer["timings"], timings(4.0));

    let body = json!({"messages": messages(), "n": 2, "stream": true});
    let events = post(server.address, "/v1/chat/completions", &body).await.events();
    let mut texts = [String::new(), String::new()];
    let mut roles = [0, 0];
    for choice in events.iter().filter_map(|event| event["choices"].get(0)) {
        let index = choice["index"].as_u64().unwrap() as usize;
        texts[index].push_str(choice["delta"]["content"].as_str().unwrap_or(""));
        roles[index] += usize::from(choice["delta"]["role"] == "assistant");
    }
    assert_eq!((texts, roles), (["aA".to_owned(), "bB".to_owned()], [1, 1]));
}

#[tokio::test]
async fn chat_logprobs() {
    let server = Server::start(script(|request| {
        assert!(request.logprobs && request.top_logprobs == 2);
        let top = vec![logprob("a", -0.25, vec![]), logprob("b", -1.5, vec![])];
        Ok(vec![
            started(),
            with_logprobs(0, "", vec![logprob("a", -0.25, top)]),
            with_logprobs(0, "a!", vec![logprob("!", -0.1, vec![])]),
            finished(0, FinishReason::Stop, 2),
        ])
    }))
    .await;
    let mut body = json!({"messages": messages(), "logprobs": true, "top_logprobs": 2});
    let entry =
        |token: &str, logprob: f64| json!({"token": token, "logprob": logprob, "bytes": token.as_bytes()});
    let mut first = entry("a", -0.25);
    first["top_logprobs"] = json!([entry("a", -0.25), entry("b", -1.5)]);
    let mut second = entry("!", -0.1);
    second["top_logprobs"] = json!([]);
    let whole = post(server.address, "/v1/chat/completions", &body).await.json();
    assert_eq!(whole["choices"][0]["logprobs"], json!({"content": [first, second], "refusal": null}));
    body["stream"] = json!(true);
    let events = post(server.address, "/v1/chat/completions", &body).await.events();
    assert_eq!(events[1]["choices"][0]["delta"], json!({"content": ""}));
    assert_eq!(events[1]["choices"][0]["logprobs"], json!({"content": [first], "refusal": null}));
    assert_eq!(events[2]["choices"][0]["logprobs"], json!({"content": [second], "refusal": null}));
}

#[tokio::test]
async fn completion_whole_and_streamed() {
    let server = Server::start(script(hello)).await;
    let answer = post(server.address, "/v1/completions", &json!({"prompt": "hi"})).await;
    let expected = json!({
        "object": "text_completion",
        "choices": [{"index": 0, "text": "Hello", "logprobs": null, "finish_reason": "stop"}],
        "usage": usage(2, 1),
        "timings": timings(3.0),
    });
    assert_eq!(masked(answer.json(), "cmpl-"), expected);

    let body = json!({"prompt": "hi", "stream": true, "stream_options": {"include_usage": true}});
    let mut events = post(server.address, "/v1/completions", &body).await.events();
    assert_eq!(events.pop().unwrap(), "[DONE]");
    let chunk = |text: &str, finish_reason: Value| {
        let choice = json!({"index": 0, "text": text, "logprobs": null, "finish_reason": finish_reason});
        json!({"object": "text_completion", "choices": [choice], "usage": null})
    };
    let mut last = chunk("", json!("stop"));
    last["timings"] = timings(3.0);
    let expected = [
        chunk("Hel", Value::Null),
        chunk("lo", Value::Null),
        last,
        json!({"object": "text_completion", "choices": [], "usage": usage(2, 1)}),
    ];
    let events: Vec<_> = events.into_iter().map(|event| masked(event, "cmpl-")).collect();
    assert_eq!(events, expected);
}

#[tokio::test]
async fn completion_prompts_times_choices() {
    use hanzo_engine_proto::v1::infer_request::Prompt;
    let server = Server::with(
        script(|request| {
            let Some(Prompt::Text(text)) = &request.prompt else { panic!("{request:?}") };
            let mut steps = vec![started_with(text.len() as u32, 0); 2];
            for choice in [1, 0] {
                steps.extend([
                    delta(choice, &format!("{text}{choice}")),
                    finished(choice, FinishReason::Stop, 1),
                ]);
            }
            Ok(steps)
        }),
        |config| config.prompts_running_max = 2,
    )
    .await;
    let mut body = json!({"prompt": ["p", "q", "r", "s", "t"], "n": 2, "best_of": 2});
    let answer = post(server.address, "/v1/completions", &body).await.json();
    let expected: Vec<_> =
        ["p0", "p1", "q0", "q1", "r0", "r1", "s0", "s1", "t0", "t1"].into_iter().map(Value::from).collect();
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.iter().map(|c| c["text"].clone()).collect::<Vec<_>>(), expected);
    assert!(choices.iter().enumerate().all(|(i, choice)| choice["index"] == i));
    assert_eq!(answer["usage"]["completion_tokens"], 10);
    assert_eq!(answer["usage"]["prompt_tokens"], 5 * 7);
    body["stream"] = json!(true);
    let events = post(server.address, "/v1/completions", &body).await.events();
    assert_eq!(events.last().unwrap(), "[DONE]");
    let mut texts = vec![Value::Null; 10];
    for choice in events.iter().filter_map(|e| e["choices"].get(0)).filter(|c| c["finish_reason"].is_null()) {
        texts[choice["index"].as_u64().unwrap() as usize] = choice["text"].clone();
    }
    assert_eq!(texts, expected);
}

#[tokio::test]
async fn completion_logprobs() {
    let server = Server::start(script(|request| {
        assert!(request.logprobs && request.top_logprobs == 1);
        Ok(vec![
            started(),
            with_logprobs(0, "ab", vec![logprob("ab", -0.5, vec![logprob("ab", -0.5, vec![])])]),
            with_logprobs(0, "c", vec![logprob("c", -2.0, vec![logprob("d", -0.5, vec![])])]),
            finished(0, FinishReason::Stop, 2),
        ])
    }))
    .await;
    let mut body = json!({"prompt": "x", "logprobs": 1});
    let whole = post(server.address, "/v1/completions", &body).await.json();
    let expected = json!({
        "tokens": ["ab", "c"],
        "token_logprobs": [-0.5, -2.0],
        "top_logprobs": [{"ab": -0.5}, {"d": -0.5, "c": -2.0}],
        "text_offset": [0, 2],
    });
    assert_eq!(whole["choices"][0]["logprobs"], expected);
    body["stream"] = json!(true);
    let events = post(server.address, "/v1/completions", &body).await.events();
    let offsets: Vec<_> = (0..2).map(|i| &events[i]["choices"][0]["logprobs"]["text_offset"]).collect();
    assert_eq!(offsets, [&json!([0]), &json!([2])]);
}

#[tokio::test]
async fn completion_logprobs_without_alternatives() {
    let server = Server::start(script(|request| {
        assert!(request.logprobs && request.top_logprobs == 0);
        // -0.1 and -0.7 as f64 have more digits than as f32.
        let tokens = vec![logprob("a", -0.1, vec![]), logprob("b", -0.7, vec![])];
        Ok(vec![started(), with_logprobs(0, "ab", tokens), finished(0, FinishReason::Stop, 2)])
    }))
    .await;
    let answer = post(server.address, "/v1/completions", &json!({"prompt": "x", "logprobs": 0})).await;
    let logprobs = r#""logprobs":{"tokens":["a","b"],"token_logprobs":[-0.1,-0.7],"top_logprobs":[{"a":-0.1},{"b":-0.7}],"text_offset":[0,1]}"#;
    assert!(answer.text.contains(logprobs), "{}", answer.text);
}

#[tokio::test]
async fn usage_in_every_chunk() {
    let server = Server::start(script(|_| {
        let some = |text: &str, tokens: u32| {
            let Step::Send(Event::Delta(delta)) = delta(0, text) else { panic!("no delta") };
            Step::Send(Event::Delta(v1::Delta { token_ids: vec![1; tokens as usize], ..delta }))
        };
        Ok(vec![started(), some("a", 1), some("bc", 2), finished(0, FinishReason::Stop, 4)])
    }))
    .await;
    for (path, prompt) in [
        ("/v1/chat/completions", json!({"messages": messages()})),
        ("/v1/completions", json!({"prompt": "x"})),
    ] {
        for include_usage in [false, true] {
            let mut body = prompt.clone();
            body["stream"] = json!(true);
            body["stream_options"] = json!({"continuous_usage_stats": true, "include_usage": include_usage});
            let mut events = post(server.address, path, &body).await.events();
            assert_eq!(events.pop().unwrap(), "[DONE]");
            let tokens: Vec<_> = events.iter().map(|e| e["usage"]["completion_tokens"].as_u64()).collect();
            let chat = usize::from(path.contains("chat"));
            let mut expected = [Some(1), Some(1), Some(3), Some(4)][1 - chat..].to_vec();
            if include_usage {
                expected.push(Some(4));
            }
            assert_eq!(tokens, expected, "{path}");
            assert!(events.iter().all(|e| e["usage"]["prompt_tokens"] == 7), "{path}");
        }
    }
}

#[tokio::test]
async fn obfuscated_events_are_of_few_sizes() {
    let server = Server::start(script(|_| {
        let texts = ["a", "bb", "a much longer piece of text than the others", ""];
        let mut steps = vec![started()];
        steps.extend(texts.map(|text| delta(0, text)));
        steps.push(finished(0, FinishReason::Stop, 4));
        Ok(steps)
    }))
    .await;
    let body = |on: bool| {
        json!({"messages": messages(), "stream": true,
            "stream_options": {"include_obfuscation": on, "include_usage": true}})
    };
    let plain = post(server.address, "/v1/chat/completions", &body(false)).await;
    assert!(!plain.text.contains("obfuscation"));
    let padded = post(server.address, "/v1/chat/completions", &body(true)).await;
    let texts = |events: Vec<Value>| -> Vec<Value> {
        events.iter().map(|event| event["choices"][0]["delta"]["content"].clone()).collect()
    };
    assert_eq!(texts(plain.events()), texts(padded.events()));
    let events: Vec<&str> = padded.text.split("\n\n").filter(|e| e.starts_with("data: {")).collect();
    assert!(events.len() >= 5, "{events:?}");
    for event in &events {
        assert_eq!((event.len() - 2) % 128, 0, "{event}");
        let json: Value = serde_json::from_str(&event[6..]).unwrap();
        assert!(!json["obfuscation"].as_str().unwrap().is_empty());
    }
}

/// The tokens of a prompt, two chunks of them.
fn scored() -> Vec<Step> {
    let chunk = |first: Option<v1::TokenLogprob>, tokens: Vec<v1::TokenLogprob>| {
        Step::Send(v1::infer_event::Event::PromptLogprobs(v1::PromptLogprobs { first, tokens }))
    };
    let ranked = |token_id, logprob| v1::TokenLogprob { token_id, ..logprob };
    let top = vec![ranked(3, logprob("x", -0.25, vec![])), ranked(4, logprob("y", -2.0, vec![]))];
    vec![
        chunk(Some(logprob("On", 0.0, vec![])), vec![]),
        chunk(None, vec![ranked(7, logprob("ce", -3.5, top))]),
        chunk(None, vec![ranked(8, logprob("!", -0.5, vec![ranked(8, logprob("!", -0.5, vec![]))]))]),
    ]
}

#[tokio::test]
async fn a_prompt_is_echoed_with_its_log_probabilities() {
    let server = Server::start(script(|request| {
        let (max_tokens, scored_top) = (request.stop.as_ref().unwrap().max_tokens, request.prompt_logprobs);
        assert_eq!((request.echo, scored_top), (true, Some(1)));
        let mut steps = vec![started(), delta(0, "Once!")];
        steps.extend(scored());
        if max_tokens != Some(0) {
            steps.push(with_logprobs(0, " é", vec![logprob(" é", -1.0, vec![])]));
        }
        steps.push(finished(0, FinishReason::Length, max_tokens.unwrap()));
        Ok(steps)
    }))
    .await;
    let mut body = json!({"prompt": "Once!", "echo": true, "logprobs": 1, "max_tokens": 1});
    let answer = post(server.address, "/v1/completions", &body).await.json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["text"], "Once! é");
    let logprobs = json!({
        "tokens": ["On", "ce", "!", " é"],
        "token_logprobs": [null, -3.5, -0.5, -1.0],
        "top_logprobs": [null, {"x": -0.25, "ce": -3.5}, {"!": -0.5}, {" é": -1.0}],
        "text_offset": [0, 2, 4, 5],
    });
    assert_eq!(choice["logprobs"], logprobs);
    assert_eq!(choice.get("prompt_logprobs"), None);
    // Pieces of a stream make the same lists.
    body["stream"] = true.into();
    let events = post(server.address, "/v1/completions", &body).await.events();
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        let pieces = events.iter().filter_map(|event| event["choices"][0]["logprobs"][list].as_array());
        assert_eq!(json!(pieces.flatten().collect::<Vec<_>>()), logprobs[list], "{list}");
    }
    // A prompt may be scored alone.
    let body = json!({"prompt": "Once!", "echo": true, "logprobs": 1, "max_tokens": 0});
    let answer = post(server.address, "/v1/completions", &body).await.json();
    assert_eq!(answer["choices"][0]["logprobs"]["tokens"], json!(["On", "ce", "!"]));
    assert_eq!(
        (&answer["choices"][0]["text"], &answer["usage"]["completion_tokens"]),
        (&json!("Once!"), &json!(0))
    );
}

#[tokio::test]
async fn prompt_logprobs_are_listed_by_token_id() {
    let server = Server::start(script(|request| {
        assert_eq!((request.prompt_logprobs, request.prediction.as_str()), (Some(2), "Hello."));
        let mut steps = vec![started()];
        steps.extend(scored());
        steps.extend([delta(0, "Hi"), finished(0, FinishReason::Stop, 1)]);
        Ok(steps)
    }))
    .await;
    let expected = json!([
        null,
        {
            "7": {"logprob": -3.5, "rank": null, "decoded_token": "ce"},
            "3": {"logprob": -0.25, "rank": 1, "decoded_token": "x"},
            "4": {"logprob": -2.0, "rank": 2, "decoded_token": "y"},
        },
        {"8": {"logprob": -0.5, "rank": 1, "decoded_token": "!"}},
    ]);
    let prediction = json!({"type": "content", "content": [{"type": "text", "text": "Hello."}]});
    let body = json!({"messages": messages(), "prompt_logprobs": 2, "prediction": prediction});
    let answer = post(server.address, "/v1/chat/completions", &body).await.json();
    assert_eq!(answer["prompt_logprobs"], expected);
}
