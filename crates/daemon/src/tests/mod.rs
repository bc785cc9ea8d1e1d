//! Tests with a daemon in this process, on free ports, through a gRPC client. The model is the built-in one, on a
//! device that tests can slow down and break.

mod adapters;
mod demo_device;
mod drafts;
mod embed;
mod infer;
mod keys;
mod lifecycle;
mod limits;
mod offload;
mod on_demand;
mod overflow;
mod overrides;
mod photographs;
mod pictures;
mod pulls;
mod represented;
mod seeing;
mod sounds;
mod speaking;
mod speech;
mod stopping;
mod surface;
mod talks;
mod tls;
mod tools;
mod transcribe;
mod wire;

use std::{
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use hanzo_engine_proto::v1::{self, engine_client::EngineClient, infer_event::Event};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::oneshot,
    task::JoinHandle,
    time::timeout,
};
use tonic::{Code, Status, Streaming, transport::Channel};

use crate::{Config, DEMO_MODEL, Daemon, DaemonError, DaemonHandle, config::OnDemand};
use demo_device::{Conduct, DemoDevice};

/// Time after which an operation counts as hung.
const PATIENCE: Duration = Duration::from_secs(60);

type Client = EngineClient<Channel>;

/// Running daemon.
struct Rig {
    channel: Channel,
    client: Client,
    handle: DaemonHandle,
    device: Arc<DemoDevice>,
    stop: Option<oneshot::Sender<()>>,
    served: JoinHandle<Result<(), DaemonError>>,
    dir: tempfile::TempDir,
}

impl Rig {
    /// Starts a daemon with the demo model.
    async fn start() -> Rig {
        let rig = Rig::start_with(|_| ()).await;
        rig.load(DEMO_MODEL, "").await.unwrap();
        rig
    }

    /// Starts a daemon without models.
    async fn start_with(change: impl FnOnce(&mut Config)) -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        (config.server.grpc_port, config.server.admin_port) = (0, 0);
        config.server.drain_s = 20;
        config.store.dir = Some(dir.path().join("store"));
        // The result must not depend on the memory that other tests leave free.
        config.engine.memory_budget_bytes = Some(2 << 30);
        config.engine.kv_bytes = Some(48 << 20);
        // Tests of on-demand loading enable it themselves.
        config.engine.on_demand = OnDemand::Never;
        change(&mut config);
        let device = DemoDevice::new();
        let daemon = Daemon::bind_on(config, device.clone()).await.unwrap();
        let handle = daemon.handle();
        let (stop, stopped) = oneshot::channel::<()>();
        let served = tokio::spawn(daemon.serve(async { drop(stopped.await) }));
        let endpoint = Channel::from_shared(format!("http://{}", handle.grpc_addr())).unwrap();
        let channel = endpoint.connect().await.unwrap();
        let client = EngineClient::new(channel.clone());
        Rig { channel, client, handle, device, stop: Some(stop), served, dir }
    }

    fn client(&self) -> Client {
        self.client.clone()
    }

    async fn load(&self, model: &str, alias: &str) -> Result<v1::LoadResponse, Status> {
        let request = v1::LoadRequest { model: model.into(), alias: alias.into(), ..Default::default() };
        in_time(self.client().load(request)).await.map(tonic::Response::into_inner)
    }

    async fn infer(&self, request: v1::InferRequest) -> Result<Streaming<v1::InferEvent>, Status> {
        in_time(self.client().infer(request)).await.map(tonic::Response::into_inner)
    }

    /// All events of one request, which must succeed.
    async fn events(&self, request: v1::InferRequest) -> Vec<Event> {
        collect(self.infer(request).await.unwrap()).await.unwrap()
    }

    async fn stats(&self, model: &str) -> v1::ModelStats {
        let request = v1::StatsRequest { model: model.into() };
        self.client().stats(request).await.unwrap().into_inner().models.remove(0)
    }

    async fn until(&self, what: &str, condition: impl AsyncFn(&Rig) -> bool) {
        let since = Instant::now();
        while !condition(self).await {
            assert!(since.elapsed() < PATIENCE, "never: {what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Status and body of a GET from the admin port.
    async fn admin(&self, path: &str) -> (u16, String) {
        get(self.handle.admin_addr(), path).await
    }

    fn begin_stop(&mut self) {
        drop(self.stop.take());
    }

    /// Waits for the daemon's end, which must be a clean one.
    async fn stopped(mut self) {
        self.begin_stop();
        in_time(self.served).await.unwrap().unwrap();
    }
}

async fn in_time<T>(work: impl IntoFuture<Output = T>) -> T {
    timeout(PATIENCE, work.into_future()).await.expect("in time")
}

async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    in_time(stream.read_to_string(&mut answer)).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

async fn collect(mut stream: Streaming<v1::InferEvent>) -> Result<Vec<Event>, Status> {
    let mut events = Vec::new();
    while let Some(event) = in_time(stream.message()).await? {
        events.push(event.event.unwrap());
    }
    Ok(events)
}

/// Waits for the first event, which says that the request has begun.
async fn begun(stream: &mut Streaming<v1::InferEvent>) {
    let event = in_time(stream.message()).await.unwrap().unwrap();
    assert!(matches!(event.event, Some(Event::Started(_))), "{event:?}");
}

/// Request for a greedy text completion of at most `max_tokens`.
fn text(prompt: &str, max_tokens: u32) -> v1::InferRequest {
    v1::InferRequest {
        prompt: Some(v1::infer_request::Prompt::Text(prompt.into())),
        sampling: Some(v1::Sampling { temperature: Some(0.0), ..Default::default() }),
        stop: Some(v1::StopConditions { max_tokens: Some(max_tokens), ..Default::default() }),
        ..Default::default()
    }
}

/// Request that always generates `max_tokens`, whatever the model samples.
fn endless(max_tokens: u32) -> v1::InferRequest {
    let stop = v1::StopConditions { max_tokens: Some(max_tokens), ignore_eos: true, ..Default::default() };
    v1::InferRequest { stop: Some(stop), ..text("Once upon a time", 1) }
}

/// Question to the demo model, without reasoning.
fn question(words: &str) -> v1::Chat {
    let content = vec![v1::ContentPart { part: Some(v1::content_part::Part::Text(words.into())) }];
    v1::Chat {
        messages: vec![v1::Message { role: "user".into(), content, ..Default::default() }],
        template_kwargs_json: r#"{"enable_thinking":false}"#.into(),
        ..Default::default()
    }
}

/// File or folder in the test data.
fn data(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(name).display().to_string()
}

fn chat(chat: v1::Chat, max_tokens: u32) -> v1::InferRequest {
    v1::InferRequest { prompt: Some(v1::infer_request::Prompt::Chat(chat)), ..text("", max_tokens) }
}

fn said(events: &[Event], choice: u32) -> String {
    let of = events.iter().filter_map(|event| match event {
        Event::Delta(delta) if delta.choice == choice => Some(delta.text.as_str()),
        _ => None,
    });
    of.collect()
}

fn tokens(events: &[Event], choice: u32) -> Vec<u32> {
    let of = events.iter().filter_map(|event| match event {
        Event::Delta(delta) if delta.choice == choice => Some(delta.token_ids.clone()),
        _ => None,
    });
    of.flatten().collect()
}

fn finished(events: &[Event], choice: u32) -> v1::Finished {
    let of = events.iter().find_map(|event| match event {
        Event::Finished(finished) if finished.choice == choice => Some(finished.clone()),
        _ => None,
    });
    of.expect("the choice finished")
}

fn started(events: &[Event]) -> v1::Started {
    match &events[0] {
        Event::Started(started) => started.clone(),
        other => panic!("{other:?}"),
    }
}

fn metadata(status: &Status, key: &str) -> Option<String> {
    status.metadata().get(key).map(|value| value.to_str().unwrap().to_owned())
}

fn check_refused(status: &Status, code: Code, begins: &str) {
    assert_eq!(status.code(), code, "{status:?}");
    assert!(status.message().starts_with(begins), "{:?} does not begin with {begins:?}", status.message());
}
