//! Models, tokens, and the routes about the server itself.

use hanzo_engine_proto::v1;
use hyper::Request;
use serde_json::{Value, json};
use tonic::Status;

use crate::{
    Server,
    fake::{hello, ready_stats},
    http::{get, post, send},
    script,
};

#[tokio::test]
async fn models() {
    let server = Server::start(script(hello)).await;
    let loaded = json!({"id": "owner/ready", "object": "model", "created": 5, "owned_by": "owner",
        "state": "ready", "status": {"value": "loaded"}, "max_model_len": 4096});
    let stored = json!({"id": "a-stored", "object": "model", "created": 9, "owned_by": "hanzo",
        "state": "stored", "status": {"value": "unloaded"}});
    let answer = get(server.address, "/v1/models").await;
    assert_eq!(answer.json(), json!({"object": "list", "data": [loaded, stored]}));
    // By its id, percent-encoded or not, and by another name that the engine knows.
    for path in ["/v1/models/owner/ready", "/v1/models/owner%2Fready", "/v1/models/READY"] {
        assert_eq!(get(server.address, path).await.json(), loaded, "{path}");
    }
    assert_eq!(get(server.address, "/v1/models/a-stored").await.json(), stored);
    let answer = get(server.address, "/v1/models/no/such").await;
    assert_eq!(answer.status, 404);
    let error = &answer.json()["error"];
    assert_eq!((&error["code"], &error["param"]), (&json!("model_not_found"), &json!("model")));
    assert!(error["message"].as_str().unwrap().contains("owner/ready"));
}

#[tokio::test]
async fn models_that_answer_nothing_are_marked() {
    let server = Server::start(script(hello)).await;
    let with = |state: v1::ModelState| {
        let mut stats = ready_stats();
        let status = stats.models[0].status.as_mut().unwrap();
        (status.state, status.error) = (state.into(), "b.gguf: it is cut short".to_owned());
        Ok(stats)
    };
    for (state, word, router, error) in [
        (v1::ModelState::Ready, "ready", json!({"value": "loaded"}), Value::Null),
        (v1::ModelState::Loading, "loading", json!({"value": "loading"}), Value::Null),
        (v1::ModelState::Draining, "draining", json!({"value": "loaded"}), Value::Null),
        (
            v1::ModelState::Failed,
            "failed",
            json!({"value": "unloaded", "failed": true}),
            json!("b.gguf: it is cut short"),
        ),
    ] {
        server.fake.set_stats(with(state));
        let list = get(server.address, "/v1/models").await.json();
        let one = get(server.address, "/v1/models/owner/ready").await.json();
        for model in [&list["data"][0], &one] {
            assert_eq!(model["id"], "owner/ready");
            assert_eq!((&model["state"], &model["status"]), (&json!(word), &router), "{model}");
            assert_eq!(model["error"], error, "{model}");
        }
    }
}

#[tokio::test]
async fn tokens() {
    let server = Server::start(script(hello)).await;
    let answer = post(server.address, "/tokenize", &json!({"prompt": "ab"})).await;
    let expected = json!({"tokens": [94, 97, 98], "count": 3, "max_model_len": 4096, "prompt": "^ab"});
    assert_eq!(answer.json(), expected);
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let chat =
        json!({"messages": [{"role": "user", "content": "x"}], "tools": tools, "add_special_tokens": false});
    let answer = post(server.address, "/tokenize", &chat).await;
    let tool = r#"{"type":"function","function":{"name":"f"}}"#;
    assert_eq!(answer.json()["prompt"], format!("^<1 messages, {tool} tools>"));
    // llama.cpp's words: no special tokens unless they are asked for, and tokens with their texts.
    for (body, tokens) in [
        (json!({"content": "ab"}), json!([97, 98])),
        (json!({"content": "ab", "add_special": true}), json!([94, 97, 98])),
        (json!({"prompt": "ab", "add_special_tokens": false}), json!([97, 98])),
        (json!({"content": "a", "with_pieces": true}), json!([{"id": 97, "piece": "a"}])),
        (
            json!({"content": "é", "with_pieces": true}),
            json!([{"id": 0xc3, "piece": [0xc3]}, {"id": 0xa9, "piece": [0xa9]}]),
        ),
    ] {
        assert_eq!(post(server.address, "/tokenize", &body).await.json()["tokens"], tokens, "{body}");
    }
    let answer = post(server.address, "/tokenize", &json!({"prompt": "a", "return_token_strs": true})).await;
    assert_eq!(answer.json()["token_strs"], json!(["^", "a"]));
    assert_eq!(answer.json()["tokens"], json!([94, 97]));
    assert!(expected.get("token_strs").is_none());
    let plain = post(server.address, "/tokenize", &json!({"prompt": "a", "parse_special": false})).await;
    assert_eq!(plain.json()["prompt"], "^plain a");
    let answer = post(server.address, "/detokenize", &json!({"tokens": [97, 98]})).await;
    assert_eq!(answer.json(), json!({"prompt": "ab", "content": "ab"}));
    for (path, body, param) in [
        ("/tokenize", json!({}), "messages"),
        ("/tokenize", json!({"prompt": 5}), "prompt"),
        ("/tokenize", json!({"prompt": "x", "messages": []}), "messages"),
        ("/tokenize", json!({"messages": [], "tools": vec![json!({}); 1025]}), "tools"),
        ("/tokenize", json!({"prompt": "x", "content": "x"}), "content"),
        ("/tokenize", json!({"content": 5}), "content"),
        ("/tokenize", json!({"prompt": "refuse"}), "prompt"),
        ("/tokenize", json!({"content": "refuse"}), "content"),
        (
            "/tokenize",
            json!({"content": "x", "add_special": true, "add_special_tokens": true}),
            "add_special",
        ),
        ("/tokenize", json!({"content": "x", "with_pieces": true, "return_token_strs": true}), "with_pieces"),
        ("/tokenize", json!({"prompt": "x", "tools": []}), "tools"),
        ("/tokenize", json!({"messages": [{"role": "user", "content": "x"}], "tools": ["f"]}), "tools[0]"),
        ("/detokenize", json!({}), "tokens"),
        ("/detokenize", json!({"tokens": ["a"]}), "tokens[0]"),
        // The engine's word for it is another.
        ("/detokenize", json!({"tokens": [1000]}), "tokens"),
    ] {
        let answer = post(server.address, path, &body).await;
        assert_eq!(answer.status, 400, "{path} {body}");
        assert_eq!(answer.json()["error"]["param"], param, "{path} {body}");
    }
}

#[tokio::test]
async fn health_and_readiness_follow_the_engine() {
    let server = Server::start(script(hello)).await;
    let with_state = |state: v1::ModelState| {
        let mut stats = ready_stats();
        stats.models[0].status.as_mut().unwrap().state = state.into();
        Ok(stats)
    };
    let draining = Ok(v1::StatsResponse { draining: true, ..ready_stats() });
    let cases = [
        (Ok(ready_stats()), 200, 200, "ok"),
        (with_state(v1::ModelState::Loading), 200, 503, "loading"),
        (with_state(v1::ModelState::Failed), 200, 503, "empty"),
        (Ok(v1::StatsResponse::default()), 200, 503, "empty"),
        (draining, 200, 503, "draining"),
        (Err(Status::internal("stuck")), 503, 503, "unavailable"),
    ];
    for (stats, health_status, ready_status, word) in cases {
        server.fake.set_stats(stats);
        let (health, ready) = (get(server.address, "/health").await, get(server.address, "/ready").await);
        assert_eq!((health.status, ready.status), (health_status, ready_status), "{word}: {}", health.text);
        assert_eq!(health.json()["status"], word);
        assert_eq!(ready.json()["ready"], ready_status == 200);
        assert_eq!(get(server.address, "/alive").await.status, 200);
    }
    server.fake.set_stats(Ok(ready_stats()));
    let model = &get(server.address, "/health").await.json()["models"][0];
    assert_eq!(model["name"], "owner/ready");
    let kv = json!({"blocks_total": 8, "blocks_used": 2, "blocks_cached": 0, "block_tokens": 16, "utilization": 0.25});
    assert_eq!(model["kv"], kv);
    let version = get(server.address, "/version").await.json();
    assert_eq!(version, json!({"version": env!("CARGO_PKG_VERSION"), "api": "hanzo.engine.v1"}));
}

#[tokio::test]
async fn metrics_count_requests_by_route_and_status() {
    let server = Server::start(script(hello)).await;
    post(server.address, "/v1/completions", &json!({"prompt": "x"})).await;
    post(server.address, "/v1/completions", &json!({"prompt": "x", "stream": true})).await;
    post(server.address, "/v1/completions", &json!({"prompt": 5})).await;
    get(server.address, "/v1/models/owner/ready").await;
    get(server.address, "/no/such/route").await;
    let answer = get(server.address, "/metrics").await;
    assert!(answer.header("content-type").unwrap().starts_with("text/plain; version=0.0.4"));
    for line in [
        r#"hanzo_engine_http_requests_total{route="/v1/completions",status="200"} 2"#,
        r#"hanzo_engine_http_requests_total{route="/v1/completions",status="400"} 1"#,
        r#"hanzo_engine_http_requests_total{route="/v1/models/{*id}",status="200"} 1"#,
        r#"hanzo_engine_http_requests_total{route="unmatched",status="404"} 1"#,
        r#"hanzo_engine_http_request_duration_seconds_count{route="/v1/completions"} 3"#,
        // This one.
        "hanzo_engine_http_requests_in_flight 1",
    ] {
        assert!(answer.text.lines().any(|l| l == line), "{line} is not in\n{}", answer.text);
    }
}

#[tokio::test]
async fn request_ids_come_back_clean() {
    let server = Server::start(script(hello)).await;
    for (sent, expected) in [("my-id/1", "my-id/1"), ("a b\"c", "abc")] {
        let request = Request::post("/v1/completions")
            .header("content-type", "application/json")
            .header("x-request-id", sent)
            .body(http_body_util::Full::from(r#"{"prompt":"x"}"#))
            .unwrap();
        assert_eq!(send(server.address, request).await.header("x-request-id"), Some(expected));
        assert!(server.fake.seen().iter().any(|request| request.request_id == expected));
    }
    // Also on errors, and made up where there was none.
    assert!(get(server.address, "/nope").await.header("x-request-id").unwrap().starts_with("req-"));
}

#[tokio::test]
async fn adapters_are_loaded_where_the_operator_allows_it() {
    let closed = Server::start(script(hello)).await;
    let body = json!({"lora_name": "sql", "lora_path": "/adapters/sql"});
    for path in ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"] {
        let answer = post(closed.address, path, &body).await;
        assert_eq!(
            (answer.status, &answer.json()["error"]["code"]),
            (403, &json!("adapter_updates_not_allowed"))
        );
    }
    let server = Server::with(script(hello), |config| config.adapter_updates = true).await;
    let load = async |body: Value| post(server.address, "/v1/load_lora_adapter", &body).await;
    let answer = load(body).await;
    assert_eq!((answer.status, answer.text.contains("'sql' added")), (200, true));
    for (body, param) in [
        (json!({"lora_path": "/x"}), "lora_name"),
        (json!({"lora_name": "x"}), "lora_path"),
        (json!({"lora_name": 1, "lora_path": "/x"}), "lora_name"),
        (json!({"lora_name": "x", "lora_path": "/x", "load_inplace": true}), "load_inplace"),
        (json!({"lora_name": "x", "lora_path": "/x", "rank": 3}), "rank"),
    ] {
        let answer = load(body).await;
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!(param)));
    }
    let answer = load(json!({"lora_name": "x", "lora_path": "/of/another"})).await;
    assert_eq!(answer.status, 400);
    assert!(
        answer.json()["error"]["message"].as_str().unwrap().contains("expected [4, 64], file has [4, 32]")
    );
    let unload = async |name: &str| {
        post(server.address, "/v1/unload_lora_adapter", &json!({"lora_name": name, "lora_int_id": 1})).await
    };
    assert_eq!(unload("sql").await.status, 200);
    let answer = unload("other").await;
    assert_eq!(answer.status, 404);
    assert!(answer.json()["error"]["message"].as_str().unwrap().contains("loaded: sql"));
}
