//! `engined` with its models in processes of their own: one that is killed, stopped or aborted ends its own requests with an
//! error and comes back; the other model notices nothing, and none outlives the daemon.

#![cfg(target_os = "linux")]

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use hanzo_engine_proto::v1::{
    InferEvent, InferRequest, ModelStatus, StatsRequest, StopConditions, TokenIds,
    engine_client::EngineClient, infer_event::Event, infer_request::Prompt,
};
use tonic::{Code, Status, Streaming, transport::Channel};

/// What never takes this long has hung.
const PATIENCE: Duration = Duration::from_secs(60);

/// A daemon with the demo model under two names. It is killed when it is dropped.
struct Engined {
    process: Child,
    client: EngineClient<Channel>,
    admin: String,
    _dir: tempfile::TempDir,
}

impl Engined {
    async fn start(settings: &str) -> Engined {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let models = ["left", "right"]
            .map(|name| format!("[[models]]\nsource = \"hanzo-demo\"\nalias = \"{name}\"\n"));
        let file = format!("[engine]\nthreads = 1\nkv_bytes = 16777216\n{settings}\n{}", models.join(""));
        fs::write(dir.path().join("engine.toml"), file).expect("it is written");
        let mut process = Command::new(env!("CARGO_BIN_EXE_engined"))
            .arg("--config")
            .arg(dir.path().join("engine.toml"))
            .arg("--model-dir")
            .arg(dir.path().join("store"))
            .args(["--grpc-port", "0", "--admin-port", "0", "--isolation", "process"])
            .env_remove("RUST_LOG")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("engined starts");
        let (sender, log) = mpsc::channel();
        let stderr = process.stderr.take().expect("it is piped");
        thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let [grpc, admin] = loop {
            let line = log.recv_timeout(PATIENCE).expect("it says where it listens");
            if line.contains("grpc=") {
                break ["grpc=", "admin="].map(|key| {
                    let after = line.split(key).nth(1).and_then(|after| after.split_whitespace().next());
                    after.expect("an address").to_owned()
                });
            }
        };
        let client = EngineClient::connect(format!("http://{grpc}")).await.expect("it listens");
        let mut engined = Engined { process, client, admin, _dir: dir };
        engined.ready("left").await;
        engined.ready("right").await;
        engined
    }

    async fn status(&mut self, model: &str) -> Option<ModelStatus> {
        let stats = self.client.stats(StatsRequest::default()).await.expect("it answers").into_inner();
        stats.models.into_iter().filter_map(|model| model.status).find(|status| status.name == model)
    }

    /// The process of a model, once it is ready.
    async fn ready(&mut self, model: &str) -> u32 {
        let since = Instant::now();
        loop {
            let status = self.status(model).await;
            // One that has just ended has nothing in memory.
            if let Some(status) = status.filter(|status| status.resident_bytes > 1 << 20) {
                return status.worker_pid;
            }
            assert!(since.elapsed() < PATIENCE, "{model} is not ready");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Why a model has failed, which is told for a second at least.
    async fn failed(&mut self, model: &str) -> String {
        let since = Instant::now();
        loop {
            let status = self.status(model).await;
            if let Some(status) = status.filter(|status| !status.error.is_empty()) {
                return status.error;
            }
            assert!(since.elapsed() < PATIENCE, "{model} has not failed");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// A stream of a model that has begun.
    async fn stream(&mut self, model: &str, max_tokens: u32) -> Streaming<InferEvent> {
        let request = InferRequest {
            model: model.to_owned(),
            prompt: Some(Prompt::Text("Once upon a time".into())),
            stop: Some(StopConditions {
                max_tokens: Some(max_tokens),
                ignore_eos: true,
                ..Default::default()
            }),
            ..Default::default()
        };
        let mut stream = self.client.infer(request).await.expect("it is taken").into_inner();
        assert!(stream.message().await.expect("it begins").is_some());
        stream
    }

    /// What a metric is now; 0 where it is not there.
    fn metric(&self, name: &str) -> f64 {
        let mut stream = TcpStream::connect(&self.admin).expect("it listens");
        stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n").expect("it is asked");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("UTF-8");
        let line = answer.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0)
    }

    /// Tokens of a prompt that were found in a cache.
    async fn cached(&mut self, model: &str) -> u32 {
        let ids = (0..96).map(|i| 300 + i * 7).collect();
        let request = InferRequest {
            model: model.to_owned(),
            prompt: Some(Prompt::Tokens(TokenIds { ids })),
            stop: Some(StopConditions { max_tokens: Some(2), ignore_eos: true, ..Default::default() }),
            ..Default::default()
        };
        let mut stream = self.client.infer(request).await.expect("it is taken").into_inner();
        let mut cached = None;
        while let Some(event) = stream.message().await.expect("it ends well") {
            if let Some(Event::Finished(finished)) = event.event {
                cached = finished.usage.map(|usage| usage.cached_tokens);
            }
        }
        cached.expect("it says what it used")
    }

    fn children(&self) -> BTreeSet<u32> {
        children_of(self.process.id())
    }
}

impl Drop for Engined {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn children_of(parent: u32) -> BTreeSet<u32> {
    let pids = fs::read_dir("/proc").expect("it is Linux").flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let of = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let after = stat.rsplit(") ").next().unwrap_or_default();
        after.split(' ').nth(1).and_then(|parent| parent.parse().ok()) == Some(parent)
    };
    pids.filter(of).collect()
}

fn signal(name: &str, pid: u32) {
    let told = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
    assert!(told.expect("kill runs").success());
}

/// Tokens until the end, and the error that was one.
async fn rest(mut stream: Streaming<InferEvent>) -> (usize, Option<Status>) {
    let mut tokens = 0;
    loop {
        match stream.message().await {
            Ok(Some(event)) => {
                if let Some(Event::Delta(delta)) = event.event {
                    tokens += delta.token_ids.len();
                }
            }
            Ok(None) => return (tokens, None),
            Err(status) => return (tokens, Some(status)),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_ends_takes_its_own_requests_and_comes_back() {
    let mut engined = Engined::start("worker_silence_ms = 1000").await;
    for (how, says, within) in [
        ("KILL", "was killed (signal 9)", Duration::from_secs(1)),
        ("ABRT", "ended by signal 6", Duration::from_secs(1)),
        ("STOP", "said nothing for 1.", Duration::from_secs(3)),
    ] {
        let (left, right) = (engined.ready("left").await, engined.ready("right").await);
        assert_eq!(engined.children(), BTreeSet::from([left, right]), "{how}");
        let (failing, going_on) = (engined.stream("left", 2000).await, engined.stream("right", 300).await);
        let other = tokio::spawn(rest(going_on));
        let since = Instant::now();
        signal(how, left);
        let (_, error) = tokio::time::timeout(PATIENCE, rest(failing)).await.expect("it ends");
        assert!(since.elapsed() < within, "{how}: {:?}", since.elapsed());
        let error = error.expect("an error ends it");
        assert_eq!(error.code(), Code::Aborted, "{how}: {error}");
        assert!(error.metadata().contains_key("retry-after-ms"), "{how}: {error}");
        let said = engined.failed("left").await;
        assert!(said.contains(says), "{how}: {said}");
        assert_eq!(other.await.expect("it ends").0, 300, "{how}");
        assert_eq!(engined.ready("right").await, right, "{how}");
        assert_ne!(engined.ready("left").await, left, "{how}");
        let again = engined.stream("left", 5).await;
        assert!(rest(again).await.1.is_none(), "{how}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_has_kept_on_disk_is_found_by_the_next() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let settings = format!("prefix_cache_dir = {:?}", dir.path().join("kv"));
    let mut engined = Engined::start(&settings).await;
    assert!(engined.metric("hanzo_engine_worker_resident_bytes{model=\"left\"}") > 1e6);
    assert_eq!(engined.cached("left").await, 0);
    let since = Instant::now();
    // As its process counts it.
    while engined.metric("hanzo_engine_prefix_disk_written_bytes_total") == 0.0 {
        assert!(since.elapsed() < PATIENCE, "nothing is written");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let before = engined.ready("left").await;
    signal("KILL", before);
    let since = Instant::now();
    while engined.status("left").await.is_none_or(|status| [0, before].contains(&status.worker_pid)) {
        assert!(since.elapsed() < PATIENCE, "it does not come back");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(engined.cached("left").await >= 64);
}

#[tokio::test(flavor = "multi_thread")]
async fn none_outlives_the_daemon() {
    let mut engined = Engined::start("").await;
    let pids = [engined.ready("left").await, engined.ready("right").await];
    let stream = engined.stream("left", 2000).await;
    signal("KILL", engined.process.id());
    assert!(rest(stream).await.1.is_some());
    engined.process.wait().expect("it was ours");
    let since = Instant::now();
    // Who takes up what has lost its parent may take a while to see that it has ended.
    let lives = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|after| !after.is_empty() && !after.starts_with('Z'))
    };
    while pids.iter().any(lives) {
        assert!(since.elapsed() < Duration::from_secs(5), "an orphan");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn nobody_else_can_have_a_worker() {
    let mut worker = Command::new(env!("CARGO_BIN_EXE_engined"));
    let ended = worker.arg("__worker").stdin(Stdio::null()).output().expect("it starts");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success() && said.contains("it is started by the daemon alone"), "{said}");
}
