//! One of two engines refuses connections: from the start, from the middle, or now and then. Each route answers, over every rpc that
//! the gateway makes.

use http_body_util::Full;
use hyper::Request;

use super::*;
use crate::{audio, http::send};

/// A route, the method of its request and its body.
struct Call {
    method: &'static str,
    path: &'static str,
    body: Value,
}

fn call(method: &'static str, path: &'static str, body: Value) -> Call {
    Call { method, path, body }
}

/// Requests that reach every rpc, by every surface.
fn calls() -> Vec<Call> {
    let user = json!([{"role": "user", "content": "hi"}]);
    vec![
        // Infer.
        call("POST", "/v1/chat/completions", json!({"model": "owner/ready", "messages": user})),
        call("POST", "/v1/chat/completions", json!({"messages": user, "stream": true})),
        call("POST", "/v1/completions", json!({"model": "owner/ready", "prompt": "hi"})),
        call("POST", "/v1/responses", json!({"model": "owner/ready", "input": "hi"})),
        call("POST", "/v1/messages", json!({"model": "owner/ready", "max_tokens": 9, "messages": user})),
        call("POST", "/api/chat", json!({"model": "owner/ready", "messages": user})),
        call("POST", "/api/generate", json!({"model": "owner/ready", "prompt": "hi"})),
        call("POST", "/completion", json!({"prompt": "hi"})),
        // Tokenize and Detokenize.
        call("POST", "/tokenize", json!({"content": "hi"})),
        call("POST", "/detokenize", json!({"tokens": [104, 105]})),
        call("POST", "/v1/messages/count_tokens", json!({"model": "owner/ready", "messages": user})),
        call("POST", "/v1/responses/input_tokens", json!({"model": "owner/ready", "input": "hi"})),
        call("POST", "/v1/chat/completions/input_tokens", json!({"messages": user})),
        // Embed, Rerank and Classify.
        call("POST", "/v1/embeddings", json!({"model": "owner/ready", "input": ["a", "b"]})),
        call("POST", "/api/embed", json!({"model": "owner/ready", "input": "a"})),
        call("POST", "/v1/rerank", json!({"model": "owner/ready", "query": "a", "documents": ["b"]})),
        call("POST", "/v1/classify", json!({"model": "owner/ready", "input": "a"})),
        // Stats, List, Show, Aliases and Pulls.
        call("GET", "/v1/models", Value::Null),
        call("GET", "/v1/models/owner/ready", Value::Null),
        call("GET", "/v1/models/pull", Value::Null),
        call("GET", "/api/tags", Value::Null),
        call("GET", "/api/ps", Value::Null),
        call("POST", "/api/show", json!({"model": "owner/ready"})),
        call("GET", "/ready", Value::Null),
        call("GET", "/health", Value::Null),
        // Load, Unload, Pull, Copy, Derive, Remove, LoadAdapter and UnloadAdapter.
        call("POST", "/v1/models/load", json!({"model": "owner/ready"})),
        call("POST", "/v1/models/unload", json!({"model": "owner/ready"})),
        call("POST", "/v1/models/pull", json!({"model": "x/other"})),
        call("POST", "/api/pull", json!({"model": "x/other", "stream": false})),
        call("POST", "/api/copy", json!({"source": "owner/ready", "destination": "mine"})),
        call(
            "POST",
            "/api/create",
            json!({"model": "own", "from": "owner/ready", "system": "x", "stream": false}),
        ),
        call("DELETE", "/api/delete", json!({"model": "owner/ready"})),
        call("POST", "/v1/load_lora_adapter", json!({"lora_name": "sql", "lora_path": "/of/one"})),
        call("POST", "/v1/unload_lora_adapter", json!({"lora_name": "sql"})),
        // Speak, Voices and Transcribe.
        call("POST", "/v1/audio/speech", json!({"model": "owner/speaks", "input": "hi", "voice": "marin"})),
        call("GET", "/v1/audio/voices?model=owner/speaks", Value::Null),
        call("FORM", "/v1/audio/transcriptions", Value::Null),
    ]
}

impl Call {
    fn request(&self) -> Request<Full<bytes::Bytes>> {
        if self.method == "FORM" {
            return audio::asked(&[]);
        }
        let body = if self.body.is_null() { String::new() } else { self.body.to_string() };
        let mut request = json_request(self.path, body);
        *request.method_mut() = self.method.parse().unwrap();
        request
    }

    /// The fault of the answer, if it has one.
    async fn fault(&self, http: SocketAddr) -> Option<String> {
        let answer = send(http, self.request()).await;
        // An error that comes after the head of an answer is one too.
        let broken =
            ["\"error\":{", "\"error\":\"", "event: error"].iter().any(|word| answer.text.contains(word));
        let called = format!("{} {} {}", self.method, self.path, self.body);
        (answer.status != 200 || broken).then(|| format!("{called}: {} {}", answer.status, answer.text))
    }
}

/// Asks by every route.
async fn faults(http: SocketAddr) -> Vec<String> {
    let mut faults = Vec::new();
    for call in calls() {
        faults.extend(call.fault(http).await);
    }
    faults
}

fn none(faults: Vec<String>, when: &str) {
    assert!(faults.is_empty(), "{when}: {} routes:\n{}", faults.len(), faults.join("\n"));
}

/// An address where nothing listens.
fn refusing() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

#[tokio::test]
async fn an_engine_that_refuses_from_the_start_costs_no_answer() {
    let live = Fake::start(script(hello)).await;
    for more in [1, 5] {
        let mut upstreams: Vec<String> = (0..more).map(|_| refusing().to_string()).collect();
        upstreams.push(live.address.to_string());
        let config = Config { upstreams, adapter_updates: true, ..Config::default() };
        let http = gateway(config, Arc::new(SystemResolver)).await;
        none(faults(http).await, "before anybody has looked");
        until(http, |engines| engines.iter().all(|engine| engine["state"] != "unknown")).await;
        none(faults(http).await, "when it is known");
    }
}

#[tokio::test]
async fn an_engine_that_refuses_from_the_middle_costs_no_answer() {
    for (at, call) in calls().into_iter().enumerate() {
        let mut fleet = Fleet::start(2, script(hello)).await;
        none(call.fault(fleet.http).await.into_iter().collect(), "with both");
        fleet.engines[at % 2].kill();
        // At once, without waiting for anybody to notice.
        for _ in 0..4 {
            none(call.fault(fleet.http).await.into_iter().collect(), "with one");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_that_flap_cost_no_answer_while_one_is_there() {
    let mut fleet = Fleet::start(2, script(hello)).await;
    for round in 0..6 {
        let at = round % 2;
        fleet.engines[at].kill();
        none(faults(fleet.http).await, "one is gone");
        fleet.engines[at].restart(script(hello));
        // It is back, and left alone for a while yet.
        for call in calls() {
            fleet.engines[1 - at].kill();
            none(call.fault(fleet.http).await.into_iter().collect(), "the other is gone");
            fleet.engines[1 - at].restart(script(hello));
        }
    }
}

#[tokio::test]
async fn a_name_whose_first_family_refuses_is_reached_by_the_other() {
    let live = Fake::start(script(hello)).await;
    let dead = SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], refusing().port()));
    let names = Arc::new(Names { addresses: Mutex::new(Ok(vec![dead, live.address])), again: Notify::new() });
    let upstreams = vec!["dns://engines.internal:7".to_owned()];
    let http = gateway(Config { upstreams, adapter_updates: true, ..Config::default() }, names).await;
    none(faults(http).await, "one family refuses");
}
