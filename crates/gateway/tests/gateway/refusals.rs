//! Bad requests: each gets its status and names its field, the engine never hears of it, and the next good
//! request works.

use hyper::Request;
use serde_json::{Value, json};

use crate::{
    Server,
    fake::hello,
    http::{Answer, json_request, post, post_bytes, send},
    script,
};

/// Checks the shape of an error.
fn check(answer: &Answer, status: u16, param: Option<&str>, what: &str) {
    assert_eq!(answer.status, status, "{what}: {}", answer.text);
    let body = answer.json();
    let error = body["error"].as_object().unwrap_or_else(|| panic!("{what}: {body}"));
    let keys: Vec<_> = error.keys().collect();
    assert_eq!(keys, ["message", "type", "param", "code"], "{what}");
    assert_eq!(error["type"], "invalid_request_error", "{what}");
    assert_eq!(error["param"].as_str(), param, "{what}: {body}");
    let message = error["message"].as_str().unwrap();
    assert!(!message.is_empty() && answer.text.len() < 2048, "{what}: {} bytes", answer.text.len());
    if let Some(param) = param {
        assert!(message.starts_with(&format!("{param}: ")), "{what}: {message}");
    }
}

fn chat_cases() -> Vec<(Value, &'static str)> {
    let long = "x".repeat(5000);
    vec![
        (json!({"messages": null}), "messages"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": "hi"}), "messages"),
        (json!({"messages": ["hi"]}), "messages[0]"),
        (json!({"messages": [null]}), "messages[0]"),
        (json!({"messages": [{}]}), "messages[0].role"),
        (json!({"messages": [{"role": "robot", "content": "x"}]}), "messages[0].role"),
        (json!({"messages": [{"role": 5, "content": "x"}]}), "messages[0].role"),
        (json!({"messages": [{"role": long, "content": "x"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "user"}]}), "messages[0].content"),
        (json!({"messages": [{"role": "user", "content": null}]}), "messages[0].content"),
        (json!({"messages": [{"role": "user", "content": 5}]}), "messages[0].content"),
        (json!({"messages": [{"role": "user", "content": ["x"]}]}), "messages[0].content[0]"),
        (json!({"messages": [{"role": "user", "content": [{"text": "x"}]}]}), "messages[0].content[0].type"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "text"}]}]}),
            "messages[0].content[0].text",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "poem", "text": "x"}]}]}),
            "messages[0].content[0].type",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}),
            "messages[0].content[0].image_url.url",
        ),
        (
            json!({"messages": [{"role": "user", "content": [
                {"type": "text", "text": "x"},
                {"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}},
            ]}]}),
            "messages[0].content[1].image_url.url",
        ),
        (
            json!({"messages": [{"role": "user", "content": [
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "closely"}},
            ]}]}),
            "messages[0].content[0].image_url.detail",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}),
            "messages[0].content[0].input_audio",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}]}),
            "messages[0].content[0].type",
        ),
        (
            json!({"messages": [{"role": "user", "content": "x", "tool_calls": [{}]}]}),
            "messages[0].tool_calls",
        ),
        (json!({"messages": [{"role": "user", "content": "x", "name": 5}]}), "messages[0].name"),
        (json!({"messages": [{"role": "assistant", "tool_calls": [{}]}]}), "messages[0].tool_calls[0].id"),
        (
            json!({"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "", "arguments": "{}"}}]}]}),
            "messages[0].tool_calls[0].function.name",
        ),
        (
            json!({"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": 5}}]}]}),
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            json!({"messages": [{"role": "assistant", "function_call": {"arguments": "{}"}}]}),
            "messages[0].function_call.name",
        ),
        (json!({"messages": [{"role": "tool", "content": "x"}]}), "messages[0].tool_call_id"),
        (
            json!({"messages": [{"role": "user", "content": "x", "tool_call_id": "c"}]}),
            "messages[0].tool_call_id",
        ),
        (json!({"max_tokens": 5, "max_completion_tokens": 6}), "max_completion_tokens"),
        (json!({"max_completion_tokens": -2}), "max_completion_tokens"),
        (json!({"n_predict": 5, "max_completion_tokens": 6}), "n_predict"),
        (json!({"echo": true}), "echo"),
        (json!({"documents": [{"text": "x"}]}), "documents"),
        (json!({"top_logprobs": 5}), "top_logprobs"),
        (json!({"top_logprobs": 21, "logprobs": true}), "top_logprobs"),
        (json!({"logprobs": 3}), "logprobs"),
        (json!({"add_generation_prompt": true, "continue_final_message": true}), "continue_final_message"),
        (json!({"chat_template_kwargs": "x"}), "chat_template_kwargs"),
        (json!({"reasoning_effort": "very"}), "reasoning_effort"),
        (json!({"reasoning_effort": 5}), "reasoning_effort"),
        (json!({"reasoning": {"effort": "low", "exclude": true}}), "reasoning.exclude"),
        (json!({"reasoning_effort": "none", "enable_thinking": true}), "enable_thinking"),
        (json!({"thinking_budget": -2}), "thinking_budget"),
        (json!({"tools": [{"type": "custom", "custom": {"name": "f"}}]}), "tools[0].type"),
        (json!({"tools": [{"type": "function", "function": {"name": ""}}]}), "tools[0].function.name"),
        (json!({"tools": [{"type": "function"}]}), "tools[0].function"),
        (json!({"tools": "f"}), "tools"),
        (json!({"tool_choice": "auto"}), "tool_choice"),
        (json!({"tool_choice": {"type": "function"}}), "tool_choice.function"),
        (json!({"tool_choice": {"type": "allowed_tools"}}), "tool_choice.allowed_tools"),
        (
            json!({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}}),
            "tool_choice.allowed_tools.tools",
        ),
        (
            json!({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [
                {"type": "function", "function": {"name": "g"}}]}}}),
            "tool_choice.allowed_tools.tools[0].function.name",
        ),
        (json!({"functions": [{}]}), "functions[0].name"),
        (json!({"parallel_tool_calls": "yes"}), "parallel_tool_calls"),
        (json!({"response_format": {"type": "xml"}}), "response_format.type"),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {}}}),
            "response_format.json_schema.schema",
        ),
        (json!({"response_format": "text"}), "response_format"),
        (json!({"modalities": ["text", "audio"]}), "modalities"),
        (json!({"audio": {"voice": "x"}}), "audio"),
        (json!({"prediction": "x"}), "prediction"),
        (json!({"prediction": {"type": "content"}}), "prediction.content"),
        (
            json!({"prediction": {"type": "content", "content": [{"type": "image_url"}]}}),
            "prediction.content[0].type",
        ),
        (json!({"web_search_options": {}}), "web_search_options"),
        (json!({"prompt": "x"}), "prompt"),
    ]
}

/// Of chats and completions alike.
fn common_cases() -> Vec<(Value, &'static str)> {
    let long = "x".repeat(5000);
    vec![
        (json!({"model": 5}), "model"),
        (json!({"model": ""}), "model"),
        (json!({"model": long}), "model"),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"temperature": -0.1}), "temperature"),
        (json!({"temperature": 2.1}), "temperature"),
        (json!({"temperature": true}), "temperature"),
        (json!({"temperature": [1]}), "temperature"),
        (json!({"temperature": 1e300}), "temperature"),
        (json!({"top_p": -0.1}), "top_p"),
        (json!({"top_p": 1.01}), "top_p"),
        (json!({"top_k": -2}), "top_k"),
        (json!({"top_k": 1.5}), "top_k"),
        (json!({"min_p": -1}), "min_p"),
        (json!({"min_p": "0"}), "min_p"),
        (json!({"typical_p": 1.5}), "typical_p"),
        (json!({"top_n_sigma": 101}), "top_n_sigma"),
        (json!({"xtc_probability": 2}), "xtc_probability"),
        (json!({"xtc_threshold": -0.1}), "xtc_threshold"),
        (json!({"dynatemp_range": 2.5}), "dynatemp_range"),
        (json!({"dynatemp_exponent": -1}), "dynatemp_exponent"),
        (json!({"mirostat": 3}), "mirostat"),
        (json!({"mirostat_tau": -1}), "mirostat_tau"),
        (json!({"mirostat_eta": 1.5}), "mirostat_eta"),
        (json!({"dry_multiplier": -1}), "dry_multiplier"),
        (json!({"dry_base": 0.5}), "dry_base"),
        (json!({"dry_allowed_length": -1}), "dry_allowed_length"),
        (json!({"dry_penalty_last_n": -2}), "dry_penalty_last_n"),
        (json!({"dry_sequence_breakers": []}), "dry_sequence_breakers"),
        (json!({"dry_sequence_breakers": [""]}), "dry_sequence_breakers[0]"),
        (json!({"repeat_last_n": -2}), "repeat_last_n"),
        (json!({"repetition_penalty": 1.1, "repeat_penalty": 1.1}), "repeat_penalty"),
        (json!({"repetition_penalty": 0}), "repetition_penalty"),
        (json!({"repetition_penalty": -1}), "repetition_penalty"),
        (json!({"frequency_penalty": 2.5}), "frequency_penalty"),
        (json!({"presence_penalty": -2.5}), "presence_penalty"),
        (json!({"max_tokens": -2}), "max_tokens"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": 1.5}), "max_tokens"),
        (json!({"max_tokens": "16"}), "max_tokens"),
        (json!({"max_tokens": 1u64 << 40}), "max_tokens"),
        (json!({"min_tokens": -1}), "min_tokens"),
        (json!({"min_tokens": 6, "max_tokens": 5}), "min_tokens"),
        (json!({"n": 0}), "n"),
        (json!({"n": -1}), "n"),
        (json!({"n": 129}), "n"),
        (json!({"n": u64::MAX}), "n"),
        (json!({"n": 1e30}), "n"),
        (json!({"n": "2"}), "n"),
        (json!({"n": 1.5}), "n"),
        (json!({"n": 2, "n_cmpl": 2}), "n_cmpl"),
        (json!({"stop": ""}), "stop"),
        (json!({"stop": ["a", ""]}), "stop[1]"),
        (json!({"stop": 5}), "stop"),
        (json!({"stop": ["a", 5]}), "stop[1]"),
        (json!({"stop": [null]}), "stop[0]"),
        (json!({"stop": vec!["x"; 17]}), "stop"),
        (json!({"stop": long}), "stop"),
        (json!({"stop_token_ids": [-1]}), "stop_token_ids[0]"),
        (json!({"stop_token_ids": 5}), "stop_token_ids"),
        (json!({"stop_token_ids": vec![1; 1025]}), "stop_token_ids"),
        (json!({"logit_bias": [1]}), "logit_bias[0]"),
        (json!({"logit_bias": {"hello": 1}}), "logit_bias"),
        (json!({"logit_bias": {"5": 101}}), "logit_bias.5"),
        (json!({"logit_bias": {"5": "x"}}), "logit_bias.5"),
        (json!({"seed": 1.5}), "seed"),
        (json!({"seed": "x"}), "seed"),
        (json!({"seed": 1e30}), "seed"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"stream_options": {"include_usage": true}}), "stream_options"),
        (json!({"stream": true, "stream_options": {"include_usage": 1}}), "stream_options.include_usage"),
        (json!({"stream": true, "stream_options": {"x": 1}}), "stream_options.x"),
        (json!({"stream": true, "stream_options": true}), "stream_options"),
        (json!({"ignore_eos": 1}), "ignore_eos"),
        (json!({"priority": 1u64 << 40}), "priority"),
        (json!({"user": 5}), "user"),
        (json!({"metadata": "x"}), "metadata"),
        (json!({"guided_json": 3}), "guided_json"),
        (json!({"structured_outputs": {}}), "structured_outputs"),
        (json!({"prompt_logprobs": 21}), "prompt_logprobs"),
        (json!({"prompt_logprobs": 1, "stream": true}), "prompt_logprobs"),
        (json!({"truncate_prompt_tokens": -2}), "truncate_prompt_tokens"),
        (json!({"truncation_side": "middle"}), "truncation_side"),
        (json!({"context_shift": 1}), "context_shift"),
        (json!({"n_keep": -2}), "n_keep"),
        (json!({"n_discard": 5}), "n_discard"),
        (json!({"cache_salt": 5}), "cache_salt"),
        (json!({"keep_alive": true}), "keep_alive"),
        (json!({"skip_special_tokens": false}), "skip_special_tokens"),
        (json!({"verbosity": "low"}), "verbosity"),
        (json!({"prompt_cache_options": "x"}), "prompt_cache_options"),
        (json!({"mirostat": 1}), "mirostat"),
        (json!({"cache_prompt": "no"}), "cache_prompt"),
        (json!({"request_id": "x"}), "request_id"),
        (
            json!({"stream": true, "stream_options": {"include_obfuscation": "x"}}),
            "stream_options.include_obfuscation",
        ),
        (json!({"temprature": 1}), "temprature"),
        (json!({"Temperature": 1}), "Temperature"),
    ]
}

fn completion_cases() -> Vec<(Value, &'static str)> {
    vec![
        (json!({"prompt": null}), "prompt"),
        (json!({"prompt": 5}), "prompt"),
        (json!({"prompt": {}}), "prompt"),
        (json!({"prompt": []}), "prompt"),
        (json!({"prompt": [true]}), "prompt"),
        (json!({"prompt": ["a", 1]}), "prompt[1]"),
        (json!({"prompt": [1, "a"]}), "prompt[1]"),
        (json!({"prompt": [1, -1]}), "prompt[1]"),
        (json!({"prompt": [1u64 << 32]}), "prompt[0]"),
        (json!({"prompt": [[1], []]}), "prompt[1]"),
        (json!({"prompt": [[1], ["a"]]}), "prompt[1][0]"),
        (json!({"prompt": vec!["x"; 1025]}), "prompt"),
        (json!({"best_of": 2}), "best_of"),
        (json!({"n": 2, "best_of": 3}), "best_of"),
        (json!({"suffix": 5}), "suffix"),
        (json!({"suffix": "x", "prompt": [1, 2]}), "suffix"),
        (json!({"suffix": "x", "echo": true}), "suffix"),
        (json!({"suffix": "x", "parse_special": true}), "parse_special"),
        (json!({"thinking_token_budget": 5}), "thinking_token_budget"),
        (json!({"echo": "x"}), "echo"),
        (json!({"logprobs": 6}), "logprobs"),
        (json!({"logprobs": -1}), "logprobs"),
        (json!({"logprobs": true}), "logprobs"),
        (json!({"logprobs": 1, "max_tokens": 0}), "max_tokens"),
        (json!({"echo": true, "max_tokens": 0}), "max_tokens"),
        (json!({"messages": [{"role": "user", "content": "x"}]}), "messages"),
        (json!({"top_logprobs": 2}), "top_logprobs"),
    ]
}

#[tokio::test]
async fn bad_fields_are_named() {
    let server = Server::start(script(hello)).await;
    let chat = json!({"messages": [{"role": "user", "content": "hi"}]});
    let completion = json!({"prompt": "hi"});
    let surfaces =
        [("/v1/chat/completions", chat, chat_cases()), ("/v1/completions", completion, completion_cases())];
    let mut cases = 0;
    for (path, good, own) in surfaces {
        for (bad, param) in own.into_iter().chain(common_cases()) {
            let mut body = good.clone();
            body.as_object_mut().unwrap().extend(bad.as_object().unwrap().clone());
            check(&post(server.address, path, &body).await, 400, Some(param), &format!("{path} {bad}"));
            cases += 1;
        }
        assert!(server.fake.seen().is_empty(), "{path}: a bad request reached the engine");
    }
    assert!(cases > 200, "{cases}");
    let good = json!({"prompt": "hi"});
    assert_eq!(post(server.address, "/v1/completions", &good).await.status, 200);
}

#[tokio::test]
async fn bad_bodies() {
    let server = Server::start(script(hello)).await;
    let nested = |open: &str, n: usize| format!("{{\"messages\":{}", open.repeat(n));
    let closed = format!("{{\"messages\":{}1{}}}", "[".repeat(500), "]".repeat(500));
    let cases: Vec<(Vec<u8>, Option<&str>)> = vec![
        (b"".to_vec(), None),
        (b"   ".to_vec(), None),
        (b"null".to_vec(), None),
        (b"5".to_vec(), None),
        (b"\"x\"".to_vec(), None),
        (b"[]".to_vec(), None),
        (b"[{\"messages\":[]}]".to_vec(), None),
        (b"{".to_vec(), None),
        (b"{\"messages\":[}".to_vec(), None),
        (b"{} {}".to_vec(), None),
        (b"{'messages':[]}".to_vec(), None),
        (b"{\"messages\":[],}".to_vec(), None),
        (b"{\"temperature\":NaN}".to_vec(), Some("temperature")),
        (b"{\"temperature\":Infinity}".to_vec(), Some("temperature")),
        (b"{\"temperature\": -Infinity}".to_vec(), Some("temperature")),
        (b"{\"top_p\":1e999}".to_vec(), Some("top_p")),
        (b"{\"messages\":\"\xff\xfe\"}".to_vec(), None),
        (b"\xff\xfe{\x00}\x00".to_vec(), None),
        (b"{\"messages\":\"\\ud800\"}".to_vec(), Some("messages")),
        (b"{\"messages\":\"\x01\"}".to_vec(), None),
        (nested("[", 100_000).into_bytes(), None),
        (nested("{\"a\":", 100_000).into_bytes(), None),
        (closed.into_bytes(), None),
        (b"{}".to_vec(), Some("messages")),
        (
            format!(
                "{{\"{}\":1,\"messages\":[{{\"role\":\"user\",\"content\":\"x\"}}]}}",
                "k".repeat(100_000)
            )
            .into_bytes(),
            Some("kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk…"),
        ),
    ];
    for (body, param) in cases {
        let what = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        check(&post_bytes(server.address, "/v1/chat/completions", body).await, 400, param, &what);
    }
    let good = json!({"messages": [{"role": "user", "content": "x"}]});
    assert_eq!(post(server.address, "/v1/chat/completions", &good).await.status, 200);
}

#[tokio::test]
async fn media_types() {
    let server = Server::start(script(hello)).await;
    let body = r#"{"prompt":"x"}"#;
    for (content_type, encoding) in [
        (None, None),
        (Some("text/plain"), None),
        (Some("application/x-www-form-urlencoded"), None),
        (Some("application/json; charset=utf-16"), None),
        (Some("application/json"), Some("gzip")),
    ] {
        let mut request = Request::post("/v1/completions");
        if let Some(value) = content_type {
            request = request.header("content-type", value);
        }
        if let Some(value) = encoding {
            request = request.header("content-encoding", value);
        }
        let request = request.body(http_body_util::Full::from(body)).unwrap();
        check(&send(server.address, request).await, 415, None, &format!("{content_type:?} {encoding:?}"));
    }
}

#[tokio::test]
async fn bodies_over_the_limit() {
    let server = Server::start(script(hello)).await;
    let body = json!({"prompt": "x".repeat(10_000_000)}).to_string();
    check(&post_bytes(server.address, "/v1/completions", body.clone()).await, 413, None, "announced");
    // Without a length, in chunks.
    let chunks: Vec<_> = body
        .as_bytes()
        .chunks(100_000)
        .map(|c| Ok::<_, std::io::Error>(bytes::Bytes::copy_from_slice(c)))
        .collect();
    let request = json_request("/v1/completions", "");
    let request = request.map(|_| axum::body::Body::from_stream(futures_util::stream::iter(chunks)));
    check(&send(server.address, request).await, 413, None, "chunked");
    // Just under the limit is accepted.
    let body = json!({"prompt": "x".repeat(9_999_980)}).to_string();
    assert_eq!(post_bytes(server.address, "/v1/completions", body).await.status, 200);
}

#[tokio::test]
async fn bodies_that_do_not_come() {
    let server = Server::with(script(hello), |config| config.body_timeout_s = 1).await;
    let never = axum::body::Body::from_stream(futures_util::stream::pending::<
        Result<bytes::Bytes, std::io::Error>,
    >());
    let request = json_request("/v1/completions", "").map(|_| never);
    check(&send(server.address, request).await, 408, None, "a body that never comes");
}

#[tokio::test]
async fn routes_and_methods() {
    let server = Server::start(script(hello)).await;
    for path in ["/embed/", "/v1", "/v1/images", "/v1/chat", "/v1/completions/", "/v1/models/", "/nope/..%2f"]
    {
        let answer = post(server.address, path, &json!({})).await;
        check(&answer, 404, None, path);
        assert_eq!(answer.json()["error"]["code"], "route_not_found");
    }
    for (method, path, allow) in [
        ("GET", "/v1/chat/completions", "POST"),
        ("DELETE", "/v1/completions", "POST"),
        ("POST", "/v1/models", "GET,HEAD"),
        ("PUT", "/v1/models/x", "GET,HEAD,DELETE"),
        ("POST", "/health", "GET,HEAD"),
        ("BREW", "/tokenize", "POST"),
    ] {
        let request =
            Request::builder().method(method).uri(path).body(http_body_util::Full::default()).unwrap();
        let answer = send(server.address, request).await;
        check(&answer, 405, None, &format!("{method} {path}"));
        assert_eq!(answer.header("allow"), Some(allow), "{method} {path}");
    }
}

/// What is behind the longest list that is read is refused, where a shorter look at it would have said nothing.
#[tokio::test]
async fn lists_that_are_too_long_are_refused_and_not_cut_off() {
    let server = Server::start(script(hello)).await;
    let function = json!({"type": "function", "function": {"name": "f"}});
    let custom = json!({"type": "custom", "name": "patch"});
    let chat = json!({
        "model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": [function],
        "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": vec![function; 1025]}},
    });
    let allowed = json!({
        "model": "m", "input": "hi", "tools": [custom],
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": vec![custom; 1025]},
    });
    let included =
        json!({"model": "m", "input": "hi", "include": vec!["reasoning.encrypted_content"; 16_385]});
    let thought = json!({"type": "reasoning_text", "text": "a"});
    let thoughts = json!({"model": "m", "input": [
        {"type": "message", "role": "user", "content": "hi"},
        {"type": "reasoning", "summary": [], "content": vec![thought; 16_385]},
    ]});
    for (path, body, param) in [
        ("/v1/chat/completions", chat, "tool_choice.allowed_tools.tools"),
        ("/v1/responses", allowed, "tool_choice.tools"),
        ("/v1/responses", included, "include"),
        ("/v1/responses", thoughts, "input[1].content"),
    ] {
        check(&post(server.address, path, &body).await, 400, Some(param), param);
    }
    assert!(server.fake.seen().is_empty());
}
