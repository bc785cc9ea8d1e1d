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
fn a_hangup_reads_the_settings_again_and_a_quit_ends_it_well() {
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
    wait_for("settings were read again");
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

/// A gateway that accepts from `socket`, which its caller holds: passed as systemd does it.
fn gateway_on(socket: &std::net::TcpListener) -> std::process::Child {
    // Standard input becomes descriptor 3, and the shell's number is the program's.
    let script = "export LISTEN_PID=$$ LISTEN_FDS=1; exec 3<&0; exec 0</dev/null; exec \"$0\" \"$@\"";
    let given = std::os::fd::OwnedFd::from(socket.try_clone().expect("another handle"));
    let program = gateway();
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(program.get_program()).args(program.get_args());
    for (name, value) in program.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    command.stdin(given).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts")
}

/// The status of one request over a connection of its own.
fn ask(address: std::net::SocketAddr) -> Result<u16, std::io::Error> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(std::time::Duration::from_secs(60)))?;
    stream.write_all(b"GET /alive HTTP/1.1\r\nHost: localhost\r\nconnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    status.ok_or_else(|| std::io::Error::other(format!("no status: {answer:?}")))
}

#[test]
#[cfg(target_os = "linux")]
fn a_socket_that_systemd_holds_is_handed_over_under_load_and_nobody_is_refused() {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
    let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = socket.local_addr().expect("it has one");
    let (over, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    while !over.load(Relaxed) {
                        assert_eq!(ask(address).expect("it is answered"), 200);
                        answered.fetch_add(1, Relaxed);
                    }
                })
            })
            .collect();
        let wait = |more: usize| {
            let since = answered.load(Relaxed);
            while answered.load(Relaxed) < since + more && clients.iter().all(|client| !client.is_finished())
            {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        };
        for _ in 0..3 {
            let mut process = gateway_on(&socket);
            let log = process.stderr.take().expect("it is piped");
            let log =
                scope.spawn(move || BufReader::new(log).lines().map_while(Result::ok).collect::<Vec<_>>());
            wait(50);
            assert!(
                Command::new("kill").arg(process.id().to_string()).status().expect("kill runs").success()
            );
            assert!(process.wait().expect("it ends").success());
            let log = log.join().expect("it is read").join("\n");
            assert!(log.contains(&address.to_string()) && log.contains("has stopped"), "{log}");
        }
        over.store(true, Relaxed);
        // Those that were asking wait in the backlog for one more.
        let mut last = gateway_on(&socket);
        for client in clients {
            client.join().expect("nobody was refused");
        }
        last.kill().and_then(|()| last.wait()).expect("it ends");
    });
    assert!(answered.load(Relaxed) >= 150);
}

#[test]
fn settings_are_checked_and_printed_without_serving() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = dir.path().join("gateway.toml");
    let run = |text: &str, flag: &str| {
        std::fs::write(&file, text).expect("written");
        let mut command = gateway();
        command.arg("--config").arg(&file).arg(flag).env("HANZO_ENGINE_API_KEY", "correct-horse");
        let output = command.stdout(Stdio::piped()).output().expect("it runs");
        let said = String::from_utf8([output.stdout, output.stderr].concat()).expect("text");
        (output.status.success(), said)
    };
    let (done, said) = run("drain_s = 7\n", "--print-config");
    assert!(done && said.contains("drain_s = 7\n") && said.contains("api_key = \"***\""), "{said}");
    assert!(!said.contains("horse"), "{said}");
    assert!(run("", "--check-config").0);
    let (done, said) = run("choice_max = 7\n", "--check-config");
    assert!(!done && said.contains("did you mean choices_max?"), "{said}");
    let (done, said) = run("tls_cert = \"/no/cert\"\ntls_key = \"/no/key\"\n", "--check-config");
    assert!(!done && said.contains("/no/cert"), "{said}");
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
