//! llama.cpp's own routes: what they ask the engine, and what they answer, streamed and whole.

use hanzo_engine_proto::v1::{
    self, FinishReason, infer_event::Event, infer_request::Prompt, tokenize_request::Input,
};
use serde_json::{Value, json};

use crate::{
    Server,
    fake::{Step, delta, finished, hello, logprob, ready_stats, started},
    http::{get, post},
    script,
};

/// "a\n" and "b", of three tokens, ended by a stop string.
fn said(_: &v1::InferRequest) -> Result<Vec<Step>, tonic::Status> {
    let piece = |text: &str, token_ids: &[u32]| {
        let top = vec![logprob("x", -0.5, Vec::new()), logprob("y", f32::NEG_INFINITY, Vec::new())];
        let logprobs = vec![logprob(text, -0.25, top)];
        let token_ids = token_ids.to_vec();
        Step::Send(Event::Delta(v1::Delta {
            text: text.to_owned(),
            token_ids,
            logprobs,
            ..Default::default()
        }))
    };
    let Step::Send(Event::Finished(end)) = finished(0, FinishReason::Stop, 4) else { unreachable!() };
    let end = Step::Send(Event::Finished(v1::Finished { stop_string: "END".to_owned(), ..end }));
    Ok(vec![started(), piece("a\n", &[5]), piece("b", &[6, 7]), end])
}

fn events(text: &str) -> Vec<Value> {
    let event = |line: &str| serde_json::from_str(line.strip_prefix("data: ")?).ok();
    text.lines().filter_map(event).collect()
}

#[tokio::test]
async fn a_whole_completion() {
    let server = Server::start(script(said)).await;
    let body = json!({"prompt": "hi", "n_predict": 9, "n_probs": 2, "return_tokens": true, "stop": ["END"],
        "logit_bias": [[3, 1.5], [4, false]], "seed": -1, "grammar": "root ::= \"a\"", "id_slot": 1});
    let answer = post(server.address, "/completion", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let mut whole = answer.json();
    let settings = whole["generation_settings"].take();
    for (name, value) in [
        ("temperature", json!(0.5)),
        ("seed", json!(1)),
        ("n_predict", json!(9)),
        ("n_ctx", json!(4096)),
        ("stop", json!(["END"])),
        ("n_probs", json!(2)),
        ("grammar", json!("root ::= \"a\"")),
        ("logit_bias", json!([{"token": 3, "bias": 1.5}, {"token": 4, "bias": -100.0}])),
        ("stream", json!(false)),
        ("top_n_sigma", json!(-1.0)),
    ] {
        assert_eq!(settings[name], value, "{name}");
    }
    let timings = whole["timings"].take();
    assert_eq!((&timings["prompt_n"], &timings["cache_n"]), (&json!(4), &json!(3)));
    assert_eq!((&timings["predicted_n"], &timings["predicted_per_second"]), (&json!(4), &json!(5.0)));
    for token in whole["completion_probabilities"].as_array_mut().unwrap() {
        // JSON has no word for minus infinity.
        let least = token["top_logprobs"][1]["logprob"].take();
        assert!(least.as_f64().unwrap() < -3e38, "{least}");
    }
    let other = |token: &str, logprob: f32| json!({"id": 1, "token": token, "bytes": token.as_bytes(), "logprob": logprob});
    let token = |token: &str| {
        let mut one = other(token, -0.25);
        one["top_logprobs"] = json!([other("x", -0.5), other("y", f32::NEG_INFINITY)]);
        one
    };
    let expected = json!({
        "index": 0, "content": "a\nb", "tokens": [5, 6, 7], "id_slot": -1, "stop": true, "tokens_predicted": 4,
        "tokens_evaluated": 7, "completion_probabilities": [token("a\n"), token("b")], "model": "owner/ready",
        "generation_settings": null, "prompt": "hi", "has_new_line": true, "truncated": false, "stop_type": "word",
        "stopping_word": "END", "tokens_cached": 3, "timings": null,
    });
    assert_eq!(whole, expected);
    let asked = server.fake.seen().remove(0);
    assert_eq!(asked.prompt, Some(Prompt::Text("hi".to_owned())));
    assert_eq!((asked.logprobs, asked.top_logprobs), (true, 2));
    // -1 is drawn by the engine.
    assert_eq!(asked.sampling.unwrap().seed, None);
    assert_eq!(asked.stop.unwrap().max_tokens, Some(9));
}

#[tokio::test]
async fn a_streamed_completion_has_pieces_and_an_end_and_no_word_after_it() {
    let server = Server::start(script(said)).await;
    let body = json!({"prompt": [1, 2], "stream": true, "n_probs": 2});
    let answer = post(server.address, "/completions", &body).await;
    assert_eq!(answer.header("content-type"), Some("text/event-stream"));
    assert!(!answer.text.contains("[DONE]"), "{}", answer.text);
    let events = events(&answer.text);
    let [first, second, last] = &events[..] else { panic!("{events:?}") };
    let of =
        |event: &Value| json!([event["content"], event["tokens"], event["stop"], event["tokens_predicted"]]);
    assert_eq!(of(first), json!(["a\n", [5], false, 1]));
    assert_eq!(of(second), json!(["b", [6, 7], false, 3]));
    assert_eq!(of(last), json!(["", [], true, 4]));
    assert_eq!(second["completion_probabilities"][0]["token"], "b");
    assert_eq!(second["completion_probabilities"].as_array().map(Vec::len), Some(1));
    assert!(last.get("completion_probabilities").is_none() && last["has_new_line"] == true, "{last}");
    assert_eq!((&last["prompt"], &last["generation_settings"]["stream"]), (&json!([1, 2]), &json!(true)));
}

#[tokio::test]
async fn several_are_a_list_by_prompt_and_choice() {
    let server = Server::start(script(hello)).await;
    let body = json!({"prompt": ["a", [4, 5], {"prompt_string": "c"}], "n_cmpl": 2, "response_fields":
        ["index", "prompt", "generation_settings/seed", "tokens_evaluated", "stop_type", "nowhere"]});
    let answer = post(server.address, "/completion", &body).await;
    let one = |index: u32, prompt: Value| {
        json!({"index": index, "prompt": prompt, "generation_settings/seed": 1 + index % 2, "tokens_evaluated": 7,
            "stop_type": "eos"})
    };
    let prompts = [json!("a"), json!("a"), json!([4, 5]), json!([4, 5]), json!("c"), json!("c")];
    let expected: Vec<Value> = (0..).zip(prompts).map(|(index, prompt)| one(index, prompt)).collect();
    assert_eq!(answer.json(), json!(expected));
    // A list of one is one.
    let answer = post(server.address, "/completion", &json!({"prompt": ["a"]})).await;
    assert_eq!(answer.json()["content"], "Hello");
    // What nobody has asked for is not there.
    assert_eq!(answer.json()["tokens"], json!([]));
    assert!(answer.json().get("completion_probabilities").is_none());
}

#[tokio::test]
async fn a_full_context_and_no_tokens_at_all() {
    let server = Server::start(script(|_| {
        let Step::Send(Event::Started(start)) = started() else { unreachable!() };
        let start = Step::Send(Event::Started(v1::Started { context_tokens_max: 12, ..start }));
        Ok(vec![start, delta(0, "x"), finished(0, FinishReason::Length, 5)])
    }))
    .await;
    let answer = post(server.address, "/completion", &json!({"prompt": "a"})).await.json();
    assert_eq!((&answer["truncated"], &answer["stop_type"]), (&json!(true), &json!("limit")));
    let answer = post(server.address, "/completion", &json!({"prompt": "a", "n_predict": 0})).await.json();
    assert_eq!((&answer["content"], &answer["tokens_predicted"]), (&json!(""), &json!(0)));
}

#[tokio::test]
async fn what_cannot_be_done_is_refused_by_name() {
    let server = Server::start(script(hello)).await;
    for (name, value, says) in [
        ("prompt", json!([1, "two"]), "tokens and texts in one array"),
        ("prompt", json!([]), "must not be empty"),
        ("prompt", json!({"prompt_string": "a", "multimodal_data": ["aGk="]}), "pictures"),
        ("logit_bias", json!([["Hello", -1]]), "token ids, from /tokenize"),
        ("logit_bias", json!([[1]]), "expected a token id and a number"),
        ("post_sampling_probs", json!(true), "only value it accepts is false"),
        ("timings_per_token", json!(true), "timings"),
        ("return_progress", json!(true), "only value it accepts is false"),
        ("n_probs", json!(21), "20"),
        ("mirostat", json!(1), "0 and 2"),
        ("tfs_z", json!(0.5), "only value it accepts is 1"),
        ("lora", json!([{"id": 0, "scale": 1}]), "base:adapter"),
        ("image_data", json!([{"id": 1}]), "/v1/chat/completions"),
        ("messages", json!([]), "/v1/chat/completions"),
        ("samplers", json!(["top_p", "top_k"]), "order"),
        ("no_such_field", json!(1), "unknown field"),
    ] {
        let mut body = json!({"prompt": "a"});
        body[name] = value;
        let answer = post(server.address, "/completion", &body).await;
        assert_eq!(answer.status, 400, "{name}: {}", answer.text);
        let error = &answer.json()["error"];
        assert!(error["param"].as_str().unwrap().starts_with(name), "{error}");
        assert!(error["message"].as_str().unwrap().contains(says), "{error}");
    }
    for path in ["/props", "/slots/0?action=erase", "/lora-adapters"] {
        let answer = post(server.address, path, &json!({})).await;
        assert_eq!(
            (answer.status, &answer.json()["error"]["code"]),
            (400, &json!("not_supported")),
            "{path}"
        );
    }
    // llama-cpp-agent's defaults, with a temperature under which its order of samplers can be kept.
    let agent = json!({"temperature": 1.0, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "n_predict": -1, "n_keep": 0,
        "stream": false, "tfs_z": 1.0, "typical_p": 1.0, "repeat_penalty": 1.1, "repeat_last_n": -1,
        "penalize_nl": false, "presence_penalty": 0.0, "frequency_penalty": 0.0, "penalty_prompt": null,
        "mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1, "cache_prompt": true, "seed": -1,
        "ignore_eos": false, "stop": null, "prompt": "a",
        "samplers": ["top_k", "tfs_z", "typical_p", "top_p", "min_p", "temperature"]});
    assert_eq!(post(server.address, "/completion", &agent).await.status, 200);
}

#[tokio::test]
async fn a_template_is_applied_to_what_a_chat_takes() {
    let server = Server::start(script(hello)).await;
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "temperature": 0.5,
        "tools": [{"type": "function", "function": {"name": "f"}}], "add_generation_prompt": false});
    let answer = post(server.address, "/apply-template", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert!(answer.json()["prompt"].is_string(), "{}", answer.text);
    let Some(Input::Chat(chat)) = server.fake.tokenized().remove(0).input else { panic!("no chat") };
    assert_eq!((chat.messages.len(), chat.tools_json.len(), chat.add_generation_prompt), (1, 1, Some(false)));
    let answer = post(server.address, "/v1/chat/completions/input_tokens", &body).await.json();
    assert_eq!(answer["object"], "response.input_tokens");
    assert!(answer["input_tokens"].as_u64().unwrap() > 0, "{answer}");
    // vLLM's word for a text and llama.cpp's.
    let answer = post(server.address, "/detokenize", &json!({"tokens": [1]})).await.json();
    assert_eq!(answer["content"], answer["prompt"]);
}

#[tokio::test]
async fn properties_and_slots_tell_of_the_model() {
    let server = Server::start(script(hello)).await;
    let mut stats = ready_stats();
    let status = stats.models[0].status.as_mut().unwrap();
    status.capabilities = vec![v1::Capability::Completion.into(), v1::Capability::Vision.into()];
    (status.requests_running, status.parameters) = (2, 600);
    status.text = Some(v1::ModelText {
        vocab_size: 99,
        hidden_size: 8,
        context_tokens_trained: 8192,
        eos_token: "</s>".to_owned(),
        sampling: Some(v1::Sampling { top_k: Some(7), ..Default::default() }),
        sequences_max: 3,
        ..Default::default()
    });
    server.fake.set_stats(Ok(stats.clone()));
    let slots = get(server.address, "/slots").await.json();
    let slot = |id: u32| json!({"id": id, "n_ctx": 4096, "speculative": false, "is_processing": id < 2});
    assert_eq!(slots, json!([slot(0), slot(1), slot(2)]));
    assert_eq!(get(server.address, "/slots?fail_on_no_slot=1").await.status, 200);
    stats.models[0].status.as_mut().unwrap().requests_running = 3;
    server.fake.set_stats(Ok(stats));
    assert_eq!(get(server.address, "/slots?fail_on_no_slot=1").await.status, 503);
    assert_eq!(get(server.address, "/slots?model=nobody").await.status, 404);
    assert_eq!(get(server.address, "/slots?what=1").await.status, 400);
    let props = get(server.address, "/props?model=owner%2Fready").await.json();
    assert_eq!((&props["total_slots"], &props["model_alias"]), (&json!(3), &json!("owner/ready")));
    assert_eq!(props["modalities"], json!({"vision": true, "video": false, "audio": false}));
    let settings = &props["default_generation_settings"];
    assert_eq!((&settings["n_ctx"], &settings["params"]["top_k"]), (&json!(4096), &json!(7)));
    assert_eq!((&props["eos_token"], &props["chat_template"]), (&json!("</s>"), &json!("{{ x }}")));
    let model = get(server.address, "/v1/models").await.json()["data"][0].take();
    let meta = json!({"n_vocab": 99, "n_ctx": 4096, "n_ctx_train": 8192, "n_embd": 8, "n_params": 600, "size": 0, "ftype": ""});
    assert_eq!(model["meta"], meta);
    assert_eq!(get(server.address, "/v1/health").await.json()["status"], "ok");
}
