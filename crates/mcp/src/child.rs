//! MCP server that runs as a child process. It has its own process group and talks over pipes; its stderr is
//! logged. Dropping it ends the whole group, so that no process outlives the gateway. If the gateway is killed,
//! the server sees the end of its input, which tells it to exit by the protocol.

use std::{
    io::{self, Read},
    os::{fd::OwnedFd, unix::process::CommandExt as _},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::net::unix::pipe;

use crate::{
    config::ServerConfig,
    limits::{END_TIMEOUT, STDERR_LINE_BYTES_MAX, STDERR_LINES_PER_S},
};

/// Environment variables that a server inherits. The others may hold secrets.
const INHERITED: [&str; 12] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LC_ALL",
    "TERM",
    "TMPDIR",
    "TZ",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
];

/// Child process that is ended on drop.
pub(crate) struct Process {
    child: Option<Child>,
}

/// Starts a server. Returns the process, its stdout and its stdin.
pub(crate) fn start(
    name: &str,
    command: &str,
    config: &ServerConfig,
) -> io::Result<(Process, pipe::Receiver, pipe::Sender)> {
    let mut command = Command::new(command);
    command.args(&config.args).env_clear();
    command.envs(INHERITED.iter().filter_map(|name| Some((*name, std::env::var_os(name)?))));
    command.envs(&config.env);
    if let Some(dir) = &config.cwd {
        command.current_dir(dir);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn()?;
    let (input, output, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let process = Process { child: Some(child) };
    let gone = || io::Error::other("a pipe is missing");
    let output = pipe::Receiver::from_owned_fd(OwnedFd::from(output.ok_or_else(gone)?))?;
    let input = pipe::Sender::from_owned_fd(OwnedFd::from(input.ok_or_else(gone)?))?;
    let (name, errors) = (name.to_owned(), errors.ok_or_else(gone)?);
    thread::Builder::new().name("mcp-stderr".to_owned()).spawn(move || log(&name, errors))?;
    Ok((process, output, input))
}

impl Process {
    /// Whether the process still runs.
    pub(crate) fn runs(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }
}

impl Process {
    /// Ends the process, whose input must have ended, and waits until it is gone.
    pub(crate) async fn end(mut self) {
        if let Some(child) = self.child.take() {
            let _ = tokio::task::spawn_blocking(move || end(child)).await;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            // The dropping thread does not wait.
            let _ = thread::Builder::new().name("mcp-end".to_owned()).spawn(move || end(child));
        }
    }
}

fn end(mut child: Child) {
    let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) else { return };
    if !ends(&mut child) {
        let _ = kill_process_group(group, Signal::TERM);
        ends(&mut child);
    }
    // Also ends processes that the server left behind.
    let _ = kill_process_group(group, Signal::KILL);
    let _ = child.wait();
}

/// Whether the process ends within [`END_TIMEOUT`].
fn ends(child: &mut Child) -> bool {
    let deadline = Instant::now() + END_TIMEOUT;
    while Instant::now() < deadline {
        if !matches!(child.try_wait(), Ok(None)) {
            return true;
        }
        thread::sleep(Duration::from_millis(20));
    }
    false
}

/// Logs stderr line by line, with bounds on lines a second and on line length.
fn log(name: &str, mut errors: impl Read) {
    let (mut line, mut buffer) = (Vec::new(), [0; 4096]);
    let (mut second, mut lines, mut left_out) = (Instant::now(), 0, 0_u64);
    let mut say = |line: &mut Vec<u8>| {
        if second.elapsed() >= Duration::from_secs(1) {
            if left_out > 0 {
                tracing::info!(server = name, lines = left_out, "left out of a server's stderr");
            }
            (second, lines, left_out) = (Instant::now(), 0, 0);
        }
        lines += 1;
        if lines > STDERR_LINES_PER_S {
            left_out += 1;
        } else {
            let text: String = String::from_utf8_lossy(line).chars().filter(|c| !c.is_control()).collect();
            tracing::info!(server = name, "stderr: {text}");
        }
        line.clear();
    };
    while let Ok(read @ 1..) = errors.read(&mut buffer) {
        for byte in &buffer[..read] {
            match byte {
                b'\n' => say(&mut line),
                byte if line.len() < STDERR_LINE_BYTES_MAX => line.push(*byte),
                _ => {}
            }
        }
    }
    if !line.is_empty() {
        say(&mut line);
    }
}
