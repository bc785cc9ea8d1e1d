//! Ollama's `/api/create`: what it asks of the store.

use std::collections::BTreeMap;

use bytes::Bytes;
use hanzo_engine_proto::v1;
use http_body_util::Full;
use hyper::Request;
use serde_json::{Value, json};

use crate::{
    Server,
    fake::hello,
    http::{post, send},
    script,
};

#[tokio::test]
async fn a_model_is_made_of_another() {
    let server = Server::start(script(hello)).await;
    let body = json!({"model": "mine:latest", "from": "owner/ready", "system": "Be brief.", "parameters": {"temperature": 0.5, "stop": ["x"]},
        "messages": [{"role": "user", "content": "hi"}], "license": ["MIT", "more"], "template": "", "files": {}});
    let answer = post(server.address, "/api/create", &body).await;
    let lines: Vec<Value> = answer.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/x-ndjson")));
    assert_eq!(lines.last(), Some(&json!({"status": "success"})));
    let whole = json!({"name": "other", "from": "owner/ready", "stream": false});
    assert_eq!(post(server.address, "/api/create", &whole).await.json(), json!({"status": "success"}));
    let text = |text: &str| Some(text.to_owned());
    let expected = v1::DeriveRequest {
        model: "owner/ready".to_owned(),
        name: "mine".to_owned(),
        system: text("Be brief."),
        params_json: text(r#"{"temperature":0.5,"stop":["x"]}"#),
        messages_json: text(r#"[{"role":"user","content":"hi"}]"#),
        license: text("MIT\n\nmore"),
        ..v1::DeriveRequest::default()
    };
    let plain = v1::DeriveRequest {
        model: "owner/ready".to_owned(),
        name: "other".to_owned(),
        ..v1::DeriveRequest::default()
    };
    let derived = server.fake.store().derived();
    assert_eq!(derived, [expected, plain]);
}

#[tokio::test]
async fn files_are_put_there_and_become_a_model() {
    let server = Server::start(script(hello)).await;
    let digest = "0123456789abcdef".repeat(4);
    let path = format!("/api/blobs/sha256:{digest}");
    let head = |path: &str| Request::head(path).body(Full::<Bytes>::default()).unwrap();
    let put = |path: &str, bytes: Vec<u8>| Request::post(path).body(Full::new(Bytes::from(bytes))).unwrap();
    assert_eq!(send(server.address, head(&path)).await.status, 404);
    // Larger than a body may be, and than a message.
    let file: Vec<u8> = (0..11_000_000_u32).map(|i| (i % 251) as u8).collect();
    let refused = send(server.address, put(&path, b"other".to_vec())).await;
    assert_eq!(refused.status, 400);
    assert_eq!(refused.json(), json!({"error": "the bytes have SHA-256 1, and were to have 2"}));
    assert_eq!(send(server.address, put(&path, file.clone())).await.status, 201);
    assert_eq!(send(server.address, head(&path)).await.status, 200);
    assert_eq!(send(server.address, put(&path, Vec::new())).await.status, 200, "it is there");
    assert_eq!(server.fake.store().blobs(), BTreeMap::from([(digest.clone(), file)]));
    for wrong in ["sha256:0", "md5:0123456789abcdef0123456789abcdef", &digest.to_uppercase()] {
        let answer = send(server.address, put(&format!("/api/blobs/{wrong}"), Vec::new())).await;
        assert_eq!(answer.status, 400, "{wrong}");
        assert!(answer.text.contains("digest: expected sha256:"), "{}", answer.text);
    }
    let body = json!({"model": "mine", "files": {"m.gguf": format!("sha256:{digest}")}, "template": "{% if x %}{% endif %}", "stream": false});
    assert_eq!(post(server.address, "/api/create", &body).await.json(), json!({"status": "success"}));
    let expected = v1::DeriveRequest {
        name: "mine".to_owned(),
        template: Some("{% if x %}{% endif %}".to_owned()),
        files: [("m.gguf".to_owned(), digest)].into(),
        ..v1::DeriveRequest::default()
    };
    assert_eq!(server.fake.store().derived(), [expected]);
}
