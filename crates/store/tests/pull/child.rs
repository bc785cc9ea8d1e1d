//! This program again as a child process, for what a process alone can do: die, or have an environment of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const ROLE: &str = "HANZO_STORE_TEST_CHILD";
const DIR: &str = "HANZO_STORE_TEST_DIR";

/// The test `name`, which then plays the part that `what` says, in `dir`.
pub(crate) fn child(name: &str, dir: &Path, what: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", name, "--nocapture", "--test-threads", "1"])
        .env(ROLE, what)
        .env(DIR, dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit());
    command
}

/// What a child is to do, and where; none in the tests' own process.
pub(crate) fn part() -> Option<(String, PathBuf)> {
    Some((std::env::var(ROLE).ok()?, std::env::var_os(DIR)?.into()))
}
