//! Several daemons behind one gateway: what their prefix caches still find, and what a rolling restart costs.

use std::{
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use hanzo_engine_daemon::{Config, DEMO_MODEL, Daemon};
use hanzo_engine_gateway::Gateway;
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::{Value, json};
use tokio::{
    sync::oneshot,
    task::{JoinHandle, JoinSet},
    time::timeout,
};

/// No answer takes this long; a test that waits longer has hung.
const PATIENCE: Duration = Duration::from_secs(60);

/// A daemon with the demo model.
struct Member {
    grpc: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Member {
    /// At that port; 0 picks a free one.
    async fn start(port: u16, store: &Path) -> Member {
        let mut config = Config::default();
        (config.server.grpc_port, config.server.admin_port, config.server.drain_s) = (port, 0, 30);
        config.store.dir = Some(store.to_path_buf());
        config.engine.threads = Some(1);
        let daemon = Daemon::bind(config).await.expect("a port that is free");
        let (grpc, handle) = (daemon.grpc_addr(), daemon.handle());
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(async move {
            daemon.serve(async { drop(stopped.await) }).await.expect("the daemon ends well");
        });
        handle.load(DEMO_MODEL).await.expect("the demo model loads");
        Member { grpc, stop, task }
    }

    /// As at SIGTERM.
    async fn end(self) {
        drop(self.stop);
        timeout(PATIENCE, self.task).await.expect("drained in time").expect("no panic");
    }
}

/// A gateway, and who asks it.
#[derive(Clone)]
struct Front {
    http: SocketAddr,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl Front {
    async fn before(members: &[Member]) -> Front {
        let upstreams = members.iter().map(|member| member.grpc.to_string()).collect();
        let config =
            hanzo_engine_gateway::Config { port: 0, upstreams, ..hanzo_engine_gateway::Config::default() };
        let gateway = Gateway::bind(config).await.expect("a free port");
        let http = gateway.local_addr();
        tokio::spawn(gateway.serve(std::future::pending()));
        let front = Front { http, client: Client::builder(TokioExecutor::new()).build_http() };
        if members.len() > 1 {
            front.until("all are up", |states| states.iter().all(|state| state == "up")).await;
        }
        front
    }

    async fn send(&self, path: &str, body: Option<Value>) -> (u16, String) {
        let request = http::Request::builder()
            .uri(format!("http://{}{path}", self.http))
            .method(if body.is_some() { "POST" } else { "GET" })
            .header("content-type", "application/json")
            .body(Full::new(body.map(|body| body.to_string().into()).unwrap_or_default()))
            .expect("a sound request");
        let answer =
            timeout(PATIENCE, self.client.request(request)).await.expect("in time").expect("an answer");
        let status = answer.status().as_u16();
        let body = timeout(PATIENCE, answer.into_body().collect()).await.expect("in time").expect("whole");
        (status, String::from_utf8(body.to_bytes().to_vec()).expect("UTF-8"))
    }

    /// Waits until the states of the daemons, in the order of their addresses, are as expected.
    async fn until(&self, what: &str, expected: impl Fn(&[String]) -> bool) {
        let wait = async {
            loop {
                let health: Value = serde_json::from_str(&self.send("/health", None).await.1).expect("JSON");
                let engines = health["upstreams"].as_array().expect("several");
                let state = |engine: &Value| engine["state"].as_str().expect("a state").to_owned();
                if expected(&engines.iter().map(state).collect::<Vec<_>>()) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("never: {what}"));
    }

    /// A turn of a chat: what is said, the prompt's tokens, and those that were found.
    async fn turn(&self, messages: &[Value]) -> (String, u64, u64) {
        let body = json!({
            "model": DEMO_MODEL, "messages": messages, "max_tokens": 12, "temperature": 0,
            "chat_template_kwargs": {"enable_thinking": false},
        });
        let (status, text) = self.send("/v1/chat/completions", Some(body)).await;
        assert_eq!(status, 200, "{text}");
        let answer: Value = serde_json::from_str(&text).expect("JSON");
        let count = |value: &Value| value.as_u64().expect("a count");
        let usage = &answer["usage"];
        let said = answer["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned();
        (said, count(&usage["prompt_tokens"]), count(&usage["prompt_tokens_details"]["cached_tokens"]))
    }

    /// Conversations side by side; which part of all prompts' tokens was found.
    async fn hit_rate(&self, conversations: usize, turns: usize) -> f64 {
        let mut running = JoinSet::new();
        for conversation in 0..conversations {
            let front = self.clone();
            running.spawn(async move {
                let mut messages = vec![json!({"role": "system", "content": "Be brief."})];
                let (mut prompt, mut found) = (0, 0);
                for turn in 0..turns {
                    let question = format!("In story {conversation}, what happens in part {turn}?");
                    messages.push(json!({"role": "user", "content": question}));
                    let (said, tokens, cached) = front.turn(&messages).await;
                    messages.push(json!({"role": "assistant", "content": said}));
                    (prompt, found) = (prompt + tokens, found + cached);
                }
                (prompt, found)
            });
        }
        let of_each = running.join_all().await;
        let (prompt, found) = of_each.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        found as f64 / prompt as f64
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn conversations_find_their_beginnings_behind_three_daemons_as_behind_one() {
    let store = tempfile::tempdir().expect("a temporary folder");
    let at = |i: usize| store.path().join(i.to_string());
    let one = [Member::start(0, &at(0)).await];
    let alone = Front::before(&one).await.hit_rate(12, 5).await;
    let mut three = Vec::new();
    for i in 1..4 {
        three.push(Member::start(0, &at(i)).await);
    }
    let together = Front::before(&three).await.hit_rate(12, 5).await;
    println!("prefix tokens found: {alone:.3} behind one daemon, {together:.3} behind three");
    assert!(alone > 0.4, "{alone}");
    assert!(together >= 0.8 * alone, "{together} of {alone}");
    for member in one.into_iter().chain(three) {
        member.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_drops_nothing() {
    let store = tempfile::tempdir().expect("a temporary folder");
    let at = |i: usize| store.path().join(i.to_string());
    let mut members = Vec::new();
    for i in 0..3 {
        members.push(Member::start(0, &at(i)).await);
    }
    let front = Front::before(&members).await;
    let over = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for client in 0..4 {
        let (front, over) = (front.clone(), over.clone());
        clients.spawn(async move {
            let mut answered = 0_u32;
            while !over.load(Ordering::Relaxed) {
                let question = format!("Client {client} asks question {answered}. Count from 1 to 9.");
                let body = json!({
                    "model": DEMO_MODEL, "stream": true, "max_tokens": 24,
                    "messages": [{"role": "user", "content": question}],
                });
                let (status, text) = front.send("/v1/chat/completions", Some(body)).await;
                assert_eq!(status, 200, "{text}");
                assert!(text.contains("[DONE]") && !text.contains("\"error\""), "{text}");
                answered += 1;
            }
            answered
        });
    }
    for i in 0..3 {
        let member = members.remove(0);
        let port = member.grpc.port();
        member.end().await;
        members.push(Member::start(port, &at(i)).await);
        front.until("it has rejoined", |states| states.iter().all(|state| state == "up")).await;
    }
    over.store(true, Ordering::Relaxed);
    let answered: u32 = clients.join_all().await.into_iter().sum();
    println!("{answered} streams during three restarts");
    assert!(answered > 12, "{answered}");
    for member in members {
        member.end().await;
    }
}
