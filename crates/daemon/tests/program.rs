//! `engined` as a process: what it says where the machine lacks something, and what signals do.

#![cfg(unix)]

use std::{
    io::{BufRead as _, BufReader, Read as _},
    process::{Child, ChildStderr, Command, ExitStatus, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use hanzo_engine_proto::v1::{
    InferRequest, StopConditions, engine_client::EngineClient, infer_event::Event, infer_request::Prompt,
};

/// What never takes this long has hung.
const PATIENCE: Duration = Duration::from_secs(60);

/// A daemon with the demo model. It is killed when it is dropped.
struct Engined {
    process: Child,
    log: mpsc::Receiver<String>,
    grpc: String,
    dir: tempfile::TempDir,
}

impl Engined {
    fn start() -> Engined {
        let dir = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(dir.path().join("engine.toml"), "[log]\nlevel = \"info\"\n").expect("it is written");
        let mut process = engined(&dir)
            .args(["--grpc-port", "0", "--admin-port", "0", "--model", "hanzo-demo", "--threads", "2"])
            .spawn()
            .expect("engined starts");
        let log = lines(process.stderr.take().expect("it is piped"));
        let mut engined = Engined { process, log, grpc: String::new(), dir };
        let listening = engined.wait_for("listening");
        let after = listening.split("grpc=").nth(1).expect("the address");
        engined.grpc = format!("http://{}", after.split_whitespace().next().expect("an address"));
        engined.wait_for("model ready");
        engined
    }

    /// The next line of the log with these words.
    fn wait_for(&self, words: &str) -> String {
        loop {
            let line = self.log.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("never said: {words}"));
            if line.contains(words) {
                return line;
            }
        }
    }

    fn signal(&self, name: &str) {
        let told = Command::new("kill").args([&format!("-{name}"), &self.process.id().to_string()]).status();
        assert!(told.expect("kill runs").success());
    }

    fn ended(&mut self) -> ExitStatus {
        let since = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().expect("it is ours") {
                return status;
            }
            assert!(since.elapsed() < PATIENCE, "it goes on");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Engined {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn engined(dir: &tempfile::TempDir) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_engined"));
    command.args(["--config"]).arg(dir.path().join("engine.toml"));
    command.args(["--model-dir"]).arg(dir.path().join("store"));
    command.env_remove("RUST_LOG").stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Lines as they come, without colours.
fn lines(stderr: ChildStderr) -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    lines
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hangup_reads_the_level_again_and_a_quit_lets_streams_finish() {
    let mut engined = Engined::start();
    let mut client = EngineClient::connect(engined.grpc.clone()).await.expect("it listens");
    let request = InferRequest {
        prompt: Some(Prompt::Text("Once upon a time".into())),
        stop: Some(StopConditions { max_tokens: Some(2000), ignore_eos: true, ..Default::default() }),
        ..Default::default()
    };
    let mut stream = client.infer(request).await.expect("it is taken").into_inner();
    assert!(stream.message().await.expect("it begins").is_some());

    engined.signal("HUP");
    engined.wait_for("settings were read again");
    std::fs::write(engined.dir.path().join("engine.toml"), "[log]\nlevel = \"no=such=level\"\n")
        .expect("written");
    engined.signal("HUP");
    engined.wait_for("settings could not be read again");
    std::fs::write(engined.dir.path().join("engine.toml"), "[log]\nlevel = \"warn\"\n").expect("written");
    engined.signal("HUP");
    engined.signal("QUIT");
    let mut tokens = 0;
    while let Some(event) = stream.message().await.expect("the stream finishes") {
        if let Some(Event::Delta(delta)) = event.event {
            tokens += delta.token_ids.len();
        }
    }
    assert_eq!(tokens, 2000);
    assert!(engined.ended().success());
}

#[test]
fn a_system_without_threads_is_said_in_one_line() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(dir.path().join("engine.toml"), "").expect("it is written");
    // No thread can have a stack of this size: each is refused, as where none are left.
    let mut process =
        engined(&dir).env("RUST_MIN_STACK", (1_u64 << 46).to_string()).spawn().expect("it starts");
    let mut said = String::new();
    process.stderr.take().expect("it is piped").read_to_string(&mut said).expect("UTF-8");
    assert_eq!(process.wait().expect("it ends").code(), Some(1), "{said}");
    assert!(said.starts_with("engined: the system gives this process 0 of the "), "{said}");
    assert!(said.contains("ulimit -u") && !said.contains("panicked"), "{said}");
}
