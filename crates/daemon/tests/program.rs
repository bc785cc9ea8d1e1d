//! `engined` as a process: what it says where the machine lacks something, what signals do, and cards, which the emulator's driver
//! stands for.

#![cfg(unix)]

use std::{
    ffi::OsStr,
    io::{BufRead as _, BufReader, Read as _},
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Command, ExitStatus, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use hanzo_engine_proto::v1::{
    InferRequest, ModelStatus, Sampling, StatsRequest, StatsResponse, StopConditions, TokenIds,
    engine_client::EngineClient, infer_event::Event, infer_request::Prompt,
};

/// What never takes this long has hung.
const PATIENCE: Duration = Duration::from_secs(60);

/// A daemon with the demo model. It is killed when it is dropped.
struct Engined {
    process: Child,
    log: mpsc::Receiver<String>,
    grpc: String,
    dir: tempfile::TempDir,
    /// What it said until the model was ready.
    before_ready: Vec<String>,
}

impl Engined {
    fn start() -> Engined {
        Engined::start_with(&[])
    }

    fn start_with(environment: &[(&str, &std::ffi::OsStr)]) -> Engined {
        Engined::start_as(&[], environment)
    }

    fn start_as(arguments: &[&str], environment: &[(&str, &std::ffi::OsStr)]) -> Engined {
        let dir = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(dir.path().join("engine.toml"), "[log]\nlevel = \"info\"\n").expect("it is written");
        let mut process = engined(&dir)
            .args(["--grpc-port", "0", "--admin-port", "0", "--model", "hanzo-demo", "--threads", "2"])
            .args(arguments)
            .envs(environment.iter().copied())
            .spawn()
            .expect("engined starts");
        let log = lines(process.stderr.take().expect("it is piped"));
        let mut engined = Engined { process, log, grpc: String::new(), dir, before_ready: Vec::new() };
        let mut heard = Vec::new();
        let listening = engined.hear("listening", &mut heard);
        let after = listening.split("grpc=").nth(1).expect("the address");
        engined.grpc = format!("http://{}", after.split_whitespace().next().expect("an address"));
        engined.hear("model ready", &mut heard);
        engined.before_ready = heard;
        engined
    }

    /// The next line of the log with these words.
    fn wait_for(&self, words: &str) -> String {
        self.hear(words, &mut Vec::new())
    }

    /// The same, with all lines up to it.
    fn hear(&self, words: &str, heard: &mut Vec<String>) -> String {
        loop {
            let line = self.log.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|_| panic!("never said: {words}\n{}", heard.join("\n")));
            heard.push(line.clone());
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
        prompt: Some(Prompt::Tokens(TokenIds { ids: counting() })),
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

/// A prompt whose answer is long, and sure: no choice in it is close (tests/data/golden.json).
fn counting() -> Vec<u32> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/golden.json");
    let golden: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(path).expect("it is there")).expect("JSON");
    let prompts = golden["prompts"].as_array().expect("prompts");
    let prompt = prompts
        .iter()
        .find(|prompt| prompt["prompt"].as_str().is_some_and(|text| text.contains("Count from 1 to 40.")))
        .expect("it is one of them");
    serde_json::from_value(prompt["prompt_ids"].clone()).expect("numbers")
}

/// The greedy answer, or why it broke off.
async fn said(engined: &Engined, tokens: u32) -> Result<String, tonic::Status> {
    let mut client = EngineClient::connect(engined.grpc.clone()).await.expect("it listens");
    let request = InferRequest {
        prompt: Some(Prompt::Tokens(TokenIds { ids: counting() })),
        sampling: Some(Sampling { temperature: Some(0.0), ..Default::default() }),
        stop: Some(StopConditions { max_tokens: Some(tokens), ignore_eos: true, ..Default::default() }),
        ..Default::default()
    };
    let mut stream = client.infer(request).await?.into_inner();
    let mut text = String::new();
    while let Some(event) = stream.message().await? {
        if let Some(Event::Delta(delta)) = event.event {
            text += &delta.text;
        }
    }
    Ok(text)
}

async fn stats(engined: &Engined) -> StatsResponse {
    let mut client = EngineClient::connect(engined.grpc.clone()).await.expect("it listens");
    client.stats(StatsRequest::default()).await.expect("it answers").into_inner()
}

/// Of the only model.
async fn status(engined: &Engined) -> ModelStatus {
    stats(engined).await.models.remove(0).status.expect("a status")
}

/// The emulator's driver where the system's would be found, with this in its environment.
fn with_driver<'a>(
    folder: &'a Path,
    variables: &[(&'static str, &'static str)],
) -> Vec<(&'static str, &'a OsStr)> {
    let mut environment = vec![("LD_LIBRARY_PATH", folder.as_os_str())];
    environment.extend(variables.iter().map(|&(name, value)| (name, OsStr::new(value))));
    environment
}

fn driver_folder() -> PathBuf {
    let library = hanzo_engine_cuda_emulator::Sources::default().compile();
    library.parent().expect("a file is in a folder").to_owned()
}

/// Whatever a driver lacks, models are served on the processor, and one line says why.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_card_that_works_the_processor_serves() {
    let folder = driver_folder();
    // What the system would find in place of a driver, were there one.
    let broken = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(broken.path().join("libcuda.so.1"), "").expect("written");
    std::fs::write(broken.path().join("libcuda.so"), "").expect("written");
    let has_driver = !hanzo_engine_kernels_cuda::Driver::default()
        .cards()
        .is_err_and(|error| error.to_string().starts_with("no CUDA driver"));
    let nothing = if has_driver { with_driver(broken.path(), &[]) } else { Vec::new() };
    let cases = [
        (nothing, "models run on the processor: no CUDA driver: libcuda.so.1: "),
        (
            with_driver(&folder, &[("HANZO_ENGINE_EMULATED_FAILS", "all")]),
            "models run on the processor: cuInit: unknown error (CUDA error 999)",
        ),
        (
            with_driver(&folder, &[("CUDA_VISIBLE_DEVICES", "")]),
            "models run on the processor: cuInit: no CUDA-capable device is detected (CUDA error 100)",
        ),
        (
            with_driver(&folder, &[("HANZO_ENGINE_EMULATED_FAILS", "cuModuleLoadDataEx")]),
            "cuda:0 is not used: cuda:0 failed: cuModuleLoadDataEx, which compiles the kernels: unknown error",
        ),
        (
            with_driver(&folder, &[("HANZO_ENGINE_EMULATED_MEMORY", "300000")]),
            "not on cuda:0: Emulated Card, driver 13.0: ",
        ),
        (with_driver(&folder, &[("HANZO_ENGINE_DEVICES", "cpu")]), "model ready"),
    ];
    for (environment, why) in cases {
        let mut engined = Engined::start_with(&environment);
        let log = std::mem::take(&mut engined.before_ready);
        let lines = log.iter().filter(|line| line.contains(why)).count();
        assert_eq!(lines, 1, "{why}: {log:#?}");
        assert!(
            log.last().is_some_and(|line| line.contains("device=\"cpu: ") || line.contains("device=cpu: ")),
            "{log:#?}"
        );
        assert!(!said(&engined, 4).await.expect("it is served").is_empty());
    }
    // Nothing else was asked for.
    let dir = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(dir.path().join("engine.toml"), "").expect("written");
    let output = engined(&dir)
        .args(["--grpc-port", "0", "--admin-port", "0", "--device", "cuda:0"])
        .envs(with_driver(&folder, &[("HANZO_ENGINE_EMULATED_FAILS", "all")]))
        .output()
        .expect("engined starts");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && error.contains("engined: cuda:0 failed: cuInit: unknown error"),
        "{error}"
    );
}

/// A card says the same as the processor, and what it takes is of its own memory.
#[tokio::test(flavor = "multi_thread")]
async fn a_card_is_found_and_used() {
    let folder = driver_folder();
    let on_card = Engined::start_with(&with_driver(&folder, &[]));
    let on_processor = Engined::start_as(&["--device", "cpu"], &[]);
    let text = said(&on_card, 24).await.expect("it is served");
    assert_eq!(text, said(&on_processor, 24).await.expect("it is served"));
    let stats = stats(&on_card).await;
    let status = stats.models[0].status.as_ref().expect("a status");
    assert_eq!(status.device, "cuda:0: Emulated Card, driver 13.0");
    assert_eq!(
        stats.memory_used_bytes,
        status.weights_bytes + status.kv_bytes + status.scratch_bytes,
        "{status:?}"
    );
}

/// Two cards have what fits on neither, and three what fits on no two, in this process or in the model's own, and it says the same.
#[tokio::test(flavor = "multi_thread")]
async fn cards_have_together_what_fits_on_none() {
    let folder = driver_folder();
    // Steps of few rows, so that layers and not what is between them take the memory.
    let small = [
        ("HANZO_ENGINE_EMULATED_CARDS", "3"),
        ("HANZO_ENGINE_ENGINE_STEP_TOKENS_MAX", "16"),
        ("HANZO_ENGINE_ENGINE_SEQUENCES_MAX", "2"),
        ("HANZO_ENGINE_ENGINE_CONTEXT_TOKENS_MAX", "256"),
        ("HANZO_ENGINE_ENGINE_KV_BYTES", "8388608"),
    ];
    let on_one = Engined::start_with(&with_driver(&folder, &small));
    let status = status(&on_one).await;
    assert_eq!(status.device, "cuda:0: Emulated Card, driver 13.0");
    let text = said(&on_one, 12).await.expect("it is served");
    let takes = status.weights_bytes + status.kv_bytes + status.scratch_bytes;
    for (isolation, share, others) in [
        ("thread", 75, "; the others on cuda:1: Emulated Card, driver 13.0"),
        ("process", 75, "; the others on cuda:1: Emulated Card, driver 13.0"),
        // Half of it leaves no room for what each card needs beside layers.
        ("thread", 50, " on cuda:2: Emulated Card, driver 13.0"),
        ("process", 50, " on cuda:2: Emulated Card, driver 13.0"),
    ] {
        if isolation == "process" && !cfg!(target_os = "linux") {
            continue;
        }
        // Models may take nine tenths of it.
        let bytes = (takes * share / 100 / 9 * 10).to_string();
        let mut environment = with_driver(&folder, &small);
        environment.push(("HANZO_ENGINE_EMULATED_MEMORY", OsStr::new(&bytes)));
        let together = Engined::start_as(&["--isolation", isolation, "--gpu-devices", "0,1,2"], &environment);
        let device = self::status(&together).await.device;
        assert!(
            device.starts_with("cuda:0: Emulated Card, driver 13.0: ")
                && device.contains(" of 6 layers; ")
                && device.ends_with(others),
            "{isolation}: {device}"
        );
        assert_eq!(text, said(&together, 12).await.expect("it is served"));
    }
}

/// A card that fails for good ends the worker, and the error says so. In this process there is no more of it, so the model comes
/// back on the processor; a process of its own comes back on the card.
#[tokio::test(flavor = "multi_thread")]
async fn a_card_that_fails_ends_its_worker() {
    let folder = driver_folder();
    let environment = with_driver(&folder, &[("HANZO_ENGINE_EMULATED_FAILS", "cuEventSynchronize@60!")]);
    for (isolation, device) in [("thread", "cpu: "), ("process", "cuda:0: ")] {
        if isolation == "process" && !cfg!(target_os = "linux") {
            continue;
        }
        let engined = Engined::start_as(&["--isolation", isolation], &environment);
        let error = said(&engined, 200).await.expect_err("it fails in the middle");
        assert!(!error.message().is_empty());
        let failed = engined.wait_for("model failed");
        assert!(
            failed.contains("unspecified launch failure (CUDA error 719)")
                && failed.contains("this process cannot use the card any more"),
            "{failed}"
        );
        let ready = engined.wait_for("model ready");
        assert!(ready.contains(device), "{isolation}: {ready}");
        assert!(!said(&engined, 4).await.expect("it is served again").is_empty());
    }
}
