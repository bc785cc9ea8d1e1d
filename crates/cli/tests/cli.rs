//! The program as a person meets it: started as a process, spoken to over plain sockets, ended by signals. Every
//! test has its own store in a temporary directory and free ports.

// In the functions that tests share, too, a step that fails fails the test.
#![allow(clippy::unwrap_used)]

use hanzo_engine_daemon::Config;
use hanzo_engine_daemon::store::{NewModel, Store};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Nothing here takes so long; a test that hangs fails instead.
const PATIENCE: Duration = Duration::from_secs(120);
const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/hanzo-demo/hanzo-demo-Q8_0.gguf");

// ---------------------------------------------------------------- the program

/// The program with a store of its own, and no daemon to find but one that is named.
fn program(store: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hanzo-engine"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("HANZO_") {
            command.env_remove(name);
        }
    }
    command.env("HANZO_MODELS_DIR", store).env("HANZO_ENGINE_ADDRESS", "none").stdin(Stdio::null());
    command
}

fn run(store: &Path, args: &[&str]) -> Output {
    program(store).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Runs it and expects success; its stdout.
#[track_caller]
fn ok(store: &Path, args: &[&str]) -> String {
    let output = run(store, args);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Runs it and expects `code` and one line of error; that line.
#[track_caller]
fn fails(store: &Path, code: i32, args: &[&str]) -> String {
    let output = run(store, args);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
    assert!(output.stdout.is_empty(), "{args:?}: {}", text(&output.stdout));
    assert!(stderr.starts_with("error: "), "{args:?}: {stderr}");
    if code == 1 {
        assert_eq!(stderr.lines().count(), 1, "{args:?}: {stderr}");
    }
    stderr
}

/// The demo model's file under another name, in `dir`.
fn copy_of_demo(dir: &Path, name: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::copy(DEMO, &path).unwrap();
    path
}

/// A `serve` that is up, with the addresses it printed.
struct Serving {
    child: Child,
    stdout: BufReader<ChildStdout>,
    http: SocketAddr,
    grpc: String,
    admin: SocketAddr,
    printed: String,
    _store: Option<TempDir>,
}

impl Serving {
    fn start(args: &[&str]) -> Self {
        let store = tempfile::tempdir().unwrap();
        let mut serving = Self::start_at(store.path(), args);
        serving._store = Some(store);
        serving
    }

    /// Starts it on free ports and reads what it prints up to the curl line.
    fn start_at(store: &Path, args: &[&str]) -> Self {
        let ports = ["--port", "0", "--grpc-port", "0", "--admin-port", "0", "--threads", "2"];
        let mut child = program(store)
            .arg("serve")
            .args(ports)
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut printed = String::new();
        while !printed.lines().any(|line| line.trim_start().starts_with("curl ")) {
            if stdout.read_line(&mut printed).unwrap() == 0 {
                let mut stderr = String::new();
                child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
                panic!("it ended: {printed}{stderr}");
            }
        }
        let address = |label: &str| {
            let line = printed.lines().find(|line| line.trim_start().starts_with(label));
            let url = line.and_then(|line| line.split_whitespace().find(|word| word.starts_with("http://")));
            url.unwrap_or_else(|| panic!("no {label} in {printed}")).to_owned()
        };
        let socket = |url: String| url.trim_start_matches("http://").parse().unwrap();
        let (http, admin, grpc) = (socket(address("HTTP")), socket(address("admin")), address("gRPC"));
        Self { child, stdout, http, grpc, admin, printed, _store: None }
    }

    /// Runs a command that asks this daemon.
    fn ask(&self, args: &[&str]) -> Output {
        let elsewhere = tempfile::tempdir().unwrap();
        program(elsewhere.path()).env("HANZO_ENGINE_ADDRESS", &self.grpc).args(args).output().unwrap()
    }

    #[track_caller]
    fn ask_ok(&self, args: &[&str]) -> String {
        let output = self.ask(args);
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    fn signal(&self, name: &str) {
        let killed = Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap();
        assert!(killed.success());
    }

    /// Waits for the end; the exit code, the rest of stdout, and stderr.
    fn end(mut self) -> (Option<i32>, String, String) {
        let (mut out, mut err) = (String::new(), String::new());
        self.stdout.read_to_string(&mut out).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        (self.child.wait().unwrap().code(), out, err)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // After `end` it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One HTTP/1.1 request on a connection of its own; the reader stands before the response.
fn send(address: SocketAddr, method: &str, path: &str, body: &str) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    BufReader::new(stream)
}

/// Status and body.
fn http(address: SocketAddr, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut response = String::new();
    send(address, method, path, body).read_to_string(&mut response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

// ---------------------------------------------------------------- words

#[test]
fn help_lists_every_command_and_typos_get_suggestions() {
    let dir = tempfile::tempdir().unwrap();
    let help = ok(dir.path(), &["--help"]);
    let serving =
        ["serve", "run", "embed", "rerank", "load", "ps", "stop", "bench", "inspect", "completions"];
    let keeping = ["pull", "list", "show", "rm", "cp", "gc", "verify", "du", "export", "import", "doctor"];
    for command in serving.into_iter().chain(keeping) {
        assert!(
            help.lines().any(|line| line.trim_start().starts_with(&format!("{command} "))),
            "{command}: {help}"
        );
        assert!(ok(dir.path(), &[command, "--help"]).contains("Usage: hanzo-engine"), "{command}");
    }
    assert!(!help.contains('\u{1b}'), "no colours into a pipe");
    assert_eq!(ok(dir.path(), &["--version"]), concat!("hanzo-engine ", env!("CARGO_PKG_VERSION"), "\n"));
    assert!(fails(dir.path(), 2, &["serv"]).contains("'serve'"));
    assert!(fails(dir.path(), 2, &["serve", "--modle", "x"]).contains("'--model'"));
    assert!(fails(dir.path(), 2, &["run"]).contains("<MODEL>"));
    assert!(fails(dir.path(), 2, &["serve", "--memory-budget", "8 apples"]).contains("unit"));
}

#[test]
fn without_a_daemon_ps_and_stop_say_so() {
    let dir = tempfile::tempdir().unwrap();
    // A port that is free now: nobody answers there.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("http://127.0.0.1:{port}");
    for args in [&["ps"][..], &["stop", "x"], &["ps", "--json"]] {
        let error = fails(dir.path(), 1, &[args, &["--engine", &address]].concat());
        assert!(error.contains("no daemon answers") && error.contains("hanzo-engine serve"), "{error}");
    }
    let error = fails(dir.path(), 1, &["list", "--engine", &address]);
    assert!(error.contains("no daemon answers"), "a daemon that is named must answer: {error}");
}

#[test]
fn a_closed_pipe_is_quiet() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = program(dir.path())
        .args(["list", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
}

#[test]
fn the_example_configuration_of_the_docs_is_valid() {
    let page = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/reference/configuration.md"
    ))
    .expect("the page about configuration");
    let example = page.split_once("```toml\n").unwrap().1.split_once("```").unwrap().0;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("engine.toml");
    std::fs::write(&file, example).unwrap();
    let config = Config::load(Some(&file), figment::Figment::new()).unwrap();
    assert_eq!(config.models[0].alias.as_deref(), Some("qwen3-4b"));
    assert_eq!(config.server, Config::default().server, "the values that the page calls defaults");
}

// ---------------------------------------------------------------- serving

#[test]
fn serve_prints_addresses_and_a_line_to_paste_that_answers() {
    let serving = Serving::start(&[]);
    assert!(serving.printed.contains("hanzo-demo on cpu"), "{}", serving.printed);
    // The line as it was printed, by the shell it was printed for.
    let curl = serving.printed.lines().find(|line| line.trim_start().starts_with("curl ")).unwrap();
    let body = curl.split_once("-d '").unwrap().1.trim_end_matches('\'');
    let path = curl.split_whitespace().nth(1).unwrap().split_once(&serving.http.to_string()).unwrap().1;
    let (status, answer) = http(serving.http, "POST", path, body);
    assert_eq!(status, 200, "{answer}");
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
    let content = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(content.contains("Paris"), "{content}");

    assert_eq!(http(serving.http, "GET", "/ready", "").0, 200);
    assert_eq!(http(serving.admin, "GET", "/readyz", "").0, 200);
    serving.signal("-INT");
    let (code, ..) = serving.end();
    assert_eq!(code, Some(0));
}

#[test]
fn what_an_encoder_is_offered_it_can_do() {
    for (model, route) in [
        ("bert-mean", "/v1/embeddings"),
        ("bert-crossencoder", "/v1/rerank"),
        ("bert-classifier", "/v1/classify"),
    ] {
        let directory = format!("{}/../../tests/data/encoders/{model}", env!("CARGO_MANIFEST_DIR"));
        let serving = Serving::start(&["--model", &directory]);
        let curl = serving.printed.lines().find(|line| line.trim_start().starts_with("curl ")).unwrap();
        let body = curl.split_once("-d '").unwrap().1.trim_end_matches('\'');
        assert!(curl.contains(&format!("{}{route} ", serving.http)), "{curl}");
        let (status, answer) = http(serving.http, "POST", route, body);
        assert_eq!(status, 200, "{curl}: {answer}");
    }
}

/// A completion of about `tokens` tokens as a stream that has begun, and its first event.
fn begin_stream(serving: &Serving, tokens: u32) -> (BufReader<TcpStream>, String) {
    let body = serde_json::json!({
        "model": "hanzo-demo", "prompt": "Tell me a story.", "max_tokens": tokens, "ignore_eos": true, "stream": true
    });
    let mut stream = send(serving.http, "POST", "/v1/completions", &body.to_string());
    let mut begun = String::new();
    while !begun.contains("data: {") {
        assert_ne!(stream.read_line(&mut begun).unwrap(), 0, "{begun}");
    }
    (stream, begun)
}

#[test]
fn sigterm_lets_a_stream_finish() {
    let serving = Serving::start(&[]);
    let (mut stream, mut answer) = begin_stream(&serving, 1_500);
    serving.signal("-TERM");
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("data: [DONE]"), "{}", &answer[answer.len().saturating_sub(500)..]);
    assert!(answer.contains(r#""finish_reason":"length""#));
    let (code, _, stderr) = serving.end();
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("finishing what runs"), "{stderr}");
}

#[test]
fn a_hangup_changes_nothing_that_runs_and_a_quit_lets_it_finish() {
    let serving = Serving::start(&[]);
    let (mut stream, mut answer) = begin_stream(&serving, 1_500);
    serving.signal("-HUP");
    serving.signal("-QUIT");
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("data: [DONE]"), "{}", &answer[answer.len().saturating_sub(500)..]);
    let (code, _, stderr) = serving.end();
    assert_eq!(code, Some(0), "{stderr}");
    assert!(
        stderr.contains("settings were read again") && stderr.contains("finishing what runs"),
        "{stderr}"
    );
}

#[test]
fn a_system_without_threads_is_said_in_one_line() {
    let store = tempfile::tempdir().unwrap();
    for args in [&["serve", "--port", "0"][..], &["ps"]] {
        // No thread can have a stack of this size: each is refused, as where none are left.
        let output =
            program(store.path()).args(args).env("RUST_MIN_STACK", (1_u64 << 46).to_string()).output();
        let said = text(&output.unwrap().stderr);
        assert!(
            said.starts_with("error: ") && said.contains("ulimit -u") && !said.contains("panicked"),
            "{said}"
        );
    }
}

#[test]
fn a_stream_that_outlives_the_drain_ends_with_an_error_event() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("engine.toml");
    std::fs::write(&config, "[server]\ndrain_s = 0\n").unwrap();
    let serving = Serving::start(&["--config", config.to_str().unwrap()]);
    let (mut stream, mut answer) = begin_stream(&serving, 3_900);
    serving.signal("-TERM");
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains(r#""error""#) && !answer.contains("[DONE]"), "{answer}");
    assert_eq!(serving.end().0, Some(0));
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let serving = Serving::start(&[]);
    let (mut stream, _) = begin_stream(&serving, 3_900);
    serving.signal("-INT");
    serving.signal("-TERM");
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert!(!text(&rest).contains("[DONE]"));
    assert_eq!(serving.end().0, Some(130));
}

#[test]
fn what_cannot_be_served_is_told_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let free = ["serve", "--port", "0", "--grpc-port", "0", "--admin-port", "0"];
    let serve = |more: &[&str]| fails(dir.path(), 1, &[&free[..], more].concat());
    let missing = serve(&["--model", "/no/such/model.gguf"]);
    assert!(missing.contains("/no/such/model.gguf") && missing.contains("No such file"), "{missing}");
    let broken = dir.path().join("broken.gguf");
    std::fs::write(&broken, b"GGUF and then nothing of use").unwrap();
    let output = run(
        dir.path(),
        &[&free[..], &["--log-level", "error", "--model", broken.to_str().unwrap()]].concat(),
    );
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(
        stderr.lines().last().unwrap().starts_with("error: cannot load") && stderr.contains("broken.gguf"),
        "{stderr}"
    );
    assert!(!stderr.contains("panicked"), "{stderr}");

    let config = dir.path().join("engine.yaml");
    std::fs::write(&config, "server:\n  prot: 1\n").unwrap();
    let error = serve(&["--config", config.to_str().unwrap()]);
    assert!(error.contains("engine.yaml") && error.contains("server.prot"), "{error}");
}

#[test]
fn a_busy_port_is_named_with_its_flag() {
    let dir = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for flag in ["--port", "--grpc-port", "--admin-port"] {
        let mut args = vec!["serve"];
        for each in ["--port", "--grpc-port", "--admin-port"] {
            args.extend([each, if each == flag { &port } else { "0" }]);
        }
        let error = fails(dir.path(), 1, &args);
        assert!(error.contains(&format!(":{port} ")) && error.contains(&format!("{flag} 0")), "{error}");
    }
}

// ---------------------------------------------------------------- asking

#[test]
fn run_answers_on_stdout_and_reads_a_pipe() {
    let dir = tempfile::tempdir().unwrap();
    let question = "What is the capital of France?";
    let answer = ok(dir.path(), &["run", "hanzo-demo", question, "--temperature", "0"]);
    assert!(answer.contains("Paris") && answer.ends_with('\n'), "{answer}");
    assert!(!answer.contains('\u{1b}') && !answer.contains("loading"), "{answer}");

    let mut child = program(dir.path())
        .args(["run", "HANZO-demo", "--temperature", "0", "--no-think", "--verbose"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(question.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(text(&output.stdout).contains("Paris"), "{}", text(&output.stdout));
    assert!(text(&output.stderr).contains("tokens/s"), "{}", text(&output.stderr));
}

#[test]
fn run_honours_its_options() {
    let serving = Serving::start(&[]);
    let ask = |args: &[&str]| serving.ask_ok(&[&["run", "hanzo-demo"], args].concat());
    let story = ["Tell me a story about a fox.", "--temperature", "1", "--no-think"];
    let seeded = |seed| ask(&[&story[..], &["--seed", seed]].concat());
    assert_eq!(seeded("7"), seeded("7"), "the same seed, the same story");
    let others: Vec<String> = ["1", "2", "3", "4"].map(seeded).into();
    assert!(others.iter().any(|other| *other != seeded("7")), "four other seeds, four times the same story");

    let short =
        ask(&["Tell me a story about a fox.", "--temperature", "0", "--no-think", "--max-tokens", "3"]);
    let long = ask(&["Tell me a story about a fox.", "--temperature", "0", "--no-think"]);
    assert!(long.starts_with(short.trim_end()) && long.len() > short.len() + 10, "{short:?} {long:?}");
    let word = long.split_whitespace().nth(3).unwrap();
    let cut = ask(&["Tell me a story about a fox.", "--temperature", "0", "--no-think", "--stop", word]);
    assert!(!cut.contains(word) && long.starts_with(cut.trim_end()), "{cut:?} {long:?}");

    let raw = ask(&["--raw", "The capital of France is", "--temperature", "0", "--max-tokens", "8"]);
    assert!(!raw.is_empty());
    let thought = serving.ask(&["run", "hanzo-demo", "What is 2 + 2?", "--think", "--temperature", "0"]);
    assert!(!text(&thought.stdout).contains("<think>"), "{}", text(&thought.stdout));
    assert!(!thought.stderr.is_empty(), "the reasoning goes to stderr");
}

#[test]
fn run_says_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let error = fails(dir.path(), 1, &["run", "no-such-model", "hi"]);
    assert!(error.contains("no-such-model") && error.contains("neither"), "{error}");
    let error = fails(dir.path(), 1, &["run", "./no-such.gguf", "hi"]);
    assert!(error.contains("./no-such.gguf") && error.contains("No such file"), "{error}");
    let error = fails(dir.path(), 2, &["run", "hanzo-demo"]);
    assert!(error.contains("nothing to ask"), "{error}");
    let mut child = program(dir.path())
        .args(["run", "hanzo-demo"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"ab\xff").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("not UTF-8 at byte 2"), "{}", text(&output.stderr));
}

// ---------------------------------------------------------------- the store

#[test]
fn a_served_path_is_known_by_name_from_then_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = copy_of_demo(dir.path(), "Tiny-Chat-Q8_0.gguf");
    let store = dir.path().join("store");
    let serving = Serving::start_at(&store, &["--model", path.to_str().unwrap()]);

    let listed: serde_json::Value = serde_json::from_str(&serving.ask_ok(&["list", "--json"])).unwrap();
    let tiny = listed.as_array().unwrap().iter().find(|model| model["name"] == "Tiny-Chat-Q8_0").unwrap();
    assert_eq!(
        (&tiny["loaded"], &tiny["format"], &tiny["missing"]),
        (&true.into(), &"gguf".into(), &false.into())
    );
    let ps = serving.ask_ok(&["ps"]);
    assert!(ps.starts_with("NAME ") && ps.contains("Tiny-Chat-Q8_0") && ps.contains("ready"), "{ps}");
    let shown = serving.ask_ok(&["show", "tiny-chat-q8_0"]);
    assert!(shown.contains("qwen3") && shown.contains("5.8 M") && shown.contains("chat template"), "{shown}");
    let listed_elsewhere = serving.ask_ok(&["list"]);
    assert!(listed_elsewhere.contains(path.to_str().unwrap()), "{listed_elsewhere}");
    let answer =
        serving.ask_ok(&["run", "tiny-chat-Q8_0", "What is the capital of France?", "--temperature", "0"]);
    assert!(answer.contains("Paris"), "{answer}");

    // The record is the daemon's while it runs: who would open it says where it is and what to do.
    let locked = fails(&store, 1, &["list"]);
    assert!(locked.contains("in use") && locked.contains(store.to_str().unwrap()), "{locked}");
    let beside =
        ok(&store, &["run", path.to_str().unwrap(), "What is the capital of France?", "--temperature", "0"]);
    assert!(beside.contains("Paris"), "a path needs no record: {beside}");

    let stopped = serving.ask_ok(&["stop", "tiny-chat-q8_0"]);
    assert_eq!(stopped, "unloaded Tiny-Chat-Q8_0\n");
    assert_eq!(serving.ask_ok(&["ps", "--json"]).trim(), "[]");
    serving.signal("-TERM");
    assert_eq!(serving.end().0, Some(0));

    let table = ok(&store, &["list"]);
    assert!(
        table.starts_with("NAME ") && table.contains("Tiny-Chat-Q8_0") && table.contains("6.3 MB"),
        "{table}"
    );
    let card: serde_json::Value =
        serde_json::from_str(&ok(&store, &["show", "TINY-chat-q8_0", "--json"])).unwrap();
    assert_eq!(card["architecture"], "qwen3");
    assert_eq!(card["files"][0]["sha256"].as_str().map(str::len), Some(64));

    std::fs::remove_file(&path).unwrap();
    assert!(ok(&store, &["list"]).contains("(missing)"));
    assert!(ok(&store, &["show", "tiny-chat-q8_0"]).contains("(missing)"));
    assert!(ok(&store, &["rm", "tiny-chat-q8_0"]).starts_with("forgot Tiny-Chat-Q8_0"));
    let unknown = fails(&store, 1, &["show", "tiny-chat-q8_0"]);
    assert!(unknown.contains("neither in the store"), "{unknown}");
}

#[test]
fn rm_leaves_the_files_of_a_model() {
    let dir = tempfile::tempdir().unwrap();
    let path = copy_of_demo(dir.path(), "keep.gguf");
    let store = dir.path().join("store");
    let new = NewModel { path: path.clone(), format: "gguf".to_owned(), ..NewModel::default() };
    Store::open(&store).unwrap().register(Some("me/Keep"), new, 0).unwrap();
    let removed: serde_json::Value = serde_json::from_str(&ok(&store, &["rm", "keep", "--json"])).unwrap();
    assert_eq!((&removed["name"], &removed["freed_bytes"]), (&"me/Keep".into(), &0.into()));
    assert!(path.exists());
    assert!(fails(&store, 1, &["rm", "keep"]).contains("no model named \"keep\""));
    let empty = run(&store, &["list"]);
    assert_eq!(text(&empty.stdout), "NAME  FORMAT  QUANT  SIZE  MODIFIED  PATH\n");
    assert!(text(&empty.stderr).contains("no models are known yet"));
    assert_eq!(ok(&store, &["list", "--json"]), "[]\n");
}

#[test]
fn the_built_in_model_can_be_shown_without_a_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let card: serde_json::Value =
        serde_json::from_str(&ok(dir.path(), &["show", "hanzo-demo", "--json"])).unwrap();
    assert_eq!((&card["name"], &card["parameters"]), (&"hanzo-demo".into(), &5_771_264.into()));
}

// ---------------------------------------------------------------- speed

#[test]
fn bench_has_a_row_for_each_test() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["bench", "--model", DEMO, "-p", "64,0", "-n", "8", "-r", "2", "-d", "0,32", "-b", "1,3"];
    let report: serde_json::Value =
        serde_json::from_str(&ok(dir.path(), &[&args[..], &["--json", "--limits"]].concat())).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let tests: Vec<_> = rows.iter().map(|row| row["test"].as_str().unwrap()).collect();
    assert_eq!(tests, ["pp64", "pp64@d32", "tg8", "tg8 b3", "tg8@d32", "tg8@d32 b3"]);
    for limit in ["read_bytes_per_s", "int8_ops_per_s", "f32_ops_per_s"] {
        assert!(report["limits"][limit].as_f64().unwrap() > 0.0, "{report}");
    }
    for row in rows {
        let keys: Vec<_> = row.as_object().unwrap().keys().map(String::as_str).collect();
        let numbers = ["n_prompt", "n_gen", "depth", "batch", "tokens_per_s", "stddev"];
        assert_eq!(keys, [&["test", "kind"], &numbers[..], &["samples", "shares"]].concat());
        assert!(numbers.iter().all(|number| row[number].as_f64().unwrap() >= 0.0), "{row}");
        assert_eq!(row["samples"].as_array().unwrap().len(), 2);
        assert_eq!(row["shares"]["read"].is_null(), row["kind"] == "prompt");
        assert!(row["shares"]["arithmetic"].as_f64().unwrap() > 0.0, "{row}");
    }
    let table = ok(dir.path(), &["bench", "--model", DEMO, "-p", "64", "-n", "8", "-r", "2", "-t", "2"]);
    assert!(table.contains("pp64") && table.contains('±') && !table.contains("SHARE"), "{table}");
    let shares = ok(dir.path(), &["bench", "--model", DEMO, "-p", "64", "-n", "8", "-r", "1", "--limits"]);
    assert!(shares.contains("GB/s") && shares.contains("% of "), "{shares}");
    assert!(fails(dir.path(), 2, &["bench", "-p", "0", "-n", "0"]).contains("no test"));
    assert!(fails(dir.path(), 1, &["bench", "--model", "./none.gguf"]).contains("none.gguf"));
    assert!(fails(dir.path(), 1, &["bench", "-p", "100000"]).contains("100000"));
    assert!(fails(dir.path(), 1, &["bench", "-d", "100"]).contains("96 or 112"));
    assert!(fails(dir.path(), 1, &["bench", "-b", "1000"]).contains("512"));
}
