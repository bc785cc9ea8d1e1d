//! Another server that answers in this one's place: what is sent there, when, and what becomes of its answers.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode, Uri, header},
    response::{IntoResponse as _, Response},
};
use futures_util::stream;
use hanzo_engine_access::Secret;
use hanzo_engine_gateway::Config;
use serde_json::{Value, json};
use tonic::Status;

use crate::{
    Server,
    fake::{Script, hello},
    http::{Live, get, json_request, post, send},
    keys::Keys,
    mcp::Client,
    script,
};

mod reserved;

const KEY: &str = "the-key-for-the-cloud";

/// A server of a few lines, and what it was asked: path, headers, body.
#[derive(Clone, Default)]
struct Elsewhere(Arc<Mutex<Vec<(String, HeaderMap, Value)>>>);

impl Elsewhere {
    async fn start() -> (Elsewhere, SocketAddr) {
        let (elsewhere, listener) =
            (Elsewhere::default(), tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap());
        let address = listener.local_addr().unwrap();
        let router = Router::new().fallback(answer).with_state(elsewhere.clone());
        tokio::spawn(async { axum::serve(listener, router).await.unwrap() });
        (elsewhere, address)
    }

    fn asked(&self) -> Vec<(String, HeaderMap, Value)> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

async fn answer(State(elsewhere): State<Elsewhere>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let body: Value = serde_json::from_slice(&body).unwrap();
    elsewhere.0.lock().unwrap().push((uri.path().to_owned(), headers, body.clone()));
    let json =
        |status: u16, body: Value| (StatusCode::from_u16(status).unwrap(), axum::Json(body)).into_response();
    let text = body.to_string();
    let wants = |what: &str| text.contains(what);
    match () {
        () if wants("please 401") => json(401, json!({"error": {"message": format!("no key {KEY}")}})),
        () if wants("please 422") => json(422, json!({"error": {"message": "no such field"}})),
        () if wants("please 500") => json(500, json!({"error": {"message": "oh"}})),
        () if wants("please wait") => std::future::pending().await,
        () if wants("please tell nothing") => json(200, json!({"text": "a few words, and no usage"})),
        () if wants("please html") => ([(header::CONTENT_TYPE, "text/html")], "<p>").into_response(),
        () if wants("please redirect") => {
            (StatusCode::FOUND, [(header::LOCATION, "/v1/other")]).into_response()
        }
        () if body["stream_options"]["include_usage"] == true => {
            ([(header::CONTENT_TYPE, "text/event-stream")], chat_completion(wants("break"))).into_response()
        }
        () if body["stream"] == true => {
            // In pieces that end where no event does.
            let mut pieces = vec!["data: {\"a\":1}\n", "\ndata: {\"b\"", ":2}\n\n"];
            if wants("break") {
                pieces.push("data: {\"c");
            } else {
                pieces.push(
                    "data: {\"usage\":{\"prompt_tokens\":30,\"completion_tokens\":12}}\n\ndata: [DONE]\n\n",
                );
            }
            let broken = wants("break").then(|| Err(std::io::Error::other("broken")));
            let pieces = pieces.into_iter().map(Ok).chain(broken);
            let paced = stream::unfold(pieces, |mut pieces| async {
                tokio::time::sleep(Duration::from_millis(20)).await;
                Some((pieces.next()?, pieces))
            });
            ([(header::CONTENT_TYPE, "text/event-stream")], axum::body::Body::from_stream(paced))
                .into_response()
        }
        () => json(200, json!({"id": "there", "usage": {"prompt_tokens": 30, "completion_tokens": 12}})),
    }
}

/// A chat completion in events, or the beginning of one.
fn chat_completion(breaks: bool) -> String {
    let choice = |delta: Value, reason: Option<&str>| json!({"id": "c", "object": "chat.completion.chunk", "model": "theirs", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]});
    let mut chunks = vec![
        choice(json!({"role": "assistant", "content": ""}), None),
        choice(json!({"content": "Far "}), None),
    ];
    if !breaks {
        chunks.push(choice(json!({"content": "away"}), None));
        chunks.push(choice(json!({}), Some("stop")));
        chunks.push(json!({"choices": [], "usage": {"prompt_tokens": 30, "completion_tokens": 12}}));
    }
    let events: String = chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect();
    if breaks { events } else { format!("{events}data: [DONE]\n\n") }
}

async fn server(at: SocketAddr, script: Script, more: impl FnOnce(&mut Config)) -> Server {
    Server::with(script, |config| {
        config.cloud_url = Some(format!("http://{at}/v1/"));
        config.cloud_api_key = Some(Secret::new(KEY).unwrap());
        config.cloud_models = vec!["far".to_owned(), "big=their-big".to_owned()];
        config.cloud_overflow = vec!["owner/ready=their-ready".to_owned()];
        more(config);
    })
    .await
}

fn chat(model: &str, words: &str) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": words}], "a_field_of_theirs": 1.50})
}

#[tokio::test]
async fn a_model_of_another_server_is_asked_there() {
    let (elsewhere, at) = Elsewhere::start().await;
    let server = server(at, script(hello), |_| {}).await;
    for (route, model, there) in [
        ("chat/completions", "BIG", "their-big"),
        ("completions", "far", "far"),
        ("embeddings", "big", "their-big"),
    ] {
        let answer = post(server.address, &format!("/v1/{route}"), &chat(model, "hi")).await;
        assert_eq!((answer.status, answer.json()["id"].as_str()), (200, Some("there")), "{}", answer.text);
        let told = format!("http://{at}/v1/{route}; model={there}; reason=model");
        assert_eq!(answer.header("x-hanzo-sent-to"), Some(told.as_str()));
        let [(path, headers, body)] = &elsewhere.asked()[..] else { panic!() };
        assert_eq!((path.as_str(), body), (format!("/v1/{route}").as_str(), &chat(there, "hi")));
        assert_eq!(headers["authorization"], format!("Bearer {KEY}"));
        // Nothing else of who asks goes there.
        let mut names: Vec<&str> = headers.keys().map(|name| name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(
            names,
            [
                "accept",
                "authorization",
                "content-length",
                "content-type",
                "host",
                "user-agent",
                "x-request-id"
            ]
        );
    }
    let here = post(
        server.address,
        "/v1/chat/completions",
        &json!({"model": "owner/ready", "messages": [{"role": "user", "content": "hi"}]}),
    )
    .await;
    assert_eq!((here.status, here.header("x-hanzo-sent-to")), (200, None));
    assert!(elsewhere.asked().is_empty());
    let list = get(server.address, "/v1/models").await.json();
    let owner = |id: &str| {
        list["data"].as_array().unwrap().iter().find(|model| model["id"] == id).unwrap()["owned_by"].clone()
    };
    assert_eq!((owner("far"), owner("big")), (json!("127.0.0.1"), json!("127.0.0.1")));
    let metrics = get(server.address, "/metrics").await.text;
    assert!(
        metrics.contains("hanzo_engine_cloud_requests_total{reason=\"model\",status=\"200\"} 3"),
        "{metrics}"
    );
    assert!(!metrics.contains(KEY));
}

#[tokio::test]
async fn a_stream_comes_as_it_is_made_and_says_where_it_broke() {
    let (_elsewhere, at) = Elsewhere::start().await;
    let server = server(at, script(hello), |_| {}).await;
    let mut body = chat("far", "hi");
    body["stream"] = json!(true);
    let mut live = Live::open(server.address, json_request("/v1/chat/completions", body.to_string())).await;
    live.read_until("data: {\"a\":1}\n\n").await;
    let rest = live.rest().await.text;
    assert!(rest.ends_with("data: {\"b\":2}\n\ndata: {\"usage\":{\"prompt_tokens\":30,\"completion_tokens\":12}}\n\ndata: [DONE]\n\n"), "{rest}");
    body["messages"][0]["content"] = json!("break");
    let broken = post(server.address, "/v1/chat/completions", &body).await;
    assert_eq!(broken.status, 200);
    let events = broken.events();
    assert_eq!(events[..2], [json!({"a": 1}), json!({"b": 2})]);
    assert_eq!(
        (events.len(), events[2]["error"]["code"].as_str()),
        (3, Some("cloud_unavailable")),
        "{events:?}"
    );
}

#[tokio::test]
async fn what_is_no_answer_is_said_in_this_servers_words_and_without_its_key() {
    let (elsewhere, at) = Elsewhere::start().await;
    let server = server(at, script(hello), |_| {}).await;
    for (words, status, code) in [
        ("please 401", 503, "cloud_unavailable"),
        ("please 500", 503, "cloud_unavailable"),
        ("please html", 503, "cloud_unavailable"),
        ("please redirect", 503, "cloud_unavailable"),
        ("please 422", 400, ""),
    ] {
        let answer = post(server.address, "/v1/chat/completions", &chat("far", words)).await;
        assert_eq!(
            (answer.status, answer.json()["error"]["code"].as_str().unwrap_or_default()),
            (status, code),
            "{words}"
        );
        assert!(!answer.text.contains(KEY), "{}", answer.text);
        assert_eq!(elsewhere.asked().len(), 1, "it is asked once, and no redirect is followed");
    }
}

#[tokio::test]
async fn what_finds_no_engine_overflows_and_nothing_else_does() {
    let (elsewhere, at) = Elsewhere::start().await;
    let full = |_: &_| Err(Status::resource_exhausted("the queue is full"));
    let server = server(at, script(full), |_| {}).await;
    let mut body = chat("owner/ready", "hi");
    body.as_object_mut().unwrap().remove("a_field_of_theirs");
    for stream in [false, true] {
        body["stream"] = json!(stream);
        let answer = post(server.address, "/v1/chat/completions", &body).await;
        let told = format!("http://{at}/v1/chat/completions; model=their-ready; reason=overloaded");
        assert_eq!(
            (answer.status, answer.header("x-hanzo-sent-to")),
            (200, Some(told.as_str())),
            "{}",
            answer.text
        );
        assert_eq!(elsewhere.asked().len(), 1);
    }
    body["stream"] = json!(false);
    // What fails there too is answered as it was here.
    body["messages"][0]["content"] = json!("please 500");
    let neither = post(server.address, "/v1/chat/completions", &body).await;
    assert_eq!((neither.status, neither.json()["error"]["code"].as_str()), (429, Some("overloaded")));
    assert_eq!(elsewhere.asked().len(), 1);
    // A wrong request and another model stay here.
    let other = post(
        server.address,
        "/v1/chat/completions",
        &json!({"model": "other", "messages": [{"role": "user", "content": "hi"}]}),
    )
    .await;
    assert_eq!(other.status, 429);
    body["temperature"] = json!("hot");
    assert_eq!(post(server.address, "/v1/chat/completions", &body).await.status, 400);
    assert!(elsewhere.asked().is_empty());
}

#[tokio::test]
async fn a_key_is_held_to_its_models_and_pays_for_what_is_answered_there() {
    let (elsewhere, at) = Elsewhere::start().await;
    let keys = Keys::new();
    let one = keys.add("one", |record| {
        (record.models, record.tokens_per_minute) = (vec!["far".to_owned()], Some(50));
    });
    let other = keys.add("other", |record| record.models = vec!["near".to_owned()]);
    let server = server(at, script(hello), |config| config.api_keys_file = Some(keys.path.clone())).await;
    let ask = async |key: &str| {
        let mut request = json_request("/v1/chat/completions", chat("far", "hi").to_string());
        request.headers_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
        send(server.address, request).await
    };
    assert_eq!(ask(&other).await.status, 403);
    assert!(elsewhere.asked().is_empty());
    for (key, listed) in [(&one, true), (&other, false)] {
        let mut request = json_request("/v1/models", String::new());
        *request.method_mut() = "GET".parse().unwrap();
        request.headers_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
        assert_eq!(send(server.address, request).await.text.contains("\"far\""), listed);
    }
    let first = ask(&one).await;
    assert_eq!(first.status, 200, "{}", first.text);
    // 42 of 50, and the rest is less than a request reserves.
    assert_eq!(ask(&one).await.status, 429);
    let asked = elsewhere.asked();
    assert_eq!(asked.len(), 1);
    for (_, headers, _) in asked {
        assert_eq!(headers["authorization"], format!("Bearer {KEY}"), "who asks is not known there");
    }
}

/// The routes that ask a chat in other words than chat completions, each with where its answer has text, and tokens read and written.
fn surfaces(model: &str, words: &str) -> [(&'static str, Value, [&'static str; 3]); 4] {
    [
        (
            "/v1/responses",
            json!({"model": model, "input": words, "max_output_tokens": 40}),
            ["/output/0/content/0/text", "/usage/input_tokens", "/usage/output_tokens"],
        ),
        (
            "/v1/messages",
            json!({"model": model, "max_tokens": 40, "messages": [{"role": "user", "content": words}]}),
            ["/content/0/text", "/usage/input_tokens", "/usage/output_tokens"],
        ),
        (
            "/api/chat",
            json!({"model": model, "stream": false, "options": {"num_predict": 40}, "messages": [{"role": "user", "content": words}]}),
            ["/message/content", "/prompt_eval_count", "/eval_count"],
        ),
        (
            "/api/generate",
            json!({"model": model, "stream": false, "options": {"num_predict": 40}, "prompt": words}),
            ["/response", "/prompt_eval_count", "/eval_count"],
        ),
    ]
}

#[tokio::test]
async fn a_chat_of_any_surface_is_asked_there_as_chat_completions() {
    let (elsewhere, at) = Elsewhere::start().await;
    let server = server(at, script(hello), |_| {}).await;
    let told = format!("http://{at}/v1/chat/completions; model=their-big; reason=model");
    for (route, mut body, [text, read, written]) in surfaces("BIG", "hi") {
        let answer = post(server.address, route, &body).await;
        assert_eq!(answer.status, 200, "{route}: {}", answer.text);
        assert_eq!(answer.header("x-hanzo-sent-to"), Some(told.as_str()), "{route}");
        let said = answer.json();
        let found = [text, read, written].map(|at| said.pointer(at).cloned().unwrap_or_default());
        assert_eq!(found, [json!("Far away"), json!(30), json!(12)], "{route}: {said}");
        let [(path, headers, asked)] = &elsewhere.asked()[..] else { panic!() };
        assert_eq!(
            (path.as_str(), headers["authorization"].to_str().unwrap()),
            ("/v1/chat/completions", format!("Bearer {KEY}").as_str())
        );
        let expected = json!({"model": "their-big", "messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 40,
            "stream": true, "stream_options": {"include_usage": true}});
        assert_eq!(asked, &expected, "{route}");
        body["stream"] = json!(true);
        let streamed = post(server.address, route, &body).await;
        assert_eq!(
            (streamed.status, streamed.header("x-hanzo-sent-to")),
            (200, Some(told.as_str())),
            "{route}"
        );
        assert!(
            streamed.text.contains("Far ") && streamed.text.contains("away"),
            "{route}: {}",
            streamed.text
        );
        elsewhere.asked();
    }
    let metrics = get(server.address, "/metrics").await.text;
    assert!(
        metrics.contains("hanzo_engine_cloud_requests_total{reason=\"model\",status=\"200\"} 8"),
        "{metrics}"
    );
}

#[tokio::test]
async fn a_tools_chat_goes_there_too() {
    let (elsewhere, at) = Elsewhere::start().await;
    let server = server(at, script(hello), |_| {}).await;
    let client = Client::at(server.address, None).await;
    let answer = client.call("hanzo_infer", json!({"model": "far", "prompt": "hi", "max_tokens": 9})).await;
    let told = &answer["structuredContent"];
    assert_eq!((&told["text"], &told["usage"]["total_tokens"]), (&json!("Far away"), &json!(42)), "{answer}");
    let asked = elsewhere.asked();
    assert_eq!(asked.len(), 1);
    let (path, headers, body) = &asked[0];
    let bearer = format!("Bearer {KEY}");
    assert_eq!(
        (path.as_str(), headers["authorization"].as_bytes()),
        ("/v1/chat/completions", bearer.as_bytes())
    );
    let said = json!([{"role": "user", "content": "hi"}]);
    assert_eq!((&body["messages"], &body["max_completion_tokens"]), (&said, &json!(9)), "{body}");
    let refused = client.call("hanzo_infer", json!({"model": "far", "prompt": "please 401"})).await;
    assert!(refused["isError"] == true && !refused.to_string().contains(KEY), "{refused}");
    assert!(server.fake.seen().is_empty());
}

#[tokio::test]
async fn what_of_a_surface_cannot_be_carried_there_is_named_and_stays_here() {
    let (elsewhere, at) = Elsewhere::start().await;
    let server = server(at, script(hello), |_| {}).await;
    let user = json!([{"role": "user", "content": "hi"}]);
    for (route, body, said) in [
        (
            "/api/chat",
            json!({"model": "far", "messages": user, "options": {"mirostat": 2}}),
            "mirostat: cannot be carried",
        ),
        (
            "/api/chat",
            json!({"model": "far", "messages": user, "options": {"num_ctx": 4096}}),
            "options.num_ctx: another server",
        ),
        ("/api/generate", json!({"model": "far", "prompt": "x", "raw": true}), "prompt: is no chat"),
        (
            "/v1/messages",
            json!({"model": "far", "max_tokens": 9, "messages": user, "thinking": {"type": "enabled", "budget_tokens": 1024}}),
            "thinking: cannot be carried",
        ),
        (
            "/v1/responses",
            json!({"model": "far", "input": "x", "top_logprobs": 2, "include": ["message.output_text.logprobs"]}),
            "logprobs: cannot be carried",
        ),
        ("/completion", json!({"model": "far", "prompt": "x"}), "prompt: is no chat"),
        ("/api/embed", json!({"model": "far", "input": "x"}), "another server answers for"),
        (
            "/v1/messages/count_tokens",
            json!({"model": "far", "messages": user}),
            "another server answers for",
        ),
        ("/tokenize", json!({"model": "far", "content": "x"}), "another server answers for"),
        (
            "/v1/rerank",
            json!({"model": "far", "query": "x", "documents": ["y"]}),
            "another server answers for",
        ),
    ] {
        let answer = post(server.address, route, &body).await;
        assert_eq!(answer.status, 400, "{route}: {}", answer.text);
        assert!(answer.text.contains(said), "{route}: {}", answer.text);
        assert_eq!(answer.header("x-hanzo-sent-to"), None);
    }
    assert!(elsewhere.asked().is_empty());
}

#[tokio::test]
async fn what_is_no_answer_there_is_said_in_the_words_of_the_surface() {
    let (elsewhere, at) = Elsewhere::start().await;
    let server = server(at, script(hello), |_| {}).await;
    for (words, status) in [
        ("please 401", 503),
        ("please 500", 503),
        ("please html", 503),
        ("please redirect", 503),
        ("please 422", 400),
        ("break", 503),
    ] {
        for (route, body, _) in surfaces("far", words) {
            let answer = post(server.address, route, &body).await;
            // Anthropic has a status of its own for who has too much to do.
            let expected = if route == "/v1/messages" && status == 503 { 529 } else { status };
            assert!(
                [status, expected].contains(&answer.status.into()),
                "{route} {words}: {} {}",
                answer.status,
                answer.text
            );
            assert!(!answer.text.contains(KEY), "{}", answer.text);
            assert_eq!(elsewhere.asked().len(), 1, "{route} {words}");
        }
    }
}

#[tokio::test]
async fn a_chat_of_any_surface_overflows_and_its_key_pays() {
    let (elsewhere, at) = Elsewhere::start().await;
    let full = |_: &_| Err(Status::resource_exhausted("the queue is full"));
    let keys = Keys::new();
    let key = keys.add("one", |record| record.tokens_per_minute = Some(100));
    let server = server(at, script(full), |config| config.api_keys_file = Some(keys.path.clone())).await;
    let ask = async |route: &str, body: &Value| {
        let mut request = json_request(route, body.to_string());
        request.headers_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
        send(server.address, request).await
    };
    let [_, (route, body, _), ..] = surfaces("owner/ready", "please 500");
    // What fails there too is answered as it was here.
    let neither = ask(route, &body).await;
    assert!([429, 529].contains(&neither.status.into()), "{}", neither.text);
    assert_eq!((elsewhere.asked().len(), neither.header("x-hanzo-sent-to")), (1, None));
    let [_, (route, body, _), ..] = surfaces("owner/ready", "hi");
    for _ in 0..2 {
        let answer = ask(route, &body).await;
        let told = format!("http://{at}/v1/chat/completions; model=their-ready; reason=overloaded");
        assert_eq!(
            (answer.status, answer.header("x-hanzo-sent-to")),
            (200, Some(told.as_str())),
            "{}",
            answer.text
        );
    }
    // Twice 42 of 100, and what is left is less than a request reserves.
    assert_eq!(ask(route, &body).await.status, 429);
    assert_eq!(elsewhere.asked().len(), 2);
}
