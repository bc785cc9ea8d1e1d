//! `engine-gateway` as a process: what signals do, and what it says where the machine lacks threads.

#![cfg(unix)]

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Command, Stdio},
};

fn gateway() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_engine-gateway"));
    command.args(["--port", "0", "--engine", "http://127.0.0.1:1"]).env("HANZO_ENGINE_LOG_LEVEL", "info");
    command.env("NO_COLOR", "1").stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

#[test]
fn a_hangup_is_taken_note_of_and_a_quit_ends_it_well() {
    let mut process = gateway().spawn().expect("it starts");
    let mut log = BufReader::new(process.stderr.take().expect("it is piped"));
    let mut wait_for = |words: &str| loop {
        let mut line = String::new();
        assert_ne!(log.read_line(&mut line).expect("UTF-8"), 0, "it ended before: {words}");
        if line.contains(words) {
            return line;
        }
    };
    let line = wait_for("listens");
    let address =
        line.split("http=").nth(1).and_then(|rest| rest.split_whitespace().next()).expect("an address");
    let signal = |name: &str| {
        let told = Command::new("kill").args([name, &process.id().to_string()]).status();
        assert!(told.expect("kill runs").success());
    };
    signal("-HUP");
    wait_for("settings are taken at a restart");
    let mut stream = TcpStream::connect(address).expect("it listens on");
    stream
        .write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nconnection: close\r\n\r\n")
        .expect("it is sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 503"), "there is no engine: {answer}");
    signal("-QUIT");
    wait_for("has stopped");
    assert!(process.wait().expect("it ends").success());
}

#[test]
fn a_system_without_threads_is_said_in_one_line() {
    // No thread can have a stack of this size: each is refused, as where none are left.
    let output = gateway().env("RUST_MIN_STACK", (1_u64 << 46).to_string()).output().expect("it runs");
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.starts_with("engine-gateway: the system gives this process 0 of the "), "{said}");
    assert!(!said.contains("panicked"), "{said}");
}
