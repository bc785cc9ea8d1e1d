//! The program as a person meets it: started as a process, spoken to over plain sockets, ended by signals. Every
//! test has its own store in a temporary directory and free ports.

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
    for command in ["serve", "run", "list", "show", "rm", "ps", "stop", "bench"] {
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
