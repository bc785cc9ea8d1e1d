//! A daemon and a gateway on free ports of the loopback, in this process, and a plain HTTP client to talk to them.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use hanzo_engine_daemon::{Config, Daemon};
use hanzo_engine_gateway::Gateway;
use hanzo_engine_proto::v1::{StatsRequest, engine_client::EngineClient};
use http_body_util::{BodyExt, Full};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use serde_json::{Value, json};
use tokio::{sync::oneshot, task::JoinHandle, time::timeout};
use tonic::transport::Channel;

/// No answer takes this long; a test that waits longer has hung.
const PATIENCE: Duration = Duration::from_secs(60);

/// The whole engine with the demo model.
pub struct Rig {
    /// The gateway.
    pub http: SocketAddr,
    /// The daemon.
    pub grpc: SocketAddr,
    /// The daemon's `/metrics`.
    pub admin: SocketAddr,
    client: Client<hyper_util::client::legacy::connect::HttpConnector, Full<Bytes>>,
    stop_daemon: Option<oneshot::Sender<()>>,
    stop_gateway: Option<oneshot::Sender<()>>,
    daemon: Option<JoinHandle<()>>,
    gateway: Option<JoinHandle<()>>,
    _models: tempfile::TempDir,
}

impl Rig {
    /// Started and ready.
    pub async fn start() -> Rig {
        Rig::start_with(|_| ()).await
    }

    /// Started with another configuration.
    pub async fn start_with(change: impl FnOnce(&mut Config)) -> Rig {
        Rig::start_how(false, change).await
    }

    /// Started as `serve` does it: the gateway calls the daemon without a connection.
    pub async fn start_in_one() -> Rig {
        Rig::start_how(true, |_| ()).await
    }

    async fn start_how(in_one: bool, change: impl FnOnce(&mut Config)) -> Rig {
        let models = tempfile::tempdir().expect("a temporary folder");
        let mut config = Config::default();
        config.server.grpc_port = 0;
        config.server.admin_port = 0;
        config.server.drain_s = 5;
        config.store.dir = Some(models.path().to_path_buf());
        config.engine.threads = Some(2);
        change(&mut config);
        let traces = config.traces.clone();
        let daemon = Daemon::bind(config).await.expect("free ports");
        let (grpc, admin) = (daemon.grpc_addr(), daemon.admin_addr());
        let (handle, access) = (daemon.handle(), daemon.access());
        let (engine, infer) = (daemon.engine(), daemon.infer());
        let (stop_daemon, stopped) = oneshot::channel::<()>();
        let daemon = tokio::spawn(async move {
            daemon.serve(async { drop(stopped.await) }).await.expect("the daemon ends well");
        });
        handle.load(hanzo_engine_daemon::DEMO_MODEL).await.expect("the demo model loads");

        let config = hanzo_engine_gateway::Config {
            port: 0,
            // Of no use where there is no connection.
            engine: if in_one { "http://0.0.0.0:1".to_owned() } else { format!("http://{grpc}") },
            drain_s: 5,
            traces_endpoint: traces.endpoint,
            traces_protocol: traces.protocol,
            traces_ratio: traces.ratio,
            ..hanzo_engine_gateway::Config::default()
        };
        let gateway = match in_one {
            true => Gateway::bind_to(config, engine, infer, access).await,
            false => Gateway::bind(config).await,
        };
        let gateway = gateway.expect("a free port");
        let http = gateway.local_addr();
        let (stop_gateway, stopped) = oneshot::channel::<()>();
        let gateway = tokio::spawn(async move {
            gateway.serve(async { drop(stopped.await) }).await.expect("the gateway ends well");
        });
        let client = Client::builder(TokioExecutor::new()).build_http();
        Rig {
            http,
            grpc,
            admin,
            client,
            stop_daemon: Some(stop_daemon),
            stop_gateway: Some(stop_gateway),
            daemon: Some(daemon),
            gateway: Some(gateway),
            _models: models,
        }
    }

    /// Status and body of one request; a JSON body is posted, none is a GET.
    pub async fn send(&self, path: &str, body: Option<Value>) -> (u16, http::HeaderMap, Value) {
        let (status, headers, bytes) = self.send_raw(path, body.map(|body| body.to_string().into())).await;
        let text = String::from_utf8(bytes.to_vec()).expect("UTF-8");
        (status, headers, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    /// The same with bytes as they are.
    pub async fn send_raw(&self, path: &str, body: Option<Bytes>) -> (u16, http::HeaderMap, Bytes) {
        self.send_headed(&format!("http://{}{path}", self.http), body, &[]).await
    }

    /// The same, to any address, with more headers.
    pub async fn send_headed(
        &self,
        url: &str,
        body: Option<Bytes>,
        headers: &[(&str, &str)],
    ) -> (u16, http::HeaderMap, Bytes) {
        let request = http::Request::builder()
            .uri(url)
            .method(if body.is_some() { "POST" } else { "GET" })
            .header("content-type", "application/json");
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let request = request.body(Full::new(body.unwrap_or_default())).expect("a sound request");
        let answer =
            timeout(PATIENCE, self.client.request(request)).await.expect("in time").expect("an answer");
        let (head, body) = answer.into_parts();
        let body =
            timeout(PATIENCE, body.collect()).await.expect("in time").expect("a whole body").to_bytes();
        (head.status.as_u16(), head.headers, body)
    }

    /// What the daemon's `/metrics` says.
    pub async fn metrics(&self) -> String {
        let uri = format!("http://{}/metrics", self.admin).parse().expect("a sound address");
        let answer = timeout(PATIENCE, self.client.get(uri)).await.expect("in time").expect("an answer");
        let body = timeout(PATIENCE, answer.into_body().collect()).await.expect("in time");
        String::from_utf8(body.expect("a whole body").to_bytes().to_vec()).expect("UTF-8")
    }

    /// A chat with the demo model, no thinking.
    pub async fn chat(&self, question: &str, more: Value) -> (u16, http::HeaderMap, Value) {
        self.send("/v1/chat/completions", Some(chat_body(question, more))).await
    }

    /// A chat, streamed: the events' JSON, and whether `[DONE]` came.
    pub async fn chat_stream(&self, question: &str, mut more: Value) -> (Vec<Value>, bool) {
        more["stream"] = true.into();
        let body = chat_body(question, more).to_string();
        let (status, _, bytes) = self.send_raw("/v1/chat/completions", Some(body.into())).await;
        let text = String::from_utf8(bytes.to_vec()).expect("UTF-8");
        assert_eq!(status, 200, "{text}");
        let data: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        let done = data.last() == Some(&"[DONE]");
        let events = data.iter().filter(|line| **line != "[DONE]");
        (events.map(|line| serde_json::from_str(line).expect("JSON")).collect(), done)
    }

    /// A gRPC client of the daemon.
    pub async fn grpc(&self) -> EngineClient<Channel> {
        EngineClient::connect(format!("http://{}", self.grpc)).await.expect("the daemon listens")
    }

    /// KV blocks in use, by Stats.
    pub async fn blocks_used(&self) -> u32 {
        let stats = self.grpc().await.stats(StatsRequest::default()).await.expect("stats").into_inner();
        stats.models.iter().map(|model| model.kv_blocks_used).sum()
    }

    /// Waits for something that must come about.
    pub async fn until<F: AsyncFnMut(&Rig) -> bool>(&self, what: &str, mut condition: F) {
        let waiting = async {
            while !condition(self).await {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("never: {what}"));
    }

    /// Begins the drain of both, as `serve` does at a signal, without waiting for it.
    pub fn begin_stop(&mut self) {
        drop(self.stop_gateway.take());
        drop(self.stop_daemon.take());
    }

    /// Waits for both to end; they must end well.
    pub async fn ended(mut self) {
        self.begin_stop();
        for task in [self.gateway.take(), self.daemon.take()].into_iter().flatten() {
            timeout(PATIENCE, task).await.expect("drained in time").expect("no panic");
        }
    }
}

/// The body of a chat request.
pub fn chat_body(question: &str, more: Value) -> Value {
    let mut body = json!({
        "model": hanzo_engine_daemon::DEMO_MODEL,
        "messages": [{"role": "user", "content": question}],
        "chat_template_kwargs": {"enable_thinking": false},
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        body[key] = value.clone();
    }
    body
}

/// Text of a streamed choice.
pub fn streamed_text(events: &[Value], choice: u64) -> String {
    let of_choice = events.iter().flat_map(|event| event["choices"].as_array().into_iter().flatten());
    of_choice.filter(|c| c["index"] == choice).filter_map(|c| c["delta"]["content"].as_str()).collect()
}
