//! Control of models: what is asked of the engine, how far a pull is, what ends it, and which keys may.

use hanzo_engine_proto::v1::{self, pull_progress::Phase};
use http_body_util::Full;
use hyper::Request;
use serde_json::{Value, json};
use tonic::Status;

use crate::{
    Server,
    fake::hello,
    http::{Answer, Live, json_request, post, send},
    keys::Keys,
    script,
};

/// A model of the store that is not loaded.
pub(crate) fn stored() -> v1::ShowResponse {
    let model = v1::StoredModel {
        name: "a-stored".to_owned(),
        format: "gguf".to_owned(),
        quantization: "Q8_0".to_owned(),
        size_bytes: 4096,
        modified_at_unix_ms: 1_700_000_000_123,
        architecture: "qwen3".to_owned(),
        ..Default::default()
    };
    v1::ShowResponse {
        model: Some(model),
        architecture: "qwen3".to_owned(),
        parameters: 751_632_384,
        context_tokens_max: 40_960,
        capabilities: [
            v1::Capability::Chat,
            v1::Capability::Completion,
            v1::Capability::Tools,
            v1::Capability::Infill,
            v1::Capability::Reasoning,
        ]
        .map(i32::from)
        .to_vec(),
        chat_template: "{{ messages }}".to_owned(),
        license: "apache-2.0".to_owned(),
        system: "Be kind.".to_owned(),
        params_json: r#"{"temperature":0.6,"stop":["<a>","<b>"]}"#.to_owned(),
        ..Default::default()
    }
}

/// What a pull does: `None` is to say nothing more, and not to end.
pub(crate) fn pull(
    request: &v1::PullRequest,
) -> Result<Vec<Result<Option<v1::PullProgress>, Status>>, Status> {
    let file = |phase: Phase, bytes_done| v1::FileProgress {
        name: "w.gguf".to_owned(),
        phase: phase.into(),
        bytes_done,
        bytes_total: 100,
        digest: format!("sha256:{}", "ab".repeat(32)),
    };
    let step = |phase: Phase, bytes_done| v1::PullProgress {
        model: "x/other".to_owned(),
        phase: phase.into(),
        bytes_done,
        bytes_total: 100,
        eta_s: -1.0,
        files: if phase == Phase::Resolving { Vec::new() } else { vec![file(phase, bytes_done)] },
        ..Default::default()
    };
    let begun = vec![Ok(Some(step(Phase::Resolving, 0))), Ok(Some(step(Phase::Downloading, 40)))];
    let gone = Status::not_found("model: the registry has no such model");
    let end = match request.reference.as_str() {
        "bad reference" => return Err(Status::invalid_argument("reference: is none")),
        reference if reference.ends_with("missing") => {
            return Ok(vec![Err(gone)]);
        }
        reference if reference.contains("breaks") => vec![Err(Status::unavailable("the registry is gone"))],
        reference if reference.contains("slow") => vec![Ok(None)],
        _ => {
            let model = v1::StoredModel { name: "x/other".to_owned(), size_bytes: 100, ..Default::default() };
            let done = v1::PullProgress { stored: Some(model), ..step(Phase::Done, 100) };
            vec![Ok(Some(step(Phase::Verifying, 100))), Ok(Some(done))]
        }
    };
    Ok(begun.into_iter().chain(end).collect())
}

async fn delete(server: &Server, path: &str, key: &str) -> Answer {
    let request = Request::delete(path).header("x-api-key", key);
    send(server.address, request.body(Full::<bytes::Bytes>::default()).unwrap()).await
}

#[tokio::test]
async fn a_model_is_loaded_as_it_is_asked_for() {
    let server = Server::start(script(hello)).await;
    let body = json!({
        "model": "a-stored", "alias": "mine", "context_tokens_max": 512, "keep_alive": "1h", "gpu_layers": 20,
        "gpu_devices": "0,1",
        "overrides": {"isq": 4, "kv": ["a=int:1"], "rope_scale": 2.0},
    });
    let answer = post(server.address, "/v1/models/load", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let shown = answer.json();
    assert_eq!((&shown["success"], &shown["load_ms"]), (&json!(true), &json!(7)));
    assert_eq!((&shown["model"]["id"], &shown["model"]["state"]), (&json!("a-stored"), &json!("ready")));
    let load = server.fake.loads().remove(0);
    assert_eq!(
        (load.model.as_str(), load.alias.as_str(), load.context_tokens_max),
        ("a-stored", "mine", 512)
    );
    assert_eq!(load.keep_alive.as_deref(), Some("1h"));
    assert_eq!((load.gpu_layers.as_str(), load.gpu_devices.as_str()), ("20", "0,1"));
    let over = load.overrides.unwrap();
    assert_eq!((over.isq.as_str(), over.kv, over.rope_scale), ("4", vec!["a=int:1".to_owned()], 2.0));

    let router =
        post(server.address, "/models/load", &json!({"model": "a-stored", "gpu_layers": "all"})).await;
    assert_eq!((router.status, &router.json()["success"]), (200, &json!(true)));
    assert_eq!(server.fake.loads().pop().map(|load| load.gpu_layers).as_deref(), Some("all"));
    let gone = post(server.address, "/v1/models/unload", &json!({"model": "owner/ready"})).await;
    assert_eq!((gone.status, &gone.json()["model"]["state"]), (200, &json!("unloaded")), "{}", gone.text);
}

#[tokio::test]
async fn what_cannot_be_loaded_is_said_with_its_status() {
    let server = Server::start(script(hello)).await;
    for (path, body, status, param) in [
        ("/v1/models/load", json!({}), 400, json!("model")),
        ("/v1/models/load", json!({"model": "a-stored", "sise": 1}), 400, json!("sise")),
        ("/v1/models/load", json!({"model": "a-stored", "adapters": []}), 400, json!("adapters")),
        ("/v1/models/load", json!({"model": "a-stored", "gpu_layers": -1}), 400, json!("gpu_layers")),
        ("/v1/models/load", json!({"model": "a-stored", "gpu_layers": 1.5}), 400, json!("gpu_layers")),
        ("/v1/models/load", json!({"model": "a-stored", "gpu_layers": ""}), 400, json!("gpu_layers")),
        (
            "/v1/models/load",
            json!({"model": "a-stored", "overrides": {"tokenizer": "/etc"}}),
            400,
            json!("overrides.tokenizer"),
        ),
        ("/v1/models/load", json!({"model": "/etc/passwd"}), 404, json!("model")),
        ("/v1/models/load", json!({"model": "a-stored", "draft_model": "./here"}), 404, json!("draft_model")),
        ("/v1/models/load", json!({"model": "a-stored", "kv_bytes": 1}), 429, Value::Null),
        ("/v1/models/unload", json!({"model": "nobody"}), 404, json!("model")),
        ("/v1/models/pull", json!({}), 400, json!("model")),
        ("/v1/models/pull", json!({"model": "file:///etc"}), 400, json!("model")),
        ("/v1/models/pull", json!({"model": "../up"}), 400, json!("model")),
        ("/v1/models/pull", json!({"reference": "bad reference"}), 400, json!("reference")),
        ("/v1/models/pull", json!({"model": "missing"}), 404, json!("model")),
        ("/v1/models/pull", json!({"model": "breaks", "stream": false}), 503, Value::Null),
    ] {
        let answer = post(server.address, path, &body).await;
        let error = answer.json()["error"].clone();
        assert_eq!((answer.status, &error["param"]), (status, &param), "{path} {body}: {}", answer.text);
    }
    assert_eq!(server.fake.loads().len(), 1, "the engine was asked for what is no known model");
}

#[tokio::test]
async fn a_pull_says_how_far_it_is_in_each_form() {
    let server = Server::start(script(hello)).await;
    let body = json!({"model": "x/other", "quantization": "Q8_0", "include": ["*.gguf"]});
    let answer = post(server.address, "/v1/models/pull", &body).await;
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("text/event-stream")));
    let mut events: Vec<&str> = answer.text.split_terminator("\n\n").collect();
    assert_eq!(events.pop(), Some("data: [DONE]"));
    let read = |event: &&str| serde_json::from_str::<Value>(event.strip_prefix("data: ").unwrap()).unwrap();
    let events: Vec<Value> = events.iter().map(read).collect();
    let said: Vec<_> =
        events.iter().map(|e| (e["status"].as_str().unwrap(), e["bytes_done"].as_u64().unwrap())).collect();
    assert_eq!(said, [("resolving", 0), ("downloading", 40), ("verifying", 100), ("done", 100)]);
    assert_eq!(events[1]["files"][0]["name"], "w.gguf");
    assert_eq!((&events[3]["stored"]["id"], &events[0]["eta_s"]), (&json!("x/other"), &Value::Null));
    let asked = server.fake.pulls().remove(0);
    assert_eq!(
        (asked.quantization.as_str(), asked.include, asked.cancel_with_client),
        ("Q8_0", vec!["*.gguf".to_owned()], true)
    );

    let mut request = json_request("/v1/models/pull", body.to_string());
    request.headers_mut().insert("accept", "application/x-ndjson".parse().unwrap());
    let lines = send(server.address, request).await;
    assert_eq!(lines.header("content-type"), Some("application/x-ndjson"));
    let lines: Vec<Value> = lines.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines, events);
    let once = post(server.address, "/v1/models/pull", &json!({"model": "x/other", "stream": false})).await;
    assert_eq!((once.status, once.json()), (200, events[3].clone()));

    let broken = post(server.address, "/v1/models/pull", &json!({"model": "breaks"})).await;
    let last = broken.text.split_terminator("\n\n").last().unwrap();
    assert!(
        last.starts_with("data: {\"error\":") && last.contains("the registry is gone"),
        "{}",
        broken.text
    );
}

#[tokio::test]
async fn a_client_that_leaves_ends_its_pull() {
    let server = Server::start(script(hello)).await;
    let mut live =
        Live::open(server.address, json_request("/v1/models/pull", json!({"model": "slow"}).to_string()))
            .await;
    live.read_until("downloading").await;
    live.leave();
    assert!(!server.fake.stream_over().await, "the pull had come to its end");
}

#[tokio::test]
async fn a_model_is_removed() {
    let server = Server::start(script(hello)).await;
    let gone = delete(&server, "/v1/models/x/other", "").await;
    let expected = json!({"id": "x/other", "object": "model", "deleted": true, "freed_bytes": 77});
    assert_eq!((gone.status, gone.json()), (200, expected));
    let none = delete(&server, "/v1/models/nobody", "").await;
    assert_eq!(
        (none.status, &none.json()["error"]["code"]),
        (404, &json!("model_not_found")),
        "{}",
        none.text
    );
}

#[tokio::test]
async fn only_a_key_with_the_admin_scope_may() {
    let keys = Keys::new();
    let (user, admin) = (keys.add("user", |_| {}), keys.add("boss", |record| record.admin = true));
    let server = keys.serve().await;
    let ask = |path: &'static str, key: &str| {
        let mut request = json_request(path, json!({"model": "owner/ready"}).to_string());
        request.headers_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
        send(server.address, request)
    };
    for path in ["/v1/models/load", "/v1/models/unload", "/v1/models/pull", "/models/load", "/models/unload"]
    {
        let refused = ask(path, &user).await;
        assert_eq!(refused.status, 403, "{path}: {}", refused.text);
        assert!(refused.text.contains("admin"), "{}", refused.text);
        assert_eq!(ask(path, &admin).await.status, 200, "{path}");
    }
    assert_eq!(delete(&server, "/v1/models/x/other", &user).await.status, 403);
    assert_eq!(delete(&server, "/v1/models/x/other", &admin).await.status, 200);
    assert_eq!((server.fake.loads().len(), server.fake.pulls().len()), (2, 1), "a user's calls went through");
    // What runs is nobody else's business.
    let running = async |key: &str| {
        let request = Request::get("/v1/models/pull").header("x-api-key", key);
        send(server.address, request.body(Full::<bytes::Bytes>::default()).unwrap()).await.json()
    };
    assert_eq!(running(&user).await, json!({"object": "list", "data": []}));
    let pull = running(&admin).await["data"][0].clone();
    assert_eq!(
        (&pull["model"], &pull["bytes_done"], &pull["eta_s"]),
        (&json!("x/running"), &json!(4), &Value::Null)
    );
}
