//! Several engines behind one gateway: killed, drained, restarted and resolved anew while requests run.

use std::{
    collections::BTreeSet,
    future::Future,
    io,
    net::SocketAddr,
    path::PathBuf,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use hanzo_engine_gateway::{Config, Gateway, Resolve, SystemResolver};
use hanzo_engine_proto::v1::{self, FinishReason, InferRequest};
use serde_json::{Value, json};
use tokio::{
    runtime::Runtime,
    sync::{Notify, Semaphore},
    task::JoinSet,
    time::timeout,
};
use tonic::Status;

use crate::{
    PATIENCE,
    fake::{Fake, Script, Step, delta, finished, hello, ready_stats, started},
    http::{Answer, Live, get, json_request, post},
    mcp::{Client, loading},
    script,
};

mod faults;
mod unreachable;

/// An engine that can be killed: with its runtime go its connections.
struct Engine {
    path: PathBuf,
    fake: Fake,
    runtime: Option<Runtime>,
}

impl Engine {
    fn start(path: PathBuf, script: Script) -> Engine {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.unwrap();
        let fake = {
            let _inside = runtime.enter();
            Fake::start_at(&path, script)
        };
        Engine { path, fake, runtime: Some(runtime) }
    }

    fn kill(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
        let _ = std::fs::remove_file(&self.path);
    }

    /// Stops its only thread until the sender is dropped: its connections stay open, and nothing comes by them.
    fn hang(&self) -> std::sync::mpsc::Sender<()> {
        let (wakes, sleeps) = std::sync::mpsc::channel();
        self.runtime.as_ref().unwrap().spawn(async move { sleeps.recv() });
        wakes
    }

    fn restart(&mut self, script: Script) {
        *self = Engine::start(self.path.clone(), script);
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Engines, and the gateway before them.
struct Fleet {
    http: SocketAddr,
    engines: Vec<Engine>,
    _dir: tempfile::TempDir,
}

impl Fleet {
    /// So many engines that all do the same, each known to the gateway as one that serves.
    async fn start(count: usize, script: Script) -> Fleet {
        Fleet::of((0..count).map(|_| script.clone()).collect()).await
    }

    async fn of(scripts: Vec<Script>) -> Fleet {
        let dir = tempfile::tempdir().unwrap();
        let at = |(i, script)| Engine::start(dir.path().join(format!("{i}.sock")), script);
        let engines: Vec<Engine> = scripts.into_iter().enumerate().map(at).collect();
        let upstreams = engines.iter().map(|engine| format!("unix:{}", engine.path.display())).collect();
        let config = Config { upstreams, adapter_updates: true, ..Config::default() };
        let http = gateway(config, Arc::new(SystemResolver)).await;
        let fleet = Fleet { http, engines, _dir: dir };
        fleet.all_are("up").await;
        fleet
    }

    /// Waits until every engine is in that state.
    async fn all_are(&self, state: &str) {
        until(self.http, |engines| engines.iter().all(|engine| engine["state"] == state)).await;
    }

    /// Waits until one is.
    async fn is(&self, engine: usize, state: &str) {
        let path = self.engines[engine].path.display().to_string();
        let is = |engine: &&Value| engine["address"].as_str().is_some_and(|address| address.ends_with(&path));
        until(self.http, |engines| engines.iter().find(is).is_some_and(|engine| engine["state"] == state))
            .await;
    }

    /// How many requests each has seen.
    fn seen(&self) -> Vec<usize> {
        self.engines.iter().map(|engine| engine.fake.seen().len()).collect()
    }
}

async fn gateway(config: Config, resolver: Arc<dyn Resolve>) -> SocketAddr {
    let gateway = Gateway::bind_resolving(Config { port: 0, ..config }, resolver).await.unwrap();
    let http = gateway.local_addr();
    tokio::spawn(gateway.serve(std::future::pending()));
    http
}

/// Waits until `/health` tells of the engines what is expected.
async fn until(http: SocketAddr, expected: impl Fn(&[Value]) -> bool) {
    let wait = async {
        loop {
            let health = get(http, "/health").await.json();
            if expected(health["upstreams"].as_array().expect("several engines")) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    if tokio::time::timeout(PATIENCE, wait).await.is_err() {
        panic!("it never came to be: {}", get(http, "/health").await.text);
    }
}

fn body(question: &str) -> Value {
    json!({"messages": [{"role": "user", "content": question}]})
}

async fn chat(http: SocketAddr, question: &str) -> Answer {
    post(http, "/v1/chat/completions", &body(question)).await
}

async fn stream(http: SocketAddr, question: &str) -> Live {
    let mut body = body(question);
    body["stream"] = json!(true);
    Live::open(http, json_request("/v1/chat/completions", body.to_string())).await
}

/// Says half, waits at the gate, says the rest.
fn halves(_: &InferRequest) -> Result<Vec<Step>, Status> {
    let rest = [Step::Gate, delta(0, "half"), finished(0, FinishReason::Stop, 2)];
    Ok([started(), delta(0, "one ")].into_iter().chain(rest).collect())
}

#[tokio::test]
async fn an_engine_that_only_tells_how_its_load_goes_has_not_begun() {
    // Each fails after it has said so, but the last that is asked.
    let asked = Arc::new(AtomicUsize::new(0));
    let script = script(move |request| {
        assert!(request.load_progress);
        let fails = Step::Fail(Status::unavailable("it failed to load"));
        match asked.fetch_add(1, SeqCst) {
            0 => Ok(vec![loading(10, false), fails]),
            _ => Ok([vec![loading(0, false)], hello(request)?].concat()),
        }
    });
    let fleet = Fleet::start(2, script).await;
    let client = Client::at(fleet.http, None).await;
    let params = json!({"name": "hanzo_infer", "arguments": {"model": "m", "prompt": "hi"}, "_meta": {"progressToken": 1}});
    let answer = client.ask("tools/call", params).await.pop().unwrap();
    assert_eq!(answer["result"]["content"][0]["text"], "Hello", "{answer}");
    assert_eq!(fleet.seen(), [1, 1]);
}

#[tokio::test]
async fn a_killed_engine_loses_its_own_streams_alone_and_rejoins() {
    let mut fleet = Fleet::start(3, script(halves)).await;
    let mut streams = Vec::new();
    for i in 0..12 {
        let before = fleet.seen();
        let mut live = stream(fleet.http, &format!("question {i}")).await;
        live.read_until("one ").await;
        let on = fleet.seen().iter().zip(&before).position(|(now, before)| now > before).unwrap();
        streams.push((on, live));
    }
    let victim = streams[0].0;
    let on_others = streams.iter().filter(|(on, _)| *on != victim).count();
    assert!(on_others > 0, "all are on one");
    fleet.engines[victim].kill();
    // At once, without waiting for anybody to notice.
    let before = fleet.seen();
    for (i, engine) in fleet.engines.iter().enumerate().filter(|(i, _)| *i != victim) {
        (0..12 + 20 + i).for_each(|_| engine.fake.release());
    }
    for i in 0..20 {
        let answer = chat(fleet.http, &format!("after {i}")).await;
        assert_eq!((answer.status, i), (200, i), "{}", answer.text);
    }
    assert_eq!(fleet.seen()[victim], before[victim]);
    let (mut whole, mut broken) = (0, 0);
    for (on, live) in streams {
        let rest = live.rest().await.text;
        if on == victim {
            assert!(rest.contains("\"error\"") && !rest.contains("[DONE]"), "{rest}");
            broken += 1;
        } else {
            assert!(rest.contains("half") && rest.contains("[DONE]"), "{rest}");
            whole += 1;
        }
    }
    assert_eq!((whole, broken), (on_others, 12 - on_others));
    let metrics = get(fleet.http, "/metrics").await.text;
    let address = format!("unix:{}", fleet.engines[victim].path.display());
    let ejections = format!("hanzo_engine_upstream_ejections_total{{upstream=\"{address}\"}}");
    let counted = metrics.lines().find_map(|line| line.strip_prefix(&ejections)).expect("it is counted");
    assert!(counted.trim().parse::<u64>().unwrap() >= 1);

    fleet.engines[victim].restart(script(hello));
    fleet.all_are("up").await;
    fleet.engines.iter().enumerate().filter(|(i, _)| *i != victim).for_each(|(_, engine)| {
        (0..60).for_each(|_| engine.fake.release());
    });
    for i in 0..60 {
        assert_eq!(chat(fleet.http, &format!("again {i}")).await.status, 200);
    }
    assert!(fleet.seen()[victim] > 0, "it takes its share again: {:?}", fleet.seen());
}

#[tokio::test]
async fn what_has_not_begun_to_answer_goes_to_another_engine() {
    // It is accepted, and nothing comes.
    let silent = |_: &InferRequest| Ok(vec![Step::Hang]);
    let mut fleet = Fleet::of(vec![script(silent), script(silent), script(silent)]).await;
    let http = fleet.http;
    let asked = tokio::spawn(async move { chat(http, "hello").await });
    let on = loop {
        if let Some(on) = fleet.seen().iter().position(|seen| *seen > 0) {
            break on;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    // The other two answer from now on; they are restarted, which a fleet bears.
    for other in (0..3).filter(|i| *i != on) {
        fleet.engines[other].kill();
        fleet.engines[other].restart(script(hello));
        fleet.is(other, "up").await;
    }
    fleet.engines[on].kill();
    let answer = tokio::time::timeout(PATIENCE, asked).await.unwrap().unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(answer.json()["choices"][0]["message"]["content"], "Hello");
    let metrics = get(fleet.http, "/metrics").await.text;
    let retried =
        |line: &&str| line.contains("upstream_retries_total{reason=\"lost\"") && line.ends_with(" 1");
    assert!(metrics.lines().any(|line| retried(&line)), "{metrics}");
}

#[tokio::test]
async fn a_request_that_ends_engines_does_not_end_them_all() {
    // Whoever takes it up is gone: three engines, of which it may have two.
    let (gone, gate) = (Arc::new(Mutex::new(BTreeSet::new())), Arc::new(Semaphore::new(0)));
    let dying = |i: usize| {
        let (gone, gate) = (gone.clone(), gate.clone());
        script(move |_| {
            gone.lock().unwrap().insert(i);
            gate.add_permits(1);
            Ok(vec![Step::Hang])
        })
    };
    let mut fleet = Fleet::of((0..3).map(dying).collect()).await;
    let http = fleet.http;
    let asked = tokio::spawn(async move { chat(http, "hello").await });
    for _ in 0..2 {
        tokio::time::timeout(PATIENCE, gate.acquire()).await.unwrap().unwrap().forget();
        let taken: Vec<usize> = gone.lock().unwrap().iter().copied().collect();
        for i in taken {
            if fleet.engines[i].runtime.is_some() {
                fleet.engines[i].kill();
            }
        }
    }
    let answer = tokio::time::timeout(PATIENCE, asked).await.unwrap().unwrap();
    assert_eq!(answer.status, 503, "{}", answer.text);
    assert_eq!(gone.lock().unwrap().len(), 2, "the third never saw it");
}

#[tokio::test]
async fn an_engine_that_drains_gets_nothing_new_and_ends_what_it_has() {
    let fleet = Fleet::start(2, script(halves)).await;
    let mut live = stream(fleet.http, "hello").await;
    live.read_until("one ").await;
    let on = fleet.seen().iter().position(|seen| *seen > 0).unwrap();
    fleet.engines[on].fake.drain().await;
    fleet.is(on, "draining").await;
    (0..10).for_each(|_| fleet.engines[1 - on].fake.release());
    for _ in 0..10 {
        // What would go there by its beginning goes elsewhere.
        assert_eq!(chat(fleet.http, "hello").await.status, 200);
    }
    assert_eq!(fleet.seen()[on], 1);
    fleet.engines[on].fake.release();
    let rest = live.rest().await.text;
    assert!(rest.contains("half") && rest.contains("[DONE]"), "{rest}");
    assert_eq!(get(fleet.http, "/ready").await.status, 200);
    fleet.engines[1 - on].fake.drain().await;
    fleet.all_are("draining").await;
    assert_eq!(get(fleet.http, "/ready").await.status, 503);
    assert_eq!(chat(fleet.http, "hello").await.status, 503);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_drops_nothing() {
    let mut fleet = Fleet::start(3, script(hello)).await;
    let (http, over) = (fleet.http, Arc::new(Semaphore::new(0)));
    let answered = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for client in 0..6 {
        let (over, answered) = (over.clone(), answered.clone());
        clients.spawn(async move {
            while over.try_acquire().is_err() {
                let answer = chat(http, &format!("client {client} asks {}", answered.load(SeqCst))).await;
                assert_eq!(answer.status, 200, "{}", answer.text);
                assert_eq!(answer.json()["choices"][0]["message"]["content"], "Hello");
                answered.fetch_add(1, SeqCst);
            }
        });
    }
    // Beside what was on its way: the clients are served with one engine out, and again with all.
    let more = async || {
        let before = answered.load(SeqCst);
        let served = async {
            while answered.load(SeqCst) < before + 12 {
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENCE, served).await.expect("clients are answered");
    };
    let busy = |engines: &[Value]| engines.iter().any(|e| e["requests_in_flight"] != 0);
    for engine in 0..3 {
        until(http, busy).await;
        // As engined does it: it says so, ends what runs, and is gone; then it comes back.
        fleet.engines[engine].fake.drain().await;
        fleet.is(engine, "draining").await;
        let path = fleet.engines[engine].path.display().to_string();
        until(http, |engines| {
            let it = engines.iter().find(|e| e["address"].as_str().is_some_and(|a| a.ends_with(&path)));
            it.is_some_and(|it| it["requests_in_flight"] == 0)
        })
        .await;
        fleet.engines[engine].kill();
        fleet.is(engine, "out").await;
        more().await;
        fleet.engines[engine].restart(script(hello));
        fleet.is(engine, "up").await;
        more().await;
    }
    over.add_permits(6);
    clients.join_all().await;
    assert!(answered.load(SeqCst) > 30);
    assert!(fleet.seen().iter().all(|seen| *seen > 0), "{:?}", fleet.seen());
}

/// Names that a test changes.
struct Names {
    addresses: Mutex<io::Result<Vec<SocketAddr>>>,
    again: Notify,
}

impl Names {
    fn set(&self, addresses: io::Result<Vec<SocketAddr>>) {
        *self.addresses.lock().unwrap() = addresses;
        self.again.notify_one();
    }
}

impl Resolve for Names {
    fn resolve<'a>(
        &'a self,
        host: &'a str,
        port: u16,
    ) -> Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'a>> {
        assert_eq!((host, port), ("engines.internal", 7));
        let known = self.addresses.lock().unwrap();
        let known = known.as_ref().map(Vec::clone).map_err(|error| io::Error::other(error.to_string()));
        Box::pin(async move { known })
    }

    fn again(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.again.notified())
    }
}

#[tokio::test]
async fn every_address_of_a_name_is_an_engine_for_as_long_as_it_is_one() {
    let (a, b, c) = (
        Fake::start(script(halves)).await,
        Fake::start(script(hello)).await,
        Fake::start(script(hello)).await,
    );
    let names = Arc::new(Names { addresses: Mutex::new(Ok(vec![a.address])), again: Notify::new() });
    let upstreams = vec!["dns://engines.internal:7".to_owned()];
    let http = gateway(Config { upstreams, ..Config::default() }, names.clone()).await;
    let told = |expected: &[SocketAddr]| {
        let expected: BTreeSet<String> = expected.iter().map(SocketAddr::to_string).collect();
        move |engines: &[Value]| {
            let told = engines.iter().map(|engine| engine["address"].as_str().unwrap().to_owned());
            told.collect::<BTreeSet<_>>() == expected && engines.iter().all(|e| e["state"] == "up")
        }
    };
    until(http, told(&[a.address])).await;
    let mut live = stream(http, "hello").await;
    live.read_until("one ").await;
    // One has left, two have come, and one is told twice and by another family's address too.
    let other_family = SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], b.address.port()));
    names.set(Ok(vec![b.address, c.address, b.address, other_family]));
    until(http, told(&[b.address, c.address])).await;
    for i in 0..30 {
        assert_eq!(chat(http, &format!("question {i}")).await.status, 200);
    }
    assert!(a.seen().len() == 1 && !b.seen().is_empty() && !c.seen().is_empty());
    a.release();
    let rest = live.rest().await.text;
    assert!(rest.contains("half") && rest.contains("[DONE]"), "what ran on it has ended well: {rest}");
    let metrics = get(http, "/metrics").await.text;
    assert!(!metrics.contains(&a.address.to_string()), "its series left with it");
    // A resolver that fails takes nobody away.
    names.set(Err(io::Error::other("no answer")));
    names.set(Ok(vec![c.address]));
    until(http, told(&[c.address])).await;
    names.set(Err(io::Error::other("no answer")));
    for i in 0..5 {
        assert_eq!(chat(http, &format!("question {i}")).await.status, 200);
    }
    assert_eq!(get(http, "/health").await.json()["upstreams"].as_array().unwrap().len(), 1);
}

/// Statistics with one model in that state.
fn with_model(name: &str, state: v1::ModelState) -> v1::StatsResponse {
    let mut stats = ready_stats();
    let status = stats.models[0].status.as_mut().unwrap();
    (status.name, status.state) = (name.to_owned(), state.into());
    stats
}

#[tokio::test]
async fn a_request_goes_where_its_model_is() {
    let (a, b) = (Fake::start(script(hello)).await, Fake::start(script(hello)).await);
    a.set_stats(Ok(with_model("owner/one", v1::ModelState::Ready)));
    b.set_stats(Ok(with_model("owner/two", v1::ModelState::Ready)));
    let upstreams = vec![a.address.to_string(), b.address.to_string()];
    let config = Config { upstreams, ..Config::default() };
    let http = gateway(config, Arc::new(SystemResolver)).await;
    until(http, |engines| engines.iter().all(|engine| engine["state"] == "up")).await;
    for i in 0..8 {
        for model in ["owner/one", "ONE", "two"] {
            let mut body = body(&format!("question {i}"));
            body["model"] = json!(model);
            assert_eq!(post(http, "/v1/chat/completions", &body).await.status, 200);
        }
    }
    let models = |fake: &Fake| fake.seen().into_iter().map(|r| r.model).collect::<BTreeSet<_>>();
    assert_eq!(models(&a), BTreeSet::from(["owner/one".to_owned(), "ONE".to_owned()]));
    assert_eq!(models(&b), BTreeSet::from(["two".to_owned()]));
    let list = get(http, "/v1/models").await.json();
    let told: BTreeSet<&str> =
        list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert!(told.contains("owner/one") && told.contains("owner/two"), "{told:?}");
    // What one alone knows is found there.
    assert_eq!(get(http, "/v1/models/owner/two").await.json()["id"], "owner/two");
}

#[tokio::test]
async fn models_are_pulled_and_loaded_everywhere() {
    let (a, b) = (Fake::start(script(hello)).await, Fake::start(script(hello)).await);
    let upstreams = vec![a.address.to_string(), b.address.to_string()];
    let http = gateway(Config { upstreams, ..Config::default() }, Arc::new(SystemResolver)).await;
    until(http, |engines| engines.iter().all(|engine| engine["state"] == "up")).await;
    let pull = |model: &str| json!({"model": model, "stream": false});
    let pulled = post(http, "/v1/models/pull", &pull("hf://x/other")).await;
    assert_eq!(pulled.status, 200, "{}", pulled.text);
    assert_eq!(pulled.json()["status"], "done");
    // One that fails is named, with which engine it was.
    let failed = post(http, "/v1/models/pull", &pull("hf://x/missing")).await;
    assert!(failed.status >= 400 && failed.text.contains("engine "), "{}", failed.text);
    for engine in [&a, &b] {
        let pulled: Vec<String> = engine.pulls().into_iter().map(|pull| pull.reference).collect();
        assert_eq!(pulled, ["hf://x/other", "hf://x/missing"]);
    }
    let running = get(http, "/v1/models/pull").await.json();
    assert_eq!(
        (running["data"].as_array().unwrap().len(), &running["data"][0]["bytes_done"]),
        (1, &json!(8))
    );
    // What was there before, and what has just come.
    for (loads, model) in [(1, "a-stored"), (2, "x/other")] {
        let loaded = post(http, "/v1/models/load", &json!({"model": model})).await;
        assert_eq!(loaded.status, 200, "{}", loaded.text);
        assert_eq!((a.loads().len(), b.loads().len()), (loads, loads), "{model}");
    }
    let copied = post(http, "/api/copy", &json!({"source": "a-stored", "destination": "own"})).await;
    assert_eq!(copied.status, 200, "{}", copied.text);
    assert_eq!((a.store().copies().len(), b.store().copies().len()), (1, 1));
    let blob = post(http, &format!("/api/blobs/sha256:{}", "0".repeat(64)), &json!({})).await;
    assert_eq!(blob.status, 501, "{}", blob.text);
}

#[tokio::test]
async fn a_conversation_stays_where_it_began() {
    let fleet = Fleet::start(3, script(hello)).await;
    // So many that none of the engines is left out, but once in millions of times.
    for conversation in 0..40 {
        let mut messages = vec![json!({"role": "system", "content": "Be kind."})];
        let before = fleet.seen();
        for turn in 0..4 {
            messages.push(json!({"role": "user", "content": format!("question {conversation}.{turn}")}));
            let answer = post(fleet.http, "/v1/chat/completions", &json!({"messages": messages})).await;
            assert_eq!(answer.status, 200);
            messages.push(json!({"role": "assistant", "content": "Hello"}));
        }
        let more = fleet.seen().iter().zip(&before).map(|(now, before)| now - before).max();
        assert_eq!(more, Some(4), "all its turns are on one engine");
    }
    assert!(fleet.seen().iter().all(|seen| *seen > 0), "conversations spread: {:?}", fleet.seen());
    let metrics = get(fleet.http, "/metrics").await.text;
    let by_affinity = metrics
        .lines()
        .filter(|line| line.contains("why=\"affinity\""))
        .map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap());
    assert_eq!(by_affinity.sum::<u64>(), 160);
}

#[tokio::test]
async fn an_engine_without_room_is_passed_over_and_all_of_them_are_told() {
    let full = |_: &InferRequest| Err(Status::resource_exhausted("the queue is full"));
    let fleet = Fleet::of(vec![script(full), script(hello), script(full)]).await;
    for i in 0..12 {
        assert_eq!(chat(fleet.http, &format!("question {i}")).await.status, 200);
    }
    fleet.all_are("up").await;
    let fleet = Fleet::start(3, script(full)).await;
    let answer = chat(fleet.http, "hello").await;
    assert_eq!((answer.status, answer.header("retry-after")), (429, Some("1")), "{}", answer.text);
    assert_eq!(fleet.seen(), [1, 1, 1]);
    // What is wrong with a request is wrong everywhere.
    let wrong = |_: &InferRequest| Err(Status::invalid_argument("sampling.top_p: no"));
    let fleet = Fleet::start(3, script(wrong)).await;
    assert_eq!(chat(fleet.http, "hello").await.status, 400);
    assert_eq!(fleet.seen().iter().sum::<usize>(), 1);
}

#[tokio::test]
async fn an_engine_that_fails_again_and_again_is_left_alone() {
    let failing = |_: &InferRequest| Err(Status::internal("the worker failed"));
    let fleet = Fleet::of(vec![script(failing), script(hello)]).await;
    let mut failed = 0;
    for i in 0..60 {
        match chat(fleet.http, &format!("question {i}")).await.status {
            200 => {}
            500 => failed += 1,
            other => panic!("{other}"),
        }
        if failed == 5 {
            break;
        }
    }
    assert_eq!(failed, 5, "five in a row are enough, and are not hidden");
    let metrics = get(fleet.http, "/metrics").await.text;
    let ejected = |line: &&str| line.contains("upstream_ejections_total") && line.ends_with(" 1");
    assert!(metrics.lines().any(|line| ejected(&line)), "{metrics}");
    for i in 0..5 {
        assert_eq!(chat(fleet.http, &format!("after {i}")).await.status, 200);
    }
}

#[tokio::test]
async fn one_engine_is_asked_as_if_there_were_no_others() {
    let fake = Fake::start(script(hello)).await;
    let http =
        gateway(Config { upstreams: vec![fake.uri()], ..Config::default() }, Arc::new(SystemResolver)).await;
    assert_eq!(chat(http, "hello").await.status, 200);
    assert!(get(http, "/health").await.json().get("upstreams").is_none());
    assert!(!get(http, "/metrics").await.text.contains("upstream"));
}
