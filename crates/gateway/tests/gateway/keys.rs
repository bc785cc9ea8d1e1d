//! Keys over HTTP: who is let in, in whose words others are refused, and what a key's limits do.

use std::path::{Path, PathBuf};

use hanzo_engine_access::{KeysFile, Record, Secret};
use http_body_util::Full;
use hyper::Request;
use serde_json::{Value, json};

use crate::{
    Server,
    fake::{self, hello},
    http::{Answer, Live, get, json_request, post, send},
    script,
};

pub(crate) struct Keys {
    _dir: tempfile::TempDir,
    pub(crate) path: PathBuf,
}

impl Keys {
    pub(crate) fn new() -> Keys {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.json");
        Keys { _dir: dir, path }
    }

    pub(crate) fn add(&self, name: &str, change: impl FnOnce(&mut Record)) -> String {
        let mut record = Record { name: name.to_owned(), ..Record::default() };
        change(&mut record);
        KeysFile::create(&self.path, record).unwrap().text().to_owned()
    }

    pub(crate) async fn serve(&self) -> Server {
        serve_with(&self.path, |_| {}).await
    }
}

async fn serve_with(path: &Path, change: impl FnOnce(&mut hanzo_engine_gateway::Config)) -> Server {
    Server::with(script(hello), |config| {
        config.api_keys_file = Some(path.to_owned());
        change(config);
    })
    .await
}

fn chat() -> Value {
    json!({"model": "owner/ready", "messages": [{"role": "user", "content": "hi"}]})
}

async fn ask(server: &Server, key: &str, path: &str, body: &Value) -> Answer {
    let mut request = json_request(path, body.to_string());
    request.headers_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
    send(server.address, request).await
}

async fn look(server: &Server, key: &str, path: &str) -> Answer {
    let request = Request::get(path).header("x-api-key", key).body(Full::<bytes::Bytes>::default()).unwrap();
    send(server.address, request).await
}

/// The names of Ollama's list.
fn names_of(tags: &Answer) -> Vec<String> {
    let models = tags.json()["models"].as_array().cloned().unwrap_or_default();
    models.iter().map(|model| model["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn without_a_key_only_probes_are_answered() {
    let keys = Keys::new();
    let key = keys.add("alice", |_| {});
    let server = keys.serve().await;
    for path in ["/health", "/v1/health", "/alive", "/ready", "/version", "/metrics"] {
        assert_eq!(get(server.address, path).await.status, 200, "{path}");
    }
    for path in [
        "/v1/models",
        "/v1/models/owner/ready",
        "/props",
        "/slots",
        "/lora-adapters",
        "/info",
        "/nowhere",
        "/v1/chat/completions",
    ] {
        assert_eq!(get(server.address, path).await.status, 401, "{path}");
    }
    let routes = [
        "/v1/chat/completions",
        "/v1/completions",
        "/infill",
        "/completion",
        "/completions",
        "/apply-template",
        "/v1/chat/completions/input_tokens",
        "/chat/completions",
        "/responses",
        "/reranking",
        "/v1/embeddings",
        "/embeddings",
        "/v1/rerank",
        "/rerank",
        "/v2/rerank",
        "/v1/score",
        "/score",
        "/v1/classify",
        "/classify",
        "/",
        "/embed",
        "/embed_all",
        "/embed_sparse",
        "/predict",
        "/similarity",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/tokenize",
        "/detokenize",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/embedding",
        "/api/chat",
        "/api/generate",
        "/api/embed",
        "/api/embeddings",
        "/api/show",
        "/api/pull",
        "/api/copy",
        "/api/create",
        "/api/blobs/sha256:0",
        "/v1/models/load",
        "/v1/models/unload",
        "/v1/models/pull",
    ];
    for path in routes {
        let answer = post(server.address, path, &chat()).await;
        assert_eq!(answer.status, 401, "{path}: {}", answer.text);
        assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
    }
    assert!(server.fake.seen().is_empty() && server.fake.embeds().is_empty());
    assert_eq!(ask(&server, &key, "/v1/chat/completions", &chat()).await.status, 200);
    assert_eq!(look(&server, &key, "/v1/models").await.status, 200);
}

#[tokio::test]
async fn a_refusal_is_in_the_words_of_its_surface() {
    let keys = Keys::new();
    keys.add("alice", |_| {});
    let server = keys.serve().await;
    let answer = ask(&server, "sk-not-one-of-them", "/v1/chat/completions", &chat()).await;
    let error = answer.json()["error"].clone();
    assert_eq!(
        (answer.status, &error["type"], &error["code"]),
        (401, &json!("invalid_request_error"), &json!("invalid_api_key"))
    );
    assert!(error["param"].is_null() && !answer.text.contains("sk-not-one"), "{}", answer.text);
    let answer = ask(&server, "sk-not-one-of-them", "/embed", &json!({"inputs": "x"})).await;
    assert_eq!((answer.status, &answer.json()["error_type"]), (401, &json!("Validation")));
    let answer = post(server.address, "/v1/messages", &chat()).await;
    let body = answer.json();
    assert_eq!((answer.status, &body["type"]), (401, &json!("error")));
    assert_eq!(body["error"]["type"], "authentication_error");
    assert!(body["error"]["message"].as_str().unwrap().contains("x-api-key"));
}

#[tokio::test]
async fn limits_are_told_and_kept() {
    let keys = Keys::new();
    let few = keys.add("few", |record| record.requests_per_minute = Some(2));
    let tokens = keys.add("tokens", |record| record.tokens_per_minute = Some(10));
    let free = keys.add("free", |_| {});
    let server = keys.serve().await;
    let chat_with = async |key: &str| ask(&server, key, "/v1/chat/completions", &chat()).await;

    let answer = chat_with(&few).await;
    assert_eq!(answer.header("x-ratelimit-limit-requests"), Some("2"));
    assert_eq!(answer.header("x-ratelimit-remaining-requests"), Some("1"));
    assert_eq!(answer.header("x-ratelimit-reset-requests"), Some("30s"));
    assert_eq!(answer.header("x-ratelimit-limit-tokens"), None);
    assert_eq!(chat_with(&few).await.status, 200);
    let answer = chat_with(&few).await;
    let error = answer.json()["error"].clone();
    assert_eq!(
        (answer.status, &error["type"], &error["code"]),
        (429, &json!("requests"), &json!("rate_limit_exceeded"))
    );
    assert_eq!(answer.header("x-ratelimit-remaining-requests"), Some("0"));
    let seconds: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!((28..=30).contains(&seconds), "{seconds}");
    // To look costs nothing.
    assert_eq!(look(&server, &few, "/v1/models").await.status, 200);

    // 7 of the prompt, 2 of the answer; the next does not fit.
    let answer = chat_with(&tokens).await;
    assert_eq!((answer.status, answer.header("x-ratelimit-limit-tokens")), (200, Some("10")));
    let answer = chat_with(&tokens).await;
    let error = answer.json()["error"].clone();
    assert_eq!(
        (answer.status, &error["type"], &error["code"]),
        (429, &json!("tokens"), &json!("rate_limit_exceeded"))
    );
    assert_eq!(answer.header("x-ratelimit-remaining-tokens"), Some("1"));
    // One comes in 6 seconds, and 3 are missing at least.
    let seconds: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!((12..=36).contains(&seconds), "{seconds}");
    // One that fits no minute is told what would, and reaches no engine.
    let seen = server.fake.seen().len();
    for (route, field) in [("/v1/chat/completions", "max_tokens"), ("/v1/messages", "max_tokens")] {
        let mut body = chat();
        body[field] = json!(9_600);
        let answer = ask(&server, &tokens, route, &body).await;
        assert_eq!(answer.status, 400, "{}", answer.text);
        assert!(
            answer.text.contains("10 tokens per minute") && answer.text.contains("ask for at most"),
            "{}",
            answer.text
        );
        assert_eq!(answer.header("retry-after"), None);
    }
    assert_eq!(server.fake.seen().len(), seen);
    for _ in 0..5 {
        assert_eq!(chat_with(&free).await.status, 200);
    }
    let metrics = get(server.address, "/metrics").await.text;
    for line in [
        "hanzo_engine_http_refusals_total{reason=\"requests_per_minute\"} 1",
        "hanzo_engine_http_refusals_total{reason=\"tokens_per_minute\"} 1",
        "hanzo_engine_http_refusals_total{reason=\"request_over_tokens_per_minute\"} 2",
        "hanzo_engine_http_refusals_total{reason=\"concurrency\"} 0",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    assert!(!metrics.contains(&few) && !metrics.contains("sk-hanzo"), "a key among the metrics");
}

/// Server whose answers pause after "Hel" until they are released.
async fn gated(keys: &Keys) -> Server {
    let gated = |_: &hanzo_engine_proto::v1::InferRequest| {
        let end = fake::finished(0, hanzo_engine_proto::v1::FinishReason::Stop, 2);
        Ok(vec![fake::started(), fake::delta(0, "Hel"), fake::Step::Gate, end])
    };
    Server::with(script(gated), |config| config.api_keys_file = Some(keys.path.clone())).await
}

/// Stream of a chat that has come to the pause.
async fn half_told(server: &Server, key: &str) -> Live {
    let mut body = chat();
    body["stream"] = json!(true);
    let mut request = json_request("/v1/chat/completions", body.to_string());
    request.headers_mut().insert("x-api-key", key.parse().unwrap());
    let mut stream = Live::open(server.address, request).await;
    stream.read_until("Hel").await;
    stream
}

#[tokio::test]
async fn a_stream_runs_until_its_end() {
    let keys = Keys::new();
    let key = keys.add("one", |record| record.concurrency = Some(1));
    let server = gated(&keys).await;
    let stream = half_told(&server, &key).await;
    let answer = ask(&server, &key, "/v1/chat/completions", &chat()).await;
    assert_eq!((answer.status, answer.header("retry-after")), (429, Some("1")));
    server.fake.release();
    assert!(stream.rest().await.text.ends_with("data: [DONE]\n\n"));
    // Its place is free when the connection has seen the end.
    server.fake.release();
    let mut answer = ask(&server, &key, "/v1/chat/completions", &chat()).await;
    for _ in 0..100 {
        if answer.status == 200 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        answer = ask(&server, &key, "/v1/chat/completions", &chat()).await;
    }
    assert_eq!(answer.status, 200, "{}", answer.text);
}

#[tokio::test]
async fn a_stream_ends_with_its_key() {
    let keys = Keys::new();
    let [revoked, other] = ["revoked", "other"].map(|name| keys.add(name, |_| {}));
    let server = gated(&keys).await;
    let (mut ends, goes_on) = (half_told(&server, &revoked).await, half_told(&server, &other).await);
    KeysFile::revoke(&keys.path, "revoked").unwrap();
    assert!(ends.breaks_off().await, "it ended as if it were whole");
    server.fake.release();
    server.fake.release();
    assert!(goes_on.rest().await.text.ends_with("data: [DONE]\n\n"));
}

#[tokio::test]
async fn a_key_sees_its_models_alone() {
    let keys = Keys::new();
    let narrow = keys.add("narrow", |record| record.models = vec!["READY".to_owned()]);
    let other = keys.add("other", |record| record.models = vec!["elsewhere*".to_owned()]);
    // An operator is held to them too.
    let boss = keys.add("boss", |record| {
        (record.admin, record.models) = (true, vec!["elsewhere*".to_owned()]);
    });
    let server = keys.serve().await;
    assert_eq!(ask(&server, &narrow, "/v1/chat/completions", &chat()).await.status, 200);
    for (path, body) in [
        ("/v1/models/load", json!({"model": "owner/ready"})),
        ("/v1/models/unload", json!({"model": "owner/ready"})),
        ("/api/copy", json!({"source": "owner/ready", "destination": "own"})),
        ("/api/create", json!({"model": "own", "from": "owner/ready"})),
        ("/api/generate", json!({"model": "owner/ready"})),
    ] {
        let answer = ask(&server, &boss, path, &body).await;
        assert_eq!(answer.status, 403, "{path}: {}", answer.text);
        assert!(answer.text.contains("this key may not use"), "{path}: {}", answer.text);
    }
    let remove = |path: &str, body: &str| {
        let request =
            Request::delete(path).header("x-api-key", &boss).header("content-type", "application/json");
        request.body(Full::from(body.to_owned())).unwrap()
    };
    for request in
        [remove("/v1/models/owner/ready", ""), remove("/api/delete", "{\"model\": \"owner/ready\"}")]
    {
        let answer = send(server.address, request).await;
        assert!(answer.status == 403 && answer.text.contains("this key may not use"), "{}", answer.text);
    }
    let mut sound = crate::audio::asked(&[]);
    sound.headers_mut().insert("x-api-key", other.parse().unwrap());
    let answer = send(server.address, sound).await;
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (403, &json!("model_not_allowed")));
    for (path, body) in [
        ("/v1/audio/speech", json!({"model": "owner/ready", "input": "x", "voice": "alloy"})),
        ("/v1/chat/completions", chat()),
        ("/v1/completions", json!({"model": "owner/ready", "prompt": "x"})),
        ("/v1/embeddings", json!({"model": "owner/ready", "input": "x"})),
        ("/v1/rerank", json!({"model": "owner/ready", "query": "x", "documents": ["y"]})),
        ("/v1/classify", json!({"model": "owner/ready", "input": "x"})),
        ("/tokenize", json!({"model": "owner/ready", "prompt": "x"})),
        ("/detokenize", json!({"model": "owner/ready", "tokens": [1]})),
        ("/v1/chat/completions", json!({"messages": chat()["messages"]})),
        ("/tokenize", json!({"prompt": "x"})),
    ] {
        let answer = ask(&server, &other, path, &body).await;
        assert_eq!(
            (answer.status, &answer.json()["error"]["code"]),
            (403, &json!("model_not_allowed")),
            "{path} {body}"
        );
        // A field that was not sent is not the one that is wrong.
        let param = body.get("model").map_or(Value::Null, |_| json!("model"));
        assert_eq!(answer.json()["error"]["param"], param, "{path}");
        assert!(answer.text.contains("elsewhere*"), "{path}: {}", answer.text);
    }
    let ids = |answer: Answer| {
        let models = answer.json()["data"].as_array().unwrap().clone();
        models.iter().map(|model| model["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ids(look(&server, &narrow, "/v1/models").await), ["owner/ready"]);
    assert!(ids(look(&server, &other, "/v1/models").await).is_empty());
    assert_eq!(look(&server, &other, "/v1/models/owner/ready").await.status, 403);
    assert_eq!(look(&server, &other, "/v1/audio/voices?model=owner/ready").await.status, 403);
    // Nor do other names tell of others' models.
    let tags = look(&server, &other, "/api/tags").await;
    assert_eq!((tags.status, tags.json()), (200, json!({"models": []})), "{}", tags.text);
    // Nor of its own: another name of its model is another's to use.
    for (models, seen) in
        [(vec!["a-stored"], vec!["a-stored:latest"]), (vec!["*"], vec!["a-stored:latest", "mine:latest"])]
    {
        let key = keys.add(&format!("of-{}", seen.len()), |record| {
            record.models = models.iter().map(ToString::to_string).collect();
        });
        let mut tags = vec![];
        for _ in 0..100 {
            tags = names_of(&look(&server, &key, "/api/tags").await);
            if !tags.is_empty() {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        tags.retain(|name| name.starts_with("a-stored") || name.starts_with("mine"));
        assert_eq!(tags, seen, "{models:?}");
    }
    assert_eq!(server.fake.seen().len(), 1);
}

#[tokio::test]
async fn adapters_are_the_operators() {
    let keys = Keys::new();
    let (user, admin) = (keys.add("user", |_| {}), keys.add("admin", |record| record.admin = true));
    let server = serve_with(&keys.path, |config| config.adapter_updates = true).await;
    let body = json!({"lora_name": "sql", "lora_path": "/adapters/sql"});
    let answer = ask(&server, &user, "/v1/load_lora_adapter", &body).await;
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (403, &json!("insufficient_permissions")));
    assert_eq!(ask(&server, &admin, "/v1/load_lora_adapter", &body).await.status, 200);
}

#[tokio::test]
async fn a_priority_is_the_keys_or_later() {
    let keys = Keys::new();
    let key = keys.add("later", |record| record.priority = Some(5));
    let server = keys.serve().await;
    for (asked, expected) in [(json!(null), 5), (json!(-9), 5), (json!(8), 8)] {
        let mut body = chat();
        if !asked.is_null() {
            body["priority"] = asked;
        }
        let before = server.fake.seen().len();
        assert_eq!(ask(&server, &key, "/v1/chat/completions", &body).await.status, 200);
        let seen = server.fake.seen();
        assert!(
            seen.len() == before + 1 && seen.iter().any(|request| request.priority == expected),
            "{body}"
        );
    }
}

#[tokio::test]
async fn guesses_are_slowed() {
    let keys = Keys::new();
    let made = keys.add("alice", |_| {});
    let set = Secret::new("chosen-by-a-person").unwrap();
    let server = serve_with(&keys.path, |config| config.api_key = Some(set)).await;
    let mut statuses = Vec::new();
    for i in 0..40 {
        statuses.push(look(&server, &format!("guess-{i}"), "/v1/models").await.status);
    }
    let wrong = statuses.iter().take_while(|status| **status == 401).count();
    assert!((20..30).contains(&wrong), "{statuses:?}");
    let answer = look(&server, "chosen-by-a-person", "/v1/models").await;
    assert_eq!(answer.status, 429, "a guess that is right is told from one that is wrong");
    assert!(answer.header("retry-after").is_some());
    assert_eq!(look(&server, &made, "/v1/models").await.status, 200);
}

#[tokio::test]
async fn what_tells_of_load_can_be_made_to_want_a_key() {
    let keys = Keys::new();
    let key = keys.add("prometheus", |_| {});
    let server = serve_with(&keys.path, |config| config.private_metrics = true).await;
    for path in ["/metrics", "/health", "/version"] {
        assert_eq!(get(server.address, path).await.status, 401, "{path}");
        assert_eq!(look(&server, &key, path).await.status, 200, "{path}");
    }
    for path in ["/alive", "/ready"] {
        assert_eq!(get(server.address, path).await.status, 200, "{path}");
    }
}
