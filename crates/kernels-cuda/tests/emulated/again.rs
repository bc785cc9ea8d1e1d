//! A test run again in a process of its own, whose environment says other things.

use std::process::Command;

const AGAIN: &str = "HANZO_ENGINE_TEST_AGAIN";

/// Whether this is the process that [`in_a_process`] started.
pub(crate) fn is_again() -> bool {
    std::env::var_os(AGAIN).is_some()
}

/// Runs the test of this name with these variables; it must pass there.
pub(crate) fn in_a_process(test: &str, variables: &[(&str, &str)]) {
    let program = std::env::current_exe().expect("a program knows its path");
    let run = Command::new(program)
        .args(["--exact", test, "--nocapture"])
        .env(AGAIN, "1")
        .envs(variables.iter().copied())
        .output()
        .expect("this program starts");
    let said = [run.stdout, run.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    // One that is not there would end well too.
    assert!(
        run.status.success() && said.contains("1 passed"),
        "{test} with {variables:?} has ended with {}:\n{said}",
        run.status
    );
}
