//! Tokens of bodies that another server answers: reserved before they leave, and settled by what the answer tells.

use super::*;
use crate::{PATIENCE, http::Answer};

/// A server with a key of 50 tokens a minute, and what that key asks.
struct Limited {
    elsewhere: Elsewhere,
    server: Server,
    key: String,
    _keys: Keys,
}

impl Limited {
    async fn start() -> Limited {
        let (elsewhere, at) = Elsewhere::start().await;
        let full = |_: &_| Err(Status::resource_exhausted("the queue is full"));
        let keys = Keys::new();
        let key = keys.add("one", |record| record.tokens_per_minute = Some(50));
        let server = server(at, script(full), |config| config.api_keys_file = Some(keys.path.clone())).await;
        Limited { elsewhere, server, key, _keys: keys }
    }

    fn request(&self, path: &str, body: &Value) -> hyper::Request<http_body_util::Full<Bytes>> {
        let mut request = json_request(path, body.to_string());
        request.headers_mut().insert("authorization", format!("Bearer {}", self.key).parse().unwrap());
        request
    }

    async fn ask(&self, path: &str, body: &Value) -> Answer {
        send(self.server.address, self.request(path, body)).await
    }

    /// Tokens that the key has left.
    async fn left(&self) -> u32 {
        let mut request = self.request("/v1/models", &json!({}));
        *request.method_mut() = "GET".parse().unwrap();
        let answer = send(self.server.address, request).await;
        answer.header("x-ratelimit-remaining-tokens").unwrap().parse().unwrap()
    }
}

/// The routes whose bodies are forwarded as they came, each for a model, with how they bound answers.
fn forwarded(model: &str, words: &str) -> [(&'static str, Value, Option<&'static str>); 3] {
    [
        (
            "/v1/chat/completions",
            json!({"model": model, "messages": [{"role": "user", "content": words}]}),
            Some("max_completion_tokens"),
        ),
        ("/v1/completions", json!({"model": model, "prompt": words}), Some("max_tokens")),
        ("/v1/embeddings", json!({"model": model, "input": words}), None),
    ]
}

#[tokio::test]
async fn a_forwarded_bodys_tokens_are_reserved_before_it_leaves() {
    // A model that is answered there, and one that overflows.
    for model in ["far", "owner/ready"] {
        for (path, body, bound) in forwarded(model, "hi") {
            if bound.is_none() && model != "far" {
                continue; // The engine is not too busy for vectors.
            }
            let limited = Limited::start().await;
            let long = "words ".repeat(60);
            let mut refused = vec![forwarded(model, &long).into_iter().find(|of| of.0 == path).unwrap().1];
            if let Some(bound) = bound {
                for name in ["max_tokens", bound] {
                    let mut body = body.clone();
                    body[name] = json!(9_600);
                    refused.push(body);
                }
            }
            for body in &refused {
                let answer = limited.ask(path, body).await;
                assert!([400, 429].contains(&answer.status.into()), "{path} {model}: {}", answer.text);
            }
            assert!(limited.elsewhere.asked().is_empty(), "{path} {model}: nothing leaves");
            assert_eq!(limited.left().await, 50, "{path} {model}");

            let answer = limited.ask(path, &body).await;
            assert_eq!(answer.status, 200, "{path} {model}: {}", answer.text);
            let asked = limited.elsewhere.asked();
            if let Some(bound) = bound {
                let tokens = asked[0].2[bound].as_u64().unwrap();
                assert!((1..50).contains(&tokens), "{path} {model}: an answer is bound to {tokens}");
            }
            // 42 are told.
            let left = limited.left().await;
            assert!((8..=12).contains(&left), "{path} {model}: {left} are left");
        }
    }
}

#[tokio::test]
async fn a_client_that_leaves_pays_for_what_the_other_server_has_read() {
    for stream in [false, true] {
        for (path, mut body, bound) in forwarded("far", &format!("please wait {}", "x".repeat(88))) {
            if bound.is_none() && stream {
                continue;
            }
            let limited = Limited::start().await;
            body["stream"] = json!(stream);
            let live = tokio::spawn(Live::tried(limited.server.address, limited.request(path, &body)));
            let sent = async {
                while limited.elsewhere.0.lock().unwrap().is_empty() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(PATIENCE, sent).await.unwrap();
            live.abort();
            let paid = async {
                // 100 bytes of text are 20 tokens; the rest of the reservation comes back.
                while !(30..35).contains(&limited.left().await) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(PATIENCE, paid).await.expect(path);
        }
    }
}

#[tokio::test]
async fn an_answer_that_does_not_tell_its_usage_is_charged_by_its_bytes() {
    let limited = Limited::start().await;
    let [(path, mut body, _), ..] = forwarded("far", "please tell nothing");
    body["max_tokens"] = json!(30);
    assert_eq!(limited.ask(path, &body).await.status, 200);
    let left = limited.left().await;
    assert!((20..40).contains(&left), "{left} are left");
}
