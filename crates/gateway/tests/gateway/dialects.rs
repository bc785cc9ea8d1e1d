//! The names that llama.cpp's server and vLLM document for requests: each is honoured, accepted where it asks for
//! nothing, or refused by a message that says what is supported; none is unknown. And errors name a field that was
//! sent.

use serde_json::{Map, Value, json};
use tonic::Status;

use crate::{Server, fake::hello, http::post, script};

const CHAT: (&str, &str) = ("/v1/chat/completions", r#"{"messages":[{"role":"user","content":"x"}]}"#);
const TEXT: (&str, &str) = ("/v1/completions", r#"{"prompt":"x"}"#);

/// llama.cpp's, of both routes.
const LLAMA: &str = "temperature dynatemp_range dynatemp_exponent top_k top_p min_p n_predict n_indent n_keep n_cmpl \
    n_cache_reuse stream stop typical_p repeat_penalty repeat_last_n presence_penalty frequency_penalty dry_multiplier \
    dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breakers xtc_probability xtc_threshold mirostat \
    mirostat_tau mirostat_eta grammar json_schema seed ignore_eos logit_bias n_probs min_keep t_max_predict_ms id_slot \
    cache_prompt return_tokens samplers timings_per_token return_progress sse_ping_interval post_sampling_probs \
    response_fields lora reasoning_format response_format max_tokens n_discard top_n_sigma";

/// vLLM's, of both routes.
const VLLM: &str = "model frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop stream \
    stream_options temperature top_p user use_beam_search top_k min_p repetition_penalty watermarking length_penalty \
    stop_token_ids include_stop_str_in_output ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens \
    truncate_prompt_tokens truncation_side allowed_token_ids prompt_logprobs logprob_token_ids bad_words \
    add_special_tokens response_format structured_outputs priority request_id session_id return_tokens_as_token_ids \
    return_token_ids routed_experts_prompt_start return_token_offsets return_mm_kwargs cache_salt kv_transfer_params \
    ec_transfer_params vllm_xargs repetition_detection thinking_token_budget stream_interval echo";

const VLLM_CHAT: &str = "top_logprobs max_completion_tokens tools tool_choice reasoning_effort include_reasoning \
    parallel_tool_calls add_generation_prompt continue_final_message documents chat_template chat_template_kwargs \
    media_io_kwargs mm_processor_kwargs return_prompt_text reasoning_control";

const VLLM_TEXT: &str = "suffix prompt_embeds";

fn body((_, good): (&str, &str), field: &str, value: Value) -> Value {
    let mut body: Map<String, Value> = serde_json::from_str(good).unwrap();
    body.insert(field.to_owned(), value);
    Value::Object(body)
}

#[tokio::test]
async fn no_documented_name_is_unknown() {
    let server = Server::start(script(hello)).await;
    let mut names = 0;
    for (route, lists) in [(CHAT, [LLAMA, VLLM, VLLM_CHAT]), (TEXT, [LLAMA, VLLM, VLLM_TEXT])] {
        for name in lists.iter().flat_map(|list| list.split_whitespace()) {
            // No field means anything by that.
            let answer = post(server.address, route.0, &body(route, name, json!([{"weird": 1}]))).await;
            assert_eq!(answer.status, 400, "{name}: {}", answer.text);
            let error = &answer.json()["error"];
            let message = error["message"].as_str().unwrap();
            assert!(!message.contains("unknown field"), "{}: {message}", route.0);
            let param = error["param"].as_str().unwrap();
            assert!(param.starts_with(name), "{name}: {message}");
            names += 1;
        }
        let answer = post(server.address, route.0, &body(route, "no_such_name", json!(1))).await;
        assert!(answer.text.contains("unknown field"), "{}", answer.text);
    }
    assert!(names > 200, "{names}");
}

/// Each field's values that ask for nothing: llama.cpp's and vLLM's defaults, and OpenAI's.
#[tokio::test]
async fn defaults_are_no_wishes() {
    let server = Server::start(script(hello)).await;
    const BOTH: &str = r#"{
        "dynatemp_range": 0.0, "dynatemp_exponent": 1.0, "n_indent": 0, "n_keep": 0, "n_discard": 0, "n_cmpl": 1,
        "n_cache_reuse": 0, "typical_p": 1.0, "repeat_penalty": 1.0, "repeat_last_n": 64, "dry_multiplier": 0.0,
        "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": -1, "dry_sequence_breakers": ["\n", ":"],
        "xtc_probability": 0.0, "xtc_threshold": 0.1, "mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1,
        "grammar": "", "seed": -1, "ignore_eos": false, "n_probs": 0, "min_keep": 0, "t_max_predict_ms": 0,
        "id_slot": 3, "cache_prompt": true, "return_tokens": false, "timings_per_token": false,
        "return_progress": false, "post_sampling_probs": false, "response_fields": [], "lora": [], "n_predict": -1,
        "top_n_sigma": -1.0, "reasoning_format": "auto", "reasoning_control": false, "use_beam_search": false,
        "length_penalty": 1.0, "watermarking": false, "bad_words": [], "skip_special_tokens": true,
        "spaces_between_special_tokens": true, "truncation_side": "left", "return_tokens_as_token_ids": false,
        "return_token_ids": false, "return_token_offsets": false, "return_mm_kwargs": true, "stream_interval": 1,
        "routed_experts_prompt_start": 0, "session_id": "s", "vllm_xargs": {}, "thinking_token_budget": -1,
        "echo": false, "verbosity": "medium", "prompt_cache_options": {}, "include_reasoning": true, "top_p": 0,
        "n": 1.0, "max_tokens": -1, "speculative.n_max": 16
    }"#;
    let both: Value = serde_json::from_str(BOTH).unwrap();
    for (route, own) in [
        (
            CHAT,
            json!({"add_special_tokens": false, "documents": [], "return_prompt_text": false, "reasoning_effort": "max"}),
        ),
        (TEXT, json!({"add_special_tokens": true, "suffix": ""})),
    ] {
        let all = both.as_object().unwrap().iter().chain(own.as_object().unwrap());
        for (name, value) in all {
            let answer = post(server.address, route.0, &body(route, name, value.clone())).await;
            assert_eq!(answer.status, 200, "{name} {value}: {}", answer.text);
        }
    }
}

#[tokio::test]
async fn refusals_say_what_is_supported() {
    let server = Server::start(script(hello)).await;
    for (name, value, says) in [
        ("n_probs", json!(5), "use logprobs"),
        ("mirostat", json!(1), "the values it accepts are 0 and 2"),
        ("n_discard", json!(7), "the only value it accepts is 0"),
        ("reasoning_format", json!("none"), "\"auto\" or \"deepseek\""),
        ("request_id", json!("x"), "use the header x-request-id"),
        ("logprob_token_ids", json!([1]), "use logprobs"),
        ("skip_special_tokens", json!(false), "the only value it accepts is true"),
    ] {
        for route in [CHAT, TEXT] {
            let answer = post(server.address, route.0, &body(route, name, value.clone())).await;
            let error = answer.json()["error"].clone();
            assert_eq!(error["code"], "unsupported_parameter", "{error}");
            assert!(error["message"].as_str().unwrap().contains(says), "{error}");
        }
    }
}

/// What the engine refuses, in its words, and what the client is told.
#[tokio::test]
async fn an_error_names_a_field_that_was_sent() {
    for (route, extra, engine, param, says) in [
        (CHAT, json!({}), "max_tokens: must be less", None, "max_tokens: must be less"),
        (CHAT, json!({"max_tokens": 9}), "max_tokens: must be less", Some("max_tokens"), "max_tokens: must"),
        (
            CHAT,
            json!({"max_completion_tokens": 9}),
            "stop.max_tokens: no",
            Some("max_completion_tokens"),
            "max_completion_tokens: no",
        ),
        (CHAT, json!({"n_predict": 9}), "max_tokens: no", Some("n_predict"), "n_predict: no"),
        (CHAT, json!({"n": 9}), "choices: no", Some("n"), "n: no"),
        (CHAT, json!({"n_cmpl": 9}), "choices: no", Some("n_cmpl"), "n_cmpl: no"),
        (CHAT, json!({}), "prompt: too long", Some("messages"), "messages: too long"),
        (CHAT, json!({}), "chat.messages[0].role: no", Some("messages[0].role"), "messages[0].role: no"),
        (CHAT, json!({"stop": "x"}), "stop.strings[0]: no", Some("stop[0]"), "stop[0]: no"),
        (
            CHAT,
            json!({"stop_token_ids": [1]}),
            "stop.token_ids: no",
            Some("stop_token_ids"),
            "stop_token_ids: no",
        ),
        (
            CHAT,
            json!({"reasoning_effort": "low"}),
            "template_kwargs_json: no",
            Some("reasoning_effort"),
            "reasoning_effort: no",
        ),
        (TEXT, json!({}), "prompt: too long", Some("prompt"), "prompt: too long"),
        (TEXT, json!({}), "tokens[3]: no", Some("prompt[3]"), "prompt[3]: no"),
        (TEXT, json!({"logprobs": 3}), "top_logprobs: no", Some("logprobs"), "logprobs: no"),
        (TEXT, json!({"prompt": ["a", "b"]}), "prompt: too long", Some("prompt[0]"), "prompt[0]: too long"),
        (TEXT, json!({"temperature": 1}), "sampling.temperature: no", Some("temperature"), "temperature: no"),
    ] {
        let server = Server::start(script(move |_| Err(Status::invalid_argument(engine)))).await;
        let mut body: Value = serde_json::from_str(route.1).unwrap();
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let error = post(server.address, route.0, &body).await.json()["error"].clone();
        assert_eq!(error["param"].as_str(), param, "{body} {engine}: {error}");
        assert!(error["message"].as_str().unwrap().starts_with(says), "{body} {engine}: {error}");
    }
    // A model that was not named, and one that was.
    let server = Server::start(script(|_| Err(Status::not_found("model: \"m\" is not loaded")))).await;
    for (extra, param) in [(json!({}), None), (json!({"model": "m"}), Some("model"))] {
        let mut body: Value = serde_json::from_str(CHAT.1).unwrap();
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let answer = post(server.address, CHAT.0, &body).await;
        assert_eq!((answer.status, answer.json()["error"]["param"].as_str()), (404, param));
    }
    // The second of several prompts.
    let server = Server::start(script(|request| match &request.prompt {
        Some(hanzo_engine_proto::v1::infer_request::Prompt::Text(text)) if text == "bad" => {
            Err(Status::invalid_argument("prompt: too long"))
        }
        _ => hello(request),
    }))
    .await;
    let answer = post(server.address, TEXT.0, &json!({"prompt": ["good", "bad"]})).await;
    assert_eq!(answer.json()["error"]["param"], "prompt[1]", "{}", answer.text);
}

#[tokio::test]
async fn llama_cpps_embedding_is_a_list_of_lists() {
    let server = Server::start(script(hello)).await;
    let body = json!({"model": "owner/ready", "content": ["one", "three"], "embd_normalize": -1});
    let answer = post(server.address, "/embedding", &body).await;
    let vectors = answer.json();
    assert_eq!((answer.status, vectors.as_array().unwrap().len()), (200, 2), "{}", answer.text);
    assert_eq!(vectors[1]["index"], 1);
    assert!(vectors[1]["embedding"][0][0].is_number(), "{}", answer.text);
    assert_eq!(server.fake.embeds().remove(0).normalize, Some(false));
    let empty = post(server.address, "/embedding", &json!({"model": "owner/ready", "content": ""})).await;
    assert_eq!((empty.status, &empty.json()["error"]["param"]), (400, &json!("content")));
}
