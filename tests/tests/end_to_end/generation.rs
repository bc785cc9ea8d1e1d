//! How tokens are drawn, how long a model reasons, and the middle of a text, as an HTTP client sees it.

use std::path::Path;

use hanzo_engine_daemon::{DEMO_GGUF, DEMO_MODEL};
use hanzo_engine_proto::v1::{Capability, LoadRequest};
use hanzo_engine_tests::{
    demo,
    rig::{Rig, streamed_text},
};
use serde_json::{Value, json};

const SUM: &str = "What is 17 + 25?";

/// What came of a chat: the reasoning, the answer, and how many tokens the reasoning has.
fn parts(answer: &Value) -> (String, String, u64) {
    let text = |name: &str| answer["choices"][0]["message"][name].as_str().unwrap_or_default().to_owned();
    let used = &answer["usage"]["completion_tokens_details"]["reasoning_tokens"];
    (text("reasoning_content"), text("content"), used.as_u64().unwrap_or_else(|| panic!("{answer}")))
}

#[tokio::test(flavor = "multi_thread")]
async fn reasoning_is_as_long_as_it_may_be_and_an_answer_follows() {
    let rig = Rig::start().await;
    let think = async |more: Value| {
        let mut body = json!({"chat_template_kwargs": {}, "enable_thinking": true, "temperature": 0});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let (status, _, answer) = rig.chat(SUM, body).await;
        assert_eq!(status, 200, "{answer}");
        parts(&answer)
    };
    let (whole, _, tokens) = think(json!({})).await;
    assert!(tokens > 8, "{tokens}: {whole}");
    for budget in [0_u64, 1, 2, 5, tokens - 1] {
        for name in ["thinking_token_budget", "thinking_budget", "reasoning_budget", "thinking_budget_tokens"]
        {
            let (reasoned, answer, used) = think(json!({name: budget})).await;
            // The marker that opens the section is a token of it.
            assert!(used <= budget.max(1), "{used} of {budget}: {reasoned}");
            assert!(whole.starts_with(reasoned.trim_end()) && reasoned.len() < whole.len(), "{reasoned}");
            assert!(!answer.is_empty() && !answer.contains("think>"), "{answer:?}");
        }
    }
    for more in [
        json!({"thinking_budget": tokens + 1}),
        json!({"reasoning": {"effort": "high", "max_tokens": 4000}}),
        json!({"thinking_budget": -1}),
    ] {
        assert_eq!(think(more).await.0, whole);
    }
    // A stream has the same pieces.
    let more =
        json!({"chat_template_kwargs": {}, "enable_thinking": true, "temperature": 0, "thinking_budget": 5});
    let (_, _, answer) = rig.chat(SUM, more.clone()).await;
    let (events, done) = rig.chat_stream(SUM, more).await;
    assert!(done);
    let streamed = |name: &str| -> String {
        events.iter().filter_map(|event| event["choices"][0]["delta"][name].as_str()).collect()
    };
    let (reasoned, said, _) = parts(&answer);
    assert_eq!((streamed("reasoning_content"), streamed("content")), (reasoned, said));
    // Who is not to reason does not.
    for more in [
        json!({"reasoning_effort": "none"}),
        json!({"enable_thinking": false}),
        json!({"reasoning": {"enabled": false}}),
    ] {
        let mut more = more;
        more["chat_template_kwargs"] = json!({});
        assert_eq!(parts(&rig.chat(SUM, more).await.2).2, 0);
    }
    rig.ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_stops_at_its_end_unless_that_is_ignored() {
    let rig = Rig::start().await;
    const QUESTION: &str = "What is the capital of France?";
    // As `data/golden.json` has it: eight tokens, the last of which is the end.
    const UNTIL_END: u64 = 8;
    let ask = async |more: Value| {
        let mut body = json!({"temperature": 0, "max_tokens": 40});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let (status, _, answer) = rig.chat(QUESTION, body.clone()).await;
        assert_eq!(status, 200, "{more}: {answer}");
        let choice = &answer["choices"][0];
        let text = choice["message"]["content"].as_str().expect("a text").to_owned();
        let reason = choice["finish_reason"].as_str().expect("a reason").to_owned();
        let (events, done) = rig.chat_stream(QUESTION, body).await;
        let last =
            events.iter().filter_map(|event| event["choices"][0]["finish_reason"].as_str()).next_back();
        assert!(done && last == Some(&reason), "{more}: {last:?}, not {reason}");
        assert_eq!(streamed_text(&events, 0), text, "{more}");
        (text, reason, answer["usage"]["completion_tokens"].as_u64().expect("a count"))
    };
    let (whole, reason, tokens) = ask(json!({})).await;
    assert_eq!((reason.as_str(), tokens), ("stop", UNTIL_END), "{whole}");
    assert!(whole.contains("Paris") && !whole.contains("<|"), "{whole}");
    // With room for all but the end, which is what the last place was for.
    let (text, reason, tokens) = ask(json!({"max_tokens": UNTIL_END - 1})).await;
    assert_eq!((text.as_str(), reason.as_str(), tokens), (whole.as_str(), "length", UNTIL_END - 1));
    // It goes on where the end is ignored, from the same text, and however much the end is wished for.
    for more in
        [json!({}), json!({"logit_bias": {"4089": 100}}), json!({"temperature": 2, "seed": 3, "top_k": 2})]
    {
        let mut body = json!({"ignore_eos": true});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let (text, reason, tokens) = ask(body).await;
        assert_eq!((reason.as_str(), tokens), ("length", 40), "{more}: {text}");
        assert!(text.starts_with(&whole) || more.get("temperature").is_some(), "{more}: {text}");
        assert!(!text.contains("<|im_end|>"), "{more}: {text}");
    }
    // Wished for so much it comes at once where it is not ignored.
    let (text, reason, tokens) = ask(json!({"logit_bias": {"4089": 100}})).await;
    assert_eq!((text.as_str(), reason.as_str(), tokens), ("", "stop", 1));
    rig.ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_sampler_is_heard_and_repeats_itself() {
    let rig = Rig::start().await;
    let ask = async |more: &Value| {
        let mut body = json!({"temperature": 1.5, "seed": 11, "max_tokens": 40, "ignore_eos": true});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let (status, _, answer) = rig.chat("Tell me a story about a fox named Mia.", body).await;
        assert_eq!(status, 200, "{more}: {answer}");
        answer["choices"][0]["message"]["content"].as_str().expect("a text").to_owned()
    };
    let plain = ask(&json!({})).await;
    for more in [
        json!({"typical_p": 0.3}),
        json!({"top_n_sigma": 0.5}),
        json!({"xtc_probability": 1, "xtc_threshold": 0.05}),
        json!({"dynatemp_range": 1.4}),
        json!({"mirostat": 2, "mirostat_tau": 1}),
        json!({"dry_multiplier": 5, "dry_allowed_length": 0, "dry_sequence_breakers": ["\u{7}"]}),
        json!({"repeat_penalty": 3, "repeat_last_n": 32}),
    ] {
        let answer = ask(&more).await;
        assert_ne!(answer, plain, "{more}");
        assert_eq!(ask(&more).await, answer, "{more}");
    }
    // At once, each says what it says alone.
    let both = [json!({"typical_p": 0.3}), json!({"mirostat": 2, "mirostat_tau": 1})];
    let alone = [ask(&both[0]).await, ask(&both[1]).await];
    assert_eq!(<[String; 2]>::from(tokio::join!(ask(&both[0]), ask(&both[1]))), alone);
    rig.ended().await;
}

/// The demo model, three of whose tokens a key says to be those of a gap.
fn coder(folder: &Path) -> String {
    let mut keys = Vec::new();
    let mut key = |name: &str, value: u32| {
        keys.extend_from_slice(&(name.len() as u64).to_le_bytes());
        keys.extend_from_slice(name.as_bytes());
        keys.extend_from_slice(&4u32.to_le_bytes()); // u32
        keys.extend_from_slice(&value.to_le_bytes());
    };
    for (part, token) in [("pre", 4092), ("suf", 4093), ("mid", 4094)] {
        key(&format!("tokenizer.ggml.fim_{part}_token_id"), token);
    }
    // Tensors stay where their alignment has them.
    key("a.b", 0);
    assert!(keys.len().is_multiple_of(32), "{}", keys.len());
    let (head, rest) = DEMO_GGUF.split_at(24);
    let count = u64::from_le_bytes(head[16..].try_into().expect("eight bytes")) + 4;
    let file = [&head[..16], &count.to_le_bytes(), &keys, rest].concat();
    let path = folder.join("coder.gguf");
    std::fs::write(&path, file).expect("a file");
    path.to_str().expect("UTF-8").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gap_is_filled_in_where_the_model_has_the_tokens() {
    let (rig, folder) = (Rig::start().await, tempfile::tempdir().expect("a folder"));
    let load = LoadRequest { model: coder(folder.path()), alias: "coder".into(), ..Default::default() };
    let status = rig.grpc().await.load(load).await.expect("it loads").into_inner().model.expect("a model");
    assert!(status.capabilities().any(|can| can == Capability::Infill), "{status:?}");

    let text = demo::text();
    let plain = |said: &str| text.tokenizer.encode_plain(said, false).expect("tokens");
    let (before, after) = ("def add(a, <tool_call>", "):\n    return a + b\n");
    let gap = |more: &[u32]| [&[4092], &plain(before)[..], &[4093], &plain(after), &[4094], more].concat();
    let ask = async |path: &str, body: Value| {
        let mut all = json!({"model": "coder", "max_tokens": 12, "temperature": 0, "ignore_eos": true});
        all.as_object_mut().expect("an object").extend(body.as_object().expect("an object").clone());
        let (status, _, answer) = rig.send(path, Some(all)).await;
        assert_eq!(status, 200, "{answer}");
        answer
    };
    // The tokens of the prompt are those, in that order, and nothing of what is said is one.
    let expected = ask("/v1/completions", json!({"prompt": gap(&[])})).await;
    let filled = ask("/v1/completions", json!({"prompt": before, "suffix": after})).await;
    assert_eq!(filled["usage"]["prompt_tokens"], gap(&[]).len());
    assert_eq!(filled["choices"][0]["text"], expected["choices"][0]["text"]);
    let llama = json!({"input_prefix": before, "input_suffix": after});
    let filled = ask("/infill", llama.clone()).await;
    assert_eq!((&filled["content"], &filled["stop"]), (&expected["choices"][0]["text"], &json!(true)));
    assert_eq!(filled["tokens_evaluated"], gap(&[]).len());
    // How it begins, and what stands before it.
    let begun =
        ask("/infill", json!({"input_prefix": before, "input_suffix": after, "prompt": "b: int"})).await;
    let expected = ask("/v1/completions", json!({"prompt": gap(&plain("b: int"))})).await;
    assert_eq!(begun["content"], expected["choices"][0]["text"]);
    let extra = json!([{"filename": "x.py", "text": "import y\n"}]);
    let with =
        ask("/infill", json!({"input_prefix": before, "input_suffix": after, "input_extra": extra})).await;
    assert!(with["tokens_evaluated"].as_u64() > filled["tokens_evaluated"].as_u64(), "{with}");
    // Streamed, piece by piece.
    let mut stream = llama;
    stream["model"] = "coder".into();
    (stream["stream"], stream["n_predict"], stream["temperature"]) = (true.into(), 12.into(), 0.into());
    stream["ignore_eos"] = true.into();
    let (status, _, bytes) = rig.send_raw("/infill", Some(stream.to_string().into())).await;
    let events: Vec<Value> = String::from_utf8_lossy(&bytes)
        .lines()
        .filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok())
        .collect();
    assert_eq!((status, events.last().map(|last| last["stop"] == true)), (200, Some(true)));
    let pieces: String = events.iter().filter_map(|event| event["content"].as_str()).collect();
    assert_eq!(filled["content"], pieces);

    // What llama.vim sends: a chunk of context that is only read, and then a gap.
    let chunk = json!([{"text": "import y\n", "time": 7.5, "filename": "x.py"}]);
    let warm = json!({
        "model": "coder", "id_slot": 0, "input_prefix": "", "input_suffix": "", "input_extra": chunk, "prompt": "",
        "n_predict": 0, "temperature": 0.0, "samplers": [], "stream": false, "cache_prompt": true, "t_max_prompt_ms": 1,
        "t_max_predict_ms": 1, "response_fields": [""]
    });
    assert_eq!(rig.send("/infill", Some(warm.clone())).await.2, json!({}));
    let mut read = warm;
    read["response_fields"] = json!(["content", "tokens_predicted", "stop_type", "nowhere/at/all"]);
    let expected = json!({"content": "", "tokens_predicted": 0, "stop_type": "limit"});
    assert_eq!(rig.send("/infill", Some(read)).await.2, expected);
    let vim = json!({
        "model": "coder", "id_slot": 0, "input_prefix": before, "input_suffix": after, "input_extra": chunk,
        "prompt": "", "n_predict": 12, "stop": [], "n_indent": 0, "top_k": 40, "top_p": 0.9,
        "samplers": ["top_k", "top_p", "infill"], "stream": false, "cache_prompt": true, "t_max_prompt_ms": 500,
        "t_max_predict_ms": 100_000, "seed": 3, "response_fields": [
            "content", "timings/prompt_n", "timings/prompt_ms", "timings/prompt_per_token_ms",
            "timings/prompt_per_second", "timings/predicted_n", "timings/predicted_ms",
            "timings/predicted_per_token_ms", "timings/predicted_per_second", "truncated", "tokens_cached"
        ]
    });
    let (status, _, answer) = rig.send("/infill", Some(vim.clone())).await;
    assert_eq!(status, 200, "{answer}");
    for name in vim["response_fields"].as_array().expect("an array") {
        assert!(answer.get(name.as_str().expect("a name")).is_some(), "{name} of {answer}");
    }
    assert_eq!(answer.as_object().map(|all| all.len()), Some(11), "{answer}");
    // What llama.vscode sends: three at once, and the first is that of the seed alone.
    let code = json!({
        "model": "coder", "id_slot": 0, "input_prefix": before, "input_suffix": after, "input_extra": chunk,
        "prompt": "", "n_predict": 12, "n_cmpl": 3, "top_k": 40, "top_p": 0.9, "stream": false, "seed": 3,
        "samplers": ["top_k", "top_p", "infill"], "cache_prompt": true, "n_indent": 4, "t_max_prompt_ms": 500,
        "t_max_predict_ms": 100_000
    });
    let (status, _, answer) = rig.send("/infill", Some(code)).await;
    let all = answer.as_array().expect("a list");
    assert_eq!((status, all.len()), (200, 3), "{answer}");
    assert!(all.iter().zip(0..).all(|(one, index)| one["index"] == index && one["content"].is_string()));

    // The demo model has none: it says so, on both routes.
    for (path, body) in [
        ("/v1/completions", json!({"model": DEMO_MODEL, "prompt": "a", "suffix": "b"})),
        ("/infill", json!({"model": DEMO_MODEL, "input_prefix": "a", "input_suffix": "b"})),
    ] {
        let (status, _, answer) = rig.send(path, Some(body)).await;
        assert_eq!(status, 400, "{answer}");
        assert!(
            answer["error"]["message"].as_str().is_some_and(|text| text.contains("no tokens")),
            "{answer}"
        );
        assert!(answer["error"]["param"].as_str().is_some_and(|name| name.ends_with("suffix")), "{answer}");
    }
    rig.ended().await;
}
