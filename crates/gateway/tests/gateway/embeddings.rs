//! `/v1/embeddings`: every shape, every refusal, and what becomes of requests that are cut into calls.

use base64::Engine as _;
use hanzo_engine_proto::v1::{self, EmbedOutput, TruncateSide, embed_input::Input};
use serde_json::{Value, json};
use tonic::{Code, Status};

use crate::{
    Server,
    fake::{Step, hello},
    http::{Answer, Live, get, json_request, post},
    script,
    vectors::{CUT_SHORT, DIMENSIONS, HUGE, NOT_A_NUMBER, ONE_TOO_FEW, all_kinds, vector},
};

pub(crate) async fn start() -> Server {
    let server = Server::start(script(hello)).await;
    server.fake.set_stats(Ok(all_kinds()));
    server
}

async fn embed(server: &Server, body: Value) -> Answer {
    post(server.address, "/v1/embeddings", &body).await
}

fn floats(value: &Value) -> Vec<f32> {
    serde_json::from_value(value.clone()).unwrap()
}

fn decoded(value: &Value) -> Vec<f32> {
    let bytes = base64::engine::general_purpose::STANDARD.decode(value.as_str().unwrap()).unwrap();
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn texts(request: &v1::EmbedRequest) -> Vec<String> {
    let text = |input: &v1::EmbedInput| match input.input.as_ref().unwrap() {
        Input::Text(text) => text.clone(),
        Input::Tokens(tokens) => format!("{:?}", tokens.ids),
        Input::Picture(picture) => format!("picture {:?} {}", picture.data, picture.detail),
        Input::Chat(chat) => format!("chat of {} {:?}", chat.messages.len(), chat.add_generation_prompt),
    };
    request.inputs.iter().map(text).collect()
}

#[tokio::test]
async fn the_shape_is_openais() {
    let server = start().await;
    let answer = embed(&server, json!({"model": "m", "input": ["ab", "abc"]})).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert!(answer.header("content-length").is_some());
    let body = answer.json();
    assert_eq!(body["object"], "list");
    assert_eq!(body["model"], "owner/embeds");
    assert_eq!(body["usage"], json!({"prompt_tokens": 5, "total_tokens": 5}));
    assert_eq!(body.as_object().unwrap().len(), 4);
    for (i, text) in ["ab", "abc"].iter().enumerate() {
        let datum = &body["data"][i];
        assert_eq!((&datum["object"], &datum["index"]), (&json!("embedding"), &json!(i)));
        assert_eq!(floats(&datum["embedding"]), vector(text.as_bytes(), DIMENSIONS, true));
    }
    assert_eq!(body["data"].as_array().unwrap().len(), 2);
    // TEI and Infinity have it there too.
    let other = post(server.address, "/embeddings", &json!({"model": "m", "input": ["ab", "abc"]})).await;
    assert_eq!(other.json(), body);
}

#[tokio::test]
async fn base64_is_the_same_as_floats() {
    let server = start().await;
    let input = json!(["one", "two", "three"]);
    let float = embed(&server, json!({"input": input, "encoding_format": "float"})).await.json();
    let base64 = embed(&server, json!({"input": input, "encoding_format": "base64"})).await.json();
    for i in 0..3 {
        let expected = floats(&float["data"][i]["embedding"]);
        assert_eq!(decoded(&base64["data"][i]["embedding"]), expected);
        assert_eq!(expected.len(), DIMENSIONS);
    }
    assert_eq!(base64["usage"], float["usage"]);
}

#[tokio::test]
async fn every_kind_of_input_arrives() {
    for (input, expected) in [
        (json!("hi"), vec!["hi"]),
        (json!(" "), vec![" "]),
        (json!(["a", "b"]), vec!["a", "b"]),
        (json!([1, 2]), vec!["[1, 2]"]),
        (json!([[1], [2, 3]]), vec!["[1]", "[2, 3]"]),
    ] {
        let server = start().await;
        let answer = embed(&server, json!({"input": input})).await;
        assert_eq!(answer.status, 200, "{input}: {}", answer.text);
        let request = server.fake.embeds().remove(0);
        assert_eq!(texts(&request), expected);
        // The only model that embeds.
        assert_eq!(request.model, "owner/embeds");
        assert_eq!(request.request_id, answer.header("x-request-id").unwrap());
    }
}

#[tokio::test]
async fn pictures_arrive_in_others_words() {
    let uri = "data:image/png;base64,AQID";
    let picture = |bytes: &str, detail: &str| format!("picture b\"{bytes}\" {detail}");
    let own = picture("\\x01\\x02\\x03", "");
    for (body, expected) in [
        // Jina's.
        (json!({"input": [{"text": "a"}, {"image": uri}, {"image": "AQID"}]}), vec!["a", &own, &own]),
        (json!({"input": ["a", {"image": uri}]}), vec!["a", &own]),
        (json!({"input": {"image": uri}}), vec![&own]),
        // Infinity's.
        (json!({"input": [uri, "AQID"], "modality": "image"}), vec![&own, &own]),
        (json!({"input": uri, "modality": "image"}), vec![&own]),
        (json!({"input": uri, "modality": "text"}), vec![uri]),
        // The parts of messages.
        (
            json!({"input": [{"type": "image_url", "image_url": {"url": uri, "detail": "low"}}, {"type": "text", "text": "b"}]}),
            vec![&picture("\\x01\\x02\\x03", "low"), "b"],
        ),
        // vLLM's.
        (
            json!({"messages": [
                {"role": "system", "content": "Represent it."},
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": uri}}, {"type": "text", "text": "b"}]},
            ], "add_generation_prompt": true}),
            vec!["chat of 2 Some(true)"],
        ),
        (json!({"messages": [{"role": "user", "content": "b"}]}), vec!["chat of 1 Some(false)"]),
    ] {
        let server = start().await;
        let answer = embed(&server, body.clone()).await;
        assert_eq!(answer.status, 200, "{body}: {}", answer.text);
        assert_eq!(texts(&server.fake.embeds().remove(0)), expected, "{body}");
    }
}

#[tokio::test]
async fn every_field_arrives() {
    let server = start().await;
    let body = json!({
        "model": "some/model", "input": "x", "dimensions": 3, "normalize": false, "truncate": "START",
        "instruction": "find", "priority": -4, "keep_alive": "10m", "user": "u", "encoding_format": "float", "modality": "text",
    });
    assert_eq!(embed(&server, body).await.json()["data"][0]["embedding"].as_array().unwrap().len(), 3);
    let text = |text: &str| v1::EmbedInput { input: Some(Input::Text(text.to_owned())) };
    let request = server.fake.embeds().remove(0);
    let expected = v1::EmbedRequest {
        model: "some/model".to_owned(),
        inputs: vec![text("x")],
        dimensions: 3,
        normalize: Some(false),
        truncate: true,
        truncate_side: TruncateSide::Left.into(),
        prompt_name: String::new(),
        instruction: "find".to_owned(),
        packed: true,
        output: EmbedOutput::Pooled.into(),
        request_id: request.request_id.clone(),
        priority: -4,
        keep_alive: Some("10m".to_owned()),
        client: "127.0.0.1".to_owned(),
    };
    assert_eq!(request, expected);
    // Absent and null fields stay unset.
    let body = json!({"model": "m", "input": "x", "dimensions": null, "truncate": null, "prompt_name": null});
    embed(&server, body).await;
    let request = server.fake.embeds().into_iter().find(|r| r.model == "m").unwrap();
    assert_eq!((request.dimensions, request.normalize, request.truncate), (0, None, false));
    // Others' words for the same.
    let body = json!({"model": "jina", "input": "x", "task": "retrieval.query", "normalized": true, "embedding_type": "base64"});
    let answer = embed(&server, body).await;
    assert_eq!(decoded(&answer.json()["data"][0]["embedding"]).len(), DIMENSIONS);
    let request = server.fake.embeds().into_iter().find(|r| r.model == "jina").unwrap();
    assert_eq!((request.prompt_name.as_str(), request.normalize), ("retrieval.query", Some(true)));
    for (model, body, normalize) in [
        ("vllm-off", json!({"use_activation": false}), false),
        ("vllm-on", json!({"use_activation": true, "normalize": true, "embd_normalize": 2}), true),
    ] {
        let mut body = body;
        (body["model"], body["input"]) = (model.into(), "x".into());
        assert_eq!(embed(&server, body).await.status, 200);
        let request = server.fake.embeds().into_iter().find(|r| r.model == model).unwrap();
        assert_eq!(request.normalize, Some(normalize), "{model}");
    }
}

#[tokio::test]
async fn what_is_wrong_is_named_and_the_engine_never_hears_of_it() {
    let server = Server::with(script(hello), |config| config.embedding_inputs_max = 3).await;
    server.fake.set_stats(Ok(all_kinds()));
    let long = "x".repeat(5000);
    for (body, param, word) in [
        (json!({}), "input", "required"),
        (json!({"input": null}), "input", "required"),
        (json!({"input": ""}), "input", "empty"),
        (json!({"input": []}), "input", "empty"),
        (json!({"input": ["a", ""]}), "input[1]", "empty"),
        (json!({"input": [[]]}), "input[0]", "empty"),
        (json!({"input": [[1], []]}), "input[1]", "empty"),
        (json!({"input": ["a", [1]]}), "input[1]", "mixed"),
        (json!({"input": [[1], "a"]}), "input[1]", "mixed"),
        (json!({"input": ["a", 1]}), "input[1]", "mixed"),
        (json!({"input": ["a", null]}), "input[1]", "mixed"),
        (json!({"input": [1, "a"]}), "input[1]", "token id"),
        (json!({"input": [1, -1]}), "input[1]", "token id"),
        (json!({"input": [[1, 2.5]]}), "input[0][1]", "token id"),
        (json!({"input": 5}), "input", "expected a string"),
        (json!({"input": true}), "input", "expected a string"),
        (json!({"input": "x", "messages": [{"role": "user", "content": "b"}]}), "input", "messages"),
        (json!({"messages": []}), "messages", ""),
        (json!({"messages": [{"role": "user", "content": "b"}], "dimensions": 0}), "dimensions", "from 1"),
        (json!({"input": {"text": ""}}), "input.text", "empty"),
        (json!({"input": ["a", {"words": "x"}]}), "input[1]", "a text, or an image"),
        (json!({"input": [{"text": "x", "image": "AQI="}]}), "input[0]", "a text, or an image"),
        (json!({"input": [{"text": "x", "size": 3}]}), "input[0].size", "unknown"),
        (json!({"input": [{"text": "x", "max_pixels": 3}]}), "input[0].max_pixels", "with an image"),
        (json!({"input": [{"text": "x", "detail": "low"}]}), "input[0].detail", "with an image"),
        (json!({"input": [{"image": "AQID", "detail": "low"}]}), "input[0].detail", "with an image"),
        (json!({"input": [{"image": "AQID", "max_pixels": 0}]}), "input[0].max_pixels", "from 1"),
        (json!({"input": [{"image": "AQID", "total_pixels": 9}]}), "input[0].total_pixels", "use min_pixels"),
        (json!({"input": [{"text": "x"}, [1]]}), "input[1]", "expected a string"),
        (json!({"input": [{"image": "data:text/plain,x"}]}), "input[0].image", ""),
        (json!({"input": [{"image": "file:///etc/passwd"}]}), "input[0].image", ""),
        (json!({"input": ["AQI=", 1], "modality": "image"}), "input[1]", "expected a string"),
        (json!({"input": [], "modality": "image"}), "input", "empty"),
        (
            json!({"input": "https://example.com/a.png", "modality": "image"}),
            "input",
            "nothing is fetched here",
        ),
        (json!({"input": ["a", "b", "c", "d"]}), "input", "has 4 elements, at most 3"),
        (json!({"input": [[1], [1], [1], [1]]}), "input", "has 4 elements, at most 3"),
        (json!({"input": "x", "encoding_format": "int8"}), "encoding_format", "float, base64"),
        (json!({"input": "x", "embedding_type": "ubinary"}), "embedding_type", "float, base64"),
        (
            json!({"input": "x", "encoding_format": "float", "embedding_type": "float"}),
            "embedding_type",
            "encoding_format",
        ),
        (json!({"input": "x", "dimensions": 0}), "dimensions", "from 1"),
        (json!({"input": "x", "dimensions": -1}), "dimensions", ""),
        (json!({"input": "x", "dimensions": "all"}), "dimensions", ""),
        (json!({"input": "x", "normalize": "yes"}), "normalize", "boolean"),
        (json!({"input": "x", "use_activation": 1}), "use_activation", "boolean"),
        (
            json!({"input": "x", "normalize": true, "use_activation": false}),
            "use_activation",
            "another thing than normalize",
        ),
        (json!({"input": "x", "truncate": "MIDDLE"}), "truncate", "START"),
        (
            json!({"input": "x", "truncate": "START", "truncation_side": "right"}),
            "truncation_side",
            "another side",
        ),
        (json!({"input": "x", "truncate_prompt_tokens": 12}), "truncate_prompt_tokens", "-1"),
        (json!({"input": "x", "prompt_name": 5}), "prompt_name", "string"),
        (json!({"input": "x", "prompt_name": "q", "instruction": "i"}), "instruction", "prompt_name"),
        (json!({"input": "x", "priority": 1.5}), "priority", ""),
        (json!({"input": "x", "user": 5}), "user", "string"),
        (json!({"input": "x", "model": 5}), "model", "string"),
        (json!({"input": "x", "model": ""}), "model", "empty"),
        (json!({"input": "x", "late_chunking": true}), "late_chunking", "not supported"),
        (json!({"input": "x", "modality": "audio"}), "modality", "text"),
        (json!({"input": "x", "inputs": "x"}), "inputs", "unknown"),
        (json!({"input": "x", "mood": long}), "mood", "unknown"),
    ] {
        let answer = embed(&server, body.clone()).await;
        assert_eq!(answer.status, 400, "{body}: {}", answer.text);
        let error = answer.json()["error"].clone();
        let message = error["message"].as_str().unwrap();
        assert_eq!(error["param"].as_str(), Some(param), "{body}: {error}");
        assert!(message.starts_with(&format!("{param}: ")) && message.contains(word), "{body}: {message}");
        assert!(answer.text.len() < 2048);
    }
    assert!(server.fake.embeds().is_empty());
    assert_eq!(embed(&server, json!({"input": ["a", "b", "c"]})).await.status, 200);
    // Ids of one input are not inputs.
    assert_eq!(embed(&server, json!({"input": [1, 2, 3, 4, 5]})).await.status, 200);
    assert_eq!(get(server.address, "/v1/embeddings").await.status, 405);
}

#[tokio::test]
async fn the_default_limit_is_2048_inputs() {
    let server = start().await;
    assert_eq!(embed(&server, json!({"input": vec!["x"; 2048]})).await.status, 200);
    let answer = embed(&server, json!({"input": vec!["x"; 2049]})).await;
    assert_eq!(answer.status, 400);
    let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("2049") && message.contains("2048"), "{message}");
}

#[tokio::test]
async fn large_requests_are_cut_and_answered_in_order() {
    let server = Server::with(script(hello), |config| config.embedding_inputs_max = 10_000).await;
    server.fake.set_stats(Ok(all_kinds()));
    // The first call is the slowest.
    server.fake.obstruct(|id| id.ends_with("/0").then_some(Step::Gate));
    let input: Vec<String> = (0..10_000).map(|i| format!("text number {i}")).collect();
    let address = server.address;
    let body = json!({"input": input});
    let waiting = tokio::spawn(async move { post(address, "/v1/embeddings", &body).await });
    // Others run while it does, and no more than a few at a time.
    while server.fake.embeds().len() < 4 {
        tokio::task::yield_now().await;
    }
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(server.fake.embeds().len(), 4);
    server.fake.release();
    let answer = waiting.await.unwrap();
    assert_eq!(answer.status, 200, "{}", &answer.text[..answer.text.len().min(300)]);
    let body = answer.json();
    let data = body["data"].as_array().unwrap();
    assert_eq!(data.len(), 10_000);
    for (i, datum) in data.iter().enumerate() {
        assert_eq!(datum["index"], i);
        assert_eq!(floats(&datum["embedding"]), vector(input[i].as_bytes(), DIMENSIONS, true), "{i}");
    }
    assert_eq!(body["usage"]["prompt_tokens"], input.iter().map(String::len).sum::<usize>());
    let calls = server.fake.embeds();
    assert_eq!(calls.len(), 10_000_usize.div_ceil(256));
    assert!(calls.iter().all(|call| call.inputs.len() <= 256));
    let all: Vec<String> = calls.iter().flat_map(texts).collect();
    assert_eq!(all, input);
}

#[tokio::test]
async fn calls_are_bounded_in_bytes_too() {
    let server = start().await;
    let mut input = vec!["y".repeat(300_000); 7];
    input.push("z".repeat(2_000_000));
    input.push("w".to_owned());
    assert_eq!(embed(&server, json!({"input": input})).await.status, 200);
    let calls = server.fake.embeds();
    let lengths: Vec<Vec<usize>> = calls.iter().map(|c| texts(c).iter().map(String::len).collect()).collect();
    assert_eq!(lengths, [vec![300_000; 3], vec![300_000; 3], vec![300_000], vec![2_000_000], vec![1]]);
}

#[tokio::test]
async fn one_call_that_fails_fails_the_whole() {
    for (status, http, code, param) in [
        (Status::invalid_argument("inputs[3]: has 9 tokens, at most 4"), 400, None, Some("input[515]")),
        (Status::resource_exhausted("queue full"), 429, Some("overloaded"), None),
        (Status::internal("secret"), 500, Some("internal_error"), None),
        (Status::unavailable("loading"), 503, Some("unavailable"), None),
        (Status::failed_precondition("it chats"), 400, Some("model_not_capable"), Some("model")),
        (Status::not_found("no model; loaded: x"), 404, Some("model_not_found"), Some("model")),
        (Status::invalid_argument("dimensions: at most 6"), 400, None, Some("dimensions")),
    ] {
        let server = start().await;
        // The third of five calls.
        let refusal = status.clone();
        server.fake.obstruct(move |id| id.ends_with("/2").then(|| Step::Fail(refusal.clone())));
        let answer =
            embed(&server, json!({"model": "owner/embeds", "input": vec!["x"; 1100], "dimensions": 6})).await;
        assert_eq!(answer.status, http, "{status:?}: {}", answer.text);
        let error = &answer.json()["error"];
        assert_eq!((error["code"].as_str(), error["param"].as_str()), (code, param), "{error}");
        assert_eq!(answer.header("retry-after").is_some(), matches!(http, 429 | 503));
        assert!(!answer.text.contains("secret"));
        // The next one works.
        server.fake.obstruct(|_| None);
        assert_eq!(embed(&server, json!({"input": "x"})).await.status, 200);
    }
}

#[tokio::test]
async fn a_text_alone_is_not_an_element() {
    let server = start().await;
    server.fake.obstruct(|_| {
        Some(Step::Fail(Status::new(Code::InvalidArgument, "inputs[0]: has 9 tokens, at most 4")))
    });
    let error = embed(&server, json!({"input": "too long"})).await.json()["error"].clone();
    assert_eq!(
        (error["param"].as_str(), error["message"].as_str()),
        (Some("input"), Some("input: has 9 tokens, at most 4"))
    );
    let error = embed(&server, json!({"input": ["too long"]})).await.json()["error"].clone();
    assert_eq!(error["param"], "input[0]");
}

#[tokio::test]
async fn a_client_that_leaves_drops_its_calls() {
    let server = start().await;
    server.fake.obstruct(|_| Some(Step::Hang));
    let address = server.address;
    let body = json!({"input": vec!["x"; 1000]});
    let waiting = tokio::spawn(async move { post(address, "/v1/embeddings", &body).await });
    while server.fake.embeds().len() < 4 {
        tokio::task::yield_now().await;
    }
    waiting.abort();
    drop(waiting.await);
    for _ in 0..4 {
        assert!(!server.fake.stream_over().await, "a call was not dropped");
    }
}

#[tokio::test]
async fn what_does_not_fit_is_sent_as_it_comes_and_breaks_off_where_it_fails() {
    // Room for nothing.
    let server = Server::with(script(hello), |config| config.embeddings_bytes_max = 0).await;
    server.fake.set_stats(Ok(all_kinds()));
    let body = json!({"input": vec!["x"; 1100]});
    let whole = post(server.address, "/v1/embeddings", &body).await;
    assert_eq!(whole.json()["data"].as_array().unwrap().len(), 1100);
    assert_eq!(whole.json()["usage"]["total_tokens"], 1100);
    // The first call's failure still has a status.
    server.fake.obstruct(|id| id.ends_with("/0").then(|| Step::Fail(Status::unavailable("no"))));
    assert_eq!(post(server.address, "/v1/embeddings", &body).await.status, 503);
    server.fake.obstruct(|id| id.ends_with("/4").then(|| Step::Fail(Status::unavailable("no"))));
    let mut live = Live::open(server.address, json_request("/v1/embeddings", body.to_string())).await;
    assert_eq!(live.status(), 200);
    assert!(live.breaks_off().await, "an answer that failed ended as if it were whole");
}

#[tokio::test]
async fn a_client_that_does_not_read_holds_up_nobody_else() {
    // Nothing is held, so that what comes is sent at once; and it is more than all the buffers on the way take.
    let server = Server::with(script(hello), |config| config.embeddings_bytes_max = 0).await;
    server.fake.set_stats(Ok(all_kinds()));
    let input = vec!["x".repeat(600_000); 10];
    let body = json!({"input": input, "dimensions": HUGE, "encoding_format": "base64"}).to_string();
    let mut slow = Vec::new();
    for _ in 0..2 {
        slow.push(Live::open(server.address, json_request("/v1/embeddings", body.clone())).await);
    }
    // Until the slow ones have stopped asking for more, and on.
    let (mut asked, mut since) = (0, 0);
    while since < 60 {
        assert_eq!(embed(&server, json!({"input": "y"})).await.status, 200);
        let now = server.fake.embeds().iter().filter(|call| call.dimensions == HUGE).count();
        since = if now == asked { since + 1 } else { 0 };
        asked = now;
    }
    assert!(asked < 2 * input.len(), "nothing was held up: the answers are too small for this test");
    drop(slow);
}

#[tokio::test]
async fn deadlines_reach_the_engine() {
    let server = Server::with(script(hello), |config| config.request_timeout_s = Some(1)).await;
    server.fake.set_stats(Ok(all_kinds()));
    server.fake.obstruct(|_| Some(Step::Hang));
    let answer = embed(&server, json!({"input": "x"})).await;
    assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (504, Some("deadline_exceeded")));
    assert!(server.fake.timeouts().iter().all(Option::is_some));
    assert!(!server.fake.stream_over().await);
}

#[tokio::test]
async fn an_engine_that_answers_nonsense_is_an_error() {
    let server = start().await;
    for dimensions in [NOT_A_NUMBER, ONE_TOO_FEW, CUT_SHORT] {
        let answer = embed(&server, json!({"input": ["x", "y"], "dimensions": dimensions})).await;
        assert_eq!(answer.status, 500, "{}", answer.text);
        assert_eq!(answer.json()["error"]["code"], "internal_error");
    }
}

#[tokio::test]
async fn which_model_is_meant() {
    use hanzo_engine_proto::v1::{Capability, ModelState};
    let embeds: &[Capability] = &[Capability::Embed];
    let chats: &[Capability] = &[Capability::Chat];
    let (ready, loading) = (ModelState::Ready, ModelState::Loading);
    let both: &[Capability] = &[Capability::Chat, Capability::Embed];
    let cases: [(&[_], u16, Option<&str>, &str); 8] = [
        (&[("a", ready, both), ("b", ready, embeds)], 200, None, "b"),
        (&[("a", ready, both), ("b", ready, both)], 400, None, "several loaded models can embed: a, b"),
        (&[("a", ready, chats), ("b", ready, embeds)], 200, None, "b"),
        (&[("a", ready, embeds), ("b", loading, embeds)], 200, None, "a"),
        (&[("a", ready, embeds), ("b", ready, embeds)], 400, None, "several loaded models can embed: a, b"),
        (&[("a", ready, chats)], 400, Some("model_not_capable"), "loaded: a (chat)"),
        (&[("a", ready, chats), ("b", loading, &[])], 503, Some("unavailable"), "b is being loaded"),
        (&[], 404, Some("model_not_found"), "none is loaded"),
    ];
    for (models, status, code, word) in cases {
        let server = start().await;
        server.fake.set_stats(Ok(crate::vectors::stats(models)));
        let answer = embed(&server, json!({"input": "x"})).await;
        assert_eq!(answer.status, status, "{models:?}: {}", answer.text);
        if status == 200 {
            assert_eq!(server.fake.embeds()[0].model, word, "{models:?}");
        } else {
            let error = &answer.json()["error"];
            assert_eq!(error["code"].as_str(), code, "{error}");
            assert!(error["message"].as_str().unwrap().contains(word), "{error}");
        }
        // One that is named is asked, whatever is loaded.
        assert_eq!(embed(&server, json!({"input": "x", "model": "a"})).await.status, 200);
    }
}
