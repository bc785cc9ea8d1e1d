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
        Engined::start_with(&[])
    }

    fn start_with(environment: &[(&str, &std::ffi::OsStr)]) -> Engined {
        let dir = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(dir.path().join("engine.toml"), "[log]\nlevel = \"info\"\n").expect("it is written");
        let mut process = engined(&dir)
            .args(["--grpc-port", "0", "--admin-port", "0", "--model", "hanzo-demo", "--threads", "2"])
            .envs(environment.iter().copied())
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
    // The model may still be loading.
    let mut stream = loop {
        match client.infer(request.clone()).await {
            Ok(stream) => break stream.into_inner(),
            Err(status) => assert_eq!(status.code(), tonic::Code::Unavailable, "{status}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    };
    assert!(stream.message().await.expect("it begins").is_some());

    std::fs::write(
        engined.dir.path().join("engine.toml"),
        "[server]\ndrain_s = 31\nmessage_bytes_max = 5000000\n[engine]\nkeep_alive = \"1m\"\n",
    )
    .expect("written");
    engined.signal("HUP");
    let said = engined.wait_for("settings were read again");
    assert!(said.contains("server.drain_s engine.keep_alive"), "{said}");
    let said = engined.wait_for("taken at a restart");
    assert!(said.contains("server.message_bytes_max"), "{said}");
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

/// What systemd is told, one message after the other.
struct Told(std::os::unix::net::UnixDatagram);

impl Told {
    fn next(&self) -> String {
        let mut bytes = [0; 512];
        let count = self.0.recv(&mut bytes).expect("it is told");
        String::from_utf8(bytes[..count].to_vec()).expect("text")
    }

    /// The next message that is not to the watchdog, and how many were.
    fn state(&self) -> (String, usize) {
        let (mut watchdogs, since) = (0, Instant::now());
        loop {
            assert!(since.elapsed() < PATIENCE, "nothing but the watchdog is told");
            match self.next() {
                told if told == "WATCHDOG=1\n" => watchdogs += 1,
                told => return (told, watchdogs),
            }
        }
    }
}

#[test]
#[cfg(target_os = "linux")]
fn systemd_is_told_ready_watchdog_reloading_and_stopping_in_order() {
    let place = tempfile::tempdir().expect("a temporary folder");
    let told = Told(std::os::unix::net::UnixDatagram::bind(place.path().join("notify")).expect("a socket"));
    told.0.set_read_timeout(Some(PATIENCE)).expect("a time");
    let socket = place.path().join("notify");
    let mut engined = Engined::start_with(&[
        ("NOTIFY_SOCKET", socket.as_os_str()),
        // As systemd gives it without WATCHDOG_PID: to whoever reads it.
        ("WATCHDOG_USEC", std::ffi::OsStr::new("300000")),
    ]);
    assert_eq!(told.next(), "READY=1\n");
    for _ in 0..3 {
        assert_eq!(told.next(), "WATCHDOG=1\n");
    }
    let now_us = || -> i128 {
        let uptime = std::fs::read_to_string("/proc/uptime").expect("it is Linux");
        (uptime.split(' ').next().and_then(|s| s.parse::<f64>().ok()).expect("seconds") * 1e6) as i128
    };
    let before = now_us();
    engined.signal("HUP");
    let (reloading, _) = told.state();
    let at =
        reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").expect("it reloads").trim().parse::<i128>();
    // The one clock counts hundredths of a second.
    assert!((before - 20_000..=now_us() + 20_000).contains(&at.expect("microseconds")), "{reloading}");
    assert_eq!(told.state().0, "READY=1\n");
    engined.signal("TERM");
    assert_eq!(told.state().0, "STOPPING=1\n");
    assert!(engined.ended().success());
}

#[test]
fn settings_are_checked_and_printed_without_serving() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = dir.path().join("engine.toml");
    let run = |text: &str, flag: &str| {
        std::fs::write(&file, text).expect("written");
        let output = engined(&dir)
            .arg(flag)
            .env("HANZO_ENGINE_API_KEY", "correct-horse")
            .stdout(Stdio::piped())
            .output()
            .expect("runs");
        let said = String::from_utf8([output.stdout, output.stderr].concat()).expect("text");
        (output.status.success(), said)
    };
    let (done, said) = run("[server]\ndrain_s = 7\n", "--print-config");
    assert!(done && said.contains("drain_s = 7\n") && said.contains("api_key = \"***\""), "{said}");
    assert!(!said.contains("horse"), "{said}");
    let (done, said) = run("", "--check-config");
    assert!(done && said.contains("the settings can be used"), "{said}");
    let (done, said) = run("[server]\ndrain = 7\n", "--check-config");
    assert!(!done && said.contains("did you mean drain_s?"), "{said}");
    let (done, said) = run("[server]\napi_keys_file = \"/no/such/keys\"\n", "--check-config");
    assert!(!done && said.contains("server.api_keys_file") && said.contains("/no/such/keys"), "{said}");
    let (done, said) = run("[log]\nlevel = \"no=such=level\"\n", "--check-config");
    assert!(!done && said.contains("log.level"), "{said}");
    assert!(!dir.path().join("store").exists(), "nothing was made");
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
