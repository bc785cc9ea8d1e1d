//! What the engine is asked for: every field of a request arrives under the contract's name.

use std::collections::HashMap;

use hanzo_engine_proto::v1::{self, content_part::Part, infer_request::Prompt};
use serde_json::{Value, json};

use crate::{Server, fake::hello, http::post, script};

/// As long as the context lasts.
const NO_LIMIT: Option<u32> = Some(u32::MAX);

/// The requests that the engine gets for one HTTP request that succeeds.
async fn asked(path: &str, body: Value) -> Vec<v1::InferRequest> {
    let server = Server::start(script(hello)).await;
    let answer = post(server.address, path, &body).await;
    assert_eq!(answer.status, 200, "{body}: {}", answer.text);
    server.fake.seen()
}

async fn chat(extra: Value) -> v1::InferRequest {
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    let mut requests = asked("/v1/chat/completions", body).await;
    assert_eq!(requests.len(), 1);
    requests.remove(0)
}

async fn kwargs(extra: Value) -> Value {
    let Some(Prompt::Chat(chat)) = chat(extra).await.prompt else { panic!("not a chat") };
    serde_json::from_str(&chat.template_kwargs_json).unwrap_or(Value::Null)
}

fn text(text: &str) -> v1::ContentPart {
    v1::ContentPart { part: Some(Part::Text(text.to_owned())) }
}

#[tokio::test]
async fn tools_that_are_not_allowed_are_not_there() {
    let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
    for (mode, choice) in [("auto", v1::ToolChoice::Auto), ("required", v1::ToolChoice::Required)] {
        let request = chat(json!({
            "tools": [tool("f"), tool("g"), tool("h")],
            "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [tool("h"), tool("f")]}},
        }))
        .await;
        let Some(Prompt::Chat(chat)) = request.prompt else { panic!("not a chat") };
        let shown: Vec<Value> =
            chat.tools_json.iter().map(|tool| serde_json::from_str(tool).unwrap()).collect();
        assert_eq!(shown, [tool("f"), tool("h")]);
        assert_eq!(request.tool_use.unwrap().choice(), choice);
    }
}

#[tokio::test]
async fn every_chat_field_arrives() {
    let request = chat(json!({
        "model": "some/model",
        "max_completion_tokens": 9, "max_tokens": 9, "temperature": 0.5, "top_p": 0.25, "top_k": 40, "min_p": 0.125,
        "repetition_penalty": 1.5, "frequency_penalty": -2, "presence_penalty": 2.0,
        "logit_bias": {"5": -100, "7": 1.5}, "seed": -1, "stop": ["a", "b"], "stop_token_ids": [3, 4],
        "include_stop_str_in_output": true, "ignore_eos": true, "min_tokens": 2, "n": 3,
        "logprobs": true, "top_logprobs": 20, "priority": -7, "keep_alive": -1, "user": "u",
        "typical_p": 0.75, "top_n_sigma": 1.5, "xtc_probability": 0.5, "xtc_threshold": 0.25, "dynatemp_range": 0.5,
        "dynatemp_exponent": 2, "mirostat": 2, "mirostat_tau": 4, "mirostat_eta": 0.25, "dry_multiplier": 0.5,
        "dry_base": 2, "dry_allowed_length": 3, "dry_penalty_last_n": -1, "dry_sequence_breakers": ["x", "\n"],
        "repeat_last_n": 32,
    }))
    .await;
    assert!(request.request_id.starts_with("req-"), "{}", request.request_id);
    let expected = v1::InferRequest {
        model: "some/model".to_owned(),
        prompt: Some(Prompt::Chat(v1::Chat {
            messages: vec![v1::Message {
                role: "user".to_owned(),
                content: vec![text("hi")],
                ..Default::default()
            }],
            ..Default::default()
        })),
        sampling: Some(v1::Sampling {
            temperature: Some(0.5),
            top_k: Some(40),
            top_p: Some(0.25),
            min_p: Some(0.125),
            repetition_penalty: Some(1.5),
            frequency_penalty: Some(-2.0),
            presence_penalty: Some(2.0),
            logit_bias: HashMap::from([(5, -100.0), (7, 1.5)]),
            seed: Some(u64::MAX),
            typical_p: Some(0.75),
            top_n_sigma: Some(1.5),
            xtc_probability: Some(0.5),
            xtc_threshold: Some(0.25),
            dynatemp_range: Some(0.5),
            dynatemp_exponent: Some(2.0),
            mirostat: Some(2),
            mirostat_tau: Some(4.0),
            mirostat_eta: Some(0.25),
            dry_multiplier: Some(0.5),
            dry_base: Some(2.0),
            dry_allowed_length: Some(3),
            dry_penalty_last_n: Some(-1),
            dry_sequence_breakers: vec!["x".to_owned(), "\n".to_owned()],
            repeat_last_n: Some(32),
        }),
        stop: Some(v1::StopConditions {
            max_tokens: Some(9),
            min_tokens: 2,
            strings: vec!["a".to_owned(), "b".to_owned()],
            token_ids: vec![3, 4],
            include_stop_string: true,
            ignore_eos: true,
        }),
        choices: 3,
        top_logprobs: 20,
        logprobs: true,
        request_id: request.request_id.clone(),
        priority: -7,
        keep_alive: Some("-1".to_owned()),
        client: "127.0.0.1".to_owned(),
        ..Default::default()
    };
    assert_eq!(request, expected);
}

#[tokio::test]
async fn what_becomes_of_long_prompts_and_of_the_cache_is_carried_over() {
    let request = chat(json!({
        "truncate_prompt_tokens": -1, "truncation_side": "right", "context_shift": true, "n_keep": 12,
        "cache_salt": "tenant", "cache_prompt": false,
    }));
    let request = request.await;
    let said = (request.truncate_prompt_tokens, request.truncate_side(), request.keep_tokens);
    assert_eq!(said, (Some(-1), v1::TruncateSide::Right, Some(12)));
    assert_eq!((request.context_shift, request.cache_prompt), (Some(true), Some(false)));
    assert_eq!(request.cache_salt, "tenant");
}

#[tokio::test]
async fn absent_and_null_fields_stay_unset() {
    let nulls = json!({
        "model": null, "max_tokens": null, "temperature": null, "top_p": null, "top_k": null, "seed": null,
        "stop": null, "n": null, "stream": null, "stream_options": null, "logprobs": null, "top_logprobs": null,
        "tools": null, "tool_choice": null, "response_format": null, "logit_bias": null, "audio": null,
        "not_a_field_at_all": null, "chat_template_kwargs": null, "reasoning_effort": null, "user": null,
    });
    for extra in [json!({}), nulls] {
        let request = chat(extra).await;
        assert_eq!(request.sampling, Some(v1::Sampling::default()));
        assert_eq!(request.stop, Some(v1::StopConditions::default()));
        assert_eq!((request.choices, request.model.as_str(), request.logprobs), (1, "", false));
        let Some(Prompt::Chat(chat)) = request.prompt else { panic!("not a chat") };
        assert_eq!((chat.add_generation_prompt, chat.continue_final_message), (None, false));
    }
}

/// A request, but for its id, which is another each time.
fn unnamed(request: v1::InferRequest) -> v1::InferRequest {
    v1::InferRequest { request_id: String::new(), ..request }
}

/// Each value asks for what is done anyway: the engine is asked for the very same.
#[tokio::test]
async fn neutral_and_harmless_values_change_nothing() {
    let plain = unnamed(chat(json!({})).await);
    let neutral = json!({
        "tools": [], "tool_choice": "none", "parallel_tool_calls": true, "functions": [], "function_call": "none",
        "response_format": {"type": "text"}, "modalities": ["text"], "n": 1, "logprobs": false, "top_logprobs": 0,
        "verbosity": "medium", "stop": [], "echo": false,
        "user": "u", "metadata": {"k": "v"}, "store": false, "service_tier": "auto", "safety_identifier": "s",
        "prompt_cache_key": "k", "prompt_cache_retention": "24h", "prompt_cache_options": {"mode": "implicit"},
        "skip_special_tokens": true, "spaces_between_special_tokens": true, "include_reasoning": true,
    });
    let mut all = serde_json::Map::new();
    for (name, value) in neutral.as_object().unwrap() {
        assert_eq!(unnamed(chat(json!({name: value})).await), plain, "{name}");
        all.insert(name.clone(), value.clone());
    }
    assert_eq!(unnamed(chat(Value::Object(all)).await), plain);
    let completion = async |extra: Value| {
        let mut body = json!({"prompt": "x"});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let requests = asked("/v1/completions", body).await;
        requests.into_iter().map(unnamed).collect::<Vec<_>>()
    };
    let plain = completion(json!({})).await;
    let neutral = json!({"suffix": "", "best_of": 1, "logprobs": false, "echo": false});
    assert_eq!(completion(neutral).await, plain);
    assert_eq!(completion(json!({"stream": true})).await, plain);
}

/// What a stream is to show is the gateway's to do, and it does it.
#[tokio::test]
async fn stream_options_show_in_every_chunk() {
    for on in [false, true] {
        let server = Server::start(script(hello)).await;
        let options = json!({"include_obfuscation": on, "continuous_usage_stats": on});
        let body = json!({"prompt": "x", "stream": true, "stream_options": options});
        let answer = post(server.address, "/v1/completions", &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        let chunks: Vec<Value> = answer
            .text
            .lines()
            .filter_map(|line| line.strip_prefix("data: "))
            .filter(|data| *data != "[DONE]")
            .map(|data| serde_json::from_str(data).unwrap())
            .collect();
        assert!(chunks.len() >= 2, "{}", answer.text);
        for chunk in &chunks {
            assert_eq!(chunk["obfuscation"].is_string(), on, "{chunk}");
            assert_eq!(chunk["usage"]["total_tokens"].as_u64().is_some(), on, "{chunk}");
        }
        let used: Vec<u64> =
            chunks.iter().filter_map(|chunk| chunk["usage"]["completion_tokens"].as_u64()).collect();
        assert!(used.is_sorted(), "{used:?}");
        assert_eq!(server.fake.seen().len(), 1);
    }
}

#[tokio::test]
async fn seeds_and_single_stops() {
    for (sent, seed) in
        [(json!(0), 0), (json!(u64::MAX), u64::MAX), (json!(i64::MIN), 1 << 63), (json!(-2), u64::MAX - 1)]
    {
        assert_eq!(chat(json!({"seed": sent})).await.sampling.unwrap().seed, Some(seed), "{sent}");
    }
    assert_eq!(chat(json!({"stop": "\n"})).await.stop.unwrap().strings, ["\n"]);
    assert_eq!(chat(json!({"top_k": -1})).await.sampling.unwrap().top_k, Some(0));
    // A float without a fraction is an integer.
    let request =
        chat(json!({"seed": 42.0, "n": 2.0, "top_k": 3.0, "max_tokens": 5.0, "stop_token_ids": [7.0]})).await;
    assert_eq!((request.sampling.as_ref().unwrap().seed, request.choices), (Some(42), 2));
    let stop = request.stop.unwrap();
    assert_eq!(
        (request.sampling.unwrap().top_k, stop.max_tokens, stop.token_ids),
        (Some(3), Some(5), vec![7])
    );
    // llama.cpp's words: its penalty looks back on 64 tokens, and below 0 a cut is off.
    let sampling = chat(json!({"repeat_penalty": 1.5, "top_n_sigma": -1})).await.sampling.unwrap();
    assert_eq!((sampling.repetition_penalty, sampling.repeat_last_n), (Some(1.5), Some(64)));
    assert_eq!(sampling.top_n_sigma, Some(0.0));
    let sampling = chat(json!({"repeat_penalty": 1.5, "repeat_last_n": -1})).await.sampling.unwrap();
    assert_eq!(sampling.repeat_last_n, Some(-1));
    assert_eq!(chat(json!({"repetition_penalty": 1.5})).await.sampling.unwrap().repeat_last_n, None);
    // The smallest nucleus is the most likely token.
    for zero in [json!(0), json!(0.0), json!(1e-60)] {
        let top_p = chat(json!({"top_p": zero})).await.sampling.unwrap().top_p.unwrap();
        assert!(top_p > 0.0 && top_p < 1e-30, "{top_p}");
    }
}

#[tokio::test]
async fn limits_in_everyones_words() {
    for (extra, expected) in [
        (json!({"max_tokens": 5}), Some(5)),
        (json!({"max_completion_tokens": 5}), Some(5)),
        (json!({"n_predict": 5}), Some(5)),
        (json!({"n_predict": 5, "max_tokens": 5}), Some(5)),
        (json!({"max_tokens": -1}), NO_LIMIT),
        (json!({"n_predict": -1}), NO_LIMIT),
        (json!({}), None),
    ] {
        assert_eq!(chat(extra.clone()).await.stop.unwrap().max_tokens, expected, "{extra}");
    }
    for (extra, expected) in
        [(json!({}), Some(16)), (json!({"max_tokens": -1}), NO_LIMIT), (json!({"n_predict": 7}), Some(7))]
    {
        let mut body = json!({"prompt": "x"});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let requests = asked("/v1/completions", body).await;
        assert_eq!(requests[0].stop.as_ref().unwrap().max_tokens, expected, "{extra}");
    }
    assert_eq!(chat(json!({"n_cmpl": 3})).await.choices, 3);
}

#[tokio::test]
async fn template_variables() {
    assert_eq!(kwargs(json!({"chat_template_kwargs": {"a": {"b": [1]}}})).await, json!({"a": {"b": [1]}}));
    assert_eq!(kwargs(json!({"reasoning_effort": "none"})).await, json!({"enable_thinking": false}));
    let low = json!({"enable_thinking": true, "reasoning_effort": "low"});
    assert_eq!(kwargs(json!({"reasoning_effort": "low"})).await, low);
    let both = json!({"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": false}});
    assert_eq!(kwargs(both).await, json!({"enable_thinking": false, "reasoning_effort": "high"}));
}

#[tokio::test]
async fn messages_of_every_kind() {
    let messages = json!([
        {"role": "system", "content": "s"},
        {"role": "developer", "content": [{"type": "text", "text": "d1"}, {"type": "text", "text": "d2"}]},
        {"role": "user", "content": "u", "name": "ann"},
        {"role": "assistant", "content": null, "reasoning_content": "r", "refusal": null, "annotations": [],
            "audio": null, "function_call": null, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"x\":[1]}"}},
            {"id": "c2", "type": "function", "index": 1, "function": {"name": "g", "arguments": ""}},
        ]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
        {"role": "assistant", "content": "So"},
    ]);
    let request = chat(json!({"messages": messages, "continue_final_message": true})).await;
    let Some(Prompt::Chat(chat)) = request.prompt else { panic!("not a chat") };
    assert_eq!((chat.add_generation_prompt, chat.continue_final_message), (Some(false), true));
    let message = |role: &str, content: Vec<v1::ContentPart>| v1::Message {
        role: role.to_owned(),
        content,
        ..Default::default()
    };
    let call = |id: &str, name: &str, arguments: &str| v1::ToolCall {
        id: id.to_owned(),
        name: name.to_owned(),
        arguments_json: arguments.to_owned(),
    };
    let expected = vec![
        message("system", vec![text("s")]),
        message("developer", vec![text("d1"), text("d2")]),
        v1::Message { name: "ann".to_owned(), ..message("user", vec![text("u")]) },
        v1::Message {
            tool_calls: vec![call("c1", "f", "{\"x\":[1]}"), call("c2", "g", "{}")],
            reasoning_content: "r".to_owned(),
            ..message("assistant", vec![])
        },
        v1::Message { tool_call_id: "c1".to_owned(), ..message("tool", vec![text("42")]) },
        message("assistant", vec![text("So")]),
    ];
    assert_eq!(chat.messages, expected);
}

#[tokio::test]
async fn completion_prompts() {
    let tokens = |ids: &[u32]| Prompt::Tokens(v1::TokenIds { ids: ids.to_vec() });
    let text = |text: &str| Prompt::Text(text.to_owned());
    for (prompt, expected) in [
        (json!("hi"), vec![text("hi")]),
        (json!(["a", ""]), vec![text("a"), text("")]),
        (json!([1, 2]), vec![tokens(&[1, 2])]),
        (json!([[1], [2, 3]]), vec![tokens(&[1]), tokens(&[2, 3])]),
    ] {
        let requests = asked("/v1/completions", json!({"prompt": prompt, "echo": true})).await;
        let prompts: Vec<_> = requests.iter().map(|request| request.prompt.clone().unwrap()).collect();
        assert_eq!(prompts, expected);
        // OpenAI's default, and each prompt has its own id.
        assert!(requests.iter().all(|r| r.echo && r.stop.as_ref().unwrap().max_tokens == Some(16)));
        assert!(requests.windows(2).all(|pair| pair[0].request_id != pair[1].request_id));
        assert!(requests.iter().all(|request| request.parse_special.is_none()));
    }
    for parse_special in [true, false] {
        let body = json!({"prompt": ["<s>", "a"], "parse_special": parse_special});
        let requests = asked("/v1/completions", body).await;
        assert!(requests.iter().all(|request| request.parse_special == Some(parse_special)));
    }
    // Tokens are tokens.
    let requests = asked("/v1/completions", json!({"prompt": [1, 2], "parse_special": false})).await;
    assert_eq!(requests[0].parse_special, None);
}

#[tokio::test]
async fn lenient_ignores_unknown_fields_and_nothing_else() {
    let server = Server::with(script(hello), |config| config.lenient = true).await;
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}], "mood": 2, "max_tokens": 9});
    assert_eq!(post(server.address, "/v1/chat/completions", &body).await.status, 200);
    let seen: Vec<_> = server.fake.seen().into_iter().map(unnamed).collect();
    assert_eq!(seen, [unnamed(chat(json!({"max_tokens": 9})).await)]);
    body["tools"] = json!([{"type": "function"}]);
    assert_eq!(
        post(server.address, "/v1/chat/completions", &body).await.json()["error"]["param"],
        "tools[0].function"
    );
    assert_eq!(server.fake.seen().len(), 1, "what is refused is not asked for");
}
