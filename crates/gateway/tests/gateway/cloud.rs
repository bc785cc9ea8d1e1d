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
    script,
};

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
        () if wants("please html") => ([(header::CONTENT_TYPE, "text/html")], "<p>").into_response(),
        () if wants("please redirect") => {
            (StatusCode::FOUND, [(header::LOCATION, "/v1/other")]).into_response()
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
    let first = ask(&one).await;
    assert_eq!(first.status, 200, "{}", first.text);
    // 42 of 50, and again: then it is over.
    assert_eq!(ask(&one).await.status, 200);
    assert_eq!(ask(&one).await.status, 429);
    for (_, headers, _) in elsewhere.asked() {
        assert_eq!(headers["authorization"], format!("Bearer {KEY}"), "who asks is not known there");
    }
}
